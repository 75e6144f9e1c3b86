package transport

import "sync"

// Slabs that connections have left. To map memory, to have its pages come one by one
// and to unmap it again is a fifth of what a short connection costs.
//
// Only memory that no adapter has registered comes here: that it is back shows that
// nobody reaches it any more, which of some devices only the end of the mapping does.
// It is wiped before others see it, as new mappings are.
var spare spareSlabs

type spareSlabs struct {
	mu   sync.Mutex
	list [][]byte
}

// maxSpareSlabs bounds what is kept: 4 MiB.
const maxSpareSlabs = 64

// take returns a zeroed slab of slabSize, nil when there is none.
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

// keep takes a slab that nobody uses, unless there are enough or it is too large.
func (s *spareSlabs) keep(mem []byte) bool {
	if len(mem) != slabSize {
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
