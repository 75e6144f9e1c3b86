// Package arena hands out the local buffers of one connection: memory outside the Go heap, in size classes, registered
// once where the adapter requires that.
//
// # The life of a buffer
//
// Get cuts a free buffer from a slab, mapping (and registering) a new slab when its size class has none. The buffer
// then belongs to one call or message, and may be posted to the adapter. Put returns it to its class; by then neither
// the program nor the adapter may use it. The peer can reach a buffer, by the handle of its slab, only in an arena
// created with Options.Remote.
//
// # The life of a slab
//
// Slabs of small buffers, which connections always need, stay until the owner sheds them. Slabs of bulk data are
// unmapped when all their buffers have been free for a while (Sweep), when another size class needs the room (Get), or
// when another connection does (Trim). The arena itself is reference counted: the connection holds one reference, and
// so does each call with a handler that may still read from a buffer. The last Drop unmaps everything.
package arena

import (
	"cmp"
	"errors"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
)

// A Registrar makes memory known to an adapter. A fabric.Conn is one.
type Registrar interface {
	RegMR(mem []byte, access fabric.Access) (fabric.MR, error)
}

// Options are the parameters of an arena.
type Options struct {
	// LocalDMA: the adapter accepts any memory, so nothing needs to be registered.
	LocalDMA bool
	// First is the size of the first slab in bytes, a multiple of the size of its buffers. Zero: SlabSize. An adapter
	// that registers memory makes it resident, so connections choose the initial size.
	First int
	// Small is the largest size in bytes of buffers that do not count as bulk data.
	Small int
	// MaxBulk is the maximum number of bytes of bulk data that may be mapped, unless more are in use at the same time.
	// Zero: no limit.
	MaxBulk int
	// Strict: MaxBulk applies even then. Get fails with ErrFull.
	Strict bool
	// Remote: the peer may read and write the buffers at any time. See Buffer.Segment.
	Remote bool
	// Usage, if not nil, counts mapped memory, together with that of other arenas.
	Usage *Usage
	// Own, if not nil, may provide the adapter's own memory for bulk data.
	Own fabric.Allocator
	// OnBulk, if not nil, is called when bulk data is mapped. It must neither block nor use the arena.
	OnBulk func()
	// OnRegister, if not nil, is called when bytes have been registered. No lock is held: it may use the arena.
	OnRegister func(bytes int)
}

// ErrFull is the error of Get in a Strict arena that has no room.
var ErrFull = errors.New("the memory for copies is in use")

// Usage counts the memory, in bytes, that several arenas have mapped and that no call
// accounts for.
type Usage struct {
	Base atomic.Int64 // small buffers, in use or not
	Idle atomic.Int64 // slabs of bulk data with no buffer in use
}

// An Arena hands out buffers. Its methods may be called by any goroutine.
type Arena struct {
	reg   Registrar
	opt   Options
	small int // the largest class that does not hold bulk data

	mu    lockorder.Mutex
	refs  int
	free  [numClasses][]*Buffer
	least [numClasses]int // the fewest free buffers of each class since the last sweep
	slabs []*slab
	bytes int // mapped
	bulk  int // in classes above small
	out   int // buffers handed out
}

// A Buffer is memory of an arena, owned by one call or message at a time.
type Buffer struct {
	// Bytes is all of the buffer: its length is the size of its class.
	Bytes []byte
	// LKey is the key for work requests that name the buffer.
	LKey uint32

	class int8
	slab  *slab
	at    int // offset in the slab
}

// pageSize is the extra length of a long Loose buffer: its user may align it to a page.
const pageSize = 4 << 10

// Loose returns a buffer of at least n bytes that belongs to no arena. Its memory is on the Go heap and not registered,
// and its owner may keep it. Put does nothing with it.
func Loose(n int) *Buffer {
	if n >= 4*pageSize {
		n += pageSize
	}
	return &Buffer{Bytes: make([]byte, n), LKey: fabric.LocalDMAKey}
}

// Loose reports whether the function Loose returned the buffer.
func (b *Buffer) Loose() bool { return b.slab == nil }

// Segment describes the first n bytes of a buffer for the peer. The arena must be Remote.
func (b *Buffer) Segment(n int) fabric.Segment {
	s := b.slab.mr.Segment()
	s.Offset += uint64(b.at)
	s.Length = uint32(n)
	return s
}

type slab struct {
	mem []byte
	mr  fabric.MR // nil if the adapter accepts any memory
	own bool      // the memory belongs to mr
	at  int       // index in Arena.slabs; -1: unmapped
	out int       // buffers handed out
}

const (
	minClassBits = 10 // 1 KiB
	numClasses   = 21 // up to 1 GiB
	leastSlab    = 16 << 10
)

// SlabSize is the number of bytes mapped at once for small buffers.
const SlabSize = 64 << 10

// New returns an empty arena with one reference. It registers its buffers with r.
func New(r Registrar, opt Options) *Arena {
	a := &Arena{reg: r, opt: opt, small: classOf(opt.Small), refs: 1}
	a.mu.Init(lockorder.Arena)
	return a
}

func classOf(n int) int {
	if n <= 1<<minClassBits {
		return 0
	}
	return bits.Len(uint(n-1)) - minClassBits
}

// SizeOf returns the length of the buffer that Get(n) returns: the next power of two, and at least 1 KiB.
func SizeOf(n int) int { return 1 << (classOf(n) + minClassBits) }

// Get returns a buffer of at least n bytes; n is at most 1 GiB. The content is undefined.
func (a *Arena) Get(n int) (*Buffer, error) {
	b, registered, err := a.get(classOf(n))
	if registered > 0 && a.opt.OnRegister != nil {
		a.opt.OnRegister(registered)
	}
	return b, err
}

// get returns a buffer of a class, and the number of bytes that it registered for it.
func (a *Arena) get(class int) (b *Buffer, registered int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free[class]) == 0 {
		if registered, err = a.grow(class); err != nil {
			return nil, 0, err
		}
	}
	l := a.free[class]
	b = l[len(l)-1]
	a.free[class] = l[:len(l)-1]
	a.least[class] = min(a.least[class], len(l)-1)
	if b.slab.out++; b.slab.out == 1 && class > a.small {
		a.countIdle(-len(b.slab.mem))
	}
	a.out++
	return b, registered, nil
}

// Put returns a buffer to the arena. It must no longer be in use, not even by the adapter.
func (a *Arena) Put(b *Buffer) {
	if b.Loose() {
		return
	}
	a.mu.Lock()
	a.free[b.class] = append(a.free[b.class], b)
	if b.slab.out--; b.slab.out == 0 && int(b.class) > a.small && a.refs > 0 {
		a.countIdle(len(b.slab.mem))
	}
	a.out--
	a.mu.Unlock()
}

// countIdle counts n more bytes of bulk data in slabs with no buffer in use.
func (a *Arena) countIdle(n int) {
	if a.opt.Usage != nil {
		a.opt.Usage.Idle.Add(int64(n))
	}
}

// countMapped counts n more bytes mapped for a class. mu is held.
func (a *Arena) countMapped(class, n int) {
	a.bytes += n
	if class > a.small {
		a.bulk += n
		a.countIdle(n)
	} else if a.opt.Usage != nil {
		a.opt.Usage.Base.Add(int64(n))
	}
}

// grow maps a slab and divides it into buffers of one class. It returns the number of bytes that it registered. mu is
// held.
func (a *Arena) grow(class int) (registered int, err error) {
	size := 1 << (class + minClassBits)
	n := max(size, a.nextSlab())
	if class > a.small {
		if over := a.bulk + n - a.opt.MaxBulk; a.opt.MaxBulk > 0 && over > 0 {
			release(a.take(over))
			if a.opt.Strict && a.bulk+n > a.opt.MaxBulk {
				return 0, ErrFull
			}
		}
		if a.opt.OnBulk != nil {
			a.opt.OnBulk()
		}
	}
	s := &slab{at: len(a.slabs)}
	if class > a.small && a.opt.Own != nil {
		if mr, err := a.opt.Own.AllocMR(n); err == nil {
			s.mem, s.mr, s.own = mr.Bytes(), mr, true
		}
	}
	if !s.own {
		if registered, err = a.mapSlab(s, n); err != nil {
			return 0, err
		}
	}
	key := fabric.LocalDMAKey
	if s.mr != nil {
		key = s.mr.LKey()
	}
	mem := s.mem
	a.slabs = append(a.slabs, s)
	a.countMapped(class, n)
	bufs := make([]Buffer, n/size)
	a.free[class] = slices.Grow(a.free[class], len(bufs))
	for i := range bufs {
		bufs[i] = Buffer{Bytes: mem[i*size : (i+1)*size : (i+1)*size], LKey: key, class: int8(class), slab: s, at: i * size}
		a.free[class] = append(a.free[class], &bufs[i])
	}
	return registered, nil
}

// nextSlab returns the length of the next slab. A page needs no memory before it is touched, but registering a page
// touches it. So with an adapter that registers memory, the next slab is a quarter of the mapped memory, after the
// first slab, which holds the receives of a fresh connection.
func (a *Arena) nextSlab() int {
	if a.opt.LocalDMA {
		return SlabSize
	}
	if a.bytes == 0 {
		return cmp.Or(a.opt.First, SlabSize)
	}
	quarter := 1 << (bits.Len(uint(a.bytes)) - 3) // rounded down to a power of two
	return min(max(quarter, leastSlab), SlabSize)
}

// mapSlab gives s n zeroed bytes. It returns the number of bytes that it registered.
func (a *Arena) mapSlab(s *slab, n int) (registered int, err error) {
	if a.opt.LocalDMA && n == SlabSize {
		if s.mem = spare.take(); s.mem != nil {
			return 0, nil
		}
	}
	if s.mem, err = mapMemory(n); err != nil || a.opt.LocalDMA {
		return 0, err
	}
	access := fabric.AccessLocalWrite
	if a.opt.Remote {
		access |= fabric.AccessRemoteRead | fabric.AccessRemoteWrite
	}
	if s.mr, err = a.reg.RegMR(s.mem, access); err != nil {
		unmapMemory(s.mem)
		return 0, err
	}
	return n, nil
}

// Sweep unmaps bulk memory that has not been in use since the last Sweep: for each class as many buffers as have been
// free all the time.
func (a *Arena) Sweep() {
	a.mu.Lock()
	var gone []*slab
	for class := a.small + 1; class < numClasses; class++ {
		gone = a.shrink(gone, class, a.least[class]<<(class+minClassBits))
		a.least[class] = len(a.free[class])
	}
	a.mu.Unlock()
	release(gone)
}

// Shed unmaps slabs of small buffers that have no buffer in use.
func (a *Arena) Shed() {
	a.mu.Lock()
	var gone []*slab
	for class := range a.small + 1 {
		gone = a.shrink(gone, class, len(a.free[class])<<(class+minClassBits))
	}
	a.mu.Unlock()
	release(gone)
}

// Trim unmaps n bytes of bulk memory, or as many as are free, and returns the number of bytes unmapped.
func (a *Arena) Trim(n int) (freed int) {
	a.mu.Lock()
	before := a.bulk
	gone := a.take(n)
	freed = before - a.bulk
	a.mu.Unlock()
	release(gone)
	return freed
}

// take removes slabs of n bytes in total, or as many as are free, largest first. mu is held.
func (a *Arena) take(n int) (gone []*slab) {
	before := a.bulk
	for class := numClasses - 1; class > a.small && before-a.bulk < n; class-- {
		if len(a.free[class]) > 0 {
			left := n - (before - a.bulk)
			size := max(1<<(class+minClassBits), SlabSize)
			gone = a.shrink(gone, class, (left+size-1)/size*size)
		}
	}
	return gone
}

// shrink removes slabs of a class that have no buffer in use, of at most n bytes in total, longest free first. mu is
// held.
func (a *Arena) shrink(gone []*slab, class, n int) []*slab {
	before := len(gone)
	for _, b := range a.free[class] {
		s := b.slab
		if s.at < 0 || s.out > 0 || len(s.mem) > n {
			continue
		}
		n -= len(s.mem)
		a.countMapped(class, -len(s.mem))
		last := a.slabs[len(a.slabs)-1]
		a.slabs[s.at], last.at = last, s.at
		a.slabs[len(a.slabs)-1] = nil
		a.slabs = a.slabs[:len(a.slabs)-1]
		s.at = -1
		gone = append(gone, s)
	}
	if len(gone) > before {
		a.free[class] = slices.DeleteFunc(a.free[class], func(b *Buffer) bool { return b.slab.at < 0 })
		a.least[class] = min(a.least[class], len(a.free[class]))
	}
	return gone
}

// Bulky reports whether bulk memory is mapped that a later Sweep may unmap.
func (a *Arena) Bulky() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bulk > 0
}

// Hold adds a reference.
func (a *Arena) Hold() {
	a.mu.Lock()
	a.refs++
	a.mu.Unlock()
}

// Drop drops a reference. The last one unmaps everything, so the connection drops its own only after the adapter has
// released all memory.
func (a *Arena) Drop() {
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

// uncount removes mapped memory from Usage. mu is held.
func (a *Arena) uncount() {
	if a.opt.Usage != nil {
		a.opt.Usage.Base.Add(-int64(a.bytes - a.bulk))
		for class := a.small + 1; class < numClasses; class++ {
			for _, b := range a.free[class] {
				if s := b.slab; s.out == 0 && s.at >= 0 {
					s.at = -1
					a.countIdle(-len(s.mem))
				}
			}
		}
	}
	a.bytes, a.bulk = 0, 0
	a.free = [numClasses][]*Buffer{}
}

// Stats are the counts of an arena.
type Stats struct {
	Refs    int // references
	Slabs   int // mapped
	Bytes   int // mapped
	Bulk    int // bytes for bulk data
	Buffers int // in use
}

// Stats returns the current counts of the arena.
func (a *Arena) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Stats{Refs: a.refs, Slabs: len(a.slabs), Bytes: a.bytes, Bulk: a.bulk, Buffers: a.out}
}

// release unmaps slabs that are no longer in an arena.
func release(slabs []*slab) {
	for _, s := range slabs {
		if s.mr != nil {
			s.mr.Close()
		} else if spare.keep(s.mem) {
			continue
		}
		if !s.own {
			unmapMemory(s.mem)
		}
	}
}
