package trace

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// rocePort is the UDP port of RoCE v2: InfiniBand Architecture annex A17.
const rocePort = 4791

// Opcodes of a Base Transport Header: InfiniBand Architecture, volume 1, section 9.2.1.
const (
	rcSendFirst    = 0
	rcSendMiddle   = 1
	rcSendLast     = 2
	rcSendLastImm  = 3
	rcSendOnly     = 4
	rcSendOnlyImm  = 5
	rcWriteFirst   = 6
	rcWriteMiddle  = 7
	rcWriteLast    = 8
	rcWriteLastImm = 9
	rcWriteOnly    = 10
	rcWriteOnlyImm = 11
	rcReadRequest  = 12
	rcReadFirst    = 13
	rcReadMiddle   = 14
	rcReadLast     = 15
	rcReadOnly     = 16
	rcAck          = 17
	rcSendLastInv  = 22
	rcSendOnlyInv  = 23
	udSendOnly     = 0x64
)

const (
	bthLen  = 12
	rethLen = 16
	aethLen = 4
	icrcLen = 4
	psnMask = 1<<24 - 1
)

// bth is a Base Transport Header and what follows it.
type bth struct {
	opcode uint8
	qp     uint32 // of the receiver
	psn    uint32

	key    uint32 // RETH, or IETH
	va     uint64 // RETH
	length uint32 // RETH
	nak    bool   // AETH: negative acknowledgement

	data []byte
	size int
}

// parse parses a datagram. It returns false if it is invalid.
func (h *bth) parse(b []byte, size int) bool {
	if len(b) < bthLen || b[1]&15 != 0 {
		return false
	}
	*h = bth{opcode: b[0], qp: binary.BigEndian.Uint32(b[4:]) & psnMask, psn: binary.BigEndian.Uint32(b[8:]) & psnMask}
	size -= bthLen + icrcLen + int(b[1]>>4&3)
	b = b[bthLen:]
	extra := 0
	switch h.opcode {
	case rcWriteFirst, rcWriteOnly, rcReadRequest, rcWriteOnlyImm:
		if len(b) < rethLen {
			return false
		}
		h.va, h.key, h.length = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
		extra = rethLen
		if h.opcode == rcWriteOnlyImm {
			extra += 4
		}
	case rcReadFirst, rcReadLast, rcReadOnly, rcAck:
		if len(b) < aethLen {
			return false
		}
		h.nak = b[0]>>5&3 == 3
		extra = aethLen
	case rcSendLastInv, rcSendOnlyInv:
		if len(b) < 4 {
			return false
		}
		h.key = binary.BigEndian.Uint32(b)
		extra = 4
	case rcSendLastImm, rcSendOnlyImm, rcWriteLastImm:
		extra = 4
	case udSendOnly:
		extra = 8
	case rcSendFirst, rcSendMiddle, rcSendLast, rcSendOnly, rcWriteMiddle, rcWriteLast, rcReadMiddle:
	default:
		return false
	}
	if size -= extra; size < 0 || len(b) < extra {
		return false
	}
	b = b[extra:]
	h.data, h.size = b[:min(size, len(b))], size
	return true
}

// response reports whether the packet number is one of the peer's requests.
func (h *bth) response() bool { return h.opcode >= rcReadFirst && h.opcode <= rcAck }

// after returns the distance from packet number b to a, modulo 2^24.
func after(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }

// flowKey identifies one direction of a connection: a queue pair of the receiver.
type flowKey struct {
	from, to netip.Addr
	qp       uint32
}

// Limits of a flow.
const (
	maxAhead   = 256     // packets after a missing one
	maxWaiting = 4096    // operations of a flow with an unknown other direction
	maxBytes   = 1 << 20 // data of packets after a missing one
	maxXIDs    = 256     // calls searched for replies
	maxSingle  = 64      // flows between two hosts searched
	maxSetups  = 1 << 12 // connection requests without a reply
	ackWindow  = 1024    // how far an acknowledgement may lag the last request
)

// roceFlow is one direction.
type roceFlow struct {
	key flowKey

	known   bool
	next    uint32 // packet number of the next request
	loose   bool   // a Read Request used several numbers, so the next may be higher
	ahead   []roceAhead
	held    int    // bytes in ahead
	doubted uint32 // last packet number that the peer acknowledged but that was not captured

	msg    message
	write  roceSpan
	reads  []roceSpan // Read Requests, oldest first
	answer roceSpan   // the peer's Read that this direction is answering

	retransmitted, naks int

	// peer is the other direction. While it is unknown, operations wait.
	conn    *roceConn
	dir     int
	waiting []op
	bytes   int
	xids    []uint32 // of calls
}

type roceAhead struct {
	h  bth
	at stamp
}

// roceSpan is an RDMA Write or Read in progress.
type roceSpan struct {
	psn, key uint32
	va       uint64
	length   uint32
	done     uint64 // bytes
}

// roceConn is two directions that belong together.
type roceConn struct {
	conv *Conversation
	side [2]*roceFlow
}

// hostPair is a sender and a receiver.
type hostPair struct{ from, to netip.Addr }

// roceTable holds the flows of a file.
type roceTable struct {
	flows   map[flowKey]*roceFlow
	order   []*roceFlow
	single  map[hostPair][]*roceFlow           // flows with an unknown other direction; at most maxSingle
	waiting int                                // waiting bytes, in flows and in TCP streams
	begin   func(a, b *roceFlow) *Conversation // b may be nil

	setups map[setupKey]setup
}

// setup is a connection request.
type setup struct {
	qp, psn uint32 // queue pair and first packet number of the client
	private []byte
	at      stamp
}

type setupKey struct {
	from, to netip.Addr
	id       uint32
}

func newRoceTable(begin func(a, b *roceFlow) *Conversation) *roceTable {
	return &roceTable{
		flows: make(map[flowKey]*roceFlow), single: make(map[hostPair][]*roceFlow), begin: begin,
		setups: make(map[setupKey]setup),
	}
}

// datagram processes a datagram for the RoCE port.
func (t *roceTable) datagram(seg *segment, at stamp) {
	var h bth
	if !h.parse(seg.data, seg.size) {
		return
	}
	if h.opcode == udSendOnly {
		if h.qp == 1 {
			t.manage(seg, h.data, at)
		}
		return
	}
	f := t.flow(flowKey{seg.from.Addr(), seg.to.Addr(), h.qp})
	if f == nil {
		return
	}
	t.acknowledged(f, &h)
	if h.response() {
		t.response(f, &h, at)
		return
	}
	t.request(f, &h, at)
}

// maxFlows limits the flows of a file.
const maxFlows = 1 << 16

func (t *roceTable) flow(k flowKey) *roceFlow {
	f := t.flows[k]
	if f != nil {
		return f
	}
	if len(t.order) >= maxFlows {
		return nil
	}
	f = &roceFlow{key: k}
	t.flows[k] = f
	t.order = append(t.order, f)
	hosts := hostPair{k.from, k.to}
	if len(t.single[hosts]) == maxSingle {
		t.pair(t.single[hosts][0], nil)
	}
	t.single[hosts] = append(t.single[hosts], f)
	return f
}

// request processes requests in order.
func (t *roceTable) request(f *roceFlow, h *bth, at stamp) {
	if !f.known {
		f.known, f.next = true, h.psn
	}
	switch ahead := after(h.psn, f.next); {
	case ahead < 0:
		f.retransmitted++
		if h.opcode == rcReadRequest { // perhaps the rest of a Read
			f.addRead(h)
		}
		return
	case ahead > 0 && !f.loose:
		if len(f.ahead) < maxAhead && f.held < maxBytes {
			held := *h
			held.data = slices.Clone(h.data)
			f.ahead = append(f.ahead, roceAhead{held, at})
			f.held += len(held.data)
			return
		}
		t.hole(f, at)
		t.skip(f)
		t.request(f, h, at)
		return
	}
	t.execute(f, h, at)
	t.drain(f)
}

// acknowledged processes an acknowledgement by f of the other direction. Packets missing before it will not arrive any
// more: they were not captured.
func (t *roceTable) acknowledged(f *roceFlow, h *bth) {
	if h.nak || !h.response() || f.conn == nil || f.conn.side[1-f.dir] == nil {
		return
	}
	peer := f.conn.side[1-f.dir]
	for len(peer.ahead) > 0 && after(h.psn, peer.next) >= 0 {
		t.hole(peer, peer.ahead[0].at)
		t.skip(peer)
	}
	if peer.known && !peer.loose && after(h.psn, peer.next) >= 0 && h.psn != peer.doubted {
		peer.doubted = h.psn
		t.emit(peer, &op{kind: opHole})
	}
}

// drain executes waiting packets that are next.
func (t *roceTable) drain(f *roceFlow) {
	for again := true; again; {
		again = false
		for i := range f.ahead {
			x := f.ahead[i]
			if d := after(x.h.psn, f.next); d > 0 && !f.loose {
				continue
			} else if f.release(i); d < 0 {
				f.retransmitted++
			} else {
				t.execute(f, &x.h, x.at)
			}
			again = true
			break
		}
	}
}

// release removes a waiting packet.
func (f *roceFlow) release(i int) {
	f.held -= len(f.ahead[i].h.data)
	f.ahead = slices.Delete(f.ahead, i, i+1)
}

// skip stops waiting for the packets missing before the waiting ones.
func (t *roceTable) skip(f *roceFlow) {
	if len(f.ahead) == 0 {
		return
	}
	first := f.ahead[0].h.psn
	for i := range f.ahead {
		if p := f.ahead[i].h.psn; after(p, first) < 0 {
			first = p
		}
	}
	f.next = first
	t.drain(f)
}

// hole reports that something is missing.
func (t *roceTable) hole(f *roceFlow, at stamp) {
	f.msg.cut, f.write = true, roceSpan{}
	t.emit(f, &op{stamp: at, kind: opHole})
}

// execute processes the request that is next in order.
func (t *roceTable) execute(f *roceFlow, h *bth, at stamp) {
	f.next, f.loose = (h.psn+1)&psnMask, false
	o := &op{stamp: at, data: h.data, size: h.size}
	switch h.opcode {
	case rcSendFirst, rcSendOnly, rcSendOnlyImm, rcSendOnlyInv:
		f.msg.reset()
		f.msg.add(h.data, h.size)
	case rcSendMiddle, rcSendLast, rcSendLastImm, rcSendLastInv:
		f.msg.cut = f.msg.cut || !f.msg.open
		f.msg.add(h.data, h.size)
	case rcWriteFirst, rcWriteOnly, rcWriteOnlyImm:
		f.write = roceSpan{key: h.key, va: h.va, length: h.length}
	case rcReadRequest:
		f.addRead(h)
		f.loose = true
		o.kind, o.key, o.offset, o.size, o.data = opRead, h.key, h.va, int(min(h.length, 1<<31-1)), nil
		t.emit(f, o)
		return
	}
	switch h.opcode {
	case rcSendFirst, rcSendMiddle:
	case rcSendLast, rcSendLastImm, rcSendLastInv, rcSendOnly, rcSendOnlyImm, rcSendOnlyInv:
		o.kind, o.data, o.size, o.whole = opSend, f.msg.data, f.msg.size, !f.msg.cut
		if h.opcode == rcSendLastInv || h.opcode == rcSendOnlyInv {
			o.invalidates, o.key = true, h.key
		}
		t.emit(f, o)
		f.msg.reset()
	default: // an RDMA Write
		w := &f.write
		if w.done+uint64(h.size) > uint64(w.length) {
			return // the first packet was not captured
		}
		o.kind, o.key, o.offset = opWrite, w.key, w.va+w.done
		w.done += uint64(h.size)
		t.emit(f, o)
	}
}

func (f *roceFlow) addRead(h *bth) {
	if len(f.reads) >= maxReads {
		f.reads = slices.Delete(f.reads, 0, maxReads/2)
	}
	f.reads = append(f.reads, roceSpan{psn: h.psn, key: h.key, va: h.va, length: h.length})
}

// response processes an acknowledgement or a part of a Read Response.
func (t *roceTable) response(f *roceFlow, h *bth, at stamp) {
	if h.nak {
		f.naks++
	}
	if f.conn == nil {
		t.pairByNumber(f, h.psn)
	}
	if f.conn == nil || h.opcode == rcAck {
		return
	}
	peer := f.conn.side[1-f.dir]
	if peer == nil {
		return
	}
	if last := (h.psn + 1) & psnMask; peer.loose && after(last, peer.next) >= 0 && (h.opcode == rcReadLast || h.opcode == rcReadOnly) {
		peer.next, peer.loose = last, false
	}
	a := &f.answer
	if h.opcode == rcReadFirst || h.opcode == rcReadOnly {
		*a = roceSpan{}
		for i := len(peer.reads) - 1; i >= 0; i-- {
			if peer.reads[i].psn == h.psn {
				*a = peer.reads[i]
				peer.reads = slices.Delete(peer.reads, i, i+1)
				break
			}
		}
	} else if after(h.psn, a.psn) <= 0 {
		f.retransmitted++
		return
	}
	if a.done+uint64(h.size) > uint64(a.length) {
		return
	}
	a.psn = h.psn
	o := &op{stamp: at, kind: opReadData, key: a.key, offset: a.va + a.done, data: h.data, size: h.size}
	a.done += uint64(h.size)
	t.emit(f, o)
}

// emit passes on an operation, or keeps it until the other direction is known.
func (t *roceTable) emit(f *roceFlow, o *op) {
	if f.conn == nil && o.kind == opSend {
		t.pairByXID(f, o)
	}
	if f.conn != nil {
		o.dir = f.dir
		f.conn.conv.take(o)
		return
	}
	if len(f.waiting) >= maxWaiting || f.bytes+len(o.data) > maxBytes || t.waiting > maxPendingAll {
		t.pair(f, nil)
		o.dir = f.dir
		f.conn.conv.take(o)
		return
	}
	kept := *o
	kept.data = slices.Clone(o.data)
	f.bytes += len(kept.data)
	t.waiting += len(kept.data)
	f.waiting = append(f.waiting, kept)
}

// pairByNumber searches for the flow that a response of f answers.
func (t *roceTable) pairByNumber(f *roceFlow, psn uint32) {
	var found *roceFlow
	for _, g := range t.single[hostPair{f.key.to, f.key.from}] {
		if g == f || !g.known {
			continue
		}
		if d := after(g.next, psn); d <= 0 || d > ackWindow {
			continue
		}
		if found != nil {
			return // ambiguous
		}
		found = g
	}
	if found != nil {
		t.pair(found, f)
	}
}

// pairByXID searches for the flow with the call that message o of f replies to.
func (t *roceTable) pairByXID(f *roceFlow, o *op) {
	var h rpcrdma.Header
	n, err := consumeHeader(o.data, &h)
	if err != nil || h.Proc != rpcrdma.ProcMsg {
		return
	}
	_, kind, ok := oncrpc.Peek(o.data[n:])
	if !ok {
		return
	}
	if kind == oncrpc.Call {
		if len(f.xids) == maxXIDs {
			f.xids = slices.Delete(f.xids, 0, maxXIDs/2)
		}
		f.xids = append(f.xids, h.XID)
		return
	}
	for _, g := range t.single[hostPair{f.key.to, f.key.from}] {
		if g != f && slices.Contains(g.xids, h.XID) {
			t.pair(g, f)
			return
		}
	}
}

// pair makes a conversation of two directions, the second of which may be nil.
func (t *roceTable) pair(a, b *roceFlow) {
	c := &roceConn{side: [2]*roceFlow{a, b}}
	c.conv = t.begin(a, b)
	var all []op
	for i, f := range c.side {
		if f == nil {
			continue
		}
		f.conn, f.dir = c, i
		hosts := hostPair{f.key.from, f.key.to}
		t.single[hosts] = slices.DeleteFunc(t.single[hosts], func(g *roceFlow) bool { return g == f })
		for _, o := range f.waiting {
			o.dir = i
			all = append(all, o)
		}
		t.waiting -= f.bytes
		f.waiting, f.bytes, f.xids = nil, 0, nil
	}
	slices.SortStableFunc(all, func(x, y op) int { return x.packet - y.packet })
	for i := range all {
		c.conv.take(&all[i])
	}
}

// end stops waiting for missing packets at the end of the file.
func (t *roceTable) end() {
	for _, f := range t.order {
		for len(f.ahead) > 0 {
			t.hole(f, f.ahead[0].at)
			t.skip(f)
		}
	}
	for _, f := range t.order {
		if f.conn == nil {
			t.pair(f, nil)
		}
		f.conn.conv.Retransmitted += f.retransmitted
		f.conn.conv.Naks += f.naks
	}
}

// Connection management: InfiniBand Architecture, volume 1, section 12.6.
const (
	madLen     = 24
	cmClass    = 7
	cmRequest  = 0x10
	cmReply    = 0x13
	cmEnd      = 0x15
	requestLen = 140 // length before the private data
	replyLen   = 36
)

// manage processes a management datagram: a connection request and its reply, which name the queue pairs of a
// connection, and a disconnect request.
func (t *roceTable) manage(seg *segment, b []byte, at stamp) {
	if len(b) < madLen || b[1] != cmClass {
		return
	}
	kind := binary.BigEndian.Uint16(b[16:])
	b = b[madLen:]
	from, to := seg.from.Addr(), seg.to.Addr()
	switch {
	case kind == cmRequest && len(b) >= requestLen:
		if len(t.setups) < maxSetups {
			t.setups[setupKey{from, to, binary.BigEndian.Uint32(b)}] = setup{
				qp: binary.BigEndian.Uint32(b[32:]) >> 8, psn: binary.BigEndian.Uint32(b[44:]) >> 8, private: slices.Clone(b[requestLen:]), at: at,
			}
		}
	case kind == cmEnd && len(b) >= 12:
		f := t.flows[flowKey{from, to, binary.BigEndian.Uint32(b[8:]) >> 8}]
		if f == nil || f.conn == nil || f.conn.conv.End != "" {
			return
		}
		f.conn.conv.End = "closed by " + from.String() + because(at.comment)
	case kind == cmReply && len(b) >= replyLen:
		k := setupKey{to, from, binary.BigEndian.Uint32(b[4:])}
		s, ok := t.setups[k]
		if !ok {
			return
		}
		delete(t.setups, k)
		// Queue pairs are reused: these are new flows.
		ab := flowKey{to, from, binary.BigEndian.Uint32(b[12:]) >> 8}
		ba := flowKey{from, to, s.qp}
		delete(t.flows, ab)
		delete(t.flows, ba)
		f, g := t.flow(ab), t.flow(ba)
		if f == nil || g == nil || f == g {
			return
		}
		f.known, f.next = true, s.psn
		g.known, g.next = true, binary.BigEndian.Uint32(b[20:])>>8
		t.pair(f, g)
		f.conn.conv.take(&op{stamp: s.at, kind: opPrivate, dir: 0, data: s.private, size: len(s.private)})
		f.conn.conv.take(&op{stamp: at, kind: opPrivate, dir: 1, data: b[replyLen:], size: len(b) - replyLen, whole: true})
	}
}
