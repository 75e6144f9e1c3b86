//go:build linux && cgo

package ibv

import (
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// An SRQAttr describes a shared receive queue, see ibv_create_srq(3).
type SRQAttr struct {
	MaxWR  uint32 // receives in the queue
	MaxSGE uint32 // buffers of each
	Limit  uint32 // EventSRQLimitReached is raised once fewer receives are left; 0 means never
}

// An SRQAttrMask selects what [SRQ.Modify] changes, see ibv_modify_srq(3).
type SRQAttrMask uint32

// Attributes of a shared receive queue that can be changed.
const (
	SRQMaxWR SRQAttrMask = 1 << 0 // needs DeviceSRQResize
	SRQLimit SRQAttrMask = 1 << 1
)

func (m SRQAttrMask) String() string {
	return flagString(uint32(m), []string{"IBV_SRQ_MAX_WR", "IBV_SRQ_LIMIT"})
}

// An SRQ is a receive queue shared by several queue pairs. It must be closed after them.
type SRQ struct {
	life
	raw   *cgo.SRQ
	ctx   *Context
	attr  SRQAttr
	recvs recvQueue
}

// CreateSRQ creates a shared receive queue. [SRQ.Attr] returns its actual size. Limit is
// ignored: set it with Modify, once receives have been posted.
//
// Implements: struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *srq_init_attr)
func (pd *PD) CreateSRQ(attr SRQAttr) (*SRQ, error) {
	return pd.createSRQ("ibv_create_srq", attr, []*life{&pd.life}, func() (*cgo.SRQ, cgo.SRQAttr, syscall.Errno) {
		return pd.ctx.lib.CreateSRQ(pd.raw, cgo.SRQAttr{MaxWR: attr.MaxWR, MaxSGE: attr.MaxSGE})
	})
}

func (pd *PD) createSRQ(call string, attr SRQAttr, parents []*life, create func() (*cgo.SRQ, cgo.SRQAttr, syscall.Errno)) (*SRQ, error) {
	if err := enterAll(call, parents...); err != nil {
		return nil, err
	}
	defer leaveAll(parents...)
	pd.ctx.turnover.RLock()
	defer pd.ctx.turnover.RUnlock()
	raw, given, errno := create()
	if errno != 0 {
		return nil, pd.ctx.memoryError(call, errno, wqBytes(attr.MaxWR, attr.MaxSGE, 0))
	}
	srq := &SRQ{raw: raw, ctx: pd.ctx, attr: SRQAttr{MaxWR: given.MaxWR, MaxSGE: given.MaxSGE}}
	srq.begin(anSRQ, pd.device, parents...)
	pd.ctx.objects.Store(raw.Word(), srq)
	return srq, nil
}

// Raw returns the queue for package cgo, valid until Close.
func (srq *SRQ) Raw() *cgo.SRQ { return srq.raw }

// Attr returns the size of the queue when it was created.
func (srq *SRQ) Attr() SRQAttr { return srq.attr }

// PostRecv posts a list of receives. If not all can be posted, the error is a [*PostError]. The device owns the buffers
// until their completions have been polled.
//
// Implements: int ibv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *recv_wr, struct ibv_recv_wr **bad_recv_wr)
func (srq *SRQ) PostRecv(wrs []RecvWR) error {
	const call = "ibv_post_srq_recv"
	if err := srq.enter(call); err != nil {
		return &PostError{Call: call, Device: srq.device, Err: ErrClosed}
	}
	n, err := srq.recvs.post(srq.ctx.lib, nil, srq.raw, wrs)
	srq.leave()
	if err != nil {
		return &PostError{Call: call, Device: srq.device, Index: n, Err: err}
	}
	return nil
}

// Modify changes the size or the limit. A limit raises one event, which
// [Context.AsyncEvent] returns.
//
// Implements: int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr, int srq_attr_mask)
func (srq *SRQ) Modify(attr SRQAttr, mask SRQAttrMask) error {
	const call = "ibv_modify_srq"
	if err := srq.enter(call); err != nil {
		return err
	}
	defer srq.leave()
	errno := srq.ctx.lib.ModifySRQ(srq.raw, cgo.SRQAttr{MaxWR: attr.MaxWR, MaxSGE: attr.MaxSGE, Limit: attr.Limit}, int(mask))
	if errno != 0 {
		return &Error{Call: call, Device: srq.device, Err: errno}
	}
	return nil
}

// Query returns the size and the limit. A limit that has raised its event is 0.
//
// Implements: int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr)
func (srq *SRQ) Query() (SRQAttr, error) {
	const call = "ibv_query_srq"
	if err := srq.enter(call); err != nil {
		return SRQAttr{}, err
	}
	defer srq.leave()
	a, errno := srq.ctx.lib.QuerySRQ(srq.raw)
	if errno != 0 {
		return SRQAttr{}, &Error{Call: call, Device: srq.device, Err: errno}
	}
	return SRQAttr{MaxWR: a.MaxWR, MaxSGE: a.MaxSGE, Limit: a.Limit}, nil
}

// Close destroys the queue. Outstanding receives end without completions.
//
// Implements: int ibv_destroy_srq(struct ibv_srq *srq)
func (srq *SRQ) Close() error {
	return srq.end("ibv_destroy_srq", func() syscall.Errno {
		srq.ctx.turnover.RLock()
		defer srq.ctx.turnover.RUnlock()
		errno := srq.ctx.lib.DestroySRQ(srq.raw)
		if errno == 0 {
			srq.ctx.objects.CompareAndDelete(srq.raw.Word(), srq)
		}
		return errno
	})
}
