package pollfd

import (
	"encoding/binary"
	"os"
	"syscall"
)

// A Turn is for goroutines that poll in a loop. With GOMAXPROCS 1, Go's scheduler does not check descriptors while a
// goroutine is runnable, and runtime.Gosched does not change that: a goroutine parked on a descriptor waits for the
// runtime's monitor, which checks every 10 ms.
type Turn struct {
	file  *os.File
	raw   syscall.RawConn
	taken bool
	step  func(uintptr) bool // made once, so that Take allocates nothing
}

// one adds 1 to the counter of an eventfd(2). Immutable.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// NewTurn opens a descriptor.
func NewTurn() (*Turn, error) {
	fd, _, errno := syscall.RawSyscall(syscall.SYS_EVENTFD2, 0, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("eventfd", errno)
	}
	t := &Turn{file: os.NewFile(fd, "eventfd")}
	var err error
	if t.raw, err = t.file.SyscallConn(); err != nil {
		t.file.Close()
		return nil, err
	}
	t.step = func(fd uintptr) bool {
		if t.taken {
			return true
		}
		// Every write is an edge, even if the previous one has not been read.
		t.taken = true
		n, err := syscall.Write(int(fd), one)
		return n != len(one) || err != nil
	}
	return t, nil
}

// Take parks until Go has checked all descriptors once more, so that goroutines parked on ready ones run. It must not
// be called concurrently.
func (t *Turn) Take() {
	t.taken = false
	t.raw.Read(t.step)
}

// Close closes the descriptor; Take then returns at once.
func (t *Turn) Close() error { return t.file.Close() }
