package transport

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Calls that outlive their connection (RFC 5666 section 8, RFC 8167 section 5.4).
//
// A call that has lost its connection is made again on the next one, with the xid it was sent with, so that the peer's
// reply cache can distinguish it from a new call. The client makes the next connection, which starts like any other:
// sizes are agreed on again, there is one credit, and receives are posted for all calls that will be sent.

// A link is the way to a peer over successive connections.
type link struct {
	cur atomic.Pointer[Conn] // the latest, which may have ended; nil: none yet

	// For a client.
	to          string       // address
	observation *observation // may be nil

	mu   lockorder.Mutex
	turn chan struct{} // closed and replaced with each connection, and at the end
	err  error         // why no further connection is made
	why  error         // why there is currently no connection, if known
	need int           // callers that wait for one

	want func() // ensures that there will be one; nil: others do that. mu is held

	// outdated reports whether a call has failed because its connection speaks a version that the peer does not, while
	// the next connection will use another. Nil: never.
	outdated func(c connection, err error) bool

	// moves reports whether a call that has lost its connection should be made elsewhere instead of waiting for the
	// next one here: then it fails with errMoves. Nil: never.
	moves func(call *pendingCall) bool

	// For a peer that proves its readiness only by a reply: see Backchannel.Call.
	doubt bool
}

func (l *link) init() {
	l.mu.Init(rankLink)
	l.turn = make(chan struct{})
}

// latest returns the latest connection, or nil before the first.
func (l *link) latest() connection {
	if cn := l.cur.Load(); cn != nil {
		return cn.c
	}
	return nil
}

// put makes cn the current connection. before is called with the previous one.
func (l *link) put(cn *Conn, before func(old connection)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	old := l.latest()
	if before != nil {
		before(old)
	}
	if old != nil && old.proven() {
		l.doubt = false
	}
	l.why = nil
	l.cur.Store(cn)
	l.turned()
	return nil
}

func (l *link) turned() {
	close(l.turn)
	l.turn = make(chan struct{})
}

// close ends the link: calls that wait for a connection fail with err.
func (l *link) close(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(err)
}

func (l *link) end(err error) {
	if l.err == nil {
		l.err = err
		l.turned()
	}
}

// ended returns why no further connection is made, nil before that.
func (l *link) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// wake starts making the next connection, unless there is one.
func (l *link) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.want != nil {
		l.want()
	}
}

// trouble returns why there is no connection, or nil if there is one or the reason is not known.
func (l *link) trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil || l.err != nil {
		return cmp.Or(l.why, l.err)
	}
	if c := l.latest(); c != nil {
		return c.endErr()
	}
	return nil
}

func (l *link) addr() string {
	if c := l.latest(); c != nil {
		return c.addr()
	}
	return cmp.Or(l.to, "peer")
}

// call makes one call over successive connections until its reply arrives, or none can arrive. An Inline handler must
// not wait for it on any connection: it may be the handler's own, or the next one may be.
func (l *link) call(ctx context.Context, call *pendingCall) error {
	if rpc.IsInline(ctx) {
		return errInline
	}
	o, backward := l.observation, false
	if cn := l.cur.Load(); cn != nil {
		o, backward = cn.cfg.observation, cn.server
	}
	if o != nil && call.op == nil {
		return o.made(call, backward, func() error { return l.try(ctx, call) })
	}
	return l.try(ctx, call)
}

// try is call without an Observer.
func (l *link) try(ctx context.Context, call *pendingCall) error {
	call.begin()
	c := l.latest()
	for {
		var err error
		if c != nil {
			again := false
			if err = c.call(ctx, call); err != nil {
				again, err = l.again(c, call, err)
			}
			if !again {
				return err
			}
		}
		if c, err = l.await(ctx, c, call); err != nil {
			return err
		}
	}
}

// again reports whether a call that has failed on c should be made on the next connection. If not, err is its error.
func (l *link) again(c connection, call *pendingCall, failed error) (again bool, err error) {
	switch {
	case l.outdated != nil && call.asked < versionAsks && l.outdated(c, failed):
		call.asked++
		return true, nil
	case !l.lost(c, call, failed):
		return false, failed
	case call.NoResend && call.sent:
		if _, told := failed.(*rpc.LostError); told {
			return false, failed
		}
		return false, &rpc.LostError{Addr: c.addr(), Sent: true, Reason: failed}
	case l.moves != nil && l.moves(call):
		return false, errMoves
	}
	return true, nil
}

// lost reports whether a call has failed because its connection ended, and should be made on another.
func (l *link) lost(c connection, call *pendingCall, err error) bool {
	if !errors.Is(err, net.ErrClosed) || c.lives() && !c.leaves() {
		return false
	}
	// If the peer violates the protocol, its next connection would end in the same way, and this call may be the cause.
	// A call that was never sent cannot be.
	return !call.sent || !broke(err)
}

// broke reports whether the peer has violated the protocol.
func broke(err error) bool {
	var e *rpc.PeerError
	return errors.As(err, &e)
}

// await waits for a connection other than old.
func (l *link) await(ctx context.Context, old connection, call *pendingCall) (connection, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old != nil {
		l.judge(old, call)
	}
	l.need++
	defer func() { l.need-- }()
	for {
		if l.err != nil {
			return nil, l.err
		}
		if c := l.latest(); c != old {
			return c, nil
		}
		if l.want != nil {
			l.want()
		}
		turn := l.turn
		l.mu.Unlock()
		var err error
		select {
		case <-turn:
		case <-ctx.Done():
			err = ctx.Err()
		}
		l.mu.Lock()
		if err != nil {
			why := l.why
			if why == nil && old != nil {
				why = old.endErr()
			}
			return nil, &rpc.LostError{Addr: l.addr(), Sent: call.sent, Err: err, Reason: why}
		}
	}
}

// judge ends the link if a call that has lost its connection shows that the peer was not ready. mu is
// held.
func (l *link) judge(old connection, call *pendingCall) {
	if !l.doubt || !call.sent {
		return
	}
	if old.proven() || l.latest().proven() {
		l.doubt = false
	} else if dropped(old) {
		l.end(&rpc.NotReadyError{Addr: old.addr(), Dropped: true})
	}
}

// over returns why a call that has lost its connection is not made on another, nil if it may be.
func (l *link) over(old connection, call *pendingCall) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.judge(old, call)
	return l.err
}

// dropped reports whether the peer ended the connection.
func dropped(c connection) bool {
	var ended *fabric.ConnError
	return errors.As(c.endErr(), &ended) && ended.Remote
}
