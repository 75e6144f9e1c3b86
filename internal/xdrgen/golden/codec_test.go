package golden

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// message has the methods of every generated type.
type message interface {
	Append(b []byte) []byte
	Decode(d *xdr.Decoder)
	Check() error
}

// The encodings, made by hand after RFC 4506 section 4.
func TestVectors(t *testing.T) {
	const (
		hello  = "00000005 68656c6c 6f000000"
		figure = "00000002 00000003 0a0b0c00" // a square
	)
	tests := []struct {
		name string
		v    message
		want string
	}{
		{"basic", &Basic{
			I: -2, U: 1, U2: math.MaxUint32, Yes: true, H: -1, Uh: 1 << 32, F: 1.5, D: -2,
			Q: [16]byte{0: 0x3f, 15: 1},
		}, `fffffffe 00000001 ffffffff 00000001 ffffffffffffffff 0000000100000000 3fc00000
			c000000000000000 3f000000 00000000 00000000 00000001`},
		{"typedefs", &WithTypedefs{N: 1, Offset: 2, Set: true, Same: -1}, "00000001 0000000000000002 00000001 ffffffff"},
		{"types of C", &OfC{C: -1, Uc: 2, I32: 3, U64: 4, B: Basic{}},
			"ffffffff 00000002 00000000 00000000 00000000 00000003 0000000000000004 00000000" + strings.Repeat("00000000", 15)},
		{"enums", &Enums{Kind: Exec, Stat: ErrFirst, Count: Eight, Later: 77}, "00000002 fffffffd 00000008 0000004d"},
		{"arrays", &Arrays{
			Fixed: [5]byte{1, 2, 3, 4, 5}, Bounded: []byte{6}, Text: "hello", Longer: "", Bare: "a",
			Ints: [2]int32{1, -1}, Numbers: []uint64{7}, Flags: []bool{true, false}, Object: Handle{8},
			Verf: Verifier{7: 9}, Name: "hello", Three: Triple{1, 2, 3}, Names: FileNames{"hello", ""},
			Pair: HandlePair{1: {1}}, Handles: []Handle{{2}}, Points: []ArraysPoints{{1, 2}},
		}, "0102030405000000 00000001 06000000 00000000" + hello + "00000000 00000001 61000000" +
			"00000001 ffffffff 00000001 0000000000000007 00000002 00000001 00000000 00000001 08000000" +
			"0000000000000009" + hello + "0000000000000001 0000000000000002 0000000000000003" +
			"00000002" + hello + "00000000" + "00000000 00000001 01000000 00000001 00000001 02000000" +
			"00000001 00000001 00000002"},
		{"unions", &Unions{
			F: Figure{Kind: Circle, Radius: 5}, M: Maybe{Present: true, Value: 1}, T: OnlyTrue{Present: true},
			I: ByInt{Code: -1, Message: "hello"}, U: ByUnsigned{Code: math.MaxUint32, Last: Figure{Kind: Square, Outline: []byte{10, 11, 12}}},
			S: SameName{Stat: Circle, StatField: 3}, List: []Figure{{Kind: Nothing}},
		}, "00000001 00000005 00000001 0000000000000001 00000001 0000000000000000 ffffffff" + hello +
			"ffffffff" + figure + "00000001 00000003 00000001 00000004"},
		{"void and default arms", &Unions{
			F: Figure{Kind: Nothing}, M: Maybe{}, T: OnlyTrue{Present: true}, I: ByInt{Code: 9, Other: []int32{1}},
			U: ByUnsigned{Code: 1}, S: SameName{Stat: Oval},
		}, "00000004 00000000 00000001 0000000000000000 00000009 00000001 00000001 00000001 00000003 00000000"},
		{"optional", &Optionals{Number: ptr[int32](3), Direct: &Leaf{4}, Box: &StringBox{"hello"}, Several: []LeafPtr{nil, {5}}},
			"00000001 00000003 00000001 00000004 00000000 00000001" + hello + "00000002 00000000 00000001 00000005"},
		{"no optional", &Optionals{}, "00000000 00000000 00000000 00000000 00000000"},
		{"list", &Directory{Entries: []StringEntry{{"hello"}, {""}}, Eof: true, Ports: PortList{{111}}},
			"00000001" + hello + "00000001 00000000 00000000 00000001 00000001 0000006f 00000000"},
		{"list of lists", &ExportList{{Dir: "hello", Groups: GroupList{{"a"}}}, {}},
			"00000001" + hello + "00000001 00000001 61000000 00000000 00000001 00000000 00000000 00000000"},
		{"chain", &Chain{First: ChainNode{1, &ChainNode{2, nil}}, Rest: &ChainNode{Value: 3}},
			"00000001 00000001 00000002 00000000 00000001 00000003 00000000"},
		{"recursive", &Recursive{
			T: &Tree{1, &Tree{Value: 2}, &Tree{Value: 3}},
			E: Expression{Op: OpAdd, Operands: &ExpressionOperands{
				Expression{Op: OpNumber, Number: 4}, Expression{Op: OpNegate, Operand: &Expression{Number: 5}},
			}},
			F: Folder{[]FileNode{{"a", &Folder{}}}}, N: Deep{{}, {{}}},
		}, "00000001 00000001 00000001 00000002 00000000 00000000 00000001 00000003 00000000 00000000" +
			"00000002 00000000 00000004 00000001 00000000 00000005" +
			"00000001 00000001 61000000 00000001 00000000" + "00000002 00000000 00000001 00000000"},
		{"nested", &Boxed{A: ptr(Cat), B: Boxes{{7}}, C: Box{N: 1, X: [4]byte{1, 2, 3, 4}}},
			"00000001 00000001 00000001 00000007 00000001 01020304"},
		{"chosen names", &GoodType{ID: 1, Label: "hello", Deltas: []Delta{-1}, result: ptr(bad)},
			"0000000000000001" + hello + "00000000 00000001 ffffffff 00000001 00000001"},
		{"distinct bool", &Choice{Agreed: true, Good: GoodType{Id: "hello"}}, "00000001 0000000000000000 00000000" + hello + "00000000 00000000"},
		{"distinct number", &ByDelta{By: -1, Low: "hello"}, "ffffffff" + hello},
		{"flat struct in an arm", &Drawing{Id: key(7), SetMode: true, Mode: 5, What: Line, From: Place{1, 2}, To: Place{3, 4}, Color: []byte{9},
			Tags: []string{"hello", ""}, Ranks: []Rank{{1}}, At: MaybeTime{SetTime: true, Time: Place{8, 9}}},
			"00000001 07000000 00000001 00000005 00000002 00000001 00000002 00000003 00000004 00000001 09000000" +
				"00000001" + hello + "00000001 00000000 00000000 00000001 00000001 00000000 00000001 00000008 00000009"},
		{"field of two arms", &Drawing{What: Point, From: Place{1, 2}, Size: 3},
			"00000000 00000000 00000001 00000001 00000002 00000003 00000000 00000000 00000000"},
		{"flat union in an arm", &Drawing{What: Dot, SetTime: true, Time: Place{1, 2}},
			"00000000 00000000 00000003 00000001 00000001 00000002 00000000 00000000 00000000"},
		{"void arm of a flat union", &Drawing{What: 77}, "00000000 00000000 0000004d 00000000 00000000 00000000"},
		{"flat arm and another one", &FetchRes{Where: Place{1, 2}, SetMode: true, Mode: 3, Count: 4, Tags: "hi", Data: []byte("data")},
			"00000000 00000001 00000003 00000001 00000002 00000004 00000002 68690000 00000004 64617461"},
		{"the other arm", &FetchRes{Status: Missing, Where: Place{1, 2}}, "00000001 00000001 00000002"},
		{"flat lists of arrays and lists", &Table{Rows: [][]int32{{1, 2}, {3, 4}}, Lines: [][]string{{"a", "b"}, {}, {"c"}}, Pairs: [][2]Drawn{{Point, Line}, {Dot, 77}}},
			"00000001 00000002 00000001 00000002 00000001 00000002 00000003 00000004 00000000" +
				"00000001 00000001 00000001 61000000 00000001 00000001 62000000 00000000 00000001 00000000 00000001 00000001 00000001 63000000 00000000 00000000" +
				"00000001 00000001 00000002 00000001 00000003 0000004d 00000000"},
		{"bodies in bodies", &Outer{OuterB{OuterBC{Bar, OuterBCE{I: Cadabra, K: OuterBCEK{6}}}}}, "00000002 00000004 00000006"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := testutil.Hex(t, tt.want)
			if err := tt.v.Check(); err != nil {
				t.Error(err)
			}
			if got := tt.v.Append([]byte("prefix"))[len("prefix"):]; !bytes.Equal(got, want) {
				t.Errorf("encoded\n%x, want\n%x", got, want)
			}
			got := reflect.New(reflect.TypeOf(tt.v).Elem()).Interface().(message)
			d := xdr.NewDecoder(want)
			if got.Decode(&d); d.End() != nil {
				t.Fatal(d.Err())
			}
			if again := got.Append(nil); !bytes.Equal(again, want) {
				t.Errorf("decoded %+v, which is encoded\n%x, want\n%x", got, again, want)
			}
			for short := range len(want) {
				d := xdr.NewDecoder(want[:short])
				if got.Decode(&d); d.Err() == nil {
					t.Errorf("the first %d bytes are enough", short)
				}
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

func key(b ...byte) (k Key) {
	k.n = uint8(copy(k.data[:], b))
	return k
}

// A value that is decoded over another one keeps nothing of that, whichever fields the two have.
func TestFlatReused(t *testing.T) {
	values := []message{
		&Drawing{}, &Drawing{What: DrawnNone}, &Drawing{SetMode: true, Mode: 5, What: Line, From: Place{1, 2}, To: Place{3, 4}, Color: []byte{9}, Tags: []string{"x"}},
		&Drawing{What: Point, From: Place{1, 2}, Size: 3}, &Drawing{What: Dot}, &Drawing{What: Dot, SetTime: true, Time: Place{1, 2}},
		&FetchRes{Where: Place{1, 2}, SetMode: true, Mode: 3, Count: 4, Tags: "hi", Data: []byte("data")},
		&FetchRes{Data: []byte{}}, &FetchRes{Status: Missing, Where: Place{5, 6}},
	}
	for _, from := range values {
		for _, to := range values {
			if reflect.TypeOf(from) != reflect.TypeOf(to) {
				continue
			}
			v := reflect.New(reflect.TypeOf(to).Elem()).Interface().(message)
			for _, m := range []message{from, to} {
				d := xdr.NewDecoder(m.Append(nil))
				v.Decode(&d)
				testutil.Must(t, d.End())
			}
			// Empty slices are as good as nil ones.
			if got, want := fmt.Sprintf("%+v", v), fmt.Sprintf("%+v", to); got != want {
				t.Errorf("over %+v:\n%s, want\n%s", from, got, want)
			}
		}
	}
}

// A strict decoder refuses pad bytes that are not zero in every construct that has some, but for data
// that may be placed directly.
func TestStrict(t *testing.T) {
	for _, tt := range []struct {
		name string
		v    message
		pads int // pad bytes that are refused
	}{
		{"arrays", &Arrays{Bounded: []byte{6}, Text: "hello", Bare: "a", Object: Handle{8}, Name: "hello", Names: FileNames{"hello"}, Handles: []Handle{{2}}},
			3 + 3 + 3 + 3 + 3 + 3 + 3 + 3}, // with Fixed
		{"union", &Figure{Kind: Square, Outline: []byte{1, 2, 3}}, 1},
		{"optional", &Optionals{Box: &StringBox{"hi"}}, 2},
		{"list", &Directory{Entries: []StringEntry{{"hello"}}}, 3},
		{"flat", &Drawing{Id: key(7), What: Line, Color: []byte{9}, Tags: []string{"abc"}}, 3 + 3 + 1},
		{"item", &FetchRes{Tags: "hi", Data: []byte("data!")}, 2},
	} {
		b := tt.v.Append(nil)
		v := reflect.New(reflect.TypeOf(tt.v).Elem()).Interface().(message)
		refused := 0
		for i := range b {
			if b[i] != 0 {
				continue
			}
			b[i] = 1
			lax := xdr.NewDecoder(b)
			v.Decode(&lax)
			// A pad byte: nothing comes of it.
			if lax.End() == nil && bytes.Equal(v.Append(nil), tt.v.Append(nil)) {
				d := xdr.NewDecoder(b)
				d.Strict()
				if v.Decode(&d); d.Err() != nil {
					refused++
				}
			}
			b[i] = 0
		}
		d := xdr.NewDecoder(b)
		d.Strict()
		if v.Decode(&d); d.End() != nil || refused != tt.pads {
			t.Errorf("%s: %d pad bytes are refused, want %d; with zeros: %v", tt.name, refused, tt.pads, d.Err())
		}
	}
}

// A head is all of a value but the item at its end.
func TestHead(t *testing.T) {
	type headed interface {
		message
		AppendHead(b []byte) []byte
		DecodeHead(d *xdr.Decoder)
	}
	ok := FetchRes{Where: Place{1, 2}, SetMode: true, Mode: 3, Count: 4, Tags: "hi"}
	data := ok
	data.Data = []byte("data!")
	for _, tt := range []struct {
		whole, head headed
		rest        int
	}{
		{&data, &ok, 12},
		{&ok, &ok, 4},
		{&FetchRes{Status: Missing, Where: Place{1, 2}}, &FetchRes{Status: Missing, Where: Place{1, 2}}, 0},
		{&StoreArgs{Id: key(1), What: FetchOk{Count: 1, Data: []byte("data!")}}, &StoreArgs{Id: key(1), What: FetchOk{Count: 1}}, 12},
	} {
		b := tt.whole.Append([]byte{0xff})
		if got, want := tt.whole.AppendHead([]byte{0xff}), b[:len(b)-tt.rest]; !bytes.Equal(got, want) {
			t.Errorf("%+v has the head\n%x, want\n%x", tt.whole, got, want)
		}
		v := reflect.New(reflect.TypeOf(tt.whole).Elem()).Interface().(headed)
		for _, old := range [][]byte{nil, data.Append(nil)} { // what there was before does not matter
			if d := xdr.NewDecoder(old); old != nil {
				v.Decode(&d)
			}
			d := xdr.NewDecoder(b[1:])
			if v.DecodeHead(&d); d.Err() != nil || d.Remaining() != tt.rest || !reflect.DeepEqual(v, tt.head) {
				t.Errorf("%x: head %+v, want %+v; %d bytes behind it, want %d; %v", b[1:], v, tt.head, d.Remaining(), tt.rest, d.Err())
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	tests := []struct {
		name string
		v    message
		in   string
		want string
	}{
		{"enum", new(Filekind), "00000003", "xdr: byte 4: filekind is 3, which is not defined"},
		{"enum with gaps", new(Status), "00000001", "xdr: byte 4: status is 1, which is not defined"},
		{"union without the arm", new(ByUnsigned), "ffffffff 00000005", "xdr: byte 8: shape is 5, which is not defined"},
		{"bool without the arm", new(OnlyTrue), "00000000", "xdr: byte 4: present of only_true is 0, which is not defined"},
		{"int without the arm", new(Box), "00000002", "xdr: byte 4: n of box is 2, which is not defined"},
		{"opaque", new(Handle), "00000041", "xdr: byte 0: opaque of 65 bytes, limit is 64"},
		{"array", new(FileNames), "00000005", "xdr: byte 0: array of 5 elements, limit is 4"},
		{"array longer than the input", new(Folder), "00000002 00000000 00000000", "xdr: byte 0: array of 2 elements does not fit the remaining bytes"},
		{"link that is no bool", new(StringList), "00000002", "xdr: byte 0: discriminant of optional-data is cut short or neither 0 nor 1"},
		{"tree that is too deep", new(Tree), strings.Repeat("00000000 00000001", xdr.MaxDepth), "xdr: byte 512: values are nested deeper than 64"},
		{"expression that is too deep", new(Expression), strings.Repeat("00000001", xdr.MaxDepth), "xdr: byte 256: values are nested deeper than 64"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := xdr.NewDecoder(testutil.Hex(t, tt.in))
			if tt.v.Decode(&d); d.Err() == nil || d.Err().Error() != tt.want {
				t.Errorf("error %v, want %s", d.Err(), tt.want)
			}
		})
	}
}

// A chain may be longer than recursion may be deep, on either side.
func TestLongChain(t *testing.T) {
	const length = 100000
	var in []byte
	for i := range length {
		in = xdr.AppendInt32(in, int32(i))
		in = xdr.AppendBool(in, i < length-1)
	}
	var v ChainNode
	d := xdr.NewDecoder(in)
	if v.Decode(&d); d.End() != nil {
		t.Fatal(d.Err())
	}
	if got := v.Append(nil); !bytes.Equal(got, in) {
		t.Error("decoded and encoded again, it is something else")
	}
}

// After an error nothing is decoded, though each value has two others then. As many levels are left
// as a test can go through if it is.
func TestDecodeStopsAtError(t *testing.T) {
	const levels = 16
	n := testing.AllocsPerRun(1, func() {
		d := xdr.NewDecoder(nil)
		for range xdr.MaxDepth - levels {
			d.Enter()
		}
		var v Filter
		if v.Decode(&d); d.Err() == nil {
			t.Error("no error")
		}
	})
	if n > 10 {
		t.Errorf("%v allocations", n)
	}
}

// A discriminant of 4 bytes makes an element of 72: memory is bounded by more than the count.
func TestDecodeLimitsMemory(t *testing.T) {
	in := xdr.AppendUint32(nil, 50000)
	for range 50000 {
		in = xdr.AppendInt32(in, int32(Nothing))
	}
	var v struct{ list []Figure }
	decode := func(limit int) error {
		v.list = nil
		d := xdr.NewDecoder(in)
		d.LimitMemory(limit)
		v.list = xdr.Resize(&d, v.list, d.Count(math.MaxUint32, 4))
		for i := range v.list {
			v.list[i].Decode(&d)
		}
		return d.End()
	}
	if err := decode(4 << 20); err != nil {
		t.Error(err)
	}
	if err := decode(1 << 20); err == nil || len(v.list) != 0 {
		t.Errorf("%d elements and error %v, want none and an error", len(v.list), err)
	}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name string
		v    message
		want string
	}{
		{"enum", &Enums{Stat: 1}, "xdr: Stat: status is 1, which is not defined"},
		{"string", &Arrays{Text: strings.Repeat("a", 17)}, "xdr: Text: length is 17, limit is 16"},
		{"string in a typedef", &Arrays{Names: FileNames{"", strings.Repeat("a", 17)}}, "xdr: Names[1]: length is 17, limit is 16"},
		{"array of a typedef", &FileNames{4: ""}, "xdr: length is 5, limit is 4"},
		{"opaque in an array", &Arrays{Handles: []Handle{nil, make(Handle, 65)}}, "xdr: Handles[1]: length is 65, limit is 64"},
		{"element of a list", &Directory{Entries: []StringEntry{{}, {"too long "}}}, "xdr: Entries[1].Item: length is 9, limit is 8"},
		{"list of lists", &ExportList{{Groups: GroupList{{}, {strings.Repeat("a", 17)}}}}, "xdr: [0].Groups[1].Name: length is 17, limit is 16"},
		{"union without the arm", &Box{N: 2}, "xdr: n of box is 2, which is not defined"},
		{"bool without the arm", &OnlyTrue{}, "xdr: present of only_true is 0, which is not defined"},
		{"arm", &ByInt{Code: 5, Other: make([]int32, 3)}, "xdr: Other: length is 3, limit is 2"},
		{"arm that is nil", &Expression{Op: OpNegate}, "xdr: Operand: is nil"},
		{"element of a flat list", &Table{Rows: [][]int32{{}, {1, 2, 3, 4, 5}}}, "xdr: Rows[1]: length is 5, limit is 4"},
		{"element of an element", &Table{Lines: [][]string{{}, {"a", "b", "long "}}}, "xdr: Lines[1][2]: length is 5, limit is 4"},
		{"distinct string", &GoodType{Label: "too long "}, "xdr: Label: length is 9, limit is 8"},
		{"optional", &Optionals{Box: &StringBox{"too long "}}, "xdr: Box.Text: length is 9, limit is 8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.v.Check()
			var typed *xdr.CheckError
			if !errors.As(err, &typed) || err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
			tt.v.Append(nil) // must not panic
		})
	}
}

// Nothing is left of an earlier value, even if the arm is the same.
func TestDecodeReplaces(t *testing.T) {
	v := Unions{
		F: Figure{Kind: Circle, Radius: 1, Outline: []byte{2}}, M: Maybe{true, 3}, I: ByInt{Message: "old", Other: []int32{4}},
		U: ByUnsigned{Last: Figure{Radius: 5}}, List: []Figure{{Kind: Circle, Radius: 6, Outline: []byte{7}}},
	}
	fresh := Unions{F: Figure{Kind: Nothing}, T: OnlyTrue{true, 0}, I: ByInt{Code: 0}, S: SameName{Stat: Oval}, List: []Figure{{Kind: Square, Outline: []byte{8}}}}
	d := xdr.NewDecoder(fresh.Append(nil))
	if v.Decode(&d); d.End() != nil {
		t.Fatal(d.Err())
	}
	if !reflect.DeepEqual(v, fresh) {
		t.Errorf("decoded %+v, want %+v", v, fresh)
	}
}

func TestStrings(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{Exec.String(), "EXEC"}, {Filekind(9).String(), "filekind(9)"}, {ErrSame.String(), "ERR_FIRST"}, {Nfs3ErrPerm.String(), "NFS3ERR_PERM"},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
}

// A value that is decoded into again allocates nothing, if it has neither strings nor a longer
// list than before. Encoding allocates nothing if there is room.
func TestCodecAllocs(t *testing.T) {
	values := []message{
		&Basic{}, &WithTypedefs{}, &OfC{}, &Enums{Later: Known}, &Handle{1, 2, 3}, &Verifier{}, &HandlePair{{1}},
		&Figure{Kind: Square, Outline: []byte{1}},
		&Unions{F: Figure{Kind: Circle}, T: OnlyTrue{Present: true}, I: ByInt{Code: 1, Other: []int32{1, 2}},
			S: SameName{Stat: Oval}, List: []Figure{{Kind: Oval, Outline: []byte{1}}, {Kind: Nothing}}},
		&PortList{{1}, {2}, {3}}, &Chain{First: ChainNode{1, &ChainNode{}}, Rest: &ChainNode{}},
		&Expression{Op: OpNegate, Operand: &Expression{Number: 3}}, &Deep{{}, {{}}},
		&Optionals{Number: ptr[int32](1), Direct: &Leaf{2}, Several: []LeafPtr{{3}}},
		&Choice{Agreed: true, Good: GoodType{Deltas: []Delta{1}, result: ptr(Good)}},
	}
	for _, v := range values {
		in := v.Append(nil)
		var d xdr.Decoder // it escapes to the interface
		decode := func() {
			d = xdr.NewDecoder(in)
			if v.Decode(&d); d.End() != nil {
				t.Fatal(d.Err())
			}
		}
		decode()
		if n := testing.AllocsPerRun(100, decode); n != 0 {
			t.Errorf("%T: decoding allocates %v times", v, n)
		}
		b := make([]byte, 0, len(in))
		if n := testing.AllocsPerRun(100, func() { v.Append(b) }); n != 0 {
			t.Errorf("%T: encoding allocates %v times", v, n)
		}
		if n := testing.AllocsPerRun(100, func() { _ = v.Check() }); n != 0 {
			t.Errorf("%T: checking allocates %v times", v, n)
		}
	}
}

// Without an interface between, the Decoder stays on the stack.
func TestDecoderStaysOnStack(t *testing.T) {
	in := (&Unions{T: OnlyTrue{Present: true}, F: Figure{Kind: Oval}, S: SameName{Stat: Oval}, List: []Figure{{Kind: Nothing}}}).Append(nil)
	var v Unions
	decode := func() {
		d := xdr.NewDecoder(in)
		if v.Decode(&d); d.End() != nil {
			t.Fatal(d.Err())
		}
	}
	decode()
	if n := testing.AllocsPerRun(100, decode); n != 0 {
		t.Errorf("decoding allocates %v times", n)
	}
}

// messages are all types that the fuzzer decodes.
func messages() []message {
	return []message{
		new(Basic), new(WithTypedefs), new(OfC), new(Enums), new(Arrays), new(Unions), new(Optionals),
		new(Directory), new(ExportList), new(Chain), new(Recursive), new(Outer), new(Boxed), new(KvGetRes),
		new(Choice), new(ByDelta), new(Drawing), new(FetchRes), new(StoreArgs),
		new(Table), new(Filter),
	}
}

// bulk reports whether a message has data that may have any pad bytes.
func bulk(v message) bool {
	switch v.(type) {
	case *FetchRes, *StoreArgs, *KvGetRes:
		return true
	}
	return false
}

// FuzzDecode decodes arbitrary input. A value that decodes without an error passes Check, and is
// encoded as it was: all of it if a strict decoder takes it, or else pad bytes aside.
func FuzzDecode(f *testing.F) {
	for i, v := range messages() {
		f.Add(uint8(i), v.Append(nil))
	}
	f.Add(uint8(10), (&Recursive{T: &Tree{1, &Tree{}, &Tree{}}, E: Expression{Op: OpNegate, Operand: &Expression{}}, N: Deep{{}, {}}}).Append(nil))
	f.Add(uint8(7), (&Directory{Entries: []StringEntry{{"a"}, {"b"}}, Ports: PortList{{1}}}).Append(nil))
	f.Add(uint8(16), (&Drawing{What: Line, SetMode: true, Color: []byte{1}, Tags: []string{"abc"}}).Append(nil))
	f.Add(uint8(16), (&Drawing{What: Dot, SetTime: true, Time: Place{1, 2}}).Append(nil))
	f.Add(uint8(17), (&FetchRes{Tags: "a", Data: []byte("data!")}).Append(nil))
	f.Fuzz(func(t *testing.T, kind uint8, in []byte) {
		v := messages()[int(kind)%len(messages())]
		d := xdr.NewDecoder(in)
		d.Strict()
		if v.Decode(&d); d.Err() == nil && !bulk(v) && !bytes.Equal(v.Append(nil), in[:d.Offset()]) {
			t.Fatalf("a strict decoder takes %x, which is encoded as %x", in[:d.Offset()], v.Append(nil))
		}
		d = xdr.NewDecoder(in)
		if v.Decode(&d); d.Err() != nil {
			return
		}
		if err := v.Check(); err != nil {
			t.Fatalf("decoded, but: %v", err)
		}
		out := v.Append(nil)
		if len(out) != d.Offset() {
			t.Fatalf("%d bytes decoded, %d encoded", d.Offset(), len(out))
		}
		again := messages()[int(kind)%len(messages())]
		d = xdr.NewDecoder(out)
		if again.Decode(&d); d.End() != nil {
			t.Fatal(d.Err())
		}
		if !bytes.Equal(again.Append(nil), out) {
			t.Fatal("encoded, decoded and encoded again, it is something else")
		}
		// Into a value that holds another one.
		d = xdr.NewDecoder(out)
		if v.Decode(&d); d.End() != nil || !bytes.Equal(v.Append(nil), out) {
			t.Fatalf("decoded again into the same value, it is something else: %v", d.Err())
		}
	})
}
