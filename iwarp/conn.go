package iwarp

import (
	"context"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// The state of a Conn only moves forward.
//
//	new --Connect, Accept--> setup --> up --> over
//	 \___________________________\___________/
type state uint8

const (
	stateNew   state = iota // resolved, or requested by a peer
	stateSetup              // Connect, Accept or Reject is under way
	stateUp
	stateOver
)

// A Conn is one iWARP stream over one TCP connection, with its queues and its
// protection domain. It is a fabric.Conn.
//
// # Locks
//
// The order is txMu, rxMu, stags.mu, mu, as package lockorder has it. The holder of txMu may
// write to the socket and read the memory to be sent; the holder of rxMu may read from the
// socket and place data. Both are held for one non-blocking system call at a time, never while
// waiting for the peer. So once they have been held after an STag was changed, nothing uses
// its former memory: see fence.
type Conn struct {
	p       *Provider
	attr    fabric.ConnAttr
	passive bool           // from a Listener
	target  string         // as given to Resolve
	addrs   []*net.TCPAddr // of target

	// Written during set-up, before state becomes stateUp; sock under mu.
	sock        socket
	crc         bool // CRCs are generated and checked
	rtrFPDU     bool // an empty FPDU is a Ready To Receive frame
	maxTagged   int  // longest payload of a tagged segment
	maxUntagged int  // longest payload of an untagged segment
	ird, ord    int

	up   atomic.Bool // state has been stateUp: sock is there
	shut atomic.Bool // Close has been called

	endOnce   sync.Once
	closeOnce sync.Once
	writers   sync.WaitGroup // the writer goroutine
	setups    sync.WaitGroup // the set-up under way

	mu           lockorder.Mutex
	state        state
	laddr, raddr net.Addr
	req          mpa.Start // of the peer, if passive
	reqRDMA      mpa.Enhanced
	peerData     []byte
	nudger       *time.Timer       // nil unless this side has connected
	err          *fabric.ConnError // since stateOver
	quiet        bool              // Disconnect has begun: no more posts
	doorbells    uint64
	unsent       bool      // a batch has not been written completely
	writing      bool      // a batch is being written, and not accounted for yet
	wrote        sync.Cond // signaled when writing becomes false
	queues

	cqn    atomic.Int32 // len(cq)
	over   atomic.Bool  // everything outstanding has been flushed
	parked atomic.Bool  // a waiter is parked on the socket and needs unpark for other events
	wakeup atomic.Bool  // Wake has been called
	wakes  atomic.Uint64
	drain  atomic.Bool // unpark the waiter when the send queue is empty

	stags table

	txMu      lockorder.Mutex
	tx        tx
	txPending atomic.Bool // there may be something to send
	spoke     atomic.Bool // something has been sent
	held      atomic.Bool // nothing may be sent until something has been received
	fin       atomic.Bool // the write side has been shut down
	txBroken  atomic.Bool // writing has failed

	rxMu lockorder.Mutex
	rx   rx

	// Created once, so that parking and writing do not allocate.
	waitFn, drainFn, writeFn func(fd uintptr) bool
	writerFn                 func()
}

var _ fabric.Conn = (*Conn)(nil)

func (p *Provider) newConn(attr fabric.ConnAttr) *Conn {
	c := &Conn{p: p, attr: attr, ird: attr.InboundReads, ord: attr.OutboundReads}
	c.waitFn, c.drainFn, c.writeFn, c.writerFn = c.waitStep, c.drainStep, c.writeStep, c.writer
	c.mu.Init(lockorder.IwarpConn)
	c.txMu.Init(lockorder.IwarpTx)
	c.rxMu.Init(lockorder.IwarpRx)
	c.stags.mu.Init(lockorder.IwarpTable)
	c.wrote.L = &c.mu
	c.tx.msn = [3]uint32{1, 1, 1} // RFC 5041 section 4.3: the first message is number 1
	c.rx.msn = [3]uint32{1, 1, 1}
	p.open.conns.Add(1)
	return c
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
	return fabric.Capabilities{
		MaxSendSGE:       MaxSendSGE,
		MaxReadSGE:       1,
		MaxMessage:       math.MaxUint32,
		MaxPrivateData:   MaxPrivateData,
		MemoryWindows:    true,
		RemoteInvalidate: true,
		LocalDMA:         true,
		InboundReads:     c.ird,
		OutboundReads:    c.ord,
	}
}

// LocalAddr implements fabric.Conn. It is nil until there is a TCP connection.
func (c *Conn) LocalAddr() net.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.laddr
}

// RemoteAddr implements fabric.Conn.
func (c *Conn) RemoteAddr() net.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raddr
}

// connErr is why the connection has ended.
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

// alive is nil until Close.
func (c *Conn) alive() error {
	if c.shut.Load() {
		return c.connErr()
	}
	return nil
}

// Post implements fabric.Conn.
func (c *Conn) Post(wrs []fabric.SendWR) error {
	for i := range wrs {
		if err := checkWR(&wrs[i]); err != nil {
			return err
		}
	}
	c.mu.Lock()
	switch {
	case c.state == stateOver || c.quiet:
		defer c.mu.Unlock()
		return c.connErrLocked()
	case c.state != stateUp:
		c.mu.Unlock()
		return ErrNotConnected
	case c.sqUsed+len(wrs) > c.attr.SendDepth:
		c.starved = true
		c.mu.Unlock()
		return fabric.ErrQueueFull
	case len(wrs) == 0:
		c.mu.Unlock()
		return nil
	}
	for i := range wrs {
		c.pushSend(&wrs[i], false)
	}
	c.doorbells++
	c.mu.Unlock()
	c.kick()
	return nil
}

// checkWR refuses requests that can never be executed.
func checkWR(wr *fabric.SendWR) error {
	most := 0
	switch wr.Op {
	case fabric.OpSend, fabric.OpSendInv, fabric.OpWrite:
		most = MaxSendSGE
	case fabric.OpRead:
		most = 1
	case fabric.OpBindMW, fabric.OpLocalInv:
	default:
		return &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("opcode %d", wr.Op)}
	}
	if len(wr.SGL) > most {
		return &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("list of %d SGEs with opcode %d", len(wr.SGL), wr.Op)}
	}
	n := uint64(0)
	for i := range wr.SGL {
		n += uint64(len(wr.SGL[i].Buf))
	}
	if n > math.MaxUint32 {
		return &fabric.CapabilityError{Provider: name, Capability: "message of 4 GiB or more"}
	}
	return nil
}

// PostRecv implements fabric.Conn.
func (c *Conn) PostRecv(wrs []fabric.RecvWR) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == stateOver {
		return c.connErrLocked()
	}
	if c.rqUsed+len(wrs) > c.attr.RecvDepth {
		return fabric.ErrQueueFull
	}
	c.rq.reserve(len(wrs))
	for i := range wrs {
		*c.rq.push() = wrs[i]
	}
	c.rqUsed += len(wrs)
	return nil
}

// Poll implements fabric.Conn. It reads from the socket only if no completion is queued.
func (c *Conn) Poll(wc []fabric.WC) (int, error) {
	if c.cqn.Load() == 0 && c.up.Load() && !c.over.Load() {
		c.progress(true)
	}
	return c.take(wc)
}

// Wait implements fabric.Conn.
func (c *Conn) Wait() error {
	if !c.up.Load() {
		// Before setup there is no socket to wait on, and after a failed setup no event to
		// wait for.
		if c.ready() {
			return c.readyErr()
		}
		return ErrNotConnected
	}
	c.park(c.waitFn)
	c.wakeup.Store(false)
	return c.readyErr()
}

// park calls step until it returns true: at once, and whenever the socket becomes readable or
// unpark is called.
func (c *Conn) park(step func(fd uintptr) bool) {
	for {
		err := c.sock.rc.Read(step)
		c.parked.Store(false)
		if err == nil {
			return
		}
		// Either unpark has set the deadline, or the file was closed. The deadline is cleared
		// before step checks its conditions again, so that a later unpark is not lost.
		if c.shut.Load() || c.sock.f.SetReadDeadline(time.Time{}) != nil {
			return
		}
	}
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// unpark makes a parked waiter check its conditions again. They must have been stored before
// the call: the waiter sets parked before it checks.
func (c *Conn) unpark() {
	if c.parked.Load() {
		c.wakes.Add(1)
		c.sock.f.SetReadDeadline(past)
	}
}

// waitStep is the step of Wait. It returns false to park.
func (c *Conn) waitStep(uintptr) bool {
	c.parked.Store(false)
	for {
		if c.ready() {
			return true
		}
		if empty := c.progress(true); !empty {
			continue
		}
		c.parked.Store(true)
		if !c.ready() {
			return false
		}
	}
}

// ready reports whether Wait has a reason to return.
func (c *Conn) ready() bool {
	return c.cqn.Load() > 0 || c.over.Load() || c.wakeup.Load()
}

func (c *Conn) readyErr() error {
	if c.cqn.Load() == 0 && c.over.Load() {
		return c.connErr()
	}
	return nil
}

// Wake implements fabric.Conn.
func (c *Conn) Wake() {
	c.wakeup.Store(true)
	c.unpark()
}

// A failure ends the connection. It says how.
type failure struct {
	err    fabric.ConnError
	term   bool            // send a Terminate message
	cause  rdmap.Cause     // in the Terminate message
	quote  []byte          // DDP header of the segment that was refused
	seglen int             // length of that segment
	read   []byte          // Read Request header in that segment
	recv   fabric.WCStatus // of the receive under way
	abort  bool            // discard what is queued
	closes bool            // the descriptor is closed next, which ends the stream
}

// violation is a protocol violation by the peer.
func violation(cause rdmap.Cause, format string, args ...any) *failure {
	return &failure{
		err:   fabric.ConnError{Provider: name, Cause: &ProtocolError{cause, fmt.Sprintf(format, args...)}},
		term:  true,
		cause: cause,
	}
}

func ddpUntagged(code uint8) rdmap.Cause {
	return rdmap.Cause{Layer: rdmap.LayerDDP, Type: uint8(ddp.TypeUntagged), Code: code}
}

func ddpTagged(code uint8) rdmap.Cause {
	return rdmap.Cause{Layer: rdmap.LayerDDP, Type: uint8(ddp.TypeTagged), Code: code}
}

func rdmaOperation(code rdmap.Code) rdmap.Cause {
	return rdmap.Cause{Layer: rdmap.LayerRDMA, Type: uint8(rdmap.TypeOperation), Code: uint8(code)}
}

func rdmaProtection(code rdmap.Code) rdmap.Cause {
	return rdmap.Cause{Layer: rdmap.LayerRDMA, Type: uint8(rdmap.TypeProtection), Code: uint8(code)}
}

func llp(code mpa.Code) rdmap.Cause {
	return rdmap.Cause{Layer: rdmap.LayerLLP, Type: mpa.TypeMPA, Code: uint8(code)}
}

// catastrophic is the Terminate cause for faults of this side.
var catastrophic = rdmap.Cause{Layer: rdmap.LayerRDMA, Type: uint8(rdmap.TypeCatastrophic)}

// end ends the connection. The first call determines the reason; all calls return after
// outstanding requests have been flushed. No lock may be held.
func (c *Conn) end(f *failure) { c.endOnce.Do(func() { c.endLocked(f) }) }

func (c *Conn) endLocked(f *failure) {
	c.mu.Lock()
	wasUp := c.state == stateUp
	c.state = stateOver
	c.err = &f.err
	c.stopNudging()
	c.mu.Unlock()

	// Nothing is sent or placed from here on: who takes one of the locks
	// later finds its side dead.
	c.txMu.Lock()
	silent := wasUp && c.lastWords(f)
	c.tx.dead = true
	c.releaseBatch()
	c.rxMu.Lock()
	c.rx.dead = true
	c.rx.dst = nil
	c.rx.place, c.rx.placed = fabric.SGE{}, false
	c.releaseStage()
	c.rxMu.Unlock()

	c.mu.Lock()
	if t, ok := f.err.Cause.(*TerminateError); ok {
		c.blame(t)
	}
	c.flushQueues(f.recv)
	c.over.Store(true)
	c.mu.Unlock()
	if wasUp {
		if !silent && !f.closes {
			shutdownWrite(c.sock.fd)
		}
		c.sock.f.SetWriteDeadline(past) // ends the writer goroutine
	}
	c.unlockTx()
	if wasUp {
		c.unpark()
	}
}

// Disconnect implements fabric.Conn.
func (c *Conn) Disconnect(ctx context.Context) error {
	c.mu.Lock()
	st := c.state
	c.quiet = true
	c.mu.Unlock()
	switch st {
	case stateOver:
		return c.goneErr()
	case stateNew, stateSetup:
		c.end(&failure{err: fabric.ConnError{Provider: name, Clean: true}})
		return nil
	}
	stop := context.AfterFunc(ctx, func() {
		c.end(&failure{err: fabric.ConnError{Provider: name, Cause: context.Cause(ctx)}, abort: true})
	})
	defer stop()

	c.drain.Store(true)
	c.park(c.drainFn)
	c.drain.Store(false)

	// Everything has been sent and answered: shut down the write side, and wait until the peer
	// does the same. RFC 5044 section 7.2: a connection is closed between FPDUs.
	c.txMu.Lock()
	if !c.tx.dead {
		c.fin.Store(true)
		shutdownWrite(c.sock.fd)
	}
	c.unlockTx()
	c.park(c.drainFn)
	if err := ctx.Err(); err != nil {
		if ce, ok := c.connErr().(*fabric.ConnError); ok && !ce.Clean {
			return err
		}
	}
	return c.goneErr()
}

// goneErr is the result of Disconnect on a connection that has ended.
func (c *Conn) goneErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil || c.err.Clean {
		return nil
	}
	return c.err
}

// drainStep is the step with which Disconnect waits: first until the queues have drained, then
// for the end.
func (c *Conn) drainStep(uintptr) bool {
	c.parked.Store(false)
	for {
		if c.drainDone() {
			return true
		}
		if empty := c.progress(false); !empty {
			continue
		}
		c.parked.Store(true)
		if !c.drainDone() {
			return false
		}
	}
}

func (c *Conn) drainDone() bool {
	if c.over.Load() {
		return true
	}
	return c.drain.Load() && c.idle()
}

// idle reports whether nothing remains to be sent to the peer.
func (c *Conn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sq.len() == 0 && c.irq.len() == 0 && !c.unsent
}

// Close implements fabric.Conn.
func (c *Conn) Close() error {
	c.closeOnce.Do(c.close)
	return nil
}

func (c *Conn) close() {
	c.shut.Store(true)
	c.mu.Lock()
	switch c.state {
	case stateNew:
		c.state = stateOver // no setup may begin from now on
	case stateSetup:
		if c.sock.f != nil {
			c.sock.f.SetDeadline(past)
		}
	}
	c.mu.Unlock()
	c.setups.Wait()
	c.end(&failure{err: fabric.ConnError{Provider: name, Clean: true}, abort: true, closes: true})
	if c.sock.f != nil {
		// Both sides are dead, so no system call uses the descriptor from now on. Closing the
		// file unparks the goroutines that wait on it, and waits for them.
		c.sock.f.Close()
		c.writers.Wait()
	}
	mrs, mws := c.stags.clear()
	c.p.open.mrs.Add(-mrs)
	c.p.open.mws.Add(-mws)
	c.mu.Lock()
	c.cq, c.rq, c.sq = ring[fabric.WC]{}, ring[fabric.RecvWR]{}, ring[sqEntry]{}
	c.cqn.Store(0)
	c.mu.Unlock()
	c.p.open.conns.Add(-1)
}

// fence waits until nothing uses memory by way of an STag that was changed before the call.
func (c *Conn) fence() {
	c.txMu.Lock()
	c.awaitRx()
	c.unlockTx()
}

// awaitRx waits until nothing is being placed by a lookup from before the call. The caller
// holds txMu.
func (c *Conn) awaitRx() {
	c.rxMu.Lock()
	defer c.rxMu.Unlock()
}
