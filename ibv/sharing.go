//go:build linux && cgo

package ibv

import (
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A TD is a thread domain: only one thread at a time uses the objects created in it, so that the library needs no
// locks. The program must ensure that, with a mutex or runtime.LockOSThread.
type TD struct {
	life
	raw *cgo.TD
	ctx *Context
}

// AllocTD allocates a thread domain.
//
// Implements: struct ibv_td *ibv_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *init_attr)
func (c *Context) AllocTD() (*TD, error) {
	td := &TD{ctx: c}
	err := c.made("ibv_alloc_td", aTD, &td.life, func() (errno syscall.Errno) {
		td.raw, errno = c.lib.AllocTD(c.raw)
		return errno
	}, &c.life)
	if err != nil {
		return nil, err
	}
	return td, nil
}

// Close deallocates the domain, after its parent domains.
//
// Implements: int ibv_dealloc_td(struct ibv_td *td)
func (td *TD) Close() error {
	return td.end("ibv_dealloc_td", func() syscall.Errno { return td.ctx.lib.DeallocTD(td.raw) })
}

// AllocParentDomain returns a domain with the protection of pd and the thread domain td, which may be nil. It must be
// closed before both. Use it in place of pd to create queues.
//
// Implements: struct ibv_pd *ibv_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
func (pd *PD) AllocParentDomain(td *TD) (*PD, error) {
	parent := &PD{ctx: pd.ctx}
	parents := []*life{&pd.life}
	var rawTD *cgo.TD
	if td != nil {
		parents, rawTD = append(parents, &td.life), td.raw
	}
	err := pd.ctx.made("ibv_alloc_parent_domain", aPD, &parent.life, func() (errno syscall.Errno) {
		parent.raw, errno = pd.ctx.lib.AllocParentDomain(pd.ctx.raw, pd.raw, rawTD)
		return errno
	}, parents...)
	if err != nil {
		return nil, err
	}
	return parent, nil
}

// FD returns the descriptor of the device, which the Context owns, for a process that imports the device; pass it over
// a Unix socket. FD returns -1 if the device is closed.
func (c *Context) FD() int {
	if c.enter("") != nil {
		return -1
	}
	defer c.leave()
	return c.lib.CommandFD(c.raw)
}

// ImportDevice opens a device by the descriptor that another process has of it, see [Context.FD]. The Context then owns
// fd. Objects that the other process has created on the device can be imported by their handles. The other process
// keeps owning them: they exist until it closes them.
//
// Implements: struct ibv_context *ibv_import_device(int cmd_fd)
func ImportDevice(fd int) (*Context, error) { return importDevice(cgo.RDMACore{}, fd) }

func importDevice(lib cgo.Library, fd int) (*Context, error) {
	raw, errno := lib.ImportDevice(fd)
	if errno != 0 {
		return nil, &Error{Call: "ibv_import_device", Err: errno}
	}
	return newContext(lib, raw, infoOf(lib, lib.ContextDevice(raw))), nil
}

// Handle returns the kernel's number of the domain, for [Context.ImportPD].
func (pd *PD) Handle() (uint32, error) {
	return handle(pd.ctx, &pd.life, func() uint32 { return pd.ctx.lib.PDHandle(pd.raw) })
}

// Handle returns the kernel's number of the region, for [PD.ImportMR].
func (mr *MR) Handle() (uint32, error) {
	return handle(mr.ctx, &mr.life, func() uint32 { return mr.ctx.lib.MRHandle(mr.raw) })
}

// Handle returns the kernel's number of the block, for [Context.ImportDM].
func (dm *DM) Handle() (uint32, error) {
	return handle(dm.ctx, &dm.life, func() uint32 { return dm.ctx.lib.DMHandle(dm.raw) })
}

func handle(c *Context, l *life, read func() uint32) (n uint32, err error) {
	err = c.do("Handle", func() syscall.Errno { n = read(); return 0 }, l)
	return n, err
}

// ImportPD returns the domain with the given handle.
//
// Implements: struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t pd_handle)
func (c *Context) ImportPD(handle uint32) (*PD, error) {
	pd := &PD{ctx: c, imported: true}
	err := c.made("ibv_import_pd", aPD, &pd.life, func() (errno syscall.Errno) {
		pd.raw, errno = c.lib.ImportPD(c.raw, handle)
		return errno
	}, &c.life)
	if err != nil {
		return nil, err
	}
	return pd, nil
}

// ImportMR returns the region with the given handle, of length bytes addressed by addr.
//
// Implements: struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t mr_handle)
func (pd *PD) ImportMR(handle uint32, addr, length uint64) (*MR, error) {
	mr := &MR{ctx: pd.ctx, iova: addr, length: length, imported: true}
	return mr.register("ibv_import_mr", pd, 0, func() (*cgo.MR, uint32, uint32, syscall.Errno) {
		return pd.ctx.lib.ImportMR(pd.raw, handle)
	})
}

// ImportDM returns the block of device memory with the given handle, of length bytes.
//
// Implements: struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t dm_handle)
func (c *Context) ImportDM(handle uint32, length uint64) (*DM, error) {
	dm := &DM{ctx: c, size: length, imported: true}
	err := c.made("ibv_import_dm", aDM, &dm.life, func() (errno syscall.Errno) {
		dm.raw, errno = c.lib.ImportDM(c.raw, handle)
		return errno
	}, &c.life)
	if err != nil {
		return nil, err
	}
	return dm, nil
}
