//go:build linux && cgo

package ibv

import "syscall"

// MemoryError is the error of a call that is not in this package, such as
// rdma_create_qp, and that locked about so many bytes of memory: a *MemlockError
// when the limit of the process is the likely reason, else an *Error.
func (c *Context) MemoryError(call string, errno syscall.Errno, requested uint64) error {
	return c.memoryError(call, errno, requested)
}
