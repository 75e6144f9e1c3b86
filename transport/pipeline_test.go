package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// testPipeline: many calls from one goroutine.
func testPipeline(t *testing.T, b *bed) {
	t.Run("sizes", func(t *testing.T) { testPipelineSizes(t, b) })
	t.Run("allocations", func(t *testing.T) { testPipelineAllocs(t, b) })
	t.Run("given up", func(t *testing.T) { testPipelineGivenUp(t, b) })
	t.Run("ends", func(t *testing.T) { testPipelineEnds(t, b) })
	t.Run("beside callers", func(t *testing.T) { testPipelineBeside(t, b) })
}

// A piece is a call of an echo, with the memory that belongs to it.
type piece struct {
	rpc.Call
	data, buf []byte
}

func newPiece(n int, seed uint32) *piece {
	p := &piece{data: make([]byte, n), buf: make([]byte, n)}
	fill(p.data, seed)
	p.Prog, p.Vers, p.Proc, p.MaxResults = prog, 1, procEcho, 8
	p.Args = xdr.AppendUint32(nil, uint32(n))
	p.ReadItems = []rpc.ReadItem{{Offset: 4, Data: p.data}}
	p.Receive(p.buf)
	return p
}

// check looks at the returned data.
func (p *piece) check() error {
	res := p.Decoder()
	got := res.Item()
	if err := res.End(); err != nil {
		return err
	}
	if !bytes.Equal(got, p.data) {
		return fmt.Errorf("%d bytes came back differently", len(p.data))
	}
	return nil
}

func testPipelineSizes(t *testing.T, b *bed) {
	w := b.start(t, nil)
	cl := w.requester(t, nil)
	p := transport.NewPipeline(cl)
	defer p.Close()
	const outstanding = 40 // more than there are credits
	pieces := make(map[*rpc.Call]*piece)
	sizes := []int{0, 1, 64, 1000, 4000, 5000, 70_000}
	for i := range outstanding {
		pc := newPiece(sizes[i%len(sizes)], uint32(i))
		pieces[&pc.Call] = pc
		p.Start(&pc.Call)
	}
	for left := max(b.count(2000), 2*outstanding); p.Len() > 0; left-- {
		call, err := p.Wait(bg)
		if err != nil {
			t.Fatal(err)
		}
		if err := pieces[call].check(); err != nil {
			t.Fatal(err)
		}
		if left > outstanding {
			p.Start(call)
		}
	}
	if call, err := p.Wait(bg); call != nil || err != nil {
		t.Errorf("Wait without a call returns %v, %v", call, err)
	}

	// A call fails alone.
	bad := []*rpc.Call{
		{Prog: prog, Vers: 1, Proc: 99}, {Prog: prog, Vers: 1}, {Prog: prog + 1000, Vers: 1},
		{Prog: prog, Vers: 1, Args: []byte{0, 0, 0, 9}, ReadItems: []rpc.ReadItem{{Offset: 5, Data: []byte{1}}}},
	}
	errs := transport.CallAll(bg, cl, bad...)
	var denied *oncrpc.RPCError
	if len(errs) != len(bad) || !errors.As(errs[0], &denied) || errs[1] != nil || !errors.As(errs[2], &denied) || errs[3] == nil {
		t.Errorf("the calls ended with %v", errs)
	}
	if errs := transport.CallAll(bg, cl, bad[1], &rpc.Call{Prog: prog, Vers: 1}); errs != nil {
		t.Errorf("the calls ended with %v", errs)
	}
}

func testPipelineAllocs(t *testing.T, b *bed) {
	b.counts(t)
	w := b.start(t, nil)
	cl := w.dial(t, nil)
	p := transport.NewPipeline(cl)
	defer p.Close()
	var calls [16]rpc.Call
	round := func() {
		for i := range calls {
			c := &calls[i]
			c.Prog, c.Vers = prog, 1
			p.Start(c)
		}
		for range calls {
			if call, err := p.Wait(bg); call == nil || err != nil {
				t.Fatal(call, err)
			}
		}
	}
	for range 100 {
		round()
	}
	if n := b.allocs(1000, round); n > 0 {
		t.Errorf("%v allocations for %d calls", n, len(calls))
	}
}

// testPipelineGivenUp: a Pipeline is closed at random moments; its memory is out of reach then.
func testPipelineGivenUp(t *testing.T, b *bed) {
	w := b.start(t, nil)
	rng := rand.New(rand.NewPCG(3, 4))
	given, whole := 0, 0
	var cl *transport.Client
	for i := range b.count(60) + 5 {
		if cl == nil || cl.Err() != nil {
			cl = w.dial(t, nil)
		}
		p := transport.NewPipeline(cl)
		var pieces []*piece
		for j := range 12 {
			pc := newPiece(rng.IntN(100_000), uint32(i*j))
			pieces = append(pieces, pc)
			p.StartFunc(&pc.Call, func(err error) {
				switch {
				case err == nil:
					whole++
					if err := pc.check(); err != nil {
						t.Error(err)
					}
				case errors.Is(err, context.Canceled):
					given++
				case !errors.Is(err, net.ErrClosed): // a call with chunks in use may cost the connection
					t.Error(err)
				}
			})
		}
		ctx, cancel := context.WithTimeout(bg, time.Duration(b.slow*rng.IntN(2_000_000)))
		call, err := p.Wait(ctx)
		cancel()
		if call != nil || err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(call, err)
		}
		p.Close()
		if n := p.Len(); n != 0 {
			t.Fatalf("%d calls are left", n)
		}
		for _, pc := range pieces {
			snapshot := bytes.Clone(pc.buf)
			for range 3 {
				time.Sleep(time.Microsecond)
			}
			if !bytes.Equal(pc.buf, snapshot) {
				t.Fatal("memory changed after Close")
			}
			fill(pc.data, 1) // the race detector tells if the adapter still reads it
		}
	}
	t.Logf("%d done, %d given up", whole, given)
}

// testPipelineEnds: the connection, or the client, ends under a Pipeline's calls.
func testPipelineEnds(t *testing.T, b *bed) {
	w := b.start(t, nil)
	cl := w.dial(t, nil)
	p := transport.NewPipeline(cl)
	defer p.Close()
	for range 5 {
		p.Start(&rpc.Call{Prog: prog, Vers: 1, Proc: procHang})
	}
	if err := p.Flush(bg); err != nil {
		t.Fatal(err)
	}
	for w.svc.hanging.Load() < 1 {
		runtime.Gosched()
	}
	cl.Close()
	for p.Len() > 0 {
		if call, err := p.Wait(bg); call == nil || !errors.Is(err, net.ErrClosed) {
			t.Fatalf("a call ends with %v, %v", call, err)
		}
	}
	p.Start(&rpc.Call{Prog: prog, Vers: 1})
	if call, err := p.Wait(bg); call == nil || !errors.Is(err, net.ErrClosed) {
		t.Errorf("a call after the end ends with %v, %v", call, err)
	}
}

// testPipelineBeside: a Pipeline that is always full does not keep other callers from the
// connection, nor they it.
func testPipelineBeside(t *testing.T, b *bed) {
	w := b.start(t, &transport.Settings{Credits: 4})
	cl := w.dial(t, nil)
	n := b.count(300)
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	piped := make(chan int)
	go func() {
		p := transport.NewPipeline(cl)
		defer p.Close()
		calls := make([]rpc.Call, 20)
		for i := range calls {
			calls[i] = rpc.Call{Prog: prog, Vers: 1}
			p.Start(&calls[i])
		}
		ended := 0
		for {
			call, _ := p.Wait(ctx)
			if call == nil {
				break
			}
			ended++
			p.Start(call)
		}
		piped <- ended
	}()
	failed := make(chan error, 8)
	for range cap(failed) {
		go func() {
			for range n {
				if err := cl.Null(bg, prog, 1); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	cancel()
	if ended := <-piped; ended < n/8 {
		t.Errorf("%d calls of the Pipeline beside %d of others", ended, cap(failed)*n)
	}
}

// TestPipelineElsewhere checks a Pipeline over TCP and over other kinds of Callers.
func TestPipelineElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name string
		of   func(*transport.Client) rpc.Caller
	}{
		{"TCP", func(cl *transport.Client) rpc.Caller { return cl }},
		{"function", func(cl *transport.Client) rpc.Caller { return rpc.CallerFunc(cl.Call) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := startTCP(t, nil)
			cl := w.dial(t, nil)
			c := tt.of(cl)
			p := transport.NewPipeline(c)
			var got []uint32
			for i := range uint32(300) {
				pc := newPiece(int(i)*10, i)
				p.StartFunc(&pc.Call, func(err error) {
					if err == nil {
						err = pc.check()
					}
					if err != nil {
						t.Error(i, err)
					}
					got = append(got, i)
				})
			}
			if call, err := p.Wait(bg); call != nil || err != nil {
				t.Fatal(call, err)
			}
			slices.Sort(got)
			if len(slices.Compact(got)) != 300 {
				t.Errorf("%d calls ended", len(got))
			}
			hang := &rpc.Call{Prog: prog, Vers: 1, Proc: procHang}
			p.Start(hang)
			ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
			defer cancel()
			if call, err := p.Wait(ctx); call != nil || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait returns %v, %v", call, err)
			}
			p.Close()
			if p.Len() != 0 {
				t.Errorf("%d calls are left", p.Len())
			}
			cl.Close()
			for transport.MemoryUse(w.server) > 0 { // until the handler has noticed
				runtime.Gosched()
			}
		})
	}
}
