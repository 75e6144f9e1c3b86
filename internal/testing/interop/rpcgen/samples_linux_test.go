//go:build generated

package rpcgen

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"reflect"
	"testing"
)

// A sample is a value and the line that values.c prints for it.
type sample struct {
	value any // of a generated type
	text  string
	echo  func(ctx context.Context, c *EchoV2Client) (any, error) // the call with the value
}

// of makes a sample of a type that clients take by address.
func of[T any](text string, v T, call func(*EchoV2Client, context.Context, *T) (T, error)) sample {
	return sample{v, text, func(ctx context.Context, c *EchoV2Client) (any, error) { return call(c, ctx, &v) }}
}

// ofSmall is of for a type that clients take by value.
func ofSmall[T any](text string, v T, call func(*EchoV2Client, context.Context, T) (T, error)) sample {
	return sample{v, text, func(ctx context.Context, c *EchoV2Client) (any, error) { return call(c, ctx, v) }}
}

// diff returns how two values differ, or "".
func diff(want, got any) string {
	if same(reflect.ValueOf(want), reflect.ValueOf(got)) {
		return ""
	}
	return fmt.Sprintf("want %.500s\ngot  %.500s", fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got))
}

// same compares two values. A list without elements is as good as none: XDR has one of them.
func same(x, y reflect.Value) bool {
	if x.Type() != y.Type() {
		return false
	}
	switch x.Kind() {
	case reflect.Pointer:
		if x.IsNil() || y.IsNil() {
			return x.IsNil() == y.IsNil()
		}
		return same(x.Elem(), y.Elem())
	case reflect.Struct:
		for i := range x.NumField() {
			if !same(x.Field(i), y.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		if x.Type().Elem().Kind() == reflect.Uint8 {
			return bytes.Equal(x.Bytes(), y.Bytes())
		}
		if x.Len() != y.Len() {
			return false
		}
		for i := range x.Len() {
			if !same(x.Index(i), y.Index(i)) {
				return false
			}
		}
		return true
	default: // numbers, strings, and arrays of them
		return x.Equal(y)
	}
}

// pattern returns the n bytes that client.c has.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// bulkSample is a sample of data of n bytes.
func bulkSample(n int, end bool) sample {
	v := Bulk{Id: "bulk", Data: pattern(n), End: end}
	text, flag := fmt.Sprintf("x%x", v.Data), 0
	if n > 32 {
		h := fnv.New32a()
		h.Write(v.Data)
		text = fmt.Sprintf("%d:%08x", n, h.Sum32())
	}
	if end {
		flag = 1
	}
	return of(fmt.Sprintf(`bulk "bulk" %s %d`, text, flag), v, func(c *EchoV2Client, ctx context.Context, v *Bulk) (Bulk, error) {
		return c.Bulk(ctx, v, make([]byte, n))
	})
}

// Values of client.c, and their text there.
const (
	largestText  = "{2147483647 4294967295 1 9223372036854775807 18446744073709551615 7f7fffff 7ff0000000000000 5 2 4294967295}"
	smallestText = "{-2147483648 0 0 -9223372036854775808 0 bfc00000 0000000000000001 -3 1 0}"
	strangeText  = "{-1 1 1 -1 4294967296 3dcccccd bfb999999999999a 0 77 1}"
)

func largest() Basic {
	return Basic{I: math.MaxInt32, U: math.MaxUint32, Yes: true, H: math.MaxInt64, Uh: math.MaxUint64,
		F: math.MaxFloat32, D: math.Inf(1), Shade: Green, High: High, Times: math.MaxUint32}
}

func smallest() Basic {
	return Basic{I: math.MinInt32, H: math.MinInt64, F: -1.5, D: math.SmallestNonzeroFloat64, Shade: Blue, High: Low}
}

// strange has a value of an open enumeration that is not defined.
func strange() Basic {
	return Basic{I: -1, U: 1, Yes: true, H: -1, Uh: 1 << 32, F: 0.1, D: -0.1, Shade: Red, High: 77, Times: 1}
}

// samples are those that client.c sends to ECHO_V2, in its order.
func samples() []sample {
	basic, arrays, unions := (*EchoV2Client).Basic, (*EchoV2Client).Arrays, (*EchoV2Client).Unions
	nodes, options := (*EchoV2Client).Nodes, (*EchoV2Client).Options
	number, all := int32(-42), strange()
	list := []sample{
		of("basic "+largestText, largest(), basic),
		of("basic "+smallestText, smallest(), basic),
		of("basic "+strangeText, strange(), basic),

		of(`arrays x0000000000 x x "" "" 0,0,0 [ ] [ ] [ ] [ ] [ ] 0,0,0 [ ]`, Arrays{}, arrays),
		of(`arrays x6669786564 x626f756e646564 x72 "name" "a string without a bound" -2147483648,0,2147483647`+
			` [ 0 1 18446744073709551615 9223372036854775808 ] [ 1 0 1 ] [ -3 0 ] [ "" "a" "sixteen letters!" ]`+
			` [ x0102030405 x00ff00ff00 ] -1,9223372036854775807,-9223372036854775808 [ `+largestText+" "+smallestText+" ]",
			Arrays{
				Fixed: [5]byte([]byte("fixed")), Bounded: []byte("bounded"), Rest: []byte("r"),
				Named: "name", Longer: "a string without a bound",
				Ints: [3]int32{math.MinInt32, 0, math.MaxInt32}, Numbers: []uint64{0, 1, math.MaxUint64, 1 << 63},
				Flags: []bool{true, false, true}, Hues: []Color{Blue, Red}, Labels: []Label{"", "a", "sixteen letters!"},
				Keys: []Key{{1, 2, 3, 4, 5}, {1: 0xff, 3: 0xff}}, Three: Triple{-1, math.MaxInt64, math.MinInt64},
				Several: []Basic{largest(), smallest()},
			}, arrays),

		of(`unions (0 "red") (1 -5) (0)`, Unions{Color: ByColor{Hue: Red, Red: "red"}, Number: ByNumber{N: 1, Small: -5}}, unions),
		of(`unions (5 `+largestText+`) (2 9223372036854775807) (1 0.5)`, Unions{ByColor{Hue: Green, Green: largest()},
			ByNumber{N: 2, Small: math.MaxInt64}, Maybe{true, 0.5}}, unions),
		of(`unions (-3) (-7) (1 -2)`, Unions{ByColor{Hue: Blue}, ByNumber{N: -7}, Maybe{true, -2}}, unions),
		of(`unions (-3) (100 x0908070605) (0)`, Unions{Color: ByColor{Hue: Blue}, Number: ByNumber{N: 100, Other: Key{9, 8, 7, 6, 5}}}, unions),

		ofSmall(`nodes`, Nodes(nil), nodes),
		ofSmall(`nodes 1:"one" -2:"two" 3:""`, Nodes{{1, "one"}, {-2, "two"}, {3, ""}}, nodes),
		of(`options - - -`, Options{}, options),
		of(`options -42 `+strangeText+` (1 (2 - (4 - -)) (3 - -))`, Options{&number, &all,
			&Tree{1, &Tree{2, nil, &Tree{Value: 4}}, &Tree{Value: 3}}}, options),
	}
	for i, n := range []int{0, 1, 2, 3, 4, 3999, 4000, 65537, DataLen} {
		list = append(list, bulkSample(n, i%2 == 1))
	}
	return append(list,
		ofSmall(`color -3`, Blue, (*EchoV2Client).Color),
		ofSmall(`text "some text"`, "some text", (*EchoV2Client).Text),
		sample{several{-7, "four", Green, "\x00\x01\x02\x03\x04\x05"}, `several -7 "four" 5 x000102030405`,
			func(ctx context.Context, c *EchoV2Client) (any, error) {
				res, err := c.Several(ctx, -7, "four", Green, Payload("\x00\x01\x02\x03\x04\x05"))
				if len(res.Hues) != 1 {
					return res, err
				}
				return several{res.Ints[2], res.Named, res.Hues[0], string(res.Rest)}, err
			}},
	)
}

// several has the arguments of ECHO_SEVERAL, and the results for them.
type several struct {
	Number int32
	Text   Label
	Hue    Color
	Data   string
}

// texts are the lines of samples.
func texts(list []sample) (lines []string) {
	for _, s := range list {
		lines = append(lines, s.text)
	}
	return lines
}

// The text of a sample is its own: a line that two have would hide a difference.
func TestSamplesDiffer(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range samples() {
		if seen[s.text] {
			t.Errorf("two samples are %q", s.text)
		}
		seen[s.text] = true
	}
}

// Nor is a value equal to another one.
func TestSame(t *testing.T) {
	list := samples()
	for i, x := range list {
		for j, y := range list {
			if same(reflect.ValueOf(x.value), reflect.ValueOf(y.value)) != (i == j) {
				t.Errorf("comparing %.100s with %.100s", x.text, y.text)
			}
		}
	}
	if diff(Arrays{}, Arrays{Rest: []byte{}, Hues: []Color{}}) != "" {
		t.Error("a list without elements is not like none")
	}
}
