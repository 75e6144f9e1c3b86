package rpcrdma

import (
	"bytes"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// The bytes were written by hand from the XDR in docs/protocol.md.
var setupGolden = []struct {
	name string
	wire string
	s    Setup
}{
	{"offer", "8d52a04b 00000020 00000000 00010000 00004000 00000001",
		Setup{32, Properties{Dir: PropOffer, SendSize: 65536, RecvSize: 16384, RemoteInvalidation: true}}},
	{"acceptance", "8d52a04b 00000004 00000001 00001000 00002000 00000000",
		Setup{4, Properties{Dir: PropAccept, SendSize: 4096, RecvSize: 8192}}},
	{"most credits", "8d52a04b 7fffffff 00000001 00001000 00001000 00000000",
		Setup{1<<31 - 1, Properties{Dir: PropAccept, SendSize: 4096, RecvSize: 4096}}},
}

func TestSetupGolden(t *testing.T) {
	for _, tt := range setupGolden {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			if got := AppendSetup([]byte("x"), tt.s)[1:]; len(got) != SetupSize || !bytes.Equal(got, wire) {
				t.Errorf("encoded %x, want %x", got, wire)
			}
			if got, ok := FindSetup(wire, tt.s.Dir); !ok || got != tt.s {
				t.Errorf("decoded %+v, found: %v, want %+v", got, ok, tt.s)
			}
		})
	}
	t.Run("a rejection is not sent", func(t *testing.T) {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		AppendSetup(nil, Setup{1, Properties{Dir: PropReject}})
	})
}

// Found at each offset, not read past the end, and not in the way of private data.
func TestFindSetupAnywhere(t *testing.T) {
	want := setupGolden[0].s
	told := PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 8192}
	for offset := range 33 {
		b := AppendSetup(AppendPrivateData(bytes.Repeat([]byte{0x8d}, offset), told), want)
		for _, padded := range [][]byte{b, append(slices.Clip(b), make([]byte, 24)...)} {
			if got, ok := FindSetup(padded, PropOffer); !ok || got != want {
				t.Errorf("at offset %d: %+v, found: %v", offset, got, ok)
			}
			if got, ok := FindPrivateData(padded); !ok || got != told {
				t.Errorf("private data at offset %d: %+v, found: %v", offset, got, ok)
			}
		}
		for n := range SetupSize {
			if got, ok := FindSetup(slices.Clip(b[:len(b)-SetupSize+n]), PropOffer); ok {
				t.Errorf("%d octets at offset %d: %+v", n, offset, got)
			}
		}
	}
}

func TestFindSetupNone(t *testing.T) {
	const good = "8d52a04b 00000004 00000001 00001000 00002000 00000000"
	for _, tt := range []struct{ name, wire string }{
		{"nothing", ""},
		{"zeros", "00000000 00000000 00000000 00000000 00000000 00000000 00000000"},
		{"another identifier", "8d52a04c 00000004 00000001 00001000 00002000 00000000"},
		{"the identifier in the wrong byte order", "4ba0528d 00000004 00000001 00001000 00002000 00000000"},
		{"no credit", "8d52a04b 00000000 00000001 00001000 00002000 00000000"},
		{"more credits than there can be", "8d52a04b 80000000 00000001 00001000 00002000 00000000"},
		{"an offer", "8d52a04b 00000004 00000000 00001000 00002000 00000000"},
		{"a rejection", "8d52a04b 00000004 00000002 00000001 00000000 00000000"},
		{"an unknown direction", "8d52a04b 00000004 00000003 00001000 00002000 00000000"},
		{"a send size below 4096", "8d52a04b 00000004 00000001 00000ffc 00002000 00000000"},
		{"a receive size that is no multiple of 4", "8d52a04b 00000004 00000001 00001000 00002001 00000000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			if got, ok := FindSetup(wire, PropAccept); ok || got != (Setup{}) {
				t.Errorf("%+v, found: %v", got, ok)
			}
			if got, ok := FindSetup(append(wire, testutil.Hex(t, good)...), PropAccept); !ok || got.Credit != 4 {
				t.Errorf("the one behind it: %+v, found: %v", got, ok)
			}
		})
	}
}

func TestSetupAllocs(t *testing.T) {
	buf := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		b := AppendSetup(append(buf, "MPA"...), setupGolden[0].s)
		if _, ok := FindSetup(b, PropOffer); !ok {
			t.Error("not found")
		}
	}); n != 0 {
		t.Errorf("a setup message allocates %v times", n)
	}
}

func FuzzFindSetup(f *testing.F) {
	for _, tt := range setupGolden {
		f.Add(testutil.Hex(f, tt.wire), tt.s.Dir == PropAccept)
	}
	f.Add(testutil.Hex(f, "f6ab0e18 01 01 03 07 8d52a04b 8d52a04b 00000004 00000001 00001000 00002000 ffffffff 00"), true)
	f.Fuzz(func(t *testing.T, b []byte, accept bool) {
		dir := PropOffer
		if accept {
			dir = PropAccept
		}
		s, ok := FindSetup(b, dir)
		if !ok {
			return
		}
		if s.Dir != dir || s.Credit == 0 || s.SendSize < DefaultInline2 || s.RecvSize < DefaultInline2 {
			t.Fatalf("%+v", s)
		}
		enc := AppendSetup(nil, s)
		found := false
		for i := 0; i+SetupSize <= len(b) && !found; i++ {
			m := bytes.Clone(b[i:][:SetupSize])
			copy(m[20:], []byte{0, 0, 0, m[23] & 1}) // one of the flags is preserved
			found = bytes.Equal(m, enc)
		}
		if !found {
			t.Fatalf("%+v is not in the input", s)
		}
	})
}
