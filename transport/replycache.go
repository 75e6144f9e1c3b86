package transport

import (
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// A ReplyCache bounds a duplicate-request cache, which answers a call that a client sends
// again, having lost its connection, with the reply that it has been given before. A reply is
// kept for two minutes, as kernels do, because xids come again. What does not fit is forgotten
// earlier. A call that comes again after that is executed again. When the cache is full, the host
// with the largest share of it loses its oldest reply, so that a busy client does not cost others
// theirs.
type ReplyCache struct {
	// Entries is how many replies are remembered, and how many calls may be under way
	// whose replies will be; a quarter of these from one host at most. Calls beyond that
	// are executed all the same, but their replies are not remembered, and their contexts
	// end with their connections. Zero is 4096.
	Entries int

	// Bytes is how many bytes the replies have together, bulk results included. Replies
	// of more than an eighth of it are not kept. Zero is 16 MiB.
	Bytes int
}

const (
	defaultCacheEntries = 4096
	defaultCacheBytes   = 16 << 20
)

// Wait makes the exchange wait for the reply of e: see replycache.Waiter.
func (x *exch) Wait(e *replycache.Entry) {
	x.detach()
	x.awaits = e
}

// Answer answers with the reply that the exchange has waited for.
func (x *exch) Answer(r replycache.Reply) { x.replay(nil, r) }

// replay answers with a reply from the cache.
func (x *exch) replay(l *leader, r replycache.Reply) {
	for _, it := range r.Items {
		x.addItem(it.At, it.Data, nil)
	}
	x.c.stats.replayed.Add(1)
	if e := x.event; e != nil {
		e.Replayed = true
		_, _ = oncrpc.ConsumeReply(r.Header, &e.Status)
	}
	if x.takeBack(l) {
		x.send(l, r.Header, r.Results)
	}
}

// Fail ends the connection of an exchange that waits for a reply that nobody knows: the
// call then comes once more.
func (x *exch) Fail() {
	x.c.breakOff(errForgotten)
	x.leave()
}

// remember keeps the reply to the call of x, before it is sent. results and the items of
// x stay the caller's.
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
	e.Answer(rpc, results, len(x.items), func(i int) (int, []byte) { return x.items[i].at, x.items[i].data })
}

// forgo ends the entry of a call that has no reply to remember.
func (x *exch) forgo() {
	if e := x.entry; e != nil {
		x.entry = nil
		e.Drop()
	}
}

// unwait ends an exchange that waits for the reply to another's call, when its connection has
// ended: a client that comes back again and again must not leave more and more behind.
func (x *exch) unwait() {
	if x.awaits != nil && x.awaits.Leave(x) {
		x.abandon()
	}
}
