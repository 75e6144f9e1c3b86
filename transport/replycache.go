package transport

import (
	"bytes"
	"context"
	"hash/maphash"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// The duplicate-request cache: a call that a client sends again, because it has lost the
// connection and with it the reply, is not executed again, but answered with what it was
// answered before (RFC 5666 section 8 leaves that to the upper layers; RFC 8881 section
// 2.10.6.2 says why it must be). What is remembered is the RPC reply, not how it was put on
// the wire: the call comes with chunks of its own, and they may differ.
//
// A call is the same if all of its RPC message is: xid, procedure, credential, verifier,
// arguments. A client is known by its host, since its port changes with the connection, and by
// its connections: one that another client certainly uses does not get its replies. See
// lineage.

// A ReplyCache bounds a duplicate-request cache. What does not fit is forgotten; a call that
// then comes again is executed again. When the cache is full, the host whose share of it is the
// largest loses its oldest reply, so that a busy client does not cost others theirs.
type ReplyCache struct {
	// Entries is how many replies are remembered, and how many calls are under way that
	// will be, a quarter of them from one host at most. Calls beyond that are executed all
	// the same: their replies are not remembered, and their contexts end with their
	// connections. Zero is 4096.
	Entries int

	// Bytes is how many bytes the replies have together, bulk results included. Replies of more
	// than an eighth of it are not kept. Zero is 16 MiB.
	Bytes int
}

const (
	defaultCacheEntries = 4096
	defaultCacheBytes   = 16 << 20

	// runningShare is which part of the calls under way one host may have.
	runningShare = 4

	// maxAlike is how many clients of one host may have the same call in the cache.
	maxAlike = 8
)

type replyCache struct {
	limits ReplyCache
	seed   maphash.Seed
	stats  *counters
	ctx    context.Context // of the handlers; it does not end with their connection
	cancel context.CancelFunc
	births atomic.Uint64 // connections that there have been

	mu      sync.Mutex
	entries map[cacheKey]*cacheEntry // the latest of those that are alike
	hosts   map[string]*cacheHost    // that have entries
	shares  []*cacheHost             // a heap of those that have replies: the largest share is first
	bytes   int
	count   int // replies
	running int // calls under way
	spare   *cacheEntry
	leisure *cacheHost // to be used again
}

// A cacheKey is what a call that comes again has in common with the first.
type cacheKey struct {
	host            *cacheHost
	xid             uint32
	prog, vers, prc uint32
	sum             uint64 // of credential, verifier, arguments
}

// A cacheHost is where clients are.
type cacheHost struct {
	name    string
	done    cacheEntry // head of the list of entries that have been answered, the oldest first
	bytes   int
	count   int
	running int
	at      int // place in the heap
}

// A cacheEntry is a call that is being executed, and then its reply.
type cacheEntry struct {
	cache      *replyCache
	key        cacheKey
	owner      *lineage    // of the connection that made the call
	alike      *cacheEntry // the next of the same key, of another client
	prev, next *cacheEntry
	answered   bool
	waiting    []*exch // the same call again, while it is being executed

	store []byte // the RPC header of the reply, results, then the data of the items
	head  int    // length of the RPC header
	body  int    // end of the results
	items []cachedItem
}

type cachedItem struct{ at, end int } // place in the results; end of its data in store

func newReplyCache(limits ReplyCache, stats *counters) *replyCache {
	c := &replyCache{
		limits: limits, seed: maphash.MakeSeed(), stats: stats,
		entries: make(map[cacheKey]*cacheEntry), hosts: make(map[string]*cacheHost),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// A lineage is what shows of a server's connection that its client lives on.
//
// A client has one connection at a time: it makes the next when it has given up the one
// before. So a connection can be the next of any that is older, unless the older one's client
// has sent something when the younger one was there. That it has been heard since does not
// show that: what was sent before the client gave up may arrive long after, and the server may
// learn late, or never, that the older connection has ended. But of calls, as many as it was
// granted can be on their way. With one more than that its client has sent one since.
//
// Connections that are not known to be apart count as one client's, in either order: a call
// of the older one may come when the younger one has made it again.
type lineage struct {
	born  uint64        // its place among all connections; taken before the client can use it
	alive atomic.Uint64 // the client has called when this many connections had been there

	// leader
	since uint64 // the births when calls began to be counted
	calls int
}

// newLineage is for a connection that is not set up yet.
func (c *replyCache) newLineage() *lineage {
	n := c.births.Add(1)
	return &lineage{born: n, since: n}
}

// called counts a call on a connection that has granted so many at once. Leader.
func (l *lineage) called(births *atomic.Uint64, granted int) {
	if l.calls++; l.calls > granted {
		l.alive.Store(l.since)
		l.since, l.calls = births.Load(), 0
	}
}

// apart tells whether two connections are certainly not of one client. Those of a client,
// which has one server, have no lineage, and never are.
func (l *lineage) apart(o *lineage) bool {
	if l == o || l == nil || o == nil {
		return false
	}
	older, younger := l, o
	if older.born > younger.born {
		older, younger = younger, older
	}
	return older.alive.Load() >= younger.born
}

// credAt is where the credential begins in a call.
const credAt = 24

// recall looks whether the call of x has come before, and takes it then. Else its reply will
// be remembered, unless idempotent says that there is no need. Leader.
func (r *registry) recall(x *exch, idempotent bool) (taken bool) {
	if idempotent {
		return false
	}
	c, call := r.cache, &x.call
	key := cacheKey{nil, call.XID, call.Prog, call.Vers, call.Proc, maphash.Bytes(c.seed, x.msg[credAt:])}
	host := x.c.host()

	c.mu.Lock()
	var e *cacheEntry
	alike := 0
	if key.host = c.hosts[host]; key.host != nil {
		for e = c.entries[key]; e != nil && e.owner.apart(x.c.life); e = e.alike {
			alike++
		}
	}
	switch {
	case e == nil:
		if c.running < c.limits.Entries && alike < maxAlike {
			x.entry = c.begin(host, key, x.c.life)
		}
		c.mu.Unlock()
		return false
	case !e.answered:
		x.later()
		e.waiting = append(e.waiting, x)
		x.awaits.Store(e)
		c.mu.Unlock()
		return true
	}
	rpc, results := e.copyTo(x)
	c.mu.Unlock()
	x.again(rpc, results)
	return true
}

// again answers with a reply from the cache.
func (x *exch) again(rpc, results []byte) {
	x.c.stats.replayed.Add(1)
	if x.takeBack() {
		x.send(rpc, results)
	}
}

// begin makes the entry of a call that is going to be executed, nil if its host has too many.
// mu is held.
func (c *replyCache) begin(name string, key cacheKey, owner *lineage) *cacheEntry {
	h := key.host
	if h == nil {
		if h = c.leisure; h == nil {
			h = new(cacheHost)
			h.done.prev, h.done.next = &h.done, &h.done
		}
		c.leisure = nil
		h.name = name
		c.hosts[name] = h
		key.host = h
	}
	if h.running >= max(c.limits.Entries/runningShare, 1) {
		return nil
	}
	e := c.spare
	if e == nil {
		e = &cacheEntry{cache: c}
	} else {
		c.spare = e.next
		e.next = nil
	}
	e.key, e.owner, e.alike = key, owner, c.entries[key]
	c.entries[key] = e
	h.running++
	c.running++
	return e
}

// over ends the execution of the call of e, and returns those who wait for its reply. mu is
// held.
func (c *replyCache) over(e *cacheEntry) (waiting []*exch) {
	e.key.host.running--
	c.running--
	waiting, e.waiting = e.waiting, nil
	for _, w := range waiting {
		w.awaits.Store(nil)
	}
	return waiting
}

// remember keeps the reply to the call of x, before it is sent, and gives it to those
// who wait for it. results and the items of x stay the caller's.
func (x *exch) remember(rpc, results []byte) {
	e := x.entry
	if e == nil {
		return
	}
	if x.failed {
		x.forgo()
		return
	}
	x.entry = nil
	c := e.cache
	size := len(rpc) + len(results)
	for i := range x.items {
		size += len(x.items[i].data)
	}
	c.mu.Lock()
	e.store = append(append(e.store[:0], rpc...), results...)
	e.head, e.body, e.items = len(rpc), len(rpc)+len(results), e.items[:0]
	keep := size <= c.limits.Bytes/8
	waiting := c.over(e)
	if keep || len(waiting) > 0 {
		for i := range x.items {
			e.store = append(e.store, x.items[i].data...)
			e.items = append(e.items, cachedItem{x.items[i].at, len(e.store)})
		}
	}
	type reply struct{ rpc, results []byte }
	replies := make([]reply, len(waiting))
	for i, w := range waiting {
		replies[i].rpc, replies[i].results = e.copyTo(w)
	}
	if keep {
		c.keep(e)
	} else {
		c.discard(e)
	}
	c.mu.Unlock()
	for i, w := range waiting {
		w.again(replies[i].rpc, replies[i].results)
	}
}

// forgo ends the entry of a call whose reply nobody knows. Those who wait for it lose their
// connection: the call then comes once more.
func (x *exch) forgo() {
	e := x.entry
	if e == nil {
		return
	}
	x.entry = nil
	c := e.cache
	c.mu.Lock()
	waiting := c.over(e)
	c.discard(e)
	c.mu.Unlock()
	for _, w := range waiting {
		w.c.breakOff(errForgotten)
		w.leave()
	}
}

// unwait ends an exchange that waits for the reply to another's call, when its connection has
// ended: a client that comes back again and again must not leave more and more behind. Leader.
func (x *exch) unwait() {
	e := x.awaits.Load()
	if e == nil {
		return
	}
	c := e.cache
	c.mu.Lock()
	waits := x.awaits.Load() == e // else it has just been answered
	if waits {
		x.awaits.Store(nil)
		i := slices.Index(e.waiting, x)
		e.waiting = slices.Delete(e.waiting, i, i+1)
	}
	c.mu.Unlock()
	if waits {
		x.abandon()
	}
}

// keep makes an entry one that has been answered, and forgets others if there are too many.
// mu is held.
func (c *replyCache) keep(e *cacheEntry) {
	h := e.key.host
	e.answered = true
	e.prev, e.next = h.done.prev, &h.done
	e.prev.next, e.next.prev = e, e
	c.bytes += len(e.store)
	c.count++
	h.bytes += len(e.store)
	if h.count++; h.count == 1 {
		h.at = len(c.shares)
		c.shares = append(c.shares, h)
	}
	c.rise(h)
	for c.count > c.limits.Entries || c.bytes > c.limits.Bytes {
		c.forget(c.shares[0].done.next)
	}
}

// forget frees an entry that has been answered. mu is held.
func (c *replyCache) forget(e *cacheEntry) {
	h := e.key.host
	e.prev.next, e.next.prev = e.next, e.prev
	c.bytes -= len(e.store)
	c.count--
	h.bytes -= len(e.store)
	h.count--
	c.sink(h)
	if h.count == 0 {
		at, last := h.at, len(c.shares)-1
		c.swap(at, last)
		c.shares[last] = nil
		c.shares = c.shares[:last]
		if at < last {
			c.rise(c.shares[at])
			c.sink(c.shares[at])
		}
	}
	e.answered, e.prev = false, nil
	c.discard(e)
}

// discard takes an entry out of the cache that is on no list. mu is held.
func (c *replyCache) discard(e *cacheEntry) {
	h := e.key.host
	if first := c.entries[e.key]; first != e {
		for first.alike != e {
			first = first.alike
		}
		first.alike = e.alike
	} else if e.alike != nil {
		c.entries[e.key] = e.alike
	} else {
		delete(c.entries, e.key)
	}
	if h.count == 0 && h.running == 0 {
		delete(c.hosts, h.name)
		c.leisure = h
	}
	e.key, e.owner, e.alike = cacheKey{}, nil, nil
	if cap(e.store) > maxSpare {
		e.store = nil
	}
	e.next, c.spare = c.spare, e
}

// maxSpare is the largest memory that an entry keeps for its next reply.
const maxSpare = 4096

// share is which part of the cache a host has, of the limit that it is nearer to: of entries or
// of bytes.
func (c *replyCache) share(h *cacheHost) uint64 {
	return max(uint64(h.count)*uint64(c.limits.Bytes), uint64(h.bytes)*uint64(c.limits.Entries))
}

// rise and sink put a host in its place in the heap when its share has become larger, or
// smaller. mu is held.
func (c *replyCache) rise(h *cacheHost) {
	for h.at > 0 {
		up := (h.at - 1) / 2
		if c.share(c.shares[up]) >= c.share(h) {
			return
		}
		c.swap(up, h.at)
	}
}

func (c *replyCache) sink(h *cacheHost) {
	for {
		large := h.at
		for i := 2*h.at + 1; i <= 2*h.at+2 && i < len(c.shares); i++ {
			if c.share(c.shares[i]) > c.share(c.shares[large]) {
				large = i
			}
		}
		if large == h.at {
			return
		}
		c.swap(large, h.at)
	}
}

func (c *replyCache) swap(i, j int) {
	s := c.shares
	s[i], s[j] = s[j], s[i]
	s[i].at, s[j].at = i, j
}

// copyTo makes the reply that of x, with memory of its own. mu is held.
func (e *cacheEntry) copyTo(x *exch) (rpc, results []byte) {
	rpc = bytes.Clone(e.store[:e.head])
	results = bytes.Clone(e.store[e.head:e.body])
	from := e.body
	for _, it := range e.items {
		x.addItem(it.at, bytes.Clone(e.store[from:it.end]), nil)
		from = it.end
	}
	return rpc, results
}

// host is the peer's address without the port.
func (c *conn) host() string {
	if c.peerHost == "" {
		c.peerHost = c.addr()
		if host, _, err := net.SplitHostPort(c.peerHost); err == nil {
			c.peerHost = host
		}
	}
	return c.peerHost
}
