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

// Progress is the data path in one call. In this order it posts recvs to srq, or
// to qp when srq is nil; posts sends to qp as one list, which is one doorbell (a
// list longer than 128 is split); takes an event if flags say so; and polls cq for
// up to len(wcs) completions. qp may be nil when nothing is posted to it, cq and
// channel when nothing is polled. The lists name their SGEs by index in sges.
//
// Sends are not posted when a receive could not be.
//
// Calls: ibv_post_srq_recv, ibv_post_recv, ibv_post_send, ibv_get_cq_event,
// ibv_poll_cq, ibv_req_notify_cq.
func (RDMACore) Progress(qp *QP, srq *SRQ, cq *CQ, channel *CompChannel, recvs []RecvWR, sends []SendWR, sges []SGE, wcs []WC, flags uint32, out *Outcome) {
	C.rr_progress(qp.c(), srq.c(), cq.c(), channel.c(),
		(*C.struct_rr_recv_wr)(unsafe.Pointer(unsafe.SliceData(recvs))), C.uint32_t(len(recvs)),
		(*C.struct_rr_send_wr)(unsafe.Pointer(unsafe.SliceData(sends))), C.uint32_t(len(sends)),
		(*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(sges))),
		(*C.struct_ibv_wc)(unsafe.Pointer(unsafe.SliceData(wcs))), C.uint32_t(len(wcs)),
		C.uint32_t(flags), (*C.struct_rr_outcome)(unsafe.Pointer(out)))
}

// GetCMEvent takes the next event from channel. The descriptor of the channel must
// not block: EAGAIN says that there is none.
//
// Calls: rdma_get_cm_event, rdma_ack_cm_event.
func (RDMACore) GetCMEvent(channel *EventChannel, out *CMEvent) syscall.Errno {
	return syscall.Errno(C.rr_get_cm_event(channel.c(), (*C.struct_rr_cm_event)(unsafe.Pointer(out))))
}

// GetAsyncEvent takes the next asynchronous event of a device, whose descriptor
// must not block: EAGAIN says that there is none.
//
// Calls: ibv_get_async_event, ibv_ack_async_event.
func (RDMACore) GetAsyncEvent(context *Context, out *AsyncEvent) syscall.Errno {
	return syscall.Errno(C.rr_get_async_event(context.c(), (*C.struct_rr_async_event)(unsafe.Pointer(out))))
}

// layout returns sizes and offsets of the mirrored structs as the C compiler sees
// them.
func layout() []uint32 {
	out := make([]uint32, 256)
	n := C.rr_layout((*C.uint32_t)(&out[0]), C.uint32_t(len(out)))
	return out[:n]
}
