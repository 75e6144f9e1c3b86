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
	others   func(l *leader, x *exch) bool // takes calls to other programs; nil: there are none
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

// dispatch executes a whole call, on the leader.
func (r *registry) dispatch(l *leader, x *exch) {
	n, err := oncrpc.ConsumeCall(x.Msg, &x.call)
	if err != nil || x.call.XID != x.hdr.XID {
		x.c.public.refused(x.hdr.XID, errBadCall)
		x.refuse(rpcrdma.ErrChunk)
		return
	}
	if x.begin() != nil {
		x.refuse(rpcrdma.ErrChunk)
		return
	}
	x.reg, x.msg, x.at, x.pad = r, x.Msg, n, xdr.Padding{Align: x.hdr.Align, Thresh: x.hdr.Thresh}
	if ln := x.c.lineage; ln != nil {
		ln.Called(l.posted)
	}
	if x.c.cfg.observation != nil {
		x.observeCall(x.transfer())
	}
	p := r.programs[x.call.Prog]
	if x.pad.Align > 1 && x.call.RPCVers == oncrpc.Version && (p == nil || !p.Padded) {
		x.refuse(rpcrdma.ErrChunk) // nobody would find the data
		return
	}
	// Write chunks of protected calls come back unused: see chunksFit.
	if x.call.Cred.Protected() {
		x.hdr.Writes = x.hdr.Writes[:0]
	}
	x.lending.allowed = p != nil && p.ReadReplies
	x.exchange.dispatch()
}

func (x *exch) other() bool {
	if x.reg.others == nil || !x.reg.others(x.leader, x) {
		return false
	}
	x.leader.endPace()
	return true
}

func (x *exch) endPace() { x.leader.endPace() }

// proceed executes the call: what its results may take was reserved before the call was pulled.
func (x *exch) proceed() { x.execute() }

func (x *exch) fits(p *Program) bool { return x.chunksFit(p.Binding) }

// goOn goes on as the leader.
func (x *exch) goOn() { x.leader.takeOver(x) }

// chunksFit compares the read chunks of a call with what the binding says: each is an item that may be one, and has as many
// bytes as its length word says, or as many with padding (RFC 5666 section 3.4). What a security
// service protects has none (RFC 8166 section 8.2.2).
func (x *exch) chunksFit(b Binding) bool {
	reads := x.hdr.Reads
	for len(reads) > 0 && reads[0].Position == 0 {
		reads = reads[1:]
	}
	call, n := &x.call, x.at
	switch {
	case len(reads) == 0:
		return true
	case call.Cred.Protected():
		return false
	case b == nil:
		return true
	}
	x.ranges, _ = b.Call(Procedure{call.Prog, call.Vers, call.Proc}, x.msg[n:], x.ranges[:0])
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
