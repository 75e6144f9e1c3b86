package rpc

import (
	"fmt"
	"net"
	"strings"
	"time"
	"unicode"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// A ClosedError is the error of calls on a connection that has ended. It unwraps to net.ErrClosed and to the reason,
// which is a *fabric.ConnError unless this end closed the connection for a reason of its own.
type ClosedError struct {
	Addr   string
	Reason error // nil: closed by this end's Close or Shutdown
}

func (e *ClosedError) Error() string {
	if e.Reason == nil {
		return fmt.Sprintf("connection to %s: closed", e.Addr)
	}
	return fmt.Sprintf("connection to %s: %v", e.Addr, e.Reason)
}

func (e *ClosedError) Unwrap() []error {
	if e.Reason == nil {
		return []error{net.ErrClosed}
	}
	return []error{net.ErrClosed, e.Reason}
}

// A HandlerError is an error that a server's method returned and that the interface has room for: see the comment error
// in command xdrgen. The results are undefined.
type HandlerError struct {
	Text string // as the server sent it
}

func (e *HandlerError) Error() string {
	return "the server failed: " + strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, e.Text)
}

// A StallError is the reason that this end closed a connection: for all of Config.StallTimeout the peer made no
// progress with what this end waits for. The peer took nothing that was sent after some reply, or did not answer an
// RDMA Read.
type StallError struct {
	For     time.Duration
	Replies int // replies waiting for the peer to take them, as far as known
	Reads   int // unanswered RDMA Reads
	Calls   int // over TCP: calls or replies that have arrived only in part
	Behind  int // over TCP: calls of this end with replies that may follow calls that there is no memory for
}

func (e *StallError) Error() string {
	what := fmt.Sprintf("%d replies", e.Replies)
	switch {
	case e.Behind > 0:
		return fmt.Sprintf("calls have held all memory for %v: the replies to %d calls may be behind others that wait for it", e.For, e.Behind)
	case e.Calls > 0:
		return fmt.Sprintf("the rest of a message has not come within %v", e.For)
	case e.Replies == 0:
		what = fmt.Sprintf("%d RDMA Reads", e.Reads)
	case e.Reads > 0:
		what += fmt.Sprintf(" and %d RDMA Reads", e.Reads)
	}
	return fmt.Sprintf("peer has taken nothing for %v: %s wait for it", e.For, what)
}

// Timeout returns true: see net.Error.
func (e *StallError) Timeout() bool { return true }

// A LostError is the error of a call that lost its connection and ended before there was another. It unwraps to
// net.ErrClosed, to the context's error if that ended the call, and to the reason that the connection was lost.
type LostError struct {
	Addr   string
	Sent   bool  // the call was sent: it may have been executed
	Err    error // the context's error; nil if the call has NoResend, or could not be built again
	Reason error // why the connection was lost, or why the latest attempt to reconnect or to build the call failed
}

func (e *LostError) Error() string {
	what := "call was not sent"
	if e.Sent {
		what = "call may have been executed"
	}
	switch {
	case e.Reason == nil && e.Err == nil:
		return fmt.Sprintf("no connection to %s: %s", e.Addr, what)
	case e.Reason == nil:
		return fmt.Sprintf("no connection to %s: %v; %s", e.Addr, e.Err, what)
	case e.Err == nil:
		return fmt.Sprintf("%v; %s", e.Reason, what)
	}
	return fmt.Sprintf("%v (%v); %s", e.Reason, e.Err, what)
}

func (e *LostError) Unwrap() []error {
	errs := []error{net.ErrClosed}
	for _, err := range []error{e.Err, e.Reason} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// A NotReadyError means that a server may not call a client: the upper layer has not announced that the client is
// ready, or the client dropped the connection on the first call (RFC 8167 section 6).
type NotReadyError struct {
	Addr    string
	Dropped bool
}

func (e *NotReadyError) Error() string {
	if e.Dropped {
		return fmt.Sprintf("client %s dropped the connection when it was called", e.Addr)
	}
	return fmt.Sprintf("client %s has not said that it is ready for calls: see Conn.AllowBackward", e.Addr)
}

// An RDMAError is a peer's RDMA_ERROR answer to a call (RFC 5666 section 4.2): its transport could not accept the
// message, or could not send the reply. With ERR_VERS the call was not executed. With all other codes it may have been:
// the reply did not fit in the memory that the call offered for it, or the peer had no memory for it.
type RDMAError struct {
	XID      uint32
	Vers     uint32 // of the call
	Code     rpcrdma.ErrCode
	VersLow  uint32 // with ERR_VERS: the versions that the peer supports
	VersHigh uint32

	// With other codes: the memory that the call offered for its reply, Call.MaxResults and the lengths of its
	// WriteItems, in bytes. The reply may have needed more.
	MaxResults int
	WriteItems []int
}

func (e *RDMAError) Error() string {
	switch e.Code {
	case rpcrdma.ErrVers:
		return fmt.Sprintf("peer speaks RPC-over-RDMA versions %d to %d, not %d (%v)",
			e.VersLow, e.VersHigh, e.Vers, e.Code.Name(e.Vers))
	case rpcrdma.ErrChunk:
		offer := fmt.Sprintf("MaxResults %d", e.MaxResults)
		if len(e.WriteItems) > 0 {
			offer += fmt.Sprintf(", WriteItems of %d bytes", e.WriteItems)
		}
		return fmt.Sprintf("peer could not decode the message, or its reply is longer than the call offers: %s (%s)",
			offer, e.Code.Name(e.Vers))
	}
	return fmt.Sprintf("peer refused the message with %s", e.Code.Name(e.Vers))
}

// A BadReplyError means that the peer's answer to a call is invalid. The call may have been executed.
type BadReplyError struct {
	XID    uint32
	Reason string
}

func (e *BadReplyError) Error() string {
	return "bad reply from peer: " + e.Reason
}

// An ItemError means that a ReadItem of a call does not follow a length word that matches its length. Nothing has been
// sent.
type ItemError struct {
	Index  int // in Call.ReadItems
	Offset int // as given
	Len    int // of Data, in bytes
}

func (e *ItemError) Error() string {
	return fmt.Sprintf("transport: ReadItems[%d] has %d bytes, but the four bytes in front of offset %d of Args do not say so",
		e.Index, e.Len, e.Offset)
}

// A ForeignError means that foreign memory ([fabric.Foreign]) cannot be used for an item of a call, since the data
// would have to pass through the program's memory.
type ForeignError struct {
	Result bool   // the item is one of WriteItems; otherwise one of ReadItems, and nothing has been sent
	Index  int    // of the item
	Len    int    // bytes of its data
	Reason string // why the adapter alone cannot transfer the data
}

func (e *ForeignError) Error() string {
	items := "ReadItems"
	if e.Result {
		items = "WriteItems"
	}
	return fmt.Sprintf("transport: %s[%d] has %d bytes in foreign memory, and %s", items, e.Index, e.Len, e.Reason)
}

// A SizeError means that a call cannot be made because something is too long. Nothing has been sent.
type SizeError struct {
	What        string
	Size, Limit int // bytes
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("%s is %d bytes long, the limit is %d", e.What, e.Size, e.Limit)
}

// A ReplySizeError is the reason that a reply was not sent: the caller offers too little room for it. It is logged to
// Config.Logger, and the caller gets an *RDMAError.
type ReplySizeError struct {
	Procedure
	Names     *oncrpc.Program // the program of the procedure; nil if not known
	SizeError                 // the part, its size, and the room for it
}

func (e *ReplySizeError) Error() string {
	names := e.Names
	if names == nil {
		names = &oncrpc.Program{Number: e.Prog, Vers: e.Vers}
	}
	return fmt.Sprintf("reply to %s: %v", names.CallName(e.Proc), &e.SizeError)
}

// A PeerError is the reason that this end closed a connection: the peer broke the protocol in a way that no reply can
// repair.
type PeerError struct {
	Reason string
}

func (e *PeerError) Error() string { return "peer broke the protocol: " + e.Reason }

// A VersionError means that a client and its server have no version in common. Retrying does not help.
type VersionError struct {
	Addr      string
	Low, High uint32 // the versions that the server reports
	Reason    error  // what the server did instead of answering; nil if it answered
}

func (e *VersionError) Error() string {
	if e.Reason != nil {
		return fmt.Sprintf("%s does not answer version 2 of RPC-over-RDMA: %v", e.Addr, e.Reason)
	}
	return fmt.Sprintf("%s refuses our versions of RPC-over-RDMA, and speaks versions %d to %d", e.Addr, e.Low, e.High)
}

func (e *VersionError) Unwrap() error { return e.Reason }
