package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
)

// Whole conversations, of which a fuzzer writes the scripts. Each byte of a script decides something:
// what the peer sends and with which handle invalidated, when the adapter completes our Reads, Sends
// and invalidations, when handlers answer, callers give up and time passes, and where the connection
// is cut. Whatever the script, at its end nothing has crashed or waits forever, every call has
// returned, no memory of a call that has returned can be reached, what calls held has been given
// back, and no goroutine is left. synctest sees to the first and the last: it does not let a bubble
// end with goroutines in it.

// A convScript is the bytes of one; after its end are zeros.
type convScript struct{ b []byte }

func (s *convScript) next() int {
	if len(s.b) == 0 {
		return 0
	}
	v := s.b[0]
	s.b = s.b[1:]
	return int(v)
}

// in returns a number below n.
func (s *convScript) in(n int) int { return s.next() % n }

// maxSteps bounds a conversation.
const maxSteps = 64

// A conversation is a scripted peer that acts on a script.
type conversation struct {
	convScript
	t     *testing.T
	p     *peer
	calls []rpcrdma.Header // of the end under test, to be replied to
	tags  []uint32         // what these calls have in their first word of arguments
	open  int              // calls of the end under test that have not returned

	spoiled atomic.Bool // a reply may be any bytes
}

// adapter has the script choose what the adapter can and what the peer says.
func (cv *conversation) adapter(p *peer) {
	p.hostile = true
	flags := cv.next()
	p.caps.LocalDMA = flags&1 == 0
	p.caps.MemoryWindows = flags&2 == 0
	p.caps.RemoteInvalidate = flags&4 == 0
	p.noReads = flags&8 != 0
	p.holdSends = flags&16 != 0
	p.caps.OutboundReads = []int{4, 1, 0, 16}[flags>>6]
	p.hello = hello(flags&32 == 0, 4096, 4096)
	for h := uint32(1); h <= 4; h++ {
		p.offer(h, bytes.Repeat([]byte{byte(h), 0, 0, 0}, []int{25, 500, 2_000, 5_000}[h-1]))
	}
}

// segment names some of the peer's memory, most often rightly.
func (cv *conversation) segment() rpcrdma.Segment {
	v := cv.next()
	h := uint32(1 + v&3)
	n := uint32(len(cv.p.memory[h]))
	s := rpcrdma.Segment{Handle: h, Length: n, Offset: peerBase}
	switch v >> 5 {
	case 1:
		s.Length = uint32(cv.next())
	case 2:
		s.Length -= 3
	case 3:
		s.Length, s.Offset = 8, s.Offset+uint64(cv.next())
	case 4:
		s.Length = 0
	case 5:
		s.Length = 1 << cv.in(32)
	case 6:
		s.Handle = 77
	}
	return s
}

// chunk is a list of few segments.
func (cv *conversation) chunk() (c rpcrdma.WriteChunk) {
	for range cv.in(3) + 1 {
		c = append(c, cv.segment())
	}
	return c
}

// deliver has the peer send msg, which invalidates inv if that is not zero. The adapter ends
// the connection when there is no receive, one too short, or no such handle.
func (cv *conversation) deliver(msg []byte, inv uint32) {
	p := cv.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil {
		return
	}
	refuse := func(why string) {
		p.finishLocked(&fabric.ConnError{Provider: "script", Cause: errors.New(why)})
	}
	if len(p.recvs) == 0 || len(msg) > len(p.recvs[0].SGE.Buf) {
		refuse("no receive")
		return
	}
	r := p.recvs[0]
	wc := fabric.WC{ID: r.ID, Op: fabric.WCRecv, Len: uint32(copy(r.SGE.Buf, msg))}
	if inv != 0 {
		w := p.windows[inv]
		if w == nil || !w.bound || w.mr {
			refuse("remote invalidation of a handle there is not")
			return
		}
		w.bound = false
		delete(p.windows, inv)
		wc.WithInv, wc.InvalidatedKey = true, inv
	}
	p.recvs = p.recvs[1:]
	p.wcs = append(p.wcs, wc)
	p.notify()
}

// spoil changes a few bytes of a message.
func (cv *conversation) spoil(msg []byte) []byte {
	cv.spoiled.Store(true)
	for range cv.in(4) {
		if at, v := cv.next(), byte(cv.next()); at < len(msg) {
			msg[at] ^= v
		} else if at%2 == 0 {
			msg = append(msg, v)
		} else {
			msg = msg[:len(msg)-int(v)%len(msg)]
		}
		if len(msg) == 0 {
			return msg
		}
	}
	return msg
}

// adapt lets the adapter complete what it holds back.
func (cv *conversation) adapt() {
	p := cv.p
	p.mu.Lock()
	defer p.mu.Unlock()
	switch v := cv.next(); v % 6 {
	case 0, 1: // one Read, or all
		n := len(p.holdRead)
		if v%6 == 0 {
			n = min(n, 1)
		}
		rest := p.holdRead[n:]
		if p.holdRead = p.holdRead[:n]; p.end == nil {
			p.doReads()
		}
		p.holdRead = rest
	case 2:
		p.wcs = append(p.wcs, p.heldSends...)
		p.heldSends = nil
	case 3:
		p.wcs = append(p.wcs, p.heldInv...)
		p.heldInv = nil
	case 4:
		p.noReads = !p.noReads
	case 5:
		p.holdSends, p.holdInv = v&16 != 0, v&32 != 0
	}
	p.notify()
}

// heard takes in what the end under test has sent: it remembers its calls.
func (cv *conversation) heard() (answers int) {
	p := cv.p
	p.mu.Lock()
	sends := p.sends
	p.sends = nil
	p.mu.Unlock()
	for _, s := range sends {
		var h rpcrdma.Header
		n, err := rpcrdma.ConsumeHeader(s.msg, &h, &bothVersions)
		if err != nil {
			cv.t.Errorf("a malformed message was sent: %v: %x", err, s.msg)
			continue
		}
		xid, dir, ok := oncrpc.Peek(s.msg[n:])
		switch {
		case h.Proc == rpcrdma.ProcMsg && ok && dir == oncrpc.Call && xid == h.XID, h.Proc == rpcrdma.ProcNomsg && len(h.Reads) > 0:
			tag := uint32(0)
			if msg := s.msg[n:]; len(msg) >= 44 {
				tag = word(msg, 10)
			}
			cv.calls = append(cv.calls, h)
			cv.tags = append(cv.tags, tag)
		default:
			answers++
		}
	}
	return answers
}

// reply answers one of the calls of the end under test, most often as it should be.
func (cv *conversation) reply() {
	cv.heard()
	if len(cv.calls) == 0 {
		return
	}
	i := cv.in(len(cv.calls))
	call, tag := cv.calls[i], cv.tags[i]
	form := cv.next()
	if form&1 == 0 { // else it may be answered once more
		cv.calls = append(cv.calls[:i:i], cv.calls[i+1:]...)
		cv.tags = append(cv.tags[:i:i], cv.tags[i+1:]...)
	}
	h := rpcrdma.Header{XID: call.XID, Vers: call.Vers, Credit: uint32(cv.in(12)), Writes: call.Writes, HasReply: call.HasReply, Reply: call.Reply}
	unused := func(c rpcrdma.WriteChunk) {
		for i := range c {
			if n := uint32(cv.next()); n < 200 {
				c[i].Length = min(c[i].Length, n)
			} else if n < 250 {
				c[i].Length = 0
			}
		}
	}
	for _, c := range h.Writes {
		unused(c)
	}
	msg := oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: call.XID})
	msg = xdr.AppendUint32(msg, tag)
	var b []byte
	switch form >> 1 & 7 {
	case 0, 1, 2: // RDMA_MSG
		h.HasReply, h.Reply = false, nil
		b = append(rpcrdma.AppendHeader(nil, &h), msg...)
	case 3, 4: // RDMA_NOMSG, if there is a chunk for the message
		if call.HasReply && len(call.Reply) > 0 {
			if m, err := cv.p.reach(call.Reply[0], fabric.AccessRemoteWrite); err == nil {
				copy(m, msg)
			}
			h.Reply[0].Length = uint32(len(msg))
		}
		h.Proc = rpcrdma.ProcNomsg
		b = rpcrdma.AppendHeader(nil, &h)
	case 5: // with read chunks
		m := append(msg, make([]byte, 100)...)
		h.Reads = []rpcrdma.ReadSegment{{Segment: cv.p.offer(9, m)}}
		h.Proc, h.HasReply, h.Reply = rpcrdma.ProcNomsg, false, nil
		if call.Vers == 2 {
			h.Vers = 1
		}
		b = rpcrdma.AppendHeader(nil, &h)
	case 6:
		b = rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: call.XID, Vers: 1, Credit: 3, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk})
	case 7:
		b = cv.spoil(append(rpcrdma.AppendHeader(nil, &h), msg...))
	}
	inv := uint32(0)
	if form&16 != 0 {
		switch { // one of its handles, or of anybody's
		case len(call.Writes) > 0 && len(call.Writes[0]) > 0:
			inv = call.Writes[0][0].Handle
		case len(call.Reads) > 0:
			inv = call.Reads[0].Handle
		case len(cv.calls) > 0 && len(cv.calls[0].Writes) > 0:
			inv = cv.calls[0].Writes[0][0].Handle
		}
	}
	cv.deliver(b, inv)
}

// place has the peer write into memory that a call has exposed, as long as it can.
func (cv *conversation) place() {
	cv.heard()
	if len(cv.calls) == 0 {
		return
	}
	for _, c := range cv.calls[cv.in(len(cv.calls))].Writes {
		for _, s := range c {
			if m, err := cv.p.reach(s, fabric.AccessRemoteWrite); err == nil {
				for i := range m {
					m[i] = 0xee
				}
			}
		}
	}
}

// closed checks that the peer reaches no memory of a call that has returned.
func (cv *conversation) closed(items ...[]byte) {
	p := cv.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, w := range p.windows {
		if !w.bound || w.access&(fabric.AccessRemoteRead|fabric.AccessRemoteWrite) == 0 {
			continue
		}
		for _, m := range items {
			if expose.Overlap(w.mem, m) {
				cv.t.Errorf("handle %#x opens %d bytes of a call that has returned", key, len(m))
			}
		}
	}
}

// make makes a call of the end under test on a goroutine of its own, with a number to be known
// by, and checks it when it has returned.
func (cv *conversation) make(ctx context.Context, number uint32, do func(context.Context, *rpc.Call) error) {
	form := cv.next()
	call := &rpc.Call{Prog: testProg, Vers: 1, Proc: 7, Args: xdr.AppendUint32(nil, number)}
	var items [][]byte
	size := func() int { return []int{10, 800, 5_000, 9_001}[cv.in(4)] }
	if form&1 != 0 {
		n := size()
		data := make([]byte, n)
		call.Args = xdr.AppendUint32(call.Args, uint32(n))
		call.ReadItems = []rpc.ReadItem{{Offset: 8, Data: data}}
		items = append(items, data)
	}
	if form&2 != 0 {
		for range form>>2&1 + 1 {
			buf := make([]byte, size())
			call.WriteItems = append(call.WriteItems, rpc.WriteItem{Buf: buf})
			items = append(items, buf)
		}
	}
	if form&8 != 0 {
		call.MaxResults = size()
	}
	cv.p.mu.Lock()
	cv.open++
	cv.p.mu.Unlock()
	go func() {
		err := do(ctx, call)
		cv.closed(items...)
		if err == nil && !cv.spoiled.Load() && len(call.Results) >= 4 {
			if got := binary.BigEndian.Uint32(call.Results); got != number && got != 0 {
				cv.t.Errorf("call %d has the results of call %d", number, got)
			}
		}
		for _, w := range call.WriteItems {
			if w.N > len(w.Buf) {
				cv.t.Errorf("%d bytes in a buffer of %d", w.N, len(w.Buf))
			}
		}
		cv.p.mu.Lock()
		cv.open--
		cv.p.mu.Unlock()
	}()
}

// returned checks that all calls have.
func (cv *conversation) returned() {
	cv.t.Helper()
	synctest.Wait()
	cv.p.mu.Lock()
	defer cv.p.mu.Unlock()
	if cv.open != 0 {
		cv.t.Fatalf("%d calls have not returned", cv.open)
	}
}

// calm has the adapter complete everything from now on.
func (cv *conversation) calm() {
	p := cv.p
	for range 100 {
		p.mu.Lock()
		p.noReads, p.holdSends, p.holdInv = false, false, false
		if p.end == nil {
			p.doReads()
		}
		p.wcs = append(append(p.wcs, p.heldSends...), p.heldInv...)
		n := len(p.heldSends) + len(p.heldInv) + len(p.holdRead)
		p.heldSends, p.heldInv = nil, nil
		p.notify()
		p.mu.Unlock()
		synctest.Wait()
		if n == 0 {
			break
		}
	}
}

// checkResting checks that a connection on which nothing is under way holds no memory of
// calls, and that its receives are where messages can come into them.
func (cv *conversation) checkResting(c *conn) {
	t := cv.t
	t.Helper()
	if !c.lives() {
		return
	}
	if n := c.tenant.Held(); n != 0 {
		t.Errorf("%d bytes are counted for calls, and there are none", n)
	}
	c.inspect(func(l *leader, st *state) {
		cv.p.mu.Lock()
		if n := len(cv.p.recvs) + len(l.repost); n != st.recvs.n {
			t.Errorf("%d receives are posted, or about to be, of %d", n, st.recvs.n)
		}
		cv.p.mu.Unlock()
		want := st.recvs.n
		for _, x := range l.exchs {
			if x.state != exchFree && !slices.Contains(c.sends.silent, x) { // its replies have left, without a completion
				t.Errorf("exchange %d is in state %d", x.idx, x.state)
			}
			if x.out != nil {
				want++
			}
		}
		for _, s := range st.calls.all {
			if s.send != nil {
				want++
			}
		}
		if n := c.arena.Stats().Buffers; n != want {
			t.Errorf("%d buffers are in use, want %d: those of receives, replies and calls to come", n, want)
		}
	})
}

// A convService executes the calls of a conversation.
type convService struct {
	testService
	added atomic.Int32
	cn    atomic.Pointer[Conn]
}

const (
	procConn = 8 // leaves the connection to the test
	procOwn  = 9 // uint32 n -> opaque of n bytes of the handler's
)

func (s *convService) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	switch req.Proc {
	case procConn:
		s.cn.Store(req.Conn().(*Conn))
	case procEcho, procFail:
		s.added.Add(1)
		if d := xdr.NewDecoder(req.Args); req.Proc == procEcho && (d.Opaque(1<<30) == nil && d.Err() != nil) {
			s.added.Add(-1) // GARBAGE_ARGS
		}
		s.testService.ServeRPC(ctx, req, res)
	case procTwo, procLong, procAlloc, procOwn:
		// Requests are bounded: the peer may ask for 4 GiB.
		d := xdr.NewDecoder(req.Args)
		a, b := int(d.Uint32()%20_000), int(d.Uint32()%20_000)
		switch req.Proc {
		case procTwo:
			res.AddItem(make([]byte, a), nil)
			res.Results = xdr.AppendUint32(res.Results, 7)
			res.AddItem(make([]byte, b), nil)
		case procLong:
			res.Results = append(res.Results, make([]byte, a&^3)...)
		case procAlloc:
			res.AddItem(res.Alloc(a), nil)
		case procOwn:
			s.added.Add(1)
			res.AddItem(make([]byte, a), func() { s.released.Add(1) })
		}
	default:
		s.testService.ServeRPC(ctx, req, res)
	}
}

func (s *convService) program(read bool) rpc.Program {
	p := s.testService.program()
	p.Handler, p.ReadReplies, p.Padded = s, read, false
	p.Inline = func(_, proc uint32) bool { return proc == procEcho || proc == procFail || proc == procAlloc }
	return p
}

// peersCall is a call of the peer's.
func (cv *conversation) peersCall() []byte {
	form := cv.next()
	h := rpcrdma.Header{XID: uint32(cv.in(16)), Vers: 1, Credit: uint32(cv.in(40))}
	if form&128 != 0 {
		h.Vers = 2
	}
	proc := uint32(cv.in(11))
	args := xdr.AppendUint32(xdr.AppendUint32(nil, uint32(cv.next()*cv.next())), uint32(cv.next()))
	if proc == procEcho {
		args = opaque(string(make([]byte, cv.next())))
	}
	msg := appendCall(nil, h.XID, proc, args...)
	if form&1 != 0 { // the arguments are in a chunk
		s := cv.segment()
		msg = xdr.AppendUint32(appendCall(nil, h.XID, proc), s.Length)
		h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: 44, Segment: s})
	}
	if form&2 != 0 { // and once more
		h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: uint32(cv.next()), Segment: cv.segment()})
	}
	if form&4 != 0 {
		for range cv.in(3) + 1 {
			h.Writes = append(h.Writes, cv.chunk())
		}
	}
	if form&8 != 0 {
		h.HasReply, h.Reply = true, cv.chunk()
	}
	if form&16 != 0 { // all of it is in a chunk
		h.Proc = rpcrdma.ProcNomsg
		h.Reads = append([]rpcrdma.ReadSegment{{Segment: cv.p.offer(8, bytes.Clone(msg))}}, h.Reads...)
		msg = nil
	}
	b := append(rpcrdma.AppendHeader(nil, &h), msg...)
	if form&96 == 96 {
		b = cv.spoil(b)
	}
	return b
}

// other is a message of the peer's that is no call.
func (cv *conversation) other() []byte {
	h := rpcrdma.Header{XID: uint32(cv.in(16)), Vers: 1, Credit: uint32(cv.next())}
	switch cv.in(4) {
	case 0, 1:
		h.Proc = rpcrdma.ProcDone
	case 2:
		h.Proc, h.Err = rpcrdma.ProcError, rpcrdma.ErrChunk
	case 3:
		return cv.spoil(cv.p.replyBytes(h, nil))
	}
	return rpcrdma.AppendHeader(nil, &h)
}

// FuzzServerConversation runs a scripted client against a server.
func FuzzServerConversation(f *testing.F) {
	for _, s := range serverScripts {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 1000 {
			return
		}
		synctest.Test(t, func(t *testing.T) { serverConversation(t, script) })
	})
}

func serverConversation(t *testing.T, script []byte) {
	p := newPeer(t)
	cv := &conversation{convScript: convScript{script}, t: t, p: p}
	cv.adapter(p)
	kind := cv.next()
	cfg := &Settings{MaxMessage: 1 << 16, MaxMemory: 1 << 17, Credits: 1 + kind>>2&7, Version: Version1}
	if kind&1 != 0 {
		cfg.RFC5666 = &RFC5666{DoneTimeout: time.Second}
	}
	if kind&2 != 0 {
		cfg.Version = VersionAuto
	}
	if kind&32 != 0 {
		cfg.PeerChunks = AllChunks
	}
	s, err := NewServer(cfg.Server())
	if err != nil {
		t.Fatal(err)
	}
	svc := &convService{}
	svc.gate = make(chan struct{})
	if err := s.Register(svc.program(kind&64 != 0)); err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(bg, p, "script:20049")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	synctest.Wait()
	c := theConn(s)

	ctx, giveUp := context.WithCancel(bg)
	number := uint32(0)
	for steps := 0; len(cv.b) > 0 && steps < maxSteps; steps++ {
		op := cv.next()
		switch op % 16 {
		case 0, 1, 2, 3, 4:
			cv.deliver(cv.peersCall(), 0)
		case 5:
			cv.deliver(cv.other(), 0)
		case 6, 7:
			cv.adapt()
		case 8: // a handler may answer
			select {
			case svc.gate <- struct{}{}:
			default:
			}
		case 9:
			if cn := svc.cn.Load(); cn != nil {
				cn.AllowBackward(cv.in(4))
				number++
				cv.make(ctx, number, cn.Call)
			}
		case 10, 11:
			cv.reply()
		case 12:
			cv.place()
		case 13:
			time.Sleep(time.Duration(cv.next()) * 10 * time.Millisecond)
		case 14: // callers give up
			giveUp()
			ctx, giveUp = context.WithCancel(bg)
		case 15:
			switch cv.in(16) {
			case 0:
				p.hangUp()
			case 1:
				go c.close()
			case 2:
				go s.Shutdown(ctx)
			}
		}
		if op&128 == 0 { // else the next step comes at once
			synctest.Wait()
		}
	}

	// The end: everything completes, or the connection is cut as it is.
	end := cv.next()
	if end&1 == 0 {
		cv.calm()
		close(svc.gate)
		cv.calm()
		for cv.heard(); len(cv.calls) > 0 && !p.over(); cv.heard() {
			cv.b = nil // RDMA_MSG, with nothing in chunks
			cv.reply()
			synctest.Wait()
		}
		giveUp()
		time.Sleep(2 * fencePatience) // what is lent costs the connection
		cv.calm()
		cv.heard()
		if p.end == nil {
			cv.checkResting(c)
		}
		down := make(chan error, 1)
		go func() { down <- s.Shutdown(bg) }()
		synctest.Wait()
		if len(down) == 0 {
			t.Error("Shutdown has not returned")
		}
	} else {
		p.hangUp()
		synctest.Wait()
		if n := svc.running.Load(); n != 0 {
			t.Errorf("%d handlers run on", n)
		}
	}
	s.Close()
	cv.returned()
	giveUp()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve returned %v", err)
	}
	checkArena(t, c)
	if p.mrs != 0 || len(p.windows) != 0 {
		t.Errorf("%d regions and %d windows are left", p.mrs, len(p.windows))
	}
	if a, r := svc.added.Load(), svc.released.Load(); a != r {
		t.Errorf("%d items were released of %d", r, a)
	}
}

// FuzzClientConversation runs a scripted server against a client.
func FuzzClientConversation(f *testing.F) {
	for _, s := range clientScripts {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 1000 {
			return
		}
		synctest.Test(t, func(t *testing.T) { clientConversation(t, script) })
	})
}

func clientConversation(t *testing.T, script []byte) {
	p := newPeer(t)
	cv := &conversation{convScript: convScript{script}, t: t, p: p}
	cv.adapter(p)
	kind := cv.next()
	cfg := &Settings{MaxMessage: 1 << 16, MaxMemory: 1 << 17, Credits: 1 + kind>>2&7, Version: Version1, KeepAlive: -1, NoReconnect: true}
	svc := &convService{}
	svc.gate = make(chan struct{})
	if kind&1 != 0 {
		cfg.RFC5666 = &RFC5666{}
	}
	if kind&2 != 0 {
		cfg.Callbacks = []rpc.Program{svc.program(false)}
	}
	if kind&32 != 0 {
		cfg.PeerChunks = AllChunks
	}
	if kind&64 != 0 {
		cfg.MaxSegment = 3_000
	}
	p.caps.WeakRevocation = kind&128 != 0
	cl, err := Dial(bg, p, "script:20049", cfg.Client())
	if err != nil {
		t.Fatal(err)
	}
	c := cl.conn()

	ctx, giveUp := context.WithCancel(bg)
	number := uint32(0)
	for steps := 0; len(cv.b) > 0 && steps < maxSteps; steps++ {
		op := cv.next()
		switch op % 16 {
		case 0, 1, 2, 3:
			number++
			cv.make(ctx, number, cl.Call)
		case 4, 5, 6, 7, 8:
			cv.reply()
		case 9:
			cv.deliver(cv.peersCall(), 0)
		case 10:
			cv.deliver(cv.other(), 0)
			select {
			case svc.gate <- struct{}{}:
			default:
			}
		case 11, 12:
			cv.adapt()
		case 13:
			cv.place()
		case 14: // callers give up
			if cv.in(2) == 0 {
				giveUp()
				ctx, giveUp = context.WithCancel(bg)
			} else {
				time.Sleep(time.Duration(cv.next()) * 10 * time.Millisecond)
			}
		case 15:
			switch cv.in(16) {
			case 0:
				p.hangUp()
			case 1:
				go cl.Close()
			case 2:
				go cl.Shutdown(ctx)
			}
		}
		if op&128 == 0 { // else the next step comes at once
			synctest.Wait()
		}
	}

	// The end: the server answers everything, or says nothing any more, or cuts the connection.
	switch cv.next() % 3 {
	case 0:
		settle()
		cv.calm()
		close(svc.gate)
		cv.calm()
		for range 1000 {
			settle()
			if cv.heard(); len(cv.calls) == 0 || p.over() {
				break
			}
			cv.b = nil
			cv.reply()
		}
		settle()
		cv.calm()
		cv.heard()
		if !p.over() {
			giveUp() // those that have been answered with nonsense all along
			time.Sleep(2 * fencePatience)
			cv.calm()
			cv.checkResting(c)
		}
	case 1:
		giveUp()
		time.Sleep(4 * fencePatience)
	case 2:
		p.hangUp()
		settle()
	}
	giveUp()
	time.Sleep(4 * fencePatience)
	cv.returned()
	cl.Close()
	synctest.Wait()
	if n := svc.running.Load(); n != 0 {
		t.Errorf("%d handlers run on", n)
	}
	checkArena(t, c)
	if p.mrs != 0 || len(p.windows) != 0 {
		t.Errorf("%d regions and %d windows are left", p.mrs, len(p.windows))
	}
	if a, r := svc.added.Load(), svc.released.Load(); a != r {
		t.Errorf("%d items were released of %d", r, a)
	}
}

// clientScripts are conversations that are worth beginning with: an inline call and its reply;
// calls with chunks, answered one after the other, with invalidation; and one that is given up
// before its invalidation completes.
var clientScripts = [][]byte{
	{0, 0, 0, 0, 4, 0, 0, 8},
	{0, 34, 0, 15, 2, 2, 2, 0, 11, 3, 3, 4, 0, 16, 9, 100, 100, 13, 0, 4, 0, 6, 9, 1},
	{0, 0, 0, 3, 2, 2, 11, 32 + 5, 14, 0, 4, 0, 16, 5, 11, 3},
	{2 + 8, 1, 0, 10, 3, 4, 0, 10, 3, 11, 0, 12, 1},
}

// serverScripts are conversations that are worth beginning with: a call and its reply; calls with
// chunks and Reads that complete late; a reply that is lent, and RDMA_DONE; and a call of the
// server's.
var serverScripts = [][]byte{
	{0, 0, 0, 0, 5, 8, 1, 4},
	{8, 34, 0, 1, 1, 8, 2, 0, 0, 0, 1, 128, 5, 2, 8, 3, 0, 0, 0, 2, 3, 0, 3, 1, 6, 1, 6, 0, 8},
	{0, 65, 2, 0, 3, 8, 6, 200, 90, 0, 5, 3, 0, 0, 13, 200},
	{0, 34, 3, 0, 4, 8, 8, 0, 0, 0, 9, 2, 0, 10, 0, 0, 4, 14},
}
