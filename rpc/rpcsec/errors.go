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

// ErrNotSealed is what a *ContextError unwraps to with SealRequired, if the server does not seal, or the
// mechanism derives no keys.
var ErrNotSealed = errors.New("the server does not seal bulk data, or the mechanism cannot")

// A SealError says that a sealed item is not what the other end has sealed for the call: it has been changed, cut,
// exchanged or replayed. No byte of it has been used. A *ReplyError of a client unwraps to it; a Server logs it.
type SealError struct {
	Item  int   // of the sealed arguments or results
	Piece int   // of 64 KiB; -1: the item as a whole, or a list of them
	Err   error // what is wrong
}

func (e *SealError) Error() string {
	if e.Piece < 0 {
		return fmt.Sprintf("sealed item %d: %v", e.Item, e.Err)
	}
	return fmt.Sprintf("sealed item %d, piece %d: %v", e.Item, e.Piece, e.Err)
}

// Unwrap returns Err.
func (e *SealError) Unwrap() error { return e.Err }

// A ContextError is the error of a call for which there is no security context: it was not sent. It unwraps to
// the reason.
type ContextError struct {
	// Refused says that the server has refused the set-up, with Status and Minor. Otherwise this end could not
	// go on: Err is an error of the mechanism, or of the call. Of a refusal it is what the mechanism says of Minor, or nil.
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

// A ReplyError is the error of a call with a reply that is not proved to be the server's, or was changed on its
// way. The call may have been executed. It unwraps to the mechanism's error.
type ReplyError struct {
	Results bool // the results are wrong; otherwise the verifier is
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
