//go:build linux && cgo

package cgo

/*
#include "verbs.h"

#cgo noescape rr_progress
#cgo nocallback rr_progress
#cgo noescape rr_get_cm_event
#cgo nocallback rr_get_cm_event
#cgo noescape rr_get_async_event
#cgo nocallback rr_get_async_event
*/
import "C"

import (
	"syscall"
	"unsafe"
)

// Progress is the whole data path in one call. In this order it posts recvs to srq, or to qp if srq is nil; posts sends
// to qp as one list, which is one doorbell (lists of more than 128 are split); takes one event if flags has TakeEvent;
// polls cq for up to len(wcs) completions; and arms it if flags has Arm. qp may be nil if nothing is posted to it, and
// cq and channel if nothing is polled. Work requests refer to their SGEs by index in sges.
//
// If a receive could not be posted, no sends are posted. Call it through the function [Progress].
//
// Calls: ibv_post_srq_recv, ibv_post_recv, ibv_post_send, ibv_get_cq_event,
// ibv_poll_cq, ibv_req_notify_cq.
func (RDMACore) Progress(qp *QP, srq *SRQ, cq *CQ, channel *CompChannel, recvs []RecvWR, sends []SendWR, sges []SGE, wcs []WC, flags uint32, out *Outcome) {
	// The objects are passed as numbers. They are in C memory, which does not move. If they were pointers, cgo would
	// look each of them up in Go's heap to check that it is not a pointer to pointers.
	C.rr_progress(C.uint64_t(qp.Word()), C.uint64_t(srq.Word()), C.uint64_t(cq.Word()), C.uint64_t(channel.Word()),
		(*C.struct_rr_recv_wr)(unsafe.Pointer(unsafe.SliceData(recvs))), C.uint32_t(len(recvs)),
		(*C.struct_rr_send_wr)(unsafe.Pointer(unsafe.SliceData(sends))), C.uint32_t(len(sends)),
		(*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(sges))),
		(*C.struct_ibv_wc)(unsafe.Pointer(unsafe.SliceData(wcs))), C.uint32_t(len(wcs)),
		C.uint32_t(flags), (*C.struct_rr_outcome)(unsafe.Pointer(out)))
}

// GetCMEvent returns the next event from channel. The channel's descriptor must be non-blocking: the
// errno is EAGAIN if there is no event.
//
// Calls: rdma_get_cm_event, rdma_ack_cm_event.
func (RDMACore) GetCMEvent(channel *EventChannel, out *CMEvent) syscall.Errno {
	return syscall.Errno(C.rr_get_cm_event(channel.c(), (*C.struct_rr_cm_event)(unsafe.Pointer(out))))
}

// GetAsyncEvent returns the next asynchronous event of a device. The device's descriptor must be
// non-blocking: the errno is EAGAIN if there is no event.
//
// Calls: ibv_get_async_event, ibv_ack_async_event.
func (RDMACore) GetAsyncEvent(context *Context, out *AsyncEvent) syscall.Errno {
	return syscall.Errno(C.rr_get_async_event(context.c(), (*C.struct_rr_async_event)(unsafe.Pointer(out))))
}

// layout returns the sizes and offsets that the mirrored structs have in C.
func layout() []uint32 {
	out := make([]uint32, 256)
	n := C.rr_layout((*C.uint32_t)(&out[0]), C.uint32_t(len(out)))
	return out[:n]
}
