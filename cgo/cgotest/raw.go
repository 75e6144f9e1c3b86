//go:build linux && cgo

package cgotest

import (
	"slices"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A WQ is a work queue of raw packets.
type WQ struct {
	object
	recvs []cgo.RecvWR
	State int32
}

// WQ returns the work queue for a handle.
func (f *Library) WQ(h *cgo.WQ) *WQ { return (*WQ)(unsafe.Pointer(h)) }

// CreateWQ implements cgo.Verbs.
func (f *Library) CreateWQ(ctx *cgo.Context, pd *cgo.PD, cq *cgo.CQ, wr, sge, flags uint32) (*cgo.WQ, uint32, uint32, uint32, syscall.Errno) {
	errno := f.enter("ibv_create_wq")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, 0, 0, 0, errno
	}
	wq := new(WQ)
	f.begin(&wq.object, "wq", &domainOf(pd).object, &f.CQ(cq).object)
	f.qpNum++
	return (*cgo.WQ)(unsafe.Pointer(wq)), f.qpNum, wr, sge, 0
}

// ModifyWQ implements cgo.Verbs.
func (f *Library) ModifyWQ(wq *cgo.WQ, mask uint32, state, current int32, flags, flagsMask uint32) syscall.Errno {
	errno := f.touch("ibv_modify_wq", &f.WQ(wq).object)
	if errno == 0 && mask&1 != 0 {
		f.WQ(wq).State = state
	}
	return errno
}

// DestroyWQ implements cgo.Verbs.
func (f *Library) DestroyWQ(wq *cgo.WQ) syscall.Errno {
	return f.destroy("ibv_destroy_wq", &f.WQ(wq).object)
}

// PostWQRecv implements cgo.Verbs.
func (f *Library) PostWQRecv(wq *cgo.WQ, recvs []cgo.RecvWR, sges []cgo.SGE) (int, syscall.Errno) {
	for i := range recvs {
		if errno := f.touch("ibv_post_wq_recv", &f.WQ(wq).object); errno != 0 {
			return i, errno
		}
		f.WQ(wq).recvs = append(f.WQ(wq).recvs, recvs[i])
	}
	return len(recvs), 0
}

// Recvs returns the receives of the queue.
func (wq *WQ) Recvs() []cgo.RecvWR { return slices.Clone(wq.recvs) }

// CreateRWQIndTable implements cgo.Verbs.
func (f *Library) CreateRWQIndTable(ctx *cgo.Context, wqs []*cgo.WQ) (*cgo.RWQIndTable, uint32, syscall.Errno) {
	var parents []*object
	for _, wq := range wqs {
		parents = append(parents, &f.WQ(wq).object)
	}
	table, errno := plain[cgo.RWQIndTable](f, "ibv_create_rwq_ind_table", "table", parents...)
	return table, 7, errno
}

// DestroyRWQIndTable implements cgo.Verbs.
func (f *Library) DestroyRWQIndTable(table *cgo.RWQIndTable) syscall.Errno {
	return f.destroy("ibv_destroy_rwq_ind_table", plainOf(table))
}

// A Flow holds the arguments that a flow was created with.
type Flow struct {
	object
	Attr  cgo.FlowAttr
	Specs []byte
}

// Flow returns the flow for a handle.
func (f *Library) Flow(h *cgo.Flow) *Flow { return (*Flow)(unsafe.Pointer(h)) }

// CreateFlow implements cgo.Verbs.
func (f *Library) CreateFlow(qp *cgo.QP, attr cgo.FlowAttr, specs []byte) (*cgo.Flow, syscall.Errno) {
	errno := f.enter("ibv_create_flow")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	flow := &Flow{Attr: attr, Specs: slices.Clone(specs)}
	f.begin(&flow.object, "flow", &f.QP(qp).object)
	return (*cgo.Flow)(unsafe.Pointer(flow)), 0
}

// DestroyFlow implements cgo.Verbs.
func (f *Library) DestroyFlow(flow *cgo.Flow) syscall.Errno {
	return f.destroy("ibv_destroy_flow", &f.Flow(flow).object)
}

type counters struct {
	object
	points map[uint32]int32 // descriptions by index
}

func countersOf(h *cgo.Counters) *counters { return (*counters)(unsafe.Pointer(h)) }

// CreateCounters implements cgo.Verbs.
func (f *Library) CreateCounters(ctx *cgo.Context) (*cgo.Counters, syscall.Errno) {
	errno := f.enter("ibv_create_counters")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	c := &counters{points: make(map[uint32]int32)}
	f.begin(&c.object, "counters", &contextOf(ctx).object)
	return (*cgo.Counters)(unsafe.Pointer(c)), 0
}

// DestroyCounters implements cgo.Verbs.
func (f *Library) DestroyCounters(c *cgo.Counters) syscall.Errno {
	return f.destroy("ibv_destroy_counters", &countersOf(c).object)
}

// AttachCounters implements cgo.Verbs.
func (f *Library) AttachCounters(c *cgo.Counters, flow *cgo.Flow, desc int32, index uint32) syscall.Errno {
	errno := f.touch("ibv_attach_counters_point_flow", &countersOf(c).object)
	if errno == 0 {
		countersOf(c).points[index] = desc
	}
	return errno
}

// ReadCounters implements cgo.Verbs. The value of a counter is 100 plus its description.
func (f *Library) ReadCounters(c *cgo.Counters, values []uint64, flags uint32) syscall.Errno {
	errno := f.touch("ibv_read_counters", &countersOf(c).object)
	for i := range values {
		if desc, ok := countersOf(c).points[uint32(i)]; ok && errno == 0 {
			values[i] = 100 + uint64(desc)
		}
	}
	return errno
}
