package rpcrdma

import (
	"math"
	"strconv"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// OptProperties is the rdma_opttype of the properties operation, an extension of version 2 with which peers exchange
// what private data carries in version 1. docs/protocol.md of this project specifies it.
const OptProperties = 0x52500001

// The RPC program with a procedure for the same exchange: the offer is its arguments, and the answer its results. A
// client tries it first, because every server answers calls. The number is in the user-defined range of RFC 5531
// section 8.3. docs/protocol.md, As a call.
const (
	PropProgram      = 0x20525001 // RDMA_PROP_PROG
	PropVersion      = 1          // RDMA_PROP_V1
	ProcPropExchange = 1          // RDMA_PROP_EXCHANGE
)

// Sizes of an rpcrdma2_prop_info in bytes.
const (
	PropertiesSize = 16 // RDMA_PROP_OFFER, RDMA_PROP_ACCEPT
	PropRejectSize = 8  // RDMA_PROP_REJECT
)

// A PropDir is the kind of a properties message, rdma_dir. docs/protocol.md, XDR.
type PropDir uint32

// The messages of the operation. docs/protocol.md, XDR.
const (
	PropOffer  PropDir = 0 // RDMA_PROP_OFFER: the client's properties, and a request for the server's
	PropAccept PropDir = 1 // RDMA_PROP_ACCEPT: the server's properties; both are now in effect
	PropReject PropDir = 2 // RDMA_PROP_REJECT: nothing changes
)

// String returns the specification's spelling.
func (d PropDir) String() string {
	switch d {
	case PropOffer:
		return "RDMA_PROP_OFFER"
	case PropAccept:
		return "RDMA_PROP_ACCEPT"
	case PropReject:
		return "RDMA_PROP_REJECT"
	}
	return "RDMA_PROP_DIR(" + strconv.FormatUint(uint64(d), 10) + ")"
}

// A PropReason is the reason why an offer was rejected, rdma_reason. Unknown reasons are possible. docs/protocol.md,
// Errors.
type PropReason uint32

// Reasons for a rejection. docs/protocol.md, Errors.
const (
	PropMalformed PropReason = 1 // RDMA_PROP_MALFORMED: the offer does not decode, or has invalid sizes
	PropNotNow    PropReason = 2 // RDMA_PROP_NOT_NOW: repeated, from the wrong end, or at the wrong time
)

// String returns the specification's spelling.
func (r PropReason) String() string {
	switch r {
	case PropMalformed:
		return "RDMA_PROP_MALFORMED"
	case PropNotNow:
		return "RDMA_PROP_NOT_NOW"
	}
	return "RDMA_PROP_REASON(" + strconv.FormatUint(uint64(r), 10) + ")"
}

// propRemoteInvalidation is RDMA_PROP_REMOTE_INVAL, the only defined bit of rdma_flags.
const propRemoteInvalidation = 1

// Properties is the rdma_optinfo of the properties operation, or the arguments or results of the procedure. Dir
// determines which fields are used, as Proc does in a [Header]. docs/protocol.md, XDR.
//
//	0     4           8           12      16
//	+-----+-----------+-----------+-------+
//	| dir | send size | recv size | flags |  RDMA_PROP_OFFER, RDMA_PROP_ACCEPT
//	+-----+-----------+-----------+-------+
//	| dir | reason    |                      RDMA_PROP_REJECT
//	+-----+-----------+
type Properties struct {
	Dir PropDir

	SendSize uint32 // largest message that the sender will Send, in bytes
	RecvSize uint32 // largest message that it can receive, in bytes

	// RemoteInvalidation means that the client permits, or the server supports, replies with remote invalidation. They
	// are used if both set it.
	RemoteInvalidation bool

	Reason PropReason // RDMA_PROP_REJECT
}

// AppendProperties appends p as an rpcrdma2_prop_info of [PropertiesSize] or [PropRejectSize]
// bytes. Sizes are not adjusted. It panics if p.Dir is unknown.
func AppendProperties(b []byte, p Properties) []byte {
	switch p.Dir {
	case PropOffer, PropAccept:
		var flags uint32
		if p.RemoteInvalidation {
			flags |= propRemoteInvalidation
		}
		return appendWords(b, uint32(p.Dir), p.SendSize, p.RecvSize, flags)
	case PropReject:
		return appendWords(b, uint32(p.Dir), uint32(p.Reason))
	}
	panic("rpcrdma: the properties operation has no " + p.Dir.String())
}

// ConsumeProperties reads b, which must be exactly one rpcrdma2_prop_info. It ignores undefined flags. The error is an
// *xdr.DecodeError; p then holds what was decoded before the error, with a Dir of RDMA_PROP_OFFER if nothing was. A
// malformed offer is rejected as [PropMalformed], and a malformed answer is dropped. Sizes below [DefaultInline2], and
// sizes that are not a multiple of four, are errors.
func ConsumeProperties(b []byte) (p Properties, err error) {
	d := xdr.NewDecoder(b)
	p.Dir = PropDir(d.Uint32())
	switch p.Dir {
	case PropOffer, PropAccept:
		p.SendSize, p.RecvSize = d.Uint32(), d.Uint32()
		p.RemoteInvalidation = d.Uint32()&propRemoteInvalidation != 0
	case PropReject:
		p.Reason = PropReason(d.Uint32())
	default:
		return p, &xdr.DecodeError{Offset: 0, What: "rdma_dir is unknown"}
	}
	if err := d.End(); err != nil {
		return p, err
	}
	if p.Dir != PropReject {
		switch {
		case !validSize(p.SendSize):
			return p, &xdr.DecodeError{Offset: 4, What: "rdma_send_size is below 4096, or no multiple of 4"}
		case !validSize(p.RecvSize):
			return p, &xdr.DecodeError{Offset: 8, What: "rdma_recv_size is below 4096, or no multiple of 4"}
		}
	}
	return p, nil
}

func validSize(size uint32) bool { return size >= DefaultInline2 && size%xdr.Unit == 0 }

// SendInline returns the inline threshold, in bytes, for messages from the peer described by p to the one described by
// to, after the offer has been accepted. docs/protocol.md, Use.
func (p Properties) SendInline(to Properties) int {
	return int(min(p.SendSize, to.RecvSize, math.MaxInt32))
}

func appendWords(b []byte, v ...uint32) []byte {
	for _, w := range v {
		b = xdr.AppendUint32(b, w)
	}
	return b
}
