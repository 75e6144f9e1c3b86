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
	"github.com/rpcrdma/rpcrdma/internal/llp"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/internal/spin"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// A phase of a Conn. It only moves forward.
//
//	new --Connect, Accept--> setup --> up --> over
//	 \___________________________\___________/
type phase uint8

const (
	phaseNew   phase = iota // resolved, or requested by a peer
	phaseSetup              // Connect, Accept or Reject is under way
	phaseUp
	phaseOver
)

// A Conn is one iWARP stream over one TCP connection, with its queues and its protection domain. It is a fabric.Conn.
//
// # Owners
//
// Any goroutine may use the fields of a Conn itself: they are constant, atomic, or locked values. All other state is in
// parts that are accessible only through their lock. A setup is owned by the goroutine that began it.
//
// # Locks
//
// The order is tx, rx, stags, state, as in package lockorder. The holder of tx may write to the socket and read the
// memory that is sent. The holder of rx may read from the socket and place data. Both are held for one non-blocking
// system call at a time, never while waiting for the peer. So once a goroutine has acquired both after changing an STag,
// nothing uses the STag's former memory: see fence.
type Conn struct {
	p       *Provider
	attr    fabric.ConnAttr
	passive bool // from a Listener
	steps   steps
	spinner *spin.Spinner // of the goroutine in Wait; nil if it always parks
	beat    beat          // of its polls

	lifetime
	waiter
	outlet

	link  atomic.Pointer[link] // nil until phaseUp
	state lockorder.Value[state]
	stags table
	tx    lockorder.Value[sender]
	rx    lockorder.Value[receiver]
}

var _ fabric.Conn = (*Conn)(nil)

// A link is a TCP connection and the parameters that both ends agreed on. It does not change after setup.
type link struct {
	sock        socket
	crc         bool // CRCs are generated and checked
	rtrFPDU     bool // an empty FPDU is a Ready To Receive frame
	maxTagged   int  // longest payload of a tagged segment
	maxUntagged int  // longest payload of an untagged segment
	ird, ord    int
	eitherFirst bool       // the responder may send first
	share       llp.Sharer // sock.stream, if it is an llp.Sharer
}

// A state is shared by the goroutines of a connection, under the lock of Conn.state.
type state struct {
	provider     string // its name
	phase        phase
	setup        *setup // nil once it has begun
	interrupt    func() // interrupts a handshake that does not use TCP
	sock         socket // for Close to interrupt and close
	laddr, raddr net.Addr
	peerData     []byte
	nudger       *time.Timer       // nil unless this side is the initiator
	looker       *time.Timer       // nil until this side lends memory
	err          *fabric.ConnError // since phaseOver
	quiet        bool              // Disconnect has begun: nothing may be posted
	doorbells    uint64
	unsent       bool       // a batch has not been written completely
	writing      bool       // a batch is being written and is not accounted for yet
	awaited      bool       // a goroutine is waiting for wrote
	wrote        *sync.Cond // signaled when writing becomes false
	queues
}

// A lifetime orders the end of a connection. Any goroutine may use it.
type lifetime struct {
	shut      atomic.Bool // Close has been called
	endOnce   sync.Once
	closeOnce sync.Once
	writers   sync.WaitGroup // the writer goroutine
	setups    sync.WaitGroup // the setup under way
}

// Steps are the methods of a Conn that the runtime's poller calls. They are bound once, so that
// parking and writing do not allocate.
type steps struct {
	wait, drain, write func(fd uintptr) bool
	writer             func()
}

func (p *Provider) newConn(attr fabric.ConnAttr, s *setup) *Conn {
	c := &Conn{p: p, attr: attr, passive: s.passive}
	if !p.cfg.Park && p.polls.look() {
		c.spinner, c.beat = spin.Parking(), ofSocket
		if s.over != nil {
			c.spinner, c.beat = new(spin.Spinner), ofMemory
		}
	}
	c.steps = steps{c.waitStep, c.drainStep, c.writeStep, c.writer}
	st := c.state.Init(lockorder.IwarpConn)
	st.wrote = c.state.Cond()
	st.waiter = &c.waiter
	st.provider = p.Name()
	st.setup, st.sock, st.laddr, st.raddr, st.peerData = s, s.sock, s.laddr, s.raddr, s.peerData
	s.c, s.ird, s.ord = c, attr.InboundReads, attr.OutboundReads
	c.stags.entries.Init(lockorder.IwarpTable).gen = &c.stags.gen
	t := c.tx.Init(lockorder.IwarpTx)
	t.c = c
	t.msn = [3]uint32{1, 1, 1} // RFC 5041 section 4.3: the first message is number 1
	x := c.rx.Init(lockorder.IwarpRx)
	x.c = c
	x.msn = [3]uint32{1, 1, 1}
	p.open.conns.Add(1)
	return c
}

// PeerPrivateData implements fabric.Conn.
func (c *Conn) PeerPrivateData() []byte {
	defer c.state.Unlock()
	return c.state.Lock().peerData
}

// Capabilities implements fabric.Conn.
func (c *Conn) Capabilities() fabric.Capabilities {
	caps := fabric.Capabilities{
		MaxSendSGE:       MaxSendSGE,
		MaxReadSGE:       1,
		MaxMessage:       math.MaxUint32,
		MaxPrivateData:   MaxPrivateData,
		MemoryWindows:    true,
		RemoteInvalidate: true,
		LocalDMA:         true,
		SendDepth:        c.attr.SendDepth,
		InboundReads:     c.attr.InboundReads,
		OutboundReads:    c.attr.OutboundReads,
	}
	if l := c.link.Load(); l != nil {
		caps.InboundReads, caps.OutboundReads = l.ird, l.ord
	}
	return caps
}

// LocalAddr implements fabric.Conn. It returns nil until there is a TCP connection.
func (c *Conn) LocalAddr() net.Addr {
	defer c.state.Unlock()
	return c.state.Lock().laddr
}

// RemoteAddr implements fabric.Conn.
func (c *Conn) RemoteAddr() net.Addr {
	defer c.state.Unlock()
	return c.state.Lock().raddr
}

// connErr returns the error with which the connection has ended.
func (c *Conn) connErr() error {
	defer c.state.Unlock()
	return c.state.Lock().connErr()
}

// connErr returns the error with which the connection has ended.
func (st *state) connErr() error {
	if st.err == nil {
		return &fabric.ConnError{Provider: st.provider, Clean: true}
	}
	return st.err
}

// alive returns nil until Close is called.
func (c *Conn) alive() error {
	if c.shut.Load() {
		return c.connErr()
	}
	return nil
}

// Post implements fabric.Conn.
func (c *Conn) Post(wrs []fabric.SendWR) error {
	foreign := false
	for i := range wrs {
		capability, has := checkWR(&wrs[i])
		if capability != "" {
			return c.p.lacks(capability)
		}
		foreign = foreign || has
	}
	if foreign {
		var err error
		if wrs, err = c.resolved(wrs); err != nil {
			return err
		}
	}
	t := c.tx.TryLock()
	st := c.state.Lock()
	err := st.mayPost(len(wrs), c.attr.SendDepth)
	if err == nil && len(wrs) > 0 {
		for i := range wrs {
			st.pushSend(&wrs[i], c.windowOf(&wrs[i]), false)
		}
		st.doorbells++
	}
	if t != nil {
		t.view.of(&st.queues)
	}
	c.state.Unlock()
	if t == nil {
		t = c.announce()
	}
	c.drive(t)
	return err
}

// mayPost returns nil if n requests may be posted.
func (st *state) mayPost(n, depth int) error {
	switch {
	case st.phase == phaseOver || st.quiet:
		return st.connErr()
	case st.phase != phaseUp:
		return ErrNotConnected
	case st.sqUsed+n > depth:
		st.starved = true
		return fabric.ErrQueueFull
	}
	return nil
}

// windowOf returns the window that wr binds, if it belongs to c.
func (c *Conn) windowOf(wr *fabric.SendWR) *MW {
	if wr.Op == fabric.OpBindMW {
		if w, ok := wr.MW.(*MW); ok && w != nil && w.c == c {
			return w
		}
	}
	return nil
}

// checkWR checks a request. If the request can never be executed, capability names what is missing. foreign reports
// whether the request has foreign memory.
func checkWR(wr *fabric.SendWR) (capability string, foreign bool) {
	most := 0
	switch wr.Op {
	case fabric.OpSend, fabric.OpSendInv, fabric.OpWrite:
		most = MaxSendSGE
	case fabric.OpRead:
		most = 1
	case fabric.OpBindMW, fabric.OpLocalInv:
	default:
		return fmt.Sprintf("opcode %d", wr.Op), false
	}
	if len(wr.SGL) > most {
		return fmt.Sprintf("list of %d SGEs with opcode %d", len(wr.SGL), wr.Op), false
	}
	n := uint64(0)
	for i := range wr.SGL {
		n += uint64(wr.SGL[i].Len())
		foreign = foreign || wr.SGL[i].Foreign != nil
	}
	if n > math.MaxUint32 {
		return "message of 4 GiB or more", false
	}
	return "", foreign
}

// PostRecv implements fabric.Conn.
func (c *Conn) PostRecv(wrs []fabric.RecvWR) error {
	wrs, err := c.resolvedRecvs(wrs)
	if err != nil {
		return err
	}
	err = c.state.Lock().postRecv(wrs, c.attr.RecvDepth)
	c.state.Unlock()
	return err
}

func (st *state) postRecv(wrs []fabric.RecvWR, depth int) error {
	if st.phase == phaseOver {
		return st.connErr()
	}
	if st.rqUsed+len(wrs) > depth {
		return fabric.ErrQueueFull
	}
	st.rq.reserve(len(wrs))
	for i := range wrs {
		*st.rq.push() = wrs[i]
	}
	st.rqUsed += len(wrs)
	return nil
}

// A failure describes how and why to end the connection.
type failure struct {
	err    fabric.ConnError
	term   bool            // send a Terminate message
	cause  rdmap.Cause     // in the Terminate message
	quote  []byte          // DDP header of the segment that was refused
	seglen int             // length of that segment
	read   []byte          // Read Request header in that segment
	recv   fabric.WCStatus // status for the receive under way
	abort  bool            // discard data that has not been sent
	closes bool            // the descriptor is closed next, which ends the stream
}

// violation returns the failure for a protocol violation by the peer.
func violation(cause rdmap.Cause, format string, args ...any) *failure {
	return &failure{
		err:   fabric.ConnError{Cause: &ProtocolError{cause, fmt.Sprintf(format, args...)}},
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

func llpCause(code mpa.Code) rdmap.Cause {
	return rdmap.Cause{Layer: rdmap.LayerLLP, Type: mpa.TypeMPA, Code: uint8(code)}
}

// catastrophic is the Terminate cause for faults of this side.
var catastrophic = rdmap.Cause{Layer: rdmap.LayerRDMA, Type: uint8(rdmap.TypeCatastrophic)}

// end ends the connection. The first call determines the reason. Every call returns after outstanding requests have
// been flushed. The caller must not hold a lock.
func (c *Conn) end(f *failure) { c.endOnce.Do(func() { c.endFirst(f) }) }

func (c *Conn) endFirst(f *failure) {
	st := c.state.Lock()
	wasUp := st.phase == phaseUp
	st.phase = phaseOver
	f.err.Provider = st.provider
	st.err = &f.err
	st.stopNudging()
	c.state.Unlock()

	// Nothing is sent or placed from here on: a goroutine that acquires tx or rx later finds that side dead.
	t := c.tx.Lock()
	silent := wasUp && t.lastWords(f)
	t.dead = true
	t.view = view{}
	t.releaseBatch()
	x := c.rx.Lock()
	x.dead = true
	x.dst = nil
	x.place, x.placed = fabric.SGE{}, false
	x.releaseStage()
	c.rx.Unlock()

	st = c.state.Lock()
	if told, ok := f.err.Cause.(*TerminateError); ok {
		st.blame(told)
	}
	st.flush(f.recv)
	c.lent.Store(false)
	c.over.Store(true)
	c.state.Unlock()
	if wasUp {
		if !silent && (!f.closes || t.sock.secured != nil) {
			t.sock.stream.CloseWrite()
		}
		t.sock.at.SetWriteDeadline(past) // ends the writer goroutine
	}
	c.unlockTx()
	if wasUp {
		c.unpark()
	}
}

// Disconnect implements fabric.Conn.
func (c *Conn) Disconnect(ctx context.Context) error {
	st := c.state.Lock()
	is := st.phase
	st.quiet = true
	c.state.Unlock()
	switch is {
	case phaseOver:
		return c.goneErr()
	case phaseNew, phaseSetup:
		c.end(&failure{err: fabric.ConnError{Clean: true}})
		return nil
	}
	stop := context.AfterFunc(ctx, func() {
		c.end(&failure{err: fabric.ConnError{Cause: context.Cause(ctx)}, abort: true})
	})
	defer stop()

	c.drain.Store(true)
	c.park(c.steps.drain)
	c.drain.Store(false)

	// Everything has been sent and answered. Shut down the write side, and wait until the peer does the same. RFC 5044
	// section 7.2: a connection is closed between FPDUs.
	if t := c.tx.Lock(); !t.dead {
		c.fin.Store(true)
		t.sock.stream.CloseWrite()
	}
	c.unlockTx()
	c.park(c.steps.drain)
	if err := ctx.Err(); err != nil {
		if ce, ok := c.connErr().(*fabric.ConnError); ok && !ce.Clean {
			return err
		}
	}
	return c.goneErr()
}

// goneErr returns the result of Disconnect on a connection that has ended: nil after an orderly end.
func (c *Conn) goneErr() error {
	st := c.state.Lock()
	defer c.state.Unlock()
	if st.err == nil || st.err.Clean {
		return nil
	}
	return st.err
}

// idle reports whether nothing remains to be sent to the peer.
func (c *Conn) idle() bool {
	st := c.state.Lock()
	defer c.state.Unlock()
	return st.sq.len() == 0 && st.irq.len() == 0 && !st.unsent
}

// Close implements fabric.Conn.
func (c *Conn) Close() error {
	c.closeOnce.Do(c.close)
	return nil
}

func (c *Conn) close() {
	c.shut.Store(true)
	st := c.state.Lock()
	switch st.phase {
	case phaseNew:
		st.phase = phaseOver // no setup may begin anymore
	case phaseSetup:
		switch {
		case st.interrupt != nil:
			st.interrupt()
		case st.sock.at != nil:
			st.sock.at.SetDeadline(past)
		}
	}
	c.state.Unlock()
	c.setups.Wait()
	c.end(&failure{err: fabric.ConnError{Clean: true}, abort: true, closes: true})
	st = c.state.Lock()
	sock, unused := st.sock, st.setup
	c.state.Unlock()
	if unused != nil && unused.over != nil {
		unused.over.Close()
	}
	if sock.at != nil {
		// Both sides are dead, so no system call uses the descriptor anymore. Closing the parker unparks the goroutines
		// parked there and waits for them.
		sock.at.Close()
		c.writers.Wait()
		sock.stream.Close()
	}
	live := c.stags.clear()
	c.p.open.mrs.Add(-live.mrs)
	c.p.open.mws.Add(-live.mws)
	st = c.state.Lock()
	st.cq, st.rq, st.sq = ring[fabric.WC]{}, ring[fabric.RecvWR]{}, ring[sqEntry]{}
	c.cqn.Store(0)
	c.state.Unlock()
	c.p.open.conns.Add(-1)
}

// fence waits until nothing uses memory through an STag that was changed before the call.
func (c *Conn) fence() {
	c.tx.Lock()
	c.awaitRx()
	c.unlockTx()
}

// awaitRx waits until nothing is being placed on the basis of a lookup from before the call. The caller holds tx.
func (c *Conn) awaitRx() {
	c.rx.Lock()
	c.rx.Unlock()
}
