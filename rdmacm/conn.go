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
	"github.com/rpcrdma/rpcrdma/internal/spin"
)

// A phase is the phase of a Conn. It only moves forward.
type phase uint8

const (
	phaseNew   phase = iota // resolved, or requested by a peer
	phaseSetup              // Connect, Accept or Reject is under way
	phaseUp
	phaseOver // ended, and the reason is known
)

// A Conn is one reliable connection: ID, queue pair, completion queue and protection domain. It is a fabric.Conn.
//
// # Owners
//
// Any goroutine may use the fields of a Conn itself, except spin: they do not change, are atomic, or are locked values.
// All other state is in parts that can be reached only with their lock. Sender and receiver post. The poller takes
// completions, under the lock of the queue. They share the positions of the work queues, which are atomic.
//
// The lock order is queue, send, recv, memory, state, as in package lockorder.
//
// # The end
//
// A failed request, an event of the connection manager or Close ends the connection. The next poll finishes the end: it
// destroys the queue pair, after which the device uses no memory of outstanding requests, and completes them as
// flushed. This does not depend on what a device flushes by itself and when, since devices differ in that.
type Conn struct {
	p        *Provider
	dev      *device
	id       *ID
	passive  bool
	attr     fabric.ConnAttr
	pd       *ibv.PD
	q        *queue
	cap      cgo.QPCap
	laddr    netip.AddrPort
	raddr    netip.AddrPort
	listener *Listener // the request's listener, on iWARP
	steps    steps

	lifetime
	marks

	state  lockorder.Value[state]
	memory memory
	sends  workQueue
	recvs  workQueue
	send   lockorder.Value[sender]
	recv   lockorder.Value[receiver]
	poller lockorder.Part[polling, poller]
	turn   baton.Waiter[Conn] // in polling.turns
	spin   spin.Spinner       // for the goroutine in Wait; only one waits at a time
}

var _ fabric.Conn = (*Conn)(nil)

// A lifetime records events that happen once in the life of a connection. Any goroutine may use it.
type lifetime struct {
	up     atomic.Bool // phase has been phaseUp
	ending atomic.Bool // the connection is ending and must be settled
	shut   atomic.Bool // Close has been called
	heard  latch       // opened by the event that ends set-up, even a late one
	left   latch       // opened by the event for the disconnection or the device removal
	closed sync.Once
	answer sync.Once
}

// A latch opens once.
type latch struct {
	once   sync.Once
	opened chan struct{}
}

func (l *latch) open() { l.once.Do(func() { close(l.opened) }) }

// Marks are signals between the sender, the poller and a waiter. Any goroutine may use them.
type marks struct {
	wakeup atomic.Bool // Wake has been called
	inner  atomic.Bool // an internal request is outstanding
	// starved is set after Post has returned ErrQueueFull. Wait then returns once there is room, even if the
	// completions that make room are not reported.
	starved  atomic.Bool
	deferred atomic.Int32 // requests that untold covers
}

// A state is shared by the goroutines of a connection, guarded by Conn.state.
type state struct {
	phase     phase
	ird, ord  int
	peerData  []byte
	err       *fabric.ConnError // since phaseOver
	quiet     bool              // Disconnect has begun: nothing may be posted
	cut       *fabric.ConnError // why a request that the caller waits for failed
	alone     bool              // requests fail because of this side, so the peer need not be notified
	hungUp    bool              // rdma_disconnect has been called
	setup     context.CancelCauseFunc
	requested chan struct{} // iWARP: closed once rdma_connect has returned
	accepted  bool          // rdma_accept has been called
	nudger    *time.Timer   // see nudge.go; nil before the first request
	patience  *time.Timer   // bounds the wait for the reason of the end
}

// steps are method values of a Conn, bound once.
type steps struct {
	wait  func() bool
	ready func(*polling) bool
}

// newConn creates a connection on the device that id is bound to. If it fails, the caller still owns id and the
// reference to the provider's channel.
func (p *Provider) newConn(id *ID, attr fabric.ConnAttr, passive bool) (*Conn, error) {
	dev, err := p.device(id)
	if err != nil {
		return nil, err
	}
	if attr, err = dev.size(attr); err != nil {
		return nil, err
	}
	c := &Conn{
		p: p, dev: dev, id: id, passive: passive, attr: attr,
		laddr: id.LocalAddr(), raddr: id.PeerAddr(),
	}
	c.steps = steps{c.waitStep, c.mayReturn}
	c.heard.opened, c.left.opened = make(chan struct{}), make(chan struct{})
	st := c.state.Init(lockorder.RdmacmConn)
	st.ird, st.ord = attr.InboundReads, attr.OutboundReads
	if passive {
		req := id.Request()
		st.peerData = req.PrivateData
		st.ird, st.ord = min(st.ird, req.ResponderResources), min(st.ord, req.InitiatorDepth)
	}
	*c.memory.keys.Init(lockorder.RdmacmMemory) = keys{
		mrs: make(map[*region]struct{}), mws: make(map[*window]struct{}), byKey: make(map[uint32]*region), bound: make(map[uint32]*window),
	}
	t := c.send.Init(lockorder.RdmacmSend)
	t.c = c
	t.init(&c.sends, attr.SendDepth+1, firstSends) // one for internal requests
	r := c.recv.Init(lockorder.RdmacmRecv)
	r.c = c
	r.init(&c.recvs, attr.RecvDepth, firstRecvs)
	c.poller.Init().init(c, t.slots, r.slots)
	c.turn.Init(c)
	p.enterDevice(dev)
	if err := c.setUp(); err != nil {
		p.leaveDevice(dev)
		return nil, err
	}
	p.open.conns.Add(1)
	id.Notify(c.event)
	return c, nil
}

// setUp creates all objects on the device, or none.
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

// createQP creates the queue pair with as much inline data and as many SGEs as the device allows. The limits that a
// device reports may apply only to other types of queue pairs.
//
// Implements: int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
func (c *Conn) createQP() error {
	want := cgo.QPCap{
		MaxSendWR: uint32(c.attr.SendDepth + 1), MaxRecvWR: uint32(c.attr.RecvDepth),
		MaxSendSGE: uint32(min(int(c.dev.attr.MaxSGE), maxSGE)), MaxRecvSGE: 1,
		MaxInlineData: uint32(c.dev.inline.Load()),
	}
	elements := want.MaxSendSGE
	for {
		var qp *cgo.QP
		var errno syscall.Errno
		err := c.id.use("rdma_create_qp", c.dev.name, func(raw *cgo.CMID) syscall.Errno {
			qp, c.cap, errno = c.dev.lib.CMCreateQP(raw, c.pd.Raw(), cgo.QPInit{SendCQ: c.q.cq.Raw(), RecvCQ: c.q.cq.Raw(), Cap: want, Type: int32(ibv.QPTypeRC)})
			return errno
		})
		switch {
		case err == nil:
			// Inline data beyond the requested size does not pay.
			c.cap.MaxInlineData = min(c.cap.MaxInlineData, want.MaxInlineData)
			if want.MaxSendSGE == elements {
				c.dev.inline.Store(int32(want.MaxInlineData)) // for the next connections
			}
			c.equip(qp)
			c.q.join(c, qp)
			return nil
		case errno == syscall.EINVAL && want.MaxInlineData > 0:
			// No verb reports the maximum of a device.
			want.MaxInlineData /= 2
		case errno == syscall.EINVAL && want.MaxSendSGE > 1:
			// mlx5 supports the longest queue that it reports only if each request is short.
			want.MaxSendSGE /= 2
		case errno != 0:
			return c.dev.ctx.MemoryError("rdma_create_qp", errno, uint64(c.attr.SendDepth+c.attr.RecvDepth)*queueEntry)
		default:
			return err
		}
	}
}

// equip passes the queue pair to the sender and the receiver.
func (c *Conn) equip(qp *cgo.QP) {
	c.send.Lock().qp = qp
	c.recv.Lock().qp = qp
	c.recv.Unlock()
	c.send.Unlock()
}

// queueEntry is a rough size, in bytes, of the memory that a device locks for a work request.
const queueEntry = 256

// maxSGE bounds the SGEs of a gather list. More do not pay.
const maxSGE = 16

// destroyQP destroys the queue pair, which ends the device's use of memory. Completions
// stay in the completion queue. Windows are destroyed first: bound ones reference the
// queue pair, and rxe waits for them.
//
// Implements: void rdma_destroy_qp(struct rdma_cm_id *id)
func (c *Conn) destroyQP() {
	t, r := c.send.Lock(), c.recv.Lock()
	if t.qp != nil {
		k := c.memory.keys.Lock()
		mws := k.mws
		k.mws = nil
		c.memory.keys.Unlock()
		for w := range mws {
			w.free(t)
		}
		// An abandoned set-up may still be in progress. When the library returns an event, it changes the state of the
		// queue pair under the lock of the channel.
		c.id.ch.ids.Lock()
		c.id.use("rdma_destroy_qp", "", func(raw *cgo.CMID) syscall.Errno { c.dev.lib.CMDestroyQP(raw); return 0 })
		c.id.ch.ids.Unlock()
		t.qp, r.qp = nil, nil
	}
	c.recv.Unlock()
	c.send.Unlock()
}

// event handles the events of the connection's ID. It runs on the goroutine of the event channel.
func (c *Conn) event(ev Event) {
	switch ev.Type {
	case EventDisconnected:
		remote := !c.state.Lock().quiet
		c.state.Unlock()
		c.end(&fabric.ConnError{Provider: name, Remote: remote, Clean: true})
		c.left.open() // last: Disconnect then returns, and Poll sees the end
	case EventDeviceRemoval:
		c.p.removed(c.dev)
		c.end(&fabric.ConnError{Provider: name, Cause: &DeviceError{Device: c.dev.name, Errno: syscall.ENODEV}})
		c.left.open()
	case EventEstablished, EventConnectError, EventUnreachable, EventRejected:
		// Before set-up returns: Close may follow at once and checks this latch.
		c.heard.open()
		setup := c.state.Lock().setup
		c.state.Unlock()
		if setup != nil {
			setup(setupEvent{ev})
		}
	}
}

// A setupEvent is the event that ended set-up. It is the cause of the set-up context's cancellation.
type setupEvent struct{ Event }

func (setupEvent) Error() string { return "set-up has ended" }

// end records that the connection has ended and why, and wakes its waiter.
func (c *Conn) end(reason *fabric.ConnError) {
	c.over(reason)
	c.q.wake(c)
}

// over records that the connection has ended and why. The first reason is kept.
func (c *Conn) over(reason *fabric.ConnError) {
	st := c.state.Lock()
	if st.phase != phaseOver {
		st.phase, st.err = phaseOver, reason
		if st.patience != nil {
			st.patience.Stop()
		}
		if st.nudger != nil {
			st.nudger.Stop()
		}
	}
	setup, err := st.setup, st.connErr()
	c.state.Unlock()
	if setup != nil {
		setup(err)
	}
	c.ending.Store(true)
}

// wakePoller wakes the waiter. Callers hold a lock that is ordered after that of the queue.
func (c *Conn) wakePoller() { go c.q.wake(c) }

// failing records that requests fail before the connection manager has reported why. The peer has disconnected or the
// device is being removed, and the queue pair failed first. If no event arrives in time, wc is the reason.
func (c *Conn) failing(wc *fabric.WC) {
	if c.ending.Swap(true) {
		return
	}
	reason := requestFailed(wc)
	st := c.state.Lock()
	defer c.state.Unlock()
	wait := patience
	if wc.Status != fabric.WCFlushErr {
		st.alone, wait = true, removal
	}
	if st.phase != phaseOver && st.patience == nil {
		st.patience = time.AfterFunc(wait, func() { c.end(reason) })
	}
}

// requestFailed returns the reason for an end caused by a failed request.
func requestFailed(wc *fabric.WC) *fabric.ConnError {
	return &fabric.ConnError{
		Provider: name, Remote: remoteFault(wc.Status),
		Cause: &WCError{Status: wc.Status, VendorErr: wc.VendorErr, Op: wc.Op},
	}
}

// patience bounds the wait for the event that explains why requests fail.
const patience = 2 * time.Second

// removal bounds the wait for the device removal event after requests have failed because of the removal.
const removal = 200 * time.Millisecond

// hangUp disconnects once, which moves the queue pair to the error state.
func (c *Conn) hangUp() {
	st := c.state.Lock()
	first := !st.hungUp
	st.hungUp = true
	accepted := st.accepted
	c.state.Unlock()
	if !first {
		return
	}
	if accepted && !c.up.Load() {
		// The peer may already consider the connection established. Until its message to that effect arrives,
		// rdma_disconnect has nothing to disconnect.
		select {
		case <-c.heard.opened:
		case <-time.After(acceptGrace):
		}
	}
	if c.up.Load() || accepted {
		c.send.Lock() // librdmacm modifies the queue pair
		c.id.Disconnect()
		c.send.Unlock()
	}
}

// acceptGrace bounds how long Close waits for the peer's last set-up message after this side has accepted and then
// abandoned the set-up.
const acceptGrace = 500 * time.Millisecond

// cutShort records that a request was flushed. Unsignaled requests do not count, because they may have been executed.
func (c *Conn) cutShort(s *slot) {
	if s.report {
		c.broke(&fabric.ConnError{Provider: name, Remote: true, Cause: &WCError{Status: fabric.WCFlushErr}})
	}
}

// broke records why the first failed request failed.
func (c *Conn) broke(reason *fabric.ConnError) {
	st := c.state.Lock()
	if st.cut == nil {
		st.cut = reason
	}
	c.state.Unlock()
}

// ended reports whether the connection has ended and the reason is known.
func (c *Conn) ended() bool {
	defer c.state.Unlock()
	return c.state.Lock().phase == phaseOver
}

// connErr returns why the connection has ended.
func (c *Conn) connErr() error {
	defer c.state.Unlock()
	return c.state.Lock().connErr()
}

// connErr returns why the connection has ended.
func (st *state) connErr() error {
	if st.err == nil {
		return &fabric.ConnError{Provider: name, Clean: true}
	}
	return st.err
}

// begin enters set-up and returns its context. event and over cancel the context with the outcome as the cause.
func (c *Conn) begin(ctx context.Context, passive bool, what string) (context.Context, error) {
	st := c.state.Lock()
	defer c.state.Unlock()
	switch {
	case st.phase == phaseOver:
		return nil, st.connErr()
	case c.passive != passive || st.phase != phaseNew:
		return nil, fmt.Errorf("%w: %s", ErrMisuse, what)
	}
	st.phase = phaseSetup
	ctx, st.setup = context.WithCancelCause(ctx)
	return ctx, nil
}

// finish waits for set-up to end, unless err is already set, and leaves set-up.
func (c *Conn) finish(parent, ctx context.Context, op string, err error) error {
	if err == nil {
		<-ctx.Done()
		err = context.Cause(ctx)
	}
	st := c.state.Lock()
	st.setup(nil)
	st.setup = nil
	var ev setupEvent
	if errors.As(err, &ev) && ev.Type == EventEstablished && st.phase == phaseSetup {
		st.phase = phaseUp
		if !c.passive {
			st.peerData = ev.PrivateData
			in, out := ev.ResponderResources, ev.InitiatorDepth
			if c.dev.iwarp {
				// siw reports the values from the peer's point of view, except in a request. The man pages do not
				// specify this.
				in, out = min(in, out), min(in, out)
			}
			st.ird, st.ord = min(st.ird, in), min(st.ord, out)
		} else if c.dev.iwarp {
			st.ird = max(st.ird, ev.InitiatorDepth) // siw serves as many as the peer asks for
		}
		c.up.Store(true)
		c.state.Unlock()
		c.answered()
		return nil
	}
	over := st.phase == phaseOver
	c.state.Unlock()
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

// refused returns the error for the event that ended set-up.
func (c *Conn) refused(op string, ev Event) error {
	e := &EventError{Op: op, Addr: c.raddr.String(), Event: ev}
	if ev.Type != EventRejected {
		return e
	}
	byProgram := ev.Status == rejectConsumer
	if c.dev.iwarp {
		// A rejection by the peer's program carries private data or resets the TCP connection. If no listener has the
		// port, rdma_connect fails, or the connection is refused without private data. That is how siw reports it.
		// irdma, cxgb4 and qedr report a rejection without private data as refused, and a port without a listener as
		// reset.
		rejected := syscall.ECONNREFUSED
		if c.dev.siw {
			rejected = syscall.ECONNRESET
		}
		byProgram = len(ev.PrivateData) > 0 || ev.errno() == rejected
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
	// The call blocks until TCP has connected, which takes minutes if no peer answers.
	requested := make(chan struct{})
	c.state.Lock().requested = requested
	c.state.Unlock()
	go func() {
		defer close(requested)
		if err := request(); err != nil {
			c.heard.open()
			failed := c.state.Lock().setup
			c.state.Unlock()
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
	c.state.Lock().accepted = err == nil
	c.state.Unlock()
	return c.finish(ctx, setup, "accepting", err)
}

func (c *Conn) param(privateData []byte) *ConnParam {
	st := c.state.Lock()
	defer c.state.Unlock()
	return &ConnParam{
		PrivateData: privateData, ResponderResources: st.ird, InitiatorDepth: st.ord,
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
	st := c.state.Lock()
	st.setup(nil)
	st.setup = nil
	c.state.Unlock()
	c.end(&fabric.ConnError{Provider: name, Cause: ErrRejected})
	c.Close()
	return err
}

// answered releases the listener, which stays open until the request is answered.
func (c *Conn) answered() {
	if c.listener != nil {
		c.answer.Do(c.listener.answered)
	}
}

// Maximum private data: the size of InfiniBand's connection request less the addresses, and of an MPA frame less IRD
// and ORD. siw stores the length of the MPA data in one byte.
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
	defer c.state.Unlock()
	return c.state.Lock().peerData
}

// Capabilities implements fabric.Conn.
func (c *Conn) Capabilities() fabric.Capabilities {
	st := c.state.Lock()
	defer c.state.Unlock()
	return fabric.Capabilities{
		MaxSendSGE: int(c.cap.MaxSendSGE), MaxReadSGE: c.maxReadSGE(), MaxMessage: uint64(c.dev.maxMsg), MaxPrivateData: c.maxPrivateData(),
		MemoryWindows: c.dev.windows, RemoteInvalidate: c.dev.sendInv, WeakRevocation: c.dev.weak,
		SendDepth: c.attr.SendDepth, InboundReads: st.ird, OutboundReads: st.ord,
	}
}

// maxReadSGE returns the maximum number of SGEs of a Read.
func (c *Conn) maxReadSGE() int {
	if c.dev.iwarp {
		return 1
	}
	return max(1, min(int(c.dev.attr.MaxSGERd), int(c.cap.MaxSendSGE)))
}

// Device returns the name of the RDMA device that carries the connection.
func (c *Conn) Device() string { return c.dev.name }

// LocalAddr implements fabric.Conn.
func (c *Conn) LocalAddr() net.Addr { return netAddr(c.laddr) }

// RemoteAddr implements fabric.Conn.
func (c *Conn) RemoteAddr() net.Addr { return netAddr(c.raddr) }

// Disconnect implements fabric.Conn.
func (c *Conn) Disconnect(ctx context.Context) error {
	st := c.state.Lock()
	switch {
	case st.phase == phaseOver:
		c.state.Unlock()
		if c.up.Load() {
			c.hangUp() // the disconnected peer waits for this
		}
		return nil
	case st.phase != phaseUp:
		c.state.Unlock()
		return ErrNotConnected
	}
	st.quiet = true
	c.state.Unlock()
	if err := c.drain(ctx); err != nil {
		return err
	}
	c.hangUp()
	// The peer has received everything. Its acknowledgement of the end may take minutes if both ends disconnect at once
	// and a message is lost.
	enough := time.NewTimer(patience)
	defer enough.Stop()
	select {
	case <-c.left.opened:
	case <-enough.C:
		c.end(&fabric.ConnError{Provider: name, Clean: true})
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// drain waits until all sends have completed. No other goroutine may be in Poll or Wait.
func (c *Conn) drain(ctx context.Context) error {
	if err := c.marker(); err != nil {
		return nil // the connection has ended
	}
	stop := context.AfterFunc(ctx, func() { c.q.wake(c) })
	defer stop()
	idle := func(*polling) bool {
		return c.sends.head.Load() == c.sendTail() || c.ending.Load() || ctx.Err() != nil
	}
	step := func() bool {
		l := c.q.polling.Lock()
		defer c.q.polling.Unlock()
		for l.pump(l.awaiting(c)) > 0 {
		}
		return idle(l)
	}
	for !step() {
		c.q.await(c, idle, step)
	}
	return ctx.Err()
}

func (c *Conn) sendTail() uint64 {
	defer c.send.Unlock()
	return c.send.Lock().tail
}

// Close implements fabric.Conn. It destroys, children first, windows, queue pair, completion queue, regions, ID and
// protection domain. After an abandoned setup over iWARP everything except the regions is destroyed in the background.
func (c *Conn) Close() error {
	c.closed.Do(func() {
		c.shut.Store(true)
		c.end(&fabric.ConnError{Provider: name, Clean: true})
		c.hangUp()
		requested := c.state.Lock().requested
		c.state.Unlock()
		underway := false // rdma_connect may be blocked in the kernel
		if requested != nil && !c.up.Load() {
			select {
			case <-c.heard.opened:
			default:
				underway = true
			}
		}
		if !underway {
			c.q.leave(c)
		}
		k := c.memory.keys.Lock()
		mrs := k.mrs
		k.mrs, k.byKey = nil, nil
		c.memory.keys.Unlock()
		for r := range mrs {
			r.free()
		}
		c.memory.making.Wait()
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
		// Nothing is connected and no memory is registered. The kernel keeps the rest until TCP, or siw's wait for the
		// answer, times out.
		go func() {
			<-requested
			c.q.leave(c)
			rest()
		}()
	})
	return nil
}
