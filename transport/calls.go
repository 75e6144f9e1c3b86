package transport

import (
	"context"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/internal/baton"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/underway"
)

// A callTable holds the calls that this end makes on a connection: C is a [slot] over RDMA, and a [tcpCall] over TCP.
// Taking one uses a credit. The table is part of the connection's state.
//
// A client may call from the start, and a server once the upper layer has announced that the client is ready (RFC 8167
// section 6).
type callTable[C any] struct {
	*life   // of the connection: the number of calls, and its limit
	newCall func(idx int) *C

	// more makes room for more of the calls that the peer has granted, or returns why it cannot; nil: there is room for
	// all. No lock is held.
	more    func() error
	growing bool // a goroutine is running more
	peak    int  // the most calls in use since it was cleared

	// unfollow removes a caller from the queue for the leader; nil: there is no leader.
	unfollow func(*baton.Waiter[waiter]) bool

	all      []*C
	free     []*C
	underWay underway.Table[C]  // calls in use, by xid
	queue    baton.Line[waiter] // callers that wait for a credit, in order
	spare    []*waiter          // unused callers
}

func (t *callTable[C]) init(lf *life, newCall func(idx int) *C) { t.life, t.newCall = lf, newCall }

// acquire returns a call and its caller's waiter, waiting for a credit if necessary. It is called with the state
// locked, and unlocks it. While it waits another goroutine may make call, unless that is nil: see startNext.
func (t *callTable[C]) acquire(ctx context.Context, call *pendingCall) (*C, *waiter, error) {
	state := t.core.wire
	room := t.makeRoom()
	err := ctx.Err()
	if err == nil {
		err = t.refuse()
	}
	if err != nil {
		state.unlock()
		return nil, nil, err
	}
	w := t.caller()
	if room {
		c := t.take(w)
		state.unlock()
		return c, w, nil
	}
	w.call = call
	t.queue.Push(&w.Waiter)
	state.unlock()
	t.core.public.notice(rpc.Notice{Kind: rpc.NoticeCreditStall})
	_, woken := baton.SleepOn(ctx, w.Bell())
	state.lock()
	defer state.unlock()
	switch {
	case woken:
		err = t.refuse()
	case t.queue.Remove(&w.Waiter):
		err = ctx.Err()
	case w.given && t.unfollow != nil && t.unfollow(&w.Waiter): // the call has been made, and its reply has not arrived
	default: // given a call, or the connection ended, at the same moment
		w.leaving = true
		state.unlock()
		w.Sleep()
		state.lock()
		err = t.refuse()
	}
	if w.given {
		return t.underWay.Find(w.xid), w, nil
	}
	t.putBack(w)
	return nil, nil, err
}

// caller returns a waiter for a goroutine that makes a call.
func (t *callTable[C]) caller() *waiter {
	n := len(t.spare)
	if n == 0 {
		return newWaiter()
	}
	w := t.spare[n-1]
	t.spare = t.spare[:n-1]
	return w
}

// putBack keeps w for reuse.
func (t *callTable[C]) putBack(w *waiter) {
	w.call, w.given, w.leaving, w.ready = nil, false, false, false
	t.spare = append(t.spare, w)
}

// hasRoom reports whether there is a credit that no caller waits for.
func (t *callTable[C]) hasRoom() bool { return t.inUse < t.grant && t.queue.Empty() }

// makeRoom is hasRoom, except that if there is no room it first makes room for calls that the peer has granted. The
// state is locked, but not all the time: the connection may end meanwhile.
func (t *callTable[C]) makeRoom() bool {
	for !t.hasRoom() {
		if t.grant >= t.granted || t.growing || t.refuse() != nil {
			return false
		}
		t.growing = true
		t.core.wire.unlock()
		err := t.more()
		t.core.wire.lock()
		if err != nil {
			break
		}
	}
	return t.hasRoom()
}

// take returns a call for w, with a new xid. The caller has checked that there is a credit.
func (t *callTable[C]) take(w *waiter) *C {
	var c *C
	if n := len(t.free); n > 0 {
		c = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		c = t.newCall(len(t.all))
		t.all = append(t.all, c)
	}
	for w.xid = t.xids.next(); !t.underWay.Add(w.xid, c); w.xid = t.xids.next() {
	}
	w.given = true
	t.inUse++
	t.peak = max(t.peak, t.inUse)
	return c
}

// renumber makes a call of w use an existing xid instead of the one it was taken with.
func (t *callTable[C]) renumber(c *C, w *waiter, xid uint32) error {
	if o := t.underWay.Find(xid); o != nil && o != c {
		return errSameXID
	}
	t.underWay.Remove(w.xid)
	t.underWay.Add(xid, c)
	w.xid = xid
	return nil
}

// put frees a call of w for which no reply can arrive, or none that matters. leave returns its credit.
func (t *callTable[C]) put(c *C, xid uint32, w *waiter) {
	t.underWay.Remove(xid)
	t.free = append(t.free, c)
	t.putBack(w)
}

// leave returns a credit, and returns the caller that has been given it and must be woken, or nil.
func (t *callTable[C]) leave() *waiter {
	t.inUse--
	w := t.admit()
	if t.inUse == 0 {
		t.drain()
	}
	return w
}

// setGrant sets how many calls the peer permits, and how many there may be for now.
func (t *callTable[C]) setGrant(granted, now int) {
	t.granted, t.grant = granted, now
	t.core.granted.Store(int32(granted))
	for w := t.admit(); w != nil; w = t.admit() {
		w.Wake(true)
	}
}

// admit gives a credit to the caller that has waited longest, if there are both.
func (t *callTable[C]) admit() *waiter {
	if t.inUse >= t.grant || t.ended() {
		return nil
	}
	first := t.queue.Pop()
	if first == nil {
		return nil
	}
	w := first.Who()
	t.take(w)
	return w
}

// fail wakes the waiting callers: the connection has ended.
func (t *callTable[C]) fail() {
	for w := t.queue.Pop(); w != nil; w = t.queue.Pop() {
		w.Wake(true)
	}
	t.drain()
}

// ---- xids

// xids numbers the calls that one end makes to a peer, over successive connections and over the concurrent connections
// of a Group. A reply cache identifies a repeated call by its xid, so an xid must not recur while a cache may remember
// it. 2^32 calls take longer than the two minutes that servers remember replies.
type xids struct{ last atomic.Uint32 }

// newXIDs starts at a random number: a server tells two clients on one host apart by their xids.
func newXIDs(cfg *Config) *xids {
	x := new(xids)
	x.last.Store(uint32(cfg.rand()))
	return x
}

func (x *xids) next() uint32 { return x.last.Add(1) }

// counter returns the xids for a new connection.
func (c *config) counter() *xids {
	if c.xids != nil {
		return c.xids
	}
	return newXIDs(&c.Config)
}
