package rpcrdma

import (
	"strconv"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Values of rdma_vers. "Version two" in citations is
// draft-cel-nfsv4-rpcrdma-version-two-00.
const (
	Version1 = 1 // RFC 5666 section 4.1, field 2
	Version2 = 2 // version two section 5
)

// The inline threshold, in bytes, of both directions if the peers have not agreed on more: the largest message,
// including the transport header, that one Send may carry.
const (
	DefaultInline  = 1024 // of version 1: RFC 5666 section 6.1, RFC 8797 section 3.1
	DefaultInline2 = 4096 // of version 2, if the peer is known to support it: version two sections 2.3 and 5
)

// A Range is the versions from Low to High, inclusive.
type Range struct{ Low, High uint32 }

// known returns the versions of r that this package supports. For the zero Range that is version 1.
func (r Range) known() Range {
	if r == (Range{}) {
		return Range{Version1, Version1}
	}
	return Range{max(r.Low, Version1), min(r.High, Version2)}
}

// A Proc is the type of a message, rdma_proc. RFC 5666 section 4.3.
type Proc uint32

// The message types. RFC 5666 section 4.1, field 4; version two section 4.2.
const (
	ProcMsg      Proc = 0 // RDMA_MSG: chunk lists, then an RPC message
	ProcNomsg    Proc = 1 // RDMA_NOMSG: chunk lists; the RPC message is in a chunk
	ProcMsgp     Proc = 2 // RDMA_MSGP: like RDMA_MSG, with padding before long opaques; version 1 only
	ProcDone     Proc = 3 // RDMA_DONE: the read chunks of a reply have been fetched; version 1 only
	ProcError    Proc = 4 // RDMA_ERROR: the request could not be decoded
	ProcOptional Proc = 5 // RDMA_OPTIONAL: an operation of an extension, and perhaps an RPC message; version 2 only
)

// String returns the RFC's spelling.
func (p Proc) String() string {
	switch p {
	case ProcMsg:
		return "RDMA_MSG"
	case ProcNomsg:
		return "RDMA_NOMSG"
	case ProcMsgp:
		return "RDMA_MSGP"
	case ProcDone:
		return "RDMA_DONE"
	case ProcError:
		return "RDMA_ERROR"
	case ProcOptional:
		return "RDMA_OPTIONAL"
	}
	return "RDMA_PROC(" + strconv.FormatUint(uint64(p), 10) + ")"
}

// An ErrCode is the reason in an RDMA_ERROR message. RFC 5666 section 4.3,
// rpc_rdma_errcode; version two section 4.2, rpcrdma2_errcode.
type ErrCode uint32

// The error codes. Version 2 renames the second one.
const (
	ErrVers        ErrCode = 1 // ERR_VERS: version not supported; the message has the range that is
	ErrChunk       ErrCode = 2 // ERR_CHUNK: header or chunk lists do not decode
	ErrBadHeader   ErrCode = 2 // RDMA_ERR_BAD_HEADER: the header does not decode; version 2
	ErrInvalOption ErrCode = 3 // RDMA_ERR_INVAL_OPTION: the operation of an RDMA_OPTIONAL is not supported; version 2
)

// String returns the RFC's spelling, that of version 1 for codes that both versions have.
func (c ErrCode) String() string {
	if c == ErrInvalOption {
		return c.Name(Version2)
	}
	return c.Name(Version1)
}

// Name returns the spelling of version vers; unknown versions use that of version 1.
func (c ErrCode) Name(vers uint32) string {
	switch {
	case c == ErrVers && vers == Version2:
		return "RDMA_ERR_VERS"
	case c == ErrVers:
		return "ERR_VERS"
	case c == ErrBadHeader && vers == Version2:
		return "RDMA_ERR_BAD_HEADER"
	case c == ErrChunk:
		return "ERR_CHUNK"
	case c == ErrInvalOption && vers == Version2:
		return "RDMA_ERR_INVAL_OPTION"
	}
	return "ERR(" + strconv.FormatUint(uint64(c), 10) + ")"
}

// Sizes in bytes. RFC 5666 section 4.3, version two section 4.2; XDR words are four
// bytes.
const (
	FixedSize       = 16 // xid, vers, credit, proc: the same in all versions, section 4.1
	SegmentSize     = 16 // handle, length, offset
	ReadSegmentSize = 20 // position, segment

	MinHeaderSize     = 28 // RDMA_MSG and RDMA_NOMSG without chunks
	MinHeaderSizeMsgp = 36 // RDMA_MSGP without chunks
	DoneSize          = 16 // RDMA_DONE
	ErrVersSize       = 28 // RDMA_ERROR with ERR_VERS
	ErrChunkSize      = 20 // RDMA_ERROR with ERR_CHUNK, RDMA_ERR_BAD_HEADER or RDMA_ERR_INVAL_OPTION
	ErrOtherSize      = 52 // RDMA_ERROR of version 1 with any other code: rdma_extra[8]

	MinOptionalSize = 24 // RDMA_OPTIONAL with an empty rdma_optinfo: rdma_opttype, length

	// MinRPCSize is the minimum length after RDMA_MSG in version 2: the XID and the direction, which distinguishes
	// calls from replies.
	MinRPCSize = 8
)

// A Segment is memory of the peer: Length bytes from Offset in the region identified by Handle. Every value of each
// field is legal on the wire; Offset may be an address, an index from zero, or any other token that its owner
// understands. RFC 5666 sections 2 and 4.3, xdr_rdma_segment.
//
//	0        4        8                 16
//	+--------+--------+-----------------+
//	| handle | length |     offset      |
//	+--------+--------+-----------------+
type Segment struct {
	Handle uint32 // steering tag
	Length uint32 // bytes
	Offset uint64
}

// A ReadSegment is an entry of the read list. Position is where the segment's data belongs: the offset in bytes from
// the XID of the RPC message with nothing removed from it. The entries of a data item have the same position and follow
// each other. RFC 5666 sections 3.4 and 4.3, xdr_read_chunk.
//
//	0          4                                   20
//	+----------+-----------------------------------+
//	| position | segment                           |
//	+----------+-----------------------------------+
type ReadSegment struct {
	Position uint32
	Segment
}

// A WriteChunk is memory for one result, or for a whole reply: segments that are filled in
// order, each completely before the next. In a reply the lengths are the number of bytes
// written. RFC 5666 sections 3.6 and 4.3, xdr_write_chunk.
//
//	0       4
//	+-------+-----------+-----------+- - -
//	| count | segment 0 | segment 1 |
//	+-------+-----------+-----------+- - -
type WriteChunk []Segment

// Length returns the sum of the segment lengths in bytes. It cannot overflow: that
// would take four billion segments.
func (c WriteChunk) Length() uint64 {
	var sum uint64
	for i := range c {
		sum += uint64(c[i].Length)
	}
	return sum
}

// ReadListSize returns the encoded size in bytes of a read list of n segments,
// with its end mark.
func ReadListSize(n int) int { return n*(4+ReadSegmentSize) + 4 }

// WriteChunkSize returns the encoded size, in bytes, of a write chunk of n segments in the write list or as the reply
// chunk, including the discriminant that precedes it. The write list's end mark, or an absent reply chunk, takes
// another word, which [MinHeaderSize] includes.
func WriteChunkSize(n int) int { return 4 + 4 + n*SegmentSize }

// OpaquePad returns how many bytes of padding, 0 to align-1, an RDMA_MSGP message has between the length word of an
// opaque and its data, so that the data begins at a multiple of align. RFC 5666 section 3.9.
//
// pos is the offset of the byte after the length word, counted from the XID in the RPC message as it was sent,
// including earlier padding. length is the opaque's length, and align and thresh are the message's rdma_align and
// rdma_thresh. Opaques shorter than thresh are not padded. The RFC contradicts itself about opaques of exactly thresh
// bytes; here they are padded. An align of 0 or 1 means no padding.
//
// A receiver must check that the padding ends within the message. Padding does not count for the positions of read
// segments.
func OpaquePad(pos, length, align, thresh uint32) uint32 {
	return xdr.Padding{Align: align, Thresh: thresh}.Before(pos, length)
}
