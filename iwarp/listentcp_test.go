package iwarp

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A listener takes the socket that it is given and leaves its owner's duplicate open.
func TestListenTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	testutil.Must(t, err)
	defer f.Close()
	for range 2 {
		p := New(Config{ListenTCP: func(_ context.Context, addr string) (*net.TCPListener, error) {
			if addr != "192.0.2.1:1" {
				t.Errorf("asked for %s", addr)
			}
			given, err := net.FileListener(f)
			testutil.Must(t, err)
			return given.(*net.TCPListener), nil
		}})
		fl, err := p.Listen(t.Context(), "192.0.2.1:1", fabric.ConnAttr{})
		testutil.Must(t, err)
		if fl.Addr().String() != l.Addr().String() {
			t.Errorf("listening on %v, want %v", fl.Addr(), l.Addr())
		}
		c, err := New(Config{}).Resolve(t.Context(), l.Addr().String(), fabric.ConnAttr{})
		testutil.Must(t, err)
		connected := make(chan error, 1)
		go func() { connected <- c.Connect(t.Context(), nil) }()
		in, err := fl.Accept(t.Context())
		testutil.Must(t, err)
		testutil.Must(t, in.Accept(t.Context(), nil))
		testutil.Must(t, <-connected)
		c.Close()
		in.Close()
		testutil.Must(t, p.Close())
	}
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatalf("the owner's socket does not listen any more: %v", err)
	}
	conn.Close()
}

// Listen returns the error of the function that was to provide a socket.
func TestListenTCPFails(t *testing.T) {
	none := errors.New("none")
	p := New(Config{ListenTCP: func(context.Context, string) (*net.TCPListener, error) { return nil, none }})
	defer p.Close()
	_, err := p.Listen(t.Context(), "127.0.0.1:0", fabric.ConnAttr{})
	var setup *SetupError
	if !errors.As(err, &setup) || !errors.Is(err, none) {
		t.Errorf("Listen: %v", err)
	}
}
