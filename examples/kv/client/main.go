// Command client puts, gets and watches values of a server.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/rpcrdma/rpcrdma/examples/kv"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A printer implements kv.WatcherV1Server: what the server calls.
type printer struct{}

func (printer) Changed(_ context.Context, _ *transport.Request, key string) error {
	fmt.Printf("%q has changed\n", key)
	return nil
}

func main() {
	addr := flag.String("addr", "127.0.0.1:20100", "`address` of the server")
	tcp := flag.Bool("tcp", false, "connect over TCP, not RDMA")
	flag.Parse()
	ctx := context.Background()
	config := &transport.ClientConfig{Callbacks: []transport.Program{kv.WatcherV1Program(printer{})}}
	var client *transport.Client
	var err error
	if *tcp {
		client, err = transport.DialTCP(ctx, *addr, config)
	} else {
		client, err = transport.Dial(ctx, iwarp.New(iwarp.Config{}), *addr, config)
	}
	check(err)
	defer client.Close()
	store := kv.NewStoreV1Client(client)
	var res kv.Result
	switch key := flag.Arg(1); flag.Arg(0) {
	case "put":
		value, err := io.ReadAll(io.LimitReader(os.Stdin, kv.MaxValue+1))
		check(err)
		res.Status, err = store.Put(ctx, &kv.Pair{Key: key, Value: value})
		check(err)
	case "get":
		res, err = store.Get(ctx, key, make([]byte, kv.MaxValue))
		check(err)
		os.Stdout.Write(res.Value)
	case "watch":
		res.Status, err = store.Watch(ctx, key)
		check(err)
	default:
		log.Fatal("usage: client [-tcp] [-addr HOST:PORT] put KEY <VALUE | get KEY >VALUE | watch PREFIX")
	}
	if res.Status != kv.Ok {
		log.Fatal(res.Status)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
