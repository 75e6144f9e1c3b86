//go:build linux && cgo

package rdmacm

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
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

// earlyBytes is the size from which iWARP completes an unsignaled request before its
// memory may be reused: siw passes pages to TCP without copying, and TCP reads them
// again to retransmit. siw copies the data of signaled requests.
const earlyBytes = 4096

// maxSilent bounds the unsignaled requests in a row. They keep their slots until a later
// request completes, so the bound limits the length of the ring.
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
	c.lockFor(&c.send, &c.sendMu, len(wrs)+1) // and an internal one
	defer c.sendMu.Unlock()
	if c.qp == nil {
		return c.connErr()
	}
	if len(wrs) > c.sendRoom() {
		c.starved.Store(true)
		if len(wrs) > c.sendRoom() { // completions may have come before starved was set
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

// lockFor locks mu, the lock of a side, after growing the side's ring for n more requests,
// up to its depth.
func (c *Conn) lockFor(side *workQueue, mu *lockorder.Mutex, n int) {
	mu.Lock()
	if !side.tight(n) {
		return
	}
	mu.Unlock()
	c.q.mu.Lock()
	mu.Lock()
	defer c.q.mu.Unlock()
	if !side.tight(n) {
		return // another goroutine has grown it
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

// check refuses a request that the device can never execute.
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

// checkWindows refuses a list with an invalid bind or invalidation before any of it is
// queued. sendMu is held.
func (c *Conn) checkWindows(wrs []fabric.SendWR) error {
	for i := range wrs {
		switch wr := &wrs[i]; wr.Op {
		case fabric.OpBindMW:
			if err := c.checkBind(wr.MW); err != nil {
				return err
			}
		case fabric.OpLocalInv:
			// rxe of Linux 6.1 crashes on the invalidation of a key that is not bound.
			if !c.isBound(wr.RKey, wrs[:i]) {
				return fmt.Errorf("%w: OpLocalInv of %#x, which is not the key of a bound window", ErrMisuse, wr.RKey)
			}
		}
	}
	return nil
}

// append adds a request to the scratch list and to the work queue. sendMu is held.
func (c *Conn) append(wr *fabric.SendWR) {
	to := cgo.SendWR{ID: c.send.tail, FirstSGE: uint32(len(c.sges))}
	op := fabric.WCSend
	n, known := 0, true
	for i := range wr.SGL {
		if b := wr.SGL[i].Buf; len(b) > 0 { // a length of 0 means 2 GiB to some devices
			c.sges = append(c.sges, cgo.SGE{Addr: addressOf(b), Length: uint32(len(b)), LKey: wr.SGL[i].LKey})
			n += len(b)
			// Inline data bypasses the check of the key. If the key is wrong, let the
			// device find out.
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
		if to.NumSGE == 0 && c.dev.iwarp { // a Read needs exactly one element
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
	// Only signaled completions free slots, so there has to be one now and then.
	report := c.reports.Reports(wr.Flags)
	inline := to.Flags&sendInline != 0
	free := inline && wr.Flags&(fabric.Deferred|fabric.Signaled) == fabric.Deferred && !report
	c.untold.posted(c.send.tail, wr, op, report, inline, free)
	c.silent++
	signaled := report || c.silent >= min(maxSilent, max(c.attr.SendDepth/4, 1)) || c.dev.iwarp && (n >= earlyBytes || op == fabric.WCRead)
	if signaled {
		to.Flags |= sendSignaled
		c.silent = 0
	}
	*c.send.at(c.send.tail) = slot{id: wr.ID, op: op, report: report, signaled: signaled, free: free}
	c.send.tail++
	c.swr = append(c.swr, to)
}

// tellQuiet is how many deferred requests may wait for a completion that Poll reports without
// one of the device. Their user keeps memory for each of them.
const tellQuiet = 4

// untold is the deferred requests since the last one that has been, or will be, reported, of
// which the memory is the user's again: ibv_post_send(3) says so of inline data. Guarded by
// sendMu, but n may be read at any time.
type untold struct {
	n    atomic.Int32
	id   uint64 // of the latest
	op   fabric.WCOpcode
	end  uint64 // position behind the latest
	firm uint64 // position after the latest request that is the device's until it reports its end, or that of a later one
}

// posted takes note of a request.
func (u *untold) posted(at uint64, wr *fabric.SendWR, op fabric.WCOpcode, report, inline, free bool) {
	switch {
	case free:
		u.id, u.op, u.end = wr.ID, op, at+1
		u.n.Add(1)
	case report, wr.Flags&fabric.Deferred != 0:
		u.firm = at + 1
		u.n.Store(0) // a completion of the device will stand for them
	case !inline:
		u.firm = at + 1
	}
}

// tell reports deferred requests whose memory is the user's again, if there are enough, with
// one completion that stands for all. Poll does so when it has something else to return, so
// that nobody wakes for it, and the device need not signal them. queue.mu is held.
func (c *Conn) tell(wc []fabric.WC) int {
	u := &c.untold
	if len(wc) == 0 || u.n.Load() < tellQuiet || c.failed || c.settled {
		return 0
	}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if u.firm > c.send.head.Load() || len(c.held.wrs) > 0 {
		return 0 // completions are in the order of the requests; what is held back has not been copied
	}
	wc[0] = fabric.WC{ID: u.id, Op: u.op}
	c.told = u.end
	u.n.Store(0)
	c.reports = fabric.Deferrals{}
	return 1
}

// postSends posts requests whose elements are in sges. An error of the device, after the
// checks of check, ends the connection, and all requests of the list complete as flushed:
// drivers do not report reliably how many were posted. sendMu is held.
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

// refusedBy ends the connection after a post that failed.
func (c *Conn) refusedBy(op string, errno syscall.Errno) {
	if errno == syscall.ENOTCONN || errno == syscall.EINVAL || errno == syscall.EPERM { // the last is libsiw's -1
		// The queue pair is in its error state because the peer has disconnected. The
		// event is yet to come.
		c.failing(&fabric.WC{Status: fabric.WCFlushErr})
		c.wakePoller()
		return
	}
	reason := &fabric.ConnError{Provider: name, Cause: &DeviceError{Device: c.dev.name, Op: op, Errno: errno}}
	c.over(reason)
	c.wakePoller()
}

// sendRoom is how many requests the caller may post. One slot is reserved for an internal
// request. sendMu is held.
func (c *Conn) sendRoom() int {
	if c.inner.Load() {
		return c.send.room()
	}
	return c.send.room() - 1
}

// marker posts a signaled Write of no bytes if unsignaled requests are outstanding. Its
// completion shows that they are complete.
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

// postNothing posts a signaled internal Write of no bytes, which accesses no memory,
// unless one is outstanding. sendMu is held.
func (c *Conn) postNothing() {
	if c.inner.Load() || c.send.free() == 0 {
		return
	}
	c.inner.Store(true)
	c.swr, c.sges = c.swr[:0], c.sges[:0]
	c.silent = c.send.depth // so that append makes it signaled
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
