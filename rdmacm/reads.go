//go:build linux && cgo

package rdmacm

import "github.com/rpcrdma/rpcrdma/cgo"

// heldBack holds requests that siw must not receive yet. siw's send queue stalls at a fence, and at a Read beyond the
// limit of outstanding Reads. While it is stalled, siw does not answer the peer's Reads, so two stalled ends would wait
// for each other forever. Therefore a request that would stall the queue is kept here, with all later requests, until
// the Reads before it have completed.
type heldBack struct {
	wrs   []cgo.SendWR
	sges  []cgo.SGE
	reads int // Reads posted to the device
}

// leave returns how many of the requests can be posted now, and counts their Reads.
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

// hold adds requests, with copies of their SGEs in sges.
func (h *heldBack) hold(wrs []cgo.SendWR, sges []cgo.SGE) {
	for _, wr := range wrs {
		from := sges[wr.FirstSGE:][:wr.NumSGE]
		wr.FirstSGE = uint32(len(h.sges))
		h.sges = append(h.sges, from...)
		h.wrs = append(h.wrs, wr)
	}
}

// readLimit returns how many Reads may be outstanding.
func (c *Conn) readLimit() int {
	defer c.state.Unlock()
	return max(c.state.Lock().ord, 1)
}

// ring posts the scratch list, except for requests that are held back.
func (t *sender) ring() {
	n := len(t.wrs)
	if t.c.dev.siw {
		if n = 0; len(t.held.wrs) == 0 {
			n = t.held.leave(t.wrs, t.c.readLimit())
		}
		t.held.hold(t.wrs[n:], t.sges)
	}
	t.postSends(t.wrs[:n], t.sges)
}

// readDone posts requests that were held back until a Read completed.
func (c *Conn) readDone() {
	t := c.send.Lock()
	defer c.send.Unlock()
	h := &t.held
	h.reads--
	if len(h.wrs) == 0 || t.qp == nil {
		return
	}
	n := h.leave(h.wrs, c.readLimit())
	t.postSends(h.wrs[:n], h.sges)
	if n == len(h.wrs) {
		h.wrs, h.sges = h.wrs[:0], h.sges[:0]
		return
	}
	// Move the rest to the front, so that the arrays do not grow without bound.
	rest, sges := h.wrs[n:], h.sges
	h.wrs, h.sges = h.wrs[:0], h.sges[:0]
	h.hold(rest, sges)
}
