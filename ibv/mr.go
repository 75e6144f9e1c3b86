//go:build linux && cgo

package ibv

import (
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
	AccessZeroBased       Access = 1 << 5  // remote addresses count from the beginning of the region or window
	AccessOnDemand        Access = 1 << 6  // pages are faulted in, none is pinned
	AccessHugeTLB         Access = 1 << 7  // the memory is of huge pages, for AccessOnDemand
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
	buf        []byte
	lkey, rkey uint32
	pin        runtime.Pinner
}

// RegMR registers buf for access by the device until Close. The memory may be Go's, which
// is pinned until then, or from mmap. The kernel pins the pages and counts them against
// the limit of locked memory, see [MemlockError]; for processes that fork see [ForkInit].
// The runtime panics if a region of Go memory is garbage collected without Close.
//
// Implements: struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	const call = "ibv_reg_mr"
	if err := pd.enter(call); err != nil {
		return nil, err
	}
	defer pd.leave()
	mr := &MR{ctx: pd.ctx, buf: buf}
	if start := unsafe.SliceData(buf); start != nil {
		mr.pin.Pin(start)
	}
	raw, lkey, rkey, errno := pd.ctx.lib.RegMR(pd.raw, buf, int(access))
	if errno != 0 {
		mr.pin.Unpin()
		return nil, pd.ctx.memoryError(call, errno, pageBytes(buf))
	}
	mr.raw, mr.lkey, mr.rkey = raw, lkey, rkey
	mr.begin(aMR, pd.device, &pd.life)
	return mr, nil
}

// Raw returns the region for package cgo, valid until Close.
func (mr *MR) Raw() *cgo.MR { return mr.raw }

// Bytes returns the registered memory.
func (mr *MR) Bytes() []byte { return mr.buf }

// LKey returns the key for local SGEs.
func (mr *MR) LKey() uint32 { return mr.lkey }

// RKey returns the key for the peer.
func (mr *MR) RKey() uint32 { return mr.rkey }

// Addr returns the address of the memory: the peer's remote address of the first byte,
// unless the region is zero-based.
func (mr *MR) Addr() uint64 { return addrOf(mr.buf) }

// Close deregisters the memory, which no work request may be using. While a memory window
// is bound to the region it fails with a [*BusyError].
//
// Implements: int ibv_dereg_mr(struct ibv_mr *mr)
func (mr *MR) Close() error {
	return mr.end("ibv_dereg_mr", func() syscall.Errno {
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
