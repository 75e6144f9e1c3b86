//go:build linux && cgo

package ibv

import (
	"slices"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A WQState is the state of a work queue, see ibv_modify_wq(3).
type WQState int32

// States of work queues.
const (
	WQSReset   WQState = 0
	WQSReady   WQState = 1
	WQSErr     WQState = 2
	WQSUnknown WQState = 3
)

func (s WQState) String() string {
	return name([]string{"IBV_WQS_RESET", "IBV_WQS_RDY", "IBV_WQS_ERR", "IBV_WQS_UNKNOWN"}, int32(s), "ibv_wq_state")
}

// WQFlags are options of a work queue, see ibv_create_wq(3).
type WQFlags uint32

// Options of work queues.
const (
	WQCVLANStripping WQFlags = 1 << 0 // receives frames without their VLAN tags
	WQScatterFCS     WQFlags = 1 << 1 // receives the checksums of frames
	WQDelayDrop      WQFlags = 1 << 2 // keeps frames for a while if no receive is posted
	WQPCIPadding     WQFlags = 1 << 3 // writes whole cache lines
)

// A WQAttrMask is a set of fields of a WQAttr.
type WQAttrMask uint32

// Fields of a WQAttr.
const (
	WQAttrState    WQAttrMask = 1 << 0
	WQAttrCurState WQAttrMask = 1 << 1
	WQAttrFlags    WQAttrMask = 1 << 2 // Flags and FlagsMask
)

// A WQAttr holds what [WQ.Modify] changes, see ibv_modify_wq(3).
type WQAttr struct {
	State, CurState  WQState
	Flags, FlagsMask WQFlags // the new values, and which flags to change
}

// A WQInitAttr holds the attributes of a new work queue, see ibv_create_wq(3).
type WQInitAttr struct {
	CQ            *CQ
	MaxWR, MaxSGE uint32 // receives, and buffers in each
	Flags         WQFlags
}

// A WQ is a work queue: a receive queue without a queue pair, one of several that an [RWQIndTable] spreads
// packets over.
type WQ struct {
	life
	raw        *cgo.WQ
	ctx        *Context
	num        uint32
	maxWR, sge uint32
	recvs      recvQueue
}

// CreateWQ creates a work queue for receives, in WQSReset.
//
// Implements: struct ibv_wq *ibv_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *wq_init_attr)
func (pd *PD) CreateWQ(attr WQInitAttr) (*WQ, error) {
	const call = "ibv_create_wq"
	if attr.CQ == nil {
		return nil, &Error{Call: call, Device: pd.device, Err: syscall.EINVAL}
	}
	wq := &WQ{ctx: pd.ctx}
	err := pd.ctx.made(call, aWQ, &wq.life, func() (errno syscall.Errno) {
		wq.raw, wq.num, wq.maxWR, wq.sge, errno = pd.ctx.lib.CreateWQ(pd.ctx.raw, pd.raw, attr.CQ.raw, attr.MaxWR, attr.MaxSGE, uint32(attr.Flags))
		return errno
	}, &pd.life, &attr.CQ.life)
	if err != nil {
		return nil, err
	}
	return wq, nil
}

// Num returns the number of the queue.
func (wq *WQ) Num() uint32 { return wq.num }

// Cap returns how many receives the queue holds, and how many buffers each may have.
func (wq *WQ) Cap() (maxWR, maxSGE uint32) { return wq.maxWR, wq.sge }

// Modify changes the fields in mask.
//
// Implements: int ibv_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *wq_attr)
func (wq *WQ) Modify(attr WQAttr, mask WQAttrMask) error {
	return wq.ctx.do("ibv_modify_wq", func() syscall.Errno {
		return wq.ctx.lib.ModifyWQ(wq.raw, uint32(mask), int32(attr.State), int32(attr.CurState), uint32(attr.Flags), uint32(attr.FlagsMask))
	}, &wq.life)
}

// PostRecv posts receives, with one call into C. If not all can be posted, the error is a [*PostError].
//
// Implements: int ibv_post_wq_recv(struct ibv_wq *wq, struct ibv_recv_wr *recv_wr, struct ibv_recv_wr **bad_recv_wr)
func (wq *WQ) PostRecv(list []RecvWR) error {
	const call = "ibv_post_wq_recv"
	if wq.enter(call) != nil {
		return &PostError{Call: call, Device: wq.device, Err: ErrClosed}
	}
	defer wq.leave()
	wq.recvs.mu.Lock()
	defer wq.recvs.mu.Unlock()
	err := wq.recvs.gather(list)
	n, errno := wq.ctx.lib.PostWQRecv(wq.raw, wq.recvs.wrs, wq.recvs.sges)
	if errno != 0 {
		err = errno
	}
	if err != nil {
		return &PostError{Call: call, Device: wq.device, Index: n, Err: err}
	}
	return nil
}

// Close destroys the queue, after its tables.
//
// Implements: int ibv_destroy_wq(struct ibv_wq *wq)
func (wq *WQ) Close() error {
	return wq.end("ibv_destroy_wq", func() syscall.Errno { return wq.ctx.lib.DestroyWQ(wq.raw) })
}

// An RWQIndTable is an indirection table: the queues over which a queue pair spreads its packets, by
// their hash.
type RWQIndTable struct {
	life
	raw *cgo.RWQIndTable
	ctx *Context
	num uint32
}

// CreateRWQIndTable creates a table of work queues; their number is a power of two. A queue may occur more than once.
//
// Implements: struct ibv_rwq_ind_table *ibv_create_rwq_ind_table(struct ibv_context *context, struct ibv_rwq_ind_table_init_attr *init_attr)
func (c *Context) CreateRWQIndTable(wqs ...*WQ) (*RWQIndTable, error) {
	const call = "ibv_create_rwq_ind_table"
	if len(wqs) == 0 || len(wqs)&(len(wqs)-1) != 0 {
		return nil, &Error{Call: call, Device: c.device, Err: syscall.EINVAL}
	}
	table := &RWQIndTable{ctx: c}
	parents, raws := []*life{&c.life}, make([]*cgo.WQ, len(wqs))
	if slices.Contains(wqs, nil) {
		return nil, &Error{Call: call, Device: c.device, Err: syscall.EINVAL}
	}
	for i, wq := range wqs {
		parents, raws[i] = append(parents, &wq.life), wq.raw
	}
	err := c.made(call, aTable, &table.life, func() (errno syscall.Errno) {
		table.raw, table.num, errno = c.lib.CreateRWQIndTable(c.raw, raws)
		return errno
	}, parents...)
	if err != nil {
		return nil, err
	}
	return table, nil
}

// Num returns the number of the table.
func (table *RWQIndTable) Num() uint32 { return table.num }

// Close destroys the table, after its queue pairs.
//
// Implements: int ibv_destroy_rwq_ind_table(struct ibv_rwq_ind_table *rwq_ind_table)
func (table *RWQIndTable) Close() error {
	return table.end("ibv_destroy_rwq_ind_table", func() syscall.Errno { return table.ctx.lib.DestroyRWQIndTable(table.raw) })
}
