package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Calls in both directions at once (RFC 8167), on a connection of which every message is
// looked at.

// The program of errands, which both ends execute.
//
//	arguments  number of the errand, bytes wanted back, opaque
//	results    number of the errand, opaque
const (
	errands    = prog + 200
	procReady  = 1 // the caller is ready for calls on this connection
	procErrand = 2
	procQuick  = 3 // an errand that runs inline
	procAgain  = 4 // an errand that may run again
	procMeet   = 5 // an errand that waits for one that comes the other way
)

// An errander executes errands.
type errander struct {
	ready func(req *rpc.Request)
	ran   func(no uint64)
	meet  func(ctx context.Context)
}

func (e *errander) program() rpc.Program {
	return rpc.Program{
		Number: errands, Low: 1, High: 1, Handler: e,
		Inline:     func(_, proc uint32) bool { return proc == procQuick },
		Idempotent: func(_, proc uint32) bool { return proc == procReady || proc == procAgain },
	}
}

func (e *errander) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	if req.Proc == procReady {
		e.ready(req)
		return
	}
	d := xdr.NewDecoder(req.Args)
	no, n, data := d.Uint64(), d.Uint32(), d.Opaque(1<<30)
	if d.End() != nil || !bytes.Equal(data, block(no, len(data))) {
		res.Fail(oncrpc.GarbageArgs)
		return
	}
	if req.Proc == procMeet {
		e.meet(ctx)
	}
	if e.ran != nil {
		e.ran(no)
	}
	res.Results = xdr.AppendUint64(res.Results, no)
	out := res.Alloc(int(n))
	if copy(out, block(no+1, int(n))) < int(n) {
		res.Fail(oncrpc.SystemErr)
	}
	res.AddItem(out, nil)
}

// A way is one direction of calls on a connection.
type way func(context.Context, *rpc.Call) error

// An errand is a call, by how much it moves and how.
type errand struct {
	no      uint64
	proc    uint32
	in, out int  // bytes
	loose   bool // the argument may be a read chunk
	placed  bool // the result may be in a write chunk
	once    bool // NoResend
}

func (e errand) String() string {
	return fmt.Sprintf("errand %d, procedure %d, %d bytes in (loose: %v), %d out (placed: %v)", e.no, e.proc, e.in, e.loose, e.out, e.placed)
}

// A runner runs errands, one after the other.
type runner struct {
	call rpc.Call
	buf  []byte
}

// run makes the call of an errand. A second error means that what came back is wrong.
func (r *runner) run(ctx context.Context, w way, e errand) (err, wrong error) {
	call := &r.call
	call.Prog, call.Vers, call.Proc = errands, 1, e.proc
	call.Args = xdr.AppendUint32(xdr.AppendUint64(call.Args[:0], e.no), uint32(e.out))
	call.NoResend = e.once
	call.ReadItems, call.WriteItems, call.MaxResults = call.ReadItems[:0], call.WriteItems[:0], 12
	if e.loose {
		call.Args = xdr.AppendUint32(call.Args, uint32(e.in))
		call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: len(call.Args), Data: block(e.no, e.in)})
	} else {
		call.Args = xdr.AppendOpaque(call.Args, block(e.no, e.in))
	}
	if e.placed && e.out > 0 {
		r.buf = append(r.buf[:0], make([]byte, e.out)...)
		call.WriteItems = append(call.WriteItems, rpc.WriteItem{Buf: r.buf})
	} else {
		call.MaxResults += xdr.Padded(e.out)
	}
	if err := w(ctx, call); err != nil {
		return err, nil
	}
	d := xdr.NewDecoder(call.Results)
	no := d.Uint64()
	var got []byte
	if len(call.WriteItems) > 0 && call.WriteItems[0].Chunked {
		got = r.buf[:min(int(d.Uint32()), len(r.buf))]
	} else {
		got = d.Opaque(1 << 30)
	}
	if d.End() != nil || no != e.no || !bytes.Equal(got, block(e.no+1, e.out)) {
		wrong = fmt.Errorf("%v: %d bytes came back for errand %d (%v)", e, len(got), no, d.End())
	}
	return nil, wrong
}

const longestErrand = 1 << 17

var blocks = func() []byte { // immutable
	b := make([]byte, longestErrand+1024)
	fill(b, 1)
	return b
}()

// block is the data of an errand.
func block(no uint64, n int) []byte { return blocks[no%1021:][:n:n] }

// A station is a server of errands.
type station struct {
	*transport.Server
	b      *bed
	addr   string
	listen func()
}

// serve has a server execute errands on p until the test ends.
func (b *bed) serve(t testing.TB, p fabric.Provider, cfg transport.Settings, e *errander) *station {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	s, err := transport.NewServer(cfg.Server())
	if err == nil {
		err = s.Register(e.program())
	}
	if err != nil {
		t.Fatal(err)
	}
	sv := &station{Server: s, b: b}
	var served []chan error
	sv.listen = func() {
		t.Helper()
		l, err := s.Listen(bg, p, b.addr)
		if err != nil {
			t.Fatal(err)
		}
		sv.addr = l.Addr().String()
		done := make(chan error, 1)
		served = append(served, done)
		go func() { done <- s.Serve(l) }()
	}
	t.Cleanup(func() {
		s.Close()
		for _, done := range served {
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Serve returned %v", err)
			}
		}
	})
	sv.listen()
	return sv
}

// dial is transport.Dial, once more if the listener has been lost.
func (sv *station) dial(ctx context.Context, t testing.TB, p fabric.Provider, cfg *transport.ClientConfig) (*transport.Client, error) {
	t.Helper()
	cl, err := transport.Dial(ctx, p, sv.addr, cfg)
	if sv.b.loses && errors.Is(err, syscall.ECONNREFUSED) {
		t.Logf("once more, with another listener: %v", err)
		sv.listen()
		cl, err = transport.Dial(ctx, p, sv.addr, cfg)
	}
	return cl, err
}

// An observed provider looks at all that its connections send and receive.
type observed struct {
	fabric.Provider
	t     testing.TB
	mu    sync.Mutex
	conns []*observedConn
}

func (p *observed) add(c fabric.Conn, err error) (fabric.Conn, error) {
	if err != nil {
		return nil, err
	}
	o := &observedConn{Conn: c, p: p}
	for _, d := range []*direction{&o.own, &o.peers} {
		d.out, d.grant = make(map[uint32]bool), 1 // RFC 8166 section 3.3.3
	}
	p.mu.Lock()
	p.conns = append(p.conns, o)
	p.mu.Unlock()
	return o, nil
}

func (p *observed) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	return p.add(p.Provider.Resolve(ctx, addr, attr))
}

func (p *observed) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	l, err := p.Provider.Listen(ctx, addr, attr)
	return &observedListener{l, p}, err
}

type observedListener struct {
	fabric.Listener
	p *observed
}

func (l *observedListener) Accept(ctx context.Context) (fabric.Conn, error) {
	return l.p.add(l.Listener.Accept(ctx))
}

// An observedConn is one end of a connection. It keeps the accounts of both directions, as
// this end knows them: of its own calls from when they are posted until their replies are
// polled, of the peer's from when they are polled until their replies are posted.
type observedConn struct {
	fabric.Conn
	p *observed

	mu         sync.Mutex // held over posting and over looking at completions
	hdr        rpcrdma.Header
	rq         []fabric.RecvWR // posted and not completed
	own, peers direction
	same       int // times when both directions had a call with the same xid
	chunks     int // messages with chunks
	wrong      int
}

// A direction is the calls of one end.
type direction struct {
	out   map[uint32]bool // under way, by xid
	grant int             // the latest
	most  int             // under way at once
	calls int
}

func (o *observedConn) wrongf(format string, args ...any) {
	if o.wrong++; o.wrong <= 10 {
		o.p.t.Errorf("%v: %s", o.LocalAddr(), fmt.Sprintf(format, args...))
	}
}

func (o *observedConn) PostRecv(wrs []fabric.RecvWR) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.Conn.PostRecv(wrs)
	if err == nil {
		o.rq = append(o.rq, wrs...)
	}
	return err
}

func (o *observedConn) Post(wrs []fabric.SendWR) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.Conn.Post(wrs); err != nil {
		return err
	}
	for i := range wrs {
		if wrs[i].Op == fabric.OpSend || wrs[i].Op == fabric.OpSendInv {
			o.message(wrs[i].SGL[0].Buf, &o.own, &o.peers)
			// Messages that may still come: calls that are granted, and replies.
			if need := o.peers.grant - len(o.peers.out) + len(o.own.out); len(o.rq) < need {
				o.wrongf("%d receives posted, want %d", len(o.rq), need)
			}
		}
	}
	return nil
}

func (o *observedConn) Poll(wcs []fabric.WC) (int, error) {
	n, err := o.Conn.Poll(wcs)
	if n > 0 {
		o.mu.Lock()
		defer o.mu.Unlock()
	}
	for i := range wcs[:n] {
		if wc := &wcs[i]; wc.Op == fabric.WCRecv && wc.Status == fabric.WCSuccess {
			buf := o.rq[0].SGE.Buf[:wc.Len]
			o.rq = append(o.rq[:0], o.rq[1:]...)
			o.message(buf, &o.peers, &o.own)
		}
	}
	return n, err
}

// message accounts for a message that is a call of one direction, or a reply of the other.
func (o *observedConn) message(b []byte, calls, replies *direction) {
	h := &o.hdr
	n, err := rpcrdma.ConsumeHeader(b, h, &bothVersions)
	if err != nil {
		o.wrongf("header: %v", err)
		return
	}
	xid, dir, ok := oncrpc.Peek(b[n:])
	switch h.Proc {
	case rpcrdma.ProcNomsg:
		xid, dir, ok = h.XID, oncrpc.Reply, true
		if len(h.Reads) > 0 {
			dir = oncrpc.Call
		}
	case rpcrdma.ProcMsg:
	case rpcrdma.ProcOptional: // the properties, which are offered and accepted
		p, err := rpcrdma.ConsumeProperties(h.OptInfo)
		xid, dir, ok = h.XID, oncrpc.Reply, err == nil
		if p.Dir == rpcrdma.PropOffer {
			dir = oncrpc.Call
		}
	default:
		ok = false
	}
	if !ok || xid != h.XID || h.Credit == 0 {
		o.wrongf("%v with xid %#x and %d credits, around a message with xid %#x", h.Proc, h.XID, h.Credit, xid)
		return
	}
	if len(h.Reads)+len(h.Writes) > 0 || h.HasReply {
		o.chunks++
	}
	if dir == oncrpc.Call {
		if calls.out[xid] {
			o.wrongf("two calls with xid %#x", xid)
		}
		calls.out[xid] = true
		calls.calls++
		calls.most = max(calls.most, len(calls.out))
		if len(calls.out) > calls.grant {
			o.wrongf("%d calls under way, %d were granted", len(calls.out), calls.grant)
		}
		if replies.out[xid] {
			o.same++
		}
		return
	}
	if !replies.out[xid] {
		o.wrongf("a reply to no call, xid %#x", xid)
	}
	delete(replies.out, xid)
	if int(h.Credit) < replies.grant {
		// That is allowed, but then calls may be on their way that it does not cover.
		o.wrongf("the grant falls from %d to %d", replies.grant, h.Credit)
	}
	replies.grant = int(h.Credit)
}

var bothVersions = rpcrdma.Limits{Versions: rpcrdma.Range{Low: 1, High: 2}} // immutable

// footprint is the memory and the goroutines of the process.
type footprint struct{ heap, mapped, buffers, mrs, mws, goroutines int }

// testBothWays: BIDI-2.3-1 BIDI-2.4.1-1 BIDI-4.1-1 BIDI-4.3.2-2a BIDI-4.3.2-2b calls in both
// directions at once, with the same xids; the credits of neither are exceeded, and nothing
// grows.
func testBothWays(t *testing.T, b *bed) {
	n := b.count(100_000)
	switch {
	case b.slow > 1:
		n = 2000
	case raceEnabled:
		n = 5000
	}
	t.Run("backward calls without chunks", func(t *testing.T) { b.bothWays(t, transport.LinuxChunks, n) })
	t.Run("chunks in both directions", func(t *testing.T) { b.bothWays(t, transport.AllChunks, n) })
}

func (b *bed) bothWays(t *testing.T, peer transport.PeerChunks, calls int) {
	const credits, callers, rounds = 8, 12, 20
	real, live := b.provider(t)
	t.Cleanup(func() { live.check(t) })
	p := &observed{Provider: real, t: t}
	met := make(chan struct{})
	conns := make(chan *transport.Conn, 1)
	cfg := transport.Settings{Credits: credits, BackwardCredits: credits, PeerChunks: peer, ReplyCache: transport.ReplyCache{Entries: 64, Bytes: 1 << 20}}
	sv := b.serve(t, p, cfg, &errander{
		ready: func(req *rpc.Request) { conns <- req.Conn().(*transport.Conn) },
		meet: func(ctx context.Context) {
			select {
			case met <- struct{}{}:
			case <-ctx.Done():
			}
		},
	})
	back := &errander{meet: func(ctx context.Context) {
		select {
		case <-met:
		case <-ctx.Done():
		}
	}}
	cfg.Callbacks = []rpc.Program{back.program()}
	cl, err := sv.dial(bg, t, p, transport.Once(&cfg).Client())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	ctx, cancel := context.WithTimeout(bg, 10*b.patience())
	defer cancel()
	if err := cl.Call(ctx, &rpc.Call{Prog: errands, Vers: 1, Proc: procReady}); err != nil {
		t.Fatal(err)
	}
	cn := <-conns
	cn.AllowBackward(0)

	ways := []way{cl.Call, cn.Call}
	round := func(round int) {
		if !transport.SameXIDs(cl, cn) {
			t.Fatal("calls are under way between two rounds")
		}
		var wg sync.WaitGroup
		for _, w := range ways {
			wg.Go(func() { // both are under way for certain
				var r runner
				if err := errors.Join(r.run(ctx, w, errand{proc: procMeet})); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i, w := range ways {
			chunks := i == 0 || peer == transport.AllChunks
			var next atomic.Int64
			for g := range callers {
				wg.Go(func() {
					var r runner
					rng := rand.New(rand.NewPCG(uint64(round), uint64(2*g+i)))
					for next.Add(1) <= int64(calls/rounds) {
						if err := errors.Join(r.run(ctx, w, randomErrand(rng, rng.Uint64(), chunks))); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
	}
	measure := func() (f footprint) {
		// Memory held by replies comes back with their completions, which may be late.
		for end := time.Now().Add(b.patience()); ; runtime.Gosched() {
			_, c := transport.ArenaUse(cl.Latest())
			_, s := transport.ArenaUse(cn)
			if f.buffers = c + s; f.buffers < 200 || time.Now().After(end) {
				break
			}
		}
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		c, _ := transport.ArenaUse(cl.Latest())
		s, _ := transport.ArenaUse(cn)
		f.heap, f.mapped, f.goroutines = int(m.HeapAlloc), c+s, runtime.NumGoroutine()
		_, f.mrs, f.mws = live()
		return f
	}
	var quarter footprint
	for i := range rounds {
		round(i)
		if i == rounds/4 {
			quarter = measure()
		}
		if t.Failed() {
			return
		}
	}
	end := measure()
	t.Logf("after a quarter %+v, at the end %+v", quarter, end)
	for _, g := range []struct {
		what               string
		before, now, slack int
	}{
		{"bytes of heap", quarter.heap, end.heap, 1 << 20},
		{"bytes mapped", quarter.mapped, end.mapped, quarter.mapped/2 + 1<<20},
		{"buffers in use", quarter.buffers, end.buffers, 100},
		{"regions", quarter.mrs, end.mrs, 2 * credits},
		{"windows", quarter.mws, end.mws, 8 * credits},
		{"goroutines", quarter.goroutines, end.goroutines, 2 * callers},
	} {
		if g.now > g.before+g.slack {
			t.Errorf("%d %s after a quarter, %d at the end", g.before, g.what, g.now)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.conns {
		o.mu.Lock()
		t.Logf("%v: calls %d and %d, most %d and %d, granted %d and %d, same xid %d times, %d messages with chunks", o.LocalAddr(),
			o.own.calls, o.peers.calls, o.own.most, o.peers.most, o.own.grant, o.peers.grant, o.same, o.chunks)
		if o.own.most != credits || o.peers.most < 2 {
			t.Errorf("%d own calls and %d of the peer were under way at once, want %d", o.own.most, o.peers.most, credits)
		}
		if o.own.calls < calls || o.peers.calls < calls || o.same < rounds {
			t.Errorf("calls %d and %d, same xid %d times", o.own.calls, o.peers.calls, o.same)
		}
		if o.chunks == 0 {
			t.Error("no chunks")
		}
		o.mu.Unlock()
	}
	if len(p.conns) != 2 {
		t.Errorf("%d ends of connections", len(p.conns))
	}
}

// randomErrand is small, most of the time.
func randomErrand(rng *rand.Rand, no uint64, chunks bool) errand {
	e := errand{no: no, proc: procErrand + rng.Uint32N(3), in: rng.IntN(200), out: rng.IntN(200), loose: chunks && rng.IntN(2) == 0, placed: chunks && rng.IntN(2) == 0}
	most := 3800
	if chunks {
		most = 1 << 15
	}
	if rng.IntN(8) == 0 {
		e.in = rng.IntN(most)
	}
	if rng.IntN(8) == 0 {
		e.out = rng.IntN(most)
	}
	return e
}
