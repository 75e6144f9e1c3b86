package mpa

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestCRC uses the examples of RFC 3720 appendix B.4, which give the CRC in
// the order of transmission.
func TestCRC(t *testing.T) {
	seq := make([]byte, 32)
	rev := make([]byte, 32)
	for i := range seq {
		seq[i], rev[i] = byte(i), byte(31-i)
	}
	for _, tc := range []struct {
		name string
		in   []byte
		want string
	}{
		{"32 bytes of zeroes", make([]byte, 32), "aa36918a"},
		{"32 bytes of ones", bytes.Repeat([]byte{0xff}, 32), "43aba862"},
		{"32 bytes of incrementing 00..1f", seq, "4e79dd46"},
		{"32 bytes of decrementing 1f..00", rev, "5cdb3f11"},
		{"iSCSI SCSI Read (10) command PDU", testutil.Hex(t, "01c00000000000000000000000000000"+
			"140000000000040000000014000000182800000000000000"+"0200000000000000"), "563a96d9"},
	} {
		var got [4]byte
		PutCRC(got[:], UpdateCRC(0, tc.in))
		if hex.EncodeToString(got[:]) != tc.want {
			t.Errorf("%s: CRC %x, want %s", tc.name, got, tc.want)
		}
		if split := UpdateCRC(UpdateCRC(0, tc.in[:7]), tc.in[7:]); split != CRC(got[:]) {
			t.Errorf("%s: CRC over two parts %08x, over the whole %08x", tc.name, split, CRC(got[:]))
		}
	}
}

func TestSizes(t *testing.T) {
	for _, tc := range []struct{ n, pad, fpdu int }{
		// The FPDU without its CRC is a multiple of four: RFC 5044 section 4.
		{0, 2, 8}, {1, 1, 8}, {2, 0, 8}, {3, 3, 12}, {18, 0, 24}, {MaxULPDU, 3, 65544},
	} {
		if Pad(tc.n) != tc.pad || FPDULen(tc.n) != tc.fpdu {
			t.Errorf("ULPDU of %d: pad %d, FPDU %d, want %d, %d", tc.n, Pad(tc.n), FPDULen(tc.n), tc.pad, tc.fpdu)
		}
	}
	for _, tc := range []struct{ emss, want int }{
		{1448, 1442}, {1460, 1454}, {1461, 1454}, {65483, 65474}, {3, 0}, {0, 0}, {1 << 20, MaxULPDU},
	} {
		if got := MULPDU(tc.emss); got != tc.want {
			t.Errorf("MULPDU(%d) = %d, want %d", tc.emss, got, tc.want)
		}
		if tc.want > 0 && tc.want < MaxULPDU && FPDULen(tc.want) > tc.emss {
			t.Errorf("EMSS %d: FPDU of %d does not fit", tc.emss, FPDULen(tc.want))
		}
	}
}

// The frames were written by hand from RFC 5044 section 7.1.1 and RFC 6581 sections 6 and 9.
var startVectors = []struct {
	name string
	s    Start
	wire string
}{
	{"request of an enhanced initiator, no CRC, no markers",
		Start{Request, FlagEnhanced, 2, 4}, "4d504120494420526571204672616d65" + "10020004"},
	{"request of RFC 5044 with CRC",
		Start{Request, FlagCRC, 1, 0}, "4d504120494420526571204672616d65" + "40010000"},
	{"reply that rejects, with 512 bytes of private data",
		Start{Reply, FlagReject, 1, 512}, "4d504120494420526570204672616d65" + "20010200"},
	{"everything set, reserved bits too",
		Start{Reply, 0xff, 2, 4}, "4d504120494420526570204672616d65" + "ff020004"},
}

func TestStart(t *testing.T) {
	for _, tc := range startVectors {
		wire := testutil.Hex(t, tc.wire)
		if got := AppendStart(nil, &tc.s); !bytes.Equal(got, wire) {
			t.Errorf("%s: encoded as\n%x, want\n%x", tc.name, got, wire)
		}
		var s Start
		if n, err := ConsumeStart(append(wire, 1, 2, 3), &s); n != StartLen || err != nil || s != tc.s {
			t.Errorf("%s: decoded as %+v, %d, %v", tc.name, s, n, err)
		}
		for i := range wire {
			if n, err := ConsumeStart(wire[:i], &s); n != 0 || err != ErrShort {
				t.Errorf("%s: first %d bytes: %d, %v, want ErrShort", tc.name, i, n, err)
			}
		}
	}
}

func TestStartErrors(t *testing.T) {
	good := "4d504120494420526571204672616d65"
	for _, tc := range []struct {
		wire string
		want Error
	}{
		{"4d50412049442052657120467261", ErrShort},
		{"4d5042", ErrKey},
		{"16030100", ErrKey}, // a TLS client hello
		{"4d504120494420526561204672616d6540010000", ErrKey},
		{good + "00030000", ErrRevision},
		{good + "00010201", ErrPrivateDataLen},
		{good + "0002ffff", ErrPrivateDataLen},
		{good + "10020003", ErrPrivateDataLen},
	} {
		var s Start
		if n, err := ConsumeStart(testutil.Hex(t, tc.wire), &s); n != 0 || !errors.Is(err, tc.want) {
			t.Errorf("%s: %d, %v, want %v", tc.wire, n, err, tc.want)
		}
	}
}

// The words were written by hand from the diagram in RFC 6581 section 9.
var enhancedVectors = []struct {
	e    Enhanced
	wire string
}{
	{Enhanced{IRD: 16, ORD: 32}, "00100020"},
	{Enhanced{PeerToPeer: true, IRD: 1, ORD: 2}, "80010002"},
	{Enhanced{RTRSend: true, IRD: ReadsUnknown, ORD: ReadsUnknown}, "7fff3fff"},
	{Enhanced{PeerToPeer: true, RTRWrite: true, RTRRead: true}, "8000c000"},
	{Enhanced{RTRWrite: true, ORD: MaxReads}, "0000bffe"},
	{Enhanced{RTRRead: true}, "00004000"},
}

func TestEnhanced(t *testing.T) {
	for _, tc := range enhancedVectors {
		wire := testutil.Hex(t, tc.wire)
		if got := AppendEnhanced(nil, &tc.e); !bytes.Equal(got, wire) {
			t.Errorf("%+v: encoded as %x, want %x", tc.e, got, wire)
		}
		var e Enhanced
		if n, err := ConsumeEnhanced(wire, &e); n != EnhancedLen || err != nil || e != tc.e {
			t.Errorf("%x: decoded as %+v, %d, %v", wire, e, n, err)
		}
		if n, err := ConsumeEnhanced(wire[:3], &e); n != 0 || err != ErrShort {
			t.Errorf("%x cut short: %d, %v", wire, n, err)
		}
	}
}

func TestFPDU(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ulpdu string
		crc   bool
		wire  string
	}{
		// ULPDU_Length, ULPDU, pad, then a zero where no CRC is used.
		{"empty", "", false, "0000" + "0000" + "00000000"},
		{"three bytes, three of pad", "aabbcc", false, "0003aabbcc" + "000000" + "00000000"},
		{"two bytes, no pad", "aabb", false, "0002aabb" + "00000000"},
	} {
		u, wire := testutil.Hex(t, tc.ulpdu), testutil.Hex(t, tc.wire)
		if got := AppendFPDU(nil, u, tc.crc); !bytes.Equal(got, wire) {
			t.Errorf("%s: encoded as %x, want %x", tc.name, got, wire)
		}
		got, n, err := ConsumeFPDU(append(wire, 9), tc.crc)
		if !bytes.Equal(got, u) || n != len(wire) || err != nil {
			t.Errorf("%s: decoded as %x, %d, %v", tc.name, got, n, err)
		}
	}
	// With the length field, 30 bytes of ones differ from the 32 bytes of RFC 3720's example,
	// so the CRC is computed here and only its position and byte order are checked.
	u := bytes.Repeat([]byte{0xff}, 30)
	w := AppendFPDU(nil, u, true)
	if CRC(w[32:]) != UpdateCRC(0, w[:32]) || w[32] != byte(UpdateCRC(0, w[:32])) {
		t.Errorf("CRC is not at the end, least significant byte first: %x", w)
	}
	for i := range w {
		w[i] ^= 0x10
		if _, _, err := ConsumeFPDU(w, true); err == nil {
			t.Errorf("a flipped bit in byte %d went unnoticed", i)
		}
		w[i] ^= 0x10
		if _, n, err := ConsumeFPDU(w[:i], true); n != 0 || err != ErrShort {
			t.Errorf("first %d bytes: %d, %v, want ErrShort", i, n, err)
		}
	}
}

func TestStrings(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{Request.String(), "MPA Request Frame"},
		{Kind(9).String(), "MPA frame 9"},
		{(FlagMarkers | FlagEnhanced).String(), "MS"},
		{Flags(0).String(), "-"},
		{Flags(0xff).String(), "MCRS+f"},
		{CodeCRC.String(), "Received MPA CRC does not match"},
		{Code(77).String(), "MPA error 77"},
		{Error(99).Error(), "mpa: error 99"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

func TestAllocs(t *testing.T) {
	buf := make([]byte, 0, 1024)
	u := make([]byte, 333)
	var s Start
	var e Enhanced
	if n := testing.AllocsPerRun(100, func() {
		b := AppendStart(buf, &Start{Request, FlagEnhanced, 2, 4})
		b = AppendEnhanced(b, &Enhanced{IRD: 1, ORD: 2})
		ConsumeStart(b, &s)
		ConsumeEnhanced(b[StartLen:], &e)
		b = AppendFPDU(buf, u, true)
		ConsumeFPDU(b, true)
		_, _, err := ConsumeFPDU(b[:9], true)
		if err != ErrShort {
			panic(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func FuzzStart(f *testing.F) {
	for _, v := range startVectors {
		f.Add(testutil.Hex(f, v.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Start
		n, err := ConsumeStart(b, &s)
		if (err == nil) != (n == StartLen) {
			t.Fatalf("%d, %v: error and value", n, err)
		}
		if err == nil && !bytes.Equal(AppendStart(nil, &s), b[:n]) {
			t.Fatalf("%x: round trip differs: %+v", b, s)
		}
		_ = s.Kind.String() + s.Flags.String()
	})
}

func FuzzEnhanced(f *testing.F) {
	for _, v := range enhancedVectors {
		f.Add(testutil.Hex(f, v.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Enhanced
		n, err := ConsumeEnhanced(b, &e)
		if (err == nil) != (n == EnhancedLen) {
			t.Fatalf("%d, %v: error and value", n, err)
		}
		if err == nil && !bytes.Equal(AppendEnhanced(nil, &e), b[:n]) {
			t.Fatalf("%x: round trip differs: %+v", b, e)
		}
	})
}

func FuzzFPDU(f *testing.F) {
	f.Add(AppendFPDU(nil, []byte("ddp"), true), true)
	f.Add(AppendFPDU(nil, nil, false), false)
	f.Fuzz(func(t *testing.T, b []byte, crc bool) {
		u, n, err := ConsumeFPDU(b, crc)
		if (err == nil) != (n > 0) || err != nil && u != nil {
			t.Fatalf("%x, %d, %v: error and value", u, n, err)
		}
		if err != nil {
			return
		}
		w := AppendFPDU(nil, u, crc)
		// Pad bytes and an unused CRC are ignored.
		if len(w) != n || !bytes.Equal(w[:LengthLen+len(u)], b[:LengthLen+len(u)]) {
			t.Fatalf("%x: round trip gives %x", b[:n], w)
		}
	})
}
