package shm

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/llp"
)

// A state holds the open objects of a Provider other than connections.
type state struct {
	mu         sync.Mutex
	listeners  map[*listener]struct{}
	closed     bool
	handshakes atomic.Int64
	neighbors  neighbors
}

// OpenObjects returns the current counts, for tests that check for leaks.
func (p *Provider) OpenObjects() OpenObjects {
	o := p.engine.OpenObjects()
	p.mu.Lock()
	defer p.mu.Unlock()
	return OpenObjects{Conns: o.Conns, Listeners: len(p.listeners), MRs: o.MRs, MWs: o.MWs, Handshakes: int(p.handshakes.Load())}
}

// Close implements fabric.Provider. Its error is nil.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	list := slices.Collect(maps.Keys(p.listeners))
	p.mu.Unlock()
	for _, l := range list {
		l.Close()
	}
	return nil
}

// mayOpen returns nil until Close is called. The error is for an operation on addr.
func (p *Provider) mayOpen(addr string) error {
	if err := p.checkMemory(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return setupError(addr, "the provider", net.ErrClosed)
	}
	return nil
}

// Resolve implements fabric.Provider. addr is the address that the peer listens on.
func (p *Provider) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.mayOpen(addr); err != nil {
		return nil, err
	}
	if addr == "" || addr == "@" {
		return nil, setupError(addr, "no address", nil)
	}
	attr, err := p.engine.CheckAttr(attr)
	if err != nil {
		return nil, err
	}
	return p.engine.NewConn(&setup{p: p, target: addr}, attr, nil, Addr{Name: addr, UID: noID, GID: noID}, nil), nil
}

// A listener reads the request of each incoming connection on a separate goroutine, so that a slow program does not
// delay others.
type listener struct {
	p    *Provider
	attr fabric.ConnAttr
	addr Addr
	on   *net.UnixListener

	backlog llp.Backlog
	wg      sync.WaitGroup // the accepting goroutine and the goroutines that read requests

	mu      sync.Mutex
	pending []*net.UnixConn // connections without a complete request, oldest first
	down    bool
}

// Listen implements fabric.Provider. The socket is created with the permissions that umask(2) leaves: to connect to a
// path a program needs write permission on it.
func (p *Provider) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.mayOpen(addr); err != nil {
		return nil, err
	}
	attr, err := p.engine.CheckAttr(attr)
	if err != nil {
		return nil, err
	}
	on, err := listenUnix(addr)
	if err != nil {
		return nil, setupError(addr, "cannot listen", err)
	}
	l := &listener{
		p: p, attr: attr, on: on,
		addr:    Addr{Name: on.Addr().String(), PID: os.Getpid(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
		backlog: llp.NewBacklog(p.cfg.Backlog),
	}
	p.mu.Lock()
	closed := p.closed
	if p.listeners == nil {
		p.listeners = make(map[*listener]struct{})
	}
	if !closed {
		p.listeners[l] = struct{}{}
	}
	p.mu.Unlock()
	if closed { // by a concurrent Close
		on.Close()
		return nil, p.mayOpen(addr)
	}
	l.wg.Go(l.run)
	return l, nil
}

// listenUnix listens at addr. If addr is the path of a socket on which no program listens anymore, listenUnix replaces
// the socket.
func listenUnix(addr string) (*net.UnixListener, error) {
	at := &net.UnixAddr{Name: addr, Net: "unix"}
	if addr == "@" {
		at.Name = "" // the system selects a name: unix(7), "Autobind feature"
	}
	l, err := net.ListenUnix("unix", at)
	if !errors.Is(err, syscall.EADDRINUSE) || addr[0] == '@' {
		return l, err
	}
	if st, statErr := os.Lstat(addr); statErr != nil || st.Mode().Type() != os.ModeSocket {
		return nil, err
	}
	c, dialErr := net.DialUnix("unix", nil, at)
	if dialErr == nil {
		c.Close()
	}
	if !errors.Is(dialErr, syscall.ECONNREFUSED) {
		return nil, err
	}
	if rmErr := os.Remove(addr); rmErr != nil {
		return nil, rmErr
	}
	return net.ListenUnix("unix", at)
}

// Addr implements fabric.Listener.
func (l *listener) Addr() net.Addr { return l.addr }

// Accept implements fabric.Listener.
func (l *listener) Accept(ctx context.Context) (fabric.Conn, error) {
	return l.backlog.Accept(ctx)
}

// Close implements fabric.Listener.
func (l *listener) Close() error {
	l.backlog.Close(func() {
		l.on.Close()
		l.mu.Lock()
		l.down = true
		for _, c := range l.pending {
			c.SetDeadline(past)
		}
		l.mu.Unlock()
		l.wg.Wait()
	})
	l.p.mu.Lock()
	delete(l.p.listeners, l)
	l.p.mu.Unlock()
	return nil
}

// acceptPause keeps a listener that has run out of descriptors from spinning.
const acceptPause = 10 * time.Millisecond

// run accepts connections until the listener is closed.
func (l *listener) run() {
	for {
		c, err := l.on.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			select {
			case <-l.backlog.Closed():
				return
			case <-time.After(acceptPause):
			}
		case !l.admit(c):
			c.Close()
		default:
			l.wg.Go(func() { l.hear(c) })
		}
	}
}

// admit adds c to the pending connections. If the list is full, c replaces the oldest. admit returns false if the
// listener is closed.
func (l *listener) admit(c *net.UnixConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down || c.SetDeadline(time.Now().Add(l.p.cfg.RequestTimeout)) != nil {
		return false
	}
	if len(l.pending) >= l.p.cfg.Backlog {
		l.pending[0].SetDeadline(past) // its goroutine does the rest
		l.pending = slices.Delete(l.pending, 0, 1)
	}
	l.pending = append(l.pending, c)
	return true
}

// hear reads the request and passes it to Accept.
func (l *listener) hear(c *net.UnixConn) {
	l.p.handshakes.Add(1)
	s := &setup{p: l.p, conn: c}
	k, o, fds, err := hear(c, request, requestJoin)
	if err == nil {
		var again bool
		if again, err = s.heard(k, o, fds); again && err == nil {
			if k, o, fds, err = hear(c, request); err == nil {
				_, err = s.heard(k, o, fds)
			}
		}
	}
	l.mu.Lock()
	if i := slices.Index(l.pending, c); i >= 0 {
		l.pending = slices.Delete(l.pending, i, i+1)
	}
	down := l.down
	l.mu.Unlock()
	l.p.handshakes.Add(-1) // before Accept returns the request
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil || down {
		s.Close()
		return
	}
	_, from := s.Addrs()
	l.backlog.Add(l.p.engine.NewConn(s, l.attr, l.addr, from, &o.Offer))
}
