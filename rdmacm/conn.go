//go:build linux && cgo

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/baton"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
)

// A state of a Conn. It only moves forward.
type state uint8

const (
	stateNew   state = iota // resolved, or requested by a peer
	stateSetup              // Connect, Accept or Reject is under way
	stateUp
	stateOver // ended, and the reason is known
)

// A Conn is one reliable connection: ID, queue pair, completion queue and
// protection domain. It is a fabric.Conn.
//
// # Locks
//
// sendMu and recvMu guard posting, queue.mu completions, mu the state. Lock order, which
// package lockorder has: queue.mu, sendMu, recvMu, mu. Posting and polling share only the positions of the
// work queues, which are atomic.
//
// # The end
//
// A failed request, an event of the connection manager or Close ends the connection.
// The next poll settles it: it destroys the queue pair, after which the device uses no
// memory of outstanding requests, and completes those as flushed. This does not depend
// on what a device flushes by itself, and when, in which devices differ.
type Conn struct {
	p       *Provider
	dev     *device
	id      *ID
	target  string // as given to Resolve
	passive bool
	attr    fabric.ConnAttr
	pd      *ibv.PD
	q       *queue
	cap     cgo.QPCap
	laddr   netip.AddrPort
	raddr   netip.AddrPort

	recent atomic.Pointer[region] // the region last used by a request

	up     atomic.Bool // state has been stateUp
	ending atomic.Bool // the connection is ending and has to be settled
	wakeup atomic.Bool // Wake has been called
	shut   atomic.Bool // Close has been called

	closeOnce  sync.Once
	listener   *Listener // of a request, on iWARP
	answerOnce sync.Once

	mu                  lockorder.Mutex
	state               state
	ird, ord            int
	peerData            []byte
	err                 *fabric.ConnError // since stateOver
	quiet               bool              // Disconnect has begun: no more posts
	cut                 *fabric.ConnError // why a request that the caller waits for did not complete
	alone               bool              // requests fail because of this side: the peer need not be told
	hungUp              bool              // rdma_disconnect has been called
	setup               context.CancelCauseFunc
	wait, ready         func() bool   // waitStep and mayReturn, made once
	requested           chan struct{} // iWARP: closed once rdma_connect has returned
	accepted            bool          // rdma_accept has been called
	heard               chan struct{} // closed by the event that ends set-up, even if it comes late
	left                chan struct{} // closed by the event of the disconnection, or the removal of the device
	leftOnce, heardOnce sync.Once
	nudger              *time.Timer // see nudge.go; nil before the first request
	patience            *time.Timer // bounds the wait for the reason of an end
	mrs                 map[*region]struct{}
	mws                 map[*window]struct{}
	byKey               map[uint32]*region // by local key
	windows             map[uint32]*window // bound windows by key

	sendMu  lockorder.Mutex
	qp      *cgo.QP // nil once destroyed; guarded by sendMu or recvMu
	send    workQueue
	swr     []cgo.SendWR // scratch
	sges    []cgo.SGE
	reports fabric.Deferrals
	untold  untold
	silent  int // sends since the last signaled one
	held    heldBack
	inner   atomic.Bool // an internal request is outstanding
	// starved: Post has returned ErrQueueFull. Wait then returns once there is room,
	// even if the completions that make it are not reported.
	starved atomic.Bool
	posted  PostCounts

	recvMu lockorder.Mutex
	recv   workQueue
	rwr    []cgo.RecvWR
	rsges  []cgo.SGE

	// Guarded by queue.mu.
	done    []fabric.WC // completions not polled yet: a ring with an entry for each slot
	doneAt  int
	doneN   int
	passed  uint64 // the highest position of a send that the device has reported
	told    uint64 // position behind the latest send that tell has reported
	failed  bool   // a send has failed
	settled bool
	turn    baton.Waiter[Conn] // in queue.turns
	spin    spinner
}

var _ fabric.Conn = (*Conn)(nil)

// A workQueue holds the outstanding requests in order. Posting adds at the tail, under
// the lock of the side, and polling removes at the head. A reported request counts as
// used until its caller has polled it: with a shared completion queue another
// connection's poll may have taken its completion from the device.
type workQueue struct {
	slots    []slot // a ring that grows up to depth; replaced under queue.mu and the side's lock
	depth    int
	tail     uint64 // guarded by the side's lock
	head     atomic.Uint64
	returned atomic.Uint64 // how many requests are no longer used
}

// firstSlots is the initial length of a ring. Most connections have few requests
// outstanding at any time.
const firstSlots = 16

// A slot is an outstanding request.
type slot struct {
	id       uint64
	op       fabric.WCOpcode
	report   bool // the caller gets the completion
	internal bool // posted by this package, not by a caller
	signaled bool // the device reports success
	free     bool // its memory is the user's again, which tell may report
	done     bool // the device has reported it, as wc
	wc       fabric.WC
}

func (w *workQueue) init(depth int) {
	w.depth = depth
	w.slots = make([]slot, min(depth, firstSlots))
}

// used is how many requests are outstanding or have not been polled by the caller.
func (w *workQueue) used() int { return int(w.tail - w.returned.Load()) }

// free is how many more requests the device can take, room how many the caller may
// post. room is never more than free: a request leaves the device's queue before its
// caller polls it.
func (w *workQueue) free() int { return w.depth - int(w.tail-w.head.Load()) }
func (w *workQueue) room() int { return w.depth - w.used() }

// tight reports whether the ring has to grow for n more requests.
func (w *workQueue) tight(n int) bool {
	return w.used()+n > len(w.slots) && len(w.slots) < w.depth
}

// grow makes the ring long enough for n more requests. queue.mu and the side's lock
// are held.
func (w *workQueue) grow(n int) {
	size := len(w.slots)
	for size < w.used()+n {
		size *= 2
	}
	slots := make([]slot, min(size, w.depth))
	for pos := w.head.Load(); pos != w.tail; pos++ {
		slots[pos%uint64(len(slots))] = *w.at(pos)
	}
	w.slots = slots
}

func (w *workQueue) at(pos uint64) *slot       { return &w.slots[pos%uint64(len(w.slots))] }
func (w *workQueue) outstanding(p uint64) bool { return p-w.head.Load() < uint64(len(w.slots)) }

// Work request IDs are positions; receives have the top bit.
const recvBit = 1 << 63

// newConn creates a connection on the device that id is bound to. If it fails, id and
// the reference to the provider's channel remain the caller's.
func (p *Provider) newConn(id *ID, target string, attr fabric.ConnAttr, passive bool) (*Conn, error) {
	dev, err := p.device(id)
	if err != nil {
		return nil, err
	}
	if attr, err = dev.size(attr); err != nil {
		return nil, err
	}
	c := &Conn{
		p: p, dev: dev, id: id, target: target, passive: passive, attr: attr,
		ird: attr.InboundReads, ord: attr.OutboundReads,
		laddr: id.LocalAddr(), raddr: id.PeerAddr(),
		heard: make(chan struct{}), left: make(chan struct{}),
		mrs: make(map[*region]struct{}), mws: make(map[*window]struct{}), byKey: make(map[uint32]*region), windows: make(map[uint32]*window),
	}
	c.sendMu.Init(lockorder.RdmacmSend)
	c.recvMu.Init(lockorder.RdmacmRecv)
	c.mu.Init(lockorder.RdmacmConn)
	c.wait, c.ready = c.waitStep, c.mayReturn
	c.turn.Init(c)
	c.send.init(attr.SendDepth + 1) // one for internal requests
	c.recv.init(attr.RecvDepth)
	c.done = make([]fabric.WC, len(c.send.slots)+len(c.recv.slots))
	if passive {
		req := id.Request()
		c.peerData = req.PrivateData
		c.ird, c.ord = min(c.ird, req.ResponderResources), min(c.ord, req.InitiatorDepth)
	}
	p.enterDevice(dev)
	if err := c.setUp(); err != nil {
		p.leaveDevice(dev)
		return nil, err
	}
	p.open.conns.Add(1)
	id.Notify(c.event)
	return c, nil
}

// setUp creates the objects on the device, all or none.
func (c *Conn) setUp() (err error) {
	if c.pd, err = c.dev.ctx.AllocPD(); err != nil {
		return err
	}
	if c.q, err = c.dev.queue(c, c.p.cfg.SharedCQ); err != nil {
		c.pd.Close()
		return err
	}
	if err = c.createQP(); err == nil && c.p.cfg.AckTimeout != 0 && !c.dev.iwarp {
		err = c.id.SetAckTimeout(c.p.cfg.AckTimeout)
	}
	if err != nil {
		c.q.leave(c)
		c.pd.Close()
	}
	return err
}

// createQP creates the queue pair with as much inline data as the device allows.
//
// Implements: int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
func (c *Conn) createQP() error {
	want := cgo.QPCap{
		MaxSendWR: uint32(c.attr.SendDepth + 1), MaxRecvWR: uint32(c.attr.RecvDepth),
		MaxSendSGE: uint32(min(int(c.dev.attr.MaxSGE), maxSGE)), MaxRecvSGE: 1,
		MaxInlineData: uint32(c.dev.inline.Load()),
	}
	for {
		var errno syscall.Errno
		err := c.id.use("rdma_create_qp", c.dev.name, func(raw *cgo.CMID) syscall.Errno {
			c.qp, c.cap, errno = c.dev.lib.CMCreateQP(raw, c.pd.Raw(), c.q.cq.Raw(), nil, want)
			return errno
		})
		switch {
		case err == nil:
			// Inline data beyond what was asked for does not pay.
			c.cap.MaxInlineData = min(c.cap.MaxInlineData, want.MaxInlineData)
			c.dev.inline.Store(int32(want.MaxInlineData)) // for the next connections
			c.q.join(c)
			return nil
		case errno == syscall.EINVAL && want.MaxInlineData > 0:
			// No verb reports the maximum of a device.
			want.MaxInlineData /= 2
		case errno != 0:
			return c.dev.ctx.MemoryError("rdma_create_qp", errno, uint64(c.attr.SendDepth+c.attr.RecvDepth)*queueEntry)
		default:
			return err
		}
	}
}

// queueEntry is a rough size of the memory, in bytes, that a device locks for a work
// request.
const queueEntry = 256

// maxSGE bounds the elements of a gather list; more does not pay.
const maxSGE = 16

// destroyQP destroys the queue pair, which ends the device's use of memory. Completions
// stay in the completion queue. Windows are destroyed first: bound ones reference the
// queue pair, and rxe waits for them.
//
// Implements: void rdma_destroy_qp(struct rdma_cm_id *id)
func (c *Conn) destroyQP() {
	c.sendMu.Lock()
	c.recvMu.Lock()
	if c.qp != nil {
		c.mu.Lock()
		mws := c.mws
		c.mws = nil
		c.mu.Unlock()
		for w := range mws {
			w.free()
		}
		// An abandoned set-up may still be in progress: the library changes the state
		// of the queue pair when it takes an event, under the lock of the channel.
		c.id.ch.mu.Lock()
		c.id.use("rdma_destroy_qp", "", func(raw *cgo.CMID) syscall.Errno { c.dev.lib.CMDestroyQP(raw); return 0 })
		c.id.ch.mu.Unlock()
		c.qp = nil
	}
	c.recvMu.Unlock()
	c.sendMu.Unlock()
}

// event takes the events of the connection's ID. It runs on the goroutine of the event
// channel.
func (c *Conn) event(ev Event) {
	switch ev.Type {
	case EventDisconnected:
		c.mu.Lock()
		remote := !c.quiet
		c.mu.Unlock()
		c.end(&fabric.ConnError{Provider: name, Remote: remote, Clean: true})
		c.leftOnce.Do(func() { close(c.left) }) // last: Disconnect returns, and Poll knows of the end
	case EventDeviceRemoval:
		c.p.removed(c.dev)
		c.end(&fabric.ConnError{Provider: name, Cause: &DeviceError{Device: c.dev.name, Errno: syscall.ENODEV}})
		c.leftOnce.Do(func() { close(c.left) })
	case EventEstablished, EventConnectError, EventUnreachable, EventRejected:
		// Before set-up returns: Close may follow at once, and looks at it.
		c.heardOnce.Do(func() { close(c.heard) })
		c.mu.Lock()
		setup := c.setup
		c.mu.Unlock()
		if setup != nil {
			setup(setupEvent{ev})
		}
	}
}

// A setupEvent is the event that ended the wait of set-up, as a cause for its context.
type setupEvent struct{ Event }

func (setupEvent) Error() string { return "set-up has ended" }

// end records that the connection has ended and why, and wakes its waiter.
func (c *Conn) end(reason *fabric.ConnError) {
	c.over(reason)
	c.q.wake(c)
}

// over records that the connection has ended and why. The first reason is kept.
func (c *Conn) over(reason *fabric.ConnError) {
	c.mu.Lock()
	if c.state != stateOver {
		c.state, c.err = stateOver, reason
		if c.patience != nil {
			c.patience.Stop()
		}
		if c.nudger != nil {
			c.nudger.Stop()
		}
	}
	setup, err := c.setup, c.connErrLocked()
	c.mu.Unlock()
	if setup != nil {
		setup(err)
	}
	c.ending.Store(true)
}

// wakePoller wakes the waiter. Callers hold a lock that is ordered after queue.mu.
func (c *Conn) wakePoller() { go c.q.wake(c) }

// failing records that requests fail for a reason that the connection manager has yet to
// tell: the peer has disconnected or the device is being removed, and the queue pair
// was first to notice. If no event comes in time, wc is the reason.
func (c *Conn) failing(wc *fabric.WC) {
	if c.ending.Swap(true) {
		return
	}
	reason := requestFailed(wc)
	c.mu.Lock()
	defer c.mu.Unlock()
	wait := patience
	if wc.Status != fabric.WCFlushErr {
		c.alone, wait = true, removal
	}
	if c.state != stateOver && c.patience == nil {
		c.patience = time.AfterFunc(wait, func() { c.end(reason) })
	}
}

// requestFailed is the reason of an end by a failed request.
func requestFailed(wc *fabric.WC) *fabric.ConnError {
	return &fabric.ConnError{
		Provider: name, Remote: remoteFault(wc.Status),
		Cause: &WCError{Status: wc.Status, VendorErr: wc.VendorErr, Op: wc.Op},
	}
}

// patience bounds the wait for the event that says why requests fail.
const patience = 2 * time.Second

// removal bounds the wait for the event of a device's removal after requests have failed
// because of it.
const removal = 200 * time.Millisecond

// hangUp disconnects, once, which moves the queue pair to its error state.
func (c *Conn) hangUp() {
	c.mu.Lock()
	first := !c.hungUp
	c.hungUp = true
	accepted := c.accepted
	c.mu.Unlock()
	if !first {
		return
	}
	if accepted && !c.up.Load() {
		// The peer may consider the connection established already. Until its message
		// that says so has arrived, rdma_disconnect has nothing to disconnect.
		select {
		case <-c.heard:
		case <-time.After(acceptGrace):
		}
	}
	if c.up.Load() || accepted {
		c.sendMu.Lock() // librdmacm modifies the queue pair
		c.id.Disconnect()
		c.sendMu.Unlock()
	}
}

// acceptGrace bounds the wait of Close for the peer's last message of a set-up that
// this side has accepted and abandoned.
const acceptGrace = 500 * time.Millisecond

// settle ends the device's use of the queue pair and completes outstanding requests as
// flushed, once the reason of the end is known. queue.mu is held.
func (c *Conn) settle() {
	if c.settled {
		return
	}
	// Disconnect even if the reason is not known: the event that answers tells it,
	// unless the fault is on this side.
	c.mu.Lock()
	known, ask := c.state == stateOver, !c.alone
	c.mu.Unlock()
	if known || ask {
		c.hangUp()
	}
	if !known {
		return
	}
	c.destroyQP()
	for c.q.pump(0) == len(c.q.wcs) {
	}
	c.sendMu.Lock()
	c.recvMu.Lock()
	for pos := c.send.head.Load(); pos != c.send.tail; pos++ {
		s := c.send.at(pos)
		if s.done {
			c.deliver(pos, s)
			continue
		}
		s.wc = fabric.WC{ID: s.id, Status: fabric.WCFlushErr, Op: s.op}
		c.deliver(pos, s)
		c.cutShort(s)
	}
	c.send.head.Store(c.send.tail)
	for pos := c.recv.head.Load(); pos != c.recv.tail; pos++ {
		c.push(fabric.WC{ID: c.recv.at(pos).id, Status: fabric.WCFlushErr, Op: fabric.WCRecv})
	}
	c.recv.head.Store(c.recv.tail)
	c.settled = true
	c.recvMu.Unlock()
	c.sendMu.Unlock()

	c.mu.Lock()
	if c.cut != nil && c.err.Clean && c.err.Remote {
		// The peer has disconnected in the middle of a request: the event came before
		// the completion.
		c.err = c.cut
	}
	c.mu.Unlock()
}

// cutShort records that a request was flushed. An unsignaled one does not count: it may
// have been executed.
func (c *Conn) cutShort(s *slot) {
	if s.report {
		c.broke(&fabric.ConnError{Provider: name, Remote: true, Cause: &WCError{Status: fabric.WCFlushErr}})
	}
}

// broke records why the first request that did not complete failed.
func (c *Conn) broke(reason *fabric.ConnError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut == nil {
		c.cut = reason
	}
}

// connErr returns why the connection has ended.
func (c *Conn) connErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connErrLocked()
}

func (c *Conn) connErrLocked() error {
	if c.err == nil {
		return &fabric.ConnError{Provider: name, Clean: true}
	}
	return c.err
}

// begin enters set-up and returns its context, which event and over cancel with the
// outcome as the cause.
func (c *Conn) begin(ctx context.Context, passive bool, what string) (context.Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state == stateOver:
		return nil, c.connErrLocked()
	case c.passive != passive || c.state != stateNew:
		return nil, fmt.Errorf("%w: %s", ErrMisuse, what)
	}
	c.state = stateSetup
	ctx, c.setup = context.WithCancelCause(ctx)
	return ctx, nil
}

// finish waits for the end of set-up, unless err is an error already, and leaves set-up.
func (c *Conn) finish(parent, ctx context.Context, op string, err error) error {
	if err == nil {
		<-ctx.Done()
		err = context.Cause(ctx)
	}
	c.mu.Lock()
	c.setup(nil)
	c.setup = nil
	var ev setupEvent
	if errors.As(err, &ev) && ev.Type == EventEstablished && c.state == stateSetup {
		c.state = stateUp
		if !c.passive {
			c.peerData = ev.PrivateData
			in, out := ev.ResponderResources, ev.InitiatorDepth
			if c.dev.iwarp {
				// siw reports the values from the peer's point of view, other than
				// in a request; the man pages do not tell.
				in, out = min(in, out), min(in, out)
			}
			c.ird, c.ord = min(c.ird, in), min(c.ord, out)
		} else if c.dev.iwarp {
			c.ird = max(c.ird, ev.InitiatorDepth) // siw serves as many as the peer asks for
		}
		c.up.Store(true)
		c.mu.Unlock()
		c.answered()
		return nil
	}
	over := c.state == stateOver
	c.mu.Unlock()
	c.answered()
	switch {
	case over:
		err = c.connErr()
	case errors.As(err, &ev):
		err = c.refused(op, ev.Event)
	case parent.Err() != nil:
		err = parent.Err()
	}
	if !over {
		c.end(&fabric.ConnError{Provider: name, Cause: err})
	}
	return err
}

// refused returns the error for an event that ended set-up.
func (c *Conn) refused(op string, ev Event) error {
	e := &EventError{Op: op, Addr: c.raddr.String(), Event: ev}
	if ev.Type != EventRejected {
		return e
	}
	byProgram := ev.Status == rejectConsumer
	if c.dev.iwarp {
		// A rejection by the peer's program has private data or resets the TCP
		// connection. A port without a listener makes rdma_connect fail, or refuses
		// without private data.
		byProgram = len(ev.PrivateData) > 0 || ev.errno() == syscall.ECONNRESET
	}
	if byProgram {
		return &fabric.RejectError{Addr: c.raddr.String(), PrivateData: ev.PrivateData}
	}
	return e
}

// Connect implements fabric.Conn.
func (c *Conn) Connect(ctx context.Context, privateData []byte) error {
	if err := c.checkPrivateData(privateData); err != nil {
		return err
	}
	setup, err := c.begin(ctx, false, "Connect")
	if err != nil {
		return err
	}
	request := func() error {
		return c.id.use("rdma_connect", c.raddr.String(), func(raw *cgo.CMID) syscall.Errno {
			return c.dev.lib.Connect(raw, c.param(privateData).raw())
		})
	}
	if !c.dev.iwarp {
		return c.finish(ctx, setup, "connecting to", request())
	}
	// The call blocks until TCP has connected, for minutes if nobody answers.
	c.mu.Lock()
	c.requested = make(chan struct{})
	c.mu.Unlock()
	go func() {
		defer close(c.requested)
		if err := request(); err != nil {
			c.heardOnce.Do(func() { close(c.heard) })
			c.mu.Lock()
			failed := c.setup
			c.mu.Unlock()
			if failed != nil {
				failed(err)
			}
		}
	}()
	return c.finish(ctx, setup, "connecting to", nil)
}

// Accept implements fabric.Conn.
func (c *Conn) Accept(ctx context.Context, privateData []byte) error {
	if err := c.checkPrivateData(privateData); err != nil {
		return err
	}
	setup, err := c.begin(ctx, true, "Accept")
	if err != nil {
		return err
	}
	err = c.id.use("rdma_accept", c.raddr.String(), func(raw *cgo.CMID) syscall.Errno {
		return c.dev.lib.Accept(raw, c.param(privateData).raw())
	})
	if errors.Is(err, syscall.EINVAL) && c.id.withdrawn() {
		c.end(&fabric.ConnError{Provider: name, Remote: true, Cause: ErrWithdrawn})
	}
	c.mu.Lock()
	c.accepted = err == nil
	c.mu.Unlock()
	return c.finish(ctx, setup, "accepting", err)
}

func (c *Conn) param(privateData []byte) *ConnParam {
	return &ConnParam{
		PrivateData: privateData, ResponderResources: c.ird, InitiatorDepth: c.ord,
		RetryCount: c.p.cfg.RetryCount, RNRRetryCount: c.p.cfg.RNRRetryCount,
	}
}

// Reject implements fabric.Conn.
func (c *Conn) Reject(privateData []byte) error {
	if err := c.checkPrivateData(privateData); err != nil {
		return err
	}
	if _, err := c.begin(context.Background(), true, "Reject"); err != nil {
		return err
	}
	err := c.id.Reject(privateData)
	c.mu.Lock()
	c.setup(nil)
	c.setup = nil
	c.mu.Unlock()
	c.end(&fabric.ConnError{Provider: name, Cause: ErrRejected})
	c.Close()
	return err
}

// answered releases the listener, which stays open until the request is answered.
func (c *Conn) answered() {
	if c.listener != nil {
		c.answerOnce.Do(c.listener.answered)
	}
}

// The longest private data: what InfiniBand's connection request holds besides the
// addresses, and an MPA frame besides IRD and ORD. siw counts the latter in one byte.
const (
	maxPrivateDataIB    = 56
	maxPrivateDataIWARP = 251
)

func (c *Conn) maxPrivateData() int {
	if c.dev.iwarp {
		return maxPrivateDataIWARP
	}
	return maxPrivateDataIB
}

func (c *Conn) checkPrivateData(b []byte) error {
	if most := c.maxPrivateData(); len(b) > most {
		return &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("private data of %d bytes: at most %d on %s", len(b), most, c.dev.name)}
	}
	return nil
}

// PeerPrivateData implements fabric.Conn.
func (c *Conn) PeerPrivateData() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peerData
}

// Capabilities implements fabric.Conn.
func (c *Conn) Capabilities() fabric.Capabilities {
	c.mu.Lock()
	defer c.mu.Unlock()
	caps := fabric.Capabilities{
		MaxSendSGE: int(c.cap.MaxSendSGE), MaxReadSGE: 1, MaxMessage: uint64(c.dev.maxMsg), MaxPrivateData: c.maxPrivateData(),
		MemoryWindows: c.dev.windows, RemoteInvalidate: c.dev.sendInv, WeakRevocation: c.dev.weak,
		InboundReads: c.ird, OutboundReads: c.ord,
	}
	if !c.dev.iwarp {
		caps.MaxReadSGE = min(int(c.dev.attr.MaxSGERd), caps.MaxSendSGE)
		if caps.MaxReadSGE == 0 {
			caps.MaxReadSGE = 1
		}
	}
	return caps
}

// Device is the name of the RDMA device that carries the connection.
func (c *Conn) Device() string { return c.dev.name }

// LocalAddr implements fabric.Conn.
func (c *Conn) LocalAddr() net.Addr { return netAddr(c.laddr) }

// RemoteAddr implements fabric.Conn.
func (c *Conn) RemoteAddr() net.Addr { return netAddr(c.raddr) }

// Disconnect implements fabric.Conn.
func (c *Conn) Disconnect(ctx context.Context) error {
	c.mu.Lock()
	switch {
	case c.state == stateOver:
		c.mu.Unlock()
		return nil
	case c.state != stateUp:
		c.mu.Unlock()
		return ErrNotConnected
	}
	c.quiet = true
	c.mu.Unlock()
	if err := c.drain(ctx); err != nil {
		return err
	}
	c.hangUp()
	// The peer has received everything. Its acknowledgement of the end may take minutes
	// if both ends disconnect at once and a message is lost.
	enough := time.NewTimer(patience)
	defer enough.Stop()
	select {
	case <-c.left:
	case <-enough.C:
		c.end(&fabric.ConnError{Provider: name, Clean: true})
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// drain waits until all sends have completed. Nobody else may be in Poll or Wait.
func (c *Conn) drain(ctx context.Context) error {
	if err := c.marker(); err != nil {
		return nil // the connection has ended
	}
	stop := context.AfterFunc(ctx, func() { c.q.wake(c) })
	defer stop()
	idle := func() bool {
		return c.send.head.Load() == c.sendTail() || c.ending.Load() || ctx.Err() != nil
	}
	step := func() bool {
		c.q.mu.Lock()
		defer c.q.mu.Unlock()
		for c.q.pump(c.q.awaiting(c)) > 0 {
		}
		return idle()
	}
	for !step() {
		c.q.await(c, idle, step)
	}
	return ctx.Err()
}

func (c *Conn) sendTail() uint64 {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	return c.send.tail
}

// Close implements fabric.Conn. It destroys, children first, windows, queue pair,
// completion queue, regions, ID and protection domain. After an abandoned set-up over
// iWARP all but the regions is destroyed in the background.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		c.shut.Store(true)
		c.end(&fabric.ConnError{Provider: name, Clean: true})
		c.hangUp()
		c.mu.Lock()
		requested := c.requested
		c.mu.Unlock()
		underway := false // rdma_connect may be blocked in the kernel
		if requested != nil && !c.up.Load() {
			select {
			case <-c.heard:
			default:
				underway = true
			}
		}
		if !underway {
			c.q.leave(c)
		}
		c.mu.Lock()
		mrs := c.mrs
		c.mrs, c.byKey = nil, nil
		c.mu.Unlock()
		for r := range mrs {
			r.free()
		}
		c.answered()
		rest := func() {
			c.id.Close()
			c.pd.Close()
			c.p.leaveDevice(c.dev)
			c.p.open.conns.Add(-1)
			c.p.release()
		}
		if !underway {
			rest()
			return
		}
		// Nothing is connected and no memory is registered. The kernel keeps the rest
		// until TCP, or siw's wait for the answer, times out.
		go func() {
			<-requested
			c.q.leave(c)
			rest()
		}()
	})
	return nil
}
