//go:build linux && cgo

package ibv

import (
	"cmp"
	"fmt"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A QPCap is the capacity of a queue pair, see ibv_create_qp(3).
type QPCap struct {
	MaxSendWR     uint32 // work requests in the send queue
	MaxRecvWR     uint32 // receives in the receive queue, unused with an SRQ
	MaxSendSGE    uint32 // buffers of a work request
	MaxRecvSGE    uint32 // buffers of a receive
	MaxInlineData uint32 // bytes that SendInline can copy
}

// A QPType is the transport service of a queue pair, see ibv_create_qp(3).
type QPType int32

// Transport services.
const (
	QPTypeRC QPType = 2 // reliable connection
	QPTypeUC QPType = 3 // unreliable connection: Sends and RDMA Writes, which may be lost
	QPTypeUD QPType = 4 // unreliable datagram: Sends of at most an MTU, each to a separate address

	QPTypeRawPacket QPType = 8   // Ethernet frames; needs CAP_NET_RAW
	QPTypeXRCSend   QPType = 9   // sending end of an extended reliable connection
	QPTypeXRCRecv   QPType = 10  // receiving end of an extended reliable connection, see [XRCD.CreateQP]
	QPTypeDriver    QPType = 255 // specific to the vendor's library, see [PD.WrapQP]
)

func (t QPType) String() string {
	return name([]string{
		2: "IBV_QPT_RC", 3: "IBV_QPT_UC", 4: "IBV_QPT_UD", 8: "IBV_QPT_RAW_PACKET", 9: "IBV_QPT_XRC_SEND", 10: "IBV_QPT_XRC_RECV", 255: "IBV_QPT_DRIVER",
	}, int32(t), "ibv_qp_type")
}

// A QPInitAttr holds the attributes of a new queue pair, see ibv_create_qp(3).
type QPInitAttr struct {
	SendCQ *CQ
	RecvCQ *CQ  // may be the same as SendCQ; nil for QPTypeXRCSend, and with Table
	SRQ    *SRQ // replaces the receive queue; may be nil
	Cap    QPCap
	Type   QPType // zero is QPTypeRC
	SigAll bool   // every work request generates a completion, not only those with SendSignaled

	// SendOps are the operations of an extended queue pair, which supports only these. It posts a list of work requests
	// as a whole or not at all, see [QP.PostSend]. Zero: the queue pair is not extended.
	SendOps SendOps

	Flags        QPCreateFlags
	MaxTSOHeader uint16       // size of the header of an OpTSO, in bytes
	Table        *RWQIndTable // receives in place of RecvCQ; such a queue pair cannot send
	Hash         RxHash       // with Table
	SourceQPNum  uint32       // with QPCreateSourceQPN
}

// QPCreateFlags are options of a new queue pair, see ibv_create_qp_ex(3).
type QPCreateFlags uint32

// Options of queue pairs.
const (
	QPCreateBlockSelfMcast QPCreateFlags = 1 << 1  // does not receive its own datagrams sent to a group
	QPCreateScatterFCS     QPCreateFlags = 1 << 8  // receives the checksums of frames
	QPCreateCVLANStripping QPCreateFlags = 1 << 9  // receives frames without their VLAN tags
	QPCreateSourceQPN      QPCreateFlags = 1 << 10 // sends as SourceQPNum
	QPCreatePCIPadding     QPCreateFlags = 1 << 11 // writes whole cache lines
)

// An RxHash selects the queue of a packet, see ibv_create_qp_ex(3).
type RxHash struct {
	Function uint8  // enum ibv_rx_hash_function_flags; 1 is Toeplitz
	Key      []byte // of the function
	Fields   uint64 // of the packet, enum ibv_rx_hash_fields
}

// Extended reports whether creating the queue pair requires ibv_create_qp_ex.
func (a *QPInitAttr) Extended() bool {
	return a.SendOps != 0 || a.Flags != 0 || a.MaxTSOHeader != 0 || a.Table != nil || a.Type == QPTypeXRCSend
}

// init converts a for C.
func (a *QPInitAttr) init() cgo.QPInit {
	init := cgo.QPInit{Cap: cgo.QPCap(a.Cap), Type: int32(a.kind()), SigAll: a.SigAll}
	if a.SendCQ != nil {
		init.SendCQ = a.SendCQ.raw
	}
	if a.RecvCQ != nil {
		init.RecvCQ = a.RecvCQ.raw
	}
	if a.SRQ != nil {
		init.SRQ = a.SRQ.raw
	}
	if a.Extended() {
		init.Ex = &cgo.QPInitEx{
			Ops: uint64(a.SendOps), Flags: uint32(a.Flags), MaxTSOHeader: a.MaxTSOHeader, SourceQPN: a.SourceQPNum,
			HashFunction: a.Hash.Function, HashKey: a.Hash.Key, HashFields: a.Hash.Fields,
		}
		if a.Table != nil {
			init.Ex.Table = a.Table.raw
		}
	}
	return init
}

// SendOps are operations of an extended queue pair, see ibv_create_qp_ex(3).
type SendOps uint64

// SendOpsOf returns the set of the given operations.
func SendOpsOf(ops ...Opcode) (set SendOps) {
	for _, op := range ops {
		set |= op.bit()
	}
	return set
}

// bit returns an operation's bit in enum ibv_qp_create_send_ops_flags.
func (o Opcode) bit() SendOps {
	switch {
	case o == OpAtomicWrite:
		return 1 << 12
	case o <= OpTSO:
		return 1 << o
	}
	return 0
}

// A QP is a queue pair: one end of a connection, or of any number of datagram conversations. It must be closed before
// the objects it was created with.
//
// The device stops using posted buffers when the queue pair is closed, or once it is in QPSErr and the completions of
// all work requests have been polled.
type QP struct {
	life
	raw     *cgo.QP
	ctx     *Context
	num     uint32
	typ     QPType
	cap     QPCap
	destroy func(*cgo.QP) syscall.Errno

	sends sendQueue
	recvs recvQueue
}

// parents returns the objects that a queue pair keeps open.
func (a *QPInitAttr) parents(pd *PD) ([]*life, error) {
	if a.Table == nil && (a.SendCQ == nil || a.RecvCQ == nil && a.Type != QPTypeXRCSend) {
		return nil, syscall.EINVAL
	}
	lives := []*life{&pd.life}
	if a.SendCQ != nil {
		lives = append(lives, &a.SendCQ.life)
	}
	if a.RecvCQ != nil && a.RecvCQ != a.SendCQ {
		lives = append(lives, &a.RecvCQ.life)
	}
	if a.Table != nil {
		lives = append(lives, &a.Table.life)
	}
	if a.SRQ != nil {
		lives = append(lives, &a.SRQ.life)
	}
	return lives, nil
}

// CreateQP creates a queue pair in state QPSReset. [QP.Cap] returns its
// capacity, which may exceed attr.Cap. A capacity beyond the device's limits is an error.
//
// Implements: struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
// Implements: struct ibv_qp *ibv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *qp_init_attr_ex)
func (pd *PD) CreateQP(attr QPInitAttr) (*QP, error) {
	if attr.Extended() {
		return pd.CreateQPBy("ibv_create_qp_ex", attr, func(init cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) {
			return pd.ctx.lib.CreateQPEx(pd.ctx.raw, pd.raw, init)
		}, pd.ctx.lib.DestroyQP)
	}
	return pd.CreateQPBy("ibv_create_qp", attr, func(init cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) {
		return pd.ctx.lib.CreateQP(pd.raw, init)
	}, pd.ctx.lib.DestroyQP)
}

// CreateQPBy creates a queue pair with a C function other than ibv_create_qp, such as one of librdmacm. call is its
// name, for errors. create is called with attr for C and with all its objects open; Close calls destroy.
func (pd *PD) CreateQPBy(call string, attr QPInitAttr, create func(cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno), destroy func(*cgo.QP) syscall.Errno) (*QP, error) {
	parents, err := attr.parents(pd)
	if err != nil {
		return nil, &Error{Call: call, Device: pd.device, Err: err}
	}
	return pd.ctx.createQP(call, parents, attr, create, destroy)
}

func (c *Context) createQP(call string, parents []*life, attr QPInitAttr, create func(cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno), destroy func(*cgo.QP) syscall.Errno) (*QP, error) {
	if err := enterAll(call, parents...); err != nil {
		return nil, err
	}
	defer leaveAll(parents...)
	c.turnover.RLock()
	defer c.turnover.RUnlock()
	raw, given, errno := create(attr.init())
	if errno != 0 {
		k := &attr.Cap
		return nil, c.memoryError(call, errno, wqBytes(k.MaxSendWR, k.MaxSendSGE, k.MaxInlineData)+wqBytes(k.MaxRecvWR, k.MaxRecvSGE, 0))
	}
	qp := &QP{raw: raw, ctx: c, num: c.lib.QPNum(raw), typ: attr.kind(), cap: QPCap(given), destroy: destroy}
	qp.sends.typ, qp.sends.ops, qp.sends.oneBuffer = qp.typ, attr.SendOps, attr.SendOps != 0 && c.rxe
	qp.begin(aQP, c.device, parents...)
	c.objects.Store(raw.Word(), qp)
	return qp, nil
}

func (a *QPInitAttr) kind() QPType { return cmp.Or(a.Type, QPTypeRC) }

// WrapQP returns a QP for a queue pair on pd that is created elsewhere, such as by a library of the device's vendor,
// and is destroyed there after Close. attr has its queues, capacity and operations.
func (pd *PD) WrapQP(raw *cgo.QP, attr QPInitAttr) (*QP, error) {
	return pd.CreateQPBy("ibv_create_qp", attr,
		func(cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) { return raw, cgo.QPCap(attr.Cap), 0 },
		func(*cgo.QP) syscall.Errno { return 0 })
}

// Raw returns the queue pair for package cgo, valid until Close.
func (qp *QP) Raw() *cgo.QP { return qp.raw }

// Num returns the number of the queue pair, which identifies it in completions and to the peer.
func (qp *QP) Num() uint32 { return qp.num }

// Type returns the transport service of the queue pair.
func (qp *QP) Type() QPType { return qp.typ }

// Cap returns the capacity of the queue pair.
func (qp *QP) Cap() QPCap { return qp.cap }

// PostSend posts a list of work requests, with one call into C and one doorbell for every 128 of them. If not all can
// be posted, the error is a [*PostError].
//
// The list can be reused when PostSend returns. The device owns the buffers of a request until its completion has been
// polled, or for a request without SendSignaled that of a later one; inline data is copied at once. PostSend does not
// wait: the completion of an operation reports its error.
//
// An extended queue pair, with QPInitAttr.SendOps, posts with ibv_wr_start and ibv_wr_complete, with as few calls into
// C. If a list has an error, none of its requests are posted; a list that binds the same window twice counts as two
// lists. On rxe a request may have only one buffer, because its library sends the wrong bytes with several: such a
// request is refused with EOPNOTSUPP.
//
// Implements: int ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
// Implements: struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
// Implements: void ibv_wr_start(struct ibv_qp_ex *qp)
// Implements: int ibv_wr_complete(struct ibv_qp_ex *qp)
// Implements: void ibv_wr_abort(struct ibv_qp_ex *qp)
// Implements: void ibv_wr_send(struct ibv_qp_ex *qp)
// Implements: void ibv_wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data)
// Implements: void ibv_wr_send_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
// Implements: void ibv_wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
// Implements: void ibv_wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
// Implements: void ibv_wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, __be32 imm_data)
// Implements: void ibv_wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare, uint64_t swap)
// Implements: void ibv_wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t add)
// Implements: void ibv_wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, const void *atomic_wr)
// Implements: void ibv_wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *bind_info)
// Implements: void ibv_wr_local_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
// Implements: void ibv_wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t hdr_sz, uint16_t mss)
// Implements: void ibv_wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t remote_srqn)
// Implements: void ibv_wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn, uint32_t remote_qkey)
// Implements: void ibv_wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
// Implements: void ibv_wr_set_sge_list(struct ibv_qp_ex *qp, size_t num_sge, const struct ibv_sge *sg_list)
// Implements: void ibv_wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
// Implements: void ibv_wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t num_buf, const struct ibv_data_buf *buf_list)
func (qp *QP) PostSend(wrs []SendWR) error {
	call := "ibv_post_send"
	if qp.sends.ops != 0 {
		call = "ibv_wr_complete"
	}
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

// PostRecv posts a list of receives, as PostSend does. It fails on a queue pair with an SRQ.
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

// BindMW1 posts the bind of a window of type 1. MW.RKey returns the new key afterwards. An empty part
// unbinds; MR is required even then, because some providers need it.
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
	addr, length := b.span()
	if length == 0 {
		addr = 0
	}
	b.MW.keyMu.Lock() // the library changes the rkey
	defer b.MW.keyMu.Unlock()
	if _, errno := qp.ctx.lib.BindMW(qp.raw, b.MW.raw, id, uint32(flags), b.MR.raw, addr, length, uint32(b.Access)); errno != 0 {
		return &Error{Call: call, Device: qp.device, Err: errno}
	}
	return nil
}

// Close destroys the queue pair. Outstanding work requests end without completions.
//
// Implements: int ibv_destroy_qp(struct ibv_qp *qp)
func (qp *QP) Close() error {
	return qp.end("ibv_destroy_qp", func() (errno syscall.Errno) {
		qp.ctx.turnover.RLock()
		defer qp.ctx.turnover.RUnlock()
		if errno = qp.destroy(qp.raw); errno == 0 {
			qp.ctx.objects.CompareAndDelete(qp.raw.Word(), qp)
		}
		return errno
	})
}

func (qp *QP) String() string { return fmt.Sprintf("queue pair %d of %s", qp.num, qp.device) }
