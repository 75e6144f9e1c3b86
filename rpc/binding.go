package rpc

import (
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Procedure identifies one remote procedure by the numbers Prog, Vers and Proc of RFC 5531 section 8.
type Procedure struct {
	Prog, Vers, Proc uint32
}

// A Range is the place in an XDR stream of the data of one opaque or string item, without the length word before it and
// the padding after it.
type Range struct {
	Offset int // of the first data byte, from the start of the stream
	Length int // in bytes, without padding
}

// End returns the offset after the item's padding.
func (r Range) End() int { return r.Offset + xdr.Padded(r.Length) }

// A Binding is an upper-layer binding (RFC 8166 section 6, RFC 5666 section 3.4): which data items of a protocol may
// travel as chunks, and how long its results can be. The transport never guesses this from sizes.
//
// Both methods see whole XDR streams, which may come from a hostile peer. If they do not understand a stream, they
// return no items.
type Binding interface {
	// Call examines the encoded arguments of a call. It returns the arguments that may be read chunks, in stream order,
	// appended to items[:0], and bounds on the reply.
	Call(p Procedure, args []byte, items []Range) (eligible []Range, reply ReplyBounds)

	// Reply examines the encoded results of a successful reply. It returns the ranges that may be write chunks, in the
	// order in which the binding assigns them to the write list, appended to items[:0]. If reduced is set, the items'
	// data and padding have already been removed from results: a range's offset is then the place after the item's
	// length word, and its length is the value of that word.
	Reply(p Procedure, results []byte, reduced bool, items []Range) []Range
}

// ReplyBounds bounds the results of a call.
type ReplyBounds struct {
	// MaxResults bounds the encoded results in bytes, without the data of the items below. Zero means that the results
	// are small.
	MaxResults int
	// Items are the maximum sizes, in bytes, of the results that may be write chunks, in write list order.
	Items [4]int
	// NumItems is the number of Items in use.
	NumItems int
}

// An Idempotence is a Binding that knows which procedures are idempotent: a repeated call may be executed again because
// it changes nothing further. See Program.Idempotent.
type Idempotence interface {
	Idempotent(p Procedure) bool
}
