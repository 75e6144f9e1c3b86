package capture

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// A kind is the subject of an event.
type kind uint8

const (
	kindUp    kind = iota // the connection is established
	kindSend              // a message
	kindWrite             // an RDMA Write; event.out: this end is its source
	kindRead              // an RDMA Read; event.out: this end requests the data
	kindBytes             // one segment of a TCP connection without RDMA
	kindDown              // the connection has ended
)

// An event is an element of a Writer's queue.
type event struct {
	at   int64 // nanoseconds since 1970
	s    *stream
	kind kind
	out  bool // this end did it

	// data has the first SnapLen bytes of each segment of a message or operation of size bytes.
	data []byte
	size int

	key, inval uint32 // kindWrite and kindRead: the segment; kindSend: the handle that is invalidated
	offset     uint64
	hasInval   bool
	why        string // kindDown
	missed     uint64 // number of events of all connections that were dropped before this one
}

// A stream is the state that the packets of one connection share. The framer owns its counters: [0] is for packets to
// the peer, [1] for packets from the peer.
type stream struct {
	local, remote netip.AddrPort
	active        bool   // this end has asked for the connection
	asked, agreed []byte // private data of the request and of the answer

	seq   [2]uint32    // iWARP: the next TCP sequence number; RoCE: the next PSN
	msn   [2][2]uint32 // iWARP: the last message sequence numbers of Sends and of Read Requests
	sink  uint32       // iWARP: the last STag of a Read's sink
	qp    [2]uint32    // RoCE: the destination queue pair of each direction
	begun bool
	plain bool // TCP without RDMA, whatever the framing
}

// maxData is the maximum amount of data of a packet, in bytes. With all headers, it fits into an IP packet.
const maxData = 60 << 10

// kept returns the number of bytes that are kept of a message or operation of size bytes.
func (c *Config) kept(size int) int {
	if c.SnapLen <= 0 {
		return size
	}
	whole := size / maxData
	return whole*min(maxData, c.SnapLen) + min(size%maxData, c.SnapLen)
}

// A framer converts events to packets. It is owned by the goroutine that writes.
type framer struct {
	cfg      *Config
	emit     func(*packet)
	live     map[*stream]struct{}
	streams  uint32 // number of streams so far
	written  int64  // bytes written to the file
	starting bool   // the setup of the current connections is being written to a new file
	over     bool   // the last file is full

	hdr  rpcrdma.Header // scratch
	pkt  []byte         // scratch
	ip   uint16         // the latest IP identification
	note string         // the comment of the next packet
}

func (f *framer) event(e *event) {
	s := e.s
	if e.missed > 0 {
		f.remark(fmt.Sprintf("%s%d", DroppedComment, e.missed))
	}
	switch e.kind {
	case kindUp:
		if s.begun {
			return
		}
		f.streams++
		s.begun = true
		f.live[s] = struct{}{}
		f.begin(s)
		f.setup(s, e.at)
		return
	case kindDown:
		if _, ok := f.live[s]; ok {
			f.remark(e.why)
			f.end(s, e.at, e.out)
			delete(f.live, s)
		}
		return
	}
	if e.kind == kindSend {
		if f.cfg.Framing == IWARP {
			f.padding(e)
		}
		if !f.cfg.KeepVersion && likeVersion1(e.data) {
			binary.BigEndian.PutUint32(e.data[4:], rpcrdma.Version1)
			f.remark(VersionComment)
		}
	}
	switch {
	case e.kind == kindBytes:
		f.tcpBytes(e)
	case f.cfg.Framing == RoCE:
		f.roce(e)
	case e.kind == kindSend:
		f.iwarpSend(e)
	case e.kind == kindWrite:
		f.iwarpTagged(e, side(e.out), opWrite, e.key, e.offset)
	case e.kind == kindRead:
		f.iwarpRead(e)
	}
}

// remark appends text to the comment of the next packet.
func (f *framer) remark(text string) {
	if f.note != "" && text != "" {
		f.note += "; "
	}
	f.note += text
}

func (f *framer) begin(s *stream) {
	if f.cfg.Framing == RoCE && !s.plain {
		f.beginRoCE(s)
		return
	}
	s.seq = [2]uint32{1 << 16, 1 << 16}
}

// setup writes the packets that set up a connection. Their counters are such that the packets that follow continue with
// the current counters of s.
func (f *framer) setup(s *stream, at int64) {
	if f.cfg.Framing == RoCE && !s.plain {
		f.setupRoCE(s, at)
		return
	}
	f.setupTCP(s, at)
}

func (f *framer) end(s *stream, at int64, out bool) {
	if f.cfg.Framing == RoCE && !s.plain {
		f.endRoCE(s, at, out)
		return
	}
	f.endTCP(s, at, out)
}

// restart writes the setup of the current connections to a new file. Then it emits p, which did not fit into the
// previous file.
func (f *framer) restart(p *packet) {
	scratch, note := f.pkt, f.note // p may refer to them
	f.pkt, f.note, f.starting = nil, "", true
	for s := range f.live {
		f.setup(s, p.at)
	}
	f.emit(p)
	f.pkt, f.note, f.starting = scratch, note, false
}

// side returns the index of a direction in the arrays of a stream.
func side(out bool) int {
	if out {
		return 0
	}
	return 1
}

// likeVersion1 reports whether b is a message of version 2 that has the same form in version 1: version two section 4.2.
func likeVersion1(b []byte) bool {
	fixed, ok := rpcrdma.ConsumeFixed(b)
	if !ok || fixed.Vers != rpcrdma.Version2 {
		return false
	}
	switch fixed.Proc {
	case rpcrdma.ProcMsg, rpcrdma.ProcNomsg:
		return true
	case rpcrdma.ProcError:
		return len(b) >= rpcrdma.ErrChunkSize && binary.BigEndian.Uint32(b[rpcrdma.FixedSize:]) <= uint32(rpcrdma.ErrBadHeader)
	}
	return false
}

// padding writes a packet with the XDR padding of each write chunk that a reply fills to a length that is not a multiple
// of four. The padding is not on the wire (RFC 8166 section 3.4.6.2). Wireshark adds it only to a full chunk, and
// otherwise considers the reply malformed.
func (f *framer) padding(e *event) {
	if !consumeLists(e.data, &f.hdr) || !isReply(e.data, &f.hdr) {
		return
	}
	for _, chunk := range f.hdr.Writes {
		n := int(-chunk.Length() & 3)
		last := len(chunk) - 1
		for last >= 0 && chunk[last].Length == 0 {
			last--
		}
		if n == 0 || last < 0 {
			continue
		}
		var zeros [3]byte
		f.remark(PaddingComment)
		f.iwarpPadding(e, chunk[last].Handle, chunk[last].Offset+uint64(chunk[last].Length), zeros[:n])
	}
}

// consumeLists decodes the header of msg. It reports whether the header has chunk lists.
func consumeLists(msg []byte, h *rpcrdma.Header) bool {
	_, err := rpcrdma.ConsumeHeader(msg, h, &rpcrdma.Limits{
		// The length of the message bounds the memory that it can make this end allocate.
		ReadSegments: len(msg), WriteChunks: len(msg), SegmentsPerChunk: len(msg),
		Versions: rpcrdma.Range{Low: rpcrdma.Version1, High: rpcrdma.Version2},
	})
	return err == nil && (h.Proc == rpcrdma.ProcMsg || h.Proc == rpcrdma.ProcNomsg || h.Proc == rpcrdma.ProcMsgp)
}

// isReply reports whether msg, with header h, is a reply. An RDMA_NOMSG is a reply unless its read chunks contain a
// call.
func isReply(msg []byte, h *rpcrdma.Header) bool {
	if h.Proc == rpcrdma.ProcNomsg {
		return len(h.Reads) == 0
	}
	_, kind, ok := oncrpc.Peek(msg[h.Size():])
	return ok && kind == oncrpc.Reply
}

// segments calls each for every segment of the data of e. Each segment becomes a packet. more reports that further
// segments follow.
func (f *framer) segments(e *event, each func(data []byte, at, size int, more bool)) {
	rest := e.data
	for at := 0; ; at += maxData {
		size := min(e.size-at, maxData)
		n := min(f.cfg.kept(size), len(rest))
		each(rest[:n], at, size, at+size < e.size)
		rest = rest[n:]
		if at+size >= e.size {
			return
		}
	}
}

// Ethernet, IP and UDP or TCP.
const (
	etherLen = 14
	ipv4Len  = 20
	ipv6Len  = 40
	udpLen   = 8
	tcpLen   = 20

	protoTCP = 6
	protoUDP = 17
)

// header begins a packet of one direction in f.pkt with the headers up to the IP header. size is the length of the rest
// of the packet.
func (f *framer) header(s *stream, dir int, proto uint8, size int) {
	from, to := s.local.Addr(), s.remote.Addr()
	if dir == 1 {
		from, to = to, from
	}
	b := f.pkt[:0]
	// Locally administered addresses: the last byte is 1 for this end, 2 for the peer.
	b = append(b, 2, 0, 0, 0, 0, byte(2-dir), 2, 0, 0, 0, 0, byte(1+dir))
	if from.Is4() {
		f.ip++
		b = append(b, 0x08, 0x00)
		at := len(b)
		b = append(b, 0x45, 0x02) // ECN-capable, as RoCE is
		b = binary.BigEndian.AppendUint16(b, uint16(ipv4Len+size))
		b = binary.BigEndian.AppendUint16(b, f.ip)
		b = append(b, 0x40, 0, 64, proto, 0, 0) // do not fragment
		b = append(b, from.AsSlice()...)
		b = append(b, to.AsSlice()...)
		var sum uint32
		for i := at; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(b[at+10:], ^uint16(sum))
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(size))
		b = append(b, proto, 64)
		b = append(b, from.AsSlice()...)
		b = append(b, to.AsSlice()...)
	}
	f.pkt = b
}

// finish emits f.pkt, which lacks cut bytes at the end.
func (f *framer) finish(at int64, dir, cut int) {
	if f.starting {
		f.note = ContinuedComment
	}
	p := packet{at: at, out: dir == 0, data: f.pkt, size: len(f.pkt) + cut, comment: f.note}
	f.note = ""
	f.emit(&p)
}

// address returns the IP address and port of a. ok is false if a has no IP address.
func address(a net.Addr) (ap netip.AddrPort, ok bool) {
	if t, isTCP := a.(*net.TCPAddr); isTCP {
		ap = t.AddrPort()
	} else if a != nil {
		ap, _ = netip.ParseAddrPort(a.String())
	}
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port()), ap.IsValid()
}

// servicePort is the port in packets of an accepting end that has no port of its own. It is the port of NFS over RDMA
// (RFC 8267 section 7.1), which packet analyzers recognize.
const servicePort = 20049

// addresses returns the addresses of both ends, in one address family. Ends without IP addresses, as over shared memory,
// are given loopback addresses, with a different port for each connection.
func (w *Writer) addresses(c interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}, active bool) (l, r netip.AddrPort) {
	l, okL := address(c.LocalAddr())
	r, okR := address(c.RemoteAddr())
	if !okL || !okR {
		lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		l, r = netip.AddrPortFrom(lo, servicePort), netip.AddrPortFrom(lo, 1+uint16(w.unnamed.Add(1)-1)%(servicePort-1))
		if active {
			l, r = r, l
		}
	}
	if l.Addr().Is4() != r.Addr().Is4() {
		l = netip.AddrPortFrom(netip.AddrFrom16(l.Addr().As16()), l.Port())
		r = netip.AddrPortFrom(netip.AddrFrom16(r.Addr().As16()), r.Port())
	}
	return l, r
}
