package transport_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

// These tests run both ends on the software iWARP adapter, over real sockets.

const (
	prog     = 0x20000077
	procEcho = 1 // opaque<> -> opaque<>, inline
	procSlow = 2 // the same, on a goroutine
	procSum  = 3 // opaque<> -> SHA-256
	procMake = 4 // uint32 n, seed -> opaque of n bytes
	procLong = 5 // uint32 n -> n words, no item
	procHang = 6 // waits for the end of the connection
)

var bg = context.Background()

type service struct{ hanging atomic.Int32 }

func (s *service) ServeRPC(ctx context.Context, req *transport.Request, res *transport.Response) {
	d := xdr.NewDecoder(req.Args)
	switch req.Proc {
	case procEcho, procSlow:
		data := d.Opaque(1 << 30)
		if d.Err() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		res.AddItem(data, nil)
	case procSum:
		sum := sha256.Sum256(d.Opaque(1 << 30))
		res.Results = append(res.Results, sum[:]...)
	case procMake:
		n, seed := d.Uint32(), d.Uint32()
		b := res.Alloc(int(n))
		fill(b, seed)
		res.AddItem(b, nil)
	case procLong:
		for i := range d.Uint32() {
			res.Results = xdr.AppendUint32(res.Results, i)
		}
	case procHang:
		s.hanging.Add(1)
		<-ctx.Done()
	default:
		res.Fail(oncrpc.ProcUnavail)
	}
}

func fill(b []byte, seed uint32) {
	for i := range b {
		b[i] = byte(uint32(i)*2654435761>>13 + seed)
	}
}

type world struct {
	provider *iwarp.Provider
	server   *transport.Server
	svc      *service
	addr     string
}

// start serves on iwarp until the test ends, and checks that nothing is left.
func start(t testing.TB, pc iwarp.Config, cfg *transport.Config) *world {
	t.Helper()
	w := &world{provider: iwarp.New(pc), svc: &service{}}
	var err error
	if w.server, err = transport.NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	err = w.server.Register(transport.Program{Number: prog, Low: 1, High: 1, Handler: w.svc,
		Inline: func(_, proc uint32) bool { return proc == procEcho }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := w.server.Listen(bg, w.provider, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(l) }()
	t.Cleanup(func() {
		w.server.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve returned %v", err)
		}
		if live := w.provider.Live(); live.Conns != 0 || live.MRs != 0 {
			t.Errorf("left open: %+v", live)
		}
	})
	return w
}

func (w *world) dial(t testing.TB, cfg *transport.Config) *transport.Client {
	t.Helper()
	cl, err := transport.Dial(bg, w.provider, w.addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// echo sends data and wants it back, through whatever chunks its size takes.
func echo(cl *transport.Client, proc uint32, data, buf []byte, call *transport.Call) error {
	call.Prog, call.Vers, call.Proc = prog, 1, proc
	call.Args = xdr.AppendUint32(call.Args[:0], uint32(len(data)))
	call.ReadItems = append(call.ReadItems[:0], transport.ReadItem{Offset: 4, Data: data})
	call.WriteItems = call.WriteItems[:0]
	if len(data) > 0 {
		call.WriteItems = append(call.WriteItems, transport.WriteItem{Buf: buf[:len(data)]})
	}
	call.MaxResults = 8
	if err := cl.Call(bg, call); err != nil {
		return err
	}
	d := xdr.NewDecoder(call.Results)
	got := buf[:len(data)]
	if len(data) > 0 && call.WriteItems[0].Chunked {
		if n := d.Uint32(); int(n) != len(data) || call.WriteItems[0].N != len(data) {
			return fmt.Errorf("%d bytes in the chunk, count %d, want %d", call.WriteItems[0].N, n, len(data))
		}
	} else {
		got = d.Opaque(1 << 30)
	}
	if d.Err() != nil || !bytes.Equal(got, data) {
		return fmt.Errorf("%d bytes came back differently", len(data))
	}
	return nil
}

var sizes = []int{0, 1, 3, 4, 5, 100, 1000, 3900, 3999, 4000, 4095, 4096, 4097, 10000, 65535, 65536, 65537, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3<<20 + 7}

func TestIwarpSizes(t *testing.T) {
	for _, pc := range []iwarp.Config{{}, {CRC: true}, {MaxFPDU: 1448}} {
		for _, cfg := range []*transport.Config{nil, {MaxSegment: 100_000}, {InlineSend: 1024, InlineRecv: 1024}, {InlineRecv: 65536, InlineSend: 65536}, {NoRemoteInvalidation: true}, {NoPrivateData: true}} {
			t.Run(fmt.Sprintf("%+v %+v", pc, cfg), func(t *testing.T) {
				w := start(t, pc, nil)
				cl := w.dial(t, cfg)
				data, buf := make([]byte, 4<<20), make([]byte, 4<<20)
				fill(data, 3)
				var call transport.Call
				for _, n := range sizes {
					for _, proc := range []uint32{procEcho, procSlow} {
						if err := echo(cl, proc, data[:n], buf, &call); err != nil {
							t.Fatalf("size %d: %v", n, err)
						}
					}
				}
			})
		}
	}
}

func TestIwarpLong(t *testing.T) {
	w := start(t, iwarp.Config{}, nil)
	cl := w.dial(t, nil)
	for _, n := range []int{0, 1, 1000, 2000, 100_000} {
		call := transport.Call{Prog: prog, Vers: 1, Proc: procLong, Args: xdr.AppendUint32(nil, uint32(n)), MaxResults: 4 * n}
		if err := cl.Call(bg, &call); err != nil {
			t.Fatal(err)
		}
		if len(call.Results) != 4*n {
			t.Errorf("%d bytes, want %d", len(call.Results), 4*n)
		}
	}
	// A long call: the data is not an item.
	data := make([]byte, 1<<20)
	fill(data, 1)
	call := transport.Call{Prog: prog, Vers: 1, Proc: procSum, Args: xdr.AppendOpaque(nil, data), MaxResults: 32}
	if err := cl.Call(bg, &call); err != nil {
		t.Fatal(err)
	}
	if want := sha256.Sum256(data); !bytes.Equal(call.Results, want[:]) {
		t.Error("another sum")
	}
	if st := cl.Stats(); st.LongCall != 1 || st.ReplyChunk != 2 {
		t.Errorf("counters are %+v", st)
	}
	call2 := transport.Call{Prog: prog, Vers: 1, Proc: procLong, Args: xdr.AppendUint32(nil, 9000)}
	var re *transport.RDMAError
	if err := cl.Call(bg, &call2); !errors.As(err, &re) {
		t.Errorf("a long reply without a chunk: %v", err)
	}
}

// TestIwarpParallel: many callers on one connection, all sizes at once, beyond
// the grant.
func TestIwarpParallel(t *testing.T) {
	for _, credits := range []int{1, 8, 128} {
		t.Run(fmt.Sprint(credits), func(t *testing.T) {
			w := start(t, iwarp.Config{}, &transport.Config{Credits: credits})
			cl := w.dial(t, nil)
			calls := 300
			if testing.Short() {
				calls = 50
			}
			var wg sync.WaitGroup
			for g := range 40 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					rng := rand.New(rand.NewPCG(uint64(g), 1))
					data, buf := make([]byte, 1<<18), make([]byte, 1<<18)
					fill(data, uint32(g))
					var call transport.Call
					for range calls {
						n := rng.IntN(200)
						if rng.IntN(20) == 0 {
							n = rng.IntN(len(data))
						}
						off := rng.IntN(len(data) - n + 1)
						if err := echo(cl, procEcho+uint32(rng.IntN(2)), data[off:off+n], buf, &call); err != nil {
							t.Error(err)
							return
						}
					}
				}()
			}
			wg.Wait()
			if i := cl.Info(); i.Credits > credits {
				t.Errorf("granted %d", i.Credits)
			}
			t.Logf("%+v", cl.Stats())
		})
	}
}

// TestIwarpCancel: calls are given up at random moments while others go on. A
// call with chunks in use may cost the connection; then a new one is made.
func TestIwarpCancel(t *testing.T) {
	w := start(t, iwarp.Config{}, nil)
	data := make([]byte, 1<<20)
	fill(data, 9)
	rng := rand.New(rand.NewPCG(1, 2))
	lost, cancelled := 0, 0
	for range 30 {
		cl := w.dial(t, nil)
		for range 20 {
			ctx, cancel := context.WithTimeout(bg, time.Duration(rng.IntN(3_000_000)))
			buf := make([]byte, 1<<20)
			call := transport.Call{Prog: prog, Vers: 1, Proc: procMake,
				Args:       xdr.AppendUint32(xdr.AppendUint32(nil, 1<<20), 7),
				WriteItems: []transport.WriteItem{{Buf: buf}}}
			err := cl.Call(ctx, &call)
			cancel()
			// The memory is ours again: the race detector and this copy
			// would tell if the adapter still wrote to it.
			snapshot := bytes.Clone(buf)
			switch {
			case err == nil:
				want := make([]byte, 1<<20)
				fill(want, 7)
				if !bytes.Equal(buf, want) {
					t.Fatal("wrong data")
				}
			case errors.Is(err, net.ErrClosed):
				lost++
			case errors.Is(err, context.DeadlineExceeded):
				cancelled++
			default:
				t.Fatal(err)
			}
			runtime.Gosched()
			if !bytes.Equal(buf, snapshot) {
				t.Fatal("memory changed after the call")
			}
			if cl.Err() != nil {
				break
			}
		}
		cl.Close()
	}
	t.Logf("%d cancelled, %d found the connection lost", cancelled, lost)
}

func TestIwarpEnds(t *testing.T) {
	t.Run("server closes at once", func(t *testing.T) {
		w := start(t, iwarp.Config{}, nil)
		cl := w.dial(t, nil)
		done := make(chan error, 8)
		for range 8 {
			go func() { done <- cl.Call(bg, &transport.Call{Prog: prog, Vers: 1, Proc: procHang}) }()
		}
		for w.svc.hanging.Load() < 1 {
			runtime.Gosched()
		}
		w.server.Close()
		for range 8 {
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Errorf("call returned %v", err)
			}
		}
		<-cl.Done()
	})
	t.Run("client closes at once", func(t *testing.T) {
		w := start(t, iwarp.Config{}, nil)
		cl := w.dial(t, nil)
		done := make(chan error, 1)
		go func() { done <- cl.Call(bg, &transport.Call{Prog: prog, Vers: 1, Proc: procHang}) }()
		for w.svc.hanging.Load() < 1 {
			runtime.Gosched()
		}
		cl.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("call returned %v", err)
		}
	})
	t.Run("both shut down in order", func(t *testing.T) {
		w := start(t, iwarp.Config{}, nil)
		var cls []*transport.Client
		for range 10 {
			cl := w.dial(t, nil)
			if err := cl.Null(bg, prog, 1); err != nil {
				t.Fatal(err)
			}
			cls = append(cls, cl)
		}
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		for _, cl := range cls[:5] {
			if err := cl.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		}
		if err := w.server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		for _, cl := range cls {
			<-cl.Done()
			if err := cl.Call(bg, &transport.Call{Prog: prog, Vers: 1}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("call returned %v", err)
			}
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		w := start(t, iwarp.Config{}, nil)
		w.server.Close()
		_, err := transport.Dial(bg, w.provider, w.addr, nil)
		var de *transport.DialError
		if !errors.As(err, &de) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("Dial returned %v", err)
		}
	})
	t.Run("too many connections", func(t *testing.T) {
		w := start(t, iwarp.Config{}, &transport.Config{MaxConns: 2})
		a, b := w.dial(t, nil), w.dial(t, nil)
		if _, err := transport.Dial(bg, w.provider, w.addr, nil); err == nil {
			t.Error("a third connection was made")
		}
		if err := errors.Join(a.Null(bg, prog, 1), b.Null(bg, prog, 1)); err != nil {
			t.Error(err)
		}
	})
}

// TestAllocsPerCall is exact: in steady state a call allocates nothing, at the
// client or at the server, whose procedure runs inline.
func TestAllocsPerCall(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := start(t, iwarp.Config{}, nil)
	cl := w.dial(t, nil)
	null := transport.Call{Prog: prog, Vers: 1}
	var small, large transport.Call
	data, buf := make([]byte, 1<<16), make([]byte, 1<<16)
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	for name, f := range map[string]func() error{
		"null":                    func() error { return cl.Call(bg, &null) },
		"null, with a context":    func() error { return cl.Call(ctx, &null) },
		"echo of 64 bytes":        func() error { return echo(cl, procEcho, data[:64], buf, &small) },
		"echo of 64 KiB, chunked": func() error { return echo(cl, procEcho, data, buf, &large) },
	} {
		for range 100 {
			if err := f(); err != nil {
				t.Fatal(name, err)
			}
		}
		n := testing.AllocsPerRun(2000, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations per call, want 0", name, n)
		}
	}
}

// TestIdleConnection: memory and goroutines of connections that do nothing,
// both ends together in one process.
func TestIdleConnection(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's shadow memory counts")
	}
	w := start(t, iwarp.Config{}, nil)
	const n = 200
	measure := func() (rss, goroutines int) {
		runtime.GC()
		runtime.GC()
		b, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Skip("no /proc/self/statm: ", err)
		}
		var size int
		fmt.Sscan(string(b), &size, &rss)
		return rss * os.Getpagesize(), runtime.NumGoroutine()
	}
	warm := w.dial(t, nil)
	if err := warm.Null(bg, prog, 1); err != nil {
		t.Fatal(err)
	}
	rss, gs := measure()
	var cls []*transport.Client
	for range n {
		cl := w.dial(t, nil)
		for range 50 {
			if err := cl.Null(bg, prog, 1); err != nil {
				t.Fatal(err)
			}
		}
		cls = append(cls, cl)
	}
	rss2, gs2 := measure()
	per, perG := (rss2-rss)/n, float64(gs2-gs)/n
	t.Logf("a connection, both ends: %d bytes resident, %.2f goroutines", per, perG)
	if per > 2*128<<10 {
		t.Errorf("%d bytes for both ends of an idle connection, want at most %d", per, 2*128<<10)
	}
	if perG > 4 {
		t.Errorf("%.2f goroutines for both ends of an idle connection, want at most 4", perG)
	}
	runtime.KeepAlive(cls)
}

// TestIwarpPull: calls whose one chunk the server reads and then invalidates, one
// after the other, so that each answer comes as soon as it can.
func TestIwarpPull(t *testing.T) {
	w := start(t, iwarp.Config{}, nil)
	cl := w.dial(t, nil)
	data := make([]byte, 1<<20)
	call := transport.Call{Prog: prog, Vers: 1, Proc: procSum, MaxResults: 32}
	for i := range 3000 {
		n := 5000 + i*331%len(data)
		n = min(n, len(data))
		call.Args = xdr.AppendUint32(call.Args[:0], uint32(n))
		call.ReadItems = append(call.ReadItems[:0], transport.ReadItem{Offset: 4, Data: data[:n]})
		if err := cl.Call(bg, &call); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if st := cl.Stats(); st.Invalidated != 3000 {
		t.Errorf("%d of 3000 replies invalidated", st.Invalidated)
	}
}

// TestIwarpPush: many large results at once, from goroutines, so that the server's
// socket is full while more is posted.
func TestIwarpPush(t *testing.T) {
	w := start(t, iwarp.Config{}, nil)
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		cl := w.dial(t, nil)
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				buf, want := make([]byte, 1<<20), make([]byte, 1<<20)
				fill(want, uint32(g))
				call := transport.Call{Prog: prog, Vers: 1, Proc: procMake, WriteItems: []transport.WriteItem{{Buf: buf}}}
				for range 10 {
					call.Args = xdr.AppendUint32(xdr.AppendUint32(call.Args[:0], 1<<20), uint32(g))
					ctx, cancel := context.WithTimeout(bg, time.Minute)
					err := cl.Call(ctx, &call)
					cancel()
					if err != nil {
						t.Errorf("%v; client %+v, server %+v", err, cl.Stats(), w.server.Stats())
						return
					}
					if !bytes.Equal(buf, want) {
						t.Error("wrong data")
					}
				}
			})
		}
		wg.Wait()
		cl.Close()
	}
}

// TestIwarpHostileClient: a client that keeps no rule loses its connection, and
// nobody else notices.
func TestIwarpHostileClient(t *testing.T) {
	call := func(h rpcrdma.Header, proc uint32, args ...byte) []byte {
		h.Vers, h.Credit = rpcrdma.Version1, 1000
		b := rpcrdma.AppendHeader(nil, &h)
		b = oncrpc.AppendCall(b, &oncrpc.CallHeader{XID: h.XID, RPCVers: oncrpc.Version, Prog: prog, Vers: 1, Proc: proc})
		return append(b, args...)
	}
	never := rpcrdma.Segment{Handle: 0xdead00, Length: 5000, Offset: 1 << 60}
	for name, sends := range map[string]func(i uint32) []byte{
		"V1-3.3-7 calls beyond the grant": func(i uint32) []byte { return call(rpcrdma.Header{XID: i}, procHang) },
		"V1-11-4 a read chunk in memory that was never exposed": func(i uint32) []byte {
			return call(rpcrdma.Header{XID: i, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: never}}}, procSum, 0, 0, 0x13, 0x88)
		},
		"V1-11-4 a write chunk in memory that was never exposed": func(i uint32) []byte {
			return call(rpcrdma.Header{XID: i, Writes: []rpcrdma.WriteChunk{{never}}}, procMake, 0, 0, 0x13, 0x88, 0, 0, 0, 1)
		},
		"CCP-6-1 a message longer than the receives": func(i uint32) []byte { return make([]byte, 5000) },
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, iwarp.Config{}, nil)
			good := w.dial(t, nil)
			fc, err := w.provider.Resolve(bg, w.addr, fabric.ConnAttr{SendDepth: 1024})
			if err != nil {
				t.Fatal(err)
			}
			defer fc.Close()
			for i := range uint64(32) {
				err := fc.PostRecv([]fabric.RecvWR{{ID: i, SGE: fabric.SGE{Buf: make([]byte, 4096)}}})
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := fc.Connect(bg, nil); err != nil {
				t.Fatal(err)
			}
			for i := range uint32(transport.DefaultCredits + 100) {
				wr := fabric.SendWR{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: sends(i)}}}
				if err := fc.Post([]fabric.SendWR{wr}); err != nil {
					break // the connection has ended
				}
			}
			var wcs [8]fabric.WC
			ctx, cancel := context.WithTimeout(bg, 20*time.Second)
			defer cancel()
			for {
				if _, err = fc.Poll(wcs[:]); err == nil {
					err = fabric.WaitContext(ctx, fc)
				}
				if err != nil {
					break
				}
			}
			var ce *fabric.ConnError
			if !errors.As(err, &ce) {
				t.Fatalf("the connection lives: %v", err)
			}
			t.Log(err)
			if err := good.Null(bg, prog, 1); err != nil {
				t.Errorf("another client: %v", err)
			}
			if st := w.server.Stats(); st.Conns != 2 {
				t.Errorf("%d connections were accepted, want 2", st.Conns)
			}
		})
	}
}
