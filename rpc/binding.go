package rpc

import (
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Procedure names one remote procedure: the numbers Prog, Vers and Proc of RFC 5531 section 8.
type Procedure struct {
	Prog, Vers, Proc uint32
}

// A Range is a part of an XDR stream: the data of one opaque or string item,
// without the length word before it and the padding after it.
type Range struct {
	Offset int // of the first data byte, from the start of the stream
	Length int // in bytes, without padding
}

// End is the offset after the item's padding.
func (r Range) End() int { return r.Offset + xdr.Padded(r.Length) }

// A Binding is an upper-layer binding (RFC 8166 section 6, RFC 5666 section
// 3.4): which data items of a protocol may travel as chunks, and how long its
// results can get. The transport never guesses this from sizes.
//
// Both methods see whole XDR streams that may come from a hostile peer: on
// anything they do not understand they return no items.
type Binding interface {
	// Call looks at the encoded arguments of a call. items are the arguments
	// that may be read chunks, in stream order, appended to items[:0].
	Call(p Procedure, args []byte, items []Range) (eligible []Range, reply ReplyBounds)

	// Reply looks at the encoded results of a successful reply. The returned
	// ranges may be write chunks, in the order in which the binding assigns
	// them to the write list; they are appended to items[:0]. With reduced
	// set the items' data and padding have been taken out of results already:
	// a range's offset is then the place after the item's length word, and
	// its length what that word says.
	Reply(p Procedure, results []byte, reduced bool, items []Range) []Range
}

// ReplyBounds bounds the results of a call.
type ReplyBounds struct {
	// MaxResults bounds the encoded results in bytes, without the data of
	// the items below. Zero means that they are small.
	MaxResults int
	// Items are the largest sizes of the results that may be write chunks,
	// in write list order, in bytes.
	Items [4]int
	// NumItems is how many of Items are in use.
	NumItems int
}

// An Idempotence is a Binding that knows which procedures may be executed again for a
// call that is sent again, as nothing changes by it. See Program.Idempotent.
type Idempotence interface {
	Idempotent(p Procedure) bool
}
