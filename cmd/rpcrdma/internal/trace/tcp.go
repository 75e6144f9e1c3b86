package trace

import "slices"

const (
	// maxPending bounds what one direction of a stream keeps for bytes that are missing in front.
	maxPending         = 4 << 20 // bytes
	maxPendingSegments = 4096
	// maxPendingAll limits the same for all streams and flows of a file together, in bytes.
	maxPendingAll = 128 << 20
)

// stream reassembles one direction of a TCP connection. Parts that were not captured become holes.
type stream struct {
	known   bool   // next is valid
	next    uint32 // next sequence number
	pending []piece
	bytes   int  // total in pending
	all     *int // total in pending of all streams
	out     taker
	doubted uint32 // acknowledgement of the last doubt

	retransmitted int // segments
}

// piece is a segment that waits for earlier ones.
type piece struct {
	seq  uint32
	data []byte
	size int
	at   stamp
}

// stamp is the place and time of something in the file.
type stamp struct {
	packet  int
	time    int64
	comment string
}

// taker receives the bytes of a stream in order.
type taker interface {
	// bytes passes the next bytes. start is set if a segment begins with them.
	bytes(b []byte, start bool, at stamp)
	// hole reports that n bytes are missing.
	hole(n int, at stamp)
	// doubt reports that the peer has received bytes that were not captured, or not yet.
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

// deliver passes on the new part of a piece that begins at s.next or before.
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

// wait inserts a piece in order.
func (s *stream) wait(p piece) {
	i := len(s.pending)
	for i > 0 && int32(p.seq-s.pending[i-1].seq) < 0 {
		i--
	}
	s.pending = slices.Insert(s.pending, i, p)
	s.bytes += len(p.data)
	*s.all += len(p.data)
}

// drain delivers the pieces before which nothing is missing.
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

// skip stops waiting for the bytes missing before the waiting pieces.
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

// acknowledged processes an acknowledgement by the peer. Bytes missing before it will not arrive any more: they were
// not captured.
func (s *stream) acknowledged(ack uint32, at stamp) {
	if !s.known || int32(ack-s.next) <= 0 {
		return
	}
	for len(s.pending) > 0 && int32(ack-s.pending[0].seq) >= 0 {
		s.skip()
	}
	// The sequence number of a FIN is not a byte.
	if n := int32(ack - s.next); n > 1 && ack != s.doubted {
		s.doubted = ack
		s.out.doubt(at)
	}
}

// end delivers all waiting pieces.
func (s *stream) end() {
	for len(s.pending) > 0 {
		s.skip()
	}
}
