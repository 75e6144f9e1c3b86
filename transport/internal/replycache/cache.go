// Package replycache is the duplicate-request cache. When a client has lost its connection, and with it a reply, it
// sends the call again. Such a call is not executed again, but answered with the original reply. RFC 5666 section 8
// leaves that to the upper layers; RFC 8881 section 2.10.6.2 explains why it is necessary.
//
// # The life of an entry
//
//	running -> answered -> forgotten
//	        -> forgotten
//
// An entry is created when a call is about to be executed ([Cache.Begin]). If the same call arrives meanwhile, it waits
// for the reply. The entry then keeps the reply ([Entry.Answer]) for [Age], or until others need the room. It is
// dropped if there is no reply to keep ([Entry.Drop]).
//
// The cache keeps the RPC reply, not its form on the wire: the repeated call has its own chunks, which may differ.
//
// # Which calls are the same
//
// Two calls are the same if their RPC messages are identical: xid, procedure, credential, verifier and arguments. With
// a security flavor that makes a new credential and verifier for each message, the caller that they prove counts
// instead. A client is identified by its machine, because its port changes with the connection, and by its connections:
// see [Lineage].
//
// Xids recur: some clients use few of them, or start with the same ones each time. So an answered call is forgotten
// after Age, or earlier if the client makes it again on the connection that it was answered on. Over RDMA that is a
// different call: a client resends calls when the link was lost and established again (RFC 5666 section 8), and only
// then. Over TCP it may be the same call: clients also resend calls on a slow connection. So may a call that proves its
// caller, even over RDMA: clients repeat it after a denial, which is not protected and so may be an attacker's. A call
// on a later connection may be the same in any case. Other calls of the client in between do not show that it has the
// reply, because the entry stores the reply before it is sent.
package replycache

import (
	"bytes"
	"context"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/lockorder"
)

// Limits bound a Cache.
type Limits struct {
	// Entries is the number of replies that are kept, and of calls that may be running.
	Entries int
	// Bytes is the total size of the replies. A reply of more than an eighth is not kept.
	Bytes int
}

const (
	// HostShare: one host may have 1/HostShare of the running calls.
	HostShare = 4
	// MaxAlike is the maximum number of clients of one host with the same call in the cache.
	MaxAlike = 8
	// Age is how long a reply is kept, about as long as in kernels. If a client has been away longer, its call is
	// executed again.
	Age = 2 * time.Minute
	// maxSpare is the maximum memory in bytes that an entry keeps for its next reply.
	maxSpare = 4096
)

// A Cache remembers replies. Its methods may be called by any goroutine.
type Cache struct {
	limits Limits
	seed   maphash.Seed
	ctx    context.Context
	cancel context.CancelFunc
	births atomic.Uint64 // number of lineages so far
	made   time.Time

	mu      lockorder.Mutex
	entries map[key]*Entry // the first of those with the same key
	hosts   map[string]*host
	shares  []*host // a heap of the hosts that have replies, largest share first
	bytes   int
	replies int
	running int
	spare   *Entry
	all     Entry // head of the list of all answered entries: all.newer is the oldest
	idle    *host // kept for the next host
}

// A key is equal for a call and its repetition.
type key struct {
	host             *host
	xid              uint32
	prog, vers, proc uint32
	sum              uint64 // of caller, credential, verifier, arguments
}

// A host is a machine, or all machines of a network: its clients share a part of the cache. Guarded by Cache.mu.
type host struct {
	name    string
	done    Entry // head of the list of answered entries, oldest first
	bytes   int
	replies int
	running int
	at      int // place in the heap
}

// An Entry is a call that is being executed, and later its reply. Guarded by Cache.mu.
type Entry struct {
	cache        *Cache
	key          key
	owner        *Lineage // of the connection that made the call
	alike        *Entry   // the next one with the same key, of another client
	prev, next   *Entry   // of the host's answered entries
	older, newer *Entry   // of all answered entries
	answered     bool
	since        time.Duration // when it was answered, since Cache.made
	waiting      []Waiter

	store []byte // the RPC header of the reply, results, then the data of the items
	head  int    // length of the RPC header
	body  int    // end of the results
	items []storedItem
}

type storedItem struct{ at, end int } // place in the results; end of its data in store

// A Waiter is a repetition of a call that is being executed.
type Waiter interface {
	// Wait is called when the call has to wait for the reply of e. It must not use the cache.
	Wait(e *Entry)
	// Answer passes it the reply. The Waiter owns the memory of the reply.
	Answer(r Reply)
	// Fail is called if there will be no reply.
	Fail()
}

// A Reply is a copy of a remembered reply.
type Reply struct {
	Header  []byte // the RPC reply header
	Results []byte // without the data of the items
	Items   []Item
}

// An Item is the data of a result that may be a chunk.
type Item struct {
	At   int // its place in Results
	Data []byte
}

// New returns an empty Cache.
func New(limits Limits) *Cache {
	c := &Cache{limits: limits, seed: maphash.MakeSeed(), made: time.Now(), entries: make(map[key]*Entry), hosts: make(map[string]*host)}
	c.mu.Init(lockorder.ReplyCache)
	c.all.older, c.all.newer = &c.all, &c.all
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends the contexts of the running calls.
func (c *Cache) Close() { c.cancel() }

// A Call identifies a call.
type Call struct {
	Host             string // the reply counts in the host's share of the cache
	Client           *Lineage
	XID              uint32
	Prog, Vers, Proc uint32
	Caller           []byte // if proved
	Body             []byte // credential, verifier and arguments, encoded, or with a Caller the arguments alone
}

// An Outcome is the result of Begin.
type Outcome uint8

const (
	Fresh    Outcome = iota // the call must be executed
	Waiting                 // it is being executed: the waiter gets the reply
	Answered                // the reply is returned
)

// Begin looks up whether a call is a repetition. If not, it returns the entry for the reply, nil if the reply will not
// be remembered.
func (c *Cache) Begin(call *Call, w Waiter) (Outcome, *Entry, Reply) {
	sum := maphash.Bytes(c.seed, call.Body)
	if len(call.Caller) > 0 {
		sum = bits.RotateLeft64(sum, 1) ^ maphash.Bytes(c.seed, call.Caller)
	}
	k := key{nil, call.XID, call.Prog, call.Vers, call.Proc, sum}
	c.mu.Lock()
	defer c.mu.Unlock()
	var e *Entry
	alike := 0
	if k.host = c.hosts[call.Host]; k.host != nil {
		e, alike = c.find(k, call)
		if k.host.replies+k.host.running == 0 {
			k.host = nil // it was removed with the last of its replies
		}
	}
	if e == nil {
		if c.running < c.limits.Entries && alike < MaxAlike {
			e = c.begin(call.Host, k, call.Client)
		}
		return Fresh, e, Reply{}
	}
	if !e.answered {
		w.Wait(e)
		e.waiting = append(e.waiting, w)
		return Waiting, nil, Reply{}
	}
	return Answered, nil, e.reply()
}

// find returns the entry of the same call of a client, or nil, and how many other clients have one. It forgets an entry
// that cannot be for this call. mu is held.
func (c *Cache) find(k key, call *Call) (e *Entry, alike int) {
	client := call.Client
	other := client != nil && client.once && len(call.Caller) == 0 // on its own connection
	for e = c.entries[k]; e != nil; {
		next := e.alike
		switch {
		case e.owner.apart(client):
			alike++
		case e.answered && (other && client == e.owner || time.Since(c.made)-e.since >= Age):
			c.forget(e)
		default:
			return e, alike
		}
		e = next
	}
	return nil, alike
}

// begin creates the entry of a call that will be executed, nil if its host has too many. mu is held.
func (c *Cache) begin(name string, k key, owner *Lineage) *Entry {
	h := k.host
	if h == nil {
		if h = c.idle; h == nil {
			h = new(host)
			h.done.prev, h.done.next = &h.done, &h.done
		}
		c.idle = nil
		h.name = name
		c.hosts[name] = h
		k.host = h
	}
	if h.running >= max(c.limits.Entries/HostShare, 1) {
		return nil
	}
	e := c.spare
	if e == nil {
		e = &Entry{cache: c}
	} else {
		c.spare = e.next
		e.next = nil
	}
	e.key, e.owner, e.alike = k, owner, c.entries[k]
	c.entries[k] = e
	h.running++
	c.running++
	return e
}

// Context returns the context for the execution of calls. It ends with the cache, not with a connection: a client that
// has lost its connection comes back for the reply.
func (c *Cache) Context() context.Context { return c.ctx }

// Answer keeps the reply, unless it is too long, and passes it to the calls that wait for it. The reply has n items,
// which item returns, at their places in results. The caller keeps owning all memory; the cache owns the entry from now
// on.
func (e *Entry) Answer(header, results []byte, n int, item func(i int) (at int, data []byte)) {
	c := e.cache
	size := len(header) + len(results)
	for i := range n {
		_, data := item(i)
		size += len(data)
	}
	c.mu.Lock()
	e.store = append(append(e.store[:0], header...), results...)
	e.head, e.body, e.items = len(header), len(header)+len(results), e.items[:0]
	keep := size <= c.limits.Bytes/8
	waiting := c.end(e)
	if keep || len(waiting) > 0 {
		for i := range n {
			at, data := item(i)
			e.store = append(e.store, data...)
			e.items = append(e.items, storedItem{at, len(e.store)})
		}
	}
	replies := make([]Reply, len(waiting))
	for i := range waiting {
		replies[i] = e.reply()
	}
	if keep {
		c.keep(e)
	} else {
		c.discard(e)
	}
	c.mu.Unlock()
	for i, w := range waiting {
		w.Answer(replies[i])
	}
}

// Drop ends the entry of a call without a reply to keep. Calls that wait for one fail. The cache owns the entry from
// now on.
func (e *Entry) Drop() {
	c := e.cache
	c.mu.Lock()
	waiting := c.end(e)
	c.discard(e)
	c.mu.Unlock()
	for _, w := range waiting {
		w.Fail()
	}
}

// Leave ends the wait of w for e. It returns false if w has been, or is being, passed its reply.
func (e *Entry) Leave(w Waiter) bool {
	c := e.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(e.waiting, w)
	if i < 0 {
		return false
	}
	e.waiting = slices.Delete(e.waiting, i, i+1)
	return true
}

// end ends the execution of the call of e, and returns the calls that wait for its reply. mu is held.
func (c *Cache) end(e *Entry) (waiting []Waiter) {
	e.key.host.running--
	c.running--
	waiting, e.waiting = e.waiting, nil
	return waiting
}

// keep adds e to the answered entries, and forgets others that are too old. If there are too many, it forgets the
// oldest ones of the host with the largest share, so that a busy client only displaces its own. mu is held.
func (c *Cache) keep(e *Entry) {
	h := e.key.host
	e.answered, e.since = true, time.Since(c.made)
	e.older, e.newer = c.all.older, &c.all
	e.older.newer, e.newer.older = e, e
	e.prev, e.next = h.done.prev, &h.done
	e.prev.next, e.next.prev = e, e
	c.bytes += len(e.store)
	c.replies++
	h.bytes += len(e.store)
	if h.replies++; h.replies == 1 {
		h.at = len(c.shares)
		c.shares = append(c.shares, h)
	}
	c.rise(h)
	for range 2 { // faster than they arrive, but without a pause for everything left from a busy time
		if old := c.all.newer; old != e && e.since-old.since >= Age {
			c.forget(old)
		}
	}
	for c.replies > c.limits.Entries || c.bytes > c.limits.Bytes {
		c.forget(c.shares[0].done.next)
	}
}

// forget frees an answered entry. mu is held.
func (c *Cache) forget(e *Entry) {
	h := e.key.host
	e.prev.next, e.next.prev = e.next, e.prev
	e.older.newer, e.newer.older = e.newer, e.older
	c.bytes -= len(e.store)
	c.replies--
	h.bytes -= len(e.store)
	h.replies--
	c.sink(h)
	if h.replies == 0 {
		at, last := h.at, len(c.shares)-1
		c.swap(at, last)
		c.shares[last] = nil
		c.shares = c.shares[:last]
		if at < last {
			c.rise(c.shares[at])
			c.sink(c.shares[at])
		}
	}
	e.answered, e.prev, e.older, e.newer = false, nil, nil, nil
	c.discard(e)
}

// discard removes an entry that is not in its host's list from the cache. mu is held.
func (c *Cache) discard(e *Entry) {
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
	if h.replies == 0 && h.running == 0 {
		delete(c.hosts, h.name)
		c.idle = h
	}
	e.key, e.owner, e.alike = key{}, nil, nil
	if cap(e.store) > maxSpare {
		e.store = nil
	}
	e.next, c.spare = c.spare, e
}

// reply copies the reply of an answered entry. mu is held.
func (e *Entry) reply() Reply {
	r := Reply{Header: bytes.Clone(e.store[:e.head]), Results: bytes.Clone(e.store[e.head:e.body])}
	from := e.body
	for _, it := range e.items {
		r.Items = append(r.Items, Item{it.at, bytes.Clone(e.store[from:it.end])})
		from = it.end
	}
	return r
}
