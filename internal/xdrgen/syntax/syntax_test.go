package syntax

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

func parse(src string, opt Options) (*File, error) {
	return Parse([]Source{{"a.x", []byte(src)}}, opt)
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name, src string
		want      []string
	}{
		{"not a definition", "foo;", []string{`a.x:1:1: expected a definition, found foo`}},
		{"keyword for a name", "struct int { int a; };", []string{`a.x:1:8: expected the name of the struct, found keyword int`}},
		{"no semicolon", "const A = 1\nconst B = 2;", []string{`a.x:2:1: expected ";", found keyword const`}},
		{"no value", "const A = ;", []string{`a.x:1:11: expected a number or the name of a constant, found ";"`}},
		{"end of file", "struct a {\n  int x;\n", []string{`a.x:2:8: expected "}", found end of file`}},
		{"no brackets", "typedef opaque a;", []string{`a.x:1:17: expected "[" or "<", found ";"`}},
		{"fixed array without a length", "typedef int a[];", []string{`a.x:1:15: expected a number or the name of a constant, found "]"`}},
		{"bracket that is not closed", "typedef int a<3;", []string{`a.x:1:16: expected ">", found ";"`}},
		{"array of pointers", "typedef int *a[3];", []string{`a.x:1:15: expected ";", found "["`}},
		{"enum without values", "enum a { };", []string{`a.x:1:10: expected the name of a value, found "}"`}},
		{"enum with semicolons", "enum a { A; B; };", []string{`a.x:1:11: expected "," or "}", found ";"`}},
		{"union without switch", "union a { int x; };", []string{`a.x:1:9: expected "switch", found "{"`}},
		{"union with a member behind another", "union a switch (int x) { case 1: int y; int z; };",
			[]string{`a.x:1:41: expected "case" or "default", found keyword int`}},
		{"argument without a type", "program P { version V { void F(,) = 1; } = 1; } = 1;",
			[]string{`a.x:1:32: expected a type, found ","`}},
		{"opaque argument", "program P { version V { void F(opaque) = 1; } = 1; } = 1;",
			[]string{`a.x:1:32: expected the name of a type, found keyword opaque`}},
		{"program without versions' braces", "program P { void F(void) = 1; } = 1;",
			[]string{`a.x:1:13: expected "version" or "}", found keyword void`}},
		{"typedef of void", "typedef void;", []string{"a.x:1:9: typedef of void"}},
		{"closing brace too many", "};\nconst A = 1;", []string{`a.x:1:1: expected a definition, found "}"`}},

		// One error for each definition and each member.
		{"several", "const = 1;\nstruct s { int; int b; bool *; };\nconst B 2;", []string{
			`a.x:1:7: expected the name of the constant, found "="`,
			`a.x:2:15: expected a name, found ";"`,
			`a.x:2:30: expected a name, found ";"`,
			`a.x:3:9: expected "=", found 2`,
		}},
		{"within a body", "enum a { A = ; B = 2 };\nconst = 2;", []string{
			`a.x:1:14: expected a number or the name of a constant, found ";"`,
			`a.x:2:7: expected the name of the constant, found "="`,
		}},

		{"character", "const A = 1;$", []string{`a.x:1:13: unexpected character '$'`}},
		{"number", "const A = 12ab;", []string{"a.x:1:11: 12ab is not a number"}},
		{"octal", "const A = 08;", []string{"a.x:1:11: 08 is not a number"}},
		{"large number", "const A = 0x10000000000000000;", []string{"a.x:1:11: number 0x10000000000000000 does not fit 64 bits"}},
		{"small number", "const A = -9223372036854775809;", []string{"a.x:1:11: number -9223372036854775809 does not fit 64 bits"}},
		{"open comment", "const A = 1;\n /* open", []string{"a.x:2:2: comment is not closed"}},
		{"open quote", "const A = \"open\n;", []string{"a.x:1:11: quote is not closed", `a.x:2:1: expected a number or the name of a constant, found ";"`}},

		{"if without endif", "#if 1\n", []string{"a.x:1:1: #if without #endif"}},
		{"endif without if", "\n#endif\n", []string{"a.x:2:1: #endif without #if"}},
		{"second else", "#ifdef A\n#else\n#else\n#endif\n", []string{"a.x:3:1: second #else"}},
		{"ifdef without a name", "#ifdef\n#endif\n", []string{"a.x:1:1: expected a name after #ifdef"}},
		{"define without a name", "#define 1\n", []string{"a.x:1:1: expected a name after #define"}},
		{"expression", "#if A +\n#endif\n", []string{`a.x:1:1: #if: expected the end of the line or an operator, found "+"`}},
		{"elif", "#if 1\n#elif 1\n#endif\n", []string{"a.x:2:1: #elif is not supported"}},
		{"elif behind a part that is left out", "#if 0\n#elif 1\n#endif\n", []string{"a.x:2:1: #elif is not supported"}},
		{"elifdef", "#ifdef A\n#elifdef B\n#endif\n", []string{"a.x:2:1: #elifdef is not supported"}},
		{"elifndef behind else", "#ifdef A\n#else\n#elifndef B\n#endif\n", []string{"a.x:3:1: #elifndef is not supported"}},
		{"error", "#error not today\n", []string{"a.x:1:1: #error not today"}},
		{"line marker", "# 40 \"b.x\"\nfoo;\n# 7\nbar;", []string{`b.x:7:1: expected a definition, found bar`, `b.x:40:1: expected a definition, found foo`}},
		{"too deep", strings.Repeat("struct {", 100), []string{"a.x:1:8: expected the name of the struct, found \"{\""}},
		{"much too deep", "struct a {" + strings.Repeat("struct {", 100), []string{"a.x:1:515: bodies are nested deeper than 64", `a.x:1:810: expected "}", found end of file`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(tt.src, Options{})
			if err == nil {
				t.Fatal("no error")
			}
			testutil.WantLines(t, strings.Split(err.Error(), "\n"), tt.want...)
			var typed *Error
			if !errors.As(err, &typed) || typed.Pos.String()+": "+typed.Text != tt.want[0] {
				t.Errorf("the first error is %v", typed)
			}
		})
	}
}

func TestErrorsAreFew(t *testing.T) {
	_, err := parse(strings.Repeat("const = 1;\n", 50), Options{})
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != MaxErrors+1 || lines[MaxErrors] != "too many errors" {
		t.Errorf("%d lines: %s", len(lines), err)
	}
	if _, err := parse(strings.Repeat(" ", MaxInput+1), Options{}); err == nil || err.Error() != "a.x: input is longer than 4194304 bytes" {
		t.Errorf("long input: %v", err)
	}
}

// names lists the definitions that were understood.
func names(f *File) []string {
	var list []string
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *Const:
			list = append(list, d.Name.Name)
		case *TypeDef:
			list = append(list, d.Name.Name)
		case *Program:
			list = append(list, d.Name.Name)
		}
	}
	return list
}

func TestPreprocessor(t *testing.T) {
	tests := []struct {
		name, src string
		want      string // definitions
		notes     []string
	}{
		{"ifdef", "#ifdef A\nconst A1 = 1;\n#else\nconst A2 = 2;\n#endif\nconst A3 = 3;", "A1 A3", nil},
		{"ifndef", "#ifndef A\nconst A1 = 1;\n#else\nconst A2 = 2;\n#endif", "A2", nil},
		{"nested", "#ifdef B\n#ifdef A\nconst A1 = 1;\n#else\nconst A2 = 2;\n#endif\n#else\nconst A3 = 3;\n#endif", "A3", nil},
		{"if of names", "#if A && (B || !defined C) && defined(A)\nconst A1 = 1;\n#endif\n#if B\nconst A2 = 1;\n#endif", "A1", nil},
		{"if of numbers", "#if 0\nconst A1 = 1;\n#endif\n#if 0x10\nconst A2 = 1;\n#endif", "A2", nil},
		{"directives in a part that is left out", "#if 0\n#include \"x.x\"\n#error no\n#define C 3\n% no\n'\"$\n#endif", "", nil},
		{"elif in a part that is left out", "#if 0\n#if 1\n#elif 1\n#endif\n#endif\nconst A1 = 1;", "A1", nil},
		{"comment in a part that is left out", "#if 0\n/*\n#endif\n*/\n#endif\nconst A1 = 1;", "A1", nil},
		{"define", "#define C 3\n#define D (0x10) /* sixteen */\n#define E C\n#if C\nconst A1 = E;\n#endif", "C D E A1", nil},
		{"define and undef", "#define C\n#undef C\n#ifdef C\nconst A1 = 1;\n#endif", "", nil},
		{"define of something else", "#define C 1 << 3\n#define D(x) x\n#pragma p\n# \n", "", []string{
			"a.x:1:1: #define C is ignored: its value is no number", "a.x:2:1: macro D with parameters is ignored", "a.x:3:1: #pragma is ignored",
		}},
		{"line that continues", "#define C \\\n  3\nconst A1 = C;", "C A1", nil},
		{"rpcgen", "%#include <rpc/rpc.h>\n  %struct c { not xdr };\nconst A1 = 1;", "A1", []string{
			"a.x:1:1: line for rpcgen's output is ignored", "a.x:2:3: line for rpcgen's output is ignored",
		}},
		{"other compilers", "package \"p\";\nimport \"q.x\";\nconst A1 = 1;", "A1", []string{
			"a.x:1:1: package of another compiler is ignored", "a.x:2:1: import of another compiler is ignored",
		}},
		{"include of C", "#include <rpc/rpc.h>\n#include \"rpc.h\"\n", "", []string{
			"a.x:1:1: #include <rpc/rpc.h> is ignored", "a.x:2:1: #include \"rpc.h\" is ignored",
		}},
		{"comments that are meant to be annotations", "struct a { int b; /* DDP */\nint c; /* ddp, max: 5 */\nint d; // Idempotent.\nint e; /* ddp */ /* max: 5 */ /* the max */ };", "a", []string{
			`a.x:1:19: comment "DDP" is no annotation: each is a comment of its own, in small letters`,
			`a.x:2:8: comment "ddp, max: 5" is no annotation: each is a comment of its own, in small letters`,
			`a.x:3:8: comment "Idempotent." is no annotation: each is a comment of its own, in small letters`,
		}},
		{"annotations that belong to nothing", "/* open */\n\nstruct a {\nint b;\n/* ddp */\n};\n\n/* max: 5 */\n", "a", []string{
			`a.x:1:1: annotation "open" belongs to no declaration`,
			`a.x:5:1: annotation "ddp" belongs to no declaration`,
			`a.x:8:1: annotation "max" belongs to no declaration`,
		}},
		{"program and version are no keywords", "struct version { int program; };\nprogram P { version version { void version(void) = 0; } = 1; } = 2;", "version P", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file, err := parse(tt.src, Options{Defines: []string{"A"}})
			testutil.Must(t, err)
			if got := strings.Join(names(file), " "); got != tt.want {
				t.Errorf("definitions %q, want %q", got, tt.want)
			}
			var notes []string
			for _, n := range file.Notes {
				notes = append(notes, n.String())
			}
			if !slices.Equal(notes, tt.notes) {
				t.Errorf("notes %q, want %q", notes, tt.notes)
			}
		})
	}
}

func TestInclude(t *testing.T) {
	files := map[string]string{
		"b.x": "#include \"c.x\"\n#include \"b.x\"\nconst B = 1;",
		"c.x": "const C = 1;\n",
		"d.x": "const = 1;\n",
	}
	opt := Options{Include: func(from, name string) (string, []byte, error) {
		text, ok := files[name]
		if !ok {
			return "", nil, fmt.Errorf("there is no %s", name)
		}
		return name, []byte(text), nil
	}}
	file, err := parse("#include \"b.x\"\n#include \"c.x\"\nconst A = 1;", opt)
	if testutil.Must(t, err); !reflect.DeepEqual(names(file), []string{"C", "B", "A"}) {
		t.Errorf("definitions %q", names(file))
	}
	_, err = parse("\n#include \"e.x\"\n#include \"d.x\"\n", opt)
	if err == nil || err.Error() != "a.x:2:1: there is no e.x\nd.x:1:7: expected the name of the constant, found \"=\"" {
		t.Errorf("error %v", err)
	}
}

func TestComments(t *testing.T) {
	const src = `/* Of the file. */

/* Not of s: an empty line follows. */

/* Before s. */ // and this
struct s {	/* behind the brace */
	int a;	/* of a */
	/* before b */
	int b; /* of b, the first */ /* and the second
	        * on two lines */
	int c; /* ddp */ int d; // of d
	/* ddp: PUT, GET */
	opaque e<>;	/* max: 4096 */
	/* of nothing */
};	/* behind s */
/*
 * Lines:
 *
 *   indented
 * and not.
 */
enum e {
	A,	/* of A */
	B	/* of B */
};
struct f { int f1; /* of f1 */ int f2; /* of f2 */ }; /* of f */
enum g { G1, /* of G1 */ G2 /* of G2 */ };
program P { version V { void Q(/* ddp */ r) = 1; /* idempotent */ } = 1; } = 1;`
	file, err := parse(src, Options{})
	testutil.Must(t, err)
	s := file.Decls[0].(*TypeDef)
	members := s.Type.(*Struct).Members
	e := file.Decls[1].(*TypeDef)
	values := e.Type.(*Enum).Values
	f, g := file.Decls[2].(*TypeDef), file.Decls[3].(*TypeDef)
	q := file.Decls[4].(*Program).Versions[0].Procs[0]
	for _, tt := range []struct {
		name string
		got  Comments
		want string
	}{
		{"s", s.Doc, "Before s.|and this||behind the brace|behind s"},
		{"a", members[0].Doc, "of a"},
		{"b", members[1].Doc, "before b||of b, the first|and the second|on two lines"},
		{"c", members[2].Doc, ""},
		{"d", members[3].Doc, "of d"},
		{"e", members[4].Doc, ""},
		{"enum", e.Doc, "Lines:||  indented|and not."},
		{"A", values[0].Doc, "of A"},
		{"B", values[1].Doc, "of B"},
		{"f", f.Doc, "of f"},
		{"f1", f.Type.(*Struct).Members[0].Doc, "of f1"},
		{"f2", f.Type.(*Struct).Members[1].Doc, "of f2"},
		{"G1", g.Type.(*Enum).Values[0].Doc, "of G1"},
		{"G2", g.Type.(*Enum).Values[1].Doc, "of G2"},
	} {
		if got := strings.Join(tt.got.Lines(), "|"); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	annotations := func(c Comments) (list []string) {
		for _, a := range c.Annotations() {
			list = append(list, fmt.Sprintf("%s %s=%s", a.Pos, a.Word, a.Text))
		}
		return list
	}
	if got, want := annotations(members[2].Doc), []string{"a.x:11:9 ddp="}; !slices.Equal(got, want) {
		t.Errorf("annotations of c %q, want %q", got, want)
	}
	if got, want := annotations(members[4].Doc), []string{"a.x:12:2 ddp=PUT, GET", "a.x:13:14 max=4096"}; !slices.Equal(got, want) {
		t.Errorf("annotations of e %q, want %q", got, want)
	}
	if got, want := annotations(q.Doc), []string{"a.x:28:32 ddp=", "a.x:28:50 idempotent="}; !slices.Equal(got, want) {
		t.Errorf("annotations of Q %q, want %q", got, want)
	}
}

func TestInt(t *testing.T) {
	for _, tt := range []struct{ text, want, next string }{
		{"0", "0", "1"}, {"-0", "0", "1"}, {"-1", "-1", "0"}, {"0x7fFF", "32767", "32768"}, {"-017", "-15", "-14"},
		{"18446744073709551615", "18446744073709551615", ""}, {"-9223372036854775808", "-9223372036854775808", "-9223372036854775807"},
	} {
		n, err := parseInt(tt.text)
		testutil.Must(t, err)
		next, ok := n.Next()
		if n.String() != tt.want || ok != (tt.next != "") || ok && next.String() != tt.next {
			t.Errorf("%s: %s, then %s (%v)", tt.text, n, next, ok)
		}
	}
	if n := IntOf(-5); n.In(-4, 0) || !n.In(-5, 0) || n.In(-10, -6) {
		t.Error("In is wrong for -5")
	}
	if n, _ := parseInt("0xffffffffffffffff"); n.In(0, 1<<62) {
		t.Error("In is wrong for 2^64-1")
	}
}

// FuzzParse checks that errors are few and have places, and that positions are within the input.
func FuzzParse(f *testing.F) {
	for _, src := range []string{
		"", "const A = 0x10;", "struct s { int a; opaque b<8>; }; /* behind */", "#if A\n#else\n#endif\n% x\n# 3 \"b.x\"\n",
		"union u switch (int d) { case 1: case 2: int x; default: void; };", "program P { version V { int F(string, int *a) = 1; } = 2; } = 3;",
		"#define A \\\n 5\n#include \"b.x\"", "enum e { A, B = -1, };", "/*", "\"", "};", "#if ((((", "struct {{{{",
	} {
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src string) {
		include := func(from, name string) (string, []byte, error) { return name, []byte(src), nil }
		file, err := parse(src, Options{Include: include})
		if err != nil {
			if n := strings.Count(err.Error(), "\n"); n > MaxErrors {
				t.Fatalf("%d errors", n)
			}
			var typed *Error
			if !errors.As(err, &typed) || typed.Line < 1 && !strings.HasPrefix(typed.Text, "input is longer") {
				t.Fatalf("error without a place: %v", err)
			}
		}
		for _, d := range file.Decls {
			if d == nil || reflect.ValueOf(d).IsNil() {
				t.Fatal("a definition is nil")
			}
		}
	})
}
