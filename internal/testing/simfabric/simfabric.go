// Package simfabric is a simulated adapter and network: an in-memory provider of package fabric, in which the test
// decides when events happen and which faults occur.
//
// Everything that an adapter does asynchronously is an [Event]: a request leaves the send queue, a message arrives, a
// Read is answered, a completion is added, an end learns that the connection is over. For each event [Config.Decide]
// returns its delay and whether a fault occurs. The ordering that RC guarantees is always kept: requests start in the
// order of the queue, a Send arrives after everything posted before it, and receives and send requests complete in
// order. Everything else is as unfavorable as package fabric permits:
//
//   - the data of a Write is placed in pieces, at any time before the next Send arrives;
//   - a Read is answered late, later messages may overtake the response, and half of its data is fetched at the last
//     moment;
//   - unless [Config.LocalCompletion] is set, a message has the content of the memory at its arrival, as with an
//     adapter that retransmits;
//   - completions of receives and of send requests are not ordered with each other;
//   - the two ends learn at different times that the connection has ended.
//
// [Fabric.Dial] and [Fabric.ListenStream] make byte streams on the same network, like TCP.
//
// It reports what adapters do not tolerate ([Config.Violation]): a Send without a receive, and memory that is used or
// deregistered at the wrong time. [Fabric.Try] is an attempt of the peer to access memory by a handle that it received
// at some time.
//
// Time is that of package time: in a bubble of testing/synctest it is fake. Decisions depend on the identity of the
// event, not on the order in which goroutines run, so the same decisions give the same history.
package simfabric

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
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

// A Kind is the kind of an Event.
type Kind uint8

const (
	Resolve  Kind = iota // a connection is prepared
	Connect              // the request arrives at the listener
	Take                 // Listener.Accept returns it
	Accept               // the reply arrives
	RegMR                // memory is registered
	AllocMW              // a window is allocated
	Post                 // a list of requests is posted
	PostRecv             // a list of receives is posted
	Start                // a request leaves the send queue
	Arrive               // a Send, a piece of a Write or the request of a Read arrives at the peer
	Respond              // the data of a Read arrives
	Complete             // the completion of a request can be polled
	Receive              // the completion of a receive can be polled
	Learn                // an end learns that the connection is over
	Kinds                // number of kinds
)

var kindNames = [Kinds]string{"Resolve", "Connect", "Take", "Accept", "RegMR", "AllocMW", "Post", "PostRecv",
	"Start", "Arrive", "Respond", "Complete", "Receive", "Learn"}

func (k Kind) String() string {
	if k < Kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// KindOf returns the kind with the given name.
func KindOf(name string) (k Kind, ok bool) {
	for i, n := range kindNames {
		if n == name {
			return Kind(i), true
		}
	}
	return 0, false
}

// An Event happens at one end of a connection. Arrive belongs to the end that posted the
// request.
type Event struct {
	Kind Kind
	Side Side
	Conn int           // number of the connection, from 1, in the order of Resolve
	N    int           // number of this kind at this end, from 1
	Op   fabric.Opcode // Start, Arrive
}

// A Verdict is the outcome of an Event.
type Verdict struct {
	Delay time.Duration // before the event; with Post and Err: until the queue has space

	// Err is the error of Resolve, Connect, RegMR, AllocMW, Post and PostRecv. At Start the
	// request fails, which ends the connection.
	Err error

	// The connection is lost instead of the event, or after it.
	CutBefore, CutAfter bool
}

// A Config configures the adapters. The zero value has all capabilities and no delays.
type Config struct {
	// Decide is called once for each event, in advance, with the fabric locked.
	Decide func(Event) Verdict

	// Sent, if not nil, is called for each message when it is posted, with the fabric locked.
	Sent func(side Side, conn int, msg []byte)

	// Accepted, if not nil, is called for each connection that is accepted, with the private
	// data of the accepting end, with the fabric locked.
	Accepted func(conn int, private []byte)

	// Violation is called when the user of the fabric breaks its rules, with the fabric
	// locked. Nil means panic.
	Violation func(what string)

	// Refused, if not nil, is called when an end refuses the peer access to memory, or invalidates what the peer has
	// invalidated, with the fabric locked. Both may only happen if a call was canceled.
	Refused func(side Side, conn int, why string)

	// Pause, if not nil, returns a delay of a caller of Post or PostRecv, before and after the
	// call, as if its goroutine were not scheduled. n counts the calls of Pause.
	Pause func(side Side, conn, n int) time.Duration

	NoWindows       bool // no MemoryWindows, and no RemoteInvalidate
	NoInvalidate    bool // no RemoteInvalidate
	NoLocalDMA      bool
	WeakRevocation  bool
	LocalCompletion bool // Sends and Writes complete when they have been sent
	MaxSendSGE      int  // zero: 4

	// CrossedInvalidation: the peer may invalidate once what the owner has invalidated itself.
	CrossedInvalidation bool

	MaxPrivateData int // zero: 56, as over InfiniBand

	// Seed is the seed of keys and offsets of exposed memory.
	Seed uint64
}

// A Fabric is a network with its adapters. It implements fabric.Provider.
type Fabric struct {
	cfg Config

	mu        sync.Mutex
	events    eventHeap
	seq       uint64
	timer     *time.Timer
	listeners map[string]*listener
	conns     []*end // indexed by number - 1: the dialed ends
	closed    bool
	port      int
	keys      uint64

	openConns, openMRs, openMWs int
}

// New returns a Fabric.
func New(cfg Config) *Fabric {
	if cfg.MaxSendSGE == 0 {
		cfg.MaxSendSGE = 4
	}
	if cfg.MaxPrivateData == 0 {
		cfg.MaxPrivateData = maxPrivate
	}
	if cfg.NoWindows {
		cfg.NoInvalidate = true
	}
	return &Fabric{cfg: cfg, listeners: make(map[string]*listener), port: 1000}
}

// Name implements fabric.Provider.
func (f *Fabric) Name() string { return "sim" }

// Close implements fabric.Provider.
func (f *Fabric) Close() error {
	f.mu.Lock()
	defer f.unlock()
	f.closed = true
	for _, addr := range slices.Sorted(maps.Keys(f.listeners)) {
		f.listeners[addr].close()
	}
	return nil
}

// Live counts the open objects.
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

// at schedules a call of do, with the fabric locked.
func (f *Fabric) at(t time.Time, do func()) {
	f.seq++
	heap.Push(&f.events, event{t, f.seq, do})
}

// unlock executes the events that are due, arms the timer for the next, and unlocks the
// fabric.
func (f *Fabric) unlock() {
	for len(f.events) > 0 && !f.events[0].at.After(time.Now()) {
		heap.Pop(&f.events).(event).do()
	}
	f.arm()
	f.mu.Unlock()
}

// arm sets the timer for the next event.
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

// random returns the next number of a sequence that depends on the seed.
func (f *Fabric) random() uint64 {
	f.keys++
	return Hash(f.cfg.Seed, f.keys)
}

// Hash returns a hash of numbers.
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

// decide asks Config.Decide about an event. The fabric is locked.
func (e *end) decide(k Kind, op fabric.Opcode) Verdict {
	e.counts[k]++
	if e.f.cfg.Decide == nil {
		return Verdict{}
	}
	return e.f.cfg.Decide(Event{Kind: k, Side: e.side, Conn: e.no, N: e.counts[k], Op: op})
}

// ---- setup

var (
	errRefused = errors.New("simfabric: connection refused")
	errReset   = errors.New("simfabric: connection reset")
	errCut     = errors.New("simfabric: connection lost")
	errOver    = fmt.Errorf("simfabric: provider: %w", net.ErrClosed)
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
	if f.closed {
		return nil, errOver
	}
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
	if f.closed {
		return nil, errOver
	}
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
	pending []*end // waiting for Accept
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
	l.close()
	return nil
}

// close is Close. The fabric is locked.
func (l *listener) close() {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.f.listeners, l.addr.String())
	for _, c := range l.pending {
		c.refuse(errRefused)
	}
	l.pending = nil
	l.cond.Broadcast()
}

// refuse makes Connect fail.
func (e *end) refuse(err error) {
	if e.err == nil && e.refused == nil {
		e.refused = err
		e.over(&fabric.ConnError{Provider: e.f.Name(), Remote: true, Cause: err})
	}
}

// Connect implements fabric.Conn.
func (e *end) Connect(ctx context.Context, private []byte) error {
	f := e.f
	if len(private) > f.cfg.MaxPrivateData {
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
	if len(private) > f.cfg.MaxPrivateData {
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
	if f.cfg.Accepted != nil {
		f.cfg.Accepted(e.no, said)
	}
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
	if len(private) > e.f.cfg.MaxPrivateData {
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
