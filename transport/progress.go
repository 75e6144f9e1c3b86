package transport

import (
	"context"
	"time"
)

// Who moves a connection.
//
// A connection moves when somebody polls it. Whoever waits for something takes the
// progress token if it is free, and is the leader; the others are followers, parked on a
// channel. The leader completes followers' calls as it meets their replies. When its own
// reply is in, it passes the token to a follower and leaves. With one call at a time
// nothing is passed to anybody.
//
// The token is the *leader: whoever holds it has the only pointer to that state, from
// progress.take until leader.giveBack.
//
// While nobody waits, a goroutine in the background leads, so that the end of the
// connection is noticed and late replies give their credits back. It takes over only when
// the connection has been quiet for a tick, and leaves when calls are frequent: at the
// second call within a tick. A connection that has a call now and then, one of a thousand,
// costs each of them one wake-up instead of a lead that is taken, given back and watched
// for by timers.
//
// A server's connection is led by its own goroutine, its keeper, since calls may come
// at any time: callers of backward calls are followers. When many calls in a row go
// backward and none comes forward, the keeper stands aside, and callers lead for
// themselves, as at a client. It is back at the first forward call, and when nobody
// has led for a tick.

const (
	// tickTime is how long a connection is quiet before the background takes over, and
	// how long a leader waits before its context is watched.
	tickTime = 2 * time.Millisecond

	// quietTime is the same for taking over where the peer may call.
	quietTime = 500 * time.Microsecond

	// manyBackward is how many backward calls in a row make the keeper stand aside.
	manyBackward = 16
)

// A waiter is a goroutine that waits for the leader to do something, ready, or to be
// passed the token. Guarded by the connection's state.
type waiter struct {
	// wake has room for one: whoever takes the waiter off its list sends exactly one
	// value, which the waiter receives. True spares it another look.
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

// progress is the token and those who wait for it. It is part of the connection's state.
type progress struct {
	c       *conn
	token   *leader  // nil: somebody holds it
	waiters waitList // goroutines that wait for their slot or for the token
	aside   bool     // the keeper does not want the token
	kept    *leader  // the token, on its way to the keeper

	tick    *time.Timer // nil: it has not been needed yet
	ticking bool
	leads   uint64 // times the token was taken
	seen    uint64 // of those, at the last tick

	leadCtx context.Context // of the leader, when it can end
	unwatch func() bool     // ends the watch over leadCtx
}

func (p *progress) init(c *conn) {
	p.c = c
	p.waiters.init()
}

// taken tells whether somebody leads.
func (p *progress) taken() bool { return p.token == nil }

// take hands the token out, which is not taken. What ends with ctx is interrupted then.
func (p *progress) take(ctx context.Context) *leader {
	l := p.token
	p.token = nil
	p.leads++
	if ctx.Done() != nil {
		p.leadCtx = ctx
		p.arm()
	}
	return l
}

// giveBack returns the token and returns the follower to wake for it, nil if there is
// none. The connection's state is locked, and has not ended.
func (l *leader) giveBack(st *state) (next *waiter) {
	p := &st.progress
	p.leadCtx = nil
	p.stopWatch()
	p.token = l
	if l.wantsKeeper(st) {
		return p.callKeeper()
	}
	if p.awaitsCalls() {
		p.startTick(quietTime)
	} else {
		p.arm()
	}
	return p.nextLeader()
}

// end ends all waiting: who is to be woken is appended to wakes.
func (p *progress) end(wakes []*waiter) []*waiter {
	p.stopWatch()
	if p.tick != nil {
		p.tick.Stop()
	}
	for w := p.waiters.pop(); w != nil; w = p.waiters.pop() {
		wakes = append(wakes, w)
	}
	if p.aside {
		p.aside = false
		wakes = append(wakes, &p.c.keeper)
	}
	return wakes
}

func (p *progress) stopWatch() {
	if p.unwatch != nil {
		p.unwatch()
		p.unwatch = nil
	}
}

// nextLeader takes a follower off the list to become the leader, if there is none.
func (p *progress) nextLeader() *waiter {
	if p.taken() {
		return nil
	}
	return p.waiters.pop()
}

// awaitsCalls tells whether the peer may call, so that there has to be a leader.
func (p *progress) awaitsCalls() bool {
	return p.aside || p.c.role == roleClient && p.c.cfg.callbacks
}

// wantsKeeper tells whether the keeper, which stands aside, has to lead again: calls come
// forward, or the server is shutting down.
func (l *leader) wantsKeeper(st *state) bool {
	return st.aside && (l.streak < manyBackward || l.c.drain.Load() != nil)
}

// callKeeper passes the token, which is not taken, to the keeper, which is to be woken.
func (p *progress) callKeeper() *waiter {
	p.aside = false
	p.kept, p.token = p.token, nil
	p.leads++
	return &p.c.keeper
}

// arm starts the tick.
func (p *progress) arm() {
	if !p.ticking {
		p.startTick(tickTime)
	}
}

// startTick has the next tick come after d.
func (p *progress) startTick(d time.Duration) {
	p.ticking = true
	if p.tick == nil {
		p.tick = time.AfterFunc(d, p.c.onTick)
	} else {
		p.tick.Reset(d)
	}
}

// wakeUp wakes a waiter that has been taken off its list, if there is one.
func wakeUp(w *waiter) {
	if w != nil {
		w.wake <- false
	}
}
