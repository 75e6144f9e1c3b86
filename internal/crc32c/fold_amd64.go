//go:build !purego

package crc32c

import "golang.org/x/sys/cpu"

const (
	// foldUnit divides the lengths that fold takes, in bytes.
	foldUnit = 64
	// braidRounds is how often the loop of braid runs, braidPart the length of each
	// of the three parts that it does not fold, and braidLen what it takes: three
	// times that is little less than the longest FPDU.
	braidRounds = 57
	braidPart   = braidRounds * 40
	braidLen    = (1+braidRounds)*256 + 3*braidPart
)

// canFold reports whether the CPU, and the system that saves its registers, have
// what fold and braid use. Immutable, but for tests.
var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42

// multipliers are what fold multiplies by to move 128 bits by a distance d: pairs
// of x^(d+64) for the low half, which stands 64 bits in front of the high half,
// and x^d for that, both modulo the polynomial. As everywhere in this CRC the
// highest bit is x^0, so that 32 bits are the upper ones of 64; and as the product
// of two numbers in this order comes out shifted, times x, the exponents are less
// by one.
var multipliers = [4]uint64{
	0xe9a5d8be_00000000, 0x1426a815_00000000, // d = 2048: 256 bytes
	0x1c19243b_00000000, 0x75bba45b_00000000, // d = 512: 64 bytes
}

// joints move remainders of 32 bits by three, two and one times braidPart. Their
// exponents are less by 33: what is moved becomes a remainder by the CPU's
// instruction, which multiplies by x^32.
var joints = [4]uint64{0x28b9b30b, 0x032a8058, 0x9fd51b88}

// front extends crc over what can be folded at the front of p, and returns the
// rest.
func front(crc uint32, p []byte) (uint32, []byte) {
	if !canFold {
		return crc, p
	}
	rem := ^crc // of which the standard library keeps the complement
	for len(p) >= braidLen {
		rem = braid(rem, (*[braidLen]byte)(p))
		p = p[braidLen:]
	}
	if len(p) >= foldMin {
		n := len(p) &^ (foldUnit - 1)
		rem = fold(rem, p[:n])
		p = p[n:]
	}
	return ^rem, p
}

// fold returns the remainder of rem, a remainder itself, and p behind it. The
// length of p is a multiple of foldUnit, and foldMin at least.
//
//go:noescape
func fold(rem uint32, p []byte) uint32

// braid does the same with as many bytes as are best for it.
//
//go:noescape
func braid(rem uint32, p *[braidLen]byte) uint32
