package transport_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TestIwarpGivenUpCallKeepsConnection cancels a running call that has arguments in a chunk. The late reply invalidates
// memory that the caller has closed, and the connection must survive.
func TestIwarpGivenUpCallKeepsConnection(t *testing.T) {
	const hold = 100
	begun, gate := make(chan struct{}), make(chan struct{})
	s, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Register(rpc.Program{Number: prog, Low: 1, High: 1, Idempotent: rpc.Every,
		Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, _ *rpc.Response) {
			if req.Proc != hold {
				return
			}
			begun <- struct{}{}
			select {
			case <-gate:
			case <-ctx.Done():
			}
		})}); err != nil {
		t.Fatal(err)
	}
	p := iwarp.New(iwarp.Config{})
	l, err := s.Listen(bg, p, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	cl, err := transport.Dial(bg, p, l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if !cl.Info().RemoteInvalidation {
		t.Fatal("replies do not invalidate")
	}
	before := cl.Stats().Dropped
	for n := range uint64(50) {
		ctx, cancel := context.WithCancel(bg)
		done := make(chan error, 1)
		go func() {
			done <- cl.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: hold, Args: xdr.AppendUint32(nil, 64<<10),
				ReadItems: []rpc.ReadItem{{Offset: 4, Data: make([]byte, 64<<10)}}})
		}()
		select {
		case <-begun:
		case err := <-done:
			t.Fatalf("the call returned %v before it was given up", err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("the call returned %v", err)
		}
		gate <- struct{}{}
		// Calls after it are answered, and at last the late reply arrives.
		for end := time.Now().Add(10 * time.Second); cl.Stats().Dropped <= before+n; {
			if err := cl.Null(bg, prog, 1); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(end) {
				t.Fatalf("%d late replies have come, want %d", cl.Stats().Dropped, n+1)
			}
		}
	}
	if st := cl.Stats(); st.Conns != 1 || st.Canceled != 50 || st.Resent != 0 {
		t.Errorf("the client's counters are %+v", st)
	}
}
