//go:build linux && cgo

package rdmacm

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/baton"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
)

// A queue is a completion queue with its channel, used by one connection or shared by several. The goroutine that polls
// it hands each completion to its connection.
type queue struct {
	dev     *device
	ch      *ibv.CompChannel
	cq      *ibv.CQ
	shared  bool
	fixed   bool  // it has room for all requests that its connections may post
	own     *Conn // not shared
	load    lockorder.Part[queues, load]
	polling lockorder.Value[polling]
}

// queues are the shared queues of a device, guarded by device.queues.
type queues struct{ list []*queue }

// A load counts the use of a shared queue. It is guarded by device.queues.
type load struct {
	room  int // entries not reserved by a connection
	users int // connections that have reserved entries
}

// polling is the part of a queue, including the pollers of its connections, that is owned by the polling goroutine. It
// is guarded by queue.polling.
type polling struct {
	*queue
	closed  bool
	armed   bool   // an event is requested, or pending in the channel
	unacked uint32 // events taken but not acknowledged
	entries int    // completions that it can hold
	conns   map[uint32]*Conn
	turns   baton.Baton[ibv.CompChannel, Conn] // shared: waiters take turns to park on the channel
	leader  *Conn                              // shared: the waiter that is parked on the channel
	stats   PollCounts

	// Filled by C. Fields here avoid an allocation for each poll.
	wcs [32]cgo.WC
	out cgo.Outcome
}

// ackBatch is how many completion events are acknowledged at a time. Each acknowledgement locks a mutex of the library.
const ackBatch = 512

// entries returns how many completions there may be, including that of Disconnect's marker.
func (c *Conn) entries() int { return c.attr.SendDepth + c.attr.RecvDepth + 1 }

// queue returns a completion queue with enough free entries for a new connection.
func (d *device) queue(c *Conn, entries int) (*queue, error) {
	need := c.entries()
	if most := d.attr.MaxCQE; need > int(most) {
		return nil, &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("queues of %d and %d requests on %s, which takes %d completions", c.attr.SendDepth, c.attr.RecvDepth, d.name, most)}
	}
	if entries == 0 {
		first := need
		if d.resizes {
			first = min(need, firstSends+firstRecvs)
		}
		q, err := d.newQueue(first)
		if err != nil {
			return nil, err
		}
		q.own, q.fixed = c, first == need
		return q, nil
	}
	qs := d.queues.Lock()
	defer d.queues.Unlock()
	for _, q := range qs.list {
		if l := q.load.Of(qs); l.room >= need {
			l.room -= need
			l.users++
			return q, nil
		}
	}
	entries = min(max(entries, need), int(d.attr.MaxCQE))
	q, err := d.newQueue(entries)
	if err != nil {
		return nil, err
	}
	q.shared, q.fixed = true, true
	l := q.polling.Lock()
	l.conns = make(map[uint32]*Conn)
	l.turns.Give(q.ch)
	q.polling.Unlock()
	*q.load.Init() = load{entries - need, 1}
	qs.list = append(qs.list, q)
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
	l := q.polling.Init(lockorder.RdmacmQueue)
	l.queue, l.entries = q, entries
	return q, nil
}

// fit makes room for the given number of completions. The queue's memory counts toward that of an idle connection. So
// where the device allows it, the queue grows with the number of outstanding requests.
func (l *polling) fit(entries int) error {
	if l.fixed || l.closed || entries <= l.entries {
		return nil
	}
	if err := l.cq.Resize(entries); err != nil {
		return err
	}
	l.entries = entries
	return nil
}

// join registers c for the completions of its queue pair.
func (q *queue) join(c *Conn, qp *cgo.QP) {
	if q.shared {
		q.polling.Lock().conns[q.dev.lib.QPNum(qp)] = c
		q.polling.Unlock()
	}
}

// leave destroys c's queue pair and removes c from the queue. The last connection destroys the queue. Unpolled
// completions are dropped.
func (q *queue) leave(c *Conn) {
	l := q.polling.Lock()
	// Do this in one critical section. The device may reuse the number of this queue pair for another connection, which
	// must not see completions of this one. join needs the same lock.
	c.destroyQP()
	for l.pump(0) > 0 {
	}
	if q.shared {
		for num, other := range l.conns {
			if other == c {
				delete(l.conns, num)
			}
		}
	}
	c.poller.Of(l).leave()
	q.polling.Unlock()
	if q.shared {
		q.wake(c)
		qs := q.dev.queues.Lock()
		u := q.load.Of(qs)
		u.room += c.entries()
		u.users--
		last := u.users == 0
		if last {
			qs.list = slices.DeleteFunc(qs.list, func(other *queue) bool { return other == q })
		}
		q.dev.queues.Unlock()
		if !last {
			return
		}
	}
	l = q.polling.Lock()
	l.closed = true
	l.ackEvents()
	q.polling.Unlock()
	q.cq.Close()
	// Unblock a waiter parked on the channel.
	q.ch.Close()
}

func (l *polling) ackEvents() {
	if l.unacked > 0 {
		l.dev.lib.AckCQEvents(l.cq.Raw(), l.unacked)
		l.unacked = 0
	}
}

// pump polls once, for up to 32 completions, and hands them to their connections.
func (l *polling) pump(flags uint32) int {
	if l.closed {
		return 0
	}
	cgo.Progress(l.dev.lib, nil, nil, l.cq.Raw(), l.ch.Raw(), nil, nil, nil, l.wcs[:], flags, &l.out)
	n := int(l.out.WCs)
	l.stats.Calls++
	if n == 0 {
		l.stats.Empty++
	}
	if l.out.Events > 0 {
		l.stats.Events++
		l.armed = false
		if l.unacked++; l.unacked >= ackBatch {
			l.ackEvents()
		}
	}
	if l.out.Armed != 0 {
		l.stats.Arms++
		l.armed = true
	}
	for i := range l.wcs[:n] {
		wc := &l.wcs[i]
		c := l.own
		if l.shared {
			if c = l.conns[wc.QPNum]; c == nil {
				continue // its queue pair was destroyed
			}
		}
		c.poller.Of(l).completed(wc)
		if l.shared {
			// A parked leader needs no wake-up: the queue was armed before, so this completion has raised an event.
			l.nudge(c)
		}
	}
	if l.out.PollErr != 0 {
		l.fail(syscall.Errno(l.out.PollErr))
	}
	return n
}

// fail ends all connections of a queue that can no longer be polled.
func (l *polling) fail(errno syscall.Errno) {
	reason := &fabric.ConnError{Provider: name, Cause: &DeviceError{Device: l.dev.name, Op: "ibv_poll_cq", Errno: errno}}
	if l.own != nil {
		go l.own.end(reason)
	}
	for _, c := range l.conns {
		go c.end(reason)
	}
}

// awaiting returns the flags with which c polls before it parks. Only the waiter that
// parks on the channel may arm the queue and take events.
func (l *polling) awaiting(c *Conn) uint32 {
	switch {
	case l.shared && l.leader != c:
		return 0
	case l.armed:
		return cgo.Arm | cgo.TakeEvent
	}
	return cgo.Arm
}

// await calls step whenever c may have something to do, until step returns true or c is woken. step polls and arms the
// queue. If ready returns true, await returns at once. ready is called with the queue locked. A caller of wake changes
// the state that ready checks before calling wake.
//
// One waiter of a shared queue, the leader, is parked on the completion channel. The other waiters, the followers,
// sleep until the leader finds a completion for them or leaves.
func (q *queue) await(c *Conn, ready func(*polling) bool, step func() bool) (err error) {
	if !q.shared {
		return q.ch.Await(step)
	}
	offered := false // c has been woken to lead
	l := q.polling.Lock()
	for !l.closed && !ready(l) {
		if ch := l.turns.Take(); ch != nil {
			l.leader = c
			q.polling.Unlock()
			err = ch.Await(step)
			l = q.polling.Lock()
			l.leader = nil
			l.turns.Give(ch)
			offered = true
			break
		}
		l.turns.Join(&c.turn)
		q.polling.Unlock()
		if c.turn.Sleep() {
			return nil
		}
		offered = true
		l = q.polling.Lock()
	}
	var next *baton.Waiter[Conn]
	if offered {
		next = l.turns.Next()
	}
	q.polling.Unlock()
	next.Wake(false)
	return err
}

// mayReturn reports whether Wait must not park.
func (c *Conn) mayReturn(l *polling) bool {
	if p := c.poller.Of(l); p.n > 0 || p.settled || c.wakeup.Load() {
		return true
	}
	return c.ending.Load() && c.ended() // settle is due
}

// nudge wakes c if it is a follower.
func (l *polling) nudge(c *Conn) {
	if l.turns.Leave(&c.turn) {
		c.turn.Wake(true)
	}
}

// wake makes the waiter on c check again for something to do.
func (q *queue) wake(c *Conn) {
	if !q.shared {
		q.ch.Wake()
		return
	}
	l := q.polling.Lock()
	if l.leader == c {
		q.ch.Wake()
	} else {
		l.nudge(c)
	}
	q.polling.Unlock()
}
