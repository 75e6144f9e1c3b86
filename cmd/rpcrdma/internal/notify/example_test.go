package notify_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A client that prints what changes below a directory of a server.
func ExampleClient() {
	ctx := context.Background()
	watch := notify.NewClient(notify.ClientConfig{
		Dir: "projects", Recursive: true,
		Events: func(_ uint64, events []notify.Event) {
			for _, e := range events {
				fmt.Println(e)
			}
		},
	})
	client, err := transport.Dial(ctx, iwarp.New(iwarp.Config{}), "server.example:20049", &transport.ClientConfig{
		Callbacks:   []rpc.Program{watch.Program()}, // before it subscribes: events may come at once
		OnReconnect: func(c *transport.Client) { watch.Subscribe(ctx, c) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := watch.Subscribe(ctx, client); err != nil {
		log.Fatal(err)
	}
	<-client.Done()
}
