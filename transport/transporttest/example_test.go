package transporttest_test

import (
	"context"
	"testing"

	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/transporttest"
)

// A test of a handler. With code generated from a .x file, Connect's argument calls a Register function,
// and the calls are methods of a generated client.
func ExampleNetwork_Connect() {
	TestPing := func(t *testing.T) {
		client := transporttest.New(t).Connect(func(s rpc.Registrar) error {
			return s.Register(rpc.Program{Number: 0x20000001, Low: 1, High: 1, Handler: rpc.Procedures{
				1: func(_ context.Context, req *rpc.Request, res *rpc.Response) {
					res.Results = append(res.Results, req.Args...)
				},
			}})
		})
		call := rpc.Call{Prog: 0x20000001, Vers: 1, Proc: 1, Args: []byte("ping")}
		if err := client.Call(t.Context(), &call); err != nil || string(call.Results) != "ping" {
			t.Error(string(call.Results), err)
		}
	}
	_ = TestPing
}
