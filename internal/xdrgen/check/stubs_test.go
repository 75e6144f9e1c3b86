package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// program is a program with the procedures.
func program(procs string) string {
	return "\nprogram P { version V {\n" + procs + "\n} = 1; } = 1;"
}

// behind ends lines after comments, so that these belong to what comes before them.
func behind(src string) string { return strings.ReplaceAll(src, "*/ }", "*/\n}") }

// Data that cannot be placed directly, and annotations that mean nothing, are mistakes.
func TestStubErrors(t *testing.T) {
	const member = "struct a { opaque x<>; /* ddp */ };\n"
	tests := []struct {
		name, src string
		want      []string
	}{
		{"number", "struct a { int x; /* ddp */ };", []string{"a.x:1:19: x cannot be placed directly: it is neither opaque data nor a string"}},
		{"array", "struct a { int x<>; /* ddp */ };", []string{"a.x:1:21: x cannot be placed directly: it is neither opaque data nor a string"}},
		{"fixed length", "typedef opaque t[8];\nunion a switch (int d) { default: t x; /* ddp */ };", []string{"a.x:2:40: x cannot be placed directly: its length is fixed"}},
		{"discriminant", "union a switch (int d /* ddp */) { default: void; };", []string{"a.x:1:23: ddp belongs to a member of a structure, an arm of a union or a typedef"}},
		{"typedef of a number", "typedef int a; /* ddp */", []string{"a.x:1:16: a cannot be placed directly: it is neither opaque data nor a string"}},
		{"typedef of a fixed length", "typedef opaque a[8]; /* ddp */", []string{"a.x:1:22: a cannot be placed directly: its length is fixed"}},
		{"other type", "struct a { int x; }; /* ddp */", []string{"a.x:1:22: ddp belongs to a member of a structure, an arm of a union or a typedef"}},
		{"typedef for no such procedure", "typedef opaque a<>; /* ddp: F, G */\nstruct b { a x; a y; };" + program("void F(a) = 1;"), []string{"a.x:1:21: ddp is for procedure G, which is not declared"}},
		{"typedef in a list", "typedef opaque a<>; /* ddp */\nstruct b { a x; b *next; };\nstruct c { b *list; };" + program("void F(c) = 1;"),
			[]string{"a.x:1:21: x cannot be placed directly for F: it is in a linked list"}},
		{"too many typedefs", "typedef opaque a<>; /* ddp */\nstruct b { a v; a w; a x; a y; a z; };" + program("b F(void) = 1;"),
			[]string{"a.x:4:3: results of F have more than 4 items that may be placed directly"}},
		{"void", "union a switch (int d) { default: void; /* ddp */ };", []string{"a.x:1:41: ddp belongs to a member of a structure, an arm of a union or a typedef"}},
		{"procedure", program("void F(void) = 1; /* ddp */"), []string{"a.x:3:19: ddp belongs to a typedef of the argument or the result of F, not to the procedure"}},
		{"in an array", member + "struct b { a list<4>; };" + program("void F(b) = 1;"), []string{"a.x:1:24: x cannot be placed directly for F: it is in an array"}},
		{"in a list", "struct a { opaque x<>; /* ddp */\n a *next; };\nstruct b { a *list; };" + program("b F(void) = 1;"),
			[]string{"a.x:1:24: x cannot be placed directly for F: it is in a linked list"}},
		{"in recursion", "struct a { a *left; opaque x<>; /* ddp */ };" + program("a F(void) = 1;"),
			[]string{"a.x:1:33: x cannot be placed directly for F: it is in a recursive type"}},
		{"behind an optional one", member + "struct b { a *first;\n opaque y<>; /* ddp */ };" + program("b F(void) = 1;"),
			[]string{"a.x:4:14: y cannot be placed directly in the results of F: x comes before it in some of them alone"}},
		{"in two arms", "union b switch (bool d) { case TRUE: opaque x<>; /* ddp */\n case FALSE: opaque y<>; /* ddp */ };" + program("b F(void) = 1;"),
			[]string{"a.x:2:26: y cannot be placed directly in the results of F: x comes before it in some of them alone"}},
		{"too many results", member + "struct b { a a1; a a2; a a3; a a4; a a5; };" + program("b F(void) = 1;"),
			[]string{"a.x:5:3: results of F have more than 4 items that may be placed directly"}},
		{"too many arguments", member + "struct b { a a1; a a2; a a3; a a4; };\nstruct c { b b1; b b2; b b3; b b4; };\nstruct d { c c1; c c2; c c3; c c4; };\nstruct e { d d1; d d2; };" + program("void F(e) = 1;"),
			[]string{"a.x:8:6: arguments of F have more than 64 items that may be placed directly"}},
		{"no such procedure", "struct a { opaque x<>; /* ddp: F, G */ };" + program("void F(a) = 1;"), []string{"a.x:1:24: ddp is for procedure G, which is not declared"}},

		{"one-way", program("void F(int) = 1; /* oneway */"), []string{"a.x:3:18: procedure F cannot be one-way: RPC-over-RDMA has no calls without a reply"}},
		{"a stream of nothing", program("void F(int) = 1; /* stream */"), []string{"a.x:3:18: F has no results to stream"}},
		{"an inline stream", program("int F(int) = 1; /* inline */ /* stream */"), []string{"a.x:3:30: F cannot be inline: a stream has a goroutine"}},
		{"a stream with an item", member + program("int F(a) = 1; /* stream */"), []string{"a.x:5:5: arguments of F cannot be placed directly: it streams its results"}},
		{"a deadline in a result", "struct a { unsigned int x; /* deadline */ };" + program("a F(void) = 1;"), []string{"a.x:1:28: deadline belongs to an unsigned int in the structure that is an argument"}},
		{"a deadline of another type", "struct a { int x; /* deadline */ };" + program("void F(a) = 1;"), []string{"a.x:1:19: deadline belongs to an unsigned int in the structure that is an argument"}},
		{"an error in an argument", "union a switch (int s) { case 1: string x<9>; /* error */ };" + program("void F(a) = 1;"), []string{"a.x:1:47: error belongs to a string with one case in the union that a procedure returns"}},
		{"an error with two cases", "union a switch (int s) { case 1: case 2: string x<9>; /* error */ };" + program("a F(void) = 1;"), []string{"a.x:1:55: error belongs to a string with one case in the union that a procedure returns"}},
		{"an error in other cases", "union a switch (int s) { default: string x<9>; /* error */ };" + program("a F(void) = 1;"), []string{"a.x:1:48: error belongs to a string with one case in the union that a procedure returns"}},
		{"procedure 0", program("void F(int) = 0;"), []string{"a.x:3:6: procedure F has number 0, and so neither arguments nor results: servers answer it themselves"}},
		{"idempotent member", "struct a { int x; /* idempotent */ };", []string{"a.x:1:19: annotation idempotent means nothing at a member"}},
		{"inline version", "program P { version V { /* inline */\nvoid F(void) = 1; } = 1; } = 1;", []string{"a.x:1:25: annotation inline means nothing at a version"}},

		{"maximum of void", program("void F(int n) = 1; /* max: n */"), []string{"a.x:3:20: F has a maximum, though its result is void or of a fixed length"}},
		{"maximum of a result of fixed length", program("int F(int n) = 1; /* max: n */"), []string{"a.x:3:19: F has a maximum, though its result is void or of a fixed length"}},
		{"maximum of a result that is none", program("string F(void) = 1; /* max: n */"),
			[]string{`a.x:3:21: max of result: "n" is neither a number of up to 1073741824 bytes, nor an integer in the arguments of F`}},
		{"maximum of a number", "struct a { int x; /* max: 4 */ };", []string{"a.x:1:16: x has a maximum, though its length is fixed"}},
		{"maximum that is none", "struct a { opaque x<>; /* max: many */ };" + program("a F(void) = 1;"),
			[]string{`a.x:1:24: max of x: "many" is neither a number of up to 1073741824 bytes, nor an integer in the arguments of F`}},
		{"maximum that is too large", "struct a { opaque x<>; /* max: 1073741825 */ };" + program("a F(void) = 1;"),
			[]string{`a.x:1:24: max of x: "1073741825" is neither a number of up to 1073741824 bytes, nor an integer in the arguments of F`}},
		{"count of another type", "struct a { opaque x<>; /* max: args.s */ };\nstruct b { string s<>; };" + program("a F(b) = 1;"),
			[]string{`a.x:1:24: max of x: "args.s" is neither a number of up to 1073741824 bytes, nor an integer in the arguments of F`}},
		{"count that may be missing", "struct a { opaque x<>; /* max: args.u.n */ };\nunion u switch (int d) { default: int n; };\nstruct b { u u; };" + program("a F(b) = 1;"),
			[]string{`a.x:1:24: max of x: "args.u.n" is neither a number of up to 1073741824 bytes, nor an integer in the arguments of F`}},
		{"number and count", "struct a { opaque x<>; /* max: 8, n */ };" + program("a F(int n) = 1;"), []string{"a.x:1:24: max of x has numbers and members of the arguments"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec, err := compile(t, behind(tt.src))
			if err == nil {
				err = Stubs(spec)
			}
			if err == nil {
				t.Fatalf("no error, want %q", tt.want)
			}
			if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, tt.want) {
				t.Errorf("errors\n%q, want\n%q", got, tt.want)
			}
		})
	}
}

// bounded returns the first procedure of a source.
func bounded(t *testing.T, src string) *Proc {
	t.Helper()
	spec, err := compile(t, behind(src))
	testutil.Must(t, err)
	testutil.Must(t, Stubs(spec))
	return spec.Programs[0].Versions[0].Procs[0]
}

func TestBounds(t *testing.T) {
	tests := []struct {
		name, result, types string
		want                int64
	}{
		{"void", "void", "", 0},
		{"number", "hyper", "", 8},
		{"string", "string<10>", "", 4 + 12},
		{"string without a limit", "string", "", 4 + 65536},
		{"array without a limit", "b", "typedef hyper b<>;", 4 + 65536},
		{"large limit", "b", "typedef opaque b<0x1000000>;", 4 + 1<<20},
		{"limit of a MiB", "b", "typedef opaque b<0x100000>;", 4 + 1<<20},
		{"array of strings", "b", "typedef string a<>; typedef a b<2>;", 4 + 65536},
		{"recursive", "b", "struct b { b *left; b *right; };", 8 + 65536},
		{"optional", "b", "struct a { opaque x<>; }; typedef a *b;", 4 + 4 + 65536},
		{"union", "b", "union b switch (int d) { case 1: opaque x<>; default: hyper y[3]; };", 4 + 4 + 65536},
		{"annotated", "b", "struct b { opaque x<>; /* max: 5 */\n int y; };", 4 + 8 + 4},
		{"constant", "b", "const N = 1000; struct b { int x<>; /* max: N */ };", 4 + 1000},
		{"item", "b", "struct b { opaque x<>; /* ddp */\n int y; };", 4 + 4},
		{"typedef that is an item", "b", "typedef opaque b<>; /* ddp */", 4},
		{"typedef of a typedef that is an item", "b", "typedef opaque a<>; /* ddp */\ntypedef a b;", 4},
		{"array of what is an item elsewhere", "b", "typedef opaque a<8>; /* ddp */\ntypedef a b<2>;", 4 + 2*12},
		{"item of another procedure", "b", "struct b { opaque x<>; /* ddp: G */\n int y; };", 4 + 65536 + 4},
	}
	for _, tt := range tests {
		p := bounded(t, tt.types+program(tt.result+" F(void) = 1; void G(void) = 2;"))
		if p.Bound.Bytes != tt.want || p.Bound.Counts != nil {
			t.Errorf("%s: bound %+v, want %d", tt.name, p.Bound, tt.want)
		}
	}
}

// A procedure may have the bound of its result.
func TestResultBound(t *testing.T) {
	const list = "struct a { int x; a *next; };"
	if p := bounded(t, list+program("a *F(void) = 1; /* max: 1000000 */\n")); p.Bound.Bytes != 4+1_000_000 || p.Bound.Counts != nil {
		t.Errorf("bound %+v", p.Bound)
	}
	if p := bounded(t, list+program("a *F(string s, int n) = 1; /* max: n */\n")); p.Bound.Bytes != 4 || len(p.Bound.Counts) != 1 || p.Bound.Counts[0][0][0].Name != "n" {
		t.Errorf("bound %+v", p.Bound)
	}
	p := bounded(t, "typedef opaque b<>; /* ddp */\n"+program("b F(void) = 1; /* max: 5 */\n"))
	if p.Bound.Bytes != 4 || len(p.Received) != 1 || p.Received[0].Bound.Bytes != 8 {
		t.Errorf("bounds %+v, %+v", p.Bound, p.Received)
	}
}

// The bound of a count is in the arguments, wherever that is.
func TestCounts(t *testing.T) {
	for _, tt := range []struct{ max, args, want string }{
		{"args.n", "b", " n"},
		{"b.n", "b b", "b n"},
		{"args.c.m", "b", " c m"},
		{"n", "string s, int n", "n"},
		{"args.n, args.c.m", "b", " n| c m"},
	} {
		p := bounded(t, "struct c { hyper m; }; struct b { unsigned n; c c; };\nstruct a { opaque x<>; /* max: "+tt.max+" */ };"+program("a F("+tt.args+") = 1;"))
		var got []string
		for _, path := range p.Bound.Counts[0] {
			var names []string
			for _, m := range path {
				names = append(names, m.Name)
			}
			got = append(got, strings.Join(names, " "))
		}
		if s := strings.Join(got, "|"); s != tt.want || p.Bound.Bytes != 4 {
			t.Errorf("%s: bound %+v, %q, want %q", tt.max, p.Bound, s, tt.want)
		}
	}
}

// The longest message is as long as types with limits say, whichever way it goes.
func TestLongest(t *testing.T) {
	for _, tt := range []struct {
		types, result, args string
		want                int64
	}{
		{"", "void", "void", 0},
		{"", "hyper", "int", 8},
		{"", "int", "hyper n, int m", 12},
		{"", "string<10>", "void", 4 + 12},
		{"", "string", "void", 4},
		{"typedef opaque b<8388608>; /* ddp */", "b", "void", 4 + 8<<20},
		{"struct b { opaque x<8388608>; /* ddp */ /* max: n */\n string y<>; };", "b", "int n", 4 + 8<<20 + 4},
		{"struct b { opaque x<>; /* max: 9000 */\n };", "b", "void", 4 + 9000},
		{"union b switch (int d) { case 1: opaque x<7>; default: hyper y[3]; };", "void", "b", 4 + 24},
		{"typedef hyper a[2]; typedef a b<3>;", "b", "void", 4 + 3*16},
		{"typedef hyper *b;", "b", "void", 4 + 8},
		{"struct b { opaque x<1000>; b *left; b *right; };", "b", "void", 4 + 4 + 4},
		{"struct b { opaque x<1000>; b *next; };", "b", "void", 4 + 4},
		{"typedef opaque b<0x7fffffff>;", "b", "void", 4},
		{"typedef opaque a<0x3fffffff>; struct b { a x; a y; };", "b", "void", 8},
	} {
		if p := bounded(t, tt.types+program(tt.result+" F("+tt.args+") = 1;")); p.Longest != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.types+tt.result+tt.args, p.Longest, tt.want)
		}
	}
}

// Types that contain each other many times over take only as much time as there are items.
func TestManyPaths(t *testing.T) {
	var src strings.Builder
	src.WriteString("struct s0 { opaque x<>; /* ddp */\n hyper y<>; };\n")
	for i := range 40 {
		name := func(i int) string { return "s" + strings.Repeat("x", i) }
		if i == 0 {
			src.WriteString("struct s { s0 *a; s0 *b; };\n")
			continue
		}
		src.WriteString("struct " + name(i) + " { " + name(i-1) + " *a; " + name(i-1) + " *b; };\n")
	}
	src.WriteString(program("s" + strings.Repeat("x", 39) + " F(s" + strings.Repeat("x", 39) + ") = 1;"))
	spec, err := compile(t, behind(src.String()))
	testutil.Must(t, err)
	if err := Stubs(spec); err == nil || !strings.Contains(err.Error(), "more than 64 items") {
		t.Errorf("error %v", err)
	}
}
