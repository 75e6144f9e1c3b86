package iwarp

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// ErrNotConnected is returned by calls that need an established connection, before there is
// one.
var ErrNotConnected = errors.New("iwarp: not connected yet")

// ErrMisuse is wrapped by errors of calls that are invalid in the current state, such as
// Connect on a Conn from a Listener.
var ErrMisuse = errors.New("iwarp: invalid call in this state")

// ErrRejected is the cause in the ConnError of a Conn on which Reject was called.
var ErrRejected = errors.New("iwarp: connection request rejected by this side")

// ErrRevoked is the cause in the ConnError if memory was invalidated or deregistered while it was being sent.
var ErrRevoked = errors.New("iwarp: memory was revoked while it was being sent")

// A SetupError is a failure of connection setup other than a rejection by the peer, which is a
// *fabric.RejectError.
type SetupError struct {
	Provider string // the provider's name; empty: iwarp
	Addr     string // the peer
	Reason   string // for humans
	Err      error  // the underlying error, or nil
}

func (e *SetupError) Error() string {
	cause := e.Err
	if op, ok := cause.(*net.OpError); ok && op.Err != nil {
		cause = op.Err // without the address, which the message has already
	}
	if sys, ok := cause.(*os.SyscallError); ok {
		cause = sys.Err // without the name of the call
	}
	provider := cmp.Or(e.Provider, "iwarp")
	if cause == nil {
		return fmt.Sprintf("%s: %s: %s", provider, e.Addr, e.Reason)
	}
	return fmt.Sprintf("%s: %s: %s: %v", provider, e.Addr, e.Reason, cause)
}

func (e *SetupError) Unwrap() error { return e.Err }

// A StrangerError means that the peer answered the MPA request with something other than an MPA reply: another protocol
// uses the port. It is the Err of a SetupError, and unwraps to mpa.ErrKey. RFC 5044 section 7.1.1.
type StrangerError struct {
	// Answer is the beginning of the peer's answer, unmodified: at most maxAnswer (64) bytes, owned by the error.
	Answer []byte
}

// maxAnswer bounds StrangerError.Answer, in bytes.
const maxAnswer = 64

func (e *StrangerError) Error() string {
	return fmt.Sprintf("not an iWARP server (it answered with %s)", e.Text())
}

// Text describes the answer in printable ASCII: its first line, as far as it is printable, or a description of an
// answer that is not text.
func (e *StrangerError) Text() string {
	n := 0
	for n < len(e.Answer) && e.Answer[n] >= ' ' && e.Answer[n] <= '~' {
		n++
	}
	switch b := e.Answer; {
	case strings.TrimSpace(string(b[:n])) != "" && n == len(b) && n == maxAnswer:
		return string(b[:n]) + "..."
	case strings.TrimSpace(string(b[:n])) != "":
		return string(b[:n])
	case len(b) >= 3 && b[0] >= tlsAlert && b[0] <= tlsData && b[1] == 3:
		return "TLS"
	}
	return "something that is not text"
}

// The types of TLS records. Each is followed by a version that starts with byte 3. RFC 8446 section
// 5.1.
const (
	tlsAlert = 21
	tlsData  = 23
)

// Unwrap returns mpa.ErrKey.
func (e *StrangerError) Unwrap() error { return mpa.ErrKey }

// A ProtocolError is a protocol violation by the peer. It is the cause of a *fabric.ConnError
// that is not Remote: this side ended the connection, with a Terminate message if one could be
// sent. A violation that the peer reports is a *TerminateError.
type ProtocolError struct {
	rdmap.Cause        // layer, error type and code of the Terminate message
	Reason      string // for humans
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("iwarp: protocol error by the peer: %s (%v)", e.Reason, e.Cause)
}

// A TerminateError is a Terminate message from the peer. It is the cause of a
// *fabric.ConnError that is Remote.
type TerminateError struct {
	rdmap.Cause
	// STag and TO are those of the refused segment, if the peer quoted its header; zero
	// otherwise.
	STag uint32
	TO   uint64

	sink uint32 // of the refused Read Request
}

func (e *TerminateError) Error() string {
	return fmt.Sprintf("iwarp: terminated by the peer: %v", e.Cause)
}

// status returns the completion status of the request that the Terminate message refers to.
func (e *TerminateError) status() fabric.WCStatus {
	switch e.Layer {
	case rdmap.LayerRDMA:
		switch rdmap.ErrorType(e.Type) {
		case rdmap.TypeProtection:
			return fabric.WCRemAccessErr
		case rdmap.TypeOperation:
			return fabric.WCRemInvReqErr
		}
	case rdmap.LayerDDP:
		switch e.Type {
		case 1: // ddp.TypeTagged
			return fabric.WCRemAccessErr
		case 2: // ddp.TypeUntagged
			return fabric.WCRemInvReqErr
		}
	}
	return fabric.WCRemOpErr
}

// A WorkError is a work request that this side could not execute. The request has completed with Status, and the
// connection has ended, as with any queue pair.
type WorkError struct {
	ID     uint64
	Status fabric.WCStatus
}

func (e *WorkError) Error() string {
	return fmt.Sprintf("iwarp: work request %d: %v", e.ID, e.Status)
}

// A BrokenError is a TCP connection that ended inside an FPDU or a message, or with an error.
type BrokenError struct {
	Op  string // "read", "write"
	Err error  // io.ErrUnexpectedEOF or the system's error
}

func (e *BrokenError) Error() string { return fmt.Sprintf("iwarp: %s: %v", e.Op, e.Err) }

func (e *BrokenError) Unwrap() error { return e.Err }
