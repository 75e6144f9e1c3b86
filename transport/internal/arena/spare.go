package arena

import "sync"

// spare keeps slabs of ended connections for new ones: mapping memory, faulting its pages
// in one by one and unmapping it again is a fifth of what a short connection costs. It is
// shared by the whole process, as sync.Pool would be, since connections of any client or
// server are alike to it.
//
// Only memory that no adapter had registered comes here: such memory is unreachable for
// adapters once it has been returned, where with some devices only unmapping makes it so.
// It is wiped before another connection sees it, as a fresh mapping would be.
var spare spareSlabs

type spareSlabs struct {
	mu   sync.Mutex
	list [][]byte
}

// maxSpareSlabs bounds what is kept: 4 MiB.
const maxSpareSlabs = 64

// take returns a zeroed slab of SlabSize bytes, nil if no slab is kept.
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

// keep keeps a slab that is not in use. It returns false when the slab has another size, or enough
// are kept.
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
