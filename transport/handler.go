package transport

import (
	"context"
	"errors"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

// A Handler executes the procedures of a program.
type Handler interface {
	// ServeRPC executes req and fills res; the reply is sent when it returns.
	// req and what it points to are valid until then. ctx ends with the
	// connection or, if the reply goes to the reply cache, with the server: a client
	// that has lost its connection repeats the call on another. The server answers
	// procedure 0 itself. If ServeRPC panics, the caller gets SYSTEM_ERR and
	// Config.Logger the panic with its stack; the server keeps running.
	ServeRPC(ctx context.Context, req *Request, res *Response)
}

// A HandlerFunc is a Handler that consists of one function.
type HandlerFunc func(ctx context.Context, req *Request, res *Response)

// ServeRPC calls f.
func (f HandlerFunc) ServeRPC(ctx context.Context, req *Request, res *Response) { f(ctx, req, res) }

// A Program is an RPC program that a server executes, or a client for its server.
type Program struct {
	Number    uint32
	Low, High uint32 // versions, inclusive
	Handler   Handler

	// Binding is the upper-layer binding. It says which arguments may be in read
	// chunks: a call with other arguments there, or with a chunk whose length differs
	// from its length word, is answered with GARBAGE_ARGS. With nil the handler has to
	// check. Over TCP it tells how much memory to reserve for results: see ServeTCP.
	Binding Binding

	// Padded says that the handler decodes its arguments with Request.Decoder, so
	// that calls may use RDMA_MSGP. See Config.RFC5666.
	Padded bool

	// ReadReplies says that the upper-layer binding allows read chunks in replies
	// (RFC 5666 section 3.4). See Config.RFC5666.
	ReadReplies bool

	// Idempotent says which procedures may be executed again when a client that has lost
	// its connection repeats a call. The replies of all others are kept for that
	// case; see ReplyCache. Nil: none may.
	Idempotent func(vers, proc uint32) bool

	// Inline says which procedures are quick and never block: they run on
	// the goroutine that leads the connection, without a hand-off. Nil: none.
	Inline func(vers, proc uint32) bool
}

// Every returns true for all procedures, for Program.Inline and Program.Idempotent.
func Every(vers, proc uint32) bool { return true }

// A Request is a call as a Handler sees it.
type Request struct {
	Procedure
	XID        uint32
	Cred, Verf oncrpc.Auth

	// Args are the XDR-encoded arguments, including those that came in read chunks.
	Args []byte

	at  int // of Args in the message
	pad xdr.Padding
	o   origin
}

// An origin is where a call has come from and its reply goes to: an exchange over RDMA
// ([exch]) or TCP ([tcpExch]), as a handler sees it.
type origin interface {
	conn() *Conn
	// addItem takes an item for the place at in the results: see Response.AddItem.
	addItem(at int, data []byte, release func())
	allocItem(n int) []byte // see Response.Alloc
	whenReleased(f func())  // see Request.WhenReleased
	room(results int) int   // see Response.Room; results is the length of those that there are
	itemRoom(results int) int
}

// Decoder returns a decoder of Args that skips the padding of an RDMA_MSGP call.
func (r *Request) Decoder() xdr.Decoder {
	return xdr.NewPaddedDecoder(r.Args, r.at, r.pad)
}

// RemoteAddr is the client's address.
func (r *Request) RemoteAddr() net.Addr { return r.Conn().RemoteAddr() }

// Alloc is as Response.Alloc, for code that has the request alone: memory for bulk results,
// which generated code then gives to AddItem.
func (r *Request) Alloc(n int) []byte { return r.o.allocItem(n) }

// WhenReleased calls f when the reply's memory is not in use any more: what the handler
// has given to the reply, and has not got from Alloc, is its own again. That is after the
// reply has been sent, or given up, and never before ServeRPC has returned. f must not block.
// WhenReleased may be called several times for one request, by the goroutine that executes it.
func (r *Request) WhenReleased(f func()) { r.o.whenReleased(f) }

// A Response takes the results of a call.
type Response struct {
	// Results are the XDR-encoded results; the handler appends to them. While they
	// fit inline, they are built in the buffer that is sent.
	Results []byte

	o    origin
	fail oncrpc.AcceptStat
	deny oncrpc.AuthStat
}

// AddItem appends an opaque result that the upper-layer binding makes eligible
// for a write chunk. It appends the length word to Results; data goes to the
// next write chunk of the call or, if there is none, inline with its padding.
//
// data belongs to the response until release is called, after ServeRPC has
// returned and the adapter has sent it; it must not change before. release may be
// nil. With providers that need registered memory, data that is not from Alloc is
// copied.
func (w *Response) AddItem(data []byte, release func()) {
	w.Results = xdr.AppendUint32(w.Results, uint32(len(data)))
	w.o.addItem(len(w.Results), data, release)
}

// addItem adds an item at an offset of the results.
func (x *exch) addItem(at int, data []byte, release func()) {
	it := item{at: at, data: data, key: fabric.LocalDMAKey, release: release}
	if own := x.own(data); own != nil {
		it.key = own.LKey
	} else if x.c.caps.LocalDMA {
		x.charge(len(data))
	} else {
		it.data, it.key = x.local(data)
	}
	x.items = append(x.items, it)
}

// Alloc returns n bytes of the server's memory for AddItem, to be filled by
// the handler. They belong to the response until the reply has been sent, and need no
// release. Alloc returns nil if n exceeds the server's MaxMessage or there is no
// memory.
func (w *Response) Alloc(n int) []byte { return w.o.allocItem(n) }

// Room is how many more bytes of XDR-encoded results the caller has room for, as far as this
// end knows: inline, or in the reply chunk; over TCP, and with lent replies, up to MaxMessage.
// Items that go to a write chunk do not count. A longer reply is not sent: the caller gets an
// *RDMAError, or SYSTEM_ERR over TCP, and Config.Logger a *ReplySizeError.
func (w *Response) Room() int { return w.o.room(len(w.Results)) }

// ItemRoom is how many bytes of data the next AddItem has room for: in its write chunk, or,
// when the call has no more of them, in the rest of the reply.
func (w *Response) ItemRoom() int { return w.o.itemRoom(len(w.Results)) }

func (x *exch) allocItem(n int) []byte {
	if n < 0 || n > x.c.cfg.MaxMessage {
		return nil
	}
	b, err := x.alloc(n)
	if err != nil {
		if orphan(err) {
			return make([]byte, n)
		}
		return nil
	}
	return b.Bytes[:n:n]
}

// Fail makes the reply an RPC error without results: oncrpc.GarbageArgs,
// ProcUnavail or SystemErr.
func (w *Response) Fail(stat oncrpc.AcceptStat) { w.fail = stat }

// Deny makes the reply one that refuses the call's credential, without results:
// oncrpc.AuthBadCred, AuthTooWeak and the like.
func (w *Response) Deny(stat oncrpc.AuthStat) { w.deny = stat }

// refused returns the RPC header of a reply that Fail or Deny has made an error.
func (w *Response) refused() (h oncrpc.ReplyHeader, refused bool) {
	switch {
	case w.fail != oncrpc.Success:
		return oncrpc.ReplyHeader{AcceptStat: w.fail}, true
	case w.deny != oncrpc.AuthOK:
		return oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: w.deny}, true
	}
	return h, false
}

// orphan reports whether there was no memory because the connection has ended, which the
// adapter may know first: the reply can then only go to the reply cache.
func orphan(err error) bool { return errors.Is(err, net.ErrClosed) }

// own returns the exchange's buffer that data is at the start of, nil if there is none.
func (x *exch) own(data []byte) *arena.Buffer {
	for _, b := range x.mems {
		if len(data) > 0 && &b.Bytes[0] == &data[0] {
			return b
		}
	}
	return nil
}

// local returns a copy of data in memory with a local key. If there is no memory it marks
// the call as failed.
func (x *exch) local(data []byte) ([]byte, uint32) {
	if len(data) == 0 {
		return nil, fabric.LocalDMAKey
	}
	b, err := x.alloc(len(data))
	if orphan(err) {
		return data, fabric.LocalDMAKey
	}
	if err != nil {
		x.failed = true
		return nil, fabric.LocalDMAKey
	}
	return b.Bytes[:copy(b.Bytes, data)], b.LKey
}
