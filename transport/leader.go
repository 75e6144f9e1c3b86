package transport

import (
	"runtime"
	"slices"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/reads"
)

// A leader is the part of a connection that only the goroutine that drives it may access. It is the progress token: the
// goroutine that has the pointer leads (progress.go).
type leader struct {
	c *conn

	wcs      []fabric.WC     // of one poll; see step
	polled   int             // completions in wcs
	handled  int             // completions that have been handled
	due      []func(*leader) // requests of other goroutines; see doAsked
	heard    int             // messages received in the latest step
	hdr      *rpcrdma.Header // scratch for incoming headers; an exchange swaps it for another
	bufs     []*recvBuf      // receive buffers, by number
	surplus  bool            // there are more receives than the two directions need
	repost   []fabric.RecvWR // consumed, to be reposted: memory of bufs
	reads    reads.Queue
	gone     []*exch // scratch
	fatal    error   // this end's reason to end the connection
	streak   int     // backward calls answered since the last forward call that is not part of a turn
	turn     bool    // one of them since the last forward call
	isKeeper bool    // the leader is the keeper of a server's connection
	own      *exch   // the call that it will execute itself after this pass
	singles  int     // consecutive calls that arrived alone; negative: some were slow

	// Gathered during a pass over completions, and processed at its end.
	replies []*exch   // to be posted together
	wakes   []*waiter // goroutines to wake after that
	ended   []*slot   // calls that have ended and that no goroutine waits for
	lingers bool      // replies are queued that have not been posted

	// For the calls that this end makes.
	granted   int    // the latest grant, as life.granted
	completed uint64 // calls completed

	// For the calls that this end executes.
	exchanges
	offered bool // the client has announced its properties
}

// firstPoll is the number of completions polled at once, and mostPoll the number if there are that many: an idle or
// short connection needs no room for them.
const (
	firstPoll = 4
	mostPoll  = 32
)

func newLeader(c *conn) *leader {
	l := &leader{c: c, wcs: make([]fabric.WC, firstPoll), hdr: new(rpcrdma.Header)}
	l.reads.Init(&c.sends, maxReads)
	if c.role == roleClient {
		l.granted = 1 // RFC 8166 section 3.3.3: until the first reply
	}
	l.exchanges.init(c)
	return l
}

// A work request ID consists of a kind, and the number of the object it belongs to.
type wrKind uint8

const (
	wrRecv  wrKind = iota // receive buffer
	wrCall                // slot: bind or Send of a call
	wrInv                 // slot: local invalidation
	wrRead                // exchange: Read of a chunk
	wrWrite               // exchange: Write before a reply
	wrReply               // exchange: Send of a reply
	wrPull                // slot: Read of a chunk of its reply
	wrDone                // slot: RDMA_DONE for its reply
	wrLoan                // exchange: local invalidation of a chunk of its reply
)

func wrID(k wrKind, n uint32) uint64 { return uint64(k)<<32 | uint64(n) }

// step waits for completions and processes all available ones. It returns false when the connection has ended.
func (l *leader) step() bool {
	return l.pass(l.await())
}

// pass processes the completions that have been polled, and all further ones that are available. err is why there may
// be none. It returns false when the connection has ended.
func (l *leader) pass(err error) bool {
	c := l.c
	if len(l.due) > 0 || c.asked.Load() {
		l.doAsked()
	}
	l.heard = 0
	idle := true
	for err == nil && l.fatal == nil {
		if l.polled == 0 {
			if l.polled, err = c.fc.Poll(l.wcs); l.polled == 0 {
				break
			}
		}
		for l.handled < l.polled { // fields, because takeOver continues from them
			l.handled++
			l.complete(&l.wcs[l.handled-1])
		}
		n := l.polled
		l.polled, l.handled = 0, 0
		l.endPass()
		idle = false
		if n < len(l.wcs) {
			break
		}
		if n < mostPoll {
			l.wcs = make([]fabric.WC, min(2*n, mostPoll))
		}
	}
	if err != nil || l.fatal != nil {
		l.finish(err)
		return false
	}
	if idle {
		c.sends.flush() // Wait may have returned only because there is room
	}
	return true
}

// takeOver continues as the leader, on a new goroutine, after the Inline handler of x has ended the goroutine that led.
// Work in progress of that goroutine is in fields of the leader.
func (l *leader) takeOver(x *exch) {
	x.finish()
	l.isKeeper = false
	l.count()
	l.freeGone()
	l.admit()
	if !l.pass(nil) {
		return
	}
	st := l.c.state.Lock()
	keeps := l.c.role == roleServer && !st.aside
	l.c.state.Unlock()
	if keeps {
		l.serve()
	} else {
		l.release()
	}
}

// await waits for completions, and may already poll some of them.
//
// After a step that has processed several calls or replies, the goroutines that it has woken are about to post, and the
// peer is about to answer. They run before this goroutine parks: with 32 calls outstanding there are a third as many
// switches between threads, and a call needs 7 % less processor time. With one call outstanding there is no goroutine
// to run. The pace measures how long that takes.
func (l *leader) await() (err error) {
	if l.endLinger() {
		return l.c.fc.Wait()
	}
	if l.pace.Met(l.heard, l.posted) {
		l.updateGrant()
	}
	if l.heard > 1 {
		if l.polled, err = l.c.fc.Poll(l.wcs); l.polled > 0 || err != nil {
			return err
		}
	}
	return l.c.fc.Wait()
}

// endLinger posts the replies that linger, if the goroutines woken meanwhile have not. It reports whether replies lingered.
func (l *leader) endLinger() bool {
	if !l.lingers {
		return false
	}
	l.lingers = false
	if l.c.sends.holds() {
		runtime.Gosched() // to goroutines that have been woken, and are about to post
		l.c.sends.flush()
	}
	return true
}

// ask has the leader call f, soon. If no goroutine leads, the next one does; once the connection
// has ended none does.
func (c *conn) ask(f func(*leader)) {
	st := c.state.Lock()
	if st.ended() {
		c.state.Unlock()
		return
	}
	st.asked = append(st.asked, f)
	c.state.Unlock()
	c.asked.Store(true)
	c.fc.Wake()
}

// doAsked calls the functions that other goroutines passed to ask.
func (l *leader) doAsked() {
	l.c.asked.Store(false)
	st := l.c.state.Lock()
	l.due = append(l.due, st.asked...)
	st.asked = nil
	l.c.state.Unlock()
	for len(l.due) > 0 {
		f := l.due[0]
		l.due = l.due[1:]
		f(l)
	}
	l.due = nil
	l.endPass() // there may be no completion that ends the pass
}

// endPass posts the messages gathered in this pass over completions, then wakes the callers.
func (l *leader) endPass() {
	if len(l.replies) > 0 && !slices.ContainsFunc(l.replies, func(x *exch) bool { return !rpc.Lingers(&x.res) }) {
		l.lingers = true
		l.c.sends.addReplies(l.replies)
	} else {
		l.c.sends.flush(l.replies...)
	}
	l.replies = l.replies[:0]
	l.wakeAll()
	l.endStarted()
}

func (l *leader) wakeAll() {
	for i, w := range l.wakes {
		l.wakes[i] = nil
		w.Wake(w.ready)
	}
	l.wakes = l.wakes[:0]
}

// markReady completes what w waits for. The end of the pass wakes it. The connection's state is locked.
func (l *leader) markReady(st *state, w *waiter) {
	w.ready = true
	if st.baton.Leave(&w.Waiter) {
		l.wakes = append(l.wakes, w)
	}
}

// fail makes the connection end for a reason of this end.
func (l *leader) fail(reason error) {
	if l.fatal == nil {
		l.fatal = reason
	}
}

// complete dispatches one completion.
func (l *leader) complete(wc *fabric.WC) {
	n := uint32(wc.ID)
	switch wrKind(wc.ID >> 32) {
	case wrRecv:
		if wc.Status == fabric.WCSuccess {
			l.heard++
			l.receive(l.recvBuf(n), wc)
		}
	case wrInv:
		l.invalidated(n, wc.Status == fabric.WCSuccess)
	case wrRead:
		x := l.exchs[n]
		l.c.sends.readDone()
		if l.reads.Completed(&x.Message, wc) {
			l.execute(x)
		}
	case wrReply:
		if wc.Status == fabric.WCSuccess {
			l.sent(l.exchs[n])
		}
	case wrPull:
		s := l.slot(n)
		l.c.sends.readDone()
		if l.reads.Completed(&s.pull, wc) {
			l.fetched(s)
		}
	case wrDone:
		l.fence(l.slot(n)) // the call's own memory is next
	case wrLoan:
		l.loanRevoked(l.exchs[n])
	}
}

// receive processes a received message. Only its RPC message shows whether it is a call or a reply: both ends choose
// their xids freely (RFC 8167 section 2.4).
func (l *leader) receive(rb *recvBuf, wc *fabric.WC) {
	l.dispatch(rb, wc)
	l.count()
}

// count counts a received message, and the calls taken since the last time.
func (l *leader) count() {
	l.c.heard.Add(1 + uint64(l.taken-l.counted)<<32)
	l.counted = l.taken
}

// dispatch passes a message to the half of this end that it is for.
func (l *leader) dispatch(rb *recvBuf, wc *fabric.WC) {
	c := l.c
	b := rb.Bytes[:wc.Len]
	n, err := rpcrdma.ConsumeHeader(b, l.hdr, &c.cfg.Limits)
	if err != nil {
		l.badHeader(rb, err)
		return
	}
	h, payload := l.hdr, b[n:]
	if c.version() == 0 {
		l.settleVersion(h)
	}
	switch h.Proc {
	case rpcrdma.ProcMsg, rpcrdma.ProcMsgp:
		xid, dir, ok := oncrpc.Peek(payload)
		reply := ok && dir != oncrpc.Call || !ok && c.role == roleClient
		switch {
		case h.Proc == rpcrdma.ProcMsgp && (c.cfg.RFC5666 == nil || c.role == roleClient):
			// RFC 8166 section 4.6 removed padded messages from the protocol, and before that they were only for calls
			// to servers.
			if c.serves() && !reply {
				l.refuse(rb, h.XID, h.Vers, rpcrdma.ErrChunk, errBadMSGP)
				return
			}
			l.malformed(h.XID, "it is an RDMA_MSGP")
		case ok && dir == oncrpc.Reply && xid == h.XID:
			l.replyReceived(h, payload, wc)
		case reply:
			l.malformed(h.XID, "it is not a reply to the call")
		case !c.serves():
			inc(&c.stats.Dropped)
		case !ok:
			// Too short to show its direction: a server's peer sends calls.
			l.refuse(rb, h.XID, h.Vers, rpcrdma.ErrChunk, errNoRPC)
			return
		default:
			l.callReceived(rb, h, payload, xid == h.XID, wc)
			return
		}
	case rpcrdma.ProcNomsg:
		if c.serves() && l.isLongCall(h) {
			l.callReceived(rb, h, nil, true, wc)
			return
		}
		l.replyReceived(h, nil, wc)
	case rpcrdma.ProcError:
		l.errorReceived(h)
	case rpcrdma.ProcOptional:
		if l.optionalReceived(rb, h, payload) {
			return // the receive buffer is in use
		}
	default: // RDMA_DONE: removed by RFC 8166, and ignored unless enabled
		if c.cfg.RFC5666 != nil && c.role == roleServer {
			l.doneReceived(h.XID)
		} else {
			inc(&c.stats.Dropped)
		}
	}
	l.receiveDone(rb)
}

// callReceived processes a call. Only replies may invalidate memory that our calls have exposed.
func (l *leader) callReceived(rb *recvBuf, h *rpcrdma.Header, payload []byte, xidOK bool, wc *fabric.WC) {
	if wc.WithInv && l.exposed(wc.InvalidatedKey) {
		l.fail(errInvalidate)
	}
	l.takeCall(rb, h, payload, xidOK)
}

// isLongCall reports whether an RDMA_NOMSG is a call: its RPC message is then in a read chunk, whereas a reply's is in
// the reply chunk. Replies in read chunks, which a client with RFC 5666 enabled receives, are recognized by their xids.
func (l *leader) isLongCall(h *rpcrdma.Header) bool {
	known := l.c.knows(h.XID)
	if len(h.Reads) > 0 {
		return !known || l.c.role == roleServer || l.c.cfg.RFC5666 == nil
	}
	return !known && l.c.role == roleServer
}

// badHeader processes a message with a malformed transport header: a call is answered, anything else is not (RFC 5666
// section 4.2). Which of the two it is can no longer be determined: if it has the xid of one of our calls, it ends that
// call.
func (l *leader) badHeader(rb *recvBuf, err error) {
	he, ok := err.(*rpcrdma.HeaderError)
	switch {
	case !ok || !he.HaveXID || he.Code == 0:
		inc(&l.c.stats.Dropped)
		l.c.public.refused(0, err)
	case !l.c.serves() || l.c.knows(he.XID):
		l.malformed(he.XID, he.Error())
	default:
		l.refuse(rb, he.XID, he.Vers, he.Code, err)
		return
	}
	l.receiveDone(rb)
}
