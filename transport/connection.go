package transport

import (
	"context"
	"net"
)

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
//   - a server's call has no chunks unless Config.PeerChunks is AllChunks: one that does not
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
