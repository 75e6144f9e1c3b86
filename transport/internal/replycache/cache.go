// Package replycache is the duplicate-request cache: a call that a client sends again,
// because it has lost the connection and with it the reply, is not executed again, but
// answered with what it was answered before. RFC 5666 section 8 leaves that to the upper
// layers; RFC 8881 section 2.10.6.2 says why it must be.
//
// # The life of an entry
//
//	running -> answered -> forgotten
//	        -> forgotten
//
// An entry is made when a call is about to be executed ([Cache.Begin]). The same call that
// arrives meanwhile waits for its reply. The entry then keeps the reply ([Entry.Answer])
// for [Age], or until others need the room. It is dropped if there is no reply to keep
// ([Entry.Drop]).
//
// The cache keeps the RPC reply, not its form on the wire: the call that is sent again has chunks of
// its own, and they may differ.
//
// # Which calls are the same
//
// Two calls are the same if all of their RPC messages is: xid, procedure, credential,
// verifier and arguments. With a security flavor that makes credential and verifier anew for each message, the caller
// that they prove counts in their place. A client is known by its machine, since its port changes with the
// connection, and by its connections: see [Lineage].
//
// Xids come again: some clients have few of them, or begin with the same ones each time. So a
// call that has been answered is forgotten after Age, and before that when the client makes it on
// the connection that it was answered on. Over RDMA that is another call: a client sends calls again
// when the link was lost and established again (RFC 5666 section 8), and only then. Over TCP it may
// be the same: clients send calls again on a connection that is slow. So may a call that proves its caller, over RDMA as well:
// clients make it again after a denial, which is not protected and so may be an attacker's. What a later connection
// brings may be the same call in any case. That the client has made other calls since does not show
// that it has the reply: the entry has it before it is sent.
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
	// Entries is how many replies are kept, and how many calls may be running.
	Entries int
	// Bytes is how many bytes the replies have together. A reply of more than an eighth
	// is not kept.
	Bytes int
}

const (
	// HostShare is the part of the running calls, one in so many, that one host may have.
	HostShare = 4
	// MaxAlike is how many clients of one host may have the same call in the cache.
	MaxAlike = 8
	// Age is how long a reply is kept, about as long as kernels keep theirs. A client that has
	// been away for longer has its call executed again.
	Age = 2 * time.Minute
	// maxSpare is the largest memory that an entry keeps for its next reply, in bytes.
	maxSpare = 4096
)

// A Cache remembers replies. Its methods may be called by any goroutine.
type Cache struct {
	limits Limits
	seed   maphash.Seed
	ctx    context.Context
	cancel context.CancelFunc
	births atomic.Uint64 // lineages so far
	made   time.Time

	mu      lockorder.Mutex
	entries map[key]*Entry // the first of those that are alike
	hosts   map[string]*host
	shares  []*host // a heap of the hosts that have replies: the largest share is first
	bytes   int
	replies int
	running int
	spare   *Entry
	all     Entry // head of the list of all answered entries: all.newer is the oldest
	idle    *host // for the next host
}

// A key is common to a call and its repetition.
type key struct {
	host             *host
	xid              uint32
	prog, vers, proc uint32
	sum              uint64 // of caller, credential, verifier, arguments
}

// A host is where clients are, which share a part of the cache: a machine, or all machines of a
// network. Guarded by Cache.mu.
type host struct {
	name    string
	done    Entry // head of the list of answered entries, the oldest first
	bytes   int
	replies int
	running int
	at      int // place in the heap
}

// An Entry is a call that is being executed, and then its reply. Guarded by Cache.mu.
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

// A Waiter is a call that was repeated while it is being executed.
type Waiter interface {
	// Wait is called when the call waits for the reply of e. It must not use the cache.
	Wait(e *Entry)
	// Answer gives it the reply. The memory of the reply is its own.
	Answer(r Reply)
	// Fail says that there will be no reply.
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

// Close ends the contexts of the calls that are running.
func (c *Cache) Close() { c.cancel() }

// A Call identifies a call.
type Call struct {
	Host             string // the reply counts in the host's share of the cache
	Client           *Lineage
	XID              uint32
	Prog, Vers, Proc uint32
	Caller           []byte // if it is proved
	Body             []byte // credential, verifier and arguments, encoded, or with a Caller the arguments alone
}

// An Outcome is the finding of Begin.
type Outcome uint8

const (
	Fresh    Outcome = iota // the call is to be executed
	Waiting                 // it is being executed: the waiter gets the reply
	Answered                // here is the reply
)

// Begin looks up whether a call is a repeated one. If not, it returns the entry for the reply, nil if
// the reply will not be remembered.
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
			k.host = nil // it has gone with the last of its replies
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

// find returns the entry of the same call of a client, or nil, and how many other
// clients have one. It forgets what the client does not ask for. mu is held.
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

// begin makes the entry of a call that is going to be executed, nil if its host has too
// many. mu is held.
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

// Context is for the execution of calls. It ends with the cache, not with a connection: a
// client that has lost its connection comes back for the reply.
func (c *Cache) Context() context.Context { return c.ctx }

// Answer keeps the reply, unless it is too long, and gives it to the calls that wait for it.
// The reply has n items, which item returns, at their places in results. All memory stays
// the caller's; the entry is the cache's from now on.
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

// Drop ends the entry of a call that has no reply to be kept. Calls that wait for one fail.
// The entry is the cache's from now on.
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

// Leave ends the wait of w, which waits for e. It returns false if w has
// been, or is being, given its reply.
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

// end ends the execution of the call of e, and returns the calls that wait for its reply. mu is
// held.
func (c *Cache) end(e *Entry) (waiting []Waiter) {
	e.key.host.running--
	c.running--
	waiting, e.waiting = e.waiting, nil
	return waiting
}

// keep makes an entry an answered one, and forgets others that are too old. It forgets more if
// there are too many: of the host with the largest share the oldest, so that a busy client costs
// only itself. mu is held.
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
	for range 2 { // faster than they come, without a pause for all that a busy time has left
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

// discard removes an entry from the cache that is not in its host's list. mu is held.
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
