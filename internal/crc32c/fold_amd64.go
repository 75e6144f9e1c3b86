//go:build !purego

package crc32c

import "golang.org/x/sys/cpu"

const (
	// foldUnit divides the lengths that fold takes, in bytes.
	foldUnit = 64
	// foldMin is the least that fold takes, in bytes. It is the faster one from
	// there on already: 15 ns against 23 on Zen 5.
	foldMin = 256
)

// canFold reports whether the CPU, and the system that saves its registers, have
// what fold uses. Immutable, but for tests.
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

// fold returns the remainder of crc, a remainder itself, and p behind it. The
// length of p is a multiple of foldUnit, and foldMin at least.
//
//go:noescape
func fold(crc uint32, p []byte) uint32
