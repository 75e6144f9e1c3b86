package notify_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A client that prints what changes below a directory of a server.
func ExampleNotifyV1Client() {
	ctx := context.Background()
	client, err := transport.Dial(ctx, iwarp.New(iwarp.Config{}), "server.example:20049", &transport.ClientConfig{Streams: true})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for e, err := range notify.NewNotifyV1Client(client).Watch(ctx, &notify.WatchArgs{Dir: "projects", Recursive: true}) {
		switch {
		case errors.As(err, new(*stream.GapError)):
			fmt.Println("changes were lost")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println(e)
		}
	}
}
