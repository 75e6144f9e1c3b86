package rpc_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A client's middleware is a function from Caller to Caller.
func ExampleCallerFunc() {
	denied := func(next rpc.Caller) rpc.Caller {
		return rpc.CallerFunc(func(ctx context.Context, call *rpc.Call) error {
			err := next.Call(ctx, call)
			var refused *oncrpc.RPCError
			if errors.As(err, &refused) && refused.Stat == oncrpc.MsgDenied {
				return fmt.Errorf("log in first: %w", err)
			}
			return err
		})
	}
	server := rpc.CallerFunc(func(context.Context, *rpc.Call) error {
		return &oncrpc.RPCError{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: oncrpc.AuthTooWeak}
	})
	err := denied(server).Call(context.Background(), &rpc.Call{Prog: 0x20000201, Vers: 1, Proc: 1})
	fmt.Println(err)
	// Output: log in first: rpc: the server denied the call (AUTH_TOOWEAK)
}
