package transport

import (
	"context"

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
// taking a credit. The xid is the slot's number and a generation, so that a reply finds
// its call by an index and a compare, and a late reply finds the generation changed. A
// connection that replaces another goes on with its generations, so that no xid comes
// twice for a long time: calls that are sent again keep theirs, and a cache of replies
// knows calls by them.
//
// A client may call from the start. A server may once the upper layer has said that the
// client is ready for it (RFC 8167 section 6).

// A slotTable is the slots of a connection. It is part of the connection's state.
type slotTable struct {
	c        *conn
	allowed  bool
	mask     uint32   // over all xids
	gens     []uint32 // generations to start slots with
	first    uint32   // the same for slots that no connection before has had
	answered bool     // a call has been
	slots    []*slot
	free     []*slot
	inUse    int                // slots that are not free: calls without a reply
	grant    int                // the latest grant, within what we asked for
	queue    baton.Line[waiter] // callers that wait for a slot, first come, first served
	spare    []*waiter          // waiters not in use
	drained  *waiter            // waits for inUse to become zero
	foreign  map[uint32]*slot   // calls that keep an xid of their own, see keepXID
}

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

// xid = (generation << slotBits | slot number) ^ slotTable.mask.
const slotBits = 14

// A slot is a call under way. waiter, gen, state, late, fences, lane and the xid are guarded by
// the connection's state. The rest is the caller's until the call is pending, the leader's
// until it is done or cancelled, then the caller's again.
type slot struct {
	waiter // the caller
	c      *conn
	idx    uint32
	gen    uint32
	state  slotState
	late   bool // the reply came while the slot was cancelled
	fences int  // local invalidations under way

	ticket *waiter // that the caller has waited with for the slot; until the slot is free

	lane *rdmaLane // that the call belongs to, instead of to a goroutine of its own; or nil

	xid  uint32 // of the call
	kept bool   // the xid is not of our making

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

func (t *slotTable) init(c *conn) {
	t.c = c
	t.mask, t.first = uint32(c.cfg.rand()), uint32(c.cfg.rand())
	if c.role == roleClient {
		t.allowed = true
		t.setGrant(1) // RFC 8166 section 3.3.3: until the first reply
	}
}

func (t *slotTable) setGrant(n int) {
	t.grant = n
	t.c.granted.Store(int32(n))
}

// nextXID is the xid of a slot's next call.
func (t *slotTable) nextXID(s *slot) uint32 { return (s.gen<<slotBits | s.idx) ^ t.mask }

// lookup finds the call that a message is about.
func (t *slotTable) lookup(xid uint32) *slot {
	if s := t.foreign[xid]; s != nil {
		return s
	}
	i := (xid ^ t.mask) & (1<<slotBits - 1)
	if int(i) >= len(t.slots) || t.slots[i].state == slotFree || t.slots[i].xid != xid {
		return nil
	}
	return t.slots[i]
}

// knows tells whether xid is one of our calls.
func (c *conn) knows(xid uint32) bool {
	defer c.state.Unlock()
	return c.state.Lock().calls.lookup(xid) != nil
}

// keepXID has the call of a slot go out with an xid that is not of our making.
func (c *conn) keepXID(s *slot, xid uint32) error {
	t := &c.state.Lock().calls
	defer c.state.Unlock()
	if t.lookup(xid) != nil {
		return errSameXID
	}
	if t.foreign == nil {
		t.foreign = make(map[uint32]*slot)
	}
	t.foreign[xid] = s
	s.kept, s.xid = true, xid
	return nil
}

// inheritGap is how many xids of each slot are left to the connection before. There are
// 2^18.
const inheritGap = 256

// inherit goes on with the xids of the connection before, and is as wary of calls that are
// given up. The connection before may live on, as far as this end knows: slots in use
// keep their xids, and callers that wait for one there get some of the gap.
func (c *conn) inherit(from connection) {
	old, ok := from.(*conn)
	if !ok {
		return // xids over TCP are made in another way, and begin at random
	}
	was := old.state.Lock()
	f := &was.calls
	mask, first, wary := f.mask, f.first+inheritGap, was.wary
	gens := make([]uint32, max(len(f.gens), len(f.slots)))
	copy(gens, f.gens) // of slots that it may make yet
	for i, s := range f.slots {
		gens[i] = s.gen
	}
	for i := range gens {
		gens[i] += inheritGap
	}
	old.state.Unlock()
	st := c.state.Lock()
	t := &st.calls
	defer c.state.Unlock()
	st.wary = wary
	if t.inUse > 0 {
		return // calls have been made with other xids already
	}
	t.mask, t.first, t.gens = mask, first, gens
	for i, s := range t.slots {
		s.gen = t.begin(i)
	}
}

// begin is the generation that a slot starts with.
func (t *slotTable) begin(i int) uint32 {
	if i < len(t.gens) {
		return t.gens[i]
	}
	return t.first
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

// refuse says why there are no new calls, nil if there may be.
func (st *state) refuse() error {
	switch {
	case st.err != nil:
		return st.err
	case st.closing:
		return &ClosedError{Addr: st.c.addr(), Reason: errClosing}
	case !st.calls.allowed:
		return &NotReadyError{Addr: st.c.addr()}
	}
	return nil
}

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
	for t.foreign[t.nextXID(s)] != nil {
		s.gen++
	}
	s.xid = t.nextXID(s)
	t.inUse++
	s.ready, s.err, s.late = false, nil, false
	return s
}

func (t *slotTable) newSlot() *slot {
	i := len(t.slots)
	s := &slot{c: t.c, idx: uint32(i), gen: t.begin(i), lent: expose.NewBouncingLoan(&t.c.exposes)}
	s.pull.Init(wrID(wrPull, s.idx))
	s.Init(&s.waiter)
	t.slots = append(t.slots, s)
	return s
}

// release frees a slot that the peer owes nothing any more, and returns the waiter to be
// woken for it, nil if there is none: a caller that has been given the slot, or who waits
// for the last call to end.
func (st *state) release(s *slot) *waiter {
	t := &st.calls
	s.state = slotFree
	s.lent.Settle()
	if s.kept {
		delete(t.foreign, s.xid)
		s.kept = false
	}
	s.gen++
	s.call, s.op, s.lane = nil, nil, nil
	if s.ticket != nil {
		t.putBack(s.ticket)
		s.ticket = nil
	}
	t.free = append(t.free, s)
	t.inUse--
	if t.inUse == 0 && st.ended {
		st.c.dropMemory() // which finish left to the last call
	}
	if t.inUse == 0 && t.drained != nil {
		w := t.drained
		t.drained = nil
		return w
	}
	return st.next()
}

// next gives a slot to the first caller that waits for one, if there is a credit.
func (st *state) next() *waiter {
	t := &st.calls
	if t.inUse >= t.grant || st.ended {
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

// proven tells whether a call has been answered on the connection.
func (c *conn) proven() bool {
	defer c.state.Unlock()
	return c.state.Lock().calls.answered
}

// unproven forgets the answers of the set-up: they do not show that calls are answered.
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
