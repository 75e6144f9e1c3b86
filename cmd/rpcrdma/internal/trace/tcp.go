package trace

import "slices"

const (
	// maxPending bounds what one direction of a stream keeps for bytes that are missing in front.
	maxPending         = 4 << 20 // bytes
	maxPendingSegments = 4096
	// maxPendingAll bounds that for all streams and flows of a file together, in bytes.
	maxPendingAll = 128 << 20
)

// A stream puts one direction of a TCP connection together. Parts that were not captured become
// holes.
type stream struct {
	known   bool   // next is
	next    uint32 // sequence number
	pending []piece
	bytes   int  // in pending
	all     *int // in pending of all streams
	out     taker
	doubted uint32 // the acknowledgement that the last doubt was about

	retransmitted int // segments
}

// A piece is a segment that waits for those in front of it.
type piece struct {
	seq  uint32
	data []byte
	size int
	at   stamp
}

// A stamp says where something was in the file.
type stamp struct {
	packet  int
	time    int64
	comment string
}

// A taker gets the bytes of a stream in their order.
type taker interface {
	// bytes are the next ones. start: a segment begins with them.
	bytes(b []byte, start bool, at stamp)
	// hole: n bytes are not there.
	hole(n int, at stamp)
	// doubt: the peer has got bytes that were not captured, or not yet.
	doubt(at stamp)
}

// segment processes a segment with data.
func (s *stream) segment(seg *segment, at stamp) {
	seq := seg.seq
	if seg.flags&tcpSYN != 0 {
		seq++
		if !s.known || len(s.pending) == 0 && seq != s.next {
			s.known, s.next = true, seq
		}
	}
	if seg.size == 0 {
		return
	}
	if !s.known {
		s.known, s.next = true, seq
	}
	switch ahead := int32(seq - s.next); {
	case ahead < 0 && int64(seg.size)+int64(ahead) <= 0:
		s.retransmitted++
		return
	case ahead > 0:
		if len(s.pending) >= maxPendingSegments || s.bytes+len(seg.data) > maxPending || *s.all > maxPendingAll {
			s.skip()
		}
		s.wait(piece{seq, slices.Clone(seg.data), seg.size, at})
		s.drain()
		return
	case ahead < 0:
		s.retransmitted++
	}
	s.deliver(&piece{seq, seg.data, seg.size, at})
	s.drain()
}

// deliver hands on what is new of a piece that begins at s.next or before.
func (s *stream) deliver(p *piece) {
	old := int(s.next - p.seq)
	if old >= p.size {
		return
	}
	s.next = p.seq + uint32(p.size)
	if old < len(p.data) {
		s.out.bytes(p.data[old:], old == 0, p.at)
	}
	if n := p.size - max(len(p.data), old); n > 0 {
		s.out.hole(n, p.at)
	}
}

// wait puts a piece in its place.
func (s *stream) wait(p piece) {
	i := len(s.pending)
	for i > 0 && int32(p.seq-s.pending[i-1].seq) < 0 {
		i--
	}
	s.pending = slices.Insert(s.pending, i, p)
	s.bytes += len(p.data)
	*s.all += len(p.data)
}

// drain delivers the pieces that nothing is missing in front of.
func (s *stream) drain() {
	n := 0
	for n < len(s.pending) && int32(s.pending[n].seq-s.next) <= 0 {
		p := &s.pending[n]
		s.bytes -= len(p.data)
		*s.all -= len(p.data)
		s.deliver(p)
		n++
	}
	s.pending = slices.Delete(s.pending, 0, n)
}

// skip gives up what is missing in front of the pieces that wait.
func (s *stream) skip() {
	if len(s.pending) == 0 {
		return
	}
	p := &s.pending[0]
	if n := int32(p.seq - s.next); n > 0 {
		s.out.hole(int(n), p.at)
		s.next = p.seq
	}
	s.drain()
}

// acknowledged handles an acknowledgement by the peer. Bytes that are missing before it will not come
// any more: they were not captured.
func (s *stream) acknowledged(ack uint32, at stamp) {
	if !s.known || int32(ack-s.next) <= 0 {
		return
	}
	for len(s.pending) > 0 && int32(ack-s.pending[0].seq) >= 0 {
		s.skip()
	}
	// The sequence number of a FIN is no byte.
	if n := int32(ack - s.next); n > 1 && ack != s.doubted {
		s.doubted = ack
		s.out.doubt(at)
	}
}

// end delivers everything that waits.
func (s *stream) end() {
	for len(s.pending) > 0 {
		s.skip()
	}
}
