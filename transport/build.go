package transport

import (
	"encoding/binary"
	"errors"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// How a call is put on the wire (RFC 5666 sections 3.4, 4, 5):
//
//	the reply fits inline for sure         nothing is offered
//	else                                   a write chunk for each write item,
//	  and what is left may not fit         a reply chunk
//	the call fits inline                   RDMA_MSG
//	it does without its read items         RDMA_MSG, and a read chunk for each
//	else                                   RDMA_NOMSG, all of it in a
//	                                       position-zero read chunk
//
// A position-zero read chunk is never sent together with others, since Linux
// servers lose one of the two kinds. Its segments point at the caller's memory
// all the same: nothing is copied but what lies between the items.

var (
	errEmptyItem = errors.New("transport: a WriteItem of the call has no memory")
	errItemOrder = errors.New("transport: offsets of the call's ReadItems do not ascend within its arguments")
)

// replyHead is the most that a reply's RPC header takes: the fixed words and a
// verifier, which is empty unless the flavor uses it.
func replyHead(cred *oncrpc.Auth) int {
	const fixed, mismatch = 24, 8
	if cred.Flavor == oncrpc.FlavorNone || cred.Flavor == oncrpc.FlavorSys {
		return fixed + mismatch
	}
	return fixed + mismatch + oncrpc.MaxAuthBody
}

// build forms the message of a call in the slot's send buffer and prepares what
// it exposes: s.wrs is the list to post.
func (s *slot) build(call *Call) error {
	c := s.c
	s.call = call
	s.msg = 0
	s.wrs = s.wrs[:0]
	if s.send == nil {
		b, err := c.arena.get(c.cfg.InlineSend)
		if err != nil {
			return err
		}
		s.send = b
	}
	h := &s.hdr
	h.XID, h.Vers, h.Credit, h.Proc = s.xid(), rpcrdma.Version1, uint32(c.cfg.Credits), rpcrdma.ProcMsg
	h.Reads, h.Writes, h.Reply, h.HasReply = h.Reads[:0], h.Writes[:0], h.Reply[:0], false

	if err := s.offer(call); err != nil {
		return err
	}
	head := s.headSize()
	full, from := head, 0
	for i := range call.ReadItems {
		it := &call.ReadItems[i]
		if it.Offset < from || it.Offset > head-s.rpcHead() {
			return errItemOrder
		}
		from = it.Offset
		full += xdr.Padded(len(it.Data))
	}
	if full > c.cfg.MaxMessage {
		return &SizeError{What: "the call message", Size: full, Limit: c.cfg.MaxMessage}
	}
	var err error
	room := c.sendMax - h.Size()
	var msg []byte // the message, transport header and all
	switch b := s.send.b[:0]; {
	case full <= room:
		msg = s.appendStream(rpcrdma.AppendHeader(b, h), inlineItems)
	case len(call.ReadItems) > 0 && head+s.readListSize() <= room:
		if err = s.exposeItems(); err == nil {
			msg = s.appendStream(rpcrdma.AppendHeader(b, h), noItems)
		}
	default:
		if err = s.exposeMessage(full); err == nil {
			if n := h.Size(); n > c.sendMax {
				return &SizeError{What: "the transport header", Size: n, Limit: c.sendMax}
			}
			msg = rpcrdma.AppendHeader(b, h)
		}
	}
	if err != nil {
		return err
	}
	s.sge[0] = fabric.SGE{Buf: msg, LKey: s.send.key}
	// One Send in 16 is signaled, so that an adapter that frees its queue by
	// completions can. The reply tells that the buffer is free.
	var flags fabric.SendFlags
	if s.gen%16 == 0 {
		flags = fabric.Signaled
	}
	s.wrs = append(s.wrs, fabric.SendWR{ID: wrID(wrCall, s.idx), Op: fabric.OpSend, Flags: flags, SGL: s.sge[:]})
	return nil
}

// offer decides what the reply may use: write chunks and a reply chunk.
func (s *slot) offer(call *Call) error {
	c, h := s.c, &s.hdr
	if call.MaxResults == 0 && len(call.WriteItems) == 0 {
		return nil
	}
	// rest is what the reply message is without the write items.
	rest := replyHead(&call.Cred) + call.MaxResults
	all := rest
	for i := range call.WriteItems {
		w := &call.WriteItems[i]
		w.Chunked, w.N = false, 0
		if len(w.Buf) == 0 {
			return errEmptyItem
		}
		all += xdr.Padded(len(w.Buf))
	}
	if all > c.cfg.MaxMessage {
		return &SizeError{What: "the largest reply", Size: all, Limit: c.cfg.MaxMessage}
	}
	if rpcrdma.MinHeaderSize+all <= c.recvMax {
		return nil
	}
	for i := range call.WriteItems {
		seg, err := s.lend(fabric.SGE{Buf: call.WriteItems[i].Buf, LKey: fabric.LocalDMAKey}, fabric.AccessRemoteWrite)
		if err != nil {
			return err
		}
		h.Writes = addChunk(h.Writes)
		last := &h.Writes[len(h.Writes)-1]
		*last = split(*last, seg, c.cfg.MaxSegment)
	}
	if h.Size()+rest <= c.recvMax {
		return nil
	}
	var err error
	if s.back, err = c.arena.get(rest); err != nil {
		return err
	}
	mem := s.back.b[:xdr.Padded(rest)]
	seg, err := s.lend(fabric.SGE{Buf: mem, LKey: s.back.key}, fabric.AccessRemoteWrite)
	if err != nil {
		return err
	}
	h.HasReply = true
	h.Reply = split(h.Reply, seg, c.cfg.MaxSegment)
	return nil
}

// addChunk lengthens a write list by one empty chunk, using memory of earlier
// ones.
func addChunk(l []rpcrdma.WriteChunk) []rpcrdma.WriteChunk {
	if len(l) < cap(l) {
		l = l[:len(l)+1]
		l[len(l)-1] = l[len(l)-1][:0]
		return l
	}
	return append(l, nil)
}

// rpcHead is the length of the RPC header in front of the arguments.
func (s *slot) rpcHead() int {
	if s.call.raw != nil {
		return 0
	}
	return 24 + s.call.Cred.Size() + s.call.Verf.Size()
}

// headSize is the length of the RPC message without the read items.
func (s *slot) headSize() int {
	if s.call.raw != nil {
		return len(s.call.raw)
	}
	return s.rpcHead() + len(s.call.Args)
}

type itemMode uint8

const (
	noItems     itemMode = iota // leave the items out, with their padding
	inlineItems                 // put them in
	padsOnly                    // leave them out, but not their padding
)

// appendStream appends the RPC message.
func (s *slot) appendStream(b []byte, mode itemMode) []byte {
	call := s.call
	args := call.Args
	if call.raw != nil {
		args = call.raw
	} else {
		b = oncrpc.AppendCall(b, &oncrpc.CallHeader{
			XID: s.hdr.XID, RPCVers: oncrpc.Version, Prog: call.Prog, Vers: call.Vers, Proc: call.Proc,
			Cred: call.Cred, Verf: call.Verf,
		})
	}
	start := len(b)
	if mode == noItems || len(call.ReadItems) == 0 {
		b = append(b, args...)
	} else {
		from := 0
		for i := range call.ReadItems {
			it := &call.ReadItems[i]
			b = append(b, args[from:it.Offset]...)
			if mode == inlineItems {
				b = append(b, it.Data...)
			}
			b = append(b, zeros[:xdr.Pad(len(it.Data))]...)
			from = it.Offset
		}
		b = append(b, args[from:]...)
	}
	if call.raw != nil {
		binary.BigEndian.PutUint32(b[start:], s.hdr.XID)
	}
	return b
}

var zeros [4]byte

// readListSize is what the read items would add to the header.
func (s *slot) readListSize() int {
	n := 0
	for i := range s.call.ReadItems {
		n += s.segments(len(s.call.ReadItems[i].Data))
	}
	return rpcrdma.ReadListSize(n) - rpcrdma.ReadListSize(0)
}

func (s *slot) segments(n int) int { return (n + s.c.cfg.MaxSegment - 1) / s.c.cfg.MaxSegment }

// exposeItems puts each read item into a read chunk at its position in the
// unreduced message.
func (s *slot) exposeItems() error {
	pos := s.rpcHead()
	for i := range s.call.ReadItems {
		it := &s.call.ReadItems[i]
		if len(it.Data) == 0 {
			continue
		}
		seg, err := s.lend(fabric.SGE{Buf: it.Data, LKey: fabric.LocalDMAKey}, fabric.AccessRemoteRead)
		if err != nil {
			return err
		}
		s.hdr.Reads = splitRead(s.hdr.Reads, pos+it.Offset, seg, s.c.cfg.MaxSegment)
		pos += xdr.Padded(len(it.Data))
	}
	return nil
}

// exposeMessage puts the whole RPC message of full bytes into a position-zero
// read chunk: from a buffer of ours and from the items in turn.
func (s *slot) exposeMessage(full int) error {
	c, h := s.c, &s.hdr
	h.Proc = rpcrdma.ProcNomsg
	bulk := 0
	for i := range s.call.ReadItems {
		bulk += len(s.call.ReadItems[i].Data)
	}
	var err error
	if s.long, err = c.arena.get(full - bulk); err != nil {
		return err
	}
	stream := s.appendStream(s.long.b[:0], padsOnly)
	own, err := s.lend(fabric.SGE{Buf: stream, LKey: s.long.key}, fabric.AccessRemoteRead)
	if err != nil {
		return err
	}
	// part adds the next bytes of our buffer, up to end.
	from := 0
	part := func(end int) {
		if end > from {
			h.Reads = splitRead(h.Reads, 0, fabric.Segment{
				Handle: own.Handle, Offset: own.Offset + uint64(from), Length: uint32(end - from),
			}, c.cfg.MaxSegment)
			from = end
		}
	}
	at := s.rpcHead() // where Args begin in our buffer, and after each item its pad
	for i := range s.call.ReadItems {
		it := &s.call.ReadItems[i]
		if len(it.Data) == 0 {
			continue
		}
		part(at + it.Offset)
		seg, err := s.lend(fabric.SGE{Buf: it.Data, LKey: fabric.LocalDMAKey}, fabric.AccessRemoteRead)
		if err != nil {
			return err
		}
		h.Reads = splitRead(h.Reads, 0, seg, c.cfg.MaxSegment)
		at += xdr.Pad(len(it.Data))
	}
	part(len(stream))
	return nil
}
