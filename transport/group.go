package transport

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
)

// The calls of a Group, and its end. groupdial.go makes its connections.

// Limits and defaults of a Group.
const (
	MaxConnections = 64 // connections, and addresses

	defaultConnections = 2
	defaultGroupIdle   = 30 * time.Second

	// fullBulk is the number of bytes of ReadItems and WriteItems that keep a connection busy: with more outstanding,
	// its two ends and the path between them are always busy.
	fullBulk = 1 << 20
)

// A Group is several connections to one server, as one Requester. It begins with one connection, adds others up to
// ClientConfig.Connections while the existing ones are overloaded, and closes them when they are no longer needed. Its
// methods may be called by many goroutines at once.
//
// # Which connection a call uses
//
// A call uses the first connection, in the order in which they were added, that has room: a credit for the call and, if
// the call has ReadItems or WriteItems, not more than 1 MiB of such data outstanding including the call's. If none has
// room, it uses the one with the fewest calls outstanding. So small calls share a connection, which makes each of them
// cheaper, and bulk data is spread over all connections.
//
// A connection is added when, for 20 ms, each existing connection has had more than 1 MiB of bulk data outstanding, or
// has had calls waiting for credits while calls with a credit take longer than 2 ms on average.
//
// # Connections that are lost
//
// A call that has not been sent moves to another connection at once. Without one, all connections are retried, and
// addresses that have none are tried as well; the first to be established takes the call.
//
// A call that has been sent, and has no reply, may have been executed. It waits until the connection that it was sent
// on is made again, to the same address, and is sent again there, as [Client.Call] describes: the server's reply cache
// recognizes it by its xid and by the client's succession of connections, and answers without executing it twice. On
// another connection of the Group it would count as another client's call, so it does not move there unless
// ClientConfig.Idempotent allows it. If the address never comes back, a call that is not allowed to move ends with its
// context and a *LostError that says it may have been executed; with NoResend it ends at once.
//
// The same rule applies to a call that a credential such as those of package rpcsec repeats after a denial, because an
// attacker can forge the denial of a call that was executed. If its connection will not be made again, it ends with the
// *ClosedError of that connection.
//
// A lost connection is made again, with the pauses of a Client, when calls wait for it, or when the others are
// overloaded.
//
// When a server disappears silently, its connection is lost after ClientConfig.KeepAlive. Without KeepAlive it is given
// calls as long as it has room, like the connection of a single Client.
//
// # Configuration
//
// A connection has the ClientConfig of the Group, with these differences. Callbacks, Streams and OnReconnect apply only
// to the first connection: see [Group.First]. Added connections are closed after IdleTimeout without calls or, if that
// is zero, after 30 seconds. With NoReconnect they stay open, a lost connection is not made again, and the Group ends
// with its last connection.
//
// # Order
//
// As on one connection, concurrent calls are unordered. A canceled call may be executed after one that was made later.
type Group struct {
	provider fabric.Provider
	cfg      ClientConfig  // with its defaults filled in
	first    *ClientConfig // for the first member
	others   *ClientConfig
	most     int // members
	regions  *expose.Regions
	xids     *xids // for the calls of all members

	members atomic.Pointer[[]*member] // in the order in which they were added; they stay until the end
	growing atomic.Bool               // a goroutine is about to add one
	moved   atomic.Uint64             // calls that were sent, and made again on another connection

	mu     lockorder.Mutex
	turn   chan struct{} // closed and replaced with each new connection, and at the end
	err    error         // why no further connection is made
	places []place
	why    error // why the latest connection could not be added
	stuck  int   // callers that wait for any connection

	ctx     context.Context // ends with the group
	cancel  context.CancelFunc
	running sync.WaitGroup // goroutines that add a connection
	done    chan struct{}
	once    sync.Once
}

// A member is one of a Group's connections, with those that replace it.
type member struct {
	cl    *Client
	up    atomic.Bool  // it accepts calls, as far as is known
	calls atomic.Int32 // in flight
	bulk  atomic.Int64 // bytes of their items

	replies uint64 // when growAfter began; used by the goroutine that adds connections
}

// hasRoom reports whether m, which has the given number of calls, has room for a call with bulk bytes of items.
func (m *member) hasRoom(calls int32, bulk int64) bool {
	if int(calls) >= m.cl.latest().credits() {
		return false
	}
	if bulk == 0 {
		return true
	}
	before := m.bulk.Load()
	return before == 0 || before+bulk <= fullBulk
}

// mark records the state that busy compares with.
func (m *member) mark() { m.replies = m.cl.stats.sum().Replies }

// busy reports whether m is overloaded, growAfter after mark: it has more bulk data than it needs to be kept busy, or
// calls that wait for a credit. The latter only count if calls hold their credits for long. Calls that are answered
// immediately are no faster on two connections, and share less.
func (m *member) busy() bool {
	calls := m.calls.Load()
	if calls > 1 && m.bulk.Load() > fullBulk {
		return true
	}
	credits := m.cl.latest().credits()
	turns := uint64(credits) * uint64(growAfter/longCall)
	return int(calls) > credits && m.cl.stats.sum().Replies-m.replies < turns
}

func (m *member) count(calls int32, bulk int64) {
	m.calls.Add(calls)
	if bulk != 0 {
		m.bulk.Add(bulk)
	}
}

// list returns the members.
func (g *Group) list() []*member { return *g.members.Load() }

// pick returns the member for a call with the given number of bytes of items, nil if none has a connection.
func (g *Group) pick(bulk int64) *member {
	var least *member
	var fewest int32
	up := 0
	for _, m := range g.list() {
		if !m.up.Load() {
			continue
		}
		up++
		n := m.calls.Load()
		if m.hasRoom(n, bulk) {
			return m
		}
		if least == nil || n < fewest {
			least, fewest = m, n
		}
	}
	if least != nil && up < g.most && !g.growing.Load() {
		g.grow(true)
	}
	return least
}

// Call makes one call, as [Client.Call] does, on one of the connections.
func (g *Group) Call(ctx context.Context, call *rpc.Call) error {
	if rpc.IsInline(ctx) {
		return errInline
	}
	var bulk int64
	for i := range call.ReadItems {
		bulk += int64(call.ReadItems[i].Len())
	}
	for i := range call.WriteItems {
		bulk += int64(call.WriteItems[i].Len())
	}
	sent := false // on a connection that was lost
	p := pendingOf(call)
	var m *member
	if p.denied() {
		m, _ = p.via.(*member)
	}
	for ; ; m = nil {
		if m == nil {
			m = g.pick(bulk)
		}
		if m == nil {
			if err := g.await(ctx, sent); err != nil {
				return err
			}
			continue
		}
		p.via = m
		m.count(1, bulk)
		err := m.cl.Call(ctx, call)
		m.count(-1, -bulk)
		if err != errMoves {
			return stillSent(err, sent)
		}
		if p.sent {
			sent = true
			g.moved.Add(1)
		}
		g.look(m)
	}
}

// stillSent returns the error of a call that may have been sent before it was last made.
func stillSent(err error, before bool) error {
	if lost, ok := err.(*rpc.LostError); ok && before {
		lost.Sent = true
	}
	return err
}

// moves reports whether a call that has lost its connection is made on another.
func (g *Group) moves(call *pendingCall) bool {
	return !call.sent && !call.again || g.cfg.Idempotent != nil && g.cfg.Idempotent(call.Prog, call.Vers, call.Proc)
}

// await waits until there is a connection. It waits for the members' connections one after another, since one is
// enough, and then for an additional one.
func (g *Group) await(ctx context.Context, sent bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stuck++
	defer func() { g.stuck-- }()
	tick := time.NewTicker(tryNext)
	defer tick.Stop()
	for next := 0; ; {
		if g.err != nil {
			return g.err
		}
		all := g.list()
		for _, m := range all {
			if m.up.Load() {
				return nil
			}
		}
		for next < len(all) && all[next].cl.Err() != nil {
			next++ // it has ended permanently
		}
		turn := g.turn
		g.mu.Unlock()
		if next < len(all) {
			all[next].cl.link.wake()
			next++
		} else {
			g.grow(false)
		}
		var err error
		select {
		case <-turn:
		case <-tick.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		g.mu.Lock()
		if err != nil {
			return &rpc.LostError{Addr: g.addr(), Sent: sent, Err: err, Reason: g.trouble()}
		}
	}
}

// trouble returns why there is no connection, as far as the first member knows, or the goroutine that tried to add one.
// mu is held.
func (g *Group) trouble() error {
	if err := g.list()[0].cl.link.trouble(); err != nil {
		return err
	}
	return g.why
}

func (g *Group) addr() string {
	names := make([]string, len(g.places))
	for i := range g.places {
		names[i] = g.places[i].addr
	}
	return strings.Join(names, ", ")
}

// look determines whether m accepts calls.
func (g *Group) look(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := m.cl.latest()
	up := c != nil && c.lives() && !c.leaves()
	m.up.Store(up)
	if up {
		g.turned()
		return
	}
	for _, m := range g.list() {
		if m.cl.Err() == nil {
			return
		}
	}
	if all := g.list(); len(all) > 0 {
		g.end(all[0].cl.Err()) // no connection will be made again
		g.over()
	}
}

func (g *Group) turned() {
	close(g.turn)
	g.turn = make(chan struct{})
}

// end fails everything that waits for a connection, and all later calls. mu is held.
func (g *Group) end(err error) {
	if g.err != nil {
		return
	}
	g.err = err
	g.cancel()
	g.turned()
}

// over announces the group's end.
func (g *Group) over() { g.once.Do(func() { close(g.done) }) }

// First returns the Client of the first connection. The Group keeps owning it. The server's calls arrive on it, and
// ClientConfig.OnReconnect is called only for it. So the call that announces to a server that this end is ready for
// calls must be made with First, not with the Group. The other connections drop calls from the server. It is the one
// connection that a Group keeps open, unless IdleTimeout closes it. Closing it removes it from the Group.
func (g *Group) First() *Client { return g.list()[0].cl }

// OpenStream calls OpenStream of the first connection, which carries the Group's streams.
func (g *Group) OpenStream(ctx context.Context, call *rpc.Call) (*stream.Receiver, rpc.Conn, error) {
	return g.First().OpenStream(ctx, call)
}

// Null calls procedure 0, which every program answers.
func (g *Group) Null(ctx context.Context, prog, vers uint32) error {
	return g.Call(ctx, &rpc.Call{Prog: prog, Vers: vers})
}

// RegisterMemory is [Client.RegisterMemory] for all connections: mem is registered with the existing ones, and with
// others when calls first need it there.
func (g *Group) RegisterMemory(mem []byte) (*Memory, error) {
	return g.register(fabric.SGE{Buf: mem})
}

func (g *Group) register(mem fabric.SGE) (*Memory, error) {
	var conns []connection
	for _, m := range g.list() {
		conns = append(conns, m.cl.latest())
	}
	return registerWith(g.regions, mem, conns...)
}

// RegisterForeign is [Client.RegisterForeign] for all connections, as RegisterMemory is.
func (g *Group) RegisterForeign(mem fabric.Foreign) (*Memory, error) {
	return g.register(fabric.SGE{Foreign: &mem})
}

// Info returns what a connection agreed on: the first one that takes calls, or else the first one. Credits are the sum
// over all connections.
func (g *Group) Info() rpc.ConnInfo {
	all := g.list()
	of, credits := -1, 0
	for i, m := range all {
		if m.up.Load() {
			credits += m.cl.latest().credits()
			if of < 0 {
				of = i
			}
		}
	}
	if of < 0 {
		return all[0].cl.Info()
	}
	info := all[of].cl.Info()
	info.Credits = credits
	return info
}

// Stats returns the counters of all connections together, including those that have ended. Resent also counts calls
// that were made again on another connection.
func (g *Group) Stats() rpc.Stats {
	var sum rpc.Stats
	for _, m := range g.list() {
		s := m.cl.Stats()
		sum.Add(&s)
	}
	sum.Resent += g.moved.Load()
	return sum
}

// Done returns a channel that is closed when the Group has been closed, or when none of its connections will be made
// again. Err then returns why.
func (g *Group) Done() <-chan struct{} { return g.done }

// Err returns nil until Done is closed, and the *ClosedError afterwards.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// stop stops the goroutines that make connections, and returns the members.
func (g *Group) stop() []*member {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(&rpc.ClosedError{Addr: g.addr()})
	return g.list()
}

// Shutdown refuses new calls, waits until those in flight have returned, and closes all connections in order. If ctx
// ends first, it closes them at once and returns ctx's error.
func (g *Group) Shutdown(ctx context.Context) error {
	return g.finish(func(cl *Client) error { return cl.Shutdown(ctx) })
}

// Close ends all connections at once: calls in flight fail with *ClosedError. When it returns, no memory is exposed. It
// may be called more than once, and by any goroutine.
func (g *Group) Close() error { return g.finish((*Client).Close) }

func (g *Group) finish(end func(cl *Client) error) error {
	all := g.stop()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, m := range all {
		wg.Go(func() { errs[i] = end(m.cl) })
	}
	wg.Wait()
	g.running.Wait()
	g.over()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// settleGroup is settle for a Group with the given number of addresses.
func (cfg *ClientConfig) settleGroup(addrs int) (c ClientConfig, err error) {
	if c, _, err = cfg.settle(); err != nil {
		return c, err
	}
	setDefault(&c.Connections, defaultConnections)
	if err := within("ClientConfig", []limit{{"Connections", c.Connections, 1, MaxConnections}}); err != nil {
		return c, err
	}
	if addrs < 1 || addrs > MaxConnections {
		return c, fmt.Errorf("transport: %d addresses for a Group, want 1 to %d", addrs, MaxConnections)
	}
	return c, nil
}
