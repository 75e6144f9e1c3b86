package transport

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// The responder's half of a connection: exchanges and grants.
//
// A call that arrives takes an exchange. The leader pulls its read chunks, so
// that the service sees the whole RPC message in one piece, whatever way it
// came. Small calls run on the leader, the others on a goroutine each; both
// answer with one posted list: the Writes into the call's chunks, and the Send.
//
// A client that has Callbacks is a responder, too. What it grants does not change.
//
// The grant is what we have posted receives for. It starts small, and doubles
// when a client has half of it in use, up to what it asks for and what the
// configuration allows. It is less while the client's calls wait for memory.
type responder struct {
	c     *conn
	svc   service // nil: this end serves nothing
	grant atomic.Int64

	called atomic.Bool // by a call that was in order

	memory *budget.Budget
	tenant budget.Tenant   // of the memory that exchanges reserve and hold
	ctx    context.Context // of handlers; ends with the connection
	cancel context.CancelFunc

	// leader
	taken  uint32 // calls, so far
	posted int    // calls that there are receives for
	most   int    // calls to grant
	sends  int    // Sends that the adapter holds, at most
	exchs  []*exch
	free   []*exch
	memq   []*exch // exchanges that wait for memory
	stop   bool    // no new calls are taken
}

// A service executes calls.
type service interface {
	// dispatch is called by the leader with a whole call in x.msg. It must see
	// to it that x.reply, x.refuse or x.drop is called once, now or later.
	dispatch(x *exch)
}

// An exch is one call being answered. Its states, which the leader changes, and a
// service on a goroutine of its own under conn.mu:
//
//	free -> pulling -> executing -> (posting) -> replying -> (lent) -> free
//
// Memory of an exchange belongs to the leader while it is pulling, to the
// service while it is executing, and to the adapter while it is replying.
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
	fetch // of the call
	idx   uint32
	state exchState

	hdr    rpcrdma.Header // of the call: the chunks to use
	rb     *recvBuf       // the receive buffer that msg is in; nil when it is in mem
	held   int            // bytes reserved, see budget
	used   int            // bytes of memory that it has; those of bulk data are reserved
	covers uint64         // replies not signaled, up to this one; see sendQueue

	// See rfc5666.go.
	readReply bool        // the program allows read chunks in its replies
	lent      expose.Loan // memory of the reply
	acked     bool        // RDMA_DONE has come
	fences    int         // local invalidations under way
	timer     *time.Timer // for RDMA_DONE

	call   oncrpc.CallHeader
	ranges []Range           // scratch
	fast   bool              // executing on the leader
	entry  *replycache.Entry // where the reply is to be remembered
	awaits *replycache.Entry // whose reply is awaited; leader
	req    Request
	res    Response

	out    *arena.Buffer  // the reply as sent; see reply.go
	rh     rpcrdma.Header // its header
	base   int            // offset of the RPC message in out
	items  []item
	failed bool            // there was no memory for an item
	mems   []*arena.Buffer // handed out by Response.Alloc
	parts  []fabric.SGE
	sges   []fabric.SGE
	wrs    []fabric.SendWR
	recv   [1]fabric.RecvWR
}

func (r *responder) init(c *conn) {
	r.c = c
	r.grant.Store(1)
	r.most, r.sends = c.cfg.Credits, c.cfg.connAttr(c.role).SendDepth
	if c.role == roleClient {
		r.most = c.cfg.backward(roleClient)
	}
}

// startMessages is what a new connection may reserve, in messages of full length.
const startMessages = 4

// terms are those of a connection of a host in a server's memory.
func terms(cfg *Config, host string, trim func(int) int, wake func()) budget.Terms {
	return budget.Terms{
		Host: host, Start: startMessages * int64(cfg.MaxMessage), Most: int64(cfg.MaxMemory), Trim: trim, Wake: wake,
	}
}

// serve has the half execute calls with svc, in memory of b.
func (r *responder) serve(svc service, b *budget.Budget, host string) {
	c := r.c
	r.svc, r.memory = svc, b
	b.Join(&r.tenant, terms(c.cfg, host, c.arena.Trim, func() {
		c.req.chore.Store(true)
		c.fc.Wake()
	}))
	r.ctx, r.cancel = context.WithCancel(context.Background())
}

// serves tells whether the half executes calls. In version 2 each end does, if only to
// say that it has no program (version two section 4.2).
func (r *responder) serves() bool {
	return r.svc != nil && (r.c.role == roleServer || len(r.c.cfg.Callbacks) > 0 || r.c.vers.Load() == rpcrdma.Version2)
}

// grow posts receives for n calls and grants them. Leader, or before set-up.
func (r *responder) grow(n int) error {
	before := r.posted
	r.posted = n
	if err := r.c.growReceives(); err != nil {
		r.posted = before
		return err
	}
	r.offer()
	return nil
}

// offer decides the grant: all that there are receives for, or, while calls wait for
// memory, a part of it. Calls that are on their way by an earlier grant are taken all the
// same. It is never zero (RFC 5666 section 3.3). Leader, or before set-up.
func (r *responder) offer() {
	n := r.posted
	if len(r.memq) > 0 {
		n = max(n/loadedShare, 1)
	}
	r.grant.Store(int64(n))
}

// loadedShare is by how much the grant falls while a client's calls wait.
const loadedShare = 4

// inUse is the number of calls taken and not answered, or answered in this pass: the
// client has had a credit for each of them at once. Leader.
func (r *responder) inUse() int { return len(r.exchs) - len(r.free) - int(r.c.sq.waiting.Load()) }

// take takes an exchange for the message in rb. A client that obeys its grant
// has at most that many calls here, and as many replies on their way out.
// Leader.
func (r *responder) take(rb *recvBuf) *exch {
	var x *exch
	if n := len(r.free); n > 0 {
		x = r.free[n-1]
		r.free = r.free[:n-1]
	} else {
		// No more than what there are receives for, before and after a new grant, and replies
		// whose Sends the adapter has not told the end of.
		if len(r.exchs) >= 2*r.posted+recvSlack+r.sends {
			r.c.die(errOverrun)
			return nil
		}
		idx := uint32(len(r.exchs))
		x = &exch{fetch: fetch{c: r.c, id: wrID(wrRead, idx)}, idx: idx}
		x.fetch.done = func() { r.execute(x) }
		x.lent = expose.NewLoan(&r.c.exposes)
		x.req.x, x.res.x = x, x
		r.exchs = append(r.exchs, x)
	}
	x.rb, x.awaits = rb, nil
	x.state = exchPulling
	r.taken++
	return x
}

// keepUp grants more to a client that uses what it has, up to the credits it asks for.
// Leader.
func (r *responder) keepUp(credit uint32) {
	if g := r.posted; r.inUse() > g/2 && len(r.memq) == 0 && g < r.most && !r.memory.Crowded() {
		if n := min(2*g, int(min(credit, uint32(r.most)))); n > g {
			_ = r.grow(n) // without memory the grant stays
		}
	}
}

// call takes a call: its header h, and payload, which is what follows it in rb.
// Leader.
func (r *responder) call(rb *recvBuf, h *rpcrdma.Header, payload []byte, xidOK bool) {
	c := r.c
	c.streak = 0
	if r.stop {
		c.stats.dropped.Add(1)
		c.receiveDone(rb)
		return
	}
	x := r.take(rb)
	if x == nil {
		return
	}
	x.hdr, *h = *h, x.hdr
	r.keepUp(x.hdr.Credit)
	result := planBad
	if xidOK {
		result = x.plan(payload)
	}
	if result != planBad {
		c.stats.calls.Add(1)
		c.countCall(&x.hdr)
		if !r.called.Load() {
			r.called.Store(true)
		}
	}
	if result == planWait {
		x.msg = payload // in the receive buffer, which is held
		r.memq = append(r.memq, x)
		r.offer()
		return
	}
	r.proceed(x, result)
}

// proceed goes on with a planned call. Leader.
func (r *responder) proceed(x *exch, p planResult) {
	switch p {
	case planBad:
		x.fast = true
		x.refuse(rpcrdma.ErrChunk)
	case planWhole:
		r.execute(x)
	case planPull:
		r.c.reads.start(&x.fetch)
	}
}

// execute hands a whole call to the service. Leader.
func (r *responder) execute(x *exch) {
	x.state = exchExecuting
	x.fast = true
	r.svc.dispatch(x)
}

// countCall counts a call by the chunks it has, sent or received.
func (c *conn) countCall(h *rpcrdma.Header) {
	switch st := c.stats; {
	case h.Proc == rpcrdma.ProcNomsg:
		st.longCall.Add(1)
	case len(h.Reads) > 0:
		st.readChunk.Add(1)
	case len(h.Writes) == 0 && !h.HasReply:
		st.inline.Add(1)
	}
}

type planResult uint8

const (
	planBad   planResult = iota // ERR_CHUNK
	planWhole                   // the message is there
	planPull                    // Reads are to be done
	planWait                    // there is no memory for it now
)

// plan checks the chunk lists of a call, and lays out how its message is put
// together. Leader.
func (x *exch) plan(payload []byte) planResult {
	h := &x.hdr
	if !x.c.takesChunks() && (len(h.Reads) > 0 || len(h.Writes) > 0 || h.HasReply) {
		return planBad // RFC 8167 section 5.3
	}
	for i := range h.Writes {
		if len(h.Writes[i]) == 0 {
			return planBad
		}
	}
	if h.Proc != rpcrdma.ProcNomsg && len(h.Reads) == 0 {
		if !x.claim(x.offered()) {
			return planWait
		}
		x.msg = payload
		return planWhole
	}
	l, ok := x.outline(h, payload)
	if !ok || x.c.reads.most == 0 || h.Proc == rpcrdma.ProcMsgp {
		return planBad // positions do not count padding, and nobody sends both
	}
	if !x.claim(arena.SizeOf(l.size) + x.offered()) {
		return planWait
	}
	var err error
	if x.mem, err = x.c.arena.Get(l.size); err != nil {
		return planBad
	}
	x.charge(len(x.mem.Bytes))
	if !x.assemble(h, payload, l.lead) {
		return planBad
	}
	// The receive buffer is not needed any more.
	x.c.receiveDone(x.rb)
	x.rb = nil
	if len(x.reads) == 0 {
		return planWhole
	}
	return planPull
}

// offered is how much memory the results of a call may take that go to its chunks. A write
// chunk takes one piece, whose buffer is of the next size class. A reply chunk takes any number
// of them, and so do all chunks together: then each may be rounded up to twice its length, and
// those that are rounded further do not count here, see chargeIfRoom.
func (x *exch) offered() int {
	h := &x.hdr
	if len(h.Writes) == 0 && !h.HasReply {
		return 0
	}
	most := uint64(x.c.cfg.MaxMessage)
	var n uint64
	for _, chunk := range h.Writes {
		if l := min(chunk.Length(), most); l > 0 {
			n += uint64(arena.SizeOf(int(l)))
		}
	}
	if h.HasReply {
		n += 2 * min(h.Reply.Length(), most)
	}
	return int(min(n, 2*most, math.MaxInt/2)) // to which what is pulled is added
}

// claim reserves n bytes for the call, in its turn. False: it has to wait, until other
// calls are over, of this connection or others. A client that does not take its replies
// comes to that, too. Leader.
func (x *exch) claim(n int) bool {
	r := &x.c.rsp
	if n == 0 && r.tenant.Held() <= int64(x.c.cfg.MaxMemory) {
		return true
	}
	if len(r.memq) > 0 && r.memq[0] != x || !r.tenant.Reserve(int64(n)) {
		return false
	}
	x.held = n
	return true
}

// charge counts memory that the exchange holds until its end, or until settle.
func (x *exch) charge(n int) {
	x.used += n
	if more := x.used - x.held; more > 0 {
		x.held += more
		x.c.rsp.tenant.Charge(int64(more))
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
		x.c.rsp.tenant.Charge(int64(n))
		return true
	}
	more := x.used + n - x.held
	if more > 0 && n > x.c.cfg.sendSize && !x.c.lends() {
		if !x.c.rsp.tenant.Extend(int64(x.held), int64(more)) {
			return false
		}
		x.held += more
	}
	x.charge(n)
	return true
}

// settle gives back what was reserved and is not needed: took tells that this is because
// the reply has been taken.
func (x *exch) settle(took bool) {
	if n := x.held - x.used; n > 0 {
		x.held = x.used
		x.c.rsp.tenant.Release(int64(n), took)
	}
}

// sent gives back exchanges whose replies have left: x and those in front of it that
// were not signaled. Leader.
func (r *responder) sent(x *exch) {
	if !x.signaled() {
		return // it has failed, and so has the connection: abort
	}
	for _, s := range r.c.sq.told(x) {
		r.done(s)
	}
	if x.lent.Len() > 0 {
		x.waitDone()
		return
	}
	r.done(x)
}

// done ends an exchange; its memory may serve calls that wait for some. Leader.
func (r *responder) done(x *exch) {
	x.letGo(true)
	x.state = exchFree
	r.free = append(r.free, x)
	r.admit()
}

// admit goes on with calls that have waited for memory. Leader.
func (r *responder) admit() {
	for len(r.memq) > 0 {
		x := r.memq[0]
		p := x.plan(x.msg)
		if p == planWait {
			return
		}
		r.memq = append(r.memq[:0], r.memq[1:]...)
		r.offer()
		r.proceed(x, p)
	}
}

// lean reports whether a reply holds nothing but its message.
func (x *exch) lean() bool {
	return len(x.wrs) == 1 && x.lent.Len() == 0 && x.held == 0 && x.mem == nil && len(x.items) == 0 && len(x.mems) == 0
}

// signaled reports whether the adapter tells when the reply has left.
func (x *exch) signaled() bool { return x.wrs[len(x.wrs)-1].Flags&fabric.Signaled != 0 }

// release gives back what an exchange holds, which has ended without its reply.
func (x *exch) release() { x.letGo(false) }

// letGo gives back what an exchange holds.
func (x *exch) letGo(took bool) {
	c := x.c
	for i := range x.items {
		if f := x.items[i].release; f != nil {
			f()
		}
	}
	clear(x.items)
	x.items = x.items[:0]
	if x.mem != nil {
		c.arena.Put(x.mem)
		x.mem = nil
	}
	x.dropMems()
	x.failed = false
	x.lent.End()
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	x.acked = false
	x.msg, x.res.Results = nil, nil
	x.req.Args = nil
	clear(x.parts)
	clear(x.sges)
	x.used = 0
	x.settle(took)
}

// dropMems gives back what Response.Alloc has handed out.
func (x *exch) dropMems() {
	for _, b := range x.mems {
		x.c.arena.Put(b)
	}
	clear(x.mems)
	x.mems = x.mems[:0]
}

// abort ends all exchanges with the connection; those that are being executed
// end when their service answers. The adapter has let go of all memory. Leader.
func (r *responder) abort() {
	if r.cancel != nil {
		r.cancel()
	}
	for _, x := range r.exchs {
		r.c.mu.Lock()
		over := x.state == exchPulling || x.state == exchReplying || x.state == exchLent
		if over {
			x.state = exchFree
		}
		r.c.mu.Unlock()
		if over {
			x.release()
		} else {
			x.unwait()
		}
	}
}

// later moves an exchange off the leader: the service answers from a goroutine
// of its own. The arena stays until then.
func (x *exch) later() {
	x.fast = false
	x.c.arena.Hold()
}

// takeBack takes the exchange back from its service, to build the reply. False
// means that the connection has ended, and there is nothing to be done.
func (x *exch) takeBack() bool {
	if x.fast {
		return true // the leader, who would end it, is here
	}
	c := x.c
	c.mu.Lock()
	ended := c.ended
	x.state = exchPosting
	c.mu.Unlock()
	if ended {
		x.abandon()
	}
	return !ended
}

// leave gives an exchange that has no answer to the end of its connection, which is near.
func (x *exch) leave() {
	c := x.c
	c.mu.Lock()
	ended := c.ended
	if !ended {
		x.state = exchReplying // see abort
	}
	c.mu.Unlock()
	if ended {
		x.abandon()
	} else {
		c.arena.Drop()
	}
}

// abandon ends an exchange that the end of the connection has overtaken.
func (x *exch) abandon() {
	x.release()
	if !x.fast {
		x.c.arena.Drop()
	}
}

// post sends the exchange's list of requests. The receive that its call used is
// posted first: the reply allows the client to send another call. Once the list
// is queued the exchange is the leader's.
func (x *exch) post() {
	c, rb := x.c, x.rb
	x.rb = nil
	if x.fast {
		if rb != nil {
			c.receiveDone(rb)
		}
		x.state = exchReplying
		c.replies = append(c.replies, x) // which the end of the pass lets go
		return
	}
	if rb != nil {
		x.recv[0] = c.recvWR(rb)
		if err := c.fc.PostRecv(x.recv[:]); err != nil {
			c.breakOff(err)
		}
	}
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		x.abandon()
		return
	}
	x.state = exchReplying
	c.sq.addReplies(x)
	c.mu.Unlock()
	c.sq.post(nil, true)
	c.arena.Drop()
}
