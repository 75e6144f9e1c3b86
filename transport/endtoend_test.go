package transport_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// These tests run both ends over a provider, real sockets or devices beneath it. They
// are a suite that runs on each bed.

// suite runs on each bed.
var suite = []struct {
	name string
	run  func(*testing.T, *bed)
}{
	{"Sizes", testSizes},
	{"Long", testLong},
	{"Shapes", testShapes},
	{"ReadReplies V1-3.5-3 V1-3.8-5 V1-3.8-6 V1-5.1-4", testReadReplies},
	{"Parallel", testParallel},
	{"Line", testLine},
	{"Cancel", testCancel},
	{"Ends", testEnds},
	{"EndsUnderLoad", testEndsUnderLoad},
	{"AllocsPerCall", testAllocsPerCall},
	{"IdleConnection", testIdleConnection},
	{"Pull", testPull},
	{"Push", testPush},
	{"HostileClient", testHostileClient},
	{"Bridge", testBridge},
	{"Faults", testFaults},
	{"BothWays", testBothWays},
	{"Chaos", testChaos},
	{"FirstCall", testFirstCall},
	{"LateEnd", testLateEnd},
	{"Versions", testVersions},
	{"LateBind", testLateBind},
	{"Stuck", testStuck},
	{"RegisteredMemory", testRegisteredMemory},
	{"Pipeline", testPipeline},
}

func runSuite(t *testing.T, b *bed) {
	for _, tt := range suite {
		t.Run(tt.name, func(t *testing.T) {
			leak.Check(t)
			tt.run(t, b)
		})
	}
}

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

func (s *service) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
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

// fill writes what neither zeros nor other data of the same length are taken for.
func fill(b []byte, seed uint32) {
	pattern(b, seed)
	copy(b, b) // for the race detector: one access to all of it
}

// pattern is where tests spend their time if the race detector looks at each byte.
//
//go:norace
func pattern(b []byte, seed uint32) {
	for i := range b {
		b[i] = byte(uint32(i)*2654435761>>13 + seed)
	}
}

type world struct {
	provider fabric.Provider
	server   *transport.Server
	live     live
	svc      *service
	addr     string
	conns    int
	listen   func() // at another address
	loses    bool   // see bed
}

// start serves on b until the test ends, and checks that nothing is left.
func (b *bed) start(t testing.TB, cfg *transport.Settings) *world {
	t.Helper()
	return b.startWith(t, cfg)
}

// startWith is start for a server with further programs.
func (b *bed) startWith(t testing.TB, cfg *transport.Settings, more ...rpc.Program) *world {
	t.Helper()
	provider, live := b.provider(t)
	w := &world{provider: provider, live: live, svc: &service{}, conns: b.conns}
	var err error
	var c transport.Settings
	if cfg != nil {
		c = *cfg
	}
	if cfg = &c; c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil)) // why connections end
	}
	if w.server, err = transport.NewServer(cfg.Server()); err != nil {
		t.Fatal(err)
	}
	err = w.server.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: w.svc, Idempotent: rpc.Every,
		Inline: func(_, proc uint32) bool { return proc == procEcho }})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.server.Register(rpc.Program{Number: shapeProg, Low: 1, High: 1, Handler: shapes{}, Padded: true, ReadReplies: true, Idempotent: rpc.Every}); err != nil {
		t.Fatal(err)
	}
	for _, p := range more {
		if err := w.server.Register(p); err != nil {
			t.Fatal(err)
		}
	}
	var served []chan error
	w.listen = func() {
		t.Helper()
		l, err := w.server.Listen(bg, w.provider, b.addr)
		if err != nil {
			t.Fatal(err)
		}
		w.addr = l.Addr().String()
		done := make(chan error, 1)
		served = append(served, done)
		go func() { done <- w.server.Serve(l) }()
	}
	w.loses = b.loses
	t.Cleanup(func() {
		w.server.Close()
		for _, done := range served {
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Serve returned %v", err)
			}
		}
		live.check(t)
	})
	w.listen()
	return w
}

func (w *world) dial(t testing.TB, cfg *transport.Settings) *transport.Client {
	t.Helper()
	cl, err := transport.Dial(bg, w.provider, w.addr, transport.Once(cfg).Client())
	if w.loses && errors.Is(err, syscall.ECONNREFUSED) {
		t.Logf("once more, with another listener: %v", err)
		w.listen()
		cl, err = transport.Dial(bg, w.provider, w.addr, transport.Once(cfg).Client())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cl.Close()
		if n := cl.ArenaSlabs(); n != 0 {
			t.Errorf("the client's arena has %d slabs after the end", n)
		}
	})
	return cl
}

// requester is dial, or a group of as many connections as the bed says.
func (w *world) requester(t testing.TB, cfg *transport.Settings) transport.Requester {
	t.Helper()
	if w.conns == 0 {
		return w.dial(t, cfg)
	}
	several := transport.Once(cfg).Client()
	several.Connections = w.conns
	g, err := transport.DialGroup(bg, w.provider, []string{w.addr}, several)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// echo sends data and wants it back, through whatever chunks its size takes.
func echo(cl rpc.Caller, proc uint32, data, buf []byte, call *rpc.Call) error {
	call.Prog, call.Vers, call.Proc = prog, 1, proc
	call.Args = xdr.AppendUint32(call.Args[:0], uint32(len(data)))
	call.ReadItems = append(call.ReadItems[:0], rpc.ReadItem{Offset: 4, Data: data})
	call.WriteItems = call.WriteItems[:0]
	if len(data) > 0 {
		call.WriteItems = append(call.WriteItems, rpc.WriteItem{Buf: buf[:len(data)]})
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

func testSizes(t *testing.T, b *bed) {
	for _, tt := range []struct {
		name string
		cfg  *transport.Settings
	}{
		{"defaults", nil},
		{"many segments", &transport.Settings{MaxSegment: 100_000}},
		{"small messages", &transport.Settings{InlineSend: 1024, InlineRecv: 1024}},
		{"large messages", &transport.Settings{InlineRecv: 65536, InlineSend: 65536}},
		{"no remote invalidation", &transport.Settings{NoRemoteInvalidation: true}},
		{"no private data", &transport.Settings{NoPrivateData: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := tt.cfg
			w := b.start(t, nil)
			cl := w.requester(t, cfg)
			data, buf := make([]byte, 4<<20), make([]byte, 4<<20)
			fill(data, 3)
			var call rpc.Call
			for _, n := range sizes {
				if b.slow > 1 && (n > 1<<20 || n > 1<<17 && cfg != nil && cfg.MaxSegment == 0) {
					continue // bulk twice is enough where it is slow
				}
				for _, proc := range []uint32{procEcho, procSlow} {
					if err := echo(cl, proc, data[:n], buf, &call); err != nil {
						t.Fatalf("size %d: %v", n, err)
					}
				}
			}
		})
	}
}

func testLong(t *testing.T, b *bed) {
	w := b.start(t, nil)
	cl := w.requester(t, nil)
	for _, n := range []int{0, 1, 1000, 2000, 100_000} {
		call := rpc.Call{Prog: prog, Vers: 1, Proc: procLong, Args: xdr.AppendUint32(nil, uint32(n)), MaxResults: 4 * n}
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
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procSum, Args: xdr.AppendOpaque(nil, data), MaxResults: 32}
	if err := cl.Call(bg, &call); err != nil {
		t.Fatal(err)
	}
	if want := sha256.Sum256(data); !bytes.Equal(call.Results, want[:]) {
		t.Error("another sum")
	}
	if st := cl.Stats(); st.LongCall != 1 || st.ReplyChunk != 2 {
		t.Errorf("counters are %+v", st)
	}
	call2 := rpc.Call{Prog: prog, Vers: 1, Proc: procLong, Args: xdr.AppendUint32(nil, 9000)}
	var re *rpc.RDMAError
	if err := cl.Call(bg, &call2); !errors.As(err, &re) {
		t.Errorf("a long reply without a chunk: %v", err)
	}
}

// testParallel: many callers on one connection, all sizes at once, beyond
// the grant.
func testParallel(t *testing.T, b *bed) {
	for _, credits := range []int{1, 8, 128} {
		t.Run(fmt.Sprint(credits), func(t *testing.T) {
			w := b.start(t, &transport.Settings{Credits: credits})
			cl := w.requester(t, nil)
			calls := b.count(300)
			var wg sync.WaitGroup
			for g := range 40 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					rng := rand.New(rand.NewPCG(uint64(g), 1))
					data, buf := make([]byte, 1<<18), make([]byte, 1<<18)
					fill(data, uint32(g))
					var call rpc.Call
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
			if i := cl.Info(); i.Credits > credits*max(1, b.conns) {
				t.Errorf("granted %d", i.Credits)
			}
			t.Logf("%+v", cl.Stats())
		})
	}
}

// testLine: many callers share few credits, and some give up, in line or after their
// call has been made by another. Each has its own reply, and no credit is lost.
func testLine(t *testing.T, b *bed) {
	for _, credits := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(credits), func(t *testing.T) {
			w := b.start(t, &transport.Settings{Credits: credits})
			cl := w.requester(t, nil)
			var gaveUp atomic.Int64
			plain := func(ctx context.Context, id uint32, call *rpc.Call) error {
				*call = rpc.Call{Prog: prog, Vers: 1, Proc: procEcho + id%2, Args: call.Args[:0], MaxResults: 8}
				call.Args = xdr.AppendUint32(xdr.AppendUint32(call.Args, 4), id)
				if err := cl.Call(ctx, call); err != nil {
					return err
				}
				if !bytes.Equal(call.Results, call.Args) {
					return fmt.Errorf("call %d has the reply %x", id, call.Results)
				}
				return nil
			}
			var wg sync.WaitGroup
			for g := range uint32(24) {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), 1))
					var call rpc.Call
					for i := range uint32(b.count(500)) {
						ctx, cancel := bg, func() {}
						switch g % 3 {
						case 1: // could give up, and does not
							ctx, cancel = context.WithCancel(bg)
						case 2:
							ctx, cancel = context.WithTimeout(bg, time.Duration(b.slow*rng.IntN(2_000_000)))
						}
						err := plain(ctx, g<<16|i, &call)
						cancel()
						switch {
						case g%3 == 2 && errors.Is(err, context.DeadlineExceeded):
							gaveUp.Add(1)
							call = rpc.Call{} // its late reply is not for the next one
						case err != nil:
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			var call rpc.Call
			for i := range uint32(2*credits + 2) {
				if err := plain(bg, i, &call); err != nil {
					t.Error(err)
				}
			}
			t.Logf("%d calls given up, %+v", gaveUp.Load(), cl.Stats())
		})
	}
}

// testCancel: calls are given up at random moments while others go on. A
// call with chunks in use may cost the connection; then a new one is made.
func testCancel(t *testing.T, b *bed) {
	w := b.start(t, nil)
	size := 1 << 20
	if b.slow > 1 {
		size = 1 << 18
	}
	want := make([]byte, size)
	fill(want, 7)
	rng := rand.New(rand.NewPCG(1, 2))
	lost, canceled, whole := 0, 0, 0
	for range b.count(30) + 5 {
		cl := w.dial(t, nil)
		for range 20 {
			ctx, cancel := context.WithTimeout(bg, time.Duration(b.slow*rng.IntN(3_000_000)))
			buf := make([]byte, size)
			call := rpc.Call{Prog: prog, Vers: 1, Proc: procMake,
				Args:       xdr.AppendUint32(xdr.AppendUint32(nil, uint32(size)), 7),
				WriteItems: []rpc.WriteItem{{Buf: buf}}}
			err := cl.Call(ctx, &call)
			cancel()
			// The memory is ours again: the race detector and this copy
			// would tell if the adapter still wrote to it.
			snapshot := bytes.Clone(buf)
			switch {
			case err == nil:
				whole++
				if !bytes.Equal(buf, want) {
					t.Fatal("wrong data")
				}
			case errors.Is(err, net.ErrClosed):
				lost++
			case errors.Is(err, context.DeadlineExceeded):
				canceled++
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
	t.Logf("%d done, %d canceled, %d found the connection lost", whole, canceled, lost)
}

func testEnds(t *testing.T, b *bed) {
	t.Run("server closes at once", func(t *testing.T) {
		w := b.start(t, nil)
		cl := w.dial(t, nil)
		done := make(chan error, 8)
		for range 8 {
			go func() { done <- cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: procHang}) }()
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
		w := b.start(t, nil)
		cl := w.dial(t, nil)
		done := make(chan error, 1)
		go func() { done <- cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: procHang}) }()
		for w.svc.hanging.Load() < 1 {
			runtime.Gosched()
		}
		cl.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("call returned %v", err)
		}
	})
	t.Run("both shut down in order", func(t *testing.T) {
		w := b.start(t, nil)
		var cls []*transport.Client
		for range 10 {
			cl := w.dial(t, nil)
			if err := cl.Null(bg, prog, 1); err != nil {
				t.Fatal(err)
			}
			cls = append(cls, cl)
		}
		ctx, cancel := context.WithTimeout(bg, b.patience())
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
			if err := cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("call returned %v", err)
			}
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		w := b.start(t, nil)
		w.server.Close()
		_, err := transport.Dial(bg, w.provider, w.addr, nil)
		var de *transport.DialError
		if !errors.As(err, &de) || !strings.Contains(err.Error(), b.refused) {
			t.Errorf("Dial returned %v", err)
		}
	})
	t.Run("too many connections", func(t *testing.T) {
		w := b.start(t, &transport.Settings{MaxConns: 2})
		a, b := w.dial(t, nil), w.dial(t, nil)
		if _, err := transport.Dial(bg, w.provider, w.addr, nil); err == nil {
			t.Error("a third connection was made")
		}
		if err := errors.Join(a.Null(bg, prog, 1), b.Null(bg, prog, 1)); err != nil {
			t.Error(err)
		}
	})
}

// testAllocsPerCall is exact: in steady state a call allocates nothing, at the client or at a server
// that runs its procedure inline. A context that can end is watched once its call has lasted a tick,
// and the watch allocates: on slow devices that may be every call.
func testAllocsPerCall(t *testing.T, b *bed) {
	b.counts(t)
	w := b.start(t, nil)
	cl := w.dial(t, nil)
	null := rpc.Call{Prog: prog, Vers: 1}
	var small, large, known rpc.Call
	data, buf := make([]byte, 1<<16), make([]byte, 1<<16)
	mem, err := cl.RegisterMemory(make([]byte, 1<<17))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	arg, res := mem.Bytes()[:1<<16], mem.Bytes()[1<<16:]
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	const (
		watched    = "null, with a context"
		registered = "echo of 64 KiB, in registered memory"
	)
	for name, f := range map[string]func() error{
		"null":                    func() error { return cl.Call(bg, &null) },
		watched:                   func() error { return cl.Call(ctx, &null) },
		"echo of 64 bytes":        func() error { return echo(cl, procEcho, data[:64], buf, &small) },
		"echo of 64 KiB, chunked": func() error { return echo(cl, procEcho, data, buf, &large) },
		registered:                func() error { return echo(cl, procEcho, arg, res, &known) },
	} {
		before := cl.Stats().ReadChunk
		for range 100 {
			if err := f(); err != nil {
				t.Fatal(name, err)
			}
		}
		calls, late := 0, 0
		n := b.allocs(2000, func() {
			began := time.Now()
			if err := f(); err != nil {
				t.Fatal(err)
			}
			calls++
			if time.Since(began) > time.Millisecond { // half a tick
				late++
			}
		})
		want := 0.0
		if name == watched {
			const perWatch = 4 // three, and one to spare
			want = float64(perWatch * late / calls)
		}
		if cl.Stats().ReadChunk > before && name != registered {
			want = b.chunkAllocs
		}
		if n > want {
			t.Errorf("%s: %v allocations per call, want at most %v", name, n, want)
		}
	}
}

// testIdleConnection: memory and goroutines of connections that do nothing,
// both ends together in one process.
func testIdleConnection(t *testing.T, b *bed) {
	if raceEnabled {
		t.Skip("the race detector's shadow memory counts")
	}
	w := b.start(t, nil)
	n := b.count(200)
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
	per, perG := (rss2-rss)/n, float64(gs2-gs)/float64(n)
	t.Logf("a connection, both ends: %d bytes resident, %.2f goroutines", per, perG)
	if per > 2*b.idle {
		t.Errorf("%d bytes for both ends of an idle connection, want at most %d", per, 2*b.idle)
	}
	if perG > 4 {
		t.Errorf("%.2f goroutines for both ends of an idle connection, want at most 4", perG)
	}
	runtime.KeepAlive(cls)
}

// testPull: the server reads and then invalidates the one chunk of each call, one after the other, so
// that each answer comes as soon as it can.
func testPull(t *testing.T, b *bed) {
	w := b.start(t, nil)
	cl := w.dial(t, nil)
	data := make([]byte, 1<<20)
	if b.slow > 1 {
		data = data[:1<<18]
	}
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procSum, MaxResults: 32}
	calls := b.count(3000) / min(b.slow, 3)
	for i := range calls {
		n := 5000 + i*331*3*b.slow%(len(data)-5000)
		call.Args = xdr.AppendUint32(call.Args[:0], uint32(n))
		call.ReadItems = append(call.ReadItems[:0], rpc.ReadItem{Offset: 4, Data: data[:n]})
		if err := cl.Call(bg, &call); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if st := cl.Stats(); cl.Info().RemoteInvalidation && st.Invalidated != uint64(calls) {
		t.Errorf("%d of %d replies invalidated", st.Invalidated, calls)
	}
}

// testPush: many large results at once, from goroutines, so that the server's
// socket is full while more is posted.
func testPush(t *testing.T, b *bed) {
	w := b.start(t, nil)
	size, calls := 1<<20, 10
	if b.slow > 1 {
		size, calls = 1<<18, 3
	}
	for range b.count(10) {
		cl := w.dial(t, nil)
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				buf, want := make([]byte, size), make([]byte, size)
				fill(want, uint32(g))
				call := rpc.Call{Prog: prog, Vers: 1, Proc: procMake, WriteItems: []rpc.WriteItem{{Buf: buf}}}
				for range calls {
					call.Args = xdr.AppendUint32(xdr.AppendUint32(call.Args[:0], uint32(size)), uint32(g))
					ctx, cancel := context.WithTimeout(bg, 2*b.patience())
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

// testHostileClient: a client that keeps no rule loses its connection, and no other client notices.
func testHostileClient(t *testing.T, b *bed) {
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
			w := b.start(t, nil)
			good := w.dial(t, nil)
			fc, err := w.provider.Resolve(bg, w.addr, fabric.ConnAttr{SendDepth: 1024})
			if err != nil {
				t.Fatal(err)
			}
			defer fc.Close()
			register := func(n int) fabric.SGE {
				mr, err := fc.RegMR(make([]byte, n), fabric.AccessLocalWrite)
				if err != nil {
					t.Fatal(err)
				}
				return fabric.SGE{Buf: mr.Bytes(), LKey: mr.LKey()}
			}
			piece := func(s fabric.SGE, i, n, of int) fabric.SGE {
				return fabric.SGE{Buf: s.Buf[i*of:][:n], LKey: s.LKey}
			}
			const received, sent, longest = 32, transport.DefaultCredits + 100, 5000
			in, out := register(received*4096), register(sent*longest)
			for i := range received {
				if err := fc.PostRecv([]fabric.RecvWR{{ID: uint64(i), SGE: piece(in, i, 4096, 4096)}}); err != nil {
					t.Fatal(err)
				}
			}
			if err := fc.Connect(bg, nil); err != nil {
				t.Fatal(err)
			}
			for i := range sent {
				msg := sends(uint32(i))
				sge := piece(out, i, len(msg), longest)
				copy(sge.Buf, msg)
				if err := fc.Post([]fabric.SendWR{{Op: fabric.OpSend, SGL: []fabric.SGE{sge}}}); err != nil {
					break // the connection has ended
				}
			}
			ctx, cancel := context.WithTimeout(bg, b.patience())
			defer cancel()
			if b.waits && strings.Contains(name, "beyond the grant") {
				// The adapter holds back what there are no receives for.
				for w.svc.hanging.Load() < transport.DefaultCredits {
					if err := good.Null(ctx, prog, 1); err != nil {
						t.Fatalf("another client: %v, while %d calls hang", err, w.svc.hanging.Load())
					}
				}
				return
			}
			var wcs [8]fabric.WC
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
		})
	}
}

// testEndsUnderLoad: one end goes while many calls of all kinds are under way.
// Every call returns, done or refused.
func testEndsUnderLoad(t *testing.T, b *bed) {
	ctx, cancel := context.WithTimeout(bg, 2*b.patience())
	defer cancel()
	for _, tt := range []struct {
		name  string
		end   func(w *world, cl *transport.Client) error
		whole bool // calls under way are answered
	}{
		{"the client closes", func(_ *world, cl *transport.Client) error { return cl.Close() }, false},
		{"the server closes", func(w *world, _ *transport.Client) error { return w.server.Close() }, false},
		{"the client shuts down", func(_ *world, cl *transport.Client) error { return cl.Shutdown(ctx) }, true},
		{"the server shuts down", func(w *world, _ *transport.Client) error { return w.server.Shutdown(ctx) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range b.count(20) {
				w := b.start(t, nil)
				cl := w.dial(t, nil)
				var done, refused atomic.Int32
				loaded := make(chan struct{})
				var wg sync.WaitGroup
				for g := range 16 {
					wg.Go(func() {
						data, buf := make([]byte, 1<<16), make([]byte, 1<<16)
						fill(data, uint32(g))
						var call rpc.Call
						for i := 0; ; i++ {
							n := 64
							if (g+i)%4 == 0 {
								n = len(data)
							}
							if err := echo(cl, procEcho+uint32(g%2), data[:n], buf, &call); err != nil {
								if !errors.Is(err, net.ErrClosed) {
									t.Errorf("call returned %v", err)
								}
								refused.Add(1)
								return
							}
							if done.Add(1) == 50 {
								close(loaded)
							}
						}
					})
				}
				<-loaded
				if err := tt.end(w, cl); err != nil {
					t.Error(err)
				}
				wg.Wait()
				<-cl.Done()
				if st := cl.Stats(); tt.whole && st.Calls != st.Replies {
					t.Errorf("%d calls, %d replies", st.Calls, st.Replies)
				}
				cl.Close()
				w.server.Close()
			}
		})
	}
}

// An opaqueBinding makes an opaque<> at the start of arguments and results eligible.
type opaqueBinding struct{}

func (opaqueBinding) Call(_ rpc.Procedure, args []byte, items []rpc.Range) ([]rpc.Range, rpc.ReplyBounds) {
	bounds := rpc.ReplyBounds{MaxResults: 64, NumItems: 1}
	bounds.Items[0] = 1 << 20
	return opaqueBinding{}.Reply(rpc.Procedure{}, args, false, items), bounds
}

func (opaqueBinding) Reply(_ rpc.Procedure, results []byte, reduced bool, items []rpc.Range) []rpc.Range {
	n, size := xdr.ConsumeUint32(results)
	if size < 0 || !reduced && int(n) > len(results)-4 {
		return items[:0]
	}
	return append(items[:0], rpc.Range{Offset: 4, Length: int(n)})
}

// testBridge: a program that knows RPC over a byte stream alone, at both ends.
func testBridge(t *testing.T, b *bed) {
	const bridged = prog + 1
	for name, binding := range map[string]rpc.Binding{"bulk by chunks": opaqueBinding{}, "whole messages": nil} {
		t.Run(name, func(t *testing.T) {
			w := b.start(t, nil)
			l := w.server.Bridge(binding, bridged)
			var serving sync.WaitGroup
			serving.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					serving.Go(func() { echoRecords(t, c) })
				}
			})
			defer serving.Wait()
			defer w.server.Close()
			defer l.Close()
			cl := w.dial(t, nil)
			rc := transport.NewRecordConn(cl, binding, 1<<20+100)
			defer rc.Close()
			data := make([]byte, 1<<20)
			fill(data, 5)
			for i, n := range []int{0, 1, 100, 4000, 4096, 10_000, 65_537, len(data)} {
				xid := uint32(1000 + i)
				args := xdr.AppendOpaque(nil, data[:n])
				msg := oncrpc.AppendCall(nil, &oncrpc.CallHeader{XID: xid, RPCVers: oncrpc.Version, Prog: bridged, Vers: 1, Proc: 1})
				written := make(chan error, 1)
				go func() { written <- writeRecord(rc, append(msg, args...)) }()
				reply, err := readRecord(rc)
				if err := errors.Join(err, <-written); err != nil {
					t.Fatalf("%d bytes: %v", n, err)
				}
				want := append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: xid}), args...)
				if !bytes.Equal(reply, want) {
					t.Fatalf("%d bytes came back as a record of %d", n, len(reply))
				}
			}
			st := cl.Stats()
			if binding != nil && (st.ReadChunk == 0 || st.WriteChunk == 0) || binding == nil && (st.LongCall == 0 || st.ReplyChunk == 0) {
				t.Errorf("counters are %+v", st)
			}
		})
	}
}

// echoRecords answers calls with their arguments until the stream ends.
func echoRecords(t testing.TB, c net.Conn) {
	defer c.Close()
	for {
		msg, err := readRecord(c)
		if err != nil {
			return
		}
		var h oncrpc.CallHeader
		n, err := oncrpc.ConsumeCall(msg, &h)
		if err != nil {
			t.Error(err)
			return
		}
		if err := writeRecord(c, append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: h.XID}), msg[n:]...)); err != nil {
			return
		}
	}
}

func writeRecord(c net.Conn, msg []byte) error {
	_, err := c.Write(append(oncrpc.AppendRecordMark(nil, len(msg), true), msg...))
	return err
}

func readRecord(c net.Conn) ([]byte, error) {
	mark := make([]byte, 4)
	if _, err := io.ReadFull(c, mark); err != nil {
		return nil, err
	}
	n, _, _ := oncrpc.ConsumeRecordMark(mark)
	b := make([]byte, n)
	_, err := io.ReadFull(c, b)
	return b, err
}

// testRegisteredMemory: calls that have their data in memory which stays registered
// register nothing, and after Close of it nothing is left.
func testRegisteredMemory(t *testing.T, b *bed) {
	w := b.start(t, nil)
	var registered atomic.Int64
	w.provider = fabrictest.Faulty(w.provider, fabrictest.Plan{{
		At: fabrictest.AtRegMR, Side: fabrictest.Dialed,
		Match: func(fabrictest.Passage) bool { registered.Add(1); return false },
	}})
	cl := w.dial(t, nil)
	const size, callers = 64 << 10, 4
	mem := make([]byte, 2*size*callers)
	m, err := cl.RegisterMemory(mem)
	if err != nil {
		t.Fatal(err)
	}
	regions := func() int { _, mrs, _ := w.live(); return mrs }
	round := func(n int) {
		t.Helper()
		var wg sync.WaitGroup
		for g := range callers {
			wg.Go(func() {
				data, buf := mem[2*g*size:][:size], mem[(2*g+1)*size:][:size]
				var call rpc.Call
				for i := range n {
					fill(data, uint32(g*n+i))
					clear(buf)
					if err := echo(cl, procSlow, data[i:], buf[i:], &call); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	registered.Store(0)
	n := b.count(200)
	round(n)
	if more := registered.Load(); more >= int64(n*callers) { // some are for buffers, as credits grow
		t.Errorf("%d registrations for %d calls with two items each", more, n*callers)
	}
	before := regions()
	var call rpc.Call
	kept := 0
	if !cl.Info().Capabilities.LocalDMA {
		kept = 1
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if after := regions(); after != before-kept {
		t.Errorf("%d regions after Close, want %d", after, before-kept)
	}
	if err := echo(cl, procEcho, mem[:size], mem[size:2*size], &call); err != nil {
		t.Errorf("a call after Close: %v", err)
	}
}
