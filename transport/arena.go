package transport

import (
	"math/bits"
	"slices"
	"sync"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// An arena hands out local buffers of a connection: memory outside the Go heap,
// in size classes, registered once where the adapter wants that, and never
// exposed to the peer by itself.
//
// It lives as long as somebody holds a reference: the connection holds one,
// and each call whose handler may still read from it. Buffers are never given
// back to the system before, since the adapter may own them.
type arena struct {
	fc       fabric.Conn
	localDMA bool

	mu    sync.Mutex
	refs  int
	free  [numClasses][]*buffer
	slabs []slab
	bytes int // mapped
	out   int // buffers handed out, for tests
}

// A buffer is memory of an arena, owned by one call or message at a time. It
// holds cap bytes of its class.
type buffer struct {
	b     []byte
	key   uint32 // local key
	class int8
}

type slab struct {
	mem []byte
	mr  fabric.MR // nil where the adapter takes any memory
}

const (
	minClassBits = 10 // 1 KiB
	numClasses   = 21 // up to 1 GiB
	slabSize     = 64 << 10
	leastSlab    = 16 << 10
)

func newArena(fc fabric.Conn) *arena {
	return &arena{fc: fc, localDMA: fc.Capabilities().LocalDMA, refs: 1}
}

func classOf(n int) int {
	if n <= 1<<minClassBits {
		return 0
	}
	return bits.Len(uint(n-1)) - minClassBits
}

// classSize is the size of the buffer that get(n) returns.
func classSize(n int) int { return 1 << (classOf(n) + minClassBits) }

// get returns a buffer of at least n bytes, at most 1 GiB.
func (a *arena) get(n int) (*buffer, error) {
	class := classOf(n)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free[class]) == 0 {
		if err := a.grow(class); err != nil {
			return nil, err
		}
	}
	l := a.free[class]
	b := l[len(l)-1]
	a.free[class] = l[:len(l)-1]
	a.out++
	return b, nil
}

// grow maps a slab and cuts it into buffers of one class.
func (a *arena) grow(class int) error {
	size := 1 << (class + minClassBits)
	n := max(size, a.slabSize())
	mem, err := a.memory(n)
	if err != nil {
		return err
	}
	s := slab{mem: mem}
	key := fabric.LocalDMAKey
	if !a.localDMA {
		if s.mr, err = a.fc.RegMR(mem, fabric.AccessLocalWrite); err != nil {
			unmapMemory(mem)
			return err
		}
		key = s.mr.LKey()
	}
	a.slabs = append(a.slabs, s)
	a.bytes += n
	bufs := make([]buffer, n/size)
	a.free[class] = slices.Grow(a.free[class], len(bufs))
	for i := range bufs {
		bufs[i] = buffer{b: mem[i*size : (i+1)*size : (i+1)*size], key: key, class: int8(class)}
		a.free[class] = append(a.free[class], &bufs[i])
	}
	return nil
}

// slabSize is how long the next slab is. Pages take no memory before they are touched,
// but an adapter that registers them touches all: beyond the first slab, which is for the
// receives of a fresh connection, there it is a quarter of what the connection has.
func (a *arena) slabSize() int {
	if a.localDMA || a.bytes == 0 {
		return slabSize
	}
	quarter := 1 << (bits.Len(uint(a.bytes)) - 3) // rounded down to a power of two
	return min(max(quarter, leastSlab), slabSize)
}

// memory returns n zeroed bytes for a slab.
func (a *arena) memory(n int) ([]byte, error) {
	if a.localDMA && n == slabSize {
		if mem := spare.take(); mem != nil {
			return mem, nil
		}
	}
	return mapMemory(n)
}

// put gives a buffer back. Nobody, the adapter included, may use it any more.
func (a *arena) put(b *buffer) {
	a.mu.Lock()
	a.free[b.class] = append(a.free[b.class], b)
	a.out--
	a.mu.Unlock()
}

// hold takes a reference.
func (a *arena) hold() {
	a.mu.Lock()
	a.refs++
	a.mu.Unlock()
}

// drop gives a reference back; the last one lets go of all memory. The connection
// drops its own only after the adapter has let go of everything.
func (a *arena) drop() {
	a.mu.Lock()
	a.refs--
	var slabs []slab
	if a.refs == 0 {
		slabs, a.slabs = a.slabs, nil
	}
	a.mu.Unlock()
	for _, s := range slabs {
		if s.mr != nil {
			s.mr.Close()
		} else if spare.keep(s.mem) {
			continue
		}
		unmapMemory(s.mem)
	}
}
