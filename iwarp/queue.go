package iwarp

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// queues has the work queues and the completion queue. Conn.mu protects it.
//
// The send queue is a sequence of entries with positions that only advance:
//
//	head       done     entries before it have completed
//	written    sent     entries before it have been handed to TCP
//	tx.next    begun    entries before it have been put into a batch (txMu)
//	tail       posted
//
// A request completes when all before it have, it has been written, and, for a Read, its data
// has arrived.
type queues struct {
	sq      ring[sqEntry]
	sges    ring[fabric.SGE] // of the entries, in order
	written uint64
	sqUsed  int // posted, and neither polled nor completed without a WC
	reports fabric.Deferrals
	untold  untold
	starved bool // Post found the queue full: Wait returns when it no longer is

	rq     ring[fabric.RecvWR]
	rqUsed int // posted and not polled

	cq ring[fabric.WC] // never longer than sqUsed + rqUsed

	// orq has the outstanding Reads of this side, as numbers of send queue entries. RFC 5040
	// section 5.5: responses arrive in this order.
	orq ring[uint64]

	// irq has the Read Requests of the peer. The responses to those before irqNext are
	// completely in a batch, but may not have been written. RFC 5040 section 5.5: they are
	// answered in order.
	irq     ring[rdmap.ReadRequest]
	irqNext uint64
}

// tellQuiet is how many deferred requests complete without a completion before take reports
// them: with the completions of something else, so that nobody wakes for it. Their user keeps
// memory for each of them until then.
const tellQuiet = 4

// untold is the deferred requests that have completed since the last completion of the send
// queue.
type untold struct {
	n  int
	id uint64 // of the latest
	op fabric.Opcode
}

// A sqEntry is a SendWR that has been posted.
type sqEntry struct {
	id     uint64
	roff   uint64
	sge    uint64 // number of the first SGE in sges
	mw     *MW
	n      uint32 // length of the message
	rkey   uint32
	nsge   uint8
	op     fabric.Opcode
	flags  fabric.SendFlags
	status fabric.WCStatus
	report bool // has a completion even if it succeeds
	done   bool // a Read: its data has arrived
	hidden bool // not posted by the user: never has a completion
}

// pushSend appends a request. The caller holds mu.
func (c *Conn) pushSend(wr *fabric.SendWR, hidden bool) {
	e := c.sq.push()
	*e = sqEntry{
		id: wr.ID, roff: wr.RemoteOffset, rkey: wr.RKey, op: wr.Op, flags: wr.Flags,
		sge: c.sges.tail, nsge: uint8(len(wr.SGL)), hidden: hidden,
	}
	if wr.Op == fabric.OpBindMW {
		if w, ok := wr.MW.(*MW); ok && w != nil && w.c == c {
			e.mw = w
		}
	}
	for i := range wr.SGL {
		*c.sges.push() = wr.SGL[i]
		e.n += uint32(len(wr.SGL[i].Buf))
	}
	if !hidden {
		c.sqUsed++
		e.report = c.reports.Reports(wr.Flags)
	}
}

var wcOpcode = [...]fabric.WCOpcode{
	fabric.OpSend:     fabric.WCSend,
	fabric.OpSendInv:  fabric.WCSend,
	fabric.OpWrite:    fabric.WCWrite,
	fabric.OpRead:     fabric.WCRead,
	fabric.OpBindMW:   fabric.WCBindMW,
	fabric.OpLocalInv: fabric.WCLocalInv,
}

// retire completes the requests that are done. The caller holds mu and, unless it is the
// waiter, calls unpark after releasing it.
func (c *Conn) retire() {
	for c.sq.head < c.written {
		e := c.sq.at(c.sq.head)
		if e.op == fabric.OpRead && !e.done {
			return
		}
		c.complete(e.status)
	}
}

// complete removes the oldest entry of the send queue.
func (c *Conn) complete(status fabric.WCStatus) {
	e := c.sq.at(c.sq.head)
	switch {
	case e.hidden:
	case e.report || status != fabric.WCSuccess:
		c.untold.n = 0
		wc := c.cq.push()
		wc.ID, wc.Status, wc.Op = e.id, status, wcOpcode[e.op]
		if e.op == fabric.OpRead && status == fabric.WCSuccess {
			wc.Len = e.n
		}
		c.cqn.Add(1)
	default:
		if e.flags&fabric.Deferred != 0 {
			c.untold.n++
			c.untold.id, c.untold.op = e.id, e.op
		}
		c.sqUsed--
		if c.starved {
			c.starved = false
			c.wakeup.Store(true)
		}
	}
	c.sges.drop(int(e.nsge))
	c.sq.drop(1)
}

// completeRecv removes the oldest receive.
func (c *Conn) completeRecv(wc fabric.WC) {
	wc.ID = c.rq.at(c.rq.head).ID
	wc.Op = fabric.WCRecv
	c.rq.drop(1)
	*c.cq.push() = wc
	c.cqn.Add(1)
}

// take removes completions from the completion queue.
func (c *Conn) take(wc []fabric.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(wc), c.cq.len())
	for i := range n {
		wc[i] = *c.cq.at(c.cq.head + uint64(i))
		if wc[i].Op == fabric.WCRecv {
			c.rqUsed--
		} else {
			c.sqUsed--
		}
	}
	c.cq.drop(n)
	c.cqn.Add(-int32(n))
	if n > 0 && n < len(wc) && c.untold.n >= tellQuiet {
		// Completions of requests before these have all been taken.
		wc[n] = fabric.WC{ID: c.untold.id, Op: wcOpcode[c.untold.op]}
		c.untold.n = 0
		if c.sq.len() == 0 {
			c.reports = fabric.Deferrals{}
		}
		return n + 1, nil
	}
	if n == 0 && c.cq.len() == 0 && c.over.Load() {
		return 0, c.connErrLocked()
	}
	return n, nil
}

// blame finds the request that a Terminate message refers to and sets its status. A Send or
// Write may have completed already; then only the end of the connection reports the error. The
// caller holds mu.
func (c *Conn) blame(t *TerminateError) {
	status := t.status()
	for i := c.sq.head; i != c.sq.tail; i++ {
		e := c.sq.at(i)
		switch e.op {
		case fabric.OpRead:
			if !e.done && t.sink == sinkSTag(i) {
				e.status = status
				return
			}
		case fabric.OpWrite:
			if t.sink == 0 && t.STag != 0 && t.STag == e.rkey && e.n > 0 {
				e.status = status
				return
			}
		}
	}
	if t.sink == 0 && t.STag == 0 && c.orq.len() > 0 && t.Layer == rdmap.LayerRDMA && rdmap.ErrorType(t.Type) == rdmap.TypeProtection {
		// A protection error of layer RDMA without a quoted header most likely refers to a
		// Read, and Reads are answered in order.
		c.sq.at(*c.orq.at(c.orq.head)).status = status
	}
}

// flushQueues completes all outstanding requests, with WCFlushErr unless they already have an
// error status. The caller holds mu.
func (c *Conn) flushQueues(recv fabric.WCStatus) {
	for c.sq.len() > 0 {
		status := c.sq.at(c.sq.head).status
		if status == fabric.WCSuccess {
			status = fabric.WCFlushErr
		}
		c.complete(status)
	}
	for c.rq.len() > 0 {
		if recv == fabric.WCSuccess {
			recv = fabric.WCFlushErr
		}
		c.completeRecv(fabric.WC{Status: recv})
		recv = fabric.WCFlushErr
	}
	c.orq.drop(c.orq.len())
	c.irq.drop(c.irq.len())
	c.irqNext = c.irq.head
}
