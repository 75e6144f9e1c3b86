package nfs41_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs/nfs41"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A server wants a delegation back, over the connection that the client has made.
func Example() {
	ctx := context.Background()
	provider := iwarp.New(iwarp.Config{})

	sessions := make(chan *nfs41.ServerSession, 1)
	srv := nfs41.NewServer(&nfs41.ServerConfig{
		OnSession: func(_ context.Context, ss *nfs41.ServerSession) { sessions <- ss },
	})
	defer srv.Close()
	ts, err := transport.NewServer(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer ts.Close()
	if err := ts.Register(srv.Program()); err != nil {
		log.Fatal(err)
	}
	l, err := ts.Listen(ctx, provider, "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go ts.Serve(l)

	s, err := nfs41.Dial(ctx, provider, l.Addr().String(), &nfs41.Config{
		Callback: func(_ context.Context, op uint32, args nfs41.Message) nfs41.Status {
			fmt.Println("client executes", nfs41.CBOpName(op), args.(*nfs41.CBRecallArgs).Handle)
			return nfs41.StatusOK
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	flags, err := s.Sequence(ctx)
	fmt.Println("SEQUENCE:", flags, err)

	ss := <-sessions
	fmt.Println("CB_NULL:", ss.Null(ctx))
	fmt.Println("CB_RECALL:", ss.Callback(ctx, nfs41.Operation{
		Op: nfs41.OpCBRecall, Args: &nfs41.CBRecallArgs{Handle: nfs41.FileHandle{0xca, 0xfe}},
	}))
	fmt.Println("destroyed:", s.Destroy(ctx))
	// Output:
	// SEQUENCE: 0 <nil>
	// CB_NULL: <nil>
	// client executes CB_RECALL cafe
	// CB_RECALL: <nil>
	// destroyed: <nil>
}
