package rpcrdma

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

func TestPrivateDataGolden(t *testing.T) {
	tests := []struct {
		name string
		wire string // RFC 8797 section 4, by hand
		p    PrivateData
	}{
		{"PVT-4-5 PVT-4-6 PVT-4-7 PVT-4-8 PVT-4-10 both sizes 4096, R", "f6ab0e18 01 01 03 03", PrivateData{true, 4096, 4096}},
		{"PVT-4.2-1 PVT-4.2-3 smallest sizes", "f6ab0e18 01 00 00 00", PrivateData{false, 1024, 1024}},
		{"PVT-4.2-1 PVT-4.2-3 largest sizes", "f6ab0e18 01 00 ff ff", PrivateData{false, 262144, 262144}},
		{"PVT-4.2-2 8192 and 65536", "f6ab0e18 01 01 07 3f", PrivateData{true, 8192, 65536}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			if got := AppendPrivateData([]byte("x"), tt.p)[1:]; !bytes.Equal(got, wire) {
				t.Errorf("encoded %x, want %x", got, wire)
			}
			if got, ok := FindPrivateData(wire); !ok || got != tt.p {
				t.Errorf("decoded %+v, found: %v, want %+v", got, ok, tt.p)
			}
		})
	}
}

// PVT-4.2-1: sizes are rounded down to a step and clamped to the range.
func TestPrivateDataSizes(t *testing.T) {
	for _, tt := range []struct{ size, want int }{
		{math.MinInt, 1024}, {0, 1024}, {1023, 1024}, {1024, 1024}, {2047, 1024}, {2048, 2048}, {4095, 3072},
		{262143, 261120}, {262144, 262144}, {262145, 262144}, {math.MaxInt, 262144},
	} {
		got, ok := FindPrivateData(AppendPrivateData(nil, PrivateData{SendSize: tt.size, RecvSize: tt.size}))
		if !ok || got.SendSize != tt.want || got.RecvSize != tt.want {
			t.Errorf("%d becomes %d and %d, want %d", tt.size, got.SendSize, got.RecvSize, tt.want)
		}
	}
}

func TestFindPrivateData(t *testing.T) {
	said := PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 8192}
	const wire = "f6ab0e18 01 01 03 07"
	tests := []struct {
		name string
		in   string
		ok   bool
		want PrivateData
	}{
		{"PVT-5.1-1 nothing", "", false, DefaultPrivateData()},
		{"PVT-5.1-1 seven octets", "f6ab0e18 01 01 03", false, DefaultPrivateData()},
		{"PVT-5.1-1 version 2", "f6ab0e18 02 01 03 07", false, DefaultPrivateData()},
		{"PVT-6-1 version 2 with more octets", "f6ab0e18 02 01 03 07 00000000", false, DefaultPrivateData()},
		{"PVT-5.1-1 version 0", "f6ab0e18 00 01 03 07", false, DefaultPrivateData()},
		{"PVT-5.1-1 identifier in the wrong byte order", "180eabf6 01 01 03 07", false, DefaultPrivateData()},
		{"PVT-5-1 zeros behind, as InfiniBand pads", wire + "00000000 00000000 00000000", true, said},
		{"PVT-5-1 octets behind", wire + "eeeeee", true, said},
		{"PVT-4-9 reserved bits set, R set", "f6ab0e18 01 ff 03 07", true, said},
		{"PVT-4-9 reserved bits set, R clear", "f6ab0e18 01 fe 03 07", true, PrivateData{false, 4096, 8192}},
		{"PVT-5.2-1 behind four octets of MPA enhanced set-up", "80208020" + wire, true, said},
		{"PVT-5.2-1 behind one octet", "80" + wire, true, said},
		{"PVT-5.2-3 false hit of another version in front", "f6ab0e18 02 f6ab0e18 01 01 03 07", true, said},
		{"PVT-5.2-3 false hit that begins in the identifier", "f6ab f6ab0e18 01 01 03 07", true, said},
		{"PVT-5.2-3 identifier in the last four octets", "0000000000000000 f6ab0e18", false, DefaultPrivateData()},
		{"PVT-5.2-3 false hit of another version behind", wire + "f6ab0e18 02 00 ff ff", true, said},
		{"first of two", wire + "f6ab0e18 01 00 ff ff", true, said},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := FindPrivateData(testutil.Hex(t, tt.in)); ok != tt.ok || got != tt.want {
				t.Errorf("got %+v, found: %v; want %+v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

// PVT-5.2-1, PVT-5.2-3: found at each offset, and not read past the end of the buffer if
// truncated.
func TestFindPrivateDataAnywhere(t *testing.T) {
	said := PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 8192}
	for offset := range 57 {
		b := AppendPrivateData(bytes.Repeat([]byte{0xf6}, offset), said)
		if got, ok := FindPrivateData(b); !ok || got != said {
			t.Errorf("at offset %d: %+v, found: %v", offset, got, ok)
		}
		for n := range PrivateDataSize {
			if got, ok := FindPrivateData(slices.Clip(b[:offset+n])); ok || got != DefaultPrivateData() {
				t.Errorf("%d octets at offset %d: %+v, found: %v", n, offset, got, ok)
			}
		}
	}
}

// All 32 bits of the identifier are compared.
func TestPrivateDataIdentifier(t *testing.T) {
	t.Run("PVT-5.2-2 an identifier with one bit wrong is none", func(t *testing.T) {
		for bit := range 32 {
			b := AppendPrivateData(nil, PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 8192})
			b[bit/8] ^= 1 << (bit % 8)
			if got, ok := FindPrivateData(append(b, make([]byte, 48)...)); ok || got != DefaultPrivateData() {
				t.Errorf("%x is decoded as %+v, found: %v", b, got, ok)
			}
		}
	})
}

// PVT-4.2-2, PVT-4.2-3: each of the 256 values of a size field, both fields.
func TestPrivateDataEverySize(t *testing.T) {
	for v := range 256 {
		size := 1024 * (v + 1)
		for _, p := range []PrivateData{{SendSize: size, RecvSize: 1024}, {SendSize: 1024, RecvSize: size}} {
			b := AppendPrivateData(nil, p)
			if int(b[6]) != p.SendSize/1024-1 || int(b[7]) != p.RecvSize/1024-1 {
				t.Errorf("%+v is encoded as %x", p, b[6:])
			}
			if got, ok := FindPrivateData(b); !ok || got != p {
				t.Errorf("%x is decoded as %+v, found: %v", b, got, ok)
			}
		}
	}
}

// PVT-4-8, PVT-4-9, PVT-4-10: only the lowest bit of octet 5 is used; the others are ignored,
// and sent as zeros.
func TestPrivateDataFlags(t *testing.T) {
	for v := range 256 {
		b := []byte{0xf6, 0xab, 0x0e, 0x18, 1, byte(v), 3, 7}
		p, ok := FindPrivateData(b)
		if want := (PrivateData{RemoteInvalidation: v%2 == 1, SendSize: 4096, RecvSize: 8192}); !ok || p != want {
			t.Errorf("octet %#02x: %+v, found: %v", v, p, ok)
		}
		if got := AppendPrivateData(nil, p)[5]; got != byte(v%2) {
			t.Errorf("octet %#02x is sent on as %#02x", v, got)
		}
	}
}

// PVT-8-1: the names and numbers are those of the registry of RDMA-CM Private Data
// Identifiers.
func TestPrivateDataRegistered(t *testing.T) {
	if PrivateDataID != 0xf6ab0e18 || PrivateDataSize != 8 || len(AppendPrivateData(nil, DefaultPrivateData())) != 8 {
		t.Errorf("identifier %#x, length %d", uint32(PrivateDataID), PrivateDataSize)
	}
}

func TestSendInline(t *testing.T) {
	for _, tt := range []struct {
		name     string
		from, to PrivateData
		want     int
	}{
		{"PVT-4.2-4 client sends 8192, server takes 4096", PrivateData{SendSize: 8192}, PrivateData{RecvSize: 4096}, 4096},
		{"PVT-4.2-5 server sends 16384, client takes 2048", PrivateData{SendSize: 16384}, PrivateData{RecvSize: 2048}, 2048},
		{"own size is smaller", PrivateData{SendSize: 1500}, PrivateData{RecvSize: 4096}, 1500},
		{"PVT-3.1-2 PVT-5.1-1 peer said nothing", PrivateData{SendSize: 4096}, DefaultPrivateData(), 1024},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.from.SendInline(tt.to); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestPrivateDataAllocs(t *testing.T) {
	buf := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		b := AppendPrivateData(append(buf, "MPA"...), PrivateData{SendSize: 4096, RecvSize: 4096})
		if _, ok := FindPrivateData(b); !ok {
			t.Error("not found")
		}
	}); n != 0 {
		t.Errorf("private data allocates %v times", n)
	}
}

func FuzzFindPrivateData(f *testing.F) {
	f.Add(testutil.Hex(f, "f6ab0e18 01 01 03 07"))
	f.Add(testutil.Hex(f, "80208020 f6ab0e18 02 f6ab0e18 01 ff 00 ff 00000000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := FindPrivateData(b)
		if !ok {
			if p != DefaultPrivateData() {
				t.Fatalf("%+v without a message", p)
			}
			return
		}
		if p.SendSize < MinInline || p.SendSize > MaxInline || p.RecvSize < MinInline || p.RecvSize > MaxInline {
			t.Fatalf("sizes out of range: %+v", p)
		}
		enc := AppendPrivateData(nil, p)
		if again, ok := FindPrivateData(enc); !ok || again != p {
			t.Fatalf("%+v becomes %+v, found: %v", p, again, ok)
		}
		enc[5] |= 0xfe // reserved bits may have been anything
		found := false
		for i := 0; i+PrivateDataSize <= len(b) && !found; i++ {
			m := bytes.Clone(b[i:][:PrivateDataSize])
			m[5] |= 0xfe
			found = bytes.Equal(m, enc)
		}
		if !found {
			t.Fatalf("%+v is not in the input", p)
		}
	})
}
