package transport

import (
	"runtime"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// A sendQueue combines posts: the first goroutine posts for those that arrive meanwhile, so that many small messages
// share a doorbell. Requests that do not fit in the adapter's queue wait here.
type sendQueue struct {
	c  *conn
	mu lockorder.Mutex // guards the following fields

	pending  []fabric.SendWR
	spare    []fabric.SendWR
	flushing bool
	again    bool // there may be more room than the flush in progress has seen

	// Replies with deferred Sends that no completion has covered yet, in queue order; and the total number of deferred
	// ones.
	silent  []*exch
	silents uint64

	replies uint32 // queued so far

	// The requests that need the peer to respond: queued and completed so far, as far as completions show. See
	// conn.look.
	awaited, met           uint64 // replies
	readsAwaited, readsMet uint64

	batch   int          // maximum number of requests posted at once
	waiting atomic.Int32 // len(silent), for any goroutine
}

func (q *sendQueue) init(c *conn) {
	q.c = c
	q.batch = min(postBatch, max(1, c.caps.SendDepth/2))
	q.mu.Init(rankSends)
}

// add queues requests for the next flush. The caller keeps their SGLs alive until they have completed.
func (q *sendQueue) add(wrs []fabric.SendWR) {
	q.mu.Lock()
	q.pending = append(q.pending, wrs...)
	q.mu.Unlock()
}

// PostRead is add for an RDMA Read.
func (q *sendQueue) PostRead(wrs []fabric.SendWR) {
	count(&q.c.stats.ReadBytes, len(wrs[0].SGL[0].Buf))
	q.mu.Lock()
	q.pending = append(q.pending, wrs...)
	q.readsAwaited++
	q.mu.Unlock()
	q.c.keepWatch()
}

// readDone records that a Read has completed.
func (q *sendQueue) readDone() {
	q.mu.Lock()
	q.readsMet++
	q.mu.Unlock()
}

// addReply queues a reply for the next flush.
func (q *sendQueue) addReply(x *exch) {
	q.mu.Lock()
	q.reply(x)
	q.mu.Unlock()
}

// addReplies queues replies for the next flush.
func (q *sendQueue) addReplies(all []*exch) {
	q.mu.Lock()
	for _, x := range all {
		q.reply(x)
	}
	q.mu.Unlock()
}

// holds reports whether any requests have not been posted.
func (q *sendQueue) holds() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending) > 0
}

// reply queues the list of a reply, which ends with its Send. Most replies are deferred, so that they wake no
// goroutine: none waits until they are sent. A reply that holds more than its message is signaled: its memory should
// not wait for another call.
//
// The grant is written here, in the order in which replies are sent: a reply that was built before the grant rose must
// not carry the old grant after another reply carried the new one. mu is held.
func (q *sendQueue) reply(x *exch) {
	send := &x.wrs[len(x.wrs)-1]
	rpcrdma.SetCredit(send.SGL[0].Buf, uint32(q.c.grant.Load()))
	if x.lean() && q.c.drain.Load() == nil {
		send.Flags |= fabric.Deferred
		q.silent = append(q.silent, x)
		q.waiting.Add(1)
		q.silents++
	} else {
		send.Flags |= fabric.Signaled
	}
	q.awaited++
	if q.overdue() > 0 {
		q.c.keepWatch()
	}
	q.replies++
	x.covers = q.silents
	q.pending = append(q.pending, x.wrs...)
}

// told appends to gone the replies that x's completion covers, including x.
func (q *sendQueue) told(x *exch, gone []*exch) []*exch {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < len(q.silent) && q.silent[n].covers <= x.covers {
		n++
	}
	gone = append(gone, q.silent[:n]...)
	q.silent = append(q.silent[:0], q.silent[n:]...)
	q.waiting.Add(-int32(n))
	if !x.deferred() {
		gone = append(gone, x)
	}
	q.met += uint64(len(gone))
	return gone
}

// overdue returns how many replies wait for the peer to take them, as far as known: some that were taken may have no
// completion. mu is held.
func (q *sendQueue) overdue() int {
	return int(q.awaited-q.met) - min(len(q.silent), fabric.MaxDeferred)
}

// post queues requests and flushes. If others are about to post too, it lets them run first.
func (q *sendQueue) post(wrs []fabric.SendWR, others bool) {
	q.mu.Lock()
	q.pending = append(q.pending, wrs...)
	if q.flushing {
		q.mu.Unlock()
		return
	}
	if others {
		q.flushing = true
		q.mu.Unlock()
		runtime.Gosched()
		q.mu.Lock()
		q.flushing = false
	}
	q.flushLocked()
}

// flush queues replies and posts all pending requests. Requests that do not fit in the adapter's queue stay, in order,
// for the flush at the end of the leader's next pass: completions make room. A pass that ends while another goroutine
// flushes may have been the last one: if that flush found the queue full, it tries again.
func (q *sendQueue) flush(replies ...*exch) {
	q.mu.Lock()
	for _, x := range replies {
		q.reply(x)
	}
	q.flushLocked()
}

// flushLocked is flush for a goroutine that holds mu. It unlocks mu.
func (q *sendQueue) flushLocked() {
	q.again = q.flushing
	for len(q.pending) > 0 && !q.flushing {
		batch := q.pending
		q.pending = q.spare[:0]
		q.flushing, q.again = true, false
		q.mu.Unlock()

		rest := q.postAll(batch)

		q.mu.Lock()
		q.flushing = false
		if len(rest) > 0 { // they are first
			kept := append(append(batch[:0], rest...), q.pending...)
			clear(batch[min(len(kept), len(batch)):])
			batch, q.pending = q.pending, kept
		}
		for i := range batch {
			batch[i].SGL, batch[i].MW = nil, nil
		}
		q.spare = batch[:0]
		if len(rest) > 0 && !q.again {
			break
		}
	}
	q.mu.Unlock()
}

// postAll posts requests, and returns those that the adapter's queue has no room for.
func (q *sendQueue) postAll(rest []fabric.SendWR) []fabric.SendWR {
	for len(rest) > 0 {
		n := min(len(rest), q.batch)
		switch err := q.c.fc.Post(rest[:n]); err {
		case nil:
			rest = rest[n:]
		case fabric.ErrQueueFull:
			return rest
		default:
			q.c.breakOff(err)
			return nil
		}
	}
	return nil
}
