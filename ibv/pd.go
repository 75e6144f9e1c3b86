//go:build linux && cgo

package ibv

import (
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A PD is a protection domain: queue pairs can access only the memory regions and windows of their own domain. It must
// be closed after all of them.
type PD struct {
	life
	raw      *cgo.PD
	ctx      *Context
	imported bool
}

// AllocPD allocates a protection domain.
//
// Implements: struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
func (c *Context) AllocPD() (*PD, error) {
	const call = "ibv_alloc_pd"
	if err := c.enter(call); err != nil {
		return nil, err
	}
	defer c.leave()
	raw, errno := c.lib.AllocPD(c.raw)
	if errno != 0 {
		return nil, &Error{Call: call, Device: c.device, Err: errno}
	}
	pd := &PD{raw: raw, ctx: c}
	pd.begin(aPD, c.device, &c.life)
	return pd, nil
}

// Raw returns the domain for package cgo, valid until Close.
func (pd *PD) Raw() *cgo.PD { return pd.raw }

// Context returns the device of the domain.
func (pd *PD) Context() *Context { return pd.ctx }

// Close deallocates the domain, or releases one imported from another process.
//
// Implements: int ibv_dealloc_pd(struct ibv_pd *pd)
// Implements: void ibv_unimport_pd(struct ibv_pd *pd)
func (pd *PD) Close() error {
	return pd.end("ibv_dealloc_pd", func() syscall.Errno {
		if pd.imported {
			pd.ctx.lib.UnimportPD(pd.raw)
			return 0
		}
		return pd.ctx.lib.DeallocPD(pd.raw)
	})
}
