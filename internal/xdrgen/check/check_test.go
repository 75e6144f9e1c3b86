package check

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

func compile(t *testing.T, src string) (*Spec, error) {
	t.Helper()
	tree, err := syntax.Parse([]syntax.Source{{Name: "a.x", Text: []byte(src)}}, syntax.Options{})
	testutil.Must(t, err)
	return Check(tree)
}

func TestErrors(t *testing.T) {
	const enum = "enum e { A = 1, B = 2 };\n"
	tests := []struct {
		name, src string
		want      []string
	}{
		{"constant", "const A = B;\ntypedef int x<C>;", []string{"a.x:1:11: constant B is not declared", "a.x:2:15: constant C is not declared"}},
		{"constant twice", "const A = 1;\nenum e { A };", []string{"a.x:2:10: constant A is declared twice"}},
		{"constant by itself", "const A = B;\nconst B = A;", []string{"a.x:2:7: constant B is defined by itself"}},
		{"text as a number", "const A = \"a\";\ntypedef int x<A>;", []string{"a.x:1:7: constant A is used as a number, but is a text"}},
		{"negative length", "const A = -1;\ntypedef opaque x<A>;", []string{"a.x:2:18: length is -1, not within 0 and 4294967295"}},
		{"large length", "typedef opaque x<4294967296>;", []string{"a.x:1:18: length is 4294967296, not within 0 and 4294967295"}},

		{"type", "struct s { t x; };", []string{"a.x:1:12: type t is not declared"}},
		{"value twice in a scope", "enum e { A, A }; /* scoped */", []string{"a.x:1:13: constant A is declared twice"}},
		{"value of a scope elsewhere", "enum e { A }; /* scoped */\nconst B = A;", []string{"a.x:2:11: constant A is not declared"}},
		{"value of another scope", "enum e { A }; /* scoped */\nenum f { B }; /* scoped */\nunion u switch (f d) { case A: void; };",
			[]string{"a.x:3:29: constant A is not declared"}},
		{"type twice", "typedef int t;\nstruct t { int x; };", []string{"a.x:2:8: type t is declared twice"}},
		{"member twice", "struct s {\n int a;\n bool a; };", []string{"a.x:3:7: member a is declared twice"}},
		{"arm twice", "union u switch (int d) { case 1: int a;\n case 2: int a; };", []string{"a.x:2:14: member a is declared twice"}},
		{"typedef by itself", "typedef a b;\ntypedef b a;", []string{"a.x:1:11: type b is defined by itself"}},
		{"pointer to itself", "typedef a *a;", []string{"a.x:1:12: type a is defined by itself"}},

		{"enumerator", "enum e { A = 0x80000000 };", []string{"a.x:1:10: value of A is 2147483648, which does not fit an enumeration's 32 bits"}},
		{"enumerator after the last", "enum e { A = 0x7fffffff,\n B };", []string{"a.x:2:2: value of B is 2147483648, which does not fit an enumeration's 32 bits"}},

		{"discriminant", "union u switch (hyper d) { default: void; };", []string{"a.x:1:23: discriminant d is neither an integer of 32 bits nor a bool nor an enumeration"}},
		{"discriminant that is an array", "union u switch (int d<>) { default: void; };", []string{"a.x:1:21: discriminant d is neither an integer of 32 bits nor a bool nor an enumeration"}},
		{"label not in the enumeration", enum + "union u switch (e d) { case 3: void; };", []string{"a.x:2:29: case 3 is not a value of the discriminant"}},
		{"label not a bool", "union u switch (bool d) { case 2: void; };", []string{"a.x:1:32: case 2 is not a value of the discriminant"}},
		{"label not unsigned", "union u switch (unsigned d) { case -1: void; };", []string{"a.x:1:36: case -1 is not a value of the discriminant"}},
		{"label twice", enum + "union u switch (e d) { case A: void;\ncase 1: void; };", []string{"a.x:3:6: case 1 is declared twice"}},
		{"default twice", "union u switch (int d) { default: void;\ndefault: void; };", []string{"a.x:2:1: second default"}},
		{"no arms", "union u switch (int d) { };", []string{"a.x:1:7: union has no arms"}},

		{"struct in itself", "struct s { int a; s b; };", []string{"a.x:1:8: each s contains another one"}},
		{"struct in itself, but not one", "struct s { int a; s b[0]; };", []string{"a.x:1:8: each s contains another one"}},
		{"struct in itself by way of others", "struct s { t x[2]; };\ntypedef u t;\nstruct u { s x; };",
			[]string{"a.x:1:8: each s contains another one", "a.x:2:11: each t contains another one", "a.x:3:8: each u contains another one"}},
		{"elements without bytes", "struct s { void; };\ntypedef s t<>;", []string{"a.x:2:12: elements of a variable-length array take no bytes"}},
		{"too large", "typedef opaque a[0x20000000];\ntypedef a b[3];", []string{"a.x:2:11: type b takes more than 1073741824 bytes of memory"}},

		{"invalid Go name", "struct s { int x; /* go: 1st */\nint y; /* go: range */\n};", []string{`a.x:1:19: "1st" cannot be the name of x in Go`, `a.x:2:8: "range" cannot be the name of y in Go`}},
		{"Go name of Go", "typedef int t; /* go: uint32 */\nconst A = 1; /* go: xdr */", []string{`a.x:1:16: "uint32" cannot be the name of t in Go`, `a.x:2:14: "xdr" cannot be the name of A in Go`}},
		{"Go name of a package", "const A = 1; /* go: rpc */\nenum e { B = 1 /* go: res */\n};", []string{"a.x:1:14: go: name rpc is taken", "a.x:2:16: go: name res is taken"}},
		{"Go name twice", "enum e { A = 1 /* go: T */\n};\nstruct s { int x; }; /* go: T */", []string{"a.x:3:22: go: name T is taken"}},
		{"Go name of another field", "struct s { int x; /* go: A */\nint y; /* go: A */\n};", []string{"a.x:2:8: go: name A is taken"}},
		{"Go name of a method", "union u switch (int d) {\ncase 1: int x; /* go: Check */\n};", []string{"a.x:2:16: go: name Check is taken"}},
		{"Go name of another procedure", "program P { version V { void F(void) = 1; /* go: A */\nvoid G(void) = 2; /* go: A */\n} = 1; } = 1;", []string{"a.x:2:19: go: name A is taken"}},
		{"distinct array", "typedef int t<3>; /* distinct */", []string{"a.x:1:19: only a typedef of a number, a bool or a string can be distinct"}},
		{"distinct typedef", "typedef int t;\ntypedef t u; /* distinct */", []string{"a.x:2:14: only a typedef of a number, a bool or a string can be distinct"}},

		{"extern typedef", "typedef int t; /* go: T */ /* extern */", []string{"a.x:1:28: only a typedef of opaque data, a string or an array can be extern"}},
		{"extern without a name", "typedef opaque t<>; /* extern */", []string{"a.x:1:16: type t needs a comment go with the name that Go has it under"}},
		{"extern item", "typedef opaque t<>; /* go: T */ /* extern */\ntypedef t u;\nstruct s { u x; /* ddp */\n};",
			[]string{"a.x:3:17: x cannot be placed directly: Go has its type by hand"}},
		{"flat number", "struct s { int x; /* flat */\n};", []string{"a.x:1:19: x cannot be flat: it is neither a structure, nor a union, nor a linked list of structures with one member"}},
		{"flat list", "struct n { int a; int b; n *next; };\nstruct s { n *x; /* flat */\n};", []string{"a.x:2:18: x cannot be flat: it is neither a structure, nor a union, nor a linked list of structures with one member"}},
		{"flat recursion", "struct t { int a; u v; }; union u switch (bool b) { case TRUE: t x; /* flat */\n default: void; };",
			[]string{"a.x:1:69: x cannot be flat: its type is recursive"}},
		{"flat field twice", "struct t { int x; };\nstruct s { int x; t y; /* flat */\n};", []string{"a.x:2:8: s has two fields or methods of the name X: choose names by comments go"}},
		{"flat method", "struct t { int check; };\nstruct s { t y; /* flat */\n};", []string{"a.x:2:8: s has two fields or methods of the name Check: choose names by comments go"}},
		{"flat fields of two types", "struct t { int x; };\nunion u switch (bool b) { case TRUE: t y; /* flat */\n case FALSE: bool x; };",
			[]string{"a.x:2:7: u has two fields or methods of the name X: choose names by comments go"}},
		{"flat field and two others", "struct t { int x; };\nunion u switch (int d) { case 1: t y; /* flat */\n case 2: int x; case 3: int X; };",
			[]string{"a.x:2:7: u has two fields or methods of the name X: choose names by comments go"}},
		{"flat fields in one arm", "struct t { int x; };\nstruct s { t y; /* flat */\n int x; };\nunion u switch (bool b) { case TRUE: s z; /* flat */\n default: void; };",
			[]string{"a.x:2:8: s has two fields or methods of the name X: choose names by comments go", "a.x:4:7: u has two fields or methods of the name X: choose names by comments go"}},
		{"head without an item", "struct s /* head */ { opaque x<>; };", []string{"a.x:1:10: s has no head: it does not end with its only item marked ddp"}},
		{"head with a tail", "struct s /* head */ { opaque x<>; /* ddp */\n int y; };", []string{"a.x:1:10: s has no head: it does not end with its only item marked ddp"}},
		{"head with two items", "struct s /* head */ { opaque x<>; /* ddp */\n opaque y<>; /* ddp */\n};", []string{"a.x:1:10: s has no head: it does not end with its only item marked ddp"}},
		{"head around recursion", "struct s /* head */ { u v; };\nunion u switch (int d) { case 1: opaque x<>; /* ddp */\n case 2: u next; };",
			[]string{"a.x:1:10: s has no head: it does not end with its only item marked ddp"}},
		{"head of an array", "struct t { opaque x<>; /* ddp */ };\nstruct s /* head */ { t y<2>; };", []string{"a.x:2:10: s has no head: it does not end with its only item marked ddp"}},

		{"program twice", "program P { version V { void F(void) = 1; } = 1; } = 1;\nprogram P { version V { void F(void) = 1; } = 1; } = 1;",
			[]string{"a.x:2:9: program P is declared twice"}},
		{"version twice", "program P { version V { void F(void) = 1; } = 1;\n version W { void F(void) = 1; } = 1; } = 1;",
			[]string{"a.x:2:36: program P has version 1 twice"}},
		{"procedure twice", "program P { version V { void F(void) = 1;\n void G(void) = 1;\n void F(void) = 2; } = 1; } = 1;",
			[]string{"a.x:2:17: version V has procedure 1 twice", "a.x:3:7: version V has procedure F twice"}},
		{"number of a program", "program P { version V { void F(void) = -1; } = 1; } = 0x100000000;",
			[]string{"a.x:1:40: procedure number is -1, not within 0 and 4294967295", "a.x:1:55: program number is 4294967296, not within 0 and 4294967295"}},
		{"body in a procedure", "program P { version V { struct { int a; } F(void) = 1; } = 1; } = 1;",
			[]string{"a.x:1:25: type of a procedure needs a name"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := compile(t, tt.src)
			if err == nil {
				t.Fatal("no error")
			}
			testutil.WantLines(t, strings.Split(err.Error(), "\n"), tt.want...)
			var typed *syntax.Error
			if !errors.As(err, &typed) {
				t.Errorf("error is a %T", err)
			}
		})
	}
}

// RFC 4506 leaves these open, or published files have them.
func TestAccepted(t *testing.T) {
	for _, src := range []string{
		"typedef struct foo foo;\nstruct foo { int a; };",
		"struct s { s_t x; };\ntypedef int s_t;",
		"const A = TRUE;\nunion u switch (int b) { case A: int x; case FALSE: void; };",
		"enum e { A = 1 /* open */ };\nunion u switch (e d) { case A: void; };",
		"enum e /* open */ { A = 1 };\nunion u switch (e d) { case 2: void; };",
		"union u switch (int d) { case 1: default: int a; };",
		"union u switch (int stat) { case 1: int stat; default: void; };",
		"typedef opaque empty[0];",
		"struct s { u v; };\nunion u switch (int d) { case 0: void; case 1: s next; };",
		"program P { version V { int P(int) = 1; } = 1; } = 1;\nconst V = 7;",
	} {
		if _, err := compile(t, src); err != nil {
			t.Errorf("%s\n%v", src, err)
		}
	}
}

// Names in Go, and types that are distinct, may be chosen for programs, too.
func TestChosenWithStubs(t *testing.T) {
	spec, err := compile(t, `
		const N = 2; /* go: limit */
		typedef int id; /* distinct */ /* go: ID */
		enum e { /* go: kind */
			A = 1 /* go: first */
		};
		union u switch (e by /* go: By */) { /* go: Choice */
		case A:
			id x; /* go: X */
		};
		program P { /* go: program */
			version V { /* go: version */
				u F(id) = 1; /* go: procedure */
			} = 1;
		} = 1;`)
	testutil.Must(t, err)
	testutil.Must(t, Stubs(spec))
	if p := spec.Programs[0].Versions[0].Procs[0]; p.Go != "procedure" || !p.Args[0].Type.Distinct {
		t.Errorf("procedure %+v", p)
	}
}

func find(t *testing.T, spec *Spec, name string) *Type {
	t.Helper()
	i := slices.IndexFunc(spec.Types, func(t *Type) bool { return t.Name == name })
	if i < 0 {
		t.Fatalf("no type %s", name)
	}
	return spec.Types[i]
}

func TestSizes(t *testing.T) {
	spec, err := compile(t, `
		const N = 3;
		struct fixed { int a; hyper b; double c; quadruple d; bool e; opaque f[5]; int g[N]; };
		struct varying { opaque a<5>; string b<>; };
		typedef fixed many<10>;
		typedef opaque none[0];
		union u switch (int d) { case 0: void; case 1: fixed f; case 2: varying *v; };
		union big switch (int d) { case 1: fixed f; case 2: hyper h; };
		struct list { int a; list *next; };
		typedef list *head;
		union expr switch (int d) { case 0: int n; case 1: expr e; case 2: pair p; };
		struct pair { expr left; expr right; };
		struct self { self *next; int behind; };
		typedef unsigned hyper huge<>;
	`)
	testutil.Must(t, err)
	const fixed = 4 + 8 + 8 + 16 + 4 + 8 + 12
	for _, tt := range []struct {
		name      string
		min, max  int64
		recursive bool
	}{
		{"fixed", fixed, fixed, false},
		{"varying", 8, 4 + 8 + 4 + 1<<32, false},
		{"many", 4, 4 + 10*fixed, false},
		{"none", 0, 0, false},
		{"u", 4, 4 + 4 + 4 + 8 + 4 + 1<<32, false},
		{"big", 12, 4 + fixed, false},
		{"list", 4, 4, false}, // the link is gone
		{"head", 4, Unbounded, false},
		{"expr", 8, Unbounded, true},
		{"pair", 16, Unbounded, true},
		{"self", 8, Unbounded, true},
		{"huge", 4, 4 + 8*(1<<32-1), false},
	} {
		if got := find(t, spec, tt.name); got.Min != tt.min || got.Max != tt.max || got.Recursive != tt.recursive {
			t.Errorf("%s: %d to %d bytes, recursive %v; want %d to %d, %v", tt.name, got.Min, got.Max, got.Recursive, tt.min, tt.max, tt.recursive)
		}
	}
	pointers := make(map[string][]bool)
	for _, ty := range spec.Types {
		for _, a := range ty.Arms {
			pointers[ty.Name] = append(pointers[ty.Name], a.Pointer)
		}
	}
	if got, want := fmt.Sprint(pointers), "map[big:[false false] expr:[false true true] u:[false false false]]"; got != want {
		t.Errorf("arms that are pointers: %s, want %s", got, want)
	}
}

// A length is known by the name of its constant, which generated code uses for it.
func TestLengthNames(t *testing.T) {
	spec, err := compile(t, `
		const N = 3;
		typedef opaque fixed[N];
		typedef opaque varying<N>;
		typedef string text<N>;
		typedef int numbers<N>;
		typedef int three<3>;
		typedef int any<>;
	`)
	testutil.Must(t, err)
	for name, want := range map[string]string{"fixed": "N", "varying": "N", "text": "N", "numbers": "N", "three": "", "any": ""} {
		if got := find(t, spec, name).Elem.LenOf; got != want {
			t.Errorf("%s: the length is that of the constant %q, want %q", name, got, want)
		}
	}
}

// Which structures are elements of lists.
func TestLists(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		link      string // of struct s
		chained   bool
	}{
		{"head and element", "struct s { int a; s *next; }; struct head { s *first; };", "next", false},
		{"typedef", "typedef struct s *list; struct s { int a; list next; };", "next", false},
		{"two typedefs", "typedef s t; typedef t *list; typedef list l2; struct s { int a; l2 next; };", "next", false},
		{"argument", "struct s { int a; s *next; }; program P { version V { void F(s *) = 1; } = 1; } = 1;", "next", false},
		{"link alone", "struct s { s *next; }; typedef s *list;", "next", false},
		{"no head", "struct s { int a; s *next; };", "", true},
		{"by value in a struct", "struct s { int a; s *next; }; struct head { s *first; s second; };", "", true},
		{"by value in an array", "struct s { int a; s *next; }; struct head { s *first; s all<>; };", "", true},
		{"by value as an argument", "struct s { int a; s *next; }; typedef s *list; program P { version V { void F(s) = 1; } = 1; } = 1;", "", true},
		{"by value through a typedef", "struct s { int a; s *next; }; typedef s t; struct head { s *first; t x; };", "", true},
		{"link in front", "struct s { s *next; int a; }; struct head { s *first; };", "", false},
		{"tree", "struct s { s *left; s *right; }; struct head { s *first; };", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec, err := compile(t, tt.src)
			testutil.Must(t, err)
			if s := find(t, spec, "s"); s.Link != tt.link || s.Chained() != tt.chained {
				t.Errorf("link %q, chained %v; want %q, %v", s.Link, s.Chained(), tt.link, tt.chained)
			}
		})
	}
}

// Many types in a row are no problem, in either direction.
func TestDeepSpecification(t *testing.T) {
	var src strings.Builder
	const depth = 20000
	for i := range depth {
		fmt.Fprintf(&src, "struct s%d { s%d *x; int a; };\ntypedef t%d t%d;\n", i, i+1, i+1, i)
	}
	fmt.Fprintf(&src, "struct s%d { int a; };\ntypedef int t%d;\n", depth, depth)
	spec, err := compile(t, src.String())
	testutil.Must(t, err)
	if s := find(t, spec, "s0"); s.Min != 8 || s.Recursive {
		t.Errorf("min %d, recursive %v", s.Min, s.Recursive)
	}
}
