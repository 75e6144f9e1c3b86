//go:build linux

package shm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// TestAddresses: where one can listen, and what the errors say.
func TestAddresses(t *testing.T) {
	leak.Check(t)
	ctx := context.Background()
	dir := t.TempDir()
	p := New(Config{})
	defer p.Close()
	socket := filepath.Join(dir, "s")
	l, err := p.Listen(ctx, socket, fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		addr string
		want error
	}{
		{socket, syscall.EADDRINUSE},
		{file, syscall.EADDRINUSE},
		{filepath.Join(dir, "missing", "s"), syscall.ENOENT},
		{filepath.Join(dir, string(make([]byte, 200))), syscall.EINVAL},
	} {
		if other, err := p.Listen(ctx, tt.addr, fabric.ConnAttr{}); !errors.Is(err, tt.want) {
			t.Errorf("listen at %s: %v, want %v", tt.addr, err, tt.want)
			if err == nil {
				other.Close()
			}
		}
	}
	if b, err := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("the file has %q: %v", b, err)
	}
	l.Close()
	for addr, want := range map[string]error{socket: syscall.ENOENT, "@rpcrdma test without listener": syscall.ECONNREFUSED} {
		c, err := p.Resolve(ctx, addr, fabric.ConnAttr{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Connect(ctx, nil); !errors.Is(err, want) {
			t.Errorf("connect to %s: %v, want %v", addr, err, want)
		}
		c.Close()
	}
	if _, err := New(Config{Ring: 100000}).Listen(ctx, "@", fabric.ConnAttr{}); !errors.Is(err, fabric.ErrNotSupported) {
		t.Errorf("a ring of no power of two: %v", err)
	}
}

// TestPeer: both ends learn which process the other one is.
func TestPeer(t *testing.T) {
	leak.Check(t)
	p := New(Config{})
	e := startEchoer(t, p)
	defer p.Close()
	c, err := talk(p, e.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	want := Addr{Name: e.l.Addr().String(), PID: os.Getpid(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	if got := c.RemoteAddr(); got != want {
		t.Errorf("the server is %+v, want %+v", got, want)
	}
	peer := rpc.PeerOf(c.RemoteAddr(), nil)
	if peer.Process == nil || *peer.Process != (fabric.Process{PID: os.Getpid(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}) {
		t.Errorf("the server's process is %+v", peer.Process)
	}
	// Before there is a connection the kernel vouches for no process, root's in particular.
	before, err := p.Resolve(t.Context(), "/nowhere", fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	if peer := rpc.PeerOf(before.RemoteAddr(), nil); peer.Process != nil {
		t.Errorf("an address without a connection is process %+v", peer.Process)
	}
	before.Close()
	c.Close()
	<-e.ends
}
