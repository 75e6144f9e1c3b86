package transport

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// Progress: leader and followers.
//
// A connection moves when somebody polls it. Whoever waits for something takes
// the progress token if it is free and becomes the leader; the others are
// followers, parked on a channel. The leader completes followers' calls as it
// meets their replies. When its own is in, it hands the token to a follower and
// leaves. With one call at a time nobody is ever handed anything.
//
// While nobody waits, a goroutine in the background leads, so that the end of
// the connection is noticed and late replies give their credits back. It takes
// over only when the connection has been quiet for a tick, and leaves when
// there are callers enough: at the second call within a tick. A connection that
// has a call now and then, one of a thousand, costs each of them one wake-up
// instead of a lead that is taken, given back and watched for by timers.
//
// A server's connection is led by its own goroutine, its keeper, since calls may come
// at any time: callers of backward calls are followers. When many calls in a row go
// backward and none comes forward, the keeper stands aside, and callers lead for
// themselves, as at a client. It is back at the first forward call, and when nobody
// has led for a tick.

// tickTime is how long a connection is quiet before the background takes over,
// and how long a leader waits before its context is watched. Where the peer may call,
// it takes no longer than quietTime until somebody leads again.
const (
	tickTime  = 2 * time.Millisecond
	quietTime = 500 * time.Microsecond
)

// firstPoll is how many completions are taken at once, mostPoll how many when there are
// that many: a connection that is idle, or short, needs no room for them.
const (
	firstPoll = 4
	mostPoll  = 32
)

// manyBackward is how many backward calls in a row make the keeper stand aside.
const manyBackward = 16

// A waiter is a goroutine that waits for the leader to do something, ready, or
// to hand over the token. Fields are guarded by conn.mu.
type waiter struct {
	// wake has room for one: whoever takes the waiter off the list sends
	// exactly one value, the waiter receives it. True spares it another look.
	wake       chan bool
	prev, next *waiter
	queued     bool
	ready      bool

	// Of a caller that waits for a credit:
	call    *Call
	slot    *slot // what it was given
	leaving bool  // its context has ended
}

func newWaiter() *waiter { return &waiter{wake: make(chan bool, 1)} }

// A waitList is a FIFO of waiters.
type waitList struct{ head waiter }

func (l *waitList) init()       { l.head.prev, l.head.next = &l.head, &l.head }
func (l *waitList) empty() bool { return l.head.next == &l.head }

func (l *waitList) push(w *waiter) {
	w.prev, w.next = l.head.prev, &l.head
	w.prev.next, l.head.prev = w, w
	w.queued = true
}

func (l *waitList) remove(w *waiter) {
	w.prev.next, w.next.prev = w.next, w.prev
	w.prev, w.next, w.queued = nil, nil, false
}

func (l *waitList) pop() *waiter {
	if l.empty() {
		return nil
	}
	w := l.head.next
	l.remove(w)
	return w
}

// await returns nil when w is ready or the connection has ended, leading if
// nobody else does, and ctx's error when that ends first.
func (c *conn) await(ctx context.Context, w *waiter) error {
	c.mu.Lock()
	for !w.ready && !c.ended {
		if !c.leading {
			c.startLeading(ctx)
			c.mu.Unlock()
			c.lead(ctx, w)
			c.mu.Lock()
			next := c.stopLeading()
			ready := w.ready || c.ended
			c.mu.Unlock()
			if next != nil {
				next.wake <- false
			}
			if ready {
				return nil
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			c.mu.Lock()
			continue
		}
		c.waiters.push(w)
		c.mu.Unlock()
		if done, err := c.follow(ctx, w); done {
			return err
		}
		c.mu.Lock()
	}
	c.mu.Unlock()
	return nil
}

// follow waits for the leader to wake w, which is in the list. It returns false when
// that was for w to lead.
func (c *conn) follow(ctx context.Context, w *waiter) (done bool, err error) {
	ready, woken := sleep(ctx, w.wake)
	if woken {
		return ready, nil
	}
	c.mu.Lock()
	if w.queued {
		c.waiters.remove(w)
	} else {
		// Woken at the same time. Should it have been the token, the
		// next in line gets it.
		c.mu.Unlock()
		<-w.wake
		c.mu.Lock()
	}
	ready = w.ready || c.ended
	next := c.nextLeader()
	c.mu.Unlock()
	if next != nil {
		next.wake <- false
	}
	if ready {
		return true, nil
	}
	return true, ctx.Err()
}

// sleep waits for the wake-up, or for the end of ctx.
func sleep(ctx context.Context, wake <-chan bool) (ready, woken bool) {
	done := ctx.Done()
	if done == nil {
		return <-wake, true // a third of what a select costs
	}
	select {
	case ready = <-wake:
		return ready, true
	case <-done:
		return false, false
	}
}

// startLeading takes the token. mu is held.
func (c *conn) startLeading(ctx context.Context) {
	c.leading = true
	c.leads++
	if ctx.Done() != nil {
		c.leadCtx = ctx
		c.arm()
	}
}

// stopLeading gives the token back and returns the follower to wake for it. mu
// is held.
func (c *conn) stopLeading() *waiter {
	c.leading = false
	c.leadCtx = nil
	if c.unwatch != nil {
		c.unwatch()
		c.unwatch = nil
	}
	if c.ended {
		return nil
	}
	if c.wantsKeeper() {
		return c.callKeeper()
	}
	if c.awaitsCalls() {
		c.startTick(quietTime)
	} else {
		c.arm()
	}
	return c.nextLeader()
}

// awaitsCalls tells whether the peer may call, so that there has to be a leader. mu is held.
func (c *conn) awaitsCalls() bool {
	return c.aside || c.role == roleClient && len(c.cfg.Callbacks) > 0
}

// wantsKeeper tells whether the keeper, which stands aside, has to lead again: calls come
// forward, or the server is shutting down. mu is held. Leader.
func (c *conn) wantsKeeper() bool {
	return c.aside && (c.streak < manyBackward || c.drain.Load() != nil)
}

// callKeeper gives the token to the keeper, which is to be woken. mu is held.
func (c *conn) callKeeper() *waiter {
	c.aside = false
	c.streak = 0
	c.leading = true
	c.leads++
	return &c.keeper
}

// standAside leaves the connection to those who make backward calls, until the keeper has
// to lead again. It returns false when the connection has ended. Leader.
func (c *conn) standAside() bool {
	c.mu.Lock()
	c.aside = true
	next := c.stopLeading()
	c.mu.Unlock()
	if next != nil {
		next.wake <- false
	}
	<-c.keeper.wake
	return c.lives()
}

// nextLeader takes a follower off the list to become the leader, if there is
// none. mu is held.
func (c *conn) nextLeader() *waiter {
	if c.leading || c.ended {
		return nil
	}
	return c.waiters.pop()
}

// markReady completes what w waits for; the leader's pass wakes it at its end.
// mu is held. Leader.
func (c *conn) markReady(w *waiter) {
	w.ready = true
	if w.queued {
		c.waiters.remove(w)
		c.wakes = append(c.wakes, w)
	}
}

// lead moves the connection until w is ready, ctx has ended, or the connection
// has.
func (c *conn) lead(ctx context.Context, w *waiter) {
	for c.step() {
		c.mu.Lock()
		ready := w.ready || c.wantsKeeper()
		c.mu.Unlock()
		if ready || ctx.Err() != nil {
			return
		}
	}
}

// step waits for completions and handles all there are. It returns false when
// the connection has ended. Leader.
func (c *conn) step() bool {
	err := c.fc.Wait()
	if c.req.chore.Load() {
		c.req.open()
		c.rsp.admit() // for which others may have made room
		c.endPass()
	}
	for first := true; err == nil && c.fatal == nil; first = false {
		var n int
		n, err = c.fc.Poll(c.wcs)
		if n == 0 {
			if first {
				c.sq.flush() // Wait may have returned for room alone
			}
			break
		}
		for i := range c.wcs[:n] {
			c.complete(&c.wcs[i])
		}
		c.endPass()
		if n < len(c.wcs) {
			break
		}
		if n < mostPoll {
			c.wcs = make([]fabric.WC, min(2*n, mostPoll))
		}
	}
	if err != nil || c.fatal != nil {
		c.finish(err)
		return false
	}
	return true
}

// endPass lets go what a pass over completions has gathered: our messages, then our
// callers. Leader.
func (c *conn) endPass() {
	if len(c.replies) > 0 {
		c.sq.addReplies(c.replies...)
		clear(c.replies)
		c.replies = c.replies[:0]
	}
	c.sq.flush()
	c.wakeAll()
}

func (c *conn) wakeAll() {
	for i, w := range c.wakes {
		c.wakes[i] = nil
		w.wake <- w.ready
	}
	c.wakes = c.wakes[:0]
}

// arm starts the tick. mu is held.
func (c *conn) arm() {
	if !c.ticking && !c.ended {
		c.startTick(tickTime)
	}
}

// startTick has the next tick come after d. mu is held.
func (c *conn) startTick(d time.Duration) {
	c.ticking = true
	if c.tick == nil {
		c.tick = time.AfterFunc(d, c.onTick)
	} else {
		c.tick.Reset(d)
	}
}

// onTick runs every tickTime while callers lead. It costs the calls nothing:
// a connection in use sees two different leaders at two ticks and is left
// alone. Else either nobody leads, and the background takes over, or a leader
// has waited for a whole tick, and from now on its context can interrupt it.
func (c *conn) onTick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ticking = false
	if c.ended || c.role == roleServer && !c.aside {
		return
	}
	if c.leads != c.seen && (c.leading || !c.awaitsCalls()) {
		c.seen = c.leads
		c.arm()
		return
	}
	switch {
	case !c.leading && c.aside:
		c.callKeeper().wake <- false // which has room: the keeper waits for it
	case !c.leading:
		c.leading = true
		c.leads++
		go c.background()
	case c.leadCtx != nil && c.unwatch == nil:
		c.unwatch = context.AfterFunc(c.leadCtx, c.fc.Wake)
	}
}

// background leads until calls have come in quick succession, or a caller waits for
// more than its reply.
func (c *conn) background() {
	var last time.Time // when a call has been completed
	for {
		c.mu.Lock()
		before := c.req.completed
		c.mu.Unlock()
		if !c.step() {
			return
		}
		c.mu.Lock()
		leave := !c.waiters.empty()
		if c.req.completed != before {
			now := time.Now()
			leave = leave || now.Sub(last) < tickTime
			last = now
		}
		if leave {
			next := c.stopLeading()
			c.mu.Unlock()
			if next != nil {
				next.wake <- false
			}
			return
		}
		c.mu.Unlock()
	}
}

// A sendQueue combines what goroutines post: the first to come posts for those
// that come meanwhile, so that many small messages share a doorbell.
type sendQueue struct {
	c *conn

	mu       sync.Mutex
	pending  []fabric.SendWR
	spare    []fabric.SendWR
	flushing bool
	again    bool // there may be more room than the flush under way has met

	// Replies whose Sends are not signaled and that no completion has told of
	// yet, in the order of the queue; and how many such there have been.
	silent  []*exch
	silents uint64

	replies uint32 // queued so far

	// What the peer has a part in: requests queued and completed so far, as far as
	// completions tell. See conn.look.
	awaited, met           uint64
	readsAwaited, readsMet uint64
	waiting                atomic.Int32     // len(silent)
	gone                   [maxSilent]*exch // scratch; leader
}

func (q *sendQueue) init(c *conn) { q.c = c }

// add queues requests for the next flush. Their SGL stays the caller's to keep
// alive until their completion.
func (q *sendQueue) add(wrs []fabric.SendWR) {
	q.mu.Lock()
	q.pending = append(q.pending, wrs...)
	q.mu.Unlock()
}

// addRead is add for an RDMA Read.
func (q *sendQueue) addRead(wrs []fabric.SendWR) {
	q.mu.Lock()
	q.pending = append(q.pending, wrs...)
	q.readsAwaited++
	q.mu.Unlock()
	q.c.keepWatch()
}

// readDone notes that a Read has completed. Leader.
func (q *sendQueue) readDone() {
	q.mu.Lock()
	q.readsMet++
	q.mu.Unlock()
}

// addReplies queues the lists of replies, each of which ends with its Send. Most Sends of
// replies are not signaled, so that they wake nobody: the completion of a later one
// tells that they have left, as all before it in the queue. What holds more than its
// message is signaled: memory should not wait for another call.
func (q *sendQueue) addReplies(list ...*exch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, x := range list {
		q.addReply(x)
	}
}

// addReply queues one of them. The grant is written here, in the order in which replies
// leave: a reply that has been built before the grant rose must not tell the old one after
// another reply has told the new one. mu is held.
func (q *sendQueue) addReply(x *exch) {
	send := &x.wrs[len(x.wrs)-1]
	rpcrdma.SetCredit(send.SGL[0].Buf, uint32(q.c.rsp.grant.Load()))
	if x.lean() && len(q.silent) < maxSilent && q.c.drain.Load() == nil {
		q.silent = append(q.silent, x)
		q.waiting.Add(1)
		q.silents++
	} else {
		send.Flags |= fabric.Signaled
		q.awaited++
		q.c.keepWatch()
	}
	q.replies++
	x.covers = q.silents
	q.pending = append(q.pending, x.wrs...)
}

// told returns the replies that the completion of x tells to have left. They are good
// until the next call. Leader.
func (q *sendQueue) told(x *exch) []*exch {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < len(q.silent) && q.silent[n].covers <= x.covers {
		n++
	}
	copy(q.gone[:], q.silent[:n])
	q.silent = append(q.silent[:0], q.silent[n:]...)
	q.waiting.Add(-int32(n))
	q.met++
	return q.gone[:n]
}

// post queues requests and flushes. When others are about to post too it lets
// them run first.
func (q *sendQueue) post(wrs []fabric.SendWR, others bool) {
	q.mu.Lock()
	q.pending = append(q.pending, wrs...)
	if q.flushing {
		q.mu.Unlock()
		return
	}
	if others {
		q.flushing = true
		q.mu.Unlock()
		runtime.Gosched()
		q.mu.Lock()
		q.flushing = false
	}
	q.mu.Unlock()
	q.flush()
}

// flush posts all that is pending. What does not fit the adapter's queue stays,
// in order, for the flush at the end of the leader's next pass: completions
// make room. A pass that ends while somebody else flushes may have been the last one:
// then that flush, if it met a full queue, tries again.
func (q *sendQueue) flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flushing {
		q.again = true
		return
	}
	for len(q.pending) > 0 {
		batch := q.pending
		q.pending = q.spare[:0]
		q.flushing, q.again = true, false
		q.mu.Unlock()

		rest := batch
		full := false
		for len(rest) > 0 && !full {
			n := min(len(rest), postBatch)
			switch err := q.c.fc.Post(rest[:n]); err {
			case nil:
				rest = rest[n:]
			case fabric.ErrQueueFull:
				full = true
			default:
				rest = nil
				q.c.breakOff(err)
			}
		}

		q.mu.Lock()
		q.flushing = false
		if full {
			later := q.pending
			q.pending = append(append([]fabric.SendWR(nil), rest...), later...)
			q.spare = batch[:0]
			if !q.again {
				return
			}
			continue
		}
		clear(batch)
		q.spare = batch[:0]
	}
}
