//go:build race

package lockorder

import (
	"fmt"
	"slices"
	"sync"
)

// A Mutex is a sync.Mutex with a rank.
type Mutex struct {
	mu     sync.Mutex
	rank   Rank
	holder uint64 // goroutine; guarded by mu
}

// Checked reports whether this build checks the order.
const Checked = true

// held records which ranks each goroutine holds. It is spread over several maps, by goroutine, so that goroutines of a
// test do not wait for each other.
var held [64]struct {
	sync.Mutex
	ranks map[uint64][]Rank
}

// Init sets the rank, before the first use.
func (m *Mutex) Init(rank Rank) { m.rank = rank }

// Lock locks m. It panics if the calling goroutine holds a lock of the same or a later
// rank.
func (m *Mutex) Lock() {
	if m.rank == 0 {
		m.mu.Lock()
		return
	}
	id := goroutine()
	h := &held[bucket(id)]
	h.Lock()
	mine := h.ranks[id]
	for _, r := range mine {
		if r >= m.rank {
			h.Unlock()
			panic(fmt.Sprintf("lockorder: a lock of rank %d is taken by a goroutine that holds one of rank %d", m.rank, r))
		}
	}
	if h.ranks == nil {
		h.ranks = make(map[uint64][]Rank)
	}
	h.ranks[id] = append(mine, m.rank)
	h.Unlock()
	m.mu.Lock()
	m.holder = id
}

// TryLock locks m if it is free, and reports whether it did. It may be called out of order, because it does not wait.
func (m *Mutex) TryLock() bool {
	if !m.mu.TryLock() {
		return false
	}
	if m.rank != 0 {
		id := goroutine()
		h := &held[bucket(id)]
		h.Lock()
		if h.ranks == nil {
			h.ranks = make(map[uint64][]Rank)
		}
		h.ranks[id] = append(h.ranks[id], m.rank)
		h.Unlock()
		m.holder = id
	}
	return true
}

// Unlock unlocks m.
func (m *Mutex) Unlock() {
	if m.rank != 0 {
		id := m.holder
		h := &held[bucket(id)]
		h.Lock()
		mine := h.ranks[id]
		for i := len(mine) - 1; i >= 0; i-- {
			if mine[i] == m.rank {
				mine = append(mine[:i], mine[i+1:]...)
				break
			}
		}
		if len(mine) > 0 {
			h.ranks[id] = mine
		} else {
			delete(h.ranks, id)
		}
		h.Unlock()
	}
	m.mu.Unlock()
}

// Held returns the ranks of the locks that the calling goroutine holds.
func Held() []Rank {
	id := goroutine()
	h := &held[bucket(id)]
	h.Lock()
	defer h.Unlock()
	return slices.Clone(h.ranks[id])
}

// bucket returns the index in held for a goroutine. Addresses differ in their middle bits.
func bucket(id uint64) uint64 { return (id ^ id>>9) % uint64(len(held)) }
