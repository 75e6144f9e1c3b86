package transport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/simfabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The simulation: client and server over a simulated adapter, in fake time, and a model that
// says what each call must have done.
//
//   - A call that succeeds has been executed, with the arguments of the caller, and its
//     results, byte for byte, are those of one of its executions.
//   - A call that is not idempotent is executed at most once by one server, as long as the reply
//     cache holds it; one with NoResend at most once at all; one with an error that says that it was
//     not sent, never.
//   - A call that fails does so with an error that its documentation names, and that the history
//     explains. No error accuses the peer of breaking the protocol.
//   - When the context of a call ends, the call returns soon after.
//   - When a call has returned, no handle that was ever given out for it opens anything, and its
//     memory is not written to any more; nor is the memory beside it.
//   - There is a receive for every Send at the moment when it is posted, and the other rules
//     of simfabric are kept.
//   - When nothing goes wrong any more, everybody can use all credits, and when nothing is
//     under way nothing is held. In the end nothing is left: goroutines, connections, regions,
//     windows, arenas, items that were not released.
const (
	simProg = 0x20000001
	simBack = 0x20000002

	simWork   = 1
	simSafe   = 2
	simQuick  = 3
	simOption = 0x51

	simReady = 4 // the client is ready for calls

	simAddr  = "10.0.0.1:2049"
	simGuard = 16 // bytes of canary beside each item

	// simLate is how long after the end of its context a call may return: what a fence may
	// take, and then the connection.
	simLate = 1100 * time.Millisecond
)

var errInjected = errors.New("injected fault")

// A simResult is the outcome of a history.
type simResult struct {
	Wrong  []string
	Hash   uint64 // of all that has happened
	Calls  int
	Unmade int    // of them, how many were never executed
	Resent uint64 // by clients
	Cuts   int
	Struck map[string]int // faults, by kind
}

type simWorld struct {
	h   *simHistory
	f   *simfabric.Fabric
	log func(format string, args ...any) // nil: no log

	mu      sync.Mutex
	wrong   []string
	calm    bool // no faults from here on
	sum     uint64
	start   time.Time
	seen    []int // of each fault, how often its event has occurred
	memory  bool  // a registration has failed
	gaveUp  bool  // a call's context has ended
	struck  map[string]int
	cuts    int
	ops     map[int]*simCall
	handles map[uint32][]simHandle // given out with an xid
	windows map[int]*simWindow     // by connection
	conns   []rpc.Conn             // that handlers have seen
	lives   []*simLife
	clients []*simClient
	scraps  []simScrap // memory that may not be written any more
	leases  int        // items that are not released
	resent  uint64
	made    uint64 // ends
	pairs   pairs  // what the ends report of their calls and connections
}

type simHandle struct {
	conn int
	side simfabric.Side
	seg  fabric.Segment
}

// A simScrap is memory and what it holds from now on.
type simScrap struct {
	what string
	mem  []byte
	fill byte
}

// A simLife is a server from its start to its end.
type simLife struct {
	n    int
	srv  *transport.Server
	up   bool
	done chan struct{}
	back []*transport.Backchannel // by client
}

// A simClient is a client from its start to its end.
type simClient struct {
	i      int
	cfg    *simEnd
	cl     *transport.Client
	closed bool
	mem    []byte // where items lie, if it is registered
	used   int
	memory *transport.Memory
}

// A simCall is an operation that is a call, and what is known of it.
type simCall struct {
	*simOp
	execs   []simExec
	unsent  bool // an error has said so
	client  *simClient
	probing bool
}

// A simExec is one execution of a call.
type simExec struct {
	by int // number of the server's life, or, negative, of the client
	n  int
}

func (w *simWorld) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failLocked(format, args...)
}

func (w *simWorld) failLocked(format string, args ...any) {
	what := fmt.Sprintf("%v: ", time.Since(w.start)) + fmt.Sprintf(format, args...)
	if len(w.wrong) < 20 {
		w.wrong = append(w.wrong, what)
	}
	w.noteLocked("WRONG: %s", what)
}

// note adds to the record of the history.
func (w *simWorld) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(format, args...)
}

func (w *simWorld) noteLocked(format string, args ...any) {
	if w.log != nil {
		w.log("%12v  %s", time.Since(w.start), fmt.Sprintf(format, args...))
	}
}

// count adds an event, at its time, to the sum by which two runs of a history are compared.
func (w *simWorld) count(vals ...uint64) {
	w.sum += simfabric.Hash(append(vals, uint64(time.Since(w.start)))...)
}

// simulate runs a history. It must not be called in a bubble.
func simulate(t *testing.T, h *simHistory, log func(string, ...any)) (res simResult) {
	synctest.Test(t, func(t *testing.T) {
		w := &simWorld{h: h, log: log, start: time.Now(), struck: make(map[string]int),
			ops: make(map[int]*simCall), handles: make(map[uint32][]simHandle), windows: make(map[int]*simWindow), seen: make([]int, len(h.Faults))}
		w.run()
		res = simResult{Wrong: w.wrong, Hash: w.sum, Struck: w.struck, Cuts: w.cuts, Resent: w.resent}
		for _, c := range w.ops {
			res.Calls++
			if len(c.execs) == 0 {
				res.Unmade++
			}
		}
	})
	return res
}

// ---- the adapters

func (w *simWorld) newFabric() {
	s := &w.h.Setup
	w.f = simfabric.New(simfabric.Config{
		Decide: w.decide, Sent: w.sent, Accepted: w.accepted,
		Violation: func(what string) { w.fail("%s", what) },
		Refused:   w.refused, Pause: w.pause,
		NoWindows: s.NoWindows, NoInvalidate: s.NoInv, NoLocalDMA: s.NoDMA, WeakRevocation: s.Weak,
		LocalCompletion: s.LocalDone, MaxSendSGE: s.SGE, Seed: s.Seed, MaxPrivateData: s.roomForPrivate(),
		CrossedInvalidation: simfabric.Hash(s.Seed, 'x')%2 == 0,
	})
}

// roomForPrivate is as much as InfiniBand has, or too little for a setup message.
func (s *simSetup) roomForPrivate() int {
	if simfabric.Hash(s.Seed, 's')%3 == 0 {
		return rpcrdma.PrivateDataSize
	}
	return 0
}

// decide returns the fate of an event of the adapters.
func (w *simWorld) decide(e simfabric.Event) (v simfabric.Verdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	op := ""
	if e.Kind == simfabric.Start || e.Kind == simfabric.Arrive {
		op = simOpcodes[e.Op]
	}
	v.Delay = w.delay(e)
	if !w.calm {
		for i := range w.h.Faults {
			w.strike(&v, e, op, i)
		}
	}
	w.count(uint64(e.Kind), uint64(e.Side), uint64(e.Conn), uint64(e.N), uint64(e.Op), uint64(v.Delay))
	if w.log != nil {
		w.noteLocked("%d %v %v %s %d: %v", e.Conn, e.Side, e.Kind, op, e.N, v)
	}
	return v
}

func (w *simWorld) delay(e simfabric.Event) time.Duration {
	switch e.Kind {
	case simfabric.Resolve, simfabric.Take, simfabric.RegMR, simfabric.AllocMW, simfabric.Post, simfabric.PostRecv:
		return 0
	}
	r := simfabric.Hash(w.h.Setup.Seed, uint64(e.Conn), uint64(e.Side), uint64(e.Kind), uint64(e.N))
	of := func(d time.Duration) time.Duration { return time.Duration(r >> 16 % uint64(d)) }
	switch net := w.h.Setup.Net; {
	case net == "even":
		return 10 * time.Microsecond
	case net == "slow" && !w.calm:
		return of(5 * time.Millisecond)
	case net == "mixed" && !w.calm && r%100 < 10:
		if r%100 == 0 {
			return of(50 * time.Millisecond)
		}
		return of(2 * time.Millisecond)
	}
	return of(20 * time.Microsecond)
}

// strike has fault i do its work if it is its turn.
func (w *simWorld) strike(v *simfabric.Verdict, e simfabric.Event, op string, i int) {
	f := &w.h.Faults[i]
	if f.At != e.Kind.String() || f.Side != "" && f.Side != e.Side.String() || f.Op != "" && f.Op != op {
		return
	}
	if w.seen[i]++; w.seen[i] != f.N {
		return
	}
	w.struck[f.Do+" "+strings.TrimSpace(f.At+" "+f.Op)]++
	switch f.Do {
	case "cut":
		v.CutBefore = true
		w.cuts++
	case "cutafter":
		v.CutAfter = true
		w.cuts++
	case "hold":
		v.Delay += f.For
	case "fail":
		v.Err = errInjected
		switch e.Kind {
		case simfabric.Post:
			v.Err, v.Delay = fabric.ErrQueueFull, f.For
		case simfabric.RegMR, simfabric.AllocMW:
			w.memory = true
		}
	}
}

// refused is called for accesses to memory that is not open: a call must have been canceled.
func (w *simWorld) refused(side simfabric.Side, conn int, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked("%d %v refuses: %s", conn, side, why)
	if !w.gaveUp {
		w.failLocked("connection %d: the %v refuses, and no call has been given up: %s", conn, side, why)
	}
}

// pause delays a goroutine that posts.
func (w *simWorld) pause(side simfabric.Side, conn, n int) time.Duration {
	r := simfabric.Hash(w.h.Setup.Seed, uint64(conn), uint64(side), uint64(n), 'p')
	w.mu.Lock()
	calm := w.calm
	w.mu.Unlock()
	switch net := w.h.Setup.Net; {
	case r%64 > 0 || net == "fast":
		return 0
	case net == "mixed" && r>>8%16 == 0 && !calm:
		return time.Duration(r >> 16 % uint64(20*time.Millisecond))
	}
	return time.Duration(r >> 16 % uint64(200*time.Microsecond))
}

// sent sees each message: what handles it gives out.
func (w *simWorld) sent(side simfabric.Side, conn int, msg []byte) {
	var h rpcrdma.Header
	if _, err := rpcrdma.ConsumeHeader(msg, &h, &bothVersions); err != nil {
		w.fail("connection %d: the %v sends what cannot be understood: %v", conn, side, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.log != nil {
		w.noteLocked("%d %v sends %v xid %08x credit %d, %d bytes, reads %d, writes %d, reply chunk %v", conn, side, h.Proc, h.XID, h.Credit,
			len(msg), len(h.Reads), len(h.Writes), h.HasReply)
	}
	w.credits(side, conn, &h, msg)
	list := w.handles[h.XID]
	add := func(s rpcrdma.Segment) { list = append(list, simHandle{conn, side, fabric.Segment(s)}) }
	for i := range h.Reads {
		add(h.Reads[i].Segment)
	}
	for _, c := range h.Writes {
		for i := range c {
			add(c[i])
		}
	}
	for i := range h.Reply {
		add(h.Reply[i])
	}
	if len(list) > 0 {
		w.handles[h.XID] = list
	}
}

// A simWindow bounds what a client may have under way on a connection.
type simWindow struct {
	out   int // calls sent, less the replies
	grant int // the most that was granted
}

// accepted sees what a server says when it accepts a connection.
func (w *simWorld) accepted(conn int, private []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := rpcrdma.FindSetup(private, rpcrdma.PropAccept); ok {
		w.noteLocked("%d version 2 is agreed on, with %d credits", conn, s.Credit)
		w.windows[conn] = &simWindow{grant: int(s.Credit)}
	}
}

// credits holds a client's calls against the grants of its server: after its context has ended a call
// is under way until its reply, and so is its credit. mu is held.
func (w *simWorld) credits(side simfabric.Side, conn int, h *rpcrdma.Header, msg []byte) {
	win := w.windows[conn]
	if win == nil {
		win = &simWindow{grant: 1}
		w.windows[conn] = win
	}
	dir, ok := direction5531(msg)
	switch {
	case side == simfabric.Dialed && ok && dir == oncrpc.Call && h.Proc != rpcrdma.ProcOptional:
		if win.out++; win.out > win.grant {
			w.failLocked("connection %d: the client has %d calls under way, and was granted %d", conn, win.out, win.grant)
		}
	case side == simfabric.Taken && (h.Proc == rpcrdma.ProcError || ok && dir != oncrpc.Call || h.Proc == rpcrdma.ProcOptional):
		if h.Proc != rpcrdma.ProcOptional {
			win.out = max(win.out-1, 0)
		}
		win.grant = max(win.grant, int(h.Credit))
	}
}

// ---- content

// simFill fills memory with what follows from its key: its owner, and which part it is.
func simFill(b []byte, key ...uint64) {
	x := simfabric.Hash(key...) | 1
	for len(b) >= 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b, x)
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}

// args are the arguments as they are encoded without chunks.
func (c *simCall) args() []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(c.ID))
	b = binary.BigEndian.AppendUint32(b, uint32(c.Client))
	n := xdr.Padded(c.Args)
	b = append(b, make([]byte, n)...)
	simFill(b[8:], uint64(c.ID), 'a')
	for i, n := range c.Reads {
		b = xdr.AppendUint32(b, uint32(n))
		at := len(b)
		b = append(b, make([]byte, xdr.Padded(n))...)
		simFill(b[at:at+n], uint64(c.ID), 'r', uint64(i))
	}
	return b
}

// got is how many bytes result item i has.
func (c *simCall) got(i int, e simExec) int {
	n := c.Items[i]
	if h := simfabric.Hash(uint64(c.ID), uint64(i), uint64(e.n)); h%3 == 0 {
		n = int(h >> 8 % uint64(n+1))
	}
	return n
}

func (c *simCall) item(i int, e simExec) []byte {
	b := make([]byte, c.got(i, e))
	simFill(b, uint64(c.ID), 'i', uint64(i), uint64(e.by), uint64(e.n))
	return b
}

// results are those of an execution, without the items' data.
func (c *simCall) results(e simExec) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(c.ID))
	b = binary.BigEndian.AppendUint32(b, uint32(e.by))
	b = binary.BigEndian.AppendUint32(b, uint32(e.n))
	at := len(b)
	b = append(b, make([]byte, xdr.Padded(c.Results))...)
	simFill(b[at:], uint64(c.ID), 'R', uint64(e.by), uint64(e.n))
	return b
}

const simResultHead = 12

// ---- what executes

// serve executes a call, at the server with number by.
func (w *simWorld) serve(by int, req *rpc.Request, res *rpc.Response) {
	if len(req.Args) < 8 {
		w.fail("a handler gets %d bytes", len(req.Args))
		res.Fail(oncrpc.GarbageArgs)
		return
	}
	id := int(binary.BigEndian.Uint32(req.Args))
	w.mu.Lock()
	c := w.ops[id]
	if c == nil {
		w.failLocked("a handler gets call %d, which nobody has made", id)
		w.mu.Unlock()
		res.Fail(oncrpc.GarbageArgs)
		return
	}
	if want := c.args(); !bytes.Equal(want, req.Args) {
		w.failLocked("call %d: the handler gets other arguments: %s", id, simDiff(req.Args, want))
	}
	e := simExec{by, len(c.execs) + 1}
	switch {
	case c.unsent:
		w.failLocked("call %d was not sent, as its error said, and is executed", id)
	case c.NoResend && len(c.execs) > 0 && !w.forgetful():
		w.failLocked("call %d has NoResend and is executed again", id)
	case !c.Idempotent && slices.ContainsFunc(c.execs, func(o simExec) bool { return o.by == by }) && !w.forgetful():
		w.failLocked("call %d is executed again by %d", id, by)
	}
	c.execs = append(c.execs, e)
	w.count(uint64(id), uint64(e.n))
	w.noteLocked("call %d: execution %d by %d", id, e.n, by)
	cn := req.Conn()
	w.sees(cn)
	nested := c.Nested && !c.Inline
	var back *simCall
	if nested {
		back = w.nested(c)
	}
	w.mu.Unlock()
	if c.Work > 0 && !c.Inline {
		time.Sleep(c.Work + w.odd(c.ID, e.n)) // see odd
	}
	if back != nil {
		w.callBack(back, cn.Call)
	}
	if c.Fail {
		switch c.How {
		case "panic":
			panic(errInjected)
		case "goexit":
			runtime.Goexit()
		}
		res.Fail(oncrpc.SystemErr)
		return
	}
	res.Results = append(res.Results, c.results(e)...)
	for i := range c.Items {
		data := c.item(i, e)
		if c.Alloc {
			mem := res.Alloc(len(data))
			if mem == nil {
				res.Fail(oncrpc.SystemErr)
				return
			}
			copy(mem, data)
			res.AddItem(mem, nil)
			continue
		}
		w.mu.Lock()
		w.leases++
		w.mu.Unlock()
		released := false
		res.AddItem(data, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if released {
				w.failLocked("call %d: an item is released twice", id)
			}
			released = true
			w.leases--
			clear(data) // it is ours again
		})
		if held := cn.Stats().HeldBytes; held < int64(len(data)) && (cn.Info().Capabilities.LocalDMA || w.h.Setup.TCP) {
			w.fail("call %d: a result of %d bytes is not counted: %d are", id, len(data), held)
		}
	}
}

// odd is a short time that differs from every other wait: of timers that end at once the runtime
// chooses one at random.
func (w *simWorld) odd(of ...int) time.Duration {
	h := w.h.Setup.Seed
	for _, v := range of {
		h = simfabric.Hash(h, uint64(v))
	}
	return time.Duration(h % 9973)
}

// forgetful reports whether calls may be executed again though they are not idempotent: the
// cache has no room, or there was no memory for a reply, which then is not known.
func (w *simWorld) forgetful() bool { return w.h.Setup.CacheSmall || w.memory }

// nested is the call that a handler makes to its caller.
func (w *simWorld) nested(c *simCall) *simCall {
	o := &simOp{Do: "back", ID: 1000000 + c.ID*100 + len(c.execs), Client: c.Client, Args: 40, Results: 40, Timeout: 10 * time.Second}
	n := &simCall{simOp: o}
	w.ops[o.ID] = n
	return n
}

// sees remembers a connection. mu is held.
func (w *simWorld) sees(cn rpc.Conn) {
	if !slices.ContainsFunc(w.conns, func(o rpc.Conn) bool { return o == cn }) {
		w.conns = append(w.conns, cn)
	}
}

func simDiff(got, want []byte) string {
	n := 0
	for n < min(len(got), len(want)) && got[n] == want[n] {
		n++
	}
	return fmt.Sprintf("%d bytes, want %d, the first that differs is %d", len(got), len(want), n)
}

func (w *simWorld) programs(number uint32, by int, ready func(req *rpc.Request)) rpc.Program {
	return rpc.Program{
		Number: number, Low: 1, High: 1,
		Idempotent: func(_, proc uint32) bool { return proc == simSafe || proc == simReady },
		Inline:     func(_, proc uint32) bool { return proc == simQuick },
		Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			if req.Proc == simReady {
				ready(req)
				return
			}
			w.serve(by, req, res)
		}),
	}
}

// ---- servers and clients

// config returns the configuration of one end, with random numbers that follow from who.
func (w *simWorld) config(e *simEnd, who uint64) *transport.Settings {
	s := &w.h.Setup
	cfg := &transport.Settings{
		InlineSend: e.Send, InlineRecv: e.Recv, Credits: e.Credits, BackwardCredits: e.Backward,
		MaxMessage: simMaxMessage, MaxMemory: e.Memory, MaxSegment: e.Segment, BounceMax: e.Bounce, NoPrivateData: e.NoPriv, NoRemoteInvalidation: e.NoInv,
		Version: transport.Version(e.Version), SetupTimeout: 8 * time.Second,
		NoReconnect: e.NoReconnect, KeepAlive: e.KeepAlive, IdleTimeout: e.Idle,
		Logger: slog.New(simLog{w}), Observer: &simObserver{pairs: &w.pairs, ask: s.Ask},
	}
	if e.KeepAlive == 0 {
		cfg.KeepAlive = -1
	}
	cfg.Operations = []transport.Operation{{
		Type:     simOption,
		IsAnswer: func(info []byte) bool { return len(info) == 1 },
		Handle: func(_ context.Context, cn rpc.Conn, m transport.Optional) (transport.Optional, error) {
			want := make([]byte, len(m.Payload))
			if simFill(want, uint64(len(want)), 'o'); !bytes.Equal(want, m.Payload) {
				w.fail("an operation has a wrong payload")
			}
			simFill(want, uint64(len(want)), 'O')
			return transport.Optional{Info: []byte{1}, Payload: want}, nil
		},
	}}
	if e.Full {
		cfg.PeerChunks = transport.AllChunks
	}
	if s.CacheSmall {
		cfg.ReplyCache = transport.ReplyCache{Entries: 1, Bytes: 4096}
	}
	var mu sync.Mutex
	var n uint64
	return transport.Random(cfg, func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		n++
		r := simfabric.Hash(s.Seed, who, n)
		if s.Wrap && n == 1 { // the first xid: one end's wraps soon, and no other end has the same
			r = 1<<32 - 8 - (who+62+s.Seed%2)%64<<16
		}
		return r
	})
}

// A simObserver holds events against each other, and asks their connections as it may.
type simObserver struct {
	*pairs
	ask bool
}

func (o *simObserver) of(cn rpc.Conn) {
	if o.ask && cn != nil {
		cn.Info()
		cn.Stats()
		cn.RemoteAddr()
	}
}

func (o *simObserver) ConnBegan(e rpc.ConnEvent)  { o.of(e.Conn); o.pairs.ConnBegan(e) }
func (o *simObserver) ConnEnded(e rpc.ConnEvent)  { o.of(e.Conn); o.pairs.ConnEnded(e) }
func (o *simObserver) CallBegan(e *rpc.CallEvent) { o.of(e.Conn); o.pairs.CallBegan(e) }
func (o *simObserver) CallEnded(e *rpc.CallEvent) { o.of(e.Conn); o.pairs.CallEnded(e) }
func (o *simObserver) Noticed(n rpc.Notice)       { o.of(n.Conn); o.pairs.Noticed(n) }

// simLog listens to what servers say about the ends of connections.
type simLog struct{ w *simWorld }

func (l simLog) Enabled(context.Context, slog.Level) bool { return true }
func (l simLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l simLog) WithGroup(string) slog.Handler            { return l }
func (l simLog) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			l.w.honest("a server", err)
			l.w.note("server: %s: %v", r.Message, err)
		}
		return true
	})
	return nil
}

// honest complains about errors that accuse the peer.
func (w *simWorld) honest(who string, err error) {
	var peer *rpc.PeerError
	var reply *rpc.BadReplyError
	if errors.As(err, &peer) || errors.As(err, &reply) {
		w.fail("%s accuses its peer: %v", who, err)
	}
}

func (w *simWorld) serveLife() {
	w.mu.Lock()
	w.made++
	who := w.made
	w.mu.Unlock()
	srv, err := transport.NewServer(w.config(&w.h.Server, who).Server())
	if err != nil {
		w.fail("NewServer: %v", err)
		return
	}
	w.mu.Lock()
	life := &simLife{n: len(w.lives) + 1, srv: srv, done: make(chan struct{})}
	w.mu.Unlock()
	for range w.h.Clients {
		life.back = append(life.back, nil)
	}
	_ = srv.Register(w.programs(simProg, life.n, func(req *rpc.Request) {
		i := int(binary.BigEndian.Uint32(req.Args[4:]))
		w.mu.Lock()
		w.sees(req.Conn())
		b := life.back[i]
		if b == nil {
			b = transport.NewBackchannel()
			life.back[i] = b
		}
		w.mu.Unlock()
		if err := b.Bind(req.Conn(), 0); err != nil {
			w.honest("Bind", err)
		}
	}))
	serve, err := w.listen(srv)
	if err != nil {
		w.fail("Listen: %v", err)
		return
	}
	life.up = true
	w.mu.Lock()
	w.lives = append(w.lives, life)
	w.mu.Unlock()
	w.note("server %d is up", life.n)
	go func() {
		defer close(life.done)
		if err := serve(); !errors.Is(err, net.ErrClosed) {
			w.fail("Serve ends with %v", err)
		}
	}()
}

// listen returns what serves the connections of a server.
func (w *simWorld) listen(srv *transport.Server) (serve func() error, err error) {
	if w.h.Setup.TCP {
		l, err := w.f.ListenStream(simAddr)
		return func() error { return srv.ServeTCP(l) }, err
	}
	l, err := srv.Listen(context.Background(), w.f, simAddr)
	return func() error { return srv.Serve(l) }, err
}

// connect connects a client.
func (w *simWorld) connect(ctx context.Context, cfg *transport.ClientConfig) (*transport.Client, error) {
	if w.h.Setup.TCP {
		return transport.DialTCPWith(ctx, simAddr, cfg, w.f.Dial)
	}
	return transport.Dial(ctx, w.f, simAddr, cfg)
}

// life is the latest server.
func (w *simWorld) life() *simLife {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lives[len(w.lives)-1]
}

// endLife stops a server, in order or at once.
func (w *simWorld) endLife(life *simLife, order bool) {
	w.note("server %d ends", life.n)
	w.mu.Lock()
	backs := slices.Clone(life.back)
	w.mu.Unlock()
	for _, b := range backs {
		if b != nil {
			b.Close()
		}
	}
	w.close("server", life.n, order, life.srv.Shutdown, life.srv.Close)
	<-life.done
}

// dial makes client i, however often it takes.
func (w *simWorld) dial(i int) *simClient {
	e := &w.h.Clients[i]
	c := &simClient{i: i, cfg: e}
	w.mu.Lock()
	w.made++
	cfg := w.config(e, w.made)
	w.mu.Unlock()
	if e.Callbacks {
		w.mu.Lock()
		by := -int(w.made)
		w.mu.Unlock()
		cfg.Callbacks = []rpc.Program{w.programs(simBack, by, nil)}
		cfg.OnReconnect = func(cl *transport.Client) { w.ready(cl, c) }
	}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		cl, err := w.connect(ctx, cfg.Client())
		cancel()
		if err == nil {
			c.cl = cl
			break
		}
		w.note("client %d: Dial: %v", i, err)
		w.honest("Dial", err)
		time.Sleep(20 * time.Millisecond)
		if time.Since(w.start) > 5*time.Minute {
			w.fail("client %d cannot connect: %v", i, err)
			return nil
		}
	}
	if e.Register {
		mem := make([]byte, 512<<10)
		if m, err := c.cl.RegisterMemory(mem); err == nil {
			c.mem, c.memory = mem, m
		}
	}
	w.mu.Lock()
	w.clients[i] = c
	w.mu.Unlock()
	if e.Callbacks {
		w.ready(c.cl, c)
	}
	return c
}

// ready tells the server that the client is ready for calls.
func (w *simWorld) ready(cl *transport.Client, c *simClient) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	args := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(c.i))
	if err := cl.Call(ctx, &rpc.Call{Prog: simProg, Vers: 1, Proc: simReady, Args: args}); err != nil {
		w.honest("the call that says ready", err)
	}
}

// client is client i, or nil now.
func (w *simWorld) client(i int) *simClient {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clients[i]
}

// ---- calls

// item returns memory for an item, with canaries beside it.
func (w *simWorld) item(c *simCall, n int) []byte {
	size := n + 2*simGuard
	var all []byte
	if sc := c.client; sc != nil && sc.mem != nil {
		w.mu.Lock()
		if sc.used+size <= len(sc.mem) {
			all = sc.mem[sc.used : sc.used+size : sc.used+size]
			sc.used += size
		}
		w.mu.Unlock()
	}
	if all == nil {
		all = make([]byte, size)
	}
	for i := range simGuard {
		all[i], all[size-1-i] = 0xca, 0xca
	}
	what := fmt.Sprintf("call %d: memory beside an item", c.ID)
	w.mu.Lock()
	w.scraps = append(w.scraps, simScrap{what, all[:simGuard], 0xca}, simScrap{what, all[size-simGuard:], 0xca})
	w.mu.Unlock()
	return all[simGuard : size-simGuard : size-simGuard]
}

// make makes a call and holds what comes of it against the model.
func (w *simWorld) make(c *simCall, do func(context.Context, *rpc.Call) error, prog uint32) error {
	proc := uint32(simWork)
	switch {
	case c.Inline && !c.Idempotent:
		proc = simQuick
	case c.Idempotent:
		proc = simSafe
	}
	call := rpc.Call{Prog: prog, Vers: 1, Proc: proc, NoResend: c.NoResend}
	whole := c.args()
	at := 8 + xdr.Padded(c.Args)
	call.Args = slices.Clone(whole[:at])
	for _, n := range c.Reads {
		call.Args = append(call.Args, whole[at:at+4]...)
		data := w.item(c, n)
		copy(data, whole[at+4:])
		call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: len(call.Args), Data: data})
		at += 4 + xdr.Padded(n)
	}
	for _, n := range c.Items {
		call.WriteItems = append(call.WriteItems, rpc.WriteItem{Buf: w.item(c, n)})
	}
	call.MaxResults = simResultHead + xdr.Padded(c.Results) + 4*len(c.Items)
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	if c.Cancel > 0 {
		t := time.AfterFunc(c.Cancel, cancel)
		defer t.Stop()
	}
	w.mu.Lock()
	w.ops[c.ID] = c
	w.mu.Unlock()
	var ended time.Time
	var mu sync.Mutex
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		ended = time.Now()
		w.mu.Lock()
		w.gaveUp = true
		w.mu.Unlock()
	})
	err := do(ctx, &call)
	stop()
	mu.Lock()
	late := time.Duration(0)
	if !ended.IsZero() {
		late = time.Since(ended)
	}
	mu.Unlock()
	if late > simLate {
		w.fail("call %d returns %v after the end of its context: %v", c.ID, late, err)
	}
	w.mu.Lock()
	outcome := uint64(0)
	if err != nil {
		outcome = 1
	}
	w.count(uint64(c.ID), outcome)
	w.mu.Unlock()
	w.note("call %d returns %v", c.ID, err)
	w.fenced(c, &call, err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()))
	if err == nil {
		w.right(c, &call)
	} else {
		w.judge(c, ctx, err)
	}
	// Its memory is ours.
	w.mu.Lock()
	for i := range call.WriteItems {
		b := call.WriteItems[i].Buf
		for j := range b {
			b[j] = 0x5b
		}
		w.scraps = append(w.scraps, simScrap{fmt.Sprintf("call %d: memory of result %d", c.ID, i), b, 0x5b})
	}
	for i := range call.ReadItems {
		clear(call.ReadItems[i].Data)
	}
	w.mu.Unlock()
	return err
}

// bounces reports whether an end may have bounce buffers that the peer reaches all the time.
func (w *simWorld) bounces(e *simEnd) bool {
	return w.h.Setup.NoWindows && w.h.Setup.NoDMA && e.Bounce >= 0
}

// fenced tries what the peer could still reach. A registration that stays is withdrawn from a
// call that is given up. Bounce buffers can be reached, and memory of the program cannot.
func (w *simWorld) fenced(c *simCall, call *rpc.Call, givenUp bool) {
	kept := c.client != nil && c.client.mem != nil && w.h.Setup.NoWindows
	end := &w.h.Clients[c.Client]
	if c.Do == "back" {
		end = &w.h.Server
	}
	w.mu.Lock()
	var list []simHandle
	if xid := transport.XID(call); xid != 0 { // it has been sent
		list = slices.Clone(w.handles[xid])
	}
	w.mu.Unlock()
	for _, h := range list {
		if r, wr := w.f.Try(h.conn, h.side, h.seg); (r || wr) && (!kept || givenUp) && !w.bounces(end) {
			w.fail("call %d has returned, and handle %08x of it is open for reading %v, writing %v", c.ID, h.seg.Handle, r, wr)
		}
	}
	if kept {
		return
	}
	for i := range call.ReadItems {
		if w.f.Reached(call.ReadItems[i].Data) > 0 {
			w.fail("call %d has returned, and its argument %d can be reached", c.ID, i)
		}
	}
	for i := range call.WriteItems {
		if w.f.Reached(call.WriteItems[i].Buf) > 0 {
			w.fail("call %d has returned, and the memory of its result %d can be reached", c.ID, i)
		}
	}
}

// right looks whether the results are those of an execution.
func (w *simWorld) right(c *simCall, call *rpc.Call) {
	bad := func(format string, args ...any) { w.fail("call %d: "+format, append([]any{c.ID}, args...)...) }
	b := call.Results
	if len(b) < simResultHead {
		bad("%d bytes of results", len(b))
		return
	}
	e := simExec{int(int32(binary.BigEndian.Uint32(b[4:]))), int(binary.BigEndian.Uint32(b[8:]))}
	w.mu.Lock()
	known := slices.Contains(c.execs, e)
	w.mu.Unlock()
	if id := int(binary.BigEndian.Uint32(b)); id != c.ID || !known || c.Fail {
		bad("the results are those of call %d, execution %v", id, e)
		return
	}
	if want := c.results(e); len(b) < len(want) || !bytes.Equal(b[:len(want)], want) {
		bad("wrong results: %s", simDiff(b, want))
		return
	} else {
		b = b[len(want):]
	}
	for i := range c.Items {
		want := c.item(i, e)
		if len(b) < 4 || int(binary.BigEndian.Uint32(b)) != len(want) {
			bad("the length of item %d is wrong", i)
			return
		}
		b = b[4:]
		it := &call.WriteItems[i]
		switch {
		case it.Chunked:
			if !bytes.Equal(it.Buf[:it.N], want) {
				bad("wrong data of item %d, in a chunk: %s", i, simDiff(it.Buf[:it.N], want))
			}
		case len(b) < xdr.Padded(len(want)) || !bytes.Equal(b[:len(want)], want) || !bytes.Equal(b[len(want):xdr.Padded(len(want))], make([]byte, xdr.Pad(len(want)))):
			bad("wrong data of item %d", i)
			return
		default:
			b = b[xdr.Padded(len(want)):]
		}
	}
	if len(b) > 0 {
		bad("%d bytes of results too many", len(b))
	}
}

// judge looks whether an error is one that the call may have.
func (w *simWorld) judge(c *simCall, ctx context.Context, err error) {
	w.honest(fmt.Sprintf("call %d", c.ID), err)
	w.mu.Lock()
	defer w.mu.Unlock()
	var lost *rpc.LostError
	var closed *rpc.ClosedError
	var denied *oncrpc.RPCError
	var refused *rpc.RDMAError
	var notReady *rpc.NotReadyError
	switch {
	case errors.As(err, &lost):
		if lost.Err == nil && !(c.NoResend && lost.Sent) && !errors.Is(err, errInjected) || lost.Err != nil && ctx.Err() == nil {
			w.failLocked("call %d: a LostError without a cause: %v", c.ID, err)
		}
		if !lost.Sent {
			w.neverMade(c)
		}
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
	case errors.As(err, &notReady) && c.Do == "back":
	case errors.As(err, &closed):
		sc := c.client
		if c.Do == "call" && !(sc.closed || sc.cfg.NoReconnect) {
			w.failLocked("call %d: its client is not closed: %v", c.ID, err)
		}
	case errors.As(err, &denied):
		switch {
		case denied.AcceptStat == oncrpc.SystemErr && (c.Fail || c.Alloc && (w.memory || w.h.Setup.TCP)):
		case denied.AcceptStat == oncrpc.ProgUnavail && c.Do == "back":
		default:
			w.failLocked("call %d: %v", c.ID, err)
		}
	case errors.As(err, &refused):
		if !w.memory {
			w.failLocked("call %d: %v", c.ID, err)
		}
	case errors.Is(err, errInjected):
		w.neverMade(c)
	default:
		w.failLocked("call %d fails with an error that nothing explains: %T: %v", c.ID, err, err)
	}
}

// neverMade is for calls that an error says were not sent. mu is held.
func (w *simWorld) neverMade(c *simCall) {
	c.unsent = true
	if len(c.execs) > 0 {
		w.failLocked("call %d was not sent, as its error says, and has been executed", c.ID)
	}
}

// way is how an operation makes its call.
func (w *simWorld) way(o *simOp, c rpc.Caller) func(context.Context, *rpc.Call) error {
	if !o.Piped {
		return c.Call
	}
	return func(ctx context.Context, call *rpc.Call) error {
		p := transport.NewPipeline(c)
		var err error
		ended := false
		p.StartFunc(call, func(e error) { err, ended = e, true })
		p.StartFunc(&rpc.Call{Prog: call.Prog, Vers: 1}, func(error) {})
		_, waited := p.Wait(ctx)
		if gaveUp := !ended; gaveUp {
			if p.Close(); errors.Is(err, context.Canceled) {
				err = waited
			}
			return err
		}
		p.Close()
		return err
	}
}

// callBack makes a call of a server's.
func (w *simWorld) callBack(c *simCall, do func(context.Context, *rpc.Call) error) {
	_ = w.make(c, do, simBack)
}

// ---- the course of a history

func (w *simWorld) run() {
	w.newFabric()
	w.serveLife()
	w.clients = make([]*simClient, len(w.h.Clients))
	for i := range w.h.Clients {
		w.gaveUp = w.gaveUp || w.h.Clients[i].KeepAlive > 0 || w.h.Clients[i].Idle > 0
	}
	var dials sync.WaitGroup
	for i := range w.h.Clients {
		dials.Go(func() { time.Sleep(w.odd(i)); w.dial(i) })
	}
	var turn sync.WaitGroup
	for i := range w.h.Ops {
		o := &w.h.Ops[i]
		turn.Go(func() {
			time.Sleep(o.At + w.odd(o.ID))
			w.do(o, &dials)
		})
	}
	w.wait(&turn, "operations")
	w.wait(&dials, "connections")
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	w.note("calm")
	time.Sleep(time.Minute) // what was held is over
	w.probe()
	time.Sleep(time.Minute)
	w.idle()
	w.end()
}

// wait waits, but not forever.
func (w *simWorld) wait(g *sync.WaitGroup, what string) {
	done := make(chan struct{})
	go func() { g.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		w.fail("%s do not come to an end", what)
		panic(simStuck(strings.Join(w.wrong, "\n")))
	}
}

// A simStuck ends a bubble that cannot end by itself.
type simStuck string

// do does one operation.
func (w *simWorld) do(o *simOp, dials *sync.WaitGroup) {
	switch o.Do {
	case "call", "back":
		c := &simCall{simOp: o}
		if c.client = w.client(o.Client); c.client == nil {
			return // not connected yet
		}
		if o.Do == "call" {
			_ = w.make(c, w.way(o, c.client.cl), simProg)
			return
		}
		life := w.life()
		w.mu.Lock()
		b := life.back[o.Client]
		w.mu.Unlock()
		if b != nil {
			w.callBack(c, w.way(o, b))
		}
	case "operate":
		if c := w.client(o.Client); c != nil {
			w.operate(o, c)
		}
	case "restart", "stop":
		w.mu.Lock()
		if !w.lives[len(w.lives)-1].up {
			w.mu.Unlock()
			return // it is down
		}
		life := *w.lives[len(w.lives)-1]
		w.lives[len(w.lives)-1].up = false
		w.mu.Unlock()
		w.endLife(&life, o.Do == "stop")
		time.Sleep(o.Down)
		w.serveLife()
	case "close", "shutdown":
		c := w.client(o.Client)
		if c == nil {
			return
		}
		w.endClient(c, o.Do == "shutdown")
		dials.Go(func() { w.dial(o.Client) })
	case "memory":
		if c := w.client(o.Client); c != nil && c.memory != nil {
			c.memory.Close()
		}
	}
}

// operate makes an optional operation.
func (w *simWorld) operate(o *simOp, c *simClient) {
	ctx, cancel := context.WithTimeout(context.Background(), o.Timeout)
	defer cancel()
	out := make([]byte, o.Args)
	simFill(out, uint64(len(out)), 'o')
	answer, err := c.cl.Operate(ctx, transport.Optional{Type: simOption, Info: []byte{1, 2}, Payload: out})
	w.note("operation %d returns %v", o.ID, err)
	var option *transport.OperationError
	switch {
	case err == nil:
		simFill(out, uint64(len(out)), 'O')
		if !bytes.Equal(answer.Info, []byte{1}) || !bytes.Equal(answer.Payload, out) {
			w.fail("operation %d has a wrong answer", o.ID)
		}
	case errors.As(err, &option) && (c.cfg.Version != 2 || w.h.Setup.TCP):
	default:
		w.honest("an operation", err)
		w.mu.Lock()
		defer w.mu.Unlock()
		if closed := errors.Is(err, net.ErrClosed) && (c.closed || c.cfg.NoReconnect); ctx.Err() == nil && !closed && !w.memory {
			w.failLocked("operation %d fails with an error that nothing explains: %T: %v", o.ID, err, err)
		}
	}
}

// close closes an end, in order or at once. Another closer, which has more patience, comes first or
// last, and must be back soon after it.
func (w *simWorld) close(what string, n int, order bool, shutdown func(context.Context) error, closeNow func() error) {
	down := func(patience time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = shutdown(ctx)
	}
	other := make(chan struct{})
	if w.h.Setup.Closers {
		go func() { down(10 * time.Minute); close(other) }()
		time.Sleep(time.Duration(simfabric.Hash(w.h.Setup.Seed, uint64(n)) % 2 * uint64(w.odd(n, 'c'))))
	} else {
		close(other)
	}
	if order {
		down(300 * time.Millisecond)
	} else {
		closeNow()
	}
	select {
	case <-other:
	case <-time.After(simLate):
		w.fail("%s %d is closed, and another Shutdown of it does not return", what, n)
	}
}

func (w *simWorld) endClient(c *simClient, order bool) {
	w.mu.Lock()
	if c.closed {
		w.mu.Unlock()
		return
	}
	c.closed = true
	w.mu.Unlock()
	w.note("client %d ends", c.i)
	w.close("client", c.i, order, c.cl.Shutdown, c.cl.Close)
	w.mu.Lock()
	w.resent += c.cl.Stats().Resent
	if w.clients[c.i] == c {
		w.clients[c.i] = nil
	}
	w.mu.Unlock()
	if c.memory != nil {
		c.memory.Close()
	}
}

// probe makes as many calls at once as there are credits, which must all succeed: nothing
// goes wrong any more.
func (w *simWorld) probe() {
	id := 2000000
	for range 2 {
		var g sync.WaitGroup
		for i := range w.h.Clients {
			sc := w.client(i)
			if sc == nil || sc.cfg.NoReconnect && sc.cl.Err() != nil {
				continue
			}
			for k := range min(sc.cfg.Credits, w.h.Server.Credits) + 1 {
				id++
				o := &simOp{Do: "call", ID: id, Client: i, Args: 60, Results: 60, Timeout: 50 * time.Second, Work: 200 * time.Microsecond}
				if k%4 == 1 {
					o.Reads, o.Items = []int{6001}, []int{7001}
				}
				c := &simCall{simOp: o, client: sc, probing: true}
				g.Go(func() {
					time.Sleep(w.odd(c.ID))
					err := w.make(c, sc.cl.Call, simProg)
					if err != nil && !(sc.cfg.NoReconnect && errors.Is(err, net.ErrClosed)) {
						w.fail("client %d: all is well, and a call fails: %v", i, err)
					}
				})
			}
		}
		w.wait(&g, "calls on sound connections")
	}
}

// stillBusy is transport.Busy after a second look: a keep-alive, which is not counted as a call, may
// be under way at the first.
func stillBusy(cn *transport.Conn) string {
	what := transport.Busy(cn)
	if what != "" && cn.Err() == nil {
		time.Sleep(5 * time.Millisecond)
		if what = transport.Busy(cn); cn.Err() != nil {
			return ""
		}
	}
	return what
}

// idle looks at what connections hold on which nothing is under way.
func (w *simWorld) idle() {
	for _, c := range w.clients {
		if c == nil {
			continue
		}
		if c.memory != nil {
			c.memory.Close()
			if n := w.f.Reached(c.mem); n > 0 {
				w.fail("client %d: memory that is not registered any more can be reached through %d handles", c.i, n)
			}
		}
		cn := c.cl.Latest()
		if cn.Err() == nil {
			if what := stillBusy(cn); what != "" {
				w.fail("client %d is idle: %s", c.i, what)
			}
		}
		w.honest("a client", cn.Err())
	}
	if n := w.f.Exposed(simfabric.Dialed); n > 0 && !slices.ContainsFunc(w.h.Clients, func(e simEnd) bool { return w.bounces(&e) }) {
		w.fail("%d pieces of memory of clients can be reached", n)
	}
	if n := w.f.Exposed(simfabric.Taken); n > 0 && !w.bounces(&w.h.Server) {
		w.fail("%d pieces of memory of servers can be reached", n)
	}
	for _, cn := range w.conns {
		if cn.Err() == nil {
			if what := stillBusy(cn.(*transport.Conn)); what != "" {
				w.fail("a server's connection is idle: %s", what)
			}
		}
		w.honest("a connection", cn.Err())
	}
}

// end closes everything and looks for what is left.
func (w *simWorld) end() {
	order := w.h.Setup.Seed%2 == 0
	closeClients := func() {
		for _, c := range w.clients {
			if c != nil {
				w.endClient(c, order)
			}
		}
	}
	if w.h.Setup.Seed%3 == 0 {
		w.endLife(w.life(), order)
		closeClients()
	} else {
		closeClients()
		w.endLife(w.life(), order)
	}
	time.Sleep(20 * time.Second)
	if conns, mrs, mws := w.f.Live(); conns+mrs+mws > 0 {
		w.fail("left: %d connections, %d regions, %d windows", conns, mrs, mws)
	}
	for _, cn := range w.conns {
		if n, _ := transport.ArenaUse(cn.(*transport.Conn)); n > 0 {
			w.fail("a connection that has ended has %d bytes", n)
		}
	}
	for _, what := range w.pairs.wrong() {
		w.fail("the observer: %s", what)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.leases != 0 {
		w.failLocked("%d items were not released", w.leases)
	}
	for _, s := range w.scraps {
		for i, b := range s.mem {
			if b != s.fill {
				w.failLocked("%s has been written to at %d", s.what, i)
				break
			}
		}
	}
}
