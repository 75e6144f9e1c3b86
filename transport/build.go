package transport

import (
	"encoding/binary"
	"errors"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

// How a call is put on the wire (RFC 5666 sections 3.4, 4, 5):
//
//	the reply fits inline for sure         nothing is offered
//	else                                   a write chunk for each write item,
//	  and what is left may not fit         a reply chunk
//	the call fits inline                   RDMA_MSG
//	it does without read items             RDMA_MSG, and a read chunk for each
//	else                                   RDMA_NOMSG, all of it in read chunks
//
// Calls from a server to its client have no chunks unless the client can take all.
//
// Linux servers take read chunks at one position only. So of several items the
// largest goes to a chunk and the others stay inline, or all of it is in a
// position-zero chunk, whose segments point at the caller's memory all the same:
// nothing is copied but what lies between the items. A server that takes all gets a
// chunk for each item, beside a position-zero chunk, too. See Peer.

var (
	errEmptyItem = errors.New("transport: a WriteItem of the call has no memory")
	errItemOrder = errors.New("transport: offsets of the call's ReadItems do not ascend within its arguments")
)

// replyHead is the most that a reply's RPC header takes: the fixed words and a
// verifier, which is empty unless the flavor uses it.
func replyHead(cred *oncrpc.Auth) int {
	const fixed, mismatch = 24, 8
	if cred.Flavor == oncrpc.FlavorNone || cred.Flavor == oncrpc.FlavorSys {
		return fixed + mismatch
	}
	return fixed + mismatch + oncrpc.MaxAuthBody
}

// build forms the message of a call in the slot's send buffer and prepares what
// it exposes: s.wrs is the list to post.
func (s *slot) build(call *Call) error {
	c := s.c
	s.call, s.op = call, call.op
	s.msg = 0
	s.wrs = s.wrs[:0]
	if s.send == nil {
		b, err := c.arena.Get(c.cfg.sendSize)
		if err != nil {
			return err
		}
		s.send = b
	}
	h := &s.hdr
	if keep, xid := call.keepsXID(); keep {
		if err := c.keepXID(s, xid); err != nil {
			return err
		}
	}
	h.XID, h.Vers, h.Credit, h.Proc = s.xid, max(c.version(), rpcrdma.Version1), uint32(c.mostCalls.Load()), rpcrdma.ProcMsg
	h.Reads, h.Writes, h.Reply, h.HasReply = h.Reads[:0], h.Writes[:0], h.Reply[:0], false

	if call.op != nil {
		msg, err := s.operation(call.op)
		if err == nil {
			s.post(msg)
		}
		return err
	}
	if err := s.offer(call); err != nil {
		return err
	}
	head := s.headSize()
	full, from := head, 0
	for i := range call.ReadItems {
		it := &call.ReadItems[i]
		if it.Offset < from || it.Offset > head-s.rpcHead() {
			return errItemOrder
		}
		from = it.Offset
		full += xdr.Padded(len(it.Data))
	}
	if full > c.cfg.MaxMessage {
		return &SizeError{What: "the call message", Size: full, Limit: c.cfg.MaxMessage}
	}
	msg, err := s.message(head, full)
	if err != nil {
		return err
	}
	s.post(msg)
	return nil
}

// post adds the Send of msg, which is in s.send, to the list.
func (s *slot) post(msg []byte) {
	s.sge[0] = fabric.SGE{Buf: msg, LKey: s.send.LKey}
	// One Send in 16 is signaled, so that an adapter that frees its queue by
	// completions can. The reply tells that the buffer is free.
	var flags fabric.SendFlags
	if s.gen%16 == 0 {
		flags = fabric.Signaled
	}
	s.wrs = append(s.wrs, fabric.SendWR{ID: wrID(wrCall, s.idx), Op: fabric.OpSend, Flags: flags, SGL: s.sge[:]})
}

// keepsXID tells whether the call has an xid already: it is sent again (RFC 8167 section
// 5.4), or its verifier signs a header that has one.
func (call *Call) keepsXID() (keep bool, xid uint32) {
	switch {
	case call.sent:
		return true, call.xid
	case call.raw != nil && call.Cred.Flavor == oncrpc.FlavorGSS:
		return true, binary.BigEndian.Uint32(call.raw)
	}
	return false, 0
}

// message decides where the parts of the call go, exposes those that are for chunks,
// and forms what is sent. The RPC message has full bytes, head of them without the read
// items.
func (s *slot) message(head, full int) ([]byte, error) {
	c, h, b := s.c, &s.hdr, s.send.Bytes[:0]
	room := c.sendMax() - h.Size()
	if full <= room {
		o := c.cfg.RFC5666
		if c.role == roleServer || h.Vers != rpcrdma.Version1 {
			o = nil // padding is for calls to servers, in version 1
		}
		if n := o.padding(s.call, c.conf.align); n > 0 && full+n+8 <= room {
			h.Proc, h.Align, h.Thresh = rpcrdma.ProcMsgp, uint32(c.conf.align), uint32(o.Thresh)
		}
		return s.appendStream(rpcrdma.AppendHeader(b, h), noItems, false), nil
	}
	if !c.chunks() {
		return nil, &SizeError{What: "the call message, which may have no chunks,", Size: h.Size() + full, Limit: c.sendMax()}
	}
	if c.conf.noReads {
		return nil, &SizeError{What: "the call message, which may have no read chunks,", Size: h.Size() + full, Limit: c.sendMax()}
	}
	chunks := s.reducible()
	rest := full
	for i := range s.call.ReadItems {
		if chunks.has(i) {
			rest -= xdr.Padded(len(s.call.ReadItems[i].Data))
		}
	}
	if rest < full && rest+s.readListSize(chunks) <= room {
		if err := s.exposeItems(chunks); err != nil {
			return nil, err
		}
		return s.appendStream(rpcrdma.AppendHeader(b, h), chunks, false), nil
	}
	h.Proc = rpcrdma.ProcNomsg
	if err := s.exposeMessage(head); err != nil {
		return nil, err
	}
	if n := h.Size(); n > c.sendMax() {
		return nil, &SizeError{What: "the transport header", Size: n, Limit: c.sendMax()}
	}
	return rpcrdma.AppendHeader(b, h), nil
}

// An itemSet says which read items go to chunks of their own: the one of that number,
// or none, or all.
type itemSet int

const (
	noItems  itemSet = -1
	allItems itemSet = -2
)

func (m itemSet) has(i int) bool { return m == allItems || int(m) == i }

// reducible is what the server can take as chunks of their own beside an inline message.
func (s *slot) reducible() itemSet {
	if s.call.Cred.Protected() {
		return noItems
	}
	if s.c.cfg.Peer == PeerFull {
		return allItems
	}
	most := noItems
	for i := range s.call.ReadItems {
		if most == noItems || len(s.call.ReadItems[i].Data) > len(s.call.ReadItems[most].Data) {
			most = itemSet(i)
		}
	}
	return most
}

// offer decides what the reply may use: write chunks and a reply chunk.
func (s *slot) offer(call *Call) error {
	c, h := s.c, &s.hdr
	if call.MaxResults == 0 && len(call.WriteItems) == 0 {
		return nil
	}
	// rest is what the reply message is without the write items.
	rest := replyHead(&call.Cred) + call.MaxResults
	all := rest
	for i := range call.WriteItems {
		w := &call.WriteItems[i]
		w.Chunked, w.N = false, 0
		if len(w.Buf) == 0 {
			return errEmptyItem
		}
		all += xdr.Padded(len(w.Buf))
	}
	if all > c.cfg.MaxMessage {
		return &SizeError{What: "the largest reply", Size: all, Limit: c.cfg.MaxMessage}
	}
	if rpcrdma.MinHeaderSize+all <= c.recvMax() {
		return nil
	}
	if !c.chunks() {
		return &SizeError{What: "the largest reply, which may have no chunks,", Size: rpcrdma.MinHeaderSize + all, Limit: c.recvMax()}
	}
	items := call.WriteItems
	if call.Cred.Protected() {
		items, rest = nil, all
	}
	for i := range items {
		seg, err := s.lend(fabric.SGE{Buf: call.WriteItems[i].Buf, LKey: fabric.LocalDMAKey}, fabric.AccessRemoteWrite)
		if err != nil {
			return err
		}
		h.Writes = addChunk(h.Writes)
		last := &h.Writes[len(h.Writes)-1]
		*last = split(*last, seg, c.cfg.MaxSegment)
	}
	if h.Size()+rest <= c.recvMax() {
		return nil
	}
	var err error
	if s.back, err = c.arena.Get(rest); err != nil {
		return err
	}
	mem := s.back.Bytes[:xdr.Padded(rest)]
	seg, err := s.lend(fabric.SGE{Buf: mem, LKey: s.back.LKey}, fabric.AccessRemoteWrite)
	if err != nil {
		return err
	}
	h.HasReply = true
	h.Reply = split(h.Reply, seg, c.cfg.MaxSegment)
	return nil
}

// addChunk lengthens a write list by one empty chunk, using memory of earlier
// ones.
func addChunk(l []rpcrdma.WriteChunk) []rpcrdma.WriteChunk {
	if len(l) < cap(l) {
		l = l[:len(l)+1]
		l[len(l)-1] = l[len(l)-1][:0]
		return l
	}
	return append(l, nil)
}

// rpcHead is the length of the RPC header in front of the arguments.
func (s *slot) rpcHead() int {
	if s.call.raw != nil {
		return 0
	}
	return 24 + s.call.Cred.Size() + s.call.Verf.Size()
}

// headSize is the length of the RPC message without the read items.
func (s *slot) headSize() int {
	if s.call.raw != nil {
		return len(s.call.raw)
	}
	return s.rpcHead() + len(s.call.Args)
}

// appendStream appends the RPC message. Of items in chunks the data is left out, and the
// padding, unless pads is set.
func (s *slot) appendStream(b []byte, chunks itemSet, pads bool) []byte {
	call := s.call
	start := len(b)
	args := call.Args
	if call.raw != nil {
		args = call.raw
	} else {
		b = oncrpc.AppendCall(b, &oncrpc.CallHeader{
			XID: s.hdr.XID, RPCVers: oncrpc.Version, Prog: call.Prog, Vers: call.Vers, Proc: call.Proc,
			Cred: call.Cred, Verf: call.Verf,
		})
	}
	from := 0
	for i := range call.ReadItems {
		it := &call.ReadItems[i]
		b = append(b, args[from:it.Offset]...)
		from = it.Offset
		if chunks.has(i) {
			if pads {
				b = append(b, zeros[:xdr.Pad(len(it.Data))]...)
			}
			continue
		}
		if s.hdr.Proc == rpcrdma.ProcMsgp {
			n := rpcrdma.OpaquePad(uint32(len(b)-start), uint32(len(it.Data)), s.hdr.Align, s.hdr.Thresh)
			b = append(b, make([]byte, n)...)
		}
		b = append(b, it.Data...)
		b = append(b, zeros[:xdr.Pad(len(it.Data))]...)
	}
	b = append(b, args[from:]...)
	if call.raw != nil {
		binary.BigEndian.PutUint32(b[start:], s.hdr.XID)
	}
	return b
}

var zeros [4]byte

// readListSize is what chunks of read items would add to the header.
func (s *slot) readListSize(chunks itemSet) int {
	n := 0
	for i := range s.call.ReadItems {
		if chunks.has(i) {
			n += s.segments(len(s.call.ReadItems[i].Data))
		}
	}
	return rpcrdma.ReadListSize(n) - rpcrdma.ReadListSize(0)
}

func (s *slot) segments(n int) int { return (n + s.c.cfg.MaxSegment - 1) / s.c.cfg.MaxSegment }

// exposeItems puts read items into chunks of their own, at their positions in the
// unreduced message.
func (s *slot) exposeItems(chunks itemSet) error {
	pos := s.rpcHead()
	for i := range s.call.ReadItems {
		it := &s.call.ReadItems[i]
		if chunks.has(i) && len(it.Data) > 0 {
			seg, err := s.lend(fabric.SGE{Buf: it.Data, LKey: fabric.LocalDMAKey}, fabric.AccessRemoteRead)
			if err != nil {
				return err
			}
			s.hdr.Reads = splitRead(s.hdr.Reads, pos+it.Offset, seg, s.c.cfg.MaxSegment)
		}
		pos += xdr.Padded(len(it.Data))
	}
	return nil
}

// exposeMessage puts the RPC message into read chunks: what lies between the read items
// into a position-zero chunk, and the items into chunks of their own, if the server can
// take that, else in turn with the rest into the one chunk.
func (s *slot) exposeMessage(head int) error {
	c, h := s.c, &s.hdr
	several := s.reducible() == allItems
	size := head
	if !several {
		for i := range s.call.ReadItems {
			size += xdr.Pad(len(s.call.ReadItems[i].Data))
		}
	}
	var err error
	if s.long, err = c.arena.Get(size); err != nil {
		return err
	}
	stream := s.appendStream(s.long.Bytes[:0], allItems, !several)
	own, err := s.lend(fabric.SGE{Buf: stream, LKey: s.long.LKey}, fabric.AccessRemoteRead)
	if err != nil {
		return err
	}
	if several {
		h.Reads = splitRead(h.Reads, 0, own, c.cfg.MaxSegment)
		return s.exposeItems(allItems)
	}
	// part adds the next bytes of our buffer, up to end.
	from := 0
	part := func(end int) {
		if end > from {
			h.Reads = splitRead(h.Reads, 0, fabric.Segment{
				Handle: own.Handle, Offset: own.Offset + uint64(from), Length: uint32(end - from),
			}, c.cfg.MaxSegment)
			from = end
		}
	}
	at := s.rpcHead() // where Args begin in our buffer, and after each item its pad
	for i := range s.call.ReadItems {
		it := &s.call.ReadItems[i]
		if len(it.Data) == 0 {
			continue
		}
		part(at + it.Offset)
		seg, err := s.lend(fabric.SGE{Buf: it.Data, LKey: fabric.LocalDMAKey}, fabric.AccessRemoteRead)
		if err != nil {
			return err
		}
		h.Reads = splitRead(h.Reads, 0, seg, c.cfg.MaxSegment)
		at += xdr.Pad(len(it.Data))
	}
	part(len(stream))
	return nil
}

// lend exposes memory for the call of the slot.
func (s *slot) lend(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	return s.lent.Expose(&s.wrs, wrID(wrCall, s.idx), mem, access)
}

// unexpose ends the loan and gives the call's buffers back.
func (s *slot) unexpose() {
	s.lent.End()
	for _, b := range []**arena.Buffer{&s.long, &s.back, &s.pull.Mem} {
		if *b != nil {
			s.c.arena.Put(*b)
			*b = nil
		}
	}
}

// split appends a piece of exposed memory to a list of segments, in segments of
// at most max bytes.
func split(dst []rpcrdma.Segment, seg fabric.Segment, max int) []rpcrdma.Segment {
	for seg.Length > uint32(max) {
		dst = append(dst, rpcrdma.Segment{Handle: seg.Handle, Length: uint32(max), Offset: seg.Offset})
		seg.Offset += uint64(max)
		seg.Length -= uint32(max)
	}
	return append(dst, rpcrdma.Segment(seg))
}

// splitRead is split for read lists.
func splitRead(dst []rpcrdma.ReadSegment, pos int, seg fabric.Segment, max int) []rpcrdma.ReadSegment {
	for seg.Length > uint32(max) {
		dst = append(dst, rpcrdma.ReadSegment{Position: uint32(pos),
			Segment: rpcrdma.Segment{Handle: seg.Handle, Length: uint32(max), Offset: seg.Offset}})
		seg.Offset += uint64(max)
		seg.Length -= uint32(max)
	}
	return append(dst, rpcrdma.ReadSegment{Position: uint32(pos), Segment: rpcrdma.Segment(seg)})
}
