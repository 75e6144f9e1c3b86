package rping

import (
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A SetupError means that the connection was never established. It wraps the reason.
type SetupError struct{ Err error }

func (e *SetupError) Error() string { return fmt.Sprintf("rping: no connection: %v", e.Err) }

func (e *SetupError) Unwrap() error { return e.Err }

// A PeerError is a protocol violation by the peer.
type PeerError struct{ Reason string }

func (e *PeerError) Error() string { return "rping: protocol error by the peer: " + e.Reason }

// A WorkError is a failed work request. An error that wraps it also wraps the
// *fabric.ConnError of the connection's end.
type WorkError struct {
	What   string
	Status fabric.WCStatus
}

func (e *WorkError) Error() string { return fmt.Sprintf("%s: %v", e.What, e.Status) }

// A MismatchError is a text that differs from the expected one.
type MismatchError struct {
	Ping      int // counted from zero
	At        int // the first wrong byte
	Got, Want byte
	Length    int // of the text
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("rping: byte %d of %d of ping %d is %#02x, not %#02x", e.At, e.Length, e.Ping, e.Got, e.Want)
}

// compare returns a *MismatchError unless got equals want, which has the same length.
func compare(ping int, got, want []byte) error {
	for i := range want {
		if got[i] != want[i] {
			return &MismatchError{Ping: ping, At: i, Got: got[i], Want: want[i], Length: len(want)}
		}
	}
	return nil
}
