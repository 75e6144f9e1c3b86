package transport_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// busyProg is a program whose calls take a processor for a while.
const busyProg = 0x20000078

// grants returns what each connection of the server is granted now.
func (w *world) grants() (list []int) {
	for _, cn := range w.server.Conns() {
		list = append(list, cn.Info().Credits)
	}
	return list
}

// TestIwarpPace: connections that compete for the processors are granted fewer calls, and one
// that has the server to itself is not, however busy the processors are.
func TestIwarpPace(t *testing.T) {
	const callers = 64
	spin := time.Duration(runtime.GOMAXPROCS(0)) * 50 * time.Microsecond // for 3 ms of a wait in all
	w := onIwarp(iwarp.Config{}).startWith(t, nil, transport.Program{
		Number: busyProg, Low: 1, High: 1, Idempotent: transport.Every,
		Handler: transport.HandlerFunc(func(context.Context, *transport.Request, *transport.Response) {
			for start := time.Now(); time.Since(start) < spin; {
			}
		}),
	})
	// load has a client make calls until stop.
	load := func() (stop func()) {
		cl := w.dial(t, nil)
		ctx, cancel := context.WithCancel(bg)
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for call := (transport.Call{Prog: busyProg, Vers: 1, Proc: 1}); ctx.Err() == nil; {
					if err := cl.Call(bg, &call); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		return func() {
			cancel()
			wg.Wait()
			cl.Close()
		}
	}
	// until waits for all grants to be as ok says.
	until := func(what string, ok func(n int) bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			good := true
			grants := w.grants()
			for _, n := range grants {
				good = good && ok(n)
			}
			if good && len(grants) > 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: the grants are %d", what, grants)
			}
		}
	}

	stop := load()
	until("one connection with many calls", func(n int) bool { return n == transport.DefaultCredits })
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if n := w.grants()[0]; n < transport.DefaultCredits {
			t.Fatalf("a connection alone is granted %d calls, want %d", n, transport.DefaultCredits)
		}
	}
	others := []func(){load(), load()}
	until("V1-3.3-5 three of them", func(n int) bool { return n == plan.LeastPaced })
	for _, stop := range others {
		stop()
	}
	until("V1-3.3-5 one again", func(n int) bool { return n == transport.DefaultCredits })
	stop()
}
