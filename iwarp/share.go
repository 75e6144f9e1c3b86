package iwarp

import (
	"encoding/binary"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/llp"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// Over a stream that is an llp.Sharer, an RDMA Write may lend its data instead of sending it. Its segments then contain
// the location of the data in memory that both ends have mapped. The peer copies the data from there to the destination,
// as it would from the stream. The request is complete when the peer has copied the data.

// opLent is the opcode of a segment that lends its data. RFC 5040 section 4.2 leaves it free. The payload of the segment
// is the location and the length of the data.
const (
	opLent  = rdmap.Opcode(0xf)
	lentLen = 8 + 4
)

const (
	// lendMin is the least data that costs less to lend than to copy.
	lendMin = 16 << 10

	// lendMost bounds the data of a segment, because the receiver places all of it under its lock.
	lendMost = 256 << 10
)

// A loan marks the end of a batch with segments that lend.
type loan struct {
	sqDone uint64 // queues.written advances to this entry
	n      uint64 // once the peer has returned this many loans
}

// lend appends a segment that lends the next element of the current message, or a part of it. It returns false if the
// element is not in memory that can be lent.
func (t *sender) lend(b *batch) bool {
	m := &t.cur
	if m.rem < lendMin {
		return false
	}
	buf := t.gather().Buf[m.so:]
	for len(buf) == 0 {
		m.si, m.so = m.si+1, 0
		buf = t.gather().Buf
	}
	if len(buf) < lendMin {
		return false
	}
	buf = buf[:min(len(buf), lendMost)]
	at, ok := t.share.Lend(buf)
	if !ok {
		return false
	}
	n := uint32(len(buf))
	m.so += len(buf)
	m.rem -= n
	var ulpdu [ddp.TaggedLen + lentLen]byte
	h := ddp.AppendTagged(ulpdu[:0], &ddp.Tagged{Last: m.rem == 0, ULP: rdmap.Control(opLent), STag: m.stag, TO: m.to})
	h = binary.BigEndian.AppendUint64(h, at)
	h = binary.BigEndian.AppendUint32(h, n)
	m.to += uint64(n)
	start := b.na
	b.na = len(mpa.AppendFPDU(b.arena[:b.na], h, t.crc))
	b.bytes += b.na - start
	b.lends = true
	t.stats.fpdus++
	t.stats.lent += uint64(n)
	if m.rem == 0 {
		t.finish(b)
	}
	return true
}

// lent places the data of a segment that lends it. The payload must be in the stage.
func (x *receiver) lent(h *ddp.Tagged) *failure {
	if x.pay != lentLen {
		return x.refuse(rdmaOperation(rdmap.CodeCatastrophicStream), "a loan in %d bytes", x.pay)
	}
	x.op, x.writing = rdmap.OpWrite, !h.Last
	payload := x.st[x.r:][:lentLen]
	at, n := binary.BigEndian.Uint64(payload), binary.BigEndian.Uint32(payload[8:])
	x.dst = x.ctl[:lentLen] // for the rest of parse
	data := x.share.Lent(at, uint64(n))
	if data == nil || n > lendMost {
		return x.refuse(ddpTagged(ddp.TaggedBaseBounds), "a loan of %d bytes at %#x", n, at)
	}
	flt := x.aim(h.STag)
	var dst []byte
	if flt == faultNone {
		dst, flt = x.target.at(h.TO, n)
	}
	if flt != faultNone {
		return x.refuse(flt.writeCause(), "RDMA Write of %d bytes to STag %#x, offset %#x: %v", n, h.STag, h.TO, flt)
	}
	copy(dst, data)
	if !x.share.Placed() {
		return &failure{err: fabric.ConnError{Remote: true, Cause: &BrokenError{"read", syscall.ECONNRESET}}}
	}
	return nil
}

// written accounts for a batch that has been written. It reports whether a waiting goroutine must check its conditions.
func (c *Conn) written(q *queues, b *batch, share llp.Sharer) (tell bool) {
	before := q.cq.tail
	switch {
	case b.lends:
		*q.loans.push() = loan{b.sqDone, share.Lends()}
		c.lent.Store(true)
	case q.loans.len() > 0:
		q.loans.at(q.loans.tail - 1).sqDone = b.sqDone // requests complete in order
	default:
		q.written = b.sqDone
	}
	q.retire()
	return c.retired(q, before)
}

// retired reports whether a waiting goroutine must check its conditions. before was the tail of the completion queue
// before requests were completed.
func (c *Conn) retired(q *queues, before uint64) (tell bool) {
	tell = q.cq.tail != before || c.wakeup.Load() // the send queue may no longer be full
	if c.drain.Load() {
		tell = tell || q.sq.len() == 0 && q.irq.len() == 0
	}
	return tell
}

// redeem completes the requests whose data the peer has copied.
func (c *Conn) redeem() {
	if !c.lent.Load() {
		return
	}
	st := c.state.Lock()
	if !c.lent.Load() { // the connection has ended, and its stream may be closed
		c.state.Unlock()
		return
	}
	n := c.link.Load().share.Returned()
	q := &st.queues
	before, loans := q.cq.tail, q.loans.len()
	for q.loans.len() > 0 && int64(n-q.loans.at(q.loans.head).n) >= 0 {
		q.written = q.loans.at(q.loans.head).sqDone
		q.loans.pop()
	}
	tell := false
	if q.loans.len() < loans {
		c.lent.Store(q.loans.len() > 0)
		q.retire()
		tell = c.retired(q, before)
	}
	c.state.Unlock()
	if tell {
		c.unpark()
	}
}

// lendFor is the interval at which this end checks for returned loans if nothing else makes it check. The peer does not
// announce returned loans: usually its next message follows at once, and two wakeups cost twice as much as one.
const lendFor = 5 * time.Millisecond

// lookLater arranges for look to be called.
func (c *Conn) lookLater() {
	if c.looks.Swap(true) {
		return
	}
	defer c.state.Unlock()
	if st := c.state.Lock(); st.looker == nil {
		st.looker = time.AfterFunc(lendFor, c.look)
	} else {
		st.looker.Reset(lendFor)
	}
}

// look completes the requests of returned loans, and schedules itself again if loans remain.
func (c *Conn) look() {
	c.looks.Store(false)
	if c.redeem(); c.lent.Load() {
		c.lookLater()
	}
}

// AllocMR implements fabric.Allocator, for shared memory.
func (c *Conn) AllocMR(n int) (fabric.MR, error) {
	l := c.link.Load()
	if l == nil || l.share == nil {
		return nil, fabric.ErrNotSupported
	}
	mem, err := l.share.Alloc(n)
	if err != nil {
		return nil, err
	}
	return &shared{mem: mem, share: l.share}, nil
}

// A shared is memory that the peer has mapped, too.
type shared struct {
	mem   []byte
	share llp.Sharer // nil once closed
}

// Bytes implements fabric.MR.
func (m *shared) Bytes() []byte { return m.mem }

// LKey implements fabric.MR.
func (m *shared) LKey() uint32 { return fabric.LocalDMAKey }

// Segment implements fabric.MR: it is not exposed.
func (m *shared) Segment() fabric.Segment { return fabric.Segment{} }

// Close implements fabric.MR.
func (m *shared) Close() error {
	if m.share != nil {
		m.share.Free(m.mem)
		m.share, m.mem = nil, nil
	}
	return nil
}
