//go:build linux && cgo

package rdmacm

import (
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
)

// Opcodes and flags of struct ibv_send_wr.
const (
	wrRDMAWrite = 0
	wrSend      = 2
	wrRDMARead  = 4
	wrLocalInv  = 7
	wrBindMW    = 8
	wrSendInv   = 9

	sendFence     = 1 << 0
	sendSignaled  = 1 << 1
	sendSolicited = 1 << 2
	sendInline    = 1 << 3
)

// earlyBytes is from where on iWARP completes an unsignaled request before its
// memory is free: siw hands pages of that size to TCP, which reads them again when
// it retransmits. Signaled ones it copies.
const earlyBytes = 4096

// maxSilent is how many requests in a row are not signaled, at most: until a completion
// comes, those before it keep their places, and the rings are as long as that takes.
const maxSilent = 32

// Post implements fabric.Conn.
func (c *Conn) Post(wrs []fabric.SendWR) error {
	for i := range wrs {
		if err := c.check(&wrs[i]); err != nil {
			return err
		}
	}
	if err := c.mayPost(); err != nil {
		return err
	}
	c.lockFor(&c.send, &c.sendMu, len(wrs)+1) // and one of our own
	defer c.sendMu.Unlock()
	if c.qp == nil {
		return c.connErr()
	}
	if len(wrs) > c.sendRoom() {
		c.starved.Store(true)
		if len(wrs) > c.sendRoom() { // completions may have come before they could see that
			return fabric.ErrQueueFull
		}
		c.starved.Store(false)
	}
	if len(wrs) == 0 {
		return nil
	}
	if c.dev.windows {
		if err := c.checkWindows(wrs); err != nil {
			return err
		}
	}
	if c.send.tail == 0 {
		c.startNudging()
	}
	c.swr, c.sges = c.swr[:0], c.sges[:0]
	for i := range wrs {
		c.append(&wrs[i])
	}
	c.ring()
	for i := range wrs {
		if wrs[i].Op == fabric.OpBindMW {
			wrs[i].MW.(*window).stored()
		}
	}
	return nil
}

// lockFor takes mu, the lock of a side, with places in its ring for n more requests,
// as far as it goes.
func (c *Conn) lockFor(side *workQueue, mu *sync.Mutex, n int) {
	mu.Lock()
	if !side.tight(n) {
		return
	}
	mu.Unlock()
	c.q.mu.Lock()
	mu.Lock()
	defer c.q.mu.Unlock()
	if !side.tight(n) {
		return // others have been here
	}
	side.grow(n)
	done := make([]fabric.WC, len(c.send.slots)+len(c.recv.slots))
	for i := range c.doneN {
		done[i] = c.done[(c.doneAt+i)%len(c.done)]
	}
	c.done, c.doneAt = done, 0
}

// mayPost is nil while the connection is up.
func (c *Conn) mayPost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state == stateOver || c.quiet:
		return c.connErrLocked()
	case c.state != stateUp:
		return ErrNotConnected
	}
	return nil
}

// check refuses what can never be executed.
func (c *Conn) check(wr *fabric.SendWR) error {
	most := 0
	switch wr.Op {
	case fabric.OpSend, fabric.OpWrite:
		most = int(c.cap.MaxSendSGE)
	case fabric.OpSendInv:
		if !c.dev.sendInv {
			return &fabric.CapabilityError{Provider: name, Capability: "Send with Invalidate on " + c.dev.name}
		}
		most = int(c.cap.MaxSendSGE)
	case fabric.OpRead:
		most = c.Capabilities().MaxReadSGE
	case fabric.OpBindMW, fabric.OpLocalInv:
		if !c.dev.windows {
			return &fabric.CapabilityError{Provider: name, Capability: "memory windows on " + c.dev.name}
		}
	default:
		return &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("opcode %d", wr.Op)}
	}
	if len(wr.SGL) > most {
		return &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("list of %d SGEs with opcode %d on %s: at most %d", len(wr.SGL), wr.Op, c.dev.name, most)}
	}
	n := uint64(0)
	for i := range wr.SGL {
		n += uint64(len(wr.SGL[i].Buf))
	}
	if n > uint64(c.dev.maxMsg) {
		return &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("message of %d bytes on %s: at most %d", n, c.dev.name, c.dev.maxMsg)}
	}
	return nil
}

// checkWindows refuses a list with a bind or an invalidation that cannot be, before
// anything of it is queued. sendMu is held.
func (c *Conn) checkWindows(wrs []fabric.SendWR) error {
	for i := range wrs {
		switch wr := &wrs[i]; wr.Op {
		case fabric.OpBindMW:
			if err := c.checkBind(wr.MW); err != nil {
				return err
			}
		case fabric.OpLocalInv:
			if !c.isBound(wr.RKey, wrs[:i]) {
				return fmt.Errorf("%w: OpLocalInv of %#x, which names no window that is bound", ErrMisuse, wr.RKey)
			}
		}
	}
	return nil
}

// append adds a request to the scratch list and to the queue. sendMu is held.
func (c *Conn) append(wr *fabric.SendWR) {
	to := cgo.SendWR{ID: c.send.tail, FirstSGE: uint32(len(c.sges))}
	op := fabric.WCSend
	n, known := 0, true
	for i := range wr.SGL {
		if b := wr.SGL[i].Buf; len(b) > 0 { // length 0 stands for 2 GiB in places
			c.sges = append(c.sges, cgo.SGE{Addr: addressOf(b), Length: uint32(len(b)), LKey: wr.SGL[i].LKey})
			n += len(b)
			// Inline data needs no key: one that is wrong is for the device to find.
			known = known && n <= int(c.cap.MaxInlineData) && c.covers(&wr.SGL[i])
		}
	}
	to.NumSGE = uint32(len(c.sges)) - to.FirstSGE
	switch wr.Op {
	case fabric.OpSend:
		to.Opcode = wrSend
	case fabric.OpSendInv:
		to.Opcode, to.Imm = wrSendInv, wr.RKey
	case fabric.OpWrite:
		to.Opcode, to.RKey, to.RemoteAddr = wrRDMAWrite, wr.RKey, wr.RemoteOffset
		op = fabric.WCWrite
	case fabric.OpRead:
		to.Opcode, to.RKey, to.RemoteAddr = wrRDMARead, wr.RKey, wr.RemoteOffset
		op = fabric.WCRead
		if to.NumSGE == 0 && c.dev.iwarp { // wants exactly one
			c.sges = append(c.sges, cgo.SGE{})
			to.NumSGE = 1
		}
	case fabric.OpBindMW:
		wr.MW.(*window).bind(&to)
		op = fabric.WCBindMW
	case fabric.OpLocalInv:
		to.Opcode, to.Imm = wrLocalInv, wr.RKey
		c.unbind(wr.RKey)
		op = fabric.WCLocalInv
	}
	if wr.Flags&fabric.Fence != 0 {
		to.Flags |= sendFence
	}
	if wr.Flags&fabric.Solicited != 0 && op == fabric.WCSend {
		to.Flags |= sendSolicited
	}
	if n > 0 && known && (op == fabric.WCSend || op == fabric.WCWrite) {
		to.Flags |= sendInline
	}
	// Positions are given back by signaled completions alone, so there has to be
	// one now and then.
	report := wr.Flags&fabric.Signaled != 0
	c.silent++
	signaled := report || c.silent >= min(maxSilent, max(c.attr.SendDepth/4, 1)) || c.dev.iwarp && (n >= earlyBytes || op == fabric.WCRead)
	if signaled {
		to.Flags |= sendSignaled
		c.silent = 0
	}
	*c.send.at(c.send.tail) = slot{id: wr.ID, op: op, report: report, signaled: signaled}
	c.send.tail++
	c.swr = append(c.swr, to)
}

// postSends posts requests whose elements are in sges. What the device refuses at this
// point, after our own checks, ends the connection, and the requests complete as
// flushed: how much of the list has been taken is not reliably told. sendMu is held.
func (c *Conn) postSends(wrs []cgo.SendWR, sges []cgo.SGE) {
	if len(wrs) == 0 {
		return
	}
	var out cgo.Outcome
	cgo.Progress(c.dev.lib, c.qp, nil, nil, nil, nil, wrs, sges, nil, 0, &out)
	c.posted.SendCalls++
	c.posted.Sends += uint64(len(wrs))
	if out.SendErr != 0 {
		c.refusedBy("ibv_post_send", syscall.Errno(out.SendErr))
	}
}

func (c *Conn) refusedBy(op string, errno syscall.Errno) {
	if errno == syscall.ENOTCONN || errno == syscall.EINVAL || errno == syscall.EPERM { // the last is libsiw's -1
		// The queue pair is in its error state: the peer was quicker, and the
		// connection manager will say so.
		c.failing(&fabric.WC{Status: fabric.WCFlushErr})
		c.wakePoller()
		return
	}
	reason := &fabric.ConnError{Provider: name, Cause: &DeviceError{Device: c.dev.name, Op: op, Errno: errno}}
	c.over(reason)
	c.wakePoller()
}

// sendRoom is how many requests of the caller there is room for. One more is for a
// request of our own. sendMu is held.
func (c *Conn) sendRoom() int {
	if c.inner.Load() {
		return c.send.room()
	}
	return c.send.room() - 1
}

// marker posts a request behind everything that is not signaled, so that its
// completion says that all has left: a Write of nothing, which touches no memory.
func (c *Conn) marker() error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.qp == nil {
		return c.connErr()
	}
	if c.silent > 0 {
		c.postNothing()
	}
	return nil
}

// postNothing posts a signaled Write of nothing that no caller hears of. sendMu is
// held.
func (c *Conn) postNothing() {
	if c.inner.Load() || c.send.free() == 0 {
		return // there is one already
	}
	c.inner.Store(true)
	c.swr, c.sges = c.swr[:0], c.sges[:0]
	c.silent = c.send.depth // makes it signaled
	c.append(&fabric.SendWR{Op: fabric.OpWrite})
	c.send.at(c.send.tail - 1).internal = true
	c.ring()
}

// PostRecv implements fabric.Conn.
func (c *Conn) PostRecv(wrs []fabric.RecvWR) error {
	c.lockFor(&c.recv, &c.recvMu, len(wrs))
	defer c.recvMu.Unlock()
	if c.qp == nil {
		return c.connErr()
	}
	if len(wrs) > c.recv.room() {
		return fabric.ErrQueueFull
	}
	if len(wrs) == 0 {
		return nil
	}
	c.rwr, c.rsges = c.rwr[:0], c.rsges[:0]
	for i := range wrs {
		to := cgo.RecvWR{ID: c.recv.tail | recvBit, FirstSGE: uint32(len(c.rsges))}
		if b := wrs[i].SGE.Buf; len(b) > 0 {
			c.rsges = append(c.rsges, cgo.SGE{Addr: addressOf(b), Length: uint32(len(b)), LKey: wrs[i].SGE.LKey})
			to.NumSGE = 1
		}
		*c.recv.at(c.recv.tail) = slot{id: wrs[i].ID, op: fabric.WCRecv, report: true}
		c.recv.tail++
		c.rwr = append(c.rwr, to)
	}
	var out cgo.Outcome
	cgo.Progress(c.dev.lib, c.qp, nil, nil, nil, c.rwr, nil, c.rsges, nil, 0, &out)
	c.posted.RecvCalls++
	c.posted.Recvs += uint64(len(c.rwr))
	if out.RecvErr != 0 {
		c.refusedBy("ibv_post_recv", syscall.Errno(out.RecvErr))
	}
	return nil
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
