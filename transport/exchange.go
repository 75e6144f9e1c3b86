package transport

import (
	"net"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
	"github.com/rpcrdma/rpcrdma/transport/internal/reads"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// An exch is an exchange: one call being answered. Its states, which the leader changes,
// and a service on a goroutine of its own under the lock of the connection's state:
//
//	free -> pulling -> executing -> (posting) -> replying -> (lent) -> free
//
// Memory of an exchange belongs to the leader while it is pulling, to the service while it
// is executing, and to the adapter while it is replying.
//
// A call is executed by the leader itself, or, after [exch.detach], on a goroutine of its
// own. What builds and sends the reply has the leader as an argument, which is nil on
// another goroutine.
type exchState uint8

const (
	exchFree exchState = iota
	exchPulling
	exchExecuting
	exchPosting // the service has answered, on a goroutine of its own
	exchReplying
	exchLent // the reply's read chunks are the client's until RDMA_DONE
)

type exch struct {
	reads.Message // the call
	c             *conn
	idx           uint32
	state         exchState
	detached      bool // a goroutine of its own executes the call, and holds the arena

	hdr    rpcrdma.Header // of the call: the chunks to use
	rb     *recvBuf       // the receive buffer that Msg is in; nil when it is in Mem
	held   int            // bytes reserved in the budget
	used   int            // bytes of memory that it has; those of bulk data are reserved
	covers uint64         // deferred replies, up to this one; see sendQueue

	call   oncrpc.CallHeader
	ranges []Range           // scratch
	entry  *replycache.Entry // where the reply is to be remembered
	awaits *replycache.Entry // whose reply is awaited; the leader's
	req    Request
	res    Response
	passed passed // of a bridge without middleware

	out    *arena.Buffer  // the reply as sent; see reply.go
	rh     rpcrdma.Header // its header
	base   int            // offset of the RPC message in out
	items  []item
	failed bool            // there was no memory for an item
	mems   []*arena.Buffer // handed out by Response.Alloc
	after  []func()        // see Request.WhenReleased
	parts  []fabric.SGE
	sges   []fabric.SGE
	wrs    []fabric.SendWR
	recv   [1]fabric.RecvWR

	lending lending

	came  time.Time  // when the call was received; zero without an Observer
	event *CallEvent // of the call, until it has ended; nil without an Observer
}

// A passed call has been made readable by a bridge, and has no reply yet.
type passed struct {
	x     *exch
	xid   uint32
	place uint64      // of the record in the stream
	reply chan []byte // has room for the reply, nil if there is none; nil: who brings it sends it
}

// lending is what an exchange needs for a reply with read chunks: see rfc5666.go.
type lending struct {
	allowed bool        // the program allows read chunks in its replies
	loan    expose.Loan // memory of the reply
	acked   bool        // RDMA_DONE has come
	fences  int         // local invalidations under way
	timer   *time.Timer // for RDMA_DONE
}

// ---- memory

// charge counts memory that the exchange holds until its end, or until settle.
func (x *exch) charge(n int) {
	x.used += n
	if more := x.used - x.held; more > 0 {
		x.held += more
		x.c.tenant.Charge(int64(more))
	}
}

// chargeIfRoom is charge for a buffer of at least size bytes, which can be refused, but not if
// it is as short as what goes inline. What the call has reserved has room for all results that
// fit its chunks and MaxMessage: for less than half a buffer of the smallest class there is
// more, so that many of these do not use it up.
func (x *exch) chargeIfRoom(size int) bool {
	n := arena.SizeOf(size)
	if n > 2*size {
		x.used += n
		x.held += n
		x.c.tenant.Charge(int64(n))
		return true
	}
	more := x.used + n - x.held
	if more > 0 && n > x.c.cfg.sendSize && !x.c.lends() {
		if !x.c.tenant.Extend(int64(x.held), int64(more)) {
			return false
		}
		x.held += more
	}
	x.charge(n)
	return true
}

// settle gives back what was reserved and is not needed: taken tells that this is because
// the reply has been taken.
func (x *exch) settle(taken bool) {
	if n := x.held - x.used; n > 0 {
		x.held = x.used
		x.c.tenant.Release(int64(n), taken)
	}
}

// alloc takes a buffer that the exchange keeps until its reply is out.
func (x *exch) alloc(n int) (*arena.Buffer, error) {
	if !x.chargeIfRoom(n) {
		return nil, errMemory
	}
	b, err := x.c.arena.Get(n)
	if err == nil {
		x.mems = append(x.mems, b)
	} else {
		x.used -= arena.SizeOf(n)
	}
	return b, err
}

// release gives back what an exchange holds. taken tells that its reply has been taken.
func (x *exch) release(taken bool) {
	c := x.c
	if x.event != nil {
		x.observeEnd(net.ErrClosed) // it has not been answered
	}
	x.dropItems()
	if x.Mem != nil {
		c.arena.Put(x.Mem)
		x.Mem = nil
	}
	x.dropMems()
	for _, f := range x.after {
		f()
	}
	clear(x.after)
	x.after = x.after[:0]
	x.failed = false
	ln := &x.lending
	ln.loan.End()
	if ln.timer != nil {
		ln.timer.Stop()
		ln.timer = nil
	}
	ln.acked = false
	x.Msg, x.res.Results = nil, nil
	x.req.Args = nil
	clear(x.parts)
	clear(x.sges)
	x.used = 0
	x.settle(taken)
}

// dropItems forgets the results of a call that may be chunks.
func (x *exch) dropItems() {
	for i := range x.items {
		if f := x.items[i].release; f != nil {
			f()
		}
	}
	clear(x.items)
	x.items = x.items[:0]
}

// dropMems gives back what Response.Alloc has handed out.
func (x *exch) dropMems() {
	for _, b := range x.mems {
		x.c.arena.Put(b)
	}
	clear(x.mems)
	x.mems = x.mems[:0]
}

// conn is the connection as its users see it.
func (x *exch) conn() *Conn { return &x.c.public }

// whenReleased has f called at the end of the exchange.
func (x *exch) whenReleased(f func()) { x.after = append(x.after, f) }

// ---- who has the exchange

// detach moves an exchange off the leader: the service answers from a goroutine of its
// own. The arena stays until then.
func (x *exch) detach() {
	x.detached = true
	x.c.arena.Hold()
}

// takeBack takes the exchange back from its service, to build the reply. It returns false
// when the connection has ended, and there is nothing to be done.
func (x *exch) takeBack(l *leader) bool {
	if l != nil {
		return true // who would end it is here
	}
	c := x.c
	ended := c.state.Lock().ended()
	x.state = exchPosting
	c.state.Unlock()
	if ended {
		x.abandon()
	}
	return !ended
}

// leave gives an exchange that has no answer to the end of its connection, which is near.
func (x *exch) leave() {
	c := x.c
	ended := c.state.Lock().ended()
	if !ended {
		x.state = exchReplying // see abort
	}
	c.state.Unlock()
	if ended {
		x.abandon()
	} else {
		c.arena.Drop()
	}
}

// abandon ends an exchange that the end of the connection has overtaken.
func (x *exch) abandon() {
	x.release(false)
	if x.detached {
		x.c.arena.Drop()
	}
}

// lean reports whether a reply holds nothing but its message.
func (x *exch) lean() bool {
	return len(x.wrs) == 1 && x.lending.loan.Len() == 0 && x.held == 0 && x.Mem == nil && len(x.items) == 0 && len(x.mems) == 0 && len(x.after) == 0
}

// deferred reports whether the completion of a later reply may tell that this one has left.
func (x *exch) deferred() bool { return x.wrs[len(x.wrs)-1].Flags&fabric.Deferred != 0 }

// post sends the exchange's list of requests. The receive that its call used is
// posted first: the reply allows the client to send another call. Once the list
// is queued the exchange is the leader's.
func (x *exch) post(l *leader) {
	if x.event != nil {
		x.observeEnd(nil)
	}
	c, rb := x.c, x.rb
	x.rb = nil
	if l != nil {
		if rb != nil {
			l.receiveDone(rb)
		}
		x.state = exchReplying
		l.replies = append(l.replies, x) // which the end of the pass lets go
		return
	}
	if rb != nil {
		x.recv[0] = c.recvWR(rb)
		if err := c.fc.PostRecv(x.recv[:]); err != nil {
			c.breakOff(err)
		}
	}
	if c.state.Lock().ended() {
		c.state.Unlock()
		x.abandon()
		return
	}
	x.state = exchReplying
	c.sends.addReplies(x)
	c.state.Unlock()
	c.sends.post(nil, true)
	c.arena.Drop()
}

// finish answers a call with what its handler has made of it.
func (x *exch) finish(l *leader) {
	if x.res.refused() {
		x.dropItems()
		x.replyError(l, x.res.Status())
		return
	}
	x.answer(l, x.res.Status(), x.res.Results)
}
