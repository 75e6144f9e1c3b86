// Package budget shares a server's memory for calls among its connections.
//
// # The life of a reservation
//
// Before a call runs it reserves the memory that it may hold at most: what will be pulled
// for its arguments, and as much for its results as the chunks that it offers have room
// for. When the reply is built the reservation shrinks to what is held, and it ends when
// the reply has left. A call for which there is no room stays in its receive buffer, and
// so do the later calls of its connection. Calls without chunks reserve nothing and
// wait for nothing.
//
// Over TCP a long call is reserved for as it arrives, and may hold a part of its memory when it
// waits for more. Such memory is parked: it is not released before there is more. If all that a
// connection, a host or the whole holds is parked, nothing can end a wait, and the bound yields
// to one call, which then runs to its end.
//
// # Fairness
//
// No host gets all memory. A host may reserve no more than it leaves to others, and a
// connection no more than a third of what is then left to its host, so that something
// remains for the next. A connection starts with a part of its maximum and may reserve
// more as its peer takes replies. Taking none is the cheapest way to make a server hold
// memory, and does not get beyond the start.
//
// # Values
//
// Values decoded from the arguments of a call count in addition, and their size is not known before.
// A connection may have as much of them as its maximum, beside the reservations of its calls. A call
// that runs does not wait for more of it, as others that wait may hold the memory: it fails.
//
// Memory that is mapped and that no call has reserved counts too ([Budget.Usage]); it is
// unmapped when others need it.
package budget

import (
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

// A Budget is the memory of all connections of a server. Its methods, and those of its
// tenants, may be called by any goroutine; none of them waits.
type Budget struct {
	limit int64
	usage arena.Usage

	mu      lockorder.Mutex
	held    int64 // reserved
	parked  int64 // of held: by calls that wait
	hosts   map[string]*hostShare
	tenants map[*Tenant]struct{}
	first   *Tenant // the queue of those that wait for room, in order of arrival
	last    *Tenant
	short   int // waiting tenants that hold nothing and need more than the whole had left
}

// A hostShare is the reservation of the connections of a host. Guarded by Budget.mu.
type hostShare struct {
	held   int64
	parked int64 // of held
	hungry int   // waiting tenants that hold nothing
	refs   int   // tenants
}

// A Tenant is one connection's part in a Budget. The zero Tenant is to be given to
// [Budget.Join].
type Tenant struct {
	b    *Budget
	cfg  Terms
	host *hostShare

	held atomic.Int64 // reserved; changes under Budget.mu

	// Guarded by Budget.mu.
	allow   int64 // what may be reserved at present
	took    int64 // released by replies taken since allow was last raised
	granted int64 // reserved for the call that waits, by a tenant that made room
	parked  int64 // of held: by calls that wait
	asks    int64 // of parked: by the call that asks in Reserve
	ahead   int64 // taken by Ahead
	values  int64 // taken by Decode
	left    bool

	// While the tenant waits.
	next          *Tenant
	waits         bool
	hungry, short bool
	need          int64 // of the call that waits
}

// Terms are those with which a connection joins a Budget.
type Terms struct {
	// Host names the peer's host. Memory is shared first among connections of a host.
	Host string
	// Start and Most are the connection's reservation at first and its limit, in bytes.
	Start, Most int64
	// Trim unmaps up to n bytes of memory that the connection does not use, and returns
	// how many. Nil: memory cannot be unmapped.
	Trim func(n int) int
	// Wake is called when the memory that a call waits for has been granted. It must not
	// block.
	Wake func()
}

// New returns a Budget of limit bytes.
func New(limit int) *Budget {
	b := &Budget{limit: int64(limit), hosts: make(map[string]*hostShare), tenants: make(map[*Tenant]struct{})}
	b.mu.Init(lockorder.Budget)
	return b
}

// Usage is for the arenas of the connections to count what they have mapped.
func (b *Budget) Usage() *arena.Usage { return &b.usage }

// Stats is the state of a Budget.
type Stats struct {
	Held           int64 // bytes that calls have reserved
	Base, Idle     int64 // bytes mapped beyond these, see Usage
	Hosts, Tenants int
	Waiting        int // tenants in the queue
}

// Stats returns the present state.
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

// Leave ends the wait of a tenant when its connection has ended. Its calls release their memory
// themselves, some of them later. Leaving twice is harmless.
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

// Held is how many bytes the tenant's calls have reserved.
func (t *Tenant) Held() int64 { return t.held.Load() }

// add changes the reserved memory. mu is held.
func (b *Budget) add(t *Tenant, n int64) {
	b.held += n
	t.host.held += n
	t.held.Add(n)
}

// park changes how much of the reserved memory waits for more. mu is held.
func (b *Budget) park(t *Tenant, n int64) {
	b.parked += n
	t.host.parked += n
	t.parked += n
}

// baseShare is the part of the limit, one in so many, that the connections' own buffers
// may take before the server is crowded.
const baseShare = 2

// Crowded reports whether the connections' own buffers take so much that there should be
// no growth: no higher grants, and no new connections for hosts that have many.
func (b *Budget) Crowded() bool { return b.usage.Base.Load() > b.limit/baseShare }

// fits reports whether the whole has room for n more bytes, and how much it would have
// left. mu is held.
func (b *Budget) fits(n int64) (left int64, ok bool) {
	left = b.limit - b.held - n - min(b.usage.Base.Load(), b.limit/baseShare)
	return left, left >= 0 || b.held == b.parked
}

// admits reports whether the tenant may reserve n more bytes for a call that runs and holds own
// bytes, or for one that waits. mu is held.
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

// Reserve takes n bytes for the tenant's next call, which holds own bytes already. If there is no
// room it returns false and queues the tenant: it is woken once the bytes have been reserved for
// it, and then asks again.
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
		if own > 0 { // which is parked now, and may have been in the way of others
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

// ask parks what the call holds that asks for more. mu is held.
func (b *Budget) ask(t *Tenant, own int64) {
	if !t.left {
		b.park(t, own-t.asks)
		t.asks = own
	}
}

// behind reports whether other tenants have to be served before the tenant's next call. mu is held.
func (t *Tenant) behind() bool {
	return t.held.Load() > t.parked && (t.b.short > 0 || t.host.hungry > 0)
}

// Withdraw ends the wait that Reserve has begun, for a call that no longer needs the memory.
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

// TryReserve takes n bytes for the tenant's next call if that leaves half of the whole free.
// Unlike Reserve it does not queue.
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

// Ahead takes n bytes for a call that is read though it has to wait, and parks them. The
// connection's own bound, which calls that run may have reached, does not apply: it may take
// as much again as its most. The shares of its host and of the whole do, in any case.
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

// Park parks n bytes that were reserved otherwise, of a call that waits beside those of Ahead.
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

// Proceed ends the wait of a call that has parked n bytes, and taken some of them by Ahead: they
// are its reservation now.
func (t *Tenant) Proceed(n, ahead int64) {
	b := t.b
	b.mu.Lock()
	t.ahead -= ahead
	if !t.left {
		b.park(t, -n)
	}
	b.mu.Unlock()
}

// Extend takes n more bytes for a call that runs and holds own bytes, if there is room.
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

// Decode takes n bytes for values decoded from the arguments of a call that runs and has own bytes
// of them. The connection may have as much of that as its most, or more for one call alone, whatever
// else its calls have reserved. The shares of its host and of the whole do apply.
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

// Decoded returns the n bytes that a call has taken by Decode.
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

// Release returns n bytes, and grants room to the tenants that wait. taken says that the peer
// has taken a reply that held them, which raises what the tenant may reserve.
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

// Restart reduces what the tenant may reserve to its start, since its peer is not receiving.
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
		// Tenants that hold something must not overtake it.
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

// serve reserves what waiting tenants wait for, as far as there is room, one call each: a
// tenant that needs more queues again, at the end. They are returned, to be woken. mu is
// held.
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

// wake calls the Wake of tenants that have been granted something; mu is not held.
func wake(list []*Tenant) {
	for _, t := range list {
		t.cfg.Wake()
	}
}

// over is how much unused memory has to be unmapped for the limit to hold. mu is held.
func (b *Budget) over() int64 {
	idle := b.usage.Idle.Load()
	return min(b.held+b.usage.Base.Load()+idle-b.limit, idle)
}

// reclaim has tenants unmap n bytes that are not in use. The one that asks comes last: it is
// about to use its own.
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
