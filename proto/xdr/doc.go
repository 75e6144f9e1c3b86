// Package xdr implements the External Data Representation of RFC 4506 on byte slices.
//
// XDR writes everything big-endian in units of four bytes; data of any other length is followed by up to three pad
// bytes (RFC 4506 section 3). There are three kinds of functions:
//
//   - AppendX(b, v) appends the encoding of v to b and returns the extended slice. It allocates only if b lacks the
//     capacity.
//   - ConsumeX(b) returns the value at the start of b and the number n of bytes consumed. n is negative, and the value
//     is zero, if b is too short or the encoding is malformed.
//   - [Decoder] reads a sequence of fields and keeps the first error, so that it need be checked only once, at the end.
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
// Byte slices that Consume functions and the Decoder return are views of the input, with length and capacity limited to
// the item. They are valid as long as the input is. Strings are copies, and making the copy is the only allocation that
// methods of the Decoder perform. Append functions copy their arguments.
//
// # Limitations
//
// There is no reflection: callers list their fields in code, or let command xdrgen generate it from a .x file.
// [Resize], [Extend], [New], [Decoder.Enter] and the functions around [CheckError] are for generated code. A
// quadruple-precision floating-point number is 16 bytes of fixed opaque, because Go has no such type. Pad bytes are
// written as zero. Received pad bytes are ignored, so that messages of careless peers decode, unless [Decoder.Strict]
// is called. Nothing is read past the end of the slice: an item without its pad bytes is too short, even if it is the
// last one.
package xdr
