//go:build linux && cgo

package cgotest

import (
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

type domain struct {
	object
	c *context
}

func domainOf(h *cgo.PD) *domain { return (*domain)(unsafe.Pointer(h)) }

// A region is a memory region.
type region struct {
	object
	lkey, rkey uint32
	mem        []byte
	access     int
}

func (r *region) handle() *cgo.MR { return (*cgo.MR)(unsafe.Pointer(r)) }

// A window is a memory window. It uses the region and the queue pair that it is
// bound to.
type window struct {
	object
	rkey     uint32
	boundKey uint32
	mr       *region
	qp       *QP
}

func (w *window) handle() *cgo.MW { return (*cgo.MW)(unsafe.Pointer(w)) }

func (w *window) bind(mr *region, qp *QP, key uint32) {
	w.unbind()
	w.mr, w.qp, w.boundKey = mr, qp, key
	mr.users++
	qp.users++
}

func (w *window) unbind() {
	if w.mr != nil {
		w.mr.users--
		w.qp.users--
		w.mr, w.qp = nil, nil
	}
}

// AllocPD implements cgo.Verbs.
func (f *Library) AllocPD(ctx *cgo.Context) (*cgo.PD, syscall.Errno) {
	errno := f.enter("ibv_alloc_pd")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	pd := &domain{c: contextOf(ctx)}
	f.begin(&pd.object, "pd", &pd.c.object)
	return (*cgo.PD)(unsafe.Pointer(pd)), 0
}

// DeallocPD implements cgo.Verbs.
func (f *Library) DeallocPD(pd *cgo.PD) syscall.Errno {
	return f.destroy("ibv_dealloc_pd", &domainOf(pd).object)
}

// destroy is a call that destroys an object and does nothing else.
func (f *Library) destroy(call string, o *object) syscall.Errno {
	errno := f.enter(call)
	defer f.mu.Unlock()
	if errno != 0 {
		return errno
	}
	return f.end(o)
}

// RegMR implements cgo.Verbs.
func (f *Library) RegMR(pd *cgo.PD, mem []byte, access int) (mr *cgo.MR, lkey, rkey uint32, errno syscall.Errno) {
	errno = f.enter("ibv_reg_mr")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, 0, 0, errno
	}
	r := &region{mem: mem, access: access, lkey: f.nextKey(), rkey: f.nextKey()}
	f.begin(&r.object, "mr", &domainOf(pd).object)
	f.mrs[r.handle().Word()] = r
	return r.handle(), r.lkey, r.rkey, 0
}

// DeregMR implements cgo.Verbs.
func (f *Library) DeregMR(mr *cgo.MR) syscall.Errno {
	return f.destroy("ibv_dereg_mr", &(*region)(unsafe.Pointer(mr)).object)
}

// AllocMW implements cgo.Verbs.
func (f *Library) AllocMW(pd *cgo.PD, typ int) (mw *cgo.MW, rkey uint32, errno syscall.Errno) {
	errno = f.enter("ibv_alloc_mw")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, 0, errno
	}
	w := &window{rkey: f.nextKey()}
	f.begin(&w.object, "mw", &domainOf(pd).object)
	f.mws[w.handle().Word()] = w
	return w.handle(), w.rkey, 0
}

// DeallocMW implements cgo.Verbs.
func (f *Library) DeallocMW(mw *cgo.MW) syscall.Errno {
	w := (*window)(unsafe.Pointer(mw))
	errno := f.enter("ibv_dealloc_mw")
	defer f.mu.Unlock()
	if errno != 0 {
		return errno
	}
	w.unbind()
	return f.end(&w.object)
}

// BindMW implements cgo.Verbs. The fake has no windows of type 1.
func (f *Library) BindMW(*cgo.QP, *cgo.MW, uint64, uint32, *cgo.MR, uint64, uint64, uint32) (uint32, syscall.Errno) {
	return 0, syscall.EOPNOTSUPP
}

// RKey implements cgo.Verbs.
func (f *Library) RKey(mw *cgo.MW) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := (*window)(unsafe.Pointer(mw))
	f.usable(&w.object)
	return w.rkey
}

// SetRKey implements cgo.Verbs.
func (f *Library) SetRKey(mw *cgo.MW, rkey uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := (*window)(unsafe.Pointer(mw))
	f.usable(&w.object)
	w.rkey = rkey
}

// BoundKey is the key that is stored in the window of a bind: the next bind starts
// from it.
func (f *Library) BoundKey(s *Send) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mws[s.MW].rkey
}
