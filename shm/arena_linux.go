package shm

import (
	"slices"
	"sync"
	"syscall"
	"unsafe"
)

// A pool allocates pieces of this end's arena, from which the peer copies. The memory stays mapped until the stream has
// ended and all pieces have been returned.
type pool struct {
	mu   sync.Mutex
	m    memory
	free []span // sorted, never adjacent
	refs int    // pieces allocated, plus one for the stream
}

// A span is a part of an arena, in bytes.
type span struct{ at, end int }

// spanUnit is the unit of allocation: lengths of pieces are rounded up to multiples of it.
const spanUnit = 4096

func newPool(m memory) *pool {
	p := &pool{m: m, refs: 1}
	if len(m.arena) > 0 {
		p.free = []span{{0, len(m.arena)}}
	}
	return p
}

// unit rounds n up to a multiple of spanUnit.
func unit(n int) int { return (n + spanUnit - 1) &^ (spanUnit - 1) }

// alloc returns the first n contiguous free bytes, or nil if there are none.
func (p *pool) alloc(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.free {
		if s := &p.free[i]; s.end-s.at >= n {
			b := p.m.arena[s.at : s.at+n : s.at+n]
			if s.at += unit(n); s.at >= s.end {
				p.free = slices.Delete(p.free, i, i+1)
			}
			p.refs++
			return b
		}
	}
	return nil
}

// put returns a piece from alloc to the pool.
func (p *pool) put(b []byte) {
	p.mu.Lock()
	at, _ := p.find(b)
	s := span{at, min(at+unit(len(b)), len(p.m.arena))}
	i, _ := slices.BinarySearchFunc(p.free, at, func(f span, at int) int { return f.at - at })
	p.free = slices.Insert(p.free, i, s)
	for _, k := range []int{i + 1, i} { // merge the span with its neighbors
		if k > 0 && k < len(p.free) && p.free[k-1].end == p.free[k].at {
			p.free[k-1].end = p.free[k].end
			p.free = slices.Delete(p.free, k, k+1)
		}
	}
	p.mu.Unlock()
	p.drop()
}

// find returns the offset of b in the arena. ok is false if b is not in the arena.
func (p *pool) find(b []byte) (at int, ok bool) {
	off := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(p.m.arena)))
	return int(off), off < uintptr(len(p.m.arena))
}

// drop releases a reference.
func (p *pool) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs--; p.refs == 0 {
		p.m.unmap()
		p.free = nil
	}
}

// Alloc implements llp.Sharer.
func (s *stream) Alloc(n int) ([]byte, error) {
	b := s.pool.alloc(n)
	if b == nil {
		return nil, syscall.ENOMEM
	}
	return b, nil
}

// Free implements llp.Sharer.
func (s *stream) Free(b []byte) { s.pool.put(b) }

// Lend implements llp.Sharer.
func (s *stream) Lend(b []byte) (at uint64, ok bool) {
	i, ok := s.pool.find(b)
	if ok {
		s.lends.Add(1)
	}
	return uint64(i), ok
}

// Lends implements llp.Sharer.
func (s *stream) Lends() uint64 { return s.lends.Load() }

// Returned implements llp.Sharer. A peer that returns a loan before it has copied the data only harms itself: it finds
// other data of its own connection.
func (s *stream) Returned() uint64 { return s.theirs.placed.Load() }

// Lent implements llp.Sharer.
func (s *stream) Lent(at, n uint64) []byte {
	if arena := s.theirs.arena; n <= uint64(len(arena)) && at <= uint64(len(arena))-n {
		return arena[at : at+n]
	}
	return nil
}

// Placed implements llp.Sharer. It is called after the data was copied and checks only then whether the peer has
// aborted, because the peer's memory may have other content after that.
func (s *stream) Placed() bool {
	if s.theirs.over.Load() == aborted {
		return false
	}
	s.reader.placed++
	s.mine.placed.Store(s.reader.placed)
	return true
}
