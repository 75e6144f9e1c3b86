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
// and each call whose handler may still read from it. A buffer that is in use is
// never given back to the system before, since the adapter may own it. Slabs of bulk
// data, all of whose buffers are free, go back when they have been for a while
// (sweep), when other sizes need the room (grow), or other connections (trim).
type arena struct {
	fc       fabric.Conn
	localDMA bool
	budget   *budget // which counts what is mapped; nil in tests
	keep     int     // the largest class that does not hold bulk data
	most     int     // bytes of bulk data to have mapped, unless more are in use; 0: any
	grown    func()  // called when bulk data gets memory; mu is held; nil: by nobody

	mu    sync.Mutex
	refs  int
	free  [numClasses][]*buffer
	least [numClasses]int // of each class, the fewest that were free since the last sweep
	slabs []*slab
	bytes int // mapped
	bulk  int // of these, in classes above keep
	out   int // buffers handed out, for tests
}

// A buffer is memory of an arena, owned by one call or message at a time. It
// holds cap bytes of its class.
type buffer struct {
	b     []byte
	key   uint32 // local key
	class int8
	slab  *slab
}

type slab struct {
	mem []byte
	mr  fabric.MR // nil where the adapter takes any memory
	at  int       // its place in arena.slabs; -1: it is gone
	out int       // buffers handed out
}

const (
	minClassBits = 10 // 1 KiB
	numClasses   = 21 // up to 1 GiB
	slabSize     = 64 << 10
	leastSlab    = 16 << 10
)

func newArena(fc fabric.Conn) *arena {
	return &arena{fc: fc, localDMA: fc.Capabilities().LocalDMA, keep: classOf(DefaultInline), refs: 1}
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
	a.least[class] = min(a.least[class], len(l)-1)
	if b.slab.out++; b.slab.out == 1 && class > a.keep {
		a.idle(-len(b.slab.mem))
	}
	a.out++
	return b, nil
}

// idle counts n bytes more of bulk data that nobody uses.
func (a *arena) idle(n int) {
	if a.budget != nil {
		a.budget.idle.Add(int64(n))
	}
}

// mapped counts n bytes more of a class. mu is held.
func (a *arena) mapped(class, n int) {
	a.bytes += n
	if class > a.keep {
		a.bulk += n
		a.idle(n)
	} else if a.budget != nil {
		a.budget.base.Add(int64(n))
	}
}

// grow maps a slab and cuts it into buffers of one class. mu is held.
func (a *arena) grow(class int) error {
	size := 1 << (class + minClassBits)
	n := max(size, a.slabSize())
	if class > a.keep {
		if over := a.bulk + n - a.most; a.most > 0 && over > 0 {
			release(a.take(over))
		}
		if a.grown != nil {
			a.grown()
		}
	}
	mem, err := a.memory(n)
	if err != nil {
		return err
	}
	s := &slab{mem: mem, at: len(a.slabs)}
	key := fabric.LocalDMAKey
	if !a.localDMA {
		if s.mr, err = a.fc.RegMR(mem, fabric.AccessLocalWrite); err != nil {
			unmapMemory(mem)
			return err
		}
		key = s.mr.LKey()
	}
	a.slabs = append(a.slabs, s)
	a.mapped(class, n)
	bufs := make([]buffer, n/size)
	a.free[class] = slices.Grow(a.free[class], len(bufs))
	for i := range bufs {
		bufs[i] = buffer{b: mem[i*size : (i+1)*size : (i+1)*size], key: key, class: int8(class), slab: s}
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
	if b.slab.out--; b.slab.out == 0 && int(b.class) > a.keep && a.refs > 0 {
		a.idle(len(b.slab.mem))
	}
	a.out--
	a.mu.Unlock()
}

// sweep gives back the bulk memory that has not been in use since the last sweep. A class
// that has always had some buffers free does without as many.
func (a *arena) sweep() {
	a.mu.Lock()
	var gone []*slab
	for class := a.keep + 1; class < numClasses; class++ {
		gone = a.shrink(gone, class, a.least[class]<<(class+minClassBits))
		a.least[class] = len(a.free[class])
	}
	a.mu.Unlock()
	release(gone)
}

// trim gives back n bytes of bulk memory, or as many as are free, and returns how many.
func (a *arena) trim(n int) (freed int) {
	a.mu.Lock()
	before := a.bulk
	gone := a.take(n)
	freed = before - a.bulk
	a.mu.Unlock()
	release(gone)
	return freed
}

// take takes out slabs of n bytes, or as many as are free, the largest first. mu is held.
func (a *arena) take(n int) (gone []*slab) {
	most := a.bulk
	for class := numClasses - 1; class > a.keep && most-a.bulk < n; class-- {
		if len(a.free[class]) > 0 {
			left := n - (most - a.bulk)
			size := max(1<<(class+minClassBits), slabSize)
			gone = a.shrink(gone, class, (left+size-1)/size*size)
		}
	}
	return gone
}

// shrink takes out slabs of a class, none of whose buffers is in use, of at most n bytes
// together, beginning with those that have been free for longest. mu is held.
func (a *arena) shrink(gone []*slab, class, n int) []*slab {
	before := len(gone)
	for _, b := range a.free[class] {
		s := b.slab
		if s.at < 0 || s.out > 0 || len(s.mem) > n {
			continue
		}
		n -= len(s.mem)
		a.mapped(class, -len(s.mem))
		last := a.slabs[len(a.slabs)-1]
		a.slabs[s.at], last.at = last, s.at
		a.slabs[len(a.slabs)-1] = nil
		a.slabs = a.slabs[:len(a.slabs)-1]
		s.at = -1
		gone = append(gone, s)
	}
	if len(gone) > before {
		a.free[class] = slices.DeleteFunc(a.free[class], func(b *buffer) bool { return b.slab.at < 0 })
		a.least[class] = min(a.least[class], len(a.free[class]))
	}
	return gone
}

// bulky tells whether there is bulk memory that may have to be given back some time.
func (a *arena) bulky() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bulk > 0
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
	var slabs []*slab
	if a.refs == 0 {
		slabs, a.slabs = a.slabs, nil
		a.uncount()
	}
	a.mu.Unlock()
	release(slabs)
}

// uncount takes what is mapped out of the budget. mu is held.
func (a *arena) uncount() {
	if a.budget != nil {
		a.budget.base.Add(-int64(a.bytes - a.bulk))
		for class := a.keep + 1; class < numClasses; class++ {
			for _, b := range a.free[class] {
				if s := b.slab; s.out == 0 && s.at >= 0 {
					s.at = -1
					a.idle(-len(s.mem))
				}
			}
		}
	}
	a.bytes, a.bulk = 0, 0
	a.free = [numClasses][]*buffer{}
}

// release lets go of slabs that nobody uses.
func release(slabs []*slab) {
	for _, s := range slabs {
		if s.mr != nil {
			s.mr.Close()
		} else if spare.keep(s.mem) {
			continue
		}
		unmapMemory(s.mem)
	}
}
