package nfs_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
)

func Example() {
	ctx := context.Background()
	u, err := nfs.ParseURL("nfs://server.example/srv/data/report.pdf")
	if err != nil {
		log.Fatal(err)
	}
	c, err := nfs.Dial(ctx, iwarp.New(iwarp.Config{}), u.Addr(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	f, err := c.Open(ctx, u.Path)
	if err != nil {
		log.Fatal(err)
	}
	local, err := os.Create("report.pdf")
	if err != nil {
		log.Fatal(err)
	}
	defer local.Close()
	n, err := f.Download(ctx, local, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(n, "bytes")
}

func ExampleClient_Walk() {
	ctx := context.Background()
	c, err := nfs.Dial(ctx, iwarp.New(iwarp.Config{}), "server.example:20049", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	err = c.Walk(ctx, "/srv/data", func(n nfs.Node, err error) error {
		if err != nil {
			return err
		}
		fmt.Println(n.Attr.FileMode(), n.Attr.Size, n.Path)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleParseURL() {
	u, err := nfs.ParseURL("nfs://[fd00::1]/srv/100%25%20sure")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(u.Addr())
	fmt.Println(u.Path)
	// Output:
	// [fd00::1]:20049
	// /srv/100% sure
}

func ExampleBinding() {
	// WRITE, RFC 1813 section 3.3.7: the data may be a read chunk.
	args := nfs.WriteArgs{Count: 5, Stable: nfs.FileSync, Data: []byte("hello")}
	stream := args.Append(nil)
	p := rpc.Procedure{Prog: nfs.Program, Vers: nfs.Version, Proc: nfs.ProcWrite}
	items, _ := nfs.Binding{}.Call(p, stream, nil)
	for _, it := range items {
		fmt.Printf("%q\n", stream[it.Offset:it.Offset+it.Length])
	}
	// Output:
	// "hello"
}
