//go:build linux && cgo

package ibv

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// Access is a set of access rights to memory, see ibv_reg_mr(3). Local reads are always
// permitted.
type Access uint32

// Access rights. AccessRemoteWrite and AccessRemoteAtomic require AccessLocalWrite.
const (
	AccessLocalWrite      Access = 1 << 0  // receives, results of Reads and atomics
	AccessRemoteWrite     Access = 1 << 1  // the peer's RDMA Writes
	AccessRemoteRead      Access = 1 << 2  // the peer's RDMA Reads
	AccessRemoteAtomic    Access = 1 << 3  // the peer's atomic operations
	AccessMWBind          Access = 1 << 4  // memory windows may be bound
	AccessZeroBased       Access = 1 << 5  // remote addresses are offsets into the region or window
	AccessOnDemand        Access = 1 << 6  // pages are faulted in on demand rather than pinned
	AccessHugeTLB         Access = 1 << 7  // the memory consists of huge pages, for AccessOnDemand
	AccessRelaxedOrdering Access = 1 << 20 // the device may reorder its writes; ignored where it cannot
)

func (a Access) String() string {
	return flagString(uint32(a), []string{
		"IBV_ACCESS_LOCAL_WRITE", "IBV_ACCESS_REMOTE_WRITE", "IBV_ACCESS_REMOTE_READ", "IBV_ACCESS_REMOTE_ATOMIC", "IBV_ACCESS_MW_BIND",
		"IBV_ACCESS_ZERO_BASED", "IBV_ACCESS_ON_DEMAND", "IBV_ACCESS_HUGETLB", 20: "IBV_ACCESS_RELAXED_ORDERING",
	})
}

// An MR is a memory region, memory that a device may access, with two keys: LKey for local
// work requests, RKey for those of the peer.
type MR struct {
	life
	raw        *cgo.MR
	ctx        *Context
	buf        []byte // of this process, or nil
	iova       uint64
	length     uint64
	lkey, rkey uint32
	pin        runtime.Pinner
	imported   bool
}

// RegMR registers buf for access by the device until Close. The memory may be Go memory, which stays pinned until then,
// or come from mmap. The kernel pins the pages and counts them against the limit on locked memory, see [MemlockError].
// For processes that fork see [ForkInit]. The runtime panics if a region of Go memory is garbage collected without
// Close.
//
// Implements: struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	const call = "ibv_reg_mr"
	if err := pd.enter(call); err != nil {
		return nil, err
	}
	defer pd.leave()
	mr := &MR{ctx: pd.ctx, buf: buf, iova: addrOf(buf), length: uint64(len(buf))}
	mr.pinBuf()
	var errno syscall.Errno
	if mr.raw, mr.lkey, mr.rkey, errno = pd.ctx.lib.RegMR(pd.raw, buf, int(access)); errno != 0 {
		mr.pin.Unpin()
		return nil, pd.ctx.memoryError(call, errno, pageBytes(buf))
	}
	mr.begin(aMR, pd.device, &pd.life)
	return mr, nil
}

// RegMRIova is RegMR for a region that work requests and the peer address by iova instead of by its memory address.
// Both addresses must have the same offset within a page.
//
// Implements: struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
// Implements: struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
func (pd *PD) RegMRIova(buf []byte, iova uint64, access Access) (*MR, error) {
	mr := &MR{ctx: pd.ctx, buf: buf, iova: iova, length: uint64(len(buf))}
	return mr.register("ibv_reg_mr_iova", pd, pageBytes(buf), func() (*cgo.MR, uint32, uint32, syscall.Errno) {
		return pd.ctx.lib.RegMRIova(pd.raw, addrOf(buf), uint64(len(buf)), iova, int(access))
	})
}

// RegMRAt registers memory of this process that is not a Go slice, such as memory of a C library: length bytes at addr,
// addressed by iova. It must stay mapped until Close, and must not be Go memory, which may move.
func (pd *PD) RegMRAt(addr, length, iova uint64, access Access) (*MR, error) {
	mr := &MR{ctx: pd.ctx, iova: iova, length: length}
	return mr.register("ibv_reg_mr_iova", pd, length, func() (*cgo.MR, uint32, uint32, syscall.Errno) {
		return pd.ctx.lib.RegMRIova(pd.raw, addr, length, iova, int(access))
	})
}

// RegDmabufMR registers memory that another device exports, such as that of an accelerator: length bytes of the DMA-BUF
// fd from offset on, addressed by iova. fd may be closed afterwards.
//
// Implements: struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
func (pd *PD) RegDmabufMR(fd int, offset, length, iova uint64, access Access) (*MR, error) {
	mr := &MR{ctx: pd.ctx, iova: iova, length: length}
	return mr.register("ibv_reg_dmabuf_mr", pd, 0, func() (*cgo.MR, uint32, uint32, syscall.Errno) {
		return pd.ctx.lib.RegDmabufMR(pd.raw, offset, length, iova, fd, int(access))
	})
}

// AllocNullMR returns a region without memory: local work requests read zeros from it, and data that they write to it
// is discarded.
//
// Implements: struct ibv_mr *ibv_alloc_null_mr(struct ibv_pd *pd)
func (pd *PD) AllocNullMR() (*MR, error) {
	mr := &MR{ctx: pd.ctx}
	return mr.register("ibv_alloc_null_mr", pd, 0, func() (raw *cgo.MR, lkey, rkey uint32, errno syscall.Errno) {
		raw, lkey, errno = pd.ctx.lib.AllocNullMR(pd.raw)
		return raw, lkey, 0, errno
	})
}

// register begins the life of a region that is not created by [PD.RegMR], which is called often and avoids the closure.
// The region needs about requested bytes of locked memory, in pd and perhaps in other parents.
func (mr *MR) register(call string, pd *PD, requested uint64, register func() (*cgo.MR, uint32, uint32, syscall.Errno), others ...*life) (*MR, error) {
	parents := append([]*life{&pd.life}, others...)
	if err := enterAll(call, parents...); err != nil {
		return nil, err
	}
	defer leaveAll(parents...)
	mr.pinBuf()
	raw, lkey, rkey, errno := register()
	if errno != 0 {
		mr.pin.Unpin()
		return nil, pd.ctx.memoryError(call, errno, requested)
	}
	mr.raw, mr.lkey, mr.rkey = raw, lkey, rkey
	mr.begin(aMR, pd.device, parents...)
	return mr, nil
}

func (mr *MR) pinBuf() {
	if start := unsafe.SliceData(mr.buf); start != nil {
		mr.pin.Pin(start)
	}
}

// ReregFlags select what [MR.Rereg] changes, see ibv_rereg_mr(3).
type ReregFlags int

// Changes of a region.
const (
	ReregTranslation ReregFlags = 1 << 0 // the memory
	ReregPD          ReregFlags = 1 << 1
	ReregAccess      ReregFlags = 1 << 2
)

func (f ReregFlags) String() string {
	return flagString(uint32(f), []string{"IBV_REREG_MR_CHANGE_TRANSLATION", "IBV_REREG_MR_CHANGE_PD", "IBV_REREG_MR_CHANGE_ACCESS"})
}

// A ReregAttr holds the new attributes of a region, see ibv_rereg_mr(3).
type ReregAttr struct {
	Change ReregFlags // which of the other fields apply
	Buf    []byte     // the memory, as for [PD.RegMR]
	PD     *PD        // of the same device
	Access Access     // all rights, not only additional ones
}

// A ReregError is the error of a failed [MR.Rereg]. It unwraps to the errno.
type ReregError struct {
	Device string
	Usable bool // the region is unchanged; otherwise it can only be closed
	Err    error
}

func (e *ReregError) Error() string {
	s := fmt.Sprintf("ibv: ibv_rereg_mr on %s: %v", e.Device, e.Err)
	if !e.Usable {
		s += ": the region can only be closed"
	}
	return s
}

func (e *ReregError) Unwrap() error { return e.Err }

// Rereg changes a region, which no work request may be using, and returns the changed region, with its keys. The old MR
// is closed, unless there is an error, which may be a [*ReregError].
//
// Implements: int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
func (mr *MR) Rereg(attr ReregAttr) (*MR, error) {
	const call = "ibv_rereg_mr"
	next := &MR{raw: mr.raw, ctx: mr.ctx, buf: mr.buf, iova: mr.iova, length: mr.length}
	parents := mr.parents
	var rawPD *cgo.PD
	if attr.Change&ReregPD != 0 {
		if attr.PD == nil || attr.PD.ctx != mr.ctx {
			return nil, &Error{Call: call, Device: mr.device, Err: syscall.EINVAL}
		}
		parents, rawPD = append([]*life{&attr.PD.life}, parents[1:]...), attr.PD.raw
	}
	if attr.Change&ReregTranslation != 0 {
		next.buf, next.iova, next.length = attr.Buf, addrOf(attr.Buf), uint64(len(attr.Buf))
	}
	if err := enterAll(call, parents...); err != nil {
		return nil, err
	}
	defer leaveAll(parents...)
	next.pinBuf()
	var failed error
	changed := false
	err := mr.end(call, func() syscall.Errno {
		lkey, rkey, code, errno := mr.ctx.lib.ReregMR(mr.raw, int(attr.Change), rawPD, addrOf(attr.Buf), uint64(len(attr.Buf)), int(attr.Access))
		const newIsValid, unusable = -3, -4 // enum ibv_rereg_mr_err_code
		if errno != 0 && code != newIsValid {
			failed = &ReregError{Device: mr.device, Usable: code > unusable, Err: errno}
			return errno
		}
		next.lkey, next.rkey, changed = lkey, rkey, true
		return 0
	})
	if !changed {
		next.pin.Unpin()
		switch {
		case failed != nil:
			return nil, failed
		case err != nil:
			return nil, err
		}
		return nil, &Error{Call: call, Device: mr.device, Err: ErrClosed}
	}
	mr.pin.Unpin()
	next.begin(aMR, mr.device, parents...)
	return next, nil
}

// Advice announces the use of memory, see ibv_advise_mr(3).
type Advice int

// Advice for regions with [AccessOnDemand].
const (
	AdvicePrefetch        Advice = 0 // it will soon be read
	AdvicePrefetchWrite   Advice = 1 // it will soon be written
	AdvicePrefetchNoFault Advice = 2 // it will soon be used; absent pages are not faulted in
)

func (a Advice) String() string {
	return name([]string{
		"IBV_ADVISE_MR_ADVICE_PREFETCH", "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE", "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT",
	}, int32(a), "ibv_advise_mr_advice")
}

// AdviseMR prepares parts of regions with [AccessOnDemand]. With wait it returns when that has been done, or has
// failed.
//
// Implements: int ibv_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sg_list, uint32_t num_sge)
func (pd *PD) AdviseMR(advice Advice, wait bool, parts ...SGE) error {
	const call = "ibv_advise_mr"
	if err := pd.enter(call); err != nil {
		return err
	}
	defer pd.leave()
	sges, err := appendSGL(nil, parts)
	if err != nil {
		return &Error{Call: call, Device: pd.device, Err: err}
	}
	var flags uint32
	if wait {
		flags = 1 // IBV_ADVISE_MR_FLAG_FLUSH
	}
	if errno := pd.ctx.lib.AdviseMR(pd.raw, int(advice), flags, sges); errno != 0 {
		return &Error{Call: call, Device: pd.device, Err: errno}
	}
	return nil
}

// Raw returns the region for package cgo, valid until Close.
func (mr *MR) Raw() *cgo.MR { return mr.raw }

// Bytes returns the registered memory, or nil if it is not a Go slice.
func (mr *MR) Bytes() []byte { return mr.buf }

// LKey returns the key for local SGEs.
func (mr *MR) LKey() uint32 { return mr.lkey }

// RKey returns the key for the peer.
func (mr *MR) RKey() uint32 { return mr.rkey }

// Addr returns the address by which work requests refer to the first byte of the region, unless the region is
// zero-based.
func (mr *MR) Addr() uint64 { return mr.iova }

// Len returns the size of the region in bytes.
func (mr *MR) Len() uint64 { return mr.length }

// SGE returns a part of the region for a work request: length bytes from offset on.
func (mr *MR) SGE(offset uint64, length uint32) SGE {
	return SGE{Addr: mr.iova + offset, Length: length, LKey: mr.lkey}
}

// Close deregisters the memory, which no work request may be using. While a memory window
// is bound to the region it fails with a [*BusyError].
//
// Implements: int ibv_dereg_mr(struct ibv_mr *mr)
// Implements: void ibv_unimport_mr(struct ibv_mr *mr)
func (mr *MR) Close() error {
	return mr.end("ibv_dereg_mr", func() syscall.Errno {
		if mr.imported {
			mr.ctx.lib.UnimportMR(mr.raw)
			return 0
		}
		errno := mr.ctx.lib.DeregMR(mr.raw)
		switch errno {
		case 0:
			mr.pin.Unpin()
		case syscall.EINVAL:
			errno = syscall.EBUSY // rxe returns EINVAL if a window is bound
		}
		return errno
	})
}

// addrOf returns the address of a buffer that does not move.
func addrOf(buf []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) }
