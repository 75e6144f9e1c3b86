package transport_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

const startProg = 0x2000007b

// startServer returns the address of a server of a program that every caller may call. answered counts the calls
// to clients that they have answered.
func startServer(t *testing.T, p fabric.Provider, answered *atomic.Int64) string {
	t.Helper()
	s, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	prog := rpc.Program{
		Number: startProg, Low: 1, High: 1, Inline: rpc.Every, Idempotent: rpc.Every,
		Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, _ *rpc.Response) {
			if req.Proc == 2 { // call the client, which has asked for that
				req.Conn().AllowBackward(0)
				go func() {
					if req.Conn().Call(context.Background(), &rpc.Call{Prog: startProg, Vers: 1, Proc: 3}) == nil {
						answered.Add(1)
					}
				}()
			}
		}),
	}
	if err := s.Register(prog); err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(context.Background(), p, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return l.Addr().String()
}

// TestStart checks that each call that Start accepts ends once, no later than the connection, and that the function is
// never called for other calls.
func TestStart(t *testing.T) {
	leak.Check(t)
	p := iwarp.New(iwarp.Config{})
	addr := startServer(t, p, new(atomic.Int64))
	all := int64(0)
	for range 30 {
		cl, err := transport.Dial(context.Background(), p, addr, &transport.ClientConfig{NoReconnect: true})
		if err != nil {
			t.Fatal(err)
		}
		conn := cl.Conn()
		var taken, ended atomic.Int64
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for conn.Err() == nil {
					call := &rpc.Call{Prog: startProg, Vers: 1, Proc: 1}
					if conn.Start(call, func(error) { ended.Add(1) }) {
						taken.Add(1)
					} else { // lead, which ends calls
						conn.Call(context.Background(), &rpc.Call{Prog: startProg, Vers: 1, Proc: 1})
					}
				}
			})
		}
		time.Sleep(2 * time.Millisecond) // any moment will do
		cl.Close()
		wg.Wait()
		for end := time.Now().Add(10 * time.Second); ended.Load() != taken.Load() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if ended.Load() != taken.Load() {
			t.Fatalf("%d calls have been started, and %d have ended", taken.Load(), ended.Load())
		}
		all += taken.Load()
	}
	if all == 0 {
		t.Error("no call has been started")
	}
}

// TestWaiter checks that a goroutine waits for the result of an Inline handler, moves the connection meanwhile, and is
// notified of the end of the connection and of its context.
func TestWaiter(t *testing.T) {
	leak.Check(t)
	soon, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	p := iwarp.New(iwarp.Config{})
	addr := startServer(t, p, new(atomic.Int64))
	var w atomic.Pointer[rpc.Waiter]
	cl, err := transport.Dial(context.Background(), p, addr, &transport.ClientConfig{
		NoReconnect: true, Callbacks: []rpc.Program{{
			Number: startProg, Low: 1, High: 1, Inline: rpc.Every, Idempotent: rpc.Every,
			Handler: rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) { (*w.Load()).Wake(true) }),
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	waiter := cl.Conn().NewWaiter()
	w.Store(&waiter)
	for range 200 {
		if err := cl.Call(context.Background(), &rpc.Call{Prog: startProg, Vers: 1, Proc: 2}); err != nil {
			t.Fatal(err)
		}
		if err := waiter.Wait(soon); err != nil {
			t.Fatal(err)
		}
	}
	waiter.Wake(false) // before Wait
	if err := waiter.Wait(soon); err != nil {
		t.Error(err)
	}
	go func() {
		time.Sleep(time.Millisecond)
		waiter.Wake(false) // while it leads
	}()
	if err := waiter.Wait(soon); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := waiter.Wait(ctx); err != context.DeadlineExceeded {
		t.Errorf("with a context that ends: %v", err)
	}
	go cl.Close()
	if err := waiter.Wait(soon); err == nil || soon.Err() != nil {
		t.Errorf("the end of the connection: %v", err)
	}
}
