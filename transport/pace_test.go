package transport_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// busyProg is a program with calls that keep a processor busy for a while.
const busyProg = 0x20000078

// TestPace checks that connections that compete for the processors may have fewer calls in flight, but that one that
// has the server to itself may not, however busy the processors are.
func TestPace(t *testing.T) {
	spin := time.Duration(runtime.GOMAXPROCS(0)) * 50 * time.Microsecond // with 64 calls, 3 ms for all
	busy := rpc.Program{
		Number: busyProg, Low: 1, High: 1, Idempotent: rpc.Every, Independent: true,
		Handler: rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) {
			for start := time.Now(); time.Since(start) < spin; {
			}
		}),
	}
	t.Run("iwarp", func(t *testing.T) {
		w := onIwarp(iwarp.Config{}).startWith(t, nil, busy)
		testPace(t, w.server, func() *transport.Client { return w.dial(t, nil) })
	})
	t.Run("TCP", func(t *testing.T) {
		w := startTCP(t, nil, busy)
		testPace(t, w.server, func() *transport.Client { return w.dial(t, nil) })
	})
}

func testPace(t *testing.T, s *transport.Server, dial func() *transport.Client) {
	const callers = 64
	var clients []*transport.Client
	// load has a client make calls until stop.
	load := func() (stop func()) {
		cl := dial()
		clients = append(clients, cl)
		ctx, cancel := context.WithCancel(bg)
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for call := (rpc.Call{Prog: busyProg, Vers: 1, Proc: 1}); ctx.Err() == nil; {
					if err := cl.Call(bg, &call); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		stop = sync.OnceFunc(func() {
			cancel()
			wg.Wait()
			cl.Close()
		})
		t.Cleanup(stop)
		return stop
	}
	// grants are of all connections.
	grants := func() (list []int) {
		for _, cn := range s.Conns() {
			list = append(list, cn.Info().Credits)
		}
		return list
	}
	// until waits for all grants to be as ok says.
	until := func(what string, ok func(n int) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			good := true
			list := grants()
			for _, n := range list {
				good = good && ok(n)
			}
			if good && len(list) > 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: the grants are %d", what, list)
			}
		}
	}

	stop := load()
	until("one connection with many calls", func(n int) bool { return n == transport.DefaultCredits })
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if n := grants()[0]; n < transport.DefaultCredits {
			t.Fatalf("a connection alone is granted %d calls, want %d", n, transport.DefaultCredits)
		}
	}
	others := []func(){load(), load()}
	until("V1-3.3-5 three of them", func(n int) bool { return n == plan.LeastPaced })
	for _, stop := range others {
		stop()
	}
	until("V1-3.3-5 one again", func(n int) bool { return n == transport.DefaultCredits })

	// A call to a program with handlers that may wait for their client ends it.
	others = []func(){load(), load()}
	until("V1-3.3-5 three of them again", func(n int) bool { return n == plan.LeastPaced })
	for _, cl := range clients {
		if err := echo(cl, procEcho, nil, nil, new(rpc.Call)); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	whole := func(n int) bool { return n == transport.DefaultCredits }
	until("one that may wait", whole)
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if list := grants(); slices.ContainsFunc(list, func(n int) bool { return !whole(n) }) {
			t.Fatalf("after a call that may wait the grants are %d", list)
		}
	}
	for _, stop := range append(others, stop) {
		stop()
	}
}
