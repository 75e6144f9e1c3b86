package xdr

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// CTX-4506-1: big-endian, units of four bytes, no alignment of 64-bit values.
func TestAppendConsumeGolden(t *testing.T) {
	tests := []struct {
		name   string
		want   string // RFC 4506 sections 4.1 to 4.11, applied by hand
		append func(b []byte) []byte
		check  func(b []byte) (ok bool, n int)
	}{{
		name:   "uint32",
		want:   "01020304",
		append: func(b []byte) []byte { return AppendUint32(b, 0x01020304) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeUint32(b); return v == 0x01020304, n },
	}, {
		name:   "uint32 largest",
		want:   "ffffffff",
		append: func(b []byte) []byte { return AppendUint32(b, math.MaxUint32) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeUint32(b); return v == math.MaxUint32, n },
	}, {
		name:   "int32 negative",
		want:   "fffffffe",
		append: func(b []byte) []byte { return AppendInt32(b, -2) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeInt32(b); return v == -2, n },
	}, {
		name:   "uint64",
		want:   "0102030405060708",
		append: func(b []byte) []byte { return AppendUint64(b, 0x0102030405060708) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeUint64(b); return v == 0x0102030405060708, n },
	}, {
		name:   "int64 smallest",
		want:   "8000000000000000",
		append: func(b []byte) []byte { return AppendInt64(b, math.MinInt64) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeInt64(b); return v == math.MinInt64, n },
	}, {
		name:   "bool false",
		want:   "00000000",
		append: func(b []byte) []byte { return AppendBool(b, false) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeBool(b); return !v, n },
	}, {
		name:   "bool true",
		want:   "00000001",
		append: func(b []byte) []byte { return AppendBool(b, true) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeBool(b); return v, n },
	}, {
		name:   "opaque empty",
		want:   "00000000",
		append: func(b []byte) []byte { return AppendOpaque(b, nil) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeOpaque(b, 0); return len(v) == 0, n },
	}, {
		name:   "opaque with one pad byte",
		want:   "00000003 0a0b0c 00",
		append: func(b []byte) []byte { return AppendOpaque(b, []byte{10, 11, 12}) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeOpaque(b, 3); return string(v) == "\n\v\f", n },
	}, {
		name:   "opaque without pad",
		want:   "00000004 0a0b0c0d",
		append: func(b []byte) []byte { return AppendOpaque(b, []byte{10, 11, 12, 13}) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeOpaque(b, 100); return string(v) == "\n\v\f\r", n },
	}, {
		name:   "fixed opaque with three pad bytes",
		want:   "0a0b0c0d0e 000000",
		append: func(b []byte) []byte { return AppendFixedOpaque(b, []byte{10, 11, 12, 13, 14}) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeFixedOpaque(b, 5); return string(v) == "\n\v\f\r\x0e", n },
	}, {
		name:   "fixed opaque empty",
		want:   "",
		append: func(b []byte) []byte { return AppendFixedOpaque(b, nil) },
		check:  func(b []byte) (bool, int) { v, n := ConsumeFixedOpaque(b, 0); return len(v) == 0, n },
	}, {
		name:   "string with two pad bytes",
		want:   "00000002 6869 0000",
		append: func(b []byte) []byte { return AppendString(b, "hi") },
		check:  func(b []byte) (bool, int) { v, n := ConsumeString(b, 2); return v == "hi", n },
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := testutil.Hex(t, tt.want)
			if got := tt.append([]byte("prefix"))[len("prefix"):]; !bytes.Equal(got, want) {
				t.Errorf("append: got %x, want %x", got, want)
			}
			for _, tail := range []string{"", "tail"} {
				ok, n := tt.check(append(bytes.Clone(want), tail...))
				if !ok || n != len(want) {
					t.Errorf("consume with %d bytes behind: value right: %v, n = %d, want %d", len(tail), ok, n, len(want))
				}
			}
			for short := range len(want) {
				if _, n := tt.check(want[:short]); n >= 0 {
					t.Errorf("consume of the first %d bytes: n = %d, want it negative", short, n)
				}
			}
		})
	}
}

// The file of RFC 4506 section 7: name "sillyprog", type EXEC with interpreter
// "lisp", owner "john", data "(quit)".
func TestDecoderGolden(t *testing.T) {
	const file = `
		00000009 73696c6c 7970726f 67000000
		00000002
		00000004 6c697370
		00000004 6a6f686e
		00000006 28717569 74290000`
	want := testutil.Hex(t, file)
	b := AppendString(nil, "sillyprog")
	b = AppendUint32(b, 2)
	b = AppendString(b, "lisp")
	b = AppendString(b, "john")
	b = AppendOpaque(b, []byte("(quit)"))
	if !bytes.Equal(b, want) {
		t.Fatalf("encoded %x, want %x", b, want)
	}

	d := NewDecoder(b)
	name, kind, interpreter, owner, data := d.String(255), d.Uint32(), d.String(32), d.String(32), d.Opaque(65535)
	if err := d.End(); err != nil {
		t.Fatal(err)
	}
	if name != "sillyprog" || kind != 2 || interpreter != "lisp" || owner != "john" || string(data) != "(quit)" {
		t.Errorf("decoded %q %d %q %q %q", name, kind, interpreter, owner, data)
	}
	if d.Offset() != 48 || d.Remaining() != 0 {
		t.Errorf("offset %d with %d remaining, want 48 and 0", d.Offset(), d.Remaining())
	}
}

func TestConsumeMalformed(t *testing.T) {
	opaque := func(max uint32) func([]byte) int {
		return func(b []byte) int { _, n := ConsumeOpaque(b, max); return n }
	}
	fixed := func(size int) func([]byte) int {
		return func(b []byte) int { _, n := ConsumeFixedOpaque(b, size); return n }
	}
	tests := []struct {
		name    string
		in      string
		consume func([]byte) int
		ok      bool
	}{
		{"CTX-4506-1 bool of 2", "00000002", func(b []byte) int { _, n := ConsumeBool(b); return n }, false},
		{"CTX-4506-1 bool of 2^32-1", "ffffffff", func(b []byte) int { _, n := ConsumeBool(b); return n }, false},
		{"opaque over the limit", "00000004 01020304", opaque(3), false},
		{"opaque at the limit", "00000004 01020304", opaque(4), true},
		{"opaque longer than the input", "00000005 01020304", opaque(math.MaxUint32), false},
		{"opaque of 2^32-1", "ffffffff 01020304", opaque(math.MaxUint32), false},
		{"opaque of 2^31", "80000000 01020304", opaque(math.MaxUint32), false},
		{"opaque without its pad", "00000003 010203", opaque(3), false},
		{"opaque with part of its pad", "00000001 010000", opaque(3), false},
		{"opaque with a pad that is not zero", "00000001 01ffffff", opaque(3), true},
		{"fixed opaque of negative size", "01020304", fixed(-1), false},
		{"fixed opaque of the largest size", "01020304", fixed(math.MaxInt), false},
		{"fixed opaque without its pad", "010203", fixed(3), false},
		{"fixed opaque with a pad that is not zero", "010203ff", fixed(3), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if n := tt.consume(testutil.Hex(t, tt.in)); n >= 0 != tt.ok {
				t.Errorf("n = %d, want success: %v", n, tt.ok)
			}
		})
	}
}

func TestPad(t *testing.T) {
	for _, tt := range []struct{ n, pad, padded, opaque int }{
		{0, 0, 0, 4}, {1, 3, 4, 8}, {2, 2, 4, 8}, {3, 1, 4, 8}, {4, 0, 4, 8}, {5, 3, 8, 12},
		{1021, 3, 1024, 1028}, {1 << 20, 0, 1 << 20, 1<<20 + 4},
	} {
		if Pad(tt.n) != tt.pad || Padded(tt.n) != tt.padded || SizeOpaque(tt.n) != tt.opaque {
			t.Errorf("%d bytes: pad %d, padded %d, opaque %d; want %d, %d, %d",
				tt.n, Pad(tt.n), Padded(tt.n), SizeOpaque(tt.n), tt.pad, tt.padded, tt.opaque)
		}
		if got := len(AppendOpaque(nil, make([]byte, tt.n))); got != tt.opaque {
			t.Errorf("AppendOpaque of %d bytes takes %d, want %d", tt.n, got, tt.opaque)
		}
	}
}

// Views have limited capacity: appending to one must not overwrite the bytes after it.
func TestViewsCannotGrowIntoInput(t *testing.T) {
	in := testutil.Hex(t, "00000004 01020304 05060708")
	if data, _ := ConsumeOpaque(in, 4); cap(data) != 4 {
		t.Errorf("opaque has capacity %d, want 4", cap(data))
	}
	if data, _ := ConsumeFixedOpaque(in, 3); cap(data) != 3 {
		t.Errorf("fixed opaque has capacity %d, want 3", cap(data))
	}
}

func TestDecoderErrors(t *testing.T) {
	tests := []struct {
		name   string
		in     string
		read   func(d *Decoder)
		offset int
		what   string
	}{
		{"short uint32", "00000001 0000", func(d *Decoder) { d.Uint32(); d.Uint32() }, 4, "uint32 is cut short"},
		{"short int32", "", func(d *Decoder) { d.Int32() }, 0, "int32 is cut short"},
		{"short uint64", "00000001 0000", func(d *Decoder) { d.Uint64() }, 0, "uint64 is cut short"},
		{"short int64", "00000001 0000", func(d *Decoder) { d.Int64() }, 0, "int64 is cut short"},
		{"bool of 2", "00000002", func(d *Decoder) { d.Bool() }, 0, "bool is cut short or neither 0 nor 1"},
		{"optional of 7", "00000000 00000007", func(d *Decoder) { d.Uint32(); d.Optional() }, 4,
			"discriminant of optional-data is cut short or neither 0 nor 1"},
		{"opaque over its limit", "00000009", func(d *Decoder) { d.Opaque(8) }, 0, "opaque of 9 bytes, limit is 8"},
		{"opaque without data", "00000009", func(d *Decoder) { d.Opaque(9) }, 0, "opaque is cut short"},
		{"opaque without length", "0000", func(d *Decoder) { d.Opaque(9) }, 0, "opaque length is cut short"},
		{"string over its limit", "00000009", func(d *Decoder) { d.String(8) }, 0, "string of 9 bytes, limit is 8"},
		{"fixed opaque", "00000009", func(d *Decoder) { d.FixedOpaque(5) }, 0, "fixed-length opaque is cut short"},
		{"count without bytes", "", func(d *Decoder) { d.Count(9, 4) }, 0, "array length is cut short"},
		{"count over its limit", "0000000a", func(d *Decoder) { d.Count(9, 4) }, 0, "array of 10 elements, limit is 9"},
		{"count over the input", "ffffffff 00000000 00000000", func(d *Decoder) { d.Count(math.MaxUint32, 8) }, 0,
			"array of 4294967295 elements does not fit the remaining bytes"},
		{"caller's own", "00000009", func(d *Decoder) { d.Uint32(); d.Fail("no such color") }, 4, "no such color"},
		{"trailing bytes", "00000009 00", func(d *Decoder) { d.Uint32(); d.End() }, 4, "bytes after the last item"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := NewDecoder(testutil.Hex(t, tt.in))
			tt.read(&d)
			var err *DecodeError
			if !errors.As(d.Err(), &err) {
				t.Fatalf("error is %v, want a *DecodeError", d.Err())
			}
			if err.Offset != tt.offset || err.What != tt.what {
				t.Errorf("got byte %d, %q; want byte %d, %q", err.Offset, err.What, tt.offset, tt.what)
			}

			// The first error sticks, and everything read after it is zero.
			if d.Uint32() != 0 || d.Int32() != 0 || d.Uint64() != 0 || d.Int64() != 0 || d.Bool() || d.Optional() ||
				d.Opaque(9) != nil || d.FixedOpaque(4) != nil || d.String(9) != "" || d.Count(9, 1) != 0 ||
				d.Rest() != nil || d.Remaining() != 0 {
				t.Error("a value was read after the error")
			}
			d.Fail("second")
			if d.End() != error(err) {
				t.Errorf("error became %v", d.Err())
			}
		})
	}
}

func TestDecoderList(t *testing.T) {
	d := NewDecoder(testutil.Hex(t, "00000001 0000000a 00000001 0000000b 00000000 00000002 00000005 00000006 eeee"))
	var list []uint32
	for d.Optional() {
		list = append(list, d.Uint32())
	}
	if len(list) != 2 || list[0] != 10 || list[1] != 11 {
		t.Errorf("list is %v, want [10 11]", list)
	}
	var array []uint32
	for range d.Count(2, 4) {
		array = append(array, d.Uint32())
	}
	if len(array) != 2 || array[0] != 5 || array[1] != 6 {
		t.Errorf("array is %v, want [5 6]", array)
	}
	if rest := d.Rest(); string(rest) != "\xee\xee" || d.Err() != nil {
		t.Errorf("rest is %x, error %v", rest, d.Err())
	}
}

// A padded opaque is accepted only if all of it is in the stream: all combinations of similar
// lengths of stream, padding and item.
func TestPaddedOpaqueBounds(t *testing.T) {
	for pos := range 4 {
		for _, align := range []uint32{2, 4, 7, 8, 16} {
			for size := range uint32(9) {
				for room := range 40 {
					b := AppendUint32(nil, size)
					b = append(b, bytes.Repeat([]byte{0xff}, room)...)
					d := NewPaddedDecoder(b, 4*pos, Padding{Align: align, Thresh: 1})
					skip := 0
					if size >= 1 { // counted from the start of the message
						for (4*pos+4+skip)%int(align) != 0 {
							skip++
						}
					}
					fits := room >= skip+Padded(int(size))
					data := d.Opaque(8)
					if (d.Err() == nil) != fits || fits && len(data) != int(size) {
						t.Fatalf("%d bytes at %d behind %d of padding to %d, in %d: read %d, %v", size, 4*pos+4, skip, align, room, len(data), d.Err())
					}
				}
			}
		}
	}
}

func TestDecodeErrorText(t *testing.T) {
	err := &DecodeError{Offset: 12, What: "uint32 is cut short"}
	if got, want := err.Error(), "xdr: byte 12: uint32 is cut short"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAllocs(t *testing.T) {
	buf := make([]byte, 0, 256)
	data := []byte("opaque")
	in := AppendOpaque(AppendUint64(AppendUint32(AppendBool(nil, true), 7), 9), data)
	in = AppendFixedOpaque(in, data)
	var sink int
	check := func(name string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	check("append", func() {
		b := AppendUint32(buf, 1)
		b = AppendInt32(b, 1)
		b = AppendUint64(b, 1)
		b = AppendInt64(b, 1)
		b = AppendBool(b, true)
		b = AppendOpaque(b, data)
		b = AppendFixedOpaque(b, data)
		b = AppendString(b, "string")
		sink += len(b)
	})
	check("consume", func() {
		_, n := ConsumeBool(in)
		_, m := ConsumeUint32(in[n:])
		n += m
		_, m = ConsumeUint64(in[n:])
		n += m
		_, m = ConsumeOpaque(in[n:], 10)
		n += m
		_, m = ConsumeFixedOpaque(in[n:], len(data))
		sink += n + m
	})
	check("decoder", func() {
		d := NewDecoder(in)
		d.Optional()
		d.Uint32()
		d.Uint64()
		d.Opaque(10)
		d.FixedOpaque(len(data))
		if d.End() != nil {
			t.Error(d.Err())
		}
	})
	if sink == 0 {
		t.Error("nothing was measured")
	}
}

func FuzzConsume(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1}, uint32(8), 4)
	f.Add([]byte{0, 0, 0, 3, 1, 2, 3, 0}, uint32(3), 3)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3, 0}, uint32(math.MaxUint32), -1)
	f.Fuzz(func(t *testing.T, b []byte, max uint32, size int) {
		// checked checks the n of a Consume function, and reports whether there is a value.
		checked := func(n int) bool {
			if n < 0 {
				return false
			}
			if n > len(b) || n%Unit != 0 {
				t.Fatalf("n = %d of %d bytes", n, len(b))
			}
			return true
		}
		// same reports whether enc equals the consumed bytes, except for pad bytes.
		same := func(enc []byte, n, pad int) {
			if len(enc) != n || !bytes.Equal(enc[:n-pad], b[:n-pad]) {
				t.Fatalf("consumed %x, encoded again %x", b[:n], enc)
			}
		}
		if v, n := ConsumeUint32(b); checked(n) {
			same(AppendUint32(nil, v), n, 0)
		} else if v != 0 {
			t.Fatal("uint32 with an error")
		}
		if v, n := ConsumeInt32(b); checked(n) {
			same(AppendInt32(nil, v), n, 0)
		} else if v != 0 {
			t.Fatal("int32 with an error")
		}
		if v, n := ConsumeUint64(b); checked(n) {
			same(AppendUint64(nil, v), n, 0)
		} else if v != 0 {
			t.Fatal("uint64 with an error")
		}
		if v, n := ConsumeInt64(b); checked(n) {
			same(AppendInt64(nil, v), n, 0)
		} else if v != 0 {
			t.Fatal("int64 with an error")
		}
		if v, n := ConsumeBool(b); checked(n) {
			same(AppendBool(nil, v), n, 0)
		} else if v {
			t.Fatal("bool with an error")
		}
		if v, n := ConsumeOpaque(b, max); checked(n) {
			if uint64(len(v)) > uint64(max) {
				t.Fatalf("opaque of %d bytes, limit is %d", len(v), max)
			}
			same(AppendOpaque(nil, v), n, Pad(len(v)))
		} else if v != nil {
			t.Fatal("opaque with an error")
		}
		if v, n := ConsumeString(b, max); checked(n) {
			same(AppendString(nil, v), n, Pad(len(v)))
		} else if v != "" {
			t.Fatal("string with an error")
		}
		if v, n := ConsumeFixedOpaque(b, size); checked(n) {
			if len(v) != size {
				t.Fatalf("fixed opaque of %d bytes, want %d", len(v), size)
			}
			same(AppendFixedOpaque(nil, v), n, Pad(size))
		} else if v != nil {
			t.Fatal("fixed opaque with an error")
		}
	})
}

// Strict refuses pad bytes that are not zero, wherever they are, and nothing else does.
func TestStrict(t *testing.T) {
	opaque := func(d *Decoder) string { return string(d.Opaque(9)) }
	fixed := func(n int) func(d *Decoder) string {
		return func(d *Decoder) string { return string(d.FixedOpaque(n)) }
	}
	text := func(d *Decoder) string { return d.String(9) }
	bulk := func(d *Decoder) string { return string(d.Bulk(9)) }
	const variable, fixedLength = "opaque", "fixed-length opaque"
	for _, tt := range []struct {
		name, in, want string
		read           func(d *Decoder) string
		refused        string // the item that the error of a strict decoder names; "" without an error
	}{
		{"opaque", "00000001 61000000", "a", opaque, ""},
		{"no padding", "00000004 616263ff", "abc\xff", opaque, ""},
		{"no data", "00000000", "", opaque, ""},
		{"first pad byte", "00000001 61010000", "a", opaque, variable},
		{"second pad byte", "00000001 61000100", "a", opaque, variable},
		{"third pad byte", "00000001 61000080", "a", opaque, variable},
		{"two pad bytes", "00000002 61620001", "ab", opaque, variable},
		{"one pad byte", "00000003 616263ff", "abc", opaque, variable},
		{"second word", "00000005 61626364 65000001", "abcde", opaque, variable},
		{"fixed opaque", "616263ff", "abc", fixed(3), fixedLength},
		{"fixed opaque with zeros", "61620000", "ab", fixed(2), ""},
		{"fixed opaque without padding", "616263ff", "abc\xff", fixed(4), ""},
		{"string", "00000001 61000001", "a", text, "string"},
		{"string with zeros", "00000001 61000000", "a", text, ""},
		{"bulk", "00000001 61ffffff", "a", bulk, ""},
	} {
		in := testutil.Hex(t, tt.in)
		for _, strict := range []bool{false, true} {
			d := NewDecoder(in)
			if strict {
				d.Strict()
			}
			got, want := tt.read(&d), tt.want
			if !strict || tt.refused == "" {
				if err := d.End(); err != nil || got != want {
					t.Errorf("%s, strict %v: %q and %v, want %q", tt.name, strict, got, err, want)
				}
				continue
			}
			if err := d.Err(); got != "" || d.Offset() != 0 || err == nil || err.Error() != "xdr: byte 0: "+tt.refused+" is followed by pad bytes that are not zero" {
				t.Errorf("%s: %q and %v at %d", tt.name, got, err, d.Offset())
			}
		}
	}
	// Other errors have their own names. Bulk leaves Strict as it was.
	d := NewDecoder(testutil.Hex(t, "00000003 616263ff 00000003 616263ff"))
	d.Strict()
	if d.Opaque(2); d.Err().Error() != "xdr: byte 0: opaque of 3 bytes, limit is 2" {
		t.Error(d.Err())
	}
	d = NewDecoder(testutil.Hex(t, "00000003 616263ff 00000003 616263ff"))
	d.Strict()
	if d.Bulk(3); d.Err() != nil || d.Opaque(3) != nil || d.Err() == nil {
		t.Errorf("behind Bulk: %v", d.Err())
	}
	// The padding of RDMA_MSGP, which is in front, may be anything.
	d = NewPaddedDecoder(testutil.Hex(t, "00000003 ffffffff 61626300"), 0, Padding{Align: 8, Thresh: 1})
	d.Strict()
	if got := d.Opaque(3); string(got) != "abc" || d.End() != nil {
		t.Errorf("%q behind padding: %v", got, d.Err())
	}
	d = NewPaddedDecoder(testutil.Hex(t, "00000003 00000000 616263ff"), 0, Padding{Align: 8, Thresh: 1})
	d.Strict()
	if d.Opaque(3); d.Err() == nil {
		t.Error("pad bytes behind padding are not looked at")
	}
}

// FuzzDecoder executes one read for each byte of ops, and checks the decoder's position after
// each.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, []byte("\x00\x00\x00\x01\x00\x00\x00\x00"))
	f.Add([]byte{5, 5, 8}, []byte{0, 0, 0, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, ops, b []byte) {
		d := NewDecoder(b)
		if len(b)%2 == 1 {
			d.Strict()
		}
		for _, op := range ops {
			before, failed := d.Offset(), d.Err() != nil
			zero := true
			switch op % 11 {
			case 0:
				zero = d.Uint32() == 0
			case 1:
				zero = d.Int32() == 0
			case 2:
				zero = d.Uint64() == 0
			case 3:
				zero = !d.Bool()
			case 4:
				zero = !d.Optional()
			case 5:
				zero = d.Opaque(uint32(op)) == nil
			case 6:
				zero = d.FixedOpaque(int(op)) == nil
			case 7:
				zero = d.String(uint32(op)) == ""
			case 8:
				n := d.Count(uint32(op), 4)
				zero = n == 0
				if n*4 > d.Remaining() {
					t.Fatalf("array of %d elements in %d bytes", n, d.Remaining())
				}
			case 9:
				zero = d.Int64() == 0
			case 10:
				zero = d.Bulk(uint32(op)) == nil
			}
			if d.Err() != nil && (!zero || d.Offset() != before) {
				t.Fatalf("op %d: value or progress together with %v", op%11, d.Err())
			}
			if failed && d.Err() == nil {
				t.Fatal("the error went away")
			}
			if d.Err() == nil && d.Offset()+d.Remaining() != len(b) {
				t.Fatalf("offset %d and %d remaining of %d", d.Offset(), d.Remaining(), len(b))
			}
		}
	})
}
