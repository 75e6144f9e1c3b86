package transport_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// An adapter may make a system call wherever the transport calls it, and a TCP connection does so
// when it is read or written. While a goroutine is in the kernel, others must not wait for a lock
// that it holds: a call on the data path is made without locks. Setting a connection up, and
// ending it, is another matter.

// A lockWatch collects the calls that are made by goroutines with locks.
type lockWatch struct {
	mu    sync.Mutex
	calls int
	held  map[string][]lockorder.Rank
}

func (w *lockWatch) called(what string) {
	ranks := lockorder.Held()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if len(ranks) > 0 {
		if w.held == nil {
			w.held = make(map[string][]lockorder.Rank)
		}
		w.held[what] = ranks
	}
}

// check reports what was seen. The order of locks is known in builds with the race detector
// alone.
func (w *lockWatch) check(t *testing.T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for what, ranks := range w.held {
		t.Errorf("%s is called with locks of the ranks %v", what, ranks)
	}
	if w.calls == 0 {
		t.Error("nothing has been called")
	}
}

// watchedProvider tells a lockWatch of the calls on the data path.
type watchedProvider struct {
	fabric.Provider
	w *lockWatch
}

func (p watchedProvider) conn(c fabric.Conn, err error) (fabric.Conn, error) {
	if err != nil {
		return nil, err
	}
	return watchedFabricConn{c, p.w}, nil
}

func (p watchedProvider) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	return p.conn(p.Provider.Resolve(ctx, addr, attr))
}

func (p watchedProvider) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	l, err := p.Provider.Listen(ctx, addr, attr)
	if err != nil {
		return nil, err
	}
	return watchedFabricListener{l, p}, nil
}

type watchedFabricListener struct {
	fabric.Listener
	p watchedProvider
}

func (l watchedFabricListener) Accept(ctx context.Context) (fabric.Conn, error) {
	l.p.w.called("Listener.Accept")
	return l.p.conn(l.Listener.Accept(ctx))
}

type watchedFabricConn struct {
	fabric.Conn
	w *lockWatch
}

func (c watchedFabricConn) Post(wrs []fabric.SendWR) error {
	c.w.called("Post")
	return c.Conn.Post(wrs)
}

func (c watchedFabricConn) PostRecv(wrs []fabric.RecvWR) error {
	c.w.called("PostRecv")
	return c.Conn.PostRecv(wrs)
}

func (c watchedFabricConn) Poll(wcs []fabric.WC) (int, error) {
	c.w.called("Poll")
	return c.Conn.Poll(wcs)
}

func (c watchedFabricConn) Wait() error {
	c.w.called("Wait")
	return c.Conn.Wait()
}

func (c watchedFabricConn) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	c.w.called("RegMR")
	return c.Conn.RegMR(buf, access)
}

func (c watchedFabricConn) AllocMW() (fabric.MW, error) {
	c.w.called("AllocMW")
	return c.Conn.AllocMW()
}

func TestNoLockIsHeldInTheAdapter(t *testing.T) {
	if !lockorder.Checked {
		t.Skip("which locks a goroutine holds is known in builds with the race detector")
	}
	w := new(lockWatch)
	b := onIwarp(iwarp.Config{})
	open := b.open
	b.open = func() (fabric.Provider, live, error) {
		p, l, err := open()
		return watchedProvider{p, w}, l, err
	}
	manyCalls(t, b.start(t, nil).dial(t, nil))
	w.check(t)
}

// manyCalls makes calls of many sizes from many goroutines, which share doorbells and buffers.
func manyCalls(t *testing.T, cl *transport.Client) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make(chan error, 32)
	for i := range cap(errs) {
		wg.Go(func() {
			data := make([]byte, 64<<(i%12))
			buf := make([]byte, len(data))
			var call rpc.Call
			for n := range 20 {
				proc := uint32(procEcho)
				if n%2 > 0 {
					proc = procSlow
				}
				if err := echo(cl, proc, data, buf, &call); err != nil {
					errs <- fmt.Errorf("call %d with %d bytes: %w", n, len(data), err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

// watchedConn is a connection of TCP that reports its reads and writes.
type watchedConn struct {
	net.Conn
	w *lockWatch
}

func (c watchedConn) Read(b []byte) (int, error) {
	c.w.called("Read")
	return c.Conn.Read(b)
}

func (c watchedConn) Write(b []byte) (int, error) {
	c.w.called("Write")
	return c.Conn.Write(b)
}

type watchedListener struct {
	net.Listener
	w *lockWatch
}

func (l watchedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return watchedConn{c, l.w}, nil
}

func TestNoLockIsHeldInTCP(t *testing.T) {
	if !lockorder.Checked {
		t.Skip("which locks a goroutine holds is known in builds with the race detector")
	}
	w := new(lockWatch)
	tcp := startTCP(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- tcp.server.ServeTCP(watchedListener{l, w}) }()
	t.Cleanup(func() {
		l.Close()
		<-served
	})
	cl, err := transport.DialTCPWith(bg, l.Addr().String(), nil, func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := transport.TCP{}.DialStream(ctx, addr)
		if err != nil {
			return nil, err
		}
		return watchedConn{c, w}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	manyCalls(t, cl)
	w.check(t)
}
