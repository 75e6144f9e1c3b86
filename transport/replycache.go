package transport

import (
	"bytes"
	"context"
	"hash/maphash"
	"net"
	"sync"
)

// The duplicate-request cache: a call that a client sends again, because it has lost the
// connection and with it the reply, is not executed again, but answered with what it was
// answered before (RFC 5666 section 8 leaves that to the upper layers; RFC 8881 section
// 2.10.6.2 says why it must be). What is remembered is the RPC reply, not how it was put on
// the wire: the call comes with chunks of its own, and they may differ.
//
// A client is known by its host alone: its port changes with the connection. That an xid
// comes from two programs on one host, or twice from one, is told apart by the credential
// and the start of the arguments, as far as these differ.

// A ReplyCache bounds a duplicate-request cache. What does not fit is forgotten, the oldest
// reply first; a call that then comes again is executed again.
type ReplyCache struct {
	Entries int // replies; zero is 4096
	Bytes   int // of results in them; zero is 16 MiB. Results over an eighth of it are not kept
}

const (
	defaultCacheEntries = 4096
	defaultCacheBytes   = 16 << 20
)

type replyCache struct {
	limits ReplyCache
	seed   maphash.Seed
	stats  *counters
	ctx    context.Context // of the handlers; it does not end with their connection
	cancel context.CancelFunc

	mu      sync.Mutex
	entries map[cacheKey]*cacheEntry
	done    cacheEntry // head of the list of those that have been answered, the oldest first
	bytes   int
	count   int // entries on the list
	spare   *cacheEntry
}

type cacheKey struct {
	host            string
	xid             uint32
	prog, vers, prc uint32
	sum             uint64
}

// A cacheEntry is a call that is being executed, and then its reply.
type cacheEntry struct {
	cache      *replyCache
	key        cacheKey
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
	c := &replyCache{limits: limits, seed: maphash.MakeSeed(), stats: stats, entries: make(map[cacheKey]*cacheEntry)}
	c.done.prev, c.done.next = &c.done, &c.done
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// summed is how much of the arguments is looked at to tell calls apart.
const summed = 256

// recall looks whether the call of x, whose arguments start at offset n of its message,
// has come before, and takes it then. Else its reply will be remembered, unless
// idempotent says that there is no need. Leader.
func (r *registry) recall(x *exch, n int, idempotent bool) (taken bool) {
	if idempotent {
		return false
	}
	c, call := r.cache, &x.call
	key := cacheKey{x.c.host(), call.XID, call.Prog, call.Vers, call.Proc, 0}
	args := x.msg[n:]
	var h maphash.Hash
	h.SetSeed(c.seed)
	_, _ = h.Write(call.Cred.Body)
	_, _ = h.Write(args[:min(len(args), summed)])
	key.sum = h.Sum64() + uint64(len(args))

	c.mu.Lock()
	e := c.entries[key]
	switch {
	case e == nil:
		x.entry = c.begin(key)
		c.mu.Unlock()
		return false
	case !e.answered:
		x.later()
		e.waiting = append(e.waiting, x)
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

// begin makes the entry of a call that is going to be executed. mu is held.
func (c *replyCache) begin(key cacheKey) *cacheEntry {
	e := c.spare
	if e == nil {
		e = &cacheEntry{cache: c}
	} else {
		c.spare = e.next
		e.next = nil
	}
	e.key = key
	c.entries[key] = e
	return e
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
	waiting := e.waiting
	e.waiting = nil
	if keep || len(waiting) > 0 {
		for i := range x.items {
			e.store = append(e.store, x.items[i].data...)
			e.items = append(e.items, cachedItem{x.items[i].at, len(e.store)})
		}
	}
	if keep {
		e.answered = true
		e.prev, e.next = c.done.prev, &c.done
		e.prev.next, e.next.prev = e, e
		c.bytes += len(e.store)
		c.count++
		for c.count > c.limits.Entries || c.bytes > c.limits.Bytes {
			c.forget(c.done.next)
		}
	}
	type reply struct{ rpc, results []byte }
	replies := make([]reply, len(waiting))
	for i, w := range waiting {
		replies[i].rpc, replies[i].results = e.copyTo(w)
	}
	if !keep {
		delete(c.entries, e.key)
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
	waiting := e.waiting
	e.waiting = nil
	delete(c.entries, e.key)
	c.mu.Unlock()
	for _, w := range waiting {
		w.c.breakOff(errForgotten)
		w.leave()
	}
}

// forget frees an entry that has been answered. mu is held.
func (c *replyCache) forget(e *cacheEntry) {
	e.prev.next, e.next.prev = e.next, e.prev
	delete(c.entries, e.key)
	c.bytes -= len(e.store)
	c.count--
	e.answered, e.prev = false, nil
	if cap(e.store) > maxSpare {
		e.store = nil
	}
	e.next, c.spare = c.spare, e
}

// maxSpare is the largest memory that an entry keeps for its next reply.
const maxSpare = 4096

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
