package main

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The API of this tree is the one that is committed.
func TestListings(t *testing.T) {
	root, err := top()
	if err != nil {
		t.Fatal(err)
	}
	want, err := listings(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := stored(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range compare(got, want) {
		t.Error(line)
	}
	if t.Failed() {
		t.Log("if that is meant, 'make generate' writes docs/api anew")
	}
	for _, pkg := range []string{"transport", "proto/xdr", "rdmacm", "ibv", "rpc/otelrpc"} {
		if len(want[pkg]) < 10 {
			t.Errorf("%s offers %d names", pkg, len(want[pkg]))
		}
	}
	for pkg := range want {
		if strings.Contains(pkg, "internal") || strings.HasPrefix(pkg, "cmd") || strings.HasPrefix(pkg, "tools") {
			t.Errorf("%s is listed", pkg)
		}
	}
}

// Every link in a comment leads somewhere.
func TestLinks(t *testing.T) {
	root, err := top()
	if err != nil {
		t.Fatal(err)
	}
	list, err := links(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range list {
		t.Error(finding)
	}
}

// Links that lead nowhere are found, wherever they stand.
func TestBadLinks(t *testing.T) {
	const src = `// Package p has [T], [T.M], [*T], [io.Reader], [Gone] and [gone.T].
package p

import "io"

// T is a type: [T.Gone], of [R].
type T struct {
	// N is a field: [none.N], an array[N] and [1].
	N int
}

// M is a method: [T.N], see [Nowhere].
func (T) M(io.Reader) {}

// R is [io.Reader], which is a list:
//   - [Lost]s
//
// At [HOST]:PORT:
//
//	[Code]
const R = 1
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	conf := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	pkg, err := conf.Check("p", fset, []*ast.File{f}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{fset: fset, files: map[string][]*ast.File{"p": {f}}}
	got, err := c.badLinks(pkg)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"p, package: [Gone] is no link", "p, package: [gone.T] is no link", "p, R: [Lost] is no link",
		"p, T: [T.Gone] is no link", "p, T: [none.N] is no link", "p, T.M: [Nowhere] is no link",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// docs/install.md names the packages that have no listing.
func TestUnpromised(t *testing.T) {
	root, err := top()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(text), "They have no listing and no promise:")
	if !ok {
		t.Fatal("the list is not there")
	}
	list, _, _ = strings.Cut(list, ", and everything")
	named := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(" ,\n`", r) })
	if !slices.Equal(named, unpromised) {
		t.Errorf("docs/install.md names %q, want %q", named, unpromised)
	}
}

// what checks a package of one file.
func what(t *testing.T, src string) *types.Package {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	conf := types.Config{Importer: importer.ForCompiler(fset, "source", nil), FakeImportC: true, IgnoreFuncBodies: true}
	pkg, err := conf.Check("example.org/p", fset, []*ast.File{f}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return pkg
}

// Each kind of declaration, and what is no part of the API.
func TestDescribe(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		want      []string
	}{
		{"constants", "const Untyped = 1 << 3; const Typed Kind = 2; type Kind uint8; const hidden = 1",
			[]string{"const Typed Kind = 2", "const Untyped = 8", "type Kind uint8"}},
		{"a variable", "var Err, hidden = error(nil), 1", []string{"var Err error"}},
		{"functions", "func F(a, b int, more ...string) (n int, err error) { return }\nfunc f() {}",
			[]string{"func F(int, int, ...string) (int, error)"}},
		{"a function that takes one", "func F(do func(name string) error, by map[string]func(n int)) {}",
			[]string{"func F(func(string) error, map[string]func(int))"}},
		{"type parameters", "func F[T any](v T) T { return v }\ntype List[T comparable] struct { Items []T }\nfunc (l *List[T]) Len() int { return 0 }",
			[]string{"func F[T any](v T) T", "method (*List) Len() int", "type List[T comparable] struct", "type List[T comparable] struct, Items []T"}},
		{"a structure", "type S struct { A, b int; C []byte }", []string{"type S struct", "type S struct, A int", "type S struct, C []byte"}},
		{"a comparable one", "type S struct { A int }", []string{"type S struct, comparable", "type S struct, A int"}},
		{"an embedded type", "type S struct { inner }\ntype inner struct{ N int }\nfunc (*inner) Close() error { return nil }",
			[]string{"method (*S) Close() error", "type S struct, comparable"}},
		{"an embedded type that is exported", "type S struct { T; f func() }\ntype T int\nfunc (T) String() string { return \"\" }",
			[]string{"method (S) String() string", "method (T) String() string", "type S struct", "type S struct, embedded T", "type T int"}},
		{"an interface", "type I interface { Do(n int) error; Close() }",
			[]string{"type I interface { Close, Do }", "type I interface, Close()", "type I interface, Do(int) error"}},
		{"one that nobody else implements", "type I interface { Do(); hidden() }",
			[]string{"type I interface { Do, unexported methods }", "type I interface, Do()"}},
		{"an alias", "type A = []byte", []string{"type A = []byte"}},
		{"types of others", "import \"io\"\nfunc F(r io.Reader) {}", []string{"func F(io.Reader)"}},
		{"methods of what is hidden", "type t int\nfunc (t) M() {}", nil},
		{"names of C", "import \"C\"\ntype T int\nfunc f() { C.f() }\ntype h struct { p *C.char }", []string{"type T int"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := describe(what(t, "package p\n"+tt.src+"\n"))
			slices.Sort(tt.want)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
			}
		})
	}
}

// Removed, new, and a package that is gone.
func TestCompare(t *testing.T) {
	got := map[string][]string{"a": {"func F()", "func G()"}, "b": {"func H()"}}
	want := map[string][]string{"a": {"func F()", "func G(int)"}}
	diff := compare(got, want)
	if w := []string{"a: - func G()", "a: + func G(int)", "b: - func H()"}; !slices.Equal(diff, w) {
		t.Errorf("got %q, want %q", diff, w)
	}
	twice := map[string][]string{"a": {"func F()", "func F()"}}
	if diff := compare(twice, map[string][]string{"a": {"func F()"}}); len(diff) != 1 {
		t.Errorf("a line that stands twice: %q", diff)
	}
	root := t.TempDir()
	for _, list := range []map[string][]string{got, want} { // the second takes the place of the first
		if err := store(root, list); err != nil {
			t.Fatal(err)
		}
		is, err := stored(root)
		if err != nil {
			t.Fatal(err)
		}
		if diff := compare(is, list); len(diff) > 0 {
			t.Errorf("stored is not what is read: %q", diff)
		}
	}
}
