package dirfs_test

import (
	"context"
	"log"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd/dirfs"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A server of NFSv3 that exports a directory of this machine, to be read by anyone.
func Example() {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	disk, err := dirfs.Open("/srv/data", nil)
	check(err)
	defer disk.Close()
	files, err := nfsd.New(&nfsd.Config{Exports: []nfsd.Export{{Name: "/data", FS: disk, ReadOnly: true}}})
	check(err)
	defer files.Shutdown(ctx)
	server, err := transport.NewServer(nil)
	check(err)
	defer server.Close()
	for _, p := range files.Programs() {
		check(server.Register(p))
	}
	l, err := server.Listen(ctx, iwarp.New(iwarp.Config{}), ":20049")
	check(err)
	check(server.Serve(l))
}
