//go:build unix

package iwarp

import (
	"os"
	"syscall"
)

// mapFile maps the part of File that holds the memory.
func (m *mapping) mapFile() error {
	conn, err := m.of.File.SyscallConn()
	if err != nil {
		return err
	}
	within := m.of.Addr % uint64(os.Getpagesize())
	var mapErr error
	err = conn.Control(func(fd uintptr) {
		m.file, mapErr = syscall.Mmap(int(fd), int64(m.of.Addr-within), int(within+m.of.Len), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	})
	if err != nil {
		return err
	}
	if mapErr != nil {
		return os.NewSyscallError("mmap", mapErr)
	}
	m.buf = m.file[within:]
	return nil
}

// unmap ends the mapping. Nothing may use its memory anymore.
func (m *mapping) unmap() {
	if m != nil && m.file != nil {
		_ = syscall.Munmap(m.file)
		m.file, m.buf = nil, nil
	}
}
