package transport

import (
	"context"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/baton"
)

// How goroutines wait, follow and lead: see progress.go.

// await returns nil when w is ready or the connection has ended, and ctx's error if ctx ends first. It leads if no
// other goroutine does.
func (c *conn) await(ctx context.Context, w *waiter) error {
	st := c.state.Lock()
	for !w.ready && !st.ended() {
		if st.taken() {
			st.baton.Join(&w.Waiter)
			c.state.Unlock()
			if done, err := c.follow(ctx, w); done {
				return err
			}
			c.state.Lock()
			continue
		}
		l := st.take(ctx)
		c.state.Unlock()
		if !l.lead(ctx, w) {
			return nil
		}
		next := l.giveBack(st)
		ready := w.ready
		c.state.Unlock()
		next.Wake(false)
		if ready {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		c.state.Lock()
	}
	c.state.Unlock()
	return nil
}

// follow waits for the leader to wake w, which is in the list. It returns false if w was woken to lead.
func (c *conn) follow(ctx context.Context, w *waiter) (done bool, err error) {
	ready, woken := baton.SleepOn(ctx, w.Bell())
	if woken {
		return ready, nil
	}
	st := c.state.Lock()
	if !st.baton.Leave(&w.Waiter) {
		// Woken at the same time. If it was to lead, the next follower does.
		c.state.Unlock()
		w.Sleep()
		c.state.Lock()
	}
	ready = w.ready || st.ended()
	var next *baton.Waiter[waiter]
	if !st.ended() {
		next = st.baton.Next()
	}
	c.state.Unlock()
	next.Wake(false)
	if ready {
		return true, nil
	}
	return true, ctx.Err()
}

// take acquires the token, waiting for it. It returns nil when the connection has ended.
func (c *conn) take() *leader {
	for {
		st := c.state.Lock()
		if st.ended() {
			c.state.Unlock()
			return nil
		}
		if !st.taken() {
			l := st.take(context.Background())
			c.state.Unlock()
			return l
		}
		w := newWaiter()
		st.baton.Join(&w.Waiter)
		c.state.Unlock()
		c.fc.Wake() // the background leader gives way to waiters
		w.Sleep()
	}
}

// release returns the token.
func (l *leader) release() {
	st := l.c.state.Lock()
	next := l.giveBack(st)
	l.c.state.Unlock()
	next.Wake(false)
}

// lead drives the connection until w is ready, ctx has ended, or the keeper is needed. Then it returns true with the
// connection's state locked. It returns false when the connection has ended.
func (l *leader) lead(ctx context.Context, w *waiter) bool {
	for l.step() {
		st := l.c.state.Lock()
		if w.ready || l.wantsKeeper(st) || ctx.Err() != nil {
			return true
		}
		l.c.state.Unlock()
	}
	return false
}

// onTick runs every tickTime while callers lead. It costs the calls almost nothing. After a tick the context of the
// leader can interrupt it, so there is one watch for many calls; a connection with changing leaders is left alone. If
// no goroutine leads, the background takes over.
func (c *conn) onTick() {
	st := c.state.Lock()
	defer c.state.Unlock()
	st.ticking = false
	if st.ended() || c.role == roleServer && !st.aside && !st.away {
		return
	}
	if st.leadCtx != nil && st.unwatch == nil {
		st.startWatch()
	}
	switch {
	case st.leads != st.seen && (st.taken() || !st.awaitsCalls()):
		st.seen = st.leads
		st.arm()
	case st.taken():
	case st.away: // its handler is slow
		st.away = false
		l := st.take(context.Background())
		l.singles = -slowCalls
		go l.serve()
	case st.aside:
		st.callKeeper().Wake(false) // has capacity: the keeper is waiting for it
	default:
		go st.take(context.Background()).background()
	}
}

// background leads until calls arrive in quick succession, or a caller waits for something other than its reply.
func (l *leader) background() {
	c := l.c
	var last time.Time // when a call was completed
	for {
		before := l.completed
		if !l.step() {
			return
		}
		st := c.state.Lock()
		leave := st.baton.Waiting()
		if l.completed != before {
			now := time.Now()
			leave = leave || now.Sub(last) < tickTime
			last = now
		}
		if leave {
			next := l.giveBack(st)
			c.state.Unlock()
			next.Wake(false)
			return
		}
		c.state.Unlock()
	}
}

// serve leads a server's connection until it ends.
func (l *leader) serve() {
	c := l.c
	for {
		if x := l.own; x != nil {
			l.own = nil
			if l = l.goAway(x); l == nil {
				return
			}
		}
		l.isKeeper = true
		if !l.step() {
			if l.own != nil {
				l.own.start()
			}
			return
		}
		if l.streak >= manyBackward && c.drain.Load() == nil {
			if l = l.standAside(); l == nil {
				return
			}
		}
		if ctx := c.drain.Load(); ctx != nil {
			l.stop = true
			l.endLinger()
			if l.executing() == 0 {
				_ = c.fc.Disconnect(*ctx)
				c.setClosing()
				l.finish(nil)
				return
			}
		}
	}
}

// goAway executes a call without holding the token. It returns nil if another goroutine has become the keeper
// meanwhile, or the connection has ended.
func (l *leader) goAway(x *exch) *leader {
	c := l.c
	st := c.state.Lock()
	st.away = true
	c.state.Unlock()
	l.release()
	x.start()

	st = c.state.Lock()
	if !st.away || st.ended() {
		c.state.Unlock()
		return nil
	}
	st.away = false
	if st.taken() {
		c.state.Unlock()
		return c.take()
	}
	defer c.state.Unlock()
	return st.take(context.Background())
}

// standAside leaves the connection to the callers of backward calls until the keeper has to lead again. It returns nil
// when the connection has ended.
func (l *leader) standAside() *leader {
	c := l.c
	l.endLinger() // a goroutine that was quicker than the replies may not post again
	st := c.state.Lock()
	st.aside = true
	c.state.Unlock()
	l.release()
	c.keeper.Sleep()

	c.state.Lock()
	l, st.kept = st.kept, nil
	c.state.Unlock()
	if l != nil {
		l.streak = 0
	}
	return l
}
