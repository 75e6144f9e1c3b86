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

// An Observer is notified of events on the connections of a Client or a Server: see Config.Observer. Embed [NoObserver]
// in an implementation, so that it still compiles when Observer gets another method.
//
// The methods are called by the goroutines that make calls and drive connections, many of them at once. They must not
// block, and must not make calls on the connections of the event, close them or wait for them. At any event they may
// call Conn.Info, Conn.Stats and Conn.RemoteAddr of any connection: the transport holds no lock meanwhile.
//
// The transport does not recover a panic in a method: it ends the process, as in any goroutine of the program. If a
// Handler causes the event, for instance with a call of its own, it is a panic of the Handler.
//
// The memory of an event is valid until the method returns, and belongs to the transport. The pointer to a call's event
// stays the same from its beginning to its end, so it can be a map key. In the steady state nothing is allocated for an
// Observer.
type Observer interface {
	// ConnBegan reports a connection that has been set up.
	ConnBegan(e ConnEvent)
	// ConnEnded reports the end of a connection, once for each ConnBegan. Calls that are executed on it may end later.
	ConnEnded(e ConnEvent)
	// CallBegan reports a call that is about to be made, or that has been received completely and is about to be
	// executed. Calls that are refused before their procedure is known are reported as a Notice.
	CallBegan(e *CallEvent)
	// CallEnded reports that Call is about to return, or that the reply has been handed to the adapter, or never will
	// be. It is called once for each CallBegan.
	CallEnded(e *CallEvent)
	// Noticed reports other events that an operator may want to know.
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
	Server bool      // opened by the other end
	Began  time.Time // the end of its setup

	// Err is why the connection ended: nil if this end or its peer closed it in order.
	Err error
}

// Outcome returns a word for how a connection ended: "closed" in order, "stalled" with a *StallError, "protocol"
// because the peer broke the protocol, "silent" because the peer did not answer in time, "reset" if the peer or
// something on the path cut it off, or "failed". There are no other words, so it can be a metric label.
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

// A CallEvent is a call, at the end that makes it or at the end that executes it. Fields that are only known at the end
// of the call are zero in CallBegan.
type CallEvent struct {
	// Procedure is Call.Observed, or Request.Observed as the Handler left it, which CallBegan does not have yet.
	Procedure

	// Conn is the connection. A call that this end makes has none before it is sent; afterwards it is the one that the
	// call was last sent on. It may be over TCP.
	Conn     Conn
	Executed bool // at the end that executes it; false at the end that makes it
	Backward bool // from a server to its client
	XID      uint32
	Began    time.Time // when Call was called, or the message was received

	// Total is the time from Began to CallEnded. Waited is the part of it before the call was last sent, for a
	// connection and a credit, or before it was executed, for memory and for the Reads of its arguments. Wire, at the
	// end that makes the call, is the time from sending it to processing its reply. Handler, at the end that executes
	// it, is the time in the Handler.
	Total, Waited, Wire, Handler time.Duration

	Request, Reply Transfer // how the two messages traveled

	// Status is the header of the RPC reply. It is only meaningful if Err is nil or, at the end that makes the call, an
	// *oncrpc.RPCError, which then says the same.
	Status oncrpc.ReplyHeader

	// Err is the error of Call. At the end that executes the call it is why there is no RPC reply: an *RDMAError that
	// was sent instead, a *ReplySizeError, or net.ErrClosed if the connection ended first.
	Err error

	Resent   int  // the number of times it was sent again, on other connections
	Replayed bool // answered from the reply cache
}

// Outcome returns a word for the result of a call that has ended: "success", the name of the RPC status in lower case
// ("prog_unavail", "garbage_args", "auth_error"), or, for a call without an RPC reply, "rdma_error", "bad_reply",
// "too_long", "lost", "closed", "timeout", "canceled" or "failed". There are no other words, so it can be a metric
// label.
func (e *CallEvent) Outcome() string {
	if e.Err == nil {
		return statusOutcome(&e.Status)
	}
	return errOutcome(e.Err)
}

func statusOutcome(h *oncrpc.ReplyHeader) string {
	// Tables, so that nothing is allocated.
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

// errOutcome returns the word of CallEvent.Outcome for an error.
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
	case errors.Is(err, net.ErrClosed): // for whatever reason the connection ended
		return "closed"
	case errors.As(err, &o):
		return o.Outcome()
	}
	return "failed"
}

// A Transfer describes how an RPC message traveled.
type Transfer struct {
	Bytes  int // of the RPC message, including all data in chunks
	Chunks int // bytes moved by RDMA Read or Write
	By     Ways
}

// Ways is the set of ways in which the parts of a message travel.
type Ways uint8

const (
	// ByMessage: the message, or a part of it, was inline in the Send itself. Over TCP everything is.
	ByMessage Ways = 1 << iota
	// ByReadChunk: data was in read chunks.
	ByReadChunk
	// ByLongCall: the whole message was in a position-zero read chunk.
	ByLongCall
	// ByWriteChunk: results were placed in write chunks.
	ByWriteChunk
	// ByReplyChunk: the whole message was placed in the reply chunk.
	ByReplyChunk
)

// String returns the names of the ways, such as "inline" or "read chunk+inline".
func (w Ways) String() string {
	switch w { // common values, without an allocation
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

// A Notice is an event that does not belong to a call.
type Notice struct {
	Kind NoticeKind // what happened
	Conn Conn       // nil before there is a connection
	Peer string     // address of the other end
	XID  uint32     // of a message, if it has one
	Err  error      // of a refusal

	// Bytes is the length of registered memory, or the amount that a call waits for.
	Bytes int
}

// A NoticeKind is the kind of a Notice.
type NoticeKind uint8

const (
	// NoticeRefused: a message of the peer was malformed. It was refused or dropped; Err is the reason.
	NoticeRefused NoticeKind = iota
	// NoticeRejected: a server refused a connection, or its setup failed.
	NoticeRejected
	// NoticeCreditStall: a call waits for a credit.
	NoticeCreditStall
	// NoticeMemoryStall: a received call waits for Bytes of memory. Over TCP a long call that is still being received
	// may wait as well, and more than once.
	NoticeMemoryStall
	// NoticeRegistered: Bytes of memory have been registered with the adapter.
	NoticeRegistered
)

// String returns the name of the kind, such as "refused".
func (k NoticeKind) String() string {
	names := [...]string{"refused", "rejected", "credit stall", "memory stall", "registered"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("NoticeKind(%d)", uint8(k))
}

// Observers returns an Observer that passes every event to each element of list, in order. Nil elements are left out;
// if none are left, it returns nil.
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
