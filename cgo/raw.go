//go:build linux && cgo

package cgo

/*
#include "verbs.h"
*/
import "C"

import (
	"syscall"
	"unsafe"
)

// CreateWQ calls ibv_create_wq for a receive queue; flags are of enum ibv_wq_flags. It returns the
// queue's number and actual size.
func (RDMACore) CreateWQ(ctx *Context, pd *PD, cq *CQ, wr, sge, flags uint32) (*WQ, uint32, uint32, uint32, syscall.Errno) {
	const withFlags = 1
	a := C.struct_ibv_wq_init_attr{max_wr: C.uint32_t(wr), max_sge: C.uint32_t(sge), pd: pd.c(), cq: cq.c(), create_flags: C.uint32_t(flags)}
	if flags != 0 {
		a.comp_mask = withFlags
	}
	wq, err := C.ibv_create_wq(ctx.c(), &a)
	if wq == nil {
		return nil, 0, 0, 0, asErrno(err)
	}
	return (*WQ)(unsafe.Pointer(wq)), uint32(wq.wq_num), uint32(a.max_wr), uint32(a.max_sge), 0
}

// ModifyWQ calls ibv_modify_wq; mask is of enum ibv_wq_attr_mask, states of enum ibv_wq_state.
func (RDMACore) ModifyWQ(wq *WQ, mask uint32, state, current int32, flags, flagsMask uint32) syscall.Errno {
	a := C.struct_ibv_wq_attr{
		attr_mask: C.uint32_t(mask), wq_state: C.enum_ibv_wq_state(state), curr_wq_state: C.enum_ibv_wq_state(current),
		flags: C.uint32_t(flags), flags_mask: C.uint32_t(flagsMask),
	}
	return status(C.ibv_modify_wq(wq.c(), &a))
}

// DestroyWQ calls ibv_destroy_wq.
func (RDMACore) DestroyWQ(wq *WQ) syscall.Errno { return status(C.ibv_destroy_wq(wq.c())) }

// PostWQRecv calls ibv_post_wq_recv.
func (RDMACore) PostWQRecv(wq *WQ, recvs []RecvWR, sges []SGE) (posted int, errno syscall.Errno) {
	var n C.uint32_t
	e := C.rr_post_wq_recv(wq.c(), (*C.struct_rr_recv_wr)(unsafe.Pointer(unsafe.SliceData(recvs))), C.uint32_t(len(recvs)),
		(*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(sges))), &n)
	return int(n), status(e)
}

// CreateRWQIndTable calls ibv_create_rwq_ind_table for a power of two of queues, and returns the table's number.
func (RDMACore) CreateRWQIndTable(ctx *Context, wqs []*WQ) (*RWQIndTable, uint32, syscall.Errno) {
	table, err := C.rr_create_rwq_ind_table(ctx.c(), (**C.struct_ibv_wq)(unsafe.Pointer(unsafe.SliceData(wqs))), C.uint32_t(len(wqs)))
	if table == nil {
		return nil, 0, asErrno(err)
	}
	return (*RWQIndTable)(unsafe.Pointer(table)), uint32(table.ind_tbl_num), 0
}

// DestroyRWQIndTable calls ibv_destroy_rwq_ind_table.
func (RDMACore) DestroyRWQIndTable(table *RWQIndTable) syscall.Errno {
	return status(C.ibv_destroy_rwq_ind_table(table.c()))
}

// A FlowAttr is struct ibv_flow_attr without its size.
type FlowAttr struct {
	Type     int32 // enum ibv_flow_attr_type
	Priority uint16
	Specs    uint8 // number of specifications
	Port     uint8
	Flags    uint32 // enum ibv_flow_flags
}

// CreateFlow calls ibv_create_flow. specs are attr.Specs structs ibv_flow_spec_*, one after another.
func (RDMACore) CreateFlow(qp *QP, attr FlowAttr, specs []byte) (*Flow, syscall.Errno) {
	a := C.struct_ibv_flow_attr{
		_type: C.enum_ibv_flow_attr_type(attr.Type), priority: C.uint16_t(attr.Priority), num_of_specs: C.uint8_t(attr.Specs),
		port: C.uint8_t(attr.Port), flags: C.uint32_t(attr.Flags),
	}
	flow, err := C.rr_create_flow(qp.c(), &a, (*C.uint8_t)(unsafe.SliceData(specs)), C.size_t(len(specs)))
	if flow == nil {
		return nil, asErrno(err)
	}
	return (*Flow)(unsafe.Pointer(flow)), 0
}

// DestroyFlow calls ibv_destroy_flow.
func (RDMACore) DestroyFlow(flow *Flow) syscall.Errno { return status(C.ibv_destroy_flow(flow.c())) }

// CreateCounters calls ibv_create_counters.
func (RDMACore) CreateCounters(ctx *Context) (*Counters, syscall.Errno) {
	var a C.struct_ibv_counters_init_attr
	c, err := C.ibv_create_counters(ctx.c(), &a)
	if c == nil {
		return nil, asErrno(err)
	}
	return (*Counters)(unsafe.Pointer(c)), 0
}

// DestroyCounters calls ibv_destroy_counters.
func (RDMACore) DestroyCounters(c *Counters) syscall.Errno {
	return status(C.ibv_destroy_counters(c.c()))
}

// AttachCounters calls ibv_attach_counters_point_flow. desc is of enum ibv_counter_description, and index is where
// ReadCounters stores the value. flow is nil for the flow that will be created with the counters.
func (RDMACore) AttachCounters(c *Counters, flow *Flow, desc int32, index uint32) syscall.Errno {
	a := C.struct_ibv_counter_attach_attr{counter_desc: C.enum_ibv_counter_description(desc), index: C.uint32_t(index)}
	return status(C.ibv_attach_counters_point_flow(c.c(), &a, flow.c()))
}

// ReadCounters calls ibv_read_counters; flags are of enum ibv_read_counters_flags.
func (RDMACore) ReadCounters(c *Counters, values []uint64, flags uint32) syscall.Errno {
	return status(C.ibv_read_counters(c.c(), (*C.uint64_t)(unsafe.SliceData(values)), C.uint32_t(len(values)), C.uint32_t(flags)))
}
