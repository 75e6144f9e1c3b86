package transport

import (
	"context"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// Both directions on one connection (RFC 8167).
//
// Each end may have a requester's half and a responder's half. They share only the connection, its receive buffers and
// its send queue: each direction has its own credits and xids. The client's calls are the forward direction, and the
// server's the backward one. Thresholds belong to the end that receives, so they are swapped for the other direction
// (section 4.2).
//
// A server's half is closed until the upper layer calls Conn.AllowBackward because the client is ready for calls
// (section 6).

// A Backchannel is a server's way to one client, over one connection after another. A server cannot connect to its
// client: when the client's connection is lost, calls wait until the client returns and the upper layer, which
// recognizes the client, binds the Backchannel to its new connection (RFC 8167 section 5.4). Calls that were sent and
// have no reply are then sent again, with the same xid. Its methods may be called by many goroutines at once.
type Backchannel struct {
	link link
}

// NewBackchannel returns a Backchannel that is not bound to a connection.
func NewBackchannel() *Backchannel {
	b := &Backchannel{link: link{doubt: true}}
	b.link.init()
	return b
}

// Bind announces that the client is ready for calls on cn, as AllowBackward does, and sends them there from now on.
// Calls in flight on another connection that is still up stay there. Bind fails with *NotReadyError once the client has
// dropped the connection on the first call ever sent to it. It fails with *ClosedError after Close, or if cn has ended:
// a handler may run so late that the client is already ready on the next connection.
//
// Bind panics if conn is not of this package.
func (b *Backchannel) Bind(conn rpc.Conn, calls int) error {
	cn := conn.(*Conn)
	if err := cn.Err(); err != nil {
		return err
	}
	return b.link.put(cn, func(old connection) {
		if old != nil && old != cn.c {
			cn.c.inherit(old)
		}
		cn.c.allow(calls)
	})
}

// Call makes a call, as Conn.Call does. Without a connection it waits for one until ctx ends, and then fails with a
// *LostError, which reports whether the call may have been executed.
//
// The first call to a client shows whether it was ready: if the client ends the connection without an answer, the
// Backchannel fails with a *NotReadyError, permanently. Repeating calls to a client that is not ready would be an
// attack on it (RFC 8167 section 6).
func (b *Backchannel) Call(ctx context.Context, call *rpc.Call) error {
	if err := b.link.ended(); err != nil {
		return err // there may still be a connection
	}
	return b.link.call(ctx, pendingOf(call))
}

// Null calls procedure 0, which every program answers.
func (b *Backchannel) Null(ctx context.Context, prog, vers uint32) error {
	return b.Call(ctx, &rpc.Call{Prog: prog, Vers: vers})
}

// Close refuses new calls, and fails those that wait for a connection with *ClosedError. Calls in flight continue.
func (b *Backchannel) Close() error {
	b.link.close(&rpc.ClosedError{Addr: b.link.addr()})
	return nil
}
