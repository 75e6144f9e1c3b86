package transport

import (
	"context"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/baton"
)

// How a connection is moved.
//
// A connection moves when a goroutine polls it. One that waits for something takes the progress token
// if it is free, and is the leader; the others are followers, parked on a channel. The leader
// completes followers' calls as it meets their replies. When its own reply is in, it passes the token
// to a follower and leaves. With one call at a time nothing is passed on.
//
// The token is the *leader: the goroutine that holds it has the only pointer to that state, from
// progress.take until leader.giveBack.
//
// While none waits, a goroutine in the background leads, so that the end of the
// connection is noticed and late replies give their credits back. It takes over only when
// the connection has been quiet for a tick, and leaves when calls are frequent: at the
// second call within a tick. A connection that has a call now and then, one of a thousand,
// costs each of them one wake-up instead of a lead that is taken, given back and watched
// for by timers.
//
// A server's connection is led by its own goroutine, its keeper, since calls may come
// at any time: callers of backward calls are followers. When many calls in a row go
// backward and none comes forward, the keeper stands aside, and callers lead for
// themselves, as at a client. It does so, too, while the ends take turns: each forward call wakes a goroutine that waits
// ([rpc.Waiter]), and brings the reply to the backward call before. The keeper is back at the first other
// forward call, and when no goroutine has led for a tick.
//
// While forward calls come one at a time, the keeper executes them itself: to start a goroutine for a handler, or to wake
// one, takes longer than most calls, where a processor has to be woken for it. The token is free meanwhile, and
// another goroutine becomes the keeper if the handler has not returned after a tick.

const (
	// tickTime is how long a connection is quiet before the background takes over, and
	// at most how long a leader waits before its context is watched.
	tickTime = 2 * time.Millisecond

	// quietTime is the same for taking over where the peer may call.
	quietTime = 500 * time.Microsecond

	// waryLeads is for how many leads contexts are watched from the start after a call has
	// been given up. A watch costs a tenth of a call, so that a call which is given up
	// costs the calls after it at most 0.1 ms together. A caller that leads without one
	// finds its context ended after a tick or two.
	waryLeads = 256

	// manyBackward is how many backward calls in a row make the keeper stand aside.
	manyBackward = 16

	// manySingles is how many calls have to come alone before the keeper executes one, and slowCalls how many more
	// after one that took longer than a tick.
	manySingles = 16
	slowCalls   = 256

	// turnLength is how many messages there are in a turn: a reply and a call.
	turnLength = 2
)

// A waiter is a goroutine that waits for the leader to do something, ready, or to be
// passed the token. Guarded by the connection's state.
type waiter struct {
	baton.Waiter[waiter] // woken as served if it is ready, which spares it another look
	ready                bool

	// For a goroutine that makes a call: see callTable.
	call    *pendingCall // that another goroutine may make for it
	given   bool         // it has a call of the table
	xid     uint32       // of its call, as it was taken
	leaving bool         // its context has ended
}

// goOn wakes w, if there is one, to go on with the call that it has been given.
func (w *waiter) goOn() {
	if w != nil {
		w.Wake(true)
	}
}

func newWaiter() *waiter {
	w := new(waiter)
	w.Init(w)
	return w
}

// progress is the token and the goroutines that wait for it. It is part of the connection's state.
type progress struct {
	c     *conn
	baton baton.Baton[leader, waiter] // the token, and the goroutines that wait for a reply or for it
	aside bool                        // the keeper does not want the token
	kept  *leader                     // the token, on its way to the keeper
	away  bool                        // the keeper executes a call

	tick    *time.Timer // nil: it has not been needed yet
	ticking bool
	leads   uint64 // times the token was taken
	seen    uint64 // of those, at the last tick

	leadCtx context.Context // of the leader, when it can end
	unwatch func() bool     // ends the watch over leadCtx
	wary    int             // leads to come that are watched from the start
}

func (p *progress) init(c *conn) { p.c = c }

// taken reports whether a goroutine leads.
func (p *progress) taken() bool { return p.baton.Taken() }

// take hands the token out, which is not taken. A wait that ends with ctx is interrupted then.
func (p *progress) take(ctx context.Context) *leader {
	l := p.baton.Take()
	p.leads++
	if ctx.Done() != nil {
		p.leadCtx = ctx
		p.arm()
		if p.wary > 0 {
			p.wary--
			p.startWatch()
		}
	}
	return l
}

// giveBack returns the token and returns the follower to wake for it, nil without a follower. The
// connection's state is locked, and has not ended.
func (l *leader) giveBack(st *state) (next *baton.Waiter[waiter]) {
	p := &st.progress
	p.leadCtx = nil
	p.stopWatch()
	l.isKeeper = false
	p.baton.Give(l)
	if l.wantsKeeper(st) {
		return p.callKeeper()
	}
	if p.awaitsCalls() {
		p.startTick(quietTime)
	} else {
		p.arm()
	}
	return p.baton.Next()
}

// end ends all waiting: the goroutines to wake are appended to wakes.
func (p *progress) end(wakes []*waiter) []*waiter {
	p.stopWatch()
	if p.tick != nil {
		p.tick.Stop()
	}
	for w := p.baton.Disband(); w != nil; w = p.baton.Disband() {
		wakes = append(wakes, w.Who())
	}
	if p.aside {
		p.aside = false
		wakes = append(wakes, &p.c.keeper)
	}
	return wakes
}

// startWatch has the end of the leader's context interrupt the leader.
func (p *progress) startWatch() {
	p.unwatch = context.AfterFunc(p.leadCtx, p.c.fc.Wake)
}

func (p *progress) stopWatch() {
	if p.unwatch != nil {
		p.unwatch()
		p.unwatch = nil
	}
}

// awaitsCalls reports whether the peer may call, so that there has to be a leader.
func (p *progress) awaitsCalls() bool {
	return p.aside || p.away || p.c.role == roleClient && p.c.cfg.callbacks
}

// wantsKeeper reports whether the keeper, which stands aside, has to lead again: calls come
// forward, or the server is shutting down.
func (l *leader) wantsKeeper(st *state) bool {
	return st.aside && (l.streak < manyBackward || l.c.drain.Load() != nil)
}

// callKeeper passes the token, which is not taken, to the keeper, which is to be woken.
func (p *progress) callKeeper() *baton.Waiter[waiter] {
	p.aside = false
	p.kept = p.baton.Take()
	p.leads++
	return &p.c.keeper.Waiter
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
