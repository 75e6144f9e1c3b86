//go:build linux && cgo

package rdmacm

import (
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A workQueue holds the positions of outstanding requests, in order. Any goroutine may use it. The sender or receiver
// adds requests at the tail, its end of the queue. The poller removes them at the head, the other end. A reported
// request counts as used until its caller has polled it: with a shared completion queue, another connection's poll may
// have taken its completion from the device.
type workQueue struct {
	depth    int
	head     atomic.Uint64
	returned atomic.Uint64 // how many requests have been returned to the caller or need not be
}

// A slot is an outstanding request. The sender or receiver fills it in, and leaves it to the poller once the request is
// posted.
type slot struct {
	id       uint64
	op       fabric.WCOpcode
	report   bool // the caller gets the completion
	internal bool // posted by this package, not by a caller
	signaled bool // the device reports success
	free     bool // the user owns its memory again, so tell may report it
	done     bool // the device has reported it, as wc
	wc       fabric.WC
}

// slots are a ring that grows up to the depth of the queue. Both ends hold it.
type slots []slot

// Initial numbers of slots. Most connections have few requests outstanding at a time. Devices make completion queues
// with one entry less than a power of two. With these numbers, that of rxe takes one page.
const firstSends, firstRecvs = 9, 6

func (s slots) at(pos uint64) *slot { return &s[pos%uint64(len(s))] }

// A back is the end of a work queue at which requests are added.
type back struct {
	*workQueue
	slots slots
	tail  uint64
}

func (w *back) init(q *workQueue, depth, first int) {
	w.workQueue, q.depth = q, depth
	w.slots = make(slots, min(depth, first))
}

// used returns how many requests are outstanding or have not been polled by the caller.
func (w *back) used() int { return int(w.tail - w.returned.Load()) }

// free returns how many more requests the device can take, and room returns how many the caller may post. room never
// exceeds free, because a request leaves the device's queue before its caller polls it.
func (w *back) free() int { return w.depth - int(w.tail-w.head.Load()) }
func (w *back) room() int { return w.depth - w.used() }

// tight reports whether the ring must grow for n more requests.
func (w *back) tight(n int) bool {
	return w.used()+n > len(w.slots) && len(w.slots) < w.depth
}

// push adds a request.
func (w *back) push(s slot) {
	*w.slots.at(w.tail) = s
	w.tail++
}

// A front is the end of a work queue at which requests are removed.
type front struct {
	*workQueue
	slots slots
}

func (w *front) at(pos uint64) *slot       { return w.slots.at(pos) }
func (w *front) outstanding(p uint64) bool { return p-w.head.Load() < uint64(len(w.slots)) }

// sizeFor returns how long the ring must be for n more requests.
func (w *back) sizeFor(n int) int {
	size := len(w.slots)
	for size < w.used()+n {
		size *= 2
	}
	return min(size, w.depth)
}

// grow lengthens the ring of both ends.
func (w *front) grow(from *back, size int) {
	grown := make(slots, size)
	for pos := w.head.Load(); pos != from.tail; pos++ {
		*grown.at(pos) = *w.at(pos)
	}
	w.slots, from.slots = grown, grown
}

// Work request IDs are positions. Receives also have the top bit set.
const recvBit = 1 << 63
