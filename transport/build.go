package transport

import (
	"encoding/binary"
	"errors"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// Building calls as internal/plan decides: memory is exposed, the message is written into the slot's send buffer, and
// the list of requests is built.

var (
	errEmptyItem = errors.New("transport: a WriteItem of the call has no memory")
	errItemOrder = errors.New("transport: offsets of the call's ReadItems do not ascend within its arguments")
)

// callHead is the length of a call's RPC header without credential and verifier.
const callHead = 24

// replyHead returns the maximum length of a reply's RPC header: the fixed words and a verifier, which is empty unless
// the flavor uses it.
func replyHead(cred *oncrpc.Auth) int {
	const fixed, mismatch = 24, 8
	if cred.Flavor == oncrpc.FlavorNone || cred.Flavor == oncrpc.FlavorSys {
		return fixed + mismatch
	}
	return fixed + mismatch + oncrpc.MaxAuthBody
}

// outline returns the parts of a call, without the transport's headers.
func (sc *scratch) outline(call *pendingCall) (pc plan.Call, err error) {
	pc.Args = len(call.Args)
	if call.raw != nil {
		pc.Args = len(call.raw)
	} else {
		pc.Header = callHead + call.Cred.Size() + call.Verf.Size()
	}
	if len(call.ReadItems) == 0 {
		return pc, nil
	}
	sc.items = sc.items[:0]
	for i := range call.ReadItems {
		it := &call.ReadItems[i]
		sc.items = append(sc.items, plan.Item{Offset: it.Offset, Len: it.Len(), Foreign: it.Foreign != nil})
	}
	pc.Items = sc.items
	if !pc.Ordered() {
		return pc, errItemOrder
	}
	return pc, call.checkLengths()
}

// results returns the possible parts of the reply to a call.
func (sc *scratch) results(call *pendingCall) (plan.Results, error) {
	sc.sizes = sc.sizes[:0]
	foreign := false
	for i := range call.WriteItems {
		w := &call.WriteItems[i]
		w.Chunked, w.N = false, 0
		n := w.Len()
		if n == 0 {
			return plan.Results{}, errEmptyItem
		}
		sc.sizes = append(sc.sizes, n)
		foreign = foreign || w.Foreign != nil
	}
	return plan.Results{Header: replyHead(&call.Cred), Max: call.MaxResults, Items: sc.sizes, Foreign: foreign}, nil
}

// takesForeign returns an error if the data of items in foreign memory might have to pass through the program.
func (call *pendingCall) takesForeign(t *plan.Terms) error {
	reads, writes := "", ""
	switch {
	case t.Protected:
		reads, writes = protects, protects
	case t.Chunks == plan.NoChunks:
		reads, writes = "calls in this direction have no chunks", "calls in this direction have no chunks"
	case t.Chunks == plan.NoReads:
		reads = "calls of this connection have no read chunks"
	}
	return call.refusesForeign(reads, writes)
}

const protects = "the credential protects the message as a whole"

// refusesForeign returns the error of a call that cannot use foreign memory, for the given reasons; "" means no reason.
func (call *pendingCall) refusesForeign(reads, writes string) error {
	for i := range call.ReadItems {
		if it := &call.ReadItems[i]; it.Foreign != nil && reads != "" {
			return &rpc.ForeignError{Index: i, Len: it.Len(), Reason: reads}
		}
	}
	for i := range call.WriteItems {
		if w := &call.WriteItems[i]; w.Foreign != nil && writes != "" {
			return &rpc.ForeignError{Result: true, Index: i, Len: w.Len(), Reason: writes}
		}
	}
	return nil
}

// chunks returns the chunks that calls of this end may have.
func (c *conn) chunks() plan.Chunks {
	switch {
	case c.role == roleServer && c.cfg.PeerChunks != AllChunks:
		return plan.NoChunks
	case c.conf.noReads:
		return plan.NoReads
	case c.cfg.PeerChunks == AllChunks:
		return plan.AnyChunks
	}
	return plan.OnePosition
}

// build builds the message of a call in the slot's send buffer and prepares the memory that it exposes. s.wrs is the
// list to post.
func (s *slot) build(call *pendingCall) error {
	c := s.c
	if err := c.cfg.fits(call.Names); err != nil {
		return err
	}
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
	if keep, xid := call.keepsXID(); keep {
		if err := c.keepXID(s, xid); err != nil {
			return err
		}
	}
	if call.Sign != nil && !call.sent {
		call.sign(s.xid)
	}
	h := &s.hdr
	h.XID, h.Vers, h.Credit, h.Proc = s.xid, max(c.version(), rpcrdma.Version1), uint32(c.mostCalls.Load()), rpcrdma.ProcMsg
	h.Reads, h.Writes, h.Reply, h.HasReply = h.Reads[:0], h.Writes[:0], h.Reply[:0], false

	var msg []byte
	var err error
	if call.op != nil {
		msg, err = s.formOperation(call.op)
	} else {
		t := plan.Terms{
			Send: c.sendMax(), Recv: c.recvMax(), Message: c.cfg.MaxMessage, Segment: c.cfg.MaxSegment,
			Chunks: c.chunks(), Protected: call.Cred.Protected(),
		}
		if call.hasItems() {
			err = call.takesForeign(&t)
		}
		if err == nil && (call.hasItems() || call.MaxResults > 0) {
			err = s.offerChunks(&t)
		}
		if err == nil {
			msg, err = s.message(&t)
		}
	}
	if err == nil {
		s.list(msg)
	}
	return err
}

// list adds the Send of msg, which is in s.send, to the list of requests.
func (s *slot) list(msg []byte) {
	s.sge[0] = fabric.SGE{Buf: msg, LKey: s.send.LKey}
	// Not signaled: the reply shows that the buffer is free.
	s.wrs = append(s.wrs, fabric.SendWR{ID: wrID(wrCall, s.idx), Op: fabric.OpSend, SGL: s.sge[:]})
}

// keepsXID reports whether the call already has an xid: it is sent again (RFC 8167 section 5.4), or made again after a
// denial, or its verifier signs a header that has one.
func (call *pendingCall) keepsXID() (keep bool, xid uint32) {
	switch {
	case call.sent, call.again:
		return true, call.xid
	case call.raw != nil && call.Cred.Flavor == oncrpc.FlavorGSS:
		return true, binary.BigEndian.Uint32(call.raw)
	}
	return false, 0
}

// hasItems reports whether parts of the call or its reply may be separate chunks.
func (call *pendingCall) hasItems() bool { return len(call.ReadItems)+len(call.WriteItems) > 0 }

// offerChunks exposes memory for the reply: write chunks and a reply chunk.
func (s *slot) offerChunks(t *plan.Terms) error {
	call, c, h := s.call, s.c, &s.hdr
	results, err := s.scratch.results(call)
	if err != nil {
		return err
	}
	o, problem := plan.OfferChunks(&results, t)
	if problem != nil {
		return (*rpc.SizeError)(problem)
	}
	if o.Writes {
		for i := range call.WriteItems {
			seg, err := s.lend(call.WriteItems[i].SGE(), fabric.AccessRemoteWrite)
			if err != nil {
				return err
			}
			h.Writes = addChunk(h.Writes)
			last := &h.Writes[len(h.Writes)-1]
			*last = split(*last, seg, c.cfg.MaxSegment)
		}
	}
	if o.Reply == 0 {
		return nil
	}
	mem, seg, err := s.lendOwn(&s.back, xdr.Padded(o.Reply), fabric.AccessRemoteWrite)
	if err != nil {
		return err
	}
	s.reply = mem
	h.HasReply = true
	h.Reply = split(h.Reply, seg, c.cfg.MaxSegment)
	return nil
}

// message places the parts of the call, exposes those that go to chunks, and builds the message to send.
func (s *slot) message(t *plan.Terms) ([]byte, error) {
	call, c, h := s.call, s.c, &s.hdr
	pc, err := s.outline(call)
	if err != nil {
		return nil, err
	}
	pc.Transport = h.Size()
	pad := s.padding()
	place, problem := plan.PlaceCall(&pc, t, pad)
	if problem != nil {
		return nil, (*rpc.SizeError)(problem)
	}
	h.Proc = place.Proc
	switch h.Proc {
	case rpcrdma.ProcMsgp:
		h.Align, h.Thresh = uint32(pad.Align), uint32(pad.Thresh)
	case rpcrdma.ProcNomsg:
		if err := s.formLong(&pc, place); err != nil {
			return nil, err
		}
		if n := h.Size(); n > c.sendMax() {
			return nil, &rpc.SizeError{What: "the transport header", Size: n, Limit: c.sendMax()}
		}
		return rpcrdma.AppendHeader(s.send.Bytes[:0], h), nil
	}
	if place.Chunks != plan.NoItems {
		if err := s.exposePieces(&pc, place, fabric.Segment{}); err != nil {
			return nil, err
		}
	}
	return s.appendStream(rpcrdma.AppendHeader(s.send.Bytes[:0], h), place.Chunks, false), nil
}

// checkLengths compares the ReadItems with the length words in the arguments: if they differed, a server would misread
// the rest. The items are in order.
func (call *pendingCall) checkLengths() error {
	args := call.Args
	if call.raw != nil {
		args = call.raw
	}
	for i := range call.ReadItems {
		it := &call.ReadItems[i]
		if it.Offset < 4 || binary.BigEndian.Uint32(args[it.Offset-4:]) != uint32(it.Len()) {
			return &rpc.ItemError{Index: i, Offset: it.Offset, Len: it.Len()}
		}
	}
	return nil
}

// padding returns the padding of the call if it is sent with RDMA_MSGP, which is only for calls to servers in version
// 1.
func (s *slot) padding() plan.Padding {
	o := s.c.cfg.RFC5666
	if o == nil || s.c.role == roleServer || s.hdr.Vers != rpcrdma.Version1 {
		return plan.Padding{}
	}
	return plan.Padding{Align: s.c.conf.align, Thresh: o.Thresh}
}

// formLong builds the stream of an RDMA_NOMSG call in memory of its own, and exposes the call.
func (s *slot) formLong(pc *plan.Call, place plan.Placement) error {
	size, padded := pc.Stream(place)
	mem, own, err := s.lendOwn(&s.long, size, fabric.AccessRemoteRead)
	if err != nil {
		return err
	}
	s.appendStream(mem[:0], plan.AllItems, padded)
	return s.exposePieces(pc, place, own)
}

// exposePieces exposes the items that go to read chunks, and builds the read list from them and from parts of the
// stream, which is exposed as own.
func (s *slot) exposePieces(pc *plan.Call, place plan.Placement, own fabric.Segment) error {
	s.pieces = pc.Pieces(s.pieces[:0], place)
	for _, piece := range s.pieces {
		seg := fabric.Segment{Handle: own.Handle, Offset: own.Offset + uint64(piece.From), Length: uint32(piece.To - piece.From)}
		if piece.Item >= 0 {
			var err error
			seg, err = s.lend(s.call.ReadItems[piece.Item].SGE(), fabric.AccessRemoteRead)
			if err != nil {
				return err
			}
		}
		s.hdr.Reads = splitRead(s.hdr.Reads, piece.Position, seg, s.c.cfg.MaxSegment)
	}
	return nil
}

// addChunk appends an empty chunk to a write list, reusing the memory of earlier chunks.
func addChunk(l []rpcrdma.WriteChunk) []rpcrdma.WriteChunk {
	if len(l) < cap(l) {
		l = l[:len(l)+1]
		l[len(l)-1] = l[len(l)-1][:0]
		return l
	}
	return append(l, nil)
}

// appendStream appends the RPC message. For items in chunks it omits the data, and also the padding unless pads is set.
func (s *slot) appendStream(b []byte, chunks plan.ItemSet, pads bool) []byte {
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
		if chunks.Has(i) {
			if pads {
				b = append(b, zeros[:xdr.Pad(it.Len())]...)
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

// lend exposes memory for the call of the slot.
func (s *slot) lend(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	return s.lent.Expose(&s.wrs, wrID(wrCall, s.idx), mem, access)
}

// lendOwn exposes size bytes of the connection's memory for the call of the slot: from a bounce buffer, which the loan
// owns, or from a buffer of the arena, which is stored in own.
func (s *slot) lendOwn(own **arena.Buffer, size int, access fabric.Access) ([]byte, fabric.Segment, error) {
	if mem, seg := s.lent.Buffer(size); mem != nil {
		return mem, seg, nil
	}
	b, err := s.c.arena.Get(size)
	if err != nil {
		return nil, fabric.Segment{}, err
	}
	*own = b
	seg, err := s.lend(fabric.SGE{Buf: b.Bytes[:size], LKey: b.LKey}, access)
	return b.Bytes, seg, err
}

// unexpose ends the loan and returns the call's buffers.
func (s *slot) unexpose() {
	s.lent.End()
	s.giveBuffersBack()
}

// giveBuffersBack returns the call's buffers. Their exposure has ended.
func (s *slot) giveBuffersBack() {
	s.reply = nil
	s.giveBufferBack(&s.long)
	s.giveBufferBack(&s.back)
	s.giveBufferBack(&s.pull.Mem)
}

// giveBufferBack returns a buffer, if there is one.
func (s *slot) giveBufferBack(b **arena.Buffer) {
	if *b != nil {
		s.c.arena.Put(*b)
		*b = nil
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
