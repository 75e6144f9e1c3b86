package plan

import (
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// How a call is put on the wire:
//
//	the reply is sure to fit inline        nothing is offered
//	else                                   a write chunk for each write item,
//	  and what is left may not fit         a reply chunk
//	the call fits inline                   RDMA_MSG
//	it does without read items             RDMA_MSG, and a read chunk for each
//	else                                   RDMA_NOMSG, all of it in read chunks
//
// Linux servers accept read chunks at only one position. So of several items the largest goes to a chunk and the others
// stay inline, or everything is in a position-zero chunk. The segments of that chunk refer to the caller's memory, too:
// only the bytes between the items are copied. A server that accepts all chunks gets one for each item, even in
// addition to a position-zero chunk.
//
// Data in foreign memory is never copied: the item goes to a chunk of its own, or is a piece of the position-zero
// chunk.

// Chunks are the chunks that the messages of a connection may have.
type Chunks uint8

const (
	// NoChunks: calls, and their replies, have none (RFC 8167 section 5.3).
	NoChunks Chunks = iota
	// NoReads: calls have no read chunks (RFC 5666 section 6.2).
	NoReads
	// OnePosition: the read list of a call has one position.
	OnePosition
	// AnyChunks: all that RFC 8166 allows.
	AnyChunks
)

// Terms are the limits on the messages of a connection.
type Terms struct {
	Send, Recv int // inline thresholds: the longest Sends of either end, in bytes
	Message    int // the longest RPC message, in bytes
	Segment    int // the longest segment, in bytes
	Chunks     Chunks
	// Protected: the credential protects the RPC message as a whole, so it must not be taken apart (RFC 5666 section
	// 11).
	Protected bool
}

// An Item is an argument that may be a read chunk.
type Item struct {
	Offset int // after its length word, from the start of the arguments without items
	Len    int // bytes of data, without padding
	// Foreign: only the adapter can reach the data. It goes in a read chunk, whatever its length.
	Foreign bool
}

// An ItemSet selects the items that go to chunks of their own: the item with that number, or none, or all.
type ItemSet int

const (
	NoItems  ItemSet = -1
	AllItems ItemSet = -2
)

// Has reports whether item i goes to a chunk of its own.
func (m ItemSet) Has(i int) bool { return m == AllItems || int(m) == i }

// A Call is an RPC call message that has not been placed yet.
type Call struct {
	Transport int // bytes of the transport header, with the chunks offered for the reply
	Header    int // bytes of the RPC header; 0 if Args begin with it
	Args      int // bytes of the arguments without items
	Items     []Item
}

// Size returns the length of the whole RPC message.
func (c *Call) Size() int {
	n := c.Header + c.Args
	for i := range c.Items {
		n += xdr.Padded(c.Items[i].Len)
	}
	return n
}

// Ordered reports whether the items are in stream order, and within the stream.
func (c *Call) Ordered() bool {
	from := 0
	for i := range c.Items {
		if c.Items[i].Offset < from || c.Items[i].Offset > c.Args {
			return false
		}
		from = c.Items[i].Offset
	}
	return true
}

// A Placement is where the parts of a call go.
type Placement struct {
	Proc rpcrdma.Proc // RDMA_MSG, RDMA_MSGP or RDMA_NOMSG
	// Chunks are the items that go to read chunks of their own. With RDMA_NOMSG that is no item, if the whole message
	// is in the position-zero chunk, or all.
	Chunks ItemSet
}

// A Padding describes the padding of RDMA_MSGP calls (RFC 5666 section 3.9). The zero value turns it
// off.
type Padding struct {
	Align  int // bytes; the data of items begins at a multiple of Align
	Thresh int // bytes; shorter items are not padded
}

// Most returns the most padding that a call can need, 0 if it needs none: an argument that is not padded must be
// shorter than any that is, or the receiver would look for padding there.
func (p Padding) Most(c *Call) (n int) {
	if p.Align <= 1 || c.Header == 0 || c.Args >= p.Thresh {
		return 0
	}
	for i := range c.Items {
		if c.Items[i].Len >= p.Thresh {
			n += p.Align - 1
		}
	}
	return n
}

// PlaceCall decides where the parts of a call go.
func PlaceCall(c *Call, t *Terms, pad Padding) (Placement, *SizeProblem) {
	size, foreign := c.Size(), c.foreign()
	if size > t.Message {
		return Placement{}, &SizeProblem{"the call message, which Config.MaxMessage bounds,", size, t.Message}
	}
	room := t.Send - c.Transport
	if size <= room && foreign == 0 {
		if n := pad.Most(c); n > 0 && size+n+8 <= room {
			return Placement{rpcrdma.ProcMsgp, NoItems}, nil
		}
		return Placement{rpcrdma.ProcMsg, NoItems}, nil
	}
	switch t.Chunks {
	case NoChunks:
		return Placement{}, &SizeProblem{"the call message, which may have no chunks,", c.Transport + size, t.Send}
	case NoReads:
		return Placement{}, &SizeProblem{"the call message, which may have no read chunks,", c.Transport + size, t.Send}
	}
	own := c.reducible(t)
	if own != AllItems && foreign > 1 {
		own = NoItems // they are pieces of the position-zero chunk
	}
	rest, list := size, 0
	for i := range c.Items {
		if own.Has(i) {
			rest -= xdr.Padded(c.Items[i].Len)
			list += segments(c.Items[i].Len, t.Segment)
		}
	}
	if rest < size && rest+rpcrdma.ReadListSize(list)-rpcrdma.ReadListSize(0) <= room {
		return Placement{rpcrdma.ProcMsg, own}, nil
	}
	if own != AllItems {
		own = NoItems
	}
	return Placement{rpcrdma.ProcNomsg, own}, nil
}

// reducible returns the items that the server accepts as chunks of their own, with an inline message.
func (c *Call) reducible(t *Terms) ItemSet {
	switch {
	case t.Protected:
		return NoItems
	case t.Chunks == AnyChunks:
		return AllItems
	}
	most := NoItems
	for i := range c.Items {
		it := &c.Items[i]
		if most == NoItems || it.Foreign && it.Len > 0 || !c.Items[most].Foreign && it.Len > c.Items[most].Len {
			most = ItemSet(i)
		}
	}
	return most
}

// foreign returns the number of items in memory that only the adapter can reach.
func (c *Call) foreign() (n int) {
	for i := range c.Items {
		if c.Items[i].Foreign && c.Items[i].Len > 0 {
			n++
		}
	}
	return n
}

// A Piece is a part of a call that is in a read chunk: an item, or a part of the stream without the items.
type Piece struct {
	Position int // in the message before chunks were taken out
	Item     int // -1: part of the stream
	From, To int // of the stream
}

// Stream describes how the stream of an RDMA_NOMSG call is built: padded reports whether it contains the padding of the
// items, which are in the same chunk.
func (c *Call) Stream(p Placement) (size int, padded bool) {
	size = c.Header + c.Args
	if p.Chunks == AllItems {
		return size, false
	}
	for i := range c.Items {
		size += xdr.Pad(c.Items[i].Len)
	}
	return size, true
}

// Pieces appends the pieces of a placed call, in the order of its read list.
func (c *Call) Pieces(dst []Piece, p Placement) []Piece {
	long := p.Proc == rpcrdma.ProcNomsg
	switch {
	case long && p.Chunks != AllItems:
		return c.interleave(dst)
	case long:
		size, _ := c.Stream(p)
		dst = append(dst, Piece{0, -1, 0, size})
	}
	pos := c.Header
	for i := range c.Items {
		it := &c.Items[i]
		if p.Chunks.Has(i) && it.Len > 0 {
			dst = append(dst, Piece{Position: pos + it.Offset, Item: i})
		}
		pos += xdr.Padded(it.Len)
	}
	return dst
}

// interleave appends the pieces of a message that is one position-zero chunk: items and the parts between them in turn.
func (c *Call) interleave(dst []Piece) []Piece {
	from := 0
	stream := func(to int) {
		if to > from {
			dst = append(dst, Piece{0, -1, from, to})
			from = to
		}
	}
	at := c.Header // where the arguments begin in the stream, shifted by the padding in it
	for i := range c.Items {
		it := &c.Items[i]
		if it.Len == 0 {
			continue
		}
		stream(at + it.Offset)
		dst = append(dst, Piece{0, i, 0, 0})
		at += xdr.Pad(it.Len)
	}
	stream(at + c.Args)
	return dst
}

// Results are the bounds of the reply to a call.
type Results struct {
	Header int   // bytes of the RPC header, at most
	Max    int   // bytes of the results without items, at most
	Items  []int // bytes of the results that may be write chunks, at most
	// Foreign: only the adapter can reach the memory of one of them, so they must be write chunks.
	Foreign bool
}

// An Offer is the chunks that a call offers for its reply.
type Offer struct {
	Writes bool // a write chunk for each item
	Reply  int  // bytes of the reply chunk, before padding; 0: no reply chunk
}

// OfferChunks decides which chunks a call offers for its reply.
func OfferChunks(r *Results, t *Terms) (Offer, *SizeProblem) {
	rest := r.Header + r.Max
	all := rest
	for _, n := range r.Items {
		all += xdr.Padded(n)
	}
	if all > t.Message {
		return Offer{}, &SizeProblem{"the largest reply, which Config.MaxMessage bounds,", all, t.Message}
	}
	if rpcrdma.MinHeaderSize+all <= t.Recv && !r.Foreign {
		return Offer{}, nil
	}
	if t.Chunks == NoChunks {
		return Offer{}, &SizeProblem{"the largest reply, which may have no chunks,", rpcrdma.MinHeaderSize + all, t.Recv}
	}
	header := rpcrdma.MinHeaderSize
	if t.Protected {
		rest = all
	} else {
		for _, n := range r.Items {
			header += rpcrdma.WriteChunkSize(segments(n, t.Segment))
		}
	}
	o := Offer{Writes: !t.Protected}
	if header+rest > t.Recv {
		o.Reply = rest
	}
	return o, nil
}
