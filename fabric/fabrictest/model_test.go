package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A model is a minimal in-memory implementation of package fabric: one lock protects both ends
// of a connection, and requests are executed when they are posted. With a defect it breaks one
// rule, which the check of that rule must detect.
type model struct {
	defect defect

	// Other Limits and capabilities.
	limits    Limits
	noWindows bool
	noInv     bool
	noDMA     bool
	scatter   int
	coyFlush  bool // says nothing of unsignaled requests before the first that fails

	mu        sync.Mutex
	listeners map[string]*modelListener
	port      int
	keys      atomic.Uint32 // last key used
	conns     map[*modelConn]bool

	live struct{ conns, mrs, mws atomic.Int64 }
}

// A defect is the rule that a model breaks.
type defect string

func newModel(d defect) *model {
	return &model{defect: d, listeners: map[string]*modelListener{}, port: 1000, scatter: 4, conns: map[*modelConn]bool{}}
}

func (m *model) Name() string { return "model" }

// config is how Run tests the model.
func (m *model) config() Config {
	return Config{
		New:    func(testing.TB) fabric.Provider { return &modelProvider{model: m} },
		Limits: m.limits,
		Stall:  m.stall,
		Live: func() (int, int, int) {
			return int(m.live.conns.Load()), int(m.live.mrs.Load()), int(m.live.mws.Load())
		},
	}
}

// A modelProvider is a provider on the network of a model.
type modelProvider struct {
	*model
	listeners []*modelListener // guarded by model.mu
	closed    bool
}

func (p *modelProvider) Close() error {
	if p.defect == "closes nothing" {
		return nil
	}
	p.mu.Lock()
	list := p.listeners
	p.closed = true
	p.mu.Unlock()
	for _, l := range list {
		l.Close()
	}
	if p.defect == "provider takes its connections along" {
		p.mu.Lock()
		conns := slices.Collect(maps.Keys(p.conns))
		p.mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	}
	return nil
}

func (p *modelProvider) mayOpen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed && p.defect != "opens after its end" {
		return fmt.Errorf("model: provider: %w", net.ErrClosed)
	}
	return nil
}

func (p *modelProvider) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	if err := p.mayOpen(); err != nil {
		return nil, err
	}
	return p.model.Resolve(ctx, addr, attr)
}

func (p *modelProvider) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	if err := p.mayOpen(); err != nil {
		return nil, err
	}
	l, err := p.model.Listen(ctx, addr, attr)
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.listeners = append(p.listeners, l.(*modelListener))
	}
	return l, err
}

type closer func()

func (f closer) Close() error { f(); return nil }

func (m *model) stall(_ testing.TB, addr string) io.Closer {
	m.mu.Lock()
	l := m.listeners[addr]
	m.mu.Unlock()
	count := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.stalled += n
	}
	count(1)
	return closer(func() { count(-1) })
}

const modelPrivate = 100

func (m *model) lacks(format string, args ...any) error {
	return &fabric.CapabilityError{Provider: "model", Capability: fmt.Sprintf(format, args...)}
}

func (m *model) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if (attr.SendDepth > 1<<16 || attr.RecvDepth > 1<<16) && m.defect != "promises any depth" {
		return nil, m.lacks("queues as deep as %d and %d", attr.SendDepth, attr.RecvDepth)
	}
	remote, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.port++
	local := &net.TCPAddr{IP: remote.IP, Port: m.port}
	m.mu.Unlock()
	c := m.newConn(&link{}, attr, local, remote)
	if m.defect == "offers what is resolved" {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.listeners[remote.String()].pending = append(m.listeners[remote.String()].pending, c)
	}
	return c, nil
}

func (m *model) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if at.Port == 0 {
		m.port++
		at.Port = m.port
	}
	if m.listeners[at.String()] != nil {
		return nil, errors.New("model: address in use")
	}
	l := &modelListener{m: m, addr: at, attr: attr}
	l.changed.L = &l.mu
	m.listeners[at.String()] = l
	return l, nil
}

type modelListener struct {
	m       *model
	addr    *net.TCPAddr
	attr    fabric.ConnAttr
	mu      sync.Mutex
	changed sync.Cond
	pending []*modelConn // clients that wait
	served  []*modelConn
	closed  bool
	stalled int // peers that never get to their request
}

func (l *modelListener) Addr() net.Addr { return l.addr }

func (l *modelListener) Accept(ctx context.Context) (fabric.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m.defect != "deaf accept" {
		defer context.AfterFunc(ctx, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changed.Broadcast()
		})()
	}
	for {
		if l.closed && l.m.defect != "deaf listener" {
			return nil, fmt.Errorf("model: listener: %w", net.ErrClosed)
		}
		if len(l.pending) > 0 && (l.stalled == 0 || l.m.defect != "one request at a time") {
			c := l.pending[0]
			l.pending = l.pending[1:]
			server := l.m.newConn(c.link, l.attr, l.addr, c.local)
			c.link.Lock()
			c.peer, server.peer = server, c
			server.private = c.said
			if n := len(l.served); n > 0 && l.m.defect == "mixes up requests" {
				server.private = l.served[n-1].private
			}
			if c.err != nil { // gave up
				server.end(&fabric.ConnError{Provider: "model", Remote: true})
			}
			c.link.Unlock()
			l.served = append(l.served, server)
			return server, nil
		}
		if err := ctx.Err(); err != nil && l.m.defect != "deaf accept" {
			return nil, err
		}
		l.changed.Wait()
	}
}

func (l *modelListener) Close() error {
	l.m.mu.Lock()
	delete(l.m.listeners, l.addr.String())
	l.m.mu.Unlock()
	l.mu.Lock()
	pending, served := l.pending, l.served
	l.pending, l.closed = nil, true
	l.changed.Broadcast()
	l.mu.Unlock()
	if l.m.defect == "forgets requests" {
		pending = nil
	}
	for _, c := range pending {
		c.answer <- errors.New("model: refused")
	}
	if l.m.defect == "listener takes its connections along" {
		for _, c := range served {
			c.Close()
		}
	}
	return nil
}

// A link is shared by the two ends of a connection.
type link struct{ sync.Mutex }

type modelConn struct {
	m             *model
	link          *link
	attr          fabric.ConnAttr
	local, remote *net.TCPAddr
	answer        chan error // to Connect

	// The link protects all fields below.
	changed     sync.Cond
	peer        *modelConn
	said        []byte // our private data
	private     []byte // the peer's
	established bool
	err         *fabric.ConnError
	closed      bool
	woken       bool
	edge        bool // something has arrived since the last Wait

	sq       []modelWR
	rq       []fabric.RecvWR
	cq       []modelWC
	taken    int // slots of the send queue
	reports  fabric.Deferrals
	silent   int  // completed without a word, and still taken
	broken   bool // a request has failed
	received int  // slots of the receive queue

	polls int
	lazy  []func()
	late  time.Time

	regions map[uint32]*modelMR
	windows map[uint32]*modelMW // by bound handle
	all     []*modelMW
}

type modelWR struct {
	fabric.SendWR
	sgl    []fabric.SGE
	report bool // has a completion even if it succeeds
}

type modelWC struct {
	fabric.WC
	frees int // slots of its queue
}

func (m *model) newConn(l *link, attr fabric.ConnAttr, local, remote *net.TCPAddr) *modelConn {
	if attr.SendDepth == 0 {
		attr.SendDepth = 64
	}
	if attr.RecvDepth == 0 {
		attr.RecvDepth = 64
	}
	attr.InboundReads, attr.OutboundReads = max(attr.InboundReads, 1), max(attr.OutboundReads, 1)
	c := &modelConn{m: m, link: l, attr: attr, local: local, remote: remote, answer: make(chan error, 2),
		regions: map[uint32]*modelMR{}, windows: map[uint32]*modelMW{}}
	c.changed.L = l
	m.live.conns.Add(1)
	m.mu.Lock()
	m.conns[c] = true
	m.mu.Unlock()
	return c
}

func (c *modelConn) LocalAddr() net.Addr  { return c.local }
func (c *modelConn) RemoteAddr() net.Addr { return c.remote }

func (c *modelConn) Capabilities() fabric.Capabilities {
	c.link.Lock()
	defer c.link.Unlock()
	dma := !c.m.noDMA || c.m.defect == "boasts of local DMA"
	caps := fabric.Capabilities{
		MaxSendSGE: 5, MaxReadSGE: c.m.scatter, MaxMessage: 1 << 30, MaxPrivateData: modelPrivate,
		MemoryWindows: !c.m.noWindows, RemoteInvalidate: !c.m.noWindows && !c.m.noInv, LocalDMA: dma,
		SendDepth: c.attr.SendDepth, InboundReads: c.attr.InboundReads, OutboundReads: c.attr.OutboundReads,
	}
	if c.m.defect == "boasts of its queue" {
		caps.SendDepth *= 1000
	}
	if c.peer != nil && c.m.defect != "read limits of its own" {
		caps.InboundReads = min(caps.InboundReads, c.peer.attr.OutboundReads)
		caps.OutboundReads = min(caps.OutboundReads, c.peer.attr.InboundReads)
	}
	if c.m.defect == "modest about windows" {
		caps.MemoryWindows = false
	}
	return caps
}

func (c *modelConn) PeerPrivateData() []byte {
	c.link.Lock()
	defer c.link.Unlock()
	return c.private
}

// pad returns private data as it arrives.
func (c *modelConn) pad(b []byte) []byte {
	b = slices.Clone(b)
	if c.m.limits.PaddedPrivateData {
		b = append(append([]byte("cm"), b...), make([]byte, modelPrivate-len(b))...)
	}
	return b
}

func (c *modelConn) tooLong(b *[]byte) error {
	if len(*b) <= modelPrivate {
		return nil
	}
	if c.m.defect == "cuts private data" {
		*b = (*b)[:modelPrivate]
		return nil
	}
	return c.m.lacks("private data of %d bytes", len(*b))
}

func (c *modelConn) Connect(ctx context.Context, private []byte) error {
	if err := c.tooLong(&private); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.link.Lock()
	if c.err != nil {
		defer c.link.Unlock()
		return c.err
	}
	c.said = c.pad(private)
	c.link.Unlock()
	c.m.mu.Lock()
	l := c.m.listeners[c.remote.String()]
	c.m.mu.Unlock()
	if l == nil && c.m.defect == "connects to nobody" {
		return nil
	}
	if l == nil {
		return errors.New("model: refused")
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errors.New("model: refused")
	}
	l.pending = append(l.pending, c)
	l.changed.Broadcast()
	l.mu.Unlock()
	done := ctx.Done()
	if c.m.defect == "deaf connect" {
		done = nil
	}
	select {
	case err := <-c.answer:
		if err != nil {
			c.link.Lock()
			c.end(&fabric.ConnError{Provider: "model", Remote: true, Cause: err})
			c.link.Unlock()
		}
		return err
	case <-done:
		c.link.Lock()
		defer c.link.Unlock()
		c.end(&fabric.ConnError{Provider: "model", Cause: ctx.Err()})
		if c.peer != nil {
			c.peer.end(&fabric.ConnError{Provider: "model", Remote: true})
		}
		return ctx.Err()
	}
}

func (c *modelConn) Accept(ctx context.Context, private []byte) error {
	if err := c.tooLong(&private); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.link.Lock()
	defer c.link.Unlock()
	if c.err != nil {
		return c.err
	}
	c.peer.private = c.pad(private)
	if c.m.defect == "answers without a word" {
		c.peer.private = nil
	}
	c.established, c.peer.established = true, true
	if c.m.defect == "forgets early receives" {
		c.peer.rq, c.peer.received = nil, 0
	}
	c.peer.answer <- nil
	c.run()
	c.peer.run()
	return nil
}

func (c *modelConn) Reject(private []byte) error {
	if err := c.tooLong(&private); err != nil {
		return err
	}
	c.link.Lock()
	re := &fabric.RejectError{Addr: c.local.String(), PrivateData: c.pad(private)}
	if c.m.defect == "rejects without a word" {
		re.PrivateData = nil
	}
	c.peer.answer <- re
	c.link.Unlock()
	return c.Close()
}

type modelMR struct {
	c      *modelConn
	buf    []byte
	key    uint32
	access fabric.Access
	closed bool

	foreign bool
}

const remoteRights = fabric.AccessRemoteRead | fabric.AccessRemoteWrite

func (c *modelConn) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	c.link.Lock()
	defer c.link.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	r := &modelMR{c: c, buf: buf, key: c.m.keys.Add(1) << 8, access: access}
	c.regions[r.key] = r
	c.m.live.mrs.Add(1)
	return r, nil
}

func (c *modelConn) RegForeign(mem fabric.Foreign, access fabric.Access) (fabric.MR, error) {
	buf := known(fabric.SGE{Foreign: &mem}).Buf
	if c.m.defect == "copies foreign memory" {
		buf = bytes.Clone(buf)
	}
	mr, err := c.RegMR(buf, access)
	if err == nil {
		mr.(*modelMR).foreign = true
	}
	return mr, err
}

// known is an element with the memory that its Foreign names.
func known(e fabric.SGE) fabric.SGE {
	if f := e.Foreign; f != nil {
		e.Buf, e.Foreign = unsafe.Slice(*(**byte)(unsafe.Pointer(&f.Addr)), f.Len), nil
	}
	return e
}

func (r *modelMR) Bytes() []byte {
	if r.foreign && r.c.m.defect != "shows foreign memory" {
		return nil
	}
	return r.buf
}
func (r *modelMR) LKey() uint32 { return r.key }

func (r *modelMR) Segment() fabric.Segment {
	if r.access&remoteRights == 0 && r.c.m.defect != "names local regions" {
		return fabric.Segment{}
	}
	return fabric.Segment{Handle: r.key, Length: uint32(len(r.buf)), Offset: base}
}

// base is the offset of the first byte of any region.
const base uint64 = 0x7f5a_c000_0000

func (r *modelMR) Close() error {
	r.c.link.Lock()
	defer r.c.link.Unlock()
	if r.c.m.defect != "closed regions live on" && r.c.regions[r.key] == r {
		delete(r.c.regions, r.key)
	}
	if !r.closed && r.c.m.defect != "leaks regions" {
		r.c.m.live.mrs.Add(-1)
	}
	r.closed = true
	return nil
}

type modelMW struct {
	c        *modelConn
	index    uint32
	tag      uint8
	prepared bool
	bound    bool
	closed   bool
	mem      fabric.SGE
	access   fabric.Access
	since    time.Time
}

func (c *modelConn) AllocMW() (fabric.MW, error) {
	c.link.Lock()
	defer c.link.Unlock()
	if c.m.noWindows {
		return nil, c.m.lacks("memory windows")
	}
	if c.err != nil {
		return nil, c.err
	}
	c.m.live.mws.Add(1)
	w := &modelMW{c: c, index: c.m.keys.Add(1)}
	c.all = append(c.all, w)
	return w, nil
}

func (w *modelMW) handle() uint32 { return w.index<<8 | uint32(w.tag) }

func (w *modelMW) Prepare(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	w.c.link.Lock()
	defer w.c.link.Unlock()
	if w.closed {
		return fabric.Segment{}, errors.New("model: the window is closed")
	}
	if w.bound && w.c.m.defect != "binds over" {
		return fabric.Segment{}, errors.New("model: the window is bound")
	}
	if w.c.m.defect != "keeps the key" {
		w.tag++
	}
	mem = known(mem)
	w.prepared, w.mem, w.access = true, mem, access
	return fabric.Segment{Handle: w.handle(), Length: uint32(len(mem.Buf)), Offset: base}, nil
}

func (w *modelMW) Close() error {
	w.c.link.Lock()
	defer w.c.link.Unlock()
	if w.c.m.defect != "closed windows live on" && w.c.windows[w.handle()] == w {
		delete(w.c.windows, w.handle())
		w.bound = false
	}
	if !w.closed {
		w.c.m.live.mws.Add(-1)
	}
	w.closed, w.prepared = true, false
	return nil
}

// inside reports whether b is memory of r.
func (r *modelMR) inside(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	at := uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(unsafe.SliceData(r.buf)))
	return at <= uintptr(len(r.buf)) && uintptr(len(b)) <= uintptr(len(r.buf))-at
}

// others calls f with the other connections that are not locked.
func (c *modelConn) others(f func(*modelConn)) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for o := range c.m.conns {
		if o.link != c.link && o.link.TryLock() {
			f(o)
			o.link.Unlock()
		}
	}
}

// allows checks an SGE of this end.
func (c *modelConn) allows(e fabric.SGE, need fabric.Access) bool {
	if len(e.Buf) == 0 || c.m.defect == "trusts local keys" {
		return true
	}
	if e.LKey == fabric.LocalDMAKey {
		return !c.m.noDMA && c.m.defect != "boasts of local DMA"
	}
	r := c.regions[e.LKey]
	return r != nil && r.access&need == need && r.inside(e.Buf)
}

// reach returns n bytes of this end's memory for the peer.
func (c *modelConn) reach(handle uint32, offset uint64, n int, need fabric.Access) ([]byte, bool) {
	if n == 0 {
		return nil, true
	}
	var buf []byte
	var access fabric.Access
	r, w := c.regions[handle], c.windows[handle]
	if w != nil && c.m.defect == "binds late" && time.Since(w.since) < 5*time.Millisecond {
		w = nil
	}
	if c.m.defect == "one table for all" {
		c.others(func(o *modelConn) {
			if o.regions[handle] != nil {
				r = o.regions[handle]
			}
			if o.windows[handle] != nil {
				w = o.windows[handle]
			}
		})
	}
	switch {
	case r != nil:
		buf, access = r.buf, r.access
	case w != nil:
		buf, access = w.mem.Buf, w.access
		if r := w.c.regions[w.mem.LKey]; r == nil {
			return nil, false
		} else if c.m.defect == "windows open their region" {
			buf = r.buf
		}
	default:
		return nil, false
	}
	if access&need != need && c.m.defect != "ignores rights" {
		return nil, false
	}
	at := offset - base
	switch c.m.defect {
	case "adds up bounds":
		if offset+uint64(n) > base+uint64(len(buf)) {
			return nil, false
		}
		if at > uint64(len(buf)) {
			return make([]byte, n), true // some memory or other
		}
	case "narrow offsets":
		at = uint64(uint32(at))
		fallthrough
	default:
		if at > uint64(len(buf)) || uint64(n) > uint64(len(buf))-at {
			return nil, false
		}
	}
	return buf[at:][:n], true
}

func (c *modelConn) Post(wrs []fabric.SendWR) error {
	c.link.Lock()
	defer c.link.Unlock()
	if c.err != nil {
		return c.over()
	}
	for i := range wrs {
		if len(wrs[i].SGL) > 5 && c.m.defect != "gathers more than it says" {
			return errors.New("model: too many elements")
		}
		if wrs[i].Op == fabric.OpSendInv && (c.m.noInv || c.m.noWindows) {
			return c.m.lacks("remote invalidation")
		}
	}
	for i := range wrs {
		if c.taken+len(wrs)-i > c.attr.SendDepth && c.m.defect != "bottomless" {
			if c.m.defect != "takes half a list" || c.taken == c.attr.SendDepth {
				return fabric.ErrQueueFull
			}
		}
		c.taken++
		if len(c.sq) < cap(c.sq) {
			c.sq = c.sq[:len(c.sq)+1]
		} else {
			c.sq = append(c.sq, modelWR{})
		}
		wr := &c.sq[len(c.sq)-1]
		wr.SendWR, wr.sgl = wrs[i], append(wr.sgl[:0], wrs[i].SGL...)
		for j := range wr.sgl {
			wr.sgl[j] = known(wr.sgl[j])
		}
		wr.SGL = wr.sgl
		wr.report = c.reports.Reports(wr.Flags)
		if c.m.defect == "forgets what is deferred" && wr.Flags&fabric.Signaled == 0 {
			wr.report = false
		}
		if c.m.defect == "keeps the list" {
			wr.sgl = wrs[i].SGL
		}
	}
	if c.dawdles() {
		c.changed.Broadcast()
		return nil
	}
	c.run()
	if c.m.defect == "post waits" && c.peer != nil {
		for n := c.peer.polls; c.peer.polls == n && c.err == nil; {
			c.changed.Wait()
		}
	}
	return nil
}

func (c *modelConn) PostRecv(wrs []fabric.RecvWR) error {
	c.link.Lock()
	defer c.link.Unlock()
	if c.err != nil {
		return c.over()
	}
	for i := range wrs {
		if c.received+len(wrs)-i > c.attr.RecvDepth {
			if c.m.defect != "takes half a list" || c.received == c.attr.RecvDepth {
				return fabric.ErrQueueFull
			}
		}
		c.received++
		c.rq = append(c.rq, fabric.RecvWR{ID: wrs[i].ID, SGE: known(wrs[i].SGE)})
	}
	if c.peer != nil {
		c.peer.run() // a Send may have waited
	}
	return nil
}

// dawdles: nothing is executed before a call of Poll or Wait.
func (c *modelConn) dawdles() bool {
	return c.m.defect == "keeps the list" || c.m.defect == "leaves before its messages"
}

// run executes posted requests, as far as possible.
func (c *modelConn) run() {
	if !c.established {
		return
	}
	for len(c.sq) > 0 && c.err == nil {
		if c.m.defect == "sends overtake writes" && len(c.sq) > 1 && c.sq[0].Op == fabric.OpWrite && c.sq[1].Op == fabric.OpSend {
			c.sq[0], c.sq[1] = c.sq[1], c.sq[0]
			c.execute(&c.sq[0])
			c.pop(0)
			c.link.Unlock()
			time.Sleep(time.Millisecond)
			c.link.Lock()
			continue
		}
		switch c.execute(&c.sq[0]) {
		case done:
			c.pop(0)
		case stuck:
			return
		}
	}
}

// Results of execute.
const (
	done   = iota // it is complete and can be taken out
	failed        // it has failed and is out
	stuck         // it has to wait
)

// pop removes a request from the queue and reuses its list.
func (c *modelConn) pop(at int) {
	sgl := c.sq[at].sgl
	n := len(c.sq) - 1
	copy(c.sq[at:], c.sq[at+1:])
	c.sq[n] = modelWR{sgl: sgl}
	c.sq = c.sq[:n]
}

func (c *modelConn) execute(wr *modelWR) int {
	p := c.peer
	n := 0
	need := fabric.Access(0)
	if wr.Op == fabric.OpRead {
		need = fabric.AccessLocalWrite
	}
	for _, e := range wr.sgl {
		n += len(e.Buf)
		if !c.allows(e, need) {
			c.fail(wr, fabric.WCLocProtErr)
			return failed
		}
	}
	op := wr.Op.Completion()
	switch {
	case c.m.defect == "gathers one piece" && len(wr.sgl) > 1:
		wr.sgl, n = wr.sgl[:1], len(wr.sgl[0].Buf)
	case c.m.defect == "short of breath" && n > 1<<19 && op == fabric.WCSend:
		c.fail(wr, fabric.WCLocLenErr)
		return failed
	case c.m.defect == "drops empty messages" && n == 0 && op == fabric.WCSend,
		c.m.defect == "drops what nobody receives" && op == fabric.WCSend && len(p.rq) == 0:
		c.sendDone(wr, op, fabric.WCSuccess, n)
		return done
	case c.m.defect == "refuses nothing" && n == 0 && op == fabric.WCWrite:
		c.refused(wr, fabric.WCRemAccessErr)
		return failed
	}
	switch wr.Op {
	case fabric.OpSend, fabric.OpSendInv:
		if len(p.rq) == 0 {
			if c.m.limits.Shortage == ShortageWaits {
				return stuck
			}
			c.refused(wr, fabric.WCRemOpErr)
			return failed
		}
		r := p.rq[0]
		if c.m.defect == "last receive first" {
			r = p.rq[len(p.rq)-1]
		}
		status := fabric.WCSuccess
		switch {
		case n > len(r.SGE.Buf) && c.m.defect != "cuts messages":
			status = fabric.WCLocLenErr
		case !p.allows(r.SGE, fabric.AccessLocalWrite):
			status = fabric.WCLocProtErr
		}
		if status != fabric.WCSuccess {
			p.recvDone(fabric.WC{ID: r.ID, Status: status})
			c.refused(wr, fabric.WCRemInvReqErr)
			return failed
		}
		wc := fabric.WC{ID: r.ID, Len: uint32(min(n, len(r.SGE.Buf)))}
		if wr.Op == fabric.OpSendInv {
			if w := p.windows[wr.RKey]; w != nil {
				w.bound = false
				delete(p.windows, wr.RKey)
			} else if c.m.defect == "one table for all" {
				c.others(func(o *modelConn) { delete(o.windows, wr.RKey) })
			} else if c.m.defect != "invalidates anything" {
				c.refused(wr, fabric.WCRemAccessErr)
				return failed
			}
			wc.WithInv, wc.InvalidatedKey = c.m.defect != "silent invalidation", wr.RKey
		}
		to := r.SGE.Buf
		for _, e := range wr.sgl {
			to = to[copy(to, e.Buf):]
		}
		p.recvDone(wc)
	case fabric.OpWrite:
		to, ok := p.reach(wr.RKey, wr.RemoteOffset, n, fabric.AccessRemoteWrite)
		if !ok {
			c.refused(wr, fabric.WCRemAccessErr)
			return failed
		}
		for _, e := range wr.sgl {
			to = to[copy(to, e.Buf):]
		}
	case fabric.OpRead:
		from, ok := p.reach(wr.RKey, wr.RemoteOffset, n, fabric.AccessRemoteRead)
		if !ok {
			c.refused(wr, fabric.WCRemAccessErr)
			return failed
		}
		if len(wr.sgl) > c.m.scatter {
			c.fail(wr, fabric.WCLocQPOpErr)
			return failed
		}
		if c.m.defect == "reads from the beginning" {
			from = p.regions[wr.RKey].buf
		}
		if c.m.defect == "reads when it likes" {
			c.readLater(wr.sgl[0].Buf, from)
		} else {
			for _, e := range wr.sgl {
				from = from[copy(e.Buf, from):]
			}
		}
		if c.m.defect == "tells of reads" {
			p.cq = append(p.cq, modelWC{WC: fabric.WC{ID: 1, Op: fabric.WCRead}})
			p.changed.Broadcast()
		}
	case fabric.OpBindMW:
		w, _ := wr.MW.(*modelMW)
		r := (*modelMR)(nil)
		if w != nil {
			r = c.regions[w.mem.LKey]
		}
		over := c.m.defect == "binds over"
		if w == nil || w.closed || !w.prepared && !over || w.bound && !over {
			c.fail(wr, fabric.WCMWBindErr)
			return failed
		}
		if c.m.defect != "binds what it is given" {
			if w.c != c || r == nil || !r.inside(w.mem.Buf) ||
				w.access&fabric.AccessRemoteWrite != 0 && r.access&fabric.AccessLocalWrite == 0 {
				c.fail(wr, fabric.WCMWBindErr)
				return failed
			}
		}
		if c.m.defect == "one window at a time" {
			clear(c.windows)
		}
		w.prepared, w.bound = false, true
		w.since = time.Now()
		c.windows[w.handle()] = w
	case fabric.OpLocalInv:
		w := c.windows[wr.RKey]
		if w == nil && c.m.defect != "finds nothing to invalidate" {
			c.fail(wr, fabric.WCLocQPOpErr)
			return failed
		}
		if w != nil {
			w.bound = false
		}
		if c.m.defect != "local invalidation does nothing" {
			delete(c.windows, wr.RKey)
		}
	default:
		c.fail(wr, fabric.WCLocQPOpErr)
		return failed
	}
	c.sendDone(wr, op, fabric.WCSuccess, n)
	return done
}

// readLater executes a delayed Read.
func (c *modelConn) readLater(to, from []byte) {
	c.lazy = append(c.lazy, func() { copy(to, from) })
	c.late = time.Now().Add(2 * time.Millisecond)
	time.AfterFunc(3*time.Millisecond, func() {
		c.link.Lock()
		defer c.link.Unlock()
		c.changed.Broadcast()
	})
}

// sendDone completes a request of the send queue.
func (c *modelConn) sendDone(wr *modelWR, op fabric.WCOpcode, status fabric.WCStatus, n int) {
	c.silent++
	if !wr.report && status == fabric.WCSuccess && c.m.defect != "signals all" {
		if c.m.defect != "frees with completions" {
			c.taken -= c.silent
			c.silent = 0
		}
		return
	}
	c.broken = c.broken || status != fabric.WCSuccess
	wc := modelWC{WC: fabric.WC{ID: wr.ID, Status: c.coarse(status), Op: op}, frees: c.silent}
	if op == fabric.WCRead {
		wc.Len = uint32(n)
	}
	c.silent = 0
	c.push(wc)
	if c.m.defect == "last completion first" && len(c.cq) > 1 {
		i := len(c.cq) - 1
		c.cq[i], c.cq[i-1] = c.cq[i-1], c.cq[i]
	}
}

// coarse returns the reported status.
func (c *modelConn) coarse(status fabric.WCStatus) fabric.WCStatus {
	if c.m.limits.CoarseStatus && status != fabric.WCSuccess && status != fabric.WCFlushErr {
		return fabric.WCGeneralErr
	}
	return status
}

func (c *modelConn) recvDone(wc fabric.WC) {
	if c.m.defect == "last receive first" {
		c.rq = c.rq[:len(c.rq)-1]
	} else {
		c.rq = slices.Delete(c.rq, 0, 1)
	}
	wc.Op, wc.Status = fabric.WCRecv, c.coarse(wc.Status)
	c.push(modelWC{WC: wc, frees: 1})
}

func (c *modelConn) push(wc modelWC) {
	c.polls++
	switch {
	case c.m.defect == "swallows completions" && c.polls%7 == 0:
		return
	case c.m.defect == "doubles completions" && c.polls%7 == 0:
		c.cq = append(c.cq, wc)
	case c.m.defect == "flushes nothing" && wc.Status == fabric.WCFlushErr:
		return
	}
	c.cq = append(c.cq, wc)
	c.edge = true
	if c.m.defect != "deaf to messages" || wc.Op != fabric.WCRecv {
		c.changed.Broadcast()
	}
}

// refused ends the connection because the peer refuses wr.
func (c *modelConn) refused(wr *modelWR, status fabric.WCStatus) {
	if c.m.limits.LocalCompletion && wr.Op != fabric.OpRead {
		c.sendDone(wr, wr.Op.Completion(), fabric.WCSuccess, 0)
		c.pop(0)
		c.ends(status)
		return
	}
	c.fail(wr, status)
}

// fail completes wr with an error and ends the connection.
func (c *modelConn) fail(wr *modelWR, status fabric.WCStatus) {
	c.sendDone(wr, wr.Op.Completion(), status, 0)
	c.pop(0)
	if c.m.defect == "survives errors" {
		return
	}
	c.ends(status)
}

func (c *modelConn) ends(status fabric.WCStatus) {
	why := errors.New(status.String())
	c.end(&fabric.ConnError{Provider: "model", Cause: why})
	c.peer.end(&fabric.ConnError{Provider: "model", Remote: true, Cause: why})
	if c.m.defect == "contagious" {
		c.others(func(o *modelConn) { o.end(&fabric.ConnError{Provider: "model", Cause: why}) })
	}
}

// end flushes everything. The caller has the link.
func (c *modelConn) end(why *fabric.ConnError) {
	if c.err != nil {
		return
	}
	c.err = why
	for i := range c.sq {
		wr := &c.sq[i]
		if !wr.report && (c.m.coyFlush && !c.broken || c.m.defect == "flushes what is signaled") {
			continue
		}
		c.sendDone(wr, wr.Op.Completion(), fabric.WCFlushErr, 0)
	}
	c.sq = c.sq[:0]
	for len(c.rq) > 0 {
		c.recvDone(fabric.WC{ID: c.rq[0].ID, Status: fabric.WCFlushErr})
	}
	if c.m.defect != "deaf wait" {
		c.changed.Broadcast()
	}
}

// over returns the error of all calls after the end.
func (c *modelConn) over() error {
	if c.m.defect == "ends without a type" {
		return errors.New("model: broken pipe")
	}
	return c.err
}

func (c *modelConn) Poll(wc []fabric.WC) (int, error) {
	c.link.Lock()
	defer c.link.Unlock()
	c.polls++
	if c.peer != nil && c.m.defect != "deaf to messages" {
		c.peer.changed.Broadcast() // for those that wait for a poll
	}
	if c.dawdles() && c.err == nil {
		c.run()
	}
	for c.m.defect == "poll waits" && len(c.cq) == 0 && c.err == nil {
		c.changed.Wait()
	}
	if c.m.defect == "allocates" {
		sink = make([]byte, 100)
	}
	if c.err != nil && (len(c.cq) == 0 || c.m.defect == "ends early") {
		return 0, c.over()
	}
	if len(c.lazy) > 0 {
		if time.Now().Before(c.late) {
			return 0, nil
		}
		for _, f := range c.lazy {
			f()
		}
		c.lazy = nil
	}
	n := 0
	for ; n < min(len(wc), len(c.cq)); n++ {
		wc[n] = c.cq[n].WC
		if wc[n].Op == fabric.WCRecv {
			c.received -= c.cq[n].frees
		} else {
			c.taken -= c.cq[n].frees
		}
	}
	c.cq = c.cq[:copy(c.cq, c.cq[n:])]
	if c.m.defect == "forgets what does not fit" {
		c.cq = c.cq[:0]
	}
	return n, nil
}

var sink []byte

func (c *modelConn) Wait() error {
	c.link.Lock()
	defer c.link.Unlock()
	for {
		if c.dawdles() && c.err == nil {
			c.run()
		}
		switch {
		case c.woken:
			c.woken = c.m.defect == "never stops waking"
			return nil
		case c.m.defect == "waits for news" && c.err == nil:
			if c.edge {
				c.edge = false
				return nil
			}
		case len(c.cq) > 0 && (len(c.lazy) == 0 || !time.Now().Before(c.late)):
			return nil
		case c.err != nil && c.m.defect != "deaf wait":
			return c.over()
		}
		c.changed.Wait()
	}
}

func (c *modelConn) Wake() {
	c.link.Lock()
	defer c.link.Unlock()
	c.woken = c.m.defect != "forgets wakes"
	c.changed.Broadcast()
}

func (c *modelConn) Disconnect(ctx context.Context) error {
	c.link.Lock()
	defer c.link.Unlock()
	clean := c.m.defect != "rude"
	if c.m.defect == "waits for ever to part" {
		for n := c.peer.polls; c.peer.polls == n && c.err == nil; {
			c.changed.Wait()
		}
	}
	c.end(&fabric.ConnError{Provider: "model", Clean: clean})
	if c.peer != nil {
		c.peer.end(&fabric.ConnError{Provider: "model", Clean: clean, Remote: true})
	}
	return nil
}

func (c *modelConn) Close() error {
	c.link.Lock()
	if c.closed {
		defer c.link.Unlock()
		if c.m.defect == "closes once" {
			return net.ErrClosed
		}
		return nil
	}
	c.closed = true
	defect := c.m.defect == "closed connections live on"
	if !defect {
		c.end(&fabric.ConnError{Provider: "model"})
		if c.peer != nil {
			c.peer.end(&fabric.ConnError{Provider: "model", Remote: true, Clean: true})
		}
		for _, r := range c.regions {
			if !r.closed && c.m.defect != "leaks regions" {
				c.m.live.mrs.Add(-1)
			}
			r.closed = true
		}
		for _, w := range c.all {
			if !w.closed {
				c.m.live.mws.Add(-1)
			}
			w.closed = true
		}
		clear(c.regions)
		clear(c.windows)
		c.cq, c.rq = nil, nil
	}
	if c.peer != nil && !c.established {
		select {
		case c.peer.answer <- errors.New("model: nobody has answered"):
		default:
		}
	}
	c.changed.Broadcast()
	c.link.Unlock()
	if c.m.defect != "leaks connections" {
		c.m.live.conns.Add(-1)
	}
	if c.m.defect != "lets connect wait" {
		select {
		case c.answer <- fmt.Errorf("model: %w", net.ErrClosed):
		default:
		}
	}
	c.m.mu.Lock()
	delete(c.m.conns, c)
	c.m.mu.Unlock()
	return nil
}
