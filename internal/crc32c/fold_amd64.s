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

// START loads the first 256 bytes at SI, and the multipliers. What came before is
// the same as its remainder, in AX, on the first four bytes.
//
// Z0-Z3:  the last 256 bytes, with all before them folded in
// Z4-Z7:  products
// Z8, Z9: multipliers for 256 and for 64 bytes, four times each
#define START() \
	VBROADCASTI32X4 ·multipliers+0(SB), Z8; \
	VBROADCASTI32X4 ·multipliers+16(SB), Z9; \
	VMOVD           AX, X0; \
	VPXORQ          0(SI), Z0, Z0; \
	VMOVDQU64       64(SI), Z1; \
	VMOVDQU64       128(SI), Z2; \
	VMOVDQU64       192(SI), Z3; \
	ADDQ            $256, SI

// MERGE makes 64 bytes, in Z0, of 256.
#define MERGE() \
	FOLD(Z9, Z1, Z0, Z4); \
	FOLD(Z9, Z2, Z0, Z4); \
	FOLD(Z9, Z3, Z0, Z4)

// FINISH leaves the remainder of the 64 bytes in Z0 in AX, by way of buf.
#define FINISH(buf) \
	VMOVDQU64 Z0, buf-64(SP); \
	XORL      AX, AX; \
	CRC32Q    buf-64(SP), AX; \
	CRC32Q    buf-56(SP), AX; \
	CRC32Q    buf-48(SP), AX; \
	CRC32Q    buf-40(SP), AX; \
	CRC32Q    buf-32(SP), AX; \
	CRC32Q    buf-24(SP), AX; \
	CRC32Q    buf-16(SP), AX; \
	CRC32Q    buf-8(SP), AX

// func fold(rem uint32, p []byte) uint32
//
// SI, CX: what is next of p, and its bytes less those of a step: negative at the end
TEXT ·fold(SB), NOSPLIT, $64-36
	MOVL rem+0(FP), AX
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), CX
	START()
	SUBQ $512, CX
	JLT  merge

wide: // four independent chains hide the latency of the multiplications
	FOLD(Z8, 0(SI), Z0, Z4)
	FOLD(Z8, 64(SI), Z1, Z5)
	FOLD(Z8, 128(SI), Z2, Z6)
	FOLD(Z8, 192(SI), Z3, Z7)
	ADDQ $256, SI
	SUBQ $256, CX
	JGE  wide

merge:
	MERGE()
	ADDQ $192, CX
	JLT  finish

narrow: // up to three times 64 bytes are left
	FOLD(Z9, 0(SI), Z0, Z4)
	ADDQ $64, SI
	SUBQ $64, CX
	JGE  narrow

finish:
	FINISH(rest)
	VZEROUPPER
	MOVL AX, ret+32(FP)
	RET

// The CPU's instruction keeps another unit busy than the multiplications do, so
// that both can run at the same time, each on its part of a message. braid folds
// 256 bytes in a round, and gives the instruction three independent streams of
// 40 bytes, as one takes three cycles; that is as much as either does alone in
// that time. P. Cawley's fast-crc32 has shown how well this works.
#define ROUNDS 57
#define PART (ROUNDS*40)

// STEP takes eight bytes of each of the three parts that are not folded.
#define STEP(at) \
	CRC32Q (at)(DI), R8; \
	CRC32Q (PART+at)(DI), R9; \
	CRC32Q (2*PART+at)(DI), R10

// func braid(rem uint32, p *[braidLen]byte) uint32
//
// SI:     what is next of the part that is folded: 256 bytes, and as many a round
// DI:     what is next of the first of the three parts behind it
// AX:     the remainder of the folded part
// R8-R10: those of the three
TEXT ·braid(SB), NOSPLIT, $64-20
	MOVL rem+0(FP), AX
	MOVQ p+8(FP), SI
	LEAQ ((1+ROUNDS)*256)(SI), DI
	START()
	XORL R8, R8
	XORL R9, R9
	XORL R10, R10
	MOVL $ROUNDS, CX

round:
	FOLD(Z8, 0(SI), Z0, Z4)
	STEP(0)
	FOLD(Z8, 64(SI), Z1, Z5)
	STEP(8)
	FOLD(Z8, 128(SI), Z2, Z6)
	STEP(16)
	FOLD(Z8, 192(SI), Z3, Z7)
	STEP(24)
	STEP(32)
	ADDQ $256, SI
	ADDQ $40, DI
	DECL CX
	JNE  round

	MERGE()
	FINISH(rest)

	// The remainders are moved to the end of p. The products have 64 bits, which the
	// instruction takes modulo P.
	VMOVD      AX, X0
	VMOVD      R8, X1
	VMOVD      R9, X2
	VPCLMULQDQ $0x00, ·joints+0(SB), X0, X0
	VPCLMULQDQ $0x10, ·joints+0(SB), X1, X1
	VPCLMULQDQ $0x00, ·joints+16(SB), X2, X2
	VPXOR      X1, X0, X0
	VPXOR      X2, X0, X0
	VMOVQ      X0, BX
	XORL       AX, AX
	CRC32Q     BX, AX
	XORL       R10, AX
	VZEROUPPER
	MOVL       AX, ret+16(FP)
	RET
