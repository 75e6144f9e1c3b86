package capture

import (
	"encoding/binary"
	"hash/crc32"
)

// The UDP port of RoCE v2: InfiniBand Architecture, annex A17.
const rocePort = 4791

// Opcodes of a Base Transport Header: InfiniBand Architecture, volume 1, section 9.2.1.
const (
	rcSendFirst    = 0
	rcSendMiddle   = 1
	rcSendLast     = 2
	rcSendOnly     = 4
	rcWriteFirst   = 6
	rcWriteMiddle  = 7
	rcWriteLast    = 8
	rcWriteOnly    = 10
	rcReadRequest  = 12
	rcReadFirst    = 13
	rcReadMiddle   = 14
	rcReadLast     = 15
	rcReadOnly     = 16
	rcAck          = 17
	rcSendLastInv  = 22
	rcSendOnlyInv  = 23
	udSendOnly     = 0x64
	bthLen         = 12
	rethLen        = 16
	icrcLen        = 4
	psnMask        = 1<<24 - 1
	managementPair = 1 // the queue pair for connection management
)

// Connection management: volume 1, section 12.6.
const (
	cmRequest         = 0x0010
	cmReply           = 0x0013
	cmReady           = 0x0014
	cmDisconnect      = 0x0015
	cmDisconnectReply = 0x0016

	cmRequestLen = 140 // bytes before the private data
	cmReplyLen   = 36
	cmRequestMax = 92 // bytes of private data
	cmReplyMax   = 196
	cmAddressLen = 36 // bytes that RDMA-CM puts before the private data: annex A11
	madLen       = 256
	madHeaderLen = 24
)

// beginRoCE chooses queue pairs and packet sequence numbers that no other connection of the file has.
func (f *framer) beginRoCE(s *stream) {
	first := (f.streams*2 + 0x100) & psnMask
	s.qp = [2]uint32{first, first + 1}
	s.seq = [2]uint32{0x1000, 0x2000}
}

// udp begins a packet with the headers up to the Base Transport Header. size is the length of the rest, including pad
// and ICRC.
func (f *framer) udp(s *stream, dir int, opcode uint8, qp, psn uint32, pad, size int, last bool) {
	f.header(s, dir, protoUDP, udpLen+bthLen+size)
	// The source port lets routers distinguish flows.
	b := binary.BigEndian.AppendUint16(f.pkt, 0xc000|uint16(s.qp[dir]&0x3fff))
	b = binary.BigEndian.AppendUint16(b, rocePort)
	b = binary.BigEndian.AppendUint16(b, uint16(udpLen+bthLen+size))
	b = append(b, 0, 0)
	b = append(b, opcode, 0x40|byte(pad)<<4, 0xff, 0xff) // migrated, default partition
	b = binary.BigEndian.AppendUint32(b, qp)
	ack := uint32(0)
	if last {
		ack = 1 << 31
	}
	f.pkt = binary.BigEndian.AppendUint32(b, ack|psn&psnMask)
}

// icrc computes the invariant CRC of f.pkt: annex A17.3.3. Fields that routers may change count as all ones.
func (f *framer) icrc() uint32 {
	b := append(append(make([]byte, 0, len(f.pkt)), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), f.pkt[etherLen:]...)
	ip := b[8:]
	head := ipv6Len
	if ip[0]>>4 == 4 {
		head = ipv4Len
		ip[1], ip[8], ip[10], ip[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		ip[0], ip[1], ip[2], ip[3], ip[7] = 0x6f, 0xff, 0xff, 0xff, 0xff
	}
	udp := ip[head:]
	udp[6], udp[7] = 0xff, 0xff
	udp[udpLen+4] = 0xff
	return crc32.ChecksumIEEE(b)
}

// roceSegment writes one packet. extra is the extended header.
func (f *framer) roceSegment(s *stream, at int64, dir int, opcode uint8, qp, psn uint32, extra, data []byte, size int, last bool) {
	pad := -size & 3
	f.udp(s, dir, opcode, qp, psn, pad, len(extra)+size+pad+icrcLen, last)
	f.pkt = append(f.pkt, extra...)
	f.pkt = append(f.pkt, data...)
	cut := size - len(data) + pad + icrcLen
	if len(data) == size {
		f.pkt = append(f.pkt, make([]byte, pad)...)
		f.pkt = binary.LittleEndian.AppendUint32(f.pkt, f.icrc())
		cut = 0
	}
	f.finish(at, dir, cut)
}

func reth(va uint64, key uint32, size int) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, rethLen), va)
	b = binary.BigEndian.AppendUint32(b, key)
	return binary.BigEndian.AppendUint32(b, uint32(size))
}

// place returns the opcode of a segment, which depends on whether the segment is the only, the first, a middle or the
// last one.
func place(at int, more bool, only, first, middle, last uint8) uint8 {
	switch {
	case at == 0 && !more:
		return only
	case at == 0:
		return first
	case more:
		return middle
	}
	return last
}

// roce writes the packets of a message or an operation.
func (f *framer) roce(e *event) {
	s, dir := e.s, side(e.out)
	switch e.kind {
	case kindSend:
		defer f.acknowledge(e)
		f.segments(e, func(data []byte, at, size int, more bool) {
			opcode := place(at, more, rcSendOnly, rcSendFirst, rcSendMiddle, rcSendLast)
			var extra []byte
			if e.hasInval && !more {
				opcode = place(at, more, rcSendOnlyInv, 0, 0, rcSendLastInv)
				extra = binary.BigEndian.AppendUint32(nil, e.inval)
			}
			f.roceSegment(s, e.at, dir, opcode, s.qp[dir], s.seq[dir], extra, data, size, !more)
			s.seq[dir] = (s.seq[dir] + 1) & psnMask
		})
	case kindWrite:
		defer f.acknowledge(e)
		f.segments(e, func(data []byte, at, size int, more bool) {
			var extra []byte
			if at == 0 {
				extra = reth(e.offset, e.key, e.size)
			}
			opcode := place(at, more, rcWriteOnly, rcWriteFirst, rcWriteMiddle, rcWriteLast)
			f.roceSegment(s, e.at, dir, opcode, s.qp[dir], s.seq[dir], extra, data, size, !more)
			s.seq[dir] = (s.seq[dir] + 1) & psnMask
		})
	case kindRead:
		psn := s.seq[dir]
		f.roceSegment(s, e.at, dir, rcReadRequest, s.qp[dir], psn, reth(e.offset, e.key, e.size), nil, 0, true)
		s.seq[dir] = (psn + uint32((e.size+maxData-1)/maxData)) & psnMask
		// The responses use the packet sequence numbers that the request reserved.
		f.segments(e, func(data []byte, at, size int, more bool) {
			var extra []byte
			opcode := place(at, more, rcReadOnly, rcReadFirst, rcReadMiddle, rcReadLast)
			if opcode != rcReadMiddle {
				extra = []byte{0, 0, 0, 1} // acknowledge extended transport header
			}
			f.roceSegment(s, e.at, 1-dir, opcode, s.qp[1-dir], psn, extra, data, size, false)
			psn = (psn + 1) & psnMask
		})
	}
}

// acknowledge writes the acknowledgement of the operation of e. Connections are reliable, so the peer has received it.
func (f *framer) acknowledge(e *event) {
	s, dir := e.s, side(e.out)
	accepted := []byte{0x1f, 0, 0, 1} // without end-to-end credits
	f.roceSegment(s, e.at, 1-dir, rcAck, s.qp[1-dir], s.seq[dir]-1, accepted, nil, 0, false)
}

// manage writes a datagram of connection management.
func (f *framer) manage(s *stream, at int64, dir int, attribute uint16, body []byte) {
	mad := make([]byte, madLen)
	mad[0], mad[1], mad[2], mad[3] = 1, 7, 2, 3 // version, communication management, its version, Send
	binary.BigEndian.PutUint64(mad[8:], uint64(s.qp[0]))
	binary.BigEndian.PutUint16(mad[16:], attribute)
	copy(mad[madHeaderLen:], body)
	deth := []byte{0x80, 1, 0, 0, 0, 0, 0, managementPair} // the queue key, and the sender's queue pair
	f.roceSegment(s, at, dir, udSendOnly, managementPair, 0, deth, mad, madLen, false)
}

// setupRoCE writes the handshake of connection management.
func (f *framer) setupRoCE(s *stream, at int64) {
	asker := side(s.active)
	ids := [2]uint32{s.qp[0] << 8, s.qp[1] << 8} // communication IDs of the receiving end of each direction
	own := func(dir int) uint32 { return ids[1-dir] }
	server, client := s.remote, s.local
	if !s.active {
		server, client = client, server
	}

	b := make([]byte, cmRequestLen, cmRequestLen+cmRequestMax)
	binary.BigEndian.PutUint32(b, own(asker))
	binary.BigEndian.PutUint64(b[8:], 0x01060000|uint64(server.Port())) // RDMA-CM, TCP port space
	binary.BigEndian.PutUint32(b[32:], s.qp[1-asker]<<8|16)             // and RDMA Reads
	binary.BigEndian.PutUint32(b[36:], 16)
	binary.BigEndian.PutUint32(b[44:], s.seq[asker]<<8)
	binary.BigEndian.PutUint16(b[48:], 0xffff)
	from, to := client.Addr().As16(), server.Addr().As16()
	copy(b[56:], from[:]) // the primary path's GIDs, by which Wireshark identifies the ends
	copy(b[72:], to[:])
	address := make([]byte, cmAddressLen)
	version := byte(0x60)
	if client.Addr().Is4() {
		version = 0x40
		from, to = [16]byte{12: from[12], from[13], from[14], from[15]}, [16]byte{12: to[12], to[13], to[14], to[15]}
	}
	address[1] = version
	binary.BigEndian.PutUint16(address[2:], client.Port())
	copy(address[4:], from[:])
	copy(address[20:], to[:])
	b = append(append(b, address...), s.asked[:min(len(s.asked), cmRequestMax-cmAddressLen)]...)
	f.manage(s, at, asker, cmRequest, b)

	b = make([]byte, cmReplyLen, cmReplyLen+cmReplyMax)
	binary.BigEndian.PutUint32(b, own(1-asker))
	binary.BigEndian.PutUint32(b[4:], own(asker))
	binary.BigEndian.PutUint32(b[12:], s.qp[asker]<<8)
	binary.BigEndian.PutUint32(b[20:], s.seq[1-asker]<<8)
	b[24], b[25] = 16, 16
	b = append(b, s.agreed[:min(len(s.agreed), cmReplyMax)]...)
	f.manage(s, at, 1-asker, cmReply, b)

	b = binary.BigEndian.AppendUint32(nil, own(asker))
	f.manage(s, at, asker, cmReady, binary.BigEndian.AppendUint32(b, own(1-asker)))
}

// endRoCE writes the packets that close a connection. The first has the reason as its comment.
func (f *framer) endRoCE(s *stream, at int64, out bool) {
	first := side(out)
	for i, attribute := range []uint16{cmDisconnect, cmDisconnectReply} {
		dir := first
		if i == 1 {
			dir = 1 - first
		}
		b := binary.BigEndian.AppendUint32(nil, s.qp[1-dir]<<8)
		b = binary.BigEndian.AppendUint32(b, s.qp[dir]<<8)
		f.manage(s, at, dir, attribute, binary.BigEndian.AppendUint32(b, s.qp[dir]<<8))
	}
}
