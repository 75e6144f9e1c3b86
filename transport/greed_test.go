package transport_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Clients that want to make a server keep memory, or its connections, and clients that
// work with it meanwhile.

// A raw is a connection of a client that does as the test wants.
type raw struct {
	fabric.Conn
	w    *world
	xid  uint32
	bufs [][]byte // of what has been posted
}

func (w *world) raw(t testing.TB) *raw {
	t.Helper()
	fc, err := w.provider.Resolve(bg, w.addr, fabric.ConnAttr{SendDepth: 256, RecvDepth: 256})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fc.Close() })
	hello := rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096})
	if err := fc.Connect(bg, hello); err != nil {
		t.Fatal(err)
	}
	return &raw{Conn: fc, w: w}
}

// send sends one call, and waits until the server has it.
func (r *raw) send(h rpcrdma.Header, proc uint32, args ...byte) error {
	r.xid++
	h.XID, h.Vers, h.Credit = r.xid, rpcrdma.Version1, transport.DefaultCredits
	b := rpcrdma.AppendHeader(nil, &h)
	b = oncrpc.AppendCall(b, &oncrpc.CallHeader{XID: h.XID, RPCVers: oncrpc.Version, Prog: prog, Vers: 1, Proc: proc})
	b = append(b, args...)
	r.bufs = append(r.bufs, b)
	before := r.w.server.Stats().Calls
	if err := r.Post([]fabric.SendWR{{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: b}}}}); err != nil {
		return err
	}
	for end := time.Now().Add(5 * time.Second); r.w.server.Stats().Calls == before; time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			return errors.New("the server does not take the call")
		}
	}
	return nil
}

// greed asks for many results, and takes none.
func (r *raw) greed(calls, size int) error {
	for i := range calls {
		seg := rpcrdma.Segment{Handle: 0x100 + uint32(i), Length: uint32(size), Offset: 1 << 40}
		h := rpcrdma.Header{Writes: []rpcrdma.WriteChunk{{seg}}}
		if err := r.send(h, procMake, xdr.AppendUint32(xdr.AppendUint32(nil, uint32(size)), 1)...); err != nil {
			return err
		}
	}
	return nil
}

// withhold sends calls with arguments that are to be read, and does not serve the reads.
func (r *raw) withhold(calls, size int) error {
	for i := range calls {
		seg := rpcrdma.Segment{Handle: 0x100 + uint32(i), Length: uint32(size), Offset: 1 << 40}
		h := rpcrdma.Header{Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: seg}}}
		if err := r.send(h, procSum, xdr.AppendUint32(nil, uint32(size))...); err != nil {
			return err
		}
	}
	return nil
}

// produce has the server make n bytes.
func produce(cl *transport.Client, n int, buf []byte, call *rpc.Call) error {
	call.Prog, call.Vers, call.Proc = prog, 1, procMake
	call.Args = xdr.AppendUint32(xdr.AppendUint32(call.Args[:0], uint32(n)), 1)
	call.WriteItems = append(call.WriteItems[:0], rpc.WriteItem{Buf: buf[:n]})
	call.MaxResults = 8
	if err := cl.Call(bg, call); err != nil {
		return err
	}
	if got := call.WriteItems[0].N; got != n {
		return fmt.Errorf("%d bytes, want %d", got, n)
	}
	return nil
}

// TestIwarpGreed checks connections that request results but do not receive them, or that offer arguments but do not
// let them be read. The server's memory must stay within its limits, and another client's calls must succeed.
func TestIwarpGreed(t *testing.T) {
	const size, calls, attackers = 1 << 20, transport.InitialGrant, 10 // half of the memory is for other hosts
	cfg := &transport.Settings{MaxMessage: 1 << 20, MaxMemory: 16 << 20, MaxTotalMemory: 96 << 20}
	for name, attack := range map[string]func(r *raw) error{
		"results":   func(r *raw) error { return r.greed(calls, size) },
		"arguments": func(r *raw) error { return r.withhold(calls, size-100) },
	} {
		t.Run(name, func(t *testing.T) {
			w := onIwarp(iwarp.Config{}).start(t, cfg)
			good := w.dial(t, nil)
			for range attackers {
				if err := attack(w.raw(t)); err != nil {
					t.Fatal(err)
				}
			}
			var callers sync.WaitGroup
			var most atomic.Int64
			for range 4 {
				callers.Go(func() {
					var call rpc.Call
					buf := make([]byte, 1<<20)
					for range 25 {
						if err := produce(good, 1<<20, buf, &call); err != nil {
							t.Error(err)
							return
						}
						if n := int64(transport.MemoryUse(w.server)); n > most.Load() {
							most.Store(n)
						}
					}
				})
			}
			callers.Wait()
			t.Logf("%d KiB at most", most.Load()>>10)
			if n := most.Load(); n > int64(cfg.MaxTotalMemory) || n < attackers*size {
				t.Errorf("the server keeps %d KiB for its clients, want at most %d", n>>10, cfg.MaxTotalMemory>>10)
			}
		})
	}
}

// BenchmarkUnderAttack measures what one client gets while others attack, in turns with
// what it gets in peace: "share" is the median of the ratios.
func BenchmarkUnderAttack(b *testing.B) {
	for _, a := range []struct {
		name   string
		attack func(b *testing.B, w *world) (stop func())
	}{
		{"results=10x4x4Mi", func(b *testing.B, w *world) func() {
			return w.attackers(b, 10, func(r *raw) error { return r.greed(transport.InitialGrant, 4<<20) })
		}},
		{"arguments=10x4x4Mi", func(b *testing.B, w *world) func() {
			return w.attackers(b, 10, func(r *raw) error { return r.withhold(transport.InitialGrant, 4<<20-100) })
		}},
		{"silent=1000", func(b *testing.B, w *world) func() { return w.attackers(b, 1000, func(*raw) error { return nil }) }},
		{"halfopen", func(b *testing.B, w *world) func() {
			done := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				var conns []net.Conn
				for {
					select {
					case <-done:
						for _, c := range conns {
							c.Close()
						}
						return
					case <-time.After(time.Millisecond):
					}
					if c, err := net.Dial("tcp", w.addr); err == nil {
						conns = append(conns, c)
					}
					if len(conns) > 500 {
						conns[0].Close()
						conns = conns[1:]
					}
				}
			})
			return func() { close(done); wg.Wait() }
		}},
		{"turnedaway", func(b *testing.B, w *world) func() {
			done := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(time.Millisecond):
					}
					if cl, err := transport.Dial(bg, w.provider, w.addr, transport.Once(nil).Client()); err == nil {
						cl.Close()
					}
				}
			})
			return func() { close(done); wg.Wait() }
		}},
	} {
		for _, load := range []struct {
			name  string
			depth int
			call  func(cl *transport.Client, buf []byte, call *rpc.Call) error
		}{
			{"null", 1, func(cl *transport.Client, _ []byte, _ *rpc.Call) error { return cl.Null(bg, prog, 1) }},
			{"read=1Mi", 4, func(cl *transport.Client, buf []byte, call *rpc.Call) error {
				return produce(cl, 1<<20, buf, call)
			}},
		} {
			b.Run(a.name+"/"+load.name, func(b *testing.B) {
				w := onIwarp(iwarp.Config{}).start(b, nil)
				cl := w.dial(b, nil)
				rate := func(d time.Duration) float64 {
					var n atomic.Int64
					var wg sync.WaitGroup
					start := time.Now()
					for range load.depth {
						wg.Go(func() {
							var call rpc.Call
							buf := make([]byte, 1<<20)
							for time.Since(start) < d {
								if err := load.call(cl, buf, &call); err != nil {
									b.Error(err)
									return
								}
								n.Add(1)
							}
						})
					}
					wg.Wait()
					return float64(n.Load()) / time.Since(start).Seconds()
				}
				rate(200 * time.Millisecond)
				var shares []float64
				for b.Loop() {
					peace := rate(300 * time.Millisecond)
					stop := a.attack(b, w)
					under := rate(300 * time.Millisecond)
					stop()
					peace = (peace + rate(300*time.Millisecond)) / 2
					shares = append(shares, under/peace)
				}
				slices.Sort(shares)
				b.ReportMetric(shares[len(shares)/2], "share")
				b.ReportMetric(shares[0], "worst")
			})
		}
	}
}

// attackers makes n connections and has each attack.
func (w *world) attackers(t testing.TB, n int, attack func(r *raw) error) (stop func()) {
	var list []*raw
	for range n {
		r := w.raw(t)
		list = append(list, r)
		if err := attack(r); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for _, r := range list {
			r.Close()
		}
		for w.server.Stats().OpenConns > 1 {
			time.Sleep(time.Millisecond)
		}
	}
}

// TestIwarpSilentConnections checks that a host that holds all connections a server accepts does not keep out another
// host.
func TestIwarpSilentConnections(t *testing.T) {
	n := 64
	if s := os.Getenv("RPCRDMA_SILENT"); s != "" {
		fmt.Sscan(s, &n)
	}
	b := onIwarp(iwarp.Config{})
	b.addr = "localhost:0"
	if l, err := net.Listen("tcp", "[::]:0"); err != nil {
		t.Skipf("the kernel has no IPv6: %v", err)
	} else {
		l.Close()
	}
	b.addr = "[::]:0"
	w := b.start(t, &transport.Settings{MaxConns: n})
	_, port, _ := net.SplitHostPort(w.addr)
	four, six := net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)
	w.addr = four
	for range n {
		w.raw(t)
	}
	time.Sleep(1100 * time.Millisecond) // silent for a second
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	start := time.Now()
	cl, err := transport.Dial(ctx, w.provider, six, transport.Once(nil).Client())
	if err != nil {
		t.Fatalf("another host: %v", err)
	}
	defer cl.Close()
	if err := cl.Null(ctx, prog, 1); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d silent connections: another host has made its first call after %v", n, time.Since(start))
	var busy *transport.BusyError
	if cl, err := transport.Dial(bg, w.provider, four, transport.Once(nil).Client()); !errors.As(err, &busy) {
		t.Errorf("one more of the same host: %v", err)
		if err == nil {
			cl.Close()
		}
	}
}
