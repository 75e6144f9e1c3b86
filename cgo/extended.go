//go:build linux && cgo

package cgo

/*
#include "verbs.h"

#cgo noescape rr_poll_extended
#cgo nocallback rr_poll_extended
*/
import "C"

import (
	"syscall"
	"unsafe"
)

// CreateCQEx calls ibv_create_cq_ex. fields is of enum ibv_create_cq_wc_flags, flags of enum
// ibv_create_cq_attr_flags.
func (RDMACore) CreateCQEx(ctx *Context, cqe int, channel *CompChannel, vector int, fields uint64, flags uint32) (*CQ, syscall.Errno) {
	cq, err := C.rr_create_cq_ex(ctx.c(), C.uint32_t(cqe), channel.c(), C.uint32_t(vector), C.uint64_t(fields), C.uint32_t(flags))
	if cq == nil {
		return nil, asErrno(err)
	}
	return (*CQ)(unsafe.Pointer(cq)), 0
}

// ModifyCQ calls ibv_modify_cq: an event is raised after count completions or period microseconds.
func (RDMACore) ModifyCQ(cq *CQ, count, period uint16) syscall.Errno {
	return status(C.rr_modify_cq(cq.c(), C.uint16_t(count), C.uint16_t(period)))
}

// OneByOne is a flag in the fields of PollEx for libraries with a wrong ibv_next_poll.
const OneByOne = C.RR_ONE_BY_ONE

// PollEx polls cq, which CreateCQEx created with fields, for up to len(wcs) completions. Call it through the function
// [PollEx].
//
// Calls: ibv_start_poll, ibv_next_poll, ibv_end_poll, ibv_wc_read_*.
func (RDMACore) PollEx(cq *CQ, fields uint64, wcs []WCEx) (n int, errno syscall.Errno) {
	var e C.int32_t
	n = int(C.rr_poll_extended(C.uint64_t(cq.Word()), C.uint64_t(fields), (*C.struct_rr_wc_ex)(unsafe.Pointer(unsafe.SliceData(wcs))), C.uint32_t(len(wcs)), &e))
	return n, syscall.Errno(e)
}
