package iwarp

import "time"

// Linux's siw, as a responder, first sends the MPA reply and then has its socket
// tell the queue pair of what comes in. It does not look whether something has
// come in between (siw_accept; all versions up to now). So it may not see the
// first message of an initiator that is quick, and a message that has to be
// answered before there is another one is never answered.
//
// The next segment to arrive, whatever is in it, makes siw read all that is
// there. Hence an initiator that has sent something and has heard nothing sends
// a Write of no bytes after a while: it needs no memory, completes nothing, and
// is what RFC 6581 section 4.3 has initiators send as a Ready To Receive frame. A
// peer that answers at once never gets one.
const (
	firstNudge  = 50 * time.Millisecond
	nudges      = 5 // ever further apart: 17 seconds in all
	nudgeFactor = 4
)

// noSTag is named where no memory is meant. Not zero: some adapters refuse that
// even if there are no bytes to place. siw does the same.
const noSTag = 1

// startNudging is for initiators whose connection has just been established.
func (c *Conn) startNudging() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != stateUp {
		return
	}
	d := c.p.nudgeAfter
	if d == 0 {
		d = firstNudge
	}
	left := nudges
	c.nudger = time.AfterFunc(d, func() {
		if left == nudges {
			c.keepAlive()
		}
		silent := c.nudge()
		d *= nudgeFactor
		left--
		c.mu.Lock()
		defer c.mu.Unlock()
		if silent && left > 0 && c.state == stateUp {
			c.nudger.Reset(d)
		}
	})
}

// keepAlive is for a connection that lives for longer than a moment: short ones are
// spared the system calls. What has been accepted has it from the listener.
func (c *Conn) keepAlive() {
	c.txMu.Lock()
	defer c.unlockTx()
	if !c.tx.dead {
		setKeepAlive(c.sock.fd)
	}
}

// stopNudging is part of the connection's end. The caller holds mu.
func (c *Conn) stopNudging() {
	if c.nudger != nil {
		c.nudger.Stop()
	}
}

// nudge sends the frame, if the peer has been sent something and has not been
// heard yet. It reports whether the latter is so.
func (c *Conn) nudge() (silent bool) {
	c.txMu.Lock()
	defer c.unlockTx()
	if c.tx.dead || c.heard() {
		return false
	}
	// What still waits for room in the socket is going to do as well.
	if c.spoke.Load() && c.tx.b == nil {
		c.tx.nudge = true
		c.txPending.Store(true)
	}
	return true
}
