//go:build linux && cgo

package cgo

/*
#include "verbs.h"

#cgo noescape rr_reg_mr
#cgo nocallback rr_reg_mr
#cgo noescape rr_reg_mr_iova
#cgo nocallback rr_reg_mr_iova
#cgo noescape rr_advise_mr
#cgo nocallback rr_advise_mr
*/
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"
)

// AllocPD calls ibv_alloc_pd.
func (RDMACore) AllocPD(ctx *Context) (*PD, syscall.Errno) {
	pd, err := C.ibv_alloc_pd(ctx.c())
	if pd == nil {
		return nil, asErrno(err)
	}
	return (*PD)(unsafe.Pointer(pd)), 0
}

// DeallocPD calls ibv_dealloc_pd.
func (RDMACore) DeallocPD(pd *PD) syscall.Errno { return status(C.ibv_dealloc_pd(pd.c())) }

// RegMR calls ibv_reg_mr for mem, which the caller pins until DeregMR.
func (RDMACore) RegMR(pd *PD, mem []byte, access int) (mr *MR, lkey, rkey uint32, errno syscall.Errno) {
	var out C.struct_rr_mr
	return region(C.rr_reg_mr(pd.c(), addrOf(mem), C.size_t(len(mem)), C.int(access), &out), &out)
}

// addrOf passes an address as a number. If it were a pointer, cgo would check the whole object that it points into, and
// C never accesses what lies beside mem in that object.
func addrOf(mem []byte) C.uint64_t {
	return C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

func region(e C.int, out *C.struct_rr_mr) (mr *MR, lkey, rkey uint32, errno syscall.Errno) {
	if e != 0 {
		return nil, 0, 0, syscall.Errno(e)
	}
	return (*MR)(unsafe.Pointer(out.mr)), uint32(out.lkey), uint32(out.rkey), 0
}

// RegMRIova calls ibv_reg_mr_iova for length bytes of memory at addr, which work requests and the peer address by iova.
// The caller keeps the memory in place until DeregMR.
func (RDMACore) RegMRIova(pd *PD, addr, length, iova uint64, access int) (mr *MR, lkey, rkey uint32, errno syscall.Errno) {
	var out C.struct_rr_mr
	return region(C.rr_reg_mr_iova(pd.c(), C.uint64_t(addr), C.size_t(length), C.uint64_t(iova), C.int(access), &out), &out)
}

// RegDmabufMR calls ibv_reg_dmabuf_mr for length bytes from offset on of the DMA-BUF fd.
func (RDMACore) RegDmabufMR(pd *PD, offset, length, iova uint64, fd, access int) (mr *MR, lkey, rkey uint32, errno syscall.Errno) {
	var out C.struct_rr_mr
	return region(C.rr_reg_dmabuf_mr(pd.c(), C.uint64_t(offset), C.size_t(length), C.uint64_t(iova), C.int(fd), C.int(access), &out), &out)
}

// ReregMR calls ibv_rereg_mr; flags are of enum ibv_rereg_mr_flags. If errno is set, code is of enum
// ibv_rereg_mr_err_code.
func (RDMACore) ReregMR(mr *MR, flags int, pd *PD, addr, length uint64, access int) (lkey, rkey uint32, code int32, errno syscall.Errno) {
	r := C.struct_rr_mr{mr: mr.c()}
	var c C.int
	e := C.rr_rereg_mr(&r, C.int(flags), pd.c(), C.uint64_t(addr), C.size_t(length), C.int(access), &c)
	return uint32(r.lkey), uint32(r.rkey), int32(c), syscall.Errno(e)
}

// AllocNullMR calls ibv_alloc_null_mr.
func (RDMACore) AllocNullMR(pd *PD) (mr *MR, lkey uint32, errno syscall.Errno) {
	var out C.struct_rr_mr
	mr, lkey, _, errno = region(C.rr_alloc_null_mr(pd.c(), &out), &out)
	return mr, lkey, errno
}

// AdviseMR calls ibv_advise_mr; advice is of enum ibv_advise_mr_advice, flags of enum
// ibv_advise_mr_flags.
func (RDMACore) AdviseMR(pd *PD, advice int, flags uint32, sges []SGE) syscall.Errno {
	return status(C.rr_advise_mr(pd.c(), C.int(advice), C.uint32_t(flags), (*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(sges))), C.uint32_t(len(sges))))
}

// AllocDM calls ibv_alloc_dm for length bytes, aligned to 1 << logAlign.
func (RDMACore) AllocDM(ctx *Context, length uint64, logAlign uint32) (*DM, syscall.Errno) {
	dm, err := C.rr_alloc_dm(ctx.c(), C.size_t(length), C.uint32_t(logAlign))
	if dm == nil {
		return nil, asErrno(err)
	}
	return (*DM)(unsafe.Pointer(dm)), 0
}

// FreeDM calls ibv_free_dm.
func (RDMACore) FreeDM(dm *DM) syscall.Errno { return status(C.rr_free_dm(dm.c())) }

// MemcpyToDM calls ibv_memcpy_to_dm.
func (RDMACore) MemcpyToDM(dm *DM, offset uint64, from []byte) syscall.Errno {
	errno := status(C.rr_memcpy_to_dm(dm.c(), C.uint64_t(offset), addrOf(from), C.size_t(len(from))))
	runtime.KeepAlive(from)
	return errno
}

// MemcpyFromDM calls ibv_memcpy_from_dm.
func (RDMACore) MemcpyFromDM(to []byte, dm *DM, offset uint64) syscall.Errno {
	errno := status(C.rr_memcpy_from_dm(addrOf(to), dm.c(), C.uint64_t(offset), C.size_t(len(to))))
	runtime.KeepAlive(to)
	return errno
}

// RegDMMR calls ibv_reg_dm_mr for length bytes from offset on. access has AccessZeroBased.
func (RDMACore) RegDMMR(pd *PD, dm *DM, offset, length uint64, access int) (mr *MR, lkey, rkey uint32, errno syscall.Errno) {
	var out C.struct_rr_mr
	return region(C.rr_reg_dm_mr(pd.c(), dm.c(), C.uint64_t(offset), C.size_t(length), C.int(access), &out), &out)
}

// DeregMR calls ibv_dereg_mr.
func (RDMACore) DeregMR(mr *MR) syscall.Errno { return status(C.ibv_dereg_mr(mr.c())) }

// AllocMW calls ibv_alloc_mw. Type is 1 or 2.
func (RDMACore) AllocMW(pd *PD, typ int) (mw *MW, rkey uint32, errno syscall.Errno) {
	w, err := C.rr_alloc_mw(pd.c(), C.int(typ))
	if w == nil {
		return nil, 0, asErrno(err)
	}
	return (*MW)(unsafe.Pointer(w)), uint32(w.rkey), 0
}

// DeallocMW calls ibv_dealloc_mw.
func (RDMACore) DeallocMW(mw *MW) syscall.Errno { return status(C.rr_dealloc_mw(mw.c())) }

// BindMW calls ibv_bind_mw, for windows of type 1, and returns the window's new key. A
// length of zero unbinds.
func (RDMACore) BindMW(qp *QP, mw *MW, id uint64, flags uint32, mr *MR, addr, length uint64, access uint32) (uint32, syscall.Errno) {
	errno := status(C.rr_bind_mw(qp.c(), mw.c(), C.uint64_t(id), C.uint32_t(flags), mr.c(), C.uint64_t(addr), C.uint64_t(length), C.uint32_t(access)))
	return uint32(mw.c().rkey), errno
}

// SetRKey stores the key that a window of type 2 was bound with. The key of the next bind
// derives from it, and some providers check that.
func (RDMACore) SetRKey(mw *MW, rkey uint32) { mw.c().rkey = C.uint32_t(rkey) }

// RKey returns the window's current key.
func (RDMACore) RKey(mw *MW) uint32 { return uint32(mw.c().rkey) }

// IncRKey calls ibv_inc_rkey, which returns the next key of the same window.
func IncRKey(rkey uint32) uint32 { return uint32(C.ibv_inc_rkey(C.uint32_t(rkey))) }
