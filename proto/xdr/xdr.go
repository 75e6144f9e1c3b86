package xdr

import (
	"encoding/binary"
	"math"
)

// Unit is the size in bytes of the block that every XDR item is made of.
// RFC 4506 section 3.
const Unit = 4

// Pad returns how many pad bytes, 0 to 3, follow n bytes of data.
// RFC 4506 section 3. n must not be negative.
func Pad(n int) int { return -n & (Unit - 1) }

// Padded returns n plus its pad bytes: the size in bytes of n bytes of data in an XDR stream,
// without a length word. n must not be negative.
func Padded(n int) int { return n + Pad(n) }

// SizeOpaque returns the size in bytes of a variable-length opaque or string
// with n bytes of data: length word, data, pad. RFC 4506 section 4.10.
func SizeOpaque(n int) int { return Unit + Padded(n) }

// AppendUint32 appends an unsigned integer. RFC 4506 section 4.2.
// Enumerations (section 4.3) and discriminants are written the same way.
func AppendUint32(b []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint32(b, v)
}

// AppendInt32 appends a signed integer. RFC 4506 section 4.1.
func AppendInt32(b []byte, v int32) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(v))
}

// AppendUint64 appends an unsigned hyper integer. It needs no eight-byte
// alignment. RFC 4506 section 4.5.
func AppendUint64(b []byte, v uint64) []byte {
	return binary.BigEndian.AppendUint64(b, v)
}

// AppendInt64 appends a hyper integer. RFC 4506 section 4.5.
func AppendInt64(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(v))
}

// AppendBool appends 1 for true and 0 for false. RFC 4506 section 4.4. The discriminant of optional-data (section 4.19)
// is also a bool.
func AppendBool(b []byte, v bool) []byte {
	var w uint32
	if v {
		w = 1
	}
	return binary.BigEndian.AppendUint32(b, w)
}

// AppendOpaque appends variable-length opaque data: length word, data, pad. RFC 4506 section
// 4.10. It panics if data is 4 GiB or longer, which a length word cannot express.
func AppendOpaque(b, data []byte) []byte {
	checkLen(len(data))
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	b = append(b, data...)
	return appendPad(b, len(data))
}

// AppendFixedOpaque appends opaque data of a length that both sides know: data and pad, no
// length word. RFC 4506 section 4.9.
func AppendFixedOpaque(b, data []byte) []byte {
	b = append(b, data...)
	return appendPad(b, len(data))
}

// AppendString appends a string in the format of [AppendOpaque], and panics in the same case. RFC 4506 section 4.11.
func AppendString(b []byte, s string) []byte {
	checkLen(len(s))
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	b = append(b, s...)
	return appendPad(b, len(s))
}

func checkLen(n int) {
	if uint64(n) > math.MaxUint32 {
		panic("xdr: data of 4 GiB or more has no encoding")
	}
}

func appendPad(b []byte, n int) []byte {
	switch Pad(n) {
	case 1:
		return append(b, 0)
	case 2:
		return append(b, 0, 0)
	case 3:
		return append(b, 0, 0, 0)
	}
	return b
}

// ConsumeUint32 reads an unsigned integer. RFC 4506 section 4.2.
func ConsumeUint32(b []byte) (v uint32, n int) {
	if len(b) < 4 {
		return 0, -1
	}
	return binary.BigEndian.Uint32(b), 4
}

// ConsumeInt32 reads a signed integer. RFC 4506 section 4.1.
func ConsumeInt32(b []byte) (v int32, n int) {
	if len(b) < 4 {
		return 0, -1
	}
	return int32(binary.BigEndian.Uint32(b)), 4
}

// ConsumeUint64 reads an unsigned hyper integer. RFC 4506 section 4.5.
func ConsumeUint64(b []byte) (v uint64, n int) {
	if len(b) < 8 {
		return 0, -1
	}
	return binary.BigEndian.Uint64(b), 8
}

// ConsumeInt64 reads a hyper integer. RFC 4506 section 4.5.
func ConsumeInt64(b []byte) (v int64, n int) {
	if len(b) < 8 {
		return 0, -1
	}
	return int64(binary.BigEndian.Uint64(b)), 8
}

// ConsumeBool reads a bool, also as the discriminant of optional-data. A value
// other than 0 and 1 is malformed. RFC 4506 sections 4.4 and 4.19.
func ConsumeBool(b []byte) (v bool, n int) {
	if len(b) < 4 {
		return false, -1
	}
	w := binary.BigEndian.Uint32(b)
	if w > 1 {
		return false, -1
	}
	return w == 1, 4
}

// ConsumeOpaque reads variable-length opaque data of at most max bytes. data is a
// view of b. RFC 4506 section 4.10.
func ConsumeOpaque(b []byte, max uint32) (data []byte, n int) {
	if len(b) < 4 {
		return nil, -1
	}
	size := binary.BigEndian.Uint32(b)
	if size > max {
		return nil, -1
	}
	rest := b[4:]
	// Compared in 64 bits: on a 32-bit machine the word may not fit an int.
	if uint64(size) > uint64(len(rest)) {
		return nil, -1
	}
	length := int(size)
	if Pad(length) > len(rest)-length {
		return nil, -1
	}
	return rest[:length:length], 4 + Padded(length)
}

// ConsumeFixedOpaque reads size bytes of opaque data. data is a view of b. A
// negative size is malformed. RFC 4506 section 4.9.
func ConsumeFixedOpaque(b []byte, size int) (data []byte, n int) {
	if size < 0 || size > len(b) || Pad(size) > len(b)-size {
		return nil, -1
	}
	return b[:size:size], Padded(size)
}

// ConsumeString reads a string of at most max bytes. The string is a copy; if the allocation matters, use
// [ConsumeOpaque], which returns a view. The bytes are not checked to be ASCII or UTF-8. RFC 4506 section 4.11.
func ConsumeString(b []byte, max uint32) (s string, n int) {
	data, n := ConsumeOpaque(b, max)
	return string(data), n
}
