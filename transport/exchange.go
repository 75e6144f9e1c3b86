package transport

import (
	"net"
	"runtime"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// An exchange is a call being answered, over RDMA ([exch]) or TCP ([tcpExch]): the call and its program, where its
// reply is remembered, its memory and items, and its event for an Observer.
//
// It belongs to the goroutine that drives the connection until it is detached, then to the one that executes the call.
// Once the call is answered, the wire owns it and releases it when the reply has been sent.
type exchange struct {
	core *core
	wire carrier

	received
	prog     *rpc.Program
	detached bool   // the call is executed on its own goroutine, and holds the arena
	start    func() // serve, on a new goroutine
	recalled
	req    rpc.Request
	res    rpc.Response
	ranges []rpc.Range // scratch
	head   []byte      // the RPC header of the reply
	holdings
	observed
}

// received is the call of an exchange.
type received struct {
	msg  []byte
	call oncrpc.CallHeader
	at   int         // offset of the arguments in msg
	pad  xdr.Padding // in the arguments
	kept bool        // the handler may keep the memory of msg
	late bool        // the handler consults the reply cache, see Request.Once: the call is not identical, byte for byte, when it is repeated
}

// recalled has the entries of an exchange in the reply cache.
type recalled struct {
	entry  *replycache.Entry // where the reply will be remembered
	awaits *replycache.Entry // the entry with the awaited reply
}

// observed is the call of an exchange as an Observer sees it.
type observed struct {
	came  time.Time  // when the call was received; zero without an Observer
	event *callEvent // of the call until it ends; nil without an Observer
}

// A carrier is an exchange together with its wire, which returns the reply.
type carrier interface {
	origin.Origin
	replycache.Waiter

	other() bool               // handles a call to a program that is not in the registry, or returns false
	fits(p *rpc.Program) bool  // whether the call's chunks agree with the program's binding
	endPace()                  // see pace
	proceed()                  // makes the exchange execute the call when there is memory for its results
	apart()                    // starts the exchange on a new goroutine, or on an idle one
	results() []byte           // where the results are built; empty
	send(head, results []byte) // sends a reply with the RPC header head and the exchange's items inserted into results
	goOn()                     // finishes the exchange and drives the connection on a new goroutine, see serve
	unrefused() int            // bytes of a buffer that is always granted: as many as fit inline
}

// init makes x the exchange of w.
func (x *exchange) init(c *core, w carrier) {
	x.core, x.wire = c, w
	x.tenant, x.arena = &c.tenant, c.arena
	x.start = func() { // few frames are on the stack
		growStack(x.at)
		x.serve()
	}
}

// ---- executing

// dispatch starts the execution of a call by its program p (RFC 5531 section 9). p is nil if the registry has no such
// program.
func (x *exchange) dispatch(p *rpc.Program) {
	call := &x.call
	switch {
	case call.RPCVers != oncrpc.Version:
		x.answer(oncrpc.ReplyHeader{
			Stat: oncrpc.MsgDenied, RejectStat: oncrpc.RPCMismatch, Low: oncrpc.Version, High: oncrpc.Version,
		}, nil)
	case p == nil:
		if !x.wire.other() {
			x.answer(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgUnavail}, nil)
		}
	case call.Vers < p.Low || call.Vers > p.High:
		x.answer(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: p.Low, High: p.High}, nil)
	case p.Auth != nil && !x.authorized(p):
	case call.Proc == 0 && !p.Null:
		x.answer(oncrpc.ReplyHeader{}, nil)
	case !x.wire.fits(p):
		x.answer(oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs}, nil)
	default:
		if !p.Independent {
			x.wire.endPace()
		}
		x.prog = p
		x.wire.proceed()
	}
}

// execute executes a call that has its memory.
func (x *exchange) execute() {
	p, call := x.prog, &x.call
	remembered := p.Idempotent == nil || !p.Idempotent(call.Vers, call.Proc)
	x.late = remembered && p.Null && call.Proc != 0 && call.Cred.Flavor == oncrpc.FlavorGSS
	switch {
	case remembered && !x.late && x.recall():
	case x.detached || !x.late && p.Inline != nil && p.Inline(call.Vers, call.Proc): // Once may wait
		x.serve()
	default:
		x.detach()
		x.wire.apart()
	}
}

// detach moves an exchange off the goroutine that drives the connection. The arena is kept until it is over.
func (x *exchange) detach() {
	if !x.detached {
		x.detached = true
		x.arena.Hold()
	}
}

// serve calls the handler, and answers the call.
func (x *exchange) serve() {
	if x.prog.Auth == nil { // otherwise it was already asked
		x.request()
	}
	x.res = rpc.Answering(x.wire, x.wire.results())
	serve(x.core.contexts.of(x.entry != nil || x.late, !x.detached), x.core, x.prog.Handler, &x.req, &x.res, x.event, func() { x.exited() })
	x.finish()
}

// growStack makes the stack of a new goroutine 8 KiB long, as a connection and most handlers need it, while there
// are few frames on it to copy. The memory in its frame is not cleared, as n is not negative.
//
//go:noinline
func growStack(n int) {
	if n < 0 {
		var b [5 << 10]byte
		runtime.KeepAlive(&b)
	}
}

// exited continues after the program's code has ended its goroutine, which may be the one that drives the connection.
func (x *exchange) exited() {
	if x.detached {
		x.finish()
	} else {
		go x.wire.goOn()
	}
}

// finish answers a call with the outcome of its handler.
func (x *exchange) finish() {
	x.dropValues()
	h := x.res.Status()
	if h.Stat != oncrpc.MsgAccepted || h.AcceptStat != oncrpc.Success {
		x.dropItems()
		x.res.Results = nil
	}
	x.answer(h, x.res.Results)
}

// request builds the Request of the call.
func (x *exchange) request() {
	rpc.Arrived(&x.req, &x.core.public, x.wire, &x.call, x.msg, x.at, x.pad, x.kept)
}

// authorized reports whether the program permits the call. If not, the call is answered.
func (x *exchange) authorized(p *rpc.Program) bool {
	x.request()
	h, ok := authorize(x.core, p, &x.req, func() {
		x.res = rpc.Answering(x.wire, nil)
		x.res.Fail(oncrpc.SystemErr)
		x.exited()
	})
	if !ok {
		x.answer(h, nil)
	}
	return ok
}

// ---- answering

// answer answers with the RPC header h and results, which the wire owns until the exchange is released. The place of an
// item is relative to the first byte of results.
func (x *exchange) answer(h oncrpc.ReplyHeader, results []byte) {
	h.XID = x.call.XID
	x.head = oncrpc.AppendReply(x.head[:0], &h)
	if e := x.event; e != nil {
		e.Status = h
	}
	x.remember(x.head, results)
	x.wire.send(x.head, results)
}

// ---- memory

func (x *exchange) alloc(n int) (*arena.Buffer, error) {
	return x.holdings.alloc(n, x.wire.unrefused())
}

func (x *exchange) AllocItem(n int) []byte {
	if n < 0 || n > x.core.cfg.MaxMessage {
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

// drop releases the resources of an exchange, at its end.
func (x *exchange) drop() {
	if x.event != nil {
		x.observeEnd(net.ErrClosed) // it has not been answered
	}
	x.dropAll()
	x.msg, x.req.Args, x.res.Results = nil, nil, nil
}

// LogFailed logs that the handler has failed.
func (x *exchange) LogFailed(prog, vers, proc uint32, err error) {
	x.core.logFailed(rpc.Procedure{Prog: prog, Vers: vers, Proc: proc}, err)
}

// ---- events for an Observer

// arrived records when the call arrived.
func (x *exchange) arrived() {
	if x.core.cfg.observation != nil {
		x.came = time.Now()
	}
}

// observeCall reports the beginning of a call, after its message is complete. t describes how the message traveled.
func (x *exchange) observeCall(t rpc.Transfer) {
	call := &x.call
	x.event = x.core.cfg.observation.begin(rpc.CallEvent{
		Procedure: rpc.Procedure{Prog: call.Prog, Vers: call.Vers, Proc: call.Proc}, Conn: &x.core.public, Executed: true,
		Backward: x.core.role == roleClient, XID: call.XID, Began: x.came, Waited: time.Since(x.came), Request: t,
	})
}

// observeEnd reports the end of a call that has begun: err is why it has no reply.
func (x *exchange) observeEnd(err error) {
	e := x.event
	x.event = nil
	if e.Err == nil {
		e.Err = err
	}
	x.core.cfg.observation.end(e)
}
