package stream_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/rpcrdma/rpcrdma/examples/kv"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A watch that goes on when the server has restarted.
func Example() {
	ctx := context.Background()
	client, err := transport.Dial(ctx, iwarp.New(iwarp.Config{}), "127.0.0.1:20100", &transport.ClientConfig{Streams: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	for key, err := range kv.NewStoreV1Client(client).Watch(ctx, "prefix/") {
		switch {
		case errors.As(err, new(*stream.GapError)):
			fmt.Println("look at all keys again:", err)
		case err != nil:
			fmt.Println(err) // the last
		default:
			fmt.Println(key, "has changed")
		}
	}
}
