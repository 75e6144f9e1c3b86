package rpcbind

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotRegistered means that the program is not registered. RFC 1833 sections 2.2.1 and
	// 3.2: an empty address, port 0.
	ErrNotRegistered = errors.New("not registered")

	// ErrRefused means that rpcbind answered SET or UNSET with FALSE: SET if there is a
	// mapping to another address, UNSET if there is no mapping or it has another owner. RFC
	// 1833 section 2.2.1.
	ErrRefused = errors.New("refused")
)

// An OpError is a failed operation of a Client.
type OpError struct {
	Op     string // "SET", "UNSET", "GETADDR" or "DUMP"
	Server string // rpcbind's HOST:PORT

	// The arguments, zero with DUMP.
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

// refused explains a result of FALSE.
func (e *OpError) refused() string {
	if e.Op == procName(procUnset) {
		return "refused: not registered, or registered by another owner"
	}
	return "refused: another address is already registered"
}

// Unwrap returns the reason.
func (e *OpError) Unwrap() error { return e.Err }

// A VersionError means that rpcbind supports only version 2, the port mapper, which does not
// have the netid. Err is its reply to version 3.
type VersionError struct {
	Netid Netid
	Err   error
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("the server supports only version 2, which has tcp and udp, not %.60s", e.Netid)
}

// Unwrap returns Err.
func (e *VersionError) Unwrap() error { return e.Err }

// A BadReplyError is a malformed reply.
type BadReplyError struct {
	Err error // such as a *xdr.DecodeError or an *AddrError
}

func (e *BadReplyError) Error() string { return "malformed reply: " + e.Err.Error() }

// Unwrap returns Err.
func (e *BadReplyError) Unwrap() error { return e.Err }
