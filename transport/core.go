package transport

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
	"github.com/rpcrdma/rpcrdma/transport/internal/hosts"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// A core is the common part of connections over RDMA ([conn]) and TCP ([tcpConn]). Its fields are
// constant once the connection is set up, or safe for use by any goroutine.
type core struct {
	public   Conn // the connection as users see it
	wire     wire // the connection that the core is part of
	provider string
	cfg      *config
	role     role
	stats    *counters
	arena    *arena.Arena
	heard    atomic.Uint64 // messages from the peer; over RDMA the upper half counts the calls among them
	watched  atomic.Bool   // a client's: see keepWatch
	granted  atomic.Int32  // as life.granted
	done     chan struct{} // closed when the connection has ended

	// For the calls that this end executes.
	reg      *registry // nil: none
	memory   *budget.Budget
	tenant   budget.Tenant       // for the memory that exchanges reserve and hold
	contexts contexts            // of handlers
	cancel   context.CancelFunc  // ends them
	called   atomic.Bool         // a valid call has arrived
	peerHost string              // see host
	lineage  *replycache.Lineage // at a server
	unsent   atomic.Bool         // a reply that could not be sent has been logged
}

// A wire does what the core of a connection cannot do itself.
type wire interface {
	served
	lock() *life // locks the connection's state, which contains the life
	unlock()
	sever()                  // ends the transport connection at once; the goroutine that reads it notices
	opened(n int)            // permits a server's calls, up to n at a time
	detail(s *rpc.ConnStats) // adds statistics of the wire
	bulky() bool             // there is memory that look may unmap
	inFlight() int           // the peer's calls in flight
}

// init makes c the core of w.
func (c *core) init(w wire, provider string, cfg *config, r role) {
	c.wire, c.provider, c.cfg, c.role = w, provider, cfg, r
	c.stats, c.done = new(counters), make(chan struct{})
	c.public.c, c.public.cfg, c.public.server = w, cfg, r == roleServer
}

func (c *core) seen() *Conn { return &c.public }

func (c *core) addr() string {
	if a := c.wire.remote(); a != nil {
		return a.String()
	}
	return "peer"
}

// join sets up the execution of the peer's calls to programs of reg, with memory from b. wake is called when there may
// be memory for a waiting call.
func (c *core) join(reg *registry, b *budget.Budget, wake func()) {
	c.reg, c.memory = reg, b
	b.Join(&c.tenant, budget.Terms{
		Host: c.host(), Start: startMessages * int64(c.cfg.MaxMessage), Most: int64(c.cfg.MaxMemory), Trim: c.arena.Trim, Wake: wake,
	})
	var own context.Context
	own, c.cancel = context.WithCancel(context.Background())
	c.contexts.init(&c.public, own)
	c.contexts.remember(reg.cache.Context()) // for handlers with remembered replies
}

// host returns the peer's host: see Conn.Host.
func (c *core) host() string {
	if c.peerHost == "" {
		c.peerHost = hosts.Of(c.addr(), c.cfg.HostBits)
	}
	return c.peerHost
}

// ---- the life of a connection

// A life is the state of a connection, and of the calls that this end makes on it. It is part of the connection's
// state.
type life struct {
	core    *core
	closing bool   // no new calls are accepted
	err     error  // why the connection ended, nil before that
	broken  error  // why this end broke it off
	onEnd   func() // called when the connection has ended
	watch   watch

	allowed  bool          // this end may make calls
	xids     *xids         // for the next calls
	granted  int           // calls that the peer permits
	grant    int           // limit for calls in use: of those granted, over RDMA, as many as there are receives for
	inUse    int           // calls that are not free: those without a reply, and more
	givenUp  int           // calls in use that their callers have abandoned
	answered bool          // a call was answered while its caller waited
	answers  uint64        // arrived, including late ones
	drained  chan struct{} // closed when inUse becomes zero; nil if no goroutine waits for that
}

func (lf *life) init(c *core) {
	lf.core = c
	lf.xids = c.cfg.counter()
	lf.allowed = c.role == roleClient
}

func (lf *life) ended() bool { return lf.err != nil }

// refuse returns why no new calls are accepted, nil if they are.
func (lf *life) refuse() error {
	if lf.err == nil && !lf.closing && lf.allowed {
		return nil
	}
	return lf.refusal()
}

// refusal returns the reason that no new calls are accepted.
func (lf *life) refusal() error {
	switch {
	case lf.err != nil:
		return lf.err
	case lf.closing:
		return &rpc.ClosedError{Addr: lf.core.addr(), Reason: errClosing}
	}
	return &rpc.NotReadyError{Addr: lf.core.addr()}
}

// drain wakes the goroutine that waits until no calls are in flight, and reports whether there is one.
func (lf *life) drain() (waited bool) {
	if lf.drained == nil {
		return false
	}
	close(lf.drained)
	lf.drained = nil
	return true
}

// end records that the connection has ended. reason counts only if this end has no other: the reason that it broke the
// connection off for, or that it closed the connection.
func (lf *life) end(reason error) {
	switch {
	case lf.broken != nil:
		reason = lf.broken
	case lf.closing:
		reason = nil
	}
	lf.err = &rpc.ClosedError{Addr: lf.core.addr(), Reason: reason}
}

// over announces the end of the connection. onEnd is that of its life when it ended.
func (c *core) over(onEnd func()) {
	close(c.done)
	c.stats.leave()
	c.public.over()
	if onEnd != nil {
		onEnd()
	}
}

func (c *core) ended() <-chan struct{} { return c.done }

func (c *core) lives() bool { return c.endErr() == nil }

func (c *core) endErr() error {
	defer c.wire.unlock()
	return c.wire.lock().err
}

func (c *core) leaves() bool {
	defer c.wire.unlock()
	return c.wire.lock().closing
}

// setClosing refuses new calls, and makes the end of the connection one that this end chose.
func (c *core) setClosing() {
	c.wire.lock().closing = true
	c.wire.unlock()
}

// breakOff ends the connection because of err.
func (c *core) breakOff(err error) {
	lf := c.wire.lock()
	if lf.broken == nil {
		lf.broken = err
	}
	c.wire.unlock()
	c.wire.sever()
}

func (c *core) whenEnded(f func()) {
	lf := c.wire.lock()
	lf.onEnd = f
	ended := lf.ended()
	c.wire.unlock()
	if ended { // the goroutine that ended it has not seen f
		f()
	}
}

// leaveIdle makes the connection accept no new calls, unless some are in flight: new calls then go to the next
// connection.
func (c *core) leaveIdle() bool {
	lf := c.wire.lock()
	defer c.wire.unlock()
	if lf.inUse > 0 {
		return false
	}
	lf.closing = true
	return true
}

// drainCalls accepts no new calls, and waits until those in flight have returned. If ctx ends first, the connection is
// closed at once.
func (c *core) drainCalls(ctx context.Context) error {
	lf := c.wire.lock()
	lf.closing = true
	if !lf.ended() && lf.inUse > 0 && lf.drained == nil {
		lf.drained = make(chan struct{})
	}
	drained := lf.drained
	c.wire.unlock()
	if drained == nil {
		return nil
	}
	select {
	case <-drained:
	case <-c.done:
	case <-ctx.Done():
		c.wire.close()
		return ctx.Err()
	}
	return nil
}

// allow permits a server n concurrent calls.
func (c *core) allow(n int) {
	if c.role == roleClient {
		return
	}
	if n <= 0 || n > c.cfg.BackwardCredits {
		n = c.cfg.BackwardCredits
	}
	c.wire.lock().allowed = true
	c.wire.unlock()
	c.wire.opened(n)
}

// A watch has the latest observations of a connection. It is part of the connection's state.
type watch struct {
	met     uint64    // requests completed
	since   time.Time // since when nothing more has completed while this end is waiting
	heard   uint64
	spoke   time.Time // approximately when the peer last sent something
	trimmed time.Time
}

const (
	sweepTime = time.Second

	// slowTime is how long a peer may not receive before it gets only as much memory as a new one.
	slowTime = 2 * time.Second

	// trimTime is the minimum time that unused memory of calls is kept; the maximum is twice that.
	trimTime = 4 * time.Second
)

// sweepTime returns the interval at which connections are checked.
func (c *Config) sweepTime() time.Duration {
	if c.StallTimeout > 0 {
		return min(sweepTime, max(c.StallTimeout/4, time.Millisecond))
	}
	return sweepTime
}

// note records when the peer last sent something.
func (w *watch) note(heard uint64, now time.Time) {
	if heard != w.heard || w.spoke.IsZero() {
		w.heard, w.spoke = heard, now
	}
}

// trims reports whether it is time to unmap unused memory.
func (w *watch) trims(now time.Time) bool {
	if now.Sub(w.trimmed) < trimTime {
		return false
	}
	w.trimmed = now
	return true
}

// ---- what is known of a connection

// load counts the calls in flight.
func (c *core) load() load {
	lf := c.wire.lock()
	defer c.wire.unlock()
	return load{used: lf.inUse, room: lf.inUse < lf.granted, dead: lf.inUse > 0 && lf.inUse == lf.givenUp}
}

func (c *core) credits() int { return int(c.granted.Load()) }

func (c *core) connStats() rpc.ConnStats {
	s := rpc.ConnStats{Stats: c.stats.snapshot(), HeldBytes: c.tenant.Held()}
	s.InFlight = c.load().used
	c.wire.detail(&s)
	return s
}

func (c *core) counter() *xids {
	defer c.wire.unlock()
	return c.wire.lock().xids
}

// inherit shares the xids of the previous connection.
func (c *core) inherit(from connection) {
	x := from.counter()
	c.wire.lock().xids = x
	c.wire.unlock()
}

func (c *core) proven() bool {
	defer c.wire.unlock()
	return c.wire.lock().answered
}

func (c *core) HasCalled() bool { return c.called.Load() }

func (c *core) MakeRoom() { c.wire.breakOff(errMakesRoom) }

func (c *core) good() bool { return c.proven() || c.called.Load() }

func (c *core) activity() uint64 {
	defer c.wire.unlock()
	if lf := c.wire.lock(); lf.inUse > 0 {
		return lf.answers
	}
	return c.heard.Load()
}

func (c *core) Silence(now time.Time) (d time.Duration, inFlight bool) {
	inFlight = c.wire.inFlight() > 0
	w := &c.wire.lock().watch
	defer c.wire.unlock()
	w.note(c.heard.Load(), now)
	return now.Sub(w.spoke), inFlight
}

// keepWatch makes a client's connection be checked as long as there is something to check. A server checks all its
// connections.
func (c *core) keepWatch() {
	if c.role == roleClient && !c.watched.Load() && !c.watched.Swap(true) {
		time.AfterFunc(c.cfg.sweepTime(), c.onWatch)
	}
}

func (c *core) onWatch() {
	c.watched.Store(false)
	if c.lives() && (c.wire.look(time.Now()) || c.wire.bulky()) {
		c.keepWatch()
	}
}

// ---- the log

// logFailed logs that a handler returned err.
func (c *core) logFailed(p rpc.Procedure, err error) {
	c.cfg.journal.write(eventFailed, slog.LevelError, "handler failed", c.named(p), c.peerAttr(), slog.Any("err", err))
}

// logUnsent logs why a reply was not sent: once for each connection, because the peer determines how many there are.
func (c *core) logUnsent(err error) {
	if !c.unsent.Swap(true) {
		c.cfg.journal.write(eventUnsent, slog.LevelWarn, "reply not sent", c.peerAttr(), slog.Any("err", err))
	}
}

// logPanic logs, with the stack, that the program's code, described by what, has panicked with the value v, or has
// called runtime.Goexit if v is nil.
func (c *core) logPanic(what string, which slog.Attr, v any) {
	msg, attrs := what+" called runtime.Goexit", []slog.Attr{which, c.peerAttr()}
	if v != nil {
		msg, attrs = what+" panicked", append(attrs, slog.Any("panic", v))
	}
	c.cfg.journal.write(eventPanic, slog.LevelError, msg, attrs...)
}

func (c *core) peerAttr() slog.Attr { return slog.String("peer", c.addr()) }

// named returns a procedure as a log attribute, with the name that errors use.
func (c *core) named(p rpc.Procedure) slog.Attr {
	return slog.String("proc", c.reg.names(p.Prog, p.Vers).CallName(p.Proc))
}

// replyTooLong returns the error for a part of a reply that does not fit.
func (c *core) replyTooLong(call *oncrpc.CallHeader, what string, size, limit int) error {
	p := rpc.Procedure{Prog: call.Prog, Vers: call.Vers, Proc: call.Proc}
	return &rpc.ReplySizeError{Procedure: p, Names: c.reg.names(p.Prog, p.Vers), SizeError: rpc.SizeError{What: what, Size: size, Limit: limit}}
}
