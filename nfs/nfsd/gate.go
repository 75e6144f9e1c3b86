package nfsd

import (
	"context"
	"net/netip"
	"sync"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// gate limits the calls executing in file systems, each of which may block a thread. Hosts share it, and the
// connections of a host share the host's part: many connections get only as much as one. A host gets only a part of what
// it leaves free, and a connection only a part of what its host may still have, so there is room for another one even
// if many hold as much as they can forever. Waiting calls are admitted round-robin by host, and round-robin by
// connection within a host.
type gate[H, K comparable] struct {
	limits gateLimits

	mu    sync.Mutex
	free  int
	hosts map[H]*owner[H, K]
	conns map[K]*owner[H, K]
	next  ring[H, K] // hosts with waiting calls
	spare []*owner[H, K]
	wait  sync.Pool // *waiter
}

// gateLimits limits the calls of a gate.
type gateLimits struct {
	all   int // all concurrent calls
	share int // concurrent calls of one connection
	host  int // free places required for each call of a host
	conn  int // places left to its host required for each call of a connection
}

// host identifies a client's host. A connection without an address counts as a host by itself.
type host struct {
	addr netip.Prefix
	conn rpc.Conn
}

func hostOf(conn rpc.Conn, addr netip.Prefix) host {
	if addr.IsValid() {
		return host{addr: addr}
	}
	return host{conn: conn}
}

// owner is a host, or a connection with its list of waiting calls, oldest first.
type owner[H, K comparable] struct {
	host    *owner[H, K] // set for a connection
	hostKey H
	connKey K

	running        int
	first, last    *waiter      // for a connection
	conns          int          // for a host: number of owners
	next           ring[H, K]   // for a host: connections with waiting calls
	before, behind *owner[H, K] // in a ring; nil: in none
}

// ring holds owners with waiting calls. Connections in it are below their share.
type ring[H, K comparable] struct{ first *owner[H, K] }

// waiter is a waiting call.
type waiter struct {
	ready  chan struct{} // has capacity 1
	before *waiter       // links in the list of waiters
	behind *waiter
	let    bool // it has been admitted
}

func newGate[H, K comparable](limits gateLimits) *gate[H, K] {
	g := &gate[H, K]{limits: limits, free: limits.all, hosts: make(map[H]*owner[H, K]), conns: make(map[K]*owner[H, K])}
	g.wait.New = func() any { return &waiter{ready: make(chan struct{}, 1)} }
	return g
}

// enter waits until there is room for a call of connection k of host h, or until ctx ends. If it returns no error, the
// caller must call leave.
func (g *gate[H, K]) enter(ctx context.Context, h H, k K) (*owner[H, K], error) {
	g.mu.Lock()
	o := g.own(h, k)
	if g.admit(o) {
		g.mu.Unlock()
		return o, nil
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
		return o, nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.let {
		<-w.ready
		g.end(o)
	} else {
		o.remove(w)
		g.arrange(o)
		g.forget(o)
	}
	g.wait.Put(w)
	return nil, ctx.Err()
}

// try is enter without waiting. It returns nil if the call is not admitted.
func (g *gate[H, K]) try(h H, k K) *owner[H, K] {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.own(h, k)
	if g.admit(o) {
		return o
	}
	g.forget(o)
	return nil
}

// admit admits a call of o if there is room for it. mu is held.
func (g *gate[H, K]) admit(o *owner[H, K]) bool {
	// If there are free places, calls that wait do so because of their owner's share.
	if !g.room(o) || o.first != nil {
		return false
	}
	g.count(o, 1)
	return true
}

// count adds n to the running calls of o. mu is held.
func (g *gate[H, K]) count(o *owner[H, K], n int) {
	g.free -= n
	o.running += n
	o.host.running += n
}

// roomOf reports whether there is room for another call of host h. mu is held.
func (g *gate[H, K]) roomOf(h *owner[H, K]) bool { return h.running*g.limits.host < g.free }

// room reports whether there is room for another call of connection o, given that its host has room. mu is held.
func (g *gate[H, K]) room(o *owner[H, K]) bool {
	h := o.host
	// After left more calls, the host has h.running + left, and g.free - left places are free.
	left := (g.free - h.running*g.limits.host + g.limits.host) / (g.limits.host + 1)
	return o.running < g.limits.share && o.running*g.limits.conn < left
}

// own returns the owner for connection k of host h, and creates it if necessary. mu is held.
func (g *gate[H, K]) own(h H, k K) *owner[H, K] {
	o := g.conns[k]
	if o != nil {
		return o
	}
	host := g.hosts[h]
	if host == nil {
		host = g.newOwner()
		host.hostKey = h
		g.hosts[h] = host
	}
	o = g.newOwner()
	o.host, o.connKey = host, k
	host.conns++
	g.conns[k] = o
	return o
}

// leave ends a call of o.
func (g *gate[H, K]) leave(o *owner[H, K]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(o)
}

// end returns the place of a call of o, and admits others. mu is held.
func (g *gate[H, K]) end(o *owner[H, K]) {
	g.count(o, -1)
	g.arrange(o)
	for g.free > 0 {
		next := g.choose()
		if next == nil {
			break
		}
		w := next.first
		next.remove(w)
		g.count(next, 1)
		g.arrange(next)
		w.let = true
		w.ready <- struct{}{}
	}
	g.forget(o)
}

// choose returns the next connection in turn, if both it and its host have room. It skips those without room; they have
// running calls, so there are at most as many as places. mu is held.
func (g *gate[H, K]) choose() *owner[H, K] {
	return g.next.turn(func(h *owner[H, K]) *owner[H, K] {
		if !g.roomOf(h) {
			return nil
		}
		return h.next.turn(func(o *owner[H, K]) *owner[H, K] {
			if !g.room(o) {
				return nil
			}
			return o
		})
	})
}

// turn offers the owners to f in turn until f accepts one, and returns the result of f.
func (r *ring[H, K]) turn(f func(*owner[H, K]) *owner[H, K]) *owner[H, K] {
	for last := r.first; r.first != nil; {
		o := r.first
		r.first = o.behind
		if got := f(o); got != nil {
			return got
		}
		if r.first == last {
			break
		}
	}
	return nil
}

// arrange adds connection o and its host to the end of their rings, or removes them. mu is held.
func (g *gate[H, K]) arrange(o *owner[H, K]) {
	o.host.next.arrange(o, o.first != nil && o.running < g.limits.share)
	g.next.arrange(o.host, o.host.next.first != nil)
}

func (r *ring[H, K]) arrange(o *owner[H, K], should bool) {
	in := o.behind != nil
	switch {
	case in == should:
	case should && r.first == nil:
		o.before, o.behind = o, o
		r.first = o
	case should:
		o.before, o.behind = r.first.before, r.first
		o.before.behind, o.behind.before = o, o
	default:
		if r.first == o {
			r.first = o.behind
		}
		if r.first == o {
			r.first = nil
		}
		o.before.behind, o.behind.before = o.behind, o.before
		o.before, o.behind = nil, nil
	}
}

// forget drops a connection without calls, and a host without connections. mu is held.
func (g *gate[H, K]) forget(o *owner[H, K]) {
	if o.running > 0 || o.first != nil {
		return
	}
	h := o.host
	delete(g.conns, o.connKey)
	g.drop(o)
	if h.conns--; h.conns == 0 {
		delete(g.hosts, h.hostKey)
		g.drop(h)
	}
}

// drop keeps an unused owner for reuse. mu is held.
func (g *gate[H, K]) drop(o *owner[H, K]) {
	*o = owner[H, K]{}
	if len(g.spare) < 64 {
		g.spare = append(g.spare, o)
	}
}

// newOwner returns an owner without calls. mu is held.
func (g *gate[H, K]) newOwner() *owner[H, K] {
	if n := len(g.spare); n > 0 {
		o := g.spare[n-1]
		g.spare = g.spare[:n-1]
		return o
	}
	return new(owner[H, K])
}

// remove removes w from the list.
func (o *owner[H, K]) remove(w *waiter) {
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
