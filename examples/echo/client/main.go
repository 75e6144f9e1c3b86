// Command client says something to a server and prints the answer.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"

	"github.com/rpcrdma/rpcrdma/examples/echo"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:20101", "`address` of the server")
	tcp := flag.Bool("tcp", false, "connect over TCP, not RDMA")
	flag.Parse()
	ctx := context.Background()
	var client *transport.Client
	var err error
	if *tcp {
		client, err = transport.DialTCP(ctx, *addr, nil)
	} else {
		client, err = transport.Dial(ctx, iwarp.New(iwarp.Config{}), *addr, nil)
	}
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
