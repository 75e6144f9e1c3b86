// Package simfabric is a provider of package fabric in memory, in which somebody else
// decides when things happen and what goes wrong: a simulated adapter and network.
//
// All that an adapter does by itself is an [Event]: a request leaves the send queue, a
// message arrives, a Read is answered, a completion is told, an end learns that the
// connection is over. For each of them [Config.Decide] says how long it takes and whether a
// fault strikes at it. The order that RC guarantees is kept whatever Decide says: requests
// start in the order of the queue, a Send arrives behind all that was posted in front of it,
// receives are used and told of in their order, and so are the requests of one queue. All
// else is free, and is as unkind as the seam allows:
//
//   - the data of a Write is placed in pieces, at any time before the Send behind it;
//   - a Read is answered late, by a peer whose later messages may overtake the answer, and
//     half of its data is fetched at the last moment;
//   - unless [Config.LocalCompletion] is set, what is sent is what the memory holds when it
//     arrives, as with an adapter that sends again what was lost;
//   - completions of receives and of requests wait for each other as it happens;
//   - the two ends learn at different times that the connection has ended.
//
// It tells of what no adapter forgives ([Config.Violation]): a Send without a receive posted
// for it, memory that is used or deregistered while it must not be. [Fabric.Try] is the
// peer's attempt to reach memory through a handle that it was given at some time.
//
// Time is that of package time: in a bubble of testing/synctest it is fake, and as all
// decisions go by the identity of the event and not by the order in which goroutines run, the
// same decisions give the same history.
package simfabric

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A Side is an end of a connection.
type Side uint8

const (
	Dialed Side = iota // made by Resolve
	Taken              // made by a listener
)

func (s Side) String() string {
	if s == Dialed {
		return "client"
	}
	return "server"
}

// A Kind is what happens in an Event.
type Kind uint8

const (
	Resolve  Kind = iota // a connection is prepared
	Connect              // its request gets to the listener
	Take                 // the listener hands it out
	Accept               // the answer gets back
	RegMR                // memory is registered
	AllocMW              // a window is allocated
	Post                 // a list of requests is posted
	PostRecv             // a list of receives is posted
	Start                // a request leaves the send queue
	Arrive               // a Send, a piece of a Write or the request of a Read gets to the peer
	Respond              // the data of a Read is back
	Complete             // the completion of a request can be polled
	Receive              // the completion of a receive can be polled
	Learn                // an end learns that the connection is over
	Kinds                // how many there are
)

var kindNames = [Kinds]string{"Resolve", "Connect", "Take", "Accept", "RegMR", "AllocMW", "Post", "PostRecv",
	"Start", "Arrive", "Respond", "Complete", "Receive", "Learn"}

func (k Kind) String() string {
	if k < Kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// KindOf returns the kind of that name.
func KindOf(name string) (k Kind, ok bool) {
	for i, n := range kindNames {
		if n == name {
			return Kind(i), true
		}
	}
	return 0, false
}

// An Event is something that happens to one end of a connection. Arrive belongs to the end
// that has posted the request.
type Event struct {
	Kind Kind
	Side Side
	Conn int           // number of the connection, from 1, in the order of Resolve
	N    int           // number of this kind at this end, from 1
	Op   fabric.Opcode // Start, Arrive
}

// A Verdict says how an Event goes.
type Verdict struct {
	Delay time.Duration // before it happens; with Post and Err: until there is room

	// Err makes Resolve, Connect, RegMR, AllocMW, Post and PostRecv fail with it. A
	// request that Starts with it fails, which ends the connection.
	Err error

	// The connection is cut in place of the event, or behind it.
	CutBefore, CutAfter bool
}

// A Config says what the adapters are like. The zero value has all capabilities, and no
// delays.
type Config struct {
	// Decide is called once for each event, ahead of it, with the fabric locked.
	Decide func(Event) Verdict

	// Sent, if not nil, sees each message when it is posted, likewise.
	Sent func(side Side, conn int, msg []byte)

	// Violation is told of what the user of the seam must not do, likewise. Nil panics.
	Violation func(what string)

	// Refused, if not nil, is told, likewise, when an end does not let the peer at memory, or
	// would close what the peer has closed: that is in order only where a call is given up.
	Refused func(side Side, conn int, why string)

	// Pause, if not nil, says how long a caller of Post or PostRecv is kept back, in front of
	// the call and behind it, as a goroutine may be at any time. n counts.
	Pause func(side Side, conn, n int) time.Duration

	NoWindows       bool // no MemoryWindows, and no RemoteInvalidate
	NoInvalidate    bool // no RemoteInvalidate
	NoLocalDMA      bool
	WeakRevocation  bool
	LocalCompletion bool // Sends and Writes complete when they have left
	MaxSendSGE      int  // zero: 4

	// Seed is where keys and offsets of exposed memory come from.
	Seed uint64
}

// A Fabric is a network with adapters at it. It implements fabric.Provider.
type Fabric struct {
	cfg Config

	mu        sync.Mutex
	events    eventHeap
	seq       uint64
	timer     *time.Timer
	listeners map[string]*listener
	conns     []*end // by number - 1: the dialed ends
	port      int
	keys      uint64

	openConns, openMRs, openMWs int
}

// New makes a fabric.
func New(cfg Config) *Fabric {
	if cfg.MaxSendSGE == 0 {
		cfg.MaxSendSGE = 4
	}
	if cfg.NoWindows {
		cfg.NoInvalidate = true
	}
	return &Fabric{cfg: cfg, listeners: make(map[string]*listener), port: 1000}
}

// Name implements fabric.Provider.
func (f *Fabric) Name() string { return "sim" }

// Live counts what is open.
func (f *Fabric) Live() (conns, mrs, mws int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.openConns, f.openMRs, f.openMWs
}

// ---- events

type event struct {
	at  time.Time
	seq uint64
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	n := len(old) - 1
	x := old[n]
	old[n] = event{}
	*h = old[:n]
	return x
}

// at has do called at a time, with the fabric locked.
func (f *Fabric) at(t time.Time, do func()) {
	f.seq++
	heap.Push(&f.events, event{t, f.seq, do})
}

// unlock lets happen what is due, and sees to it that the rest will.
func (f *Fabric) unlock() {
	for len(f.events) > 0 && !f.events[0].at.After(time.Now()) {
		heap.Pop(&f.events).(event).do()
	}
	f.arm()
	f.mu.Unlock()
}

// arm has the next event happen in its time.
func (f *Fabric) arm() {
	if len(f.events) == 0 {
		return
	}
	d := time.Until(f.events[0].at)
	if f.timer == nil {
		f.timer = time.AfterFunc(d, func() { f.mu.Lock(); f.unlock() })
	} else {
		f.timer.Reset(d)
	}
}

// wait waits for c, with the fabric locked.
func (f *Fabric) wait(c *sync.Cond) {
	f.arm()
	c.Wait()
}

func (f *Fabric) violation(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if f.cfg.Violation == nil {
		panic("simfabric: " + what)
	}
	f.cfg.Violation(what)
}

func (f *Fabric) refusal(e *end, why string) {
	if f.cfg.Refused != nil {
		f.cfg.Refused(e.side, e.no, why)
	}
}

// random is a number that depends on the seed and on what has been drawn before.
func (f *Fabric) random() uint64 {
	f.keys++
	return Hash(f.cfg.Seed, f.keys)
}

// Hash mixes numbers.
func Hash(of ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, v := range of {
		h ^= v
		h *= 0xff51afd7ed558ccd
		h ^= h >> 32
		h *= 0xc4ceb9fe1a85ec53
		h ^= h >> 29
	}
	return h
}

// decide asks what becomes of an event. The fabric is locked.
func (e *end) decide(k Kind, op fabric.Opcode) Verdict {
	e.counts[k]++
	if e.f.cfg.Decide == nil {
		return Verdict{}
	}
	return e.f.cfg.Decide(Event{Kind: k, Side: e.side, Conn: e.no, N: e.counts[k], Op: op})
}

// ---- set-up

var (
	errRefused = errors.New("simfabric: connection refused")
	errReset   = errors.New("simfabric: connection reset")
	errCut     = errors.New("simfabric: connection lost")
)

const (
	maxPrivate = 56
	readLimit  = 16
	maxMessage = 1 << 30
	maxDepth   = 1 << 15
)

func (f *Fabric) lacks(format string, args ...any) error {
	return &fabric.CapabilityError{Provider: f.Name(), Capability: fmt.Sprintf(format, args...)}
}

// Resolve implements fabric.Provider.
func (f *Fabric) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	remote, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	if attr.SendDepth > maxDepth || attr.RecvDepth > maxDepth {
		return nil, f.lacks("queues as deep as %d and %d", attr.SendDepth, attr.RecvDepth)
	}
	f.mu.Lock()
	defer f.unlock()
	f.port++
	e := f.newEnd(Dialed, len(f.conns)+1, attr, &net.TCPAddr{IP: remote.IP, Port: f.port}, remote)
	f.conns = append(f.conns, e)
	v := e.decide(Resolve, 0)
	if v.Err != nil {
		e.close()
		return nil, v.Err
	}
	if v.CutBefore || v.CutAfter {
		e.cut()
	}
	return e, nil
}

// Listen implements fabric.Provider.
func (f *Fabric) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.unlock()
	if at.Port == 0 {
		f.port++
		at.Port = f.port
	}
	if f.listeners[at.String()] != nil {
		return nil, fmt.Errorf("simfabric: %v is in use", at)
	}
	l := &listener{f: f, addr: at, attr: attr}
	l.cond.L = &f.mu
	f.listeners[at.String()] = l
	return l, nil
}

type listener struct {
	f       *Fabric
	addr    *net.TCPAddr
	attr    fabric.ConnAttr
	cond    sync.Cond
	pending []*end // that have asked
	closed  bool
}

func (l *listener) Addr() net.Addr { return l.addr }

// Accept implements fabric.Listener.
func (l *listener) Accept(ctx context.Context) (fabric.Conn, error) {
	f := l.f
	defer context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.unlock()
		l.cond.Broadcast()
	})()
	f.mu.Lock()
	defer f.unlock()
	for {
		if l.closed {
			return nil, fmt.Errorf("simfabric: listener: %w", net.ErrClosed)
		}
		if len(l.pending) > 0 {
			c := l.pending[0]
			l.pending = l.pending[1:]
			e := f.newEnd(Taken, c.no, l.attr, l.addr, c.local)
			e.peer, c.peer = c, e
			e.private = c.said
			v := e.decide(Take, 0)
			if c.err != nil {
				e.over(&fabric.ConnError{Provider: f.Name(), Remote: true, Clean: true})
			} else if v.CutBefore || v.CutAfter {
				e.cut()
			}
			return e, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f.wait(&l.cond)
	}
}

// Close implements fabric.Listener.
func (l *listener) Close() error {
	l.f.mu.Lock()
	defer l.f.unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	delete(l.f.listeners, l.addr.String())
	for _, c := range l.pending {
		c.refuse(errRefused)
	}
	l.pending = nil
	l.cond.Broadcast()
	return nil
}

// refuse has Connect fail.
func (e *end) refuse(err error) {
	if e.err == nil && e.refused == nil {
		e.refused = err
		e.over(&fabric.ConnError{Provider: e.f.Name(), Remote: true, Cause: err})
	}
}

// Connect implements fabric.Conn.
func (e *end) Connect(ctx context.Context, private []byte) error {
	f := e.f
	if len(private) > maxPrivate {
		return f.lacks("private data of %d bytes", len(private))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.unlock()
		e.cond.Broadcast()
	})()
	f.mu.Lock()
	defer f.unlock()
	if e.err != nil {
		return e.err
	}
	e.said = append([]byte(nil), private...)
	v := e.decide(Connect, 0)
	f.at(time.Now().Add(v.Delay), func() {
		if e.err != nil {
			return
		}
		l := f.listeners[e.remote.String()]
		switch {
		case v.Err != nil:
			e.refuse(v.Err)
		case v.CutBefore:
			e.cut()
		case l == nil:
			e.refuse(errRefused)
		default:
			l.pending = append(l.pending, e)
			l.cond.Broadcast()
			if v.CutAfter {
				e.cut()
			}
		}
	})
	for e.err == nil && !e.established && ctx.Err() == nil {
		f.wait(&e.cond)
	}
	switch {
	case e.established && e.err == nil:
		return nil
	case e.refused != nil:
		return e.refused
	case e.err != nil:
		return e.err
	}
	e.over(&fabric.ConnError{Provider: f.Name(), Cause: ctx.Err()})
	e.tellPeer(nil)
	return ctx.Err()
}

// Accept implements fabric.Conn.
func (e *end) Accept(ctx context.Context, private []byte) error {
	f := e.f
	if len(private) > maxPrivate {
		return f.lacks("private data of %d bytes", len(private))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.unlock()
		e.cond.Broadcast()
	})()
	f.mu.Lock()
	defer f.unlock()
	if e.err != nil {
		return e.err
	}
	v := e.decide(Accept, 0)
	said := append([]byte(nil), private...)
	f.at(time.Now().Add(v.Delay), func() {
		c := e.peer
		if e.err != nil || c.err != nil {
			return
		}
		if v.CutBefore {
			e.cut()
			return
		}
		c.private = said
		e.established, c.established = true, true
		c.cond.Broadcast()
		e.cond.Broadcast()
		if v.CutAfter {
			e.cut()
		}
	})
	for e.err == nil && !e.established && ctx.Err() == nil {
		f.wait(&e.cond)
	}
	switch {
	case e.err != nil:
		return e.err
	case e.established:
		return nil
	}
	e.over(&fabric.ConnError{Provider: f.Name(), Cause: ctx.Err()})
	e.tellPeer(ctx.Err())
	return ctx.Err()
}

// Reject implements fabric.Conn.
func (e *end) Reject(private []byte) error {
	if len(private) > maxPrivate {
		return e.f.lacks("private data of %d bytes", len(private))
	}
	e.f.mu.Lock()
	defer e.f.unlock()
	v := e.decide(Accept, 0)
	re := &fabric.RejectError{Addr: e.local.String(), PrivateData: append([]byte(nil), private...)}
	e.rejected = true
	e.f.at(time.Now().Add(v.Delay), func() { e.peer.refuse(re) })
	e.close()
	return nil
}
