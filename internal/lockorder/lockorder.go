// Package lockorder has locks that check the order in which they are acquired.
//
// A [Value] is a lock together with what it guards: the value cannot be reached without the lock. A [Part] is guarded
// by the lock of a Value elsewhere. A [Mutex] is only a lock, for data guarded by convention.
//
// In builds with the race detector, a goroutine that acquires a lock while it holds one of the same or a later [Rank]
// panics, whether or not goroutines actually contend. In other builds the locks cost as much as a sync.Mutex.
package lockorder

import "sync"

// A Rank is a lock's position in the order: a goroutine must acquire locks with ascending ranks. A lock with rank zero
// is not checked.
type Rank uint8

// A Value is a T and the lock that guards it. Lock returns the T to the caller, until Unlock.
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

// Lock locks the value and returns it. The result must not be used after Unlock.
func (g *Value[T]) Lock() *T {
	g.mu.Lock()
	return &g.v
}

// TryLock locks the value if it is free and returns it. Otherwise it returns nil.
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

// A Part is a T that is guarded by the lock of a Value of G, although it is stored elsewhere: one Value may guard Parts
// of several owners.
type Part[G, T any] struct{ v T }

// Init returns the T for initialization, before its first use.
func (p *Part[G, T]) Init() *T { return &p.v }

// Of returns the T to a goroutine that has locked its Value, and passes the G as proof. The result must not be used
// after Unlock.
func (p *Part[G, T]) Of(*G) *T { return &p.v }
