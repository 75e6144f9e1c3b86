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
// A call that has lost its connection is made again on the next one, with the xid it
// was sent with, so that the peer's cache of replies can tell it from a new one. The
// next connection is made by the client, with everything that belongs to a fresh one:
// sizes agreed on anew, one credit, receives for all that will be sent.

// A link is the way to a peer over one connection after another.
type link struct {
	cur atomic.Pointer[Conn] // the latest, which may have ended; nil: none yet

	// Of a client.
	to          string       // address
	observation *observation // or nil

	mu   lockorder.Mutex
	turn chan struct{} // closed, and made anew, with each connection, and at the end
	err  error         // why no further one is made
	why  error         // why it has no connection at the moment, if that is known
	need int           // callers that wait for one

	want func() // sees to it that there will be one; nil: others do. mu is held

	// outdated reports whether a call has failed since its connection speaks a version that
	// the peer does not, and the next one will not. Nil: it has not.
	outdated func(c connection, err error) bool

	// moves reports whether a call that has lost its connection is to be made elsewhere, and not
	// to wait for the next one here: then it fails with errMoves. Nil: none is.
	moves func(call *pendingCall) bool

	// Of a peer that proves its readiness only by a reply: see Backchannel.Call.
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

// put makes cn the connection in use. before is called with the one that was.
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

// ended is why no further connection is made, nil before that.
func (l *link) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// wake has the next connection made, unless there is one.
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

// call makes one call on the connections that there are until its reply arrives, or there is no hope
// of one. An Inline handler must not wait for it on any connection: it may be the handler's own, or
// the next one may be.
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

// again reports whether a call that has failed on c is to be made on the next connection. If not, err
// is how it ends.
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

// lost reports whether a call has failed for the end of its connection, and is to be made
// on another.
func (l *link) lost(c connection, call *pendingCall, err error) bool {
	if !errors.Is(err, net.ErrClosed) || c.lives() && !c.leaves() {
		return false
	}
	// The next connection of a peer that breaks the protocol would end like this one, and this call
	// may be the cause. A call that was never sent cannot be.
	return !call.sent || !broke(err)
}

// broke reports whether the peer has broken the protocol.
func broke(err error) bool {
	var e *rpc.PeerError
	return errors.As(err, &e)
}

// await waits for another connection than old.
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

// over says why a call that has lost its connection is not made on another, nil if it may be.
func (l *link) over(old connection, call *pendingCall) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.judge(old, call)
	return l.err
}

// dropped reports whether it was the peer that ended the connection.
func dropped(c connection) bool {
	var ended *fabric.ConnError
	return errors.As(c.endErr(), &ended) && ended.Remote
}
