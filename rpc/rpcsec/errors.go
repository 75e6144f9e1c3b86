package rpcsec

import (
	"errors"
	"fmt"
)

var (
	errSequence = errors.New("another sequence number than the header's")
	errSteps    = errors.New("the set-up has not ended after 8 calls")
	errEarly    = errors.New("the server has ended the set-up before the client")
	errLate     = errors.New("the server has not ended the set-up")
	errItem     = errors.New("another length than the encrypted body says")
	errInline   = errors.New("rpcsec: an Inline handler cannot make calls that wait")
	errClosed   = errors.New("rpcsec: the Client is closed")
)

// ErrNotSealed is wrapped by the *ContextError of a call with SealRequired if the server does not seal, or if the
// mechanism cannot derive keys.
var ErrNotSealed = errors.New("the server does not seal bulk data, or the mechanism cannot")

// A SealError reports that a sealed item is not what the other end sealed for this call: it was modified, truncated,
// swapped or replayed. None of its bytes has been used. On a client a *ReplyError wraps it, and a Server logs it.
type SealError struct {
	Item  int   // index in the sealed arguments or results
	Piece int   // index of the 64 KiB piece; -1: the item as a whole, or a list of items
	Err   error // the cause
}

func (e *SealError) Error() string {
	if e.Piece < 0 {
		return fmt.Sprintf("sealed item %d: %v", e.Item, e.Err)
	}
	return fmt.Sprintf("sealed item %d, piece %d: %v", e.Item, e.Piece, e.Err)
}

// Unwrap returns Err.
func (e *SealError) Unwrap() error { return e.Err }

// A ContextError is the error of a call for which no security context could be established. The call was not sent. It
// unwraps to the reason.
type ContextError struct {
	// Refused is set if the server refused the setup, with Status and Minor. Err is then the mechanism's explanation of
	// Minor, or nil. Otherwise this end failed, and Err is an error of the mechanism or of the setup call.
	Refused bool
	Status  Status
	Minor   uint32
	Err     error
}

func (e *ContextError) Error() string {
	if e.Refused && e.Err != nil {
		return fmt.Sprintf("security context refused by the server: %v: %v", e.Status, e.Err)
	}
	if e.Refused {
		return fmt.Sprintf("security context refused by the server: %v, code %d of the mechanism", e.Status, e.Minor)
	}
	return fmt.Sprintf("no security context: %v", e.Err)
}

// Unwrap returns Err.
func (e *ContextError) Unwrap() error { return e.Err }

// A ReplyError is the error of a call if its reply was not proved to come from the server, or was modified on its way.
// The call may have been executed. It unwraps to the mechanism's error.
type ReplyError struct {
	Results bool // the results failed verification; otherwise the verifier did
	Err     error
}

func (e *ReplyError) Error() string {
	what := "verifier"
	if e.Results {
		what = "results"
	}
	return fmt.Sprintf("reply not from the server, or changed on its way: %s: %v", what, e.Err)
}

// Unwrap returns Err.
func (e *ReplyError) Unwrap() error { return e.Err }
