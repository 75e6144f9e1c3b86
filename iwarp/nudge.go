package iwarp

import "time"

// As a responder, Linux's siw sends the MPA reply before it connects the socket's data-ready
// callback to the queue pair, and does not check whether data has arrived in between
// (siw_accept; all versions so far). So it may not see the first message of a fast initiator.
// If the initiator waits for an answer to that message, the connection hangs.
//
// The next TCP segment makes siw read everything that has arrived. Hence an initiator that has sent something and
// received nothing sends an empty Write after a while. An empty Write needs no memory, completes nothing, and is one of
// the Ready To Receive frames of RFC 6581 section 4.3. A peer that answers in time does not receive any.
const (
	firstNudge  = 50 * time.Millisecond
	nudges      = 5 // at growing intervals, 17 seconds in all
	nudgeFactor = 4
)

// noSTag is the STag of empty Writes. It is not zero, because some adapters refuse zero even if there are no bytes to
// place. siw uses the same STag.
const noSTag = 1

// startNudging is called by initiators when the connection has been established.
func (c *Conn) startNudging() {
	st := c.state.Lock()
	defer c.state.Unlock()
	if st.phase != phaseUp {
		return
	}
	d := c.p.nudgeAfter
	if d == 0 {
		d = firstNudge
	}
	left := nudges
	st.nudger = time.AfterFunc(d, func() {
		if left == nudges {
			c.keepAlive()
		}
		silent := c.nudge()
		d *= nudgeFactor
		left--
		st := c.state.Lock()
		defer c.state.Unlock()
		if silent && left > 0 && st.phase == phaseUp {
			st.nudger.Reset(d)
		}
	})
}

// keepAlive enables TCP keep-alive. It is called late, to spare short connections the system calls. Accepted sockets
// inherit keep-alive from the listener.
func (c *Conn) keepAlive() {
	t := c.tx.Lock()
	defer c.unlockTx()
	if !t.dead {
		setKeepAlive(t.sock.fd)
	}
}

// stopNudging stops the timer when the connection ends.
func (st *state) stopNudging() {
	if st.nudger != nil {
		st.nudger.Stop()
	}
}

// nudge sends an empty Write if this side has sent something and received nothing. It reports whether nothing has been
// received.
func (c *Conn) nudge() (silent bool) {
	t := c.tx.Lock()
	defer c.unlockTx()
	if t.dead || c.heard() {
		return false
	}
	// A batch that waits for space in the socket has the same effect.
	if c.spoke.Load() && t.b == nil {
		t.nudge = true
		c.txPending.Store(true)
	}
	return true
}
