package transport

import "github.com/rpcrdma/rpcrdma/transport/internal/replycache"

// Wait makes the exchange wait for the reply of e: see replycache.Waiter.
func (x *exch) Wait(e *replycache.Entry) {
	x.detach()
	x.awaits = e // which is the leader's
}

// Fail ends the connection of an exchange that waits for a reply that is lost: the
// call then comes once more.
func (x *exch) Fail() {
	x.c.breakOff(errForgotten)
	x.leave()
}

// unwait ends an exchange that waits for the reply to another's call, when its connection has
// ended: a client that comes back again and again must not use more and more memory.
func (x *exch) unwait() {
	if x.awaits != nil && x.awaits.Leave(x) {
		x.abandon()
	}
}
