package iwarp

import "math/bits"

// A ring is a queue that grows by doubling. Once it has reached the maximum length of its user, it does not allocate
// anymore. Elements are numbered from the first one ever pushed, so that numbers remain valid while the ring grows.
type ring[T any] struct {
	buf        []T // a power of two long, or nil
	head, tail uint64
}

func (r *ring[T]) len() int { return int(r.tail - r.head) }

// at returns the element numbered i, which must be between head and tail. The pointer is valid until the next push or
// reserve.
func (r *ring[T]) at(i uint64) *T { return &r.buf[i&uint64(len(r.buf)-1)] }

// push appends a zero element and returns it for the caller to fill.
func (r *ring[T]) push() *T {
	if r.tail-r.head == uint64(len(r.buf)) {
		r.grow()
	}
	r.tail++
	return &r.buf[(r.tail-1)&uint64(len(r.buf)-1)]
}

// pop removes the first element and clears it.
func (r *ring[T]) pop() {
	var zero T
	*r.at(r.head) = zero
	r.head++
}

// drop removes the first n elements.
func (r *ring[T]) drop(n int) {
	for range n {
		r.pop()
	}
}

// reserve grows the ring for n more elements.
func (r *ring[T]) reserve(n int) {
	if want := r.len() + n; want > len(r.buf) {
		r.resize(1 << bits.Len(uint(max(8, want)-1)))
	}
}

func (r *ring[T]) grow() { r.resize(max(8, 2*len(r.buf))) }

// resize sets the capacity to n, a power of two.
func (r *ring[T]) resize(n int) {
	old := *r
	r.buf = make([]T, n)
	for i := old.head; i != old.tail; i++ {
		*r.at(i) = *old.at(i)
	}
}
