package transport

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

// A fetch puts an RPC message together from what came inline and what lies in the
// read chunks of its header.
//
// A position counts from the RPC message's first byte, in the message as it was
// before chunks were taken out (RFC 8166 section 3.4.4). An item's padding is
// part of that, but not of what is sent, as a rule: it is accepted in the
// chunk, inline behind it, or absent (RFC 5666 section 3.7).
type fetch struct {
	c    *conn
	id   uint64        // of its Reads
	mem  *arena.Buffer // the message, if it does not lie in a receive buffer
	msg  []byte
	done func() // called when all of it is there; made once

	reads    []pull
	next     int // first of reads not posted
	underway int // Reads posted and not completed
}

// A pull is one RDMA Read to do.
type pull struct {
	handle uint32
	offset uint64
	dst    [1]fabric.SGE
}

// A layout is the outline of a message with read chunks.
type layout struct {
	lead int // entries of the position-zero chunk
	size int // the message is no longer than this
}

// outline checks the read list of a message with payload bytes inline. False means
// that it makes no message, or one that is too long.
func (f *fetch) outline(h *rpcrdma.Header, payload []byte) (l layout, ok bool) {
	var base uint64
	for l.lead < len(h.Reads) && h.Reads[l.lead].Position == 0 {
		base += uint64(h.Reads[l.lead].Length)
		l.lead++
	}
	long := h.Proc == rpcrdma.ProcNomsg
	if long != (l.lead > 0) {
		return l, false
	}
	if !long {
		base = uint64(len(payload))
	}
	size := base
	for i := range h.Reads[l.lead:] {
		size += uint64(h.Reads[l.lead+i].Length) + 3
	}
	if size > uint64(f.c.cfg.MaxMessage) || base < 8 {
		return l, false
	}
	l.size = int(size)
	return l, true
}

// assemble copies what is inline into place, in f.mem, and lists the Reads for the
// rest. False means that a position is out of order, or beyond the message.
func (f *fetch) assemble(h *rpcrdma.Header, inline []byte, lead int) bool {
	out := f.mem.Bytes
	f.reads, f.next, f.underway = f.reads[:0], 0, 0
	zero := h.Reads[:lead] // what is left of the position-zero chunk
	var zoff uint32        // bytes used of its first entry
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
			f.add(s.Handle, s.Offset+uint64(zoff), out[pos:pos+k])
			pos, n, zoff = pos+k, n-k, zoff+uint32(k)
			if zoff == s.Length {
				zero, zoff = zero[1:], 0
			}
		}
	}
	rest := h.Reads[lead:]
	for len(rest) > 0 {
		at := int(rest[0].Position)
		if at%4 != 0 || at < pos || uint64(at-pos) > left {
			return false
		}
		base(at - pos)
		for len(rest) > 0 && int(rest[0].Position) == at {
			s := &rest[0]
			f.add(s.Handle, s.Offset, out[pos:pos+int(s.Length)])
			pos += int(s.Length)
			rest = rest[1:]
		}
		pad := xdr.Pad(pos)
		clear(out[pos : pos+pad])
		pos += pad
		if pad > 0 && left%4 == uint64(pad) && len(inline) > 0 {
			inline = inline[pad:] // the sender left the padding inline
			left -= uint64(pad)
		}
	}
	base(int(left))
	f.msg = out[:pos]
	return true
}

func (f *fetch) add(handle uint32, offset uint64, dst []byte) {
	if len(dst) > 0 {
		f.reads = append(f.reads, pull{handle, offset, [1]fabric.SGE{{Buf: dst, LKey: f.mem.LKey}}})
	}
}

// readQueue holds a connection's fetches, first come, first served. Leader.
type readQueue struct {
	c      *conn
	most   int // Reads posted at once
	posted int // and not completed
	line   []*fetch
}

// start queues a fetch with Reads to do.
func (q *readQueue) start(f *fetch) {
	q.line = append(q.line, f)
	q.post()
}

// post queues Reads as far as they are allowed at once.
func (q *readQueue) post() {
	var wr [1]fabric.SendWR
	for q.posted < q.most && len(q.line) > 0 {
		f := q.line[0]
		if f.next == len(f.reads) {
			q.line = append(q.line[:0], q.line[1:]...)
			continue
		}
		p := &f.reads[f.next]
		f.next++
		f.underway++
		q.posted++
		wr[0] = fabric.SendWR{
			ID: f.id, Op: fabric.OpRead, Flags: fabric.Signaled,
			SGL: p.dst[:], RKey: p.handle, RemoteOffset: p.offset,
		}
		q.c.stats.readBytes.Add(uint64(len(p.dst[0].Buf)))
		q.c.sq.addRead(wr[:])
	}
}

// completed handles the completion of a Read. One that failed has ended the
// connection.
func (q *readQueue) completed(f *fetch, wc *fabric.WC) {
	q.posted--
	q.c.sq.readDone()
	f.underway--
	if wc.Status == fabric.WCSuccess && f.underway == 0 && f.next == len(f.reads) {
		f.done()
	}
	q.post()
}
