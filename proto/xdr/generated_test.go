package xdr

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testutil"
)

// RFC 4506 sections 4.6 and 4.7: the formats of IEEE 754.
func TestFloats(t *testing.T) {
	want := testutil.Hex(t, "3fc00000 c000000000000000 7fc00001 fff8000000000001 80000000")
	b := AppendFloat32(nil, 1.5)
	b = AppendFloat64(b, -2)
	b = AppendFloat32(b, math.Float32frombits(0x7fc00001)) // a NaN
	b = AppendFloat64(b, math.Float64frombits(0xfff8000000000001))
	b = AppendFloat32(b, float32(math.Copysign(0, -1)))
	if !bytes.Equal(b, want) {
		t.Fatalf("encoded %x, want %x", b, want)
	}
	d := NewDecoder(b)
	if f, g := d.Float32(), d.Float64(); f != 1.5 || g != -2 {
		t.Errorf("decoded %v and %v", f, g)
	}
	if f, g := d.Float32(), d.Float64(); math.Float32bits(f) != 0x7fc00001 || math.Float64bits(g) != 0xfff8000000000001 {
		t.Errorf("decoded NaNs %x and %x", math.Float32bits(f), math.Float64bits(g))
	}
	if f := d.Float32(); f != 0 || !math.Signbit(float64(f)) {
		t.Errorf("decoded %v, want -0", f)
	}
	testutil.Must(t, d.End())
	for short := range 4 {
		d := NewDecoder(b[:short])
		if d.Float32(); d.Err() == nil {
			t.Errorf("float of %d bytes", short)
		}
	}
	for short := range 8 {
		d := NewDecoder(b[:short])
		if d.Float64(); d.Err() == nil {
			t.Errorf("double of %d bytes", short)
		}
	}
}

func TestEnter(t *testing.T) {
	d := NewDecoder(nil)
	for range 2 {
		for range MaxDepth {
			if !d.Enter() {
				t.Fatal(d.Err())
			}
		}
		for range MaxDepth {
			d.Leave()
		}
	}
	for range MaxDepth {
		d.Enter()
	}
	if d.Enter() || d.Err() == nil {
		t.Errorf("level %d is not refused", MaxDepth+1)
	}
}

// A both is a value of a recursive type in which 0 stands for two others.
type both struct {
	left, right *both
	values      *int // how many there are
}

func (v *both) Decode(d *Decoder) {
	if !d.Enter() {
		return
	}
	defer d.Leave()
	if *v.values++; *v.values > 2*MaxDepth {
		panic("values without input")
	}
	if d.Uint32() == 0 {
		v.left, v.right = &both{values: v.values}, &both{values: v.values}
		v.left.Decode(d)
		v.right.Decode(d)
	}
}

// Behind an error, whose numbers are 0, nothing is entered.
func TestEnterAfterError(t *testing.T) {
	for _, tt := range []struct{ input, want int }{{0, 1}, {4 * 10, 11}, {4 * MaxDepth, MaxDepth}} {
		values := 0
		d := NewDecoder(make([]byte, tt.input))
		if (&both{values: &values}).Decode(&d); values != tt.want || d.Err() == nil {
			t.Errorf("%d bytes: %d values, want %d; error %v", tt.input, values, tt.want, d.Err())
		}
	}
}

func TestResize(t *testing.T) {
	d := NewDecoder(nil)
	d.LimitMemory(8 * 10)
	s := Resize(&d, []uint64(nil), 4)
	s[3] = 7
	if s = Resize(&d, s[:0], 4); len(s) != 4 || s[3] != 7 {
		t.Errorf("within the capacity: %v", s)
	}
	if s = Resize(&d, s[:1], 6); len(s) != 6 || s[3] != 7 {
		t.Errorf("beyond the capacity: %v", s)
	}
	testutil.Must(t, d.Err())
	// 4 and 6 elements are 80 bytes.
	if s = Resize(&d, s, 7); len(s) != 0 || d.Err() == nil {
		t.Errorf("beyond the limit: %v and error %v", s, d.Err())
	}
	// A count whose product with the size overflows, and elements that have no size.
	for _, n := range []int{1 << 12, math.MaxInt32} { // 2^32 bytes, and 2^51
		d = NewDecoder(nil)
		if s := Resize(&d, [][1 << 20]byte(nil), n); len(s) != 0 || d.Err() == nil {
			t.Errorf("%d large elements", len(s))
		}
	}
	d = NewDecoder(nil)
	if s := Resize(&d, []struct{}(nil), math.MaxInt32); len(s) != math.MaxInt32 || d.Err() != nil {
		t.Errorf("%d elements without size: %v", len(s), d.Err())
	}
}

// The limit grows with the input.
func TestDefaultMemory(t *testing.T) {
	for _, input := range []int{0, 1 << 20} {
		d := NewDecoder(make([]byte, input))
		limit := 1<<20 + 64*input
		if s := Resize(&d, []byte(nil), limit); len(s) != limit {
			t.Errorf("%d bytes of input: %v", input, d.Err())
		}
		if New[byte](&d, nil); d.Err() == nil {
			t.Errorf("%d bytes of input: a byte more is not refused", input)
		}
	}
}

// The product with the length of the input does not fit 32 bits.
func TestMemoryOfLongInput(t *testing.T) {
	d := NewDecoder(make([]byte, 40<<20))
	if New[byte](&d, nil); d.Err() != nil {
		t.Error(d.Err())
	}
}

func TestExtend(t *testing.T) {
	d := NewDecoder(nil)
	d.LimitMemory(8 * 100)
	var s []uint64
	for i := range uint64(50) {
		*Extend(&d, &s) = i
	}
	testutil.Must(t, d.Err())
	for i, v := range s {
		if v != uint64(i) {
			t.Fatalf("element %d is %d", i, v)
		}
	}
	first := &s[0]
	s = s[:0]
	if Extend(&d, &s) != first || s[0] != 0 {
		t.Error("the capacity is not used again")
	}
	for range 100 {
		if Extend(&d, &s) == nil {
			t.Fatal("no element")
		}
	}
	if d.Err() == nil || len(s) > 100 {
		t.Errorf("%d elements and error %v, want a limit", len(s), d.Err())
	}
}

// A value is kept as long as what was allocated for it is little, or in proportion to the input.
func TestKeep(t *testing.T) {
	var (
		total uint64
		list  [][]uint32
	)
	// decode decodes a list of n elements, all empty but the last one.
	decode := func(n, last int) bool {
		b := AppendUint32(nil, uint32(n))
		b = append(b, make([]byte, 4*(n-1))...)
		b = AppendUint32(b, uint32(last))
		b = append(b, make([]byte, 4*last)...)
		d := NewDecoder(b)
		list = Resize(&d, list, d.Count(math.MaxUint32, 4))
		for i := range list {
			list[i] = Resize(&d, list[i], d.Count(math.MaxUint32, 4))
			for j := range list[i] {
				list[i][j] = d.Uint32()
			}
		}
		testutil.Must(t, d.End())
		return d.Keep(&total)
	}
	for range 1000 {
		if !decode(100, 20000) {
			t.Fatalf("a value is dropped that has %d bytes from the same input each time", total)
		}
	}
	if decode(100, 1) {
		t.Errorf("a value is kept that has %d bytes from a short input", total)
	}
	total, list = 0, nil
	kept := 1
	for kept < 100 && decode(kept, 20000) {
		kept++
	}
	if kept < 3 || kept > 50 {
		t.Errorf("dropped after %d elements of 80000 bytes", kept)
	}

	// Strings are in it.
	text := AppendString(nil, string(make([]byte, 1000)))
	total, kept = 0, 0
	for keep := true; keep && kept < 1000; kept++ {
		d := NewDecoder(text)
		d.String(math.MaxUint32)
		keep = d.Keep(&total)
	}
	if want := (keptMemory+keptPerByte*len(text))/1000 + 1; kept != want {
		t.Errorf("dropped after %d strings, want %d", kept, want)
	}
}

func TestNew(t *testing.T) {
	d := NewDecoder(nil)
	d.LimitMemory(8)
	p := New[uint64](&d, nil)
	if again := New(&d, p); again != p || d.Err() != nil {
		t.Errorf("a pointer is not kept: %v", d.Err())
	}
	if New[uint64](&d, nil) == nil || d.Err() == nil {
		t.Errorf("beyond the limit: error %v", d.Err())
	}
	d.LimitMemory(-1) // as good as 0
}

func TestInvalid(t *testing.T) {
	d := NewDecoder([]byte{0, 0, 0, 9})
	d.Uint32()
	d.Invalid("color", -3)
	d.Invalid("shape", 4)
	if d.Err().Error() != "xdr: byte 4: color is -3, which is not defined" {
		t.Error(d.Err())
	}
}

func TestCheckErrors(t *testing.T) {
	if CheckLen(5, 5) != nil || CheckLen(0, 0) != nil || CheckLen(math.MaxInt32, math.MaxUint32) != nil {
		t.Error("a length at the limit is an error")
	}
	long := CheckLen(6, 5)
	for _, tt := range []struct {
		err  error
		want string
	}{
		{long, "xdr: length is 6, limit is 5"},
		{InField("A", long), "xdr: A: length is 6, limit is 5"},
		{InField("B", InField("A", long)), "xdr: B.A: length is 6, limit is 5"},
		{InElement("", 3, InField("A", long)), "xdr: [3].A: length is 6, limit is 5"},
		{InField("B", InElement("", 3, InField("A", long))), "xdr: B[3].A: length is 6, limit is 5"},
		{InElement("B", 0, Undefined("color", -3)), "xdr: B[0]: color is -3, which is not defined"},
	} {
		var typed *CheckError
		if !errors.As(tt.err, &typed) || tt.err.Error() != tt.want {
			t.Errorf("%v, want %s", tt.err, tt.want)
		}
	}
	if other := errors.New("other"); InField("A", other) != other {
		t.Error("an error of another type is changed")
	}
}
