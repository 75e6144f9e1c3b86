// Package reads pulls RPC messages that are in read chunks.
//
// # The life of a message
//
// [Outline] checks the read list of a header and returns the maximum length of the message, so that memory for it can
// be reserved. [Message.Assemble] copies the inline part into that memory and lists the RDMA Reads for the rest.
// [Queue.Start] posts them, a bounded number at a time and in order of arrival; [Queue.Completed] reports when the last
// one has completed. Until then the adapter owns the memory.
package reads

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

// A Message is an RPC message, assembled from its inline part and its read chunks.
type Message struct {
	// Mem is the memory of the message, nil if it is in a receive buffer.
	Mem *arena.Buffer
	// Msg is the message.
	Msg []byte

	id       uint64 // of its Reads
	pulls    []pull
	next     int // first of pulls not posted
	underway int // Reads posted and not completed
}

// A pull is one RDMA Read to do.
type pull struct {
	handle uint32
	offset uint64
	dst    [1]fabric.SGE
}

// Init sets the ID of the message's work requests.
func (m *Message) Init(id uint64) { m.id = id }

// Pulls reports whether there are Reads to do.
func (m *Message) Pulls() bool { return len(m.pulls) > 0 }

// A Layout is the outline of a message with read chunks.
type Layout struct {
	Lead int // entries of the read list in the position-zero chunk
	Size int // the maximum length of the message, in bytes
}

// Outline checks the read list of a message with the given number of bytes inline. It returns false if the list does
// not describe a message, or one longer than limit.
//
// A position counts from the first byte of the RPC message as it was before chunks were taken out (RFC 8166 section
// 3.4.4). Position zero is the message itself, and is present if and only if the header says RDMA_NOMSG.
func Outline(h *rpcrdma.Header, inline, limit int) (l Layout, ok bool) {
	var base uint64
	for l.Lead < len(h.Reads) && h.Reads[l.Lead].Position == 0 {
		base += uint64(h.Reads[l.Lead].Length)
		l.Lead++
	}
	long := h.Proc == rpcrdma.ProcNomsg
	if long != (l.Lead > 0) {
		return l, false
	}
	if !long {
		base = uint64(inline)
	}
	size := base
	for i := range h.Reads[l.Lead:] {
		size += uint64(h.Reads[l.Lead+i].Length) + 3
	}
	if size > uint64(limit) || base < 8 {
		return l, false
	}
	l.Size = int(size)
	return l, true
}

// pageSize is the smallest page size. In messages of at least alignedSize bytes the first item begins at a page.
const (
	pageSize    = 4 << 10
	alignedSize = 4 * pageSize
)

// start returns where the message begins in room bytes of page-aligned memory, such that its first item begins at a
// page, too, if there is room for that.
//
// Right after the headers of the call, at offset 44 or 48, the item's offset in its page would be a few bytes more than
// in the page of the socket, where it follows 16 bytes of a software adapter's headers. Some processors compare only
// the offsets within pages. They then mistake each load of the copy for a load of data just stored, and the copy takes
// twice as long.
func (l *Layout) start(h *rpcrdma.Header, room int) int {
	if l.Lead == len(h.Reads) || l.Size < alignedSize {
		return 0
	}
	start := int(-h.Reads[l.Lead].Position % pageSize)
	if start > room-l.Size {
		return 0
	}
	return start
}

// Assemble copies inline to its place in m.Mem, which has room for l.Size bytes, and lists the Reads for the rest. It
// returns false if a position is out of order, or beyond the message.
//
// The padding of an item counts in positions, but is usually not sent: it is accepted in the chunk, inline after the
// item, or absent (RFC 5666 section 3.7).
func (m *Message) Assemble(h *rpcrdma.Header, inline []byte, l Layout) bool {
	out := m.Mem.Bytes[l.start(h, len(m.Mem.Bytes)):]
	m.pulls, m.next, m.underway = m.pulls[:0], 0, 0
	zero := h.Reads[:l.Lead] // the rest of the position-zero chunk
	var zoff uint32          // bytes used of its first entry
	left := uint64(len(inline))
	for i := range zero {
		left += uint64(zero[i].Length)
	}

	pos := 0
	// base moves n bytes of the message without its chunks; n <= left.
	base := func(n int) {
		left -= uint64(n)
		if len(inline) > 0 {
			pos += copy(out[pos:], inline[:n])
			inline = inline[n:]
			return
		}
		for n > 0 {
			s := &zero[0]
			k := min(n, int(s.Length-zoff))
			m.pull(s.Handle, s.Offset+uint64(zoff), out[pos:pos+k])
			pos, n, zoff = pos+k, n-k, zoff+uint32(k)
			if zoff == s.Length {
				zero, zoff = zero[1:], 0
			}
		}
	}
	rest := h.Reads[l.Lead:]
	for len(rest) > 0 {
		at := int(rest[0].Position)
		if at%4 != 0 || at < pos || uint64(at-pos) > left {
			return false
		}
		base(at - pos)
		for len(rest) > 0 && int(rest[0].Position) == at {
			s := &rest[0]
			m.pull(s.Handle, s.Offset, out[pos:pos+int(s.Length)])
			pos += int(s.Length)
			rest = rest[1:]
		}
		pad := xdr.Pad(pos)
		clear(out[pos : pos+pad])
		pos += pad
		if pad > 0 && len(inline) > 0 && padded(left, pad, rest) {
			inline = inline[pad:] // the sender left the padding inline
			left -= uint64(pad)
		}
	}
	base(int(left))
	m.Msg = out[:pos]
	return true
}

// padded reports whether the left inline bytes begin with the pad bytes of an item's padding. Without padding their
// number is a multiple of four, so the remainder shows how much padding there is: that of this item only, or that of
// this and all later ones, with their segments in rest. Padding that adds up to a multiple of four cannot be
// distinguished from zero, and counts as zero.
func padded(left uint64, pad int, rest []rpcrdma.ReadSegment) bool {
	over := int(left % 4)
	if over == pad {
		return true
	}
	all := pad
	for len(rest) > 0 {
		at, n := rest[0].Position, uint32(0)
		for len(rest) > 0 && rest[0].Position == at {
			n += rest[0].Length
			rest = rest[1:]
		}
		all += xdr.Pad(int(n % 4))
	}
	return over != 0 && over == all%4
}

func (m *Message) pull(handle uint32, offset uint64, dst []byte) {
	if len(dst) > 0 {
		m.pulls = append(m.pulls, pull{handle, offset, [1]fabric.SGE{{Buf: dst, LKey: m.Mem.LKey}}})
	}
}
