package trace

import (
	"encoding/binary"
	"net/netip"
)

// segment is a TCP segment or a UDP datagram.
type segment struct {
	from, to netip.AddrPort
	tcp      bool
	seq, ack uint32
	flags    uint8
	data     []byte // captured part
	size     int    // original length
}

// TCP flags.
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
)

// dissect parses a packet. It returns false if it is neither TCP nor UDP, or a fragment, or too
// short.
func dissect(p *Packet, s *segment) bool {
	b, size := p.Data, p.Size
	// cut removes n bytes from the front.
	cut := func(n int) bool {
		if n > len(b) {
			return false
		}
		b, size = b[n:], size-n
		return true
	}
	kind := 0
	switch p.Link {
	case linkEthernet:
		if len(b) < 14 {
			return false
		}
		kind = int(binary.BigEndian.Uint16(b[12:]))
		cut(14)
	case linkCooked:
		if len(b) < 16 {
			return false
		}
		kind = int(binary.BigEndian.Uint16(b[14:]))
		cut(16)
	case linkCooked2:
		if len(b) < 20 {
			return false
		}
		kind = int(binary.BigEndian.Uint16(b))
		cut(20)
	case linkNull:
		if !cut(4) {
			return false
		}
	case linkRaw, linkIPv4, linkIPv6:
	default:
		return false
	}
	for kind == 0x8100 || kind == 0x88a8 || kind == 0x9100 { // VLAN tags
		if len(b) < 4 {
			return false
		}
		kind = int(binary.BigEndian.Uint16(b[2:]))
		cut(4)
	}
	if kind == 0 && len(b) > 0 {
		switch b[0] >> 4 {
		case 4:
			kind = etherIPv4
		case 6:
			kind = etherIPv6
		}
	}
	switch kind {
	case etherIPv4:
		return dissectIPv4(b, size, s)
	case etherIPv6:
		return dissectIPv6(b, size, s)
	}
	return false
}

func dissectIPv4(b []byte, size int, s *segment) bool {
	if len(b) < 20 || b[0]>>4 != 4 {
		return false
	}
	head, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if total == 0 { // segmentation offload: the length does not fit the field
		total = size
	}
	if head < 20 || head > len(b) || total < head || total > size {
		return false
	}
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
		return false // a fragment
	}
	from, to := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	return dissectPorts(b[9], from, to, b[head:min(total, len(b))], total-head, s)
}

// maxExtensions limits the extension headers of IPv6.
const maxExtensions = 8

func dissectIPv6(b []byte, size int, s *segment) bool {
	if len(b) < 40 || b[0]>>4 != 6 {
		return false
	}
	total, next := int(binary.BigEndian.Uint16(b[4:])), b[6]
	if total == 0 {
		total = size - 40
	}
	if total > size-40 {
		return false
	}
	from, to := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	b = b[40:]
	b = b[:min(total, len(b))]
	for range maxExtensions {
		if next != 0 && next != 43 && next != 60 { // hop-by-hop, routing, destination
			break
		}
		if len(b) < 8 {
			return false
		}
		n := 8 + int(b[1])*8
		if n > len(b) {
			return false
		}
		next, b, total = b[0], b[n:], total-n
	}
	return dissectPorts(next, from, to, b, total, s)
}

func dissectPorts(proto uint8, from, to netip.Addr, b []byte, size int, s *segment) bool {
	if len(b) < 8 {
		return false
	}
	*s = segment{
		from: netip.AddrPortFrom(from, binary.BigEndian.Uint16(b)),
		to:   netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:])),
	}
	head := 8
	switch proto {
	case 17:
	case 6:
		if len(b) < 20 {
			return false
		}
		s.tcp, s.flags = true, b[13]
		s.seq, s.ack = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
		if head = int(b[12]>>4) * 4; head < 20 {
			return false
		}
	default:
		return false
	}
	if head > len(b) || head > size {
		return false
	}
	s.data, s.size = b[head:], size-head
	return true
}
