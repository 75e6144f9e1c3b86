package iwarp

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

const (
	// batchIOV and batchBytes bound one system call. Linux allows 1024 elements. A batch should still be in the CPU's
	// cache when the kernel copies the data over which the CRC has just been computed. It should also let the receiver
	// begin while the next batch is built. Of the sizes from 128 KiB to 2 MiB, 256 KiB was the fastest with and
	// without CRC.
	batchIOV   = 256
	batchBytes = 256 << 10

	// Payloads up to copyMax are copied into the arena, between the headers and trailers, so that a batch of them is
	// one contiguous buffer. Copying a short payload costs less than describing it in an element. That also holds for
	// payloads that fit into one TCP segment if the kernel's buffers come from another CPU's cache: the kernel fills
	// these at a third of the speed if every FPDU is an element.
	copyMax = 4 << 10

	// segmentArena is the most that one segment adds to the arena: length field, header,
	// payload, pad and CRC.
	segmentArena = mpa.LengthLen + ddp.UntaggedLen + copyMax + 3 + mpa.CRCLen
)

// A batch is a sequence of FPDUs that is written to the socket. The sender gets it from a pool when there is something
// to send and returns it once it is written.
type batch struct {
	iov   [batchIOV]iovec
	ref   [batchIOV]ref // the STag that permits reading each element
	arena [batchBytes]byte

	niov, pos int // elements filled, and written
	na, run   int // arena bytes used, and start of the bytes that are not in iov yet
	bytes     int
	blocked   bool   // a write of this batch has blocked
	more      bool   // there is more to send after this batch
	exposes   bool   // has elements of a Read Response
	lends     bool   // refers to shared memory of the stream
	sqDone    uint64 // send queue entries before this one are written once the batch is

	// resp lists where Read Responses end: n responses use no memory from element end on.
	resp  [batchIOV]struct{ end, n uint16 }
	nresp int
}

// addResponse records that a Read Response ends here.
func (b *batch) addResponse() {
	end := uint16(b.niov) // its memory is before this element
	if b.nresp == 0 || b.resp[b.nresp-1].end != end {
		b.resp[b.nresp].end, b.resp[b.nresp].n = end, 0
		b.nresp++
	}
	b.resp[b.nresp-1].n++
}

// closeRun appends the pending arena bytes as an element.
func (b *batch) closeRun() {
	if b.na > b.run {
		setIovec(&b.iov[b.niov], b.arena[b.run:b.na])
		b.ref[b.niov] = ref{}
		b.niov++
		b.run = b.na
	}
}

func (b *batch) full() bool {
	return b.niov > batchIOV-MaxSendSGE-2 || b.bytes > batchBytes-segmentArena
}

// A sender is the sending side of a connection, under the lock of Conn.tx.
type sender struct {
	c      *Conn
	*link       // nil until setup is complete
	dead   bool // sends nothing anymore
	writer bool // the writer goroutine is running and does all sending
	b      *batch
	view
	next   uint64    // send queue entry to begin next
	msn    [3]uint32 // of the next message on each queue
	cur    message
	turn   bool     // a Read Response goes before the next request
	nudge  bool     // send an empty Write, see nudge.go
	local  *failure // found while building; ends the connection once the batch is written
	failed *failure // found by the writer
	stats  struct{ writev, full, fpdus, bytes, lent, writers uint64 }
}

// An outlet is the part of the sender that any goroutine may use, without its lock.
type outlet struct {
	txPending atomic.Bool // there may be something to send
	spoke     atomic.Bool // something has been sent
	held      atomic.Bool // nothing may be sent until something has been received
	fin       atomic.Bool // the write side has been shut down
	lent      atomic.Bool // the peer has not yet copied all data lent by written requests
	looks     atomic.Bool // a call of Conn.look is scheduled
	txBroken  atomic.Bool // writing has failed
}

// A message is the message being segmented. Messages are not interleaved, as siw requires.
type message struct {
	active   bool
	response bool // to a Read of the peer
	nudge    bool // see nudge.go
	op       rdmap.Opcode
	stag     uint32 // tagged: destination STag; Send with Invalidate: STag to invalidate
	to       uint64 // tagged: offset of the next segment
	qn       uint32
	mo       uint32
	rem      uint32 // bytes to go
	si, so   int    // the next of them: element of the gather list, and offset in it
	nsge     int
	sge      uint64     // number of the first element in sender.sges
	own      fabric.SGE // the only element of a Read Request or Read Response
	ref      [MaxSendSGE]ref
	control  [rdmap.ReadRequestLen]byte
}

// kick sends what has been queued, unless another goroutine is already sending and will send that, too.
func (c *Conn) kick() { c.drive(c.announce()) }

// announce makes the holder of tx send what has been queued. If tx is free, announce locks it and returns the sender.
func (c *Conn) announce() *sender {
	c.txPending.Store(true)
	return c.announced()
}

// announced locks tx and updates the view if something has been announced and tx is free. Otherwise it returns nil.
func (c *Conn) announced() *sender {
	if !c.txPending.Load() {
		return nil
	}
	t := c.tx.TryLock()
	if t != nil {
		c.txPending.Store(false)
		t.look()
	}
	return t
}

// drive sends what can be sent and unlocks tx. After unlocking, every holder of tx checks for announcements made in the
// meantime (see unlockTx), so that none is lost.
func (c *Conn) drive(t *sender) {
	for ; t != nil; t = c.announced() {
		f := t.pump()
		c.tx.Unlock()
		if f != nil {
			c.endSending(f)
			return
		}
	}
}

func (c *Conn) unlockTx() {
	c.tx.Unlock()
	c.drive(c.announced())
}

// pump sends what can be sent.
func (t *sender) pump() *failure {
	c := t.c
	if t.dead || t.writer || c.txBroken.Load() || c.fin.Load() {
		return nil
	}
	blocked, f := t.flush()
	if blocked {
		// Post never waits for the peer. The writer goroutine does, and sends until the queue is empty.
		t.writer = true
		t.stats.writers++
		c.writers.Add(1)
		go c.steps.writer()
	}
	return f
}

// writer waits for space in the socket and sends until the queue is empty.
func (c *Conn) writer() {
	defer c.writers.Done()
	c.link.Load().sock.at.Write(c.steps.write) // fails if the connection has ended
	t := c.tx.Lock()
	t.writer = false
	f := t.failed
	t.failed = nil
	// Requests posted while the writer was running relied on it.
	c.txPending.Store(true)
	c.unlockTx()
	if f != nil {
		c.endSending(f)
	}
}

// writeStep is the writer's step. It returns false to wait for space.
func (c *Conn) writeStep(uintptr) bool {
	t := c.tx.Lock()
	blocked, f := t.flush()
	if !blocked {
		t.failed = f
	}
	c.unlockTx()
	return !blocked
}

// endSending ends the connection because of a failure on the sending side. If the peer is gone, endSending first reads
// what the peer sent before, since a Terminate message explains more than a broken pipe.
func (c *Conn) endSending(f *failure) {
	if c.txBroken.Load() {
		for !c.progress(false) {
		}
	}
	c.end(f)
}

// flush builds and writes batches until there is nothing to send or the socket is full. blocked reports that the socket
// is full. The view must be up to date, unless there is a batch.
func (t *sender) flush() (blocked bool, f *failure) {
	for !t.dead {
		if t.b == nil {
			if !t.more() {
				return false, nil
			}
			t.b = t.c.p.getBatch()
			t.build(t.b)
		}
		if t.b.niov > 0 && t.c.held.Load() {
			// Binds and invalidations take effect, but nothing is sent before the peer's first message.
			t.b.blocked = true
			return false, nil
		}
		if blocked, f := t.write(t.b); blocked || f != nil {
			return blocked, f
		}
		t.settle(t.b)
		more := t.b.more || t.b.blocked
		t.releaseBatch()
		if t.local != nil {
			f, t.local = t.local, nil
			return false, f
		}
		if !more {
			return false, nil
		}
		t.look()
	}
	return false, nil
}

// A view is the sender's latest copy of the state of the queues. While it holds tx, the sender may read the requests
// that it has not begun: no other goroutine changes them.
type view struct {
	sq   ring[sqEntry]
	sges ring[fabric.SGE]
	owes bool // Reads of the peer await an answer
}

// of makes v a view of the current q.
func (v *view) of(q *queues) { v.sq, v.sges, v.owes = q.sq, q.sges, q.owes() }

// look updates the view.
func (t *sender) look() {
	t.view.of(&t.c.state.Lock().queues)
	t.c.state.Unlock()
}

// more reports whether there may be something to send.
func (t *sender) more() bool { return t.next != t.sq.tail || t.owes || t.cur.active || t.nudge }

// write writes the rest of b to the socket.
func (t *sender) write(b *batch) (blocked bool, f *failure) {
	if b.blocked && b.pos < b.niov && !b.mayLeave(&t.c.stags) {
		// Memory was revoked after the socket had accepted a part of the batch. The rest cannot be sent, so the stream
		// ends inside an FPDU.
		return false, &failure{err: fabric.ConnError{Cause: ErrRevoked}}
	}
	if b.pos < b.niov {
		st := t.c.state.Lock()
		st.unsent, st.writing = true, true
		t.c.state.Unlock()
		if !t.c.spoke.Load() {
			t.c.spoke.Store(true)
		}
	}
	for b.pos < b.niov {
		t.stats.writev++
		n, err := t.sock.stream.Writev(b.iov[b.pos:b.niov])
		if err == errAgain && t.sock.stream.ArmWrite() {
			continue
		}
		if err != nil {
			st := t.c.state.Lock()
			st.answered(b)
			st.stopWriting()
			t.c.state.Unlock()
		}
		if err == errAgain {
			t.stats.full++
			b.blocked = true
			return true, nil
		}
		if err != nil {
			t.c.txBroken.Store(true)
			return false, &failure{err: fabric.ConnError{Remote: true, Cause: &BrokenError{"write", err}}}
		}
		t.stats.bytes += uint64(n)
		for n > 0 {
			l := iovecLen(&b.iov[b.pos])
			if n < l {
				advanceIovec(&b.iov[b.pos], n)
				break
			}
			n -= l
			b.pos++
		}
	}
	return false, nil
}

// mayLeave reports whether all memory of b that is not written yet may still be read.
func (b *batch) mayLeave(t *table) bool {
	e := t.entries.Lock()
	defer t.entries.Unlock()
	for i := b.pos; i < b.niov; i++ {
		if !e.valid(b.ref[i]) {
			return false
		}
	}
	return true
}

// stopWriting records, and signals to waiters, that no memory is being read for sending.
func (st *state) stopWriting() {
	st.writing = false
	if st.awaited {
		st.awaited = false
		st.wrote.Broadcast()
	}
}

// settle accounts for a batch that has been written.
func (t *sender) settle(b *batch) {
	st := t.c.state.Lock()
	st.unsent = false
	st.answered(b)
	st.stopWriting()
	tell := t.c.written(&st.queues, b, t.share)
	t.c.state.Unlock()
	if tell {
		t.c.unpark()
	} else if b.lends {
		t.c.lookLater()
	}
}

// build fills an empty batch.
func (t *sender) build(b *batch) {
	if m := &t.cur; m.active && !t.mayContinue(m) {
		// This is between two FPDUs, so a Terminate message can be sent.
		f := &failure{err: fabric.ConnError{Cause: ErrRevoked}, term: true, cause: catastrophic}
		if m.response {
			f.cause = rdmaProtection(rdmap.CodeInvalidSTag)
		}
		t.local = f
		b.sqDone = t.next
		return
	}
	for t.local == nil {
		if b.full() {
			b.more = true
			break
		}
		if !t.cur.active && !t.begin(b) {
			break
		}
		t.segment(b)
	}
	b.closeRun()
	b.sqDone = t.next
}

func (t *sender) mayContinue(m *message) bool {
	for i := m.si; i < m.nsge; i++ {
		if !t.c.stags.valid(m.ref[i]) {
			return false
		}
	}
	return true
}

// begin makes the next message the current one. On the way it executes requests that send nothing. It returns false if
// no message of the view can begin now.
func (t *sender) begin(b *batch) bool {
	if t.nudge {
		// The nudge goes before requests: these may be waiting for the peer.
		t.nudge = false
		m := &t.cur
		m.active, m.response, m.nudge = true, false, true
		m.op, m.stag, m.to = rdmap.OpWrite, noSTag, 0
		m.rem, m.si, m.so, m.nsge = 0, 0, 0, 0
		return true
	}
	for {
		var e *sqEntry
		if t.next != t.sq.tail {
			e = t.sq.at(t.next)
		}
		stalled := e == nil || t.stalled(e)
		if t.owes && (t.turn || stalled) {
			t.turn = false
			return t.beginResponse()
		}
		if stalled {
			return false
		}
		t.turn = true
		if e.op != fabric.OpBindMW && e.op != fabric.OpLocalInv {
			return t.beginRequest(e)
		}
		if e.op == fabric.OpLocalInv && b.exposes {
			// This batch may refer to the memory to invalidate. Invalidate it after the batch is written.
			b.more = true
			return false
		}
		if status := t.executeLocal(e); status != fabric.WCSuccess {
			t.failRequest(status)
			return false
		}
		t.next++
	}
}

// stalled reports whether a request must wait for earlier Reads.
func (t *sender) stalled(e *sqEntry) bool {
	return (e.flags&fabric.Fence != 0 || e.op == fabric.OpRead) && t.awaitsReads(e)
}

// awaitsReads implements stalled for a request that depends on Reads. It locks state.
func (t *sender) awaitsReads(e *sqEntry) bool {
	defer t.c.state.Unlock()
	return t.c.state.Lock().stalled(e, t.ord)
}

// executeLocal executes a request that sends nothing.
func (t *sender) executeLocal(e *sqEntry) fabric.WCStatus {
	if e.op == fabric.OpBindMW {
		if e.mw == nil || !t.c.stags.bind(e.mw) {
			return fabric.WCMWBindErr
		}
		return fabric.WCSuccess
	}
	if !t.c.stags.invalidate(e.rkey, false) {
		return fabric.WCLocQPOpErr
	}
	// The fence: nothing is being sent, because this goroutine holds tx, and nothing is being placed by an earlier
	// lookup once this goroutine has acquired rx.
	t.c.awaitRx()
	return fabric.WCSuccess
}

// failRequest records that the next request cannot be executed. The connection ends once everything before that request
// is written.
func (t *sender) failRequest(status fabric.WCStatus) {
	st := t.c.state.Lock()
	defer t.c.state.Unlock()
	e := st.sq.at(t.next)
	e.status = status
	t.local = &failure{
		err:   fabric.ConnError{Cause: &WorkError{e.id, status}},
		term:  true,
		cause: catastrophic,
	}
}

var sendOps = [2][2]rdmap.Opcode{
	{rdmap.OpSend, rdmap.OpSendSE},
	{rdmap.OpSendInv, rdmap.OpSendSEInv},
}

// beginRequest makes a request the current message.
func (t *sender) beginRequest(e *sqEntry) bool {
	m := &t.cur
	if e.op == fabric.OpRead && t.ord == 0 {
		t.failRequest(fabric.WCLocQPOpErr) // the peer's IRD is zero
		return false
	}
	for i := range int(e.nsge) {
		r, ok := t.c.stags.local(t.sges.at(e.sge+uint64(i)), e.op == fabric.OpRead)
		if !ok {
			t.failRequest(fabric.WCLocProtErr)
			return false
		}
		m.ref[i] = r
	}
	m.active, m.response = true, false
	m.stag, m.to, m.mo, m.qn = e.rkey, e.roff, 0, rdmap.QNSend
	m.rem, m.si, m.so, m.nsge, m.sge = e.n, 0, 0, int(e.nsge), e.sge
	switch e.op {
	case fabric.OpWrite:
		m.op = rdmap.OpWrite
	case fabric.OpRead:
		m.op, m.qn, m.stag = rdmap.OpReadRequest, rdmap.QNRead, 0
		rdmap.AppendReadRequest(m.control[:0], &rdmap.ReadRequest{
			SinkSTag: sinkSTag(t.next), SinkTO: sinkTO(t.next), Size: e.n, SrcSTag: e.rkey, SrcTO: e.roff,
		})
		m.rem, m.nsge = rdmap.ReadRequestLen, 1
		m.own, m.ref[0] = fabric.SGE{Buf: m.control[:]}, ref{}
		// The response may arrive as soon as the request is in the socket.
		st := t.c.state.Lock()
		*st.orq.push() = t.next
		t.c.state.Unlock()
	default:
		se, inv := 0, 0
		if e.flags&fabric.Solicited != 0 {
			se = 1
		}
		if e.op == fabric.OpSendInv {
			inv = 1
		} else {
			m.stag = 0
		}
		m.op = sendOps[inv][se]
	}
	return true
}

// beginResponse makes the response to the next Read of the peer the current message.
func (t *sender) beginResponse() bool {
	st := t.c.state.Lock()
	req := *st.irq.at(st.irqNext)
	t.c.state.Unlock()
	m := &t.cur
	m.own, m.ref[0] = fabric.SGE{}, ref{}
	if req.Size > 0 {
		// The STag was valid when the request arrived, but the memory may have been revoked
		// since. Bounds and rights cannot have changed, because a new use of the entry has a new
		// token. Checking them again costs nothing.
		buf, r, flt := t.c.stags.remote(req.SrcSTag, req.SrcTO, req.Size, fabric.AccessRemoteRead)
		if flt != faultNone {
			t.local = &failure{
				err:   fabric.ConnError{Cause: ErrRevoked},
				term:  true,
				cause: flt.readCause(),
			}
			return false
		}
		m.own, m.ref[0] = fabric.SGE{Buf: buf}, r
	}
	m.active, m.response = true, true
	m.op, m.stag, m.to = rdmap.OpReadResponse, req.SinkSTag, req.SinkTO
	m.rem, m.si, m.so, m.nsge = req.Size, 0, 0, 1
	return true
}

// segment appends one FPDU of the current message to b.
func (t *sender) segment(b *batch) {
	m := &t.cur
	if t.share != nil && m.op == rdmap.OpWrite && t.lend(b) {
		return
	}
	tagged := m.op.Tagged()
	most := t.maxUntagged
	if tagged {
		most = t.maxTagged
	}
	n := int(min(int64(m.rem), int64(most)))
	m.rem -= uint32(n)
	last := m.rem == 0

	start := b.na
	h := b.arena[:start]
	var ulpdu int
	if tagged {
		ulpdu = ddp.TaggedLen + n
		h = binary.BigEndian.AppendUint16(h, uint16(ulpdu))
		h = ddp.AppendTagged(h, &ddp.Tagged{Last: last, ULP: rdmap.Control(m.op), STag: m.stag, TO: m.to})
		m.to += uint64(n)
	} else {
		ulpdu = ddp.UntaggedLen + n
		h = binary.BigEndian.AppendUint16(h, uint16(ulpdu))
		h = ddp.AppendUntagged(h, &ddp.Untagged{Last: last, ULP: rdmap.Control(m.op), ULP32: m.stag, QN: m.qn, MSN: t.msn[m.qn], MO: m.mo})
		m.mo += uint32(n)
	}
	b.na = len(h)
	crc, summed := t.payload(b, start, n)
	binary.BigEndian.PutUint32(b.arena[b.na:], 0) // the pad, or more
	b.na += mpa.Pad(ulpdu)
	if t.crc {
		crc = mpa.UpdateCRC(crc, b.arena[summed:b.na])
	}
	mpa.PutCRC(b.arena[b.na:], crc) // zero if CRCs are not in use
	b.na += mpa.CRCLen
	b.bytes += mpa.FPDULen(ulpdu)
	b.exposes = b.exposes || m.response
	t.stats.fpdus++
	if last {
		t.finish(b)
	}
}

// gather returns the next element of the gather list of the current message.
func (t *sender) gather() *fabric.SGE {
	if m := &t.cur; m.op.IsSend() || m.op == rdmap.OpWrite {
		return t.sges.at(m.sge + uint64(m.si))
	}
	return &t.cur.own
}

// payload appends the next n bytes of the message to b. Up to copyMax bytes are copied into the arena, longer payloads
// become elements of the iovec. The FPDU begins at start in the arena. crc covers the arena up to summed and all bytes
// that were not copied.
func (t *sender) payload(b *batch, start, n int) (crc uint32, summed int) {
	m := &t.cur
	summed = start
	for left := n; left > 0; {
		buf := t.gather().Buf[m.so:]
		if len(buf) == 0 {
			m.si, m.so = m.si+1, 0
			continue
		}
		buf = buf[:min(left, len(buf))]
		m.so += len(buf)
		left -= len(buf)
		if n <= copyMax {
			b.na += copy(b.arena[b.na:], buf)
			continue
		}
		if t.crc {
			crc = mpa.UpdateCRC(mpa.UpdateCRC(crc, b.arena[summed:b.na]), buf)
			summed = b.na
		}
		b.closeRun()
		setIovec(&b.iov[b.niov], buf)
		b.ref[b.niov] = m.ref[m.si]
		b.niov++
	}
	return crc, summed
}

// finish removes the current message, which ends in b, from its queue.
func (t *sender) finish(b *batch) {
	m := &t.cur
	m.active = false
	if m.nudge {
		m.nudge = false
		return
	}
	if m.response {
		m.own.Buf = nil
		// The peer may send another Read Request as soon as the response is in the socket. The answered one must not
		// count against the IRD then.
		st := t.c.state.Lock()
		st.irqNext++
		t.owes = st.owes()
		t.c.state.Unlock()
		b.addResponse()
		return
	}
	if !m.op.Tagged() {
		t.msn[m.qn]++
	}
	t.next++
}

// lastWords sends a Terminate message, if that is possible without waiting. It returns true if it has aborted the
// stream instead. Then the caller must not shut down the stream in order.
func (t *sender) lastWords(f *failure) (silent bool) {
	if f.abort || t.share != nil && t.share.Returned() != t.share.Lends() {
		if t.b != nil || !t.c.idle() {
			t.sock.stream.Abort()
			return true
		}
		return false
	}
	if !f.term || t.c.txBroken.Load() || t.c.fin.Load() {
		return false
	}
	if t.c.held.Load() && !t.c.heard() {
		return false // nothing may be sent before the peer's first message
	}
	if t.b != nil && !t.c.held.Load() {
		// A Terminate message can only be sent between two FPDUs.
		if blocked, g := t.write(t.b); blocked || g != nil {
			return false
		}
		t.settle(t.b)
	}
	t.sendTerminate(f)
	return false
}

// heard reports whether the peer has sent anything since setup.
func (c *Conn) heard() bool {
	defer c.rx.Unlock()
	return c.rx.Lock().stats.bytes > 0
}

// sendTerminate writes the Terminate message. RFC 5040 section 4.8.
func (t *sender) sendTerminate(f *failure) {
	var buf [mpa.LengthLen + ddp.UntaggedLen + rdmap.MaxTerminateLen + 3 + mpa.CRCLen]byte
	ulpdu := ddp.AppendUntagged(buf[:0], &ddp.Untagged{
		Last: true, ULP: rdmap.Control(rdmap.OpTerminate), QN: rdmap.QNTerminate, MSN: t.msn[rdmap.QNTerminate],
	})
	m := rdmap.Terminate{Cause: f.cause}
	if f.quote != nil {
		m.HasSegment, m.Segment, m.DDP, m.RDMAP = true, uint16(f.seglen), f.quote, f.read
	}
	ulpdu = rdmap.AppendTerminate(ulpdu, &m)
	fpdu := mpa.AppendFPDU(nil, ulpdu, t.crc)
	v := make([]iovec, 1)
	setIovec(&v[0], fpdu)
	t.stats.writev++
	if n, err := t.sock.stream.Writev(v); err == nil {
		t.stats.bytes += uint64(n)
		t.stats.fpdus++
	}
}

func (p *Provider) getBatch() *batch {
	if b, ok := p.batches.Get().(*batch); ok {
		return b
	}
	return new(batch)
}

// releaseBatch returns the batch to the pool.
func (t *sender) releaseBatch() {
	b := t.b
	if b == nil {
		return
	}
	t.b = nil
	for i := range b.niov {
		v := &b.iov[i]
		*v = iovec{}
	}
	b.niov, b.pos, b.na, b.run, b.bytes = 0, 0, 0, 0, 0
	b.blocked, b.more, b.exposes, b.lends, b.nresp, b.sqDone = false, false, false, false, 0, 0
	t.c.p.batches.Put(b)
}
