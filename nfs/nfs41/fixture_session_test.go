package nfs41

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A ServerSession is a session of a Server.
type ServerSession struct {
	s       *Server
	client  *client
	id      SessionID
	attrs   ChannelAttrs // of the fore channel
	back    ChannelAttrs
	program uint32
	cred    oncrpc.Auth

	channel *transport.Backchannel
	calls   requester

	ctx    context.Context // ends with the session
	cancel context.CancelFunc
	ready  context.Context // ends when the client has used the session
	used   context.CancelFunc

	// Server.mu
	fore  *replySlots
	conn  rpc.Conn // of the backchannel; nil: none
	fault bool     // the client does not agree with the server on the slots
}

func (ss *ServerSession) init() {
	ss.fore = newReplySlots(int(ss.attrs.MaxRequests))
	ss.channel = transport.NewBackchannel()
	ss.ctx, ss.cancel = context.WithCancel(context.Background())
	ss.ready, ss.used = context.WithCancel(context.Background())
	ss.calls = requester{
		session: ss.id,
		table:   newSlotTable(int(ss.back.MaxRequests)),
		name:    CBOpName,
		begin: func(b []byte, count int, args *sequenceArgs) []byte {
			head := cbCompoundArgs{Minor: Minor, Count: uint32(count)}
			b = head.Append(b)
			b = xdr.AppendUint32(b, OpCBSequence)
			a := cbSequenceArgs{sequenceArgs: *args}
			return a.Append(b)
		},
		first: func(res *sequenced) Operation { return Operation{Op: OpCBSequence, Result: &res.back} },
		send: func(ctx context.Context, call *rpc.Call) error {
			call.Prog, call.Vers, call.Proc, call.Cred = ss.program, CallbackVersion, ProcCompound, ss.cred
			if n := oncrpc.MinCallSize + len(ss.cred.Body) + len(call.Args); int64(n) > int64(ss.back.MaxRequest) {
				return &rpc.SizeError{What: "callback", Size: n, Limit: int(ss.back.MaxRequest)}
			}
			return ss.channel.Call(ctx, call)
		},
	}
}

// ID returns the session's id.
func (ss *ServerSession) ID() SessionID { return ss.id }

// Owner returns the co_ownerid of the client.
func (ss *ServerSession) Owner() string { return ss.client.owner }

// Back returns the effective limits of the backchannel.
func (ss *ServerSession) Back() ChannelAttrs { return ss.back }

// CallbackProgram returns the number of the client's callback program.
func (ss *ServerSession) CallbackProgram() uint32 { return ss.program }

// bind makes cn the connection of the backchannel. Server.mu is held.
func (ss *ServerSession) bind(cn rpc.Conn) bool {
	if ss.s.cfg.NoBackchannel || ss.back.MaxRequests == 0 {
		return false
	}
	// Bind fails if the client dropped its connection on the first call.
	if ss.channel.Bind(cn, int(ss.back.MaxRequests)) != nil {
		return false
	}
	ss.conn, ss.fault = cn, false
	return true
}

// close ends the backchannel. Server.mu is held.
func (ss *ServerSession) close() {
	ss.cancel()
	ss.channel.Close()
	ss.conn = nil
}

// up reports whether the backchannel has a connection. Server.mu is held.
func (ss *ServerSession) up() bool { return ss.conn != nil && ss.conn.Err() == nil }

// flags returns the status flags of SEQUENCE. RFC 8881 section 18.46.3. Server.mu is held.
func (ss *ServerSession) flags() (f SeqFlags) {
	if !ss.up() {
		f |= SeqCBPathDown | SeqCBPathDownSession
		for _, other := range ss.client.sessions {
			if other.up() {
				f &^= SeqCBPathDown
			}
		}
	}
	if ss.fault {
		f |= SeqBackchannelFault
	}
	return f
}

// ErrSessionEnded means that the session has been destroyed, or its server closed. It matches
// net.ErrClosed.
var ErrSessionEnded = fmt.Errorf("nfs41: session has ended: %w", net.ErrClosed)

// during calls f with a context that also ends with the session.
func (ss *ServerSession) during(ctx context.Context, f func(context.Context) error) error {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ss.ctx, cancel)()
	err := f(both)
	if err != nil && ss.ctx.Err() != nil && ctx.Err() == nil {
		return ErrSessionEnded
	}
	return err
}

// Null calls CB_NULL. It fails with ErrSessionEnded, or as transport.Backchannel.Call does.
func (ss *ServerSession) Null(ctx context.Context) error {
	return ss.during(ctx, func(ctx context.Context) error {
		return ss.channel.Null(ctx, ss.program, CallbackVersion)
	})
}

// Callback calls CB_COMPOUND with a CB_SEQUENCE and ops. It waits for a slot, for the first
// request of the client in the session, since before that the client may not know it, and for
// a connection.
//
// Between two replies to calls of its own, Linux's client has receives for 32 callbacks and
// for as many more as it has credits. One more ends its connection. The callback is repeated
// when the client reconnects, which may be half a lease later.
//
// It fails with an *Error if an operation failed, with a *BadReplyError, with ErrSessionEnded, or as
// transport.Backchannel.Call does. A call that lost its reply fails, if the client did not cache it,
// with NFS4ERR_RETRY_UNCACHED_REP: it has been executed.
func (ss *ServerSession) Callback(ctx context.Context, ops ...Operation) error {
	if n := int64(len(ops)) + 1; n > int64(ss.back.MaxOps) {
		return &Error{CBOpName(OpCBSequence), StatusTooManyOps}
	}
	err := ss.during(ctx, func(ctx context.Context) error {
		select {
		case <-ss.ready.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
		cache := len(ops) > 0 && ss.back.MaxResponseCached > 0
		return ss.calls.compound(ctx, ops, cache, false, new(sequenced))
	})
	var failed *Error
	if errors.As(err, &failed) && failed.Op == CBOpName(OpCBSequence) {
		switch failed.Status {
		case StatusBadSession, StatusBadSlot, StatusSeqMisordered, StatusSeqFalseRetry:
			ss.s.mu.Lock()
			ss.fault = true
			ss.s.mu.Unlock()
		}
	}
	return err
}
