package trace

import (
	"encoding/binary"
	"fmt"

	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// maxReads limits the unanswered Read Requests of a direction.
const maxReads = 1 << 12

// markerInterval is the distance of MPA's markers in bytes of the stream, RFC 5044 section 4.3.
const (
	markerInterval = 512
	markerLen      = 4
)

// iwarpConn is a TCP connection that carries iWARP, or may do so.
type iwarpConn struct {
	emit func(*op)
	side [2]iwarpSide
	crc  bool // CRCs are generated and checked
}

// iwarpSide is the stream from one end.
type iwarpSide struct {
	c   *iwarpConn
	dir int
	tcp stream

	phase phase
	buf   []byte // of the current frame, without markers
	size  int    // bytes of that frame so far, including holes
	start stamp

	markers bool   // the peer wants markers
	at      uint64 // bytes since the first FPDU

	msg   message // on the Send queue
	reads map[uint32]rdmap.ReadRequest
}

// phase is the meaning of the next bytes of a side.
type phase uint8

const (
	phaseStart  phase = iota // a start-up frame, or unknown
	phaseFrames              // FPDUs
	phaseLost                // within a frame, until a segment begins with one
	phaseOther               // not iWARP
)

func newIwarpConn(emit func(*op), pending *int) *iwarpConn {
	c := &iwarpConn{emit: emit}
	for i := range c.side {
		s := &c.side[i]
		s.c, s.dir, s.reads = c, i, make(map[uint32]rdmap.ReadRequest)
		s.tcp.out, s.tcp.all = s, pending
	}
	return c
}

// is reports whether the connection carries iWARP.
func (c *iwarpConn) is() bool {
	return c.side[0].phase == phaseFrames || c.side[1].phase == phaseFrames
}

func (s *iwarpSide) op(kind opKind) *op {
	return &op{stamp: s.start, kind: kind, dir: s.dir}
}

func (s *iwarpSide) bytes(b []byte, start bool, at stamp) {
	if s.phase == phaseLost || s.phase == phaseStart && s.size == 0 && start && !startsMPA(b) {
		if !start || !startsFPDU(b) {
			s.pass(len(b))
			return
		}
		s.phase, s.buf, s.size = phaseFrames, s.buf[:0], 0
	}
	for len(b) > 0 && s.phase != phaseOther && s.phase != phaseLost {
		if s.phase == phaseFrames && s.markers && s.at%markerInterval < markerLen {
			n := min(markerLen-int(s.at%markerInterval), len(b))
			s.pass(n)
			b = b[n:]
			continue
		}
		want := s.want()
		if s.phase == phaseOther {
			return
		}
		if s.phase == phaseFrames && s.markers {
			want = min(want, markerInterval-int(s.at%markerInterval))
		}
		n := min(want, len(b))
		if s.size == 0 {
			s.start = at
		}
		if len(s.buf) == s.size { // otherwise the frame has a hole
			s.buf = append(s.buf, b[:n]...)
		}
		s.size += n
		s.pass(n)
		b = b[n:]
		s.frame()
	}
}

// pass counts bytes of the stream.
func (s *iwarpSide) pass(n int) {
	if s.phase != phaseStart {
		s.at += uint64(n)
	}
}

func (s *iwarpSide) hole(n int, at stamp) {
	switch s.phase {
	case phaseOther:
		return
	case phaseStart:
		s.phase = phaseLost
	case phaseFrames:
		// A hole within a frame of known length does not affect later frames.
		left := s.want()
		if s.size < mpa.LengthLen || s.markers || n > left {
			s.phase = phaseLost
			break
		}
		s.size += n
		s.pass(n)
		s.frame()
		return
	}
	s.pass(n)
	s.buf, s.size = s.buf[:0], 0
	s.msg.cut = true
	s.c.emit(&op{stamp: at, kind: opHole, dir: s.dir, size: n})
}

func (s *iwarpSide) doubt(at stamp) {
	if s.phase == phaseFrames || s.phase == phaseLost || s.c.side[1-s.dir].phase == phaseFrames {
		s.c.emit(&op{stamp: at, kind: opHole, dir: s.dir})
	}
}

// want returns how many bytes the frame needs next.
func (s *iwarpSide) want() int {
	if s.phase == phaseStart {
		if s.size < mpa.StartLen {
			return mpa.StartLen - s.size
		}
		var f mpa.Start
		if _, err := mpa.ConsumeStart(s.buf, &f); err != nil {
			s.phase = phaseOther
			return 0
		}
		return mpa.StartLen + f.PDLength - s.size
	}
	if s.size < mpa.LengthLen {
		return mpa.LengthLen - s.size
	}
	return mpa.FPDULen(int(binary.BigEndian.Uint16(s.buf))) - s.size
}

// frame processes the frame if it is complete.
func (s *iwarpSide) frame() {
	switch {
	case s.phase == phaseStart:
		if s.size < mpa.StartLen || s.want() > 0 || s.phase == phaseOther {
			return
		}
		s.startUp()
	case s.size < mpa.LengthLen || s.want() > 0:
		return
	default:
		s.fpdu()
	}
	s.buf, s.size = s.buf[:0], 0
}

// startUp processes a start-up frame. RFC 5044 section 7.1.
func (s *iwarpSide) startUp() {
	var f mpa.Start
	n, err := mpa.ConsumeStart(s.buf, &f)
	if err != nil {
		s.phase = phaseOther
		return
	}
	private := s.buf[n:]
	if f.Revision >= 2 && f.Flags&mpa.FlagEnhanced != 0 && len(private) >= mpa.EnhancedLen {
		private = private[mpa.EnhancedLen:]
	}
	s.phase, s.at = phaseFrames, 0
	s.c.crc = s.c.crc || f.Flags&mpa.FlagCRC != 0
	s.c.side[1-s.dir].markers = f.Flags&mpa.FlagMarkers != 0
	o := s.op(opPrivate)
	if f.Flags&mpa.FlagReject != 0 {
		o.kind = opReject
	}
	o.data, o.size, o.whole = private, len(private), f.Kind == mpa.Reply
	s.c.emit(o)
}

// fpdu processes an FPDU. s.buf may contain only its beginning.
func (s *iwarpSide) fpdu() {
	ulpdu := int(binary.BigEndian.Uint16(s.buf))
	// With markers the CRC may or may not cover them, so it is not checked.
	if whole := len(s.buf) == s.size; whole && s.c.crc && !s.markers {
		end := s.size - mpa.CRCLen
		if mpa.UpdateCRC(0, s.buf[:end]) != mpa.CRC(s.buf[end:]) {
			s.fault("the CRC of an FPDU is wrong")
			return
		}
	}
	b := s.buf[mpa.LengthLen:]
	b = b[:min(ulpdu, len(b))]
	if len(b) == 0 {
		return // a hole, or the ready-to-receive frame of RFC 6581
	}
	if ddp.IsTagged(b) {
		s.tagged(b, ulpdu)
	} else {
		s.untagged(b, ulpdu)
	}
}

func (s *iwarpSide) fault(format string, args ...any) {
	o := s.op(opFault)
	o.text = fmt.Sprintf(format, args...)
	s.c.emit(o)
}

// tagged processes a segment of an RDMA Write or of a Read Response.
func (s *iwarpSide) tagged(b []byte, size int) {
	var h ddp.Tagged
	n, err := ddp.ConsumeTagged(b, &h)
	if err != nil {
		s.incomplete(err, len(b) < size)
		return
	}
	opcode, err := rdmap.ParseControl(h.ULP)
	if err != nil {
		s.incomplete(err, false)
		return
	}
	o := s.op(opWrite)
	o.key, o.offset, o.data, o.size = h.STag, h.TO, b[n:], size-n
	switch opcode {
	case rdmap.OpWrite:
	case rdmap.OpReadResponse:
		r, ok := s.c.side[1-s.dir].reads[h.STag]
		if !ok {
			return // its request was not captured
		}
		o.kind, o.key, o.offset = opReadData, r.SrcSTag, h.TO-r.SinkTO+r.SrcTO
	default:
		s.fault("%v in a tagged segment", opcode)
		return
	}
	s.c.emit(o)
	if h.Last && o.kind == opReadData {
		delete(s.c.side[1-s.dir].reads, h.STag)
	}
}

// untagged processes a segment of a Send, of a Read Request or of a Terminate message.
func (s *iwarpSide) untagged(b []byte, size int) {
	var h ddp.Untagged
	n, err := ddp.ConsumeUntagged(b, &h)
	if err != nil {
		s.incomplete(err, len(b) < size)
		return
	}
	opcode, err := rdmap.ParseControl(h.ULP)
	if err != nil {
		s.incomplete(err, false)
		return
	}
	body := b[n:]
	switch {
	case opcode.IsSend() && h.QN == rdmap.QNSend:
		s.send(&h, opcode, body, size-n)
	case opcode == rdmap.OpReadRequest && h.QN == rdmap.QNRead:
		var r rdmap.ReadRequest
		if _, err := rdmap.ConsumeReadRequest(body, &r); err != nil {
			s.incomplete(err, len(b) < size)
			return
		}
		if len(s.reads) < maxReads {
			s.reads[r.SinkSTag] = r
		}
		o := s.op(opRead)
		o.key, o.offset, o.size = r.SrcSTag, r.SrcTO, int(r.Size)
		s.c.emit(o)
	case opcode == rdmap.OpTerminate && h.QN == rdmap.QNTerminate:
		var t rdmap.Terminate
		o := s.op(opTerminate)
		if _, err := rdmap.ConsumeTerminate(body, &t); err == nil || t.Cause != (rdmap.Cause{}) {
			o.text = t.Cause.String()
		}
		s.c.emit(o)
	default:
		s.fault("%v on queue %d", opcode, h.QN)
	}
}

// incomplete handles a header that was not captured completely, or is invalid.
func (s *iwarpSide) incomplete(err error, short bool) {
	if !short {
		s.fault("%v", err)
		return
	}
	o := s.op(opHole)
	s.c.emit(o)
	s.msg.cut = true
}

// send processes a segment of a Send.
func (s *iwarpSide) send(h *ddp.Untagged, opcode rdmap.Opcode, body []byte, size int) {
	if h.MO == 0 {
		s.msg.reset()
	} else if uint64(h.MO) != uint64(s.msg.size) {
		s.msg.cut = true
	}
	s.msg.add(body, size)
	if !h.Last {
		return
	}
	o := s.op(opSend)
	o.data, o.size, o.whole = s.msg.data, s.msg.size, !s.msg.cut
	if opcode.Invalidates() {
		o.invalidates, o.key = true, h.ULP32
	}
	s.c.emit(o)
	s.msg.reset()
}

// startsMPA reports whether b may begin with a start-up frame.
func startsMPA(b []byte) bool {
	var f mpa.Start
	_, err := mpa.ConsumeStart(b, &f)
	return err == nil || err == mpa.ErrShort
}

// startsFPDU reports whether b looks like the beginning of an FPDU without markers. RFC 5044 aligns frames with
// segments where possible.
func startsFPDU(b []byte) bool {
	if len(b) < mpa.LengthLen+ddp.TaggedLen {
		return false
	}
	ulpdu := int(binary.BigEndian.Uint16(b))
	b = b[mpa.LengthLen:]
	opcode, err := rdmap.ParseControl(b[1])
	if err != nil || b[0]&0x3c != 0 || b[0]&3 != ddp.Version || b[1]&0x30 != 0 || opcode > rdmap.OpTerminate {
		return false
	}
	if opcode.Tagged() {
		return ddp.IsTagged(b) && ulpdu >= ddp.TaggedLen
	}
	if ddp.IsTagged(b) || ulpdu < ddp.UntaggedLen || len(b) < ddp.UntaggedLen {
		return false
	}
	qn := binary.BigEndian.Uint32(b[6:])
	switch opcode {
	case rdmap.OpReadRequest:
		return qn == rdmap.QNRead
	case rdmap.OpTerminate:
		return qn == rdmap.QNTerminate
	}
	return qn == rdmap.QNSend
}
