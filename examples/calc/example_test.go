package calc_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/examples/calc"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/middleware"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A constant is a server that knows one result, and does not tell it to group 100.
type constant float64

func (c constant) Evaluate(_ context.Context, req *rpc.Request, _ *calc.Expression, res *calc.Result) error {
	if user, ok := req.AuthSys(); ok && user.GID == 100 {
		return oncrpc.AuthTooWeak
	}
	*res = calc.Result{Status: calc.Ok, Value: float64(c)}
	return nil
}

// as is a client's middleware: its calls have a credential.
func as(user oncrpc.Auth, next rpc.Caller) rpc.Caller {
	return rpc.CallerFunc(func(ctx context.Context, call *rpc.Call) error {
		call.Cred = user
		return next.Call(ctx, call)
	})
}

// A generated server is an rpc.Program; its Auth and Handler can be set. A generated client
// accepts any rpc.Caller.
func ExampleCalcV1Program() {
	limiter, err := middleware.NewLimiter(middleware.Limits{By: middleware.ByConn, InFlight: 4})
	check(err)
	program := calc.CalcV1Program(constant(42))
	program.Auth = middleware.Allow(middleware.Access{UIDs: []uint32{1000}})
	program.Handler = rpc.Chain(program.Handler, limiter.Wrap)

	provider := iwarp.New(iwarp.Config{})
	server, err := transport.NewServer(nil)
	check(err)
	defer server.Close()
	check(server.Register(program))
	l, err := server.Listen(context.Background(), provider, "127.0.0.1:0")
	check(err)
	go server.Serve(l)

	conn, err := transport.Dial(context.Background(), provider, l.Addr().String(), nil)
	check(err)
	defer conn.Close()
	for _, user := range []oncrpc.AuthSys{{UID: 1000, GID: 7}, {UID: 1001, GID: 7}, {UID: 1000, GID: 100}} {
		res, err := calc.NewCalcV1Client(as(user.Auth(), conn)).Evaluate(context.Background(), &calc.Expression{})
		fmt.Println(res.Value, err)
	}
	// Output:
	// 42 <nil>
	// 0 EVALUATE of CALC v1: the server denied the call (AUTH_TOOWEAK)
	// 0 EVALUATE of CALC v1: the server denied the call (AUTH_TOOWEAK)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
