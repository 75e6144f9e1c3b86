package gen_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/gen"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// compile is the whole compiler without files.
func compile(src string) (string, error) {
	tree, err := syntax.Parse([]syntax.Source{{Name: "a.x", Text: []byte(src)}}, syntax.Options{})
	if err != nil {
		return "", err
	}
	spec, err := check.Check(tree)
	if err != nil {
		return "", err
	}
	if err := check.Stubs(spec); err != nil {
		return "", err
	}
	code, err := gen.Generate(spec, gen.Options{Package: "p", Stubs: true})
	if err != nil {
		return "", &defect{err, string(code)}
	}
	return string(code) + byHand(spec), nil
}

// byHand returns the types that a specification leaves to be written by hand.
func byHand(spec *check.Spec) (code string) {
	for _, t := range spec.Types {
		if t.Extern {
			code += strings.ReplaceAll(`
type T struct{}
func (*T) Append(b []byte) []byte { return b }
func (*T) Decode(any) {}
func (*T) Check() error { return nil }
`, "T", t.Go)
		}
	}
	return code
}

// A defect is an error that is not about the source.
type defect struct {
	err  error
	code string
}

func (d *defect) Error() string { return d.err.Error() + "\n" + d.code }

// A typeChecker compiles Go as far as types. It reads the packages that generated code imports from
// source, once for all tests, without cgo.
type typeChecker struct {
	mu    sync.Mutex
	inner types.Importer
}

var sharedChecker = sync.OnceValue(func() *typeChecker {
	build.Default.CgoEnabled = false
	return &typeChecker{inner: importer.ForCompiler(token.NewFileSet(), "source", nil)}
})

// check returns nil with the race detector: the same tests run without it, too.
func (c *typeChecker) check(code string) error {
	if raceEnabled {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "a.go", code, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	conf := types.Config{Importer: c.inner, Sizes: types.SizesFor("gc", "386")} // the least an int can be
	_, err = conf.Check("p", fset, []*ast.File{file}, nil)
	return err
}

var place = regexp.MustCompile(`^[^:]*:[0-9]+:[0-9]+: .`)

// verify fails unless an error of the compiler is a list of mistakes with places, and code is Go.
func verify(t *testing.T, types *typeChecker, src, code string, err error) {
	t.Helper()
	if err == nil {
		if err := types.check(code); err != nil {
			t.Fatalf("%v\n%s\nis compiled to\n%s", err, src, code)
		}
		return
	}
	var broken *defect
	if errors.As(err, &broken) {
		t.Fatalf("%v\n%s", err, src)
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) > syntax.MaxErrors+1 {
		t.Fatalf("%d errors for\n%s", len(lines), src)
	}
	for _, line := range lines {
		if line != "too many errors" && !strings.HasPrefix(line, "a.x: input is longer") && !place.MatchString(line) {
			t.Fatalf("error %q has no place, for\n%s", line, src)
		}
	}
}

// sources returns the files of package golden.
func sources(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../golden/*.x")
	testutil.Must(t, err)
	more, err := filepath.Glob("../golden/*/*.x")
	testutil.Must(t, err)
	files = append(files, more...)
	var list []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		testutil.Must(t, err)
		list = append(list, string(text))
	}
	if len(list) == 0 {
		t.Fatal("no .x files")
	}
	return list
}

// FuzzCompile compiles arbitrary input: to mistakes with places, or to Go that has no errors.
func FuzzCompile(f *testing.F) {
	for _, src := range sources(f) {
		f.Add(src)
	}
	for _, src := range []string{
		"union u switch (int x) { default: void; };", "typedef a b; typedef b a;", "struct s { s x; };",
		"#if (((1)))\nconst A = 1;\n#endif", "enum e { A = 0x7fffffff, B };", "const A = B; const B = A;",
		"struct a { union switch (bool b) { case TRUE: a x[2]; case FALSE: void; } c; };",
		"typedef opaque a<>; program P { version V { a F(a, a *, a<3>) = 1; } = 1; } = 1;",
		"struct a { opaque x<>; /* ddp */ /* max: args.n */ }; struct b { int n; }; program P { version V { a F(b) = 1; b G(a) = 2; } = 1; } = 1;",
		"program P { version V { int A_F(int max, string len) = 1; int A_Impl(void) = 2; int A_Cred(bool b) = 3; } = 1; version V { } = 2; } = 1; const VClient = 1;",
		"struct n { n *next; opaque x<>; }; struct l { n *list; n one; }; program P { version V { l F(l) = 1; } = 1; } = 1;",
		"union u switch (bool b) { case TRUE: opaque x<>; /* flat */\n default: void; }; struct s { u v; /* flat */\n int b; };",
		"union u /* head */ switch (int d /* go: D */) { case 1: v a; /* flat */\n case 2: v b; /* flat */\n }; union v switch (bool e) { case TRUE: opaque x<>; /* ddp */\n default: void; };",
		"struct s /* head */ { k a; u v; /* flat */\n }; union u switch (k d) { default: opaque x<>; /* ddp */\n }; typedef int k<>; /* go: K */ /* extern */",
		"typedef opaque a<>; /* ddp */\ntypedef a b;\ntypedef string s<>; /* ddp: F */\nprogram P { version V { b F(a, s, b res) = 1; /* max: 9 */\n s G(s) = 2; /* max: 9 */\n int H(int n, s) = 3; } = 1; } = 1;",
		"typedef opaque a<>; /* ddp */\nstruct c { a x; a y[2]; a *z; };\nunion u switch (int n) { case 1: a x; default: c y; };\nprogram P { version V { u F(c) = 1; /* max: 5 */\n a G(u) = 2; } = 1; } = 1;",
		"union u switch (int d) { case 1: u next; case 2: t a; /* flat */\n default: void; }; struct t { int x; };",
		"struct n { void; n *next; }; struct m { n *list; }; struct o { m x; /* flat */\n int y; o *next; }; struct l { o *list; };",
		"struct *p { int x; p next; };", "typedef p *p;", "typedef struct { int a; } x[0]; struct y { x z<>; };",
		"struct s { int a; s x[0]; };", "union u switch (int d) { case 1: u x[0]; default: void; };",
		"typedef deep deep<4>; typedef opaque data<>; /* ddp */\nprogram P { version V { void F(deep, data) = 1; } = 1; } = 1;",
		"struct h /* head */ { u v; }; union u switch (int d) { case 1: opaque x<>; /* ddp */\n case 2: u next; default: void; };",
		"union u switch (int d) { case 1: int A; case 2: int a; }; struct s { u v; /* flat */\n};",
		"union u switch (int d) { case 1: int A; case 2: int a; default: v b; /* flat */\n}; struct v { int A; };",
		"union u switch (int d) { case 1: int A; case 2: int a; };",
		"typedef int a; /* go: vHandler */\nprogram P { version V { a F(a) = 1; } = 1; } = 1;",
		"typedef int a; /* go: vFCall */\nprogram P { version V { a F(a) = 1; } = 1; } = 1;",
		"typedef string s<4>;\ntypedef int a; /* go: checkVF */\nprogram P { version V { s F(a) = 1; } = 1; } = 1;",
		"struct x { string s<>; };\ntypedef int a; /* go: skipX */\ntypedef opaque b<>; /* ddp */\nprogram P { version V { a F(x, b) = 1; } = 1; } = 1;",
		"const N = 4; /* go: limit */\ntypedef string s<N>;\nprogram P { version V { void F(int limit, s limitArg) = 1; } = 1; } = 1;",
		"const N = 4; /* go: n */\ntypedef opaque b<N>; /* ddp */\nprogram P { version V { b F(int n, b) = 1; /* max: n */\n } = 1; } = 1;",
	} {
		f.Add(src)
	}
	types := sharedChecker()
	// The imports of generated code are read here, as a worker has ten seconds for an input.
	code, err := compile("typedef string s<1>;\nprogram P { version V { s F(s) = 1; } = 1; } = 1;")
	testutil.Must(f, err)
	testutil.Must(f, types.check(code))
	f.Fuzz(func(t *testing.T, src string) {
		code, err := compile(src)
		verify(t, types, src, code, err)
	})
}

// Types that double in each level do not double what is written.
func TestSizeOfCode(t *testing.T) {
	size := func(levels int) int {
		var src strings.Builder
		for i := range levels {
			fmt.Fprintf(&src, "struct a%d { a%d *x; a%d *y; a%d *next; };\n", i, i+1, i+1, i)
		}
		fmt.Fprintf(&src, "struct a%d { int z; a%d *next; };\n", levels, levels)
		code, err := compile(src.String())
		testutil.Must(t, err)
		return len(code)
	}
	if short, long := size(6), size(12); long > 3*short {
		t.Errorf("%d bytes of code with 6 levels, %d with 12", short, long)
	}
}

// A thousand files that differ from good ones in a few words; a hundred with the race detector.
func TestMutants(t *testing.T) {
	var words []string
	word := regexp.MustCompile(`\s+|\w+|/\*(?s:.*?)\*/|.`)
	files := sources(t)
	for _, src := range files {
		words = append(words, word.FindAllString(src, -1)...)
	}
	types, random := sharedChecker(), rand.New(rand.NewPCG(1, 2))
	good := 0
	mutants := 1000
	if raceEnabled {
		mutants = 100
	}
	for range mutants {
		list := word.FindAllString(files[random.IntN(len(files))], -1)
		for range 1 + random.IntN(3) {
			i := random.IntN(len(list))
			switch random.IntN(4) {
			case 0:
				list = slices.Delete(slices.Clone(list), i, i+1)
			case 1:
				list = slices.Insert(slices.Clone(list), i, words[random.IntN(len(words))])
			case 2:
				list[i] = words[random.IntN(len(words))]
			case 3:
				j := random.IntN(len(list))
				list[i], list[j] = list[j], list[i]
			}
		}
		src := strings.Join(list, "")
		code, err := compile(src)
		verify(t, types, src, code, err)
		if err == nil {
			good++
		}
	}
	if good == 0 || good == mutants {
		t.Errorf("%d of %d mutants compile: they do not show what they should", good, mutants)
	}
}
