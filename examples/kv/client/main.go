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
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A printer implements kv.WatcherV1Server: what the server calls.
type printer struct{}

func (printer) Changed(_ context.Context, _ *rpc.Request, key string) error {
	fmt.Printf("%q has changed\n", key)
	return nil
}

func main() {
	addr := flag.String("addr", "127.0.0.1:20100", "`address` of the server")
	var provider fabric.Provider = iwarp.New(iwarp.Config{})
	flag.BoolFunc("tcp", "connect over TCP, not RDMA", func(string) error { provider = transport.TCP{}; return nil })
	flag.Parse()
	ctx := context.Background()
	config := &transport.ClientConfig{Callbacks: []rpc.Program{kv.WatcherV1Program(printer{})}}
	client := must(transport.Dial(ctx, provider, *addr, config))
	defer client.Close()
	store := kv.NewStoreV1Client(client)
	var res kv.Result
	switch key := flag.Arg(1); flag.Arg(0) {
	case "put":
		value := must(io.ReadAll(io.LimitReader(os.Stdin, kv.MaxValue+1)))
		res.Status = must(store.Put(ctx, key, value))
	case "get":
		res = must(store.Get(ctx, key, make([]byte, kv.MaxValue)))
		os.Stdout.Write(res.Value)
	case "watch":
		res.Status = must(store.Watch(ctx, key))
	default:
		log.Fatal("usage: client [-tcp] [-addr HOST:PORT] put KEY <VALUE | get KEY >VALUE | watch PREFIX")
	}
	if res.Status != kv.Ok {
		log.Fatal(res.Status)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
