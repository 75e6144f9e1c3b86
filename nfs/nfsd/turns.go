package nfsd

import (
	"context"
	"sync"
	"time"
)

// Turns divide the processors among calls of one sort. A gate does not: it lets in as many as may
// wait for disks, and when none of them does, hundreds stand in the queues of Go's scheduler, where a
// call of another connection is the last in line. So few run at a time, taken from the owners in
// turn, and listings, with pages that need tens of milliseconds, make way after a moment. A call that
// does not end or make way soon is taken to wait for a disk, which uses no processor time, and
// another one runs in its place.
type turns[H, K comparable] struct {
	gate     *gate[H, K]
	slice    time.Duration // after which a call makes way
	patience time.Duration // after which it is taken to wait for a disk

	mu      sync.Mutex
	oldest  *turn[H, K] // list of those that run and are not lent
	newest  *turn[H, K]
	waiting int
	timer   *time.Timer // armed while a call waits
	armed   bool
}

// A turn is a call's. The zero turn has not begun. It belongs to one goroutine.
type turn[H, K comparable] struct {
	host       H
	conn       K
	owner      *owner[H, K]
	since      time.Time
	lent       bool // another one runs in its place
	prev, next *turn[H, K]
}

const (
	turnSlice      = 500 * time.Microsecond
	turnPatience   = 5 * time.Millisecond
	lookupPatience = time.Millisecond

	// A LOOKUP of a parent waits for no disk: the directories above one that is open are in memory.
	// It uses a processor all the time, longer in a deep tree.
	climbPatience = time.Minute
)

// newTurns returns turns of n calls at a time.
func newTurns[H, K comparable](n int, patience time.Duration) *turns[H, K] {
	return &turns[H, K]{gate: newGate[H, K](gateLimits{all: n, share: n, host: 1}), slice: turnSlice, patience: patience}
}

// begin waits for a turn of connection conn of a host, or until ctx has ended. end has to follow if the
// error is nil.
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

// add puts a turn that begins now at the end of the list. mu is held.
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

// pause makes way, if the turn has lasted long enough and a call waits. Without an error the turn
// goes on; with one, which is that of ctx, it has ended.
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

// watch counts the caller, which is about to wait, and arranges that calls are found that do not make
// way by themselves.
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

// lend lets others run in place of those that have not made way for long.
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
