package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// A conn is one connection, either end of it. It makes calls (requester.go) and executes
// calls (responder.go).
//
// What it consists of is divided by who may touch it:
//
//   - the fields of conn are constant once the connection is set up, or are safe for use
//     by any goroutine;
//   - state is guarded by its lock, and reached through it alone;
//   - the [leader] is what one goroutine at a time may touch, the one that moves the
//     connection. It has the only pointer to it.
type conn struct {
	public   Conn // what users see
	fc       fabric.Conn
	provider string
	cfg      *config
	role     role
	caps     fabric.Capabilities
	arena    *arena.Arena
	exposes  expose.Adapter // of calls and replies
	stats    *counters
	priv     rpcrdma.PrivateData // the peer's
	hasPriv  bool
	agreed   agreement
	conf     configuration

	state lockorder.Value[state]
	sends sendQueue

	// Of the calls that this end makes.
	mostCalls atomic.Int32 // credits to ask for
	granted   atomic.Int32 // the latest grant, as in slotTable

	// Of the calls that this end executes.
	svc      service
	memory   *budget.Budget
	tenant   budget.Tenant // of the memory that exchanges reserve and hold
	contexts contexts      // of handlers
	cancel   context.CancelFunc
	grant    atomic.Int64
	called   atomic.Bool // a call that was in order has come
	peerHost string
	lineage  *replycache.Lineage // at a server

	asked   atomic.Bool                     // state.asked is not empty
	heard   atomic.Uint64                   // messages from the peer; in the upper half, calls among them
	drain   atomic.Pointer[context.Context] // set by a server's Shutdown
	keeper  waiter                          // a server's own goroutine, when it stands aside
	watched atomic.Bool                     // a client's: see keepWatch
	done    chan struct{}                   // closed when the connection has ended
}

// state is what the goroutines that use a connection share.
type state struct {
	c *conn
	progress
	calls slotTable

	asked   []func(*leader) // what the leader is to do without a completion
	closing bool            // no new calls
	ended   bool
	err     error  // why, once ended
	broken  error  // what the adapter refused
	told    bool   // the ends have told each other their properties
	onEnd   func() // called once the connection has ended
	watch   watch
}

// newConn makes a connection that is not set up, and hands its token to the caller, who
// gives it back when it is. usage, which may be nil, counts the memory of its arena with
// that of others.
func newConn(fc fabric.Conn, provider string, cfg *config, r role, usage *arena.Usage) (*conn, *leader) {
	c := &conn{
		fc: fc, provider: provider, cfg: cfg, role: r,
		caps:  fc.Capabilities(),
		stats: new(counters),
		done:  make(chan struct{}),
	}
	c.exposes = expose.Adapter{
		Conn: fc, Windows: c.caps.MemoryWindows, LocalDMA: c.caps.LocalDMA, OnRegister: c.public.registered,
	}
	c.arena = arena.New(fc, arena.Options{
		LocalDMA: c.caps.LocalDMA, Small: max(cfg.sendSize, cfg.recvSize), MaxBulk: cfg.MaxMemory,
		Usage: usage, OnBulk: c.keepWatch, OnRegister: c.exposes.OnRegister,
	})
	if r == roleServer {
		c.keeper.Init(&c.keeper)
	}
	c.public.c, c.public.cfg, c.public.server = c, cfg, r == roleServer
	c.sends.init(c)
	c.grant.Store(1)
	if r == roleClient {
		c.mostCalls.Store(int32(cfg.Credits))
	}
	st := c.state.Init(rankConn)
	st.c = c
	st.progress.init(c)
	st.calls.init(c)
	return c, newLeader(c)
}

// connect sets up a client's connection. Receives are posted first: a peer that has
// accepted may send, and one Send too many ends the connection. There is one for each
// reply that may come, pending being the calls to send at once, and the full set for calls
// from the server (RFC 8167 section 4.3.1).
func (l *leader) connect(ctx context.Context, pending int) error {
	c := l.c
	l.replyRecvs = min(max(initialGrant, pending), c.cfg.Credits)
	if err := l.grow(c.cfg.backward(roleClient)); err != nil {
		return err
	}
	offer := c.offersSetup()
	if err := c.fc.Connect(ctx, c.greeting(offer)); err != nil {
		return err
	}
	l.negotiate()
	l.takeSetup(offer)
	return nil
}

// accept sets up a server's connection.
func (l *leader) accept(ctx context.Context) error {
	c := l.c
	if err := l.grow(min(initialGrant, c.cfg.Credits)); err != nil {
		return err
	}
	l.negotiate()
	return c.fc.Accept(ctx, c.greeting(l.acceptSetup()))
}

// negotiate takes in what the set-up has shown: the peer's private data, and what the
// adapter can do on this connection.
func (l *leader) negotiate() {
	c := l.c
	c.caps = c.fc.Capabilities()
	c.exposes.Windows, c.exposes.LocalDMA = c.caps.MemoryWindows, c.caps.LocalDMA
	c.priv, c.hasPriv = rpcrdma.FindPrivateData(c.fc.PeerPrivateData())
	c.agree()
	c.makeBounce()
	l.reads.Most = min(maxReads, c.caps.OutboundReads)
	c.startConfig()
}

// bounceMemory bounds the memory of bounce buffers of a connection. When it is in use, memory is
// registered for each call.
const bounceMemory = 1 << 20

// makeBounce makes the arena of bounce buffers, if the connection exposes memory that would
// have to be registered for each call.
func (c *conn) makeBounce() {
	if c.caps.LocalDMA || c.cfg.BounceMax < 0 || c.role == roleServer && c.cfg.PeerChunks != AllChunks {
		return
	}
	c.exposes.BounceMax = c.cfg.BounceMax
	c.exposes.Bounce = arena.New(c.fc, arena.Options{
		Remote:     !c.caps.MemoryWindows,
		MaxBulk:    bounceMemory,
		Strict:     true,
		OnBulk:     c.keepWatch,
		OnRegister: c.exposes.OnRegister,
	})
}

// sweepMemory unmaps bulk memory that has not been in use for a while.
func (c *conn) sweepMemory() {
	c.arena.Sweep()
	if b := c.exposes.Bounce; b != nil {
		b.Sweep()
	}
}

// hasBulk tells whether there is memory for sweepMemory.
func (c *conn) hasBulk() bool {
	b := c.exposes.Bounce
	return c.arena.Bulky() || b != nil && b.Bulky()
}

// dropMemory gives up the reference that the connection itself has to its memory. The adapter
// has released all of it.
func (c *conn) dropMemory() {
	c.arena.Drop()
	if b := c.exposes.Bounce; b != nil {
		b.Drop()
	}
}

func (c *conn) info() ConnInfo {
	st := c.state.Lock()
	defer c.state.Unlock()
	credits, backward := st.calls.grant, int(c.grant.Load())
	if c.role == roleServer {
		credits, backward = backward, credits
	}
	if c.cfg.backward(c.role) == 0 {
		backward = 0
	}
	i := ConnInfo{
		Provider: c.provider, LocalAddr: c.fc.LocalAddr(), RemoteAddr: c.fc.RemoteAddr(),
		Version:     max(c.version(), rpcrdma.Version1),
		Properties:  st.told,
		PrivateData: c.hasPriv, PeerSend: c.priv.SendSize, PeerRecv: c.priv.RecvSize,
		InlineSend: c.sendMax(), InlineRecv: c.recvMax(),
		RemoteInvalidation: c.agreed.remoteInv.Load(),
		Credits:            credits,
		BackwardCredits:    backward,
		Capabilities:       c.caps,
	}
	c.conf.fill(&i)
	return i
}

// breakOff ends the connection because the adapter refused a request: calls would
// wait for it for ever. Most often the connection has ended already, and that is
// why: then the leader finds out, and takes in first what had come before the end.
func (c *conn) breakOff(err error) {
	if errors.Is(err, net.ErrClosed) {
		c.fc.Wake()
		return
	}
	st := c.state.Lock()
	if st.broken == nil {
		st.broken = err
	}
	c.state.Unlock()
	c.fc.Close() // the leader finds out
}

// finish ends the connection: first the adapter releases all memory, then everybody who
// waits learns of it. It is called once, and is the end of the lead.
func (l *leader) finish(reason error) {
	c := l.c
	c.fc.Close()
	st := c.state.Lock()
	if st.closing && l.fatal == nil {
		reason = nil
	}
	if st.broken != nil {
		reason = st.broken
	}
	if l.fatal != nil {
		reason = l.fatal
	}
	st.ended = true
	st.err = &ClosedError{Addr: c.addr(), Reason: reason}
	l.failCalls(st)
	l.wakes = st.progress.end(l.wakes)
	unused := st.calls.inUse == 0 // else the last call drops the arena
	onEnd := st.onEnd
	c.state.Unlock()
	l.wakeAll()
	l.abort()
	c.tenant.Leave()
	l.pace.end()
	if c.exposes.Regions != nil {
		c.exposes.Regions.Forget(&c.exposes)
	}
	if unused {
		c.dropMemory()
	}
	c.state.Lock().baton.Give(l) // to rest: nobody takes it any more
	c.state.Unlock()
	close(c.done)
	c.stats.leave()
	c.public.over()
	if onEnd != nil {
		onEnd()
	}
}

// lives tells whether the connection has not ended.
func (c *conn) lives() bool {
	defer c.state.Unlock()
	return !c.state.Lock().ended
}

// leaves tells whether the connection takes no new calls, though it has not ended.
func (c *conn) leaves() bool {
	defer c.state.Unlock()
	return c.state.Lock().closing
}

// setClosing refuses new calls, and makes the end of the connection one of our own.
func (c *conn) setClosing() {
	c.state.Lock().closing = true
	c.state.Unlock()
}

// endErr is why the connection has ended, nil before that.
func (c *conn) endErr() error {
	defer c.state.Unlock()
	return c.state.Lock().err
}

// whenEnded has f called once the connection has ended.
func (c *conn) whenEnded(f func()) {
	st := c.state.Lock()
	st.onEnd = f
	ended := st.ended
	c.state.Unlock()
	if ended { // finish has not seen f
		f()
	}
}

// ended is closed when the connection has ended.
func (c *conn) ended() <-chan struct{} { return c.done }

// good tells whether a connection was of use: calls of either end have been answered on it.
func (c *conn) good() bool { return c.proven() || c.called.Load() }

func (c *conn) seen() *Conn      { return &c.public }
func (c *conn) local() net.Addr  { return c.fc.LocalAddr() }
func (c *conn) remote() net.Addr { return c.fc.RemoteAddr() }

func (c *conn) activity() uint64 {
	defer c.state.Unlock()
	if t := &c.state.Lock().calls; t.inUse > 0 {
		return t.answers
	}
	return c.heard.Load()
}

// load tells how many calls are under way.
func (c *conn) load() load {
	t := &c.state.Lock().calls
	defer c.state.Unlock()
	return load{used: t.inUse, room: t.inUse < t.grant, dead: t.inUse > 0 && t.inUse == t.givenUp()}
}

func (c *conn) credits() int { return int(c.granted.Load()) }

// leaveIdle has the connection take no new calls, unless some are under way: those that
// come now go to the next connection.
func (c *conn) leaveIdle() bool {
	st := c.state.Lock()
	defer c.state.Unlock()
	if st.calls.inUse > 0 {
		return false
	}
	st.closing = true
	return true
}

// drainFor has a server's connection end when its calls are answered, or with ctx.
func (c *conn) drainFor(ctx context.Context) {
	c.drain.Store(&ctx)
	c.fc.Wake()
}

// abort ends the connection at once, and does not wait for the end.
func (c *conn) abort() {
	c.setClosing()
	c.fc.Close() // whoever leads finds out, or else this does
	go c.await(context.Background(), newWaiter())
}

// host is the peer's host: see Conn.Host.
func (c *conn) host() string {
	if c.peerHost == "" {
		c.peerHost = hostOf(c.addr(), c.cfg.HostBits)
	}
	return c.peerHost
}

func (c *conn) addr() string {
	if a := c.fc.RemoteAddr(); a != nil {
		return a.String()
	}
	return "peer"
}

// discard ends a connection whose set-up failed.
func (l *leader) discard() {
	l.c.setClosing()
	l.finish(nil)
}

// shutdown ends a client's connection in order. Several goroutines may call it at once.
func (c *conn) shutdown(ctx context.Context) error {
	st := c.state.Lock()
	if st.ended {
		c.state.Unlock()
		return nil
	}
	st.closing = true
	if t := &st.calls; t.inUse > 0 && t.drained == nil {
		t.drained = make(chan struct{})
	}
	drained := st.calls.drained
	c.state.Unlock()
	if drained != nil {
		select {
		case <-drained:
		case <-ctx.Done():
			c.close()
			return ctx.Err()
		}
	}
	// The token must be ours: Disconnect makes progress by itself.
	if l := c.take(); l != nil {
		err := c.fc.Disconnect(ctx)
		l.finish(nil)
		return err
	}
	return nil
}

// close ends the connection at once. The adapter releases memory in Close of the fabric's
// Conn, and whoever leads finds out; if nobody does, we do.
func (c *conn) close() error {
	c.setClosing()
	c.fc.Close()
	c.await(context.Background(), newWaiter())
	<-c.done
	return nil
}

// hostOf returns the host that an address with a port counts as: see Config.HostBits. An address
// that is not an IP address is a host of its own.
func hostOf(addr string, bits int) string {
	machine := machineOf(addr)
	if a, err := netip.ParseAddr(machine); err == nil {
		return hostPrefix(a, bits).String()
	}
	return machine
}

// machineOf returns the address without its port, always in the same spelling.
func machineOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().String()
	}
	return host
}

// hostPrefix returns the network of a that counts as one host.
func hostPrefix(a netip.Addr, bits int) netip.Prefix {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		bits = a.BitLen()
	}
	p, _ := a.Prefix(bits) // a zero Prefix if a is the zero Addr
	return p
}

func (c *conn) connStats() ConnStats {
	s := ConnStats{Stats: c.stats.snapshot(), HeldBytes: c.tenant.Held()}
	if f, ok := c.fc.(fabric.Counting); ok {
		s.Adapter = f.Counters()
	}
	t := &c.state.Lock().calls
	defer c.state.Unlock()
	s.InFlight, s.Waiting = t.inUse, t.queue.Len()
	for _, sl := range t.slots {
		switch sl.state {
		case slotPending, slotAnswered, slotAccepted, slotCancelled:
			s.ExposedBytes += sl.exposed()
		}
	}
	return s
}
