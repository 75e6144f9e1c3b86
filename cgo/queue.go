//go:build linux && cgo

package cgo

/*
#include "verbs.h"
*/
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"
)

// CreateCompChannel calls ibv_create_comp_channel.
func (RDMACore) CreateCompChannel(ctx *Context) (*CompChannel, syscall.Errno) {
	ch, err := C.ibv_create_comp_channel(ctx.c())
	if ch == nil {
		return nil, asErrno(err)
	}
	return (*CompChannel)(unsafe.Pointer(ch)), 0
}

// CompChannelFD returns the descriptor of a channel. The channel owns it.
func (RDMACore) CompChannelFD(ch *CompChannel) int { return int(ch.c().fd) }

// DestroyCompChannel calls ibv_destroy_comp_channel.
func (RDMACore) DestroyCompChannel(ch *CompChannel) syscall.Errno {
	return status(C.ibv_destroy_comp_channel(ch.c()))
}

// GetCQEvent calls ibv_get_cq_event. On a non-blocking channel the errno is EAGAIN if there
// is no event. The caller acknowledges the event with AckCQEvents.
func (RDMACore) GetCQEvent(ch *CompChannel) (*CQ, syscall.Errno) {
	var cq *C.struct_ibv_cq
	var context unsafe.Pointer
	if ret, err := C.ibv_get_cq_event(ch.c(), &cq, &context); ret != 0 {
		return nil, asErrno(err)
	}
	return (*CQ)(unsafe.Pointer(cq)), 0
}

// CreateCQ calls ibv_create_cq for at least cqe completions; channel may be nil.
func (RDMACore) CreateCQ(ctx *Context, cqe int, channel *CompChannel, vector int) (*CQ, syscall.Errno) {
	cq, err := C.ibv_create_cq(ctx.c(), C.int(cqe), nil, channel.c(), C.int(vector))
	if cq == nil {
		return nil, asErrno(err)
	}
	return (*CQ)(unsafe.Pointer(cq)), 0
}

// CQSize returns how many completions the queue holds.
func (RDMACore) CQSize(cq *CQ) int { return int(cq.c().cqe) }

// ResizeCQ calls ibv_resize_cq.
func (RDMACore) ResizeCQ(cq *CQ, cqe int) syscall.Errno {
	return status(C.ibv_resize_cq(cq.c(), C.int(cqe)))
}

// ReqNotifyCQ calls ibv_req_notify_cq.
func (RDMACore) ReqNotifyCQ(cq *CQ, solicitedOnly bool) syscall.Errno {
	var solicited C.int
	if solicitedOnly {
		solicited = 1
	}
	return status(C.ibv_req_notify_cq(cq.c(), solicited))
}

// AckCQEvents calls ibv_ack_cq_events.
func (RDMACore) AckCQEvents(cq *CQ, n uint32) { C.ibv_ack_cq_events(cq.c(), C.uint(n)) }

// DestroyCQ calls ibv_destroy_cq. It waits until all events of the queue have been
// acknowledged.
func (RDMACore) DestroyCQ(cq *CQ) syscall.Errno { return status(C.ibv_destroy_cq(cq.c())) }

// An SRQAttr is struct ibv_srq_attr.
type SRQAttr struct{ MaxWR, MaxSGE, Limit uint32 }

// CreateSRQ calls ibv_create_srq and returns the actual attributes.
func (RDMACore) CreateSRQ(pd *PD, attr SRQAttr) (*SRQ, SRQAttr, syscall.Errno) {
	var a C.struct_ibv_srq_init_attr
	a.attr.max_wr, a.attr.max_sge, a.attr.srq_limit = C.uint32_t(attr.MaxWR), C.uint32_t(attr.MaxSGE), C.uint32_t(attr.Limit)
	srq, err := C.ibv_create_srq(pd.c(), &a)
	if srq == nil {
		return nil, SRQAttr{}, asErrno(err)
	}
	return (*SRQ)(unsafe.Pointer(srq)), SRQAttr{uint32(a.attr.max_wr), uint32(a.attr.max_sge), uint32(a.attr.srq_limit)}, 0
}

// ModifySRQ calls ibv_modify_srq; mask is of enum ibv_srq_attr_mask.
func (RDMACore) ModifySRQ(srq *SRQ, attr SRQAttr, mask int) syscall.Errno {
	a := C.struct_ibv_srq_attr{max_wr: C.uint32_t(attr.MaxWR), max_sge: C.uint32_t(attr.MaxSGE), srq_limit: C.uint32_t(attr.Limit)}
	return status(C.ibv_modify_srq(srq.c(), &a, C.int(mask)))
}

// QuerySRQ calls ibv_query_srq.
func (RDMACore) QuerySRQ(srq *SRQ) (SRQAttr, syscall.Errno) {
	var a C.struct_ibv_srq_attr
	errno := status(C.ibv_query_srq(srq.c(), &a))
	return SRQAttr{uint32(a.max_wr), uint32(a.max_sge), uint32(a.srq_limit)}, errno
}

// DestroySRQ calls ibv_destroy_srq.
func (RDMACore) DestroySRQ(srq *SRQ) syscall.Errno { return status(C.ibv_destroy_srq(srq.c())) }

// A QPCap is struct ibv_qp_cap.
type QPCap struct{ MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInlineData uint32 }

func (c *QPCap) to(a *C.struct_ibv_qp_cap) {
	a.max_send_wr, a.max_recv_wr = C.uint32_t(c.MaxSendWR), C.uint32_t(c.MaxRecvWR)
	a.max_send_sge, a.max_recv_sge = C.uint32_t(c.MaxSendSGE), C.uint32_t(c.MaxRecvSGE)
	a.max_inline_data = C.uint32_t(c.MaxInlineData)
}

func capOf(a *C.struct_ibv_qp_cap) QPCap {
	return QPCap{uint32(a.max_send_wr), uint32(a.max_recv_wr), uint32(a.max_send_sge), uint32(a.max_recv_sge), uint32(a.max_inline_data)}
}

// A QPInit is struct ibv_qp_init_attr. SRQ may be nil.
type QPInit struct {
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ
	Cap            QPCap
	Type           int32 // enum ibv_qp_type
	SigAll         bool
	Ex             *QPInitEx // of an extended queue pair
}

// A QPInitEx has the additional fields of struct ibv_qp_init_attr_ex. Zero fields are not set.
type QPInitEx struct {
	Ops          uint64 // enum ibv_qp_create_send_ops_flags
	XRCD         *XRCD
	Flags        uint32 // enum ibv_qp_create_flags
	MaxTSOHeader uint16
	Table        *RWQIndTable
	HashFunction uint8 // enum ibv_rx_hash_function_flags
	HashKey      []byte
	HashFields   uint64 // enum ibv_rx_hash_fields
	SourceQPN    uint32
}

func (i *QPInit) c() C.struct_ibv_qp_init_attr {
	a := C.struct_ibv_qp_init_attr{send_cq: i.SendCQ.c(), recv_cq: i.RecvCQ.c(), srq: i.SRQ.c(), qp_type: C.enum_ibv_qp_type(i.Type)}
	if i.SigAll {
		a.sq_sig_all = 1
	}
	i.Cap.to(&a.cap)
	return a
}

// ex calls create with the attributes of an extended queue pair in pd, which may be nil.
func (i *QPInit) ex(pd *PD, create func(*C.struct_ibv_qp_init_attr_ex)) QPCap {
	const withPD, withXRCD, withFlags, withTSO, withTable, withHash, withOps = 1, 2, 4, 8, 16, 32, 64
	x := i.Ex
	a := C.struct_ibv_qp_init_attr_ex{
		send_cq: i.SendCQ.c(), recv_cq: i.RecvCQ.c(), srq: i.SRQ.c(), qp_type: C.enum_ibv_qp_type(i.Type), pd: pd.c(), xrcd: x.XRCD.c(),
		create_flags: C.uint32_t(x.Flags), max_tso_header: C.uint16_t(x.MaxTSOHeader), rwq_ind_tbl: x.Table.c(),
		source_qpn: C.uint32_t(x.SourceQPN), send_ops_flags: C.uint64_t(x.Ops),
	}
	if i.SigAll {
		a.sq_sig_all = 1
	}
	i.Cap.to(&a.cap)
	a.rx_hash_conf.rx_hash_function, a.rx_hash_conf.rx_hash_fields_mask = C.uint8_t(x.HashFunction), C.uint64_t(x.HashFields)
	var pin runtime.Pinner
	defer pin.Unpin()
	if key := unsafe.SliceData(x.HashKey); key != nil {
		pin.Pin(key)
		a.rx_hash_conf.rx_hash_key, a.rx_hash_conf.rx_hash_key_len = (*C.uint8_t)(key), C.uint8_t(len(x.HashKey))
	}
	with := func(bit C.uint32_t, set bool) {
		if set {
			a.comp_mask |= bit
		}
	}
	with(withPD, pd != nil)
	with(withXRCD, x.XRCD != nil)
	with(withFlags, x.Flags != 0)
	with(withTSO, x.MaxTSOHeader != 0)
	with(withTable, x.Table != nil)
	with(withHash, x.HashFields != 0)
	with(withOps, x.Ops != 0)
	create(&a)
	return capOf(&a.cap)
}

// CreateQPEx calls ibv_create_qp_ex with init.Ex. pd may be nil with an XRC domain.
func (RDMACore) CreateQPEx(ctx *Context, pd *PD, init QPInit) (out *QP, given QPCap, errno syscall.Errno) {
	given = init.ex(pd, func(a *C.struct_ibv_qp_init_attr_ex) {
		qp, err := C.ibv_create_qp_ex(ctx.c(), a)
		if qp == nil {
			errno = asErrno(err)
		}
		out = (*QP)(unsafe.Pointer(qp))
	})
	return out, given, errno
}

// CreateQP calls ibv_create_qp and returns the actual capacity.
func (RDMACore) CreateQP(pd *PD, init QPInit) (*QP, QPCap, syscall.Errno) {
	a := init.c()
	qp, err := C.ibv_create_qp(pd.c(), &a)
	if qp == nil {
		return nil, QPCap{}, asErrno(err)
	}
	return (*QP)(unsafe.Pointer(qp)), capOf(&a.cap), 0
}

// DestroyQP calls ibv_destroy_qp.
func (RDMACore) DestroyQP(qp *QP) syscall.Errno { return status(C.ibv_destroy_qp(qp.c())) }

// QPNum returns the number of the queue pair.
func (RDMACore) QPNum(qp *QP) uint32 { return uint32(qp.c().qp_num) }

// An AHAttr is struct ibv_ah_attr with its global route.
type AHAttr struct {
	DGID                                           [16]byte
	FlowLabel                                      uint32
	SGIDIndex, HopLimit, TrafficClass              uint8
	DLID                                           uint16
	SL, SrcPathBits, StaticRate, IsGlobal, PortNum uint8
}

func (h *AHAttr) to(a *C.struct_ibv_ah_attr) {
	*(*[16]byte)(unsafe.Pointer(&a.grh.dgid)) = h.DGID
	a.grh.flow_label, a.grh.sgid_index = C.uint32_t(h.FlowLabel), C.uint8_t(h.SGIDIndex)
	a.grh.hop_limit, a.grh.traffic_class = C.uint8_t(h.HopLimit), C.uint8_t(h.TrafficClass)
	a.dlid, a.sl, a.src_path_bits = C.uint16_t(h.DLID), C.uint8_t(h.SL), C.uint8_t(h.SrcPathBits)
	a.static_rate, a.is_global, a.port_num = C.uint8_t(h.StaticRate), C.uint8_t(h.IsGlobal), C.uint8_t(h.PortNum)
}

func ahOf(a *C.struct_ibv_ah_attr) AHAttr {
	return AHAttr{
		DGID: *(*[16]byte)(unsafe.Pointer(&a.grh.dgid)), FlowLabel: uint32(a.grh.flow_label), SGIDIndex: uint8(a.grh.sgid_index),
		HopLimit: uint8(a.grh.hop_limit), TrafficClass: uint8(a.grh.traffic_class), DLID: uint16(a.dlid), SL: uint8(a.sl),
		SrcPathBits: uint8(a.src_path_bits), StaticRate: uint8(a.static_rate), IsGlobal: uint8(a.is_global), PortNum: uint8(a.port_num),
	}
}

// A QPAttr is struct ibv_qp_attr, see ibv_modify_qp(3).
type QPAttr struct {
	State, CurState, PathMTU, PathMigState            int32
	Qkey, RQPSN, SQPSN, DestQPNum, Access             uint32
	Cap                                               QPCap
	AH, AltAH                                         AHAttr
	PkeyIndex, AltPkeyIndex                           uint16
	EnSQDAsyncNotify, SQDraining                      uint8
	MaxRdAtomic, MaxDestRdAtomic                      uint8
	MinRNRTimer, PortNum, Timeout, RetryCnt, RNRRetry uint8
	AltPortNum, AltTimeout                            uint8
	RateLimit                                         uint32
}

func (q *QPAttr) c() C.struct_ibv_qp_attr {
	a := C.struct_ibv_qp_attr{
		qp_state: C.enum_ibv_qp_state(q.State), cur_qp_state: C.enum_ibv_qp_state(q.CurState),
		path_mtu: C.enum_ibv_mtu(q.PathMTU), path_mig_state: C.enum_ibv_mig_state(q.PathMigState),
		qkey: C.uint32_t(q.Qkey), rq_psn: C.uint32_t(q.RQPSN), sq_psn: C.uint32_t(q.SQPSN),
		dest_qp_num: C.uint32_t(q.DestQPNum), qp_access_flags: C.uint(q.Access),
		pkey_index: C.uint16_t(q.PkeyIndex), alt_pkey_index: C.uint16_t(q.AltPkeyIndex),
		en_sqd_async_notify: C.uint8_t(q.EnSQDAsyncNotify), sq_draining: C.uint8_t(q.SQDraining),
		max_rd_atomic: C.uint8_t(q.MaxRdAtomic), max_dest_rd_atomic: C.uint8_t(q.MaxDestRdAtomic),
		min_rnr_timer: C.uint8_t(q.MinRNRTimer), port_num: C.uint8_t(q.PortNum), timeout: C.uint8_t(q.Timeout),
		retry_cnt: C.uint8_t(q.RetryCnt), rnr_retry: C.uint8_t(q.RNRRetry),
		alt_port_num: C.uint8_t(q.AltPortNum), alt_timeout: C.uint8_t(q.AltTimeout), rate_limit: C.uint32_t(q.RateLimit),
	}
	q.Cap.to(&a.cap)
	q.AH.to(&a.ah_attr)
	q.AltAH.to(&a.alt_ah_attr)
	return a
}

func qpAttrOf(a *C.struct_ibv_qp_attr) QPAttr {
	return QPAttr{
		State: int32(a.qp_state), CurState: int32(a.cur_qp_state), PathMTU: int32(a.path_mtu), PathMigState: int32(a.path_mig_state),
		Qkey: uint32(a.qkey), RQPSN: uint32(a.rq_psn), SQPSN: uint32(a.sq_psn), DestQPNum: uint32(a.dest_qp_num),
		Access: uint32(a.qp_access_flags), Cap: capOf(&a.cap), AH: ahOf(&a.ah_attr), AltAH: ahOf(&a.alt_ah_attr),
		PkeyIndex: uint16(a.pkey_index), AltPkeyIndex: uint16(a.alt_pkey_index),
		EnSQDAsyncNotify: uint8(a.en_sqd_async_notify), SQDraining: uint8(a.sq_draining),
		MaxRdAtomic: uint8(a.max_rd_atomic), MaxDestRdAtomic: uint8(a.max_dest_rd_atomic),
		MinRNRTimer: uint8(a.min_rnr_timer), PortNum: uint8(a.port_num), Timeout: uint8(a.timeout), RetryCnt: uint8(a.retry_cnt),
		RNRRetry: uint8(a.rnr_retry), AltPortNum: uint8(a.alt_port_num), AltTimeout: uint8(a.alt_timeout), RateLimit: uint32(a.rate_limit),
	}
}

// ModifyQP calls ibv_modify_qp; mask is of enum ibv_qp_attr_mask.
func (RDMACore) ModifyQP(qp *QP, attr *QPAttr, mask int) syscall.Errno {
	a := attr.c()
	return status(C.ibv_modify_qp(qp.c(), &a, C.int(mask)))
}

// QueryQP calls ibv_query_qp.
func (RDMACore) QueryQP(qp *QP, mask int) (QPAttr, QPCap, syscall.Errno) {
	var a C.struct_ibv_qp_attr
	var i C.struct_ibv_qp_init_attr
	errno := status(C.ibv_query_qp(qp.c(), &a, C.int(mask), &i))
	return qpAttrOf(&a), capOf(&i.cap), errno
}
