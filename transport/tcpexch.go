package transport

import (
	"context"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
	"github.com/rpcrdma/rpcrdma/transport/internal/hosts"
	"github.com/rpcrdma/rpcrdma/transport/internal/pace"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
	"github.com/rpcrdma/rpcrdma/transport/internal/records"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// The calls that an end of a TCP connection executes: from the wire, through an exchange, to the handler, and back.
//
// A short call is copied out of the reader's buffer, because its handler may answer with parts of it. A long call is
// read into memory reserved for it: for the whole call while half of the server's memory is free, and otherwise at most
// twice the bytes that have arrived. TCP has no chunks to announce how long the results of a call may be: the program's
// Binding knows that. Without a Binding a fixed amount is reserved. A handler's results exist before their length is
// known, and nothing in the call announces it, so reserving less would let Credits concurrent handlers exceed
// MaxMemory.
//
// The reader waits for an exchange and, for a long call, which it would have to keep somewhere, for memory. Short calls
// wait for memory in a queue. While calls of this end wait for replies, which may follow calls in the stream, the
// reader does not wait but reads ahead: the handlers that hold exchanges and memory may be waiting for those replies.
// Calls that are read ahead are kept in memory beyond the connection's own bound, in a queue, until there are exchanges
// for them. See [budget.Tenant.Ahead] for the limit. At the limit the reader waits, and a connection that makes no
// progress for StallTimeout is closed.

// tcpAnswers are the exchanges of a connection, and their shared state.
type tcpAnswers struct {
	c       *tcpConn
	most    int           // calls in flight: taken, and not answered by a record that was written
	allowed atomic.Int32  // the part of most that the pace allows
	usage   *arena.Usage  // counts the connection's own buffers; nil at a client
	gone    chan struct{} // closed when this end has given up the connection
	room    chan struct{} // has capacity one: there may be fewer calls in flight
	granted chan struct{} // has capacity one: the reader has received memory
	waiting atomic.Bool   // the reader waits for room or memory
	calling chan struct{} // has capacity one: this end has made a call meanwhile
	pace    pace.Pace     // the reader's
	weak    bool          // TLS is required, and missing

	mu      lockorder.Mutex
	flight  int
	exchs   []*tcpExch // all
	free    []*tcpExch
	memq    []tcpWait  // calls that wait for memory; the first has asked for it
	early   []*tcpExch // calls that were read ahead, and wait for an exchange
	reading bool       // the reader waits for the peer
	stopped bool       // no new calls are accepted
	drain   context.Context
	over    bool // the orderly end has begun
	ended   bool // the connection has ended
	left    bool // this end has given up the connection
}

// tcpReply is the number of bytes reserved for the results of a call without a Binding.
const tcpReply = 1 << 20

// A tcpWait is a call that waits for memory: a short one, or the reader with a long one.
type tcpWait struct {
	n      int
	x      *tcpExch
	reader bool
}

// A tcpExch is an exchange over TCP. Its awaits is guarded by tcpAnswers.mu.
type tcpExch struct {
	exchange
	c      *tcpConn
	short  []byte        // memory of a short call
	mem    *arena.Buffer // of a long one
	early  bool          // not one of the connection's exchanges: its call was read ahead, and waits for one
	ahead  int           // part of held: beyond the connection's own bound, while the call waits
	parked int           // part of held: see budget.Tenant.Park

	rec    records.Record
	top    []byte // the mark and the RPC header of the reply
	buffer []byte // memory for short results, empty
}

// execute enables the connection to execute calls to the programs of reg, with memory from b. It is called before the
// connection is read.
func (c *tcpConn) execute(reg *registry, b *budget.Budget, most int) {
	a := &c.answers
	a.most = most
	a.allowed.Store(int32(most))
	if c.role == roleServer {
		c.lineage = reg.cache.NewLineage(hosts.Machine(c.addr()), false) // calls on it are not counted: see recall
	}
	c.join(reg, b, func() { go a.admit() })
}

// init makes a connection that executes no calls.
func (a *tcpAnswers) init(c *tcpConn, usage *arena.Usage) {
	a.c, a.usage = c, usage
	a.countOwn(records.BufferSize)
	a.mu.Init(rankAnswers)
	a.c.arena = arena.New(nil, arena.Options{
		LocalDMA: true, Small: records.Short, MaxBulk: c.cfg.MaxMemory, Usage: usage, OnBulk: c.keepWatch,
	})
	a.gone, a.room, a.granted = make(chan struct{}), make(chan struct{}, 1), make(chan struct{}, 1)
	a.calling = make(chan struct{}, 1)
}

// exchSize is the maximum size in bytes of the buffer of an exchange for a short call and a short reply.
const exchSize = 2 * records.Short

// countOwn counts n more bytes of the connection's own buffers.
func (a *tcpAnswers) countOwn(n int) {
	if a.usage != nil {
		a.usage.Base.Add(int64(n))
	}
}

// serves reports whether calls are accepted.
func (a *tcpAnswers) serves() bool {
	if a.c.reg == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.stopped
}

// giveUp wakes the goroutines that wait for the connection's calls.
func (a *tcpAnswers) giveUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.left {
		a.left = true
		close(a.gone)
	}
}

func (a *tcpAnswers) inFlight() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.flight
}

// ---- taking a call

// keepPace is called by a server's reader before it waits, with the number of messages that it has processed since the
// last time.
func (a *tcpAnswers) keepPace(messages int) {
	if a.pace.Met(messages, a.most) {
		a.allowed.Store(int32(plan.Paced(a.most, a.pace.Halved)))
	}
}

// takeExchange returns an exchange for a call, in order: at most allowed of them, and on a crowded server at most as
// many as there have been. While a call of this end waits for its reply it does not wait for one, but returns an
// exchange that is not one of the connection's, for a call that is read ahead and needs n bytes. It returns nil when
// the connection has been given up.
func (a *tcpAnswers) takeExchange(n int) *tcpExch {
	for {
		a.mu.Lock()
		if len(a.early) == 0 {
			if x := a.nextExchange(); x != nil {
				a.mu.Unlock()
				return x
			}
		}
		a.mu.Unlock()
		a.c.w.Flush() // may make room
		x := a.newExchange()
		x.early = true
		switch a.wait(a.room, func() bool { return x.takeAhead(n) }) {
		case waitAhead:
			x.used = n
			return x
		case waitOver:
			return nil
		}
	}
}

// nextExchange returns an exchange of the connection, or nil if another must end first. mu is held.
func (a *tcpAnswers) nextExchange() *tcpExch {
	load := plan.Load{Posted: len(a.exchs), Executing: a.flight, Most: int(a.allowed.Load()), Crowded: a.c.memory.Crowded()}
	if !load.Takes() {
		return nil
	}
	a.flight++
	if n := len(a.free); n > 0 {
		x := a.free[n-1]
		a.free = a.free[:n-1]
		return x
	}
	x := a.newExchange()
	a.exchs = append(a.exchs, x)
	a.countOwn(exchSize)
	return x
}

func (a *tcpAnswers) newExchange() *tcpExch {
	x := &tcpExch{c: a.c}
	x.init(&a.c.core, x)
	x.rec.Answer = true
	return x
}

// A waitEnd says how a wait of the reader ended.
type waitEnd uint8

const (
	waitDone  waitEnd = iota // the awaited event has happened
	waitAhead                // it should read ahead
	waitOver                 // the connection has been given up
)

// aheadTime is the interval at which a reader that waits, while a call of this end does too, checks whether it can read
// ahead.
const aheadTime = 100 * time.Millisecond

// wait makes the reader wait for ch, or until a call of this end waits for its reply and ahead returns true: then it
// can read ahead.
func (a *tcpAnswers) wait(ch <-chan struct{}, ahead func() bool) waitEnd {
	a.waiting.Store(true)
	began := time.Now()
	defer func() {
		a.waiting.Store(false)
		a.c.r.Waited(time.Since(began))
	}()
	stuck := time.Time{} // since when a call of this end has been waiting, too
	for {
		var look <-chan time.Time
		if n := a.c.awaits(); n == 0 {
			stuck = time.Time{}
		} else {
			if ahead() {
				return waitAhead
			}
			look = time.After(aheadTime)
			if stuck.IsZero() {
				stuck = time.Now()
			} else if d := a.c.cfg.StallTimeout; d > 0 && time.Since(stuck) >= d {
				a.c.breakOff(&rpc.StallError{For: d, Behind: n})
			}
		}
		select {
		case <-ch:
			return waitDone
		case <-a.gone:
			return waitOver
		case <-a.calling:
		case <-look:
		}
	}
}

// callMade is called after a call of this end has been registered.
func (a *tcpAnswers) callMade() {
	if a.waiting.Load() {
		poke(a.calling)
	}
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// takeAhead reserves n bytes for a call that is read ahead.
func (x *tcpExch) takeAhead(n int) bool {
	if !x.c.tenant.Ahead(int64(n)) {
		return false
	}
	x.held += n
	x.ahead += n
	x.parked += n
	return true
}

// park parks all memory that the exchange has reserved.
func (x *tcpExch) park() {
	if n := x.held - x.parked; n > 0 {
		x.parked += n
		x.c.tenant.Park(int64(n))
	}
}

// resume makes the parked memory the reservation of the exchange's call, which no longer waits.
func (x *tcpExch) resume() {
	if x.parked > 0 {
		x.c.tenant.Proceed(int64(x.parked), int64(x.ahead))
		x.ahead, x.parked = 0, 0
	}
}

// takeCall processes a short call, which is in the reader's buffer.
func (c *tcpConn) takeCall(msg []byte) error {
	a := &c.answers
	x := a.takeExchange(exchSize)
	if x == nil {
		return errClosing
	}
	x.arrived()
	x.short = append(x.short[:0], msg...)
	x.msg = x.short
	return a.taken(x)
}

// takeLongCall reads a long call that begins with head into memory reserved for it.
func (c *tcpConn) takeLongCall(head []byte) error {
	a := &c.answers
	size, whole, err := c.r.Rest()
	if err != nil {
		return err
	}
	// Nothing is reserved for data that may never arrive.
	if err := c.r.Buffer(size); err != nil {
		return err
	}
	size += len(head)
	need := c.cfg.MaxMessage
	if whole {
		need = size
	}
	x := a.takeExchange(exchSize)
	if x == nil {
		return errClosing
	}
	x.arrived()
	x.call.XID, _, _ = oncrpc.Peek(head)
	n := arena.SizeOf(need) + tcpReply
	switch {
	case x.ahead > 0 || a.tryClaim(x, n): // read in steps, or with memory for all of it
	case whole && size <= records.BufferSize:
		err = x.reserve(n)
	}
	if err == nil {
		err = x.read(head)
	}
	if err != nil {
		x.release(false)
		return err
	}
	return a.taken(x)
}

// read reads a long call. Only the last of its fragments shows how long it is.
func (x *tcpExch) read(head []byte) error {
	r, n := x.c.r, 0
	for {
		k, last, err := r.Rest()
		if err != nil {
			return err
		}
		if n == 0 {
			if err := x.grow(nil, len(head)+k); err != nil {
				return err
			}
			n = copy(x.mem.Bytes, head)
		}
		for k > 0 {
			if n == len(x.mem.Bytes) {
				if err := x.grow(x.mem.Bytes, n+k); err != nil {
					return err
				}
			}
			m, err := io.ReadFull(r, x.mem.Bytes[n:min(n+k, len(x.mem.Bytes))])
			if err != nil {
				return err
			}
			n, k = n+m, k-m
		}
		if last {
			x.msg = x.mem.Bytes[:n:n]
			return nil
		}
	}
}

// grow gives the call memory for most bytes, with msg at its start: all of it if that is reserved, and otherwise twice
// as much as before.
func (x *tcpExch) grow(msg []byte, most int) error {
	size := arena.SizeOf(most)
	if room := len(msg) + x.held - x.used; size > room {
		size = min(size, 2*max(len(msg), records.BufferSize))
		if err := x.reserve(size - room); err != nil {
			return err
		}
	}
	a := x.c.arena
	b, err := a.Get(size)
	if err != nil {
		return err
	}
	if x.mem != nil {
		copy(b.Bytes, msg)
		a.Put(x.mem)
	}
	x.charge(len(b.Bytes) - len(msg))
	x.mem = b
	return nil
}

// reserve reserves n more bytes for a long call, as soon as there is room.
func (x *tcpExch) reserve(n int) error {
	a := &x.c.answers
	if a.claim(tcpWait{n: n, x: x, reader: true}) {
		return nil
	}
	a.c.w.Flush() // replies of Inline calls may hold the memory
	if a.wait(a.granted, func() bool { return a.claimAhead(x, n) }) == waitOver {
		a.cancelClaim(x)
		return errClosing
	}
	return nil
}

// taken continues with a call that has been read.
func (a *tcpAnswers) taken(x *tcpExch) error {
	if !x.early {
		return a.dispatch(x)
	}
	x.park()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.early = append(a.early, x)
	a.startEarly()
	return nil
}

// startEarly continues with calls that were read ahead, as far as there are exchanges. mu is held.
func (a *tcpAnswers) startEarly() {
	for len(a.early) > 0 {
		x := a.nextExchange()
		if x == nil {
			return
		}
		e := a.early[0]
		a.early = append(a.early[:0], a.early[1:]...)
		x.msg, x.mem, x.came = e.msg, e.mem, e.came
		x.held, x.used, x.ahead, x.parked = e.held, e.used, e.ahead, e.parked
		x.detach()
		go func() {
			if err := a.dispatch(x); err != nil {
				a.c.noteBroken(err)
				a.c.breakOff(err)
			}
		}()
	}
}

// ---- memory

// claim reserves memory for a call, in order. It returns false if the call has to wait: then a short call is executed
// later.
func (a *tcpAnswers) claim(w tcpWait) bool {
	if w.n == 0 && a.c.tenant.Held() <= int64(a.c.cfg.MaxMemory) {
		return true
	}
	xid := w.x.call.XID // once w is in the queue another goroutine may end w.x
	if a.claimOrQueue(w) {
		return true
	}
	a.c.public.notice(rpc.Notice{Kind: rpc.NoticeMemoryStall, XID: xid, Bytes: w.n})
	return false
}

// claimOrQueue reserves memory for a call. It returns false after it has queued a call that has to wait.
func (a *tcpAnswers) claimOrQueue(w tcpWait) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended || len(a.memq) == 0 && a.c.tenant.Reserve(int64(w.x.held-w.x.parked), int64(w.n)) {
		if !a.ended {
			w.x.held += w.n
		}
		return true
	}
	if len(a.memq) > 0 {
		w.x.park()
	}
	if !w.reader {
		w.x.detach()
	}
	a.memq = append(a.memq, w)
	return false
}

// admit continues with calls that have waited for memory.
func (a *tcpAnswers) admit() {
	for {
		a.mu.Lock()
		if len(a.memq) == 0 {
			a.mu.Unlock()
			return
		}
		w := a.memq[0]
		if !a.c.tenant.Reserve(int64(w.x.held-w.x.parked), int64(w.n)) {
			a.mu.Unlock()
			return
		}
		a.memq = append(a.memq[:0], a.memq[1:]...)
		w.x.held += w.n
		a.mu.Unlock()
		if w.reader {
			a.granted <- struct{}{}
		} else {
			go w.x.run()
		}
	}
}

// tryClaim reserves n bytes for a call if there is plenty of memory.
func (a *tcpAnswers) tryClaim(x *tcpExch, n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.memq) > 0 || !a.c.tenant.TryReserve(int64(n)) {
		return false
	}
	x.held += n
	return true
}

// claimAhead reserves n bytes ahead for the reader's call, in place of its claim. It returns false if there is no room
// for that, or the claim has been granted meanwhile.
func (a *tcpAnswers) claimAhead(x *tcpExch, n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.claimOf(x)
	if i < 0 || !x.takeAhead(n) {
		return false
	}
	a.withdraw(i)
	return true
}

// cancelClaim removes the reader's call from the queue, on a connection that has been given up.
func (a *tcpAnswers) cancelClaim(x *tcpExch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := a.claimOf(x); i >= 0 {
		a.withdraw(i)
	}
}

// claimOf returns the index of a call in the queue, or -1. mu is held.
func (a *tcpAnswers) claimOf(x *tcpExch) int {
	return slices.IndexFunc(a.memq, func(w tcpWait) bool { return w.x == x })
}

// withdraw removes a call from the queue. mu is held.
func (a *tcpAnswers) withdraw(i int) {
	a.memq = slices.Delete(a.memq, i, i+1)
	if i == 0 {
		a.c.tenant.Withdraw()
		go a.admit()
	}
}

// need returns the reservation for the results of a call, in bytes. An item may be in a buffer of the next size class.
func (x *tcpExch) need() int {
	most := x.c.cfg.MaxMessage
	if x.prog.Binding == nil || x.call.Cred.Protected() || x.call.Cred.Sealed() {
		return min(tcpReply, most)
	}
	call := &x.call
	var b rpc.ReplyBounds
	x.ranges, b = x.prog.Binding.Call(rpc.Procedure{Prog: call.Prog, Vers: call.Vers, Proc: call.Proc}, x.msg[x.at:], x.ranges[:0])
	n := uint64(min(max(b.MaxResults, 0), most))
	for _, size := range b.Items[:b.NumItems] {
		if size = min(size, most); size > 0 {
			n += uint64(arena.SizeOf(size))
		}
	}
	if n <= records.Short {
		return 0 // as short as a reply without bulk data
	}
	return int(min(n, 2*uint64(most), math.MaxInt/2)) // the call itself is added to it
}

// ---- the handler's view

func (x *tcpExch) AddItem(at int, data []byte, release func()) {
	x.items = append(x.items, origin.Item{At: at, Data: data, Release: release})
	if x.own(data) == nil {
		x.charge(len(data))
	}
}

// Room returns the room left in a reply with the given number of bytes of results, and the items so far.
func (x *tcpExch) Room(results int) int {
	n := x.c.cfg.MaxMessage - acceptedSize - results
	for i := range x.items {
		n -= xdr.Padded(len(x.items[i].Data))
	}
	return max(n, 0)
}

func (x *tcpExch) ItemRoom(results int) int {
	return max(x.Room(results)-xdr.Unit, 0) &^ (xdr.Unit - 1)
}

func (x *tcpExch) unrefused() int { return records.Short }

// ---- executing

// dispatch executes a complete call. If it cannot be decoded, the connection ends: there is nothing to answer that the
// client could match with the call.
func (a *tcpAnswers) dispatch(x *tcpExch) error {
	n, err := oncrpc.ConsumeCall(x.msg, &x.call)
	if err != nil {
		x.release(false)
		return &rpc.PeerError{Reason: "it sent a call that cannot be decoded"}
	}
	x.at = n
	inc(&a.c.stats.Calls)
	inc(&a.c.stats.Inline)
	if !a.c.called.Load() {
		a.c.called.Store(true)
	}
	if a.c.cfg.observation != nil {
		x.observeCall(rpc.Transfer{Bytes: len(x.msg), By: rpc.ByMessage})
	}
	p := x.core.reg.programs[x.call.Prog]
	switch {
	case x.call.Cred.Flavor == oncrpc.FlavorTLS:
		// It is not the first message, or TLS is not available. RFC 9289 section 4.1.
		x.deny(oncrpc.AuthBadCred)
	case a.weak && (x.call.Proc != 0 || p != nil && p.Null) && !slices.Contains(a.c.cfg.TLS.Except, x.call.Prog):
		x.deny(oncrpc.AuthTooWeak)
	default:
		x.exchange.dispatch(p)
	}
	return nil
}

// deny answers that the call's credential is refused.
func (x *tcpExch) deny(why oncrpc.AuthStat) {
	x.answer(oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: why}, nil)
}

func (x *tcpExch) other() bool { return false }

func (x *tcpExch) fits(*rpc.Program) bool { return true } // there are no chunks

func (x *tcpExch) endPace() {
	if a := &x.c.answers; !x.detached && a.pace.End() {
		a.allowed.Store(int32(a.most))
	}
}

// proceed executes the call, now or when there is memory for its results.
func (x *tcpExch) proceed() {
	a := &x.c.answers
	lacks := x.need() - (x.held - x.used)
	if x.mem != nil && lacks < 0 {
		// It was not known before the call was read.
		x.held += lacks
		a.c.tenant.Release(int64(-lacks), false)
	}
	if x.mem != nil && lacks <= 0 || a.claim(tcpWait{n: max(lacks, 0), x: x}) {
		x.run()
	}
}

// run executes a call that has its memory.
func (x *tcpExch) run() {
	x.resume()
	x.execute()
}

func (x *tcpExch) results() []byte {
	if x.buffer == nil {
		x.buffer = make([]byte, 0, 512)
	}
	return x.buffer
}

func (x *tcpExch) apart() { go x.start() }

// goOn continues as the reader.
func (x *tcpExch) goOn() {
	c := x.c
	x.finish()
	c.serve()
}

// ---- the reply

// send writes the reply, at once unless the reader does it: replies that the reader defers are written before it waits.
func (x *tcpExch) send(head, results []byte) {
	c, detached, lingers := x.c, x.detached, rpc.Lingers(&x.res)
	size := len(head) + len(results)
	for i := range x.items {
		size += xdr.Padded(len(x.items[i].Data))
	}
	if most := c.cfg.MaxMessage; size > most {
		c.logUnsent(c.replyTooLong(&x.call, "the message", size, most))
		x.dropItems()
		h := oncrpc.ReplyHeader{XID: x.call.XID, Verf: x.res.Status().Verf, AcceptStat: oncrpc.SystemErr}
		x.head, results = oncrpc.AppendReply(x.head[:0], &h), nil
		head, size = x.head, len(x.head)
		if e := x.event; e != nil {
			e.Status = h
		}
	}
	x.top = append(oncrpc.AppendRecordMark(x.top[:0], size, true), head...)
	if cap(results) > records.Short && x.own(results) == nil {
		x.charge(cap(results))
	}
	if n := len(results); n > cap(x.buffer) && n <= records.Short {
		x.buffer = make([]byte, 0, records.Short) // for the next
	}
	parts := append(x.rec.Parts[:0], x.top)
	from := 0
	for i := range x.items {
		it := &x.items[i]
		parts = append(parts, results[from:it.At], it.Data, zeros[:xdr.Pad(len(it.Data))])
		from = it.At
	}
	x.rec.Parts = append(parts, results[from:])
	// A reply that holds nothing is sent with others, and counts as taken at once.
	x.settle(x.used == 0)
	inc(&c.stats.Replies)
	x.observeReply()
	x.rec.Owner = x
	if c.w.Write(&x.rec) {
		x.release(true)
	}
	if detached {
		c.w.Flush()
	} else {
		c.lingers = lingers
	}
}

// Released is called when a reply that was not copied has been written.
func (x *tcpExch) Released() {
	a := &x.c.answers
	x.release(true)
	a.answered(1)
}

// release ends an exchange. taken reports that its reply has been sent.
func (x *tcpExch) release(taken bool) {
	a := &x.c.answers
	x.drop()
	if x.mem != nil {
		a.c.arena.Put(x.mem)
		x.mem = nil
	}
	clear(x.rec.Parts)
	if cap(x.short) > records.Short {
		x.short = nil
	}
	x.resume()
	x.settle(taken)
	if x.detached {
		x.detached = false
		a.c.arena.Drop()
	}
	a.mu.Lock()
	x.awaits = nil
	a.free = append(a.free, x)
	a.mu.Unlock()
}

// answered is called when n replies have been written.
func (a *tcpAnswers) answered(n int) {
	a.mu.Lock()
	a.flight -= n
	a.startEarly()
	a.mu.Unlock()
	poke(a.room)
}

// ---- calls that come again

// A client may leave any number of calls in the buffers of a TCP connection that it has abandoned, so a call that
// arrives does not show that it has not (see replycache.Lineage). All connections of a machine count as one client's.
// For one program on it to get the reply of another, the two would have to choose the same xid for the same call, with
// the same credential and the same arguments, within two minutes.

// Wait makes the exchange wait for the reply of e: see replycache.Waiter.
func (x *tcpExch) Wait(e *replycache.Entry) {
	a := &x.c.answers
	x.detach()
	a.mu.Lock()
	x.awaits = e
	a.mu.Unlock()
}

// Fail ends the connection of an exchange that waits for a reply that is lost: the client then sends the call again.
func (x *tcpExch) Fail() {
	c := x.c
	x.release(false)
	c.breakOff(errForgotten)
}

// ---- the end

// drainFor ends the connection in order after the calls that have arrived are answered, including those in the reader's
// buffer.
func (c *tcpConn) drainFor(ctx context.Context) {
	a := &c.answers
	a.mu.Lock()
	a.drain = ctx
	a.stopped = a.reading
	a.mu.Unlock()
	a.checkIdle()
}

// reads is called when the reader is about to wait for the peer, or has waited.
func (a *tcpAnswers) reads(waits bool) {
	a.mu.Lock()
	a.reading = waits
	if waits && a.drain != nil {
		a.stopped = true
	}
	stopped := a.stopped
	a.mu.Unlock()
	if stopped {
		a.checkIdle()
	}
}

// checkIdle ends a connection that is being drained and has nothing left to send. The client then closes its end. This
// end closes only after that, or if the client is slow: otherwise data that the client is still sending would make the
// kernel drop replies that it has not read.
func (a *tcpAnswers) checkIdle() {
	a.mu.Lock()
	idle := a.stopped && a.flight == 0 && !a.over && a.c.w.Rests()
	a.over = a.over || idle
	until := a.drain
	a.mu.Unlock()
	if !idle {
		return
	}
	c := a.c
	c.setClosing()
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || c.hangUp(half.CloseWrite) != nil {
		c.hangUp(c.nc.Close)
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(until, lingerTime)
		defer cancel()
		select {
		case <-ctx.Done():
			c.hangUp(c.nc.Close)
		case <-c.done:
		}
	}()
}

// end ends all exchanges with the connection. Those being executed end when their handlers return.
func (a *tcpAnswers) end() {
	if a.c.cancel != nil {
		a.c.cancel()
	}
	a.mu.Lock()
	memq, early := a.memq, a.early
	a.ended = true
	a.early = nil
	a.memq = nil // from now on no call reserves: a grant to one that has left is lost
	var waits []*tcpExch
	var entries []*replycache.Entry
	for _, x := range a.exchs {
		if x.awaits != nil {
			waits, entries = append(waits, x), append(entries, x.awaits)
		}
	}
	a.mu.Unlock()
	a.pace.End()
	if a.c.reg != nil {
		a.c.tenant.Leave() // when no call can reserve any more
	}
	a.countOwn(-records.BufferSize - len(a.exchs)*exchSize)
	for _, w := range memq {
		w.x.release(false)
	}
	for _, x := range early {
		x.release(false)
	}
	for i, x := range waits {
		if entries[i].Leave(x) {
			x.release(false)
		}
	}
	a.c.arena.Drop()
}

// observeReply records how the reply in x.rec travels, and reports the end of the call: the goroutine that writes the
// reply may own x next.
func (x *tcpExch) observeReply() {
	e := x.event
	if e == nil {
		return
	}
	e.Reply = rpc.Transfer{Bytes: recordSize(x.rec.Parts), By: rpc.ByMessage}
	x.observeEnd(nil)
}

// recordSize returns the length of the message in a record.
func recordSize(parts [][]byte) int {
	n := -oncrpc.RecordMarkSize
	for _, p := range parts {
		n += len(p)
	}
	return n
}
