package middleware_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/middleware"
	"github.com/rpcrdma/rpcrdma/transport"
)

// greeter answers procedure 1.
var greeter = rpc.Program{
	Number: 0x20000001, Low: 1, High: 1, Idempotent: rpc.Every,
	Handler: rpc.Procedures{1: func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		res.Results = append(res.Results, "hello..."...)
	}},
}

// serve runs a server with a program, and returns a client of it.
func serve(cfg *transport.ServerConfig, p rpc.Program) (cl *transport.Client, stop func()) {
	provider := iwarp.New(iwarp.Config{})
	server, err := transport.NewServer(cfg)
	check(err)
	check(server.Register(p))
	l, err := server.Listen(context.Background(), provider, "127.0.0.1:0")
	check(err)
	go server.Serve(l)
	cl, err = transport.Dial(context.Background(), provider, l.Addr().String(), nil)
	check(err)
	return cl, func() { cl.Close(); server.Close() }
}

// greet calls procedure 1 as a user.
func greet(cl *transport.Client, uid uint32) {
	user := oncrpc.AuthSys{Machine: "client", UID: uid, GID: 100}
	call := rpc.Call{Prog: 0x20000001, Vers: 1, Proc: 1, Cred: user.Auth(), MaxResults: 64}
	if err := cl.Call(context.Background(), &call); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(call.Results))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Users 1000 and 1001 of this machine may call.
func ExampleAllow() {
	p := greeter
	p.Auth = middleware.Allow(middleware.Access{
		From: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
		UIDs: []uint32{1000, 1001},
	})
	cl, stop := serve(nil, p)
	defer stop()
	greet(cl, 1000)
	greet(cl, 1002)
	// Output:
	// hello...
	// procedure 1 of program 0x20000001 v1: the server denied the call (AUTH_TOOWEAK)
}

// A log of all calls, those included that are refused after it.
func ExampleLog() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case slog.TimeKey, "peer", "xid", "took": // which differ from run to run
				return slog.Attr{}
			}
			return a
		},
	}))
	cfg := &transport.ServerConfig{Config: transport.Config{Middleware: []rpc.Middleware{
		middleware.Log(middleware.LogConfig{Logger: logger}),
		middleware.Require(middleware.Allow(middleware.Access{UIDs: []uint32{1000}})),
	}}}
	cl, stop := serve(cfg, greeter)
	defer stop()
	greet(cl, 1000)
	greet(cl, 0)
	// Output:
	// level=INFO msg=rpc prog=536870913 vers=1 proc=1 flavor=AUTH_SYS uid=1000 gid=100 status=SUCCESS in=0 out=8
	// hello...
	// level=WARN msg=rpc prog=536870913 vers=1 proc=1 flavor=AUTH_SYS uid=0 gid=100 status=AUTH_TOOWEAK in=0 out=0
	// procedure 1 of program 0x20000001 v1: the server denied the call (AUTH_TOOWEAK)
}

// Each user has one call per hour, and eight calls in flight.
func ExampleNewLimiter() {
	limiter, err := middleware.NewLimiter(middleware.Limits{
		By: middleware.ByUser, InFlight: 8, Rate: 1. / 3600, Wait: 100 * time.Millisecond,
	})
	check(err)
	p := greeter
	p.Handler = rpc.Chain(p.Handler, limiter.Wrap)
	cl, stop := serve(nil, p)
	defer stop()
	greet(cl, 1000)
	greet(cl, 1000)
	greet(cl, 1001)
	fmt.Println(limiter.Stats().Refused, "refused")
	// Output:
	// hello...
	// procedure 1 of program 0x20000001 v1: the server failed (SYSTEM_ERR)
	// hello...
	// 1 refused
}
