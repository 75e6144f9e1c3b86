// Package xdr is the External Data Representation of RFC 4506 on byte slices.
//
// XDR writes everything big-endian in units of four bytes; data of any other
// length is followed by up to three pad bytes (RFC 4506 section 3). There are
// three ways in and out:
//
//   - AppendX(b, v) appends the encoding of v to b and returns the longer slice.
//     Nothing is allocated when b has room.
//   - ConsumeX(b) returns the value at the start of b and the number n of bytes
//     it took. n is negative, and the value is zero, when b is too short or the
//     encoding is malformed.
//   - [Decoder] reads a long list of fields and keeps the first error, so that
//     it is checked once, at the end.
//
// # Usage
//
//	b = xdr.AppendUint32(b, 7)
//	b = xdr.AppendOpaque(b, handle)
//
//	d := xdr.NewDecoder(b)
//	id := d.Uint32()
//	handle := d.Opaque(64)
//	if err := d.Err(); err != nil {
//		return err // a *xdr.DecodeError: where, and what was wrong
//	}
//
// # Ownership
//
// Byte slices that Consume functions and the Decoder return are views of the
// input, cut to their own length and capacity: they are valid as long as the
// input is, and change when it changes. Strings are copies, and making the copy
// is the only allocation that a successful decode performs. Append functions
// copy what they are given.
//
// # Limitations
//
// There is no reflection and no code generator: callers write their field lists
// out. Floating-point types are left out, because no protocol of this module has
// them. Pad bytes are written as zero; on receipt any content is accepted and
// ignored, since it carries no meaning and refusing it would only lose messages
// of careless peers. Nothing is read past the end of the slice: an item whose
// pad bytes are missing is short, even if it is the last one.
package xdr
