package iwarp

import (
	"errors"
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// ErrNotConnected is returned for work that needs an established connection
// while there is none yet.
var ErrNotConnected = errors.New("iwarp: not connected yet")

// ErrMisuse is wrapped by errors about calls that a connection's life does not
// allow at that point, such as Connect on a Conn from a Listener.
var ErrMisuse = errors.New("iwarp: call out of place")

// ErrRejected is the cause of the end of a Conn on which Reject was called.
var ErrRejected = errors.New("iwarp: the request was rejected")

// ErrRevoked is the cause of a connection's end when memory was invalidated or
// deregistered in the middle of being sent.
var ErrRevoked = errors.New("iwarp: memory was taken back while it was being sent")

// A SetupError says why a connection could not be set up, other than by the
// peer's rejection, which is a *fabric.RejectError.
type SetupError struct {
	Addr   string // the peer
	Reason string // in our words
	Err    error  // what lies beneath, or nil
}

func (e *SetupError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("iwarp: set-up with %s: %s", e.Addr, e.Reason)
	}
	return fmt.Sprintf("iwarp: set-up with %s: %s: %v", e.Addr, e.Reason, e.Err)
}

func (e *SetupError) Unwrap() error { return e.Err }

// A ProtocolError is what this side found wrong in what the peer sent. It is
// the cause of a *fabric.ConnError that is not Remote: this side ended the
// connection, with a Terminate message where one could be sent. A fault that
// the peer found in what this side sent is a *TerminateError.
type ProtocolError struct {
	rdmap.Cause        // layer, error type and code, as told to the peer
	Reason      string // in our words
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("iwarp: protocol error of the peer: %s (%v)", e.Reason, e.Cause)
}

// A TerminateError is a Terminate message from the peer: its reason for ending
// the connection. It is the cause of a *fabric.ConnError that is Remote.
type TerminateError struct {
	rdmap.Cause
	// STag and TO are what the refused segment was about, as far as the
	// peer has quoted it; zero otherwise.
	STag uint32
	TO   uint64

	sink uint32 // of the refused Read Request
}

func (e *TerminateError) Error() string {
	return fmt.Sprintf("iwarp: terminated by the peer: %v", e.Cause)
}

// status is how the request that a Terminate message is about completes.
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

// A WorkError is a work request that this side could not execute. The request
// has completed with Status; as with any queue pair, the connection ended.
type WorkError struct {
	ID     uint64
	Status fabric.WCStatus
}

func (e *WorkError) Error() string {
	return fmt.Sprintf("iwarp: work request %d: %v", e.ID, e.Status)
}

// A BrokenError is a TCP connection that ended where iWARP does not end: inside
// an FPDU or a message, or by a reset.
type BrokenError struct {
	Op  string // "read", "write"
	Err error  // io.ErrUnexpectedEOF or the system's error
}

func (e *BrokenError) Error() string { return fmt.Sprintf("iwarp: %s: %v", e.Op, e.Err) }

func (e *BrokenError) Unwrap() error { return e.Err }
