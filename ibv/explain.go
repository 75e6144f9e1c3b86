//go:build linux && cgo

package ibv

import "syscall"

// MemoryError returns the error for a call of another package, such as rdma_create_qp, that failed with errno and
// needed about requested bytes of locked memory. It is a [*MemlockError] if the limit of the process is the likely
// reason, otherwise an [*Error].
func (c *Context) MemoryError(call string, errno syscall.Errno, requested uint64) error {
	return c.memoryError(call, errno, requested)
}
