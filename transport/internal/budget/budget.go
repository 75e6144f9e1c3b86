// Package budget shares a server's memory for calls among its connections.
//
// # The life of a reservation
//
// Before a call runs it reserves the most memory that it may hold: for the arguments that will be pulled, and for
// results that fill the chunks it offers. When the reply is built the reservation shrinks to the memory in use, and it
// ends when the reply has been sent. A call for which there is no room stays in its receive buffer, and so do the later
// calls of its connection. Calls without chunks reserve nothing and wait for nothing.
//
// Over TCP memory for a long call is reserved as it arrives, and the call may hold a part of it while it waits for
// more. Such memory is parked: it is not released before there is more. If all memory that a connection, a host or the
// whole server holds is parked, no wait can end; then the bound is lifted for one call, which runs to its end.
//
// # Fairness
//
// No host gets all memory. A host may reserve at most as much as it leaves to others, and a connection at most a third
// of the memory then left to its host, so that something remains for the next. A connection starts with a part of its
// maximum and may reserve more as its peer takes replies. Taking no replies is the cheapest way to make a server hold
// memory, and it does not raise the initial limit.
//
// # Values
//
// Values decoded from the arguments of a call count in addition, and their size is not known in advance. A connection
// may have as much of them as its maximum, in addition to the reservations of its calls. A running call does not wait
// for more, because waiting calls may hold the memory: it fails.
//
// Mapped memory that no call has reserved counts too ([Budget.Usage]); it is unmapped when others need it.
package budget

import (
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

// A Budget is the memory of all connections of a server. Its methods, and those of its tenants, may be called by any
// goroutine; none of them blocks.
type Budget struct {
	limit int64
	usage arena.Usage

	mu      lockorder.Mutex
	held    int64 // reserved
	parked  int64 // part of held: by waiting calls
	hosts   map[string]*hostShare
	tenants map[*Tenant]struct{}
	first   *Tenant // the queue of tenants that wait for room, in order of arrival
	last    *Tenant
	short   int // waiting tenants that hold nothing and need more than was left
}

// A hostShare is the reservation of a host's connections. Guarded by Budget.mu.
type hostShare struct {
	held   int64
	parked int64 // part of held
	hungry int   // waiting tenants that hold nothing
	refs   int   // tenants
}

// A Tenant is one connection's share of a Budget. Pass the zero Tenant to [Budget.Join].
type Tenant struct {
	b    *Budget
	cfg  Terms
	host *hostShare

	held atomic.Int64 // reserved; changed under Budget.mu

	// Guarded by Budget.mu.
	allow   int64 // current limit of reservations
	took    int64 // released by taken replies since allow was last raised
	granted int64 // reserved for the waiting call, by a tenant that made room
	parked  int64 // part of held: by waiting calls
	asks    int64 // part of parked: by the call that asks in Reserve
	ahead   int64 // taken by Ahead
	values  int64 // taken by Decode
	left    bool

	// While the tenant waits.
	next          *Tenant
	waits         bool
	hungry, short bool
	need          int64 // of the waiting call
}

// Terms are the conditions under which a connection joins a Budget.
type Terms struct {
	// Host is the name of the peer's host. The connections of a host share its memory.
	Host string
	// Start and Most are the initial and the maximum reservation of the connection, in bytes.
	Start, Most int64
	// Trim unmaps up to n bytes of memory that the connection does not use, and returns the number of bytes unmapped.
	// Nil: memory cannot be unmapped.
	Trim func(n int) int
	// Wake is called when the memory that a call waits for has been reserved. It must not block.
	Wake func()
}

// New returns a Budget of limit bytes.
func New(limit int) *Budget {
	b := &Budget{limit: int64(limit), hosts: make(map[string]*hostShare), tenants: make(map[*Tenant]struct{})}
	b.mu.Init(lockorder.Budget)
	return b
}

// Usage returns the counter of memory mapped by the arenas of the connections.
func (b *Budget) Usage() *arena.Usage { return &b.usage }

// Stats is the state of a Budget.
type Stats struct {
	Held           int64 // bytes that calls have reserved
	Base, Idle     int64 // bytes mapped in addition, see Usage
	Hosts, Tenants int
	Waiting        int // tenants in the queue
}

// Stats returns the current state.
func (b *Budget) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting := 0
	for t := b.first; t != nil; t = t.next {
		waiting++
	}
	return Stats{
		Held: b.held, Base: b.usage.Base.Load(), Idle: b.usage.Idle.Load(),
		Hosts: len(b.hosts), Tenants: len(b.tenants), Waiting: waiting,
	}
}

// Join makes t a tenant.
func (b *Budget) Join(t *Tenant, terms Terms) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t.b, t.cfg = b, terms
	t.cfg.Start = min(terms.Start, terms.Most)
	t.allow = t.cfg.Start
	if t.host = b.hosts[terms.Host]; t.host == nil {
		t.host = new(hostShare)
		b.hosts[terms.Host] = t.host
	}
	t.host.refs++
	b.tenants[t] = struct{}{}
}

// Leave ends the wait of a tenant after its connection has ended. Its calls release their memory themselves, some of
// them later. Calling Leave twice is harmless.
func (t *Tenant) Leave() {
	b := t.b
	b.mu.Lock()
	if !t.left {
		t.left = true
		b.unqueue(t)
		b.add(t, -t.granted)
		t.granted = 0
		b.park(t, -t.parked) // no call waits now
		t.asks = 0
		delete(b.tenants, t)
		if t.host.refs--; t.host.refs == 0 {
			delete(b.hosts, t.cfg.Host)
		}
	}
	woken := b.serve()
	b.mu.Unlock()
	wake(woken)
}

// Held returns the number of bytes reserved by the tenant's calls.
func (t *Tenant) Held() int64 { return t.held.Load() }

// add changes the reserved memory. mu is held.
func (b *Budget) add(t *Tenant, n int64) {
	b.held += n
	t.host.held += n
	t.held.Add(n)
}

// park changes the amount of reserved memory held by waiting calls. mu is held.
func (b *Budget) park(t *Tenant, n int64) {
	b.parked += n
	t.host.parked += n
	t.parked += n
}

// baseShare: the connections' own buffers may use 1/baseShare of the limit before the server is crowded.
const baseShare = 2

// Crowded reports whether the connections' own buffers use so much memory that there should be no growth: no higher
// grants, and no new connections for hosts that have many.
func (b *Budget) Crowded() bool { return b.usage.Base.Load() > b.limit/baseShare }

// fits reports whether there is room for n more bytes, and how much would be left. mu is held.
func (b *Budget) fits(n int64) (left int64, ok bool) {
	left = b.limit - b.held - n - min(b.usage.Base.Load(), b.limit/baseShare)
	return left, left >= 0 || b.held == b.parked
}

// admits reports whether the tenant may reserve n more bytes for a call that runs and holds own bytes, or for a waiting
// one. mu is held.
func (b *Budget) admits(t *Tenant, own, n int64) bool {
	held := t.held.Load()
	alone := held == t.parked+own // no other call of the tenant will release anything
	if !alone && held+n > t.allow {
		return false
	}
	left, ok := b.fits(n)
	switch {
	case !ok:
		return false
	case t.host.held == t.host.parked+own:
		return true
	case t.host.held+n > left:
		return false
	case alone:
		return true
	}
	return held+n <= (left-t.host.held-n)/3
}

// Reserve reserves n bytes for the tenant's next call, which already holds own bytes. If there is no room it returns
// false and queues the tenant: it is woken once the bytes have been reserved for it, and then asks again.
func (t *Tenant) Reserve(own, n int64) bool {
	b := t.b
	b.mu.Lock()
	granted := t.granted > 0 && t.granted == n
	if !granted {
		b.add(t, -t.granted)
	}
	t.granted = 0
	b.ask(t, own)
	switch {
	case granted:
	case t.waits:
		b.mu.Unlock()
		return false
	case own == 0 && t.behind(), !b.admits(t, 0, n):
		b.queue(t, n)
		var woken []*Tenant
		if own > 0 { // now parked; others may have been waiting for it
			woken = b.serve()
		}
		b.mu.Unlock()
		wake(woken)
		return false
	default:
		b.add(t, n)
	}
	b.ask(t, 0)
	over := b.over()
	b.mu.Unlock()
	if over > 0 {
		b.reclaim(over, t)
	}
	return true
}

// ask parks the memory that the asking call holds. mu is held.
func (b *Budget) ask(t *Tenant, own int64) {
	if !t.left {
		b.park(t, own-t.asks)
		t.asks = own
	}
}

// behind reports whether other tenants must be served before the tenant's next call. mu is held.
func (t *Tenant) behind() bool {
	return t.held.Load() > t.parked && (t.b.short > 0 || t.host.hungry > 0)
}

// Withdraw ends the wait that Reserve began, for a call that no longer needs the memory.
func (t *Tenant) Withdraw() {
	b := t.b
	b.mu.Lock()
	b.unqueue(t)
	b.add(t, -t.granted)
	t.granted = 0
	b.ask(t, 0)
	woken := b.serve()
	b.mu.Unlock()
	wake(woken)
}

// TryReserve reserves n bytes for the tenant's next call if that leaves half of the total free. Unlike Reserve it does
// not queue.
func (t *Tenant) TryReserve(n int64) bool {
	b := t.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if left, _ := b.fits(n); left < b.limit/2 || t.waits || t.granted > 0 || t.behind() || !b.admits(t, 0, n) {
		return false
	}
	b.add(t, n)
	return true
}

// Ahead reserves n bytes for a call that is read although it has to wait, and parks them. The connection's own bound,
// which running calls may have reached, does not apply: it may reserve its maximum once more. The shares of its host
// and of the total apply in any case.
func (t *Tenant) Ahead(n int64) bool {
	b := t.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if left, _ := b.fits(n); t.left || t.ahead+n > t.cfg.Most || left < 0 || t.host.held+n > left {
		return false
	}
	t.ahead += n
	b.add(t, n)
	b.park(t, n)
	return true
}

// Park parks n bytes that were reserved otherwise, by a call that waits in addition to those of Ahead.
func (t *Tenant) Park(n int64) {
	b := t.b
	b.mu.Lock()
	var woken []*Tenant
	if !t.left {
		b.park(t, n)
		woken = b.serve()
	}
	b.mu.Unlock()
	wake(woken)
}

// Proceed ends the wait of a call that has parked n bytes, some of them reserved by Ahead: they are now its
// reservation.
func (t *Tenant) Proceed(n, ahead int64) {
	b := t.b
	b.mu.Lock()
	t.ahead -= ahead
	if !t.left {
		b.park(t, -n)
	}
	b.mu.Unlock()
}

// Extend reserves n more bytes for a running call that holds own bytes, if there is room.
func (t *Tenant) Extend(own, n int64) bool {
	b := t.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.admits(t, own, n) {
		return false
	}
	b.add(t, n)
	return true
}

// Decode reserves n bytes for values decoded from the arguments of a running call that already has own bytes of them.
// The connection may have its maximum of such memory, or more for a single call, whatever else its calls have reserved.
// The shares of its host and of the total apply.
func (t *Tenant) Decode(own, n int64) bool {
	b := t.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if left, _ := b.fits(n); t.values > own && t.values+n > t.cfg.Most || left < 0 || t.host.held+n > left {
		return false
	}
	t.values += n
	b.add(t, n)
	return true
}

// Decoded returns the n bytes that a call reserved with Decode.
func (t *Tenant) Decoded(n int64) {
	t.b.mu.Lock()
	t.values -= n
	t.b.mu.Unlock()
	t.Release(n, false)
}

// Charge counts n more bytes that a call holds, whether there is room or not.
func (t *Tenant) Charge(n int64) {
	t.b.mu.Lock()
	t.b.add(t, n)
	t.b.mu.Unlock()
}

// Release returns n bytes, and reserves room for waiting tenants. taken reports that the peer has taken a reply that
// held them, which raises the tenant's limit.
func (t *Tenant) Release(n int64, taken bool) {
	b := t.b
	b.mu.Lock()
	b.add(t, -n)
	if taken && t.allow < t.cfg.Most {
		if t.took += n; t.took >= t.allow {
			t.allow, t.took = min(2*t.allow, t.cfg.Most), 0
		}
	}
	var woken []*Tenant
	if b.first != nil {
		woken = b.serve()
	}
	b.mu.Unlock()
	wake(woken)
}

// Restart reduces the tenant's limit to its start, because its peer is not receiving.
func (t *Tenant) Restart() {
	t.b.mu.Lock()
	t.allow, t.took = t.cfg.Start, 0
	t.b.mu.Unlock()
}

// queue appends t to the queue, for n bytes. mu is held.
func (b *Budget) queue(t *Tenant, n int64) {
	t.waits, t.need, t.next = true, n, nil
	if b.first == nil {
		b.first = t
	} else {
		b.last.next = t
	}
	b.last = t
	if t.held.Load() == 0 {
		// Tenants that hold memory must not overtake it.
		t.hungry = true
		t.host.hungry++
		if _, ok := b.fits(n); !ok {
			t.short = true
			b.short++
		}
	}
}

// unqueue removes t from the queue, if it waits. mu is held.
func (b *Budget) unqueue(t *Tenant) {
	if !t.waits {
		return
	}
	var before *Tenant
	for w := b.first; w != t; w = w.next {
		before = w
	}
	b.remove(t, before)
}

func (b *Budget) remove(t, before *Tenant) {
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

// serve reserves the memory that waiting tenants wait for, as far as there is room, for one call each: a tenant that
// needs more queues again, at the end. It returns the tenants to wake. mu is held.
func (b *Budget) serve() (woken []*Tenant) {
	var before *Tenant
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

// wake calls Wake of the tenants that were served; mu is not held.
func wake(list []*Tenant) {
	for _, t := range list {
		t.cfg.Wake()
	}
}

// over returns how much unused memory must be unmapped to stay within the limit. mu is held.
func (b *Budget) over() int64 {
	idle := b.usage.Idle.Load()
	return min(b.held+b.usage.Base.Load()+idle-b.limit, idle)
}

// reclaim makes tenants unmap n bytes of unused memory. The one that asks is last: it is about to use its own.
func (b *Budget) reclaim(n int64, asks *Tenant) {
	b.mu.Lock()
	trims := make([]func(int) int, 0, len(b.tenants))
	for t := range b.tenants {
		if t != asks && t.cfg.Trim != nil {
			trims = append(trims, t.cfg.Trim)
		}
	}
	b.mu.Unlock()
	if asks.cfg.Trim != nil {
		trims = append(trims, asks.cfg.Trim)
	}
	for _, trim := range trims {
		if n <= 0 {
			return
		}
		n -= int64(trim(int(n)))
	}
}
