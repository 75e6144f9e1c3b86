package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// An Observer learns what happens on the connections of a Client or a Server: see
// Config.Observer. Embed [NoObserver] in an implementation, which then goes on to compile when
// Observer gets another method.
//
// The methods are called by the goroutines that make calls and move connections, by many of them
// at once. They must not block, and must not call, close or wait for anything of the connections
// that the event is about. Of any connection they may call Conn.Info, Conn.Stats and
// Conn.RemoteAddr, at every event: the transport holds no lock meanwhile.
//
// The transport does not recover a panic in a method: it ends the process, as in any goroutine of
// the program. In what a Handler does, such as calls of its own, it counts as a panic of the Handler.
//
// The memory of an event is valid until the method returns, and belongs to the transport; for a call
// that has begun the pointer to its event stays the same until it has ended, so that it can be a key
// of a map. Nothing is allocated for an Observer in the steady state.
type Observer interface {
	// ConnBegan reports a connection that has been set up.
	ConnBegan(e ConnEvent)
	// ConnEnded reports its end, once for each ConnBegan. Calls that are executed on it may
	// end later.
	ConnEnded(e ConnEvent)
	// CallBegan reports a call that is about to be made, or has been received whole and is
	// about to be executed. Calls that are refused before their procedure is known are a
	// Notice.
	CallBegan(e *CallEvent)
	// CallEnded says that Call is about to return, or that the reply has been handed to the
	// adapter, or will never be. It comes once for each CallBegan.
	CallEnded(e *CallEvent)
	// Noticed reports what an operator may want to know beside that.
	Noticed(n Notice)
}

// NoObserver is an Observer that does nothing.
type NoObserver struct{}

// ConnBegan does nothing.
func (NoObserver) ConnBegan(ConnEvent) {}

// ConnEnded does nothing.
func (NoObserver) ConnEnded(ConnEvent) {}

// CallBegan does nothing.
func (NoObserver) CallBegan(*CallEvent) {}

// CallEnded does nothing.
func (NoObserver) CallEnded(*CallEvent) {}

// Noticed does nothing.
func (NoObserver) Noticed(Notice) {}

// A ConnEvent is the beginning or the end of a connection.
type ConnEvent struct {
	Conn   Conn
	Server bool      // the other end has opened it
	Began  time.Time // when it had been set up

	// Err is why it has ended: nil when this end or its peer has closed it in order.
	Err error
}

// Outcome is a word for how a connection has ended: "closed" in order, "stalled" with a
// *StallError, "protocol" because the peer has broken the protocol, "silent" because it did not
// answer in time, "reset" if the peer or what is between has cut it off, or "failed". There are
// no others, so that it can be a label of a metric.
func (e ConnEvent) Outcome() string {
	var ce *fabric.ConnError
	var o origin.Outcome
	switch err := e.Err; {
	case err == nil:
		return "closed"
	case errors.As(err, new(*StallError)):
		return "stalled"
	case errors.As(err, new(*PeerError)), errors.As(err, new(*BadReplyError)), errors.As(err, new(*RDMAError)),
		errors.As(err, new(*VersionError)):
		return "protocol"
	case errors.As(err, &o):
		return o.Outcome()
	case errors.As(err, &ce) && ce.Remote:
		return "reset"
	}
	return "failed"
}

// A CallEvent is a call, at the end that makes it or at the end that executes it. Fields that are
// known only at the end are zero in CallBegan.
type CallEvent struct {
	// Procedure is Call.Observed, or Request.Observed as the Handler has left it: CallBegan has not that yet.
	Procedure

	// Conn is the connection. A call that is made has none before it has been sent, and then
	// the one that it was sent on last. It may be over TCP.
	Conn     Conn
	Executed bool // at the end that executes it; false: at the end that makes it
	Backward bool // from a server to its client
	XID      uint32
	Began    time.Time // when Call was called, or the message was received

	// Total is the time from Began to CallEnded. Waited is the part of it before the call was
	// sent, the last time: for a connection and a credit; or before it was executed: for
	// memory, and for the Reads of its arguments. Wire is, at the end that makes the call,
	// the time from sending it to meeting its reply. Handler is, at the end that executes it,
	// the time in the Handler.
	Total, Waited, Wire, Handler time.Duration

	Request, Reply Transfer // how the two messages traveled

	// Status is the header of the RPC reply. It means nothing if Err is not nil, but that an
	// *oncrpc.RPCError says the same at the end that makes the call.
	Status oncrpc.ReplyHeader

	// Err is the error of Call; and at the end that executes the call, why it has no RPC reply: an
	// *RDMAError that was sent in its place, a *ReplySizeError, or net.ErrClosed if the connection
	// ended first.
	Err error

	Resent   int  // how often it was sent again, on other connections
	Replayed bool // it was answered from the reply cache
}

// Outcome is a word for what came of a call that has ended: "success", or the name of the RPC
// status in lower case ("prog_unavail", "garbage_args", "auth_error"), or for a call without
// an RPC reply "rdma_error", "bad_reply", "too_long", "lost", "closed", "timeout", "canceled" or
// "failed". There are no others than the RPC's and these, so that it can be a label of a metric.
func (e *CallEvent) Outcome() string {
	if e.Err == nil {
		return statusOutcome(&e.Status)
	}
	return errOutcome(e.Err)
}

func statusOutcome(h *oncrpc.ReplyHeader) string {
	// In tables, so that nothing is allocated.
	accepted := [...]string{"success", "prog_unavail", "prog_mismatch", "proc_unavail", "garbage_args", "system_err"}
	denied := [...]string{"rpc_mismatch", "auth_error"}
	switch {
	case h.Stat != oncrpc.MsgDenied && h.AcceptStat <= oncrpc.SystemErr:
		return accepted[h.AcceptStat]
	case h.Stat == oncrpc.MsgDenied && h.RejectStat <= oncrpc.AuthError:
		return denied[h.RejectStat]
	}
	return "failed"
}

// errOutcome is the word of CallEvent.Outcome for an error.
func errOutcome(err error) string {
	var refused *oncrpc.RPCError
	var o origin.Outcome
	var size *SizeError
	var long *ReplySizeError
	switch {
	case errors.As(err, &refused):
		return statusOutcome(&oncrpc.ReplyHeader{
			Stat: refused.Stat, AcceptStat: refused.AcceptStat, RejectStat: refused.RejectStat, AuthStat: refused.AuthStat,
		})
	case errors.As(err, new(*RDMAError)):
		return "rdma_error"
	case errors.As(err, new(*BadReplyError)):
		return "bad_reply"
	case errors.As(err, &size), errors.As(err, &long):
		return "too_long"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, new(*LostError)):
		return "lost"
	case errors.Is(err, net.ErrClosed): // whatever the connection has ended for
		return "closed"
	case errors.As(err, &o):
		return o.Outcome()
	}
	return "failed"
}

// A Transfer describes how an RPC message traveled.
type Transfer struct {
	Bytes  int // of the RPC message, with all data that was in chunks
	Chunks int // bytes moved by RDMA Read or Write
	By     Ways
}

// Ways are the ways of the parts of a message.
type Ways uint8

const (
	// ByMessage: the message, or a part of it, was in the Send itself: inline. Over TCP
	// everything is.
	ByMessage Ways = 1 << iota
	// ByReadChunk: data was in read chunks.
	ByReadChunk
	// ByLongCall: the message as a whole was in a position-zero read chunk.
	ByLongCall
	// ByWriteChunk: results were placed in write chunks.
	ByWriteChunk
	// ByReplyChunk: the message as a whole was placed in the reply chunk.
	ByReplyChunk
)

// String names the ways, as "inline" or "read chunk+inline".
func (w Ways) String() string {
	switch w { // the usual ones, without an allocation
	case 0:
		return "none"
	case ByMessage:
		return "inline"
	case ByReplyChunk:
		return "reply chunk"
	case ByLongCall:
		return "long call"
	}
	var s []string
	for i, name := range []string{"inline", "read chunk", "long call", "write chunk", "reply chunk"} {
		if w&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	return strings.Join(s, "+")
}

// A Notice is something that has happened beside calls.
type Notice struct {
	Kind NoticeKind // what has happened
	Conn Conn       // nil before there is one
	Peer string     // address of the other end
	XID  uint32     // of a message, if it had one
	Err  error      // of a refusal

	// Bytes is the length of registered memory, or of what a call waits for.
	Bytes int
}

// A NoticeKind is the subject of a Notice.
type NoticeKind uint8

const (
	// NoticeRefused: a message of the peer was malformed. It was refused or dropped, and Err
	// says why.
	NoticeRefused NoticeKind = iota
	// NoticeRejected: a connection was refused, or its set-up failed, at a server.
	NoticeRejected
	// NoticeCreditStall: a call waits for a credit.
	NoticeCreditStall
	// NoticeMemoryStall: a call that has been received waits for memory, for Bytes of it. Over
	// TCP a long call that is still being received may wait as well, and more than once.
	NoticeMemoryStall
	// NoticeRegistered: Bytes of memory have been registered with the adapter.
	NoticeRegistered
)

// String names the kind, as "refused".
func (k NoticeKind) String() string {
	names := [...]string{"refused", "rejected", "credit stall", "memory stall", "registered"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("NoticeKind(%d)", uint8(k))
}

// Observers returns an Observer that passes everything on to all of list, in order. Those that
// are nil are left out; of none at all it returns nil.
func Observers(list ...Observer) Observer {
	var all observers
	for _, o := range list {
		if o != nil {
			all = append(all, o)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type observers []Observer

func (all observers) ConnBegan(e ConnEvent) {
	for _, o := range all {
		o.ConnBegan(e)
	}
}

func (all observers) ConnEnded(e ConnEvent) {
	for _, o := range all {
		o.ConnEnded(e)
	}
}

func (all observers) CallBegan(e *CallEvent) {
	for _, o := range all {
		o.CallBegan(e)
	}
}

func (all observers) CallEnded(e *CallEvent) {
	for _, o := range all {
		o.CallEnded(e)
	}
}

func (all observers) Noticed(n Notice) {
	for _, o := range all {
		o.Noticed(n)
	}
}
