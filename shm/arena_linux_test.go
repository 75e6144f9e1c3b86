package shm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/llp"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// A lending is a pair of ends of which the server writes from an arena to a region of the client, which has
// posted a receive.
type lending struct {
	client, server *iwarp.Conn
	made           *stream // the client's
	sink           []byte
	seg            fabric.Segment
}

const arenaLen = 2 << 20

func lend(t *testing.T) *lending {
	t.Helper()
	leak.Check(t)
	before := mappings(t)
	t.Cleanup(func() {
		if n := mappings(t); n != before {
			t.Errorf("%d mappings, %d before", n, before)
		}
	})
	p := New(Config{Ring: MinRing, Arena: arenaLen})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	listener, err := p.Listen(ctx, "@", fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client, made := spied(t, p, listener.Addr())
	l := &lending{client: client, sink: make([]byte, arenaLen)}
	t.Cleanup(func() { l.client.Close() })
	mr, err := l.client.RegMR(l.sink, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	l.seg = mr.Segment()
	connected := make(chan error, 1)
	go func() { connected <- l.client.Connect(ctx, nil) }()
	server, err := listener.Accept(ctx)
	if err == nil {
		l.server = server.(*iwarp.Conn)
		t.Cleanup(func() { l.server.Close() })
		err = errors.Join(l.server.Accept(ctx, nil), <-connected)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.made = made.made
	return l
}

// spied returns a connection to be connected to addr, and what will have its stream.
func spied(t *testing.T, p *Provider, addr net.Addr) (*iwarp.Conn, *spy) {
	t.Helper()
	attr, err := p.engine.CheckAttr(fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	s := &spy{setup: &setup{p: p, target: addr.String()}}
	return p.engine.NewConn(s, attr, nil, addr, nil), s
}

// alloc returns memory of the server's arena.
func (l *lending) alloc(t *testing.T, n int) fabric.MR {
	t.Helper()
	mr, err := l.server.AllocMR(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mr.Close() })
	return mr
}

func (l *lending) write(id uint64, at int, sgl ...fabric.SGE) fabric.SendWR {
	return fabric.SendWR{ID: id, Op: fabric.OpWrite, Flags: fabric.Signaled, SGL: sgl, RKey: l.seg.Handle, RemoteOffset: l.seg.Offset + uint64(at)}
}

// TestLoans: what is written from the arena arrives, short or long, in any order with other memory, and only
// short pieces of it go through the ring. Once a Write is complete the memory may have other data.
func TestLoans(t *testing.T) {
	l := lend(t)
	client, server := fabrictest.NewEndpoint(t, "client", l.client), fabrictest.NewEndpoint(t, "server", l.server)
	client.Start()
	server.Start()
	own := l.alloc(t, 1<<20+100).Bytes()
	other := fabrictest.Pattern(100_000, 3)
	client.Receives(8, 16)
	for _, tt := range []struct {
		name string
		sgl  [][]byte
		lent int
	}{
		{"a byte", [][]byte{own[:1]}, 0},
		{"a page", [][]byte{own[4096:8192]}, 0},
		{"16 KiB", [][]byte{own[1 : 1+16<<10]}, 16 << 10},
		{"a segment and a byte", [][]byte{own[:256<<10+1]}, 256 << 10},
		{"all", [][]byte{own}, 1 << 20},
		{"before other memory", [][]byte{nil, own[:40000], nil, other[:17], own[50000:90000]}, 40000},
		{"other memory", [][]byte{other}, 0},
	} {
		fabrictest.Fill(own, uint64(len(tt.name)))
		var sgl []fabric.SGE
		for _, b := range tt.sgl {
			sgl = append(sgl, fabric.SGE{Buf: b})
		}
		want := bytes.Join(tt.sgl, nil)
		before := l.server.Stats().TxLent
		server.Post(tt.name, l.write(1, 0, sgl...))
		server.WantSent(tt.name, 1)
		server.Send(tt.name, []byte("written"))
		client.WantMessage(tt.name, []byte("written"))
		clear(own)
		if got := l.sink[:len(want)]; !bytes.Equal(got, want) {
			t.Errorf("%s: other data arrives", tt.name)
		}
		if lent := l.server.Stats().TxLent - before; lent != uint64(tt.lent) {
			t.Errorf("%s: %d bytes are lent, want %d", tt.name, lent, tt.lent)
		}
		client.Receives(1, 16)
	}
}

// TestLoanIsOut: a Write is complete when the peer has taken its data, and no sooner.
func TestLoanIsOut(t *testing.T) {
	l := lend(t)
	mem := l.alloc(t, 64<<10).Bytes()
	fabrictest.Fill(mem, 9)
	if err := l.server.Post([]fabric.SendWR{l.write(5, 0, fabric.SGE{Buf: mem})}); err != nil {
		t.Fatal(err)
	}
	var wc [1]fabric.WC
	for begin := time.Now(); time.Since(begin) < 20*time.Millisecond; {
		if n, err := l.server.Poll(wc[:]); n > 0 || err != nil {
			t.Fatalf("complete with %+v, %v while nothing has been read", wc, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go fabric.WaitContext(ctx, l.client) // ends with the client, at the latest
	// The client sends nothing: the server looks by itself.
	if err := fabric.WaitContext(ctx, l.server); err != nil {
		t.Fatal(err)
	}
	if n, err := l.server.Poll(wc[:]); n != 1 || err != nil || wc[0].ID != 5 || wc[0].Status != fabric.WCSuccess {
		t.Errorf("%d completions, %+v, %v", n, wc, err)
	}
	cancel()
}

// TestLoanEnds: the end of a connection makes loans void. The client takes no message that follows one.
func TestLoanEnds(t *testing.T) {
	for _, how := range []string{"close", "fail"} {
		t.Run(how, func(t *testing.T) {
			l := lend(t)
			if err := l.client.PostRecv([]fabric.RecvWR{{ID: 1, SGE: fabric.SGE{Buf: make([]byte, 16)}}}); err != nil {
				t.Fatal(err)
			}
			mr := l.alloc(t, 64<<10)
			wrs := []fabric.SendWR{
				l.write(1, 0, fabric.SGE{Buf: mr.Bytes()}),
				{ID: 2, Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: []byte("written")}}},
			}
			if how == "fail" {
				wrs = append(wrs, fabric.SendWR{ID: 3, Op: fabric.OpLocalInv, RKey: 1234})
			}
			if err := l.server.Post(wrs); err != nil {
				t.Fatal(err)
			}
			if how == "close" {
				l.server.Close()
			}
			clear(mr.Bytes()) // it stays mapped
			for {
				if err := l.client.Wait(); err != nil {
					if !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("the client's end: %v", err)
					}
					break
				}
				var wc [2]fabric.WC
				n, _ := l.client.Poll(wc[:])
				for _, wc := range wc[:n] {
					if wc.Status == fabric.WCSuccess {
						t.Errorf("the client receives %+v", wc)
					}
				}
			}
		})
	}
}

// TestHostileLoans: a peer that names other memory than it has, or writes with it where it may not, costs
// itself the connection; one that returns what it has not been lent, or nothing, harms itself alone.
func TestHostileLoans(t *testing.T) {
	leak.Check(t)
	p := New(Config{Ring: MinRing, Arena: arenaLen})
	defer p.Close()
	e := startEchoer(t, p)
	const top = 1<<64 - 1
	for name, loan := range map[string]struct {
		at uint64
		n  uint32
		to uint64
	}{
		"beyond the arena":           {arenaLen - 100, 101, 0},
		"far beyond":                 {1 << 40, 1 << 10, 0},
		"around the end of all":      {top - 10, 1 << 10, 0},
		"longer than the arena":      {0, arenaLen + 1, 0},
		"longer than a segment":      {0, 256<<10 + 1, 0},
		"to memory that is not open": {0, 1 << 10, 1 << 20},
		"of nothing":                 {0, 0, 1 << 20},
		"cut":                        {0, 1 << 10, top},
	} {
		c, s := spied(t, p, e.l.Addr())
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		bad, err := join(ctx, c)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		// The last segment of its message, tagged, of DDP version 1, with opcode 15 of RDMAP version 1.
		frame := binary.BigEndian.AppendUint32([]byte{0, 26, 0xc1, 0x4f}, 0x100)
		frame = binary.BigEndian.AppendUint64(frame, loan.to)
		frame = binary.BigEndian.AppendUint64(frame, loan.at)
		frame = binary.BigEndian.AppendUint32(frame, loan.n)
		frame = append(frame, 0, 0, 0, 0) // no CRC
		if loan.to == top {
			frame[1]-- // the last byte is a pad
		}
		if n, err := s.made.Writev([]llp.Iovec{{Base: &frame[0], Len: uint64(len(frame))}}); n != len(frame) || err != nil {
			t.Fatal(n, err)
		}
		var pe *iwarp.ProtocolError
		select {
		case err := <-e.ends:
			if !errors.As(err, &pe) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the server goes on", name)
		}
		bad.Close()
	}
	l := lend(t)
	mem := l.alloc(t, 64<<10).Bytes()
	r := rand.New(rand.NewPCG(1, 2))
	for posted, done := 0, 0; posted < 2000; posted++ {
		if err := l.server.Post([]fabric.SendWR{l.write(uint64(posted), 0, fabric.SGE{Buf: mem})}); err != nil && !errors.Is(err, fabric.ErrQueueFull) {
			break
		}
		l.made.mine.placed.Store([...]uint64{uint64(posted), r.Uint64(), 0, top, 1 << 63}[r.IntN(5)])
		var wcs [16]fabric.WC
		n, _ := l.server.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			if wc.ID != uint64(done) {
				t.Fatalf("completion %+v, want that of %d", wc, done)
			}
			done++
		}
	}
}

// TestPool: pieces do not overlap, and what has been given back is one piece again.
func TestPool(t *testing.T) {
	arena := make([]byte, 64*spanUnit)
	p := newPool(memory{arena: arena})
	r := rand.New(rand.NewPCG(3, 4))
	var out [][]byte
	used := 0
	for range 20_000 {
		n := 1 + r.IntN(20*spanUnit)
		if b := p.alloc(n); b != nil {
			if at, ok := p.find(b); !ok || at%spanUnit != 0 || len(b) != n {
				t.Fatalf("%d bytes at %d for %d", len(b), at, n)
			}
			for i := range b {
				if b[i] != 0 {
					t.Fatal("a piece is handed out twice")
				}
				b[i] = 1
			}
			out = append(out, b)
			used += unit(n)
		} else if used+unit(n) <= len(arena)/4 {
			t.Fatalf("no %d bytes while %d of %d are used", n, used, len(arena))
		}
		for len(out) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(out))
			clear(out[i])
			used -= unit(len(out[i]))
			p.put(out[i])
			out = slices.Delete(out, i, i+1)
		}
	}
	for _, b := range out {
		clear(b)
		p.put(b)
	}
	if b := p.alloc(len(arena)); len(b) != len(arena) {
		t.Errorf("%v are free at the end", p.free)
	}
}
