//go:build linux && cgo

package cgo

/*
#include "verbs.h"

#cgo noescape rr_reg_mr
#cgo nocallback rr_reg_mr
*/
import "C"

import (
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
	// The address is passed as a number. Of a pointer cgo checks the whole object that it points
	// into, and C does not look at what lies beside mem there.
	addr := C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	if e := C.rr_reg_mr(pd.c(), addr, C.size_t(len(mem)), C.int(access), &out); e != 0 {
		return nil, 0, 0, syscall.Errno(e)
	}
	return (*MR)(unsafe.Pointer(out.mr)), uint32(out.lkey), uint32(out.rkey), 0
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
