package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
)

// A conn is one connection, either end of it. It makes calls (requester.go) and executes calls (responder.go).
//
// It is divided by which goroutine may access what:
//
//   - the fields of conn are constant once the connection is set up, or are safe for use by any goroutine;
//   - state is guarded by its lock, and can only be reached through it;
//   - the [leader] belongs to one goroutine at a time, the one that drives the connection and has the only pointer to
//     it.
type conn struct {
	core
	fc      fabric.Conn
	caps    fabric.Capabilities
	exposes expose.Adapter      // of calls and replies
	priv    rpcrdma.PrivateData // the peer's
	hasPriv bool
	agreed  agreement
	conf    configuration

	state lockorder.Value[state]
	sends sendQueue

	// For the calls that this end makes.
	mostCalls atomic.Int32 // credits to ask for

	batch atomic.Int32 // batch size for reposting receives

	// For the calls that this end executes.
	grant atomic.Int64

	asked  atomic.Bool                     // state.asked is not empty
	drain  atomic.Pointer[context.Context] // set by a server's Shutdown
	keeper waiter                          // a server's own goroutine, while it stands aside
	woken  atomic.Bool                     // an Inline handler has woken a waiting goroutine
}

// state is shared by the goroutines that use a connection.
type state struct {
	c *conn
	life
	progress
	calls callTable[slot]
	recvs receives

	asked []func(*leader) // requests to the leader that come without a completion
	told  bool            // the ends have exchanged their properties
}

// An agreement has the negotiated values of a connection.
type agreement struct {
	version   atomic.Uint32 // of the protocol; 0: no call has arrived yet
	sendLimit atomic.Int32  // longest Send of this end
	recvLimit atomic.Int32  // longest Send of the peer
	raise     atomic.Int32  // sendLimit from the first reply on; 0: the first reply has been sent
	remoteInv atomic.Bool   // both ends allow it, for replies to the client's calls
}

// A configuration has the bounds within which the Connection Configuration Protocol may choose, and its result. It is
// written before other goroutines use the connection, or with the connection's state locked.
type configuration struct {
	send, recv int // upper bounds for our Sends and the peer's

	align   int  // of our RDMA_MSGP calls
	noReads bool // no read chunks

	done      bool
	refused   error // the server's
	peerReads uint32
	peerAlign uint32 // recommended by the server
}

// newConn makes a connection that is not set up. It passes its token to the caller, which returns it once the
// connection is set up. usage, which may be nil, counts the memory of several arenas.
func newConn(fc fabric.Conn, provider string, cfg *config, r role, usage *arena.Usage) (*conn, *leader) {
	c := &conn{fc: fc, caps: fc.Capabilities()}
	c.core.init(c, provider, cfg, r)
	c.exposes = expose.Adapter{
		Conn: fc, Windows: c.caps.MemoryWindows, LocalDMA: c.caps.LocalDMA, OnRegister: c.public.registered,
	}
	opt := arena.Options{
		LocalDMA: c.caps.LocalDMA, First: cfg.firstBuffers(r) * arena.SizeOf(cfg.recvSize), Small: max(cfg.sendSize, cfg.recvSize), MaxBulk: cfg.MaxMemory,
		Usage: usage, OnBulk: c.keepWatch, OnRegister: c.exposes.OnRegister,
	}
	if r == roleServer {
		opt.Own, _ = fc.(fabric.Allocator) // for results
	}
	c.arena = arena.New(fc, opt)
	if r == roleServer {
		c.keeper.Init(&c.keeper)
	}
	c.sends.init(c)
	c.grant.Store(1)
	if r == roleClient {
		c.mostCalls.Store(int32(cfg.Credits))
	}
	st := c.state.Init(rankConn)
	st.c = c
	st.life.init(&c.core)
	st.progress.init(c)
	st.calls.init(&st.life, c.newSlot)
	st.calls.unfollow, st.calls.more = st.baton.Leave, c.moreReplies
	if r == roleClient {
		st.calls.setGrant(1, 1) // RFC 8166 section 3.3.3: until the first reply
	}
	return c, newLeader(c)
}

// connect sets up a client's connection. Receives are posted first: a peer that has accepted may send, and a Send
// without a receive ends the connection. There is one for each reply that may arrive, where pending is the number of
// calls to send at once, and the full set for calls from the server (RFC 8167 section 4.3.1).
func (l *leader) connect(ctx context.Context, pending int) error {
	c := l.c
	c.state.Lock().recvs.replies = min(max(firstReplies, pending), c.cfg.Credits)
	c.state.Unlock()
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

// negotiate applies the results of the setup: the peer's private data, and the adapter's capabilities on this
// connection.
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

// bounceMemory bounds the memory of a connection's bounce buffers. When it is in use, memory is registered for each
// call.
const bounceMemory = 1 << 20

// makeBounce creates the arena of bounce buffers, if the connection exposes memory that it would otherwise have to
// register for each call.
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

// bulky reports whether there is memory for sweepMemory to unmap.
func (c *conn) bulky() bool {
	b := c.exposes.Bounce
	return c.arena.Bulky() || b != nil && b.Bulky()
}

// dropMemory drops the connection's own reference to its memory. The adapter has released all of it.
func (c *conn) dropMemory() {
	c.arena.Drop()
	if b := c.exposes.Bounce; b != nil {
		b.Drop()
	}
}

func (c *conn) info() rpc.ConnInfo {
	st := c.state.Lock()
	defer c.state.Unlock()
	credits, backward := st.granted, int(c.grant.Load())
	if c.role == roleServer {
		credits, backward = backward, credits
	}
	if c.cfg.backward(c.role) == 0 {
		backward = 0
	}
	i := rpc.ConnInfo{
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

// breakOff ends the connection because the adapter refused a request: calls would wait for it forever. Usually the
// connection has already ended, which is the reason for the refusal. The leader then notices, and first processes the
// messages that arrived before the end.
func (c *conn) breakOff(err error) {
	if errors.Is(err, net.ErrClosed) {
		c.fc.Wake()
		return
	}
	c.core.breakOff(err)
}

func (c *conn) lock() *life { return &c.state.Lock().life }
func (c *conn) unlock()     { c.state.Unlock() }

// sever makes the adapter release all memory. The leader notices.
func (c *conn) sever() { c.fc.Close() }

// finish ends the connection: first the adapter releases all memory, then all waiters are notified. It is called once,
// and ends the lead.
func (l *leader) finish(reason error) {
	c := l.c
	c.fc.Close()
	st := c.state.Lock()
	if l.fatal != nil {
		st.broken = l.fatal
	}
	st.life.end(reason)
	l.failCalls(st)
	l.wakes = st.progress.end(l.wakes)
	unused := st.inUse == 0 // otherwise the last call drops the arena
	onEnd := st.onEnd
	c.state.Unlock()
	l.wakeAll()
	l.endStarted()
	l.abort()
	c.tenant.Leave()
	l.pace.End()
	if c.exposes.Regions != nil {
		c.exposes.Regions.Forget(&c.exposes)
	}
	if unused {
		c.dropMemory()
	}
	c.state.Lock().baton.Give(l) // for good: it is not taken again
	c.state.Unlock()
	c.over(onEnd)
}

func (c *conn) local() net.Addr  { return c.fc.LocalAddr() }
func (c *conn) remote() net.Addr { return c.fc.RemoteAddr() }

func (c *conn) encryption() *tls.ConnectionState {
	if e, ok := c.fc.(fabric.Encrypted); ok {
		return e.TLS()
	}
	return nil
}

// drainFor makes a server's connection end when its calls are answered, or with ctx.
func (c *conn) drainFor(ctx context.Context) {
	c.drain.Store(&ctx)
	c.fc.Wake()
}

// abort ends the connection at once, and does not wait for the end.
func (c *conn) abort() {
	c.setClosing()
	c.fc.Close() // the leading goroutine notices, or otherwise the code below
	go c.await(context.Background(), newWaiter())
}

// discard ends a connection after its setup failed.
func (l *leader) discard() {
	l.c.setClosing()
	l.finish(nil)
}

// shutdown ends a client's connection in order. Several goroutines may call it at once.
func (c *conn) shutdown(ctx context.Context) error {
	if err := c.drainCalls(ctx); err != nil || !c.lives() {
		return err
	}
	// This goroutine must hold the token: Disconnect makes progress by itself.
	if l := c.take(); l != nil {
		err := c.fc.Disconnect(ctx)
		l.finish(nil)
		return err
	}
	return nil
}

// close ends the connection at once. The adapter releases memory in Close of the fabric's Conn. The leading goroutine
// notices; if none leads, this one does.
func (c *conn) close() error {
	c.setClosing()
	c.fc.Close()
	c.await(context.Background(), newWaiter())
	<-c.done
	return nil
}

func (c *conn) detail(s *rpc.ConnStats) {
	if f, ok := c.fc.(fabric.Counting); ok {
		s.Adapter = f.Counters()
	}
	t := &c.state.Lock().calls
	defer c.state.Unlock()
	s.Waiting = t.queue.Len()
	for _, sl := range t.all {
		switch sl.state {
		case slotPending, slotAnswered, slotAccepted, slotCanceled:
			s.ExposedBytes += sl.exposed()
		}
	}
}
