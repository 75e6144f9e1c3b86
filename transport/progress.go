package transport

import (
	"context"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/baton"
)

// How a connection is driven.
//
// A connection makes progress when a goroutine polls it. A goroutine that waits takes the progress token if it is free,
// and becomes the leader; the others are followers, parked on a channel. The leader completes followers' calls when it
// processes their replies. When its own reply has arrived, it passes the token to a follower and leaves. With one call
// at a time nothing is passed on.
//
// The token is the *leader: the goroutine that holds it has the only pointer to that state, from progress.take until
// leader.giveBack.
//
// While no goroutine waits, one in the background leads, so that the end of the connection is noticed and late replies
// return their credits. It takes over only after the connection has been quiet for a tick, and leaves when calls are
// frequent: at the second call within a tick. So a call on a rarely used connection, one of a thousand, costs one
// wake-up, instead of a lead that is taken, returned and watched by timers.
//
// A server's connection is led by its own goroutine, its keeper, because calls may arrive at any time: callers of
// backward calls are followers. After many consecutive backward calls without a forward one, the keeper stands aside,
// and callers lead for themselves, as at a client. It also does so while the ends take turns: each forward call wakes a
// waiting goroutine ([rpc.Waiter]), and arrives together with the reply to the previous backward call. The keeper
// returns at the first other forward call, and when no goroutine has led for a tick.
//
// While forward calls arrive one at a time, the keeper executes them itself: starting or waking a goroutine for a
// handler takes longer than most calls, because a processor has to be woken for it. The token is free meanwhile, and
// another goroutine becomes the keeper if the handler has not returned after a tick.

const (
	// tickTime is how long a connection must be quiet before the background takes over, and the maximum time that a
	// leader waits before its context is watched.
	tickTime = 2 * time.Millisecond

	// quietTime replaces tickTime for taking over where the peer may call.
	quietTime = 500 * time.Microsecond

	// waryLeads is the number of leads during which contexts are watched from the start after a call has been canceled.
	// A watch costs a tenth of a call, so a canceled call costs the later calls at most 0.1 ms in total. A caller that
	// leads without a watch notices the end of its context after a tick or two.
	waryLeads = 256

	// manyBackward is the number of consecutive backward calls that make the keeper stand aside.
	manyBackward = 16

	// manySingles is the number of calls that must arrive alone before the keeper executes one, and slowCalls how many
	// more after one that took longer than a tick.
	manySingles = 16
	slowCalls   = 256

	// turnLength is the number of messages in a turn: a reply and a call.
	turnLength = 2
)

// A waiter is a goroutine that waits until the leader has made it ready, or passes it the token. Guarded by the
// connection's state.
type waiter struct {
	baton.Waiter[waiter] // woken as served if it is ready, so that it need not check again
	ready                bool

	// For a goroutine that makes a call: see callTable.
	call    *pendingCall // that another goroutine may make for it
	given   bool         // it has a call of the table
	xid     uint32       // of its call, when it was taken
	leaving bool         // its context has ended
}

// goOn wakes w, if not nil, to continue with the call that it has been given.
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

	tick    *time.Timer // nil until it is first needed
	ticking bool
	leads   uint64 // number of times the token was taken
	seen    uint64 // leads at the last tick

	leadCtx context.Context // the leader's context, if it can end
	unwatch func() bool     // ends the watch on leadCtx
	wary    int             // number of coming leads that are watched from the start
}

func (p *progress) init(c *conn) { p.c = c }

// taken reports whether a goroutine leads.
func (p *progress) taken() bool { return p.baton.Taken() }

// take hands out the token, which is free. A wait that ends with ctx is interrupted then.
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

// giveBack returns the token, and returns the follower to wake for it, nil without a follower. The connection's state
// is locked, and the connection has not ended.
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

// end ends all waiting: it appends the goroutines to wake to wakes.
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

// startWatch arranges for the end of the leader's context to interrupt the leader.
func (p *progress) startWatch() {
	p.unwatch = context.AfterFunc(p.leadCtx, p.c.fc.Wake)
}

func (p *progress) stopWatch() {
	if p.unwatch != nil {
		p.unwatch()
		p.unwatch = nil
	}
}

// awaitsCalls reports whether the peer may call, so that there must be a leader.
func (p *progress) awaitsCalls() bool {
	return p.aside || p.away || p.c.role == roleClient && p.c.cfg.callbacks
}

// wantsKeeper reports whether the keeper, which stands aside, must lead again: forward calls arrive, or the server is
// shutting down.
func (l *leader) wantsKeeper(st *state) bool {
	return st.aside && (l.streak < manyBackward || l.c.drain.Load() != nil)
}

// callKeeper passes the token, which is free, to the keeper, and returns it to be woken.
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

// startTick schedules the next tick after d.
func (p *progress) startTick(d time.Duration) {
	p.ticking = true
	if p.tick == nil {
		p.tick = time.AfterFunc(d, p.c.onTick)
	} else {
		p.tick.Reset(d)
	}
}
