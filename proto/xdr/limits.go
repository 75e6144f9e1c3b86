package xdr

import (
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// MaxDepth limits how deep values of recursive types may be nested: see [Decoder.Enter].
const MaxDepth = 64

// The memory that a Decoder may use for arrays and optional data, in bytes, unless
// [Decoder.LimitMemory] says otherwise: a few bytes of input can stand for an element of many
// arms.
const (
	freeMemory    = 1 << 20
	memoryPerByte = 64 // of input
)

// The same of a value that is kept, for all that it has been decoded from: see [Decoder.Keep].
const (
	keptMemory  = 64 << 10
	keptPerByte = 16 // of the last input
)

// Enter begins a value of a recursive type, and reports whether it may be decoded. It may not if
// [MaxDepth] of them are open already, which is an error, or behind any other error. If Enter returns
// true, call [Decoder.Leave] behind the value. Without a limit, input of 4 bytes for each level could
// use up the stack. Behind an error all discriminants are 0, and the arm for 0 may have two values of
// the type: they would double at each level without any input.
func (d *Decoder) Enter() bool {
	if d.err != nil {
		return false
	}
	if d.depth == MaxDepth {
		d.Fail(fmt.Sprintf("values are nested deeper than %d", MaxDepth))
		return false
	}
	d.depth++
	return true
}

// Leave ends what [Decoder.Enter] began.
func (d *Decoder) Leave() { d.depth-- }

// LimitMemory sets the limit of what [Resize], [Extend] and [New] may allocate from now on, in
// bytes. Without it that is 1 MiB and 64 times the length of the input.
func (d *Decoder) LimitMemory(bytes int) {
	d.limited, d.memory = true, max(0, bytes)
}

// allocate reports whether n values of size bytes may be allocated, and otherwise fails.
func (d *Decoder) allocate(n int, size uintptr) bool {
	if !d.limited {
		d.LimitMemory(int(min(freeMemory+memoryPerByte*uint64(len(d.b)), math.MaxInt)))
	}
	if d.err != nil || size == 0 {
		return d.err == nil
	}
	if uint64(n) > uint64(d.memory)/uint64(size) {
		d.Fail("values take more memory than the limit")
		return false
	}
	d.memory -= n * int(size)
	d.made += uint64(n) * uint64(size)
	return true
}

// Keep reports whether a value that d has decoded may be kept, so that the next one is decoded over it
// and reuses its memory. total is of the value, and zero for a new one: it counts the bytes that have
// been allocated for it, and the value is to be dropped when they are too many for the input of d.
// Without that, elements which are long in one input each would add up: [Resize] and [Extend] keep
// what is not in use.
func (d *Decoder) Keep(total *uint64) bool {
	*total += d.made
	d.made = 0
	return *total <= keptMemory+keptPerByte*uint64(len(d.b))
}

// Resize returns a slice of n elements for an array that is about to be decoded: s itself if
// it has the capacity. What its elements contain is kept, so that decoding into them can reuse
// their slices, too. n is the result of [Decoder.Count]. If the memory is more than the limit,
// d fails and the slice is empty.
func Resize[S ~[]T, T any](d *Decoder, s S, n int) S {
	if n <= cap(s) {
		return s[:n]
	}
	var zero T
	if !d.allocate(n, unsafe.Sizeof(zero)) {
		return s[:0]
	}
	longer := make(S, n)
	copy(longer, s[:cap(s)])
	return longer
}

// Extend makes list one element longer, and returns the new one, for an element of a linked list
// that is about to be decoded. Within the capacity of the list the element is what it was. If the
// memory is more than the limit, d fails, and the list has one element.
func Extend[S ~[]T, T any](d *Decoder, list *S) *T {
	s := *list
	if len(s) == cap(s) {
		var zero T
		if more := max(4, len(s)); d.allocate(more, unsafe.Sizeof(zero)) {
			s = slices.Grow(s, more)
		} else {
			s = make(S, 0, 1)
		}
	}
	s = s[:len(s)+1]
	*list = s
	return &s[len(s)-1]
}

// New returns a value for optional data that is about to be decoded: p itself unless it is nil.
// If the memory is more than the limit, d fails.
func New[T any](d *Decoder, p *T) *T {
	if p == nil {
		p = new(T)
		d.allocate(1, unsafe.Sizeof(*p))
	}
	return p
}

// Invalid fails because item, such as the name of an enumeration, has a value that is not
// defined. RFC 4506 section 4.3.
func (d *Decoder) Invalid(item string, value int64) {
	if d.err == nil {
		d.Fail(fmt.Sprintf("%s is %d, which is not defined", item, value))
	}
}
