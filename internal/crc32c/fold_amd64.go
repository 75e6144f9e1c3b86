//go:build !purego

package crc32c

import "golang.org/x/sys/cpu"

const (
	// The length of fold's input is a multiple of foldUnit bytes.
	foldUnit = 64
	// braidRounds is the number of iterations of braid's loop, braidPart the length of each of
	// the three parts that it does not fold, and braidLen the length of its input. Three
	// times braidLen is slightly less than the longest FPDU.
	braidRounds = 57
	braidPart   = braidRounds * 40
	braidLen    = (1+braidRounds)*256 + 3*braidPart
)

// canFold reports whether the CPU and the operating system support the instructions and
// registers of fold and braid. Immutable, except in tests.
var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42

// multipliers are the factors of fold to move 128 bits by a distance d: pairs of x^(d+64) for the low
// half, which is 64 bits before the high half, and x^d for the high half, both modulo the polynomial.
// As everywhere in this CRC the highest bit is x^0, so 32-bit values are in the upper half of 64
// bits; and since the product of two bit-reflected numbers is shifted by one, which is a factor of x,
// the exponents are less by one.
var multipliers = [4]uint64{
	0xe9a5d8be_00000000, 0x1426a815_00000000, // d = 2048: 256 bytes
	0x1c19243b_00000000, 0x75bba45b_00000000, // d = 512: 64 bytes
}

// joints move remainders of 32 bits by three, two and one times braidPart. Their exponents are
// less by 33: the CPU's CRC32 instruction, which reduces the product, multiplies by x^32.
var joints = [4]uint64{0x28b9b30b, 0x032a8058, 0x9fd51b88}

// front extends crc over the part of p that can be folded, and returns the rest.
func front(crc uint32, p []byte) (uint32, []byte) {
	if !canFold {
		return crc, p
	}
	rem := ^crc // the standard library stores the complement
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

// fold returns the remainder of rem, which is itself a remainder, followed by p. The length of
// p is a multiple of foldUnit, and at least foldMin.
//
//go:noescape
func fold(rem uint32, p []byte) uint32

// braid does the same for braidLen bytes, which is its fastest length.
//
//go:noescape
func braid(rem uint32, p *[braidLen]byte) uint32
