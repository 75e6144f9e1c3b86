package iwarp

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// queues holds the work queues and the completion queue. It is a part of state.
//
// The send queue is a sequence of entries with positions that only advance:
//
//	head         done     entries before it have completed
//	written      sent     entries before it have been handed to TCP, or copied by the peer: see share.go
//	sender.next  begun    entries before it have been put into a batch
//	tail         posted
//
// A request completes when it has been written, all requests before it have completed, and, for a Read, its data has
// arrived.
type queues struct {
	waiter  *waiter
	sq      ring[sqEntry]
	sges    ring[fabric.SGE] // of the entries, in order
	written uint64
	sqUsed  int // posted, and neither polled nor completed without a WC
	reports fabric.Deferrals
	untold  untold
	starved bool // Post found the queue full: Wait returns when there is space

	rq     ring[fabric.RecvWR]
	rqUsed int // posted and not polled

	cq ring[fabric.WC] // never longer than sqUsed + rqUsed

	// orq holds the outstanding Reads of this side, as positions in the send queue. RFC 5040 section 5.5: responses
	// arrive in this order.
	orq ring[uint64]

	// irq holds the Read Requests of the peer. The responses to the requests before irqNext are completely in a batch,
	// but may not have been written. RFC 5040 section 5.5: Reads are answered in order.
	irq     ring[rdmap.ReadRequest]
	irqNext uint64

	// loans holds the loans of written requests that wait for the peer to copy their data.
	loans ring[loan]
}

// tellQuiet is the number of deferred requests that complete without a completion before take reports them. The user
// keeps memory for each of them until then. take reports them along with other completions, so that no goroutine wakes
// up for them alone.
const tellQuiet = 2

// untold counts the deferred requests that have completed since the last completion of the send queue.
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
	report bool // generate a completion even on success
	done   bool // the data of a Read has arrived
	hidden bool // not posted by the user: generate no completion
}

// pushSend appends a request. mw is the window that the request binds, or nil.
func (q *queues) pushSend(wr *fabric.SendWR, mw *MW, hidden bool) {
	e := q.sq.push()
	e.id, e.roff, e.rkey, e.op, e.flags = wr.ID, wr.RemoteOffset, wr.RKey, wr.Op, wr.Flags
	e.sge, e.nsge, e.mw, e.hidden = q.sges.tail, uint8(len(wr.SGL)), mw, hidden
	for i := range wr.SGL {
		*q.sges.push() = wr.SGL[i]
		e.n += uint32(len(wr.SGL[i].Buf))
	}
	if !hidden {
		q.sqUsed++
		e.report = q.reports.Reports(wr.Flags)
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

// retire completes the requests that are done. A caller other than the waiter must call unpark after unlocking.
func (q *queues) retire() {
	for q.sq.head < q.written {
		e := q.sq.at(q.sq.head)
		if e.op == fabric.OpRead && !e.done {
			return
		}
		q.complete(e.status)
	}
}

// complete removes the oldest entry of the send queue.
func (q *queues) complete(status fabric.WCStatus) {
	e := q.sq.at(q.sq.head)
	switch {
	case e.hidden:
	case e.report || status != fabric.WCSuccess:
		q.untold.n = 0
		wc := q.cq.push()
		wc.ID, wc.Status, wc.Op = e.id, status, wcOpcode[e.op]
		if e.op == fabric.OpRead && status == fabric.WCSuccess {
			wc.Len = e.n
		}
		q.waiter.cqn.Add(1)
	default:
		if e.flags&fabric.Deferred != 0 {
			q.untold.n++
			q.untold.id, q.untold.op = e.id, e.op
		}
		q.sqUsed--
		if q.starved {
			q.starved = false
			q.waiter.wakeup.Store(true)
		}
	}
	q.sges.drop(int(e.nsge))
	q.sq.pop()
}

// completeRecv removes the oldest receive, and returns its completion.
func (q *queues) completeRecv(status fabric.WCStatus) *fabric.WC {
	wc := q.cq.push()
	wc.ID, wc.Status, wc.Op = q.rq.at(q.rq.head).ID, status, fabric.WCRecv
	q.rq.pop()
	q.waiter.cqn.Add(oneReceive + 1)
	return wc
}

// take removes completions from the completion queue.
func (q *queues) take(wc []fabric.WC) int {
	n := min(len(wc), q.cq.len())
	if n == 0 {
		return 0
	}
	for i := range wc[:n] {
		wc[i] = *q.cq.at(q.cq.head)
		q.cq.pop()
		if wc[i].Op == fabric.WCRecv {
			q.rqUsed--
		} else {
			q.sqUsed--
		}
	}
	q.waiter.cqn.Add(-uint64(n))
	if n < len(wc) && q.untold.n >= tellQuiet {
		// The completions of all earlier requests have been taken.
		wc[n] = fabric.WC{ID: q.untold.id, Op: wcOpcode[q.untold.op]}
		q.untold.n = 0
		if q.sq.len() == 0 {
			q.reports = fabric.Deferrals{}
		}
		return n + 1
	}
	return n
}

// blame sets the status of the request that a Terminate message refers to. If a Send or Write has completed already,
// only the end of the connection reports the error.
func (q *queues) blame(t *TerminateError) {
	status := t.status()
	for i := q.sq.head; i != q.sq.tail; i++ {
		e := q.sq.at(i)
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
	if t.sink == 0 && t.STag == 0 && q.orq.len() > 0 && t.Layer == rdmap.LayerRDMA && rdmap.ErrorType(t.Type) == rdmap.TypeProtection {
		// A protection error of layer RDMA without a quoted header most likely refers to the oldest Read, because Reads
		// are answered in order.
		q.sq.at(*q.orq.at(q.orq.head)).status = status
	}
}

// flush completes all outstanding requests: with WCFlushErr, unless they already have an error status. recv is the
// status of the oldest receive.
func (q *queues) flush(recv fabric.WCStatus) {
	for q.sq.len() > 0 {
		status := q.sq.at(q.sq.head).status
		if status == fabric.WCSuccess {
			status = fabric.WCFlushErr
		}
		q.complete(status)
	}
	for q.rq.len() > 0 {
		if recv == fabric.WCSuccess {
			recv = fabric.WCFlushErr
		}
		q.completeRecv(recv)
		recv = fabric.WCFlushErr
	}
	q.orq.drop(q.orq.len())
	q.irq.drop(q.irq.len())
	q.irqNext = q.irq.head
	q.loans.drop(q.loans.len())
}

// stalled reports whether a request must wait for earlier Reads. Up to ord Reads may be outstanding.
func (q *queues) stalled(e *sqEntry, ord int) bool {
	return e.flags&fabric.Fence != 0 && q.orq.len() > 0 || e.op == fabric.OpRead && q.orq.len() >= max(ord, 1)
}

// owes reports whether a Read of the peer is not yet completely answered in batches.
func (q *queues) owes() bool { return q.irqNext != q.irq.tail }

// answered removes the Read Requests whose responses are completely written. Messages that the peer sends after it has
// received a complete response must not find the request, even if the rest of the batch is not written yet.
func (q *queues) answered(b *batch) {
	if b.nresp == 0 {
		return
	}
	k := 0
	for k < b.nresp && int(b.resp[k].end) <= b.pos {
		q.irq.drop(int(b.resp[k].n))
		k++
	}
	b.nresp = copy(b.resp[:], b.resp[k:b.nresp])
}

// responding reports whether a response to a Read of stag's memory is incomplete.
func (q *queues) responding(stag uint32) bool {
	for i := q.irq.head; i != q.irq.tail; i++ {
		if r := q.irq.at(i); r.SrcSTag == stag && r.Size > 0 {
			return true
		}
	}
	return false
}
