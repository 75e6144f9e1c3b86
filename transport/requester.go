package transport

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
)

// The requester's half of a connection: slots and credits.
//
// A slot is a place for a call, with everything that call needs. Taking a slot
// is taking a credit. The xid is the slot's number and a generation, so that a
// reply finds its call by an index and a compare, and a late reply finds the
// generation changed. A connection that takes the place of another goes on with its
// generations, so that no xid comes twice for a long time: calls that are sent again
// keep theirs, and a cache of replies knows calls by them.
//
// A client's half may call from the start. A server's is closed until the upper layer
// says that the client is ready for it (RFC 8167 section 6).
type requester struct {
	c     *conn
	most  atomic.Int32 // credits to ask for
	mask  uint32       // over all xids
	chore atomic.Bool  // the leader is to open the half

	// Guarded by conn.mu.
	allowed   bool
	gens      []uint32 // generations to start slots with
	answered  bool     // a call has been
	slots     []*slot
	free      []*slot
	inUse     int       // slots that are not free: calls without a reply
	grant     int       // the latest grant, within what we asked for
	line      waitList  // callers that wait for a slot, first come, first served
	inLine    []*waiter // waiters not in use
	completed uint64    // calls completed, for the background leader
	drained   *waiter   // waits for inUse to become zero

	// leader
	granted int // the same as grant
	recvs   int // receives for replies

	foreign map[uint32]*slot // calls that keep an xid of their own, see keepXID
}

// A slot's life, guarded by conn.mu:
//
//	free -> pending -> answered -> accepted -> done -> free     its reply came
//	        pending -> cancelled -> zombie -> free              its caller gave up
//
// A slot is answered while read chunks of its reply are being fetched, accepted when
// its outcome is known but the memory that the call exposed is being fenced, and done
// when its caller may go on. The end of the connection is a fence, too: a slot that is
// accepted keeps its outcome, and the call is not made again. A cancelled slot is fenced
// before its caller goes on; then it stays a zombie, its credit and its send buffer taken,
// until the peer's reply shows that it is through with the call.
type slotState uint8

const (
	slotFree slotState = iota
	slotPending
	slotAnswered
	slotAccepted
	slotCancelled
	slotZombie
	slotDone
)

// xid = (generation << slotBits | slot number) ^ requester.mask.
const slotBits = 14

type slot struct {
	waiter // the caller
	c      *conn
	idx    uint32
	gen    uint32
	state  slotState

	stood *waiter // where the caller stood in line; until the slot is free

	foreign uint32 // the xid, if kept is set
	kept    bool

	err    error // of a slot that is done
	late   bool  // the reply came while the slot was cancelled
	fences int   // local invalidations under way

	call *Call
	op   *operation     // of the call; stays when the caller has given up
	hdr  rpcrdma.Header // of the call: what was offered
	send *arena.Buffer  // the message as sent
	long *arena.Buffer  // the RPC message of a long call
	back *arena.Buffer  // memory of the reply chunk
	msg  int            // length of the reply message in back; 0: it came inline

	lent expose.Loan // memory of the call
	pull fetch       // of a reply with read chunks
	wrs  []fabric.SendWR
	sge  [1]fabric.SGE
}

func (s *slot) xid() uint32 {
	if s.kept {
		return s.foreign
	}
	return (s.gen<<slotBits | s.idx) ^ s.c.req.mask
}

// keepXID has the call of a slot go out with an xid that is not of our making.
func (r *requester) keepXID(s *slot, xid uint32) error {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if r.lookup(xid) != nil {
		return errSameXID
	}
	if r.foreign == nil {
		r.foreign = make(map[uint32]*slot)
	}
	r.foreign[xid] = s
	s.kept, s.foreign = true, xid
	return nil
}

func (r *requester) init(c *conn) {
	r.c = c
	r.line.init()
	r.mask = uint32(c.cfg.rand())
	if c.role == roleClient {
		r.most.Store(int32(c.cfg.Credits))
		r.allowed = true
		r.grant, r.granted = 1, 1 // RFC 8166 section 3.3.3: until the first reply
	}
}

// inherit goes on with the xids of the connection before. It may live on, as far as this end
// knows: slots in use keep theirs, and callers that are in line there get some of the gap.
func (r *requester) inherit(from *requester) {
	from.c.mu.Lock()
	mask := from.mask
	gens := append([]uint32(nil), from.gens...)
	for i, s := range from.slots {
		if i == len(gens) {
			gens = append(gens, 0)
		}
		gens[i] = s.gen + inheritGap
	}
	from.c.mu.Unlock()
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if r.inUse > 0 {
		return // calls have been made with other xids already
	}
	r.mask, r.gens = mask, gens
	for i, s := range r.slots {
		if i < len(gens) {
			s.gen = gens[i]
		}
	}
}

// inheritGap is how many xids of each slot are left to the connection before. There are 2^18.
const inheritGap = 256

// allow opens the half of a server, for n calls at once.
func (r *requester) allow(n int) {
	if r.c.role == roleClient {
		return
	}
	if n <= 0 || n > r.c.cfg.BackwardCredits {
		n = r.c.cfg.BackwardCredits
	}
	r.most.Store(int32(n))
	r.c.mu.Lock()
	r.allowed = true
	r.c.mu.Unlock()
	r.chore.Store(true)
	r.c.fc.Wake()
}

// open lets the first call out when there is a receive for its reply. Leader.
func (r *requester) open() {
	r.chore.Store(false)
	r.setGrant(uint32(r.granted))
	r.c.wakeAll() // no completion may come that ends the pass
}

// acquire takes a slot for the call, or waits for one. If it had to wait, the call may
// have been made already: see startNext.
func (r *requester) acquire(ctx context.Context, call *Call) (*slot, error) {
	c := r.c
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	if err := r.refuse(); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	if r.inUse < r.grant && r.line.empty() {
		s := r.take()
		c.mu.Unlock()
		return s, nil
	}
	w := r.stand(call)
	wake := w.wake // which becomes the slot's when another makes the call
	c.mu.Unlock()
	if _, woken := sleep(ctx, wake); !woken {
		c.mu.Lock()
		if w.queued {
			r.line.remove(w)
			r.leave(w)
			c.mu.Unlock()
			return nil, ctx.Err()
		}
		if s := w.slot; s != nil && s.queued { // the call is made, its reply not in
			c.waiters.remove(&s.waiter)
			c.mu.Unlock()
		} else {
			w.leaving = true
			c.mu.Unlock()
			<-wake // given a slot at the same moment: use it
		}
	}
	if s := w.slot; s != nil {
		w.slot, s.stood = nil, w
		return s, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.leave(w)
	return nil, r.refuse()
}

// stand puts the caller in line. mu is held.
func (r *requester) stand(call *Call) *waiter {
	var w *waiter
	if n := len(r.inLine); n > 0 {
		w = r.inLine[n-1]
		r.inLine = r.inLine[:n-1]
	} else {
		w = newWaiter()
	}
	w.call, w.leaving = call, false
	r.line.push(w)
	return w
}

// leave keeps w for another caller. mu is held.
func (r *requester) leave(w *waiter) {
	w.call = nil // which is its caller's again
	r.inLine = append(r.inLine, w)
}

// refuse says why there are no new calls. mu is held.
func (r *requester) refuse() error {
	if r.c.err != nil {
		return r.c.err
	}
	if r.c.closing {
		return &ClosedError{Addr: r.c.addr(), Reason: errClosing}
	}
	if !r.allowed {
		return &NotReadyError{Addr: r.c.addr()}
	}
	return nil
}

// take takes a slot; the caller knows that there is a credit. mu is held.
func (r *requester) take() *slot {
	var s *slot
	if n := len(r.free); n > 0 {
		s = r.free[n-1]
		r.free = r.free[:n-1]
	} else {
		s = &slot{c: r.c, idx: uint32(len(r.slots)), gen: uint32(r.c.cfg.rand())}
		if i := len(r.slots); i < len(r.gens) {
			s.gen = r.gens[i]
		}
		s.lent = expose.NewLoan(&r.c.exposes)
		s.pull = fetch{c: r.c, id: wrID(wrPull, s.idx), done: s.fetched}
		s.wake = make(chan bool, 1)
		r.slots = append(r.slots, s)
	}
	for r.foreign[s.xid()] != nil {
		s.gen++
	}
	r.inUse++
	s.ready, s.err, s.late = false, nil, false
	return s
}

// release frees a slot that the peer owes nothing any more, and returns the
// caller in line that was given it, to be woken. mu is held.
func (r *requester) release(s *slot) *waiter {
	s.state = slotFree
	if s.kept {
		delete(r.foreign, s.foreign)
		s.kept = false
	}
	s.gen++
	s.call, s.op = nil, nil
	if s.stood != nil {
		r.leave(s.stood)
		s.stood = nil
	}
	r.free = append(r.free, s)
	r.inUse--
	if r.inUse == 0 && r.c.ended {
		r.c.arena.Drop() // which finish left to the last call
	}
	if r.inUse == 0 && r.drained != nil {
		w := r.drained
		r.drained = nil
		return w
	}
	return r.nextInLine()
}

// nextInLine gives a slot to the first caller in line, if there is a credit.
// mu is held.
func (r *requester) nextInLine() *waiter {
	if r.inUse >= r.grant || r.c.ended {
		return nil
	}
	w := r.line.pop()
	if w != nil {
		w.slot = r.take()
	}
	return w
}

// giveBack releases the slot of a call that is over.
func (s *slot) giveBack() {
	c := s.c
	c.mu.Lock()
	w := c.req.release(s)
	c.mu.Unlock()
	switch {
	case w == nil:
	case w.slot != nil && w.slot.plain(w.call):
		w.slot.startNext(w)
	default:
		w.wake <- false
	}
}

// plain tells whether the call is made in no time: it goes inline, and so does its reply.
func (s *slot) plain(call *Call) bool {
	return call.op == nil && call.raw == nil && !call.sent && len(call.ReadItems)+len(call.WriteItems) == 0 &&
		len(call.Args) <= s.c.sendMax()/2 && call.MaxResults <= s.c.recvMax()/2
}

// startNext makes the call of w, a caller in line that was given s: it sleeps once, until
// its reply is in, and not for the credit first. What happens before w is among the
// followers wakes nobody, so that is looked at when w joins them.
func (s *slot) startNext(w *waiter) {
	c := s.c
	err := s.build(w.call)
	if err == nil {
		_, err = s.launch(false)
	}
	if err != nil {
		s.unexpose()
		s.call = nil // w makes it again, and meets the error
		w.wake <- false
		return
	}
	c.mu.Lock()
	s.wake, w.wake = w.wake, s.wake
	if c.leading && !s.ready && !c.ended && !w.leaving {
		c.waiters.push(&s.waiter)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	s.wake <- false
}

// call makes one call, or makes it again if it has been sent on another connection.
// See Client.Call.
func (c *conn) call(ctx context.Context, call *Call) error {
	s, err := c.req.acquire(ctx, call)
	if err != nil {
		return err
	}
	follows := false
	if s.call == nil { // else it has been made by another, in line
		if err := s.build(call); err != nil {
			s.unexpose()
			s.giveBack()
			if !errors.Is(err, net.ErrClosed) {
				if call.sent { // on an earlier connection
					return &LostError{Addr: c.addr(), Sent: true, Reason: err}
				}
				return err
			}
			// The adapter has learned of the connection's end before us. Its reason comes
			// from what waits for it.
			if err := c.await(ctx, newWaiter()); err != nil {
				return err
			}
			return c.endErr()
		}
		if follows, err = s.launch(true); err != nil {
			s.unexpose()
			s.giveBack()
			return err
		}
	}

	done := false
	if follows {
		done, err = c.follow(ctx, &s.waiter)
	}
	if !done {
		err = c.await(ctx, &s.waiter)
	}
	if err != nil && s.cancel() {
		return err
	}
	if err = s.err; err == nil {
		err = s.results()
	}
	s.unexpose()
	s.giveBack()
	return err
}

// launch sends the message that build has formed. With follow the caller is among the
// followers before a reply can come, if somebody leads.
func (s *slot) launch(follow bool) (follows bool, err error) {
	c, call := s.c, s.call
	c.mu.Lock()
	if err := c.req.refuse(); err != nil {
		c.mu.Unlock()
		return false, err
	}
	s.state = slotPending
	others := c.req.inUse > 1
	if follows = follow && c.leading; follows {
		c.waiters.push(&s.waiter) // now, while the lock is held
	}
	c.mu.Unlock()
	if call.sent {
		c.stats.resent.Add(1)
	}
	call.xid, call.sent = s.xid(), true
	if call.op != nil {
		c.stats.optional.Add(1)
	} else {
		c.stats.calls.Add(1)
		c.countCall(&s.hdr)
	}
	c.sq.post(s.wrs, others)
	return follows, nil
}

// results takes the reply message apart. The slot is done: nobody else touches
// the memory.
func (s *slot) results() error {
	call := s.call
	if call.op != nil {
		return nil
	}
	if s.msg > 0 {
		call.store = append(call.store[:0], s.back.Bytes[:s.msg]...)
	}
	n, err := oncrpc.ConsumeReply(call.store, &call.Reply)
	if err != nil {
		return &ReplyError{XID: s.xid(), Reason: err.Error()}
	}
	if call.Reply.XID != s.xid() {
		return &ReplyError{XID: s.xid(), Reason: "its RPC message has another xid"}
	}
	if call.raw != nil {
		call.Results = call.store
		return nil
	}
	call.Results = call.store[n:]
	err = call.Reply.Err()
	if refused, ok := err.(*oncrpc.RPCError); ok {
		refused.Prog, refused.Vers, refused.Proc = call.Prog, call.Vers, call.Proc
	}
	return err
}

// cancel ends a call whose caller does not wait for the reply any more. It
// returns when the peer cannot reach the call's memory. False means that the
// reply was there already, and the call is done in the ordinary way.
func (s *slot) cancel() bool {
	c := s.c
	c.mu.Lock()
	if s.state != slotPending {
		c.mu.Unlock()
		s.awaitFence()
		return false
	}
	s.state = slotCancelled
	s.wrs = s.lent.Revoke(s.wrs[:0], wrID(wrInv, s.idx))
	s.fences = len(s.wrs)
	c.mu.Unlock()
	c.stats.cancelled.Add(1)
	if len(s.wrs) > 0 {
		c.sq.post(s.wrs, false)
		s.awaitFence()
	}
	if s.lent.Len() > 0 && c.caps.WeakRevocation {
		// The peer may be in the middle of an access, and only the connection's
		// end stops that.
		c.breakOff(errWeakFence)
	}
	s.lent.Withdraw()
	s.unexpose()

	c.mu.Lock()
	var w *waiter
	if s.late || c.ended {
		w = c.req.release(s)
	} else {
		s.state = slotZombie
		s.call = nil
	}
	c.mu.Unlock()
	if w != nil {
		w.wake <- false
	}
	return true
}

// fencePatience is how long a caller whose context has ended waits for the
// invalidation of its memory. It takes its turn behind what was posted before, and a
// peer that takes nothing can hold that up for ever.
const fencePatience = time.Second

// awaitFence waits until the call's memory is closed, at the price of the
// connection if there is no other way: its end is a fence, too.
func (s *slot) awaitFence() {
	ctx, stop := context.WithTimeout(context.Background(), fencePatience)
	defer stop()
	if s.c.await(ctx, &s.waiter) != nil {
		s.c.breakOff(errStuck)
		s.c.await(context.Background(), &s.waiter)
	}
}

// lookup finds the call that a message is about. mu is held.
func (r *requester) lookup(xid uint32) *slot {
	if s := r.foreign[xid]; s != nil {
		return s
	}
	i := (xid ^ r.mask) & (1<<slotBits - 1)
	if int(i) >= len(r.slots) || r.slots[i].state == slotFree || r.slots[i].xid() != xid {
		return nil
	}
	return r.slots[i]
}

// slot returns the slot of the given number. Leader.
func (r *requester) slot(n uint32) *slot {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.slots[n]
}

// knows tells whether xid is one of our calls. Leader.
func (r *requester) knows(xid uint32) bool {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.lookup(xid) != nil
}

// answer finds the call that a message answers and marks it as answered. It
// returns nil when nobody waits for the answer. Leader.
func (r *requester) answer(xid uint32) *slot {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s := r.lookup(xid)
	switch {
	case s != nil && s.state == slotPending:
		s.state = slotAnswered
		r.answered = true
		return s
	case s != nil && s.state == slotZombie:
		if w := r.release(s); w != nil {
			c.wakes = append(c.wakes, w)
		}
	case s != nil && s.state == slotCancelled:
		s.late = true
	}
	c.stats.dropped.Add(1)
	return nil
}

// reply handles a message that is the reply to a call. Leader.
func (r *requester) reply(h *rpcrdma.Header, payload []byte, wc *fabric.WC) {
	if r.granted > 0 && (h.Proc == rpcrdma.ProcMsg || r.knows(h.XID)) {
		r.setGrant(h.Credit)
	}
	s := r.answer(h.XID)
	if s == nil {
		if wc.WithInv && r.exposes(wc.InvalidatedKey) {
			r.c.die(errInvalidate)
		}
		return
	}
	r.c.stats.replies.Add(1)
	r.c.streak++
	if wc.WithInv {
		if !s.lent.Invalidated(wc.InvalidatedKey) {
			r.c.die(errInvalidate)
		}
		r.c.stats.remoteInv.Add(1)
	}
	s.err = s.accept(h, payload)
	if len(h.Reads) == 0 || !r.c.readReplies() {
		s.fence()
		return
	}
	if s.err == nil {
		s.err = s.fetchReply(h, payload)
	}
	if s.err != nil {
		s.sayDone() // the server holds memory for us all the same
	}
}

// accepted makes the outcome of an answered call final. Leader.
func (s *slot) accepted() {
	s.c.mu.Lock()
	s.state = slotAccepted
	s.c.mu.Unlock()
}

// exposes tells whether a pending call has exposed memory with this handle. A
// late reply may invalidate what its own call had exposed, and nothing else.
// Leader.
func (r *requester) exposes(key uint32) bool {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	for _, s := range r.slots {
		if s.state == slotPending && s.lent.Invalidated(key) {
			return true
		}
	}
	return false
}

// setGrant takes the credits of a reply: an absolute value, in which zero counts
// as one (RFC 8166 section 3.3.1). The receives for that many replies are posted
// before more calls are let go. Leader.
func (r *requester) setGrant(credit uint32) {
	c := r.c
	n := int(min(max(credit, 1), uint32(r.most.Load())))
	if n == r.granted {
		return
	}
	if before := r.recvs; n > before {
		r.recvs = n
		if err := c.growReceives(); err != nil {
			if before == 0 {
				c.die(err)
				return
			}
			r.recvs, n = before, before
		}
	}
	r.granted = n
	c.mu.Lock()
	if n != r.grant {
		r.grant = n
		for w := r.nextInLine(); w != nil; w = r.nextInLine() {
			c.wakes = append(c.wakes, w)
		}
	}
	c.mu.Unlock()
}

// accept checks a reply against what its call offered and takes the inline part
// out of the receive buffer. Leader.
func (s *slot) accept(h *rpcrdma.Header, payload []byte) error {
	bad := func(reason string) error { return &ReplyError{XID: h.XID, Reason: reason} }
	call, c := s.call, s.c
	if call.op != nil {
		return bad("the call was an optional operation")
	}
	call.replied = h.Vers
	if len(h.Reads) > 0 && !c.readReplies() {
		return bad("it has a read list")
	}
	if len(h.Writes) > len(s.hdr.Writes) {
		return bad("it returns more write chunks than the call offered")
	}
	placed := false
	for i, chunk := range h.Writes {
		n, ok := returned(chunk, s.hdr.Writes[i])
		if !ok {
			return bad("it returns a write chunk that the call did not offer")
		}
		w := &call.WriteItems[i]
		w.N = min(n, len(w.Buf))
		w.Chunked = n > 0
		placed = placed || w.Chunked
	}
	if placed {
		c.stats.writeChunk.Add(1)
	}
	n := 0
	if h.HasReply {
		var ok bool
		if n, ok = returned(h.Reply, s.hdr.Reply); !ok || !s.hdr.HasReply {
			return bad("it returns a reply chunk that the call did not offer")
		}
	}
	switch {
	case len(h.Reads) > 0 && n > 0:
		return bad("it is in read chunks and in the reply chunk")
	case len(h.Reads) > 0: // fetchReply gets it
	case h.Proc == rpcrdma.ProcMsg && n > 0:
		return bad("it is inline and in the reply chunk")
	case h.Proc == rpcrdma.ProcNomsg && n == 0:
		return bad("it has no message")
	case h.Proc == rpcrdma.ProcMsg:
		call.store = append(call.store[:0], payload...)
	default:
		if n > len(s.back.Bytes) {
			return bad("it is longer than the reply chunk")
		}
		c.stats.replyChunk.Add(1)
	}
	s.msg = n
	return nil
}

// returned compares a chunk in a reply with the one that was offered: the same
// segments, of which lengths may have become smaller. It returns the number of
// bytes the peer says it has written. An unused chunk may have lost its
// segments. A length may include XDR padding (RFC 5666 section 3.7).
func returned(got, offered rpcrdma.WriteChunk) (n int, ok bool) {
	if len(got) == 0 {
		return 0, true
	}
	if len(got) != len(offered) {
		return 0, false
	}
	for i, g := range got {
		o := offered[i]
		if g.Handle != o.Handle || g.Offset != o.Offset || uint64(g.Length) > (uint64(o.Length)+3)&^3 {
			return 0, false
		}
		n += int(g.Length)
	}
	return n, true
}

// rdmaError handles an RDMA_ERROR: the peer refused a call of ours. Its credits
// say nothing (RFC 5666 section 6.1: only a valid reply opens the window).
// Leader.
func (r *requester) rdmaError(h *rpcrdma.Header) {
	if h.Err == rpcrdma.ErrVers {
		r.c.stats.errVers.Add(1)
	} else {
		r.c.stats.errChunk.Add(1)
	}
	if s := r.answer(h.XID); s != nil {
		s.call.replied = h.Vers
		s.err = &RDMAError{XID: h.XID, Vers: s.hdr.Vers, Code: h.Err, VersLow: h.VersLow, VersHi: h.VersHigh}
		s.fence()
	}
}

// malformed handles a message that names a call of ours but cannot be its
// reply: the call fails, the connection lives. Leader.
func (r *requester) malformed(xid uint32, reason string) {
	if s := r.answer(xid); s != nil {
		s.err = &ReplyError{XID: xid, Reason: reason}
		s.fence()
	}
}

// fence invalidates what is still exposed of an answered call, and completes the
// call if nothing is. Leader.
func (s *slot) fence() {
	c := s.c
	s.wrs = s.lent.Revoke(s.wrs[:0], wrID(wrInv, s.idx))
	n := len(s.wrs)
	if n > 0 {
		c.sq.add(s.wrs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.fences, s.state = n, slotAccepted
	if n == 0 {
		s.finish() // the slot may be its caller's from here on
	}
}

// invalidated handles the completion of a local invalidation of slot n. One that has
// failed has done so because the connection has ended, which is the fence then, but only once
// it has been closed: see fail. The window is bound, and of no use for another call that
// comes before that is known. Leader.
func (r *requester) invalidated(n uint32, ok bool) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s := r.slots[n]
	if !ok {
		s.lent.Abandon()
		return
	}
	if s.fences--; s.fences > 0 {
		return
	}
	switch s.state {
	case slotAccepted:
		s.finish()
	case slotCancelled:
		c.markReady(&s.waiter)
	}
}

// finish completes a call. mu is held. Leader.
func (s *slot) finish() {
	s.state = slotDone
	s.c.req.completed++
	s.c.markReady(&s.waiter)
}

// fail ends all calls with the connection. The adapter has let go of all memory
// already. mu is held. Leader.
func (r *requester) fail(err error) {
	for _, s := range r.slots {
		switch s.state {
		case slotPending, slotAnswered:
			s.err = err
			s.finish()
		case slotAccepted:
			s.finish()
		case slotCancelled:
			r.c.markReady(&s.waiter)
		case slotZombie:
			s.state = slotFree
			r.inUse--
		}
	}
	for w := r.line.pop(); w != nil; w = r.line.pop() {
		r.c.wakes = append(r.c.wakes, w)
	}
	if r.drained != nil {
		r.c.wakes = append(r.c.wakes, r.drained)
		r.drained = nil
	}
}
