package transport

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// The calls that an end makes: from the caller, through a slot, and back.

// call makes one call, or makes it again if it has been sent on another connection.
// See Client.Call.
func (c *conn) call(ctx context.Context, call *pendingCall) error {
	s, err := c.acquire(ctx, call)
	if err != nil {
		return err
	}
	follows := false
	if s.call == nil { // otherwise another goroutine has made it: see startNext
		if err := s.build(call); err != nil {
			s.unexpose()
			s.giveBack()
			return c.unbuilt(ctx, call, err)
		}
		if follows, err = s.launch(true); err != nil {
			s.unexpose()
			s.giveBack()
			return err
		}
	}

	returned := false
	defer func() {
		if !returned {
			s.desert()
		}
	}()
	done := false
	if follows {
		done, err = c.follow(ctx, s.waiter)
	}
	if !done {
		err = c.await(ctx, s.waiter)
	}
	returned = true
	if err != nil && s.cancel() {
		return err
	}
	err = s.finish()
	s.giveBack()
	return err
}

// start makes a call that no goroutine waits for, if there is a credit: see rpc.Conn.
func (c *conn) start(call *pendingCall, ended func(error)) bool {
	st := c.state.Lock()
	if !st.calls.makeRoom() || st.refuse() != nil {
		c.state.Unlock()
		return false
	}
	w := st.calls.caller()
	s := st.calls.take(w)
	s.begin(w)
	s.ended, s.starting = ended, true
	c.state.Unlock()
	err := s.build(call)
	if err == nil {
		_, err = s.launch(false)
	}
	if err != nil {
		s.unexpose()
		s.giveBack()
		return false
	}
	c.state.Lock()
	s.starting = false
	over := s.state == slotDone
	c.state.Unlock()
	if over {
		go s.endStarted() // the caller may hold locks that ended needs
	}
	return true
}

// endStarted ends a call that no goroutine waits for.
func (s *slot) endStarted() {
	ended, err := s.ended, s.finish()
	s.giveBack()
	ended(err)
}

// endStarted ends calls that no goroutine waits for.
func (l *leader) endStarted() {
	for len(l.ended) > 0 {
		s := l.ended[0]
		l.ended = slices.Delete(l.ended, 0, 1)
		s.endStarted()
	}
}

// desert cancels a call when its goroutine is ending: it led, and an Inline handler has called runtime.Goexit.
func (s *slot) desert() {
	if !s.cancel() {
		_ = s.finish()
		s.giveBack()
	}
}

// finish takes the results of a completed slot, and reclaims all of its memory.
func (s *slot) finish() error {
	err := s.err
	if err == nil {
		err = s.results()
	}
	s.unexpose()
	return err
}

// unbuilt returns the error of a call that could not be built.
func (c *conn) unbuilt(ctx context.Context, call *pendingCall, err error) error {
	switch {
	case errors.Is(err, net.ErrClosed):
		// The adapter knew of the connection's end before us. Waiting returns the reason.
		if err := c.await(ctx, newWaiter()); err != nil {
			return err
		}
		return c.endErr()
	case call.sent: // on an earlier connection
		return &rpc.LostError{Addr: c.addr(), Sent: true, Reason: err}
	}
	return err
}

// launch sends the message that build has built. With follow the caller becomes a follower before a reply can arrive,
// if a goroutine leads.
func (s *slot) launch(follow bool) (follows bool, err error) {
	c := s.c
	st := c.state.Lock()
	if err := st.refuse(); err != nil {
		c.state.Unlock()
		return false, err
	}
	s.state = slotPending
	others := st.inUse > 1
	if follows = follow && st.taken(); follows {
		st.baton.Join(&s.Waiter) // now, while the lock is held
	}
	c.state.Unlock()
	s.leaves()
	c.sends.post(s.wrs, others)
	return follows, nil
}

// leaves records that the call is about to be sent.
func (s *slot) leaves() {
	c, call := s.c, s.call
	if call.sent {
		inc(&c.stats.Resent)
	}
	if e := call.event; e != nil {
		e.left(&c.public, s.xid, call.sent, s.request())
	}
	call.xid, call.sent = s.xid, true
	if call.op != nil {
		inc(&c.stats.Optional)
	} else {
		inc(&c.stats.Calls)
		c.countCall(&s.hdr)
	}
}

// results parses the reply message. The slot is done: no other goroutine accesses the memory.
func (s *slot) results() error {
	call := s.call
	if call.op != nil {
		return nil
	}
	if s.msg > 0 {
		call.store = append(call.store[:0], s.reply[:s.msg]...)
	}
	for i := range call.WriteItems {
		if w := &call.WriteItems[i]; w.Chunked {
			s.lent.Fetch(i, w.N) // write items are exposed first
		}
	}
	return call.takeReply(s.xid)
}

// takeReply parses the reply message in the call's store.
func (call *pendingCall) takeReply(xid uint32) error {
	n, err := oncrpc.ConsumeReply(call.store, &call.Reply)
	if err != nil {
		return &rpc.BadReplyError{XID: xid, Reason: err.Error()}
	}
	if call.Reply.XID != xid {
		return &rpc.BadReplyError{XID: xid, Reason: "its RPC message has another xid"}
	}
	if call.raw != nil {
		call.Results = call.store
		return nil
	}
	call.Results = call.store[n:]
	err = call.Reply.Err()
	if refused, ok := err.(*oncrpc.RPCError); ok {
		refused.Prog, refused.Vers, refused.Proc, refused.Names = call.Prog, call.Vers, call.Proc, call.Names
	}
	return err
}

// giveBack releases the slot of a call that is over.
func (s *slot) giveBack() {
	c := s.c
	w := c.state.Lock().release(s)
	c.state.Unlock()
	c.handOn(w)
}

// handOn lets the caller that release has returned continue, if there is one. If its call is cheap to make, handOn
// makes it.
func (c *conn) handOn(w *waiter) {
	switch {
	case w == nil:
	case w.call != nil && c.plain(w.call):
		c.startNext(w)
	default:
		w.Wake(true)
	}
}

// plain reports whether call and reply both fit inline, so that the call is cheap to make.
func (c *conn) plain(call *pendingCall) bool {
	return call.op == nil && call.raw == nil && call.Sign == nil && !call.sent && !call.hasItems() &&
		len(call.Args) <= c.sendMax()/2 && call.MaxResults <= c.recvMax()/2
}

// startNext makes the call of w, a waiting caller that has been given a slot. So w sleeps only once, until its reply
// has arrived, instead of first sleeping until it has a credit. With four times as many callers as credits that saves a
// fifth of the processor time of a call (ADR 22). Events before w is among the followers wake no goroutine, so w checks
// for them when it joins.
func (c *conn) startNext(w *waiter) {
	s := c.state.Lock().calls.underWay.Find(w.xid)
	c.state.Unlock()
	s.begin(w)
	err := s.build(w.call)
	if err == nil {
		_, err = s.launch(false)
	}
	if err != nil {
		s.unexpose()
		s.call = nil // w makes it again, and gets the error
		w.Wake(true)
		return
	}
	st := c.state.Lock()
	if st.taken() && !s.ready && !st.ended() && !w.leaving {
		st.baton.Join(&w.Waiter)
		c.state.Unlock()
		return
	}
	c.state.Unlock()
	w.Wake(true)
}

// ---- callers that give up

// cancel ends a call when its caller no longer waits for the reply. When it returns, the peer cannot reach the call's
// memory. It returns false if the reply had already arrived; the call is then completed as usual.
func (s *slot) cancel() bool {
	c := s.c
	st := c.state.Lock()
	if s.state != slotPending {
		c.state.Unlock()
		s.awaitFence()
		return false
	}
	s.state = slotCanceled
	s.wrs = s.lent.Revoke(s.wrs[:0], wrID(wrInv, s.idx))
	s.fences = len(s.wrs)
	st.wary = waryLeads
	c.state.Unlock()
	inc(&c.stats.Canceled)
	if len(s.wrs) > 0 {
		c.sends.post(s.wrs, false)
		s.awaitFence()
	}
	if c.caps.WeakRevocation && s.lent.Direct() {
		// The peer may be in the middle of an access, and only the connection's end stops that.
		c.breakOff(errWeakFence)
	}
	s.lent.Withdraw()
	s.lent.GiveUp()
	s.giveBuffersBack()

	c.state.Lock()
	var w *waiter
	if s.late || st.ended() {
		w = st.release(s)
	} else {
		s.state = slotZombie
		s.call = nil
		st.givenUp++
	}
	c.state.Unlock()
	c.handOn(w)
	return true
}

// fencePatience is how long a caller waits for the invalidation of its memory after its context has ended. The
// invalidation is queued after earlier requests, and a peer that takes nothing can delay it forever.
const fencePatience = time.Second

// awaitFence waits until the call's memory is closed. If there is no other way it ends the connection, which is a
// fence, too.
func (s *slot) awaitFence() {
	ctx, stop := context.WithTimeout(context.Background(), fencePatience)
	defer stop()
	if s.c.await(ctx, s.waiter) != nil {
		s.c.breakOff(errStuck)
		s.c.await(context.Background(), s.waiter)
	}
}

// ---- replies

// slot returns the slot with the given number.
func (l *leader) slot(n uint32) *slot {
	defer l.c.state.Unlock()
	return l.c.state.Lock().calls.all[n]
}

// answered finds the call that a message answers and marks it as answered. It returns nil
// when no caller waits for the answer.
func (l *leader) answered(xid uint32) *slot {
	st := l.c.state.Lock()
	s := st.calls.underWay.Find(xid)
	ours := s != nil && s.state == slotPending
	switch {
	case ours:
		s.state = slotAnswered
		st.answered = true
		st.answers++
	case s != nil && s.state == slotZombie:
		st.answers++
		st.release(s).goOn()
	case s != nil && s.state == slotCanceled && !s.late:
		st.answers++
		s.late = true
	}
	l.c.state.Unlock()
	if !ours {
		inc(&l.c.stats.Dropped)
		return nil
	}
	if e := s.call.event; e != nil {
		e.met()
	}
	return s
}

// replyReceived processes a message that is the reply to a call.
func (l *leader) replyReceived(h *rpcrdma.Header, payload []byte, wc *fabric.WC) {
	c := l.c
	if l.granted > 0 && (h.Proc == rpcrdma.ProcMsg || c.knows(h.XID)) {
		l.setGrant(h.Credit)
	}
	s := l.answered(h.XID)
	if s == nil {
		if wc.WithInv && l.exposed(wc.InvalidatedKey) {
			l.fail(errInvalidate)
		}
		return
	}
	inc(&c.stats.Replies)
	l.streak++
	l.turn = true
	if wc.WithInv {
		if !s.lent.Invalidated(wc.InvalidatedKey) {
			l.fail(errInvalidate)
		}
		inc(&c.stats.Invalidated)
	}
	s.err = l.acceptReply(s, h, payload)
	if len(h.Reads) == 0 || !c.readReplies() {
		l.fence(s)
		return
	}
	if s.err == nil {
		s.err = l.fetchReply(s, h, payload)
	}
	if s.err != nil {
		l.sayDone(s) // the server still holds memory for us
	}
}

// exposed reports whether a pending call has exposed memory with this handle. A late reply may only invalidate memory
// that its own call had exposed.
func (l *leader) exposed(key uint32) bool {
	defer l.c.state.Unlock()
	for _, s := range l.c.state.Lock().calls.all {
		if s.state == slotPending && s.lent.Invalidated(key) {
			return true
		}
	}
	return false
}

// acceptReply checks a reply against the offers of its call, and copies the inline part out of the receive buffer.
func (l *leader) acceptReply(s *slot, h *rpcrdma.Header, payload []byte) error {
	bad := func(reason string) error { return &rpc.BadReplyError{XID: h.XID, Reason: reason} }
	call, c := s.call, l.c
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
		n, ok := plan.Returned(chunk, s.hdr.Writes[i])
		if !ok {
			return bad("it returns a write chunk that the call did not offer")
		}
		w := &call.WriteItems[i]
		w.N = min(n, w.Len())
		w.Chunked = n > 0
		placed = placed || w.Chunked
	}
	if placed {
		inc(&c.stats.WriteChunk)
	}
	n := 0
	if h.HasReply {
		var ok bool
		if n, ok = plan.Returned(h.Reply, s.hdr.Reply); !ok || !s.hdr.HasReply {
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
		if n > len(s.reply) {
			return bad("it is longer than the reply chunk")
		}
		inc(&c.stats.ReplyChunk)
	}
	s.msg = n
	if e := call.event; e != nil {
		e.Reply = replyTransfer(h, len(payload))
	}
	return nil
}

// errorReceived processes an RDMA_ERROR: the peer refused a call of ours. Its credits are ignored (RFC 5666 section
// 6.1: only a valid reply opens the window).
func (l *leader) errorReceived(h *rpcrdma.Header) {
	if h.Err == rpcrdma.ErrVers {
		inc(&l.c.stats.ErrVers)
	} else {
		inc(&l.c.stats.ErrChunk)
	}
	if s := l.answered(h.XID); s != nil {
		s.call.replied = h.Vers
		e := &rpc.RDMAError{XID: h.XID, Vers: s.hdr.Vers, Code: h.Err, VersLow: h.VersLow, VersHigh: h.VersHigh}
		if h.Err != rpcrdma.ErrVers {
			e.MaxResults = s.call.MaxResults
			for i := range s.call.WriteItems {
				e.WriteItems = append(e.WriteItems, s.call.WriteItems[i].Len())
			}
		}
		s.err = e
		l.fence(s)
	}
}

// malformed processes a message that has the xid of a call of ours but cannot be its reply: the call fails, and the
// connection continues.
func (l *leader) malformed(xid uint32, reason string) {
	l.c.public.refused(xid, &rpc.BadReplyError{XID: xid, Reason: reason})
	if s := l.answered(xid); s != nil {
		s.err = &rpc.BadReplyError{XID: xid, Reason: reason}
		l.fence(s)
	}
}

// ---- fences

// fence invalidates the memory of an answered call that is still exposed, and completes the call if there is no such
// memory.
func (l *leader) fence(s *slot) {
	c := l.c
	s.wrs = s.lent.Revoke(s.wrs[:0], wrID(wrInv, s.idx))
	n := len(s.wrs)
	if n > 0 {
		c.sends.add(s.wrs)
	}
	st := c.state.Lock()
	s.fences, s.state = n, slotAccepted
	if n == 0 {
		l.completeCall(st, s) // the caller may own the slot from here on
	}
	c.state.Unlock()
}

// invalidated processes the completion of a local invalidation of slot n. If it has failed, the connection has ended,
// which is the fence then, but only once it has been closed: see failCalls. The window is still bound, and cannot be
// used by another call made before that is known.
func (l *leader) invalidated(n uint32, ok bool) {
	st := l.c.state.Lock()
	defer l.c.state.Unlock()
	s := st.calls.all[n]
	if !ok {
		s.lent.Abandon()
		return
	}
	if s.fences--; s.fences > 0 {
		return
	}
	switch s.state {
	case slotAccepted:
		l.completeCall(st, s)
	case slotCanceled:
		l.markReady(st, s.waiter)
	}
}

// completeCall returns a slot to its caller.
func (l *leader) completeCall(st *state, s *slot) {
	s.state = slotDone
	if l.completed++; l.completed%restCalls == 0 {
		l.restReplies(st)
	}
	w := s.waiter
	if s.ended != nil {
		if !s.starting { // otherwise the goroutine that started it still uses the slot
			l.ended = append(l.ended, s)
		}
		return
	}
	if s.lane != nil {
		s.lane.ended = append(s.lane.ended, s)
		w = &s.lane.waiter
	}
	l.markReady(st, w)
}

// failCalls ends all calls with the connection. The adapter has released all memory
// already.
func (l *leader) failCalls(st *state) {
	t := &st.calls
	for _, s := range t.all {
		switch s.state {
		case slotPending, slotAnswered:
			s.err = st.err
			l.completeCall(st, s)
		case slotAccepted:
			l.completeCall(st, s)
		case slotCanceled:
			l.markReady(st, s.waiter)
		case slotZombie:
			s.state = slotFree
			s.lent.Settle()
			t.inUse--
			t.givenUp--
		}
	}
	t.fail()
}
