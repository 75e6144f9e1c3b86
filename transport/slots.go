package transport

import (
	"context"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/baton"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
	"github.com/rpcrdma/rpcrdma/transport/internal/reads"
)

// Slots and credits of the calls that an end makes.
//
// A slot is a place for a call, with everything that the call needs. Taking a slot is
// taking a credit. A reply finds its call in a table, by the low bits of the xid: xids are
// numbers that follow one another, so that calls under way seldom share a place in it.
//
// A client may call from the start. A server may once the upper layer has said that the
// client is ready for it (RFC 8167 section 6).

// A slotTable is the slots of a connection. It is part of the connection's state.
type slotTable struct {
	*life  // of the connection; its inUse counts slots that are not free: calls without a reply
	c      *conn
	slots  []*slot
	places []*slot // those taken, by the low bits of the xid; a power of two, twice the slots or more
	free   []*slot
	grant  int                // the latest grant, within what we asked for
	queue  baton.Line[waiter] // callers that wait for a slot, first come, first served
	spare  []*waiter          // waiters not in use
}

// xids numbers the calls that one end makes to a peer, on whatever connections: those that follow
// one another, and those that a Group has at the same time. A reply cache knows a call that is sent
// again by its xid, and so an xid must not come again while a cache may remember it. 2^32 calls
// take longer than the two minutes for which servers do.
type xids struct{ last atomic.Uint32 }

// newXIDs begins at random: a server tells two clients on one host apart by their xids.
func newXIDs(cfg *Config) *xids {
	x := new(xids)
	x.last.Store(uint32(cfg.rand()))
	return x
}

func (x *xids) next() uint32 { return x.last.Add(1) }

// A slot's life:
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

// A slot is a call under way. waiter, state, late, fences, lane, beside and the xid are guarded by
// the connection's state. The rest is the caller's until the call is pending, the leader's
// until it is done or cancelled, then the caller's again.
type slot struct {
	waiter // the caller
	c      *conn
	idx    uint32
	state  slotState
	late   bool // the reply came while the slot was cancelled
	fences int  // local invalidations under way

	ticket *waiter // that the caller has waited with for the slot; until the slot is free

	lane *rdmaLane // that the call belongs to, instead of to a goroutine of its own; or nil

	xid    uint32 // of the call
	beside *slot  // the next one at the same place of the table

	err   error // of a slot that is done
	call  *Call
	op    *operation     // of the call; stays when the caller has given up
	hdr   rpcrdma.Header // of the call: what was offered
	send  *arena.Buffer  // the message as sent
	long  *arena.Buffer  // the RPC message of a long call, unless it is in a bounce buffer
	back  *arena.Buffer  // memory of the reply chunk, likewise
	reply []byte         // the same, wherever it is
	msg   int            // length of the reply message in it; 0: it came inline

	scratch
	lent expose.Loan   // memory of the call
	pull reads.Message // of a reply with read chunks
	wrs  []fabric.SendWR
	sge  [1]fabric.SGE
}

func (t *slotTable) init(c *conn, lf *life) {
	t.c, t.life = c, lf
	t.places = make([]*slot, 2)
	if c.role == roleClient {
		t.setGrant(1) // RFC 8166 section 3.3.3: until the first reply
	}
}

func (t *slotTable) setGrant(n int) {
	t.grant = n
	t.c.granted.Store(int32(n))
}

// place is where the table has the calls with xid.
func (t *slotTable) place(xid uint32) **slot { return &t.places[xid&uint32(len(t.places)-1)] }

// lookup finds the call that a message is about.
func (t *slotTable) lookup(xid uint32) *slot {
	s := *t.place(xid)
	for s != nil && s.xid != xid {
		s = s.beside
	}
	return s
}

// enter puts a slot into the table.
func (t *slotTable) enter(s *slot) {
	p := t.place(s.xid)
	s.beside, *p = *p, s
}

// remove takes a slot out of the table.
func (t *slotTable) remove(s *slot) {
	p := t.place(s.xid)
	for *p != s {
		p = &(*p).beside
	}
	*p, s.beside = s.beside, nil
}

// knows reports whether xid is one of our calls.
func (c *conn) knows(xid uint32) bool {
	s := c.state.Lock().calls.lookup(xid)
	defer c.state.Unlock()
	return s != nil && s.state != slotFree
}

// keepXID has the call of a slot go out with an xid that it has already.
func (c *conn) keepXID(s *slot, xid uint32) error {
	t := &c.state.Lock().calls
	defer c.state.Unlock()
	if o := t.lookup(xid); o != nil && o != s {
		return errSameXID
	}
	t.remove(s)
	s.xid = xid
	t.enter(s)
	return nil
}

// counter returns the xids of a connection that is made.
func (c *config) counter() *xids {
	if c.xids != nil {
		return c.xids
	}
	return newXIDs(&c.Config)
}

// inherit shares the xids of the connection before, and is as wary of calls that are given up.
func (c *conn) inherit(from connection) {
	wary := 0
	if old, ok := from.(*conn); ok {
		wary = old.state.Lock().wary
		old.state.Unlock()
	}
	c.core.inherit(from)
	c.state.Lock().wary = wary
	c.state.Unlock()
}

// allow opens a server's way to call, for n calls at once.
func (c *conn) allow(n int) {
	if c.role == roleClient {
		return
	}
	if n <= 0 || n > c.cfg.BackwardCredits {
		n = c.cfg.BackwardCredits
	}
	c.mostCalls.Store(int32(n))
	c.state.Lock().calls.allowed = true
	c.state.Unlock()
	c.ask((*leader).openCalls)
}

// openCalls lets a server's first calls out when there are receives for their replies.
func (l *leader) openCalls() { l.setGrant(uint32(l.granted)) }

// acquire takes a slot for the call, or waits for one. If it had to wait, the call may
// have been made already, see startNext, unless it is nil: then the slot is for any.
func (c *conn) acquire(ctx context.Context, call *Call) (*slot, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	st := c.state.Lock()
	t := &st.calls
	if err := st.refuse(); err != nil {
		c.state.Unlock()
		return nil, err
	}
	if t.inUse < t.grant && t.queue.Empty() {
		s := t.take()
		c.state.Unlock()
		return s, nil
	}
	w := t.enqueue(call)
	bell := w.Bell() // which becomes the slot's when another makes the call
	c.state.Unlock()
	if call == nil || call.event != nil {
		c.public.notice(Notice{Kind: NoticeCreditStall})
	}
	if _, woken := baton.SleepOn(ctx, bell); !woken {
		c.state.Lock()
		if t.queue.Remove(&w.Waiter) {
			t.putBack(w)
			c.state.Unlock()
			return nil, ctx.Err()
		}
		if s := w.slot; s != nil && st.baton.Leave(&s.Waiter) { // the call is made, its reply not in
			c.state.Unlock()
		} else {
			w.leaving = true
			c.state.Unlock()
			<-bell // given a slot at the same moment: use it
		}
	}
	if s := w.slot; s != nil {
		w.slot, s.ticket = nil, w
		return s, nil
	}
	c.state.Lock()
	defer c.state.Unlock()
	t.putBack(w)
	return nil, st.refuse()
}

// enqueue has the caller wait for a slot.
func (t *slotTable) enqueue(call *Call) *waiter {
	var w *waiter
	if n := len(t.spare); n > 0 {
		w = t.spare[n-1]
		t.spare = t.spare[:n-1]
	} else {
		w = newWaiter()
	}
	w.call, w.leaving = call, false
	t.queue.Push(&w.Waiter)
	return w
}

// putBack keeps w for another caller.
func (t *slotTable) putBack(w *waiter) {
	w.call = nil // which is its caller's again
	t.spare = append(t.spare, w)
}

// take takes a slot; the caller knows that there is a credit.
func (t *slotTable) take() *slot {
	var s *slot
	if n := len(t.free); n > 0 {
		s = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		s = t.newSlot()
	}
	for s.xid = t.xids.next(); t.lookup(s.xid) != nil; s.xid = t.xids.next() {
	}
	t.enter(s)
	t.inUse++
	s.ready, s.err, s.late = false, nil, false
	return s
}

func (t *slotTable) newSlot() *slot {
	i := len(t.slots)
	s := &slot{c: t.c, idx: uint32(i), lent: expose.NewBouncingLoan(&t.c.exposes)}
	s.pull.Init(wrID(wrPull, s.idx))
	s.Init(&s.waiter)
	if 2*(i+1) > len(t.places) {
		t.grow()
	}
	t.slots = append(t.slots, s)
	return s
}

// grow makes the table twice as large.
func (t *slotTable) grow() {
	old := t.places
	t.places = make([]*slot, 2*len(old))
	for _, s := range old {
		for s != nil {
			next := s.beside
			t.enter(s)
			s = next
		}
	}
}

// release frees a slot that the peer owes nothing any more, and returns the caller that has
// been given the slot and is to be woken, or nil.
func (st *state) release(s *slot) *waiter {
	t := &st.calls
	s.state = slotFree
	s.lent.Settle()
	t.remove(s)
	s.call, s.op, s.lane = nil, nil, nil
	if s.ticket != nil {
		t.putBack(s.ticket)
		s.ticket = nil
	}
	t.free = append(t.free, s)
	t.inUse--
	if t.inUse == 0 && st.ended() {
		st.c.dropMemory() // which finish left to the last call
	}
	if t.inUse == 0 && t.drain() {
		return nil
	}
	return st.next()
}

// next gives a slot to the first caller that waits for one, if there is a credit.
func (st *state) next() *waiter {
	t := &st.calls
	if t.inUse >= t.grant || st.ended() {
		return nil
	}
	first := t.queue.Pop()
	if first == nil {
		return nil
	}
	w := first.Who()
	w.slot = t.take()
	return w
}

// unproven resets answered: replies to set-up messages do not count.
func (c *conn) unproven() {
	c.state.Lock().calls.answered = false
	c.state.Unlock()
}

// givenUp is how many calls nobody waits for.
func (t *slotTable) givenUp() (n int) {
	for _, s := range t.slots {
		if s.state == slotZombie {
			n++
		}
	}
	return n
}

// exposed is how much memory the call of s names in its chunks.
func (s *slot) exposed() (n int64) {
	for i := range s.hdr.Reads {
		n += int64(s.hdr.Reads[i].Length)
	}
	for i := range s.hdr.Writes {
		n += int64(s.hdr.Writes[i].Length())
	}
	return n + int64(s.hdr.Reply.Length())
}
