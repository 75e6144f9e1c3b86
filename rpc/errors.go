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

// A ClosedError is the error of calls on a connection that has ended. It unwraps to net.ErrClosed and
// to the reason, a *fabric.ConnError unless this end closed the connection for a reason of its own.
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

// A HandlerError is an error that a method of a server returned, where the interface has room for its text: see the
// comment error in command xdrgen. The results mean nothing.
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

// A StallError is why this end closed a connection: the peer has made no progress with
// what this end waits for, for all of Config.StallTimeout. Nothing that was sent after
// some reply has been taken, or a Read of the peer's memory has not been answered.
type StallError struct {
	For     time.Duration
	Replies int // that wait to be taken, as far as that is known
	Reads   int // RDMA Reads without an answer
	Calls   int // over TCP: calls, or replies, of which the rest has not come
	Behind  int // over TCP: calls of this end with replies that may come after calls that there is no memory for
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

// Timeout is true: see net.Error.
func (e *StallError) Timeout() bool { return true }

// A LostError is the error of a call that lost its connection and ended before there was another. It
// unwraps to net.ErrClosed, to the context's error if that ended the call, and to what is known of
// the connection.
type LostError struct {
	Addr   string
	Sent   bool  // the call has been sent: it may have been executed
	Err    error // the context's; nil: the call has NoResend, or could not be formed again
	Reason error // why the connection was lost, or the latest attempt to make one or to form the call failed
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

// A NotReadyError says that a server may not call a client: the upper layer has not said
// that the client is ready, or the client has dropped the connection on the first call
// (RFC 8167 section 6).
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

// An RDMAError is a peer's RDMA_ERROR answer to a call (RFC 5666 section 4.2): its transport
// could not take the message, or could not send the reply. With ERR_VERS the call was not
// executed. With all other codes it may have been: the reply did not fit what the call offered
// for it, or the peer had no memory for it.
type RDMAError struct {
	XID      uint32
	Vers     uint32 // of the call
	Code     rpcrdma.ErrCode
	VersLow  uint32 // ERR_VERS: the versions the peer speaks
	VersHigh uint32

	// Other codes: what the call offered for its reply, Call.MaxResults and the lengths of
	// its WriteItems, in bytes. The reply may have needed more.
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

// A BadReplyError says that the peer's answer to a call makes no sense. The call
// may have been executed.
type BadReplyError struct {
	XID    uint32
	Reason string
}

func (e *BadReplyError) Error() string {
	return "bad reply from peer: " + e.Reason
}

// An ItemError says that a ReadItem of a call does not follow a length word with its
// length. Nothing has been sent.
type ItemError struct {
	Index  int // of Call.ReadItems
	Offset int // as given
	Len    int // of Data, in bytes
}

func (e *ItemError) Error() string {
	return fmt.Sprintf("transport: ReadItems[%d] has %d bytes, but the four bytes in front of offset %d of Args do not say so",
		e.Index, e.Len, e.Offset)
}

// A ForeignError says that foreign memory ([fabric.Foreign]) cannot be used for an item of a call, since
// the data would have to pass through the memory of the program.
type ForeignError struct {
	Result bool   // the item is of WriteItems, and otherwise of ReadItems, of which nothing has been sent
	Index  int    // of the item
	Len    int    // bytes of its data
	Reason string // what keeps the data from the adapter alone
}

func (e *ForeignError) Error() string {
	items := "ReadItems"
	if e.Result {
		items = "WriteItems"
	}
	return fmt.Sprintf("transport: %s[%d] has %d bytes in foreign memory, and %s", items, e.Index, e.Len, e.Reason)
}

// A SizeError says that a call cannot be made because something is too long.
// Nothing has been sent.
type SizeError struct {
	What        string
	Size, Limit int // bytes
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("%s is %d bytes long, the limit is %d", e.What, e.Size, e.Limit)
}

// A ReplySizeError says why a reply was not sent: the caller offers too little room for it.
// Config.Logger gets it, and the caller an *RDMAError.
type ReplySizeError struct {
	Procedure
	Names     *oncrpc.Program // of the procedure; nil if they are not known
	SizeError                 // which part, its size, and the room for it
}

func (e *ReplySizeError) Error() string {
	names := e.Names
	if names == nil {
		names = &oncrpc.Program{Number: e.Prog, Vers: e.Vers}
	}
	return fmt.Sprintf("reply to %s: %v", names.CallName(e.Proc), &e.SizeError)
}

// A PeerError is why this end closed a connection: the peer broke the protocol
// in a way that no answer can mend.
type PeerError struct {
	Reason string
}

func (e *PeerError) Error() string { return "peer broke the protocol: " + e.Reason }

// A VersionError says that a client and its server have no version in common. Another
// attempt would not help.
type VersionError struct {
	Addr      string
	Low, High uint32 // what the server says it speaks
	Reason    error  // what it did instead of answering; nil: it did answer
}

func (e *VersionError) Error() string {
	if e.Reason != nil {
		return fmt.Sprintf("%s does not answer version 2 of RPC-over-RDMA: %v", e.Addr, e.Reason)
	}
	return fmt.Sprintf("%s refuses our versions of RPC-over-RDMA, and speaks versions %d to %d", e.Addr, e.Low, e.High)
}

func (e *VersionError) Unwrap() error { return e.Reason }
