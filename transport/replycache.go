package transport

import (
	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// How exchanges use the reply cache.

// credAt is the offset of the credential in a call.
const credAt = 24

// recall looks up whether the call is a repeated one, and if so handles it. Otherwise its reply will be remembered.
func (x *exchange) recall() (taken bool) {
	outcome, reply := x.begin(nil, x.msg[credAt:], x.wire)
	if outcome == replycache.Answered {
		x.Answer(reply)
	}
	return outcome != replycache.Fresh
}

// begin looks the call up.
func (x *exchange) begin(caller, body []byte, w replycache.Waiter) (replycache.Outcome, replycache.Reply) {
	call := &x.call
	outcome, e, reply := x.core.reg.cache.Begin(&replycache.Call{
		Host: x.core.host(), Client: x.core.lineage,
		XID: call.XID, Prog: call.Prog, Vers: call.Vers, Proc: call.Proc, Caller: caller, Body: body,
	}, w)
	if outcome == replycache.Fresh {
		x.entry = e
	}
	return outcome, reply
}

// Recall is recall for a handler that knows the caller: see rpc.Request.Once. It waits for the reply to the same call,
// unless the connection ends.
func (x *exchange) Recall(caller, args []byte) (known origin.Recalled) {
	if !x.late {
		return known
	}
	var w patient
	outcome, reply := x.begin(caller, args, &w)
	for outcome == replycache.Waiting {
		select {
		case r := <-w.reply:
			if r != nil {
				outcome, reply = replycache.Answered, *r
			} else { // it was not answered: this call may be executed
				outcome, reply = x.begin(caller, args, &w)
			}
		case <-x.core.contexts.of(false, false).Done():
			w.entry.Leave(&w)
			return origin.Recalled{Found: true, Status: oncrpc.ReplyHeader{AcceptStat: oncrpc.SystemErr}} // it will not be sent
		}
	}
	if outcome == replycache.Fresh {
		return known
	}
	known = origin.Recalled{Found: true, Results: reply.Results}
	x.replayed(&reply, &known.Status)
	return known
}

// Remember keeps the reply of a call that Recall has not found, before it is protected. A denial is not kept.
func (x *exchange) Remember(h *oncrpc.ReplyHeader, results []byte) {
	switch {
	case !x.late:
	case h.Stat != oncrpc.MsgAccepted:
		x.forgo()
	default:
		if h.AcceptStat != oncrpc.Success {
			x.dropItems()
			results = nil
		}
		x.head = oncrpc.AppendReply(x.head[:0], h)
		x.remember(x.head, results)
	}
}

// Answer answers with a reply from the cache: see replycache.Waiter.
func (x *exchange) Answer(r replycache.Reply) {
	var h oncrpc.ReplyHeader
	x.replayed(&r, &h)
	if e := x.event; e != nil {
		e.Status = h
	}
	x.wire.send(r.Header, r.Results)
}

// replayed takes the items of a reply from the cache, and stores its header in h.
func (x *exchange) replayed(r *replycache.Reply, h *oncrpc.ReplyHeader) {
	for _, it := range r.Items {
		x.wire.AddItem(it.At, it.Data, nil)
	}
	inc(&x.core.stats.Replayed)
	if e := x.event; e != nil {
		e.Replayed = true
	}
	_, _ = oncrpc.ConsumeReply(r.Header, h)
}

// remember keeps the reply to the call before it is sent. The caller keeps owning results and the items.
func (x *exchange) remember(head, results []byte) {
	if e := x.entry; e != nil {
		x.entry = nil
		e.Answer(head, results, len(x.items), func(i int) (int, []byte) { return x.items[i].At, x.items[i].Data })
	}
}

// forgo ends the entry of a call without a reply to remember.
func (x *exchange) forgo() {
	if e := x.entry; e != nil {
		x.entry = nil
		e.Drop()
	}
}

// ---- waiting

// Wait makes the exchange wait for the reply of e: see replycache.Waiter.
func (x *exch) Wait(e *replycache.Entry) {
	x.detach()
	x.awaits = e // owned by the leader
}

// Fail ends the connection of an exchange that waits for a reply that is lost: the client then sends the call again.
func (x *exch) Fail() {
	x.c.breakOff(errForgotten)
	x.leave()
}

// A patient is a goroutine that waits for a reply.
type patient struct {
	entry *replycache.Entry
	reply chan *replycache.Reply
}

// Wait prepares to wait for the reply of e: see replycache.Waiter.
func (w *patient) Wait(e *replycache.Entry) { w.entry, w.reply = e, make(chan *replycache.Reply, 1) }

// Answer ends the wait with a reply.
func (w *patient) Answer(r replycache.Reply) { w.reply <- &r }

// Fail ends the wait without a reply.
func (w *patient) Fail() { w.reply <- nil }

// unwait ends an exchange that waits for the reply to another call, after its connection has ended: a client that keeps
// coming back must not use more and more memory.
func (x *exch) unwait() {
	if x.awaits != nil && x.awaits.Leave(x) {
		x.abandon()
	}
}
