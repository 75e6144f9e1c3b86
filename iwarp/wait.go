package iwarp

import (
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A waiter has the conditions that Wait and Disconnect wait for. Any goroutine may use it. A goroutine that waits sets
// parked before it checks the other fields. Other goroutines set these fields before they call unpark.
type waiter struct {
	cqn    atomic.Uint64 // lower half: length of the completion queue; upper half: receives completed
	over   atomic.Bool   // everything outstanding has been flushed
	wakeup atomic.Bool   // Wake has been called
	drain  atomic.Bool   // Disconnect is waiting for the queues to drain
	parked atomic.Bool   // a goroutine is parked on the socket and needs unpark for other events
	wakes  atomic.Uint64
}

// oneReceive is one completed receive in cqn.
const oneReceive = 1 << 32

// queued reports whether there are completions.
func (w *waiter) queued() bool { return uint32(w.cqn.Load()) > 0 }

// received returns how many messages have been received.
func (w *waiter) received() uint64 { return w.cqn.Load() / oneReceive }

// Poll implements fabric.Conn. It reads from the socket only if no completion is queued.
func (c *Conn) Poll(wc []fabric.WC) (int, error) {
	c.redeem()
	if !c.queued() && c.link.Load() != nil && !c.over.Load() {
		c.progress(true)
	}
	n, err := c.state.Lock().poll(wc)
	c.state.Unlock()
	return n, err
}

// poll removes completions from the completion queue. Once none can follow, it returns the error of the connection.
func (st *state) poll(wc []fabric.WC) (int, error) {
	n := st.take(wc)
	if n == 0 && st.cq.len() == 0 && st.waiter.over.Load() {
		return 0, st.connErr()
	}
	return n, nil
}

// Wait implements fabric.Conn.
func (c *Conn) Wait() error {
	if c.link.Load() == nil {
		// Before setup there is no socket to wait on, and after a failed setup no event to
		// wait for.
		if c.ready() {
			return c.readyErr()
		}
		return ErrNotConnected
	}
	if c.spinner != nil {
		c.spin()
	} else {
		c.park(c.steps.wait)
	}
	if c.wakeup.Load() {
		c.wakeup.Store(false)
	}
	return c.readyErr()
}

// park calls step at once, and again whenever the socket becomes readable or unpark is called, until step returns true
// or the connection is closed.
func (c *Conn) park(step func(fd uintptr) bool) {
	sock := &c.link.Load().sock
	for {
		err := sock.at.Read(step)
		c.parked.Store(false)
		if err == nil {
			return
		}
		// Either unpark has set the deadline, or the file was closed. Clear the deadline before step checks its
		// conditions again, so that a later unpark is not lost.
		if c.shut.Load() || sock.at.SetReadDeadline(time.Time{}) != nil {
			return
		}
	}
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// unpark makes a parked waiter check its conditions again.
func (c *Conn) unpark() {
	if c.parked.Load() {
		c.wakes.Add(1)
		c.link.Load().sock.at.SetReadDeadline(past)
	}
}

// waitStep is the park step of Wait. It returns false to park.
func (c *Conn) waitStep(uintptr) bool {
	c.parked.Store(false)
	for {
		if c.ready() {
			return true
		}
		if empty := c.progress(true); !empty {
			continue
		}
		c.parked.Store(true)
		if !c.armed() && !c.ready() {
			return false
		}
	}
}

// armed arms the stream before a goroutine parks. It reports whether there is something to read after all.
func (c *Conn) armed() bool {
	x := c.rx.Lock()
	armed := !x.dead && x.sock.stream.ArmRead()
	c.rx.Unlock()
	return armed
}

// ready reports whether Wait has a reason to return.
func (w *waiter) ready() bool {
	return w.queued() || w.over.Load() || w.wakeup.Load()
}

func (c *Conn) readyErr() error {
	if c.over.Load() && !c.queued() {
		return c.connErr()
	}
	return nil
}

// Wake implements fabric.Conn.
func (c *Conn) Wake() {
	c.wakeup.Store(true)
	c.unpark()
}

// drainStep is the park step of Disconnect, which first waits for the queues to drain and then for the end of the
// connection.
func (c *Conn) drainStep(uintptr) bool {
	c.parked.Store(false)
	for {
		if c.drainDone() {
			return true
		}
		if empty := c.progress(false); !empty {
			continue
		}
		c.parked.Store(true)
		if !c.armed() && !c.drainDone() {
			return false
		}
	}
}

func (c *Conn) drainDone() bool {
	if c.over.Load() {
		return true
	}
	return c.drain.Load() && c.idle()
}
