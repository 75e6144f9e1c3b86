//go:build linux && cgo

package rdmacm

import "time"

// siw as the side that accepts first sends the MPA reply and then has its socket
// tell the queue pair of what comes. A message in between lies there until more
// comes, and the connection hangs: about one in a hundred on a slow machine. So the
// side that connects, if it has sent something and has heard nothing, sends a Write
// of no bytes, which a peer that is well does not notice.
const (
	nudgeAfter = 50 * time.Millisecond
	nudges     = 5 // each waits four times as long as the one before
)

// startNudging is called with the first request of a connection.
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

// nudge posts the Write.
func (c *Conn) nudge() {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.qp != nil && !c.ending.Load() {
		c.postNothing()
	}
}
