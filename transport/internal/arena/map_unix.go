//go:build unix

package arena

import (
	"os"
	"syscall"
)

// mapMemory returns n zeroed bytes outside the Go heap, page-aligned.
func mapMemory(n int) ([]byte, error) {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return b, nil
}

func unmapMemory(b []byte) { _ = syscall.Munmap(b) }
