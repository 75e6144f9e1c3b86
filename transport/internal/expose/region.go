package expose

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
)

// A Region is program memory that stays registered with the adapters of successive connections, for any number of
// loans.
//
// It is registered with a connection when a loan first needs it there, or by Register. The registration ends with the
// connection, when a loan withdraws it, or, once the Region is closed, with the last loan that uses it.
type Region struct {
	set *Regions
	mem fabric.SGE // without a key
	at  span

	mu            lockorder.Mutex
	registrations map[*Adapter]*registration
	closed        bool
}

// A registration is a Region registered with one connection's adapter. Guarded by Region.mu.
type registration struct {
	m     *Region
	a     *Adapter
	mr    fabric.MR
	users int // exposures
}

// Bytes returns the memory of the Region, nil if it is foreign.
func (m *Region) Bytes() []byte { return m.mem.Buf }

// Registrations returns the number of adapters that the Region is registered with.
func (m *Region) Registrations() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.registrations)
}

// Register registers the Region with a connection's adapter, unless it already is.
func (m *Region) Register(a *Adapter) error {
	r, err := m.borrow(a)
	if r != nil {
		r.giveBack()
	}
	return err
}

// Close ends the registrations. When it returns, no peer can reach the memory, except parts that loans still use: the
// end of the last loan ends the registration. Closing twice is harmless.
func (m *Region) Close() {
	m.set.remove(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, r := range m.registrations {
		if r.users == 0 {
			r.end()
		}
	}
}

// borrow returns the Region's registration with a, registering it if necessary. The borrower must return it. It returns
// nil if the Region is closed.
func (m *Region) borrow(a *Adapter) (*registration, error) {
	r, fresh, err := m.lend(a)
	if fresh {
		a.registered(m.mem.Len())
	}
	return r, err
}

// lend is borrow, but also returns whether it has registered the Region.
func (m *Region) lend(a *Adapter) (r *registration, fresh bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, false, nil
	}
	r = m.registrations[a]
	if fresh = r == nil; fresh {
		access := fabric.AccessLocalWrite
		if !a.Windows {
			access |= fabric.AccessRemoteRead | fabric.AccessRemoteWrite
		}
		mr, err := a.regMR(&m.mem, access)
		if err != nil {
			return nil, false, err
		}
		r = &registration{m: m, a: a, mr: mr}
		m.registrations[a] = r
	}
	r.users++
	return r, fresh, nil
}

func (r *registration) giveBack() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.users--; r.users == 0 && r.m.closed {
		r.end()
	}
}

// withdraw ends the registration while others may use it.
func (r *registration) withdraw() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.end()
}

// end deregisters. Region.mu is held.
func (r *registration) end() {
	if r.m.registrations[r.a] == r {
		delete(r.m.registrations, r.a)
	}
	r.mr.Close()
}

// segment describes a part of the Region for the peer.
func (r *registration) segment(part *fabric.SGE) fabric.Segment {
	seg := r.mr.Segment()
	seg.Offset += spanOf(part).start - r.m.at.start
	seg.Length = uint32(part.Len())
	return seg
}

// Regions is a set of Regions that do not overlap. It is read for every piece of memory that a call exposes, and rarely
// changes.
type Regions struct {
	mu     lockorder.Mutex
	sorted atomic.Pointer[[]*Region] // by address; copied on change
}

// NewRegions returns an empty set.
func NewRegions() *Regions {
	s := new(Regions)
	s.mu.Init(lockorder.Regions)
	return s
}

func (s *Regions) list() []*Region {
	if l := s.sorted.Load(); l != nil {
		return *l
	}
	return nil
}

// Add adds mem to the set as a Region. It fails if mem is empty or overlaps another Region.
func (s *Regions) Add(mem fabric.SGE) (*Region, error) {
	if mem.Len() == 0 {
		return nil, errors.New("transport: no memory to register")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, at := s.list(), spanOf(&mem)
	i := firstAfter(l, at)
	if i > 0 && l[i-1].at.overlaps(at) || i < len(l) && l[i].at.overlaps(at) {
		return nil, errors.New("transport: memory to register overlaps memory that is registered")
	}
	m := &Region{set: s, mem: mem, at: at, registrations: make(map[*Adapter]*registration)}
	m.mu.Init(lockorder.Region)
	l = slices.Insert(slices.Clone(l), i, m)
	s.sorted.Store(&l)
	return m, nil
}

func (s *Regions) remove(m *Region) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := slices.DeleteFunc(slices.Clone(s.list()), func(o *Region) bool { return o == m })
	s.sorted.Store(&l)
}

// find returns the Region that contains mem, or nil.
func (s *Regions) find(mem *fabric.SGE) *Region {
	l := s.list()
	if len(l) == 0 || mem.Len() == 0 {
		return nil
	}
	at := spanOf(mem)
	if i := firstAfter(l, at); i > 0 && l[i-1].at.file == at.file && at.end <= l[i-1].at.end {
		return l[i-1]
	}
	return nil
}

// Forget drops the registrations of a connection that has ended, and with it its memory regions.
func (s *Regions) Forget(a *Adapter) {
	for _, m := range s.list() {
		m.mu.Lock()
		delete(m.registrations, a)
		m.mu.Unlock()
	}
}

// firstAfter returns the index of the first Region that begins after at does.
func firstAfter(l []*Region, at span) int {
	i, found := slices.BinarySearchFunc(l, at, func(m *Region, at span) int {
		return cmp.Or(cmp.Compare(m.at.space(), at.space()), cmp.Compare(m.at.start, at.start))
	})
	if found {
		i++
	}
	return i
}

// A span is the location of memory: addresses of this process, or offsets in a file. It is only for comparison; the
// holder of the memory keeps it alive.
type span struct {
	file       *os.File
	start, end uint64
}

func spanOf(mem *fabric.SGE) span {
	if f := mem.Foreign; f != nil {
		return span{f.File, f.Addr, f.Addr + f.Len}
	}
	start := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem.Buf))))
	return span{nil, start, start + uint64(len(mem.Buf))}
}

// space returns the address space of s, as a number to sort by. Objects do not move.
func (s span) space() uintptr { return uintptr(unsafe.Pointer(s.file)) }

func (s span) overlaps(o span) bool { return s.file == o.file && s.start < o.end && o.start < s.end }

// Overlap reports whether two slices share memory.
func Overlap(a, b []byte) bool {
	return spanOf(&fabric.SGE{Buf: a}).overlaps(spanOf(&fabric.SGE{Buf: b}))
}
