//go:build linux && cgo

package ibv

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A MemlockError means that memory could not be registered, or a queue not be created, probably because of the limit on
// locked memory. It unwraps to the errno.
type MemlockError struct {
	Call      string
	Device    string
	Limit     uint64 // RLIMIT_MEMLOCK, in bytes
	Locked    uint64 // bytes locked and pinned by the process before the call
	Requested uint64 // bytes that the call needed; an estimate for queues
	Err       error
}

func (e *MemlockError) Error() string {
	return fmt.Sprintf("ibv: %s on %s: %v: locked memory is limited to %d bytes, %d are in use and %d more were needed: "+
		"raise it with ulimit -l, LimitMEMLOCK= (systemd) or --ulimit memlock=-1 (containers), or give the process CAP_IPC_LOCK",
		e.Call, e.Device, e.Err, e.Limit, e.Locked, e.Requested)
}

func (e *MemlockError) Unwrap() error { return e.Err }

// memoryError returns the error of a call that needed about requested bytes of locked memory.
func (c *Context) memoryError(call string, errno syscall.Errno, requested uint64) error {
	return lockedMemory().explain(call, c.device, errno, requested)
}

// A memlock describes how much memory the process may lock, in bytes.
type memlock struct {
	limit  uint64
	locked uint64
	exempt bool // no limit applies
}

// explain returns the error of a call that failed with errno. The error is a *MemlockError if the limit is the likely
// reason.
func (m memlock) explain(call, device string, errno syscall.Errno, requested uint64) error {
	switch errno {
	case syscall.ENOMEM, syscall.EAGAIN, syscall.EPERM:
		if !m.exempt && m.locked+requested > m.limit {
			return &MemlockError{Call: call, Device: device, Limit: m.limit, Locked: m.locked, Requested: requested, Err: errno}
		}
	}
	return &Error{Call: call, Device: device, Err: errno}
}

// lockedMemory queries the kernel. It assumes no limit if the kernel does not answer.
func lockedMemory() memlock {
	m := memlock{exempt: true}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
		m.limit, m.exempt = limit.Cur, false
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0 {
		m.exempt = true
	}
	if f, err := os.Open("/proc/self/status"); err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var kB uint64
			if v, ok := strings.CutPrefix(lines.Text(), "VmLck:"); ok {
				fmt.Sscan(v, &kB)
			} else if v, ok := strings.CutPrefix(lines.Text(), "VmPin:"); ok {
				fmt.Sscan(v, &kB)
			}
			m.locked += kB << 10
		}
	}
	return m
}

// pageBytes returns the size of the pages that buf covers.
func pageBytes(buf []byte) uint64 {
	page := uint64(os.Getpagesize())
	first := addrOf(buf) &^ (page - 1)
	return (addrOf(buf) + uint64(len(buf)) - first + page - 1) &^ (page - 1)
}

// cqBytes estimates the size of the entries of a completion queue.
func cqBytes(cqe int) uint64 { return uint64(max(cqe, 0)) * 64 }

// wqBytes estimates the size of the entries of a work queue: a header plus the SGEs or inline data.
func wqBytes(wrs, sges, inline uint32) uint64 {
	return uint64(wrs) * (64 + max(16*uint64(sges), uint64(inline)))
}
