package transport

import (
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
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
