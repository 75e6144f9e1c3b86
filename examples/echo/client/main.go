// Command client sends a message to a server and prints the reply.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"

	"github.com/rpcrdma/rpcrdma/examples/echo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:20101", "`address` of the server")
	var provider fabric.Provider = iwarp.New(iwarp.Config{})
	flag.BoolFunc("tcp", "connect over TCP, not RDMA", func(string) error { provider = transport.TCP{}; return nil })
	flag.Parse()
	ctx := context.Background()
	client, err := transport.Dial(ctx, provider, *addr, nil)
	check(err)
	defer client.Close()
	answer, err := echo.NewEchoV1Client(client).Say(ctx, strings.Join(flag.Args(), " "))
	check(err)
	fmt.Println(answer)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
