package rpcbind

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotRegistered says that rpcbind does not know such a program. RFC 1833
	// sections 2.2.1 and 3.2: an empty address, port 0.
	ErrNotRegistered = errors.New("not registered")

	// ErrRefused says that rpcbind answered SET or UNSET with FALSE: there is a
	// mapping with another address already; there is none, or it is somebody
	// else's. RFC 1833 section 2.2.1.
	ErrRefused = errors.New("refused")
)

// An OpError says which operation failed at which rpcbind.
type OpError struct {
	Op     string // "SET", "UNSET", "GETADDR" or "DUMP"
	Server string // rpcbind's HOST:PORT

	// What the question was about, zero with DUMP.
	Prog, Vers uint32
	Netid      Netid

	Err error
}

func (e *OpError) Error() string {
	about := ""
	if e.Prog != 0 {
		about = fmt.Sprintf(" for program %d version %d", e.Prog, e.Vers)
		if e.Netid != "" {
			about += fmt.Sprintf(" over %.60s", e.Netid)
		}
	}
	reason := strings.TrimPrefix(e.Err.Error(), "rpcbind: ")
	if e.Err == ErrRefused {
		reason = e.refused()
	}
	return fmt.Sprintf("rpcbind: %s at %s%s: %s", e.Op, e.Server, about, reason)
}

// refused says what a FALSE means.
func (e *OpError) refused() string {
	if e.Op == procUnset.String() {
		return "refused: it is not registered, or somebody else's"
	}
	return "refused: another address is registered for it already"
}

// Unwrap returns the reason.
func (e *OpError) Unwrap() error { return e.Err }

// A VersionError says that rpcbind is too old for a netid: it is the port mapper,
// which knows tcp and udp alone. Err is what it said to version 3.
type VersionError struct {
	Netid Netid
	Err   error
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("it has version 2 only, which knows tcp and udp, not %.60s", e.Netid)
}

// Unwrap returns what rpcbind said.
func (e *VersionError) Unwrap() error { return e.Err }

// A ReplyError says that rpcbind, or whoever is there in its place, sent an answer
// that makes no sense.
type ReplyError struct {
	Err error // such as a *xdr.DecodeError or an *AddrError
}

func (e *ReplyError) Error() string { return "the answer makes no sense: " + e.Err.Error() }

// Unwrap returns what is wrong with it.
func (e *ReplyError) Unwrap() error { return e.Err }
