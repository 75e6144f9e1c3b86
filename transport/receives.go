package transport

import (
	"errors"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// The receives of a connection: one for each reply that may come, one for each call that the peer
// has credits for, and the slack (RFC 8167 section 4.3). They take memory, so there are few at first.
// Those for calls come with a grant. Those for replies come with the calls that this end makes, as
// many servers grant all that a client asks for, however few it makes.

// receives are part of the connection's state. Only the goroutine that has set callTable.growing
// changes the counts: it posts without the lock.
type receives struct {
	n       int        // that there are
	replies int        // of them for replies
	calls   int        // of them for calls, and the slack
	fresh   []*recvBuf // that the leader does not know yet
}

// A recvBuf is a receive buffer. It is posted, or holds a message.
type recvBuf struct {
	*arena.Buffer
	idx uint32
}

// firstReplies is how many replies there are receives for while calls are made one at a time.
const firstReplies = 2

// setGrant takes the credits of a reply: an absolute value, in which zero counts
// as one (RFC 8166 section 3.3.1). Receives for the replies are posted before calls are let out.
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
	if grow && !c.moreReplies() && none {
		l.fail(errUnanswerable)
	}
}

// letOut lets out calls: as many as the peer has granted and there are receives for.
func (st *state) letOut(granted int) { st.calls.setGrant(granted, min(granted, st.recvs.replies)) }

// crowded reports whether calls wait for receives, and not for the peer.
func (st *state) crowded() bool { return !st.calls.queue.Empty() && st.grant < st.granted }

// moreReplies posts receives for twice as many replies, or for all calls that wait, lets calls out, and
// reports whether it has. The caller has set growing, and no lock.
func (c *conn) moreReplies() bool {
	for more := false; ; more = true {
		st := c.state.Lock()
		if st.ended() {
			st.calls.growing = false
			c.state.Unlock()
			return false
		}
		c.arena.Hold() // the connection may end meanwhile
		r := &st.recvs
		n := min(st.granted, max(firstReplies, 2*r.replies, 2*(st.inUse+st.calls.queue.Len())))
		c.state.Unlock()
		err := c.fill(r.calls + n)
		c.arena.Drop()
		c.state.Lock()
		if err == nil {
			r.replies = n
			st.letOut(st.granted)
		}
		st.calls.growing = err == nil && st.crowded()
		done := !st.calls.growing
		c.state.Unlock()
		if done {
			return more || err == nil
		}
	}
}

// forCalls posts receives for n calls of the peer, beside those for replies.
func (c *conn) forCalls(n int) error {
	st := c.state.Lock()
	if st.calls.growing {
		c.state.Unlock()
		return errGrowing
	}
	st.calls.growing = true
	r := &st.recvs
	c.state.Unlock()
	n += c.cfg.slack(c.role)
	err := c.fill(n + r.replies)
	c.state.Lock()
	if err == nil {
		r.calls = n
	}
	st.calls.growing = st.crowded()
	crowded := st.calls.growing
	c.state.Unlock()
	if crowded {
		c.moreReplies()
	}
	return err
}

var (
	errUnanswerable = errors.New("no memory for a receive")
	errGrowing      = errors.New("receives for replies are being posted")
)

// fill posts receives until there are as many. If there is no memory for all, those that have been
// posted stay.
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
			rb.idx = uint32(r.n + k)
			wrs[k] = c.recvWR(rb)
			more = append(more, rb)
		}
		c.state.Lock()
		r.fresh = append(r.fresh, more...) // a message may come before PostRecv returns
		c.state.Unlock()
		if err == nil {
			err = c.fc.PostRecv(wrs[:len(more)])
		}
		c.state.Lock()
		if err == nil {
			r.n += len(more)
		} else {
			r.fresh = r.fresh[:len(r.fresh)-len(more)]
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

func (c *conn) recvWR(rb *recvBuf) fabric.RecvWR {
	return fabric.RecvWR{
		ID:  wrID(wrRecv, rb.idx),
		SGE: fabric.SGE{Buf: rb.Bytes[:c.cfg.recvSize], LKey: rb.LKey},
	}
}

// recvBuf returns the receive buffer with a number.
func (l *leader) recvBuf(n uint32) *recvBuf {
	if int(n) >= len(l.bufs) {
		// Only as many as are known to have been posted: fill takes others back if it fails.
		r := &l.c.state.Lock().recvs
		k := int(n) + 1 - len(l.bufs)
		l.bufs = append(l.bufs, r.fresh[:k]...)
		r.fresh = r.fresh[k:]
		l.c.state.Unlock()
	}
	return l.bufs[n]
}

// receiveDone gives a receive buffer back. A few of them may wait to be posted together: the slack
// stands in for them. More must not, not even to the end of the pass, since a returned credit may be
// used at once.
func (l *leader) receiveDone(rb *recvBuf) {
	l.repost = append(l.repost, l.c.recvWR(rb))
	if len(l.repost) < recvBatch {
		return
	}
	if err := l.c.fc.PostRecv(l.repost); err != nil {
		l.c.breakOff(err)
	}
	l.repost = l.repost[:0]
}
