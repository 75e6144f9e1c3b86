package transport

import (
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// A ReplyCache bounds a duplicate-request cache, which answers a call that a client sends again,
// having lost its connection, with the reply that it has been given before. A reply is kept for two
// minutes, as kernels do, because xids come again. Replies that do not fit are forgotten earlier. A
// call that comes again after that is executed again. When the cache is full, the host with the
// largest share of it loses its oldest reply, so that a busy client does not cost others theirs.
type ReplyCache struct {
	// Entries is how many replies are remembered, and how many calls may be under way with replies to
	// be remembered; at most a quarter of them from one host. Calls beyond that are executed all the
	// same, but their replies are not remembered, and their contexts end with their connections. Zero
	// is 4096.
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
	x.awaits = e // which is the leader's
}

// answerAgain sends a reply that has been sent before.
func (x *exch) answerAgain(header, results []byte) {
	if e := x.event; e != nil {
		_, _ = oncrpc.ConsumeReply(header, &e.Status)
	}
	if x.takeBack() {
		x.send(header, results)
	}
}

// Fail ends the connection of an exchange that waits for a reply that is lost: the
// call then comes once more.
func (x *exch) Fail() {
	x.c.breakOff(errForgotten)
	x.leave()
}

// forgo ends the entry of a call that has no reply to remember.
func (x *exch) forgo() {
	if e := x.entry; e != nil {
		x.entry = nil
		e.Drop()
	}
}

// unwait ends an exchange that waits for the reply to another's call, when its connection has
// ended: a client that comes back again and again must not use more and more memory.
func (x *exch) unwait() {
	if x.awaits != nil && x.awaits.Leave(x) {
		x.abandon()
	}
}
