package iwarp

import (
	"os"
	"syscall"
	"unsafe"
)

// supported: the fast path below is there.
const supported = true

// errAgain is what a socket says that has nothing to give or no room.
const errAgain = syscall.EAGAIN

type iovec = syscall.Iovec

// setIovec makes v name b, which must not be empty. The pointer in v is one
// that the garbage collector knows, so v keeps b alive.
func setIovec(v *iovec, b []byte) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
}

// advanceIovec drops the first n bytes of v.
func advanceIovec(v *iovec, n int) {
	v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
	v.SetLen(int(v.Len) - n)
}

func iovecLen(v *iovec) int { return int(v.Len) }

// readv reads without waiting: the descriptor is in non-blocking mode. n is
// zero with a nil error at the end of the stream.
func readv(fd int, v []iovec) (n int, err error) {
	if len(v) == 1 {
		n, err = call(syscall.SYS_READ, fd, unsafe.Pointer(v[0].Base), iovecLen(&v[0]))
	} else {
		n, err = call(syscall.SYS_READV, fd, unsafe.Pointer(unsafe.SliceData(v)), len(v))
	}
	raceAcquire(fd)
	return n, err
}

// writev writes what the socket takes without waiting.
func writev(fd int, v []iovec) (n int, err error) {
	raceRelease()
	if len(v) == 1 {
		return call(syscall.SYS_WRITE, fd, unsafe.Pointer(v[0].Base), iovecLen(&v[0]))
	}
	return call(syscall.SYS_WRITEV, fd, unsafe.Pointer(unsafe.SliceData(v)), len(v))
}

// call makes a system call on n bytes or elements at p. A vector of one is not
// worth its price: the plain calls save the kernel a copy of it.
func call(trap uintptr, fd int, p unsafe.Pointer, n int) (int, error) {
	for {
		r, _, e := syscall.Syscall(trap, uintptr(fd), uintptr(p), uintptr(n))
		switch e {
		case 0:
			return int(r), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, errAgain
		default:
			return 0, e
		}
	}
}

// peek reports whether a byte is waiting in the socket, or its end.
func peek(fd int) (waiting, eof bool) {
	var b [1]byte
	n, _, err := syscall.Recvfrom(fd, b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	switch {
	case err == syscall.EAGAIN || err == syscall.EINTR:
		return false, false
	case err != nil || n == 0:
		return false, true
	}
	return true, false
}

func shutdownWrite(fd int) { syscall.Shutdown(fd, syscall.SHUT_WR) }

// resetOnClose makes close abandon what is unsent and tell the peer so.
func resetOnClose(fd int) {
	syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
}

// segmentSize is the effective maximum segment size of a TCP socket (tcp(7),
// TCP_MAXSEG), or 0.
func segmentSize(fd int) int {
	n, err := syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_MAXSEG)
	if err != nil {
		return 0
	}
	return n
}

// A socket is a TCP connection after set-up, on a descriptor of its own that
// the runtime's poller watches. Its system calls are made directly: under
// Conn.txMu and Conn.rxMu, of which Close takes both before it closes.
type socket struct {
	f  *os.File
	rc syscall.RawConn
	fd int
}
