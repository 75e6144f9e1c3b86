package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// A registry is the programs that one end executes, and the replies it remembers. The
// programs do not change once there are connections.
type registry struct {
	programs map[uint32]*Program
	other    func(l *leader, x *exch, n int) bool // takes calls to other programs; nil: there are none
	cache    *replycache.Cache
	around   []Middleware // of all handlers
}

func newRegistry(cfg *config) *registry {
	return &registry{
		programs: make(map[uint32]*Program), cache: replycache.New(replycache.Limits(cfg.ReplyCache)),
		around: cfg.Middleware,
	}
}

func (r *registry) register(p Program) error {
	if p.Handler == nil || p.Low > p.High {
		return fmt.Errorf("transport: program %d has no handler or no versions", p.Number)
	}
	if r.programs[p.Number] != nil {
		return fmt.Errorf("transport: program %d is registered twice", p.Number)
	}
	if p.Handler = Chain(p.Handler, r.around...); p.Handler == nil {
		return fmt.Errorf("transport: middleware leaves program %d without a handler", p.Number)
	}
	r.programs[p.Number] = &p
	return nil
}

// stop ends the contexts of handlers that connections have left behind.
func (r *registry) stop() { r.cache.Close() }

// dispatch finds the program of a call (RFC 5531 section 9).
func (r *registry) dispatch(l *leader, x *exch) {
	n, err := oncrpc.ConsumeCall(x.Msg, &x.call)
	if err != nil || x.call.XID != x.hdr.XID {
		x.c.public.refused(x.hdr.XID, errBadCall)
		x.refuse(l, rpcrdma.ErrChunk)
		return
	}
	if x.begin() != nil {
		x.refuse(l, rpcrdma.ErrChunk)
		return
	}
	if ln := x.c.lineage; ln != nil {
		ln.Called(l.posted)
	}
	call := &x.call
	if o := x.c.cfg.observation; o != nil {
		x.observeCall(o)
	}
	if call.RPCVers != oncrpc.Version {
		x.replyError(l, oncrpc.ReplyHeader{
			Stat: oncrpc.MsgDenied, RejectStat: oncrpc.RPCMismatch, Low: oncrpc.Version, High: oncrpc.Version,
		})
		return
	}
	// Write chunks of protected calls come back unused: see chunksFit.
	if call.Cred.Protected() {
		x.hdr.Writes = x.hdr.Writes[:0]
	}
	p := r.programs[call.Prog]
	if p != nil && !p.Independent {
		l.endPace()
	}
	x.lending.allowed = p != nil && p.ReadReplies
	switch {
	case x.hdr.Align > 1 && (p == nil || !p.Padded):
		x.refuse(l, rpcrdma.ErrChunk) // nobody would find the data
	case p == nil:
		if r.other == nil || !r.other(l, x, n) {
			x.replyError(l, oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgUnavail})
		} else {
			l.endPace()
		}
	case call.Vers < p.Low || call.Vers > p.High:
		x.replyError(l, oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: p.Low, High: p.High})
	case p.Auth != nil && !x.authorized(l, p, n):
	case call.Proc == 0 && !p.Null:
		x.reply(l, nil)
	case !x.chunksFit(p.Binding, n):
		x.replyError(l, oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs})
	case r.recall(l, x, p.Idempotent != nil && p.Idempotent(call.Vers, call.Proc)):
	case p.Inline != nil && p.Inline(call.Vers, call.Proc):
		r.run(l, x, p, n)
	default:
		x.detach()
		go r.run(nil, x, p, n)
	}
}

// chunksFit compares the read chunks of a call, whose arguments start at offset n of its
// message, with what the binding says: each is an item that may be one, and has as many
// bytes as its length word says, or as many with padding (RFC 5666 section 3.4). What a security
// service protects has none (RFC 8166 section 8.2.2).
func (x *exch) chunksFit(b Binding, n int) bool {
	reads := x.hdr.Reads
	for len(reads) > 0 && reads[0].Position == 0 {
		reads = reads[1:]
	}
	call := &x.call
	switch {
	case len(reads) == 0:
		return true
	case call.Cred.Protected():
		return false
	case b == nil:
		return true
	}
	x.ranges, _ = b.Call(Procedure{call.Prog, call.Vers, call.Proc}, x.Msg[n:], x.ranges[:0])
	for items := x.ranges; len(reads) > 0; {
		at, sum := int(reads[0].Position), 0
		for len(reads) > 0 && int(reads[0].Position) == at {
			sum += int(reads[0].Length)
			reads = reads[1:]
		}
		for len(items) > 0 && n+items[0].Offset < at {
			items = items[1:]
		}
		if len(items) == 0 || n+items[0].Offset != at || sum != items[0].Length && sum != xdr.Padded(items[0].Length) {
			return false
		}
	}
	return true
}

// run executes a call whose arguments start at offset n of its message.
func (r *registry) run(l *leader, x *exch, p *Program, n int) {
	if p.Auth == nil { // else it has been asked with it
		x.request(n)
	}
	x.res = Response{Results: x.results(), o: x}
	ended := func() {
		if l != nil {
			go l.takeOver(x)
		} else {
			x.finish(nil)
		}
	}
	serve(x.c.contexts.of(x.entry != nil, l != nil), p.Handler, &x.req, &x.res, x.event, ended)
	x.finish(l)
}

// request makes the Request of a call whose arguments start at offset n of its message.
func (x *exch) request(n int) {
	call := &x.call
	x.req = Request{
		Procedure: Procedure{call.Prog, call.Vers, call.Proc},
		XID:       call.XID, Cred: call.Cred, Verf: call.Verf,
		Args: x.Msg[n:], at: n, pad: xdr.Padding{Align: x.hdr.Align, Thresh: x.hdr.Thresh}, o: x,
		sys: x.req.sys,
	}
}

// authorized asks the program whether the call may be executed. If not, it is answered.
func (x *exch) authorized(l *leader, p *Program, n int) bool {
	x.request(n)
	h, ok := authorize(p, &x.req, func() {
		x.res = Response{o: x}
		x.res.Fail(oncrpc.SystemErr)
		go l.takeOver(x)
	})
	if !ok {
		x.replyError(l, h)
	}
	return ok
}

// context is what the contexts of handlers whose replies are remembered are made from.
func (r *registry) context() context.Context { return r.cache.Context() }

// authorize asks p whether a call may be executed, and returns the reply if not. A panic and
// runtime.Goexit are as in serve.
func authorize(p *Program, req *Request, ended func()) (h oncrpc.ReplyHeader, ok bool) {
	returned := false
	defer func() {
		v := recover()
		if returned {
			return
		}
		h, ok = oncrpc.ReplyHeader{AcceptStat: oncrpc.SystemErr}, false
		failed(req, v)
		if v == nil {
			ended()
		}
	}()
	stat := p.Auth(req)
	returned = true
	return oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: stat}, stat == oncrpc.AuthOK
}

// serve has the handler fill res. A panic is the handler's alone: the caller gets SYSTEM_ERR, and
// the connection and all others go on. So does runtime.Goexit, but then serve does not return:
// ended is called instead, while the goroutine ends. e, which may be nil, gets how long the handler
// took.
func serve(ctx context.Context, h Handler, req *Request, res *Response, e *CallEvent, ended func()) {
	var start time.Time
	if e != nil {
		start = time.Now()
		e.Waited = start.Sub(e.Began)
	}
	returned := false
	defer func() {
		v := recover()
		if returned {
			return
		}
		if e != nil {
			e.Handler = time.Since(start)
		}
		res.Fail(oncrpc.SystemErr)
		if len(res.Verf.Body) > oncrpc.MaxAuthBody {
			res.Verf = oncrpc.Auth{}
		}
		failed(req, v)
		if v == nil {
			ended()
		}
	}()
	h.ServeRPC(ctx, req, res)
	if e != nil {
		e.Handler = time.Since(start)
	}
	if n := len(res.Verf.Body); n > oncrpc.MaxAuthBody {
		panic(fmt.Sprintf("transport: a verifier of %d bytes, limit is %d", n, oncrpc.MaxAuthBody))
	}
	returned = true
}

// failed logs a panic of a handler with the value v, or runtime.Goexit if v is nil.
func failed(req *Request, v any) {
	req.o.conn().logPanic("handler", v, "prog", req.Prog, "vers", req.Vers, "proc", req.Proc)
}

// credAt is where the credential begins in a call.
const credAt = 24

// recall looks whether the call of x has come before, and takes it then. Else its reply will
// be remembered, unless idempotent says that there is no need.
func (r *registry) recall(l *leader, x *exch, idempotent bool) (taken bool) {
	if idempotent {
		return false
	}
	call := &x.call
	outcome, e, reply := r.cache.Begin(&replycache.Call{
		Host: x.c.host(), Client: x.c.lineage,
		XID: call.XID, Prog: call.Prog, Vers: call.Vers, Proc: call.Proc, Body: x.Msg[credAt:],
	}, x)
	switch outcome {
	case replycache.Fresh:
		x.entry = e
		return false
	case replycache.Answered:
		x.replay(l, reply)
	}
	return true
}
