package simfabric

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// end implements fabric.Conn. The fabric's lock protects all fields.
type end struct {
	f             *Fabric
	side          Side
	no            int
	attr          fabric.ConnAttr
	local, remote *net.TCPAddr
	peer          *end
	stream        *stream // nil if it has queues
	cond          sync.Cond
	counts        [Kinds]int
	pauses        int

	said, private []byte
	established   bool
	refused       error // error of Connect
	rejected      bool
	err           *fabric.ConnError
	closed        bool
	mute          bool // nothing more from this end reaches the peer
	told          bool // the peer has learned, or will learn, that this end has closed
	woken         bool
	wantsRoom     bool // Post returned ErrQueueFull
	room          bool // the queue has space again

	reports  fabric.Deferrals
	sq       []*request // posted and not executed, in order
	started  int        // operations in sq that have begun
	starting bool       // the next one is about to start
	reads    int        // in progress
	slots    int        // used in the send queue
	rq       []fabric.RecvWR
	rslots   int // used in the receive queue
	inflight int // posted Sends that have not arrived

	arrived time.Time // when everything that has started will have arrived
	cq      []completion
	tells   [2]teller // for requests and for receives

	regions map[uint32]*region
	windows map[uint32]*window // by handle, if bound
	all     []*window
	past    map[uint32]bool // handles that the peer has invalidated
	revoked map[uint32]bool // handles that this end has invalidated
}

// request is a fabric.SendWR in the queue.
type request struct {
	fabric.SendWR
	sgl  []fabric.SGE
	n    int    // bytes
	data []byte // gathered when sent, with LocalCompletion
	left int    // pieces of a Write not yet placed
	done bool

	report bool // has a completion even if it succeeds
}

// completion has the number of queue slots that are freed when it is polled.
type completion struct {
	fabric.WC
	send bool
}

// teller adds completions to the queue in order.
type teller struct {
	line []completion
	last time.Time
}

func (f *Fabric) newEnd(side Side, no int, attr fabric.ConnAttr, local, remote *net.TCPAddr) *end {
	if attr.SendDepth == 0 {
		attr.SendDepth = 128
	}
	if attr.RecvDepth == 0 {
		attr.RecvDepth = 64
	}
	def := func(v *int) {
		if *v == 0 || *v > readLimit {
			*v = readLimit
		}
	}
	def(&attr.InboundReads)
	def(&attr.OutboundReads)
	e := &end{f: f, side: side, no: no, attr: attr, local: local, remote: remote,
		regions: make(map[uint32]*region), windows: make(map[uint32]*window), past: make(map[uint32]bool), revoked: make(map[uint32]bool)}
	e.cond.L = &f.mu
	f.openConns++
	return e
}

func (e *end) LocalAddr() net.Addr  { return e.local }
func (e *end) RemoteAddr() net.Addr { return e.remote }

// PeerPrivateData implements fabric.Conn.
func (e *end) PeerPrivateData() []byte {
	e.f.mu.Lock()
	defer e.f.unlock()
	return e.private
}

// Capabilities implements fabric.Conn.
func (e *end) Capabilities() fabric.Capabilities {
	e.f.mu.Lock()
	defer e.f.unlock()
	cfg := &e.f.cfg
	c := fabric.Capabilities{
		MaxSendSGE: cfg.MaxSendSGE, MaxReadSGE: 1, MaxMessage: maxMessage, MaxPrivateData: cfg.MaxPrivateData,
		MemoryWindows: !cfg.NoWindows, RemoteInvalidate: !cfg.NoInvalidate, LocalDMA: !cfg.NoLocalDMA,
		WeakRevocation: cfg.WeakRevocation,
		SendDepth:      e.attr.SendDepth,
		InboundReads:   e.attr.InboundReads, OutboundReads: e.attr.OutboundReads,
	}
	if e.peer != nil {
		c.InboundReads = min(c.InboundReads, e.peer.attr.OutboundReads)
		c.OutboundReads = min(c.OutboundReads, e.peer.attr.InboundReads)
	}
	return c
}

// gone returns the error for calls on an end that is not connected.
func (e *end) gone() error {
	if e.err != nil {
		return e.err
	}
	if !e.established {
		return errors.New("simfabric: not connected")
	}
	if e.mute {
		return &fabric.ConnError{Provider: e.f.Name(), Cause: errCut}
	}
	return nil
}

// pause delays a caller.
func (e *end) pause() {
	if f := e.f; f.cfg.Pause != nil {
		f.mu.Lock()
		e.pauses++
		d := f.cfg.Pause(e.side, e.no, e.pauses)
		f.unlock()
		if d > 0 {
			time.Sleep(d)
		}
	}
}

// Post implements fabric.Conn.
func (e *end) Post(wrs []fabric.SendWR) error {
	f := e.f
	e.pause()
	defer e.pause()
	f.mu.Lock()
	defer f.unlock()
	if e.err != nil {
		return e.err
	}
	if !e.established {
		return errors.New("simfabric: not connected")
	}
	for i := range wrs {
		if len(wrs[i].SGL) > f.cfg.MaxSendSGE || wrs[i].Op == fabric.OpRead && len(wrs[i].SGL) > 1 {
			return errors.New("simfabric: too many elements")
		}
		if wrs[i].Op == fabric.OpSendInv && f.cfg.NoInvalidate {
			return f.lacks("remote invalidation")
		}
	}
	v := e.decide(Post, 0)
	if v.CutBefore {
		e.cut()
	}
	if v.Err != nil {
		if v.Err == fabric.ErrQueueFull {
			e.wantsRoom = true
			f.at(time.Now().Add(v.Delay), e.makeRoom)
		}
		return v.Err
	}
	if e.slots+len(wrs) > e.attr.SendDepth {
		e.wantsRoom = true
		return fabric.ErrQueueFull
	}
	for i := range wrs {
		r := &request{SendWR: wrs[i], sgl: append([]fabric.SGE(nil), wrs[i].SGL...), report: e.reports.Reports(wrs[i].Flags)}
		r.SGL = nil
		for j := range r.sgl {
			r.n += len(r.sgl[j].Buf)
		}
		e.slots++
		e.sq = append(e.sq, r)
		if r.Op == fabric.OpSend || r.Op == fabric.OpSendInv {
			e.sending(r)
		}
	}
	if v.CutAfter {
		e.cut()
	}
	e.start()
	return nil
}

// sending checks that the peer has a receive for each Send.
func (e *end) sending(r *request) {
	e.inflight++
	if p := e.peer; !e.mute && p.err == nil && !p.closed && e.inflight > len(p.rq) {
		e.f.violation("connection %d: the %v has %d Sends under way to a peer with %d receives", e.no, e.side, e.inflight, len(p.rq))
	}
	if e.f.cfg.Sent != nil {
		e.f.cfg.Sent(e.side, e.no, gather(nil, r.sgl))
	}
}

func gather(to []byte, sgl []fabric.SGE) []byte {
	for i := range sgl {
		to = append(to, sgl[i].Buf...)
	}
	return to
}

// makeRoom makes Wait return because the send queue has space.
func (e *end) makeRoom() {
	if e.wantsRoom {
		e.wantsRoom, e.room = false, true
		e.cond.Broadcast()
	}
}

// PostRecv implements fabric.Conn.
func (e *end) PostRecv(wrs []fabric.RecvWR) error {
	e.pause()
	defer e.pause()
	e.f.mu.Lock()
	defer e.f.unlock()
	if e.err != nil {
		return e.err
	}
	v := e.decide(PostRecv, 0)
	if v.CutBefore {
		e.cut()
	}
	if v.Err != nil {
		return v.Err
	}
	if e.rslots+len(wrs) > e.attr.RecvDepth {
		return fabric.ErrQueueFull
	}
	for i := range wrs {
		for j := range e.rq {
			if overlap(e.rq[j].SGE.Buf, wrs[i].SGE.Buf) {
				e.f.violation("connection %d: the %v posts memory for two receives", e.no, e.side)
			}
		}
		e.rslots++
		e.rq = append(e.rq, wrs[i])
	}
	if v.CutAfter {
		e.cut()
	}
	return nil
}

// ---- execution

// start starts the next request if possible.
func (e *end) start() {
	if e.starting || e.err != nil || e.mute || e.started == len(e.sq) {
		return
	}
	r := e.sq[e.started]
	if r.Op == fabric.OpRead && e.reads >= min(e.attr.OutboundReads, e.peer.attr.InboundReads) ||
		r.Flags&fabric.Fence != 0 && e.reads > 0 {
		return // until a Read has been answered
	}
	e.starting = true
	v := e.decide(Start, r.Op)
	e.f.at(time.Now().Add(v.Delay), func() {
		e.starting = false
		if e.err != nil || e.mute {
			return
		}
		if v.CutBefore {
			e.cut()
			return
		}
		e.started++
		if v.Err != nil {
			e.fail(r, fabric.WCGeneralErr, v.Err)
			return
		}
		e.execute(r)
		if v.CutAfter {
			e.cut()
		}
		e.start()
	})
}

// execute executes the local part of a request.
func (e *end) execute(r *request) {
	need := fabric.Access(0)
	if r.Op == fabric.OpRead {
		need = fabric.AccessLocalWrite
	}
	for _, s := range r.sgl {
		if !e.allows(s, need) {
			e.f.violation("connection %d: the %v posts memory that is not registered", e.no, e.side)
			e.fail(r, fabric.WCLocProtErr, errors.New("memory that is not registered"))
			return
		}
	}
	switch r.Op {
	case fabric.OpBindMW:
		w, _ := r.MW.(*window)
		if !e.bind(w) {
			e.f.violation("connection %d: the %v binds a window that cannot be", e.no, e.side)
			e.fail(r, fabric.WCMWBindErr, errors.New("a window that cannot be bound"))
			return
		}
		e.carriedOut(r)
	case fabric.OpLocalInv:
		w := e.windows[r.RKey]
		if w == nil {
			if e.past[r.RKey] {
				e.f.refusal(e, "the peer has invalidated a window first")
			} else {
				e.f.violation("connection %d: the %v invalidates a window that is not open", e.no, e.side)
			}
			e.fail(r, fabric.WCLocQPOpErr, errors.New("a window that is not open"))
			return
		}
		w.unbind()
		e.revoked[r.RKey] = true
		e.carriedOut(r)
	case fabric.OpSend, fabric.OpSendInv:
		e.leave(r)
		e.arrive(r, true, func() { e.delivered(r) })
		e.left(r)
	case fabric.OpWrite:
		e.leave(r)
		e.write(r)
		e.left(r)
	case fabric.OpRead:
		e.reads++
		e.arrive(r, true, func() { e.readArrived(r) })
	}
}

// leave gathers the data of a request that completes when it has been sent.
func (e *end) leave(r *request) {
	if e.f.cfg.LocalCompletion {
		r.data = gather(make([]byte, 0, r.n), r.sgl)
	}
}

func (e *end) left(r *request) {
	if e.f.cfg.LocalCompletion && e.err == nil {
		e.carriedOut(r)
	}
}

// content returns the current data of r.
func (e *end) content(r *request) []byte {
	if r.data != nil || e.f.cfg.LocalCompletion {
		return r.data
	}
	return gather(make([]byte, 0, r.n), r.sgl)
}

// arrive schedules do, the arrival of a part of a request: in order, or possibly before earlier parts.
func (e *end) arrive(r *request, ordered bool, do func()) {
	v := e.decide(Arrive, r.Op)
	t := time.Now().Add(v.Delay)
	if ordered && t.Before(e.arrived) {
		t = e.arrived
	}
	if t.After(e.arrived) {
		e.arrived = t
	}
	e.f.at(t, func() {
		if e.mute || e.peer.err != nil {
			e.mute = true // everything after it is lost too
			return
		}
		if v.CutBefore {
			e.cut()
			return
		}
		do()
		if v.CutAfter {
			e.cut()
		}
	})
}

// delivered is called when a Send has arrived.
func (e *end) delivered(r *request) {
	p := e.peer
	e.inflight--
	if len(p.rq) == 0 {
		e.f.violation("connection %d: a Send of the %v finds no receive", e.no, e.side)
		e.turnedDown(r, fabric.WCRNRRetryErr, "no receive posted")
		return
	}
	rv := p.rq[0]
	if r.n > len(rv.SGE.Buf) {
		e.f.violation("connection %d: a Send of the %v is longer than its receive", e.no, e.side)
		p.spoil(fabric.WCLocLenErr)
		e.turnedDown(r, fabric.WCRemInvReqErr, "message too long")
		return
	}
	if !p.allows(rv.SGE, fabric.AccessLocalWrite) {
		e.f.violation("connection %d: a receive of the %v is not registered", e.no, p.side)
		p.spoil(fabric.WCLocProtErr)
		e.turnedDown(r, fabric.WCRemOpErr, "receive not registered")
		return
	}
	wc := fabric.WC{ID: rv.ID, Op: fabric.WCRecv, Len: uint32(r.n)}
	if r.Op == fabric.OpSendInv {
		w := p.windows[r.RKey]
		switch {
		case w != nil:
			w.unbind()
			p.past[r.RKey] = true
		case e.f.cfg.CrossedInvalidation && p.revoked[r.RKey]:
			delete(p.revoked, r.RKey)
		default:
			e.turnedDown(r, fabric.WCRemAccessErr, "invalidation of what is not open")
			return
		}
		wc.WithInv, wc.InvalidatedKey = true, r.RKey
	}
	copy(rv.SGE.Buf, e.content(r))
	p.rq = p.rq[1:]
	p.tell(wc, false)
	if !e.f.cfg.LocalCompletion {
		e.carriedOut(r)
	}
}

// spoil completes a receive with an error.
func (e *end) spoil(status fabric.WCStatus) {
	wc := fabric.WC{ID: e.rq[0].ID, Op: fabric.WCRecv, Status: status}
	e.rq = e.rq[1:]
	e.tells[1].line = append(e.tells[1].line, completion{wc, false})
}

// write places a Write in one or two pieces.
func (e *end) write(r *request) {
	cut := r.n
	h := Hash(e.f.cfg.Seed, uint64(e.no), uint64(e.side), uint64(e.counts[Start]), 'w')
	if r.n > 1 && h%2 == 0 {
		cut = 1 + int(h>>8%uint64(r.n-1))
	}
	r.left = 1
	if cut < r.n {
		r.left = 2
	}
	var open []byte // memory that a piece may still access, with WeakRevocation
	place := func(from, to int) func() {
		return func() {
			p := e.peer
			mem, ok := open, true
			if mem == nil {
				mem, ok = p.reach(r.RKey, r.RemoteOffset, r.n, fabric.AccessRemoteWrite)
			}
			if !ok {
				e.turnedDown(r, fabric.WCRemAccessErr, "Write to memory that is not open")
				return
			}
			if e.f.cfg.WeakRevocation {
				open = mem
			}
			if r.n > 0 {
				copy(mem[from:to], e.content(r)[from:to])
			}
			if r.left--; r.left == 0 && !e.f.cfg.LocalCompletion {
				e.carriedOut(r)
			}
		}
	}
	// The connection may end first.
	if cut < r.n {
		e.arrive(r, false, place(cut, r.n))
	}
	e.arrive(r, false, place(0, cut))
}

// readArrived starts the response to a Read.
func (e *end) readArrived(r *request) {
	p := e.peer
	from, ok := p.reach(r.RKey, r.RemoteOffset, r.n, fabric.AccessRemoteRead)
	if !ok {
		e.turnedDown(r, fabric.WCRemAccessErr, "Read of memory that is not open")
		return
	}
	half := append([]byte(nil), from[:r.n/2]...)
	v := e.decide(Respond, r.Op)
	e.f.at(time.Now().Add(v.Delay), func() {
		if e.err != nil || e.mute {
			return
		}
		if v.CutBefore {
			e.cut()
			return
		}
		if !e.f.cfg.WeakRevocation {
			from, ok = p.reach(r.RKey, r.RemoteOffset, r.n, fabric.AccessRemoteRead)
		} else if p.err != nil {
			return
		}
		if !ok {
			if p.err == nil {
				e.turnedDown(r, fabric.WCRemAccessErr, "Read of memory that is not open any more")
			}
			return
		}
		if r.n > 0 {
			if !e.allows(r.sgl[0], fabric.AccessLocalWrite) {
				e.f.violation("connection %d: the %v has closed the memory of its Read", e.no, e.side)
				e.fail(r, fabric.WCLocProtErr, errors.New("memory of a Read is gone"))
				return
			}
			to := r.sgl[0].Buf
			copy(to[copy(to, half):], from[len(half):])
		}
		e.reads--
		e.carriedOut(r)
		if v.CutAfter {
			e.cut()
		}
		e.start()
	})
}

// carriedOut completes a request, and those that wait for it.
func (e *end) carriedOut(r *request) {
	r.done = true
	for len(e.sq) > 0 && e.sq[0].done && e.started > 0 {
		r := e.sq[0]
		e.sq = e.sq[1:]
		e.started--
		if !r.report {
			e.slots--
			e.makeRoom()
			continue
		}
		e.tell(completionOf(r, fabric.WCSuccess), true)
	}
	if len(e.sq) == 0 {
		e.cond.Broadcast() // for Disconnect
	}
}

func completionOf(r *request, status fabric.WCStatus) fabric.WC {
	wc := fabric.WC{ID: r.ID, Status: status}
	switch r.Op {
	case fabric.OpSend, fabric.OpSendInv:
		wc.Op = fabric.WCSend
	case fabric.OpWrite:
		wc.Op = fabric.WCWrite
	case fabric.OpRead:
		wc.Op, wc.Len = fabric.WCRead, uint32(r.n)
	case fabric.OpBindMW:
		wc.Op = fabric.WCBindMW
	case fabric.OpLocalInv:
		wc.Op = fabric.WCLocalInv
	}
	return wc
}

// tell adds a completion to the queue, after a delay.
func (e *end) tell(wc fabric.WC, send bool) {
	k, t := Receive, &e.tells[1]
	if send {
		k, t = Complete, &e.tells[0]
	}
	v := e.decide(k, 0)
	at := time.Now().Add(v.Delay)
	if at.Before(t.last) {
		at = t.last
	}
	t.last = at
	t.line = append(t.line, completion{wc, send})
	e.f.at(at, func() {
		if len(t.line) == 0 {
			return // the connection ended first
		}
		if v.CutBefore {
			e.cutAt(true)
			return
		}
		e.cq = append(e.cq, t.line[0])
		t.line = t.line[1:]
		e.cond.Broadcast()
		if v.CutAfter {
			e.cut()
		}
	})
}

// ---- the end

// fail completes a request with an error, and ends the connection.
func (e *end) fail(r *request, status fabric.WCStatus, why error) {
	if e.err != nil {
		return
	}
	e.failed(r, status, &fabric.ConnError{Provider: e.f.Name(), Cause: why})
	e.tellPeer(why)
}

// turnedDown ends the connection because the peer rejects a request.
func (e *end) turnedDown(r *request, status fabric.WCStatus, why string) {
	if e.peer.err == nil {
		e.f.refusal(e.peer, why)
	}
	err := errors.New("simfabric: " + why)
	e.failed(r, status, &fabric.ConnError{Provider: e.f.Name(), Remote: true, Cause: err})
	e.mute, e.peer.mute, e.told = true, true, true
	e.peer.over(&fabric.ConnError{Provider: e.f.Name(), Cause: err})
}

// failed completes the requests before r, then r, then the rest.
func (e *end) failed(r *request, status fabric.WCStatus, why *fabric.ConnError) {
	if e.err != nil {
		return
	}
	for i, q := range e.sq {
		if q == r {
			e.sq[i].done = false
			e.sq[i].left = -int(status)
		}
	}
	e.over(why)
}

// over ends the connection at this end: all outstanding requests are flushed, and no memory can be accessed any more.
func (e *end) over(why *fabric.ConnError) {
	if e.err != nil {
		return
	}
	e.err = why
	e.mute = true
	for i := range e.tells {
		e.cq = append(e.cq, e.tells[i].line...)
		e.tells[i].line = nil
	}
	bad := false
	for _, r := range e.sq {
		status := fabric.WCFlushErr
		switch {
		case r.left < 0:
			status = fabric.WCStatus(-r.left)
		case bad:
		case r.done && !r.report:
			e.slots--
			continue
		case r.done:
			status = fabric.WCSuccess
		}
		bad = bad || status != fabric.WCSuccess
		e.cq = append(e.cq, completion{completionOf(r, status), true})
	}
	for i := range e.rq {
		e.cq = append(e.cq, completion{fabric.WC{ID: e.rq[i].ID, Op: fabric.WCRecv, Status: fabric.WCFlushErr}, false})
	}
	e.sq, e.rq, e.started = nil, nil, 0
	e.cond.Broadcast()
}

// cut breaks the connection: nothing arrives any more, and both ends learn of it later.
func (e *end) cut() { e.cutAt(false) }

// cutAt is cut, but with now this end learns of it at once, and loses completions not added yet.
func (e *end) cutAt(now bool) {
	if now {
		for i := range e.tells {
			e.lose(&e.tells[i])
		}
		e.over(&fabric.ConnError{Provider: e.f.Name(), Cause: errCut})
	}
	for _, h := range []*end{e, e.peer} {
		if h == nil || h.err != nil {
			continue
		}
		h.mute = true
		v := h.decide(Learn, 0)
		e.f.at(time.Now().Add(v.Delay), func() {
			h.over(&fabric.ConnError{Provider: h.f.Name(), Cause: errCut})
		})
	}
	e.told = true
	if e.peer != nil {
		e.peer.told = true
	}
}

// lose turns completions not yet added into flushed ones.
func (e *end) lose(t *teller) {
	for i := range t.line {
		t.line[i].Status = fabric.WCFlushErr
	}
}

// tellPeer informs the peer that this end has closed the connection, after everything that was sent and will still
// arrive. A nil why means a graceful close.
func (e *end) tellPeer(why error) {
	p := e.peer
	if e.told || p == nil {
		return
	}
	e.told = true
	if !e.f.cfg.LocalCompletion || !e.established {
		e.mute = true
	}
	if p.err != nil {
		return
	}
	v := p.decide(Learn, 0)
	t := time.Now().Add(v.Delay)
	if !e.mute && t.Before(e.arrived) {
		t = e.arrived
	}
	e.f.at(t, func() {
		e.mute = true
		if !p.established && p.side == Dialed && why != nil {
			p.refuse(why)
		}
		p.over(&fabric.ConnError{Provider: e.f.Name(), Remote: true, Clean: why == nil, Cause: why})
	})
}

// Poll implements fabric.Conn.
func (e *end) Poll(wc []fabric.WC) (int, error) {
	e.f.mu.Lock()
	defer e.f.unlock()
	if len(e.cq) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		if !e.established {
			return 0, errors.New("simfabric: not connected")
		}
		return 0, nil
	}
	n := min(len(wc), len(e.cq))
	for i := range n {
		wc[i] = e.cq[i].WC
		if e.cq[i].send {
			e.slots--
		} else {
			e.rslots--
		}
	}
	e.cq = e.cq[:copy(e.cq, e.cq[n:])]
	return n, nil
}

// Wait implements fabric.Conn.
func (e *end) Wait() error {
	e.f.mu.Lock()
	defer e.f.unlock()
	for {
		switch {
		case e.woken:
			e.woken = false
			return nil
		case len(e.cq) > 0:
			return nil
		case e.err != nil:
			return e.err
		case e.room:
			e.room = false
			return nil
		case !e.established:
			return errors.New("simfabric: not connected")
		}
		e.f.wait(&e.cond)
	}
}

// Wake implements fabric.Conn.
func (e *end) Wake() {
	e.f.mu.Lock()
	defer e.f.unlock()
	e.woken = true
	e.cond.Broadcast()
}

// Disconnect implements fabric.Conn.
func (e *end) Disconnect(ctx context.Context) error {
	f := e.f
	defer context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.unlock()
		e.cond.Broadcast()
	})()
	f.mu.Lock()
	defer f.unlock()
	for e.err == nil && len(e.sq) > 0 && ctx.Err() == nil {
		e.f.wait(&e.cond)
	}
	if e.err != nil {
		return nil // the peer closed first, or the connection was lost
	}
	if len(e.sq) == 0 {
		p, asked := e.peer, e.told
		v := p.decide(Learn, 0)
		t := time.Now().Add(v.Delay)
		if t.Before(e.arrived) {
			t = e.arrived
		}
		e.told = true
		if !asked && p.err == nil {
			f.at(t, func() {
				p.over(&fabric.ConnError{Provider: f.Name(), Remote: true, Clean: true})
				e.over(&fabric.ConnError{Provider: f.Name(), Clean: true})
			})
		}
		for e.err == nil && ctx.Err() == nil {
			e.f.wait(&e.cond)
		}
	}
	if e.err == nil {
		e.over(&fabric.ConnError{Provider: f.Name(), Cause: ctx.Err()})
		e.told = false
		e.tellPeer(errReset)
		return ctx.Err()
	}
	return nil
}

// Close implements fabric.Conn.
func (e *end) Close() error {
	e.f.mu.Lock()
	defer e.f.unlock()
	e.close()
	return nil
}

func (e *end) close() {
	if e.closed {
		return
	}
	e.closed = true
	busy := len(e.sq) > 0
	wasUp := e.established
	if e.err == nil {
		keep := e.f.cfg.LocalCompletion && wasUp && !e.mute // data already sent still arrives
		e.over(&fabric.ConnError{Provider: e.f.Name()})
		e.mute = !keep
		switch {
		case e.rejected:
			e.told = true
		case !wasUp && e.side == Taken:
			e.tellPeer(errRefused)
		case busy:
			e.tellPeer(errReset)
		default:
			e.tellPeer(nil)
		}
	}
	for _, r := range e.regions {
		r.end()
	}
	for _, w := range e.all {
		w.end()
	}
	e.cq = nil
	e.f.openConns--
	e.cond.Broadcast()
}

// Cut breaks all connections.
func (f *Fabric) Cut() {
	f.mu.Lock()
	defer f.unlock()
	for _, c := range f.conns {
		if c.err == nil || c.peer != nil && c.peer.err == nil {
			c.cut()
		}
	}
}
