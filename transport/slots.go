package transport

import (
	"context"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
	"github.com/rpcrdma/rpcrdma/transport/internal/reads"
)

// Slots: the calls that an end of a connection over RDMA makes.
//
// A slot holds a call, with everything that the call needs.

// A slot's life:
//
//	free -> pending -> answered -> accepted -> done -> free     its reply arrived
//	        pending -> canceled -> zombie -> free               its caller gave up
//
// A slot is answered while read chunks of its reply are being fetched, accepted while its outcome is known but the
// memory that the call exposed is being fenced, and done when its caller may continue. The end of the connection is a
// fence, too: an accepted slot keeps its outcome, and the call is not made again. A canceled slot is fenced before its
// caller continues. Then it stays a zombie, with its credit and its send buffer in use, until the peer's reply shows
// that it has finished the call.
type slotState uint8

const (
	slotFree slotState = iota
	slotPending
	slotAnswered
	slotAccepted
	slotCanceled
	slotZombie
	slotDone
)

// A slot is a call in flight. Its caller owns it until the call is pending, the leader from [leader.answered] on, and
// the caller again when it is done or canceled. Both may always read and change the fields in standing.
type slot struct {
	*waiter // the caller
	c       *conn
	idx     uint32
	xid     uint32 // of the call; guarded like standing
	standing

	err  error // of a completed slot
	call *pendingCall
	op   *operation // of the call; kept after the caller has left
	outbound
	lent expose.Loan // memory of the call
	placed
	scratch
	wrs []fabric.SendWR
}

// standing is the progress of a call. The connection's state guards it.
type standing struct {
	state    slotState
	late     bool        // the reply arrived while the slot was canceled
	fences   int         // local invalidations in flight
	lane     *rdmaLane   // that owns the call, instead of a goroutine; may be nil
	ended    func(error) // for a call that no goroutine waits for; may be nil
	starting bool        // a call with ended is being sent
}

// outbound is the message of a call.
type outbound struct {
	hdr  rpcrdma.Header
	send *arena.Buffer // the message as sent
	long *arena.Buffer // the RPC message of a long call, unless it is in a bounce buffer
	sge  [1]fabric.SGE
}

// placed is a reply that did not arrive inline.
type placed struct {
	back  *arena.Buffer // memory of the reply chunk, unless it is in a bounce buffer
	reply []byte        // memory of the reply chunk or of read chunks
	msg   int           // length of the reply message in it; 0: it arrived inline
	pull  reads.Message // of a reply with read chunks
}

func (c *conn) newSlot(idx int) *slot {
	s := &slot{c: c, idx: uint32(idx), lent: expose.NewBouncingLoan(&c.exposes)}
	s.pull.Init(wrID(wrPull, s.idx))
	return s
}

// knows reports whether xid is one of our calls.
func (c *conn) knows(xid uint32) bool {
	s := c.state.Lock().calls.underWay.Find(xid)
	defer c.state.Unlock()
	return s != nil && s.state != slotFree
}

// keepXID makes the call of a slot use an existing xid.
func (c *conn) keepXID(s *slot, xid uint32) error {
	t := &c.state.Lock().calls
	defer c.state.Unlock()
	if err := t.renumber(s, s.waiter, xid); err != nil {
		return err
	}
	s.xid = xid
	return nil
}

// inherit shares the xids of the previous connection, and its wariness of canceled calls.
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

// opened permits a server's calls, up to n at once.
func (c *conn) opened(n int) {
	c.mostCalls.Store(int32(n))
	c.ask((*leader).openCalls)
}

// openCalls permits a server's first calls when there are receives for their replies.
func (l *leader) openCalls() { l.setGrant(uint32(l.granted)) }

// acquire returns a slot, waiting for one if necessary. If it had to wait, call may have been made meanwhile, unless it
// is nil: see startNext.
func (c *conn) acquire(ctx context.Context, call *pendingCall) (*slot, error) {
	s, w, err := c.state.Lock().calls.acquire(ctx, call)
	if err == nil && s.waiter != w {
		s.begin(w)
	}
	return s, err
}

// begin makes s the slot of a call by w.
func (s *slot) begin(w *waiter) {
	s.waiter, s.xid, s.err, s.late = w, w.xid, nil, false
}

// release frees a slot for which the peer owes nothing. It returns the caller that has been given its credit and must
// be passed to handOn, or nil.
func (st *state) release(s *slot) *waiter {
	if s.state == slotZombie {
		st.givenUp--
	}
	s.state = slotFree
	s.lent.Settle()
	s.call, s.op, s.lane, s.ended = nil, nil, nil, nil
	st.calls.put(s, s.xid, s.waiter)
	s.waiter = nil
	next := st.calls.leave()
	if st.inUse == 0 && st.ended() {
		st.c.dropMemory() // finish left that to the last call
	}
	return next
}

// unproven resets answered: replies to setup messages do not count.
func (c *conn) unproven() {
	c.state.Lock().answered = false
	c.state.Unlock()
}

// exposed returns how much memory is in the chunks of the call of s.
func (s *slot) exposed() (n int64) {
	for i := range s.hdr.Reads {
		n += int64(s.hdr.Reads[i].Length)
	}
	for i := range s.hdr.Writes {
		n += int64(s.hdr.Writes[i].Length())
	}
	return n + int64(s.hdr.Reply.Length())
}
