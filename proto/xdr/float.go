package xdr

import "math"

// AppendFloat32 appends a single-precision floating-point number in the format of IEEE 754. NaNs
// keep their bits. RFC 4506 section 4.6.
func AppendFloat32(b []byte, v float32) []byte { return AppendUint32(b, math.Float32bits(v)) }

// AppendFloat64 appends a double-precision floating-point number in the format of IEEE 754. NaNs
// keep their bits. RFC 4506 section 4.7.
func AppendFloat64(b []byte, v float64) []byte { return AppendUint64(b, math.Float64bits(v)) }

// ConsumeFloat32 reads a single-precision floating-point number. RFC 4506 section 4.6.
func ConsumeFloat32(b []byte) (v float32, n int) {
	bits, n := ConsumeUint32(b)
	return math.Float32frombits(bits), n
}

// ConsumeFloat64 reads a double-precision floating-point number. RFC 4506 section 4.7.
func ConsumeFloat64(b []byte) (v float64, n int) {
	bits, n := ConsumeUint64(b)
	return math.Float64frombits(bits), n
}

// Float32 reads a single-precision floating-point number.
func (d *Decoder) Float32() float32 {
	v, n := ConsumeFloat32(d.rest())
	if n < 0 {
		d.Fail("float is cut short")
		return 0
	}
	d.off += n
	return v
}

// Float64 reads a double-precision floating-point number.
func (d *Decoder) Float64() float64 {
	v, n := ConsumeFloat64(d.rest())
	if n < 0 {
		d.Fail("double is cut short")
		return 0
	}
	d.off += n
	return v
}
