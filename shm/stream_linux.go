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

// A page is the state that one end publishes at the start of its memory, before its ring. Its owner writes it and the
// other end reads it. Each word has its own cache line.
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

// pageLen is the length of the first part of a memory. The ring follows, with a power of two bytes. The rest is the
// arena.
const pageLen = 4096

// A memory is a page, a ring and an arena, as they are mapped.
type memory struct {
	*page
	ring  []byte
	arena []byte
	all   []byte
}

// piece is the number of bytes that are copied before the other end is notified, so that it can go on meanwhile.
const piece = 64 << 10

var errRing = errors.New("a position outside of the ring")

// A stream is the connection of two rings.
type stream struct {
	mine, theirs memory
	pool         *pool // of mine, which it unmaps
	at           *neighbor
	number, peer uint32 // of this connection, in the hints of the other end, and of this one
	parker
	conn  *net.UnixConn
	gone  atomic.Bool // conn has ended, and so has the other process, or its end of the connection
	watch sync.WaitGroup

	lends atomic.Uint64

	reader struct {
		head   uint64
		rung   uint32 // the value of theirs.writeParks for which a hint has been given
		placed uint64
	}
	writer struct {
		tail uint64
		head uint64 // theirs.head when it was last looked at
		rung uint32
	}
}

var _ llp.Sharer = (*stream)(nil)

// newStream connects the memories and starts to watch conn. It takes ownership of number and of a reference to at.
func newStream(mine, theirs memory, at *neighbor, number, peer uint32, conn *net.UnixConn) *stream {
	s := &stream{mine: mine, theirs: theirs, pool: newPool(mine), at: at, number: number, peer: peer, conn: conn}
	s.parker.init(at)
	at.enter(number, s)
	s.watch.Go(func() {
		// Nothing is sent here after setup: Read returns when the peer ends, or on Close.
		conn.Read(make([]byte, 1))
		s.gone.Store(true)
		s.places[hintRead].wake()
		s.places[hintWrite].wake()
	})
	return s
}

// readable returns the number of bytes that can be read.
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
		// Load the end before the ring: bytes written before the end are still delivered.
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
	llp.RaceAcquire(s.at.bellFD)
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

// freed wakes the other end's writer once half of the ring is free. For less it would wake too often.
func (s *stream) freed() {
	if w := s.theirs.writeParks.Load(); w != s.reader.rung && s.theirs.tail.Load()-s.reader.head <= uint64(len(s.theirs.ring)/2) {
		s.reader.rung = w
		s.at.tell(hintOf(s.peer, hintWrite))
	}
}

// room returns a lower bound of the number of bytes that can be written. While that is half of the ring it does not load
// the reader's position: each load moves its cache line between processors.
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

// say publishes the bytes written so far to the other end.
func (s *stream) say() {
	llp.RaceRelease()
	s.mine.tail.Store(s.writer.tail)
	if r := s.theirs.readParks.Load(); r != s.writer.rung {
		s.writer.rung = r
		s.at.tell(hintOf(s.peer, hintRead))
	}
}

// ArmRead implements llp.Stream. Either this end sees the bytes that the other end writes, or the other end sees the new
// value: each stores before it loads.
func (s *stream) ArmRead() bool {
	s.mine.readParks.Add(1)
	return s.Ready()
}

// ArmWrite implements llp.Stream.
func (s *stream) ArmWrite() bool {
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
	s.at.tell(hintOf(s.peer, hintRead))
	s.at.tell(hintOf(s.peer, hintWrite))
}

// Parker implements llp.Stream.
func (s *stream) Parker() llp.Parker { return &s.parker }

// Close implements llp.Stream.
func (s *stream) Close() {
	s.conn.Close()
	s.watch.Wait()
	s.at.exit(s.number)
	s.at.release()
	s.pool.drop()
	s.theirs.unmap()
}

func (m *memory) unmap() {
	if m.all != nil {
		unix.Munmap(m.all)
	}
	*m = memory{}
}

// mapped returns the memory in a mapping.
func mapped(all []byte, ring int) memory {
	return memory{(*page)(unsafe.Pointer(unsafe.SliceData(all))), all[pageLen : pageLen+ring], all[pageLen+ring:], all}
}

// newFile creates a file of size bytes for the other end to map, and maps it. Its pages take memory once they are used.
func newFile(size int) (all []byte, fd int, err error) {
	fd, err = unix.MemfdCreate("rpcrdma-shm", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, os.NewSyscallError("memfd_create", err)
	}
	if err = os.NewSyscallError("ftruncate", unix.Ftruncate(fd, int64(size))); err == nil {
		all, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		err = os.NewSyscallError("mmap", err)
	}
	// F_SEAL_FUTURE_WRITE: the other end cannot map it writable. Kernels before 5.1 do not have this seal.
	if err == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_FUTURE_WRITE); err != nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			err = os.NewSyscallError("fcntl", err)
		}
	}
	if err != nil {
		if all != nil {
			unix.Munmap(all)
		}
		unix.Close(fd)
		return nil, -1, err
	}
	return all, fd, nil
}

// newMemory returns the memory of this end, and the file to pass to the other end.
func newMemory(cfg *Config) (m memory, fd int, err error) {
	all, fd, err := newFile(pageLen + cfg.Ring + max(cfg.Arena, 0))
	if err == nil {
		m = mapped(all, cfg.Ring)
		m.ringLen.Store(uint64(cfg.Ring))
	}
	return m, fd, err
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// mapFile maps a file of the other end, if its pages cannot vanish under this process: it must be sealed, and not have
// huge pages, which may run out when a hole is touched.
func mapFile(fd, least, most int) ([]byte, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); err != nil {
		return nil, err
	}
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	switch {
	case err != nil || have&seals != seals || fs.Type != unix.TMPFS_MAGIC:
		return nil, errors.New("the peer's memory is not sealed")
	case st.Size < int64(least) || st.Size > int64(most):
		return nil, fmt.Errorf("the peer's memory has %d bytes", st.Size)
	}
	all, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	return all, os.NewSyscallError("mmap", err)
}

// theirMemory maps the other end's memory.
func theirMemory(fd int) (memory, error) {
	all, err := mapFile(fd, pageLen+MinRing, pageLen+MaxRing+MaxArena)
	if err != nil {
		return memory{}, err
	}
	m := mapped(all, 0)
	ring := m.ringLen.Load()
	if ring < MinRing || ring > min(MaxRing, uint64(len(m.arena))) || ring&(ring-1) != 0 {
		m.unmap()
		return memory{}, fmt.Errorf("the peer's ring has %d bytes", ring)
	}
	return mapped(all, int(ring)), nil
}

// checkBell refuses a descriptor that is not a bell: on others a call with MSG_DONTWAIT might block.
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
