package capture

import (
	"encoding/binary"

	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

const (
	opWrite    = rdmap.OpWrite
	opResponse = rdmap.OpReadResponse
)

// Flags of TCP.
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpPSH = 0x08
	tcpACK = 0x10
)

// tcp begins a packet with the headers up to the TCP header. size is the length of the rest. The caller advances the
// sequence number with advance after it has emitted the packet.
func (f *framer) tcp(s *stream, dir int, flags uint8, size int) {
	f.header(s, dir, protoTCP, tcpLen+size)
	from, to := s.local.Port(), s.remote.Port()
	if dir == 1 {
		from, to = to, from
	}
	b := binary.BigEndian.AppendUint16(f.pkt, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = binary.BigEndian.AppendUint32(b, s.seq[dir])
	ack := uint32(0)
	if flags&tcpACK != 0 {
		ack = s.seq[1-dir]
	}
	b = binary.BigEndian.AppendUint32(b, ack)
	b = append(b, tcpLen/4<<4, flags, 0xff, 0xff) // the window is arbitrary
	f.pkt = append(b, 0, 0, 0, 0)                 // no checksum, no urgent pointer
}

// tcpBytes writes one segment of a connection without RDMA.
func (f *framer) tcpBytes(e *event) {
	dir := side(e.out)
	f.tcp(e.s, dir, tcpPSH|tcpACK, e.size)
	f.pkt = append(f.pkt, e.data...)
	f.finish(e.at, dir, e.size-len(e.data))
	e.s.seq[dir] += uint32(e.size)
}

// setupTCP writes the TCP handshake and the start-up frames of MPA: RFC 5044 section 7.1.
func (f *framer) setupTCP(s *stream, at int64) {
	now := s.seq
	asker := side(s.active)
	frame := func(kind mpa.Kind, private []byte) []byte {
		private = private[:min(len(private), mpa.MaxPrivateData)]
		return append(mpa.AppendStart(nil, &mpa.Start{
			Kind: kind, Flags: mpa.FlagCRC, Revision: 1, PDLength: len(private),
		}), private...)
	}
	var frames [2][]byte
	if !s.plain {
		frames = [2][]byte{frame(mpa.Request, s.asked), frame(mpa.Reply, s.agreed)}
	}
	s.seq[asker] -= uint32(len(frames[0])) + 1
	s.seq[1-asker] -= uint32(len(frames[1])) + 1

	step := func(dir int, flags uint8, data []byte) {
		f.tcp(s, dir, flags, len(data))
		f.pkt = append(f.pkt, data...)
		f.finish(at, dir, 0)
		s.seq[dir] += uint32(len(data))
		if flags&tcpSYN != 0 {
			s.seq[dir]++
		}
	}
	step(asker, tcpSYN, nil)
	step(1-asker, tcpSYN|tcpACK, nil)
	step(asker, tcpACK, nil)
	if !s.plain {
		step(asker, tcpPSH|tcpACK, frames[0])
		step(1-asker, tcpPSH|tcpACK, frames[1])
	}
	s.seq = now // even if the packets of the setup do not add up to it
}

// endTCP writes the packets that close a connection. The first has the reason as its comment.
func (f *framer) endTCP(s *stream, at int64, out bool) {
	first := side(out)
	for _, dir := range []int{first, 1 - first} {
		f.tcp(s, dir, tcpFIN|tcpACK, 0)
		f.finish(at, dir, 0)
		s.seq[dir]++
	}
	f.tcp(s, first, tcpACK, 0)
	f.finish(at, first, 0)
}

// fpdu writes a packet with one FPDU (RFC 5044 section 4) of the headers head and size bytes of data, of which data may
// have only the first ones.
func (f *framer) fpdu(s *stream, at int64, dir int, head, data []byte, size int) {
	ulpdu := len(head) + size
	total := mpa.FPDULen(ulpdu)
	f.tcp(s, dir, tcpPSH|tcpACK, total)
	start := len(f.pkt)
	b := binary.BigEndian.AppendUint16(f.pkt, uint16(ulpdu))
	b = append(b, head...)
	b = append(b, data...)
	if len(data) == size {
		b = append(b, make([]byte, mpa.Pad(ulpdu))...)
		b = append(b, 0, 0, 0, 0)
		end := len(b) - mpa.CRCLen
		mpa.PutCRC(b[end:], mpa.UpdateCRC(0, b[start:end]))
	}
	f.pkt = b
	f.finish(at, dir, start+total-len(b))
	s.seq[dir] += uint32(total)
}

// iwarpSend writes the packets of a Send.
func (f *framer) iwarpSend(e *event) {
	s, dir := e.s, side(e.out)
	op := rdmap.OpSend
	if e.hasInval {
		op = rdmap.OpSendInv
	}
	s.msn[dir][rdmap.QNSend]++
	f.segments(e, func(data []byte, at, size int, more bool) {
		var head [ddp.UntaggedLen]byte
		f.fpdu(s, e.at, dir, ddp.AppendUntagged(head[:0], &ddp.Untagged{
			Last: !more, ULP: rdmap.Control(op), ULP32: e.inval,
			QN: rdmap.QNSend, MSN: s.msn[dir][rdmap.QNSend], MO: uint32(at),
		}), data, size)
	})
}

// iwarpTagged writes the packets of an RDMA Write or a Read Response.
func (f *framer) iwarpTagged(e *event, dir int, op rdmap.Opcode, stag uint32, offset uint64) {
	f.segments(e, func(data []byte, at, size int, more bool) {
		var head [ddp.TaggedLen]byte
		f.fpdu(e.s, e.at, dir, ddp.AppendTagged(head[:0], &ddp.Tagged{
			Last: !more, ULP: rdmap.Control(op), STag: stag, TO: offset + uint64(at),
		}), data, size)
	})
}

// iwarpPadding writes the packet of an RDMA Write without an end: Wireshark pads the last segment.
func (f *framer) iwarpPadding(e *event, stag uint32, offset uint64, zeros []byte) {
	var head [ddp.TaggedLen]byte
	f.fpdu(e.s, e.at, side(e.out), ddp.AppendTagged(head[:0], &ddp.Tagged{
		ULP: rdmap.Control(opWrite), STag: stag, TO: offset,
	}), zeros, len(zeros))
}

// iwarpRead writes the packets of an RDMA Read. Each Read has its own sink STag, which distinguishes the Reads.
func (f *framer) iwarpRead(e *event) {
	s, dir := e.s, side(e.out)
	s.sink++
	s.msn[dir][rdmap.QNRead]++
	var head [ddp.UntaggedLen]byte
	var body [rdmap.ReadRequestLen]byte
	request := rdmap.AppendReadRequest(body[:0], &rdmap.ReadRequest{
		SinkSTag: s.sink, Size: uint32(e.size), SrcSTag: e.key, SrcTO: e.offset,
	})
	f.fpdu(s, e.at, dir, ddp.AppendUntagged(head[:0], &ddp.Untagged{
		Last: true, ULP: rdmap.Control(rdmap.OpReadRequest), QN: rdmap.QNRead, MSN: s.msn[dir][rdmap.QNRead],
	}), request, len(request))
	f.iwarpTagged(e, 1-dir, opResponse, s.sink, 0)
}
