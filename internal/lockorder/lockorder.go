// Package lockorder has locks that know their place in the order in which locks are taken.
//
// A [Value] is a lock together with what it guards: the value cannot be reached without the lock. A
// [Part] is guarded by the lock of a Value elsewhere. A [Mutex] is a lock alone, for data that
// discipline guards.
//
// In builds with the race detector a goroutine that acquires a lock while it holds one of the same or
// a later [Rank] panics, whether or not two goroutines meet in that moment. In other builds the locks
// cost what a sync.Mutex costs.
package lockorder

import "sync"

// A Rank is a lock's place in the order: a goroutine takes locks with ascending ranks.
// Zero is a lock without a place, which is not checked.
type Rank uint8

// A Value is a T and the lock that guards it. Lock gives the T to the caller, until
// Unlock.
type Value[T any] struct {
	mu Mutex
	v  T
}

// Init sets the rank of the lock, before its first use, and returns the value for its
// own initialization.
func (g *Value[T]) Init(rank Rank) *T {
	g.mu.Init(rank)
	return &g.v
}

// Lock locks the value and returns it. It must not be used after Unlock.
func (g *Value[T]) Lock() *T {
	g.mu.Lock()
	return &g.v
}

// TryLock locks the value if it is free and returns it, or else nil.
func (g *Value[T]) TryLock() *T {
	if !g.mu.TryLock() {
		return nil
	}
	return &g.v
}

// Unlock unlocks the value.
func (g *Value[T]) Unlock() { g.mu.Unlock() }

// Cond returns a new condition variable with the lock of the value.
func (g *Value[T]) Cond() *sync.Cond { return sync.NewCond(&g.mu) }

// A Part is a T that the lock of a Value of G guards, although it stands elsewhere: one Value
// may guard Parts of several owners.
type Part[G, T any] struct{ v T }

// Init returns the T for its initialization, before its first use.
func (p *Part[G, T]) Init() *T { return &p.v }

// Of returns the T to a goroutine that has locked its Value, and shows the G for that. It must
// not be used after Unlock.
func (p *Part[G, T]) Of(*G) *T { return &p.v }
