//go:build linux && cgo

package transport_test

import (
	"context"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A tap is a provider that remembers its connections.
type tap struct {
	fabric.Provider
	mu    sync.Mutex
	conns []*rdmacm.Conn
}

func (p *tap) add(c fabric.Conn, err error) (fabric.Conn, error) {
	if err == nil {
		p.mu.Lock()
		p.conns = append(p.conns, c.(*rdmacm.Conn))
		p.mu.Unlock()
	}
	return c, err
}

func (p *tap) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	return p.add(p.Provider.Resolve(ctx, addr, attr))
}

func (p *tap) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	l, err := p.Provider.Listen(ctx, addr, attr)
	return tapListener{l, p}, err
}

type tapListener struct {
	fabric.Listener
	p *tap
}

func (l tapListener) Accept(ctx context.Context) (fabric.Conn, error) {
	return l.p.add(l.Listener.Accept(ctx))
}

// TestRDMACgoCallsPerCall counts calls into C. Where Wait does not poll, the count is exact and does not depend on the
// load of the machine.
func TestRDMACgoCallsPerCall(t *testing.T) {
	for _, kind := range rdmatest.Kinds() {
		for _, tt := range []struct {
			depth    int
			mode     rdmacm.WaitMode
			most     float64 // calls into C, for each call and side
			doorbell float64 // of those, to post sends
		}{
			{1, rdmacm.WaitEvent, 4, 1.1},
			{32, rdmacm.WaitEvent, 1, 0.5},
		} {
			t.Run(kind+"/"+map[int]string{1: "one", 32: "32"}[tt.depth], func(t *testing.T) {
				b := onDevice(t, kind, rdmacm.Config{Wait: tt.mode})
				real, _ := b.provider(t)
				p := &tap{Provider: real}
				b.open = func() (fabric.Provider, live, error) { return p, func() (a, b, c int) { return 0, 0, 0 }, nil }
				w := b.start(t, nil)
				cl := w.dial(t, nil)
				calls := func(n int) {
					var wg sync.WaitGroup
					for range tt.depth {
						wg.Go(func() {
							for range n / tt.depth {
								if err := cl.Null(bg, prog, 1); err != nil {
									t.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
				}
				calls(320) // credits grow, buffers are made
				before := p.stats()
				const n = 1600
				calls(n)
				for i, s := range p.stats() {
					side := []string{"client", "server"}[i%2]
					sends, recvs := s.SendCalls-before[i].SendCalls, s.RecvCalls-before[i].RecvCalls
					polls := s.Calls - before[i].Calls
					all := float64(sends+recvs+polls) / n
					t.Logf("%s: %.2f calls into C for a call: %.2f to post sends, %.2f to post receives, %.2f to poll", side,
						all, float64(sends)/n, float64(recvs)/n, float64(polls)/n)
					if all > tt.most {
						t.Errorf("%s: %.2f calls into C, want at most %v", side, all, tt.most)
					}
					if d := float64(sends) / n; d > tt.doorbell {
						t.Errorf("%s: %.2f doorbells, want at most %v", side, d, tt.doorbell)
					}
				}
			})
		}
	}
}

// TestRDMADoorbellsPerCall checks V1-3.8-2: with remote invalidation, a call with a write chunk posts one list at each
// end. The lists are bind and Send, and Write and Send with Invalidate.
func TestRDMADoorbellsPerCall(t *testing.T) {
	b := onDevice(t, "rxe", rdmacm.Config{Wait: rdmacm.WaitEvent, UnsafeWindows: true})
	real, _ := b.provider(t)
	p := &tap{Provider: real}
	b.open = func() (fabric.Provider, live, error) { return p, func() (a, b, c int) { return 0, 0, 0 }, nil }
	w := b.start(t, nil)
	cl := w.dial(t, nil)
	const size, n = 1 << 20, 20
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procMake, WriteItems: []rpc.WriteItem{{Buf: make([]byte, size)}}, MaxResults: 8}
	call.Args = xdr.AppendUint32(xdr.AppendUint32(nil, size), 3)
	calls := func() {
		for range n {
			if err := cl.Call(bg, &call); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls()
	before := p.stats()
	calls()
	for i, s := range p.stats() {
		side := []string{"client", "server"}[i%2]
		if got := s.SendCalls - before[i].SendCalls; got != n {
			t.Errorf("%s: %d lists posted for %d calls", side, got, n)
		}
		if got := s.Sends - before[i].Sends; got < 2*n {
			t.Errorf("%s: %d requests posted for %d calls", side, got, n)
		}
	}
	if got := cl.Stats().Invalidated; got != 2*n {
		t.Errorf("%d of %d replies came with an invalidation", got, 2*n)
	}
}

// stats returns the counters of the client's end and of the server's.
func (p *tap) stats() []rdmacm.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []rdmacm.Stats
	for _, c := range p.conns {
		out = append(out, c.Stats())
	}
	return out
}
