package nfsd

import (
	"context"
	"sync"
	"time"
)

// turns divides the processors among the calls of one sort. A gate does not suffice: it admits as many as may wait for
// disks. If none of them does, hundreds are in the queues of Go's scheduler, and a call of another connection is last
// in line. turns therefore lets only a few run at a time, from the owners in turn. Listings, which take tens of
// milliseconds per page, yield after a moment. A call that neither ends nor yields soon is assumed to wait for a disk,
// which uses no processor time, and another one runs in its place.
type turns[H, K comparable] struct {
	gate     *gate[H, K]
	slice    time.Duration // after which a call yields
	patience time.Duration // after which it is assumed to wait for a disk

	mu      sync.Mutex
	oldest  *turn[H, K] // list of running turns that are not lent
	newest  *turn[H, K]
	waiting int
	timer   *time.Timer // armed while a call waits
	armed   bool
}

// turn is the turn of a call. The zero turn has not begun. A single goroutine owns it.
type turn[H, K comparable] struct {
	host       H
	conn       K
	owner      *owner[H, K]
	since      time.Time
	lent       bool // another call runs in its place
	prev, next *turn[H, K]
}

const (
	turnSlice      = 500 * time.Microsecond
	turnPatience   = 5 * time.Millisecond
	lookupPatience = time.Millisecond

	// A LOOKUP of a parent does not wait for a disk: the directories above an open one are in memory. It uses a
	// processor all the time, and longer in a deep tree.
	climbPatience = time.Minute
)

// newTurns returns turns for n concurrent calls.
func newTurns[H, K comparable](n int, patience time.Duration) *turns[H, K] {
	return &turns[H, K]{gate: newGate[H, K](gateLimits{all: n, share: n, host: 1}), slice: turnSlice, patience: patience}
}

// begin waits for a turn of connection conn of a host, or until ctx ends. If it returns no error, the caller must call
// end.
func (t *turns[H, K]) begin(ctx context.Context, host H, conn K, h *turn[H, K]) error {
	o := t.gate.try(host, conn)
	if o == nil {
		t.watch()
		var err error
		o, err = t.gate.enter(ctx, host, conn)
		t.mu.Lock()
		t.waiting--
		t.mu.Unlock()
		if err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	*h = turn[H, K]{host: host, conn: conn, owner: o}
	t.add(h)
	return nil
}

// add appends a turn that begins now to the list. mu is held.
func (t *turns[H, K]) add(h *turn[H, K]) {
	h.since, h.prev = time.Now(), t.newest
	if t.newest != nil {
		t.newest.next = h
	} else {
		t.oldest = h
	}
	t.newest = h
}

// end ends a turn.
func (t *turns[H, K]) end(h *turn[H, K]) {
	t.mu.Lock()
	lent := h.lent
	if !lent {
		t.remove(h)
		h.lent = true
	}
	t.mu.Unlock()
	if !lent {
		t.gate.leave(h.owner)
	}
}

// pause yields if the turn has lasted long enough and a call waits. If it returns an error, which is ctx's, the turn
// has ended.
func (t *turns[H, K]) pause(ctx context.Context, h *turn[H, K]) error {
	if time.Since(h.since) < t.slice {
		return nil
	}
	err := ctx.Err()
	t.mu.Lock()
	alone := t.waiting == 0 && !h.lent && err == nil
	if alone {
		t.remove(h)
		t.add(h)
	}
	t.mu.Unlock()
	if alone {
		return nil
	}
	t.end(h)
	if err != nil {
		return err
	}
	return t.begin(ctx, h.host, h.conn, h)
}

// remove removes a turn from the list. mu is held.
func (t *turns[H, K]) remove(h *turn[H, K]) {
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		t.oldest = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	} else {
		t.newest = h.prev
	}
	h.prev, h.next = nil, nil
}

// watch counts the caller as waiting, and arms the timer that finds calls which do not yield.
func (t *turns[H, K]) watch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting++
	if t.armed {
		return
	}
	t.armed = true
	if t.timer == nil {
		t.timer = time.AfterFunc(t.patience, t.lend)
	} else {
		t.timer.Reset(t.patience)
	}
}

// lend lets others run in place of calls that have not yielded for long.
func (t *turns[H, K]) lend() {
	limit := time.Now().Add(-t.patience)
	var lent []*owner[H, K]
	t.mu.Lock()
	for h := t.oldest; h != nil && !h.since.After(limit); h = t.oldest {
		t.remove(h)
		h.lent = true
		lent = append(lent, h.owner)
	}
	t.armed = t.waiting > 0
	if t.armed {
		t.timer.Reset(t.patience)
	}
	t.mu.Unlock()
	for _, o := range lent {
		t.gate.leave(o)
	}
}
