package transport

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// Exposing memory for one call.
//
// Two rungs of the registration ladder stand here. Where the adapter has memory
// windows and takes any local memory, a window is bound in front of the Send, in
// the same list, and ends by invalidation: the peer's, or ours. Elsewhere the
// memory is registered for the call, with the one right that the chunk needs, and
// deregistered by the caller before its call returns.

// An exposure is one piece of memory that the peer can reach. Windows are kept
// with their slot and bound again.
type exposure struct {
	mw   fabric.MW
	mr   fabric.MR
	seg  fabric.Segment
	open bool // bound, or registered
}

// expose adds buf to what the call exposes.
func (s *slot) expose(buf []byte, access fabric.Access) (fabric.Segment, error) {
	if s.nexp == len(s.exposed) {
		s.exposed = append(s.exposed, exposure{})
	}
	e := &s.exposed[s.nexp]
	c := s.c
	if !c.windows() {
		if access&fabric.AccessRemoteWrite != 0 {
			access |= fabric.AccessLocalWrite // ibv_reg_mr(3)
		}
		mr, err := c.fc.RegMR(buf, access)
		if err != nil {
			return fabric.Segment{}, err
		}
		e.mr, e.seg, e.open = mr, mr.Segment(), true
		s.nexp++
		return e.seg, nil
	}
	if e.mw == nil {
		mw, err := c.fc.AllocMW()
		if err != nil {
			return fabric.Segment{}, err
		}
		e.mw = mw
	}
	seg, err := e.mw.Prepare(fabric.SGE{Buf: buf, LKey: fabric.LocalDMAKey}, access)
	if err != nil {
		return fabric.Segment{}, err
	}
	e.seg, e.open = seg, true
	s.wrs = append(s.wrs, fabric.SendWR{ID: wrID(wrCall, s.idx), Op: fabric.OpBindMW, MW: e.mw})
	s.nexp++
	return seg, nil
}

// closed notes that the peer has invalidated a window of the call.
func (s *slot) closed(key uint32) bool {
	for i := range s.exposed[:s.nexp] {
		if e := &s.exposed[i]; e.mw != nil && e.open && e.seg.Handle == key {
			e.open = false
			return true
		}
	}
	return false
}

// invalidations appends the requests that close the windows which are open.
func (s *slot) invalidations(wrs []fabric.SendWR) []fabric.SendWR {
	for i := range s.exposed[:s.nexp] {
		if e := &s.exposed[i]; e.mw != nil && e.open {
			e.open = false
			wrs = append(wrs, fabric.SendWR{
				ID: wrID(wrInv, s.idx), Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: e.seg.Handle,
			})
		}
	}
	return wrs
}

// unexpose ends the exposure of memory registered for the call and gives the
// call's buffers back. Windows are closed by then: invalidated, or never bound.
func (s *slot) unexpose() {
	for i := range s.exposed[:s.nexp] {
		e := &s.exposed[i]
		if e.mr != nil {
			e.mr.Close()
			e.mr = nil
		}
		e.open = false
	}
	s.nexp = 0
	if s.long != nil {
		s.c.arena.put(s.long)
		s.long = nil
	}
	if s.back != nil {
		s.c.arena.put(s.back)
		s.back = nil
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
