//go:build linux && cgo

package cgotest

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A signal is a descriptor that is readable while events wait. As with the kernel's channels, every event is an edge
// for a poller.
type signal struct {
	fd int
	n  int
}

func newSignal() (*signal, error) {
	fd, err := unix.Eventfd(0, unix.EFD_SEMAPHORE|unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return &signal{fd: fd}, nil
}

func (s *signal) raise() {
	s.n++
	unix.Write(s.fd, binary.NativeEndian.AppendUint64(nil, 1))
}

// take reports whether there was an event, and removes it.
func (s *signal) take() bool {
	if s.n == 0 {
		return false
	}
	s.n--
	var b [8]byte
	unix.Read(s.fd, b[:])
	return true
}

func (s *signal) close() { unix.Close(s.fd) }
