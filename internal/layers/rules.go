// Package layers checks rules of the project: imports point down, import "C" only under cgo, no mutable package-level
// state, a comment on every exported name, an example for every package, and others. Its tests apply them to this tree,
// and to small broken trees that show that each rule can fail.
//
// Rules only analyze syntax. The comment of a rule says which exceptions it permits and where they are declared: in
// [Layers], in stateExceptions, or by the word "immutable" in the comment of a variable. [PointsDown] checks the order
// of the files of package transport, [TransportGroups], with type information.
package layers

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// A Finding is one violation of a rule.
type Finding struct {
	File string
	Line int // 0: the whole file
	Text string
}

func (f Finding) String() string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %s", f.File, f.Text)
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Text)
}

// File is a text file of a tree.
type File struct {
	Path string // slash-separated, relative to the root
	Src  []byte
	AST  *ast.File // nil unless it is a Go file
}

// Dir returns the directory of the file, which is that of its package.
func (f *File) Dir() string { return path.Dir(f.Path) }

// Test reports whether the file is compiled only for tests.
func (f *File) Test() bool { return strings.HasSuffix(f.Path, "_test.go") }

// A Tree is the input of the rules.
type Tree struct {
	Files []*File
	names map[string]bool // of all files, including those that are not text
	fset  *token.FileSet
}

// Load reads the text files of fsys, except in directories with names that begin with a dot, other than .github, and
// the file .git of a worktree. Go files in testdata directories count as text, not code.
func Load(fsys fs.FS) (*Tree, error) {
	t := &Tree{names: make(map[string]bool), fset: token.NewFileSet()}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && strings.HasPrefix(d.Name(), ".") && d.Name() != ".github" {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || name == ".git" {
			return nil
		}
		t.names[name] = true
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		if bytes.IndexByte(src, 0) >= 0 {
			return nil
		}
		f := &File{Path: name, Src: src}
		if strings.HasSuffix(name, ".go") && !slices.Contains(strings.Split(name, "/"), "testdata") {
			f.AST, err = parser.ParseFile(t.fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
		}
		t.Files = append(t.Files, f)
		return nil
	})
	return t, err
}

// code yields the Go files.
func (t *Tree) code(yield func(*File) bool) {
	for _, f := range t.Files {
		if f.AST != nil && !yield(f) {
			return
		}
	}
}

// linked yields the Go files of library layers, without tests.
func (t *Tree) linked(yield func(*File) bool) {
	for f := range t.code {
		if layer, ok := LayerOf(f.Dir()); ok && layer.Library && !f.Test() && !yield(f) {
			return
		}
	}
}

func (t *Tree) finding(f *File, at ast.Node, format string, args ...any) Finding {
	return Finding{File: f.Path, Line: t.fset.Position(at.Pos()).Line, Text: fmt.Sprintf(format, args...)}
}

// A Rule is one check.
type Rule struct {
	Name  string
	Check func(*Tree) []Finding
}

// Rules lists all rules. Immutable.
var Rules = []Rule{
	{"imports", Imports},
	{"cgo", CgoInOneLayer},
	{"state", NoPackageState},
	{"docs", ExportedDocumented},
	{"examples", PackagesHaveExamples},
	{"gofmt", Formatted},
	{"words", NoLeftovers},
	{"paths", NoMachinePaths},
	{"skips", SkipsHaveReasons},
	{"length", TestsAreShort},
	{"graph", GraphMatches},
	{"tests", NamedTestsExist},
	{"links", LinksResolve},
	{"messages", MessagesExist},
	{"english", ReadsNative},
}

// inOrder sorts findings by file and line.
func inOrder(list []Finding) []Finding {
	slices.SortFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Text, b.Text))
	})
	return list
}
