package nfs41_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs/nfs41"
)

// A client that keeps a session alive, and returns delegations when the server recalls them.
func Example() {
	ctx := context.Background()
	s, err := nfs41.Dial(ctx, iwarp.New(iwarp.Config{}), "server:20049", &nfs41.Config{
		Renew: true,
		Callback: func(_ context.Context, op uint32, args nfs41.Message) nfs41.Status {
			recall, ok := args.(*nfs41.CBRecallArgs)
			if !ok {
				return nfs41.StatusNotSupp
			}
			fmt.Println(nfs41.CBOpName(op), recall.Handle)
			return nfs41.StatusOK
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Destroy(ctx)

	var root nfs41.FileHandle
	err = s.Compound(ctx,
		nfs41.Operation{Op: nfs41.OpPutRootFH},
		nfs41.Operation{Op: nfs41.OpGetFH, Result: &root})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("root:", root)
}
