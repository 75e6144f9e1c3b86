package crc32c

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// want returns the expected result of Update.
func want(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }

// random returns n pseudorandom bytes, always the same.
func random(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(p)
	return p
}

// TestVectors uses the examples of RFC 3720 appendix B.4. They are too short to be folded: the
// other tests compare with the standard library, which is verified here as well.
func TestVectors(t *testing.T) {
	seq, rev, ones := make([]byte, 32), make([]byte, 32), make([]byte, 32)
	for i := range seq {
		seq[i], rev[i], ones[i] = byte(i), byte(31-i), 0xff
	}
	// The RFC's CRCs are in the order of transmission, least significant byte first.
	for _, tc := range []struct {
		name string
		in   []byte
		want uint32
	}{
		{"32 bytes of zeroes", make([]byte, 32), 0x8a9136aa},
		{"32 bytes of ones", ones, 0x62a8ab43},
		{"32 bytes of incrementing 00..1f", seq, 0x46dd794e},
		{"32 bytes of decrementing 1f..00", rev, 0x113fdb5c},
		{"iSCSI SCSI Read (10) command PDU", []byte{
			0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
			0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
			0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
		}, 0xd9963a56},
	} {
		if got, lib := Update(0, tc.in), want(0, tc.in); got != tc.want || lib != tc.want {
			t.Errorf("%s: %08x, the library %08x, want %08x", tc.name, got, lib, tc.want)
		}
	}
}

func TestLengthsAndAlignments(t *testing.T) {
	const longest, alignments = 2100, 65
	buf := random(longest + alignments)
	crc := uint32(0)
	for at := range alignments {
		for n := range longest + 1 {
			p := buf[at : at+n]
			w := want(crc, p)
			if got := Update(crc, p); got != w {
				t.Fatalf("%d bytes at %d, from %08x: %08x, want %08x", n, at, crc, got, w)
			}
			crc = w // as good as random
		}
	}
}

func TestLong(t *testing.T) {
	buf := random(1 << 18)
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		at := r.IntN(len(buf))
		p, crc := buf[at:at+r.IntN(len(buf)-at)+1], r.Uint32()
		if got, w := Update(crc, p), want(crc, p); got != w {
			t.Fatalf("%d bytes at %d, from %08x: %08x, want %08x", len(p), at, crc, got, w)
		}
	}
}

// TestSplit: updating with the parts of a message gives the CRC of the whole, wherever it is
// split.
func TestSplit(t *testing.T) {
	p := random(1500)
	w := want(0, p)
	for i := range p {
		if got := Update(Update(0, p[:i]), p[i:]); got != w {
			t.Fatalf("cut at %d: %08x, want %08x", i, got, w)
		}
	}
}

func TestAllocs(t *testing.T) {
	p := random(1000)
	if n := testing.AllocsPerRun(100, func() { Update(0, p) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func FuzzUpdate(f *testing.F) {
	for _, n := range []int{0, 1, 255, 256, 319, 320, 512, 777, 1600, 21688, 21945} {
		f.Add(uint32(n), random(n), uint16(n/3))
	}
	f.Fuzz(func(t *testing.T, crc uint32, p []byte, cut uint16) {
		w := want(crc, p)
		if got := Update(crc, p); got != w {
			t.Fatalf("%d bytes from %08x: %08x, want %08x", len(p), crc, got, w)
		}
		i := min(int(cut), len(p))
		if got := Update(Update(crc, p[:i]), p[i:]); got != w {
			t.Fatalf("%d bytes from %08x, cut at %d: %08x, want %08x", len(p), crc, i, got, w)
		}
	})
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{16, 256, 1 << 10, 1428, 4 << 10, 64 << 10, 1 << 20} {
		p := random(n)
		for _, bm := range []struct {
			name string
			f    func(uint32, []byte) uint32
		}{{"library", want}, {"ours", Update}} {
			b.Run(fmt.Sprintf("size=%d/of=%s", n, bm.name), func(b *testing.B) {
				b.SetBytes(int64(n))
				crc := uint32(0)
				for b.Loop() {
					crc = bm.f(crc, p)
				}
			})
		}
	}
}
