//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"sync"
	"syscall"
)

// PoolAttr are the attributes of a [Pool].
type PoolAttr struct {
	// Access are the rights of the regions. AccessZeroBased is refused.
	Access Access

	// Limit is the number of bytes that the pool may register, at least one region.
	Limit int

	// Region is the size of a region in bytes, and of the largest buffer: a power of two, from a page to 1 GiB. 0: as
	// large as possible so that 16 fit in the limit, but at most 2 MiB.
	Region int

	// HugePages maps regions of 2 MiB and more to huge pages of 2 MiB as long as the kernel has free ones
	// (vm.nr_hugepages), and to ordinary pages otherwise.
	HugePages bool
}

const (
	hugePage      = 2 << 20
	defaultRegion = hugePage
	maxRegion     = 1 << 30

	// The smallest class of buffers has the size of a cache line, so that two buffers never share one.
	minClass   = 6
	numClasses = 30 - minClass + 1
)

// region returns the size of each region in bytes.
func (a *PoolAttr) region() (int, error) {
	n := a.Region
	if n == 0 && a.Limit > 0 {
		n = min(defaultRegion, max(os.Getpagesize(), 1<<bits.Len(uint(a.Limit)/16)>>1))
	}
	if n < os.Getpagesize() || n > maxRegion || n&(n-1) != 0 || n > a.Limit || a.Access&AccessZeroBased != 0 {
		return 0, syscall.EINVAL
	}
	return n, nil
}

// A Pool has registered memory for many small buffers. It registers few large regions, outside the Go heap. Each region
// is divided into buffers of one size: the power of two that the size of a [Pool.Get] is rounded up to. A region with
// no buffer in use serves any size, so a pool needs at least as many regions as there are sizes in use at once. Get and
// Put allocate nothing and make no system call, unless the pool needs another region. Memory never moves.
//
// The keys of a buffer are those of its region. A peer with a remote key reaches all buffers of that region, including
// later ones. Use a separate pool for each of several peers that do not trust each other, or bind windows
// ([AccessMWBind]).
type Pool struct {
	life
	pd     *PD
	access Access
	size   int // of a region, in bytes
	limit  int // in regions
	huge   bool

	// grow is held while regions are registered or deregistered, so that the pool is only exhausted if no such change
	// is under way. It is acquired before mu.
	grow sync.Mutex

	mu       sync.Mutex
	closed   bool
	regions  int // registered
	hugeOnes int
	inUse    int               // bytes of buffers, in sizes of their classes
	partial  [numClasses]shelf // regions with buffers in use and room for more
	empty    shelf             // regions without a buffer in use
	waiting  []chan struct{}   // Wait calls, in order; a token means try again
}

// A poolRegion is memory of a pool. It is on the shelf of its class or on the shelf of empty regions. It is on no shelf
// while all its buffers are in use.
type poolRegion struct {
	pool *Pool
	mr   *MR
	huge bool
	at   int // index in its shelf

	class int      // its buffers have 1 << class bytes
	slots []uint64 // of all buffers that have been in use since the region was cut, see slotInUse
	free  int      // the first free slot, or -1
	out   int      // buffers in use
	uses  uint64   // since the region was registered
}

// A slot in use holds this bit and a number that no other use of its region has. A free slot holds the number of the
// next free slot plus 1, shifted.
const slotInUse = 1

// A shelf is a set of regions. Any region can be removed in constant time.
type shelf []*poolRegion

func (s *shelf) add(r *poolRegion) {
	r.at = len(*s)
	*s = append(*s, r)
}

func (s *shelf) remove(r *poolRegion) {
	last := len(*s) - 1
	(*s)[r.at] = (*s)[last]
	(*s)[r.at].at = r.at
	(*s)[last] = nil
	*s = (*s)[:last]
}

// A Buffer is a part of a [Pool], from Get until Put. A copy is the same buffer. The zero Buffer is not a buffer.
type Buffer struct {
	region *poolRegion
	offset int32
	length int32
	use    uint64 // the value of its slot while in use
}

// NewPool returns an empty pool, which registers memory when buffers are needed. The pool must be closed before the
// domain.
func (pd *PD) NewPool(attr PoolAttr) (*Pool, error) {
	const call = "NewPool"
	size, err := attr.region()
	if err != nil {
		return nil, &Error{Call: call, Device: pd.device, Err: err}
	}
	if err := pd.enter(call); err != nil {
		return nil, err
	}
	defer pd.leave()
	p := &Pool{pd: pd, access: attr.Access, size: size, limit: attr.Limit / size, huge: attr.HugePages && size >= hugePage}
	p.begin(aPool, pd.device, &pd.life)
	return p, nil
}

// Get returns a buffer of size bytes, from 1 to the size of a region. It has the alignment and the capacity of the next
// power of two, at least 64. Its content is undefined: that of a previous user, or zero.
//
// Errors are an [*ExhaustedError], those of [PD.RegMR] and of mmap(2), EINVAL for an invalid size, and ErrClosed.
func (p *Pool) Get(size int) (Buffer, error) { return p.get("Pool.Get", size, nil) }

// Wait is Get, except that it waits for memory until ctx is done, and then returns its error. Calls of Wait are served
// in order; until all are served, Get finds the pool exhausted.
func (p *Pool) Wait(ctx context.Context, size int) (Buffer, error) {
	const call = "Pool.Wait"
	b, err := p.get(call, size, nil)
	var exhausted *ExhaustedError
	if !errors.As(err, &exhausted) {
		return b, err
	}
	turn := make(chan struct{}, 1)
	p.mu.Lock()
	p.waiting = append(p.waiting, turn)
	p.mu.Unlock()
	defer p.waited(turn)
	for {
		if b, err = p.get(call, size, turn); !errors.As(err, &exhausted) {
			return b, err
		}
		select {
		case <-turn:
		case <-ctx.Done():
			return Buffer{}, ctx.Err()
		}
	}
}

// waited ends a Wait.
func (p *Pool) waited(turn chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, turn)
	p.waiting = slices.Delete(p.waiting, i, i+1)
	p.wake()
}

// wake lets the first Wait try again. The caller must hold mu.
func (p *Pool) wake() {
	if len(p.waiting) > 0 {
		select {
		case p.waiting[0] <- struct{}{}:
		default: // it will try again anyway
		}
	}
}

// get returns a buffer, registering a region if necessary. turn is nil, or belongs to a Wait.
func (p *Pool) get(call string, size int, turn chan struct{}) (Buffer, error) {
	if size <= 0 || size > p.size {
		return Buffer{}, &Error{Call: call, Device: p.device, Err: syscall.EINVAL}
	}
	if b, err := p.take(call, size, turn, nil); err != nil || b.region != nil {
		return b, err
	}
	p.grow.Lock()
	defer p.grow.Unlock()
	// Another goroutine may meanwhile have registered or deregistered a region.
	b, err := p.take(call, size, turn, nil)
	if err != nil || b.region != nil {
		return b, err
	}
	if err := p.exhausted(size, turn); err != nil {
		return Buffer{}, err
	}
	r, err := p.register()
	if err != nil {
		return Buffer{}, err
	}
	return p.take(call, size, turn, r)
}

// exhausted returns an error if a call may not register a region. The caller must hold grow.
func (p *Pool) exhausted(size int, turn chan struct{}) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.regions < p.limit && !p.overtakes(turn) {
		return nil
	}
	return &ExhaustedError{Device: p.device, Size: size, InUse: p.inUse, Limit: p.limit * p.size}
}

// overtakes reports whether a call would get memory before an earlier Wait. The caller must hold mu.
func (p *Pool) overtakes(turn chan struct{}) bool {
	return len(p.waiting) > 0 && p.waiting[0] != turn
}

// take returns a buffer of an existing region, or of more, which is new or nil. It returns no buffer and no error if
// there is no room.
func (p *Pool) take(call string, size int, turn chan struct{}, more *poolRegion) (Buffer, error) {
	class := max(bits.Len(uint(size-1)), minClass)
	shelf := &p.partial[class-minClass]
	p.mu.Lock()
	defer p.mu.Unlock()
	if more != nil {
		p.count(more, 1)
		p.empty.add(more)
	}
	var r *poolRegion
	switch {
	case p.closed:
		return Buffer{}, &Error{Call: call, Device: p.device, Err: ErrClosed}
	case more == nil && p.overtakes(turn):
		return Buffer{}, nil
	case len(*shelf) > 0:
		r = (*shelf)[len(*shelf)-1]
	case len(p.empty) > 0:
		r = p.empty[len(p.empty)-1]
		p.empty.remove(r)
		r.cut(class)
		shelf.add(r)
	default:
		return Buffer{}, nil
	}
	slot, use := r.use()
	if r.out == p.size>>class {
		shelf.remove(r)
	}
	p.inUse += 1 << class
	p.children[aBuffer].Add(1)
	return Buffer{region: r, offset: int32(slot << class), length: int32(size), use: use}, nil
}

// count adds n to the counts for region r. The caller must hold mu.
func (p *Pool) count(r *poolRegion, n int) {
	p.regions += n
	if r.huge {
		p.hugeOnes += n
	}
}

// cut assigns an empty region to a class.
func (r *poolRegion) cut(class int) {
	if n := r.pool.size >> class; cap(r.slots) < n {
		r.slots = make([]uint64, 0, n)
	}
	r.class, r.slots, r.free = class, r.slots[:0], -1
}

// use returns a free slot, and the value that it holds from now on.
func (r *poolRegion) use() (slot int, use uint64) {
	r.out++
	r.uses++
	use = r.uses<<1 | slotInUse
	if slot = r.free; slot >= 0 {
		r.free = int(r.slots[slot]>>1) - 1
		r.slots[slot] = use
	} else {
		slot = len(r.slots)
		r.slots = append(r.slots, use)
	}
	return slot, use
}

// Put returns a buffer to its pool. The buffer must no longer be used, by the program or by a work request. If the
// buffer is not in use, or belongs to another pool, Put fails with a [*BufferError] and changes nothing.
func (p *Pool) Put(b Buffer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := b.region
	if r == nil || r.pool != p {
		return &BufferError{Device: p.device, Foreign: true}
	}
	slot := int(b.offset) >> r.class
	if slot >= len(r.slots) || r.slots[slot] != b.use {
		return &BufferError{Device: p.device}
	}
	shelf := &p.partial[r.class-minClass]
	if r.out == p.size>>r.class {
		shelf.add(r)
	}
	r.slots[slot] = uint64(r.free+1) << 1
	r.free = slot
	if r.out--; r.out == 0 {
		shelf.remove(r)
		p.empty.add(r)
	}
	p.inUse -= 1 << r.class
	p.children[aBuffer].Add(-1)
	p.wake()
	return nil
}

// register registers a region. The caller must hold grow.
func (p *Pool) register() (*poolRegion, error) {
	mem, huge, err := mapRegion(p.size, p.huge)
	if err != nil {
		return nil, &Error{Call: "mmap", Device: p.device, Err: err}
	}
	mr, err := p.pd.RegMR(mem, p.access)
	if err != nil {
		syscall.Munmap(mem)
		return nil, err
	}
	return &poolRegion{pool: p, mr: mr, huge: huge}, nil
}

// mapRegion returns size zeroed bytes, and reports whether they consist of huge pages.
func mapRegion(size int, huge bool) (mem []byte, isHuge bool, err error) {
	const flags, huge2MB = syscall.MAP_ANON | syscall.MAP_PRIVATE, 21 << 26 // MAP_HUGE_2MB
	if huge {
		if mem, err = syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, flags|syscall.MAP_HUGETLB|huge2MB); err == nil {
			return mem, true, nil
		}
	}
	mem, err = syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	return mem, false, err
}

// Trim deregisters the regions without a buffer in use, and returns their total size in bytes.
func (p *Pool) Trim() (freed int, err error) {
	if err := p.enter("Pool.Trim"); err != nil {
		return 0, err
	}
	defer p.leave()
	p.grow.Lock()
	defer p.grow.Unlock()
	for {
		n, err := p.trimOne()
		if n == 0 || err != nil {
			return freed, err
		}
		freed += n
	}
}

// trimOne deregisters one region. It returns 0 if no region is empty. The caller must hold grow.
func (p *Pool) trimOne() (freed int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.empty) == 0 {
		return 0, nil
	}
	r := p.empty[len(p.empty)-1]
	p.empty.remove(r)
	p.mu.Unlock() // other regions can be used meanwhile
	if err = r.mr.Close(); err == nil {
		_ = syscall.Munmap(r.mr.buf)
	}
	p.mu.Lock()
	if err != nil {
		p.empty.add(r)
		p.wake()
		return 0, err
	}
	p.count(r, -1)
	return p.size, nil
}

// Close deregisters all memory. While buffers are in use it fails with a [*BusyError]. If a region cannot be
// deregistered, for instance because a window is bound to it, the pool stays open. Calls of Wait return ErrClosed.
func (p *Pool) Close() error {
	const call = "Pool.Close"
	var failed error
	err := p.end(call, func() syscall.Errno {
		if failed = p.shut(call); failed != nil {
			return syscall.EBUSY
		}
		return 0
	})
	if failed != nil {
		return failed
	}
	return err
}

// shut releases all memory, or fails and leaves the pool open.
func (p *Pool) shut(call string) error {
	p.grow.Lock()
	defer p.grow.Unlock()
	p.mu.Lock()
	busy := p.busy(call)
	p.closed = busy == nil
	p.mu.Unlock()
	if busy != nil {
		return busy
	}
	for {
		n, err := p.trimOne()
		if n > 0 {
			continue
		}
		p.mu.Lock()
		p.closed = err == nil
		p.wake()
		p.mu.Unlock()
		return err
	}
}

// PoolStats counts the memory of a [Pool].
type PoolStats struct {
	Regions   int // registered
	HugePages int // regions of huge pages
	Empty     int // regions without a buffer in use, which Trim deregisters
	Bytes     int // registered
	Buffers   int // in use
	InUse     int // bytes in use; each buffer is rounded up to a power of two
	Waiting   int // calls of Wait
}

// Stats returns the current counts.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return PoolStats{
		Regions: p.regions, HugePages: p.hugeOnes, Empty: len(p.empty), Bytes: p.regions * p.size,
		Buffers: int(p.children[aBuffer].Load()), InUse: p.inUse, Waiting: len(p.waiting),
	}
}

// Bytes returns the memory of the buffer, with the requested length. Slices of it must not be used after Put.
func (b Buffer) Bytes() []byte {
	if b.region == nil {
		return nil
	}
	class := max(bits.Len32(uint32(b.length-1)), minClass)
	return b.region.mr.buf[b.offset:][: b.length : 1<<class]
}

// MR returns the region of the buffer, which has its keys. The pool owns it.
func (b Buffer) MR() *MR { return b.region.mr }

// Addr returns the address of the first byte, for the peer.
func (b Buffer) Addr() uint64 { return b.region.mr.iova + uint64(b.offset) }

// RKey returns the key for the peer, see [Pool].
func (b Buffer) RKey() uint32 { return b.region.mr.rkey }

// SGE returns a part of the buffer for a work request: length bytes from offset on. Like slicing, it panics if that is
// out of range.
func (b Buffer) SGE(offset, length uint32) SGE {
	_ = b.Bytes()[offset:][:length]
	return b.region.mr.SGE(uint64(b.offset)+uint64(offset), length)
}

// An ExhaustedError is the error of a [Pool] that has reached its limit, or has calls of Wait to serve first. It
// unwraps to ENOBUFS.
type ExhaustedError struct {
	Device string
	Size   int // requested bytes
	InUse  int // bytes in use; each buffer is rounded up to a power of two
	Limit  int // bytes that the pool may register
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("ibv: no room for a buffer of %d bytes on %s: %d of at most %d bytes of the memory pool are in use", e.Size, e.Device, e.InUse, e.Limit)
}

func (e *ExhaustedError) Unwrap() error { return syscall.ENOBUFS }

// A BufferError is the error of [Pool.Put] for a buffer that is not in use. It unwraps to EINVAL.
type BufferError struct {
	Device  string
	Foreign bool // the buffer belongs to another pool, or is the zero Buffer; otherwise it was already put back
}

func (e *BufferError) Error() string {
	if e.Foreign {
		return fmt.Sprintf("ibv: a buffer put back on %s is of another memory pool", e.Device)
	}
	return fmt.Sprintf("ibv: a buffer on %s has been put back twice", e.Device)
}

func (e *BufferError) Unwrap() error { return syscall.EINVAL }
