package transport

import (
	"cmp"
	"math"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
	"github.com/rpcrdma/rpcrdma/transport/internal/pace"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
	"github.com/rpcrdma/rpcrdma/transport/internal/reads"
)

// The calls that an end executes: from the wire, through an exchange, to the service.
//
// A call that arrives gets an exchange. The leader pulls its read chunks, so that the service sees the whole RPC
// message in one piece, however it was sent. Small calls run on the leader, the others on a goroutine each. Both answer
// with one posted list: the Writes into the call's chunks, and the Send.
//
// A client that has Callbacks executes calls, too. Its grant does not change.
//
// The grant is the number of calls that receives are posted for. It starts small, and grows when a client uses half of
// it, up to the number that the client asks for and the configured limit. It is lower while the client's calls wait for
// memory, or for processors (package pace).

// exchanges are the exchanges of a connection. They are part of the leader.
type exchanges struct {
	taken   uint32 // number of calls so far
	counted uint32 // calls that conn.heard counts
	posted  int    // calls that receives are posted for
	most    int    // calls to grant
	depth   int    // maximum number of Sends that the adapter holds
	exchs   []*exch
	free    []*exch
	memq    []*exch // exchanges that wait for memory
	stop    bool    // no new calls are accepted
	pace    pace.Pace

	peak  int    // maximum number of calls executing at once since then
	since uint32 // value of taken then
	low   int    // the grant on trial, instead of posted; 0: none
}

func (e *exchanges) init(c *conn) {
	e.most, e.depth = c.cfg.Credits, c.caps.SendDepth
	if c.role == roleClient {
		e.most = c.cfg.backward(roleClient)
	}
}

// startMessages is the initial reservation of a connection, in messages of maximum length.
const startMessages = 4

// execute enables the connection to execute calls to the programs of reg, with memory from b. It is called before the
// connection is set up.
func (c *conn) execute(reg *registry, b *budget.Budget) {
	c.join(reg, b, func() { c.ask((*leader).admit) })
}

// serves reports whether this end executes calls. In version 2 every end does, if only to answer that it has no such
// program (version two section 4.2).
func (c *conn) serves() bool {
	return c.reg != nil && (c.role == roleServer || c.cfg.callbacks || c.version() == rpcrdma.Version2)
}

// takesChunks reports whether this end executes calls with chunks.
func (c *conn) takesChunks() bool { return c.role == roleServer || c.cfg.PeerChunks == AllChunks }

// ---- the grant

// grow posts receives for n calls and grants them.
func (l *leader) grow(n int) error {
	if err := l.c.forCalls(n); err != nil {
		return err
	}
	l.posted = n
	l.updateGrant()
	return nil
}

// updateGrant updates the grant.
func (l *leader) updateGrant() {
	load := l.load()
	load.Posted = cmp.Or(l.low, l.posted)
	l.c.grant.Store(int64(load.Grant()))
}

// endPace grants all calls that there are receives for, whatever the load of the processors.
func (l *leader) endPace() {
	if l.pace.End() {
		l.updateGrant()
	}
}

// load describes how the peer uses its grant.
func (l *leader) load() plan.Load {
	return plan.Load{
		Posted: l.posted, Executing: l.executing(), Waiting: len(l.memq), Most: l.most,
		Crowded: l.c.memory.Crowded(), Halved: l.pace.Halved,
	}
}

// executing returns the number of calls taken and not answered, or answered in this pass: the client had credits for
// all of them at once.
func (l *leader) executing() int {
	return len(l.exchs) - len(l.free) - int(l.c.sends.waiting.Load())
}

// keepUp grants more to a client that uses its grant, up to the credits it asks for.
func (l *leader) keepUp(credit uint32) {
	n := l.executing()
	l.peak = max(l.peak, n)
	if l.taken-l.since >= uint32(max(restCalls, 4*l.posted)) {
		l.rest()
	}
	if l.low > 0 && n > l.low/2 {
		l.low = 0
		l.updateGrant()
	}
	if l.posted >= l.most {
		return // as for a connection in use, most of the time
	}
	load := l.load()
	if n := load.Raise(credit); n > l.posted {
		_ = l.grow(n) // without memory the grant stays
	}
}

// rest lowers the grant of a client that has used at most a quarter of it for many calls. The first time it halves the
// grant, and still accepts calls made under the previous grant. The second time, if the client has managed with less,
// it releases the receives: more than twice as many calls have arrived as could be in flight, so the client has read a
// reply with the lower grant.
func (l *leader) rest() {
	quiet := 4*l.peak <= l.posted && l.posted > initialGrant && l.c.role == roleServer
	l.peak, l.since = 0, l.taken
	switch {
	case !quiet:
		l.low = 0
	case l.low == 0:
		l.low = max(l.posted/2, initialGrant)
	default:
		if l.c.forCalls(l.low) == nil {
			l.posted, l.surplus = l.low, true
		}
		l.low = 0
	}
	l.updateGrant()
}

// ---- taking a call

// takeExchange returns an exchange for the message in rb. A client that obeys its grant has at most that many calls
// here, and as many replies being sent. If it has more, it loses the connection, and takeExchange returns nil.
func (l *leader) takeExchange(rb *recvBuf) *exch {
	var x *exch
	if n := len(l.free); n > 0 {
		x = l.free[n-1]
		l.free = l.free[:n-1]
	} else {
		if len(l.exchs) >= plan.Exchanges(l.posted, l.c.cfg.mostSlack(l.c.role), l.depth) {
			l.fail(errOverrun)
			return nil
		}
		x = newExchange(l.c, uint32(len(l.exchs)))
		l.exchs = append(l.exchs, x)
	}
	x.rb, x.leader, x.awaits, x.detached = rb, l, nil, false
	x.state = exchPulling
	l.taken++
	return x
}

func newExchange(c *conn, idx uint32) *exch {
	x := &exch{c: c, idx: idx, hdr: new(rpcrdma.Header)}
	x.exchange.init(&c.core, x)
	x.Init(wrID(wrRead, idx))
	x.lending.loan = expose.NewLoan(&c.exposes)
	return x
}

// takeCall processes a call: its header h, and payload, which follows it in rb.
func (l *leader) takeCall(rb *recvBuf, h *rpcrdma.Header, payload []byte, xidOK bool) {
	c := l.c
	streak := l.streak
	if !l.turn || l.heard > turnLength {
		streak = 0
	}
	l.streak, l.turn = 0, false
	if streak > 0 {
		c.woken.Store(false)
	}
	if l.stop {
		inc(&c.stats.Dropped)
		l.receiveDone(rb)
		return
	}
	x := l.takeExchange(rb)
	if x == nil {
		return
	}
	x.hdr, l.hdr = h, x.hdr
	x.arrived()
	l.keepUp(x.hdr.Credit)
	if l.heard == 1 && l.executing() == 1 {
		l.singles = min(l.singles+1, manySingles)
	} else {
		l.singles = min(l.singles, 0)
	}
	result := planBad
	if xidOK {
		result = l.plan(x, payload)
	}
	if result != planBad {
		inc(&c.stats.Calls)
		c.countCall(x.hdr)
		if !c.called.Load() {
			c.called.Store(true)
		}
	}
	if result == planWait {
		x.Msg = payload // in the receive buffer, which is kept
		l.memq = append(l.memq, x)
		l.updateGrant()
		c.public.notice(rpc.Notice{Kind: rpc.NoticeMemoryStall, XID: x.hdr.XID, Bytes: x.offered()})
		return
	}
	l.proceed(x, result)
	if streak > 0 && c.woken.Load() {
		l.streak = streak
	}
}

// countCall counts a call, sent or received, by its chunks.
func (c *conn) countCall(h *rpcrdma.Header) {
	switch st := c.stats; {
	case h.Proc == rpcrdma.ProcNomsg:
		inc(&st.LongCall)
	case len(h.Reads) > 0:
		inc(&st.ReadChunk)
	case len(h.Writes) == 0 && !h.HasReply:
		inc(&st.Inline)
	}
}

// proceed continues with a planned call.
func (l *leader) proceed(x *exch, p planResult) {
	switch p {
	case planBad:
		l.c.public.refused(x.hdr.XID, errBadChunks)
		x.refuse(rpcrdma.ErrChunk)
	case planWhole:
		l.execute(x)
	case planPull:
		l.reads.Start(&x.Message)
	}
}

// execute passes a complete call to the service.
func (l *leader) execute(x *exch) {
	x.state = exchExecuting
	x.dispatch()
}

type planResult uint8

const (
	planBad   planResult = iota // ERR_CHUNK
	planWhole                   // the message is complete
	planPull                    // there are Reads to do
	planWait                    // there is currently no memory for it
)

// plan checks the chunk lists of a call, and determines how its message is assembled.
func (l *leader) plan(x *exch, payload []byte) planResult {
	c, h := l.c, x.hdr
	if !c.takesChunks() && (len(h.Reads) > 0 || len(h.Writes) > 0 || h.HasReply) {
		return planBad // RFC 8167 section 5.3
	}
	for i := range h.Writes {
		if len(h.Writes[i]) == 0 {
			return planBad
		}
	}
	if h.Proc != rpcrdma.ProcNomsg && len(h.Reads) == 0 {
		if !l.claim(x, x.offered()) {
			return planWait
		}
		x.Msg = payload
		return planWhole
	}
	lay, ok := reads.Outline(h, len(payload), c.cfg.MaxMessage)
	if !ok || l.reads.Most == 0 || h.Proc == rpcrdma.ProcMsgp {
		return planBad // positions do not count padding, and no peer sends both
	}
	if !l.claim(x, arena.SizeOf(lay.Size)+x.offered()) {
		return planWait
	}
	var err error
	if l.keeps(payload) {
		x.Mem = arena.Loose(lay.Size)
	} else if x.Mem, err = c.arena.Get(lay.Size); err != nil {
		return planBad
	}
	x.charge(len(x.Mem.Bytes))
	if !x.Assemble(h, payload, lay) {
		return planBad
	}
	// The receive buffer is no longer needed.
	l.receiveDone(x.rb)
	x.rb = nil
	if !x.Pulls() {
		return planWhole
	}
	return planPull
}

// keeps reports whether the handler of the call that begins with payload keeps its message: see Program.Keep.
func (l *leader) keeps(payload []byte) bool {
	call, ok := oncrpc.PeekCall(payload)
	if !ok || !l.c.caps.LocalDMA {
		return false
	}
	p := l.c.reg.programs[call.Prog]
	return p != nil && p.Keep != nil && p.Keep(call.Vers, call.Proc)
}

// offered returns how much memory the results of a call may use for its chunks. The data of a write chunk is in one
// piece, in a buffer of the next size class. A reply chunk consists of any number of pieces, and so do all chunks
// together: each piece may be rounded up to twice its length. Pieces that are rounded further do not count here, see
// chargeIfRoom.
func (x *exch) offered() int {
	h := x.hdr
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
	return int(min(n, 2*most, math.MaxInt/2)) // the pulled bytes are added to it
}

// claim reserves n bytes for the call, in order. It returns false if the call has to wait until other calls are over,
// of this connection or others. A client that does not take its replies eventually loses its connection, too.
func (l *leader) claim(x *exch, n int) bool {
	t := &l.c.tenant
	if n == 0 && t.Held() <= int64(l.c.cfg.MaxMemory) {
		return true
	}
	if len(l.memq) > 0 && l.memq[0] != x || !t.Reserve(0, int64(n)) {
		return false
	}
	x.held = n
	return true
}

// ---- the end of an exchange

// sent releases exchanges after their replies have been sent: x, and those before it without a completion.
func (l *leader) sent(x *exch) {
	l.gone = l.c.sends.told(x, l.gone[:0])
	l.freeGone()
}

// freeGone ends the replies that have been sent.
func (l *leader) freeGone() {
	for i, s := range l.gone {
		if s != nil {
			l.gone[i] = nil
			l.left(s)
		}
	}
}

// left ends the reply of an exchange, which has been sent.
func (l *leader) left(x *exch) {
	if x.lending.loan.Len() > 0 {
		l.awaitDone(x)
		return
	}
	l.done(x)
}

// done ends an exchange; its memory may be used by calls that wait for memory.
func (l *leader) done(x *exch) {
	x.release(true)
	x.state = exchFree
	l.free = append(l.free, x)
	l.admit()
}

// admit continues with calls that have waited for memory.
func (l *leader) admit() {
	for len(l.memq) > 0 {
		x := l.memq[0]
		p := l.plan(x, x.Msg)
		if p == planWait {
			return
		}
		l.memq = append(l.memq[:0], l.memq[1:]...)
		l.updateGrant()
		l.proceed(x, p)
	}
}

// abort ends all exchanges with the connection. Those being executed end when their service answers. The adapter has
// released all memory.
func (l *leader) abort() {
	c := l.c
	if c.cancel != nil {
		c.cancel()
	}
	for _, x := range l.exchs {
		c.state.Lock()
		over := x.state == exchPulling || x.state == exchReplying || x.state == exchLent
		if over {
			x.state = exchFree
		}
		c.state.Unlock()
		if over {
			x.release(false)
		} else {
			x.unwait()
		}
	}
}
