package layers

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/golist"
)

// TestTransportGroups applies the table to package transport, as it is built here.
func TestTransportGroups(t *testing.T) {
	dir := filepath.Join(top, "transport")
	all, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	for _, f := range InGroups(TransportGroups, all) {
		t.Error(f)
	}

	// Imports come from what the compiler has made of them.
	packages, err := golist.List(t.Context(), top, nil, "-export", "-deps", "./transport")
	if err != nil {
		t.Fatal(err)
	}
	built := packages[len(packages)-1] // what it imports comes before it
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range built.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	if len(files) < len(all)/2 {
		t.Fatalf("%d of %d files are built", len(files), len(all))
	}
	list, err := PointsDown(TransportGroups, fset, files, golist.Importer(fset, packages))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		t.Error(f)
	}
}

// TestGroupsCanFail: references up and wrong tables are found.
func TestGroupsCanFail(t *testing.T) {
	groups := []Group{{"low", []string{"a", "b"}}, {"high", []string{"c"}}}
	const upper = "package p\n\ntype T struct{ Field int }\n\nfunc (T) Method() {}\n\nfunc F() {}\n\nconst C = 1\n\nvar V = low\n"
	for _, tt := range []struct {
		name, low string
		want      string // part of the only finding; "" when there must be none
	}{
		{"down, and within a group", "const low = lower", ""},
		{"a name of its own that is the same", "const low = 0\n\nfunc f() { F := 1; _ = F }", ""},
		{"a type", "const low = 0\n\nvar _ *T", `a.go:5: group "low" refers to T of c.go in group "high"`},
		{"a function", "const low = 0\n\nfunc f() { F(); F() }", "a.go:5: group \"low\" refers to F of c.go"},
		{"a constant", "const low = C", "refers to C of c.go"},
		{"a variable", "const low = 0\n\nfunc f() { V++ }", "refers to V of c.go"},
		{"a method", "const low = 0\n\nfunc f() { any.Method() }", "refers to Method of c.go"},
		{"a field", "const low = 0\n\nfunc f() { any.Field = 1 }", "refers to Field of c.go"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fset := token.NewFileSet()
			var files []*ast.File
			for _, f := range []struct{ name, src string }{
				{"a.go", "package p\n\n" + tt.low + "\n"},
				{"b.go", "package p\n\nconst lower = 0\n"},
				{"c.go", upper},
				{"d.go", "package p\n\nvar any T\n"}, // in no group
			} {
				parsed, err := parser.ParseFile(fset, f.name, f.src, 0)
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, parsed)
			}
			list, err := PointsDown(groups, fset, files, nil)
			if err != nil {
				t.Fatal(err)
			}
			if n := min(len(tt.want), 1); len(list) != n || n > 0 && !strings.Contains(list[0].String(), tt.want) {
				t.Errorf("findings %v, want %q", list, tt.want)
			}
		})
	}
	for _, tt := range []struct {
		files []string
		want  string
	}{
		{[]string{"x/a.go", "x/b.go", "x/c.go"}, "[]"},
		{[]string{"a.go", "b.go", "c.go", "d.go"}, "[d.go: the file is in no group: add it to internal/layers/order.go]"},
		{[]string{"a.go", "c.go"}, `[b.go: group "low" has a file that does not exist]`},
	} {
		if got := fmt.Sprint(InGroups(groups, tt.files)); got != tt.want {
			t.Errorf("files %v: findings %v, want %v", tt.files, got, tt.want)
		}
	}
	twice := []Group{{"low", []string{"a"}}, {"high", []string{"a"}}}
	if got := InGroups(twice, []string{"a.go"}); len(got) != 1 {
		t.Errorf("a file in two groups: findings %v", got)
	}
}
