//go:build linux && cgo

package cgotest

import (
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// CreateCQEx implements cgo.Verbs.
func (f *Library) CreateCQEx(ctx *cgo.Context, cqe int, ch *cgo.CompChannel, vector int, fields uint64, flags uint32) (*cgo.CQ, syscall.Errno) {
	cq, errno := f.createCQ("ibv_create_cq_ex", ctx, cqe, ch)
	if errno == 0 {
		f.CQ(cq).ex, f.CQ(cq).fields = true, fields
	}
	return cq, errno
}

// ModifyCQ implements cgo.Verbs. The fake raises its events at once.
func (f *Library) ModifyCQ(cq *cgo.CQ, count, period uint16) syscall.Errno {
	errno := f.enter("ibv_modify_cq")
	defer f.mu.Unlock()
	f.usable(&f.CQ(cq).object)
	return errno
}

// CreateQPEx implements cgo.Verbs.
func (f *Library) CreateQPEx(ctx *cgo.Context, pd *cgo.PD, init cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) {
	return f.createQP("ibv_create_qp_ex", ctx, pd, init)
}

// complete reports whether ibv_wr_complete posts a list. The library would call a null pointer for an operation that
// the queue pair was not created with, and for the address of a message that is not a datagram.
func (f *Library) complete(qp *QP, sends []cgo.SendWR, out *cgo.Outcome) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, wr := range sends {
		if qp.ops>>wr.Opcode&1 == 0 && !(wr.Opcode == opAtomicWrite && qp.ops&withAtomicWrite != 0) {
			f.wrong("operation %d is posted to a queue pair that was made for %#x", wr.Opcode, qp.ops)
		}
	}
	errno := f.failing("ibv_wr_complete")
	if errno == 0 && len(qp.places)+len(sends) > int(qp.cap.MaxSendWR) {
		errno = syscall.ENOMEM
	}
	out.SendErr = int32(errno)
	return errno == 0
}

// PollEx implements cgo.Verbs.
func (f *Library) PollEx(h *cgo.CQ, fields uint64, wcs []cgo.WCEx) (int, syscall.Errno) {
	cq := f.CQ(h)
	call(f, &cq.onPoll)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usable(&cq.object)
	if !cq.ex || fields&^cgo.OneByOne != cq.fields {
		f.wrong("fields %#x are read of a queue that was made with %#x", fields, cq.fields)
	}
	if errno := f.failing("ibv_start_poll"); errno != 0 {
		return 0, errno
	}
	return copy(wcs, cq.poll(len(wcs))), 0
}
