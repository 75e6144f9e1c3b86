//go:build linux && cgo

package rdmacm

import "github.com/rpcrdma/rpcrdma/cgo"

// siw's send queue stops at a Read when as many are outstanding as may be, and at a
// fence; while it stands, it answers none of the peer's Reads. Two ends that stand
// like that wait for each other for ever. So on siw a request that would stop the queue
// stays here with all that follow, until the Reads before it have completed.
type heldBack struct {
	wrs   []cgo.SendWR
	sges  []cgo.SGE
	reads int // of those that the device has
}

// leave tells how many of the requests the device can have now, and counts their Reads.
func (h *heldBack) leave(wrs []cgo.SendWR, most int) int {
	for i := range wrs {
		if wrs[i].Flags&sendFence != 0 && h.reads > 0 {
			return i
		}
		if wrs[i].Opcode != wrRDMARead {
			continue
		}
		if h.reads >= most {
			return i
		}
		h.reads++
	}
	return len(wrs)
}

// hold keeps requests, which take their elements from sges.
func (h *heldBack) hold(wrs []cgo.SendWR, sges []cgo.SGE) {
	for _, wr := range wrs {
		from := sges[wr.FirstSGE:][:wr.NumSGE]
		wr.FirstSGE = uint32(len(h.sges))
		h.sges = append(h.sges, from...)
		h.wrs = append(h.wrs, wr)
	}
}

// readLimit is how many Reads may be outstanding.
func (c *Conn) readLimit() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.ord, 1)
}

// ring posts the scratch list, or what of it must not wait. sendMu is held.
func (c *Conn) ring() {
	n := len(c.swr)
	if c.dev.siw {
		if n = 0; len(c.held.wrs) == 0 {
			n = c.held.leave(c.swr, c.readLimit())
		}
		c.held.hold(c.swr[n:], c.sges)
	}
	c.postSends(c.swr[:n], c.sges)
}

// readDone posts what has waited for a Read that has completed now. queue.mu is held.
func (c *Conn) readDone() {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	h := &c.held
	h.reads--
	if len(h.wrs) == 0 || c.qp == nil {
		return
	}
	n := h.leave(h.wrs, c.readLimit())
	c.postSends(h.wrs[:n], h.sges)
	if n == len(h.wrs) {
		h.wrs, h.sges = h.wrs[:0], h.sges[:0]
		return
	}
	// To the front, so that the arrays do not grow without end.
	rest, sges := h.wrs[n:], h.sges
	h.wrs, h.sges = h.wrs[:0], h.sges[:0]
	h.hold(rest, sges)
}
