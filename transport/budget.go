package transport

import (
	"sync"
	"sync/atomic"
)

// What the peers of a server make it keep.
//
// A call reserves, before it runs, the memory that it may come to hold: for what is pulled,
// and for the results, which are no longer than the chunks it offers for them. Once the
// reply is there the reservation shrinks to what is held, and it ends when the reply has
// left. A call that finds no room waits in its receive buffer, and those of its connection
// behind it; calls without chunks reserve nothing and wait for nothing.
//
// Nobody gets all there is. A host may reserve no more than it leaves to others, and a
// connection no more than a third of what then is left to its host, so that there is always
// something for the next one. And a connection begins with a part of MaxMemory: it may
// reserve the more, the more replies it has taken. Who takes none, which is the cheapest way
// to make a server keep memory, does not get beyond that.
//
// Memory that is mapped and that no call has reserved counts, too: it is given back when
// others need it. See arena.
type budget struct {
	limit int64

	// Mapped, and not reserved by calls: base for the connections' own buffers, idle for
	// those of calls, between calls.
	base, idle atomic.Int64

	mu      sync.Mutex
	held    int64 // reserved
	hosts   map[string]*hostShare
	tenants map[*tenant]struct{}
	first   *tenant // those that wait for room, first come, first served
	last    *tenant
	short   int // of these, those that hold nothing and were too much for the whole
}

// A hostShare is what the connections of a host have reserved. Guarded by budget.mu.
type hostShare struct {
	held   int64
	hungry int // connections that wait and hold nothing
	refs   int // tenants
}

// A tenant is a connection as its budget knows it. Guarded by budget.mu.
type tenant struct {
	b     *budget
	arena *arena // nil: it has none
	wake  func() // called when something has been granted
	name  string
	host  *hostShare

	// What this connection may reserve at present, at first, and at most: MaxMemory.
	allow, start, most int64
	took               int64 // since allow has last been raised

	held atomic.Int64 // reserved; changes under mu

	// While it waits.
	next          *tenant
	waits         bool
	hungry, short bool
	need          int64 // of the call that is next

	granted int64 // reserved for that call by somebody who made room
	left    bool  // the connection has ended
}

func newBudget(limit int) *budget {
	return &budget{limit: int64(limit), hosts: make(map[string]*hostShare), tenants: make(map[*tenant]struct{})}
}

// enter makes t a tenant, for a connection of a host. wake is called when what it waits for
// has been granted, and must not wait itself.
func (b *budget) enter(t *tenant, cfg *Config, host string, a *arena, wake func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t.b, t.arena, t.wake, t.name, t.most = b, a, wake, host, int64(cfg.MaxMemory)
	t.start = min(t.most, startMessages*int64(cfg.MaxMessage))
	t.allow = t.start
	if t.host = b.hosts[host]; t.host == nil {
		t.host = new(hostShare)
		b.hosts[host] = t.host
	}
	t.host.refs++
	b.tenants[t] = struct{}{}
}

// startMessages is what a new connection may reserve, in messages of full length.
const startMessages = 4

// leave ends what a connection waits for. What its calls hold they give back themselves,
// some of them later.
func (t *tenant) leave() {
	b := t.b
	b.mu.Lock()
	if !t.left {
		t.left = true
		b.unqueue(t)
		b.add(t, -t.granted)
		t.granted = 0
		delete(b.tenants, t)
		if t.host.refs--; t.host.refs == 0 {
			delete(b.hosts, t.name)
		}
	}
	woken := b.serve()
	b.mu.Unlock()
	wakeTenants(woken)
}

// add changes what is reserved. mu is held.
func (b *budget) add(t *tenant, n int64) {
	b.held += n
	t.host.held += n
	t.held.Add(n)
}

// roomBase is what the connections' own buffers may take before there are no more credits,
// and no new ones for hosts that have many: a part of the limit.
const roomBase = 2

// crowded tells whether the connections' own buffers take so much that there should be no
// more of them.
func (b *budget) crowded() bool { return b.base.Load() > b.limit/roomBase }

// fits tells whether the whole has room for n bytes more, and how much it then has left.
// mu is held.
func (b *budget) fits(n int64) (left int64, ok bool) {
	left = b.limit - b.held - n - min(b.base.Load(), b.limit/roomBase)
	return left, left >= 0 || b.held == 0
}

// admits tells whether the connection may reserve n bytes more, own of what it holds being
// the same call's. mu is held.
func (b *budget) admits(t *tenant, own, n int64) bool {
	held := t.held.Load()
	if held > own && held+n > t.allow {
		return false
	}
	left, ok := b.fits(n)
	switch {
	case !ok:
		return false
	case t.host.held == own:
		return true
	case t.host.held+n > left:
		return false
	case held == own:
		return true
	}
	return held+n <= (left-t.host.held-n)/3
}

// reserve takes n bytes for the call that is next. If there is no room the connection is in
// line for them from then on: it is woken once they have been taken for it, and asks again.
func (t *tenant) reserve(n int64) bool {
	b := t.b
	b.mu.Lock()
	granted := t.granted > 0 && t.granted == n
	if !granted {
		b.add(t, -t.granted)
	}
	t.granted = 0
	switch {
	case granted:
	case t.waits:
		b.mu.Unlock()
		return false
	case t.held.Load() > 0 && (b.short > 0 || t.host.hungry > 0), !b.admits(t, 0, n):
		b.queue(t, n)
		b.mu.Unlock()
		return false
	default:
		b.add(t, n)
	}
	over := b.over()
	b.mu.Unlock()
	if over > 0 {
		b.reclaim(over, t)
	}
	return true
}

// more takes n bytes for a call that runs and has own already, if there is room.
func (t *tenant) more(own, n int64) bool {
	b := t.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.admits(t, own, n) {
		return false
	}
	b.add(t, n)
	return true
}

// charge counts n bytes that a call has already.
func (t *tenant) charge(n int64) {
	t.b.mu.Lock()
	t.b.add(t, n)
	t.b.mu.Unlock()
}

// release gives n bytes back, for those who wait. took tells that the peer has taken a
// reply for which they were.
func (t *tenant) release(n int64, took bool) {
	b := t.b
	b.mu.Lock()
	b.add(t, -n)
	if took && t.allow < t.most {
		if t.took += n; t.took >= t.allow {
			t.allow, t.took = min(2*t.allow, t.most), 0
		}
	}
	var woken []*tenant
	if b.first != nil {
		woken = b.serve()
	}
	b.mu.Unlock()
	wakeTenants(woken)
}

// restart has a connection begin anew that takes nothing.
func (t *tenant) restart() {
	t.b.mu.Lock()
	t.allow, t.took = t.start, 0
	t.b.mu.Unlock()
}

// queue puts t in line for n bytes. mu is held.
func (b *budget) queue(t *tenant, n int64) {
	t.waits, t.need, t.next = true, n, nil
	if b.first == nil {
		b.first = t
	} else {
		b.last.next = t
	}
	b.last = t
	if t.held.Load() == 0 {
		// Others, who hold something, do not get in front of it.
		t.hungry = true
		t.host.hungry++
		if _, ok := b.fits(n); !ok {
			t.short = true
			b.short++
		}
	}
}

// unqueue takes t out of the line. mu is held.
func (b *budget) unqueue(t *tenant) {
	if !t.waits {
		return
	}
	var before *tenant
	for w := b.first; w != t; w = w.next {
		before = w
	}
	b.remove(t, before)
}

func (b *budget) remove(t, before *tenant) {
	if before == nil {
		b.first = t.next
	} else {
		before.next = t.next
	}
	if b.last == t {
		b.last = before
	}
	t.next, t.waits = nil, false
	if t.hungry {
		t.hungry = false
		t.host.hungry--
	}
	if t.short {
		t.short = false
		b.short--
	}
}

// serve reserves for those in line what they wait for, each for one call: who wants more is
// in line again, at its end. They are returned, to be woken. mu is held.
func (b *budget) serve() (woken []*tenant) {
	var before *tenant
	for t := b.first; t != nil; {
		next := t.next
		if !b.admits(t, 0, t.need) {
			before, t = t, next
			continue
		}
		b.add(t, t.need)
		t.granted = t.need
		b.remove(t, before)
		woken = append(woken, t)
		t = next
	}
	return woken
}

// wakeTenants has the leaders of connections look at what they were granted.
func wakeTenants(list []*tenant) {
	for _, t := range list {
		t.wake()
	}
}

// over is how much memory that nobody uses there is no room for any more. mu is held.
func (b *budget) over() int64 {
	idle := b.idle.Load()
	return min(b.held+b.base.Load()+idle-b.limit, idle)
}

// reclaim has arenas give back n bytes that nobody uses, the one of who asks last: it is
// going to use them.
func (b *budget) reclaim(n int64, asks *tenant) {
	b.mu.Lock()
	arenas := make([]*arena, 0, len(b.tenants))
	for t := range b.tenants {
		if t != asks && t.arena != nil {
			arenas = append(arenas, t.arena)
		}
	}
	b.mu.Unlock()
	if asks.arena != nil {
		arenas = append(arenas, asks.arena)
	}
	for _, a := range arenas {
		if n <= 0 {
			return
		}
		n -= int64(a.trim(int(n)))
	}
}
