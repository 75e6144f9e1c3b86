//go:build linux && cgo

package rdmacm

import (
	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/pollfd"
)

// A poller processes the completions of a connection. It is owned by the goroutine that polls the connection's queue,
// and guarded by the queue's lock.
type poller struct {
	c       *Conn
	sends   front
	recvs   front
	done    []fabric.WC // completions not polled yet: a ring with an entry for each slot
	at, n   int         // the first entry of done, and the number of entries
	passed  uint64      // the highest position of a send that the device has reported
	told    uint64      // position after the latest send that tell has reported
	failed  bool        // a send has failed
	settled bool
	turn    *pollfd.Turn // nil until a wait has polled for long
}

func (p *poller) init(c *Conn, sends, recvs slots) {
	p.c = c
	p.sends, p.recvs = front{&c.sends, sends}, front{&c.recvs, recvs}
	p.done = make([]fabric.WC, len(sends)+len(recvs))
}

// grow extends a ring to hold n more requests, and the completion queue to hold their completions. It fails if there is
// no memory for the completion queue.
func (p *poller) grow(l *polling, side *front, from *back, n int) error {
	if !from.tight(n) {
		return nil // another goroutine grew it
	}
	size := from.sizeFor(n)
	if err := l.fit(len(p.sends.slots) + len(p.recvs.slots) - len(side.slots) + size); err != nil {
		return err
	}
	side.grow(from, size)
	done := make([]fabric.WC, len(p.sends.slots)+len(p.recvs.slots))
	for i := range p.n {
		done[i] = p.done[(p.at+i)%len(p.done)]
	}
	p.done, p.at = done, 0
	return nil
}

// completed processes one completion of c.
func (p *poller) completed(wc *cgo.WC) {
	if wc.ID&recvBit != 0 {
		p.recvCompleted(wc)
		return
	}
	pos := wc.ID
	if !p.sends.outstanding(pos) {
		return
	}
	s := p.sends.at(pos)
	s.done = true
	s.wc = fabric.WC{ID: s.id, Status: fabric.WCStatus(wc.Status), VendorErr: wc.VendorErr, Op: s.op}
	if wc.Status == 0 && s.op == fabric.WCRead {
		s.wc.Len = wc.ByteLen
	}
	p.passed = max(p.passed, pos)
	read := p.c.dev.siw && s.op == fabric.WCRead && wc.Status == 0
	if wc.Status == int32(fabric.WCFlushErr) {
		p.c.cutShort(s)
	}
	p.c.note(&s.wc)
	p.retire()
	if read {
		p.c.readDone()
	}
}

// recvCompleted processes the completion of a receive.
func (p *poller) recvCompleted(wc *cgo.WC) {
	pos := wc.ID &^ recvBit
	if pos != p.recvs.head.Load() {
		return // flushed already
	}
	out := fabric.WC{ID: p.recvs.at(pos).id, Status: fabric.WCStatus(wc.Status), VendorErr: wc.VendorErr, Op: fabric.WCRecv}
	if wc.Status == 0 {
		out.Len = wc.ByteLen
		if wc.Flags&p.c.dev.withInv != 0 {
			out.WithInv, out.InvalidatedKey = true, wc.Imm
			p.c.memory.unbind(wc.Imm)
		}
	}
	p.recvs.head.Store(pos + 1)
	p.push(out)
	p.c.note(&out)
}

// retire removes completed requests from the head of the send queue. Callers get their completions in the order of the
// requests. Devices report them in that order too, except siw, which reports a Read after later requests. An unsignaled
// request is complete once a later request is.
func (p *poller) retire() {
	head := p.sends.head.Load()
	before, inner := head, false
	for head <= p.passed {
		s := *p.sends.at(head) // a copy: the slot may be reused once head has moved
		if !s.done && (s.signaled || head == p.passed) {
			break
		}
		pos := head
		head++
		p.sends.head.Store(head)
		switch {
		case s.done:
			p.deliver(pos, &s)
		case p.failed:
			// Some devices flush unsignaled requests without reporting a completion.
			s.wc = fabric.WC{ID: s.id, Status: fabric.WCFlushErr, Op: s.op}
			p.deliver(pos, &s)
		default:
			p.sends.returned.Add(1)
		}
		inner = inner || s.internal
	}
	if inner {
		p.c.inner.Store(false)
	}
	if head != before && p.c.starved.Load() && p.c.starved.Swap(false) {
		p.c.wakeup.Store(true) // checked by a waiter before it parks
	}
}

// deliver queues the completion of the request at pos for the caller if the request was signaled or failed. It skips
// requests that tell has reported.
func (p *poller) deliver(pos uint64, s *slot) {
	if s.wc.Status != fabric.WCSuccess {
		p.failed = true
	} else if p.failed {
		// It completed before an earlier request that failed.
		s.wc.Status = fabric.WCFlushErr
	}
	if (s.report || s.wc.Status != fabric.WCSuccess) && !s.internal && !(s.free && pos < p.told) {
		p.push(s.wc)
	} else {
		p.sends.returned.Add(1)
	}
}

const wcWithInv = 1 << 3 // IBV_WC_WITH_INV

// rxeWithInv is IBV_WC_WITH_INV as rxe reports it, with the kernel's value. In libibverbs that bit is
// IBV_WC_IP_CSUM_OK, which rxe never sets, because it does not check IP checksums.
const rxeWithInv = 1 << 2

// note ends the connection if wc is the first request that failed.
func (c *Conn) note(wc *fabric.WC) {
	switch wc.Status {
	case fabric.WCSuccess:
	case fabric.WCFlushErr, fabric.WCLocQPOpErr:
		// siw reports the second status when the device is removed.
		c.failing(wc)
	default:
		reason := requestFailed(wc)
		c.broke(reason)
		c.over(reason)
	}
}

// remoteFault reports whether the peer, or its silence, ended the connection.
func remoteFault(s fabric.WCStatus) bool {
	switch s {
	case fabric.WCRemInvReqErr, fabric.WCRemAccessErr, fabric.WCRemOpErr, fabric.WCRetryExcErr, fabric.WCRNRRetryErr, fabric.WCBadRespErr:
		return true
	}
	return false
}

// push appends a completion to those not yet polled. The ring has an entry for each request, and a request keeps its
// slot until take has returned its completion.
func (p *poller) push(wc fabric.WC) {
	p.done[(p.at+p.n)%len(p.done)] = wc
	p.n++
}

// side returns the work queue of the request that wc completes.
func (p *poller) side(wc *fabric.WC) *front {
	if wc.Op == fabric.WCRecv {
		return &p.recvs
	}
	return &p.sends
}

// take moves completions into wc.
func (p *poller) take(wc []fabric.WC) int {
	n := 0
	for n < len(wc) && p.n > 0 {
		wc[n] = p.done[p.at]
		p.side(&wc[n]).returned.Add(1)
		p.at = (p.at + 1) % len(p.done)
		p.n--
		n++
	}
	return n
}

// advance polls, and settles the connection if it is ending and the queue is empty. It reports whether Poll has
// something to return.
func (p *poller) advance(l *polling, flags uint32) bool {
	if p.n > 0 || p.settled {
		return true
	}
	// Completions may be internal or belong to other connections. Only an empty poll arms the queue.
	for l.pump(flags) > 0 {
		if p.n > 0 {
			return true
		}
		if flags != 0 {
			flags = l.awaiting(p.c)
		}
	}
	if p.c.ending.Load() {
		p.settle(l)
	}
	return p.n > 0 || p.settled
}

// tell reports deferred requests whose memory the user owns again, if there are at least tellQuiet of them, with one
// completion that stands for all. Poll calls it when it has something else to return, so it wakes no goroutine, and the
// device need not signal the requests.
func (p *poller) tell(wc []fabric.WC) int {
	c := p.c
	if len(wc) == 0 || c.deferred.Load() < tellQuiet || p.failed || p.settled {
		return 0
	}
	t := c.send.Lock()
	defer c.send.Unlock()
	u := &t.untold
	if u.firm > c.sends.head.Load() || len(t.held.wrs) > 0 {
		return 0 // completions follow the order of the requests; held-back requests have not been copied yet
	}
	wc[0] = fabric.WC{ID: u.id, Op: u.op}
	p.told = u.end
	c.deferred.Store(0)
	t.reports = fabric.Deferrals{}
	return 1
}

// settle ends the device's use of the queue pair and completes outstanding requests as
// flushed, once the reason of the end is known.
func (p *poller) settle(l *polling) {
	c := p.c
	if p.settled {
		return
	}
	// Disconnect even if the reason is not known. The event that answers reports the reason, unless the fault is on
	// this side.
	st := c.state.Lock()
	known, ask := st.phase == phaseOver, !st.alone
	c.state.Unlock()
	if known || ask {
		c.hangUp()
	}
	if !known {
		return
	}
	// A message may have arrived since the last poll. Libraries drop the completions of a queue pair together with the
	// queue pair.
	for l.pump(0) > 0 {
	}
	c.destroyQP()
	for l.pump(0) > 0 {
	}
	t, r := c.send.Lock(), c.recv.Lock()
	for pos := c.sends.head.Load(); pos != t.tail; pos++ {
		s := p.sends.at(pos)
		if s.done {
			p.deliver(pos, s)
			continue
		}
		s.wc = fabric.WC{ID: s.id, Status: fabric.WCFlushErr, Op: s.op}
		p.deliver(pos, s)
		c.cutShort(s)
	}
	c.sends.head.Store(t.tail)
	for pos := c.recvs.head.Load(); pos != r.tail; pos++ {
		p.push(fabric.WC{ID: p.recvs.at(pos).id, Status: fabric.WCFlushErr, Op: fabric.WCRecv})
	}
	c.recvs.head.Store(r.tail)
	p.settled = true
	c.recv.Unlock()
	c.send.Unlock()

	st = c.state.Lock()
	if st.cut != nil && st.err.Clean && st.err.Remote {
		// The peer disconnected during a request: the event arrived before the completion.
		st.err = st.cut
	}
	c.state.Unlock()
}

// leave drops unpolled completions after the queue pair has been destroyed.
func (p *poller) leave() {
	p.settled = true
	if p.turn != nil {
		p.turn.Close()
	}
	p.n = 0
	t, r := p.c.send.Lock(), p.c.recv.Lock()
	p.sends.head.Store(t.tail)
	p.recvs.head.Store(r.tail)
	p.c.recv.Unlock()
	p.c.send.Unlock()
}
