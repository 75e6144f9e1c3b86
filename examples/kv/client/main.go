// Command client puts, gets and watches values on a server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/rpcrdma/rpcrdma/examples/kv"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
	"github.com/rpcrdma/rpcrdma/transport"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:20100", "`address` of the server")
	var provider fabric.Provider = iwarp.New(iwarp.Config{})
	flag.BoolFunc("tcp", "connect over TCP, not RDMA", func(string) error { provider = transport.TCP{}; return nil })
	flag.Parse()
	ctx := context.Background()
	client := must(transport.Dial(ctx, provider, *addr, &transport.ClientConfig{Streams: true}))
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
		for changed, err := range store.Watch(ctx, key) {
			if errors.As(err, new(*stream.GapError)) {
				log.Print(err)
				continue
			}
			fmt.Printf("%q has changed\n", must(changed, err))
		}
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
