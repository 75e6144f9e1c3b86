package transport

import (
	"context"
	"net"
)

// Both directions on one connection (RFC 8167).
//
// Each end may have a requester's half and a responder's half. They share the
// connection, its receive buffers and its send queue, and nothing else: credits are
// counted for each direction by itself, and so are xids. The client's calls are the
// forward direction, the server's the backward one; thresholds belong to the end that
// receives, so that they are crossed over (section 4.2).
//
// A server's half is closed until the upper layer says that the client is ready for
// calls (section 6): Conn.AllowBackward.

// A Conn is one connection as a handler sees it: the way to the end that has called.
// It may be kept, and used by many goroutines at once, beyond the call. A connection has
// one Conn: pointers to it can be compared, and be keys of a map.
type Conn struct{ c *conn }

// Conn returns the connection that the call came by.
func (r *Request) Conn() *Conn { return &r.x.c.public }

// AllowBackward says that the client is ready for calls: the upper layer has it from
// the client, on this connection. At most calls of them are in flight at once, and no
// more than Config.BackwardCredits, which zero stands for; the client may grant fewer.
// At a client, whose calls nobody holds back, it does nothing.
func (cn *Conn) AllowBackward(calls int) { cn.c.allow(calls) }

// Call makes a call to the other end, in the way of Client.Call, with these
// differences:
//
//   - before AllowBackward a server's call fails with a *NotReadyError;
//   - a server's call has no chunks unless Config.Peer is PeerFull: one that does not
//     fit inline, or whose reply might not, fails with a *SizeError;
//   - it ends with the connection. See Backchannel for calls that do not.
//
// A handler that a Program names Inline cannot wait for a call, as nobody else moves its
// connection: with its own context, or one made from it, it gets an error.
func (cn *Conn) Call(ctx context.Context, call *Call) error {
	if ctx.Value(inlineKey{}) != nil {
		return errInline
	}
	call.sent = false
	return cn.c.call(ctx, call)
}

// Null calls procedure 0 of a program, which every program answers.
func (cn *Conn) Null(ctx context.Context, prog, vers uint32) error {
	return cn.Call(ctx, &Call{Prog: prog, Vers: vers})
}

// Info tells what the connection's set-up agreed on, and the credits granted.
func (cn *Conn) Info() ConnInfo { return cn.c.info() }

// RemoteAddr is the address of the other end.
func (cn *Conn) RemoteAddr() net.Addr { return cn.c.fc.RemoteAddr() }

// Done is closed when the connection has ended; Err then tells why.
func (cn *Conn) Done() <-chan struct{} { return cn.c.done }

// Err is nil while the connection lives, then the *ClosedError.
func (cn *Conn) Err() error { return cn.c.endErr() }

// Close ends the connection at once. It does not wait: Done is closed when the adapter has
// released all memory.
func (cn *Conn) Close() error {
	c := cn.c
	c.setClosing()
	c.fc.Close() // whoever leads finds out, or else this does
	go c.await(context.Background(), newWaiter())
	return nil
}

// An inlineKey marks the contexts of handlers that run on the goroutine that moves the
// connection.
type inlineKey struct{}

// A Backchannel is a server's way to one client, over one connection after another.
// A server cannot make a connection: when the client's is lost, calls wait until it has
// come back and the upper layer, which knows who is the same, binds the Backchannel to
// its new connection (RFC 8167 section 5.4). Those that were sent and have no reply are
// sent again then, with the same xid. Its methods may be called by many goroutines at
// once.
type Backchannel struct {
	line line
}

// NewBackchannel returns a Backchannel that is not bound yet.
func NewBackchannel() *Backchannel {
	b := &Backchannel{line: line{doubt: true}}
	b.line.init()
	return b
}

// Bind says that the client is ready for calls on cn, as AllowBackward does, and sends
// them there from now on. Calls that are under way on another connection that lives are
// left to it. It fails with *NotReadyError once the client has dropped a connection on
// the first call that ever was sent to it, and with *ClosedError after Close, or if cn has
// ended: a handler may come so late that the client is ready on the next connection already.
func (b *Backchannel) Bind(cn *Conn, calls int) error {
	if err := cn.Err(); err != nil {
		return err
	}
	return b.line.put(cn.c, func(old *conn) {
		if old != nil && old != cn.c {
			cn.c.inherit(old)
		}
		cn.c.allow(calls)
	})
}

// Call makes a call, in the way of Conn.Call. When there is no connection it waits for
// one as long as ctx lives, and then fails with a *LostError, which tells whether the
// call may have been executed.
//
// The first call to a client shows whether it was ready: should the client end the
// connection without an answer, the Backchannel fails with a *NotReadyError, for good.
// Sending calls again and again to one that is not is an attack on it (RFC 8167 section
// 6).
func (b *Backchannel) Call(ctx context.Context, call *Call) error {
	if err := b.line.ended(); err != nil {
		return err // though there may be a connection still
	}
	return b.line.call(ctx, call)
}

// Null calls procedure 0 of a program, which every program answers.
func (b *Backchannel) Null(ctx context.Context, prog, vers uint32) error {
	return b.Call(ctx, &Call{Prog: prog, Vers: vers})
}

// Close refuses new calls, and fails those that wait for a connection with
// *ClosedError. Those under way go on.
func (b *Backchannel) Close() error {
	b.line.close(&ClosedError{Addr: b.line.addr()})
	return nil
}
