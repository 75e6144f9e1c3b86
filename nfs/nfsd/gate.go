package nfsd

import (
	"context"
	"sync"
)

// A gate bounds the calls that are in the hands of file systems: each may block a thread. No
// owner, which is a connection, has more than its share at a time, nor more than a part of what is
// left for others: so there is room for another one, though many hold as much as they can get for
// ever. Calls that wait are let in from the owners in turn.
type gate[K comparable] struct {
	share int // calls of one owner
	part  int // an owner has at most one call for so many free places

	mu     sync.Mutex
	free   int
	owners map[K]*owner // those with calls
	next   *owner       // ring of the owners with calls that wait and room for one; nil: none
	spare  []*owner
	wait   sync.Pool // *waiter
}

// An owner has running calls, and a list of those that wait, oldest first.
type owner struct {
	running        int
	first, last    *waiter
	before, behind *owner // in the ring; nil: not in it
}

// A waiter is a call that waits.
type waiter struct {
	ready  chan struct{} // has room for one
	before *waiter       // of those that wait
	behind *waiter
	let    bool // it has been let in
}

func newGate[K comparable](all, share, part int) *gate[K] {
	g := &gate[K]{share: share, part: part, free: all, owners: make(map[K]*owner)}
	g.wait.New = func() any { return &waiter{ready: make(chan struct{}, 1)} }
	return g
}

// enter waits until there is room for a call of k, or ctx has ended. leave has to follow if the
// error is nil.
func (g *gate[K]) enter(ctx context.Context, k K) error {
	g.mu.Lock()
	o := g.own(k)
	if g.admit(o) {
		g.mu.Unlock()
		return nil
	}
	w := g.wait.Get().(*waiter)
	w.let, w.before, w.behind = false, o.last, nil
	if o.last == nil {
		o.first = w
	} else {
		o.last.behind = w
	}
	o.last = w
	g.arrange(o)
	g.mu.Unlock()

	select {
	case <-w.ready:
		g.wait.Put(w)
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.let {
		<-w.ready
		g.end(k, o)
	} else {
		o.remove(w)
		g.arrange(o)
		g.forget(k, o)
	}
	g.wait.Put(w)
	return ctx.Err()
}

// try is enter for who does not wait: ok tells whether the call is let in.
func (g *gate[K]) try(k K) (ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.own(k)
	if ok = g.admit(o); !ok {
		g.forget(k, o)
	}
	return ok
}

// admit lets a call of o in, if there is room for it. mu is held.
func (g *gate[K]) admit(o *owner) bool {
	// Calls that wait while there is a free place wait for their owner's share.
	if !g.room(o) || o.first != nil {
		return false
	}
	g.free--
	o.running++
	return true
}

// room tells whether o may have another call. mu is held.
func (g *gate[K]) room(o *owner) bool {
	return o.running < g.share && o.running*g.part < g.free
}

// own returns the owner with a key. mu is held.
func (g *gate[K]) own(k K) *owner {
	o := g.owners[k]
	if o == nil {
		o = g.newOwner()
		g.owners[k] = o
	}
	return o
}

// leave ends a call of k.
func (g *gate[K]) leave(k K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(k, g.owners[k])
}

// end gives the place of a call of o back, and lets others in. mu is held.
func (g *gate[K]) end(k K, o *owner) {
	g.free++
	o.running--
	g.arrange(o)
	// Owners without room are passed over. There are no more of them than places, as one without
	// calls has room.
	for last := g.next; g.free > 0 && g.next != nil; {
		o := g.next
		g.next = o.behind
		if !g.room(o) {
			if g.next == last {
				break
			}
			continue
		}
		last = g.next
		w := o.first
		o.remove(w)
		g.free--
		o.running++
		g.arrange(o)
		w.let = true
		w.ready <- struct{}{}
	}
	g.forget(k, o)
}

// arrange puts o into the ring, at its end, or takes it out. mu is held.
func (g *gate[K]) arrange(o *owner) {
	in, should := o.behind != nil, o.first != nil && o.running < g.share
	switch {
	case in == should:
	case should && g.next == nil:
		o.before, o.behind = o, o
		g.next = o
	case should:
		o.before, o.behind = g.next.before, g.next
		o.before.behind, o.behind.before = o, o
	default:
		if g.next == o {
			g.next = o.behind
		}
		if g.next == o {
			g.next = nil
		}
		o.before.behind, o.behind.before = o.behind, o.before
		o.before, o.behind = nil, nil
	}
}

// forget drops an owner without calls. mu is held.
func (g *gate[K]) forget(k K, o *owner) {
	if o.running == 0 && o.first == nil {
		delete(g.owners, k)
		if len(g.spare) < 64 {
			g.spare = append(g.spare, o)
		}
	}
}

// newOwner returns an owner without calls. mu is held.
func (g *gate[K]) newOwner() *owner {
	if n := len(g.spare); n > 0 {
		o := g.spare[n-1]
		g.spare = g.spare[:n-1]
		return o
	}
	return new(owner)
}

// remove takes w out of the list.
func (o *owner) remove(w *waiter) {
	if w.before == nil {
		o.first = w.behind
	} else {
		w.before.behind = w.behind
	}
	if w.behind == nil {
		o.last = w.before
	} else {
		w.behind.before = w.before
	}
	w.before, w.behind = nil, nil
}
