//go:build unix

// Package pollfd parks goroutines on a descriptor that belongs to a C library:
// the completion channels of libibverbs, the event channels of librdmacm.
package pollfd

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrWoken is returned by Await after Wake.
var ErrWoken = errors.New("pollfd: woken")

// An FD waits for a descriptor in Go's poller. It holds a duplicate: the library closes the original, and each closes
// only its own.
type FD struct {
	file  *os.File
	raw   syscall.RawConn
	woken atomic.Bool
	ended atomic.Bool
	try   func() bool
	step  func(uintptr) bool // calls try; made once, so that Await allocates nothing
}

// New makes fd, and thus every duplicate, non-blocking. The name is used in errors.
func New(fd int, name string) (*FD, error) {
	dup, err := syscall.Dup(fd)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	syscall.CloseOnExec(dup)
	if err := syscall.SetNonblock(dup, true); err != nil {
		syscall.Close(dup)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &FD{file: os.NewFile(uintptr(dup), name)}
	if p.raw, err = p.file.SyscallConn(); err == nil {
		// A descriptor that the poller does not support would block a thread.
		err = p.file.SetReadDeadline(time.Time{})
	}
	if err != nil {
		p.file.Close()
		return nil, fmt.Errorf("pollfd: %s cannot be waited for: %w", name, err)
	}
	p.step = func(uintptr) bool { return p.try() }
	return p, nil
}

// Await calls try until it returns true, and parks between calls until the descriptor becomes readable. It returns nil
// once try has returned true, ErrWoken after Wake and os.ErrClosed after Close. The poller is edge-triggered: try must
// take all available events, and request the next one itself. Await must not be called concurrently.
func (p *FD) Await(try func() bool) error {
	if p.woken.Swap(false) {
		return ErrWoken
	}
	p.try = try
	err := p.raw.Read(p.step)
	p.try = nil
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// Reset the deadline first: a Wake from here on sets it again.
		p.file.SetReadDeadline(time.Time{})
		p.woken.Store(false)
		return ErrWoken
	}
	if err != nil && p.ended.Load() {
		return os.ErrClosed // the poller has its own error for that
	}
	return err
}

// Wake makes the current Await, or else the next one, return ErrWoken. Several calls may count as one, and one may end
// two calls of Await.
func (p *FD) Wake() {
	p.woken.Store(true)
	p.file.SetReadDeadline(past)
}

// Close ends Await and closes the duplicate.
func (p *FD) Close() error {
	p.ended.Store(true)
	return p.file.Close()
}

var past = time.Unix(1, 0) // immutable
