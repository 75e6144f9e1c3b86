package loadgen_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A thousand calls that read 16 KiB each, eight of them at a time.
func Example() {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	provider := iwarp.New(iwarp.Config{})
	server, err := transport.NewServer(nil)
	check(err)
	check(server.Register(loadgen.Program()))
	l, err := server.Listen(ctx, provider, "127.0.0.1:0")
	check(err)
	go server.Serve(l)
	defer server.Close()

	client, err := transport.Dial(ctx, provider, l.Addr().String(), nil)
	check(err)
	defer client.Close()
	r, err := loadgen.Run(ctx, client, loadgen.Step{Op: loadgen.Read, Size: 16 << 10, Depth: 8}, loadgen.Config{Calls: 1000})
	check(err)
	fmt.Println(r.N(), "calls, all answers right:", r.Rate() > 0 && r.Quantile(0.99) >= r.Quantile(0.5))
	// Output: 1000 calls, all answers right: true
}
