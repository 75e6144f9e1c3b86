//go:build linux && cgo

package cgotest

import (
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// plainOf returns the object of a handle that has no type in this package, or nil for nil.
func plainOf[H any](h *H) *object { return (*object)(unsafe.Pointer(h)) }

// plain creates an object without a type in this package. A nil parent is ignored.
func plain[H any](f *Library, call, kind string, parents ...*object) (*H, syscall.Errno) {
	errno := f.enter(call)
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	o := new(object)
	f.begin(o, kind, parents...)
	return (*H)(unsafe.Pointer(o)), 0
}

// touch makes a call on an object that changes nothing in the fake.
func (f *Library) touch(call string, o *object) syscall.Errno {
	errno := f.enter(call)
	defer f.mu.Unlock()
	f.usable(o)
	return errno
}

// handleOf returns the number by which an object is imported: its index among the live objects.
func (f *Library) handleOf(o *object) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usable(o)
	for i, l := range f.live {
		if l == o {
			return uint32(i)
		}
	}
	return 0
}

// imported returns the live object with the number handle. It returns with mu held.
func (f *Library) imported(call, kind string, handle uint32) (*object, syscall.Errno) {
	errno := f.enter(call)
	if errno == 0 && (int(handle) >= len(f.live) || f.live[handle].kind != kind) {
		errno = syscall.ENOENT
	}
	if errno != 0 {
		return nil, errno
	}
	return f.live[handle], 0
}

// CommandFD implements cgo.Verbs. It returns the descriptor of asynchronous events.
func (f *Library) CommandFD(ctx *cgo.Context) int { return contextOf(ctx).async.fd }

// PDHandle implements cgo.Verbs.
func (f *Library) PDHandle(pd *cgo.PD) uint32 { return f.handleOf(&domainOf(pd).object) }

// MRHandle implements cgo.Verbs.
func (f *Library) MRHandle(mr *cgo.MR) uint32 { return f.handleOf(plainOf(mr)) }

// DMHandle implements cgo.Verbs.
func (f *Library) DMHandle(dm *cgo.DM) uint32 { return f.handleOf(&deviceMemoryOf(dm).object) }

// ImportDevice implements cgo.Verbs. fd may be any descriptor; the device is the first one.
func (f *Library) ImportDevice(fd int) (*cgo.Context, syscall.Errno) {
	errno := f.enter("ibv_import_device")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	c, err := f.open(f.devices[0])
	if err != nil {
		return nil, syscall.EMFILE
	}
	syscall.Close(fd) // the library keeps it and closes it with the device
	f.begin(&c.object, "context")
	return c.handle(), 0
}

// ImportPD implements cgo.Verbs.
func (f *Library) ImportPD(ctx *cgo.Context, handle uint32) (*cgo.PD, syscall.Errno) {
	_, errno := f.imported("ibv_import_pd", "pd", handle)
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	pd := &domain{c: contextOf(ctx)}
	f.begin(&pd.object, "imported pd", &pd.c.object)
	return (*cgo.PD)(unsafe.Pointer(pd)), 0
}

// UnimportPD implements cgo.Verbs.
func (f *Library) UnimportPD(pd *cgo.PD) { f.destroy("ibv_unimport_pd", &domainOf(pd).object) }

// ImportMR implements cgo.Verbs.
func (f *Library) ImportMR(pd *cgo.PD, handle uint32) (*cgo.MR, uint32, uint32, syscall.Errno) {
	o, errno := f.imported("ibv_import_mr", "mr", handle)
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, 0, 0, errno
	}
	from := (*region)(unsafe.Pointer(o))
	r := &region{lkey: from.lkey, rkey: from.rkey, mem: from.mem}
	f.begin(&r.object, "imported mr", &domainOf(pd).object)
	return r.handle(), r.lkey, r.rkey, 0
}

// UnimportMR implements cgo.Verbs.
func (f *Library) UnimportMR(mr *cgo.MR) { f.destroy("ibv_unimport_mr", plainOf(mr)) }

// ImportDM implements cgo.Verbs.
func (f *Library) ImportDM(ctx *cgo.Context, handle uint32) (*cgo.DM, syscall.Errno) {
	o, errno := f.imported("ibv_import_dm", "dm", handle)
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	dm := &deviceMemory{bytes: (*deviceMemory)(unsafe.Pointer(o)).bytes}
	f.begin(&dm.object, "imported dm", &contextOf(ctx).object)
	return (*cgo.DM)(unsafe.Pointer(dm)), 0
}

// UnimportDM implements cgo.Verbs.
func (f *Library) UnimportDM(dm *cgo.DM) { f.destroy("ibv_unimport_dm", &deviceMemoryOf(dm).object) }

// AllocTD implements cgo.Verbs.
func (f *Library) AllocTD(ctx *cgo.Context) (*cgo.TD, syscall.Errno) {
	return plain[cgo.TD](f, "ibv_alloc_td", "td", &contextOf(ctx).object)
}

// DeallocTD implements cgo.Verbs.
func (f *Library) DeallocTD(td *cgo.TD) syscall.Errno {
	return f.destroy("ibv_dealloc_td", plainOf(td))
}

// AllocParentDomain implements cgo.Verbs.
func (f *Library) AllocParentDomain(ctx *cgo.Context, pd *cgo.PD, td *cgo.TD) (*cgo.PD, syscall.Errno) {
	errno := f.enter("ibv_alloc_parent_domain")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	parent := &domain{c: contextOf(ctx)}
	f.begin(&parent.object, "pd", &domainOf(pd).object, plainOf(td))
	return (*cgo.PD)(unsafe.Pointer(parent)), 0
}

// OpenXRCD implements cgo.Verbs.
func (f *Library) OpenXRCD(ctx *cgo.Context, fd, flags int) (*cgo.XRCD, syscall.Errno) {
	return plain[cgo.XRCD](f, "ibv_open_xrcd", "xrcd", &contextOf(ctx).object)
}

// CloseXRCD implements cgo.Verbs.
func (f *Library) CloseXRCD(d *cgo.XRCD) syscall.Errno {
	return f.destroy("ibv_close_xrcd", plainOf(d))
}

// OpenQP implements cgo.Verbs. The queue pair exists already, and keeps its number.
func (f *Library) OpenQP(ctx *cgo.Context, d *cgo.XRCD, num uint32, typ int32) (*cgo.QP, syscall.Errno) {
	errno := f.enter("ibv_open_qp")
	defer f.mu.Unlock()
	if errno == 0 && f.qps[num] == nil {
		errno = syscall.EINVAL
	}
	if errno != 0 {
		return nil, errno
	}
	qp := &QP{f: f, d: contextOf(ctx).d, num: num}
	f.begin(&qp.object, "opened qp", plainOf(d))
	return qp.handle(), 0
}

// CreateSRQEx implements cgo.Verbs.
func (f *Library) CreateSRQEx(ctx *cgo.Context, init cgo.SRQInit) (*cgo.SRQ, cgo.SRQAttr, syscall.Errno) {
	errno := f.enter("ibv_create_srq_ex")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, cgo.SRQAttr{}, errno
	}
	s := &sharedRecvs{attr: init.Attr, tags: make(map[uint32]cgo.SRQOp)}
	parents := []*object{&domainOf(init.PD).object, plainOf(init.XRCD)}
	if init.CQ != nil {
		parents = append(parents, &f.CQ(init.CQ).object)
	}
	f.begin(&s.object, "srq", parents...)
	return (*cgo.SRQ)(unsafe.Pointer(s)), init.Attr, 0
}

// SRQNum implements cgo.Verbs.
func (f *Library) SRQNum(srq *cgo.SRQ) (uint32, syscall.Errno) {
	const num = 0x5019
	return num, f.touch("ibv_get_srq_num", &srqOf(srq).object)
}

// PostSRQOp implements cgo.Verbs. It supports adding and deleting tags.
func (f *Library) PostSRQOp(srq *cgo.SRQ, op *cgo.SRQOp, sges []cgo.SGE) syscall.Errno {
	const add, del = 0, 1
	errno := f.enter("ibv_post_srq_ops")
	defer f.mu.Unlock()
	s := srqOf(srq)
	f.usable(&s.object)
	switch {
	case errno != 0:
	case op.Opcode == add:
		op.Handle = uint32(len(s.tags) + 1)
		s.tags[op.Handle] = *op
	case op.Opcode == del:
		delete(s.tags, op.Handle)
	}
	return errno
}

// Tags returns the entries of a queue that matches tags, by their handles.
func (f *Library) Tags(srq *cgo.SRQ) map[uint32]cgo.SRQOp {
	f.mu.Lock()
	defer f.mu.Unlock()
	return srqOf(srq).tags
}

// QPDataInOrder implements cgo.Verbs. It returns true only for Writes.
func (f *Library) QPDataInOrder(qp *cgo.QP, opcode uint32) bool {
	return f.touch("ibv_query_qp_data_in_order", &f.QP(qp).object) == 0 && opcode == 0
}

// ModifyQPRateLimit implements cgo.Verbs.
func (f *Library) ModifyQPRateLimit(qp *cgo.QP, kbps, burst uint32, packet uint16) syscall.Errno {
	return f.touch("ibv_modify_qp_rate_limit", &f.QP(qp).object)
}

// SetECE implements cgo.Verbs.
func (f *Library) SetECE(qp *cgo.QP, ece cgo.ECE) syscall.Errno {
	errno := f.touch("ibv_set_ece", &f.QP(qp).object)
	if errno == 0 {
		f.QP(qp).ece = ece
	}
	return errno
}

// QueryECE implements cgo.Verbs.
func (f *Library) QueryECE(qp *cgo.QP) (cgo.ECE, syscall.Errno) {
	return f.QP(qp).ece, f.touch("ibv_query_ece", &f.QP(qp).object)
}

// QueryDeviceEx implements cgo.Verbs.
func (f *Library) QueryDeviceEx(ctx *cgo.Context) (cgo.DeviceAttrEx, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return contextOf(ctx).d.Ex, f.failing("ibv_query_device_ex")
}

// QueryRawClock implements cgo.Verbs. Each query is a tick.
func (f *Library) QueryRawClock(ctx *cgo.Context) (uint64, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock++
	return f.clock, f.failing("ibv_query_rt_values_ex")
}
