package transport

import (
	"net"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// An exchange is a call being answered, over RDMA ([exch]) or TCP ([tcpExch]): the call and its
// program, where its reply is remembered, its memory and items, and its event for an Observer.
//
// It belongs to the goroutine that moves the connection until it is detached, then to the one that
// executes the call. Once the call is answered it is the wire's, which releases it when the reply has
// left.
type exchange struct {
	core *core
	wire carrier
	reg  *registry

	msg      []byte // the call
	call     oncrpc.CallHeader
	at       int         // the arguments in msg
	pad      xdr.Padding // in them
	prog     *Program
	detached bool              // a goroutine of its own executes the call, and holds the arena
	start    func()            // serve
	entry    *replycache.Entry // where the reply is to be remembered
	awaits   *replycache.Entry // whose reply is awaited
	req      Request
	res      Response
	ranges   []Range // scratch

	items  []item
	mems   []*arena.Buffer // handed out by Response.Alloc
	after  []func()        // see Request.WhenReleased
	held   int             // bytes reserved in the budget
	used   int             // bytes of memory that it has; those of bulk data are reserved
	values int             // bytes of decoded arguments, which are not in held

	came  time.Time  // when the call was received; zero without an Observer
	event *CallEvent // of the call, until it has ended; nil without an Observer
}

// An item is a result that may go to a write chunk.
type item struct {
	at      int // its place in the stream, which does not have it
	data    []byte
	key     uint32
	release func()
}

// A carrier is an exchange with its wire: how the reply gets back.
type carrier interface {
	origin
	replycache.Waiter

	other() bool                                 // takes a call to a program that is not in the registry, or returns false
	fits(p *Program) bool                        // the call's chunks are as the program's binding says
	endPace()                                    // see pace
	proceed()                                    // has the exchange execute the call when there is memory for its results
	results() []byte                             // where the results are built, empty
	answer(h oncrpc.ReplyHeader, results []byte) // sends a reply, in whose results the exchange's items belong
	answerAgain(header, results []byte)          // the same with a reply that has been sent before
	goOn()                                       // finishes the exchange and moves the connection on a new goroutine, see serve
}

// init makes x the exchange of w.
func (x *exchange) init(c *core, w carrier) {
	x.core, x.wire = c, w
	x.start = x.serve
}

// ---- executing

// dispatch finds the program of a call (RFC 5531 section 9), whose header has been decoded.
func (x *exchange) dispatch() {
	call := &x.call
	p := x.reg.programs[call.Prog]
	switch {
	case call.RPCVers != oncrpc.Version:
		x.wire.answer(oncrpc.ReplyHeader{
			Stat: oncrpc.MsgDenied, RejectStat: oncrpc.RPCMismatch, Low: oncrpc.Version, High: oncrpc.Version,
		}, nil)
	case p == nil:
		if !x.wire.other() {
			x.wire.answer(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgUnavail}, nil)
		}
	case call.Vers < p.Low || call.Vers > p.High:
		x.wire.answer(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: p.Low, High: p.High}, nil)
	case p.Auth != nil && !x.authorized(p):
	case call.Proc == 0 && !p.Null:
		x.wire.answer(oncrpc.ReplyHeader{}, nil)
	case !x.wire.fits(p):
		x.wire.answer(oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs}, nil)
	default:
		if !p.Independent {
			x.wire.endPace()
		}
		x.prog = p
		x.wire.proceed()
	}
}

// execute executes a call for which there is memory.
func (x *exchange) execute() {
	p, call := x.prog, &x.call
	switch {
	case x.recall(p.Idempotent != nil && p.Idempotent(call.Vers, call.Proc)):
	case x.detached || p.Inline != nil && p.Inline(call.Vers, call.Proc):
		x.serve()
	default:
		x.detach()
		go x.start()
	}
}

// detach moves an exchange off the goroutine that moves the connection. The arena stays until it
// is over.
func (x *exchange) detach() {
	if !x.detached {
		x.detached = true
		x.core.arena.Hold()
	}
}

// serve has the handler execute the call, and answers it.
func (x *exchange) serve() {
	if x.prog.Auth == nil { // else it has been asked with it
		x.request()
	}
	x.res = Response{Results: x.wire.results(), o: x.wire}
	serve(x.core.contexts.of(x.entry != nil, !x.detached), x.prog.Handler, &x.req, &x.res, x.event, func() { x.exited() })
	x.finish()
}

// exited goes on after the program's code has ended its goroutine, which may be the one that moves the
// connection.
func (x *exchange) exited() {
	if x.detached {
		x.finish()
	} else {
		go x.wire.goOn()
	}
}

// finish answers a call with what its handler has made of it.
func (x *exchange) finish() {
	x.dropValues()
	if x.res.refused() {
		x.dropItems()
		x.res.Results = nil
	}
	x.wire.answer(x.res.Status(), x.res.Results)
}

// request makes the Request of the call.
func (x *exchange) request() {
	call := &x.call
	x.req = Request{
		Procedure: Procedure{call.Prog, call.Vers, call.Proc},
		XID:       call.XID, Cred: call.Cred, Verf: call.Verf,
		Args: x.msg[x.at:], at: x.at, pad: x.pad, o: x.wire, sys: x.req.sys,
	}
}

// authorized asks the program whether the call may be executed. If not, it is answered.
func (x *exchange) authorized(p *Program) bool {
	x.request()
	h, ok := authorize(p, &x.req, func() {
		x.res = Response{o: x.wire}
		x.res.Fail(oncrpc.SystemErr)
		x.exited()
	})
	if !ok {
		x.wire.answer(h, nil)
	}
	return ok
}

// ---- calls that come again

// credAt is where the credential begins in a call.
const credAt = 24

// recall looks whether the call has come before, and takes it then. Else its reply will be
// remembered, unless idempotent says that there is no need.
func (x *exchange) recall(idempotent bool) (taken bool) {
	if idempotent {
		return false
	}
	call := &x.call
	outcome, e, reply := x.reg.cache.Begin(&replycache.Call{
		Host: x.core.host(), Client: x.core.lineage,
		XID: call.XID, Prog: call.Prog, Vers: call.Vers, Proc: call.Proc, Body: x.msg[credAt:],
	}, x.wire)
	switch outcome {
	case replycache.Fresh:
		x.entry = e
		return false
	case replycache.Answered:
		x.Answer(reply)
	}
	return true
}

// Answer answers with a reply from the cache: see replycache.Waiter.
func (x *exchange) Answer(r replycache.Reply) {
	for _, it := range r.Items {
		x.wire.addItem(it.At, it.Data, nil)
	}
	x.core.stats.replayed.Add(1)
	if e := x.event; e != nil {
		e.Replayed = true
	}
	x.wire.answerAgain(r.Header, r.Results)
}

// remember keeps the reply to the call, before it is sent. results and the items stay the caller's.
func (x *exchange) remember(rpc, results []byte) {
	if e := x.entry; e != nil {
		x.entry = nil
		e.Answer(rpc, results, len(x.items), func(i int) (int, []byte) { return x.items[i].at, x.items[i].data })
	}
}

// ---- memory

// charge counts memory that the exchange holds until its end, or until settle.
func (x *exchange) charge(n int) {
	x.used += n
	if more := x.used - x.held; more > 0 {
		x.held += more
		x.core.tenant.Charge(int64(more))
	}
}

// settle gives back what was reserved and is not needed. taken says that this is because the reply
// has been taken.
func (x *exchange) settle(taken bool) {
	if n := x.held - x.used; n > 0 {
		x.held = x.used
		x.core.tenant.Release(int64(n), taken)
	}
}

// takeValues takes memory for decoded arguments, which counts until the handler has returned.
func (x *exchange) takeValues(n int) bool {
	ok := x.core.tenant.Decode(int64(x.values), int64(n))
	if ok {
		x.values += n
	}
	return ok
}

// dropValues gives back the memory of decoded arguments.
func (x *exchange) dropValues() {
	if n := x.values; n > 0 {
		x.values = 0
		x.core.tenant.Decoded(int64(n))
	}
}

// own returns the exchange's buffer that data is at the start of, or nil.
func (x *exchange) own(data []byte) *arena.Buffer {
	for _, b := range x.mems {
		if len(data) > 0 && &b.Bytes[0] == &data[0] {
			return b
		}
	}
	return nil
}

// drop releases what an exchange has, at its end.
func (x *exchange) drop() {
	if x.event != nil {
		x.observeEnd(net.ErrClosed) // it has not been answered
	}
	x.dropItems()
	x.dropValues()
	x.dropMems()
	for _, f := range x.after {
		f()
	}
	clear(x.after)
	x.after = x.after[:0]
	x.msg, x.req.Args, x.res.Results = nil, nil, nil
}

// dropItems forgets the results of a call that may be chunks.
func (x *exchange) dropItems() {
	for i := range x.items {
		if f := x.items[i].release; f != nil {
			f()
		}
	}
	clear(x.items)
	x.items = x.items[:0]
}

// dropMems gives back what Response.Alloc has handed out.
func (x *exchange) dropMems() {
	for _, b := range x.mems {
		x.core.arena.Put(b)
	}
	clear(x.mems)
	x.mems = x.mems[:0]
}

// ---- the handler's view

func (x *exchange) conn() *Conn { return &x.core.public }

func (x *exchange) whenReleased(f func()) { x.after = append(x.after, f) }

func (x *exchange) itemList() *[]item { return &x.items }

// ---- events for an Observer

// arrived notes when the call came.
func (x *exchange) arrived() {
	if x.core.cfg.observation != nil {
		x.came = time.Now()
	}
}

// observeCall says that the call, whose message is whole, begins. t is how it has come.
func (x *exchange) observeCall(t Transfer) {
	call := &x.call
	x.event = x.core.cfg.observation.begin(CallEvent{
		Procedure: Procedure{call.Prog, call.Vers, call.Proc}, Conn: &x.core.public, Executed: true,
		Backward: x.core.role == roleClient, XID: call.XID, Began: x.came, Waited: time.Since(x.came), Request: t,
	})
}

// observeEnd says that the call, which has begun, has ended: err is why it has no reply.
func (x *exchange) observeEnd(err error) {
	e := x.event
	x.event = nil
	if e.Err == nil {
		e.Err = err
	}
	x.core.cfg.observation.end(e)
}
