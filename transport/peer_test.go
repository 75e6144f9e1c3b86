package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A scripted peer: the other end of a connection is the test itself. It sees
// every Send as it would stand on the wire, answers with bytes of its choice,
// and reaches exposed memory as an adapter would, or is refused. All of it is in
// memory, so that conversations run in the fake time of testing/synctest.
// TestScriptedPeer documents its use.
type peer struct {
	t    *testing.T
	attr fabric.ConnAttr
	caps fabric.Capabilities
	addr peerAddr

	hello  []byte // private data the peer gives
	got    []byte // private data it was given
	refuse error  // for Connect
	stuck  bool   // Connect and Accept wait as long as they may
	early  int    // receives posted when the connection was set up

	mu        sync.Mutex
	changed   chan struct{}
	woken     bool
	end       *fabric.ConnError
	wcs       []fabric.WC
	recvs     []fabric.RecvWR
	sends     []sent
	windows   map[uint32]*peerWindow // what this end exposes
	memory    map[uint32][]byte      // what the peer exposes, offsets from peerBase
	nextKey   uint32
	reports   fabric.Deferrals
	posts     int // doorbells
	ops       []fabric.Opcode
	mrs, mws  int // alive
	holdRead  []fabric.SendWR
	noReads   bool // leave Reads pending
	maxOut    int  // most Reads at once
	holdInv   bool // keep completions of invalidations
	heldInv   []fabric.WC
	holdSends bool // keep completions of Sends
	heldSends []fabric.WC
	hostile   bool // handles that there are not end the connection
}

const peerBase = 0x7fee_0000_0000_1000 // offsets are opaque tokens

// A sent is one Send of the end under test.
type sent struct {
	msg    []byte
	inv    uint32 // handle invalidated with it
	posted int    // receives that were posted by then
}

type peerAddr string

func (a peerAddr) Network() string { return "script" }
func (a peerAddr) String() string  { return string(a) }

type peerWindow struct {
	p      *peer
	mem    []byte
	key    uint32
	access fabric.Access
	bound  bool
	mr     bool
}

// peerSends is how many requests the send queue of a peer's connection takes.
const peerSends = 128

func newPeer(t *testing.T) *peer {
	return &peer{
		t: t, addr: "script:20049",
		caps: fabric.Capabilities{
			MaxSendSGE: 4, MaxReadSGE: 1, MaxMessage: 1 << 31, MaxPrivateData: 56,
			MemoryWindows: true, RemoteInvalidate: true, LocalDMA: true, SendDepth: peerSends, InboundReads: 4, OutboundReads: 4,
		},
		changed: make(chan struct{}),
		windows: make(map[uint32]*peerWindow),
		memory:  make(map[uint32][]byte),
		nextKey: 0x100,
		hello:   rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096}),
	}
}

// The provider.

func (p *peer) Name() string { return "script" }
func (p *peer) Close() error { return nil }
func (p *peer) Resolve(_ context.Context, _ string, attr fabric.ConnAttr) (fabric.Conn, error) {
	p.attr = attr
	return peerConn{p}, nil
}
func (p *peer) Listen(context.Context, string, fabric.ConnAttr) (fabric.Listener, error) {
	l := &peerListener{p: p, conns: make(chan fabric.Conn, 1), closed: make(chan struct{})}
	l.conns <- peerConn{p}
	return l, nil
}

// An unvisited peer listens, and no connection comes.
type unvisited struct{ *peer }

func (u unvisited) Listen(context.Context, string, fabric.ConnAttr) (fabric.Listener, error) {
	return &peerListener{p: u.peer, closed: make(chan struct{})}, nil
}

type peerListener struct {
	p      *peer
	conns  chan fabric.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *peerListener) Accept(context.Context) (fabric.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *peerListener) Addr() net.Addr { return l.p.addr }
func (l *peerListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }

// The connection, as the end under test sees it.
type peerConn struct{ *peer }

func (p peerConn) Connect(ctx context.Context, private []byte) error {
	p.got = bytes.Clone(private)
	p.early = len(p.recvs)
	if p.stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	return p.refuse
}
func (p peerConn) Accept(ctx context.Context, private []byte) error {
	if p.stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	p.got = bytes.Clone(private)
	p.early = len(p.recvs)
	return nil
}
func (p peerConn) Reject([]byte) error               { return p.Close() }
func (p peerConn) PeerPrivateData() []byte           { return p.hello }
func (p peerConn) Capabilities() fabric.Capabilities { return p.caps }
func (p peerConn) LocalAddr() net.Addr               { return peerAddr("script:1") }
func (p peerConn) RemoteAddr() net.Addr              { return p.addr }

func (p *peer) newKey() uint32 { p.nextKey += 0x101; return p.nextKey }

func (p peerConn) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &peerWindow{p: p.peer, mem: buf, key: p.newKey(), access: access, bound: true, mr: true}
	p.windows[w.key] = w
	p.mrs++
	return w, nil
}
func (p peerConn) RegForeign(fabric.Foreign, fabric.Access) (fabric.MR, error) {
	return nil, &fabric.CapabilityError{Provider: "script", Capability: "foreign memory"}
}
func (p peerConn) AllocMW() (fabric.MW, error) {
	if !p.caps.MemoryWindows {
		return nil, &fabric.CapabilityError{Provider: "script", Capability: "memory windows"}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mws++
	return &peerMW{peerWindow{p: p.peer}}, nil
}

func (w *peerWindow) Bytes() []byte { return w.mem }
func (w *peerWindow) LKey() uint32  { return w.key }
func (w *peerWindow) Segment() fabric.Segment {
	return fabric.Segment{Handle: w.key, Length: uint32(len(w.mem)), Offset: peerBase}
}
func (w *peerWindow) Close() error {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if w.bound {
		w.bound = false
		w.p.mrs--
		delete(w.p.windows, w.key)
	}
	return nil
}

type peerMW struct{ peerWindow }

func (w *peerMW) Prepare(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if w.bound {
		return fabric.Segment{}, errors.New("script: the window is bound")
	}
	w.mem, w.access, w.key = mem.Buf, access, w.p.newKey()
	return w.Segment(), nil
}
func (w *peerMW) Close() error { return nil }

func (p peerConn) Post(wrs []fabric.SendWR) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil {
		return p.end
	}
	p.posts++
	for i := range wrs {
		p.exec(&wrs[i])
	}
	p.notify()
	return nil
}

func (p *peer) exec(wr *fabric.SendWR) {
	p.ops = append(p.ops, wr.Op)
	wc := fabric.WC{ID: wr.ID}
	switch wr.Op {
	case fabric.OpSend, fabric.OpSendInv:
		var msg []byte
		for _, s := range wr.SGL {
			msg = append(msg, s.Buf...)
		}
		s := sent{msg: msg, posted: len(p.recvs)}
		if wr.Op == fabric.OpSendInv {
			s.inv = wr.RKey
		}
		p.sends = append(p.sends, s)
		wc.Op = fabric.WCSend
	case fabric.OpWrite:
		m := p.remote(wr)
		if m == nil {
			return
		}
		for _, s := range wr.SGL {
			m = m[copy(m, s.Buf):]
		}
		wc.Op = fabric.WCWrite
	case fabric.OpRead:
		wc.Op = fabric.WCRead
		p.holdRead = append(p.holdRead, *wr)
		p.maxOut = max(p.maxOut, len(p.holdRead))
		if !p.noReads {
			p.doReads()
		}
		return
	case fabric.OpBindMW:
		w := &wr.MW.(*peerMW).peerWindow
		w.bound = true
		p.windows[w.key] = w
		wc.Op = fabric.WCBindMW
	case fabric.OpLocalInv:
		wc.Op = fabric.WCLocalInv
		if w := p.windows[wr.RKey]; (w == nil || !w.bound) && p.hostile {
			// The peer has invalidated it, in a message that is on its way.
			p.finishLocked(&fabric.ConnError{Provider: "script", Cause: errors.New("invalidation of a handle there is not")})
			return
		} else if w == nil || !w.bound {
			p.t.Errorf("local invalidation of handle %#x, which is not bound", wr.RKey)
		} else {
			w.bound = false
			delete(p.windows, wr.RKey)
		}
	}
	switch {
	case wr.Op == fabric.OpLocalInv && p.holdInv:
		p.heldInv = append(p.heldInv, wc)
	case !p.reports.Reports(wr.Flags):
	case p.holdSends && wc.Op == fabric.WCSend:
		p.heldSends = append(p.heldSends, wc)
	default:
		p.wcs = append(p.wcs, wc)
	}
}

// completeInv lets the invalidations complete that were held back.
func (p *peer) completeInv() {
	p.mu.Lock()
	p.wcs = append(p.wcs, p.heldInv...)
	p.heldInv = nil
	p.notify()
	p.mu.Unlock()
}

// completeSends lets the Sends complete that were held back.
func (p *peer) completeSends() {
	p.mu.Lock()
	p.wcs = append(p.wcs, p.heldSends...)
	p.heldSends = nil
	p.notify()
	p.mu.Unlock()
}

// remote is the peer's memory that a Write or Read is about, or nil.
// mu is held.
func (p *peer) remote(wr *fabric.SendWR) []byte {
	m, off, n := p.memory[wr.RKey], wr.RemoteOffset-peerBase, uint64(0)
	for _, s := range wr.SGL {
		n += uint64(len(s.Buf))
	}
	if off <= uint64(len(m)) && n <= uint64(len(m))-off {
		return m[off : off+n]
	}
	if p.hostile {
		p.finishLocked(&fabric.ConnError{Provider: "script", Remote: true, Cause: errors.New("remote access error")})
	} else {
		p.t.Errorf("%d bytes at offset %d of a chunk of %d", n, off, len(m))
	}
	return nil
}

// doReads executes the Reads that were held back.
func (p *peer) doReads() {
	for i := range p.holdRead {
		wr := &p.holdRead[i]
		m := p.remote(wr)
		if m == nil {
			return
		}
		n := len(m)
		for _, s := range wr.SGL {
			m = m[copy(s.Buf, m):]
		}
		p.wcs = append(p.wcs, fabric.WC{ID: wr.ID, Op: fabric.WCRead, Len: uint32(n)})
	}
	p.holdRead = nil
}

func (p peerConn) PostRecv(wrs []fabric.RecvWR) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil {
		return p.end
	}
	p.recvs = append(p.recvs, wrs...)
	if len(p.recvs) > p.attr.RecvDepth && p.attr.RecvDepth > 0 {
		p.t.Errorf("%d receives posted, the queue holds %d", len(p.recvs), p.attr.RecvDepth)
	}
	return nil
}

func (p peerConn) Poll(wc []fabric.WC) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := copy(wc, p.wcs)
	p.wcs = p.wcs[n:]
	if n == 0 && p.end != nil {
		return 0, p.end
	}
	return n, nil
}

func (p peerConn) Wait() error {
	for {
		p.mu.Lock()
		if p.end != nil && len(p.wcs) == 0 {
			defer p.mu.Unlock()
			return p.end
		}
		if len(p.wcs) > 0 || p.woken {
			p.woken = false
			p.mu.Unlock()
			return nil
		}
		changed := p.changed
		p.mu.Unlock()
		<-changed
	}
}

func (p peerConn) Wake() {
	p.mu.Lock()
	p.woken = true
	p.notify()
	p.mu.Unlock()
}

func (p *peer) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *peer) finish(e *fabric.ConnError) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finishLocked(e)
}

func (p *peer) finishLocked(e *fabric.ConnError) {
	if p.end == nil {
		p.end = e
		for _, r := range p.recvs {
			p.wcs = append(p.wcs, fabric.WC{ID: r.ID, Status: fabric.WCFlushErr})
		}
		p.recvs = nil
	}
	p.notify()
}

func (p peerConn) Disconnect(context.Context) error {
	p.finish(&fabric.ConnError{Provider: "script", Clean: true})
	return nil
}

func (p peerConn) Close() error {
	p.finish(&fabric.ConnError{Provider: "script"})
	p.mu.Lock()
	p.wcs = nil
	clear(p.windows)
	p.mu.Unlock()
	return nil
}

// The actions of the test as the peer.

// hangUp ends the connection from the peer's side.
func (p *peer) hangUp() {
	p.finish(&fabric.ConnError{Provider: "script", Remote: true, Cause: errors.New("the line was cut")})
}

// next waits for the next Send and returns it. what says in words what the test expects.
func (p *peer) next(what string) sent {
	p.t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sends) == 0 {
		p.t.Fatalf("nothing was sent, want %s", what)
	}
	s := p.sends[0]
	p.sends = p.sends[1:]
	return s
}

// quiet checks that nothing is sent.
func (p *peer) quiet(why string) {
	p.t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.sends); n > 0 {
		p.t.Fatalf("%d messages were sent, want none: %s", n, why)
	}
}

// message waits for the next Send and takes it apart.
func (p *peer) message(what string) (h rpcrdma.Header, payload []byte) {
	p.t.Helper()
	s := p.next(what)
	n, err := rpcrdma.ConsumeHeader(s.msg, &h, &bothVersions)
	if err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
	return h, s.msg[n:]
}

// send delivers bytes into the next posted receive, as a Send does; inv, if not
// zero, is invalidated with it.
func (p *peer) send(msg []byte, inv uint32) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.recvs) == 0 {
		p.t.Fatal("no receive is posted")
	}
	r := p.recvs[0]
	p.recvs = p.recvs[1:]
	if len(msg) > len(r.SGE.Buf) {
		p.t.Fatalf("message of %d bytes for a receive of %d", len(msg), len(r.SGE.Buf))
	}
	wc := fabric.WC{ID: r.ID, Op: fabric.WCRecv, Len: uint32(copy(r.SGE.Buf, msg))}
	if inv != 0 {
		w := p.windows[inv]
		if w == nil || !w.bound || w.mr {
			p.t.Fatalf("handle %#x cannot be invalidated", inv)
		}
		w.bound = false
		delete(p.windows, inv)
		wc.WithInv, wc.InvalidatedKey = true, inv
	}
	p.wcs = append(p.wcs, wc)
	p.notify()
}

// take waits for the next Send, on a goroutine that is not the test's. False means that
// the connection has ended.
func (p *peer) take() (s sent, ok bool) {
	for {
		p.mu.Lock()
		end, changed := p.end, p.changed
		if len(p.sends) > 0 {
			s, p.sends = p.sends[0], p.sends[1:]
			p.mu.Unlock()
			return s, true
		}
		p.mu.Unlock()
		if end != nil {
			return s, false
		}
		<-changed
	}
}

// deliver is send on such a goroutine. Messages after the end are lost.
func (p *peer) deliver(msg []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil {
		return
	}
	if len(p.recvs) == 0 {
		p.t.Error("no receive is posted")
		return
	}
	r := p.recvs[0]
	p.recvs = p.recvs[1:]
	p.wcs = append(p.wcs, fabric.WC{ID: r.ID, Op: fabric.WCRecv, Len: uint32(copy(r.SGE.Buf, msg))})
	p.notify()
}

// reply sends an accepted reply with results after header h; xid, version and
// credits have defaults.
func (p *peer) reply(h rpcrdma.Header, results ...byte) {
	p.t.Helper()
	p.send(p.replyBytes(h, results), 0)
}

func (p *peer) replyBytes(h rpcrdma.Header, results []byte) []byte {
	if h.Vers == 0 {
		h.Vers = 1
	}
	if h.Credit == 0 {
		h.Credit = 8
	}
	b := rpcrdma.AppendHeader(nil, &h)
	if h.Proc == rpcrdma.ProcMsg {
		b = append(oncrpc.AppendReply(b, &oncrpc.ReplyHeader{XID: h.XID}), results...)
	}
	return b
}

// reach does what the peer's adapter does with a segment of ours: it returns the memory if the handle
// opens it for access.
func (p *peer) reach(s rpcrdma.Segment, access fabric.Access) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.windows[s.Handle]
	if w == nil || !w.bound {
		return nil, fmt.Errorf("handle %#x is not valid", s.Handle)
	}
	if w.access&access == 0 {
		return nil, fmt.Errorf("handle %#x does not allow that", s.Handle)
	}
	off := s.Offset - peerBase
	if off > uint64(len(w.mem)) || uint64(s.Length) > uint64(len(w.mem))-off {
		return nil, fmt.Errorf("segment beyond the memory of handle %#x", s.Handle)
	}
	return w.mem[off : off+uint64(s.Length)], nil
}

// write fills a segment that was offered.
func (p *peer) write(s rpcrdma.Segment, data string) {
	p.t.Helper()
	m, err := p.reach(s, fabric.AccessRemoteWrite)
	if err != nil {
		p.t.Fatal(err)
	}
	copy(m, data)
}

// read pulls a read chunk.
func (p *peer) read(segs []rpcrdma.ReadSegment) []byte {
	p.t.Helper()
	var b []byte
	for _, s := range segs {
		m, err := p.reach(s.Segment, fabric.AccessRemoteRead)
		if err != nil {
			p.t.Fatal(err)
		}
		b = append(b, m...)
	}
	return b
}

// offer makes memory of the peer's that the end under test can reach.
func (p *peer) offer(handle uint32, mem []byte) rpcrdma.Segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.memory[handle] = mem
	return rpcrdma.Segment{Handle: handle, Length: uint32(len(mem)), Offset: peerBase}
}

// unread is how many Sends the test has not looked at.
func (p *peer) unread() int {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sends)
}

func (p *peer) posted() int {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.recvs)
}

func (p *peer) regions() int {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mrs
}

func (p *peer) over() bool {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end != nil
}

func (p *peer) openWindows() int {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.windows)
}

// client runs a conversation with a client under test.
func client(t *testing.T, cfg *Settings, script func(p *peer, cl *Client)) {
	t.Helper()
	clientOf(t, newPeer(t), cfg, script)
}

func clientOf(t *testing.T, p *peer, cfg *Settings, script func(p *peer, cl *Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p.t = t
		p.changed = make(chan struct{})
		cl, err := Dial(context.Background(), p, "script:20049", once(cfg).Client())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			cl.Close()
			checkArena(t, cl.conn())
		}()
		script(p, cl)
	})
}

// once is cfg for a client that has one connection.
func once(cfg *Settings) *Settings {
	var c Settings
	if cfg != nil {
		c = *cfg
	}
	c.NoReconnect = true
	return inVersion1(&c)
}

// inVersion1 is cfg for an end that speaks version 1 alone, unless the test is one of
// version 2.
func inVersion1(cfg *Settings) *Settings {
	var c Settings
	if cfg != nil {
		c = *cfg
	}
	if c.Version == VersionAuto {
		c.Version = Version1
	}
	return &c
}

// checkArena checks that an ended connection holds no memory.
func checkArena(t *testing.T, c *conn) {
	t.Helper()
	synctest.Wait()
	if a := c.arena.Stats(); a.Refs != 0 || a.Slabs != 0 {
		t.Errorf("arena has %d references and %d slabs after the end", a.Refs, a.Slabs)
	}
	if c.exposes.Bounce != nil {
		if b := c.exposes.Bounce.Stats(); b.Refs != 0 || b.Slabs != 0 {
			t.Errorf("the bounce buffers have %d references and %d slabs after the end", b.Refs, b.Slabs)
		}
	}
}

// serverOf runs a conversation with a server under test, which serves programs.
func serverOf(t *testing.T, p *peer, cfg *Settings, progs []rpc.Program, script func(p *peer, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p.t = t
		p.changed = make(chan struct{})
		s, err := NewServer(inVersion1(cfg).Server())
		if err != nil {
			t.Fatal(err)
		}
		for _, pr := range progs {
			if err := s.Register(pr); err != nil {
				t.Fatal(err)
			}
		}
		l, err := s.Listen(context.Background(), p, "script:20049")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		synctest.Wait()
		var conns []*conn
		s.mu.Lock()
		conns = append(conns, s.rdmaConns()...)
		s.mu.Unlock()
		defer func() {
			s.Close()
			if err := <-served; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Serve returned %v", err)
			}
			for _, c := range conns {
				checkArena(t, c)
			}
		}()
		script(p, s)
	})
}

// call is the message of a call: header h and the arguments.
func callBytes(h rpcrdma.Header, proc uint32, args ...byte) []byte {
	if h.Vers == 0 {
		h.Vers = 1
	}
	if h.Credit == 0 {
		h.Credit = 8
	}
	b := rpcrdma.AppendHeader(nil, &h)
	if h.Proc == rpcrdma.ProcMsg {
		b = appendCall(b, h.XID, proc, args...)
	}
	return b
}

var bothVersions = rpcrdma.Limits{Versions: rpcrdma.Range{Low: 1, High: 2}} // immutable

const testProg = 0x20000099

func appendCall(b []byte, xid, proc uint32, args ...byte) []byte {
	b = oncrpc.AppendCall(b, &oncrpc.CallHeader{XID: xid, RPCVers: 2, Prog: testProg, Vers: 1, Proc: proc})
	return append(b, args...)
}

func word(b []byte, i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }

// async starts a call and returns where its outcome will be.
func async(cl rpc.Caller, ctx context.Context, call *rpc.Call) <-chan error {
	done := make(chan error, 1)
	go func() { done <- cl.Call(ctx, call) }()
	return done
}

// outcome returns the outcome of a call that must be over.
func outcome(t *testing.T, done <-chan error) error {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		return err
	default:
		t.Fatal("the call is not over")
		return nil
	}
}

// peers is a provider of one scripted peer after another, for clients that lose their connection, and
// for servers with clients that do.
type peers struct {
	t *testing.T

	mu    sync.Mutex
	line  []*peer     // to be connected to, in this order
	last  *peer       // taken from line; a server's latest client
	dials []time.Time // of each attempt
	seen  []*conn     // connections of the end under test, but a client's latest
	cl    *Client
	more  func() *peer               // makes one when line is empty; nil: no peer is there
	wrap  func(peerConn) fabric.Conn // of a client's first connection, and of all of a server's
	doors chan fabric.Conn
}

func (ps *peers) Name() string { return "script" }
func (ps *peers) Close() error { return nil }

func (ps *peers) Resolve(_ context.Context, _ string, attr fabric.ConnAttr) (fabric.Conn, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.dials = append(ps.dials, time.Now())
	if ps.cl != nil {
		ps.note(ps.cl.conn())
	}
	if len(ps.line) == 0 && ps.more != nil {
		ps.line = append(ps.line, ps.more())
	}
	if len(ps.line) == 0 {
		return nil, errors.New("script: nobody is there")
	}
	ps.last, ps.line = ps.line[0], ps.line[1:]
	ps.last.attr = attr
	if ps.wrap != nil && len(ps.dials) == 1 {
		return ps.wrap(peerConn{ps.last}), nil
	}
	return peerConn{ps.last}, nil
}

// note keeps a connection for the check at the end. mu is held.
func (ps *peers) note(c *conn) {
	if !slices.Contains(ps.seen, c) {
		ps.seen = append(ps.seen, c)
	}
}

func (ps *peers) Listen(context.Context, string, fabric.ConnAttr) (fabric.Listener, error) {
	return &peerListener{p: newPeer(ps.t), conns: ps.doors, closed: make(chan struct{})}, nil
}

// next is one more peer to be connected to.
func (ps *peers) next() *peer {
	p := newPeer(ps.t)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.line = append(ps.line, p)
	return p
}

// attempts is how often a connection was tried.
func (ps *peers) attempts() int { return len(ps.tried()) }

// tried is when.
func (ps *peers) tried() []time.Time {
	synctest.Wait()
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.Clone(ps.dials)
}

// clientTo runs a conversation with a client under test that may lose its connection.
// p is the first peer.
func clientTo(t *testing.T, cfg *Settings, script func(ps *peers, p *peer, cl *Client)) {
	t.Helper()
	p := newPeer(t)
	clientOver(t, p, cfg, nil, func(ps *peers, cl *Client) { script(ps, p, cl) })
}

// clientOver is clientTo with a first peer of the caller's, and a wrapper around its connection.
func clientOver(t *testing.T, p *peer, cfg *Settings, wrap func(peerConn) fabric.Conn, script func(ps *peers, cl *Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p.t, p.changed = t, make(chan struct{})
		ps := &peers{t: t, line: []*peer{p}, wrap: wrap}
		cl, err := Dial(bg, ps, "script:20049", inVersion1(cfg).Client())
		if err != nil {
			t.Fatal(err)
		}
		ps.mu.Lock()
		ps.cl = cl
		ps.mu.Unlock()
		settle()
		defer func() {
			cl.Close()
			synctest.Wait()
			ps.mu.Lock()
			ps.note(cl.conn())
			seen := ps.seen
			ps.mu.Unlock()
			for _, c := range seen {
				checkArena(t, c)
			}
		}()
		script(ps, cl)
	})
}

// settle gives a client the time to lead its connection though no call does.
func settle() {
	time.Sleep(3 * tickTime)
	synctest.Wait()
}

// serverTo runs a conversation with a server under test, while clients come and go.
func serverTo(t *testing.T, cfg *Settings, progs []rpc.Program, script func(ps *peers, s *Server)) {
	t.Helper()
	serverFor(t, cfg, func(s *Server) {
		for _, pr := range progs {
			if err := s.Register(pr); err != nil {
				t.Fatal(err)
			}
		}
	}, script)
}

// serverFor is serverTo with a server that prepare has prepared.
func serverFor(t *testing.T, cfg *Settings, prepare func(s *Server), script func(ps *peers, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ps := &peers{t: t, doors: make(chan fabric.Conn)}
		s, err := NewServer(inVersion1(cfg).Server())
		if err != nil {
			t.Fatal(err)
		}
		prepare(s)
		l, err := s.Listen(bg, ps, "script:20049")
		if err != nil {
			t.Fatal(err)
		}
		go s.Serve(l)
		defer func() {
			s.Close()
			for _, c := range ps.seen {
				checkArena(t, c)
			}
		}()
		script(ps, s)
	})
}

// arrive connects a client from host to a server.
func (ps *peers) arrive(s *Server, host string) *peer {
	return ps.enter(s, host, newPeer(ps.t))
}

func (ps *peers) enter(s *Server, host string, p *peer) *peer {
	ps.t.Helper()
	p.addr = peerAddr(fmt.Sprintf("%s:%d", host, 700+len(ps.seen)))
	if ps.wrap != nil {
		ps.doors <- ps.wrap(peerConn{p})
	} else {
		ps.doors <- peerConn{p}
	}
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.rdmaConns() {
		ps.note(c)
	}
	return p
}
