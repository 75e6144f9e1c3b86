package xdr

import (
	"fmt"
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

// Enter begins a value of a recursive type, and reports whether it may be decoded: the error is
// that [MaxDepth] of them are open already. If Enter returns true, call [Decoder.Leave] behind the
// value. Without a limit, input of 4 bytes for each level could use up the stack.
func (d *Decoder) Enter() bool {
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
		d.LimitMemory(freeMemory + memoryPerByte*len(d.b))
	}
	if d.err != nil || size == 0 {
		return d.err == nil
	}
	if uint64(n) > uint64(d.memory)/uint64(size) {
		d.Fail("values take more memory than the limit")
		return false
	}
	d.memory -= n * int(size)
	return true
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
