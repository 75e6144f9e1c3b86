package xdr

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
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

// After an error, numbers are 0, and nothing is entered.
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
	// A count that overflows when multiplied with the size, and elements that have no size.
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
		limit := 64<<10 + 8*input
		if s := Resize(&d, []byte(nil), limit); len(s) != limit {
			t.Errorf("%d bytes of input: %v", input, d.Err())
		}
		if New[byte](&d, nil); !errors.Is(d.Err(), ErrMemory) {
			t.Errorf("%d bytes of input: a byte more is not refused", input)
		}
	}
}

// Strings and copies take memory, too.
func TestMemoryOfCopies(t *testing.T) {
	in := AppendString(nil, "text")
	for name, decode := range map[string]func(d *Decoder) int{
		"string": func(d *Decoder) int { return len(d.String(4)) },
		"copy":   func(d *Decoder) int { d.Copy(); return len(d.Opaque(4)) },
	} {
		for limit, want := range map[int]int{4: 4, 3: 0} {
			d := NewDecoder(in)
			d.LimitMemory(limit)
			if n := decode(&d); n != want || (n == 0) != errors.Is(d.Err(), ErrMemory) || (n == 0) != (d.Offset() == 0) {
				t.Errorf("%s, %d bytes: %d, at %d, %v", name, limit, n, d.Offset(), d.Err())
			}
		}
	}
}

// A purse is an account.
type purse struct{ has, asked int }

func (p *purse) Reserve(n int) bool {
	p.asked++
	if n > p.has {
		return false
	}
	p.has -= n
	return true
}

// Memory beyond the first 64 KiB is from the account, in few steps.
func TestChargeTo(t *testing.T) {
	const free = 64 << 10
	for _, tt := range []struct {
		name        string
		bytes, each int
		has, limit  int
		took, asked int
		ok          bool
	}{
		{"little", free, 8, 0, 1 << 20, 0, 0, true},
		{"a little more", free + 8, 8, 1 << 20, 1 << 20, free, 1, true},
		{"a little more, and there is nothing", free + 8, 8, 8, 1 << 20, 0, 1, false},
		{"up to the limit", free + 80, 8, 1 << 20, free + 80, 80, 1, true},
		{"beyond the limit", free + 88, 8, 1 << 20, free + 80, 80, 1, false},
		{"many", 4 * free, 8, 1 << 20, 1 << 20, 3 * free, 3, true},
		{"one piece", 4 * free, 4 * free, 1 << 20, 1 << 20, 3 * free, 1, true},
		{"one piece beyond the limit", 4 * free, 4 * free, 1 << 20, 4*free - 1, 0, 0, false},
	} {
		p := purse{has: tt.has}
		d := NewDecoder(nil)
		d.ChargeTo(&p)
		d.LimitMemory(tt.limit)
		for range tt.bytes / tt.each {
			Resize(&d, []byte(nil), tt.each)
		}
		if took := tt.has - p.has; took != tt.took || p.asked != tt.asked || (d.Err() == nil) != tt.ok {
			t.Errorf("%s: took %d bytes, asked %d times, error %v", tt.name, took, p.asked, d.Err())
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

	// The capacity that a list has in advance is within the limit, too.
	d, s = NewDecoder(nil), nil
	d.LimitMemory(8 * 100)
	for range 100 {
		Extend(&d, &s)
	}
	if d.Err() != nil || len(s) != 100 || cap(s) != 100 {
		t.Errorf("%d elements, room for %d, error %v", len(s), cap(s), d.Err())
	}
	if Extend(&d, &s); d.Err() == nil {
		t.Error("an element more is not refused")
	}
}

// A value is kept as long as little was allocated for it, all in all.
func TestKeep(t *testing.T) {
	const each = 1000
	array := append(AppendUint32(nil, each), make([]byte, each*4)...)
	for name, decode := range map[string]func(d *Decoder){
		"bytes of a string": func(d *Decoder) { d.String(math.MaxUint32) },
		"array":             func(d *Decoder) { Resize(d, []byte(nil), d.Count(math.MaxUint32, 1)) },
	} {
		total, kept := uint64(0), 0
		for keep := true; keep && kept < 1000; kept++ {
			d := NewDecoder(array)
			decode(&d)
			testutil.Must(t, d.Err())
			if keep = d.Keep(&total); d.Keep(new(uint64)) != true {
				t.Errorf("%s: counted twice", name)
			}
		}
		if want := (64<<10)/each + 1; kept != want {
			t.Errorf("%s: dropped after %d values, want %d", name, kept, want)
		}
	}
	// Memory that is used again counts once.
	var list []byte
	total := uint64(0)
	for range 1000 {
		d := NewDecoder(array)
		list = Resize(&d, list, d.Count(math.MaxUint32, 1))
		if !d.Keep(&total) {
			t.Fatalf("a value is dropped that has %d bytes from the same input each time", total)
		}
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
