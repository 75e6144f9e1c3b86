//go:build !purego

package crc32c

import (
	"bytes"
	"hash/crc32"
	"math/bits"
	"os"
	"runtime"
	"strings"
	"testing"
)

// needsFold skips a test of fold on other CPUs. The CPU flags of Linux must agree, unless
// features are disabled by GODEBUG.
func needsFold(t *testing.T) {
	t.Helper()
	if canFold {
		return
	}
	if runtime.GOOS == "linux" && !strings.Contains(os.Getenv("GODEBUG"), "cpu.") {
		info, err := os.ReadFile("/proc/cpuinfo")
		if err != nil {
			t.Fatal(err)
		}
		if has := func(flag string) bool { return bytes.Contains(info, []byte(" "+flag)) }; has("avx512f") && has("vpclmulqdq") {
			t.Fatal("fold is not used, but the CPU has AVX-512 and VPCLMULQDQ")
		}
	}
	t.Skip("this CPU has no AVX-512 with VPCLMULQDQ")
}

// TestFold tests fold, at all lengths that Update may use.
func TestFold(t *testing.T) {
	needsFold(t)
	buf := random(4096)
	for n := foldMin; n <= len(buf); n += foldUnit {
		for _, rem := range []uint32{0, 1, 1 << 31, 0xffffffff, uint32(n) * 0x9e3779b9} {
			if got, w := fold(rem, buf[:n]), ^want(^rem, buf[:n]); got != w {
				t.Fatalf("%d bytes from %08x: %08x, want %08x", n, rem, got, w)
			}
		}
	}
}

// TestBraid tests braid, and then Update around the lengths at which it uses braid once or
// more.
func TestBraid(t *testing.T) {
	needsFold(t)
	buf := random(4 * braidLen)
	for at := range 200 {
		p, rem := (*[braidLen]byte)(buf[at:]), uint32(at)*0x9e3779b9
		if got, w := braid(rem, p), ^want(^rem, p[:]); got != w {
			t.Fatalf("at %d from %08x: %08x, want %08x", at, rem, got, w)
		}
	}
	for _, n := range []int{braidLen, 2 * braidLen, 3 * braidLen} {
		for d := -70; d < foldMin+70; d++ {
			if got, w := Update(1, buf[:n+d]), want(1, buf[:n+d]); got != w {
				t.Fatalf("%d bytes: %08x, want %08x", n+d, got, w)
			}
		}
	}
}

// TestWithoutFold tests Update without fold, as on other CPUs.
func TestWithoutFold(t *testing.T) {
	defer func(can bool) { canFold = can }(canFold)
	canFold = false
	t.Run("vectors", TestVectors)
	t.Run("lengths", TestLengthsAndAlignments)
	t.Run("long", TestLong)
	t.Run("split", TestSplit)
}

// power returns x^n modulo the polynomial by doubling and adding, in the usual bit
// order: the lowest bit is x^0.
func power(n int) uint32 {
	poly := bits.Reverse32(crc32.Castagnoli) // x^32 left out
	r := uint32(1)
	for range n {
		carry := r >> 31
		r = r<<1 ^ poly*carry
	}
	return r
}

// TestPower: each zero bit after a remainder multiplies it by x, as in the standard library.
func TestPower(t *testing.T) {
	if got := power(32); got != 0x1edc6f41 { // RFC 3720 section 12.1
		t.Errorf("x^32 is %08x, want the polynomial", got)
	}
	zeroes := make([]byte, 300)
	for n := range zeroes {
		const one = 1 << 31
		w := ^crc32.Update(^uint32(one), castagnoli, zeroes[:n])
		if got := bits.Reverse32(power(8 * n)); got != w {
			t.Fatalf("x^%d is %08x, want %08x", 8*n, got, w)
		}
	}
}

func TestJoints(t *testing.T) {
	for i, parts := range []int{3, 2, 1} {
		n := 8*parts*braidPart - 33
		if got, w := joints[i], uint64(bits.Reverse32(power(n))); got != w {
			t.Errorf("joint %d is %08x, want x^%d, %08x", i, got, n, w)
		}
	}
}

func TestMultipliers(t *testing.T) {
	for i, d := range []int{8 * foldMin, 8 * foldUnit} {
		for j, n := range []int{d + 63, d - 1} {
			if got, w := multipliers[2*i+j], bits.Reverse64(uint64(power(n))); got != w {
				t.Errorf("multiplier %d of distance %d is %016x, want x^%d, %016x", j, d, got, n, w)
			}
		}
	}
}
