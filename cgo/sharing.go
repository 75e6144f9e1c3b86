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

// CommandFD returns the descriptor of a device that another process can import. ctx owns it.
func (RDMACore) CommandFD(ctx *Context) int { return int(ctx.c().cmd_fd) }

// PDHandle, MRHandle and DMHandle return the kernel's number of an object, for its import.
func (RDMACore) PDHandle(pd *PD) uint32 { return uint32(pd.c().handle) }

// MRHandle: see PDHandle.
func (RDMACore) MRHandle(mr *MR) uint32 { return uint32(mr.c().handle) }

// DMHandle: see PDHandle.
func (RDMACore) DMHandle(dm *DM) uint32 { return uint32(dm.c().handle) }

// ImportDevice calls ibv_import_device. The context owns fd from then on.
func (RDMACore) ImportDevice(fd int) (*Context, syscall.Errno) {
	ctx, err := C.ibv_import_device(C.int(fd))
	if ctx == nil {
		return nil, asErrno(err)
	}
	return (*Context)(unsafe.Pointer(ctx)), 0
}

// ImportPD calls ibv_import_pd.
func (RDMACore) ImportPD(ctx *Context, handle uint32) (*PD, syscall.Errno) {
	pd, err := C.ibv_import_pd(ctx.c(), C.uint32_t(handle))
	if pd == nil {
		return nil, asErrno(err)
	}
	return (*PD)(unsafe.Pointer(pd)), 0
}

// UnimportPD calls ibv_unimport_pd.
func (RDMACore) UnimportPD(pd *PD) { C.ibv_unimport_pd(pd.c()) }

// ImportMR calls ibv_import_mr.
func (RDMACore) ImportMR(pd *PD, handle uint32) (*MR, uint32, uint32, syscall.Errno) {
	mr, err := C.ibv_import_mr(pd.c(), C.uint32_t(handle))
	if mr == nil {
		return nil, 0, 0, asErrno(err)
	}
	return (*MR)(unsafe.Pointer(mr)), uint32(mr.lkey), uint32(mr.rkey), 0
}

// UnimportMR calls ibv_unimport_mr.
func (RDMACore) UnimportMR(mr *MR) { C.ibv_unimport_mr(mr.c()) }

// ImportDM calls ibv_import_dm.
func (RDMACore) ImportDM(ctx *Context, handle uint32) (*DM, syscall.Errno) {
	dm, err := C.ibv_import_dm(ctx.c(), C.uint32_t(handle))
	if dm == nil {
		return nil, asErrno(err)
	}
	return (*DM)(unsafe.Pointer(dm)), 0
}

// UnimportDM calls ibv_unimport_dm.
func (RDMACore) UnimportDM(dm *DM) { C.ibv_unimport_dm(dm.c()) }

// AllocTD calls ibv_alloc_td.
func (RDMACore) AllocTD(ctx *Context) (*TD, syscall.Errno) {
	var a C.struct_ibv_td_init_attr
	td, err := C.ibv_alloc_td(ctx.c(), &a)
	if td == nil {
		return nil, asErrno(err)
	}
	return (*TD)(unsafe.Pointer(td)), 0
}

// DeallocTD calls ibv_dealloc_td.
func (RDMACore) DeallocTD(td *TD) syscall.Errno { return status(C.ibv_dealloc_td(td.c())) }

// AllocParentDomain calls ibv_alloc_parent_domain. td may be nil.
func (RDMACore) AllocParentDomain(ctx *Context, pd *PD, td *TD) (*PD, syscall.Errno) {
	a := C.struct_ibv_parent_domain_init_attr{pd: pd.c(), td: td.c()}
	parent, err := C.ibv_alloc_parent_domain(ctx.c(), &a)
	if parent == nil {
		return nil, asErrno(err)
	}
	return (*PD)(unsafe.Pointer(parent)), 0
}

// OpenXRCD calls ibv_open_xrcd with the flags of open(2). fd is -1 for a domain that only this process uses.
func (RDMACore) OpenXRCD(ctx *Context, fd, flags int) (*XRCD, syscall.Errno) {
	const withFD, withFlags = 1, 2
	a := C.struct_ibv_xrcd_init_attr{comp_mask: withFD | withFlags, fd: C.int(fd), oflags: C.int(flags)}
	d, err := C.ibv_open_xrcd(ctx.c(), &a)
	if d == nil {
		return nil, asErrno(err)
	}
	return (*XRCD)(unsafe.Pointer(d)), 0
}

// CloseXRCD calls ibv_close_xrcd.
func (RDMACore) CloseXRCD(d *XRCD) syscall.Errno { return status(C.ibv_close_xrcd(d.c())) }

// OpenQP calls ibv_open_qp.
func (RDMACore) OpenQP(ctx *Context, d *XRCD, num uint32, typ int32) (*QP, syscall.Errno) {
	const withNum, withXRCD, withType = 1, 2, 8
	a := C.struct_ibv_qp_open_attr{comp_mask: withNum | withXRCD | withType, qp_num: C.uint32_t(num), xrcd: d.c(), qp_type: C.enum_ibv_qp_type(typ)}
	qp, err := C.ibv_open_qp(ctx.c(), &a)
	if qp == nil {
		return nil, asErrno(err)
	}
	return (*QP)(unsafe.Pointer(qp)), 0
}

// An SRQInit is struct ibv_srq_init_attr_ex. XRCD and CQ may be nil.
type SRQInit struct {
	Attr    SRQAttr
	Type    int32 // enum ibv_srq_type
	PD      *PD
	XRCD    *XRCD
	CQ      *CQ
	MaxTags uint32
	MaxOps  uint32
}

// CreateSRQEx calls ibv_create_srq_ex and returns the actual attributes.
func (RDMACore) CreateSRQEx(ctx *Context, init SRQInit) (*SRQ, SRQAttr, syscall.Errno) {
	const withType, withPD, withXRCD, withCQ, withTM = 1, 2, 4, 8, 16
	a := C.struct_ibv_srq_init_attr_ex{
		comp_mask: withType | withPD, srq_type: C.enum_ibv_srq_type(init.Type), pd: init.PD.c(), xrcd: init.XRCD.c(), cq: init.CQ.c(),
		tm_cap: C.struct_ibv_tm_cap{max_num_tags: C.uint32_t(init.MaxTags), max_ops: C.uint32_t(init.MaxOps)},
	}
	a.attr.max_wr, a.attr.max_sge = C.uint32_t(init.Attr.MaxWR), C.uint32_t(init.Attr.MaxSGE)
	if init.XRCD != nil {
		a.comp_mask |= withXRCD
	}
	if init.CQ != nil {
		a.comp_mask |= withCQ
	}
	if init.MaxTags != 0 {
		a.comp_mask |= withTM
	}
	srq, err := C.ibv_create_srq_ex(ctx.c(), &a)
	if srq == nil {
		return nil, SRQAttr{}, asErrno(err)
	}
	return (*SRQ)(unsafe.Pointer(srq)), SRQAttr{uint32(a.attr.max_wr), uint32(a.attr.max_sge), 0}, 0
}

// SRQNum calls ibv_get_srq_num.
func (RDMACore) SRQNum(srq *SRQ) (uint32, syscall.Errno) {
	var n C.uint32_t
	errno := status(C.ibv_get_srq_num(srq.c(), &n))
	return uint32(n), errno
}

// An SRQOp is struct ibv_ops_wr.
type SRQOp struct {
	ID         uint64
	Opcode     int32 // enum ibv_ops_wr_opcode
	Flags      int32 // enum ibv_ops_flags
	Unexpected uint32
	Handle     uint32 // of the entry, returned by an addition
	RecvID     uint64
	Tag, Mask  uint64
}

// PostSRQOp calls ibv_post_srq_ops with one operation; sges belong to an addition.
func (RDMACore) PostSRQOp(srq *SRQ, op *SRQOp, sges []SGE) syscall.Errno {
	o := C.struct_rr_srq_op{
		wr_id: C.uint64_t(op.ID), opcode: C.int32_t(op.Opcode), flags: C.int32_t(op.Flags), unexpected: C.uint32_t(op.Unexpected),
		handle: C.uint32_t(op.Handle), recv_wr_id: C.uint64_t(op.RecvID), tag: C.uint64_t(op.Tag), mask: C.uint64_t(op.Mask),
	}
	errno := status(C.rr_post_srq_op(srq.c(), &o, (*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(sges))), C.uint32_t(len(sges))))
	op.Handle = uint32(o.handle)
	return errno
}
