package rpcrdma

import "fmt"

// A HeaderError says why a message was refused, and how to answer it.
//
// Code is the error code of the RDMA_ERROR answer; 0 means that the message must be dropped without an answer.
// RDMA_ERROR answers requests only: a receiver that knows the message to be a reply drops it regardless of Code (RFC
// 5666 section 4.2).
type HeaderError struct {
	XID     uint32 // of the message, if HaveXID
	HaveXID bool   // false if the message ended within its fixed fields
	Vers    uint32 // rdma_vers of the message; the answer copies it
	Proc    Proc   // rdma_proc of the message
	Offset  int    // bytes from the start of the message to the error
	Code    ErrCode
	Reason  string // a phrase for a log

	Versions Range // ErrVers: the versions that would have been accepted
}

var _ error = (*HeaderError)(nil)

func (e *HeaderError) Error() string {
	if !e.HaveXID {
		return fmt.Sprintf("rpcrdma: malformed message: byte %d: %s", e.Offset, e.Reason)
	}
	return fmt.Sprintf("rpcrdma: malformed %v xid 0x%08x version %d: byte %d: %s", e.Proc, e.XID, e.Vers, e.Offset, e.Reason)
}

// Answer sets h to the RDMA_ERROR that answers the message, with credit as the grant. It
// returns false, and leaves h unchanged, if the message must be dropped. An ERR_VERS names the
// range in e.Versions, and version 1 if that is zero.
func (e *HeaderError) Answer(h *Header, credit uint32) bool {
	if e.Code == 0 || !e.HaveXID {
		return false
	}
	*h = Header{XID: e.XID, Vers: e.Vers, Credit: credit, Proc: ProcError, Err: e.Code}
	if e.Code == ErrVers {
		r := e.Versions.known()
		h.VersLow, h.VersHigh = r.Low, r.High
	}
	return true
}
