package plan

import (
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// How a reply is put on the wire:
//
//	an item that may be a chunk, and a write chunk exists for it:   Written there
//	the rest fits inline                                            RDMA_MSG
//	else, and there is a reply chunk                                Written there, RDMA_NOMSG
//	else, and both ends and the program have RFC 5666 enabled       lent in read chunks
//	else, or a chunk is too short                                   an error
//
// The header returns the chunks of the call with the lengths written.

// A Reply is an RPC reply message that has not been placed yet.
type Reply struct {
	Transport  int // bytes of the transport header, with the call's chunks
	Header     int // bytes of the RPC header
	Results    int // bytes of the results without items
	Inline     int // inline threshold: the longest Send, in bytes
	Writes     int // write chunks of the call
	ReplyChunk bool
	// Lends: the reply may have read chunks (RFC 5666 section 3.4).
	Lends bool
}

// A ReplyKind says where the RPC message of a reply goes.
type ReplyKind uint8

const (
	ReplyInline  ReplyKind = iota // RDMA_MSG
	ReplyChunk                    // RDMA_NOMSG, in the reply chunk
	ReplyLent                     // read chunks: see LendReply
	ReplyTooLong                  // nowhere
)

// Moved returns how many of n items go to write chunks.
func (r *Reply) Moved(n int) int { return min(n, r.Writes) }

// Place decides where the RPC message goes. inline is the length of the items, with
// their padding, that are not in write chunks.
func (r *Reply) Place(inline int) ReplyKind {
	switch {
	case r.Transport+r.Header+r.Results+inline <= r.Inline:
		return ReplyInline
	case r.ReplyChunk && r.Transport <= r.Inline:
		return ReplyChunk
	case r.Lends:
		return ReplyLent
	}
	return ReplyTooLong
}

// A LentKind says how a reply is lent in read chunks.
type LentKind uint8

const (
	LentItems   LentKind = iota // the items, at their positions; the rest goes inline
	LentWhole                   // all of it, in a position-zero chunk
	LentNowhere                 // not even the read list fits
)

// Lend decides how a reply with n items is lent in read chunks. moved of the items are already in write chunks, which
// leaves no positions to count by.
func (r *Reply) Lend(n, moved int) LentKind {
	list := func(k int) int { return rpcrdma.ReadListSize(k) - rpcrdma.ReadListSize(0) }
	switch {
	case n > 0 && moved == 0 && r.Transport+list(n)+r.Header+r.Results <= r.Inline:
		return LentItems
	case r.Transport+list(1) <= r.Inline:
		return LentWhole
	}
	return LentNowhere
}

// Inflate adds the XDR padding of n bytes of data to the length of the last used segment of a returned chunk, if that
// has room (RFC 5666 section 3.7).
func Inflate(returned, offered rpcrdma.WriteChunk, n int) {
	for i := len(returned) - 1; i >= 0; i-- {
		if returned[i].Length > 0 {
			returned[i].Length = uint32(min(uint64(returned[i].Length)+uint64(xdr.Pad(n)), uint64(offered[i].Length)))
			return
		}
	}
}

// Unused appends a copy of chunk with all lengths zero, the form in which a chunk is returned before anything is
// written to it.
func Unused(dst, chunk rpcrdma.WriteChunk) rpcrdma.WriteChunk {
	for _, s := range chunk {
		s.Length = 0
		dst = append(dst, s)
	}
	return dst
}

// Returned compares a chunk in a reply with the one that was offered: it must have the same segments, with lengths that
// are at most the same. It returns the number of bytes that the peer says it has written. An unused chunk may have lost
// its segments. A length may include XDR padding (RFC 5666 section 3.7).
func Returned(got, offered rpcrdma.WriteChunk) (n int, ok bool) {
	if len(got) == 0 {
		return 0, true
	}
	if len(got) != len(offered) {
		return 0, false
	}
	for i, g := range got {
		o := offered[i]
		if g.Handle != o.Handle || g.Offset != o.Offset || uint64(g.Length) > (uint64(o.Length)+3)&^3 {
			return 0, false
		}
		n += int(g.Length)
	}
	return n, true
}

// OnlyHandle returns the handle of a call's chunks, if they all have the same one: a reply may invalidate it (RFC 8797
// section 4.1).
func OnlyHandle(h *rpcrdma.Header) (handle uint32, ok bool) {
	one := func(other uint32) bool {
		if !ok {
			handle, ok = other, true
		}
		return handle == other
	}
	for i := range h.Reads {
		if !one(h.Reads[i].Handle) {
			return 0, false
		}
	}
	for _, chunk := range h.Writes {
		for i := range chunk {
			if !one(chunk[i].Handle) {
				return 0, false
			}
		}
	}
	for i := range h.Reply {
		if !one(h.Reply[i].Handle) {
			return 0, false
		}
	}
	return handle, ok
}
