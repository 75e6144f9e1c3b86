package bridge

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5/memfs"
	gonfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TestServerUnchanged: the unchanged go-nfs library, with its own handlers, serves on the
// bridge's listener as on a TCP listener, and its bulk data travels in chunks.
func TestServerUnchanged(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	gonfs.Log.SetLevel(gonfs.PanicLevel) // it has no EXPORT, and says so
	provider := iwarp.New(iwarp.Config{})
	server, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	bridge := server.Bridge(nfs.Binding{}, nfs.Program, nfs.MountProgram)
	l, err := server.Listen(ctx, provider, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 2)
	go func() { served <- server.Serve(l) }()
	go func() {
		handler := helpers.NewCachingHandler(helpers.NewNullAuthHandler(memfs.New()), 1024)
		served <- gonfs.Serve(bridge, handler)
	}()

	client, err := nfs.Dial(ctx, provider, l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	mount, err := client.Mount(ctx, "/")
	if err != nil {
		t.Fatal(err)
	}
	// The file system in memory has no modes to set.
	f, _, err := client.Create(ctx, &nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: mount.Root, Name: "file"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []byte(randomText(7, 3<<20+5))
	if _, err := client.Upload(ctx, f, bytes.NewReader(want), int64(len(want)), nil); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if n, err := client.ReadAt(ctx, f, got, 0); err != nil || n != len(want) || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes came back, %v", n, err)
	}
	if st := client.Transport().Stats(); st.ReadChunk == 0 || st.WriteChunk == 0 {
		t.Errorf("bulk data did not go through chunks: %+v", st)
	}
	if err := errors.Join(client.Shutdown(ctx), server.Shutdown(ctx)); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve returned %v", err)
		}
	}
}
