package transport

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// A loan is the memory that one message exposes to the peer: chunks of a call, or
// read chunks of a reply.
//
// Two rungs of the registration ladder stand here. Where the adapter has memory
// windows, one is bound in front of the Send, in the same list, and ends by
// invalidation: the peer's, or ours. Elsewhere the memory is registered for the loan,
// with the one right that the chunk needs, and deregistered at its end.
//
// A window lies over memory that the adapter knows: any where it has LocalDMA, the
// arena's elsewhere; other memory is registered for the loan, without rights for the
// peer. A Memory stays registered from loan to loan, in either case.
type loan struct {
	c     *conn
	parts []exposure // windows are kept, and bound again
	n     int        // parts in use
}

// An exposure is one piece of memory that the peer can reach.
type exposure struct {
	mw   fabric.MW
	mr   fabric.MR // the memory under the window, or what the peer reaches
	kept *region   // instead of mr, which is nil
	seg  fabric.Segment
	open bool // bound, or registered for the peer
}

// lend exposes mem with one right and returns its name. Where that takes a bind, the
// request with the given ID is appended to wrs, and is to be posted before the name
// is.
func (l *loan) lend(wrs *[]fabric.SendWR, id uint64, mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	if l.n == len(l.parts) {
		l.parts = append(l.parts, exposure{})
	}
	e := &l.parts[l.n]
	local := access
	if access&fabric.AccessRemoteWrite != 0 {
		local |= fabric.AccessLocalWrite // ibv_reg_mr(3), ibv_bind_mw(3)
	}
	if !l.c.windows() {
		if err := e.register(l.c, mem, local); err != nil {
			return fabric.Segment{}, err
		}
		if e.open = true; e.kept != nil {
			e.seg = e.kept.segment(mem.Buf)
		} else {
			e.seg = e.mr.Segment()
		}
		l.n++
		return e.seg, nil
	}
	if e.mw == nil {
		mw, err := l.c.fc.AllocMW()
		if err != nil {
			return fabric.Segment{}, err
		}
		e.mw = mw
	}
	if mem.LKey == fabric.LocalDMAKey && !l.c.caps.LocalDMA {
		if err := e.register(l.c, mem, local&fabric.AccessLocalWrite); err != nil {
			return fabric.Segment{}, err
		}
		mem.LKey = e.lkey()
	}
	seg, err := e.mw.Prepare(mem, access)
	if err != nil {
		e.deregister()
		return fabric.Segment{}, err
	}
	e.seg, e.open = seg, true
	*wrs = append(*wrs, fabric.SendWR{ID: id, Op: fabric.OpBindMW, MW: e.mw})
	l.n++
	return seg, nil
}

// invalidated notes that the peer has invalidated a window of the loan.
func (l *loan) invalidated(key uint32) bool {
	for i := range l.parts[:l.n] {
		if e := &l.parts[i]; e.mw != nil && e.open && e.seg.Handle == key {
			e.open = false
			return true
		}
	}
	return false
}

// revoke appends the requests that close the windows which are open.
func (l *loan) revoke(wrs []fabric.SendWR, id uint64) []fabric.SendWR {
	for i := range l.parts[:l.n] {
		if e := &l.parts[i]; e.mw != nil && e.open {
			e.open = false
			wrs = append(wrs, fabric.SendWR{ID: id, Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: e.seg.Handle})
		}
	}
	return wrs
}

// end deregisters what has been registered for the loan. Windows are closed by then:
// invalidated, or never bound.
func (l *loan) end() {
	for i := range l.parts[:l.n] {
		e := &l.parts[i]
		e.deregister()
		e.open = false
	}
	l.n = 0
}

// forget leaves the windows to the end of the connection.
func (l *loan) forget() {
	for i := range l.parts {
		l.parts[i].mw = nil
	}
}

// withdraw ends the registrations through which the peer reaches memory beyond the
// loan: for a call whose reply has not come.
func (l *loan) withdraw() {
	if l.c.windows() {
		return
	}
	for i := range l.parts[:l.n] {
		if r := l.parts[i].kept; r != nil {
			r.withdraw()
		}
	}
}

// register makes the adapter know memory of the caller's: as part of a Memory, if it lies
// in one, otherwise for the loan, with the rights given.
func (e *exposure) register(c *conn, mem fabric.SGE, access fabric.Access) (err error) {
	if c.memories != nil && mem.LKey == fabric.LocalDMAKey {
		if m := c.memories.find(mem.Buf); m != nil {
			if e.kept, err = m.borrow(c); err != nil || e.kept != nil {
				return err
			}
		}
	}
	e.mr, err = c.fc.RegMR(mem.Buf, access)
	return err
}

func (e *exposure) lkey() uint32 {
	if e.kept != nil {
		return e.kept.mr.LKey()
	}
	return e.mr.LKey()
}

func (e *exposure) deregister() {
	switch {
	case e.kept != nil:
		e.kept.giveBack()
		e.kept = nil
	case e.mr != nil:
		e.mr.Close()
		e.mr = nil
	}
}

// lend exposes memory for the call of the slot.
func (s *slot) lend(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	return s.lent.lend(&s.wrs, wrID(wrCall, s.idx), mem, access)
}

// unexpose ends the loan and gives the call's buffers back.
func (s *slot) unexpose() {
	s.lent.end()
	for _, b := range []**buffer{&s.long, &s.back, &s.pull.mem} {
		if *b != nil {
			s.c.arena.put(*b)
			*b = nil
		}
	}
}

// split appends a piece of exposed memory to a list of segments, in segments of
// at most max bytes.
func split(dst []rpcrdma.Segment, seg fabric.Segment, max int) []rpcrdma.Segment {
	for seg.Length > uint32(max) {
		dst = append(dst, rpcrdma.Segment{Handle: seg.Handle, Length: uint32(max), Offset: seg.Offset})
		seg.Offset += uint64(max)
		seg.Length -= uint32(max)
	}
	return append(dst, rpcrdma.Segment(seg))
}

// splitRead is split for read lists.
func splitRead(dst []rpcrdma.ReadSegment, pos int, seg fabric.Segment, max int) []rpcrdma.ReadSegment {
	for seg.Length > uint32(max) {
		dst = append(dst, rpcrdma.ReadSegment{Position: uint32(pos),
			Segment: rpcrdma.Segment{Handle: seg.Handle, Length: uint32(max), Offset: seg.Offset}})
		seg.Offset += uint64(max)
		seg.Length -= uint32(max)
	}
	return append(dst, rpcrdma.ReadSegment{Position: uint32(pos), Segment: rpcrdma.Segment(seg)})
}
