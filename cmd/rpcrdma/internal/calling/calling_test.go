package calling

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/rpc"
)

func TestMain(m *testing.M) { os.Exit(cmdtest.Main(m)) }

// methodOf returns a method of a file in testdata.
func methodOf(t testing.TB, file, name string) *method {
	t.Helper()
	spec, err := load("testdata/" + file)
	testutil.Must(t, err)
	m, err := find(spec, name, 0, false)
	testutil.Must(t, err)
	return m
}

// everything is a value of all kinds.
const everything = `{"i":-1,"u":4294967295,"h":-9223372036854775808,"uh":18446744073709551615,"f":0.5,"d":1e-300,"b":true,
	"s":"é\"","o":"AAEC","fo":"AQID","list":[1,2],"fixed":[3,4],"one":null,"c":"GREEN","sh":{"c":"RED","size":7},
	"m":{"n":5,"text":"x"},"chain":[{"value":1},{"value":2}],
	"t":{"left":{"left":null,"right":null},"right":null}}`

// Encoded values are decoded as they were.
func TestEcho(t *testing.T) {
	void := strings.NewReplacer(`{"c":"RED","size":7}`, `{"c":"GREEN"}`, `"n":5,"text":"x"`, `"n":-1`, `"one":null`, `"one":9`, `"list":[1,2]`, `"list":[]`)
	for _, tt := range []struct{ proc, text string }{
		{"ECHO", everything}, {"ECHO", void.Replace(everything)}, {"ALL_WIDE", `"000102030405060708090a0b0c0d0e0f"`}, {"ALL.4", ""},
	} {
		m := methodOf(t, "all.x", tt.proc)
		call, err := m.encode(tt.text)
		testutil.Must(t, err)
		v, err := m.decode(&rpc.Call{Results: call.AppendArgs(nil)})
		got, jsonErr := json.Marshal(v)
		testutil.Must(t, err, jsonErr)
		want := bytes.NewBufferString("null")
		if tt.text != "" {
			want.Reset()
			testutil.Must(t, json.Compact(want, []byte(tt.text)))
		}
		if string(got) != want.String() {
			t.Errorf("%s: %s\nwant %s", tt.proc, got, want)
		}
	}
}

// A procedure may have any number.
func TestLargestNumber(t *testing.T) {
	name := filepath.Join(t.TempDir(), "far.x")
	testutil.Must(t, os.WriteFile(name, []byte("program FAR { version FAR_V1 { void END(void) = 4294967295; } = 1; } = 0x20000001;"), 0o600))
	spec, err := load(name)
	testutil.Must(t, err)
	m, err := find(spec, "END", 0, false)
	testutil.Must(t, err)
	call, err := m.encode("")
	testutil.Must(t, err)
	if name := call.Names.CallName(call.Proc); name != "procedure 4294967295 of FAR v1" {
		t.Errorf("the call is %q", name)
	}
}

// An item of the arguments is beside them, and memory for one of the results is as long as the
// arguments ask for.
func TestItems(t *testing.T) {
	m := methodOf(t, "all.x", "ALL_PIECE")
	call, err := m.encode(`{"count": 8000000, "data": "` + strings.Repeat("AAAA", 1000) + `"}`)
	testutil.Must(t, err)
	if len(call.Args) != 8 || len(call.ReadItems) != 1 || call.ReadItems[0].Offset != 8 || len(call.ReadItems[0].Data) != 3000 {
		t.Errorf("%d bytes of arguments, items %v", len(call.Args), call.ReadItems)
	}
	if len(call.WriteItems) != 1 || len(call.WriteItems[0].Buf) != 8000000 || messages(call) < 8000000 {
		t.Errorf("%d items of results, messages of %d bytes", len(call.WriteItems), messages(call))
	}
	call.Results = []byte("\x00\x00\x00\x01\x00\x00\x00\x03abc\x00")
	v, err := m.decode(call)
	if got, _ := json.Marshal(v); err != nil || string(got) != `{"more":true,"data":"YWJj"}` {
		t.Errorf("%s, %v", got, err)
	}
}

// Arguments that are wrong are refused with the place of the mistake.
func TestWrongArguments(t *testing.T) {
	change := func(from, to string) string { return strings.Replace(everything, from, to, 1) }
	for _, tt := range []struct{ proc, text, says string }{
		{"ECHO", "", "argument JSON is missing"},
		{"ECHO", "{", "not JSON: unexpected EOF"},
		{"ECHO", "1 2", "not JSON: there is more after the value"},
		{"ECHO", "[]", "want an object, of type all, got []"},
		{"ECHO", `{}`, "i: is missing"},
		{"ECHO", change(`"b"`, `"extra":1,"b"`), "extra: no such member: want i, u, h, uh, f, d, b, s, o, fo, list, fixed, one, c, sh, m, chain, t"},
		{"ECHO", change(`"i":-1`, `"i":2147483648`), "i: want a whole number of 32 bits, got 2147483648"},
		{"ECHO", change(`"u":4294967295`, `"u":-1`), "u: want a whole number of 0 to 4294967295, got -1"},
		{"ECHO", change(`"uh":18446744073709551615`, `"uh":1.5`), "uh: want a whole number of 0 to 18446744073709551615, got 1.5"},
		{"ECHO", change(`"f":0.5`, `"f":"x"`), `f: want a number, got "x"`},
		{"ECHO", change(`"b":true`, `"b":1`), "b: want true or false, got 1"},
		{"ECHO", change(`"s":"é\""`, `"s":"12345"`), "s: 5 bytes, limit is 4"},
		{"ECHO", change(`"o":"AAEC"`, `"o":"?"`), `o: want base64, got "?"`},
		{"ECHO", change(`"fo":"AQID"`, `"fo":"AQI="`), "fo: 2 bytes, want 3"},
		{"ECHO", change(`"list":[1,2]`, `"list":[1,2,3]`), "list: 3 elements, limit is 2"},
		{"ECHO", change(`"list":[1,2]`, `"list":[1,true]`), "list[1]: want a whole number of 32 bits, got true"},
		{"ECHO", change(`"fixed":[3,4]`, `"fixed":[3]`), "fixed: 1 elements, want 2"},
		{"ECHO", change(`"GREEN"`, `"BLUE"`), `c: want RED, GREEN, of type color, got "BLUE"`},
		{"ECHO", change(`"c":"RED","size":7`, `"c":"GREEN","size":7`), "sh.size: no such member: want c"},
		{"ECHO", change(`{"value":2}`, `{"value":"z"}`), `chain[1].value: want a whole number of 32 bits, got "z"`},
		{"ALL_SUM", "[1,2]", "want an array of 3"},
		{"ALL_SUM", `[1,2,"z"]`, `c: want a whole number of 32 bits, got "z"`},
		{"ALL_NOTHING", "1", "want none"},
	} {
		if _, err := methodOf(t, "all.x", tt.proc).encode(tt.text); err == nil || err.Error() != tt.says {
			t.Errorf("%s %s: %v, want %s", tt.proc, tt.text, err, tt.says)
		}
	}
}

// A procedure is found by its name, the end of that, its number, and its program.
func TestFind(t *testing.T) {
	for _, tt := range []struct {
		name string
		only bool
		vers uint32
		want string // name and version, or an error
	}{
		{"ALL_SUM", false, 0, "ALL_SUM 2"}, {"sum", true, 1, "ALL_SUM 1"}, {"all.SUM", false, 0, "ALL_SUM 2"}, {"1", false, 0, "ALL_ECHO 1"},
		{"ECHO", true, 2, "no procedure ECHO: it has ALL_SUM"}, {"ECHO", true, 3, "no version 3: it has 1, 2"},
		{"OTHER.SUM", false, 0, "no program OTHER: it has ALL"},
		{"UM", false, 0, "no procedure UM: it has ALL_ECHO, ALL_NOTHING, ALL_PIECE, ALL_SUM, ALL_WIDE"},
	} {
		spec, err := load("testdata/all.x")
		testutil.Must(t, err)
		m, err := find(spec, tt.name, tt.vers, tt.only)
		var got string
		if err != nil {
			got = err.Error()
		} else {
			got = m.proc.Name + " " + string('0'+rune(m.version.Number))
		}
		if got != tt.want {
			t.Errorf("%s of version %d: %s, want %s", tt.name, tt.vers, got, tt.want)
		}
	}
}

// FuzzResults: results of any bytes are a value that JSON has, or an error.
func FuzzResults(f *testing.F) {
	m := methodOf(f, "all.x", "ECHO")
	call, err := m.encode(everything)
	testutil.Must(f, err)
	f.Add(call.AppendArgs(nil))
	f.Fuzz(func(t *testing.T, results []byte) {
		v, err := m.decode(&rpc.Call{Results: results})
		if err != nil {
			return
		}
		text, err := json.Marshal(v)
		testutil.Must(t, err)
		if len(text) > 100*len(results)+1000 {
			t.Errorf("%d bytes became %d", len(results), len(text))
		}
	})
}
