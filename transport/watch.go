package transport

import (
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// Watching connections: a peer that makes no progress loses its connection, and unused memory is unmapped. A server
// checks its connections periodically, and a client its own as long as there is something to check.

// look checks a connection for progress, and its memory for use. It reports whether this end is waiting for the peer.
func (c *conn) look(now time.Time) (awaits bool) {
	q := &c.sends
	q.mu.Lock()
	replies, reads := q.overdue(), int(q.readsAwaited-q.readsMet)
	met := q.met + q.readsMet
	q.mu.Unlock()
	awaits = replies+reads > 0

	w := &c.state.Lock().watch
	switch {
	case !awaits:
		w.since = time.Time{}
	case w.since.IsZero() || met != w.met:
		w.since, w.met = now, met
	}
	stalled := awaits && c.cfg.StallTimeout > 0 && now.Sub(w.since) >= c.cfg.StallTimeout
	slow := awaits && now.Sub(w.since) >= slowTime
	w.note(c.heard.Load(), now)
	trim := w.trims(now)
	c.state.Unlock()

	if slow {
		c.tenant.Restart()
	}
	if trim {
		c.sweepMemory()
	}
	if stalled {
		go c.breakOff(&rpc.StallError{For: c.cfg.StallTimeout, Replies: replies, Reads: reads})
	}
	return awaits
}

// inFlight returns the number of the peer's calls in flight.
func (c *conn) inFlight() int {
	taken := uint32(c.heard.Load() >> 32)
	c.sends.mu.Lock()
	defer c.sends.mu.Unlock()
	return int(int32(taken - c.sends.replies))
}
