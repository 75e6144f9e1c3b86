//go:build linux && cgo

package cgotest

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

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
	mem        Memory

	pages, mapped []byte // of a descriptor, on a working device
}

// Memory describes the memory of a region.
type Memory struct {
	Addr, Length uint64 // in this process; Addr of a DMA-BUF or of device memory is an offset
	Iova         uint64
	FD           int // of a DMA-BUF, or -1
	Access       int
	Device       *cgo.DM
}

// Memory returns the memory of a region, and its domain.
func (f *Library) Memory(mr *cgo.MR) (Memory, *cgo.PD) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := (*region)(unsafe.Pointer(mr))
	return r.mem, (*cgo.PD)(unsafe.Pointer(r.parents[0]))
}

func (r *region) handle() *cgo.MR { return (*cgo.MR)(unsafe.Pointer(r)) }

// A window is a memory window. It uses the region and the queue pair that it is bound to.
type window struct {
	object
	rkey     uint32
	boundKey uint32
	mr       *region
	qp       *QP

	addr, length uint64 // of the last bind, on a working device
	access       int
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

// destroy makes a call that destroys an object and does nothing else.
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
	addr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	return f.regMR("ibv_reg_mr", pd, Memory{Addr: addr, Length: uint64(len(mem)), Iova: addr, FD: -1, Access: access})
}

func (f *Library) regMR(call string, pd *cgo.PD, mem Memory) (mr *cgo.MR, lkey, rkey uint32, errno syscall.Errno) {
	errno = f.enter(call)
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, 0, 0, errno
	}
	r := &region{mem: mem, lkey: f.nextKey(), rkey: f.nextKey()}
	parents := []*object{&domainOf(pd).object}
	if mem.Device != nil {
		parents = append(parents, &deviceMemoryOf(mem.Device).object)
	}
	f.begin(&r.object, "mr", parents...)
	if mem.FD >= 0 && domainOf(pd).c.d.Nature != nil {
		if err := r.mapFD(); err != nil {
			f.end(&r.object)
			return nil, 0, 0, err.(syscall.Errno)
		}
	}
	f.mrs[r.handle().Word()], f.lkeys[r.lkey], f.rkeys[r.rkey] = r, r, r
	return r.handle(), r.lkey, r.rkey, 0
}

// RegMRIova implements cgo.Verbs.
func (f *Library) RegMRIova(pd *cgo.PD, addr, length, iova uint64, access int) (*cgo.MR, uint32, uint32, syscall.Errno) {
	return f.regMR("ibv_reg_mr_iova", pd, Memory{Addr: addr, Length: length, Iova: iova, FD: -1, Access: access})
}

// RegDmabufMR implements cgo.Verbs.
func (f *Library) RegDmabufMR(pd *cgo.PD, offset, length, iova uint64, fd, access int) (*cgo.MR, uint32, uint32, syscall.Errno) {
	return f.regMR("ibv_reg_dmabuf_mr", pd, Memory{Addr: offset, Length: length, Iova: iova, FD: fd, Access: access})
}

// AllocNullMR implements cgo.Verbs.
func (f *Library) AllocNullMR(pd *cgo.PD) (*cgo.MR, uint32, syscall.Errno) {
	mr, lkey, _, errno := f.regMR("ibv_alloc_null_mr", pd, Memory{FD: -1})
	return mr, lkey, errno
}

// RegDMMR implements cgo.Verbs.
func (f *Library) RegDMMR(pd *cgo.PD, dm *cgo.DM, offset, length uint64, access int) (*cgo.MR, uint32, uint32, syscall.Errno) {
	return f.regMR("ibv_reg_dm_mr", pd, Memory{Addr: offset, Length: length, FD: -1, Access: access, Device: dm})
}

// ReregMR implements cgo.Verbs. If it fails, the code is -1 and the region is unchanged. After EIO the code is -4 and
// the region may not be used.
func (f *Library) ReregMR(mr *cgo.MR, flags int, pd *cgo.PD, addr, length uint64, access int) (lkey, rkey uint32, code int32, errno syscall.Errno) {
	const translation, domain, rights = 1, 2, 4
	errno = f.enter("ibv_rereg_mr")
	defer f.mu.Unlock()
	r := (*region)(unsafe.Pointer(mr))
	f.usable(&r.object)
	if errno == syscall.EIO {
		return r.lkey, r.rkey, -4, errno
	}
	if errno != 0 {
		return r.lkey, r.rkey, -1, errno
	}
	if flags&translation != 0 {
		r.mem.Addr, r.mem.Iova, r.mem.Length = addr, addr, length
	}
	if flags&domain != 0 {
		r.parents[0].users--
		r.parents[0] = &domainOf(pd).object
		r.parents[0].users++
	}
	if flags&rights != 0 {
		r.mem.Access = access
	}
	delete(f.lkeys, r.lkey)
	delete(f.rkeys, r.rkey)
	r.lkey, r.rkey = f.nextKey(), f.nextKey()
	f.lkeys[r.lkey], f.rkeys[r.rkey] = r, r
	return r.lkey, r.rkey, 0, 0
}

// AdviseMR implements cgo.Verbs.
func (f *Library) AdviseMR(pd *cgo.PD, advice int, flags uint32, sges []cgo.SGE) syscall.Errno {
	errno := f.enter("ibv_advise_mr")
	defer f.mu.Unlock()
	f.usable(&domainOf(pd).object)
	return errno
}

// A deviceMemory is device memory.
type deviceMemory struct {
	object
	bytes []byte
}

func deviceMemoryOf(h *cgo.DM) *deviceMemory { return (*deviceMemory)(unsafe.Pointer(h)) }

// AllocDM implements cgo.Verbs.
func (f *Library) AllocDM(ctx *cgo.Context, length uint64, logAlign uint32) (*cgo.DM, syscall.Errno) {
	errno := f.enter("ibv_alloc_dm")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	dm := &deviceMemory{bytes: make([]byte, length)}
	f.begin(&dm.object, "dm", &contextOf(ctx).object)
	return (*cgo.DM)(unsafe.Pointer(dm)), 0
}

// FreeDM implements cgo.Verbs.
func (f *Library) FreeDM(dm *cgo.DM) syscall.Errno {
	return f.destroy("ibv_free_dm", &deviceMemoryOf(dm).object)
}

// MemcpyToDM implements cgo.Verbs.
func (f *Library) MemcpyToDM(dm *cgo.DM, offset uint64, from []byte) syscall.Errno {
	return f.memcpyDM("ibv_memcpy_to_dm", dm, offset, len(from), func(part []byte) { copy(part, from) })
}

// MemcpyFromDM implements cgo.Verbs.
func (f *Library) MemcpyFromDM(to []byte, dm *cgo.DM, offset uint64) syscall.Errno {
	return f.memcpyDM("ibv_memcpy_from_dm", dm, offset, len(to), func(part []byte) { copy(to, part) })
}

func (f *Library) memcpyDM(call string, h *cgo.DM, offset uint64, n int, move func([]byte)) syscall.Errno {
	errno := f.enter(call)
	defer f.mu.Unlock()
	dm := deviceMemoryOf(h)
	f.usable(&dm.object)
	if size := uint64(len(dm.bytes)); errno == 0 && (offset > size || uint64(n) > size-offset) {
		errno = syscall.EFAULT
	}
	if errno == 0 {
		move(dm.bytes[offset:][:n])
	}
	return errno
}

// DeregMR implements cgo.Verbs.
func (f *Library) DeregMR(mr *cgo.MR) syscall.Errno {
	r := (*region)(unsafe.Pointer(mr))
	errno := f.enter("ibv_dereg_mr")
	defer f.mu.Unlock()
	if errno == 0 {
		errno = f.end(&r.object)
	}
	if errno == 0 {
		delete(f.mrs, mr.Word())
		delete(f.lkeys, r.lkey)
		delete(f.rkeys, r.rkey)
		if r.pages != nil {
			unix.Munmap(r.pages)
		}
	}
	return errno
}

// AllocMW implements cgo.Verbs.
func (f *Library) AllocMW(pd *cgo.PD, typ int) (mw *cgo.MW, rkey uint32, errno syscall.Errno) {
	errno = f.enter("ibv_alloc_mw")
	defer f.mu.Unlock()
	if errno == 0 && domainOf(pd).c.d.NoWindows {
		errno = syscall.EOPNOTSUPP
	}
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
	delete(f.mws, mw.Word())
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

// BoundKey returns the key stored in the window of a bind: the next bind starts from it.
func (f *Library) BoundKey(s *Send) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mws[s.MW].rkey
}
