package main

import (
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/util"
	gonfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"

	"github.com/rpcrdma/rpcrdma/internal/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/transport"
)

// An NFS server that was written for TCP, by others, serves RDMA through the bridge, unchanged.
func TestBridgeOfAnotherServer(t *testing.T) {
	files := memfs.New()
	text := randomText(1, 100_000)
	testutil.Must(t, util.WriteFile(files, "file", []byte(text), 0o644))
	server, err := transport.NewServer(nil)
	testutil.Must(t, err)
	bridge := server.Bridge(nfs.Binding{}, nfs.Program, nfs.MountProgram)
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	serving.Go(func() {
		handler := helpers.NewCachingHandler(helpers.NewNullAuthHandler(files), 100)
		if err := gonfs.Serve(bridge, handler); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	defer func() {
		server.Close()
		bridge.Close()
		serving.Wait()
	}()
	c, err := nfs.Dial(t.Context(), iwarp.New(iwarp.Config{}), l.Addr().String(), nil)
	testutil.Must(t, err)
	defer c.Close()
	top, err := c.Mnt(t.Context(), "/")
	testutil.Must(t, err)
	file := fhOf(t, c, top, "file")
	buf := make([]byte, len(text))
	if n, err := c.ReadAt(t.Context(), file, buf, 0); n != len(text) || err != nil || string(buf) != text {
		t.Errorf("READ: %d bytes, %v", n, err)
	}
	if c.Transport().Stats().WriteChunk == 0 {
		t.Error("the data came without a write chunk")
	}
}
