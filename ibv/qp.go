//go:build linux && cgo

package ibv

import (
	"fmt"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A QPCap is how much a queue pair holds, see ibv_create_qp(3).
type QPCap struct {
	MaxSendWR     uint32 // work requests in the send queue
	MaxRecvWR     uint32 // receives, unless there is an SRQ
	MaxSendSGE    uint32 // buffers of a work request
	MaxRecvSGE    uint32 // buffers of a receive
	MaxInlineData uint32 // bytes that SendInline can copy
}

// A QPInitAttr says what a queue pair is made of, see ibv_create_qp(3).
type QPInitAttr struct {
	SendCQ *CQ
	RecvCQ *CQ  // may be the same
	SRQ    *SRQ // takes the place of the receive queue; may be nil
	Cap    QPCap
	SigAll bool // every work request has a completion, not only those with SendSignaled
}

// A QP is a queue pair: one end of a reliable connection. It is closed before
// everything that it was made of.
//
// Closing it, or moving it to QPSErr and polling the completions of all that was
// posted, gives the posted buffers back.
type QP struct {
	life
	raw  *cgo.QP
	ctx  *Context
	num  uint32
	cap  QPCap
	lent bool // librdmacm destroys it

	sends sendQueue
	recvs recvQueue
}

// qpTypeRC is IBV_QPT_RC.
const qpTypeRC = 2

// parents are what a queue pair keeps open.
func (a *QPInitAttr) parents(pd *PD) ([]*life, error) {
	if a.SendCQ == nil || a.RecvCQ == nil {
		return nil, syscall.EINVAL
	}
	lives := []*life{&pd.life, &a.SendCQ.life}
	if a.RecvCQ != a.SendCQ {
		lives = append(lives, &a.RecvCQ.life)
	}
	if a.SRQ != nil {
		lives = append(lives, &a.SRQ.life)
	}
	return lives, nil
}

// CreateQP makes a queue pair of type IBV_QPT_RC in state QPSReset. Cap tells what
// the device gave, which may be more than was asked for; asking for more than
// it has is an error.
//
// Implements: struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
func (pd *PD) CreateQP(attr QPInitAttr) (*QP, error) {
	const call = "ibv_create_qp"
	parents, err := attr.parents(pd)
	if err != nil {
		return nil, &Error{Call: call, Device: pd.device, Err: err}
	}
	if err := enterAll(call, parents...); err != nil {
		return nil, err
	}
	defer leaveAll(parents...)
	pd.ctx.turnover.RLock()
	defer pd.ctx.turnover.RUnlock()
	init := cgo.QPInit{SendCQ: attr.SendCQ.raw, RecvCQ: attr.RecvCQ.raw, Cap: cgo.QPCap(attr.Cap), Type: qpTypeRC, SigAll: attr.SigAll}
	if attr.SRQ != nil {
		init.SRQ = attr.SRQ.raw
	}
	raw, given, errno := pd.ctx.lib.CreateQP(pd.raw, init)
	if errno != 0 {
		c := &attr.Cap
		return nil, pd.ctx.memoryError(call, errno, wqBytes(c.MaxSendWR, c.MaxSendSGE, c.MaxInlineData)+wqBytes(c.MaxRecvWR, c.MaxRecvSGE, 0))
	}
	return newQP(pd, raw, QPCap(given), parents), nil
}

// WrapQP makes a QP of one that librdmacm has made on pd, with the queues of attr
// and the capacity that it got. librdmacm destroys it, after Close, which only
// keeps everybody from using it.
func (pd *PD) WrapQP(raw *cgo.QP, attr QPInitAttr) (*QP, error) {
	const call = "ibv_create_qp"
	parents, err := attr.parents(pd)
	if err != nil {
		return nil, &Error{Call: call, Device: pd.device, Err: err}
	}
	if err := enterAll(call, parents...); err != nil {
		return nil, err
	}
	defer leaveAll(parents...)
	pd.ctx.turnover.RLock()
	defer pd.ctx.turnover.RUnlock()
	qp := newQP(pd, raw, attr.Cap, parents)
	qp.lent = true
	return qp, nil
}

func newQP(pd *PD, raw *cgo.QP, given QPCap, parents []*life) *QP {
	qp := &QP{raw: raw, ctx: pd.ctx, num: pd.ctx.lib.QPNum(raw), cap: given}
	qp.begin(aQP, pd.device, parents...)
	pd.ctx.objects.Store(raw.Word(), qp)
	return qp
}

// Raw is the queue pair as package cgo takes it, valid until Close.
func (qp *QP) Raw() *cgo.QP { return qp.raw }

// Num is the number that completions and the peer know the queue pair by.
func (qp *QP) Num() uint32 { return qp.num }

// Cap is what the device gave when the queue pair was made.
func (qp *QP) Cap() QPCap { return qp.cap }

// PostSend posts a list of work requests with one call of C and one doorbell, for
// every 128 of them. If not all can be posted, the error is a [*PostError].
//
// The list is the caller's again when PostSend returns. The buffers belong to the
// device until the completions have been polled, of requests without SendSignaled
// that of a later one; inline data is free at once. Nothing waits here: an error
// of the operation is in its completion.
//
// Implements: int ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
func (qp *QP) PostSend(wrs []SendWR) error {
	const call = "ibv_post_send"
	if err := qp.enter(call); err != nil {
		return &PostError{Call: call, Device: qp.device, Err: ErrClosed}
	}
	n, err := qp.sends.post(qp.ctx.lib, qp.raw, wrs)
	qp.leave()
	if err != nil {
		return &PostError{Call: call, Device: qp.device, Index: n, Err: err}
	}
	return nil
}

// PostRecv posts a list of receives, likewise. A queue pair with an SRQ has no
// receive queue of its own.
//
// Implements: int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
func (qp *QP) PostRecv(wrs []RecvWR) error {
	const call = "ibv_post_recv"
	if err := qp.enter(call); err != nil {
		return &PostError{Call: call, Device: qp.device, Err: ErrClosed}
	}
	n, err := qp.recvs.post(qp.ctx.lib, qp.raw, nil, wrs)
	qp.leave()
	if err != nil {
		return &PostError{Call: call, Device: qp.device, Index: n, Err: err}
	}
	return nil
}

// BindMW1 posts the bind of a window of type 1, which has the key MW.RKey
// afterwards. An empty Buf unbinds; the region is asked for even then, because
// not every provider can do without.
//
// Implements: int ibv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *mw_bind)
func (qp *QP) BindMW1(id uint64, flags SendFlags, b MWBind) error {
	const call = "ibv_bind_mw"
	if b.MW == nil || b.MR == nil {
		return &Error{Call: call, Device: qp.device, Err: syscall.EINVAL}
	}
	lives := [...]*life{&qp.life, &b.MW.life, &b.MR.life}
	if err := enterAll(call, lives[:]...); err != nil {
		return err
	}
	defer leaveAll(lives[:]...)
	var addr uint64
	if len(b.Buf) > 0 {
		addr = addrOf(b.Buf)
	}
	b.MW.keyMu.Lock() // the library changes the key
	defer b.MW.keyMu.Unlock()
	if _, errno := qp.ctx.lib.BindMW(qp.raw, b.MW.raw, id, uint32(flags), b.MR.raw, addr, uint64(len(b.Buf)), uint32(b.Access)); errno != 0 {
		return &Error{Call: call, Device: qp.device, Err: errno}
	}
	return nil
}

// Close destroys the queue pair. What was posted and not completed ends without a
// completion.
//
// Implements: int ibv_destroy_qp(struct ibv_qp *qp)
func (qp *QP) Close() error {
	return qp.end("ibv_destroy_qp", func() (errno syscall.Errno) {
		qp.ctx.turnover.RLock()
		defer qp.ctx.turnover.RUnlock()
		if !qp.lent {
			errno = qp.ctx.lib.DestroyQP(qp.raw)
		}
		if errno == 0 {
			qp.ctx.objects.CompareAndDelete(qp.raw.Word(), qp)
		}
		return errno
	})
}

func (qp *QP) String() string { return fmt.Sprintf("queue pair %d of %s", qp.num, qp.device) }
