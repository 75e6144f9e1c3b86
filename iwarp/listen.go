package iwarp

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
)

// A listener reads the requests of incoming connections, each on a goroutine of
// its own for as long as that takes, so that a slow peer holds up nobody.
type listener struct {
	p    *Provider
	attr fabric.ConnAttr
	cfg  Config
	l    *net.TCPListener

	requests chan *Conn    // complete, not yet handed out
	closed   chan struct{} // by Close
	once     sync.Once
	wg       sync.WaitGroup // the accepting goroutine and the handshakes

	mu      sync.Mutex
	pending []*net.TCPConn // handshakes under way, oldest first
	down    bool
}

var _ fabric.Listener = (*listener)(nil)

// Listen implements fabric.Provider.
func (p *Provider) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	attr, err := checkAttr(attr)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	nl, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, &SetupError{Addr: addr, Reason: "cannot listen", Err: err}
	}
	cfg := p.cfg.withDefaults()
	l := &listener{
		p: p, attr: attr, cfg: cfg, l: nl.(*net.TCPListener),
		requests: make(chan *Conn, cfg.Backlog),
		closed:   make(chan struct{}),
	}
	l.wg.Go(l.run)
	return l, nil
}

// Addr implements fabric.Listener.
func (l *listener) Addr() net.Addr { return l.l.Addr() }

// Accept implements fabric.Listener.
func (l *listener) Accept(ctx context.Context) (fabric.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.requests:
		return c, nil
	default:
	}
	select {
	case c := <-l.requests:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close implements fabric.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.l.Close()
		l.mu.Lock()
		l.down = true
		for _, tc := range l.pending {
			tc.SetDeadline(past)
		}
		l.mu.Unlock()
		l.wg.Wait()
		for {
			select {
			case c := <-l.requests:
				c.Close()
				continue
			default:
			}
			break
		}
	})
	return nil
}

// acceptPause keeps a listener that cannot get descriptors from spinning.
const acceptPause = 10 * time.Millisecond

// run accepts TCP connections until the listener is closed.
func (l *listener) run() {
	for {
		tc, err := l.l.AcceptTCP()
		if err != nil {
			select {
			case <-l.closed:
				return
			default:
			}
			// Out of descriptors, or a connection that was gone before it was
			// taken. Closing the oldest pending one gives at least one
			// descriptor back; without any this end is all there is to say.
			if !l.dropOldest() {
				select {
				case <-l.closed:
					return
				case <-time.After(acceptPause):
				}
			}
			continue
		}
		if !l.admit(tc) {
			tc.Close()
			continue
		}
		l.wg.Go(func() { l.handshake(tc) })
	}
}

// admit enters tc into the list of pending handshakes, if need be in place of
// the oldest one.
func (l *listener) admit(tc *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return false
	}
	if len(l.pending) >= l.cfg.MaxPending {
		l.pending[0].SetDeadline(past) // its goroutine does the rest
		l.pending = append(l.pending[:0], l.pending[1:]...)
	}
	l.pending = append(l.pending, tc)
	return true
}

func (l *listener) dropOldest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return false
	}
	l.pending[0].SetDeadline(past)
	l.pending = append(l.pending[:0], l.pending[1:]...)
	return true
}

// dismiss takes tc out of the list. It returns false if it was not there any
// more: the listener has given it up.
func (l *listener) dismiss(tc *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range l.pending {
		if p == tc {
			l.pending = append(l.pending[:i], l.pending[i+1:]...)
			return !l.down
		}
	}
	return false
}

// handshake reads the request of tc and hands it to Accept.
func (l *listener) handshake(tc *net.TCPConn) {
	l.p.live.handshakes.Add(1)
	over := sync.OnceFunc(func() { l.p.live.handshakes.Add(-1) })
	defer over()
	release := bound(context.Background(), tc, l.cfg.RequestTimeout)
	defer release()
	var req mpa.Start
	pd, err := readStart(tc, &req, mpa.Request)
	kept := l.dismiss(tc)
	if err != nil || !kept {
		if err == mpa.ErrPrivateDataLen || err == mpa.ErrRevision {
			sendReject(tc, &mpa.Start{Revision: req.Revision}, false, nil)
		}
		tc.Close()
		return
	}
	enhanced := req.Revision >= 2 && req.Flags&mpa.FlagEnhanced != 0
	if req.Flags&mpa.FlagMarkers != 0 || req.Flags&mpa.FlagReject != 0 {
		// Markers are not for this side (RFC 5044 section 7.1.1 lets the
		// responder decline), and a request cannot reject.
		sendReject(tc, &req, enhanced, nil)
		tc.Close()
		return
	}
	if waiting, _ := peekConn(tc); waiting {
		// RFC 5044 section 7.1.2: nothing follows the request until it has
		// been answered.
		sendReject(tc, &req, enhanced, nil)
		tc.Close()
		return
	}
	release()
	tc.SetDeadline(time.Time{})
	c := l.p.newConn(l.attr)
	c.passive = true
	c.req = req
	if enhanced {
		mpa.ConsumeEnhanced(pd, &c.reqRDMA) // long enough: ConsumeStart has seen to it
		pd = pd[mpa.EnhancedLen:]
	}
	c.peerData = pd
	c.tcp, c.laddr, c.raddr = tc, tc.LocalAddr(), tc.RemoteAddr()
	over() // not after whoever takes the request has used it
	select {
	case l.requests <- c:
	default:
		c.Reject(nil)
	}
}
