package shm

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A board is memory in which its owner lists the connections that the other process should look at. The other process
// maps it read-only.
type board struct {
	tail  atomic.Uint64 // number of hints given by the owner
	_     [56]byte
	parks atomic.Uint32 // changes when the owner parks to wait for a change of the other end's tail
	_     [60]byte
	hints [boardHints]atomic.Uint32
}

// boardHints is the number of hints that a board keeps, the latest ones. The owner never waits for room. A reader that
// has missed hints looks at all connections.
const boardHints = 1 << 12

const boardLen = (int(unsafe.Sizeof(board{})) + pageLen - 1) &^ (pageLen - 1)

// A hint names a connection, by the number that the other end has given it, and the goroutine to wake: its reader or
// its writer.
type hint uint32

const (
	hintRead = iota
	hintWrite
	hintBits = 1
)

func hintOf(number uint32, which uint32) hint { return hint(number<<hintBits | which) }

// A neighbor is the process at the other end of some connections. They share one board in each direction, and a pair
// of sockets. A message that wakes the other process makes a system call. Later messages make none until all goroutines
// that it has woken there have run.
//
// The peer cannot harm others with its board: a wrong hint makes a goroutine of one of its own connections look in vain.
type neighbor struct {
	of   *neighbors
	key  neighborKey // in of.known, if it is there
	refs int         // setups and connections; guarded by of.mu

	mine, theirs *board
	file         int      // of mine, -1 without one
	bell         *os.File // one of the pair of sockets: a byte written to it wakes the leader at the other end
	bellFD       int
	rc           syscall.RawConn       // of bell
	step         func(fd uintptr) bool // armed
	leader       atomic.Pointer[place]
	none         place // the leader until the goroutine chosen to lead next has woken

	send struct { // for goroutines giving hints
		sync.Mutex
		tail uint64
		rung uint32 // the value of theirs.parks for which the bell has been rung
	}
	recv struct { // for goroutines that park
		sync.Mutex
		conns     []*stream // by number; nil: no connection, or one being set up
		free      []uint32
		followers []*place // candidates to succeed the leader, the latest last; some no longer follow
	}
	head uint64 // number of hints read by the leader
	arms uint32 // since the bytes of bell were read
}

// A neighborKey identifies a neighbor. The end that connects knows it by its address, the other end by the file of the
// peer's board. Only a process that has that file can join.
type neighborKey struct {
	target   string
	dev, ino uint64
}

// Neighbors are the neighbors of a Provider.
type neighbors struct {
	mu    sync.Mutex
	known map[neighborKey]*neighbor
}

// find returns the neighbor with a key, or nil. The caller must release it.
func (ns *neighbors) find(key neighborKey) *neighbor {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := ns.known[key]
	if n != nil {
		n.refs++
	}
	return n
}

// boardKey returns the key of the neighbor whose board is the file fd.
func boardKey(fd int) (key neighborKey, err error) {
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return neighborKey{dev: uint64(st.Dev), ino: st.Ino}, err
}

// newNeighbor returns a neighbor with a board for this end. The caller must release it. newNeighbor takes ownership of
// bell.
func (ns *neighbors) newNeighbor(bell int) (*neighbor, error) {
	all, fd, err := newFile(boardLen)
	if err != nil {
		unix.Close(bell)
		return nil, err
	}
	n := &neighbor{of: ns, refs: 1, file: fd, bell: os.NewFile(uintptr(bell), "bell"), bellFD: bell}
	n.mine = (*board)(unsafe.Pointer(unsafe.SliceData(all)))
	n.step = n.armed
	if n.rc, err = n.bell.SyscallConn(); err != nil {
		n.release()
		return nil, err
	}
	return n, nil
}

// meet maps the other end's board and registers n under key, replacing any other neighbor.
func (n *neighbor) meet(fd int, key neighborKey) error {
	all, err := mapFile(fd, boardLen, boardLen)
	if err != nil {
		return err
	}
	n.theirs = (*board)(unsafe.Pointer(unsafe.SliceData(all)))
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if n.of.known == nil {
		n.of.known = make(map[neighborKey]*neighbor)
	}
	n.key = key
	n.of.known[key] = n
	return nil
}

// release drops a reference. The last one closes the neighbor.
func (n *neighbor) release() {
	n.of.mu.Lock()
	n.refs--
	last := n.refs == 0
	if last && n.of.known[n.key] == n {
		delete(n.of.known, n.key)
	}
	n.of.mu.Unlock()
	if !last {
		return
	}
	n.bell.Close()
	n.closeFile()
	for _, b := range []*board{n.mine, n.theirs} {
		if b != nil {
			unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(b)), boardLen))
		}
	}
}

// closeFile closes the file of this end's board once no setup needs to pass it to the peer.
func (n *neighbor) closeFile() {
	if n.file >= 0 {
		unix.Close(n.file)
		n.file = -1
	}
}

// number returns a number for a connection. exit frees it.
func (n *neighbor) number() uint32 {
	n.recv.Lock()
	defer n.recv.Unlock()
	if k := len(n.recv.free); k > 0 {
		i := n.recv.free[k-1]
		n.recv.free = n.recv.free[:k-1]
		return i
	}
	n.recv.conns = append(n.recv.conns, nil)
	return uint32(len(n.recv.conns) - 1)
}

// enter makes hints with that number wake goroutines of s.
func (n *neighbor) enter(number uint32, s *stream) {
	n.recv.Lock()
	n.recv.conns[number] = s
	n.recv.Unlock()
}

func (n *neighbor) exit(number uint32) {
	n.recv.Lock()
	n.recv.conns[number] = nil
	n.recv.free = append(n.recv.free, number)
	n.recv.Unlock()
}

// tell gives the other end a hint. It never waits, whatever the peer has done to the socket: a socket without room for
// another byte is readable at the other end already.
func (n *neighbor) tell(h hint) {
	n.send.Lock()
	n.mine.hints[n.send.tail%boardHints].Store(uint32(h))
	n.send.tail++
	n.mine.tail.Store(n.send.tail)
	parks := n.theirs.parks.Load()
	wake := parks != n.send.rung
	n.send.rung = parks
	n.send.Unlock()
	if wake {
		var b byte
		syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(n.bellFD), uintptr(unsafe.Pointer(&b)), 1,
			syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
	}
}

// wait returns once p has been woken, and sometimes spuriously. One of the parked goroutines leads: it reads hints and
// waits for the bell. The others follow, each waiting on its own channel. So the goroutine of a single connection wakes
// without help from another goroutine.
func (n *neighbor) wait(p *place) {
	if n.leader.Load() == p || n.leader.CompareAndSwap(nil, p) {
		n.lead(p)
		return
	}
	p.follows.Store(following)
	if !p.listed.Load() {
		n.recv.Lock()
		p.listed.Store(true)
		n.recv.followers = append(n.recv.followers, p)
		n.recv.Unlock()
	}
	// Either the leader has already left, or it finds p: see leave.
	if !n.leader.CompareAndSwap(nil, p) && !p.due.Load() {
		<-p.woken
	}
	if p.follows.Swap(apart) == chosen {
		n.leader.Store(p)
	}
	p.due.Store(false)
}

// lead leads until p has been woken. The goroutines that it wakes run before it looks again: hints that arrive meanwhile
// need no system call.
func (n *neighbor) lead(p *place) {
	for {
		hints := n.look()
		if p.due.Load() {
			p.due.Store(false)
			return
		}
		if hints {
			runtime.Gosched()
		} else if n.rc.Read(n.step) != nil {
			n.bell.SetReadDeadline(time.Time{}) // of place.wake
		}
	}
}

// leave passes the lead to a follower, if there is one. The caller must lead.
func (n *neighbor) leave() {
	n.leader.Store(&n.none) // so that no other goroutine takes the lead
	n.recv.Lock()
	defer n.recv.Unlock()
	for k := len(n.recv.followers) - 1; k >= 0; k-- {
		f := n.recv.followers[k]
		n.recv.followers[k] = nil
		n.recv.followers = n.recv.followers[:k]
		f.listed.Store(false)
		if f.follows.CompareAndSwap(following, chosen) {
			f.mark()
			return
		}
		// Its goroutine has woken already. It lists the place again when it parks.
	}
	n.leader.Store(nil)
}

// maxArms bounds the bytes in the socket, one for each value of parks. The leader does not read them each time they wake
// it: Go's poller is edge-triggered, so each new byte makes the socket readable again.
const maxArms = 16

// armed is a step of the leader. Either this end sees the hint, or the other end sees that this end parks: each stores
// before it loads.
func (n *neighbor) armed(uintptr) bool {
	if n.theirs.tail.Load() != n.head {
		return true
	}
	if n.arms++; n.arms%maxArms == 0 {
		var b [4 * maxArms]byte
		syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(n.bellFD), uintptr(unsafe.Pointer(&b)), uintptr(len(b)), syscall.MSG_DONTWAIT, 0, 0)
	}
	n.mine.parks.Add(1)
	return n.theirs.tail.Load() != n.head
}

// look reads the available hints once and wakes the goroutines that they name. It reports whether there were any.
func (n *neighbor) look() bool {
	tail := n.theirs.tail.Load()
	if tail == n.head {
		return false
	}
	n.recv.Lock()
	if tail-n.head < boardHints {
		for at := n.head; at != tail; at++ {
			h := n.theirs.hints[at%boardHints].Load()
			if i := h >> hintBits; i < uint32(len(n.recv.conns)) && n.recv.conns[i] != nil {
				n.recv.conns[i].places[h&hintWrite].mark()
			}
		}
	}
	// The owner overwrites the oldest hint before it advances tail.
	if n.theirs.tail.Load()-n.head >= boardHints {
		for _, s := range n.recv.conns {
			if s != nil {
				s.places[hintRead].mark()
				s.places[hintWrite].mark()
			}
		}
	}
	n.recv.Unlock()
	n.head = tail
	return true
}

// newBell returns the bells of both ends.
func newBell() (mine, theirs int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, os.NewSyscallError("socketpair", err)
	}
	return pair[0], pair[1], nil
}
