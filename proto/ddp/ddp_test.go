package ddp

import (
	"bytes"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// The bytes were written by hand from the diagrams in RFC 5041 sections 4.2 and 4.3: T and L
// are the two upper bits of the first byte, DV the two lower.
var taggedVectors = []struct {
	h    Tagged
	wire string
}{
	{Tagged{Last: true, ULP: 0x40, STag: 0x01020304, TO: 0x1122334455667788}, "c140" + "01020304" + "1122334455667788"},
	{Tagged{ULP: 0x42, STag: 1}, "8142" + "00000001" + "0000000000000000"},
}

var untaggedVectors = []struct {
	h    Untagged
	wire string
}{
	{Untagged{Last: true, ULP: 0x43, MSN: 1}, "4143" + "00000000" + "00000000" + "00000001" + "00000000"},
	{Untagged{ULP: 0x44, ULP32: 0xa1a2a3a4, QN: 1, MSN: 0xb1b2b3b4, MO: 0xc1c2c3c4},
		"0144" + "a1a2a3a4" + "00000001" + "b1b2b3b4" + "c1c2c3c4"},
}

func TestTagged(t *testing.T) {
	for _, tc := range taggedVectors {
		wire := testutil.Hex(t, tc.wire)
		if got := AppendTagged(nil, &tc.h); !bytes.Equal(got, wire) {
			t.Errorf("%+v: encoded as %x, want %x", tc.h, got, wire)
		}
		var h Tagged
		if n, err := ConsumeTagged(wire, &h); n != TaggedLen || err != nil || h != tc.h {
			t.Errorf("%x: decoded as %+v, %d, %v", wire, h, n, err)
		}
		for i := range wire {
			if n, err := ConsumeTagged(wire[:i], &h); n != 0 || err != ErrShort {
				t.Errorf("first %d bytes: %d, %v", i, n, err)
			}
		}
		var u Untagged
		if _, err := ConsumeUntagged(wire, &u); err != ErrModel {
			t.Errorf("read as untagged: %v, want ErrModel", err)
		}
		wire[0] ^= 0x03
		if n, err := ConsumeTagged(wire, &h); n != 0 || err != ErrVersion || h != tc.h {
			t.Errorf("version 2: %d, %v, %+v, want ErrVersion with the header", n, err, h)
		}
	}
}

func TestUntagged(t *testing.T) {
	for _, tc := range untaggedVectors {
		wire := testutil.Hex(t, tc.wire)
		if got := AppendUntagged(nil, &tc.h); !bytes.Equal(got, wire) {
			t.Errorf("%+v: encoded as %x, want %x", tc.h, got, wire)
		}
		var h Untagged
		if n, err := ConsumeUntagged(wire, &h); n != UntaggedLen || err != nil || h != tc.h {
			t.Errorf("%x: decoded as %+v, %d, %v", wire, h, n, err)
		}
		for i := range wire {
			if n, err := ConsumeUntagged(wire[:i], &h); n != 0 || err != ErrShort {
				t.Errorf("first %d bytes: %d, %v", i, n, err)
			}
		}
		var tg Tagged
		if _, err := ConsumeTagged(wire, &tg); err != ErrModel {
			t.Errorf("read as tagged: %v, want ErrModel", err)
		}
		wire[0] &^= 0x03
		if n, err := ConsumeUntagged(wire, &h); n != 0 || err != ErrVersion || h != tc.h {
			t.Errorf("version 0: %d, %v, %+v, want ErrVersion with the header", n, err, h)
		}
	}
}

func TestStrings(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{TypeUntagged.String(), "Untagged Buffer Error"},
		{ErrorType(7).String(), "DDP error type 7"},
		{CodeString(TypeTagged, TaggedTOWrap), "TO wrap"},
		{CodeString(TypeUntagged, UntaggedNoBuffer), "Invalid MSN - no buffer available"},
		{CodeString(TypeUntagged, 0), "code 0"},
		{CodeString(TypeTagged, 255), "code 255"},
		{CodeString(TypeCatastrophic, 0), "code 0"},
		{Error(9).Error(), "ddp: error 9"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

func TestAllocs(t *testing.T) {
	buf := make([]byte, 0, 64)
	var tg Tagged
	var u Untagged
	if n := testing.AllocsPerRun(100, func() {
		b := AppendTagged(buf, &Tagged{STag: 3, TO: 4})
		ConsumeTagged(b, &tg)
		ConsumeUntagged(b, &u)
		b = AppendUntagged(buf, &Untagged{QN: 3})
		ConsumeUntagged(b, &u)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// Reserved bits are ignored when received, so a round trip clears them.
func FuzzTagged(f *testing.F) {
	for _, v := range taggedVectors {
		f.Add(testutil.Hex(f, v.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Tagged
		n, err := ConsumeTagged(b, &h)
		if (err == nil) != (n == TaggedLen) {
			t.Fatalf("%d, %v: error and value", n, err)
		}
		if err == nil {
			want := append([]byte{b[0] &^ 0x3c}, b[1:n]...)
			if got := AppendTagged(nil, &h); !bytes.Equal(got, want) {
				t.Fatalf("%x: round trip gives %x", b[:n], got)
			}
		}
	})
}

func FuzzUntagged(f *testing.F) {
	for _, v := range untaggedVectors {
		f.Add(testutil.Hex(f, v.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Untagged
		n, err := ConsumeUntagged(b, &h)
		if (err == nil) != (n == UntaggedLen) {
			t.Fatalf("%d, %v: error and value", n, err)
		}
		if err == nil {
			want := append([]byte{b[0] &^ 0x3c}, b[1:n]...)
			if got := AppendUntagged(nil, &h); !bytes.Equal(got, want) {
				t.Fatalf("%x: round trip gives %x", b[:n], got)
			}
		}
	})
}
