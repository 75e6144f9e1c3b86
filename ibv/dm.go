//go:build linux && cgo

package ibv

import (
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A DM is a block of the device's own memory, which is fast for the device, and small. It must be closed after its
// regions.
type DM struct {
	life
	raw      *cgo.DM
	ctx      *Context
	size     uint64
	imported bool
}

// AllocDM allocates length bytes of device memory, aligned to 1 << logAlign bytes.
//
// Implements: struct ibv_dm *ibv_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
func (c *Context) AllocDM(length uint64, logAlign uint32) (*DM, error) {
	const call = "ibv_alloc_dm"
	if err := c.enter(call); err != nil {
		return nil, err
	}
	defer c.leave()
	raw, errno := c.lib.AllocDM(c.raw, length, logAlign)
	if errno != 0 {
		return nil, &Error{Call: call, Device: c.device, Err: errno}
	}
	dm := &DM{raw: raw, ctx: c, size: length}
	dm.begin(aDM, c.device, &c.life)
	return dm, nil
}

// Raw returns the block for package cgo, valid until Close.
func (dm *DM) Raw() *cgo.DM { return dm.raw }

// Len returns the size of the block in bytes.
func (dm *DM) Len() uint64 { return dm.size }

// WriteAt copies p to the block. Like ReadAt, it copies everything or nothing.
//
// Implements: int ibv_memcpy_to_dm(struct ibv_dm *dm, uint64_t dm_offset, const void *host_addr, size_t length)
func (dm *DM) WriteAt(p []byte, offset int64) (int, error) {
	return dm.copy("ibv_memcpy_to_dm", p, offset, func() syscall.Errno { return dm.ctx.lib.MemcpyToDM(dm.raw, uint64(offset), p) })
}

// ReadAt copies from the block to p.
//
// Implements: int ibv_memcpy_from_dm(void *host_addr, struct ibv_dm *dm, uint64_t dm_offset, size_t length)
func (dm *DM) ReadAt(p []byte, offset int64) (int, error) {
	return dm.copy("ibv_memcpy_from_dm", p, offset, func() syscall.Errno { return dm.ctx.lib.MemcpyFromDM(p, dm.raw, uint64(offset)) })
}

// copy checks the bounds, because some providers do not.
func (dm *DM) copy(call string, p []byte, offset int64, move func() syscall.Errno) (int, error) {
	if err := dm.enter(call); err != nil {
		return 0, err
	}
	defer dm.leave()
	if offset < 0 || uint64(offset) > dm.size || uint64(len(p)) > dm.size-uint64(offset) {
		return 0, &Error{Call: call, Device: dm.device, Err: syscall.EFAULT}
	}
	if errno := move(); errno != 0 {
		return 0, &Error{Call: call, Device: dm.device, Err: errno}
	}
	return len(p), nil
}

// RegDMMR registers length bytes of device memory from offset on, with AccessZeroBased: work requests
// and the peer count from the beginning of the region.
//
// Implements: struct ibv_mr *ibv_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t dm_offset, size_t length, unsigned int access)
func (pd *PD) RegDMMR(dm *DM, offset, length uint64, access Access) (*MR, error) {
	mr := &MR{ctx: pd.ctx, length: length}
	return mr.register("ibv_reg_dm_mr", pd, 0, func() (*cgo.MR, uint32, uint32, syscall.Errno) {
		return pd.ctx.lib.RegDMMR(pd.raw, dm.raw, offset, length, int(access|AccessZeroBased))
	}, &dm.life)
}

// Close frees the block, or releases one imported from another process.
//
// Implements: int ibv_free_dm(struct ibv_dm *dm)
// Implements: void ibv_unimport_dm(struct ibv_dm *dm)
func (dm *DM) Close() error {
	return dm.end("ibv_free_dm", func() syscall.Errno {
		if dm.imported {
			dm.ctx.lib.UnimportDM(dm.raw)
			return 0
		}
		return dm.ctx.lib.FreeDM(dm.raw)
	})
}
