//go:build linux && cgo

package rdmacm

import (
	"errors"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/pollfd"
)

// Poll implements fabric.Conn.
func (c *Conn) Poll(wc []fabric.WC) (int, error) {
	if !c.up.Load() {
		return 0, c.notUp()
	}
	l := c.q.polling.Lock()
	p := c.poller.Of(l)
	p.advance(l, 0)
	n := p.take(wc)
	if n > 0 {
		n += p.tell(wc[n:])
	}
	over := p.settled
	c.q.polling.Unlock()
	if n == 0 && over {
		return 0, c.connErr()
	}
	return n, nil
}

// notUp returns why the connection is not up.
func (c *Conn) notUp() error {
	st := c.state.Lock()
	defer c.state.Unlock()
	if st.phase == phaseOver {
		return st.connErr()
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
		limit := c.spin.Begin(c.recvs.head.Load())
		if limit == 0 || !c.poll(start, limit) {
			c.park()
		}
		if !c.wakeup.Load() {
			c.spin.End(c.recvs.head.Load(), time.Since(start))
		}
	}
	return c.waited()
}

// park waits for events until Wait can return.
func (c *Conn) park() {
	for {
		err := c.q.await(c, c.steps.ready, c.steps.wait)
		if err != nil && !errors.Is(err, pollfd.ErrWoken) {
			return // closed
		}
		if c.wakeup.Load() || c.waitStep() {
			return
		}
	}
}

// waitStep reports whether Wait can return. Otherwise the queue is armed: the next completion raises an event.
func (c *Conn) waitStep() bool {
	l := c.q.polling.Lock()
	ready := l.closed || c.poller.Of(l).advance(l, l.awaiting(c)) || c.wakeup.Load()
	c.q.polling.Unlock()
	return ready
}

// waited returns the result of Wait: why the connection ended if nothing is left to poll, otherwise nil.
func (c *Conn) waited() error {
	c.wakeup.Store(false) // Wake ends one Wait, which is this one
	p := c.poller.Of(c.q.polling.Lock())
	over := p.settled && p.n == 0
	c.q.polling.Unlock()
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
