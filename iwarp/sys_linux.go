package iwarp

import (
	"net"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/internal/llp"
)

// supported reports that this platform has the system calls below.
const supported = true

// errAgain is the error of a socket that is not ready.
const errAgain = syscall.EAGAIN

type iovec = llp.Iovec

// setIovec points v at b, which must not be empty. The pointer in v is visible to the garbage collector, so v keeps b
// alive.
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

func iovecBytes(v *iovec) []byte { return unsafe.Slice(v.Base, int(v.Len)) }

// readv reads without waiting, because the descriptor is in non-blocking mode. At the end of the stream n is zero and
// err is nil. For a single buffer, read is cheaper than readv: the kernel need not copy the vector.
func readv(fd int, v []iovec) (n int, err error) {
	if len(v) == 1 {
		n, err = call(syscall.SYS_READ, fd, unsafe.Pointer(v[0].Base), iovecLen(&v[0]))
	} else {
		n, err = call(syscall.SYS_READV, fd, unsafe.Pointer(unsafe.SliceData(v)), len(v))
	}
	return n, err
}

// writev writes what the socket accepts without waiting.
func writev(fd int, v []iovec) (n int, err error) {
	if len(v) == 1 {
		return call(syscall.SYS_WRITE, fd, unsafe.Pointer(v[0].Base), iovecLen(&v[0]))
	}
	return call(syscall.SYS_WRITEV, fd, unsafe.Pointer(unsafe.SliceData(v)), len(v))
}

// call makes a system call on n bytes or elements at p.
//
// A short call is not announced to the scheduler, because it does not wait. Announcing it would wake the runtime's
// monitor after each idle moment, which on a virtual machine takes longer than the call itself.
func call(trap uintptr, fd int, p unsafe.Pointer, n int) (int, error) {
	for {
		var r uintptr
		var e syscall.Errno
		if n <= short && (trap == syscall.SYS_READ || trap == syscall.SYS_WRITE) {
			r, _, e = syscall.RawSyscall(trap, uintptr(fd), uintptr(p), uintptr(n))
		} else {
			r, _, e = syscall.Syscall(trap, uintptr(fd), uintptr(p), uintptr(n))
		}
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

// short is a number of bytes that the kernel copies in a few microseconds.
const short = 16 << 10

// peek reports whether the socket has bytes to read, or is at the end of the stream.
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

// A tcp is the stream of a TCP socket, in non-blocking mode.
type tcp struct {
	f  *os.File
	fd int
}

func (s *tcp) Readv(v []iovec) (int, error) {
	n, err := readv(s.fd, v)
	llp.RaceAcquire(s.fd)
	return n, err
}

func (s *tcp) Writev(v []iovec) (int, error) {
	llp.RaceRelease()
	return writev(s.fd, v)
}

func (s *tcp) CloseWrite() { syscall.Shutdown(s.fd, syscall.SHUT_WR) }

// Abort makes close discard unsent data and reset the connection.
func (s *tcp) Abort() {
	syscall.SetsockoptLinger(s.fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
}

// The kernel arms a TCP socket, and closing its file closes it, so these methods do nothing.
func (s *tcp) Ready() bool    { return true }
func (s *tcp) ArmRead() bool  { return false }
func (s *tcp) ArmWrite() bool { return false }
func (s *tcp) Close()         {}

// Parker implements llp.Stream.
func (s *tcp) Parker() llp.Parker {
	rc, _ := s.f.SyscallConn() // fails only if f is nil
	return &parker{s.f, rc}
}

// A parker parks goroutines in the runtime's poller, which watches the file.
type parker struct {
	*os.File
	rc syscall.RawConn
}

// Read and Write implement llp.Parker.
func (p *parker) Read(step func(uintptr) bool) error  { return p.rc.Read(step) }
func (p *parker) Write(step func(uintptr) bool) error { return p.rc.Write(step) }

// segmentSize returns the effective maximum segment size of a TCP socket (tcp(7), TCP_MAXSEG), or 0.
func segmentSize(fd int) int {
	n, err := syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_MAXSEG)
	if err != nil {
		return 0
	}
	return n
}

// setKeepAlive enables TCP keep-alive with the intervals of package net.
func setKeepAlive(fd int) {
	for _, o := range [...]struct{ level, name, value int }{
		{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 15},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 15},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 9},
	} {
		syscall.SetsockoptInt(fd, o.level, o.name, o.value)
	}
}

// unpace selects Reno congestion control if a, an address of the connection, is a loopback address. Congestion control
// that paces, such as BBR, delays segments with timers to keep queues in the network short. Within a host there is no
// network, and the timer interrupts cost more than the copies: BBR needs up to ten per MiB, Reno one for several MiB.
// The listener must select Reno, too, for accepted sockets to inherit it: a socket that has begun to pace continues to.
// If Reno is not permitted, the system's default remains.
func unpace(fd int, a *net.TCPAddr) {
	if a.IP.IsLoopback() {
		syscall.SetsockoptString(fd, syscall.IPPROTO_TCP, syscall.TCP_CONGESTION, "reno")
	}
}

// A socket is a stream and the parker on which goroutines wait for it. Over TCP the parker is the runtime's poller,
// which watches f. A net.TCPConn would cost a third more system calls per connection, and an allocation for each
// unpark. After setup the stream is used under Conn.tx or Conn.rx. Close locks both before it closes the parker.
type socket struct {
	at     llp.Parker
	f      *os.File // over TCP, like fd
	fd     int
	stream llp.Stream

	secured *secured // stream, if it uses TLS
}

// newSocket returns a socket that owns fd, which must be in non-blocking mode.
func newSocket(fd int) socket {
	f := os.NewFile(uintptr(fd), "tcp")
	s := streamSocket(&tcp{f, fd})
	s.f, s.fd = f, fd
	return s
}

// streamSocket returns a socket for any stream.
func streamSocket(stream llp.Stream) socket { return socket{at: stream.Parker(), stream: stream} }

// startConnect begins to connect a new socket to a. If finish is not nil, the caller must call it whenever the socket
// becomes writable, until it is done.
func startConnect(a *net.TCPAddr) (s socket, finish func() (done bool, err error), err error) {
	family, to, err := sockaddr(a)
	if err != nil {
		return socket{}, nil, err
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return socket{}, nil, os.NewSyscallError("socket", err)
	}
	syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	unpace(fd, a)
	// connect(2): a non-blocking connect reports success only to a later call. If the peer is on this host, a second
	// call succeeds at once.
	finish = func() (bool, error) {
		switch err := syscall.Connect(fd, to); err {
		case nil, syscall.EISCONN:
			return true, nil
		case syscall.EINPROGRESS, syscall.EALREADY, syscall.EINTR:
			return false, nil
		default:
			return true, os.NewSyscallError("connect", err)
		}
	}
	done, err := finish()
	if !done {
		done, err = finish()
	}
	if err != nil {
		syscall.Close(fd)
		return socket{}, nil, err
	}
	if done {
		finish = nil
	}
	return newSocket(fd), finish, nil
}

// listeningSocket returns a duplicate of the socket of l, with the options that accepted sockets inherit.
func listeningSocket(l *net.TCPListener) (socket, error) {
	f, err := l.File()
	if err != nil {
		return socket{}, err
	}
	rc, err := f.SyscallConn()
	s := socket{at: &parker{f, rc}, f: f}
	if err == nil {
		err = rc.Control(func(fd uintptr) { s.fd = int(fd) })
	}
	if err != nil {
		f.Close()
		return socket{}, err
	}
	// Accepted sockets inherit the options (tcp(7)). The initiator sends first, so accepting a connection can wait up
	// to a second for the first bytes.
	syscall.SetsockoptInt(s.fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	syscall.SetsockoptInt(s.fd, syscall.IPPROTO_TCP, syscall.TCP_DEFER_ACCEPT, 1)
	setKeepAlive(s.fd)
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		unpace(s.fd, a)
	}
	return s, nil
}

// acceptSocket accepts a connection. If no connection is waiting, it returns errAgain.
func acceptSocket(fd int) (socket, *net.TCPAddr, error) {
	for {
		n, from, err := syscall.Accept4(fd, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		switch err {
		case nil:
			peer := tcpAddr(from)
			unpace(n, peer)
			return newSocket(n), peer, nil
		case syscall.EINTR, syscall.ECONNABORTED:
		case syscall.EAGAIN:
			return socket{}, nil, errAgain
		default:
			return socket{}, nil, err
		}
	}
}

// yield yields the processor to other processes.
func yield() { syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }

func localAddr(fd int) (*net.TCPAddr, error) {
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	return tcpAddr(sa), nil
}

// sockaddr converts a for a system call. An empty IP means the local host, as with package net.
func sockaddr(a *net.TCPAddr) (family int, sa syscall.Sockaddr, err error) {
	if ip := a.IP.To4(); ip != nil || len(a.IP) == 0 {
		sa := &syscall.SockaddrInet4{Port: a.Port}
		copy(sa.Addr[:], ip)
		return syscall.AF_INET, sa, nil
	}
	sa6 := &syscall.SockaddrInet6{Port: a.Port}
	copy(sa6.Addr[:], a.IP.To16())
	if a.Zone != "" {
		if ifi, err := net.InterfaceByName(a.Zone); err == nil {
			sa6.ZoneId = uint32(ifi.Index)
		} else if n, err := strconv.ParseUint(a.Zone, 10, 32); err == nil {
			sa6.ZoneId = uint32(n)
		} else {
			return 0, nil, &net.AddrError{Err: "unknown zone", Addr: a.String()}
		}
	}
	return syscall.AF_INET6, sa6, nil
}

// tcpAddr converts an address returned by a system call.
func tcpAddr(sa syscall.Sockaddr) *net.TCPAddr {
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		return &net.TCPAddr{IP: net.IP(sa.Addr[:]), Port: sa.Port}
	case *syscall.SockaddrInet6:
		a := &net.TCPAddr{IP: net.IP(sa.Addr[:]), Port: sa.Port}
		if sa.ZoneId != 0 {
			a.Zone = strconv.Itoa(int(sa.ZoneId))
			if ifi, err := net.InterfaceByIndex(int(sa.ZoneId)); err == nil {
				a.Zone = ifi.Name
			}
		}
		return a
	}
	return &net.TCPAddr{}
}
