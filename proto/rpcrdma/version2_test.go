package rpcrdma

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// bothVersions accepts all versions of this package.
var bothVersions = &Limits{Versions: Range{Version1, Version2}}

// rpcHex is the shortest start of an RPC call that can be distinguished from a reply.
const rpcHex = "01020304 00000000"

// The bytes of every golden vector were written by hand from the XDR in section 4.2
// of draft-cel-nfsv4-rpcrdma-version-two-00; sizes follow from it by counting words.
var golden2 = []struct {
	name    string
	size    int
	wire    string
	payload string // follows in the same Send
	h       Header
}{{
	name:    "V2-4.2-1 V2-4.2-4 RDMA_MSG without chunks",
	size:    28,
	wire:    "01020304 00000002 00000020 00000000  00000000 00000000 00000000",
	payload: rpcHex,
	h:       Header{XID: 0x01020304, Vers: 2, Credit: 32},
}, {
	name:    "V2-4.2-2 V2-4.2-3 all lists at once",
	size:    16 + 28 + 8 + 24 + 4 + 8 + 16,
	payload: rpcHex,
	wire: "01020304 00000002 00000020 00000000" +
		"00000001 0000002c" + segHex + "00000000" +
		"00000001 00000000" + "00000001 00000001" + segHex + "00000000" +
		"00000001 00000001" + segHex,
	h: Header{XID: 0x01020304, Vers: 2, Credit: 32,
		Reads:  []ReadSegment{{44, seg}},
		Writes: []WriteChunk{{}, {seg}},
		Reply:  WriteChunk{seg}, HasReply: true},
}, {
	name: "V2-4.2-2 V2-4.2-4 RDMA_NOMSG, largest handle, length, offset and position",
	size: 52,
	wire: "ffffffff 00000002 ffffffff 00000001  00000001 ffffffff" +
		"ffffffff ffffffff ffffffffffffffff" + "00000000  00000000 00000000",
	h: Header{XID: math.MaxUint32, Vers: 2, Credit: math.MaxUint32, Proc: ProcNomsg,
		Reads: []ReadSegment{{math.MaxUint32, Segment{math.MaxUint32, math.MaxUint32, math.MaxUint64}}}},
}, {
	name: "V2-4.2-5 RDMA_ERR_VERS",
	size: 28,
	wire: "01020304 00000002 00000020 00000004  00000001 00000001 00000002",
	h:    Header{XID: 0x01020304, Vers: 2, Credit: 32, Proc: ProcError, Err: ErrVers, VersLow: 1, VersHigh: 2},
}, {
	name: "V2-4.2-5 RDMA_ERR_BAD_HEADER",
	size: 20,
	wire: "01020304 00000002 00000020 00000004  00000002",
	h:    Header{XID: 0x01020304, Vers: 2, Credit: 32, Proc: ProcError, Err: ErrBadHeader},
}, {
	name: "V2-4.2-4 V2-4.2-5 RDMA_ERR_INVAL_OPTION",
	size: 20,
	wire: "01020304 00000002 00000020 00000004  00000003",
	h:    Header{XID: 0x01020304, Vers: 2, Credit: 32, Proc: ProcError, Err: ErrInvalOption},
}, {
	name: "V2-3.1-1 V2-4.2-4 RDMA_OPTIONAL with five bytes",
	size: 32,
	wire: "01020304 00000002 00000020 00000005  00000010 00000005 0102030405 000000",
	h:    Header{XID: 0x01020304, Vers: 2, Credit: 32, Proc: ProcOptional, OptType: 0x10, OptInfo: []byte{1, 2, 3, 4, 5}},
}, {
	name:    "V2-3.1-1 V2-4.2-8 RDMA_OPTIONAL with four bytes and an RPC message",
	size:    28,
	wire:    "01020304 00000002 00000020 00000005  ffffffff 00000004 61626364",
	payload: rpcHex,
	h:       Header{XID: 0x01020304, Vers: 2, Credit: 32, Proc: ProcOptional, OptType: math.MaxUint32, OptInfo: []byte("abcd")},
}, {
	name: "V2-3.1-1 RDMA_OPTIONAL without data",
	size: 24,
	wire: "01020304 00000002 00000020 00000005  00000000 00000000",
	h:    Header{XID: 0x01020304, Vers: 2, Credit: 32, Proc: ProcOptional},
}}

func TestVersion2Golden(t *testing.T) {
	var kept Header
	for _, tt := range golden2 {
		t.Run(tt.name, func(t *testing.T) {
			wire, payload := testutil.Hex(t, tt.wire), testutil.Hex(t, tt.payload)
			if len(wire) != tt.size {
				t.Fatalf("the vector has %d bytes, not %d", len(wire), tt.size)
			}
			if got := AppendHeader([]byte("prefix"), &tt.h)[len("prefix"):]; !bytes.Equal(got, wire) {
				t.Errorf("encoded\n%x, want\n%x", got, wire)
			}
			if got := tt.h.Size(); got != tt.size {
				t.Errorf("Size is %d, want %d", got, tt.size)
			}
			b := append(wire, payload...)
			for _, h := range []*Header{{}, &kept} {
				n, err := ConsumeHeader(b, h, bothVersions)
				if err != nil || n != tt.size || !bytes.Equal(b[n:], payload) {
					t.Fatalf("n = %d, error %v, message %x; want %d and %x", n, err, b[n:], tt.size, payload)
				}
				if !equal(h, &tt.h) {
					t.Errorf("decoded %+v, want %+v", h, tt.h)
				}
			}
			f, ok := ConsumeFixed(b)
			if !ok || f != (Fixed{tt.h.XID, tt.h.Vers, tt.h.Credit, tt.h.Proc}) {
				t.Errorf("fixed fields %+v, ok: %v", f, ok)
			}
		})
	}
}

// V2-4.2-1, V2-4.2-2, V2-4.2-3: messages of both versions differ only in the word at offset 4.
func TestVersion2IsVersion1WithAnotherNumber(t *testing.T) {
	shared := 0
	for _, tt := range golden {
		if tt.h.Vers != Version1 || tt.h.Proc != ProcMsg && tt.h.Proc != ProcNomsg && (tt.h.Proc != ProcError || tt.h.Err > ErrChunk) {
			continue
		}
		shared++
		wire := testutil.Hex(t, tt.wire)
		wire[7] = Version2
		h := tt.h
		h.Vers = Version2
		if got := AppendHeader(nil, &h); !bytes.Equal(got, wire) {
			t.Errorf("%s: encoded\n%x, want\n%x", tt.name, got, wire)
		}
		b := wire
		if h.Proc == ProcMsg {
			b = append(b, testutil.Hex(t, rpcHex)...)
		}
		var got Header
		if n, err := ConsumeHeader(b, &got, bothVersions); err != nil || n != len(wire) || !equal(&got, &h) {
			t.Errorf("%s: n = %d, error %v, header %+v", tt.name, n, err, got)
		}
	}
	if shared < 10 {
		t.Errorf("only %d vectors are there for both versions", shared)
	}
}

// V2-4.2-11: malformed lists are refused as in version 1, at the same byte and with the same
// number.
func TestVersion2RefusesWhatVersion1Refuses(t *testing.T) {
	shared := 0
	for _, tt := range malformed {
		wire := testutil.Hex(t, tt.wire)
		f, ok := ConsumeFixed(wire)
		if !ok || f.Vers != Version1 || f.Proc != ProcMsg && f.Proc != ProcNomsg && f.Proc != ProcError && f.Proc <= ProcOptional {
			continue
		}
		shared++
		wire[7] = Version2
		lim := Limits{Versions: Range{Version2, Version2}}
		if tt.lim != nil {
			lim = *tt.lim
			lim.Versions = Range{Version1, Version2}
		}
		_, err := ConsumeHeader(wire, new(Header), &lim)
		var bad *HeaderError
		if !errors.As(err, &bad) || bad.Offset != tt.offset || bad.Code != tt.code || bad.Reason != tt.reason || bad.Vers != Version2 {
			t.Errorf("%s: got %+v; want byte %d, %v, %q", tt.name, err, tt.offset, tt.code, tt.reason)
			continue
		}
		var h Header
		if bad.Answer(&h, 8) != (tt.code != 0) {
			t.Errorf("%s: there is an answer: %v", tt.name, tt.code == 0)
		} else if tt.code != 0 {
			if got, want := AppendHeader(nil, &h), testutil.Hex(t, "01020304 00000002 00000008 00000004 00000002"); !bytes.Equal(got, want) {
				t.Errorf("%s: answer %x, want %x", tt.name, got, want)
			}
		}
	}
	if shared < 25 {
		t.Errorf("only %d messages are there for both versions", shared)
	}
}

func TestVersion2Refuses(t *testing.T) {
	const fixed = "01020304 00000002 00000020 "
	long := strings.Repeat("00", DefaultOptInfo+1) + "000000"
	tests := []struct {
		name   string
		wire   string
		lim    *Limits
		offset int
		code   ErrCode
		reason string
	}{
		{"V2-4.2-7 RDMA_MSG without a message", fixed + "00000000  00000000 00000000 00000000", nil, 28, ErrBadHeader, "no RPC message follows RDMA_MSG"},
		{"V2-4.2-7 RDMA_MSG with a byte less than tells a call from a reply", fixed + "00000000  00000000 00000000 00000000  01020304 000000", nil, 28, ErrBadHeader, "no RPC message follows RDMA_MSG"},
		{"V2-4.2-9 RDMA_NOMSG with a message", fixed + "00000001  00000000 00000000 00000000" + rpcHex, nil, 28, ErrBadHeader, "bytes after the chunk lists of RDMA_NOMSG"},

		{"V2-4.2-6 RDMA_MSGP", fixed + "00000002", nil, 12, ErrBadHeader, "message type is reserved"},
		{"V2-4.2-6 RDMA_MSGP of version 1", fixed + "00000002  00001000 00000400  00000000 00000000 00000000" + rpcHex, nil, 12, ErrBadHeader, "message type is reserved"},
		{"V2-4.2-6 RDMA_DONE", fixed + "00000003", nil, 12, 0, "message type is reserved"},
		{"V2-4.2-9 RDMA_DONE with a message", fixed + "00000003" + rpcHex, nil, 12, 0, "message type is reserved"},
		{"V2-4.2-4 first unknown message type", fixed + "00000006", nil, 12, ErrBadHeader, "message type is unknown"},
		{"V2-4.2-4 last unknown message type", fixed + "ffffffff", nil, 12, ErrBadHeader, "message type is unknown"},

		{"V2-3.1-1 RDMA_OPTIONAL alone", fixed + "00000005", nil, 16, ErrBadHeader, "rdma_opttype and rdma_optinfo are cut short"},
		{"V2-3.1-1 RDMA_OPTIONAL with part of a length", fixed + "00000005  00000010 000000", nil, 23, ErrBadHeader, "rdma_opttype and rdma_optinfo are cut short"},
		{"V2-3.1-1 rdma_optinfo cut short", fixed + "00000005  00000010 00000005 01020304", nil, 20, ErrBadHeader, "rdma_optinfo is longer than the message"},
		{"V2-3.1-1 rdma_optinfo without its padding", fixed + "00000005  00000010 00000005 0102030405 0000", nil, 20, ErrBadHeader, "rdma_optinfo is longer than the message"},
		{"V2-3.1-1 rdma_optinfo of 2^32-1 bytes, which padded are none", fixed + "00000005  00000010 ffffffff 01020304", nil, 20, ErrBadHeader, "rdma_optinfo is longer than the message"},
		{"V2-3.1-1 rdma_optinfo of 2^31 bytes", fixed + "00000005  00000010 80000000", nil, 20, ErrBadHeader, "rdma_optinfo is longer than the message"},
		{"V2-3.1-1 padding that is not zero", fixed + "00000005  00000010 00000005 0102030405 000100", nil, 30, ErrBadHeader, "rdma_optinfo is padded with other bytes than zeros"},

		// These are valid, but exceed the limits.
		{"rdma_optinfo over the default limit", fixed + "00000005  00000010 00000401" + long, nil, 20, ErrInvalOption, "rdma_optinfo is longer than the limit"},
		{"rdma_optinfo over a limit", fixed + "00000005  00000010 00000004 01020304", &Limits{OptInfo: 3}, 20, ErrInvalOption, "rdma_optinfo is longer than the limit"},
		{"no rdma_optinfo allowed", fixed + "00000005  00000010 00000001 01000000", &Limits{OptInfo: -1}, 20, ErrInvalOption, "rdma_optinfo is longer than the limit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			lim := Limits{Versions: bothVersions.Versions}
			if tt.lim != nil {
				lim.OptInfo = tt.lim.OptInfo
			}
			var h Header
			n, err := ConsumeHeader(wire, &h, &lim)
			var bad *HeaderError
			if !errors.As(err, &bad) || n != 0 {
				t.Fatalf("n = %d, error %v; want 0 and a *HeaderError", n, err)
			}
			if bad.Offset != tt.offset || bad.Code != tt.code || bad.Reason != tt.reason {
				t.Errorf("got byte %d, %v, %q; want byte %d, %v, %q", bad.Offset, bad.Code, bad.Reason, tt.offset, tt.code, tt.reason)
			}
			if h.OptInfo != nil {
				t.Errorf("rdma_optinfo is %x", h.OptInfo)
			}
			var answer Header
			if bad.Answer(&answer, 8) != (tt.code != 0) {
				t.Fatalf("there is an answer: %v", tt.code == 0)
			}
			if tt.code == 0 {
				return
			}
			want := testutil.Hex(t, "01020304 00000002 00000008 00000004 000000")
			if got := AppendHeader(nil, &answer); !bytes.Equal(got, append(want, byte(tt.code))) {
				t.Errorf("answer %x, want code %d", got, tt.code)
			}
		})
	}
}

// An rdma_optinfo of the maximum length is accepted.
func TestOptInfoLimit(t *testing.T) {
	for _, tt := range []struct{ limit, size int }{{0, DefaultOptInfo}, {3, 3}, {-1, 0}, {5000, 5000}} {
		b := AppendHeader(nil, &Header{Vers: 2, Proc: ProcOptional, OptInfo: make([]byte, tt.size)})
		var h Header
		n, err := ConsumeHeader(b, &h, &Limits{Versions: Range{2, 2}, OptInfo: tt.limit})
		if err != nil || n != len(b) || len(h.OptInfo) != tt.size {
			t.Errorf("%d bytes with a limit of %d: n = %d, error %v", tt.size, tt.limit, n, err)
		}
	}
}

// Appending to rdma_optinfo, a view of the message, does not overwrite what follows.
func TestOptInfoIsView(t *testing.T) {
	b := testutil.Hex(t, "01020304 00000002 00000020 00000005  00000010 00000001 61000000"+rpcHex)
	var h Header
	if _, err := ConsumeHeader(b, &h, bothVersions); err != nil {
		t.Fatal(err)
	}
	if &h.OptInfo[0] != &b[24] || cap(h.OptInfo) != 1 {
		t.Errorf("rdma_optinfo is no view, or has room for %d bytes", cap(h.OptInfo))
	}
	if _, err := ConsumeHeader(testutil.Hex(t, golden2[0].wire+rpcHex), &h, bothVersions); err != nil || h.OptInfo != nil || h.OptType != 0 {
		t.Errorf("the next header has %x of the last message, type %d; error %v", h.OptInfo, h.OptType, err)
	}
}

// Every prefix of a valid message of version 2 is refused.
func TestVersion2Truncated(t *testing.T) {
	for _, tt := range golden2 {
		wire := testutil.Hex(t, tt.wire)
		if tt.h.Proc == ProcMsg {
			wire = append(wire, testutil.Hex(t, tt.payload)...)
		}
		for n := range len(wire) {
			_, err := ConsumeHeader(wire[:n:n], new(Header), bothVersions)
			var bad *HeaderError
			if !errors.As(err, &bad) {
				t.Fatalf("%s: the first %d bytes are accepted", tt.name, n)
			}
			want := ErrBadHeader
			if n < FixedSize || tt.h.Proc == ProcError {
				want = 0
			}
			if bad.Code != want {
				t.Errorf("%s: the first %d bytes get %v, want %v", tt.name, n, bad.Code, want)
			}
		}
	}
}

// V2-4.2-5: version 2 has three errors. Others, and bytes after them, are accepted, since
// refusing an error would leave its call waiting.
func TestVersion2ErrorMessages(t *testing.T) {
	for _, tt := range []struct {
		wire string
		want Header
	}{
		{"0000000a 00000002 00000020 00000004 00000009", Header{XID: 10, Vers: 2, Credit: 32, Proc: ProcError, Err: 9}},
		{"0000000a 00000002 00000020 00000004 00000000" + strings.Repeat("ee", 100), Header{XID: 10, Vers: 2, Credit: 32, Proc: ProcError}},
		{"0000000a 00000002 00000020 00000004 00000003 eeeeeeee", Header{XID: 10, Vers: 2, Credit: 32, Proc: ProcError, Err: ErrInvalOption}},
	} {
		wire := testutil.Hex(t, tt.wire)
		for _, lim := range []*Limits{nil, bothVersions} { // whatever the version
			var h Header
			if n, err := ConsumeHeader(wire, &h, lim); err != nil || n != len(wire) || !equal(&h, &tt.want) {
				t.Errorf("%x: n = %d, error %v, header %+v", wire, n, err, h)
			}
		}
	}
}

func TestVersions(t *testing.T) {
	message := func(vers byte) []byte {
		b := testutil.Hex(t, "01020304 00000000 00000020 00000000  00000000 00000000 00000000"+rpcHex)
		b[7] = vers
		return b
	}
	for _, tt := range []struct {
		name     string
		versions Range
		reads    []byte
		low      uint32 // in the answer to others
		high     uint32
	}{
		{"zero is version 1", Range{}, []byte{1}, 1, 1},
		{"version 1", Range{1, 1}, []byte{1}, 1, 1},
		{"version 2", Range{2, 2}, []byte{2}, 2, 2},
		{"both", Range{1, 2}, []byte{1, 2}, 1, 2},
		{"more than there are", Range{0, math.MaxUint32}, []byte{1, 2}, 1, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for vers := range byte(5) {
				b := message(vers)
				_, err := ConsumeHeader(b, new(Header), &Limits{Versions: tt.versions})
				if bytes.IndexByte(tt.reads, vers) >= 0 {
					if err != nil {
						t.Errorf("version %d: %v", vers, err)
					}
					continue
				}
				var bad *HeaderError
				if !errors.As(err, &bad) || bad.Code != ErrVers || bad.Offset != 4 {
					t.Errorf("version %d gets %v", vers, err)
					continue
				}
				var h Header
				if !bad.Answer(&h, 1) || h.Vers != uint32(vers) || h.VersLow != tt.low || h.VersHigh != tt.high {
					t.Errorf("version %d is answered with %+v", vers, h)
				}
			}
		})
	}
}

// V2-4.2-4, V2-4.2-5, V2-4.2-6: messages that version 2 does not have cannot be encoded.
func TestVersion2Panics(t *testing.T) {
	for _, tt := range []struct {
		h    Header
		want string
	}{
		{Header{Vers: 2, Proc: ProcMsgp}, "rpcrdma: version 2 has no message type RDMA_MSGP"},
		{Header{Vers: 2, Proc: ProcDone}, "rpcrdma: version 2 has no message type RDMA_DONE"},
		{Header{Vers: 2, Proc: 6}, "rpcrdma: version 2 has no message type RDMA_PROC(6)"},
		{Header{Vers: 2, Proc: ProcError}, "rpcrdma: version 2 has no error code 0"},
		{Header{Vers: 2, Proc: ProcError, Err: 4}, "rpcrdma: version 2 has no error code 4"},
		{Header{Vers: 1, Proc: ProcOptional}, "rpcrdma: version 1 has no message type RDMA_OPTIONAL"},
	} {
		for what, f := range map[string]func(){
			"Size": func() { tt.h.Size() }, "AppendHeader": func() { AppendHeader(nil, &tt.h) },
		} {
			func() {
				defer func() {
					if r := recover(); r != tt.want {
						t.Errorf("%s of %+v: recovered %v, want %q", what, tt.h, r, tt.want)
					}
				}()
				f()
			}()
		}
	}
}

// V2-4.2-9: fields of other messages are not encoded.
func TestVersion2IgnoresOtherFields(t *testing.T) {
	for _, tt := range []struct {
		proc Proc
		want int
	}{{ProcMsg, 96}, {ProcNomsg, 96}, {ProcError, 20}, {ProcOptional, 28}} {
		h := Header{Vers: 2, Proc: tt.proc, Align: 8, Thresh: 8,
			Reads: []ReadSegment{{0, seg}}, Writes: []WriteChunk{{seg}}, Reply: WriteChunk{seg}, HasReply: true,
			Err: ErrBadHeader, VersLow: 1, VersHigh: 1, OptType: 1, OptInfo: []byte{1}}
		if got := len(AppendHeader(nil, &h)); got != tt.want || h.Size() != tt.want {
			t.Errorf("%v takes %d bytes, Size %d; want %d", tt.proc, got, h.Size(), tt.want)
		}
	}
}

// V2-4.2-4, V2-4.2-5: numbers and names of the document.
func TestVersion2Strings(t *testing.T) {
	if got := ProcOptional.String(); got != "RDMA_OPTIONAL" || ProcOptional != 5 {
		t.Errorf("%d prints as %q", uint32(ProcOptional), got)
	}
	if Version2 != 2 || ErrBadHeader != 2 || ErrInvalOption != 3 {
		t.Errorf("version %d, RDMA_ERR_BAD_HEADER %d, RDMA_ERR_INVAL_OPTION %d", Version2, uint32(ErrBadHeader), uint32(ErrInvalOption))
	}
	for _, tt := range []struct {
		code                       ErrCode
		first, second, versionless string
	}{
		{0, "ERR(0)", "ERR(0)", "ERR(0)"},
		{ErrVers, "ERR_VERS", "RDMA_ERR_VERS", "ERR_VERS"},
		{ErrChunk, "ERR_CHUNK", "RDMA_ERR_BAD_HEADER", "ERR_CHUNK"},
		{ErrInvalOption, "ERR(3)", "RDMA_ERR_INVAL_OPTION", "RDMA_ERR_INVAL_OPTION"},
		{9, "ERR(9)", "ERR(9)", "ERR(9)"},
	} {
		if a, b, c, d := tt.code.Name(1), tt.code.Name(2), tt.code.String(), tt.code.Name(77); a != tt.first || b != tt.second || c != tt.versionless || d != tt.first {
			t.Errorf("%d prints as %q, %q, %q and %q", uint32(tt.code), a, b, c, d)
		}
	}
}

func TestVersion2Allocs(t *testing.T) {
	var wires [][]byte
	for _, tt := range golden2 {
		wires = append(wires, testutil.Hex(t, tt.wire+tt.payload))
	}
	buf := make([]byte, 0, 1024)
	var h Header
	if n := testing.AllocsPerRun(100, func() {
		for i, wire := range wires {
			n, err := ConsumeHeader(wire, &h, bothVersions)
			if err != nil || n != golden2[i].size {
				t.Errorf("n = %d of %d, error %v", n, len(wire), err)
			}
			if b := AppendHeader(buf, &h); len(b) != n {
				t.Errorf("%d bytes, read %d", len(b), n)
			}
		}
	}); n != 0 {
		t.Errorf("decoding and encoding allocate %v times", n)
	}
}
