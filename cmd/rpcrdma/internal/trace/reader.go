package trace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
)

// Link types: https://www.tcpdump.org/linktypes.html
const (
	linkNull     = 0
	linkEthernet = 1
	linkRaw      = 101
	linkCooked   = 113 // LINUX_SLL
	linkIPv4     = 228
	linkIPv6     = 229
	linkCooked2  = 276 // LINUX_SLL2
)

const (
	// maxPacket is the longest packet read, in bytes: the most that tcpdump records.
	maxPacket = 256 << 10
	// maxBlock is the longest block of a pcapng file: a packet with its options.
	maxBlock = maxPacket + 64<<10
	// maxInterfaces limits the interfaces of one section of a pcapng file.
	maxInterfaces = 1 << 12
)

// A Packet is a packet of a file. Data is valid until the next one is read.
type Packet struct {
	Number  int    // from 1
	At      int64  // nanoseconds since 1970
	Link    uint32 // the link type
	Data    []byte // captured part
	Size    int    // original length
	Comment string
}

// ErrFormat is wrapped by errors about files that are not captures.
var ErrFormat = errors.New("no pcap or pcapng file")

// IsCapture reports whether a file that begins with b, at least four bytes, may be a capture.
func IsCapture(b []byte) bool {
	if len(b) < 4 {
		return false
	}
	switch binary.BigEndian.Uint32(b) {
	case 0x0a0d0d0a, 0xa1b2c3d4, 0xd4c3b2a1, 0xa1b23c4d, 0x4d3cb2a1:
		return true
	}
	return false
}

// A Reader reads the packets of a file.
type Reader struct {
	r      *bufio.Reader
	order  binary.ByteOrder
	ng     bool
	number int
	buf    []byte

	// pcap
	link  uint32
	nanos int64 // nanoseconds per unit of the fraction

	// pcapng
	interfaces []iface
}

// iface is an interface of a pcapng file.
type iface struct {
	link  uint32
	units uint64 // units of time per second; zero: a power of two
	shift uint   // the exponent in that case
	skew  int64  // seconds to add
}

// NewReader reads the header of a file.
func NewReader(r io.Reader) (*Reader, error) {
	d := &Reader{r: bufio.NewReaderSize(r, 64<<10)}
	var head [24]byte
	if _, err := io.ReadFull(d.r, head[:4]); err != nil {
		return nil, ErrFormat
	}
	switch magic := binary.LittleEndian.Uint32(head[:]); magic {
	case 0x0a0d0d0a:
		d.ng = true
		return d, d.section()
	case 0xa1b2c3d4, 0xa1b23c4d:
		d.order = binary.LittleEndian
	default:
		if magic = bits.ReverseBytes32(magic); magic != 0xa1b2c3d4 && magic != 0xa1b23c4d {
			return nil, ErrFormat
		}
		d.order = binary.BigEndian
	}
	if _, err := io.ReadFull(d.r, head[4:]); err != nil {
		return nil, fmt.Errorf("%w: the header is cut short", ErrFormat)
	}
	d.nanos = 1000
	if d.order.Uint32(head[:]) == 0xa1b23c4d {
		d.nanos = 1
	}
	d.link = d.order.Uint32(head[20:]) & 0xffff // the upper bits describe frame check sequences
	return d, nil
}

// Next reads the next packet. At the end of the file it returns io.EOF, and at the end of a truncated file
// io.ErrUnexpectedEOF.
func (d *Reader) Next(p *Packet) error {
	if !d.ng {
		return d.nextRecord(p)
	}
	for {
		kind, body, err := d.block()
		if err != nil {
			return err
		}
		switch kind {
		case 1:
			err = d.addInterface(body)
		case 6:
			ok, err := d.packet(body, p)
			if err != nil || ok {
				return err
			}
		case 3:
			ok, err := d.simplePacket(body, p)
			if err != nil || ok {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// nextRecord reads a record of a pcap file.
func (d *Reader) nextRecord(p *Packet) error {
	var head [16]byte
	if _, err := io.ReadFull(d.r, head[:]); err != nil {
		return err
	}
	kept, size := d.order.Uint32(head[8:]), d.order.Uint32(head[12:])
	if kept > maxPacket {
		return fmt.Errorf("packet %d has %d bytes, more than %d", d.number+1, kept, maxPacket)
	}
	if err := d.fill(int(kept)); err != nil {
		return err
	}
	d.number++
	*p = Packet{
		Number: d.number, Link: d.link, Data: d.buf, Size: sizeOf(size, d.buf),
		At: int64(d.order.Uint32(head[:]))*1e9 + int64(d.order.Uint32(head[4:]))*d.nanos,
	}
	return nil
}

// sizeOf returns the original length of a packet with a declared size: at least the captured length.
func sizeOf(size uint32, data []byte) int { return max(int(min(size, maxPacket)), len(data)) }

// fill reads n bytes into d.buf.
func (d *Reader) fill(n int) error {
	if cap(d.buf) < n {
		d.buf = make([]byte, n)
	}
	d.buf = d.buf[:n]
	if _, err := io.ReadFull(d.r, d.buf); err != nil {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// section reads the first block of a pcapng file. Its type has already been read.
func (d *Reader) section() error {
	var head [8]byte
	if _, err := io.ReadFull(d.r, head[:]); err != nil {
		return fmt.Errorf("%w: the header is cut short", ErrFormat)
	}
	if err := d.sectionOrder(head[4:]); err != nil {
		return err
	}
	n := d.order.Uint32(head[:])
	if n < 28 || n > maxBlock || n%4 != 0 {
		return fmt.Errorf("%w: a section header of %d bytes", ErrFormat, n)
	}
	return d.fill(int(n) - 12)
}

func (d *Reader) sectionOrder(magic []byte) error {
	switch binary.LittleEndian.Uint32(magic) {
	case 0x1a2b3c4d:
		d.order = binary.LittleEndian
	case 0x4d3c2b1a:
		d.order = binary.BigEndian
	default:
		return fmt.Errorf("%w: no byte order", ErrFormat)
	}
	d.interfaces = d.interfaces[:0]
	return nil
}

// block reads a block and returns its body, which is valid until the next call.
func (d *Reader) block() (kind uint32, body []byte, err error) {
	var head [12]byte
	if n, err := io.ReadFull(d.r, head[:8]); err != nil {
		if n > 0 {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	kind = d.order.Uint32(head[:])
	left := 8
	if kind == 0x0a0d0d0a { // the same in both orders
		if _, err := io.ReadFull(d.r, head[8:]); err != nil {
			return 0, nil, io.ErrUnexpectedEOF
		}
		if err := d.sectionOrder(head[8:]); err != nil {
			return 0, nil, err
		}
		left = 12
	}
	n := d.order.Uint32(head[4:])
	if n < uint32(left)+4 || n > maxBlock || n%4 != 0 {
		return 0, nil, fmt.Errorf("a block after packet %d has %d bytes", d.number, n)
	}
	if err := d.fill(int(n) - left); err != nil {
		return 0, nil, err
	}
	body = d.buf[:len(d.buf)-4]
	if d.order.Uint32(d.buf[len(body):]) != n {
		return 0, nil, fmt.Errorf("a block after packet %d has two lengths", d.number)
	}
	return kind, body, nil
}

// options calls each for each option in b.
func (d *Reader) options(b []byte, each func(code uint16, value []byte)) {
	for len(b) >= 4 {
		code, n := d.order.Uint16(b), int(d.order.Uint16(b[2:]))
		b = b[4:]
		if code == 0 || n > len(b) {
			return
		}
		each(code, b[:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

// addInterface parses an Interface Description Block.
func (d *Reader) addInterface(b []byte) error {
	if len(b) < 8 {
		return fmt.Errorf("an interface after packet %d is cut short", d.number)
	}
	if len(d.interfaces) == maxInterfaces {
		return fmt.Errorf("there are more than %d interfaces", maxInterfaces)
	}
	i := iface{link: uint32(d.order.Uint16(b)), units: 1e6}
	d.options(b[8:], func(code uint16, value []byte) {
		switch {
		case code == 9 && len(value) == 1: // if_tsresol
			switch exp := value[0] & 0x7f; {
			case value[0]&0x80 != 0 && exp < 64:
				i.units, i.shift = 0, uint(exp)
			case value[0]&0x80 == 0 && exp < 20:
				i.units = 1
				for range exp {
					i.units *= 10
				}
			}
		case code == 14 && len(value) == 8: // if_tsoffset
			i.skew = int64(d.order.Uint64(value))
		}
	})
	d.interfaces = append(d.interfaces, i)
	return nil
}

// nanoseconds returns the time of a packet. Times out of range wrap.
func (i *iface) nanoseconds(t uint64) int64 {
	var sec, frac uint64
	if i.units == 0 {
		sec = t >> i.shift
		hi, lo := bits.Mul64(t&(1<<i.shift-1), 1e9)
		frac = lo
		if i.shift > 0 {
			frac = hi<<(64-i.shift) | lo>>i.shift
		}
	} else {
		sec = t / i.units
		hi, lo := bits.Mul64(t%i.units, 1e9)
		frac, _ = bits.Div64(hi, lo, i.units)
	}
	return (int64(sec)+i.skew)*1e9 + int64(frac)
}

// packet parses an Enhanced Packet Block. It returns false if its interface is unknown.
func (d *Reader) packet(b []byte, p *Packet) (bool, error) {
	if len(b) < 20 {
		return false, fmt.Errorf("packet %d is cut short", d.number+1)
	}
	d.number++
	n, kept, size := d.order.Uint32(b), d.order.Uint32(b[12:]), d.order.Uint32(b[16:])
	at := uint64(d.order.Uint32(b[4:]))<<32 | uint64(d.order.Uint32(b[8:]))
	b = b[20:]
	if uint64(kept) > uint64(len(b)) {
		return false, fmt.Errorf("packet %d is longer than its block", d.number)
	}
	if uint64(n) >= uint64(len(d.interfaces)) {
		return false, nil
	}
	i := &d.interfaces[n]
	*p = Packet{Number: d.number, At: i.nanoseconds(at), Link: i.link, Data: b[:kept], Size: sizeOf(size, b[:kept])}
	d.options(b[min((int(kept)+3)&^3, len(b)):], func(code uint16, value []byte) {
		if code == 1 && p.Comment == "" {
			p.Comment = string(value)
		}
	})
	return true, nil
}

// simplePacket parses a Simple Packet Block, which has no time.
func (d *Reader) simplePacket(b []byte, p *Packet) (bool, error) {
	if len(b) < 4 {
		return false, fmt.Errorf("packet %d is cut short", d.number+1)
	}
	d.number++
	if len(d.interfaces) == 0 {
		return false, nil
	}
	size := d.order.Uint32(b)
	data := b[4:][:min(uint64(size), uint64(len(b)-4))]
	*p = Packet{Number: d.number, Link: d.interfaces[0].link, Data: data, Size: sizeOf(size, data)}
	return true, nil
}
