//go:build linux && cgo

package rdmacm

import "time"

// On the accepting side siw sends the MPA reply before it starts to watch its socket. It does not notice a message that
// arrives in between until more data comes, and the connection hangs. On a slow machine that is about one connection in
// a hundred. So if the connecting side has sent something and received nothing, it sends a zero-length Write, which has
// no effect on a healthy peer.
const (
	nudgeAfter = 50 * time.Millisecond
	nudges     = 5 // each after four times the previous wait
)

// startNudging is called with the first request of a connection; see nudgeAfter.
func (c *Conn) startNudging() {
	if !c.dev.siw || c.passive {
		return
	}
	wait, left := nudgeAfter, nudges
	st := c.state.Lock()
	defer c.state.Unlock()
	if st.phase != phaseUp {
		return
	}
	st.nudger = time.AfterFunc(wait, func() {
		if c.recvs.head.Load() > 0 {
			return
		}
		c.nudge()
		left--
		wait *= 4
		st := c.state.Lock()
		if st.phase == phaseUp && left > 0 {
			st.nudger.Reset(wait)
		}
		c.state.Unlock()
	})
}

// nudge posts a zero-length Write.
func (c *Conn) nudge() {
	t := c.send.Lock()
	defer c.send.Unlock()
	if t.qp != nil && !c.ending.Load() {
		t.postNothing()
	}
}
