package transport

import (
	"errors"
	"fmt"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// The receives of a connection: one for each reply that may arrive, one for each call that the peer has credits for,
// and the slack (RFC 8167 section 4.3). They use memory, so there are few at first. Those for calls are posted with a
// grant. Those for replies are posted with the calls that this end makes, because many servers grant everything that a
// client asks for, however few calls it makes. When far fewer calls are made for a while, used receives are not
// reposted: no verb takes one back.

// receives are part of the connection's state. Only the goroutine that has set callTable.growing changes the counts; it
// posts without the lock.
type receives struct {
	n       int        // posted in total
	next    uint32     // the number of the next buffer,
	holes   []uint32   // numbers of buffers that have been released
	replies int        // for replies
	calls   int        // for calls
	fresh   []*recvBuf // not known to the leader yet
}

// A recvBuf is a receive buffer. It is posted, or holds a message.
type recvBuf struct {
	*arena.Buffer
	idx uint32
}

// firstReplies is the number of receives for replies while calls are made one at a time.
const firstReplies = 1

// setGrant applies the credits of a reply: an absolute value, in which zero counts as one (RFC 8166 section 3.3.1).
// Receives for the replies are posted before more calls are permitted.
func (l *leader) setGrant(credit uint32) {
	c := l.c
	n := plan.Accepted(credit, int(c.mostCalls.Load()))
	if n == l.granted {
		return
	}
	l.granted = n
	st := c.state.Lock()
	st.letOut(n)
	none := st.grant == 0
	grow := !st.calls.growing && (none || st.crowded())
	st.calls.growing = st.calls.growing || grow
	c.state.Unlock()
	if !grow {
		return
	}
	if err := c.moreReplies(); err != nil && none {
		l.fail(fmt.Errorf("no receive for a reply: %w", err))
	}
}

// letOut permits as many calls as the peer has granted and there are receives for.
func (st *state) letOut(granted int) { st.calls.setGrant(granted, min(granted, st.recvs.replies)) }

// crowded reports whether calls wait for receives rather than for the peer.
func (st *state) crowded() bool { return !st.calls.queue.Empty() && st.grant < st.granted }

// moreReplies posts receives for twice as many replies, or for all waiting calls, and permits more calls. An error
// means that it has permitted none. The caller has set growing, and holds no lock.
func (c *conn) moreReplies() error {
	for more := false; ; more = true {
		st := c.state.Lock()
		if st.ended() {
			st.calls.growing = false
			c.state.Unlock()
			return net.ErrClosed
		}
		c.arena.Hold() // the connection may end meanwhile
		r := &st.recvs
		n := min(st.granted, max(firstReplies, 2*r.replies, 2*(st.inUse+st.calls.queue.Len())))
		c.state.Unlock()
		err := c.fill(c.receivesFor(n, r.calls))
		c.arena.Drop()
		c.state.Lock()
		if err == nil {
			c.setReceives(r, n, r.calls)
			st.letOut(st.granted)
		}
		st.calls.growing = err == nil && st.crowded()
		done := !st.calls.growing
		c.state.Unlock()
		switch {
		case !done:
		case more:
			return nil
		default:
			return err
		}
	}
}

// forCalls posts receives for n calls of the peer, in addition to those for replies.
func (c *conn) forCalls(n int) error {
	st := c.state.Lock()
	if st.calls.growing {
		c.state.Unlock()
		return errGrowing
	}
	st.calls.growing = true
	r := &st.recvs
	c.state.Unlock()
	err := c.fill(c.receivesFor(r.replies, n))
	c.state.Lock()
	if err == nil {
		c.setReceives(r, r.replies, n)
	}
	st.calls.growing = st.crowded()
	crowded := st.calls.growing
	c.state.Unlock()
	if crowded {
		c.moreReplies()
	}
	return err
}

// receivesFor returns the number of receives for the given numbers of replies and calls.
func (c *conn) receivesFor(replies, calls int) int {
	n := replies + calls
	return n + c.cfg.slack(c.role, n)
}

// setReceives sets the number of messages that receives are posted for. The state is locked.
func (c *conn) setReceives(r *receives, replies, calls int) {
	r.replies, r.calls = replies, calls
	c.batch.Store(int32(batchOf(replies + calls)))
}

var errGrowing = errors.New("receives for replies are being posted")

// fill posts receives until there are total of them. If there is not enough memory, those already posted stay.
func (c *conn) fill(total int) error {
	r := &c.state.Lock().recvs
	c.state.Unlock()
	if total <= r.n {
		return nil
	}
	wrs := make([]fabric.RecvWR, min(total-r.n, postBatch))
	for r.n < total {
		more := make([]*recvBuf, 0, min(total-r.n, len(wrs)))
		bufs := make([]recvBuf, cap(more))
		var err error
		for k := range bufs {
			rb := &bufs[k]
			if rb.Buffer, err = c.arena.Get(c.cfg.recvSize); err != nil {
				break
			}
			rb.idx = r.number()
			wrs[k] = c.recvWR(rb)
			more = append(more, rb)
		}
		c.state.Lock()
		r.fresh = append(r.fresh, more...) // a message may arrive before PostRecv returns
		c.state.Unlock()
		if err == nil {
			err = c.fc.PostRecv(wrs[:len(more)])
		}
		c.state.Lock()
		if err == nil {
			r.n += len(more)
		} else {
			r.fresh = r.fresh[:len(r.fresh)-len(more)]
			for _, rb := range more {
				r.holes = append(r.holes, rb.idx)
			}
		}
		c.state.Unlock()
		if err != nil {
			for _, rb := range more {
				c.arena.Put(rb.Buffer)
			}
			return err
		}
	}
	return nil
}

// number returns a number for a buffer. Only the goroutine that has set growing uses it, or releases buffers.
func (r *receives) number() uint32 {
	if k := len(r.holes) - 1; k >= 0 {
		n := r.holes[k]
		r.holes = r.holes[:k]
		return n
	}
	r.next++
	return r.next - 1
}

func (c *conn) recvWR(rb *recvBuf) fabric.RecvWR {
	return fabric.RecvWR{
		ID:  wrID(wrRecv, rb.idx),
		SGE: fabric.SGE{Buf: rb.Bytes[:c.cfg.recvSize], LKey: rb.LKey},
	}
}

// recvBuf returns the receive buffer with the given number.
func (l *leader) recvBuf(n uint32) *recvBuf {
	if int(n) >= len(l.bufs) || l.bufs[n] == nil {
		l.learn(n)
	}
	return l.bufs[n]
}

// learn takes fresh buffers up to the one with number n: only those known to have been posted, because fill takes
// others back if it fails.
func (l *leader) learn(n uint32) {
	r := &l.c.state.Lock().recvs
	defer l.c.state.Unlock()
	for len(r.fresh) > 0 {
		rb := r.fresh[0]
		r.fresh = r.fresh[1:]
		for int(rb.idx) >= len(l.bufs) {
			l.bufs = append(l.bufs, nil)
		}
		l.bufs[rb.idx] = rb
		if rb.idx == n {
			return
		}
	}
}

// receiveDone returns a receive buffer. A few of them may wait to be reposted together, because the slack makes up for
// them. More must not wait, not even until the end of the pass, since a returned credit may be used at once.
func (l *leader) receiveDone(rb *recvBuf) {
	if !l.surplus || !l.giveUp(rb) {
		l.repost = append(l.repost, l.c.recvWR(rb))
	}
	if len(l.repost) < int(l.c.batch.Load()) {
		return
	}
	if err := l.c.fc.PostRecv(l.repost); err != nil {
		l.c.breakOff(err)
	}
	l.repost = l.repost[:0]
}

// giveUp releases a receive buffer if there are more than the two directions need, and reports whether it has. With the
// last one it also releases unused memory.
func (l *leader) giveUp(rb *recvBuf) bool {
	st := l.c.state.Lock()
	r := &st.recvs
	over := r.n - l.c.receivesFor(r.replies, r.calls)
	l.surplus = over > 1
	if over <= 0 || st.calls.growing {
		l.c.state.Unlock()
		return false
	}
	r.n--
	r.holes = append(r.holes, rb.idx)
	l.bufs[rb.idx] = nil
	l.c.state.Unlock()
	l.c.arena.Put(rb.Buffer)
	if !l.surplus {
		l.shed()
	}
	return true
}

// shed releases the messages of unused exchanges and calls, and memory without buffers in use.
func (l *leader) shed() {
	for _, x := range l.free {
		if x.out != nil {
			l.c.arena.Put(x.out)
			x.out = nil
		}
	}
	st := l.c.state.Lock()
	for _, s := range st.calls.free {
		if s.send != nil {
			l.c.arena.Put(s.send)
			s.send = nil
		}
	}
	l.c.state.Unlock()
	l.c.arena.Shed()
}

// restReplies halves the receives for replies if at most a quarter of them was in use during the last restCalls calls.
// It is called after that many calls, with the state locked.
func (l *leader) restReplies(st *state) {
	t, r := &st.calls, &st.recvs
	peak := t.peak
	t.peak = t.inUse
	if t.growing || 4*peak > r.replies || r.replies <= firstReplies {
		return
	}
	l.c.setReceives(r, max(r.replies/2, firstReplies), r.calls)
	st.letOut(st.granted)
	l.surplus = true
}

// restCalls is the number of calls that show how much a peer or our callers use. It is more than twice the maximum
// number of calls in flight, so that the last calls after a lower grant have been made under it: see rest.
const restCalls = 512
