package xdr

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// MaxDepth limits how deeply values of recursive types may be nested: see [Decoder.Enter].
const MaxDepth = 64

// The memory that a Decoder may use for arrays, lists, optional data, strings and copies, in bytes, unless
// [Decoder.LimitMemory] changes it: a few bytes of input can stand for an element of many arms.
const (
	freeMemory    = 64 << 10
	memoryPerByte = 8 // of input
)

// ErrMemory is wrapped by the [*DecodeError] of input that decodes to more memory than is available: see
// [Decoder.LimitMemory] and [Decoder.ChargeTo]. Such input may be valid.
var ErrMemory = errors.New("no memory for values")

// An Account limits the memory that values use in addition to that of the input.
type Account interface {
	// Reserve reports whether that many more bytes are available, and reserves them if so. It must not block.
	Reserve(bytes int) bool
}

// Enter begins a value of a recursive type, and reports whether it may be decoded. It may not if [MaxDepth] of them are
// already open, which is an error, or after any other error. If Enter returns true, call [Decoder.Leave] after the
// value. Without the limit, input of 4 bytes per level could exhaust the stack. Enter also stops after an error,
// because all discriminants are then 0: if the arm for 0 has two values of the type, they would double at each level
// without any input.
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

// LimitMemory sets how many bytes [Resize], [Extend], [New], [Decoder.String] and copies may allocate from now on. The
// default is 64 KiB plus 8 times the length of the input.
func (d *Decoder) LimitMemory(bytes int) {
	bytes = max(0, bytes)
	d.limited = true
	d.ready = uint64(min(bytes, freeMemory))
	d.memory = uint64(bytes) - d.ready
}

// limit sets the default limit.
func (d *Decoder) limit() {
	d.LimitMemory(int(min(freeMemory+memoryPerByte*uint64(len(d.b)), math.MaxInt)))
}

// ChargeTo makes the Decoder reserve in a what it allocates beyond 64 KiB. The Decoder never releases it: that is up to
// code that knows how long the values live. Call ChargeTo before decoding anything.
func (d *Decoder) ChargeTo(a Account) { d.account = a }

// allocate accounts for n values of size bytes. It reports whether they may be allocated, and fails if not.
func (d *Decoder) allocate(n int, size uintptr) bool {
	if d.err != nil {
		return false
	}
	high, need := bits.Mul64(uint64(n), uint64(size))
	if high > 0 || need > d.ready && !d.reserve(need-d.ready) {
		d.failMemory()
		return false
	}
	d.ready -= need
	d.made += need
	return true
}

// reserve makes at least n bytes ready to be allocated.
func (d *Decoder) reserve(n uint64) bool {
	if !d.limited {
		d.limit()
		if n <= d.ready {
			return true
		}
		n -= d.ready
	}
	if n > d.memory {
		return false
	}
	if d.account != nil {
		// In large steps, because each value of a chain is allocated separately.
		n = min(max(n, freeMemory), d.memory)
		if !d.account.Reserve(int(n)) {
			return false
		}
	}
	d.memory -= n
	d.ready += n
	return true
}

func (d *Decoder) failMemory() { d.FailWith(ErrMemory) }

// Keep reports whether a value that d has decoded may be kept, so that the next one is decoded over it and reuses its
// memory. total belongs to the value, and is zero for a new one. It counts the bytes that have been allocated for the
// value, which must be dropped when they exceed 64 KiB, because no [Account] knows of them. Otherwise elements that are
// long in only one input each would add up: [Resize] and [Extend] keep unused elements.
func (d *Decoder) Keep(total *uint64) bool {
	*total += d.made
	d.made = 0
	return *total <= freeMemory
}

// Resize returns a slice of n elements for an array to be decoded: s itself if it has the capacity. Its elements keep
// their contents, so that decoding into them can reuse their slices too. n is the result of [Decoder.Count]. If the
// memory exceeds the limit, d fails and the slice is empty.
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

// Extend makes list one element longer, and returns the new element, for an element of a linked list to be decoded.
// Within the capacity of the list the element keeps its contents. If the memory exceeds the limit, d fails, and the
// list has one element.
func Extend[S ~[]T, T any](d *Decoder, list *S) *T {
	s := *list
	if len(s) == cap(s) {
		var zero T
		if more := d.room(max(4, len(s)), unsafe.Sizeof(zero)); d.allocate(more, unsafe.Sizeof(zero)) {
			s = append(make(S, 0, len(s)+more), s...)
		} else {
			s = make(S, 0, 1)
		}
	}
	s = s[:len(s)+1]
	*list = s
	return &s[len(s)-1]
}

// room returns how many of n values of size bytes fit in the limit, but at least 1.
func (d *Decoder) room(n int, size uintptr) int {
	if size == 0 {
		return n
	}
	if !d.limited {
		d.limit()
	}
	return int(max(1, min(uint64(n), (d.ready+d.memory)/uint64(size))))
}

// New returns a value for optional data to be decoded: p itself unless it is nil. If the memory exceeds the limit, d
// fails.
func New[T any](d *Decoder, p *T) *T {
	if p == nil {
		p = new(T)
		d.allocate(1, unsafe.Sizeof(*p))
	}
	return p
}

// Invalid fails because item, such as the name of an enumeration, has an undefined value. RFC 4506 section 4.3.
func (d *Decoder) Invalid(item string, value int64) {
	if d.err == nil {
		d.Fail(fmt.Sprintf("%s is %d, which is not defined", item, value))
	}
}
