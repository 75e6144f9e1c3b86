package rpc

import (
	"bytes"
	"context"
	"net"

	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Handler executes the procedures of a program.
type Handler interface {
	// ServeRPC executes req and fills in res; the reply is sent when it returns. req and everything it points to are
	// valid until then. ctx ends with the connection or, if the reply goes to the reply cache, with the server: a
	// client that has lost its connection repeats the call on another. ConnFromContext returns the connection of ctx;
	// the caller's credential is in req. ctx has no deadline: neither RPC (RFC 5531 section 9) nor any version of
	// RPC-over-RDMA, with its properties and operations, carries the client's timeout to the server. A program can pass
	// it as an argument, and a Middleware may set a deadline of its own. The server answers procedure 0 itself, unless
	// Program.Null says otherwise. If ServeRPC panics, the caller gets SYSTEM_ERR, the panic is logged with its stack
	// to Config.Logger, and the server keeps running. runtime.Goexit, which t.FailNow calls, has the same effect. It
	// ends the goroutine, which for an Inline callback at a client may be one that waits in Call.
	ServeRPC(ctx context.Context, req *Request, res *Response)
}

// A HandlerFunc is a Handler that consists of one function.
type HandlerFunc func(ctx context.Context, req *Request, res *Response)

// ServeRPC calls f.
func (f HandlerFunc) ServeRPC(ctx context.Context, req *Request, res *Response) { f(ctx, req, res) }

// A Program is an RPC program that a server executes, or a client for its server.
//
// A handler may wait for another call of its client only if the connection has room for that call. Over RDMA a new
// connection has room for 4 calls, so 3 may wait. If more than half of the room is in use when a reply is sent, that
// reply raises it to 16, and later replies double it, up to Config.Credits: with 3 calls waiting, the reply to a fourth
// raises it to 16. Over TCP there is room for Config.Credits calls, or for 4 while the server is crowded, but calls to
// a Program without a Binding reserve 1 MiB each of 4 times Config.MaxMessage: 16 with the defaults, so 15 may wait.
// Further calls wait until a waiting call is answered. A long poll with more waiting calls should end after some time,
// or be a call back to the client (see Conn.Call), which needs no room of this kind.
type Program struct {
	Number    uint32 // as in RPC calls
	Low, High uint32 // versions, inclusive
	Handler   Handler

	// Names describe versions of the program. Register refuses a version with messages that can be longer than
	// Config.MaxMessage.
	Names []*oncrpc.Program

	// Binding is the upper-layer binding. It determines which arguments may be in read chunks: a call with other
	// arguments in read chunks, or with a chunk that does not have the length in its length word, is answered with
	// GARBAGE_ARGS. If Binding is nil, the handler has to check. Over TCP it bounds the memory to reserve for results:
	// see ServeTCP.
	Binding Binding

	// Auth decides whether a call may be executed: it returns AuthOK, or why the call is denied (RFC 5531 section 9).
	// It is called before the reply cache and the Handler, for all procedures including procedure 0, on the goroutine
	// that drives the connection: it must not block. The memory of req is valid until it returns. If it panics, the
	// caller gets SYSTEM_ERR. Nil permits every call. Package middleware makes such functions.
	Auth func(req *Request) oncrpc.AuthStat

	// Null passes procedure 0 to the Handler, too, for security flavors that set up their contexts with such calls (RFC
	// 2203 section 5.2.2). Otherwise the server itself answers it for every caller, and neither the Handler nor
	// middleware sees it.
	//
	// With Null, the reply cache leaves other calls of RPCSEC_GSS to the Handler, which uses Request.Once: clients send
	// them again with another sequence number and verifier.
	Null bool

	// Padded means that the handler decodes its arguments with Request.Decoder, so that calls may use RDMA_MSGP. See
	// Config.RFC5666.
	Padded bool

	// ReadReplies means that the upper-layer binding allows read chunks in replies (RFC 5666 section 3.4). See
	// Config.RFC5666.
	ReadReplies bool

	// Idempotent reports whether a procedure may be executed again when a client that lost its connection repeats a
	// call. The replies of all other procedures are kept for that case; see ReplyCache. Nil: no procedure may.
	Idempotent func(vers, proc uint32) bool

	// Inline reports whether a procedure is quick and never blocks. Such procedures run on the goroutine that drives
	// the connection, without a handoff. No other goroutine reads the connection meanwhile, so such a handler cannot
	// wait for calls: with its context, or one derived from it, the methods of a Client, Group, Conn, Backchannel or
	// Pipeline that make calls return an error. Nil: no procedure is.
	Inline func(vers, proc uint32) bool

	// Keep reports whether the handler of a procedure keeps using the memory of Request.Args after it has returned.
	// Arguments in read chunks then go to memory that the handler owns for good, if the adapter accepts any memory: see
	// Request.Kept. Nil: no handler does.
	Keep func(vers, proc uint32) bool

	// Independent means that the handlers never wait for their client: neither for another call from it, nor for its
	// reply to a call that they make. A server may then let the client make fewer calls at a time while processors are
	// scarce: see Config.Credits. A connection that also calls another program keeps the credits it was granted.
	Independent bool
}

// Every returns true for all procedures, for Program.Inline and Program.Idempotent.
func Every(vers, proc uint32) bool { return true }

// A Request is a call as a Handler sees it.
type Request struct {
	Procedure
	XID        uint32      // of the call
	Cred, Verf oncrpc.Auth // as the caller sent them; valid as long as Args

	// Args are the XDR-encoded arguments, including those that came in read chunks.
	Args []byte

	// Observed is the procedure reported in the event at the end of the call, and in spans; initially the Procedure. A
	// Handler of a program that carries the calls of another protocol sets it to a procedure of a made-up program in a
	// names.Table, so that those calls have names, counters and latencies of their own. Nothing else uses it.
	Observed Procedure

	at  int // offset of Args in the message
	pad xdr.Padding
	o   origin.Origin
	c   Conn

	kept    bool
	limited bool
	memory  int // limit for decoded arguments, if limited: see LimitMemory

	sys       *oncrpc.AuthSys // memory for the call's credential, reused for later calls
	sysRead   sysState
	principal *Principal
}

// A sysState is the state of a call's AUTH_SYS credential.
type sysState uint8

const (
	sysUnread sysState = iota
	sysValid
	sysInvalid
)

// AuthSys returns the AUTH_SYS credential of the call, which is only a claim. ok is false if the credential has another
// flavor, or its body is invalid. It is decoded once, whichever wrapper asks for it, and without an allocation if all
// calls of the connection come from one user. It belongs to the request.
func (r *Request) AuthSys() (sys *oncrpc.AuthSys, ok bool) {
	if r.sysRead == sysUnread {
		r.sysRead = sysInvalid
		if r.sys == nil {
			r.sys = new(oncrpc.AuthSys)
		}
		if r.Cred.Flavor == oncrpc.FlavorSys {
			n, err := oncrpc.ConsumeAuthSys(r.Cred.Body, r.sys)
			if err == nil && n == len(r.Cred.Body) {
				r.sysRead = sysValid
			}
		}
	}
	if r.sysRead != sysValid {
		return nil, false
	}
	return r.sys, true
}

// SetCred replaces the credential that inner handlers see, in Cred and AuthSys, by one that they may trust more than
// the caller's. cred must not change until ServeRPC returns.
func (r *Request) SetCred(cred oncrpc.Auth) { r.Cred, r.sysRead = cred, sysUnread }

// Kept reports whether the program owns the memory of Args, so that the garbage collector frees it. Otherwise it is
// valid until ServeRPC returns. See Program.Keep.
func (r *Request) Kept() bool { return r.kept }

// SetArgs replaces the arguments that inner handlers see, for instance after decryption. args is XDR in one piece, and
// must not change until ServeRPC returns.
func (r *Request) SetArgs(args []byte) {
	r.Args, r.at, r.pad, r.kept = args, 0, xdr.Padding{}, false
}

// Decoder returns a decoder of Args that skips the padding of an RDMA_MSGP call. Its allocations count in
// Config.MaxMemory until ServeRPC has returned, and are bounded: see LimitMemory.
func (r *Request) Decoder() xdr.Decoder {
	d := xdr.NewPaddedDecoder(r.Args, r.at, r.pad)
	d.ChargeTo((*account)(r))
	if r.limited {
		d.LimitMemory(r.memory)
	}
	return d
}

// LimitMemory limits the memory, in bytes, that each Decoder of the request may allocate; [xdr.Decoder.LimitMemory]
// describes the default. A call with arguments that need more is answered with SYSTEM_ERR. A Middleware, or a Handler
// around a generated one, raises the limit for procedures with an argument that is much longer as a Go value, such as
// an array of unions with large arms.
func (r *Request) LimitMemory(bytes int) { r.limited, r.memory = true, bytes }

// An account is a request as its decoders see it.
type account Request

// Reserve takes memory of the request's connection: see [xdr.Account].
func (a *account) Reserve(n int) bool { return a.o == nil || a.o.TakeValues(n) }

// Detach returns a copy of r for use after ServeRPC has returned. The copy has no arguments and refers to no memory of
// the transport. Its Alloc allocates memory, and its WhenReleased calls f at once.
func (r *Request) Detach() *Request {
	d := &Request{
		Procedure: r.Procedure, Observed: r.Observed, XID: r.XID, Cred: r.Cred, Verf: r.Verf, o: detached{r.o}, c: r.c, principal: r.principal,
	}
	d.Cred.Body, d.Verf.Body = bytes.Clone(r.Cred.Body), bytes.Clone(r.Verf.Body)
	return d
}

// A detached Origin is that of a call that has its reply.
type detached struct{ origin.Origin }

func (detached) AllocItem(n int) []byte { return make([]byte, n) }
func (detached) WhenReleased(f func())  { f() }
func (detached) TakeValues(int) bool    { return true }

func (detached) Recall(_, _ []byte) (none origin.Recalled) { return }
func (detached) Remember(*oncrpc.ReplyHeader, []byte)      {}

// Once calls f to execute the call, unless caller has made the same call before: then it sets res as f left it that
// time. It is the reply cache for wrappers that must prove the caller, and decode Args, before they can recognize a
// repeated call. Two calls are the same if their caller, xid, procedure and Args are, and if they come from the same
// machine. A repeated call waits while f runs. Idempotent calls are always executed. A call that f denies is not
// remembered. The results must be empty before Once, and must be protected after Once, not by f.
func (r *Request) Once(caller []byte, res *Response, f func()) {
	known := r.o.Recall(caller, r.Args)
	if known.Found {
		res.status, res.Results = known.Status, append(res.Results, known.Results...)
		return
	}
	f()
	r.o.Remember(&res.status, res.Results)
}

// Conn returns the connection on which the call arrived.
func (r *Request) Conn() Conn { return r.c }

// RemoteAddr returns the client's address.
func (r *Request) RemoteAddr() net.Addr { return r.c.RemoteAddr() }

// Alloc is Response.Alloc, for code that has only the request: memory for bulk results, which generated code then
// passes to AddItem.
func (r *Request) Alloc(n int) []byte { return r.o.AllocItem(n) }

// WhenReleased registers f to run when the transport no longer uses memory that the handler passed to
// the reply: after the reply was sent or abandoned, and never before ServeRPC returns. f must not block.
// WhenReleased may be called several times for one request, by the goroutine that executes it.
func (r *Request) WhenReleased(f func()) { r.o.WhenReleased(f) }
