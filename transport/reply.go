package transport

import (
	"errors"
	"fmt"
	"math"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// Building replies as internal/plan decides. A reply is one list of requests: Write, ..., Write, Send.

// begin prepares the reply's header and send buffer. The results are built where they will be sent from, after room for
// the header.
func (x *exch) begin() error {
	c := x.c
	if x.out == nil {
		b, err := c.arena.Get(c.cfg.sendSize)
		if err != nil {
			return err
		}
		x.out = b
	}
	h, ch := &x.rh, x.hdr
	h.XID, h.Vers, h.Proc = ch.XID, ch.Vers, rpcrdma.ProcMsg
	h.Reads, h.Writes = h.Reads[:0], h.Writes[:0]
	for _, chunk := range ch.Writes {
		h.Writes = addChunk(h.Writes)
		last := &h.Writes[len(h.Writes)-1]
		*last = plan.Unused(*last, chunk)
	}
	h.HasReply, h.Reply = ch.HasReply, plan.Unused(h.Reply[:0], ch.Reply)
	x.base = h.Size()
	return nil
}

// acceptedSize is the length of an accepted reply's RPC header with an empty verifier.
const acceptedSize = 24

// results returns the place where results are built, empty.
func (x *exch) results() []byte {
	start := x.base + acceptedSize
	if start >= x.c.sendMax() {
		return nil
	}
	return x.out.Bytes[start:start:x.c.sendMax()]
}

// send places and posts the reply, after the service is done.
func (x *exch) send(head, results []byte) {
	if !x.takeBack() {
		return
	}
	c := x.c
	msg, err := x.form(head, results)
	if e := x.event; e != nil {
		e.Err, e.Reply = err, replyTransfer(&x.rh, max(len(msg)-x.rh.Size(), 0))
	}
	if err != nil {
		c.logUnsent(err)
		x.sendError(rpcrdma.ErrChunk, x.hdr.Vers)
		return
	}
	for i := range x.wrs {
		for _, s := range x.wrs[i].SGL {
			count(&c.stats.WriteBytes, len(s.Buf))
		}
	}
	x.finishList(msg)
	inc(&c.stats.Replies)
	c.replySent()
	x.settle(false)
	x.post()
}

// form places the reply: it adds the Writes of chunks to the list of requests, and returns the message to send. The
// error is a *ReplySizeError if something fits nowhere, and errNoMemory if there was no memory.
func (x *exch) form(head, results []byte) (msg []byte, err error) {
	c, h := x.c, &x.rh
	if x.failed {
		return nil, errNoMemory
	}
	x.wrs, x.parts = x.wrs[:0], x.parts[:0]
	x.reserve(len(x.items)*2 + 4)
	p := plan.Reply{
		Transport: x.base, Header: len(head), Results: len(results), Inline: c.sendMax(),
		Writes: len(x.hdr.Writes), ReplyChunk: h.HasReply, Lends: x.lendsReply(),
	}
	moved := p.Moved(len(x.items))
	if i := x.writeItems(moved); i < moved {
		chunk := fmt.Sprintf("the data for write chunk %d", i)
		return nil, x.tooLong(chunk, len(x.items[i].Data), x.hdr.Writes[i].Length())
	}
	inline := 0
	for i := moved; i < len(x.items); i++ {
		inline += xdr.Padded(len(x.items[i].Data))
	}
	size := len(head) + len(results) + inline
	switch p.Place(inline) {
	case plan.ReplyInline:
		return x.formInline(head, results, inline, moved), nil
	case plan.ReplyChunk:
		if !x.gather(head, results, moved) {
			err = errNoMemory
		} else if !x.write(x.hdr.Reply, h.Reply) {
			err = x.tooLong("the message for the reply chunk", size, x.hdr.Reply.Length())
		} else {
			h.Proc = rpcrdma.ProcNomsg
			inc(&c.stats.ReplyChunk)
			return rpcrdma.AppendHeader(x.out.Bytes[:0], h), nil
		}
	default:
		err = x.tooLong("the message, without a reply chunk,", size, uint64(max(p.Inline-p.Transport, 0)))
	}
	if p.Lends {
		if msg, ok := x.lendReply(&p, head, results, moved); ok {
			return msg, nil
		}
	}
	return nil, err
}

// tooLong returns the error for a part of the reply that does not fit.
func (x *exch) tooLong(what string, size int, limit uint64) error {
	return x.c.replyTooLong(&x.call, what, size, int(min(limit, math.MaxInt)))
}

// Room returns the room left in a reply with the given number of bytes of results, and the items so far.
func (x *exch) Room(results int) int {
	n := x.c.sendMax() - x.base
	if x.hdr.HasReply {
		n = max(n, int(min(x.hdr.Reply.Length(), uint64(x.c.cfg.MaxMessage))))
	}
	if x.lendsReply() {
		n = max(n, x.c.cfg.MaxMessage)
	}
	n -= acceptedSize + results
	for i := range x.items {
		if i >= len(x.hdr.Writes) {
			n -= xdr.Padded(len(x.items[i].Data))
		}
	}
	return max(n, 0)
}

// ItemRoom returns the room for the next item.
func (x *exch) ItemRoom(results int) int {
	if i := len(x.items); i < len(x.hdr.Writes) {
		return int(min(x.hdr.Writes[i].Length(), uint64(x.c.cfg.MaxMessage)))
	}
	return max(x.Room(results)-xdr.Unit, 0) &^ (xdr.Unit - 1)
}

// writeItems writes the first n items to the write chunks of the call. It returns how many fit: if that is less than n,
// the next is too long for its chunk.
func (x *exch) writeItems(n int) int {
	h := &x.rh
	for i := range x.items[:n] {
		it := &x.items[i]
		x.parts = append(x.parts[:0], fabric.SGE{Buf: it.Data, LKey: it.Key})
		if !x.write(x.hdr.Writes[i], h.Writes[i]) {
			return i
		}
		if o := x.c.cfg.RFC5666; o != nil && o.InflateLengths {
			plan.Inflate(h.Writes[i], x.hdr.Writes[i], len(it.Data))
		}
	}
	if n > 0 {
		inc(&x.c.stats.WriteChunk)
	}
	return n
}

// formInline builds an RDMA_MSG in the send buffer, where the results may already be in place.
func (x *exch) formInline(head, results []byte, inline, moved int) []byte {
	buf := x.out.Bytes
	first := x.base + len(head)
	msg := buf[:first+len(results)+inline]
	inPlace := first < len(buf) && len(results) > 0 && &buf[first] == &results[0]
	if !inPlace {
		copy(msg[first:], results)
	}
	if moved < len(x.items) {
		origin.Splice(msg[first:], len(results), x.items[moved:])
	}
	copy(msg[x.base:], head)
	rpcrdma.AppendHeader(buf[:0], &x.rh)
	return msg
}

// finishList adds the Send of msg, which is in x.out, to the list.
func (x *exch) finishList(msg []byte) {
	n := len(x.sges)
	x.sges = append(x.sges, fabric.SGE{Buf: msg, LKey: x.out.LKey})
	wr := fabric.SendWR{
		ID: wrID(wrReply, x.idx), Op: fabric.OpSend, SGL: x.sges[n : n+1],
	}
	if key, ok := x.invalidates(); ok && x.rh.Proc != rpcrdma.ProcError {
		wr.Op, wr.RKey = fabric.OpSendInv, key
		inc(&x.c.stats.Invalidated)
	}
	x.wrs = append(x.wrs, wr)
}

// invalidates returns the handle of the call's chunks, if both ends allow remote invalidation (RFC 8797 section 4.1)
// and all chunks have the same one.
func (x *exch) invalidates() (key uint32, ok bool) {
	if !x.c.agreed.remoteInv.Load() || x.hdr.Vers != x.c.version() || x.c.role == roleClient {
		return 0, false // the agreement only covers replies to clients
	}
	return plan.OnlyHandle(x.hdr)
}

// reserve makes room for n gather elements and as many again as the call has segments: the SGLs of the list must not
// move while it grows.
func (x *exch) reserve(n int) {
	n += len(x.hdr.Reply)
	for _, chunk := range x.hdr.Writes {
		n += len(chunk)
	}
	if cap(x.sges) < n {
		x.sges = make([]fabric.SGE, 0, n)
	}
	x.sges = x.sges[:0]
}

// write adds the Writes of x.parts, one after another, to the segments of an offered chunk, and the lengths to ret.
// Each segment is filled before the next one is used (RFC 5666 section 3.6). It returns false if the chunk is too
// short; nothing has been written then.
func (x *exch) write(offered, ret rpcrdma.WriteChunk) bool {
	var room uint64
	for i := range offered {
		room += uint64(offered[i].Length)
	}
	var need uint64
	for i := range x.parts {
		need += uint64(len(x.parts[i].Buf))
	}
	if need > room {
		return false
	}
	maxSGE := max(x.c.caps.MaxSendSGE, 1)
	parts := x.parts
	for i := 0; len(parts) > 0; i++ {
		seg := &offered[i]
		left, offset := int(min(uint64(seg.Length), need)), seg.Offset
		for left > 0 && len(parts) > 0 {
			start, n := len(x.sges), 0
			for left > 0 && len(parts) > 0 && len(x.sges)-start < maxSGE {
				p := &parts[0]
				k := min(left, len(p.Buf))
				if k > 0 {
					x.sges = append(x.sges, fabric.SGE{Buf: p.Buf[:k], LKey: p.LKey})
				}
				p.Buf = p.Buf[k:]
				n, left = n+k, left-k
				if len(p.Buf) == 0 {
					parts = parts[1:]
				}
			}
			if n == 0 {
				break
			}
			x.wrs = append(x.wrs, fabric.SendWR{
				ID: wrID(wrWrite, x.idx), Op: fabric.OpWrite, SGL: x.sges[start:len(x.sges):len(x.sges)],
				RKey: seg.Handle, RemoteOffset: offset,
			})
			offset += uint64(n)
			ret[i].Length += uint32(n)
		}
		for len(parts) > 0 && len(parts[0].Buf) == 0 {
			parts = parts[1:]
		}
	}
	return true
}

// gather lists the parts of the RPC message for the reply chunk, without the
// items that went to write chunks.
func (x *exch) gather(head, results []byte, moved int) bool {
	parts := x.parts[:0]
	// The RPC header and padding are sent from the send buffer, after the transport header that RDMA_NOMSG has there,
	// as far as it has room.
	at := x.base
	own := func(b []byte) bool {
		mem, key := x.out.Bytes[at:], x.out.LKey
		if len(b) > len(mem) {
			more, err := x.alloc(len(b))
			if err != nil {
				return false
			}
			mem, key = more.Bytes, more.LKey
		} else {
			at += len(b)
		}
		parts = append(parts, fabric.SGE{Buf: mem[:copy(mem, b)], LKey: key})
		return true
	}
	// Results in place start right after a header without a verifier. Results moved elsewhere by append are ordinary
	// memory.
	results, inPlace := x.inPlace(results)
	key, skip := fabric.LocalDMAKey, 0
	// A longer header would overwrite them.
	if inPlace {
		if skip = len(results); len(head) > acceptedSize {
			at, skip = x.base+acceptedSize+len(results), 0
		}
	}
	mem := x.own(results)
	switch {
	case inPlace:
		key = x.out.LKey
	case mem != nil:
		key = mem.LKey // from Response.Alloc or Join
	case !x.c.caps.LocalDMA && len(results) > 0:
		b, err := x.alloc(len(results))
		if err != nil {
			return false
		}
		copy(b.Bytes, results)
		results, key = b.Bytes[:len(results)], b.LKey
	default:
		x.charge(len(results))
	}
	if !own(head) {
		return false
	}
	at += skip
	from := 0
	for i := moved; i < len(x.items); i++ {
		it := &x.items[i]
		if it.At > from {
			parts = append(parts, fabric.SGE{Buf: results[from:it.At], LKey: key})
			from = it.At
		}
		if len(it.Data) > 0 {
			parts = append(parts, fabric.SGE{Buf: it.Data, LKey: it.Key})
		}
		if pad := xdr.Pad(len(it.Data)); pad > 0 && !own(zeros[:pad]) {
			return false
		}
	}
	if len(results) > from {
		parts = append(parts, fabric.SGE{Buf: results[from:], LKey: key})
	}
	x.parts = parts
	x.reserveMore(len(parts))
	return true
}

// inPlace reports whether results are where they were to be built. If a wrapper has cut off their beginning, it moves
// them there.
func (x *exch) inPlace(results []byte) (moved []byte, ok bool) {
	n, start, end := cap(results), x.base+acceptedSize, x.c.sendMax()
	if n == 0 || start >= end || &results[:n][n-1] != &x.out.Bytes[end-1] {
		return results, false
	}
	moved = x.out.Bytes[start:]
	return moved[:copy(moved, results)], true
}

// reserveMore makes room for n more gather elements. Lists built before keep their memory.
func (x *exch) reserveMore(n int) {
	n += len(x.hdr.Reply) + 1
	if cap(x.sges)-len(x.sges) < n {
		x.sges = append(make([]fabric.SGE, 0, len(x.sges)+n), x.sges...)
	}
}

// refuse answers with RDMA_ERROR instead of a reply.
func (x *exch) refuse(code rpcrdma.ErrCode) {
	x.forgo()
	if !x.takeBack() {
		return
	}
	if x.begin() != nil {
		x.c.fc.Close()
		x.abandon()
		return
	}
	x.sendError(code, x.hdr.Vers)
}

// sendError sends RDMA_ERROR in place of the reply being built.
func (x *exch) sendError(code rpcrdma.ErrCode, vers uint32) {
	c := x.c
	h := rpcrdma.Header{
		XID: x.hdr.XID, Vers: vers,
		Proc: rpcrdma.ProcError, Err: code,
	}
	if code == rpcrdma.ErrVers {
		r := c.cfg.Limits.Versions
		h.VersLow, h.VersHigh = r.Low, r.High
		inc(&c.stats.ErrVers)
	} else {
		inc(&c.stats.ErrChunk)
	}
	// No part of it has been posted.
	x.lending.loan.End()
	x.dropItems()
	x.dropMems()
	x.used = 0
	if x.Mem != nil {
		x.used = len(x.Mem.Bytes)
	}
	x.settle(false)
	x.rh.Proc = rpcrdma.ProcError
	if e := x.event; e != nil && e.Err == nil {
		e.Err = &rpc.RDMAError{XID: h.XID, Vers: h.Vers, Code: h.Err, VersLow: h.VersLow, VersHigh: h.VersHigh}
	}
	x.wrs, x.sges = x.wrs[:0], x.sges[:0]
	x.finishList(rpcrdma.AppendHeader(x.out.Bytes[:0], &h))
	x.post()
}

// refuse answers the message in rb, which has no usable header, with RDMA_ERROR. why is reported to the Observer.
func (l *leader) refuse(rb *recvBuf, xid, vers uint32, code rpcrdma.ErrCode, why error) {
	l.c.public.refused(xid, why)
	x := l.takeExchange(rb)
	if x == nil {
		return
	}
	h := x.hdr
	h.XID, h.Vers = xid, vers
	h.Reads, h.Writes, h.Reply, h.HasReply = h.Reads[:0], h.Writes[:0], h.Reply[:0], false
	if x.begin() != nil {
		l.fail(errNoMemory)
		return
	}
	x.sendError(code, vers)
}

// asks reports whether a call to one of the transport's own programs is for the program's only version and its only
// procedure besides NULL. It answers all other calls.
func (x *exch) asks(vers, proc uint32) bool {
	switch {
	case x.call.Vers != vers:
		x.answer(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: vers, High: vers}, nil)
	case x.call.Proc == 0:
		x.answer(oncrpc.ReplyHeader{}, nil)
	case x.call.Proc != proc:
		x.answer(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProcUnavail}, nil)
	default:
		return true
	}
	return false
}

// AddItem adds an item at an offset of the results.
func (x *exch) AddItem(at int, data []byte, release func()) {
	it := origin.Item{At: at, Data: data, Key: fabric.LocalDMAKey, Release: release}
	if own := x.own(data); own != nil {
		it.Key = own.LKey
	} else if x.c.caps.LocalDMA {
		x.charge(len(data))
	} else {
		it.Data, it.Key = x.local(data)
	}
	x.items = append(x.items, it)
}

// orphan reports whether there was no memory because the connection has ended, which the adapter may know first: the
// reply then only goes to the reply cache.
func orphan(err error) bool { return errors.Is(err, net.ErrClosed) }

// local returns a copy of data in memory with a local key. If there is no memory it marks
// the call as failed.
func (x *exch) local(data []byte) ([]byte, uint32) {
	if len(data) == 0 {
		return nil, fabric.LocalDMAKey
	}
	b, err := x.alloc(len(data))
	if orphan(err) {
		return data, fabric.LocalDMAKey
	}
	if err != nil {
		x.failed = true
		x.forgo()
		return nil, fabric.LocalDMAKey
	}
	return b.Bytes[:copy(b.Bytes, data)], b.LKey
}
