package xdr

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// A DecodeError says where and why decoding failed.
type DecodeError struct {
	Offset int    // bytes from the start of the input
	What   string // the item and what is wrong with it
	Err    error  // ErrMemory, the error of FailWith, or nil if the input is invalid
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("xdr: byte %d: %s", e.Offset, e.What)
}

// Unwrap returns Err.
func (e *DecodeError) Unwrap() error { return e.Err }

// A Decoder reads the items of an XDR stream in order. The first error sticks: from then on every method returns a zero
// value and the position does not change, so a caller checks [Decoder.Err] only once, after the last field and before
// using any of them.
//
// A Decoder is a plain value: declare it as a variable and it stays on the stack. Nothing is allocated until an error
// occurs, except by [Decoder.String], [Resize], [Extend] and [New].
type Decoder struct {
	b   []byte
	off int
	err *DecodeError
	pad Padding
	pos int // offset of b in the message, for pad

	copies bool // see Copy
	strict bool // see Strict

	depth   int  // depth of Enter
	limited bool // memory is set

	// Bytes that may still be allocated: without asking the account, and in total after that.
	ready, memory uint64
	account       Account // nil: no need to ask

	made uint64 // bytes allocated: see Keep
}

// NewDecoder returns a Decoder at the start of b. The slices that its methods
// return are views of b.
func NewDecoder(b []byte) Decoder { return Decoder{b: b} }

// A Padding means that padding precedes opaque data of at least Thresh bytes, so that the data begins at a multiple of
// Align, counted from the start of the message. An Align of 0 or 1 means no padding. RFC 5666 section 3.9.
type Padding struct{ Align, Thresh uint32 }

// Before returns how many bytes of padding, 0 to Align-1, are between the length word of opaque data of length bytes
// and its first byte. pos is the offset of the byte after the length word, including earlier padding.
func (p Padding) Before(pos, length uint32) uint32 {
	if p.Align <= 1 || length < p.Thresh {
		return 0
	}
	if over := pos % p.Align; over != 0 {
		return p.Align - over
	}
	return 0
}

// NewPaddedDecoder returns a Decoder of b, which begins at offset pos of a message with padding before its opaque data
// and strings. [Decoder.Opaque] and [Decoder.String] skip the padding and ignore its content.
func NewPaddedDecoder(b []byte, pos int, pad Padding) Decoder {
	return Decoder{b: b, pos: pos, pad: pad}
}

// Copy makes [Decoder.Opaque] return copies from now on, so that decoded values stay valid when the input does not.
// [Decoder.FixedOpaque] still returns views.
func (d *Decoder) Copy() { d.copies = true }

// Strict makes [Decoder.Opaque], [Decoder.FixedOpaque] and [Decoder.String] fail from now on if pad bytes are not zero.
// RFC 4506 section 3 requires senders to write zeros, but requires nothing of receivers.
func (d *Decoder) Strict() { d.strict = true }

// Err returns the first error, a [*DecodeError], or nil.
func (d *Decoder) Err() error {
	if d.err == nil {
		return nil
	}
	return d.err
}

// Offset returns the number of bytes consumed.
func (d *Decoder) Offset() int { return d.off }

// Remaining returns the number of bytes not consumed yet; 0 after an error.
func (d *Decoder) Remaining() int { return len(d.rest()) }

// Rest consumes and returns all remaining bytes as a view; nil after an error.
func (d *Decoder) Rest() []byte {
	rest := d.rest()
	d.off += len(rest)
	return rest
}

// Fail records an error at the current position unless there already is one. Callers use it to reject values that
// decode but are invalid, such as undefined enumeration constants.
func (d *Decoder) Fail(what string) {
	if d.err == nil {
		d.err = &DecodeError{Offset: d.off, What: what}
	}
}

// FailWith is Fail with a more specific error, to which the [*DecodeError] unwraps.
func (d *Decoder) FailWith(err error) {
	if d.err == nil {
		d.err = &DecodeError{Offset: d.off, What: err.Error(), Err: err}
	}
}

// End fails if bytes remain, and returns [Decoder.Err]. Call it when no item may follow.
func (d *Decoder) End() error {
	if d.Remaining() > 0 {
		d.Fail("bytes after the last item")
	}
	return d.Err()
}

func (d *Decoder) rest() []byte {
	if d.err != nil {
		return nil
	}
	return d.b[d.off:]
}

// Uint32 reads an unsigned integer or an enumeration.
func (d *Decoder) Uint32() uint32 {
	v, n := ConsumeUint32(d.rest())
	if n < 0 {
		d.Fail("uint32 is cut short")
		return 0
	}
	d.off += n
	return v
}

// Int32 reads a signed integer.
func (d *Decoder) Int32() int32 {
	v, n := ConsumeInt32(d.rest())
	if n < 0 {
		d.Fail("int32 is cut short")
		return 0
	}
	d.off += n
	return v
}

// Uint64 reads an unsigned hyper integer.
func (d *Decoder) Uint64() uint64 {
	v, n := ConsumeUint64(d.rest())
	if n < 0 {
		d.Fail("uint64 is cut short")
		return 0
	}
	d.off += n
	return v
}

// Int64 reads a hyper integer.
func (d *Decoder) Int64() int64 {
	v, n := ConsumeInt64(d.rest())
	if n < 0 {
		d.Fail("int64 is cut short")
		return 0
	}
	d.off += n
	return v
}

// Bool reads a bool.
func (d *Decoder) Bool() bool {
	v, n := ConsumeBool(d.rest())
	if n < 0 {
		d.Fail("bool is cut short or neither 0 nor 1")
		return false
	}
	d.off += n
	return v
}

// Optional reads the discriminant of optional-data and reports whether a value
// follows. A linked list is read with
//
//	for d.Optional() { ... }
//
// which also ends at the first error. RFC 4506 section 4.19.
func (d *Decoder) Optional() bool {
	v, n := ConsumeBool(d.rest())
	if n < 0 {
		d.Fail("discriminant of optional-data is cut short or neither 0 nor 1")
		return false
	}
	d.off += n
	return v
}

// Opaque reads variable-length opaque data of at most max bytes, as a view, or as a copy after
// [Decoder.Copy].
func (d *Decoder) Opaque(max uint32) []byte { return d.variable(max, d.strict) }

// Bulk is [Decoder.Opaque] for data that may have been placed directly. Its pad bytes may come from a chunk, where they
// can have any value, so Bulk ignores them even after [Decoder.Strict]. RFC 5666 section 3.7.
func (d *Decoder) Bulk(max uint32) []byte { return d.variable(max, false) }

func (d *Decoder) variable(max uint32, strict bool) []byte {
	data, n := d.opaque(max)
	if n < 0 || strict && !d.padded(n, len(data)) {
		d.failOpaque("opaque", max)
		return nil
	}
	if d.copies {
		if !d.allocate(len(data), 1) {
			return nil
		}
		data = bytes.Clone(data)
	}
	d.off += n
	return data
}

// FixedOpaque reads size bytes of opaque data, as a view.
func (d *Decoder) FixedOpaque(size int) []byte {
	data, n := ConsumeFixedOpaque(d.rest(), size)
	if n < 0 || d.strict && !d.padded(n, size) {
		d.failFixedOpaque(n)
		return nil
	}
	d.off += n
	return data
}

// String reads a string of at most max bytes, as a copy.
func (d *Decoder) String(max uint32) string {
	s, n := d.opaque(max)
	if n < 0 || d.strict && !d.padded(n, len(s)) {
		d.failOpaque("string", max)
		return ""
	}
	if !d.allocate(len(s), 1) {
		return ""
	}
	d.off += n
	return string(s)
}

// padded reports whether the pad bytes of size bytes of data are zero. They are at the end of the next n bytes.
func (d *Decoder) padded(n, size int) bool {
	end := d.off + n
	for _, c := range d.b[end-Pad(size) : end] {
		if c != 0 {
			return false
		}
	}
	return true
}

// opaque is ConsumeOpaque with the padding of the stream.
func (d *Decoder) opaque(max uint32) (data []byte, n int) {
	rest := d.rest()
	if d.pad.Align <= 1 {
		return ConsumeOpaque(rest, max)
	}
	size, n := ConsumeUint32(rest)
	if n < 0 || size > max {
		return nil, -1
	}
	skip := d.pad.Before(uint32(d.pos+d.off+n), size)
	if uint64(skip)+uint64(size) > uint64(len(rest)-n) {
		return nil, -1
	}
	rest = rest[n+int(skip):]
	if data, n = ConsumeFixedOpaque(rest, int(size)); n < 0 {
		return nil, -1
	}
	return data, 4 + int(skip) + n
}

// Count reads the length word of a variable-length array: at most max elements, each of at
// least size bytes (at least 1). A count that the remaining bytes cannot hold is an error, so
// that the result bounds an allocation safely. RFC 4506 section 4.13.
func (d *Decoder) Count(max uint32, size int) int {
	rest := d.rest()
	v, n := ConsumeUint32(rest)
	if n < 0 {
		d.Fail("array length is cut short")
		return 0
	}
	if v > max {
		d.Fail(fmt.Sprintf("array of %d elements, limit is %d", v, max))
		return 0
	}
	// Compare elements, not bytes: a product could overflow.
	if uint64(v) > uint64((len(rest)-n)/size) {
		d.Fail(fmt.Sprintf("array of %d elements does not fit the remaining bytes", v))
		return 0
	}
	d.off += n
	return int(v)
}

// failOpaque determines why variable-length data is rejected, off the fast path.
func (d *Decoder) failOpaque(item string, max uint32) {
	if d.err != nil {
		return
	}
	if _, n := d.opaque(max); n >= 0 {
		d.Fail(item + " is followed by pad bytes that are not zero")
		return
	}
	rest := d.b[d.off:]
	if len(rest) < 4 {
		d.Fail(item + " length is cut short")
		return
	}
	if size := binary.BigEndian.Uint32(rest); size > max {
		d.Fail(fmt.Sprintf("%s of %d bytes, limit is %d", item, size, max))
		return
	}
	d.Fail(item + " is cut short")
}

// failFixedOpaque is failOpaque for fixed-length data. n is its length with padding, or negative if it is truncated.
func (d *Decoder) failFixedOpaque(n int) {
	if n >= 0 {
		d.Fail("fixed-length opaque is followed by pad bytes that are not zero")
		return
	}
	d.Fail("fixed-length opaque is cut short")
}
