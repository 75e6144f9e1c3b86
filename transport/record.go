package transport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// The record-marking bridge presents a connection as a net.Conn with the record marking of RFC 5531
// section 11, so that any ONC RPC server or client written for TCP runs over RDMA unchanged. A call
// is one record, after its chunks have been fetched; in the reply, the Binding finds the items that
// may go to chunks.

// A recordParser assembles records from a byte stream.
type recordParser struct {
	max    int
	mark   []byte // bytes of the record mark read so far
	left   int    // bytes of the fragment to come
	last   bool   // it is the record's last
	record []byte
}

// write takes bytes of the stream and calls done with each whole record. The
// record then belongs to done.
func (p *recordParser) write(b []byte, done func([]byte) error) error {
	for len(b) > 0 {
		if p.left == 0 {
			n := min(oncrpc.RecordMarkSize-len(p.mark), len(b))
			p.mark = append(p.mark, b[:n]...)
			b = b[n:]
			if len(p.mark) < oncrpc.RecordMarkSize {
				return nil
			}
			length, last, _ := oncrpc.ConsumeRecordMark(p.mark)
			p.mark = p.mark[:0]
			if int64(length)+int64(len(p.record)) > int64(p.max) {
				return &rpc.SizeError{What: "the record", Size: int(length) + len(p.record), Limit: p.max}
			}
			p.left, p.last = int(length), last
			p.record = slices.Grow(p.record, p.left)
		}
		n := min(p.left, len(b))
		p.record = append(p.record, b[:n]...)
		p.left -= n
		b = b[n:]
		if p.left == 0 && p.last {
			r := p.record
			p.record, p.last = nil, false
			if err := done(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// A stream is the common part of the net.Conns of servers and clients: the records to be read, the
// read deadline, the error after the end.
type stream struct {
	mu       sync.Mutex
	records  []pushed // those from first on are to be read
	first    int
	last     uint64 // the place of the latest record
	changed  chan struct{}
	deadline time.Time // for reading
	timer    *time.Timer
	err      error // set when closed
}

// A pushed record is the part of it to be read.
type pushed struct {
	place      uint64 // ascends from record to record
	begun      bool   // some of it has been read
	head, rest []byte
}

// keep makes the rest the stream's own.
func (r *pushed) keep() { r.rest = bytes.Clone(r.rest) }

func newStream() *stream { return &stream{changed: make(chan struct{})} }

// notify wakes readers. mu is held.
func (s *stream) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// push makes a record readable that begins with head, its mark, and ends with rest, which may be
// empty. Both are the stream's until they have been read, or, in the place that push returns, given
// back by release or drop.
func (s *stream) push(head, rest []byte) (place uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first > 0 && len(s.records) == cap(s.records) {
		s.records, s.first = slices.Delete(s.records, 0, s.first), 0
	}
	s.last++
	s.records = append(s.records, pushed{place: s.last, head: head, rest: rest})
	s.notify()
	return s.last
}

// find returns the index of a record that has not been read whole. mu is held.
func (s *stream) find(place uint64) (i int, ok bool) {
	i, ok = slices.BinarySearchFunc(s.records[s.first:], place, func(r pushed, place uint64) int {
		return cmp.Compare(r.place, place)
	})
	return s.first + i, ok
}

// release gives back the rest of a record that was pushed: what has not been read is copied.
func (s *stream) release(place uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.find(place); ok {
		s.records[i].keep()
	}
}

// drop is release for a record that no longer needs to be read. If its reading has begun it must go
// on.
func (s *stream) drop(place uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.find(place)
	switch {
	case !ok:
	case s.records[i].begun:
		s.records[i].keep()
	default:
		s.records = slices.Delete(s.records, i, i+1)
	}
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
		if s.timer != nil {
			s.timer.Stop()
		}
		s.notify()
	}
	s.mu.Unlock()
}

func (s *stream) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *stream) Read(b []byte) (int, error) {
	for {
		s.mu.Lock()
		if s.first < len(s.records) {
			n := s.take(b)
			s.mu.Unlock()
			return n, nil
		}
		if s.err != nil {
			defer s.mu.Unlock()
			return 0, endOfStream(s.err)
		}
		if !s.deadline.IsZero() && !time.Now().Before(s.deadline) {
			s.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
		changed := s.changed
		s.mu.Unlock()
		<-changed
	}
}

// take copies what there is to b. mu is held.
func (s *stream) take(b []byte) (n int) {
	for n < len(b) && s.first < len(s.records) {
		r := &s.records[s.first]
		r.begun = true
		k := copy(b[n:], r.head)
		r.head = r.head[k:]
		n += k
		k = copy(b[n:], r.rest)
		r.rest = r.rest[k:]
		n += k
		if len(r.head)+len(r.rest) == 0 {
			*r = pushed{}
			s.first++
		}
	}
	if s.first == len(s.records) {
		s.records, s.first = s.records[:0], 0
	}
	return n
}

// endOfStream is the error that Read returns after the end: as on TCP, io.EOF if the
// peer has closed in order.
func endOfStream(err error) error {
	var ce *fabric.ConnError
	if errors.As(err, &ce) && ce.Remote && ce.Clean {
		return io.EOF
	}
	return err
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.deadline = t
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if !t.IsZero() {
		s.timer = time.AfterFunc(time.Until(t), func() {
			s.mu.Lock()
			s.notify()
			s.mu.Unlock()
		})
	}
	s.notify()
	return nil
}

// SetWriteDeadline does nothing: writing never waits for the peer.
func (s *stream) SetWriteDeadline(time.Time) error { return s.failed() }

func (s *stream) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// marked returns the mark of a record of n bytes, with room for the record after it.
func marked(n int) []byte {
	return oncrpc.AppendRecordMark(make([]byte, 0, oncrpc.RecordMarkSize+n), n, true)
}

// inOrder reports whether ranges ascend without overlap within n bytes.
func inOrder(items []rpc.Range, n int) bool {
	from := 0
	for _, it := range items {
		if it.Offset < from || it.Length < 0 || it.Length > n || it.Offset > n-xdr.Padded(it.Length) {
			return false
		}
		from = it.End()
	}
	return true
}

// NewRecordConn returns a net.Conn that carries the record-marked calls of an ONC RPC client written
// for TCP over cl. b decides which parts of the calls and of their replies may travel in chunks; with
// nil, nothing is placed directly, and replies may have up to maxReply bytes. The net.Conn ends with
// the connection that cl has now, and closing it closes cl.
func NewRecordConn(cl *Client, b rpc.Binding, maxReply int) net.Conn {
	ctx, cancel := context.WithCancel(context.Background())
	rc := &clientRecords{
		stream: newStream(), cl: cl, c: cl.latest(), binding: b, maxReply: maxReply, ctx: ctx, cancel: cancel,
		parser: recordParser{max: cl.cfg.MaxMessage},
	}
	go func() { // the reader learns of the connection's end
		<-rc.c.ended()
		rc.fail(rc.c.endErr())
	}()
	return rc
}

// clientRecords is a client's connection as a net.Conn.
type clientRecords struct {
	*stream
	cl       *Client
	c        connection // that there was: a net.Conn ends with it
	binding  rpc.Binding
	maxReply int
	ctx      context.Context
	cancel   context.CancelFunc
	calls    sync.WaitGroup

	wmu    sync.Mutex
	parser recordParser
}

func (rc *clientRecords) LocalAddr() net.Addr  { return rc.c.local() }
func (rc *clientRecords) RemoteAddr() net.Addr { return rc.c.remote() }

// Close ends the connection; calls under way get no reply.
func (rc *clientRecords) Close() error {
	rc.fail(net.ErrClosed)
	rc.cancel()
	err := rc.cl.Close()
	rc.calls.Wait()
	return err
}

// Write takes calls as records, in pieces of any size.
func (rc *clientRecords) Write(b []byte) (int, error) {
	rc.wmu.Lock()
	defer rc.wmu.Unlock()
	if err := rc.failed(); err != nil {
		return 0, err
	}
	err := rc.parser.write(b, func(record []byte) error {
		if _, dir, ok := oncrpc.Peek(record); !ok || dir != oncrpc.Call {
			return errors.New("transport: a record written is not an RPC call")
		}
		rc.calls.Add(1)
		go rc.call(record)
		return nil
	})
	if err != nil {
		rc.fail(err)
		return 0, err
	}
	return len(b), nil
}

// call makes one call and makes its reply readable. If the call fails the net.Conn does,
// as a TCP connection would.
func (rc *clientRecords) call(record []byte) {
	defer rc.calls.Done()
	reply, err := rc.roundTrip(record)
	if err != nil {
		rc.fail(err)
		return
	}
	rc.push(reply, nil)
}

func (rc *clientRecords) roundTrip(record []byte) ([]byte, error) {
	var h oncrpc.CallHeader
	n, err := oncrpc.ConsumeCall(record, &h)
	if err != nil {
		return nil, fmt.Errorf("transport: a record written is not an RPC call: %w", err)
	}
	proc := rpc.Procedure{Prog: h.Prog, Vers: h.Vers, Proc: h.Proc}
	call := pendingOf(&rpc.Call{Cred: h.Cred, MaxResults: rc.maxReply})
	call.raw = record
	if rc.binding != nil {
		items, bounds := rc.binding.Call(proc, record[n:], nil)
		call.MaxResults = bounds.MaxResults
		if h.Cred.Protected() {
			// The binding cannot read protected arguments, nor may anything be taken out.
			for _, size := range bounds.Items[:bounds.NumItems] {
				call.MaxResults += xdr.Padded(size)
			}
			call.MaxResults += gssOverhead
			items, bounds.NumItems = nil, 0
		}
		if len(items) > 0 && inOrder(items, len(record)-n) {
			call.raw = record[:0:0]
			from := 0
			for _, it := range items {
				at := n + it.Offset
				call.raw = append(call.raw, record[from:at]...)
				call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: len(call.raw), Data: record[at : at+it.Length]})
				from = n + it.End()
			}
			call.raw = append(call.raw, record[from:]...)
		}
		for _, size := range bounds.Items[:bounds.NumItems] {
			if size > 0 {
				call.WriteItems = append(call.WriteItems, rpc.WriteItem{Buf: make([]byte, size)})
			}
		}
	}
	xid := h.XID
	if err := rc.c.call(rc.ctx, call); err != nil {
		return nil, err
	}
	msg := call.Results
	binary.BigEndian.PutUint32(msg, xid)
	return rc.restore(proc, msg, call.WriteItems)
}

// gssOverhead is room for what RPCSEC_GSS adds to results: lengths, a sequence number, a
// checksum, the padding of a cipher.
const gssOverhead = 1024

// restore puts the items that came through write chunks back into the reply, each
// after its length word.
func (rc *clientRecords) restore(p rpc.Procedure, msg []byte, items []rpc.WriteItem) ([]byte, error) {
	size := len(msg)
	placed := false
	for i := range items {
		if items[i].Chunked {
			placed = true
			size += xdr.Padded(items[i].N)
		}
	}
	if !placed {
		return append(marked(size), msg...), nil
	}
	var h oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(msg, &h)
	if err != nil {
		return nil, err
	}
	places := rc.binding.Reply(p, msg[n:], true, nil)
	if len(places) > len(items) {
		return nil, &rpc.BadReplyError{XID: h.XID, Reason: "it has more items than chunks"}
	}
	for i, pl := range places {
		got, buf := items[i].N, items[i].Buf
		if got != pl.Length && got != min(xdr.Padded(pl.Length), len(buf)) || pl.Length > len(buf) || pl.Offset > len(msg)-n {
			return nil, &rpc.BadReplyError{XID: h.XID, Reason: "its results do not fit its chunks"}
		}
	}
	out := make([]byte, 0, size+oncrpc.RecordMarkSize)
	out = append(out, 0, 0, 0, 0)
	from := 0
	for i, pl := range places {
		out = append(out, msg[from:n+pl.Offset]...)
		out = append(out, items[i].Buf[:pl.Length]...)
		out = append(out, zeros[:xdr.Pad(pl.Length)]...)
		from = n + pl.Offset
	}
	out = append(out, msg[from:]...)
	binary.BigEndian.PutUint32(out, oncrpc.LastFragment|uint32(len(out)-oncrpc.RecordMarkSize))
	return out, nil
}
