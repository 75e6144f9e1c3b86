// Package rpcrdma implements the wire format of RPC-over-RDMA version 1, RFC 5666, and version 2,
// draft-cel-nfsv4-rpcrdma-version-two-00: the transport header that precedes every RPC message, and the private data
// that peers exchange when they connect, RFC 8797. [ConfigCall] and [ConfigReply] are the arguments and results of the
// Connection Configuration Protocol.
//
// A [Header] has the transaction id, the credits, and the lists of memory segments ([Segment]) that the peer may read
// and write. [AppendHeader] encodes it. [ConsumeHeader] decodes and validates it; the RPC message follows it.
// [HeaderError] describes a malformed header and the answer for its sender.
//
// # Usage
//
// Send:
//
//	b = rpcrdma.AppendHeader(b, &rpcrdma.Header{
//		XID: xid, Vers: rpcrdma.Version1, Credit: 32, Proc: rpcrdma.ProcMsg,
//	})
//	b = append(b, call...)
//
// Receive, with h reused for all messages:
//
//	n, err := rpcrdma.ConsumeHeader(b, &h, nil)
//	if err != nil {
//		var bad *rpcrdma.HeaderError
//		errors.As(err, &bad) // always true
//		return answer(bad)
//	}
//	call := b[n:]
//
// # Versions
//
// Version 2 has the lists of version 1, and RDMA_OPTIONAL in place of RDMA_MSGP and RDMA_DONE: an operation of an
// extension, with or without an RPC message. This package defines one extension, [Properties]. The Vers of a Header
// selects its encoding. [Limits] selects the versions that are accepted, by default only version 1. An RDMA_ERROR is
// accepted in any version, because its sender may not support ours.
//
// # The lists on the wire
//
// Handle, Length and Offset make a segment, HLOO; P is the position of a read segment; a count N precedes the segments
// of a write chunk. The lists are linked: a word 1 precedes every entry, and a word 0 ends the list. The reply chunk is
// optional: 0, or 1 and a chunk.
//
//	read list    1 PHLOO  1 PHLOO ... 0
//	write list   1 N HLOO HLOO ...  1 N HLOO HLOO ... 0
//	reply chunk  1 N HLOO HLOO ...  or 0
//
// Without any chunk that is 0 0 0, and a header of [MinHeaderSize] bytes.
//
// # Ownership
//
// OptInfo is a view of the message, and is valid as long as the message is. Everything else in a Header is copied, so
// the message may be released at once. ConsumeHeader reuses the slices in the Header up to their capacity, and
// allocates only what is missing: do not pass it a Header with slices that have another owner.
//
// # Limitations
//
// The codec checks the syntax of a header, not its semantics. It leaves to the transport to check that an RPC message
// with the same XID follows RDMA_MSG and RDMA_MSGP (in version 2 it checks that at least [MinRPCSize] bytes do), the
// operation of RDMA_OPTIONAL, that a call with RDMA_NOMSG has a read chunk at position zero, that positions ascend and
// lie within the message, that a reply returns the chunks of its call, and what any handle or offset means. Offsets are
// tokens of the peer; all values are legal.
package rpcrdma
