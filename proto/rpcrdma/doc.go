// Package rpcrdma is the wire form of RPC-over-RDMA version 1, RFC 5666, and version 2,
// draft-cel-nfsv4-rpcrdma-version-two-00: the transport header that goes in front of
// every RPC message, and the private data that peers exchange when they connect, RFC
// 8797. [ConfigCall] and [ConfigReply] are the arguments and results of the Connection
// Configuration Protocol.
//
// A [Header] is what a message says about itself: its transaction, its credits,
// and the lists of memory ([Segment]) that the peer may read from and write to.
// [AppendHeader] writes it, [ConsumeHeader] reads and validates it, and what
// follows it is the RPC message. [HeaderError] says what a peer is owed for a bad
// one.
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
// Receive, with h kept from message to message:
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
// Version 2 has the lists of version 1, and RDMA_OPTIONAL in place of RDMA_MSGP and
// RDMA_DONE: an operation of an extension, with or without an RPC message. One is
// defined here, [Properties]. The Vers of a Header decides how it is written; which
// versions are read is up to [Limits], and is version 1 alone unless that says more.
// An RDMA_ERROR is read whatever its version, as its sender may not know ours.
//
// # The lists on the wire
//
// Handle, Length and Offset make a segment, HLOO; P is the position of a read
// segment; a count N stands in front of the segments of a write chunk. The lists
// are linked: a word 1 precedes every entry, a word 0 ends them. The reply chunk is
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
// A Header holds one view, OptInfo, which is valid as long as the message is. All else
// is copied out of the message, which may be released at once. ConsumeHeader writes into the slices that it finds in the
// Header, up to their capacity, and allocates only what is missing; do not hand it
// a Header whose slices belong to someone else.
//
// # Limitations
//
// The codec judges the grammar of a header, not its sense. Left to the transport:
// that an RPC message with the same XID follows RDMA_MSG and RDMA_MSGP (in version 2
// there are [MinRPCSize] bytes at least), what RDMA_OPTIONAL is about, that a
// call with RDMA_NOMSG has a read chunk at position zero, that positions ascend and
// lie within the message, that a reply returns the chunks of its call, and what any
// handle or offset means. Offsets are tokens of the peer; all values are legal.
package rpcrdma
