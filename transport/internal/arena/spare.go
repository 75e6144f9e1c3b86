package arena

import "sync"

// spare keeps slabs of ended connections for new ones: mapping memory, faulting its pages in one by one and unmapping
// it again is a fifth of what a short connection costs. The whole process shares it, like a sync.Pool, since it does
// not matter which client or server a connection belongs to.
//
// Only memory that no adapter had registered is kept: adapters cannot reach it once it has been returned, whereas with
// some devices only unmapping ensures that. It is zeroed before another connection sees it, like a fresh mapping.
var spare spareSlabs

type spareSlabs struct {
	mu   sync.Mutex
	list [][]byte
}

// maxSpareSlabs bounds the spare slabs: 4 MiB.
const maxSpareSlabs = 64

// take returns a zeroed slab of SlabSize bytes, nil if there is no spare slab.
func (s *spareSlabs) take() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.list)
	if n == 0 {
		return nil
	}
	mem := s.list[n-1]
	s.list[n-1] = nil
	s.list = s.list[:n-1]
	return mem
}

// keep keeps an unused slab. It returns false if the slab has another size, or enough are kept.
func (s *spareSlabs) keep(mem []byte) bool {
	if len(mem) != SlabSize {
		return false
	}
	clear(mem)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) >= maxSpareSlabs {
		return false
	}
	s.list = append(s.list, mem)
	return true
}
