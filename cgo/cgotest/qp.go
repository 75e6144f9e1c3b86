//go:build linux && cgo

package cgotest

import (
	"math/bits"
	"slices"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// Bits of enum ibv_send_flags and of enum ibv_wc_flags, and opcodes.
const (
	wcGRH = 1 << 0

	sendSignaled = 1 << 1

	opLocalInv    = 7
	opBindMW      = 8
	opAtomicWrite = 15

	typeRC = 2 // of enum ibv_qp_type

	withAtomicWrite = 1 << 12 // of enum ibv_qp_create_send_ops_flags, where the others are 1 << the opcode
)

// Statuses of a completion, see enum ibv_wc_status.
const (
	Success    = 0
	LocProtErr = 4
	FlushErr   = 5
	RetryErr   = 12
)

// A QP is a queue pair.
type QP struct {
	object

	f      *Library
	d      *Device
	num    uint32
	ops    uint64 // of an extended queue pair, see [Library.CreateQPEx]
	ex     cgo.QPInitEx
	ece    cgo.ECE
	cap    cgo.QPCap
	attr   cgo.QPAttr
	sigAll bool
	sendCQ *CQ
	recvCQ *CQ
	srq    *sharedRecvs

	link   link
	groups map[[16]byte]bool // multicast groups that it is attached to

	sends  []*Send
	recvs  []*Recv
	places []*Send // sends that still occupy a slot of the queue
	onPost func()
}

func (qp *QP) handle() *cgo.QP { return (*cgo.QP)(unsafe.Pointer(qp)) }

// QP returns the queue pair for a handle.
func (f *Library) QP(h *cgo.QP) *QP { return (*QP)(unsafe.Pointer(h)) }

// A Send is a request posted to a send queue.
type Send struct {
	cgo.SendWR
	SGL []cgo.SGE
	qp  *QP
}

// A Recv is a posted receive.
type Recv struct {
	cgo.RecvWR
	SGL []cgo.SGE
	qp  *QP // nil in a shared receive queue
}

// Init returns the attributes that the queue pair was created with, in addition to its operations.
func (qp *QP) Init() cgo.QPInitEx { return qp.ex }

// Num returns the number of the queue pair.
func (qp *QP) Num() uint32 { return qp.num }

// Sends returns the requests of the send queue that have not been completed, in order.
func (qp *QP) Sends() []*Send {
	qp.f.mu.Lock()
	defer qp.f.mu.Unlock()
	return slices.Clone(qp.sends)
}

// Recvs returns the receives that have not been completed, in order; with a shared receive queue, those of that queue.
func (qp *QP) Recvs() []*Recv {
	qp.f.mu.Lock()
	defer qp.f.mu.Unlock()
	return slices.Clone(*qp.recvQueue())
}

func (qp *QP) recvQueue() *[]*Recv {
	if qp.srq != nil {
		return &qp.srq.recvs
	}
	return &qp.recvs
}

// OnPost arranges for f to be called once within the next call that posts to the queue pair, when the device has the
// requests and the call has not returned.
func (qp *QP) OnPost(f func()) {
	qp.f.mu.Lock()
	defer qp.f.mu.Unlock()
	qp.onPost = f
}

// Signaled reports whether the request has a completion if it succeeds.
func (s *Send) Signaled() bool { return s.Flags&sendSignaled != 0 || s.qp.sigAll }

// Complete ends the request with a status. An unsignaled request that succeeds has no completion; one
// that fails has.
func (s *Send) Complete(status int32) {
	qp := s.qp
	qp.f.mu.Lock()
	defer qp.f.mu.Unlock()
	if !s.take() {
		return
	}
	if status == Success {
		s.execute()
	}
	if status == Success && !s.Signaled() {
		return
	}
	length := uint32(0)
	for _, sge := range s.SGL {
		length += sge.Length
	}
	qp.sendCQ.add(cgo.WCEx{WC: cgo.WC{ID: s.ID, Status: status, QPNum: qp.num, ByteLen: length}})
}

// Forget ends the request without a completion, whatever its flags: some devices flush unsignaled requests in this way.
func (s *Send) Forget() {
	s.qp.f.mu.Lock()
	defer s.qp.f.mu.Unlock()
	s.take()
}

func (s *Send) take() bool {
	i := slices.Index(s.qp.sends, s)
	if i < 0 {
		s.qp.f.wrong("request %#x is completed twice", s.ID)
		return false
	}
	s.qp.sends = slices.Delete(s.qp.sends, i, i+1)
	return true
}

// execute performs the effects of the request on windows. The caller must hold mu.
func (s *Send) execute() {
	f := s.qp.f
	switch s.Opcode {
	case opBindMW:
		if w, r := f.mws[s.MW], f.mrs[s.MR]; w == nil || r == nil {
			f.wrong("a bind names window %#x and region %#x", s.MW, s.MR)
		} else {
			w.bind(r, s.qp, s.RKey)
		}
	case opLocalInv:
		f.invalidate(s.Imm)
	}
}

func (f *Library) invalidate(key uint32) {
	for _, w := range f.mws {
		if w.mr != nil && w.boundKey == key {
			w.unbind()
			return
		}
	}
	f.wrong("key %#x is invalidated, and no window is bound to it", key)
}

// Complete fills the receive with data and ends it with a status.
func (r *Recv) Complete(status int32, data []byte) { r.complete(status, data, cgo.WC{}) }

// CompleteInv is Complete for a message that invalidated a key. flag is the device's flag for that.
func (r *Recv) CompleteInv(data []byte, key, flag uint32) {
	r.qp.f.mu.Lock()
	r.qp.f.invalidate(key)
	r.qp.f.mu.Unlock()
	r.complete(Success, data, cgo.WC{Imm: key, Flags: flag})
}

func (r *Recv) complete(status int32, data []byte, wc cgo.WC) {
	qp := r.qp
	qp.f.mu.Lock()
	defer qp.f.mu.Unlock()
	i := slices.Index(qp.recvs, r)
	if i < 0 {
		qp.f.wrong("receive %#x is completed twice", r.ID)
		return
	}
	qp.recvs = slices.Delete(qp.recvs, i, i+1)
	room := uint32(0)
	for _, sge := range r.SGL {
		room += sge.Length
	}
	if int(room) < len(data) {
		qp.f.wrong("%d bytes arrive in a receive of %d", len(data), room)
	}
	wc.ID, wc.Status, wc.QPNum, wc.ByteLen, wc.Opcode = r.ID, status, qp.num, uint32(len(data)), 128
	qp.recvCQ.add(cgo.WCEx{WC: wc})
}

// Flush completes all outstanding requests as flushed, receives first.
func (qp *QP) Flush() {
	for _, r := range qp.Recvs() {
		r.Complete(FlushErr, nil)
	}
	for _, s := range qp.Sends() {
		s.Complete(FlushErr)
	}
}

// newQP creates a queue pair. The caller must hold mu.
func (f *Library) newQP(ctx *context, pd *cgo.PD, init cgo.QPInit) (*QP, syscall.Errno) {
	d := ctx.d
	c := init.Cap
	if d.NoConnections && init.Type == typeRC {
		return nil, syscall.EOPNOTSUPP
	}
	if c.MaxInlineData > d.MaxInline || c.MaxSendWR > uint32(d.Attr.MaxQPWR) || c.MaxRecvWR > uint32(d.Attr.MaxQPWR) || c.MaxSendSGE > uint32(d.Attr.MaxSGE) {
		return nil, syscall.EINVAL
	}
	if n := d.Nature; n != nil && (n.MaxSGE != 0 && c.MaxSendSGE > n.MaxSGE || n.MaxWR != 0 && max(c.MaxSendWR, c.MaxRecvWR) > n.MaxWR) {
		return nil, syscall.EINVAL
	}
	if d.Nature != nil && d.Nature.PowerOfTwo {
		c.MaxSendWR, c.MaxRecvWR = roundUp(c.MaxSendWR), roundUp(c.MaxRecvWR)
	}
	f.qpNum++
	qp := &QP{f: f, d: d, num: f.qpNum, cap: c, sigAll: init.SigAll, sendCQ: f.CQ(init.SendCQ), recvCQ: f.CQ(init.RecvCQ), srq: srqOf(init.SRQ), groups: make(map[[16]byte]bool)}
	var parents []*object
	if pd != nil {
		parents = append(parents, &domainOf(pd).object)
	}
	if qp.sendCQ != nil {
		parents = append(parents, &qp.sendCQ.object)
	}
	if qp.recvCQ != nil && qp.recvCQ != qp.sendCQ {
		parents = append(parents, &qp.recvCQ.object)
	}
	if qp.srq != nil {
		parents = append(parents, &qp.srq.object)
	}
	if x := init.Ex; x != nil {
		qp.ops = x.Ops
		qp.ex = *x
		parents = append(parents, plainOf(x.XRCD), plainOf(x.Table))
	}
	f.begin(&qp.object, "qp", parents...)
	f.qps[qp.num] = qp
	return qp, 0
}

// ReuseNum gives the next queue pair the number of this one.
func (qp *QP) ReuseNum() {
	qp.f.mu.Lock()
	defer qp.f.mu.Unlock()
	qp.f.qpNum = qp.num - 1
}

// dropQP destroys a queue pair. The caller must hold mu.
func (f *Library) dropQP(qp *QP) syscall.Errno {
	if errno := f.end(&qp.object); errno != 0 {
		return errno
	}
	delete(f.qps, qp.num)
	qp.sends, qp.recvs = nil, nil
	qp.die()
	qp.link.dead = true
	if qp.d.CleansCQ {
		for _, cq := range []*CQ{qp.sendCQ, qp.recvCQ} {
			if cq == nil {
				continue
			}
			cq.wcs = slices.DeleteFunc(cq.wcs, func(wc cgo.WCEx) bool { return wc.QPNum == qp.num })
		}
	}
	return 0
}

// CreateQP implements cgo.Verbs.
func (f *Library) CreateQP(pd *cgo.PD, init cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) {
	return f.createQP("ibv_create_qp", domainOf(pd).c.handle(), pd, init)
}

func (f *Library) createQP(call string, ctx *cgo.Context, pd *cgo.PD, init cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) {
	errno := f.enter(call)
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, cgo.QPCap{}, errno
	}
	qp, errno := f.newQP(contextOf(ctx), pd, init)
	if errno != 0 {
		return nil, cgo.QPCap{}, errno
	}
	return qp.handle(), qp.cap, 0
}

// QPNum implements cgo.Verbs.
func (f *Library) QPNum(qp *cgo.QP) uint32 { return f.QP(qp).num }

// ModifyQP implements cgo.Verbs. Only the state changes.
func (f *Library) ModifyQP(qp *cgo.QP, attr *cgo.QPAttr, mask int) syscall.Errno {
	errno := f.enter("ibv_modify_qp")
	defer f.mu.Unlock()
	if errno == 0 {
		f.usable(&f.QP(qp).object)
		f.QP(qp).attr.State = attr.State
	}
	return errno
}

// QueryQP implements cgo.Verbs.
func (f *Library) QueryQP(qp *cgo.QP, mask int) (cgo.QPAttr, cgo.QPCap, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usable(&f.QP(qp).object)
	return f.QP(qp).attr, f.QP(qp).cap, f.failing("ibv_query_qp")
}

// DestroyQP implements cgo.Verbs.
func (f *Library) DestroyQP(qp *cgo.QP) syscall.Errno {
	errno := f.enter("ibv_destroy_qp")
	defer f.mu.Unlock()
	if errno != 0 {
		return errno
	}
	return f.dropQP(f.QP(qp))
}

// Progress implements cgo.Verbs, in the order of the real one.
func (f *Library) Progress(qp *cgo.QP, srq *cgo.SRQ, cq *cgo.CQ, channel *cgo.CompChannel, recvs []cgo.RecvWR, sends []cgo.SendWR, sges []cgo.SGE, wcs []cgo.WC, flags uint32, out *cgo.Outcome) {
	*out = cgo.Outcome{}
	if len(recvs) > 0 {
		f.postRecvs(f.QP(qp), srqOf(srq), recvs, sges, out)
	}
	if len(sends) > 0 && out.RecvErr == 0 {
		f.postSends(f.QP(qp), sends, sges, flags, out)
	}
	if flags&cgo.TakeEvent != 0 {
		f.mu.Lock()
		switch _, errno := f.takeEvent(channelOf(channel)); errno {
		case 0:
			out.Events = 1
		case syscall.EAGAIN, syscall.EINTR:
		default:
			out.PollErr = int32(errno)
		}
		f.mu.Unlock()
	}
	if len(wcs) == 0 || f.poll(f.CQ(cq), wcs, out) > 0 || out.PollErr != 0 {
		return
	}
	if flags&cgo.Arm == 0 || flags&cgo.TakeEvent != 0 && out.Events == 0 {
		return
	}
	call(f, &f.CQ(cq).onArm)
	f.mu.Lock()
	errno := f.arm(f.CQ(cq))
	f.mu.Unlock()
	if errno != 0 {
		out.PollErr = int32(errno)
		return
	}
	out.Armed = 1
	f.poll(f.CQ(cq), wcs, out)
}

// call calls a hook once, without holding the lock.
func call(f *Library, hook *func()) {
	f.mu.Lock()
	h := *hook
	*hook = nil
	f.mu.Unlock()
	if h != nil {
		h()
	}
}

func (f *Library) poll(cq *CQ, wcs []cgo.WC, out *cgo.Outcome) int {
	call(f, &cq.onPoll)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usable(&cq.object)
	if errno := f.failing("ibv_poll_cq"); errno != 0 {
		out.PollErr = int32(errno)
		return 0
	}
	polled := cq.poll(len(wcs))
	for i := range polled {
		wcs[i] = polled[i].WC
	}
	out.WCs = uint32(len(polled))
	return len(polled)
}

func (f *Library) postRecvs(qp *QP, srq *sharedRecvs, recvs []cgo.RecvWR, sges []cgo.SGE, out *cgo.Outcome) {
	if srq != nil {
		f.addRecvs("ibv_post_srq_recv", &srq.object, &srq.recvs, srq.attr.MaxWR, nil, recvs, sges, out)
		return
	}
	f.addRecvs("ibv_post_recv", &qp.object, &qp.recvs, qp.cap.MaxRecvWR, qp, recvs, sges, out)
	call(f, &qp.onPost)
}

// addRecvs adds receives to the queue of an object until the queue is full.
func (f *Library) addRecvs(call string, o *object, queue *[]*Recv, depth uint32, qp *QP, recvs []cgo.RecvWR, sges []cgo.SGE, out *cgo.Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usable(o)
	for _, wr := range recvs {
		errno := f.failing(call)
		if errno == 0 && len(*queue) >= int(depth) {
			errno = syscall.ENOMEM
		}
		if errno != 0 {
			out.RecvErr = int32(errno)
			return
		}
		*queue = append(*queue, &Recv{RecvWR: wr, SGL: slices.Clone(sges[wr.FirstSGE:][:wr.NumSGE]), qp: qp})
		out.Recvs++
	}
	if qp != nil && qp.link.peer != nil {
		qp.link.peer.run() // a message may have been waiting
	}
	if qp != nil {
		qp.run() // flushes it in the error state
	}
}

func roundUp(n uint32) uint32 {
	if n == 0 {
		return 0
	}
	return 1 << bits.Len32(n-1)
}

func (f *Library) postSends(qp *QP, sends []cgo.SendWR, sges []cgo.SGE, flags uint32, out *cgo.Outcome) {
	if flags&cgo.Extended == 0 || f.complete(qp, sends, out) {
		f.addSends(qp, sends, sges, out)
	}
	call(f, &qp.onPost)
}

func (f *Library) addSends(qp *QP, sends []cgo.SendWR, sges []cgo.SGE, out *cgo.Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usable(&qp.object)
	for _, wr := range sends {
		errno := f.failing("ibv_post_send")
		if errno == 0 && qp.d.Nature != nil && qp.d.Nature.Refuses>>wr.Opcode&1 != 0 {
			errno = syscall.EINVAL
		}
		if errno == 0 && len(qp.places) >= int(qp.cap.MaxSendWR) {
			errno = syscall.ENOMEM
		}
		if errno != 0 {
			out.SendErr = int32(errno)
			return
		}
		s := &Send{SendWR: wr, SGL: slices.Clone(sges[wr.FirstSGE:][:wr.NumSGE]), qp: qp}
		qp.sends, qp.places = append(qp.sends, s), append(qp.places, s)
		out.Sends++
	}
	qp.run()
}
