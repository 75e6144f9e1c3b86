//go:build linux && cgo

package rdmacm

import (
	"fmt"
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

// earlyBytes is the size from which iWARP completes an unsignaled request before its memory may be reused. siw passes
// pages to TCP without copying, and TCP reads them again to retransmit. siw copies the data of signaled requests.
const earlyBytes = 4096

// maxSilent bounds consecutive unsignaled requests. They keep their slots until a later request completes, so the limit
// bounds the ring.
const maxSilent = 32

// A sender posts requests to the send queue. It is guarded by Conn.send.
type sender struct {
	c  *Conn
	qp *cgo.QP // nil once destroyed
	back
	wrs     []cgo.SendWR // scratch
	sges    []cgo.SGE
	reports fabric.Deferrals
	untold  untold
	silent  int // sends since the last signaled one
	held    heldBack
	posted  struct{ calls, requests uint64 }
}

// A receiver posts receives. It is guarded by Conn.recv.
type receiver struct {
	c  *Conn
	qp *cgo.QP // nil once destroyed
	back
	wrs    []cgo.RecvWR // scratch
	sges   []cgo.SGE
	posted struct{ calls, requests uint64 }
}

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
	n := len(wrs) + 1 // plus one internal request
	t := c.send.Lock()
	if t.tight(n) {
		c.send.Unlock()
		l := c.q.polling.Lock()
		p := c.poller.Of(l)
		t = c.send.Lock()
		err := p.grow(l, &p.sends, &t.back, n)
		c.q.polling.Unlock()
		if err != nil {
			c.send.Unlock()
			return err
		}
	}
	err := t.post(wrs)
	c.send.Unlock()
	return err
}

func (t *sender) post(wrs []fabric.SendWR) error {
	c := t.c
	if t.qp == nil {
		return c.connErr()
	}
	if len(wrs) > t.callersRoom() {
		c.starved.Store(true)
		if len(wrs) > t.callersRoom() { // completions may have arrived before starved was set
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
	if t.tail == 0 {
		c.startNudging()
	}
	t.wrs, t.sges = t.wrs[:0], t.sges[:0]
	for i := range wrs {
		t.append(&wrs[i])
	}
	t.ring()
	for i := range wrs {
		if wrs[i].Op == fabric.OpBindMW {
			wrs[i].MW.(*window).stored(t.wrs[i].RKey)
		}
	}
	return nil
}

// mayPost returns nil while the connection is up.
func (c *Conn) mayPost() error {
	st := c.state.Lock()
	is, quiet := st.phase, st.quiet
	c.state.Unlock()
	switch {
	case is == phaseOver || quiet:
		return c.connErr()
	case is != phaseUp:
		return ErrNotConnected
	}
	return nil
}

// check rejects a request that the device can never execute.
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
		most = c.maxReadSGE()
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
		n += uint64(wr.SGL[i].Len())
	}
	if n > uint64(c.dev.maxMsg) {
		return &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("message of %d bytes on %s: at most %d", n, c.dev.name, c.dev.maxMsg)}
	}
	return nil
}

// checkWindows rejects a list with an invalid bind or invalidation before any of it is queued.
func (c *Conn) checkWindows(wrs []fabric.SendWR) error {
	for i := range wrs {
		switch wr := &wrs[i]; wr.Op {
		case fabric.OpBindMW:
			if err := c.checkBind(wr.MW); err != nil {
				return err
			}
		case fabric.OpLocalInv:
			// rxe of Linux 6.1 crashes when a key is invalidated that is not bound.
			if !c.memory.isBound(wr.RKey, wrs[:i]) {
				return fmt.Errorf("%w: OpLocalInv of %#x, which is not the key of a bound window", ErrMisuse, wr.RKey)
			}
		}
	}
	return nil
}

// append adds a request to the scratch list and to the work queue.
func (t *sender) append(wr *fabric.SendWR) {
	c := t.c
	to := cgo.SendWR{ID: t.tail, FirstSGE: uint32(len(t.sges))}
	op := fabric.WCSend
	n, known := 0, true
	for i := range wr.SGL {
		sge := &wr.SGL[i]
		if at := spanOf(sge); at.n > 0 { // a length of 0 means 2 GiB to some devices
			t.sges = append(t.sges, cgo.SGE{Addr: at.addr, Length: uint32(at.n), LKey: sge.LKey})
			n += int(at.n)
			// Inline data bypasses the key check. If the key is wrong, let the device report it. The processor copies
			// inline data, and foreign memory is not meant for that.
			known = known && sge.Foreign == nil && n <= int(c.cap.MaxInlineData) && c.memory.covers(sge)
		}
	}
	to.NumSGE = uint32(len(t.sges)) - to.FirstSGE
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
			t.sges = append(t.sges, cgo.SGE{})
			to.NumSGE = 1
		}
	case fabric.OpBindMW:
		wr.MW.(*window).bind(t, &to)
		op = fabric.WCBindMW
	case fabric.OpLocalInv:
		to.Opcode, to.Imm = wrLocalInv, wr.RKey
		c.memory.unbind(wr.RKey)
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
	// Only signaled completions free slots, so some requests must be signaled.
	report := t.reports.Reports(wr.Flags)
	inline := to.Flags&sendInline != 0
	free := inline && wr.Flags&(fabric.Deferred|fabric.Signaled) == fabric.Deferred && !report
	t.defers(t.tail, wr, op, report, inline, free)
	t.silent++
	signaled := report || t.silent >= min(maxSilent, max(c.attr.SendDepth/4, 1)) || c.dev.iwarp && (n >= earlyBytes || op == fabric.WCRead)
	if signaled {
		to.Flags |= sendSignaled
		t.silent = 0
	}
	t.push(slot{id: wr.ID, op: op, report: report, signaled: signaled, free: free})
	t.wrs = append(t.wrs, to)
}

// tellQuiet is how many deferred requests must wait before Poll reports their completion without one of the device. The
// user keeps memory for each of them.
const tellQuiet = 2

// untold covers the deferred requests since the last one that has been, or will be, reported, whose memory the user
// owns again. ibv_post_send(3) states this for inline data. marks.deferred counts them.
type untold struct {
	id   uint64 // of the latest
	op   fabric.WCOpcode
	end  uint64 // position after the latest
	firm uint64 // position after the latest request that the device owns until it reports it, or a later one
}

// defers records a request.
func (t *sender) defers(at uint64, wr *fabric.SendWR, op fabric.WCOpcode, report, inline, free bool) {
	u := &t.untold
	switch {
	case free:
		u.id, u.op, u.end = wr.ID, op, at+1
		t.c.deferred.Add(1)
	case report, wr.Flags&fabric.Deferred != 0:
		u.firm = at + 1
		t.c.deferred.Store(0) // a completion of the device will cover them
	case !inline:
		u.firm = at + 1
	}
}

// postSends posts requests with their SGEs in sges. If the device refuses them after check has accepted them, the
// connection ends and all requests of the list complete as flushed. Drivers do not reliably report how many were
// posted.
func (t *sender) postSends(wrs []cgo.SendWR, sges []cgo.SGE) {
	if len(wrs) == 0 {
		return
	}
	var out cgo.Outcome
	cgo.Progress(t.c.dev.lib, t.qp, nil, nil, nil, nil, wrs, sges, nil, 0, &out)
	t.posted.calls++
	t.posted.requests += uint64(len(wrs))
	if out.SendErr != 0 {
		t.c.refusedBy("ibv_post_send", syscall.Errno(out.SendErr))
	}
}

// refusedBy ends the connection after a failed post.
func (c *Conn) refusedBy(op string, errno syscall.Errno) {
	if errno == syscall.ENOTCONN || errno == syscall.EINVAL || errno == syscall.EPERM { // EPERM is the -1 of libsiw
		// The queue pair is in the error state because the peer has disconnected. The event has not arrived yet.
		c.failing(&fabric.WC{Status: fabric.WCFlushErr})
		c.wakePoller()
		return
	}
	reason := &fabric.ConnError{Provider: name, Cause: &DeviceError{Device: c.dev.name, Op: op, Errno: errno}}
	c.over(reason)
	c.wakePoller()
}

// callersRoom returns how many requests the caller may post. One slot is reserved for an internal request.
func (t *sender) callersRoom() int {
	if t.c.inner.Load() {
		return t.room()
	}
	return t.room() - 1
}

// marker posts a signaled zero-length Write if unsignaled requests are outstanding. Its completion shows that they are
// complete.
func (c *Conn) marker() error {
	t := c.send.Lock()
	defer c.send.Unlock()
	if t.qp == nil {
		return c.connErr()
	}
	if t.silent > 0 {
		t.postNothing()
	}
	return nil
}

// postNothing posts a signaled internal zero-length Write, which accesses no memory, unless one is outstanding.
func (t *sender) postNothing() {
	if t.c.inner.Load() || t.free() == 0 {
		return
	}
	t.c.inner.Store(true)
	t.wrs, t.sges = t.wrs[:0], t.sges[:0]
	t.silent = t.depth // makes append signal it
	t.append(&fabric.SendWR{Op: fabric.OpWrite})
	t.slots.at(t.tail - 1).internal = true
	t.ring()
}

// PostRecv implements fabric.Conn.
func (c *Conn) PostRecv(wrs []fabric.RecvWR) error {
	r := c.recv.Lock()
	if r.tight(len(wrs)) {
		c.recv.Unlock()
		l := c.q.polling.Lock()
		p := c.poller.Of(l)
		r = c.recv.Lock()
		err := p.grow(l, &p.recvs, &r.back, len(wrs))
		c.q.polling.Unlock()
		if err != nil {
			c.recv.Unlock()
			return err
		}
	}
	err := r.post(wrs)
	c.recv.Unlock()
	return err
}

func (r *receiver) post(wrs []fabric.RecvWR) error {
	c := r.c
	if r.qp == nil {
		return c.connErr()
	}
	if len(wrs) > r.room() {
		return fabric.ErrQueueFull
	}
	if len(wrs) == 0 {
		return nil
	}
	r.wrs, r.sges = r.wrs[:0], r.sges[:0]
	for i := range wrs {
		to := cgo.RecvWR{ID: r.tail | recvBit, FirstSGE: uint32(len(r.sges))}
		if at := spanOf(&wrs[i].SGE); at.n > 0 {
			r.sges = append(r.sges, cgo.SGE{Addr: at.addr, Length: uint32(at.n), LKey: wrs[i].SGE.LKey})
			to.NumSGE = 1
		}
		r.push(slot{id: wrs[i].ID, op: fabric.WCRecv, report: true})
		r.wrs = append(r.wrs, to)
	}
	var out cgo.Outcome
	cgo.Progress(c.dev.lib, r.qp, nil, nil, nil, r.wrs, nil, r.sges, nil, 0, &out)
	r.posted.calls++
	r.posted.requests += uint64(len(r.wrs))
	if out.RecvErr != 0 {
		c.refusedBy("ibv_post_recv", syscall.Errno(out.RecvErr))
	}
	return nil
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
