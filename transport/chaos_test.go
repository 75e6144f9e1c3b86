package transport_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Connections are cut at every step of a call's life, in both directions, and every call
// is executed once all the same.

// A cut is a place where a connection is cut: in front of a step, or after it.
type cut struct {
	name  string
	at    fabrictest.Point
	do    fabrictest.Action
	side  fabrictest.Side
	when  func(p fabrictest.Passage) bool // nil: always
	first bool                            // only the first such step of a connection
	seen  map[int]bool                    // connections that have had it
	made  int
}

// setupCuts are those of connections that are being made.
func setupCuts() []*cut {
	return []*cut{
		{name: "before Connect", at: fabrictest.AtConnect, do: fabrictest.Cut, side: fabrictest.Dialed},
		{name: "after Connect", at: fabrictest.AtConnect, do: fabrictest.Break, side: fabrictest.Dialed},
		{name: "request taken", at: fabrictest.AtTake, do: fabrictest.Break, side: fabrictest.Taken},
		{name: "before Accept", at: fabrictest.AtAccept, do: fabrictest.Cut, side: fabrictest.Taken},
		{name: "after Accept", at: fabrictest.AtAccept, do: fabrictest.Break, side: fabrictest.Taken},
		{name: "first call not posted", at: fabrictest.AtRequest, do: fabrictest.Cut, side: fabrictest.Dialed, when: isCall, first: true},
		{name: "first call posted", at: fabrictest.AtRequest, do: fabrictest.Break, side: fabrictest.Dialed, when: isCall, first: true},
		{name: "first call arrived", at: fabrictest.AtCompletion, do: fabrictest.Cut, side: fabrictest.Taken, when: isCall, first: true},
	}
}

// callCuts are those of calls that the caller's side makes.
func callCuts(way string, caller, callee fabrictest.Side) []*cut {
	request, completion := fabrictest.AtRequest, fabrictest.AtCompletion
	before, after := fabrictest.Cut, fabrictest.Break
	return []*cut{
		{name: way + " call not posted", at: request, do: before, side: caller, when: isCall},
		{name: way + " call posted", at: request, do: after, side: caller, when: isCall},
		{name: way + " call arrived", at: completion, do: before, side: callee, when: isCall},
		{name: way + " call received", at: completion, do: after, side: callee, when: isCall},
		{name: way + " Read not posted", at: request, do: before, side: callee, when: isOp(fabric.OpRead)},
		{name: way + " Read posted", at: request, do: after, side: callee, when: isOp(fabric.OpRead)},
		{name: way + " Read done", at: completion, do: after, side: callee, when: isRead},
		{name: way + " Write not posted", at: request, do: before, side: callee, when: isOp(fabric.OpWrite)},
		{name: way + " between two Writes", at: request, do: before, side: callee, when: isNextWrite},
		{name: way + " between Write and reply", at: request, do: before, side: callee, when: isPlacedReply},
		{name: way + " reply not posted", at: request, do: before, side: callee, when: isReply},
		{name: way + " reply posted", at: request, do: after, side: callee, when: isReply},
		{name: way + " reply arrived", at: completion, do: before, side: caller, when: isReply},
		{name: way + " reply received", at: completion, do: after, side: caller, when: isReply},
	}
}

func direction5531(msg []byte) (dir oncrpc.MsgType, ok bool) {
	var h rpcrdma.Header
	n, err := rpcrdma.ConsumeHeader(msg, &h, &bothVersions)
	switch {
	case len(msg) == 0 || err != nil:
		return 0, false
	case h.Proc == rpcrdma.ProcNomsg && len(h.Reads) > 0:
		return oncrpc.Call, true
	case h.Proc == rpcrdma.ProcNomsg:
		return oncrpc.Reply, true
	}
	_, dir, ok = oncrpc.Peek(msg[n:])
	return dir, ok
}

func isCall(p fabrictest.Passage) bool {
	dir, ok := direction5531(p.Message)
	return ok && dir == oncrpc.Call
}

func isReply(p fabrictest.Passage) bool {
	dir, ok := direction5531(p.Message)
	return ok && dir == oncrpc.Reply
}

func isOp(op fabric.Opcode) func(p fabrictest.Passage) bool {
	return func(p fabrictest.Passage) bool { return p.List[p.N].Op == op }
}

func isRead(p fabrictest.Passage) bool {
	return p.WC.Op == fabric.WCRead && p.WC.Status == fabric.WCSuccess
}

func isNextWrite(p fabrictest.Passage) bool {
	return p.N > 0 && p.List[p.N].Op == fabric.OpWrite && p.List[p.N-1].Op == fabric.OpWrite
}

func isPlacedReply(p fabrictest.Passage) bool {
	return p.N > 0 && p.List[p.N-1].Op == fabric.OpWrite && isReply(p)
}

// A fate decides which connection is cut next, and where. Two cuts are in wait at any time:
// one of a call, and one of the connection that comes after.
type fate struct {
	on   atomic.Bool
	over chan struct{} // closed when there have been enough

	// The provider calls match one at a time.
	rng   *rand.Rand
	left  int // cuts, less than 0 while a place has not been cut
	least int // where left ends then
	waits [2]struct {
		cuts []*cut
		turn []*cut // those that have not had their turn
		next *cut
		skip int
	}
}

func newFate(cuts int) (*fate, fabrictest.Plan) {
	f := &fate{over: make(chan struct{}), rng: rand.New(rand.NewPCG(1, 2)), left: cuts, least: -9 * cuts}
	f.waits[0].cuts = setupCuts()
	f.waits[1].cuts = append(callCuts("forward", fabrictest.Dialed, fabrictest.Taken), callCuts("backward", fabrictest.Taken, fabrictest.Dialed)...)
	var plan fabrictest.Plan
	for i := range f.waits {
		for _, c := range f.waits[i].cuts {
			c.seen = make(map[int]bool)
			plan = append(plan, fabrictest.Fault{At: c.at, Do: c.do, Side: c.side, Every: true,
				Match: func(p fabrictest.Passage) bool { return f.match(i, c, p) }})
		}
		f.choose(i)
	}
	return f, plan
}

// choose decides on the next cut of a kind: each has its turn.
func (f *fate) choose(i int) {
	w := &f.waits[i]
	if len(w.turn) == 0 {
		w.turn = append(w.turn, w.cuts...)
		f.rng.Shuffle(len(w.turn), func(a, b int) { w.turn[a], w.turn[b] = w.turn[b], w.turn[a] })
	}
	w.next, w.turn = w.turn[0], w.turn[1:]
	w.skip = f.rng.IntN([]int{8, 12}[i])
}

// match reports whether the connection is to be cut here.
func (f *fate) match(i int, c *cut, p fabrictest.Passage) bool {
	w := &f.waits[i]
	if c.first {
		if c.seen[p.Conn] || !c.when(p) {
			return false
		}
		c.seen[p.Conn] = true
	}
	if !f.on.Load() || w.next != c || !c.first && c.when != nil && !c.when(p) {
		return false
	}
	if w.skip--; w.skip >= 0 {
		return false
	}
	c.made++
	f.choose(i)
	if f.left--; f.left <= 0 && (f.everywhere() || f.left <= f.least) {
		f.on.Store(false)
		close(f.over)
	}
	return true
}

// everywhere reports whether each place has been cut.
func (f *fate) everywhere() bool {
	for i := range f.waits {
		if slices.ContainsFunc(f.waits[i].cuts, func(c *cut) bool { return c.made == 0 }) {
			return false
		}
	}
	return true
}

// A ledger counts executions, by the number of the errand.
type ledger struct {
	mu   sync.Mutex
	runs map[uint64]int
}

func (l *ledger) ran(no uint64) {
	l.mu.Lock()
	l.runs[no]++
	l.mu.Unlock()
}

// A result is the outcome of an errand for its caller.
type result struct {
	errand
	err     error
	hurried bool // its context had little time
}

// watch ends ctx when count does not change for so long that something hangs, and says what
// all goroutines do. It returns what ends it.
func (b *bed) watch(t *testing.T, count *atomic.Int64, cancel func()) (stop func()) {
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(b.patience())
		defer tick.Stop()
		for last, dead := int64(-1), false; ; {
			select {
			case <-tick.C:
			case <-stopped:
				return
			}
			now := count.Load()
			if now == last {
				buf := make([]byte, 8<<20)
				buf = buf[:runtime.Stack(buf, true)]
				if dead {
					panic("calls hang though their contexts have ended\n" + string(buf))
				}
				t.Errorf("nothing happens for %v after %d calls\n%s", b.patience(), now, buf)
				cancel()
				dead = true
			}
			last = now
		}
	})
	return func() { close(stopped); wg.Wait() }
}

// testChaos: BIDI-5.4-1 BIDI-5.4-3 BIDI-5.4-4 whatever connections are cut, and whenever,
// every call is executed once, or as often as its program allows, and answered.
func testChaos(t *testing.T, b *bed) {
	clients, callers, cuts := 12, 3, b.count(1000)
	real, live := b.provider(t)
	f, plan := newFate(cuts)
	p := fabrictest.Faulty(real, plan)
	ctx, cancel := context.WithCancel(bg)
	defer cancel()

	var calls atomic.Int64
	stop := b.watch(t, &calls, cancel)
	defer stop()

	// conns are all connections that were in use.
	var mu sync.Mutex
	var conns []*transport.Conn
	used := func(cn *transport.Conn) {
		mu.Lock()
		conns = append(conns, cn)
		mu.Unlock()
	}
	forward, backward := &ledger{runs: make(map[uint64]int)}, &ledger{runs: make(map[uint64]int)}
	backs := make([]*transport.Backchannel, clients)
	for i := range backs {
		backs[i] = transport.NewBackchannel()
	}
	cfg := transport.Settings{PeerChunks: transport.AllChunks, Credits: 6, BackwardCredits: 6, MaxSegment: 10_000, Logger: slog.New(slog.DiscardHandler),
		MaxPause: time.Millisecond, // no connection lives for long
		// A client may be away while the others make a thousand calls.
		ReplyCache: transport.ReplyCache{Entries: 1 << 20, Bytes: 1 << 30}}
	server := b.serve(t, p, cfg, &errander{
		ready: func(req *rpc.Request) {
			d := xdr.NewDecoder(req.Args)
			used(req.Conn().(*transport.Conn))
			if err := backs[d.Uint32()].Bind(req.Conn(), 0); err != nil && req.Conn().Err() == nil && ctx.Err() == nil {
				t.Error(err)
			}
		},
		ran: forward.ran,
	})
	cls := make([]*transport.Client, clients)
	var binding sync.WaitGroup
	for i := range cls {
		cfg := cfg
		back := &errander{ran: backward.ran}
		cfg.Callbacks = []rpc.Program{back.program()}
		ready := func(cl *transport.Client) {
			used(cl.Latest())
			call := rpc.Call{Prog: errands, Vers: 1, Proc: procReady, Args: xdr.AppendUint32(nil, uint32(i))}
			if err := cl.Call(ctx, &call); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
		cfg.OnReconnect = func(cl *transport.Client) {
			binding.Add(1)
			defer binding.Done()
			ready(cl)
		}
		cl, err := server.dial(ctx, t, p, cfg.Client())
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		cls[i] = cl
		ready(cl)
		if err := backs[i].Null(ctx, errands, 1); err != nil {
			t.Fatal(err) // the client is ready, and that is known
		}
	}

	f.on.Store(true)
	var results [2][]result
	var wg sync.WaitGroup
	for i := range clients {
		for way, w := range []way{cls[i].Call, backs[i].Call} {
			for g := range callers {
				wg.Go(func() {
					var r runner
					var mine []result
					seed := uint64(i*2+way)*100 + uint64(g)
					rng := rand.New(rand.NewPCG(seed, 3))
					for k := uint64(0); f.on.Load() && ctx.Err() == nil; k++ {
						e := wildErrand(rng, seed<<32|k)
						ctx, hurried, stop := ctx, rng.IntN(8) == 0, func() {}
						if hurried {
							ctx, stop = context.WithTimeout(ctx, time.Duration(b.slow*rng.IntN(3_000_000)))
						}
						err, wrong := r.run(ctx, w, e)
						stop()
						if wrong != nil {
							t.Error(wrong)
						}
						mine = append(mine, result{e, err, hurried})
						calls.Add(1)
					}
					mu.Lock()
					results[way] = append(results[way], mine...)
					mu.Unlock()
				})
			}
		}
	}
	wg.Wait()
	cancel()
	for _, cl := range cls {
		cl.Close()
	}
	for _, back := range backs {
		back.Close()
	}
	binding.Wait()
	server.Close()

	var resent, replayed uint64
	for _, cl := range cls {
		resent, replayed = resent+cl.Stats().Resent, replayed+cl.Stats().Replayed
	}
	t.Logf("%d calls; forward: %d sent again, %d replayed; backward: %d, %d", calls.Load(), resent, server.Stats().Replayed, server.Stats().Resent, replayed)
	for i, l := range []*ledger{forward, backward} {
		l.audit(t, []string{"forward", "backward"}[i], results[i], cuts)
	}
	for i := range f.waits {
		for _, c := range f.waits[i].cuts {
			t.Logf("%4d cuts: %s", c.made, c.name)
			if c.made == 0 {
				t.Errorf("no cut: %s", c.name)
			}
		}
	}
	for end := time.Now().Add(b.patience()); ; runtime.Gosched() {
		mapped := 0
		for _, cn := range conns {
			n, _ := transport.ArenaUse(cn)
			mapped += n
		}
		if mapped == 0 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("%d bytes are mapped after the end, of %d connections", mapped, len(conns))
			break
		}
	}
	live.check(t)
}

// audit compares what callers saw with what was executed.
func (l *ledger) audit(t *testing.T, way string, results []result, cuts int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost, late, twice, wrong := 0, 0, 0, 0
	for _, r := range results {
		least, most := 1, 1
		if r.proc == procAgain && !r.once {
			most = math.MaxInt
		}
		var le *rpc.LostError
		switch isLost := errors.As(r.err, &le); {
		case r.err == nil:
		case r.hurried && errors.Is(r.err, context.DeadlineExceeded):
			late++
			least = 0
			if isLost && !le.Sent {
				most = 0
			}
		case r.once && isLost && le.Sent && le.Err == nil:
			lost++
			least = 0
		default:
			least = math.MaxInt // no other error is right
		}
		runs := l.runs[r.no]
		if runs < least || runs > most {
			if wrong++; wrong <= 10 {
				t.Errorf("%s: %v (NoResend %v): executed %d times, %v", way, r.errand, r.once, runs, r.err)
			}
		}
		if runs > 1 {
			twice++
		}
		delete(l.runs, r.no)
	}
	if len(l.runs) > 0 {
		t.Errorf("%s: %d errands were executed that nobody sent", way, len(l.runs))
	}
	t.Logf("%s: of %d calls %d were lost, %d given up, %d executed again", way, len(results), lost, late, twice)
	if cuts >= 200 && (lost == 0 || late == 0 || twice == 0) {
		t.Errorf("%s: %d calls with NoResend were lost, %d given up, %d idempotent ones executed again", way, lost, late, twice)
	}
}

// wildErrand takes chunks of one kind or another, most of the time.
func wildErrand(rng *rand.Rand, no uint64) errand {
	e := errand{no: no, proc: procErrand + rng.Uint32N(3), in: rng.IntN(200), out: rng.IntN(200), once: rng.IntN(8) == 0}
	e.loose, e.placed = rng.IntN(2) == 0, rng.IntN(2) == 0
	if rng.IntN(2) == 0 {
		e.in = rng.IntN(50_000)
	}
	if rng.IntN(2) == 0 {
		e.out = rng.IntN(50_000)
	}
	return e
}

// TestIwarpRegistered checks an adapter that, like real devices, accepts only registered memory and has no windows.
func TestIwarpRegistered(t *testing.T) {
	b := onIwarp(iwarp.Config{})
	b.slow = 4
	open := b.open
	b.open = func() (fabric.Provider, live, error) {
		p, l, err := open()
		return registered{p}, l, err
	}
	for name, test := range map[string]func(*testing.T, *bed){"BothWays": testBothWays, "Chaos": testChaos} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			test(t, b)
		})
	}
}

// registered is a provider that hides what its connections can do beyond the necessary.
type registered struct{ fabric.Provider }

func (p registered) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	c, err := p.Provider.Resolve(ctx, addr, attr)
	return registeredConn{c}, err
}

func (p registered) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	l, err := p.Provider.Listen(ctx, addr, attr)
	return registeredListener{l}, err
}

type registeredListener struct{ fabric.Listener }

func (l registeredListener) Accept(ctx context.Context) (fabric.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	return registeredConn{c}, err
}

type registeredConn struct{ fabric.Conn }

func (c registeredConn) Capabilities() fabric.Capabilities {
	caps := c.Conn.Capabilities()
	caps.LocalDMA, caps.MemoryWindows, caps.RemoteInvalidate = false, false, false
	return caps
}

// testFirstCall: BIDI-6-2 a connection that ends on the first call to a client shows that the client
// was not ready, if it was the client that ended it.
func testFirstCall(t *testing.T, b *bed) {
	for name, tt := range map[string]struct {
		cut   fabrictest.Fault
		ready bool
	}{
		"the client does not read it":     {fabrictest.Fault{At: fabrictest.AtCompletion, Do: fabrictest.Cut, Side: fabrictest.Dialed, Match: isCall}, false},
		"the client ends when it has it":  {fabrictest.Fault{At: fabrictest.AtCompletion, Do: fabrictest.Break, Side: fabrictest.Dialed, Match: isCall}, false},
		"the server ends in front of it":  {fabrictest.Fault{At: fabrictest.AtRequest, Do: fabrictest.Cut, Side: fabrictest.Taken, Match: isCall}, true},
		"the server ends when it is sent": {fabrictest.Fault{At: fabrictest.AtRequest, Do: fabrictest.Break, Side: fabrictest.Taken, Match: isCall}, true},
	} {
		t.Run(name, func(t *testing.T) {
			real, live := b.provider(t)
			t.Cleanup(func() {
				// siw: after a client has given up in the middle of its set-up, its connection may still
				// be going away at the server.
				for end := time.Now().Add(b.patience()); time.Now().Before(end); runtime.Gosched() {
					if conns, _, _ := live(); conns == 0 {
						break
					}
				}
				live.check(t)
			})
			p := fabrictest.Faulty(real, fabrictest.Plan{tt.cut})
			ctx, cancel := context.WithTimeout(bg, b.patience())
			defer cancel()
			back := transport.NewBackchannel()
			var notReady *rpc.NotReadyError
			sv := b.serve(t, p, transport.Settings{}, &errander{ready: func(req *rpc.Request) {
				err := back.Bind(req.Conn(), 0)
				late := errors.Is(err, net.ErrClosed) // the connection ended before this handler ran
				if err != nil && !late && (tt.ready || !errors.As(err, new(*rpc.NotReadyError))) {
					t.Error(err)
				}
			}})
			var end sync.Mutex
			over := false // OnReconnect may run after the test
			defer func() {
				end.Lock()
				over = true
				end.Unlock()
			}()
			ready := func(cl *transport.Client) {
				err := cl.Call(ctx, &rpc.Call{Prog: errands, Vers: 1, Proc: procReady})
				end.Lock()
				defer end.Unlock()
				if err != nil && !errors.Is(err, net.ErrClosed) && !over {
					t.Error(err)
				}
			}
			ran := &ledger{runs: make(map[uint64]int)}
			cl, err := sv.dial(ctx, t, p, (&transport.Settings{Callbacks: []rpc.Program{(&errander{ran: ran.ran}).program()}, OnReconnect: ready}).Client())
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			ready(cl)
			var r runner
			err = errors.Join(r.run(ctx, back.Call, errand{no: 1, proc: procErrand}))
			ran.mu.Lock()
			defer ran.mu.Unlock()
			switch {
			case tt.ready && (err != nil || ran.runs[1] != 1):
				t.Errorf("executed %d times, %v", ran.runs[1], err)
			case !tt.ready && (!errors.As(err, &notReady) || !notReady.Dropped):
				t.Errorf("the call returned %v", err)
			}
			if p.Struck(0) != 1 {
				t.Errorf("%d cuts", p.Struck(0))
			}
		})
	}
}

// A deaf provider can keep its first connection at the server from noticing data, and its end.
type deaf struct {
	fabric.Provider
	first *deafConn
}

func (p *deaf) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	l, err := p.Provider.Listen(ctx, addr, attr)
	return &deafListener{l, p}, err
}

type deafListener struct {
	fabric.Listener
	p *deaf
}

func (l *deafListener) Accept(ctx context.Context) (fabric.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil || l.p.first != nil {
		return c, err
	}
	l.p.first = &deafConn{Conn: c, wake: make(chan struct{}, 1)}
	return l.p.first, nil
}

type deafConn struct {
	fabric.Conn
	wake chan struct{}
	ears atomic.Int32
}

const (
	hearsAll = iota
	hearsNothing
	hearsNoEnd // and all that came before it
)

func (c *deafConn) listen(ears int32) {
	c.ears.Store(ears)
	c.Wake()
}

func (c *deafConn) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
	c.Conn.Wake()
}

func (c *deafConn) Poll(wcs []fabric.WC) (n int, err error) {
	if c.ears.Load() != hearsNothing {
		n, err = c.Conn.Poll(wcs)
	}
	if c.ears.Load() != hearsAll && n == 0 {
		err = nil
	}
	return n, err
}

func (c *deafConn) Wait() error {
	if c.ears.Load() != hearsNothing {
		if err := c.Conn.Wait(); err == nil || c.ears.Load() == hearsAll {
			return err
		}
	}
	<-c.wake
	return nil
}

func (c *deafConn) Close() error {
	err := c.Conn.Close()
	c.listen(hearsAll)
	return err
}

// testLateEnd: BIDI-5.4-1 the server learns late that a connection has ended, when its calls go
// over the next one already. Those that it sends on the old one even then, and has to send
// again, are not in the way of others.
func testLateEnd(t *testing.T, b *bed) {
	real, live := b.provider(t)
	t.Cleanup(func() { live.check(t) })
	p := &observed{Provider: &deaf{Provider: real}, t: t}
	ctx, cancel := context.WithTimeout(bg, 2*b.patience())
	defer cancel()
	binds := make(chan *transport.Conn, 2)
	credits := 2
	back := transport.NewBackchannel()
	server := b.serve(t, p, transport.Settings{}, &errander{ready: func(req *rpc.Request) {
		if err := back.Bind(req.Conn(), credits); err != nil {
			t.Error(err)
		}
		credits = 8
		binds <- req.Conn().(*transport.Conn)
	}})
	met, leave := make(chan struct{}), make(chan struct{})
	client := &errander{meet: func(context.Context) { met <- struct{}{}; <-leave }}
	ready := func(cl *transport.Client) {
		if err := cl.Call(ctx, &rpc.Call{Prog: errands, Vers: 1, Proc: procReady}); err != nil {
			t.Error(err)
		}
	}
	cl, err := server.dial(ctx, t, p, (&transport.Settings{Callbacks: []rpc.Program{client.program()}, OnReconnect: ready}).Client())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ready(cl)
	old := <-binds
	run := func(no uint64, proc uint32) chan error {
		done := make(chan error, 1)
		go func() {
			var r runner
			done <- errors.Join(r.run(ctx, back.Call, errand{no: no, proc: proc}))
		}()
		return done
	}
	until := func(cond func() bool) {
		for !cond() && ctx.Err() == nil {
			runtime.Gosched()
		}
	}
	if err := back.Null(ctx, errands, 1); err != nil {
		t.Fatal(err)
	}

	// Two calls are answered, but the server does not see it, and so two more wait for credits.
	ears := p.Provider.(*deaf).first
	ears.listen(hearsNothing)
	calls := []chan error{run(1, procErrand), run(2, procErrand)}
	o := p.conns[0]
	until(func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.peers.calls == 3 && len(o.peers.out) == 0
	})
	calls = append(calls, run(3, procErrand), run(4, procErrand))
	until(func() bool { return transport.InLine(old) == 2 })

	cl.Latest().Close()
	<-binds
	if err := back.Null(ctx, errands, 1); err != nil {
		t.Fatal(err)
	}
	underway := []chan error{run(5, procMeet), run(6, procMeet)}
	<-met
	<-met
	before := server.Stats().Calls
	ears.listen(hearsNoEnd)
	until(func() bool { return server.Stats().Calls >= before+2 }) // those in line are not any more
	ears.listen(hearsAll)
	for _, done := range calls {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	close(leave)
	for _, done := range underway {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// testStuck: a call that its caller cancels, with memory that cannot be closed in time, costs the
// connection, and no other call.
func testStuck(t *testing.T, b *bed) {
	real, live := b.provider(t)
	t.Cleanup(func() { live.check(t) })
	p := &deaf{Provider: real}
	ctx, cancel := context.WithTimeout(bg, 2*b.patience())
	defer cancel()
	back := transport.NewBackchannel()
	cfg := transport.Settings{PeerChunks: transport.AllChunks}
	sv := b.serve(t, p, cfg, &errander{ready: func(req *rpc.Request) {
		if err := back.Bind(req.Conn(), 0); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}})
	met, leave := make(chan struct{}), make(chan struct{})
	client := &errander{meet: func(context.Context) { met <- struct{}{}; <-leave }}
	ready := func(cl *transport.Client) {
		if err := cl.Call(ctx, &rpc.Call{Prog: errands, Vers: 1, Proc: procReady}); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	cfg.Callbacks, cfg.OnReconnect = []rpc.Program{client.program()}, ready
	cl, err := sv.dial(ctx, t, p, cfg.Client())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ready(cl)
	if err := back.Null(ctx, errands, 1); err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, e errand) chan error {
		done := make(chan error, 1)
		go func() {
			var r runner
			done <- errors.Join(r.run(ctx, back.Call, e))
		}()
		<-met
		return done
	}
	short, giveUp := context.WithCancel(ctx)
	given := run(short, errand{no: 1, proc: procMeet, out: 20_000, placed: true})
	other := run(ctx, errand{no: 2, proc: procMeet})
	p.first.listen(hearsNothing)
	giveUp()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("the call that was given up returned %v", err)
	}
	p.first.listen(hearsAll) // where memory closes without a request the connection lives
	close(leave)
	if err := <-other; err != nil {
		t.Errorf("the other call: %v", err)
	}
}

// testLateBind: a handler that binds a connection which has ended does not take calls away
// from the one that is bound.
func testLateBind(t *testing.T, b *bed) {
	p, live := b.provider(t)
	t.Cleanup(func() { live.check(t) })
	ctx, cancel := context.WithTimeout(bg, b.patience())
	defer cancel()
	binds := make(chan *transport.Conn, 2)
	sv := b.serve(t, p, transport.Settings{}, &errander{ready: func(req *rpc.Request) { binds <- req.Conn().(*transport.Conn) }})
	ready := func(cl *transport.Client) {
		if err := cl.Call(ctx, &rpc.Call{Prog: errands, Vers: 1, Proc: procReady}); err != nil {
			t.Error(err)
		}
	}
	again := make(chan struct{}) // closed when the next connection's call has returned
	returned := sync.OnceFunc(func() { close(again) })
	cl, err := sv.dial(ctx, t, p, (&transport.Settings{Callbacks: []rpc.Program{new(errander).program()},
		OnReconnect: func(cl *transport.Client) {
			ready(cl)
			returned()
		}}).Client())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ready(cl)
	old := <-binds
	cl.Latest().Close()
	next := <-binds
	<-old.Done()
	back := transport.NewBackchannel()
	if err := back.Bind(next, 0); err != nil {
		t.Fatal(err)
	}
	if err := back.Bind(old, 0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Bind of a connection that has ended returned %v", err)
	}
	if err := back.Null(ctx, errands, 1); err != nil {
		t.Error(err)
	}
	<-again
}
