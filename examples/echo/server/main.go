// Command server sends back what it receives.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/examples/echo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// echoer implements echo.EchoV1Server.
type echoer struct{}

func (echoer) Say(_ context.Context, _ *rpc.Request, said string, res *string) error {
	*res = said
	return nil
}

func main() {
	addr := flag.String("addr", "127.0.0.1:20101", "`address` to listen on")
	var provider fabric.Provider = iwarp.New(iwarp.Config{})
	flag.BoolFunc("tcp", "serve over TCP, not RDMA", func(string) error { provider = transport.TCP{}; return nil })
	flag.Parse()
	server, err := transport.NewServer(nil)
	check(err)
	check(echo.RegisterEchoV1(server, echoer{}))
	l, err := server.Listen(context.Background(), provider, *addr)
	check(err)
	fmt.Println("listening on", l.Addr())
	check(server.Serve(l))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
