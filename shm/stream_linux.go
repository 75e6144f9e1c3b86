package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/llp"
)

// A page is what one end says, at the front of its memory, before its ring. The end that owns it writes
// it, and the other one reads it. Each word has a cache line of its own.
type page struct {
	tail       atomic.Uint64 // bytes that the owner has written into its ring
	_          [56]byte
	head       atomic.Uint64 // bytes that it has taken from the ring of the other end
	_          [56]byte
	readParks  atomic.Uint32 // changes when it parks until there is something to read
	_          [60]byte
	writeParks atomic.Uint32 // changes when it parks until there is room to write
	_          [60]byte
	over       atomic.Uint32 // it writes nothing after tail
	_          [60]byte
	placed     atomic.Uint64 // loans of the other end from which it has taken the data
	_          [56]byte
	ringLen    atomic.Uint64 // which does not change
}

// Values of page.over.
const (
	going   = iota
	closed  // in order
	aborted // what has not been read is void
)

// pageLen is the length of the first part of a memory. The ring follows, and has a power of two bytes. The
// rest is the arena.
const pageLen = 4096

// A memory is a page, a ring and an arena, as they are mapped.
type memory struct {
	*page
	ring  []byte
	arena []byte
	all   []byte
}

// piece is how much is moved before the other end learns of it, which may go on meanwhile.
const piece = 64 << 10

var errRing = errors.New("a position outside of the ring")

// A stream is the connection of two rings.
type stream struct {
	mine, theirs memory
	pool         *pool    // of mine, which it unmaps
	bell         *os.File // one of a pair of sockets: a byte there wakes the goroutines that park on the other
	bellFD       int
	arms         atomic.Uint32 // since the bytes of bell were taken
	conn         *net.UnixConn
	gone         atomic.Bool // conn has ended, and so has the other process, or its end of the connection
	watch        sync.WaitGroup

	lends atomic.Uint64

	reader struct {
		head   uint64
		rung   uint32 // the value of theirs.writeParks for which the bell has been rung
		placed uint64
	}
	writer struct {
		tail uint64
		head uint64 // theirs.head when it was last looked at
		rung uint32
	}
}

var _ llp.Sharer = (*stream)(nil)

// newStream connects the memories and begins to watch conn.
func newStream(mine, theirs memory, bellFD int, conn *net.UnixConn) *stream {
	bell := os.NewFile(uintptr(bellFD), "bell")
	s := &stream{mine: mine, theirs: theirs, pool: newPool(mine), bell: bell, bellFD: bellFD, conn: conn}
	s.watch.Go(func() {
		// Nothing is sent here after set-up: this is the end of the peer, or that of Close.
		conn.Read(make([]byte, 1))
		s.gone.Store(true)
		if rc, err := bell.SyscallConn(); err == nil {
			// Goroutines that park see the end of this socket, unless it is closed already.
			rc.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RD) })
		}
	})
	return s
}

// ring wakes the goroutines of the other end that park. It never waits, whatever the peer has done to
// the socket: one that has no room for another byte has rung.
func (s *stream) ring() {
	var b byte
	syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(s.bellFD), uintptr(unsafe.Pointer(&b)), 1,
		syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
}

// maxArms bounds the bytes in the socket: for each value of page.readParks and writeParks there is one.
// Those that wake a goroutine are not taken, as each byte makes the socket readable anew for Go's poller.
// So many leave the socket of the other end writable, by a margin: bellBuffer.
const (
	maxArms    = 16
	bellBuffer = 128 << 10
)

// arm takes the bytes from the socket before there is no room for more. It reports whether there were
// any: a goroutine that parks may not have seen them yet.
func (s *stream) arm() bool {
	if s.arms.Add(1)%maxArms != 0 {
		return false
	}
	var b [4 * maxArms]byte
	n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.bellFD), uintptr(unsafe.Pointer(&b)), uintptr(len(b)), syscall.MSG_DONTWAIT, 0, 0)
	return errno == 0 && n > 0
}

// readable returns how many bytes there are to read.
func (s *stream) readable() (int, error) {
	n := s.theirs.tail.Load() - s.reader.head
	if n > uint64(len(s.theirs.ring)) {
		return 0, errRing
	}
	return int(n), nil
}

// Ready implements llp.Stream.
func (s *stream) Ready() bool {
	return s.theirs.tail.Load() != s.reader.head || s.theirs.over.Load() != going || s.gone.Load()
}

// Readv implements llp.Stream.
func (s *stream) Readv(v []llp.Iovec) (n int, err error) {
	there, err := s.readable()
	if err == nil && there == 0 {
		// The end is looked at first, and the ring after it: what was written before the end counts.
		gone, over := s.gone.Load(), s.theirs.over.Load()
		switch there, err = s.readable(); {
		case err != nil || there > 0 && over != aborted:
		case over > closed:
			return 0, syscall.ECONNRESET
		case over == closed || gone:
			return 0, nil
		default:
			return 0, syscall.EAGAIN
		}
	}
	if err != nil {
		return 0, err
	}
	for i := range v {
		for to := unsafe.Slice(v[i].Base, int(v[i].Len)); len(to) > 0 && there > 0; {
			from := s.theirs.ring[s.reader.head&uint64(len(s.theirs.ring)-1):]
			k := copy(to[:min(len(to), piece)], from[:min(len(from), there)])
			to, there, n = to[k:], there-k, n+k
			s.reader.head += uint64(k)
			s.mine.head.Store(s.reader.head)
			s.freed()
		}
	}
	return n, nil
}

// freed wakes the writer of the other end once half of the ring is free: for less it would wake too often.
func (s *stream) freed() {
	if w := s.theirs.writeParks.Load(); w != s.reader.rung && s.theirs.tail.Load()-s.reader.head <= uint64(len(s.theirs.ring)/2) {
		s.reader.rung = w
		s.ring()
	}
}

// room returns how many bytes can be written, at least. While that is half of the ring the position of the
// reader is left alone: with each look its cache line goes to and fro.
func (s *stream) room() (int, error) {
	w, size := &s.writer, uint64(len(s.mine.ring))
	if w.tail-w.head > size/2 {
		w.head = s.theirs.head.Load()
	}
	n := w.tail - w.head
	if n > size {
		return 0, errRing
	}
	return int(size - n), nil
}

// Writev implements llp.Stream.
func (s *stream) Writev(v []llp.Iovec) (n int, err error) {
	if s.gone.Load() {
		return 0, syscall.EPIPE
	}
	room, err := s.room()
	if err != nil {
		return 0, err
	}
	unsaid := 0
	for i := range v {
		for from := unsafe.Slice(v[i].Base, int(v[i].Len)); len(from) > 0 && room > 0; {
			to := s.mine.ring[s.writer.tail&uint64(len(s.mine.ring)-1):]
			k := copy(to[:min(len(to), room, piece)], from)
			from, room, n = from[k:], room-k, n+k
			s.writer.tail += uint64(k)
			if unsaid += k; unsaid >= piece {
				s.say()
				unsaid = 0
			}
		}
	}
	if n == 0 {
		return 0, syscall.EAGAIN
	}
	if unsaid > 0 {
		s.say()
	}
	return n, nil
}

// say tells the other end what has been written.
func (s *stream) say() {
	s.mine.tail.Store(s.writer.tail)
	if r := s.theirs.readParks.Load(); r != s.writer.rung {
		s.writer.rung = r
		s.ring()
	}
}

// ArmRead implements llp.Stream. Either this end sees what the other one writes, or that sees the new
// value: each stores first, and looks after it.
func (s *stream) ArmRead() bool {
	s.arm()
	s.mine.readParks.Add(1)
	return s.Ready()
}

// ArmWrite implements llp.Stream.
func (s *stream) ArmWrite() bool {
	if s.arm() {
		// They may have been for the reader, which parks until the socket is readable. A writer loses
		// nothing to ArmRead: the socket is writable all the time.
		s.bell.SetReadDeadline(past)
	}
	s.mine.writeParks.Add(1)
	room, err := s.room()
	return err != nil || room >= len(s.mine.ring)/2 || s.gone.Load()
}

// CloseWrite implements llp.Stream.
func (s *stream) CloseWrite() { s.end(closed) }

// Abort implements llp.Stream.
func (s *stream) Abort() { s.end(aborted) }

func (s *stream) end(how uint32) {
	s.mine.over.Store(how)
	s.ring()
}

// File implements llp.Stream.
func (s *stream) File() *os.File { return s.bell }

// Close implements llp.Stream.
func (s *stream) Close() {
	s.conn.Close()
	s.watch.Wait()
	s.pool.drop()
	s.theirs.unmap()
}

func (m *memory) unmap() {
	if m.all != nil {
		unix.Munmap(m.all)
	}
	*m = memory{}
}

// mapped makes a memory of what has been mapped.
func mapped(all []byte, ring int) memory {
	return memory{(*page)(unsafe.Pointer(unsafe.SliceData(all))), all[pageLen : pageLen+ring], all[pageLen+ring:], all}
}

// newMemory makes the memory of this end, and the file to pass to the other. Pages of it take memory once
// they have been used.
func newMemory(cfg *Config) (m memory, fd int, err error) {
	size := pageLen + cfg.Ring + max(cfg.Arena, 0)
	fd, err = unix.MemfdCreate("rpcrdma-shm", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return m, -1, os.NewSyscallError("memfd_create", err)
	}
	defer func() {
		if err != nil {
			m.unmap()
			unix.Close(fd)
		}
	}()
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return m, -1, os.NewSyscallError("ftruncate", err)
	}
	all, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return m, -1, os.NewSyscallError("mmap", err)
	}
	m = mapped(all, cfg.Ring)
	m.ringLen.Store(uint64(cfg.Ring))
	// F_SEAL_FUTURE_WRITE: the other end cannot map it to write. Kernels before 5.1 have no such seal.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_FUTURE_WRITE); err != nil {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			return m, -1, os.NewSyscallError("fcntl", err)
		}
	}
	return m, fd, nil
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// theirMemory maps the memory of the other end, if it is one that cannot vanish below this process: sealed,
// and not of huge pages, of which a hole may find none left.
func theirMemory(fd int) (memory, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); err != nil {
		return memory{}, err
	}
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	switch {
	case err != nil || have&seals != seals || fs.Type != unix.TMPFS_MAGIC:
		return memory{}, errors.New("the peer's memory is not sealed")
	case st.Size < pageLen+MinRing || st.Size > pageLen+MaxRing+MaxArena:
		return memory{}, fmt.Errorf("the peer's memory has %d bytes", st.Size)
	}
	all, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return memory{}, os.NewSyscallError("mmap", err)
	}
	m := mapped(all, 0)
	ring := m.ringLen.Load()
	if ring < MinRing || ring > min(MaxRing, uint64(len(m.arena))) || ring&(ring-1) != 0 {
		m.unmap()
		return memory{}, fmt.Errorf("the peer's ring has %d bytes", ring)
	}
	return mapped(all, int(ring)), nil
}

// newBell makes the bells of both ends.
func newBell() (mine, theirs int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range pair {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, bellBuffer); err != nil {
			closeAll(pair[:])
			return -1, -1, os.NewSyscallError("setsockopt", err)
		}
	}
	return pair[0], pair[1], nil
}

// checkBell refuses what is no bell: a call with MSG_DONTWAIT might block elsewhere.
func checkBell(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err == nil && domain != unix.AF_UNIX {
		err = errors.New("not of the Unix domain")
	}
	if err != nil {
		return fmt.Errorf("the peer's bell: %w", err)
	}
	return unix.SetNonblock(fd, true)
}
