package transport

import (
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
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// The record-marking bridge presents a connection as a net.Conn with the record
// marking of RFC 5531 section 11, so that any ONC RPC server or client written
// for TCP runs over RDMA unchanged. A call whose chunks have been fetched is one
// record; in the reply, the Binding finds the items that may go to chunks.

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
				return &SizeError{What: "the record", Size: int(length) + len(p.record), Limit: p.max}
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

// A stream is what the net.Conns of servers and clients have in common: the
// records to be read, the read deadline, the error after the end.
type stream struct {
	mu       sync.Mutex
	records  [][]byte // to be read; the first may be half read, its mark included
	changed  chan struct{}
	deadline time.Time // for reading
	timer    *time.Timer
	err      error // set when closed
}

func newStream() *stream { return &stream{changed: make(chan struct{})} }

// notify wakes readers. mu is held.
func (s *stream) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// push makes a record readable.
func (s *stream) push(record []byte) {
	s.mu.Lock()
	s.records = append(s.records, record)
	s.notify()
	s.mu.Unlock()
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
		if len(s.records) > 0 {
			n := copy(b, s.records[0])
			if s.records[0] = s.records[0][n:]; len(s.records[0]) == 0 {
				s.records[0] = nil
				s.records = s.records[1:]
			}
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

// marked returns the mark of a record of n bytes, with room for the record behind it.
func marked(n int) []byte {
	return oncrpc.AppendRecordMark(make([]byte, 0, oncrpc.RecordMarkSize+n), n, true)
}

// A bridge is a server's net.Listener for some programs. Each connection on which
// one of them is called is accepted once, as a net.Conn.
type bridge struct {
	s       *Server
	binding Binding
	progs   []uint32 // none: all that nobody else serves

	mu     sync.Mutex
	conns  map[*conn]*serverRecords
	accept chan *serverRecords
	closed chan struct{}
	once   sync.Once
}

// Bridge returns a listener for the calls to progs, or, without any, to all
// programs that are not registered: each of the server's connections that makes
// such a call is accepted as a net.Conn, on which calls are read and replies
// written as records (RFC 5531 section 11). Replies are matched by xid and may be
// written in any order. b says what may travel in chunks; with nil, nothing does.
//
// It must be called before Serve. Closing the listener leaves connections open;
// closing a net.Conn ends the connection under it.
func (s *Server) Bridge(b Binding, progs ...uint32) net.Listener {
	br := &bridge{
		s: s, binding: b, progs: progs,
		conns:  make(map[*conn]*serverRecords),
		accept: make(chan *serverRecords, s.cfg.MaxConns),
		closed: make(chan struct{}),
	}
	s.mu.Lock()
	s.bridges = append(s.bridges, br)
	s.mu.Unlock()
	return br
}

func (b *bridge) takes(prog uint32) bool {
	return len(b.progs) == 0 || slices.Contains(b.progs, prog)
}

func (b *bridge) Accept() (net.Conn, error) {
	select {
	case c := <-b.accept:
		return c, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

func (b *bridge) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// Addr is the address of the server's first listener.
func (b *bridge) Addr() net.Addr {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	for l := range b.s.listeners {
		return l.Addr()
	}
	return bridgeAddr{}
}

type bridgeAddr struct{}

func (bridgeAddr) Network() string { return "rpcrdma" }
func (bridgeAddr) String() string  { return "bridge" }

// dispatch passes a call to its net.Conn. The exchange is detached from the leader.
func (b *bridge) dispatch(x *exch) {
	b.mu.Lock()
	rc := b.conns[x.c]
	if rc == nil {
		select {
		case <-b.closed:
			b.mu.Unlock()
			x.replyError(nil, oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgUnavail})
			return
		default:
		}
		rc = &serverRecords{
			stream: newStream(), c: x.c, binding: b.binding,
			pending: make(map[uint32]*exch), parser: recordParser{max: x.c.cfg.MaxMessage},
		}
		b.conns[x.c] = rc
		select {
		case b.accept <- rc:
		default: // as many as MaxConns wait already, and nobody accepts
			delete(b.conns, x.c)
			b.mu.Unlock()
			x.replyError(nil, oncrpc.ReplyHeader{AcceptStat: oncrpc.SystemErr})
			return
		}
	}
	b.mu.Unlock()
	rc.call(x)
}

// forget closes the net.Conn of a connection that has ended.
func (b *bridge) forget(c *conn) {
	b.mu.Lock()
	rc := b.conns[c]
	delete(b.conns, c)
	b.mu.Unlock()
	if rc != nil {
		rc.end(c.endErr())
	}
}

// serverRecords is a server's connection as a net.Conn.
type serverRecords struct {
	*stream
	c       *conn
	binding Binding

	pmu     sync.Mutex
	pending map[uint32]*exch // calls read or to be read, by xid

	wmu    sync.Mutex
	parser recordParser
	items  []Range
}

func (rc *serverRecords) LocalAddr() net.Addr  { return rc.c.fc.LocalAddr() }
func (rc *serverRecords) RemoteAddr() net.Addr { return rc.c.fc.RemoteAddr() }

// call makes a call readable.
func (rc *serverRecords) call(x *exch) {
	xid := x.call.XID
	rc.pmu.Lock()
	if rc.pending == nil || rc.pending[xid] != nil {
		// The end has come, or the client uses an xid twice at once.
		rc.pmu.Unlock()
		x.refuse(nil, rpcrdma.ErrChunk)
		return
	}
	rc.pending[xid] = x
	record := append(marked(len(x.Msg)), x.Msg...)
	x.Msg = nil
	if x.Mem != nil { // the copy takes its place in the account
		x.c.arena.Put(x.Mem)
		x.Mem = nil
	}
	rc.pmu.Unlock()
	rc.push(record)
}

// end drops the calls that have no reply yet. Whether they were executed is not known: if
// they are sent again, they are executed again.
func (rc *serverRecords) end(err error) {
	rc.fail(err)
	rc.pmu.Lock()
	pending := rc.pending
	rc.pending = nil
	rc.pmu.Unlock()
	for _, x := range pending {
		x.refuse(nil, rpcrdma.ErrChunk)
	}
}

// Close ends the connection under the net.Conn.
func (rc *serverRecords) Close() error {
	rc.c.close()
	rc.fail(net.ErrClosed)
	return nil
}

// Write takes replies as records, in pieces of any size.
func (rc *serverRecords) Write(b []byte) (int, error) {
	rc.wmu.Lock()
	defer rc.wmu.Unlock()
	if err := rc.failed(); err != nil {
		return 0, err
	}
	if err := rc.parser.write(b, rc.reply); err != nil {
		rc.fail(err)
		rc.c.close()
		return 0, err
	}
	return len(b), nil
}

// reply answers a call with a record: its RPC header, its results, and the items
// that the binding finds in them. A record whose RPC header cannot be decoded is sent
// as it is; the client rejects it.
func (rc *serverRecords) reply(record []byte) error {
	xid, dir, ok := oncrpc.Peek(record)
	if !ok || dir != oncrpc.Reply {
		return errors.New("transport: a record written is not an RPC reply")
	}
	rc.pmu.Lock()
	x := rc.pending[xid]
	delete(rc.pending, xid)
	rc.pmu.Unlock()
	if x == nil {
		return nil // answered before, or the connection has ended
	}
	var h oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(record, &h)
	rpc, results := record, []byte(nil)
	if err == nil && h.Err() == nil {
		rpc, results = record[:n], record[n:]
		if rc.binding != nil && !x.call.Cred.Protected() {
			rc.items = rc.binding.Reply(Procedure{x.call.Prog, x.call.Vers, x.call.Proc}, results, false, rc.items[:0])
			results = x.carve(results, rc.items)
		}
	}
	x.remember(rpc, results)
	if x.takeBack(nil) {
		x.send(nil, rpc, results)
	}
	return nil
}

// carve moves items from results to the exchange and returns the results without
// them. Items that are out of order or out of bounds stay in the results.
func (x *exch) carve(b []byte, items []Range) []byte {
	if !inOrder(items, len(b)) || len(items) == 0 {
		return b
	}
	// Without their items results are short, so they are copied.
	size := len(b)
	for _, it := range items {
		size -= xdr.Padded(it.Length)
	}
	out := make([]byte, 0, size)
	from := 0
	for _, it := range items {
		out = append(out, b[from:it.Offset]...)
		x.addItem(len(out), b[it.Offset:it.Offset+it.Length], nil)
		from = it.End()
	}
	return append(out, b[from:]...)
}

// inOrder reports whether ranges ascend without overlap within n bytes.
func inOrder(items []Range, n int) bool {
	from := 0
	for _, it := range items {
		if it.Offset < from || it.Length < 0 || it.Length > n || it.Offset > n-xdr.Padded(it.Length) {
			return false
		}
		from = it.End()
	}
	return true
}

// NewRecordConn returns a net.Conn that carries the record-marked calls of an ONC
// RPC client written for TCP over cl. b says what of the calls and of their replies
// may travel in chunks; with nil, nothing is placed directly, and replies may have up
// to maxReply bytes. The net.Conn ends with the connection that cl has now, and closing
// it closes cl.
func NewRecordConn(cl *Client, b Binding, maxReply int) net.Conn {
	ctx, cancel := context.WithCancel(context.Background())
	rc := &clientRecords{
		stream: newStream(), cl: cl, c: cl.latest(), binding: b, maxReply: maxReply, ctx: ctx, cancel: cancel,
		parser: recordParser{max: cl.cfg.MaxMessage},
	}
	go func() { // whoever reads learns of the connection's end
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
	binding  Binding
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
	rc.push(reply)
}

func (rc *clientRecords) roundTrip(record []byte) ([]byte, error) {
	var h oncrpc.CallHeader
	n, err := oncrpc.ConsumeCall(record, &h)
	if err != nil {
		return nil, fmt.Errorf("transport: a record written is not an RPC call: %w", err)
	}
	proc := Procedure{h.Prog, h.Vers, h.Proc}
	call := Call{Cred: h.Cred, raw: record, MaxResults: rc.maxReply}
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
				call.ReadItems = append(call.ReadItems, ReadItem{Offset: len(call.raw), Data: record[at : at+it.Length]})
				from = n + it.End()
			}
			call.raw = append(call.raw, record[from:]...)
		}
		for _, size := range bounds.Items[:bounds.NumItems] {
			if size > 0 {
				call.WriteItems = append(call.WriteItems, WriteItem{Buf: make([]byte, size)})
			}
		}
	}
	xid := h.XID
	if err := rc.c.call(rc.ctx, &call); err != nil {
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
// behind its length word.
func (rc *clientRecords) restore(p Procedure, msg []byte, items []WriteItem) ([]byte, error) {
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
		return nil, &BadReplyError{XID: h.XID, Reason: "it has more items than chunks"}
	}
	for i, pl := range places {
		got, buf := items[i].N, items[i].Buf
		if got != pl.Length && got != min(xdr.Padded(pl.Length), len(buf)) || pl.Length > len(buf) || pl.Offset > len(msg)-n {
			return nil, &BadReplyError{XID: h.XID, Reason: "its results do not fit its chunks"}
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
