//go:build linux && cgo

package rdmacm

import (
	"errors"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/baton"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/internal/pollfd"
)

// A queue is a completion queue with its channel, used by one connection or shared
// by several. Whoever polls it hands each completion to its connection.
type queue struct {
	dev    *device
	ch     *ibv.CompChannel
	cq     *ibv.CQ
	shared bool
	room   int // shared: entries not reserved by a connection; guarded by dev.mu
	users  int // shared: connections that have reserved entries; guarded by dev.mu

	mu      lockorder.Mutex
	closed  bool
	armed   bool   // an event is requested, or pending in the channel
	unacked uint32 // events taken but not acknowledged
	own     *Conn  // not shared
	conns   map[uint32]*Conn
	turns   baton.Baton[ibv.CompChannel, Conn] // shared: who waits parks on the channel, in turns
	leader  *Conn                              // shared: who does
	stats   PollCounts

	// Filled by C. They are here to avoid an allocation for each poll.
	wcs [32]cgo.WC
	out cgo.Outcome
}

// ackBatch is how many completion events are acknowledged at a time: each
// acknowledgement takes a lock in the library.
const ackBatch = 512

// queue returns a completion queue with enough free entries for a new connection.
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
	q.shared, q.conns = true, make(map[uint32]*Conn)
	q.turns.Give(q.ch)
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
	q := &queue{dev: d, ch: ch, cq: cq}
	q.mu.Init(lockorder.RdmacmQueue)
	return q, nil
}

// join registers c for the completions of its queue pair.
func (q *queue) join(c *Conn) {
	if q.shared {
		q.mu.Lock()
		q.conns[q.dev.lib.QPNum(c.qp)] = c
		q.mu.Unlock()
	}
}

// leave destroys c's queue pair and removes c from the queue. The last connection
// destroys the queue. Completions that have not been polled are dropped.
func (q *queue) leave(c *Conn) {
	q.mu.Lock()
	// One critical section: the device may reuse the number of this queue pair for
	// another connection, which must not see completions of this one. join needs
	// the same lock.
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
	// Unblocks a waiter parked on it.
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

// pump polls once, for up to 32 completions, and hands them to their connections. mu
// is held.
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
				continue // its queue pair has been destroyed
			}
		}
		c.completed(wc)
		if q.shared {
			// A leader that is parked needs no wake-up: the queue was armed before, so this
			// completion has raised an event.
			q.nudge(c)
		}
	}
	if q.out.PollErr != 0 {
		q.fail(syscall.Errno(q.out.PollErr))
	}
	return n
}

// fail ends all connections of a queue that can no longer be polled.
func (q *queue) fail(errno syscall.Errno) {
	reason := &fabric.ConnError{Provider: name, Cause: &DeviceError{Device: q.dev.name, Op: "ibv_poll_cq", Errno: errno}}
	if q.own != nil {
		go q.own.end(reason)
	}
	for _, c := range q.conns {
		go c.end(reason)
	}
}

// awaiting returns the flags with which c polls before it parks. Only the waiter that
// parks on the channel may arm the queue and take events. mu is held.
func (q *queue) awaiting(c *Conn) uint32 {
	switch {
	case q.shared && q.leader != c:
		return 0
	case q.armed:
		return cgo.Arm | cgo.TakeEvent
	}
	return cgo.Arm
}

// await calls step whenever c may have something to do, until step returns true or c
// is woken. step polls and arms the queue. await returns at once if ready returns true,
// which is called with mu held. Who calls wake changes what ready looks at before.
//
// One waiter of a shared queue, the leader, is parked on the completion channel. The
// others, the followers, sleep until whoever polls the queue finds a completion for them
// or the leader leaves.
func (q *queue) await(c *Conn, ready, step func() bool) (err error) {
	if !q.shared {
		return q.ch.Await(step)
	}
	offered := false // c has been woken to lead
	q.mu.Lock()
	for !q.closed && !ready() {
		if ch := q.turns.Take(); ch != nil {
			q.leader = c
			q.mu.Unlock()
			err = ch.Await(step)
			q.mu.Lock()
			q.leader = nil
			q.turns.Give(ch)
			offered = true
			break
		}
		q.turns.Join(&c.turn)
		q.mu.Unlock()
		if c.turn.Sleep() {
			return nil
		}
		offered = true
		q.mu.Lock()
	}
	var next *baton.Waiter[Conn]
	if offered {
		next = q.turns.Next()
	}
	q.mu.Unlock()
	next.Wake(false)
	return err
}

// mayReturn reports whether Wait must not park. queue.mu is held.
func (c *Conn) mayReturn() bool {
	if c.doneN > 0 || c.settled || c.wakeup.Load() {
		return true
	}
	if !c.ending.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == stateOver // settle is due
}

// nudge wakes c if it is a follower. mu is held.
func (q *queue) nudge(c *Conn) {
	if q.turns.Leave(&c.turn) {
		c.turn.Wake(true)
	}
}

// wake makes the waiter on c check again whether it has something to do.
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

// completed takes one completion of c. queue.mu is held.
func (c *Conn) completed(wc *cgo.WC) {
	if wc.ID&recvBit != 0 {
		c.recvCompleted(wc)
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
	c.retire()
	if read {
		c.readDone()
	}
}

// recvCompleted takes the completion of a receive. queue.mu is held.
func (c *Conn) recvCompleted(wc *cgo.WC) {
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
}

// retire removes completed requests from the head of the send queue. Callers get their
// completions in the order of the requests. So do devices report them, except siw, which
// reports a Read after requests behind it. An unsignaled request is complete once a later
// one is. queue.mu is held.
func (c *Conn) retire() {
	head := c.send.head.Load()
	before, inner := head, false
	for head <= c.passed {
		s := *c.send.at(head) // a copy: once head has moved the slot may be reused
		if !s.done && (s.signaled || head == c.passed) {
			break
		}
		pos := head
		head++
		c.send.head.Store(head)
		switch {
		case s.done:
			c.deliver(pos, &s)
		case c.failed:
			// Some devices flush unsignaled requests without a completion.
			s.wc = fabric.WC{ID: s.id, Status: fabric.WCFlushErr, Op: s.op}
			c.deliver(pos, &s)
		default:
			c.send.returned.Add(1)
		}
		inner = inner || s.internal
	}
	if inner {
		c.inner.Store(false)
	}
	if head != before && c.starved.Load() && c.starved.Swap(false) {
		c.wakeup.Store(true) // checked by a waiter before it parks
	}
}

// deliver queues the completion of the request at pos for the caller if the request was
// signaled or failed, unless tell has reported it.
func (c *Conn) deliver(pos uint64, s *slot) {
	if s.wc.Status != fabric.WCSuccess {
		c.failed = true
	} else if c.failed {
		// It was completed before one in front of it that failed.
		s.wc.Status = fabric.WCFlushErr
	}
	if (s.report || s.wc.Status != fabric.WCSuccess) && !s.internal && !(s.free && pos < c.told) {
		c.push(s.wc)
	} else {
		c.send.returned.Add(1)
	}
}

const wcWithInv = 1 << 3 // IBV_WC_WITH_INV

// rxeWithInv is the same flag from rxe, which reports the kernel's value for it. In
// libibverbs that bit is IBV_WC_IP_CSUM_OK, which rxe never sets: it does not check IP
// checksums.
const rxeWithInv = 1 << 2

// note ends the connection with the first request that fails.
func (c *Conn) note(wc *fabric.WC) {
	switch wc.Status {
	case fabric.WCSuccess:
	case fabric.WCFlushErr, fabric.WCLocQPOpErr:
		// siw reports the second for the removal of the device.
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

// push appends to the completions that have not been polled. The ring has an entry for
// each request, and a request keeps its slot until take has returned its completion.
func (c *Conn) push(wc fabric.WC) {
	c.done[(c.doneAt+c.doneN)%len(c.done)] = wc
	c.doneN++
}

// side returns the work queue of the request that wc completes.
func (c *Conn) side(wc *fabric.WC) *workQueue {
	if wc.Op == fabric.WCRecv {
		return &c.recv
	}
	return &c.send
}

// take moves completions to the caller. queue.mu is held.
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

// advance polls, and settles the connection if it is ending and the queue is empty. It
// reports whether Poll has something to return. queue.mu is held.
func (c *Conn) advance(flags uint32) bool {
	if c.doneN > 0 || c.settled {
		return true
	}
	// Completions may be internal or of other connections, and only an empty poll arms.
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
	if n > 0 {
		n += c.tell(wc[n:])
	}
	over := c.settled
	c.q.mu.Unlock()
	if n == 0 && over {
		return 0, c.connErr()
	}
	return n, nil
}

// notUp returns why the connection is not up.
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

// park waits for events until Wait can return.
func (c *Conn) park() {
	for {
		err := c.q.await(c, c.ready, c.wait)
		if err != nil && !errors.Is(err, pollfd.ErrWoken) {
			return // closed
		}
		if c.wakeup.Load() || c.waitStep() {
			return
		}
	}
}

// waitStep reports whether Wait can return. If not, the queue is armed: the next
// completion raises an event.
func (c *Conn) waitStep() bool {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return c.q.closed || c.advance(c.q.awaiting(c)) || c.wakeup.Load()
}

// waited returns the result of Wait: why the connection has ended if there is nothing
// left to poll, else nil.
func (c *Conn) waited() error {
	c.wakeup.Store(false) // Wake ends one Wait, this one
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
