package iwarp

import (
	"encoding/binary"
	"io"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

const (
	stageLen = 64 << 10

	// readAhead is the size of a read when large payloads are expected: it suffices for the next headers and leaves
	// little to copy. Reads become larger when small messages fill them.
	readAhead = 4 << 10

	// directMin is the shortest remainder of a payload that is worth a separate system call, which reads directly into
	// the destination.
	directMin = 16 << 10

	// rxBurst bounds the system calls of one Poll.
	rxBurst = 64
)

// A stage buffers received bytes whose destination is not known yet. A connection holds a stage only while bytes arrive.
type stage [stageLen]byte

type rxPhase uint8

const (
	rxHeader  rxPhase = iota // at the start of an FPDU
	rxPayload                // x.pay bytes remain to be placed
	rxTrailer                // pad and CRC
)

// A writeTarget caches the lookup of an STag. It is valid while stags.gen equals gen, which
// was read before the lookup.
type writeTarget struct {
	stag uint32
	gen  uint64
	exposure
}

// A receiver is the receiving side of a connection, under the lock of Conn.rx.
type receiver struct {
	c      *Conn
	*link           // nil until setup is complete
	dead   bool     // processes nothing anymore
	failed *failure // found while receiving: nothing after it is processed
	heard  bool     // a complete FPDU has been received
	kick   bool     // the sending side has work
	input
	phase rxPhase
	fpdu
	messages
	target writeTarget // of the previous Write
	stats  struct{ readv, empty, direct, fpdus, bytes uint64 }
}

// An input is the buffer that a receiver reads into.
type input struct {
	st    *stage // nil while idle
	r, w  int    // unprocessed bytes of st
	ahead int    // bytes to read into st
	iov   [2]iovec
}

// A fpdu is the FPDU being received.
type fpdu struct {
	last, crcDone bool
	local         bool // if ref becomes invalid, this side is at fault
	op            rdmap.Opcode
	hlen          int // length of the DDP header
	ulpdu         int
	pay           int                   // payload bytes that remain to be placed
	dst           []byte                // where to place them
	ref           ref                   // permits the use of dst
	gen           uint64                // stags.gen when ref was last known to be valid
	sum           uint32                // CRC so far
	inv           uint32                // STag to invalidate
	hdr           [ddp.UntaggedLen]byte // for a Terminate message to quote
	ctl           [stageControl]byte    // payload of a control message
	ctlLen        int
}

// Messages is the state of the messages being received, one per queue.
type messages struct {
	msn     [3]uint32  // expected on each queue
	place   fabric.SGE // buffer of the oldest receive, if placed
	placed  bool
	sending bool // in the middle of a Send
	sendGot uint32
	writing bool // in the middle of a Write
	readGot uint32
}

// stageControl is the size of the longest control message, in bytes.
const stageControl = 64

// progress reads from the socket and processes what it reads. It stops when the socket is empty, after rxBurst reads,
// or, if untilCompletion is set, when there is a completion. The caller must not hold a lock.
func (c *Conn) progress(untilCompletion bool) (empty bool) {
	c.redeem()
	for range rxBurst {
		x := c.rx.Lock()
		if x.idle() {
			x.rest()
			c.rx.Unlock()
			return true
		}
		if c.advance(x) {
			return true
		}
		if untilCompletion && c.queued() {
			return false
		}
	}
	return false
}

// idle reports whether there is nothing to read.
func (x *receiver) idle() bool { return x.dead || !x.sock.stream.Ready() }

// rest returns the stage to the pool, unless it has bytes or is needed for the current FPDU.
func (x *receiver) rest() {
	if x.r == x.w && x.phase == rxHeader {
		x.releaseStage()
	}
}

// advance reads once, processes the result, and unlocks rx.
func (c *Conn) advance(x *receiver) (empty bool) {
	if x.failed == nil {
		empty, x.failed = x.step()
	}
	f := x.failed
	if empty {
		x.rest()
	}
	kick := x.kick
	x.kick = false
	c.rx.Unlock()
	if kick {
		c.kick()
	}
	if f != nil {
		c.end(f)
	}
	return empty || f != nil
}

// releaseStage returns the stage to the pool.
func (x *receiver) releaseStage() {
	if x.st != nil {
		x.c.p.stages.Put(x.st)
		x.st = nil
	}
	x.r, x.w = 0, 0
	x.target = writeTarget{}
}

// step makes one system call and processes what it returns. Lookups in the STag table stay valid until rx is unlocked:
// a goroutine that invalidates an STag waits for the lock.
func (x *receiver) step() (empty bool, f *failure) {
	if x.st == nil {
		st, ok := x.c.p.stages.Get().(*stage)
		if !ok {
			st = new(stage)
		}
		x.st = st
		x.ahead = max(x.ahead, readAhead)
	}
	if x.r == x.w {
		x.r, x.w = 0, 0
	}
	var v []iovec
	direct := 0
	if x.phase == rxPayload && x.pay >= directMin {
		// The stage is empty: parse has placed all payload that was in it.
		if f := x.stillMay(); f != nil {
			return false, f
		}
		direct = x.pay
		setIovec(&x.iov[0], x.dst)
		// The payload is followed by the trailer and, in the middle of a message, by the
		// header of the next segment. A message may be followed by a small one.
		extra := mpa.Pad(x.ulpdu) + mpa.CRCLen + mpa.LengthLen + ddp.TaggedLen
		if x.last {
			extra = readAhead
		}
		setIovec(&x.iov[1], x.st[:extra])
		v = x.iov[:2]
	} else {
		if len(x.st)-x.w < readAhead {
			x.w = copy(x.st[:], x.st[x.r:x.w])
			x.r = 0
		}
		want := x.ahead
		if x.phase == rxPayload {
			want = max(want, x.pay+readAhead)
		}
		setIovec(&x.iov[0], x.st[x.w:min(x.w+want, len(x.st))])
		v = x.iov[:1]
	}
	room := iovecLen(&v[len(v)-1])
	n, err := x.sock.stream.Readv(v)
	x.iov = [2]iovec{}
	x.stats.readv++
	switch {
	case err == nil && n == 0:
		return false, x.eof()
	case err == nil:
	case err == errAgain:
		x.stats.empty++
		return true, nil
	default:
		return false, &failure{err: fabric.ConnError{Remote: true, Cause: &BrokenError{"read", err}}}
	}
	x.stats.bytes += uint64(n)
	if direct > 0 {
		x.stats.direct++
		d := min(n, direct)
		if x.crc && !x.crcDone {
			x.sum = mpa.UpdateCRC(x.sum, x.dst[:d])
		}
		x.dst = x.dst[d:]
		x.pay -= d
		n -= d
		x.ahead = readAhead
	} else if n == room {
		// The read was full: there is probably more.
		x.ahead = min(4*x.ahead, len(x.st))
	}
	x.w += n
	return false, x.parse()
}

// eof returns the failure for the end of the stream. RFC 5044 section 7.2: between FPDUs it is an orderly close.
func (x *receiver) eof() *failure {
	f := &failure{err: fabric.ConnError{Remote: !x.c.fin.Load(), Clean: true}}
	if x.phase != rxHeader || x.r != x.w || x.sending || x.writing || x.readGot > 0 || x.c.txBroken.Load() {
		f.err = fabric.ConnError{Remote: true, Cause: &BrokenError{"read", io.ErrUnexpectedEOF}}
	}
	return f
}

// stillMay checks again that the current FPDU may be placed, if an STag has changed since its
// header was processed.
func (x *receiver) stillMay() *failure {
	gen := x.c.stags.gen.Load()
	if gen == x.gen || x.ref.index == 0 {
		return nil
	}
	if x.c.stags.valid(x.ref) {
		x.gen = gen
		return nil
	}
	if x.local {
		return x.localFault()
	}
	return x.refuse(faultSTag.writeCause(), "STag invalidated in the middle of a segment")
}

// localFault ends the connection because the SGE of a receive or Read is invalid.
func (x *receiver) localFault() *failure {
	f := &failure{
		err:   fabric.ConnError{Cause: &WorkError{Status: fabric.WCLocProtErr}},
		term:  true,
		cause: catastrophic,
	}
	st := x.c.state.Lock()
	defer x.c.state.Unlock()
	we := f.err.Cause.(*WorkError)
	if x.op == rdmap.OpReadResponse {
		e := st.sq.at(*st.orq.at(st.orq.head))
		e.status = fabric.WCLocProtErr
		we.ID = e.id
	} else {
		f.recv = fabric.WCLocProtErr
		we.ID = st.rq.at(st.rq.head).ID
	}
	return f
}

// refuse reports a violation by the current FPDU, and quotes its header.
func (x *fpdu) refuse(cause rdmap.Cause, format string, args ...any) *failure {
	f := violation(cause, format, args...)
	f.quote = append([]byte(nil), x.hdr[:x.hlen]...)
	f.seglen = x.ulpdu
	return f
}

// parse processes the bytes in the stage.
func (x *receiver) parse() *failure {
	for x.r < x.w || x.phase != rxHeader {
		if x.phase == rxHeader {
			if f := x.header(); f != nil || x.phase == rxHeader {
				return f
			}
		}
		if x.phase == rxPayload {
			if f := x.payload(); f != nil || x.phase == rxPayload {
				return f
			}
		}
		if f := x.trailer(); f != nil || x.phase == rxTrailer {
			return f
		}
	}
	return nil
}

// payload places the part of an FPDU's payload that is in the stage.
func (x *receiver) payload() *failure {
	if n := min(x.w-x.r, x.pay); n > 0 {
		if f := x.stillMay(); f != nil {
			return f
		}
		b := x.st[x.r : x.r+n]
		if x.crc && !x.crcDone {
			x.sum = mpa.UpdateCRC(x.sum, b)
		}
		copy(x.dst, b)
		x.r += n
		x.pay -= n
		if x.pay > 0 {
			x.dst = x.dst[n:]
		}
	}
	if x.pay == 0 {
		x.phase = rxTrailer
	}
	return nil
}

// trailer ends an FPDU, if it is complete.
func (x *receiver) trailer() *failure {
	pad := mpa.Pad(x.ulpdu)
	if x.w-x.r < pad+mpa.CRCLen {
		return nil
	}
	if x.crc && !x.crcDone {
		if mpa.UpdateCRC(x.sum, x.st[x.r:x.r+pad]) != mpa.CRC(x.st[x.r+pad:]) {
			return violation(llpCause(mpa.CodeCRC), "CRC mismatch")
		}
	}
	x.r += pad + mpa.CRCLen
	x.phase = rxHeader
	x.dst = nil
	x.stats.fpdus++
	if !x.heard {
		x.heard = true
		if x.c.held.Load() {
			// RFC 5044 section 7.1.2: the responder may send from now on.
			x.c.held.Store(false)
			x.kick = true
		}
	}
	return x.deliver()
}

// opNone is the empty FPDU that RFC 6581 section 4 allows as a Ready To Receive
// frame.
const opNone = rdmap.Opcode(0xff)

// header parses the headers of an FPDU, if they are complete, and finds the destination of its
// payload.
func (x *receiver) header() *failure {
	b := x.st[x.r:x.w]
	if len(b) < mpa.LengthLen {
		return nil
	}
	if !x.eitherFirst && !x.c.passive && !x.c.spoke.Load() {
		return violation(llpCause(mpa.CodeInvalidFrame), "the peer sent before it was sent to")
	}
	u := int(binary.BigEndian.Uint16(b))
	x.ulpdu, x.hlen, x.ref, x.local = u, 0, ref{}, false
	if u == 0 && x.rtrFPDU && !x.heard {
		x.crcDone, x.sum = false, mpa.UpdateCRC(0, b[:mpa.LengthLen])
		x.op, x.pay, x.dst = opNone, 0, nil
		x.r += mpa.LengthLen
		x.phase = rxPayload
		return nil
	}
	if len(b) < mpa.LengthLen+1 && u > 0 {
		return nil
	}
	hlen := ddp.UntaggedLen
	if u > 0 && ddp.IsTagged(b[mpa.LengthLen:]) {
		hlen = ddp.TaggedLen
	}
	if u < hlen {
		return violation(llpCause(mpa.CodeFPDUStart), "ULPDU of %d bytes", u)
	}
	if len(b) < mpa.LengthLen+hlen {
		return nil
	}
	if x.share != nil && hlen == ddp.TaggedLen && b[mpa.LengthLen+1] == rdmap.Control(opLent) && len(b) < mpa.LengthLen+hlen+lentLen {
		return nil
	}
	x.crcDone = false
	if x.crc {
		if n := mpa.FPDULen(u); len(b) >= n {
			// The FPDU is complete: verify the CRC before acting on it.
			if mpa.UpdateCRC(0, b[:n-mpa.CRCLen]) != mpa.CRC(b[n-mpa.CRCLen:]) {
				return violation(llpCause(mpa.CodeCRC), "CRC mismatch")
			}
			x.crcDone = true
		} else {
			x.sum = mpa.UpdateCRC(0, b[:mpa.LengthLen+hlen])
		}
	}
	x.hlen = hlen
	x.pay = u - hlen
	x.dst = nil
	x.r += mpa.LengthLen + hlen
	x.phase = rxPayload
	x.gen = x.c.stags.gen.Load()
	if hlen == ddp.TaggedLen {
		copy(x.hdr[:], b[mpa.LengthLen:][:ddp.TaggedLen])
		return x.tagged()
	}
	x.hdr = [ddp.UntaggedLen]byte(b[mpa.LengthLen:])
	return x.untagged()
}

// control checks the RDMAP control field.
func (x *fpdu) control(ulp uint8, tagged bool) *failure {
	op, err := rdmap.ParseControl(ulp)
	x.op = op
	switch {
	case err != nil:
		return x.refuse(rdmaOperation(rdmap.CodeVersion), "RDMAP version %d", ulp>>6)
	case op > rdmap.OpTerminate || op.Tagged() != tagged:
		return x.refuse(rdmaOperation(rdmap.CodeUnexpectedOpcode), "%v in a segment with T=%t", op, tagged)
	}
	return nil
}

// tagged finds the destination of a tagged segment's payload. RFC 5041 section 7.1, RFC 5040
// section 7.
func (x *receiver) tagged() *failure {
	var h ddp.Tagged
	if _, err := ddp.ConsumeTagged(x.hdr[:x.hlen], &h); err != nil {
		return x.refuse(ddpTagged(ddp.TaggedVersion), "%v", err)
	}
	x.last = h.Last
	if x.share != nil && h.ULP == rdmap.Control(opLent) {
		return x.lent(&h)
	}
	if f := x.control(h.ULP, true); f != nil {
		return f
	}
	if x.op == rdmap.OpReadResponse {
		return x.readResponse(&h)
	}
	x.writing = !h.Last
	if x.pay == 0 {
		return nil // no memory is accessed, so no STag is looked up
	}
	flt := x.aim(h.STag)
	if flt == faultNone {
		x.dst, flt = x.target.at(h.TO, uint32(x.pay))
	}
	if flt != faultNone {
		return x.refuse(flt.writeCause(), "RDMA Write of %d bytes to STag %#x, offset %#x: %v", x.pay, h.STag, h.TO, flt)
	}
	x.ref = x.target.ref
	return nil
}

// aim sets x.target to the memory that stag exposes. Consecutive segments to the same STag need one lookup, unless an
// STag was invalidated in between.
func (x *receiver) aim(stag uint32) fault {
	if x.target.stag == stag && x.target.gen == x.gen && x.target.ref.index != 0 {
		return faultNone
	}
	e, flt := x.c.stags.exposed(stag, fabric.AccessRemoteWrite)
	x.target = writeTarget{stag, x.gen, e}
	return flt
}

// readResponse checks a segment against the oldest outstanding Read.
func (x *receiver) readResponse(h *ddp.Tagged) *failure {
	st := x.c.state.Lock()
	if st.orq.len() == 0 {
		x.c.state.Unlock()
		return x.refuse(rdmaOperation(rdmap.CodeUnexpectedOpcode), "RDMA Read Response to no Read")
	}
	seq := *st.orq.at(st.orq.head)
	e := st.sq.at(seq)
	size := e.n
	var sge fabric.SGE
	if e.nsge > 0 {
		sge = *st.sges.at(e.sge)
	}
	x.c.state.Unlock()
	got := x.readGot
	switch {
	case h.STag != sinkSTag(seq):
		return x.refuse(ddpTagged(ddp.TaggedInvalidSTag), "RDMA Read Response to STag %#x, want %#x", h.STag, sinkSTag(seq))
	case h.TO != sinkTO(seq)+uint64(got) && (x.pay > 0 || size > 0):
		return x.refuse(ddpTagged(ddp.TaggedBaseBounds), "RDMA Read Response at offset %#x, want %#x", h.TO, sinkTO(seq)+uint64(got))
	case uint64(x.pay) > uint64(size-got):
		return x.refuse(ddpTagged(ddp.TaggedBaseBounds), "RDMA Read Response of more than %d bytes", size)
	case h.Last != (got+uint32(x.pay) == size) && (h.Last || x.pay > 0 || size > 0):
		return x.refuse(ddpTagged(ddp.TaggedBaseBounds), "RDMA Read Response of %d bytes with L=%t, want %d", got+uint32(x.pay), h.Last, size)
	}
	if x.pay == 0 {
		return nil
	}
	r, ok := x.c.stags.local(&sge, true)
	if !ok {
		return x.localFault()
	}
	x.dst, x.ref, x.local = sge.Buf[got:got+uint32(x.pay)], r, true
	return nil
}

// untagged finds the destination of an untagged segment's payload. RFC 5041 section 7.1.
func (x *receiver) untagged() *failure {
	var h ddp.Untagged
	if _, err := ddp.ConsumeUntagged(x.hdr[:x.hlen], &h); err != nil {
		return x.refuse(ddpUntagged(ddp.UntaggedBadVersion), "%v", err)
	}
	x.last, x.inv = h.Last, h.ULP32
	if f := x.control(h.ULP, false); f != nil {
		return f
	}
	qn := uint32(rdmap.QNSend)
	switch x.op {
	case rdmap.OpReadRequest:
		qn = rdmap.QNRead
	case rdmap.OpTerminate:
		qn = rdmap.QNTerminate
	}
	switch {
	case h.QN != qn:
		return x.refuse(ddpUntagged(ddp.UntaggedInvalidQN), "%v on queue %d", x.op, h.QN)
	case h.MSN != x.msn[qn]:
		return x.refuse(ddpUntagged(ddp.UntaggedMSNRange), "%v number %d, want %d", x.op, h.MSN, x.msn[qn])
	}
	if qn == rdmap.QNSend {
		return x.send(&h)
	}
	// The buffers of the other queues hold one message of a known length.
	most := rdmap.ReadRequestLen
	if qn == rdmap.QNTerminate {
		most = stageControl
	}
	switch {
	case h.MO != 0:
		return x.refuse(ddpUntagged(ddp.UntaggedInvalidMO), "%v at offset %d", x.op, h.MO)
	case x.pay > most:
		return x.refuse(ddpUntagged(ddp.UntaggedMsgTooLong), "%v of %d bytes", x.op, x.pay)
	case !h.Last || qn == rdmap.QNRead && x.pay < most:
		return x.refuse(rdmaOperation(rdmap.CodeCatastrophicStream), "%v of %d bytes with L=%t", x.op, x.pay, h.Last)
	}
	x.ctlLen = x.pay
	x.dst = x.ctl[:x.pay]
	return nil
}

// send finds the destination of a Send's segment: the oldest receive.
func (x *receiver) send(h *ddp.Untagged) *failure {
	if !x.sending {
		x.sendGot = 0
	}
	if h.MO != x.sendGot {
		return x.refuse(ddpUntagged(ddp.UntaggedInvalidMO), "Send at offset %d, want %d", h.MO, x.sendGot)
	}
	if !x.placed {
		st := x.c.state.Lock()
		x.placeReceive(&st.queues)
		x.c.state.Unlock()
	}
	if !x.placed {
		return x.refuse(ddpUntagged(ddp.UntaggedNoBuffer), "Send without a receive posted")
	}
	sge := &x.place
	if uint64(x.pay) > uint64(len(sge.Buf))-uint64(h.MO) {
		f := x.refuse(ddpUntagged(ddp.UntaggedMsgTooLong), "Send of more than the %d bytes of its receive", len(sge.Buf))
		f.recv = fabric.WCLocLenErr
		return f
	}
	r, ok := x.c.stags.local(sge, true)
	if !ok {
		return x.localFault()
	}
	x.sending = !h.Last
	if x.pay == 0 {
		return nil
	}
	x.dst, x.ref, x.local = sge.Buf[h.MO:uint64(h.MO)+uint64(x.pay)], r, true
	return nil
}

// deliver processes a complete FPDU.
func (x *receiver) deliver() *failure {
	n := x.ulpdu - x.hlen
	switch x.op {
	case opNone, rdmap.OpWrite:
	case rdmap.OpReadResponse:
		x.readGot += uint32(n)
		if x.last {
			x.readGot = 0
			st := x.c.state.Lock()
			st.sq.at(*st.orq.at(st.orq.head)).done = true
			st.orq.drop(1)
			st.retire()
			x.c.state.Unlock()
			x.kick = true // a request may be waiting for this Read
		}
	case rdmap.OpReadRequest:
		return x.readRequest()
	case rdmap.OpTerminate:
		return x.terminated(n)
	default: // the four Sends
		x.sendGot += uint32(n)
		if !x.last {
			return nil
		}
		x.msn[rdmap.QNSend]++
		if x.op.Invalidates() {
			if f := x.remoteInvalidate(x.inv); f != nil {
				return f
			}
		}
		st := x.c.state.Lock()
		wc := st.completeRecv(fabric.WCSuccess)
		wc.Len = x.sendGot
		if x.op.Invalidates() {
			wc.WithInv, wc.InvalidatedKey = true, x.inv
		}
		x.placeReceive(&st.queues)
		x.c.state.Unlock()
	}
	return nil
}

// placeReceive stores the destination of the next Send. The destination stays valid, because only the receiving side
// removes receives.
func (x *messages) placeReceive(q *queues) {
	if x.placed = q.rq.len() > 0; x.placed {
		x.place = q.rq.at(q.rq.head).SGE
	} else {
		x.place = fabric.SGE{}
	}
}

// remoteInvalidate executes the invalidation of a Send with Invalidate. Nothing is being placed, because this goroutine
// holds rx. A response that reads the window may be incomplete. Then the peer has an outstanding Read of the window and
// must not invalidate it: by RFC 5040 section 5.3 the STag becomes unusable for everything that follows, which would
// include the rest of the response.
//
// The peer may receive a complete response, and this side the peer's next message, before the goroutine that wrote the
// response has accounted for it. In this case remoteInvalidate waits for that goroutine, which needs no lock that this
// one holds.
func (x *receiver) remoteInvalidate(stag uint32) *failure {
	st := x.c.state.Lock()
	busy := st.responding(stag)
	for busy && st.writing {
		st.awaited = true
		st.wrote.Wait()
		busy = st.responding(stag)
	}
	x.c.state.Unlock()
	if busy || !x.c.stags.invalidate(stag, true) {
		return x.refuse(rdmaProtection(rdmap.CodeCannotInvalidate), "%v of STag %#x", x.op, stag)
	}
	return nil
}

// readRequest queues a Read of the peer.
func (x *receiver) readRequest() *failure {
	x.msn[rdmap.QNRead]++
	var r rdmap.ReadRequest
	rdmap.ConsumeReadRequest(x.ctl[:x.ctlLen], &r) // cannot fail: untagged has checked the length
	refuse := func(cause rdmap.Cause, format string, args ...any) *failure {
		f := x.refuse(cause, format, args...)
		f.read = append([]byte(nil), x.ctl[:x.ctlLen]...)
		return f
	}
	if r.Size > 0 {
		if _, _, flt := x.c.stags.remote(r.SrcSTag, r.SrcTO, r.Size, fabric.AccessRemoteRead); flt != faultNone {
			return refuse(flt.readCause(), "RDMA Read of %d bytes from STag %#x, offset %#x: %v", r.Size, r.SrcSTag, r.SrcTO, flt)
		}
	}
	st := x.c.state.Lock()
	most := x.ird
	if r.Size == 0 && x.stats.fpdus == 1 {
		most = max(most, 1) // a Ready To Receive frame
	}
	full := int(st.irq.tail-st.irqNext) >= most
	if !full {
		*st.irq.push() = r
	}
	x.c.state.Unlock()
	if full {
		return refuse(ddpUntagged(ddp.UntaggedNoBuffer), "more than %d Reads at once", x.ird)
	}
	x.kick = true
	return nil
}
