//go:build linux && cgo

package rdmacm

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/pollfd"
)

// A queue is a completion queue with its channel, of one connection or of several.
// Whoever polls it sorts the completions to their connections.
type queue struct {
	dev    *device
	ch     *ibv.CompChannel
	cq     *ibv.CQ
	shared bool
	room   int // shared: completions not promised to a connection; guarded by dev.mu
	users  int // shared: connections that it is promised to; guarded by dev.mu

	mu      sync.Mutex
	closed  bool
	armed   bool   // an event is asked for, or waits in the channel
	unacked uint32 // events taken and not acknowledged
	own     *Conn  // not shared
	conns   map[uint32]*Conn
	waiting map[*Conn]struct{} // shared: waiters that do not lead
	leader  *Conn              // shared: who is parked on the channel
	stats   PollStats

	// The C side fills these; here, so that they need no allocation.
	wcs [32]cgo.WC
	out cgo.Outcome
}

// ackBatch is how many completion events are acknowledged together: each time is a
// lock in the library.
const ackBatch = 512

// queue returns the completion queue for a new connection.
func (d *device) queue(c *Conn, entries int) (*queue, error) {
	need := c.attr.SendDepth + c.attr.RecvDepth + 1 // and Disconnect's marker
	if entries == 0 {
		q, err := d.newQueue(need)
		if err != nil {
			return nil, err
		}
		q.own = c
		return q, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.queues {
		if q.room >= need {
			q.room -= need
			q.users++
			return q, nil
		}
	}
	entries = min(max(entries, need), int(d.attr.MaxCQE))
	q, err := d.newQueue(entries)
	if err != nil {
		return nil, err
	}
	q.shared, q.conns, q.waiting = true, make(map[uint32]*Conn), make(map[*Conn]struct{})
	q.room, q.users = entries-need, 1
	d.queues = append(d.queues, q)
	return q, nil
}

func (d *device) newQueue(entries int) (*queue, error) {
	ch, err := d.ctx.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := d.ctx.CreateCQ(entries, ch, 0)
	if err != nil {
		ch.Close()
		return nil, err
	}
	return &queue{dev: d, ch: ch, cq: cq}, nil
}

// join has completions of c's queue pair given to c.
func (q *queue) join(c *Conn) {
	if q.shared {
		q.mu.Lock()
		q.conns[q.dev.lib.QPNum(c.qp)] = c
		q.mu.Unlock()
	}
}

// leave destroys c's queue pair and takes c out, and with the last connection the
// queue goes. Completions that were not polled are gone.
func (q *queue) leave(c *Conn) {
	q.mu.Lock()
	// Under one lock, which a newcomer needs: the device may give it the number of
	// this queue pair, and nothing of this one must be left then.
	c.destroyQP()
	for q.pump(0) > 0 {
	}
	if q.shared {
		for num, other := range q.conns {
			if other == c {
				delete(q.conns, num)
			}
		}
	}
	c.settled = true
	if c.spin.turn != nil {
		c.spin.turn.Close()
	}
	c.doneN = 0
	c.send.head.Store(c.sendTail())
	c.recvMu.Lock()
	c.recv.head.Store(c.recv.tail)
	c.recvMu.Unlock()
	q.mu.Unlock()
	if q.shared {
		q.wake(c)
		q.dev.mu.Lock()
		q.room += c.attr.SendDepth + c.attr.RecvDepth + 1
		q.users--
		last := q.users == 0
		if last {
			q.dev.queues = without(q.dev.queues, q)
		}
		q.dev.mu.Unlock()
		if !last {
			return
		}
	}
	q.mu.Lock()
	q.closed = true
	q.ackEvents()
	q.mu.Unlock()
	q.cq.Close()
	// Unblocks whoever is parked on it.
	q.ch.Close()
}

func without(list []*queue, q *queue) []*queue {
	out := list[:0]
	for _, other := range list {
		if other != q {
			out = append(out, other)
		}
	}
	return out
}

func (q *queue) ackEvents() {
	if q.unacked > 0 {
		q.dev.lib.AckCQEvents(q.cq.Raw(), q.unacked)
		q.unacked = 0
	}
}

// pump polls once, up to 32 completions, and hands them to their connections. mu is
// held.
func (q *queue) pump(flags uint32) int {
	if q.closed {
		return 0
	}
	cgo.Progress(q.dev.lib, nil, nil, q.cq.Raw(), q.ch.Raw(), nil, nil, nil, q.wcs[:], flags, &q.out)
	n := int(q.out.WCs)
	q.stats.Calls++
	if n == 0 {
		q.stats.Empty++
	}
	if q.out.Events > 0 {
		q.stats.Events++
		q.armed = false
		if q.unacked++; q.unacked >= ackBatch {
			q.ackEvents()
		}
	}
	if q.out.Armed != 0 {
		q.stats.Arms++
		q.armed = true
	}
	for i := range q.wcs[:n] {
		wc := &q.wcs[i]
		c := q.own
		if q.shared {
			if c = q.conns[wc.QPNum]; c == nil {
				continue // of a queue pair that is gone
			}
		}
		c.completed(wc)
		switch {
		case !q.shared:
		case c != q.leader:
			q.nudge(c)
		case flags&cgo.Arm == 0:
			q.ch.Wake() // it is parked, and we have polled in its place
		}
	}
	if q.out.PollErr != 0 {
		q.fail(syscall.Errno(q.out.PollErr))
	}
	return n
}

// fail ends all connections of a queue that cannot be polled any more.
func (q *queue) fail(errno syscall.Errno) {
	reason := &fabric.ConnError{Provider: name, Cause: &DeviceError{Device: q.dev.name, Op: "ibv_poll_cq", Errno: errno}}
	if q.own != nil {
		go q.own.end(reason)
	}
	for _, c := range q.conns {
		go c.end(reason)
	}
}

// awaiting is what pump has to be told for c, who will park when it returns 0. Only
// who parks on the channel may take events from it. mu is held.
func (q *queue) awaiting(c *Conn) uint32 {
	switch {
	case q.shared && q.leader != c:
		return 0
	case q.armed:
		return cgo.Arm | cgo.TakeEvent
	}
	return cgo.Arm
}

// await runs step whenever there may be something for c, until it returns true or
// somebody wakes c. step polls the queue, and arms it. It returns at once when there
// is something already.
//
// Of those who wait on a shared queue one leads: it is parked on the channel, and
// the others on channels of their own until the leader, or anybody who polls, has
// something for them, or the lead to give away. Whoever stops waiting, for whatever
// reason, sees to it that another one leads.
func (q *queue) await(c *Conn, step func() bool) error {
	if !q.shared {
		return q.ch.Await(step)
	}
	q.mu.Lock()
	if q.closed || c.ready() {
		q.mu.Unlock()
		return nil
	}
	var err error
	if q.leader == nil {
		q.leader = c
		q.mu.Unlock()
		err = q.ch.Await(step)
		q.mu.Lock()
		q.leader = nil
	} else {
		q.waiting[c] = struct{}{}
		q.mu.Unlock()
		<-c.turn
		q.mu.Lock()
		delete(q.waiting, c)
	}
	if q.leader == nil {
		for next := range q.waiting {
			q.nudge(next)
			break
		}
	}
	q.mu.Unlock()
	return err
}

// ready reports whether Wait has something to do other than to wait. queue.mu is
// held.
func (c *Conn) ready() bool {
	if c.doneN > 0 || c.settled || c.wakeup.Load() {
		return true
	}
	if !c.ending.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == stateOver // to be settled
}

// nudge makes a waiter that does not lead look again. mu is held.
func (q *queue) nudge(c *Conn) {
	if _, ok := q.waiting[c]; !ok {
		return
	}
	select {
	case c.turn <- struct{}{}:
	default:
	}
}

// wake makes whoever waits for c look again.
func (q *queue) wake(c *Conn) {
	if !q.shared {
		q.ch.Wake()
		return
	}
	q.mu.Lock()
	if q.leader == c {
		q.ch.Wake()
	} else {
		q.nudge(c)
	}
	q.mu.Unlock()
}

// completed takes one completion. queue.mu is held.
func (c *Conn) completed(wc *cgo.WC) {
	if wc.ID&recvBit != 0 {
		pos := wc.ID &^ recvBit
		if pos != c.recv.head.Load() {
			return // flushed already
		}
		out := fabric.WC{ID: c.recv.at(pos).id, Status: fabric.WCStatus(wc.Status), VendorErr: wc.VendorErr, Op: fabric.WCRecv}
		if wc.Status == 0 {
			out.Len = wc.ByteLen
			if wc.Flags&c.dev.withInv != 0 {
				out.WithInv, out.InvalidatedKey = true, wc.Imm
				c.unbind(wc.Imm)
			}
		}
		c.recv.head.Store(pos + 1)
		c.push(out)
		c.note(&out)
		return
	}
	pos := wc.ID
	if !c.send.outstanding(pos) {
		return
	}
	s := c.send.at(pos)
	s.done = true
	s.wc = fabric.WC{ID: s.id, Status: fabric.WCStatus(wc.Status), VendorErr: wc.VendorErr, Op: s.op}
	if wc.Status == 0 && s.op == fabric.WCRead {
		s.wc.Len = wc.ByteLen
	}
	c.passed = max(c.passed, pos)
	read := c.dev.siw && s.op == fabric.WCRead && wc.Status == 0
	if wc.Status == int32(fabric.WCFlushErr) {
		c.cutShort(s)
	}
	c.note(&s.wc)
	// In order, and so is what the device reports, but for siw, whose Reads are
	// overtaken by what is behind them. What is not signaled is done when
	// something behind it is.
	head := c.send.head.Load()
	before, inner := head, false
	for head <= c.passed {
		s := *c.send.at(head) // its place may be taken at once
		if !s.done && (s.signaled || head == c.passed) {
			break
		}
		head++
		c.send.head.Store(head)
		switch {
		case s.done:
			c.deliver(&s)
		case c.failed:
			// Some devices flush in silence what is not signaled.
			s.wc = fabric.WC{ID: s.id, Status: fabric.WCFlushErr, Op: s.op}
			c.deliver(&s)
		default:
			c.send.returned.Add(1)
		}
		inner = inner || s.internal
	}
	if inner {
		c.inner.Store(false)
	}
	if head != before && c.starved.Load() && c.starved.Swap(false) {
		c.wakeup.Store(true) // whoever waits for c looks at that before parking
	}
	if read {
		c.readDone()
	}
}

// deliver gives the caller a completion that it asked for, or of a request that
// failed.
func (c *Conn) deliver(s *slot) {
	if s.wc.Status != fabric.WCSuccess {
		c.failed = true
	} else if c.failed {
		// It overtook the one that failed.
		s.wc.Status = fabric.WCFlushErr
	}
	if (s.report || s.wc.Status != fabric.WCSuccess) && !s.internal {
		c.push(s.wc)
	} else {
		c.send.returned.Add(1)
	}
}

const wcWithInv = 1 << 3 // IBV_WC_WITH_INV

// rxeWithInv is how rxe says it: the kernel's own number for the flag, which is
// IBV_WC_IP_CSUM_OK to libibverbs. rxe checks no IP checksums for it to report.
const rxeWithInv = 1 << 2

// note ends the connection with the first request that fails.
func (c *Conn) note(wc *fabric.WC) {
	switch wc.Status {
	case fabric.WCSuccess:
	case fabric.WCFlushErr, fabric.WCLocQPOpErr:
		// The second is what siw says of its removal.
		c.failing(wc)
	default:
		reason := requestFailed(wc)
		c.broke(reason)
		c.over(reason)
	}
}

// remoteFault tells whether the peer ended the connection, or its silence did.
func remoteFault(s fabric.WCStatus) bool {
	switch s {
	case fabric.WCRemInvReqErr, fabric.WCRemAccessErr, fabric.WCRemOpErr, fabric.WCRetryExcErr, fabric.WCRNRRetryErr, fabric.WCBadRespErr:
		return true
	}
	return false
}

// push appends to the completions that have not been polled. There is room: each
// request completes once, and is returned in take.
func (c *Conn) push(wc fabric.WC) {
	c.done[(c.doneAt+c.doneN)%len(c.done)] = wc
	c.doneN++
}

// side is the queue that a completion is of.
func (c *Conn) side(wc *fabric.WC) *workQueue {
	if wc.Op == fabric.WCRecv {
		return &c.recv
	}
	return &c.send
}

func (c *Conn) take(wc []fabric.WC) int {
	n := 0
	for n < len(wc) && c.doneN > 0 {
		wc[n] = c.done[c.doneAt]
		c.side(&wc[n]).returned.Add(1)
		c.doneAt = (c.doneAt + 1) % len(c.done)
		c.doneN--
		n++
	}
	return n
}

// advance polls, and settles the connection when it is ending and nothing comes
// any more. It reports whether there is something for Poll to return. queue.mu is
// held.
func (c *Conn) advance(flags uint32) bool {
	if c.doneN > 0 || c.settled {
		return true
	}
	// What comes need not be for the caller, and only an empty poll arms.
	for c.q.pump(flags) > 0 {
		if c.doneN > 0 {
			return true
		}
		if flags != 0 {
			flags = c.q.awaiting(c)
		}
	}
	if c.ending.Load() {
		c.settle()
	}
	return c.doneN > 0 || c.settled
}

// Poll implements fabric.Conn.
func (c *Conn) Poll(wc []fabric.WC) (int, error) {
	if !c.up.Load() {
		return 0, c.notUp()
	}
	c.q.mu.Lock()
	c.advance(0)
	n := c.take(wc)
	over := c.settled
	c.q.mu.Unlock()
	if n == 0 && over {
		return 0, c.connErr()
	}
	return n, nil
}

// notUp is why there is nothing to poll before set-up has succeeded.
func (c *Conn) notUp() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == stateOver {
		return c.connErrLocked()
	}
	return ErrNotConnected
}

// Wait implements fabric.Conn.
func (c *Conn) Wait() error {
	if !c.up.Load() {
		return c.notUp()
	}
	switch c.p.cfg.Wait {
	case WaitPoll:
		c.poll(time.Now(), 0)
	case WaitEvent:
		c.park()
	default:
		start := time.Now()
		limit := c.spin.begin(c.recv.head.Load())
		if limit == 0 || !c.poll(start, limit) {
			c.park()
		}
		if !c.wakeup.Load() {
			c.spin.end(c.recv.head.Load(), time.Since(start))
		}
	}
	return c.waited()
}

// park waits for events until Wait has something to return for.
func (c *Conn) park() {
	for {
		err := c.q.await(c, c.wait)
		if err != nil && !errors.Is(err, pollfd.ErrWoken) {
			return // closed
		}
		if c.wakeup.Load() || c.waitStep() {
			return
		}
	}
}

// waitStep reports whether Wait has something to return for. It polls, and sees to
// it that the next completion raises an event.
func (c *Conn) waitStep() bool {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return c.q.closed || c.advance(c.q.awaiting(c)) || c.wakeup.Load()
}

// waited is what Wait returns when there is something: the reason of the end if
// nothing else is left.
func (c *Conn) waited() error {
	c.wakeup.Store(false) // a Wake that came meanwhile was for this Wait
	c.q.mu.Lock()
	over := c.settled && c.doneN == 0
	c.q.mu.Unlock()
	if over {
		return c.connErr()
	}
	return nil
}

// Wake implements fabric.Conn.
func (c *Conn) Wake() {
	c.wakeup.Store(true)
	c.q.wake(c)
}
