package transport

import (
	"context"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// Goroutines that wait for something that a call of the other end delivers: see rpc.Waiter.

// NewWaiter returns a Waiter of the connection: see [rpc.Conn].
func (cn *Conn) NewWaiter() rpc.Waiter { return cn.c.newWaiter() }

// An rdmaWaiter leads the connection while it waits, if no other goroutine does.
type rdmaWaiter struct {
	waiter
	c     *conn
	waits bool // guarded by the connection's state
}

func (c *conn) newWaiter() rpc.Waiter {
	w := &rdmaWaiter{c: c}
	w.Init(&w.waiter)
	return w
}

func (w *rdmaWaiter) Wait(ctx context.Context) error {
	w.setWaits(true)
	err := w.c.await(ctx, &w.waiter)
	if w.setWaits(false) {
		return nil
	}
	if err == nil {
		err = w.c.endErr()
	}
	return err
}

// setWaits records whether a goroutine waits. At the end of a wait it reports whether the goroutine has been woken,
// once.
func (w *rdmaWaiter) setWaits(waits bool) (woken bool) {
	w.c.state.Lock()
	defer w.c.state.Unlock()
	if w.waits = waits; waits {
		return false
	}
	woken, w.ready = w.ready, false
	return woken
}

func (w *rdmaWaiter) Wake(inline bool) {
	c := w.c
	st := c.state.Lock()
	if st.ended() { // that wakes all
		c.state.Unlock()
		return
	}
	w.ready = true
	sleeps := st.baton.Leave(&w.waiter.Waiter)
	leads := !sleeps && w.waits && !inline
	if inline {
		c.woken.Store(true)
	}
	c.state.Unlock()
	switch {
	case sleeps:
		w.waiter.Wake(true)
	case leads:
		c.fc.Wake()
	}
}
