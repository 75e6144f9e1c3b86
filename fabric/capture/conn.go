package capture

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// provider records the connections of another provider.
type provider struct {
	fabric.Provider
	w *Writer
}

func (p *provider) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	c, err := p.Provider.Resolve(ctx, addr, attr)
	if err != nil {
		return nil, err
	}
	return newConn(c, p.w, true), nil
}

func (p *provider) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	l, err := p.Provider.Listen(ctx, addr, attr)
	if err != nil {
		return nil, err
	}
	return &listener{l, p.w}, nil
}

// Private implements fabric.Private.
func (p *provider) Private() bool {
	below, ok := p.Provider.(fabric.Private)
	return ok && below.Private()
}

type listener struct {
	fabric.Listener
	w *Writer
}

func (l *listener) Accept(ctx context.Context) (fabric.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return newConn(c, l.w, false), nil
}

// conn records a connection.
type conn struct {
	fabric.Conn
	w *Writer

	// mu is held while requests are posted, so that a completion is recorded after its request. It is also held while
	// exposed memory is copied, so that the memory is no longer read when the call that closed it returns.
	mu      sync.Mutex
	s       *stream // nil until the connection is established
	active  bool
	ended   bool
	exposed map[uint32]*exposure // by handle
	recvs   []recv               // posted, oldest first
	reads   []read               // posted, oldest first, with the signaled and deferred requests after them

	hdr    rpcrdma.Header  // scratch
	wrs    []fabric.SendWR // scratch
	events []event         // scratch
	turn   uint64          // number of the message, for exposure.turn
}

// A recv is a posted receive.
type recv struct {
	id  uint64
	buf []byte
}

// A read is a posted RDMA Read, or a later request whose completion may imply that Reads are complete.
type read struct {
	id     uint64
	op     fabric.Opcode
	sgl    []fabric.SGE
	key    uint32
	offset uint64
}

// maxReads bounds conn.reads. If more requests are outstanding, the oldest is dropped.
const maxReads = 1 << 14

func newConn(c fabric.Conn, w *Writer, active bool) *conn {
	return &conn{Conn: c, w: w, active: active, exposed: make(map[uint32]*exposure)}
}

func (c *conn) Connect(ctx context.Context, privateData []byte) error {
	if err := c.Conn.Connect(ctx, privateData); err != nil {
		return err
	}
	c.up(privateData, c.Conn.PeerPrivateData())
	return nil
}

func (c *conn) Accept(ctx context.Context, privateData []byte) error {
	if err := c.Conn.Accept(ctx, privateData); err != nil {
		return err
	}
	c.up(c.Conn.PeerPrivateData(), privateData)
	return nil
}

// up records the setup of the connection.
func (c *conn) up(asked, agreed []byte) {
	s := &stream{active: c.active, asked: append([]byte(nil), asked...), agreed: append([]byte(nil), agreed...)}
	s.local, s.remote = c.w.addresses(c, c.active)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s = s
	c.w.add(event{at: now(), s: s, kind: kindUp, out: c.active})
}

// down records the end of the connection. err is the error of Poll or Wait, or nil for a Close.
func (c *conn) down(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.s == nil || c.ended {
		return
	}
	c.ended = true
	e := event{at: now(), s: c.s, kind: kindDown, out: true}
	var end *fabric.ConnError
	if errors.As(err, &end) {
		e.out = !end.Remote
		e.why = err.Error()
	}
	c.w.add(e)
}

func (c *conn) Close() error {
	c.mu.Lock()
	clear(c.exposed)
	c.mu.Unlock()
	err := c.Conn.Close()
	c.down(nil)
	return err
}

func (c *conn) Wait() error {
	err := c.Conn.Wait()
	if err != nil {
		c.down(err)
	}
	return err
}

func now() int64 { return time.Now().UnixNano() }

// Post records Sends and Writes, and keeps Reads until they complete.
func (c *conn) Post(wrs []fabric.SendWR) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = c.events[:0]
	reads := len(c.reads)
	at := now()
	for i := range wrs {
		c.posting(&wrs[i], at)
	}
	err := c.Conn.Post(c.unwrapped(wrs))
	if err == nil {
		c.w.add(c.events...)
	} else {
		c.reads = c.reads[:min(reads, len(c.reads))]
	}
	clear(c.events)
	return err
}

// posting appends the events of a request that is about to be posted.
func (c *conn) posting(wr *fabric.SendWR, at int64) {
	switch wr.Op {
	case fabric.OpLocalInv:
		delete(c.exposed, wr.RKey)
	case fabric.OpSend, fabric.OpSendInv:
		if e, ok := c.gather(wr.SGL, event{at: at, kind: kindSend, out: true}); ok {
			e.inval, e.hasInval = wr.RKey, wr.Op == fabric.OpSendInv
			if !e.hasInval {
				e.inval = 0
			}
			c.events = append(c.events, e)
		}
		c.peerReads(wr.SGL, at)
	case fabric.OpWrite:
		if e, ok := c.gather(wr.SGL, event{at: at, kind: kindWrite, out: true}); ok && e.size > 0 {
			e.key, e.offset = wr.RKey, wr.RemoteOffset
			c.events = append(c.events, e)
		}
	}
	isRead := wr.Op == fabric.OpRead
	if isRead || len(c.reads) > 0 && wr.Flags&(fabric.Signaled|fabric.Deferred) != 0 {
		if len(c.reads) == maxReads {
			c.reads = append(c.reads[:0], c.reads[1:]...)
		}
		r := read{id: wr.ID, op: wr.Op}
		if isRead {
			r.key, r.offset, r.sgl = wr.RKey, wr.RemoteOffset, append([]fabric.SGE(nil), wr.SGL...)
		}
		c.reads = append(c.reads, r)
	}
}

// gather copies the part of sgl that the recording keeps into e. It returns false if the queue has no room for it.
func (c *conn) gather(sgl []fabric.SGE, e event) (event, bool) {
	for i := range sgl {
		e.size += len(sgl[i].Buf)
	}
	n := c.w.cfg.kept(e.size)
	if c.s == nil || !c.w.room(n) {
		return e, false
	}
	e.s = c.s
	e.data = make([]byte, 0, n)
	// The first bytes of each segment are kept.
	at := 0 // offset in the message
	for i := range sgl {
		for b := sgl[i].Buf; len(b) > 0; {
			left := min(len(b), maxData-at%maxData) // of this segment
			if k := c.w.cfg.kept(maxData) - at%maxData; k > 0 {
				e.data = append(e.data, b[:min(left, k)]...)
			}
			at += left
			b = b[left:]
		}
	}
	return e, true
}

// peerReads records the RDMA Reads that the message in sgl makes the peer perform.
func (c *conn) peerReads(sgl []fabric.SGE, at int64) {
	if c.s == nil || len(sgl) == 0 || len(c.exposed) == 0 {
		return
	}
	msg := sgl[0].Buf
	if len(sgl) > 1 { // rare; the first part may have only the header
		msg = nil
		for i := range sgl {
			msg = append(msg, sgl[i].Buf...)
		}
	}
	if !consumeLists(msg, &c.hdr) {
		return
	}
	c.turn++
	for i := range c.hdr.Reads {
		c.accessed(kindRead, &c.hdr.Reads[i].Segment, at)
	}
}

// peerWrites records the RDMA Writes that a message from the peer reports: Writes to the write list and the reply chunk
// of a reply. In a call these lists name the peer's own memory.
func (c *conn) peerWrites(msg []byte, at int64) {
	if len(c.exposed) == 0 || !consumeLists(msg, &c.hdr) || !isReply(msg, &c.hdr) {
		return
	}
	c.turn++
	for _, chunk := range c.hdr.Writes {
		for i := range chunk {
			c.accessed(kindWrite, &chunk[i], at)
		}
	}
	if c.hdr.HasReply {
		for i := range c.hdr.Reply {
			c.accessed(kindWrite, &c.hdr.Reply[i], at)
		}
	}
}

// accessed records that the peer has accessed a segment of this end's memory.
func (c *conn) accessed(kind kind, seg *rpcrdma.Segment, at int64) {
	if seg.Length == 0 {
		return
	}
	mem, ok := c.find(seg)
	if !ok {
		c.w.unknown()
		return
	}
	if e, ok := c.gather([]fabric.SGE{{Buf: mem}}, event{at: at, kind: kind}); ok {
		e.key, e.offset = seg.Handle, seg.Offset
		c.events = append(c.events, e)
	}
}

// PostRecv keeps the buffers until they complete.
func (c *conn) PostRecv(wrs []fabric.RecvWR) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.recvs)
	for i := range wrs {
		c.recvs = append(c.recvs, recv{wrs[i].ID, wrs[i].SGE.Buf})
	}
	err := c.Conn.PostRecv(wrs)
	if err != nil {
		clear(c.recvs[n:])
		c.recvs = c.recvs[:n]
	}
	return err
}

// Poll records received messages and completed Reads.
func (c *conn) Poll(wc []fabric.WC) (int, error) {
	n, err := c.Conn.Poll(wc)
	if n > 0 {
		c.completed(wc[:n])
	}
	if err != nil {
		c.down(err)
	}
	return n, err
}

func (c *conn) completed(wcs []fabric.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = c.events[:0]
	at := now()
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Op == fabric.WCRecv:
			c.received(wc, at)
		case wc.Status == fabric.WCSuccess && len(c.reads) > 0:
			c.done(wc, at)
		}
	}
	c.w.add(c.events...)
	clear(c.events)
}

// received processes the completion of a receive.
func (c *conn) received(wc *fabric.WC, at int64) {
	var buf []byte
	for i := range c.recvs {
		if c.recvs[i].id == wc.ID { // usually the first
			buf = c.recvs[i].buf
			c.recvs = append(c.recvs[:i], c.recvs[i+1:]...)
			break
		}
	}
	if wc.Status != fabric.WCSuccess {
		return
	}
	msg := buf[:min(uint64(wc.Len), uint64(len(buf)))]
	c.peerWrites(msg, at)
	if e, ok := c.gather([]fabric.SGE{{Buf: msg}}, event{at: at, kind: kindSend}); ok {
		e.inval, e.hasInval = wc.InvalidatedKey, wc.WithInv
		c.events = append(c.events, e)
	}
	if wc.WithInv {
		delete(c.exposed, wc.InvalidatedKey)
	}
}

// done processes a completion of the send queue, which implies that all earlier requests are complete.
func (c *conn) done(wc *fabric.WC, at int64) {
	for i := range c.reads {
		if r := &c.reads[i]; r.id != wc.ID || r.op.Completion() != wc.Op {
			continue
		}
		for j := range c.reads[:i+1] {
			r := &c.reads[j]
			if r.op != fabric.OpRead {
				continue
			}
			if e, ok := c.gather(r.sgl, event{at: at, kind: kindRead, out: true}); ok && e.size > 0 {
				e.key, e.offset = r.key, r.offset
				c.events = append(c.events, e)
			}
		}
		k := copy(c.reads, c.reads[i+1:])
		clear(c.reads[k:])
		c.reads = c.reads[:k]
		return
	}
}

// TLS implements fabric.Encrypted.
func (c *conn) TLS() *tls.ConnectionState {
	if e, ok := c.Conn.(fabric.Encrypted); ok {
		return e.TLS()
	}
	return nil
}

// Counters implements fabric.Counting. It returns the counters of the adapter, if it has any.
func (c *conn) Counters() []fabric.Counter {
	if f, ok := c.Conn.(fabric.Counting); ok {
		return f.Counters()
	}
	return nil
}
