package transporttest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/transporttest"
)

const prog = 0x20000001

// counter registers a program. Its procedure 1 returns how often it was executed.
func counter(n *atomic.Uint32) func(s rpc.Registrar) error {
	return func(s rpc.Registrar) error {
		return s.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: rpc.Procedures{
			1: func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
				res.Results = xdr.AppendUint32(res.Results, n.Add(1))
			},
		}})
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := transporttest.New(t)
		client := network.Connect(counter(new(atomic.Uint32)))
		network.Delay(time.Minute)
		began := time.Now()
		if err := client.Call(t.Context(), &rpc.Call{Prog: prog, Vers: 1, Proc: 1}); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != 2*time.Minute {
			t.Errorf("a call took %v, want a minute there and one back", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := client.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: 1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call with a deadline returned %v", err)
		}
	})
}

func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := transporttest.New(t)
		var executed atomic.Uint32
		client := network.Connect(counter(&executed))
		network.Delay(time.Second)
		done := make(chan error, 1)
		go func() { done <- client.Call(t.Context(), &rpc.Call{Prog: prog, Vers: 1, Proc: 1}) }()
		time.Sleep(1500 * time.Millisecond) // the reply is under way
		network.Cut()
		if err := <-done; err != nil || executed.Load() != 1 {
			t.Errorf("the call returned %v and was executed %d times, want once, and the reply on the next connection", err, executed.Load())
		}
		network.SetDown(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var lost *rpc.LostError
		if err := client.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: 1}); !errors.As(err, &lost) {
			t.Errorf("without a network the call returned %v", err)
		}
		network.SetDown(false)
		if err := client.Call(t.Context(), &rpc.Call{Prog: prog, Vers: 1, Proc: 1}); err != nil {
			t.Errorf("with the network back: %v", err)
		}
	})
}
