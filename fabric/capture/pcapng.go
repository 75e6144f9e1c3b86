package capture

import "encoding/binary"

// Block types and options of pcapng: draft-ietf-opsawg-pcapng sections 4.1 to 4.6.
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockStatistics = 5
	blockPacket     = 6 // Enhanced Packet Block

	byteOrderMagic = 0x1a2b3c4d
	linkEthernet   = 1

	optEnd     = 0
	optComment = 1

	optHardware    = 2 // of a section
	optApplication = 4

	optInterfaceName = 2
	optResolution    = 9

	optFlags = 2 // of a packet

	optReceived = 4 // of statistics: isb_ifrecv
	optDropped  = 5 // isb_ifdrop
)

// Directions of a packet: epb_flags, bits 0 and 1.
const (
	inbound  = 1
	outbound = 2
)

// maxComment bounds a packet comment, in bytes.
const maxComment = 1024

// appendBlock appends a block around the body that f appends. Everything is little endian.
func appendBlock(b []byte, kind uint32, f func(b []byte) []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, kind)
	b = binary.LittleEndian.AppendUint32(b, 0) // the length, set below
	b = f(b)
	n := uint32(len(b) - start + 4)
	binary.LittleEndian.PutUint32(b[start+4:], n)
	return binary.LittleEndian.AppendUint32(b, n)
}

func appendOption(b []byte, code uint16, value []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, code)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(value)))
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// appendFileHeader appends a section header and the description of the one interface, with
// timestamps in nanoseconds.
func appendFileHeader(b []byte, name string) []byte {
	b = appendBlock(b, blockSection, func(b []byte) []byte {
		b = binary.LittleEndian.AppendUint32(b, byteOrderMagic)
		b = binary.LittleEndian.AppendUint16(b, 1) // version 1.0
		b = binary.LittleEndian.AppendUint16(b, 0)
		b = binary.LittleEndian.AppendUint64(b, 1<<64-1) // length of the section: unknown
		b = appendOption(b, optHardware, []byte("synthesized packets: they never were on a wire"))
		b = appendOption(b, optApplication, []byte("rpcrdma"))
		return appendOption(b, optEnd, nil)
	})
	return appendBlock(b, blockInterface, func(b []byte) []byte {
		b = binary.LittleEndian.AppendUint16(b, linkEthernet)
		b = binary.LittleEndian.AppendUint16(b, 0)
		b = binary.LittleEndian.AppendUint32(b, 0) // snap length: none
		b = appendOption(b, optInterfaceName, []byte(name))
		b = appendOption(b, optResolution, []byte{9})
		return appendOption(b, optEnd, nil)
	})
}

// A packet is one Enhanced Packet Block.
type packet struct {
	at      int64 // nanoseconds since 1970
	out     bool
	data    []byte // the part that is kept
	size    int    // of the whole packet
	comment string
}

func appendPacket(b []byte, p *packet) []byte {
	return appendBlock(b, blockPacket, func(b []byte) []byte {
		b = binary.LittleEndian.AppendUint32(b, 0) // the interface
		b = binary.LittleEndian.AppendUint32(b, uint32(uint64(p.at)>>32))
		b = binary.LittleEndian.AppendUint32(b, uint32(p.at))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p.data)))
		b = binary.LittleEndian.AppendUint32(b, uint32(p.size))
		b = append(b, p.data...)
		b = append(b, make([]byte, -len(p.data)&3)...)
		flags := uint32(inbound)
		if p.out {
			flags = outbound
		}
		b = appendOption(b, optFlags, binary.LittleEndian.AppendUint32(nil, flags))
		if p.comment != "" {
			b = appendOption(b, optComment, []byte(p.comment[:min(len(p.comment), maxComment)]))
		}
		return appendOption(b, optEnd, nil)
	})
}

// appendStatistics appends the numbers of received and dropped packets.
func appendStatistics(b []byte, at int64, packets, dropped uint64) []byte {
	return appendBlock(b, blockStatistics, func(b []byte) []byte {
		b = binary.LittleEndian.AppendUint32(b, 0) // the interface
		b = binary.LittleEndian.AppendUint32(b, uint32(uint64(at)>>32))
		b = binary.LittleEndian.AppendUint32(b, uint32(at))
		b = appendOption(b, optReceived, binary.LittleEndian.AppendUint64(nil, packets))
		b = appendOption(b, optDropped, binary.LittleEndian.AppendUint64(nil, dropped))
		return appendOption(b, optEnd, nil)
	})
}
