package rpcrdma

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// seg is the segment of the golden vectors: handle 11223344, 4 KiB at 2 GiB.
var seg = Segment{Handle: 0x11223344, Length: 0x1000, Offset: 0x80000000}

const segHex = "11223344 00001000 0000000080000000 "

// The bytes of every golden vector were written by hand from the XDR of RFC 5666
// section 4.3; the sizes are given there or follow from it by counting words.
var golden = []struct {
	name string
	size int
	wire string
	h    Header
}{{
	name: "V1-4.1-1 V1-4.1-8 V1-4.1-13 RDMA_MSG without chunks",
	size: 28,
	wire: "01020304 00000001 00000020 00000000  00000000 00000000 00000000",
	h:    Header{XID: 0x01020304, Vers: 1, Credit: 32},
}, {
	name: "V1-4.1-9 RDMA_MSGP",
	size: 36,
	wire: "01020304 00000001 00000020 00000002  00001000 00000400  00000000 00000000 00000000",
	h:    Header{XID: 0x01020304, Vers: 1, Credit: 32, Proc: ProcMsgp, Align: 4096, Thresh: 1024},
}, {
	name: "V1-4.1-12 RDMA_DONE",
	size: 16,
	wire: "01020304 00000001 00000020 00000003",
	h:    Header{XID: 0x01020304, Vers: 1, Credit: 32, Proc: ProcDone},
}, {
	name: "V1-4.3-1 V1-4.3-2 V1-5.1-1 RDMA_NOMSG, long call",
	size: 16 + 28 + 4 + 4,
	wire: "01020304 00000001 00000020 00000001  00000001 00000000" + segHex + "00000000  00000000 00000000",
	h: Header{XID: 0x01020304, Vers: 1, Credit: 32, Proc: ProcNomsg,
		Reads: []ReadSegment{{0, seg}}},
}, {
	name: "V1-3.4-12 V1-3.4-15 read list of two segments at one position and one at another",
	size: 16 + 3*24 + 4 + 4 + 4,
	wire: "01020304 00000001 00000020 00000000" +
		"00000001 0000002c" + segHex + "00000001 0000002c" + segHex + "00000001 0000102c" + segHex + "00000000" +
		"00000000 00000000",
	h: Header{XID: 0x01020304, Vers: 1, Credit: 32,
		Reads: []ReadSegment{{44, seg}, {44, seg}, {4140, seg}}},
}, {
	name: "V1-3.4-13 V1-4.3-3 write list of one chunk of two segments",
	size: 16 + 4 + 44 + 4,
	wire: "01020304 00000001 00000020 00000000  00000000" +
		"00000001 00000002" + segHex + segHex + "00000000  00000000",
	h: Header{XID: 0x01020304, Vers: 1, Credit: 32,
		Writes: []WriteChunk{{seg, seg}}},
}, {
	name: "V1-3.4-15 write list of two chunks of two segments",
	size: 16 + 4 + 2*40 + 4 + 4,
	wire: "01020304 00000001 00000020 00000000  00000000" +
		"00000001 00000002" + segHex + segHex + "00000001 00000002" + segHex + segHex + "00000000  00000000",
	h: Header{XID: 0x01020304, Vers: 1, Credit: 32,
		Writes: []WriteChunk{{seg, seg}, {seg, seg}}},
}, {
	name: "V1-4.3-4 V1-5.2-1 call with a reply chunk",
	size: 48,
	wire: "01020304 00000001 00000020 00000000  00000000 00000000  00000001 00000001" + segHex,
	h: Header{XID: 0x01020304, Vers: 1, Credit: 32,
		Reply: WriteChunk{seg}, HasReply: true},
}, {
	name: "V1-3.8-1 all lists at once",
	size: 16 + 28 + 8 + 24 + 4 + 8 + 16,
	wire: "01020304 00000001 00000020 00000000" +
		"00000001 0000002c" + segHex + "00000000" +
		"00000001 00000000" + "00000001 00000001" + segHex + "00000000" +
		"00000001 00000001" + segHex,
	h: Header{XID: 0x01020304, Vers: 1, Credit: 32,
		Reads:  []ReadSegment{{44, seg}},
		Writes: []WriteChunk{{}, {seg}},
		Reply:  WriteChunk{seg}, HasReply: true},
}, {
	name: "V1-3.6-2 V1-5.2-2 long reply with an unused write chunk",
	size: 16 + 4 + 24 + 4 + 24,
	wire: "01020304 00000001 00000020 00000001  00000000" +
		"00000001 00000001 11223344 00000000 0000000080000000 00000000" +
		"00000001 00000001" + segHex,
	h: Header{XID: 0x01020304, Vers: 1, Credit: 32, Proc: ProcNomsg,
		Writes: []WriteChunk{{{Handle: 0x11223344, Offset: 0x80000000}}},
		Reply:  WriteChunk{seg}, HasReply: true},
}, {
	name: "reply chunk without segments is not an absent one",
	size: 32,
	wire: "01020304 00000001 00000020 00000000  00000000 00000000  00000001 00000000",
	h:    Header{XID: 0x01020304, Vers: 1, Credit: 32, Reply: WriteChunk{}, HasReply: true},
}, {
	name: "V1-2-1 largest handle, length, offset and position",
	size: 52,
	wire: "ffffffff 00000001 ffffffff 00000001  00000001 ffffffff" +
		"ffffffff ffffffff ffffffffffffffff" + "00000000  00000000 00000000",
	h: Header{XID: math.MaxUint32, Vers: 1, Credit: math.MaxUint32, Proc: ProcNomsg,
		Reads: []ReadSegment{{math.MaxUint32, Segment{math.MaxUint32, math.MaxUint32, math.MaxUint64}}}},
}, {
	name: "V1-4.2-3 V1-4.3-6 ERR_VERS",
	size: 28,
	wire: "01020304 00000001 00000020 00000004  00000001 00000001 00000001",
	h:    Header{XID: 0x01020304, Vers: 1, Credit: 32, Proc: ProcError, Err: ErrVers, VersLow: 1, VersHigh: 1},
}, {
	name: "V1-4.2-4 ERR_VERS that carries the version it refuses",
	size: 28,
	wire: "01020304 00000002 00000020 00000004  00000001 00000001 00000001",
	h:    Header{XID: 0x01020304, Vers: 2, Credit: 32, Proc: ProcError, Err: ErrVers, VersLow: 1, VersHigh: 1},
}, {
	name: "V1-4.2-5 V1-4.3-6 ERR_CHUNK",
	size: 20,
	wire: "01020304 00000001 00000020 00000004  00000002",
	h:    Header{XID: 0x01020304, Vers: 1, Credit: 32, Proc: ProcError, Err: ErrChunk},
}, {
	name: "V1-4.3-7 unknown error code with rdma_extra",
	size: 52,
	wire: "01020304 00000001 00000020 00000004  00000009" + strings.Repeat("00000000", 8),
	h:    Header{XID: 0x01020304, Vers: 1, Credit: 32, Proc: ProcError, Err: 9},
}}

// equal compares headers; an empty list equals nil.
func equal(a, b *Header) bool {
	norm := func(h Header) Header {
		if len(h.Reads) == 0 {
			h.Reads = nil
		}
		writes := h.Writes
		h.Writes = nil
		for _, chunk := range writes {
			h.Writes = append(h.Writes, append(WriteChunk{}, chunk...))
		}
		h.Reply = append(WriteChunk{}, h.Reply...)
		h.OptInfo = append([]byte{}, h.OptInfo...)
		return h
	}
	return reflect.DeepEqual(norm(*a), norm(*b))
}

func TestHeaderGolden(t *testing.T) {
	var kept Header // one header for all, as a receiver has it
	for _, tt := range golden {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			if len(wire) != tt.size {
				t.Fatalf("the vector has %d bytes, not %d", len(wire), tt.size)
			}
			if got := AppendHeader([]byte("prefix"), &tt.h)[len("prefix"):]; !bytes.Equal(got, wire) {
				t.Errorf("encoded\n%x, want\n%x", got, wire)
			}
			later := tt.h
			later.Credit = ^tt.h.Credit
			b := AppendHeader(nil, &later)
			if SetCredit(b, tt.h.Credit); !bytes.Equal(b, wire) {
				t.Errorf("with the credits set later\n%x, want\n%x", b, wire)
			}
			if got := tt.h.Size(); got != tt.size {
				t.Errorf("Size is %d, want %d", got, tt.size)
			}
			for _, h := range []*Header{{}, &kept} {
				n, err := ConsumeHeader(wire, h, nil)
				if err != nil || n != tt.size {
					t.Fatalf("n = %d, error %v; want %d", n, err, tt.size)
				}
				if !equal(h, &tt.h) {
					t.Errorf("decoded %+v, want %+v", h, tt.h)
				}
			}
			f, ok := ConsumeFixed(wire)
			if !ok || f != (Fixed{tt.h.XID, tt.h.Vers, tt.h.Credit, tt.h.Proc}) {
				t.Errorf("fixed fields %+v, ok: %v", f, ok)
			}
		})
	}
}

// V1-3-2, V1-4.1-10: the RPC message begins on the byte after the header.
func TestHeaderBeforeMessage(t *testing.T) {
	rpc := testutil.Hex(t, "01020304 00000000 00000002")
	for _, tt := range golden {
		if p := tt.h.Proc; p != ProcMsg && p != ProcMsgp {
			continue
		}
		var h Header
		b := append(testutil.Hex(t, tt.wire), rpc...)
		n, err := ConsumeHeader(b, &h, nil)
		if err != nil || !bytes.Equal(b[n:], rpc) {
			t.Errorf("%s: message %x, error %v", tt.name, b[n:], err)
		}
	}
}

// BIDI-1-1: a backward call has the form of any other call. This message is sent by a server:
// RDMA_MSG without chunks, and a call with AUTH_NONE.
func TestHeaderBackwardCall(t *testing.T) {
	b := testutil.Hex(t, `
		000000a7 00000001 00000002 00000000  00000000 00000000 00000000
		000000a7 00000000 00000002 40000000 00000001 00000000  00000000 00000000 00000000 00000000`)
	var h Header
	n, err := ConsumeHeader(b, &h, nil)
	if err != nil || n != 28 || h.XID != 0xa7 || h.Credit != 2 || h.Proc != ProcMsg {
		t.Errorf("n = %d, error %v, header %+v", n, err, h)
	}
}

// Starts of messages of version 1, and parts of lists.
const (
	msgHex   = "01020304 00000001 00000020 00000000 "
	nomsgHex = "01020304 00000001 00000020 00000001 "
	msgpHex  = "01020304 00000001 00000020 00000002 "
	doneHex  = "01020304 00000001 00000020 00000003 "
	errorHex = "01020304 00000001 00000020 00000004 "
	readHex  = "00000001 00000000" + segHex
	chunkHex = "00000001 00000001" + segHex // a write chunk of one segment
	noneHex  = "00000000 "
)

// malformed are messages that are refused in version 1.
var malformed = []struct {
	name   string
	wire   string
	lim    *Limits
	offset int
	code   ErrCode
	reason string
}{
	// Too short for an XID that could be trusted.
	{"V1-4.2-1 empty message", "", nil, 0, 0, "message is shorter than the fixed header"},
	{"V1-4.2-1 fixed fields cut short", "01020304 00000001 00000020 000000", nil, 15, 0, "message is shorter than the fixed header"},

	{"V1-4.1-7 V1-4.2-3 version 77", "01020304 0000004d 00000020 00000000", nil, 4, ErrVers, "version is not supported"},
	{"V1-4.2-3 version 2 with lists", "01020304 00000002 00000020 00000000" + noneHex + noneHex + noneHex, nil, 4, ErrVers, "version is not supported"},
	{"version 0", "01020304 00000000 00000020 00000000", nil, 4, ErrVers, "version is not supported"},
	{"version 2 with RDMA_DONE", "01020304 00000002 00000020 00000003", nil, 4, ErrVers, "version is not supported"},

	{"V1-4.1-14 message type of version 2", "01020304 00000001 00000020 00000005" + noneHex + noneHex + noneHex, nil, 12, ErrChunk, "message type is unknown"},
	{"largest message type", "01020304 00000001 00000020 ffffffff", nil, 12, ErrChunk, "message type is unknown"},

	{"V1-4.1-15 RDMA_DONE with lists", doneHex + noneHex + noneHex + noneHex, nil, 16, 0, "bytes after RDMA_DONE"},
	{"V1-4.2-6 RDMA_ERROR without code", errorHex, nil, 16, 0, "RDMA_ERROR has no code"},
	{"V1-4.2-6 RDMA_ERROR with part of a code", errorHex + "000000", nil, 19, 0, "RDMA_ERROR has no code"},
	{"V1-4.2-6 ERR_VERS without range", errorHex + "00000001", nil, 20, 0, "version range of ERR_VERS is cut short"},
	{"V1-4.2-6 ERR_VERS with half a range", errorHex + "00000001 00000001 000000", nil, 27, 0, "version range of ERR_VERS is cut short"},

	{"RDMA_MSGP without alignment", msgpHex + "00001000 000000", nil, 23, ErrChunk, "rdma_align and rdma_thresh are cut short"},
	{"V1-4.1-9 RDMA_MSGP without lists", msgpHex + "00001000 00000400", nil, 24, ErrChunk, "read list is cut short"},

	{"no lists", msgHex, nil, 16, ErrChunk, "read list is cut short"},
	{"read list of part of a word", msgHex + "000000", nil, 16, ErrChunk, "read list is cut short"},
	{"V1-4.2-2 CTX-4506-1 read list discriminant of 2", msgHex + "00000002" + noneHex + noneHex, nil, 16, ErrChunk, "read list has a discriminant that is neither 0 nor 1"},
	{"read list discriminant of 2 behind an entry", msgHex + readHex + "00000002", nil, 40, ErrChunk, "read list has a discriminant that is neither 0 nor 1"},
	{"read segment cut short", msgHex + "00000001 00000000 11223344 00001000 00000000 000000", nil, 20, ErrChunk, "read segment is cut short"},
	{"read list without end", msgHex + readHex, nil, 40, ErrChunk, "read list is cut short"},
	{"read list over the limit", msgHex + readHex + readHex + readHex + noneHex + noneHex + noneHex, &Limits{ReadSegments: 2}, 16 + 2*24 + 4, ErrChunk, "read list has more segments than the limit"},
	{"BIDI-5.3-4 no read list allowed", msgHex + readHex + noneHex + noneHex + noneHex, &Limits{ReadSegments: -1}, 20, ErrChunk, "read list has more segments than the limit"},

	{"write list missing", msgHex + noneHex, nil, 20, ErrChunk, "write list is cut short"},
	{"write list discriminant of 2^31", msgHex + noneHex + "80000000" + noneHex, nil, 20, ErrChunk, "write list has a discriminant that is neither 0 nor 1"},
	{"write chunk without count", msgHex + noneHex + "00000001", nil, 24, ErrChunk, "segment count is cut short"},
	{"V1-4.2-5 write chunk of two segments with one", msgHex + noneHex + "00000001 00000002" + segHex + "00000000 00000000", nil, 24, ErrChunk, "segment count is more than the message holds"},
	{"write chunk of 2^28 segments, whose bytes overflow 32 bits", msgHex + noneHex + "00000001 10000000" + segHex, nil, 24, ErrChunk, "segment count is more than the message holds"},
	{"write chunk of 2^32-1 segments", msgHex + noneHex + "00000001 ffffffff" + segHex, nil, 24, ErrChunk, "segment count is more than the message holds"},
	{"write list without end", msgHex + noneHex + chunkHex, nil, 44, ErrChunk, "write list is cut short"},
	{"write list over the limit", msgHex + noneHex + chunkHex + chunkHex + noneHex + noneHex, &Limits{WriteChunks: 1}, 48, ErrChunk, "write list has more chunks than the limit"},
	{"BIDI-5.3-4 no write list allowed", msgHex + noneHex + chunkHex + noneHex + noneHex, &Limits{WriteChunks: -1}, 24, ErrChunk, "write list has more chunks than the limit"},
	{"write chunk over the limit", msgHex + noneHex + "00000001 00000002" + segHex + segHex + noneHex + noneHex, &Limits{SegmentsPerChunk: 1}, 24, ErrChunk, "chunk has more segments than the limit"},

	{"reply chunk missing", msgHex + noneHex + noneHex, nil, 24, ErrChunk, "reply chunk is cut short"},
	{"reply chunk discriminant of 2", msgHex + noneHex + noneHex + "00000002", nil, 24, ErrChunk, "reply chunk has a discriminant that is neither 0 nor 1"},
	{"reply chunk of 2 segments with one", msgHex + noneHex + noneHex + "00000001 00000002" + segHex, nil, 28, ErrChunk, "segment count is more than the message holds"},
	{"BIDI-5.3-4 no reply chunk allowed", msgHex + noneHex + noneHex + chunkHex, &Limits{SegmentsPerChunk: -1}, 28, ErrChunk, "chunk has more segments than the limit"},

	{"V1-4.1-11 RDMA_NOMSG with a message", nomsgHex + readHex + noneHex + noneHex + noneHex + "01020304", nil, 52, ErrChunk, "bytes after the chunk lists of RDMA_NOMSG"},
}

func TestConsumeHeaderRefuses(t *testing.T) {
	for _, tt := range malformed {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			var h Header
			n, err := ConsumeHeader(wire, &h, tt.lim)
			var bad *HeaderError
			if !errors.As(err, &bad) || n != 0 {
				t.Fatalf("n = %d, error %v; want 0 and a *HeaderError", n, err)
			}
			if bad.Offset != tt.offset || bad.Code != tt.code || bad.Reason != tt.reason {
				t.Errorf("got byte %d, %v, %q; want byte %d, %v, %q", bad.Offset, bad.Code, bad.Reason, tt.offset, tt.code, tt.reason)
			}
			f, ok := ConsumeFixed(wire)
			if bad.HaveXID != ok || bad.XID != f.XID || bad.Vers != f.Vers || bad.Proc != f.Proc {
				t.Errorf("error says %+v, message %+v", bad, f)
			}
		})
	}
}

// Every prefix of a valid header is refused, without an answer or with ERR_CHUNK, and not read
// past its end.
func TestConsumeHeaderTruncated(t *testing.T) {
	for _, tt := range golden {
		wire := testutil.Hex(t, tt.wire)
		short := len(wire)
		if tt.h.Proc == ProcError && tt.h.Err != ErrVers {
			short = ErrChunkSize // V1-4.3-7: what follows the code may be missing
		}
		for n := range short {
			var h Header
			_, err := ConsumeHeader(wire[:n:n], &h, nil)
			var bad *HeaderError
			if !errors.As(err, &bad) {
				t.Fatalf("%s: the first %d bytes are accepted", tt.name, n)
			}
			want := ErrChunk
			if n < FixedSize || tt.h.Proc == ProcError || tt.h.Proc == ProcDone {
				want = 0
			}
			if bad.Code != want {
				t.Errorf("%s: the first %d bytes get %v, want %v", tt.name, n, bad.Code, want)
			}
		}
	}
}

func TestConsumeHeaderErrorMessages(t *testing.T) {
	tests := []struct {
		name string
		wire string
		want Header
	}{
		{"V1-4.3-7 unknown code alone", "0000000a 00000001 00000020 00000004 00000009",
			Header{XID: 10, Vers: 1, Credit: 32, Proc: ProcError, Err: 9}},
		{"V1-4.3-7 unknown code with part of rdma_extra", "0000000a 00000001 00000020 00000004 00000009 eeeeeeee ee",
			Header{XID: 10, Vers: 1, Credit: 32, Proc: ProcError, Err: 9}},
		{"V1-4.3-7 unknown code with 100 bytes", "0000000a 00000001 00000020 00000004 00000009" + strings.Repeat("ee", 100),
			Header{XID: 10, Vers: 1, Credit: 32, Proc: ProcError, Err: 9}},
		{"V1-4.1-7 any version", "0000000a 0000004d 00000020 00000004 00000002",
			Header{XID: 10, Vers: 77, Credit: 32, Proc: ProcError, Err: ErrChunk}},
		{"ERR_CHUNK with bytes behind it", "0000000a 00000001 00000020 00000004 00000002 eeeeeeee",
			Header{XID: 10, Vers: 1, Credit: 32, Proc: ProcError, Err: ErrChunk}},
		{"ERR_VERS with bytes behind it", "0000000a 00000001 00000020 00000004 00000001 00000001 00000002 eeeeeeee",
			Header{XID: 10, Vers: 1, Credit: 32, Proc: ProcError, Err: ErrVers, VersLow: 1, VersHigh: 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			var h Header
			n, err := ConsumeHeader(wire, &h, nil)
			if err != nil || n != len(wire) || !equal(&h, &tt.want) {
				t.Errorf("n = %d, error %v, header %+v; want %d and %+v", n, err, h, len(wire), tt.want)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	many := func(reads, chunks, segs int) []byte {
		h := Header{Vers: 1, Reads: make([]ReadSegment, reads), HasReply: true, Reply: make(WriteChunk, segs)}
		for range chunks {
			h.Writes = append(h.Writes, make(WriteChunk, segs))
		}
		return AppendHeader(nil, &h)
	}
	tests := []struct {
		name                 string
		lim                  *Limits
		reads, chunks, segs  int
		okReads, okCh, okSeg bool
	}{
		{"defaults", nil, 512, 16, 512, true, true, true},
		{"zero is the default", &Limits{}, 513, 17, 513, false, false, false},
		{"lower", &Limits{ReadSegments: 1, WriteChunks: 1, SegmentsPerChunk: 1}, 1, 1, 1, true, true, true},
		{"lower, passed", &Limits{ReadSegments: 1, WriteChunks: 1, SegmentsPerChunk: 1}, 2, 2, 2, false, false, false},
		{"higher", &Limits{ReadSegments: 1000, WriteChunks: 1000, SegmentsPerChunk: 1000}, 1000, 1000, 1000, true, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			check := func(what string, b []byte, ok bool) {
				t.Helper()
				var h Header
				if n, err := ConsumeHeader(b, &h, tt.lim); (err == nil) != ok || err == nil && n != len(b) {
					t.Errorf("%s: n = %d of %d, error %v; want success: %v", what, n, len(b), err, ok)
				}
			}
			check(fmt.Sprint(tt.reads, " read segments"), many(tt.reads, 0, 0), tt.okReads)
			check(fmt.Sprint(tt.chunks, " write chunks"), many(0, tt.chunks, 0), tt.okCh)
			check(fmt.Sprint(tt.segs, " segments"), many(0, 1, tt.segs), tt.okSeg)
		})
	}
}

func TestSizes(t *testing.T) {
	for _, tt := range []struct{ n, reads, chunk int }{
		{0, 4, 8}, {1, 28, 24}, {2, 52, 40}, {259, 6220, 4152},
	} {
		if got := ReadListSize(tt.n); got != tt.reads {
			t.Errorf("V1-4.3-2 read list of %d: %d bytes, want %d", tt.n, got, tt.reads)
		}
		if got := WriteChunkSize(tt.n); got != tt.chunk {
			t.Errorf("V1-4.3-3 write chunk of %d: %d bytes, want %d", tt.n, got, tt.chunk)
		}
	}

	// The helpers add up to Size, and Size is the encoded length, for all shapes.
	for _, proc := range []Proc{ProcMsg, ProcNomsg, ProcMsgp} {
		for shape := range 3 * 3 * 4 * 4 {
			reads, chunks, segs, reply := shape%3, shape/3%3, shape/9%4, shape/36%4-1
			h := Header{Proc: proc, Vers: 1, Reads: make([]ReadSegment, reads)}
			want := MinHeaderSize
			if proc == ProcMsgp {
				want = MinHeaderSizeMsgp
			}
			want += ReadListSize(reads) - 4
			for range chunks {
				h.Writes = append(h.Writes, make(WriteChunk, segs))
				want += WriteChunkSize(segs)
			}
			if reply >= 0 {
				h.HasReply, h.Reply = true, make(WriteChunk, reply)
				want += WriteChunkSize(reply) - 4
			}
			if got, wrote := h.Size(), len(AppendHeader(nil, &h)); got != want || wrote != want {
				t.Errorf("%v, %d reads, %d chunks of %d, reply chunk of %d: Size %d, written %d, want %d",
					proc, reads, chunks, segs, reply, got, wrote, want)
			}
		}
	}
}

// V1-4.1-15: fields of other message types are not written. V1-4.1-12, V1-4.1-15: only the
// fields of the message type are encoded, whatever else is set.
func TestAppendHeaderIgnoresOtherFields(t *testing.T) {
	full := Header{XID: 1, Vers: 1, Credit: 1, Align: 8, Thresh: 8,
		Reads: []ReadSegment{{0, seg}}, Writes: []WriteChunk{{seg}}, Reply: WriteChunk{seg}, HasReply: true,
		Err: ErrVers, VersLow: 1, VersHigh: 1}
	for proc, want := range map[Proc]int{
		ProcMsg: 16 + 28 + 28 + 24, ProcNomsg: 16 + 28 + 28 + 24, ProcMsgp: 16 + 8 + 28 + 28 + 24,
		ProcDone: 16, ProcError: 28,
	} {
		h := full
		h.Proc = proc
		if got := len(AppendHeader(nil, &h)); got != want {
			t.Errorf("%v takes %d bytes, want %d", proc, got, want)
		}
	}
	h := full
	h.HasReply = false
	if got, want := len(AppendHeader(nil, &h)), 16+28+28+4; got != want {
		t.Errorf("segments of a reply chunk that is absent: %d bytes, want %d", got, want)
	}
}

func TestAppendHeaderPanicsOnUnknownProc(t *testing.T) {
	defer func() {
		if r := recover(); r != "rpcrdma: version 1 has no message type RDMA_PROC(7)" {
			t.Errorf("recovered %v", r)
		}
	}()
	AppendHeader(nil, &Header{Vers: 1, Proc: 7})
}

func TestWriteChunkLength(t *testing.T) {
	for _, tt := range []struct {
		chunk WriteChunk
		want  uint64
	}{
		{nil, 0},
		{WriteChunk{{}}, 0},
		{WriteChunk{{Length: 4096}, {Length: 904}, {Length: 0}}, 5000}, // V1-3.6-2
		{WriteChunk{{Length: math.MaxUint32}, {Length: math.MaxUint32}, {Length: 2}}, 1 << 33},
	} {
		if got := tt.chunk.Length(); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.chunk, got, tt.want)
		}
	}
}

func TestOpaquePad(t *testing.T) {
	tests := []struct {
		name                             string
		pos, length, align, thresh, want uint32
	}{
		{"V1-3.9-2 up to alignment", 44, 2000, 64, 1024, 20},
		{"V1-3.9-2 most there can be", 1, 2000, 4096, 1024, 4095},
		{"V1-3.9-2 aligned already", 128, 2000, 64, 1024, 0},
		{"V1-3.9-4 one below the threshold", 44, 1023, 64, 1024, 0},
		{"V1-3.9-4 at the threshold", 44, 1024, 64, 1024, 20},
		{"V1-3.9-4 one above the threshold", 44, 1025, 64, 1024, 20},
		{"no alignment", 45, 2000, 0, 0, 0},
		{"alignment of one", 45, 2000, 1, 0, 0},
		{"alignment that is no power of two", 44, 2000, 100, 0, 56},
		{"largest", math.MaxUint32 - 1, math.MaxUint32, math.MaxUint32, math.MaxUint32, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := OpaquePad(tt.pos, tt.length, tt.align, tt.thresh); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// V1-4.1-6, V1-4.3-6: numbers and names of the RFC; unknown values print as numbers.
func TestStrings(t *testing.T) {
	for _, tt := range []struct {
		v    fmt.Stringer
		num  uint32
		want string
	}{
		{ProcMsg, 0, "RDMA_MSG"}, {ProcNomsg, 1, "RDMA_NOMSG"}, {ProcMsgp, 2, "RDMA_MSGP"},
		{ProcDone, 3, "RDMA_DONE"}, {ProcError, 4, "RDMA_ERROR"}, {Proc(7), 7, "RDMA_PROC(7)"},
		{ErrVers, 1, "ERR_VERS"}, {ErrChunk, 2, "ERR_CHUNK"}, {ErrCode(9), 9, "ERR(9)"},
	} {
		if got := tt.v.String(); got != tt.want || uint32(reflect.ValueOf(tt.v).Uint()) != tt.num {
			t.Errorf("%d prints as %q, want %d as %q", tt.v, got, tt.num, tt.want)
		}
	}
}

func TestHeaderErrorText(t *testing.T) {
	for _, tt := range []struct{ wire, want string }{
		{"0102", "rpcrdma: malformed message: byte 2: message is shorter than the fixed header"},
		{"01020304 0000004d 00000020 00000000", "rpcrdma: malformed RDMA_MSG xid 0x01020304 version 77: byte 4: version is not supported"},
		{"01020304 00000001 00000020 00000000 00000003", "rpcrdma: malformed RDMA_MSG xid 0x01020304 version 1: byte 16: read list has a discriminant that is neither 0 nor 1"},
	} {
		if _, err := ConsumeHeader(testutil.Hex(t, tt.wire), new(Header), nil); err == nil || err.Error() != tt.want {
			t.Errorf("got %q, want %q", err, tt.want)
		}
	}
}

func TestHeaderErrorAnswer(t *testing.T) {
	tests := []struct {
		name, wire, want string // want is empty where nothing must be sent
	}{
		{"V1-4.1-7 version 77", "01020304 0000004d 00000020 00000000",
			"01020304 0000004d 00000008 00000004 00000001 00000001 00000001"},
		{"V1-4.2-2 bad discriminant", "01020304 00000001 00000020 00000000 00000002",
			"01020304 00000001 00000008 00000004 00000002"},
		{"V1-4.1-14 message type of version 2", "01020304 00000001 00000020 00000005",
			"01020304 00000001 00000008 00000004 00000002"},
		{"short", "01020304 00000001 00000020", ""},
		{"V1-4.2-6 malformed RDMA_ERROR", "01020304 00000001 00000020 00000004", ""},
		{"V1-4.2-6 malformed RDMA_DONE", "01020304 00000001 00000020 00000003 00000000", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ConsumeHeader(testutil.Hex(t, tt.wire), new(Header), nil)
			var bad *HeaderError
			if !errors.As(err, &bad) {
				t.Fatalf("error is %v, want a *HeaderError", err)
			}
			var h Header
			if got := bad.Answer(&h, 8); got != (tt.want != "") {
				t.Fatalf("there is an answer: %v, want %v", got, tt.want != "")
			} else if !got {
				if !equal(&h, &Header{}) {
					t.Errorf("no answer, but header %+v", h)
				}
				return
			}
			if got := AppendHeader(nil, &h); !bytes.Equal(got, testutil.Hex(t, tt.want)) {
				t.Errorf("answer %x, want %s", got, tt.want)
			}
		})
	}
}

// A header that has been used for every shape decodes any message without allocating.
func TestHeaderAllocs(t *testing.T) {
	var wires [][]byte
	for _, tt := range golden {
		wires = append(wires, testutil.Hex(t, tt.wire))
	}
	buf := make([]byte, 0, 1024)
	var h Header
	if n := testing.AllocsPerRun(100, func() {
		for _, wire := range wires {
			n, err := ConsumeHeader(wire, &h, nil)
			if err != nil || n != len(wire) {
				t.Errorf("n = %d of %d, error %v", n, len(wire), err)
			}
			if b := AppendHeader(buf, &h); len(b) != h.Size() {
				t.Errorf("%d bytes, Size %d", len(b), h.Size())
			}
			if _, ok := ConsumeFixed(wire); !ok {
				t.Error("no fixed fields")
			}
		}
	}); n != 0 {
		t.Errorf("decoding and encoding allocate %v times", n)
	}
}

// A header that is refused in the middle leaves nothing in the next one.
func TestConsumeHeaderAfterError(t *testing.T) {
	var h Header
	full := golden[8]
	if full.h.Reads == nil || full.h.Writes == nil || !full.h.HasReply {
		t.Fatalf("%q is not the vector with all lists", full.name)
	}
	wire := testutil.Hex(t, full.wire)
	for n := range wire {
		if _, err := ConsumeHeader(wire[:n], &h, nil); err == nil {
			t.Fatalf("the first %d bytes are accepted", n)
		}
		for _, tt := range golden {
			if _, err := ConsumeHeader(testutil.Hex(t, tt.wire), &h, nil); err != nil || !equal(&h, &tt.h) {
				t.Fatalf("%s behind %d bytes of another: error %v, header %+v", tt.name, n, err, h)
			}
		}
	}
}

func FuzzConsumeHeader(f *testing.F) {
	for _, tt := range golden {
		f.Add(testutil.Hex(f, tt.wire))
		f.Add(append(testutil.Hex(f, tt.wire), "message"...))
	}
	for _, tt := range golden2 {
		f.Add(testutil.Hex(f, tt.wire))
		f.Add(append(testutil.Hex(f, tt.wire), "a message"...))
	}
	f.Add(testutil.Hex(f, "01020304 00000001 00000020 00000000 00000000 00000001 ffffffff 00000000"))
	f.Add(testutil.Hex(f, "01020304 00000001 00000020 00000000 00000000 00000001 10000001 00000000"))
	var kept Header // carries the storage of one input to the next
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := ConsumeHeader(b, &kept, bothVersions)
		if err != nil {
			var bad *HeaderError
			if !errors.As(err, &bad) || n != 0 || bad.Reason == "" || bad.Offset > len(b) {
				t.Fatalf("n = %d, error %+v", n, err)
			}
			if bad.HaveXID != (len(b) >= FixedSize) || !bad.HaveXID && bad.Code != 0 {
				t.Fatalf("error %+v for %d bytes", bad, len(b))
			}
			if bad.Proc == ProcError && bad.Code != 0 {
				t.Fatalf("an error is answered: %+v", bad)
			}
			return
		}
		if n < FixedSize || n > len(b) || kept.Proc == ProcNomsg && n != len(b) {
			t.Fatalf("n = %d of %d bytes, %v", n, len(b), kept.Proc)
		}
		if kept.Proc != ProcError && kept.Vers != Version1 && kept.Vers != Version2 {
			t.Fatalf("version %d is accepted", kept.Vers)
		}
		if len(kept.Reads) > DefaultReadSegments || len(kept.Writes) > DefaultWriteChunks || len(kept.OptInfo) > DefaultOptInfo {
			t.Fatalf("%d reads, %d writes, %d bytes of rdma_optinfo", len(kept.Reads), len(kept.Writes), len(kept.OptInfo))
		}
		if kept.Vers == Version2 && kept.Proc == ProcError && (kept.Err < ErrVers || kept.Err > ErrInvalOption) {
			return // read, but nothing that version 2 could write
		}

		enc := AppendHeader(nil, &kept)
		if len(enc) != kept.Size() {
			t.Fatalf("%d bytes encoded, Size %d", len(enc), kept.Size())
		}
		// There is one encoding for each header, but bytes after an error code are dropped.
		if kept.Proc != ProcError && !bytes.Equal(enc, b[:n]) {
			t.Fatalf("decoded\n%x, encoded\n%x", b[:n], enc)
		}
		if kept.Vers == Version2 && kept.Proc == ProcMsg {
			enc = append(enc, b[n:]...)
		}
		var again Header
		if m, err := ConsumeHeader(enc, &again, bothVersions); err != nil || m != kept.Size() || !equal(&kept, &again) {
			t.Fatalf("decoded again: n = %d of %d, error %v, %+v, want %+v", m, len(enc), err, again, kept)
		}
	})
}

func BenchmarkConsumeHeader(b *testing.B) {
	benchmark(b, func(wire []byte, h *Header) { ConsumeHeader(wire, h, nil) })
}

func BenchmarkAppendHeader(b *testing.B) {
	buf := make([]byte, 0, 1024)
	benchmark(b, func(wire []byte, h *Header) { AppendHeader(buf, h) })
}

func benchmark(b *testing.B, f func(wire []byte, h *Header)) {
	for _, bb := range []struct {
		name   string
		vector int
	}{{"none", 0}, {"write", 5}, {"all", 8}} {
		b.Run(bb.name, func(b *testing.B) {
			wire := testutil.Hex(b, golden[bb.vector].wire)
			var h Header
			if _, err := ConsumeHeader(wire, &h, nil); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				f(wire, &h)
			}
		})
	}
}
