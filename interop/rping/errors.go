package rping

import (
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A SetupError says that there never was a connection, and wraps why.
type SetupError struct{ Err error }

func (e *SetupError) Error() string { return fmt.Sprintf("rping: no connection: %v", e.Err) }

func (e *SetupError) Unwrap() error { return e.Err }

// A PeerError is something in which the peer does not keep to the protocol.
type PeerError struct{ Reason string }

func (e *PeerError) Error() string { return "rping: protocol error of the peer: " + e.Reason }

// A WorkError is a work request that failed. An error that wraps it wraps the
// *fabric.ConnError of the end that followed from it, too.
type WorkError struct {
	What   string
	Status fabric.WCStatus
}

func (e *WorkError) Error() string { return fmt.Sprintf("%s: %v", e.What, e.Status) }

// A MismatchError says that a text is not what it has to be.
type MismatchError struct {
	Ping      int // counted from zero
	At        int // the first wrong byte
	Got, Want byte
	Length    int // of the text
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("rping: byte %d of %d of ping %d is %#02x, not %#02x", e.At, e.Length, e.Ping, e.Got, e.Want)
}

// compare returns a *MismatchError unless got is want, which is as long.
func compare(ping int, got, want []byte) error {
	for i := range want {
		if got[i] != want[i] {
			return &MismatchError{Ping: ping, At: i, Got: got[i], Want: want[i], Length: len(want)}
		}
	}
	return nil
}
