package rpc

import (
	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Response receives the results of a call.
type Response struct {
	// Results are the XDR-encoded results; the handler appends to them. As long as they fit inline, they are built in
	// the send buffer. They may be replaced by other memory, which must not change until the reply is released: see
	// Request.WhenReleased.
	Results []byte

	// Verf is the verifier of the reply, if the call is not denied. It proves the server to a client with a security
	// flavor (RFC 5531 section 8.2). Its body has at most oncrpc.MaxAuthBody bytes; a longer one is a panic of the
	// handler. The body must not change until the reply is released. The zero value is AUTH_NONE.
	Verf oncrpc.Auth

	o        origin.Origin
	status   oncrpc.ReplyHeader // without xid and verifier
	reserved int
	lingers  bool
}

// Linger lets the reply of an Inline handler wait for a message that this end is about to send to the caller, so that
// both are sent together. It waits until the goroutine that drives the connection has nothing else to do, at most about
// half a millisecond.
func (w *Response) Linger() { w.lingers = true }

// AddItem appends an opaque result that the upper-layer binding makes eligible for a write chunk. It appends the length
// word to Results. The data goes to the next write chunk of the call or, without one, inline with its padding.
//
// data belongs to the response, and must not change, until release is called, after ServeRPC has returned and the
// adapter has sent the data. release may be nil. With providers that need registered memory, data that is not from
// Alloc is copied.
func (w *Response) AddItem(data []byte, release func()) {
	w.Results = xdr.AppendUint32(w.Results, uint32(len(data)))
	w.o.AddItem(len(w.Results), data, release)
}

// Alloc returns n bytes of the server's memory, for the handler to fill and pass to AddItem. They belong to the
// response until the reply has been sent, and need no release. Alloc returns nil if n exceeds the server's MaxMessage
// or there is no memory.
func (w *Response) Alloc(n int) []byte { return w.o.AllocItem(n) }

// Room returns how many more bytes of XDR-encoded results the caller has room for, as far as this end knows: inline, or
// in the reply chunk. Over TCP, and if replies may have read chunks, the limit is MaxMessage. Items in write chunks do
// not count; the current Verf does. A longer reply is not sent: the caller gets an *RDMAError, or SYSTEM_ERR over TCP,
// and a *ReplySizeError is logged to Config.Logger.
func (w *Response) Room() int { return w.o.Room(w.taken()) }

// taken returns how much of the reply's room Results, Verf and Reserve use.
func (w *Response) taken() int { return len(w.Results) + xdr.Padded(len(w.Verf.Body)) + w.reserved }

// Reserve lowers Room and ItemRoom by n bytes. A wrapper calls it before the inner handler, for the bytes that it will
// add to the results. A verifier set before that with its final length already counts.
func (w *Response) Reserve(n int) { w.reserved += max(n, 0) }

// ItemRoom returns how many bytes of data the next AddItem has room for: in its write chunk or, if the call has no
// further chunk, in the rest of the reply.
func (w *Response) ItemRoom() int { return w.o.ItemRoom(w.taken()) }

// Fail makes the reply an RPC error without results: oncrpc.GarbageArgs, ProcUnavail or SystemErr. The last call of
// Fail, Deny or Reject counts; oncrpc.Success undoes an earlier one.
func (w *Response) Fail(stat oncrpc.AcceptStat) { w.status = oncrpc.ReplyHeader{AcceptStat: stat} }

// Deny makes the reply a denial of the call's credential, without results: oncrpc.AuthBadCred, AuthTooWeak and so on.
// Deny(AuthOK) is Fail(oncrpc.Success).
func (w *Response) Deny(stat oncrpc.AuthStat) {
	w.status = oncrpc.ReplyHeader{}
	if stat != oncrpc.AuthOK {
		w.status = oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: stat}
	}
}

// Reject replies with the refusal e of RFC 5531 section 9, which the caller receives as an *oncrpc.RPCError. Prog, Vers
// and Proc of e are ignored. A status that is not in the RFC's unions becomes SYSTEM_ERR. Reject(nil) is
// Fail(oncrpc.Success).
func (w *Response) Reject(e *oncrpc.RPCError) {
	switch {
	case e == nil:
		w.Fail(oncrpc.Success)
	case e.Stat == oncrpc.MsgAccepted && e.AcceptStat == oncrpc.ProgMismatch:
		w.status = oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: e.Low, High: e.High}
	case e.Stat == oncrpc.MsgAccepted && e.AcceptStat <= oncrpc.SystemErr:
		w.Fail(e.AcceptStat)
	case e.Stat == oncrpc.MsgDenied && e.RejectStat == oncrpc.RPCMismatch:
		w.status = oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.RPCMismatch, Low: e.Low, High: e.High}
	case e.Stat == oncrpc.MsgDenied && e.RejectStat == oncrpc.AuthError && e.AuthStat != oncrpc.AuthOK:
		w.Deny(e.AuthStat)
	default:
		w.Fail(oncrpc.SystemErr)
	}
}

// Status returns the current header of the reply, without xid: as set by Fail, Deny or Reject, otherwise a success. For
// a wrapper it is the outcome once the inner handlers have returned.
func (w *Response) Status() oncrpc.ReplyHeader {
	h := w.status
	if h.Stat == oncrpc.MsgAccepted {
		h.Verf = w.Verf
	}
	return h
}

// Size returns the number of bytes in Results, and in the data of the items without padding. A reply that Fail, Deny or
// Reject made an error contains neither.
func (w *Response) Size() (results, items int) {
	for _, it := range *w.o.Items() {
		items += len(it.Data)
	}
	return len(w.Results), items
}

// TakeItems calls f for each of the first n items, in order, or for all if there are fewer. at is the item's place in
// Results, after its length word. The items are removed, but their length words stay, and their data is valid until the
// reply is released. A wrapper that encrypts items adds others in their place.
func (w *Response) TakeItems(n int, f func(at int, data []byte)) {
	items := w.o.Items()
	n = min(n, len(*items))
	for _, it := range (*items)[:n] {
		f(it.At, it.Data)
		if it.Release != nil {
			w.o.WhenReleased(it.Release)
		}
	}
	rest := copy(*items, (*items)[n:])
	clear((*items)[rest:])
	*items = (*items)[:rest]
}

// Join moves the data of the items into Results, with its padding, so that Results are the complete XDR-encoded results
// in one piece and nothing goes to write chunks. A wrapper that signs or encrypts results applies that to the joined
// Results, and stores the outcome there (RFC 8166 section 8.2.2). Join returns false, and changes nothing, if there is
// no memory or the results exceed the server's MaxMessage.
func (w *Response) Join() bool {
	items := w.o.Items()
	if len(*items) == 0 {
		return true
	}
	n := len(w.Results)
	size := n
	for _, it := range *items {
		size += xdr.Padded(len(it.Data))
	}
	b := w.Results
	if size <= cap(b) {
		b = b[:size]
	} else {
		if b = w.o.AllocItem(size); b == nil {
			return false
		}
		copy(b, w.Results)
	}
	origin.Splice(b, n, *items)
	for _, it := range *items {
		if it.Release != nil {
			w.o.WhenReleased(it.Release)
		}
	}
	clear(*items)
	*items = (*items)[:0]
	w.Results = b
	return true
}
