package transport

import (
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
	"github.com/rpcrdma/rpcrdma/transport/internal/reads"
)

// ---- replies with read chunks, at the requester

// readReplies reports whether replies may have read chunks: only to clients.
func (c *conn) readReplies() bool { return c.cfg.RFC5666 != nil && c.role == roleClient }

// fetchReply gets the data in the read chunks of a reply.
func (l *leader) fetchReply(s *slot, h *rpcrdma.Header, payload []byte) error {
	c, m := l.c, &s.pull
	bad := &rpc.BadReplyError{XID: h.XID, Reason: "its read list makes no message"}
	lay, ok := reads.Outline(h, len(payload), c.cfg.MaxMessage)
	if !ok || l.reads.Most == 0 {
		return bad
	}
	var err error
	if m.Mem, err = c.arena.Get(lay.Size); err != nil {
		return err
	}
	if !m.Assemble(h, payload, lay) {
		return bad
	}
	if !m.Pulls() {
		l.fetched(s)
		return nil
	}
	l.reads.Start(m)
	return nil
}

// fetched processes the fetched reply and sends RDMA_DONE to the server, with the xid of the reply. It uses the call's
// credit until it has been sent (section 3.8).
func (l *leader) fetched(s *slot) {
	s.call.store = append(s.call.store[:0], s.pull.Msg...)
	l.sayDone(s)
}

func (l *leader) sayDone(s *slot) {
	c := l.c
	h := rpcrdma.Header{XID: s.hdr.XID, Vers: rpcrdma.Version1, Credit: uint32(c.cfg.Credits), Proc: rpcrdma.ProcDone}
	// The reply has arrived, so the call no longer uses the buffer.
	s.sge[0] = fabric.SGE{Buf: rpcrdma.AppendHeader(s.send.Bytes[:0], &h), LKey: s.send.LKey}
	s.wrs = append(s.wrs[:0], fabric.SendWR{ID: wrID(wrDone, s.idx), Op: fabric.OpSend, Flags: fabric.Signaled, SGL: s.sge[:]})
	inc(&c.stats.Done)
	c.state.Lock()
	s.state = slotAccepted
	c.state.Unlock()
	c.sends.add(s.wrs)
}

// ---- replies with read chunks, at the responder

// lends reports whether there are replies with read chunks.
func (c *conn) lends() bool { return c.cfg.RFC5666 != nil && c.role == roleServer }

// lendsReply reports whether the reply may have read chunks.
func (x *exch) lendsReply() bool {
	return x.c.lends() && x.hdr.Vers == rpcrdma.Version1 && x.lending.allowed && !x.c.conf.noReads
}

// lendReply puts parts that fit nowhere else into read chunks. moved items are already in write chunks. It returns the
// message to send.
func (x *exch) lendReply(p *plan.Reply, head, results []byte, moved int) (msg []byte, ok bool) {
	switch p.Lend(len(x.items), moved) {
	case plan.LentItems:
		return x.lendItems(head, results)
	case plan.LentWhole:
		return x.lendWhole(head, results, moved)
	}
	return nil, false
}

// lendItems puts the items into read chunks, each at its position; the rest goes inline.
func (x *exch) lendItems(head, results []byte) (msg []byte, ok bool) {
	h := &x.rh
	pos := len(head)
	for i := range x.items {
		it := &x.items[i]
		if len(it.Data) == 0 {
			continue
		}
		seg, err := x.lendMemory(it.Data, it.Key)
		if err != nil {
			return nil, false
		}
		h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: uint32(pos + it.At), Segment: rpcrdma.Segment(seg)})
		pos += xdr.Padded(len(it.Data))
	}
	at := h.Size()
	copy(x.out.Bytes[at+len(head):], results) // may overlap
	copy(x.out.Bytes[at:], head)
	rpcrdma.AppendHeader(x.out.Bytes[:0], h)
	return x.out.Bytes[:at+len(head)+len(results)], true
}

// lendWhole puts the message, without the items in write chunks, into one read chunk.
func (x *exch) lendWhole(head, results []byte, moved int) (msg []byte, ok bool) {
	full := len(head) + len(results)
	for i := moved; i < len(x.items); i++ {
		full += xdr.Padded(len(x.items[i].Data))
	}
	b, err := x.alloc(full)
	if err != nil {
		return nil, false
	}
	whole := append(b.Bytes[:0], head...)
	from := 0
	for i := moved; i < len(x.items); i++ {
		it := &x.items[i]
		whole = append(append(whole, results[from:it.At]...), it.Data...)
		whole = append(whole, zeros[:xdr.Pad(len(it.Data))]...)
		from = it.At
	}
	whole = append(whole, results[from:]...)
	seg, err := x.lendMemory(whole, b.LKey)
	if err != nil {
		return nil, false
	}
	h := &x.rh
	h.Proc = rpcrdma.ProcNomsg
	h.Reads = append(h.Reads, rpcrdma.ReadSegment{Segment: rpcrdma.Segment(seg)})
	return rpcrdma.AppendHeader(x.out.Bytes[:0], h), true
}

func (x *exch) lendMemory(mem []byte, key uint32) (fabric.Segment, error) {
	return x.lending.loan.Expose(&x.wrs, wrID(wrWrite, x.idx), fabric.SGE{Buf: mem, LKey: key}, fabric.AccessRemoteRead)
}

// awaitDone keeps the memory of a reply that has been sent until its client no longer needs it.
func (l *leader) awaitDone(x *exch) {
	ln := &x.lending
	if ln.acked {
		l.takeLoanBack(x)
		return
	}
	x.state = exchLent
	c := l.c
	ln.timer = time.AfterFunc(c.cfg.RFC5666.DoneTimeout, func() { c.breakOff(errNoDone) })
}

// doneReceived processes RDMA_DONE.
func (l *leader) doneReceived(xid uint32) {
	for _, x := range l.exchs {
		l.c.state.Lock()
		state := x.state // in all other states its service may own the exchange
		l.c.state.Unlock()
		ln := &x.lending
		if state != exchReplying && state != exchLent || ln.loan.Len() == 0 || ln.acked || x.hdr.XID != xid {
			continue
		}
		ln.acked = true
		if state == exchLent { // otherwise the completion of the reply comes later
			ln.timer.Stop()
			l.takeLoanBack(x)
		}
		return
	}
	inc(&l.c.stats.Dropped)
}

// takeLoanBack closes the memory of a reply's read chunks.
func (l *leader) takeLoanBack(x *exch) {
	ln := &x.lending
	x.state = exchLent
	x.wrs = ln.loan.Revoke(x.wrs[:0], wrID(wrLoan, x.idx))
	if ln.fences = len(x.wrs); ln.fences > 0 {
		l.c.sends.add(x.wrs)
		return
	}
	l.loanClosed(x)
}

// loanRevoked processes the completion of an invalidation.
func (l *leader) loanRevoked(x *exch) {
	ln := &x.lending
	if ln.fences--; ln.fences == 0 {
		l.loanClosed(x)
	}
}

// loanClosed ends the exchange.
func (l *leader) loanClosed(x *exch) {
	x.lending.loan.End()
	l.done(x)
}
