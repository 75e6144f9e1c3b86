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

// nudge posts the Write of no bytes.
func (c *Conn) nudge() {
	t := c.send.Lock()
	defer c.send.Unlock()
	if t.qp != nil && !c.ending.Load() {
		t.postNothing()
	}
}
