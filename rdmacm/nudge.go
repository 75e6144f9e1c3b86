//go:build linux && cgo

package rdmacm

import "time"

// siw on the accepting side sends the MPA reply before it starts to watch its socket. A
// message that arrives in between is not noticed until more data comes, and the
// connection hangs: about one in a hundred on a slow machine. So the connecting side,
// if it has sent something and received nothing, sends a Write of no bytes, which has no
// effect on a peer that works.
const (
	nudgeAfter = 50 * time.Millisecond
	nudges     = 5 // each after four times the wait of the one before
)

// startNudging is called with the first request of a connection; see nudgeAfter.
func (c *Conn) startNudging() {
	if !c.dev.siw || c.passive {
		return
	}
	wait, left := nudgeAfter, nudges
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != stateUp {
		return
	}
	c.nudger = time.AfterFunc(wait, func() {
		if c.recv.head.Load() > 0 {
			return
		}
		c.nudge()
		left--
		wait *= 4
		c.mu.Lock()
		if c.state == stateUp && left > 0 {
			c.nudger.Reset(wait)
		}
		c.mu.Unlock()
	})
}

// nudge posts the Write of no bytes.
func (c *Conn) nudge() {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.qp != nil && !c.ending.Load() {
		c.postNothing()
	}
}
