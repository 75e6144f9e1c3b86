// Package snippets type-checks the Go code in documentation: blocks marked "go" in Markdown, and indented blocks of
// package comments.
//
// A block is a whole file, a list of declarations or a fragment of a function. For the last two, the packages that the
// block names are imported, and the caller of [Checker.Check] declares variables that the text explains. A line "..."
// and the literal {...} mark omissions. A fragment may leave variables unused; a whole file must be complete.
package snippets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/golist"
)

// Snippet is a code block in a document.
type Snippet struct {
	File string
	Line int // of its first line
	Code string
}

// First returns the first line without surrounding spaces.
func (s Snippet) First() string {
	line, _, _ := strings.Cut(s.Code, "\n")
	return strings.TrimSpace(line)
}

// Markdown returns the blocks of a Markdown document that are marked as Go.
func Markdown(file string, src []byte) []Snippet {
	var list []Snippet
	inside := false
	for i, line := range strings.Split(string(src), "\n") {
		switch {
		case !inside && strings.TrimSpace(line) == "```go":
			inside = true
			list = append(list, Snippet{File: file, Line: i + 2})
		case inside && strings.TrimSpace(line) == "```":
			inside = false
		case inside:
			list[len(list)-1].Code += line + "\n"
		}
	}
	return list
}

// PackageComment returns the indented blocks of the package comment of a Go file. Blocks separated only by empty lines
// are one block.
func PackageComment(file string, src []byte) ([]Snippet, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil || f.Doc == nil {
		return nil, err
	}
	var list []Snippet
	blank := -1 // empty lines since the last block; negative if none
	for _, c := range f.Doc.List {
		code, indented := strings.CutPrefix(c.Text, "//\t")
		switch {
		case indented && blank < 0:
			list = append(list, Snippet{File: file, Line: fset.Position(c.Pos()).Line, Code: code + "\n"})
			blank = 0
		case indented:
			list[len(list)-1].Code += strings.Repeat("\n", blank) + code + "\n"
			blank = 0
		case blank >= 0 && c.Text == "//":
			blank++
		default:
			blank = -1
		}
	}
	return list, nil
}

// Checker type-checks snippets. It must not be used concurrently.
type Checker struct {
	names    map[string]string // import paths by package name
	importer types.Importer
}

// NewChecker returns a Checker for snippets that import packages of the module in directory root, or their
// dependencies. It makes the go command compile them.
func NewChecker(root string) (*Checker, error) {
	list, err := golist.List(context.Background(), root, nil, "-e", "-export", "-deps", "./...")
	if err != nil {
		return nil, err
	}
	c := &Checker{names: make(map[string]string), importer: golist.Importer(token.NewFileSet(), list)}
	for _, p := range list {
		if p.Export == "" || p.Name == "main" || hidden(p.ImportPath) {
			continue
		}
		if old, ok := c.names[p.Name]; !ok || len(p.ImportPath) < len(old) {
			c.names[p.Name] = p.ImportPath
		}
	}
	return c, nil
}

// hidden reports whether documentation cannot import a package.
func hidden(path string) bool {
	return strings.HasPrefix(path, "vendor/") || slices.Contains(strings.Split(path, "/"), "internal")
}

// Check type-checks a snippet. given declares what a fragment or a list of declarations uses and the surrounding text
// explains: "var b []byte". The error names the line of the document.
func (c *Checker) Check(s Snippet, given string) error {
	code := elide(s.Code)
	if strings.HasPrefix(code, "package ") {
		return c.types(s, "", code, false)
	}
	if err := c.types(s, "package snippet; ", code, true, given); !errors.As(err, new(*syntaxError)) {
		return err
	}
	head, tail := "package snippet; func _() {", "\n}\n"
	if returns(head + code + tail) {
		head, tail = "package snippet; func _() error {", "\npanic(0)\n}\n"
	}
	return c.types(s, head, code+tail, true, given)
}

// elided matches the marks for omissions.
var elided = regexp.MustCompile(`(?m)^[ \t]*\.\.\.$|\{\.\.\.\}`)

// elide removes the marks but keeps the number of lines.
func elide(code string) string {
	return elided.ReplaceAllStringFunc(code, func(m string) string {
		if m == "{...}" {
			return "{}"
		}
		return ""
	})
}

// returns reports whether the first function of a file returns a value.
func returns(src string) bool {
	f, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			found = found || len(n.Results) == 1
		}
		return true
	})
	return found
}

// syntaxError is an error of the parser.
type syntaxError struct{ error }

// types checks the file that consists of head, which has no newline, and code. If part is set, it may leave variables
// unused, and the file is checked together with files that contain the declarations given and the imports.
func (c *Checker) types(s Snippet, head, code string, part bool, given ...string) error {
	fset := token.NewFileSet()
	var files []*ast.File
	for i, src := range append([]string{head + code}, given...) {
		name := s.File
		if i > 0 {
			name, src = "given", "package snippet; "+src
		}
		f, err := c.parse(fset, name, src, part)
		if err != nil {
			return &syntaxError{s.at(err)}
		}
		files = append(files, f)
	}
	var list []error
	conf := types.Config{Importer: c.importer, Error: func(err error) {
		if !part || !unused(err) {
			list = append(list, s.at(err))
		}
	}}
	conf.Check(files[0].Name.Name, fset, files, nil)
	return errors.Join(list...)
}

// unused reports whether an error is about an unused variable.
func unused(err error) bool {
	var e types.Error
	return errors.As(err, &e) && e.Soft && strings.HasPrefix(e.Msg, "declared and not used")
}

// parse parses a file. If part is set, it imports the packages that the file names, on its first line.
func (c *Checker) parse(fset *token.FileSet, name, src string, part bool) (*ast.File, error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
	if err != nil || !part {
		return parser.ParseFile(fset, name, src, 0)
	}
	paths := make(map[string]bool)
	for _, id := range f.Unresolved {
		if path, ok := c.names[id.Name]; ok && qualifies(f, id) {
			paths[path] = true
		}
	}
	var imports bytes.Buffer
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		fmt.Fprintf(&imports, "import %q; ", path)
	}
	clause, rest, _ := strings.Cut(src, "; ")
	return parser.ParseFile(fset, name, clause+"; "+imports.String()+rest, 0)
}

// qualifies reports whether an identifier is the X of some X.Sel with an exported Sel.
func qualifies(f *ast.File, id *ast.Ident) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && sel.X == id && sel.Sel.IsExported() {
			found = true
		}
		return !found
	})
	return found
}

// position matches the beginning of an error of the parser or the type checker.
var position = regexp.MustCompile(`^([^:]+):(\d+):\d+: `)

// at changes the position of an error to the line in the document.
func (s Snippet) at(err error) error {
	text := err.Error()
	m := position.FindStringSubmatch(text)
	if m == nil || m[1] != s.File {
		return fmt.Errorf("%s:%d: %s", s.File, s.Line, text)
	}
	var line int
	fmt.Sscan(m[2], &line)
	return fmt.Errorf("%s:%d: %s", s.File, s.Line+line-1, text[len(m[0]):])
}
