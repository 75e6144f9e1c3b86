//go:build !purego

#include "textflag.h"

// The idea is that of V. Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction", Intel, 2009; the arrangement is ours.
//
// A message is a polynomial over GF(2), and its CRC the remainder modulo P. A
// piece of it that stands d bits in front of another may be taken away if its
// product with x^d is added to the other: modulo P, nothing has changed. Of 128
// bits, A*x^64 + B, that product is A*(x^(d+64) mod P) + B*(x^d mod P), which
// takes two multiplications and fits in 128 bits again, as the factors have 64
// and 32 bits.

// FOLD does this with the four times 128 bits in acc: acc is moved by the
// distance that k stands for, and src, memory or register, which was there, added.
// Multiplied are the low halves, which come first in memory, and the high halves;
// $0x96 is the sum of three.
#define FOLD(k, src, acc, tmp) \
	VPCLMULQDQ $0x00, k, acc, tmp; \
	VPCLMULQDQ $0x11, k, acc, acc; \
	VPTERNLOGQ $0x96, src, tmp, acc

// func fold(crc uint32, p []byte) uint32
//
// SI, CX: what is next of p, and its bytes less those of a step: negative at the end
// Z0-Z3:  the last 256 bytes, with all before them folded in
// Z4-Z7:  products
// Z8, Z9: multipliers for 256 and for 64 bytes, four times each
TEXT ·fold(SB), NOSPLIT, $64-36
	MOVL            crc+0(FP), AX
	MOVQ            p_base+8(FP), SI
	MOVQ            p_len+16(FP), CX
	VBROADCASTI32X4 ·multipliers+0(SB), Z8
	VBROADCASTI32X4 ·multipliers+16(SB), Z9

	// What came before p is the same as its remainder on p's first four bytes.
	VMOVD     AX, X0
	VPXORQ    0(SI), Z0, Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	ADDQ      $256, SI
	SUBQ      $512, CX
	JLT       merge

wide: // four independent chains hide the latency of the multiplications
	FOLD(Z8, 0(SI), Z0, Z4)
	FOLD(Z8, 64(SI), Z1, Z5)
	FOLD(Z8, 128(SI), Z2, Z6)
	FOLD(Z8, 192(SI), Z3, Z7)
	ADDQ $256, SI
	SUBQ $256, CX
	JGE  wide

merge: // 256 bytes become 64, in Z0
	FOLD(Z9, Z1, Z0, Z4)
	FOLD(Z9, Z2, Z0, Z4)
	FOLD(Z9, Z3, Z0, Z4)
	ADDQ $192, CX
	JLT  finish

narrow: // and up to three times 64 are left
	FOLD(Z9, 0(SI), Z0, Z4)
	ADDQ $64, SI
	SUBQ $64, CX
	JGE  narrow

finish: // the remainder of 64 bytes, by the CPU's instruction for this polynomial
	VMOVDQU64 Z0, rest-64(SP)
	VZEROUPPER
	XORL      AX, AX
	CRC32Q    rest-64(SP), AX
	CRC32Q    rest-56(SP), AX
	CRC32Q    rest-48(SP), AX
	CRC32Q    rest-40(SP), AX
	CRC32Q    rest-32(SP), AX
	CRC32Q    rest-24(SP), AX
	CRC32Q    rest-16(SP), AX
	CRC32Q    rest-8(SP), AX
	MOVL      AX, ret+32(FP)
	RET
