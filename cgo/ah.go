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

// CreateAH calls ibv_create_ah.
func (RDMACore) CreateAH(pd *PD, attr *AHAttr) (*AH, syscall.Errno) {
	var a C.struct_ibv_ah_attr
	attr.to(&a)
	ah, err := C.ibv_create_ah(pd.c(), &a)
	if ah == nil {
		return nil, asErrno(err)
	}
	return (*AH)(unsafe.Pointer(ah)), 0
}

// InitAHFromWC calls ibv_init_ah_from_wc. It returns the address of the sender of a datagram.
func (RDMACore) InitAHFromWC(ctx *Context, port uint8, wc *WC, grh *[40]byte) (AHAttr, syscall.Errno) {
	var a C.struct_ibv_ah_attr
	if ret, err := C.ibv_init_ah_from_wc(ctx.c(), C.uint8_t(port), (*C.struct_ibv_wc)(unsafe.Pointer(wc)), (*C.struct_ibv_grh)(unsafe.Pointer(grh)), &a); ret != 0 {
		return AHAttr{}, asErrno(err)
	}
	return ahOf(&a), 0
}

// DestroyAH calls ibv_destroy_ah.
func (RDMACore) DestroyAH(ah *AH) syscall.Errno { return status(C.ibv_destroy_ah(ah.c())) }

// AttachMcast calls ibv_attach_mcast.
func (RDMACore) AttachMcast(qp *QP, gid [16]byte, lid uint16) syscall.Errno {
	return status(C.ibv_attach_mcast(qp.c(), (*C.union_ibv_gid)(unsafe.Pointer(&gid)), C.uint16_t(lid)))
}

// DetachMcast calls ibv_detach_mcast.
func (RDMACore) DetachMcast(qp *QP, gid [16]byte, lid uint16) syscall.Errno {
	return status(C.ibv_detach_mcast(qp.c(), (*C.union_ibv_gid)(unsafe.Pointer(&gid)), C.uint16_t(lid)))
}
