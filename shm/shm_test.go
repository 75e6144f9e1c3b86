//go:build linux

package shm

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// streams returns the two ends of a connection, with the smallest rings.
func streams(t *testing.T) (a, b *stream) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	bellA, bellB, err := newBell()
	if err != nil {
		t.Fatal(err)
	}
	ma, fdA, errA := newMemory(&Config{Ring: MinRing})
	mb, fdB, errB := newMemory(&Config{Ring: MinRing})
	toA, errC := theirMemory(fdB)
	toB, errD := theirMemory(fdA)
	if err := errors.Join(errA, errB, errC, errD); err != nil {
		t.Fatal(err)
	}
	closeAll([]int{fdA, fdB})
	end := func(mine, theirs memory, bell, fd int) *stream {
		f := os.NewFile(uintptr(fd), "")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		s := newStream(mine, theirs, bell, c.(*net.UnixConn))
		t.Cleanup(func() {
			s.File().Close()
			s.Close()
		})
		return s
	}
	return end(ma, toA, bellA, pair[0]), end(mb, toB, bellB, pair[1])
}

// TestWakeIsNotTaken: a reader that parks wakes even if the byte that was to wake it is taken by the
// writer of the same end, which looks for room.
func TestWakeIsNotTaken(t *testing.T) {
	leak.Check(t)
	a, b := streams(t)
	rc, err := a.File().SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for range maxArms {
		if t.Failed() {
			return
		}
		b.ring()
		for range maxArms { // one of them takes the byte
			a.ArmWrite()
		}
		lost := time.AfterFunc(10*time.Second, func() {
			t.Error("the reader does not wake")
			a.File().SetReadDeadline(past)
		})
		rc.Read(func(uintptr) bool { return false })
		lost.Stop()
		a.File().SetReadDeadline(time.Time{})
	}
}

// TestBellStaysWritable: a goroutine that never takes the bytes that wake it leaves room for more, so
// that a writer parks on a socket that is writable.
func TestBellStaysWritable(t *testing.T) {
	leak.Check(t)
	a, b := streams(t)
	for i := range 10 * maxArms {
		a.ring() // b has armed once since the last byte, at most
		b.ArmRead()
		fds := []unix.PollFd{{Fd: int32(a.bellFD), Events: unix.POLLOUT}}
		if n, err := unix.Poll(fds, 0); n != 1 || err != nil {
			t.Fatalf("the bell is not writable after %d bytes: %v", i+1, err)
		}
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
