package rpc

import (
	"fmt"
	"math"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A ResultDecoder decodes the results of a call. It is an [xdr.Decoder] with an additional method for results that may
// be in write chunks.
type ResultDecoder struct {
	xdr.Decoder
	call *Call
	next int // in WriteItems
}

// Decoder returns a decoder for the results of a successful call.
func (call *Call) Decoder() ResultDecoder {
	d := ResultDecoder{Decoder: xdr.NewDecoder(call.Results), call: call}
	if call.MaxDecoded != 0 {
		d.LimitMemory(call.MaxDecoded)
	}
	return d
}

// Item decodes the next result that has a WriteItem, and returns its data, which is at the start of the item's Buf:
// placed there by the server's adapter, or copied from the message if it came inline. Call Item for the results in the
// order of WriteItems. Data longer than Buf is an error of the decoder.
//
// For foreign memory it returns nil; the item's N is the length of the data. Data that came inline is an error of the
// decoder, which unwraps to a [*ForeignError].
func (d *ResultDecoder) Item() []byte {
	if d.next == len(d.call.WriteItems) {
		d.Fail("a result without a WriteItem")
		return nil
	}
	w := &d.call.WriteItems[d.next]
	d.next++
	room := w.Len()
	if len(w.Buf) > 0 && &w.Buf[0] == &d.call.nothing[0] {
		room = 0
	}
	n := int(min(d.Uint32(), math.MaxInt32))
	if d.Err() == nil && n > room {
		d.Fail(fmt.Sprintf("opaque of %d bytes, its buffer has %d", n, room))
	}
	switch {
	case w.Chunked:
	case w.Foreign == nil:
		return w.Buf[:copy(w.Buf[:room], d.FixedOpaque(n))] // nil after an error
	case d.Err() == nil && n > 0:
		d.FailWith(&ForeignError{Result: true, Index: d.next - 1, Len: n, Reason: "the server has sent them inline, not through the write chunk"})
		fallthrough
	default:
		return nil
	}
	// A server may write the XDR padding, too (RFC 8166 section 3.4.6.2).
	if d.Err() == nil && (n > w.N || w.N != n && w.N != min(xdr.Padded(n), w.Len())) {
		d.Fail("a length that is not that of the write chunk")
	}
	if d.Err() != nil || w.Foreign != nil {
		return nil
	}
	return w.Buf[:n]
}
