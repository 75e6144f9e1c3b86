package layers

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// wellKnown lists methods of the standard library's interfaces, which need no comment.
var wellKnown = map[string]bool{
	"String": true, "Error": true, "Unwrap": true, "Is": true, "As": true,
	"Timeout": true, "Format": true, "GoString": true, "LogValue": true,
	"MarshalText": true, "UnmarshalText": true, "MarshalJSON": true, "UnmarshalJSON": true,
}

// ExportedDocumented requires a comment on every exported name of library layers and on each package. A comment on a
// group of constants or variables covers its members; a list of constants of one type needs only the comment of the
// type. In packages for others, methods of interfaces and fields of structs need a comment too.
func ExportedDocumented(t *Tree) []Finding {
	var list []Finding
	packages := make(map[string]*File) // the first file of each package
	introduced := make(map[string]bool)
	for f := range t.linked {
		if packages[f.Dir()] == nil {
			packages[f.Dir()] = f
		}
		if f.AST.Doc != nil {
			introduced[f.Dir()] = true
		}
		for _, decl := range f.AST.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Doc != nil || !d.Name.IsExported() {
					continue
				}
				if d.Recv != nil && (wellKnown[d.Name.Name] || !ast.IsExported(receiver(d.Recv.List[0].Type))) {
					continue
				}
				list = append(list, t.finding(f, d, "%s has no comment", d.Name.Name))
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						if spec.Name.IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
							list = append(list, t.finding(f, spec, "%s has no comment", spec.Name.Name))
						}
						list = append(list, t.membersDocumented(f, spec, d.Doc.Text()+spec.Doc.Text())...)
					case *ast.ValueSpec:
						if d.Doc != nil || spec.Doc != nil || spec.Comment != nil {
							continue
						}
						if first := d.Specs[0].(*ast.ValueSpec); d.Tok == token.CONST && len(d.Specs) > 1 && first.Type != nil {
							continue
						}
						for _, name := range spec.Names {
							if name.IsExported() {
								list = append(list, t.finding(f, name, "%s has no comment", name.Name))
							}
						}
					}
				}
			}
		}
	}
	for dir, f := range packages {
		if !introduced[dir] {
			list = append(list, t.finding(f, f.AST.Name, "package %s has no comment", f.AST.Name.Name))
		}
	}
	return inOrder(list)
}

// specification matches the comment of a type with fields defined by a specification or a man page.
var specification = regexp.MustCompile(`RFC \d|section \d|\w\(3\)`)

// membersDocumented returns the methods of an interface and the fields of a struct that no comment covers. A comment in
// the type covers the lines after it up to an empty line. The comment of the type covers the fields that it names, and
// all fields defined by a specification. No comment is needed for fields named like their type, fields with a help text
// in their tag, and fields of errors, as the error text shows them.
func (t *Tree) membersDocumented(f *File, spec *ast.TypeSpec, doc string) (list []Finding) {
	var members *ast.FieldList
	switch typ := spec.Type.(type) {
	case *ast.InterfaceType:
		members = typ.Methods
	case *ast.StructType:
		if !strings.HasSuffix(spec.Name.Name, "Error") && !specification.MatchString(doc) {
			members = typ.Fields
		}
	}
	if members == nil || !spec.Name.IsExported() || ast.IsGenerated(f.AST) || !forOthers(f.Dir()) {
		return nil
	}
	covered, end := false, 0
	for _, m := range members.List {
		if line := t.fset.Position(m.Pos()).Line; line != end+1 {
			covered = false
		}
		covered = covered || m.Doc != nil || m.Comment != nil || m.Tag != nil && strings.Contains(m.Tag.Value, ` help:"`)
		end = t.fset.Position(m.End()).Line
		for _, name := range m.Names {
			named := regexp.MustCompile(`\b` + name.Name + `\b`)
			if name.IsExported() && !covered && !named.MatchString(doc) && typeName(m.Type) != name.Name {
				list = append(list, t.finding(f, name, "%s.%s has no comment", spec.Name.Name, name.Name))
			}
		}
	}
	return list
}

// typeName returns the name of a type, or of a pointer's element type, without its package.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.StarExpr:
		return typeName(e.X)
	}
	return ""
}

// forOthers reports whether a library package is for programs outside of this repository. Raw C bindings and packages
// used only by tests of this repository can be imported, but are not for others.
func forOthers(dir string) bool {
	return !covers([]string{"cgo", "rpc/rpcbind/rpcbindtest"}, dir) && !slices.Contains(strings.Split(dir, "/"), "internal")
}

// PackagesHaveExamples requires an example of every package that others may import.
func PackagesHaveExamples(t *Tree) []Finding {
	packages := make(map[string]*File)
	shown := make(map[string]bool)
	for f := range t.linked {
		if dir := f.Dir(); packages[dir] == nil && forOthers(dir) {
			packages[dir] = f
		}
	}
	for f := range t.code {
		for _, decl := range f.AST.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && f.Test() && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Example") {
				shown[f.Dir()] = true
			}
		}
	}
	var list []Finding
	for dir, f := range packages {
		if !shown[dir] {
			list = append(list, Finding{File: f.Path, Text: "package " + f.AST.Name.Name + " has no example"})
		}
	}
	return inOrder(list)
}

// receiver returns the name of a method's receiver type.
func receiver(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x.Name
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		default:
			return ""
		}
	}
}

// Formatted requires that files are formatted by gofmt.
func Formatted(t *Tree) []Finding {
	var list []Finding
	for f := range t.code {
		want, err := format.Source(f.Src)
		if err != nil {
			list = append(list, Finding{File: f.Path, Text: err.Error()})
		} else if !bytes.Equal(want, f.Src) {
			list = append(list, Finding{File: f.Path, Text: "gofmt would change it"})
		}
	}
	return inOrder(list)
}

// The words are concatenated so that this file does not contain them. The prefix of generated server names is permitted
// in their spelling.
var (
	leftover    = regexp.MustCompile("(?i)TO" + "DO|FIX" + "ME|X" + "XX|not " + "implemented|(?-i:\\bun" + "implemented)|\\bst" + "ub\\b")
	machinePath = regexp.MustCompile("(^|[^[:alnum:]_.])/(wo" + "rk|fa" + "rm|ro" + "ot)/|\\.lib" + "rary\\b|\\bfa" + "rm-[a-z]+")
)

// NoLeftovers forbids markers of unfinished code.
func NoLeftovers(t *Tree) []Finding {
	return grep(t, leftover, "unfinished", func(f *File) bool {
		return strings.HasSuffix(f.Path, ".go") && !strings.HasSuffix(f.Path, ".pb.go") || strings.HasSuffix(f.Path, ".sh") ||
			path.Base(f.Path) == "Makefile" || bytes.HasPrefix(f.Src, []byte("#!"))
	})
}

// NoMachinePaths forbids paths of one machine.
func NoMachinePaths(t *Tree) []Finding {
	return grep(t, machinePath, "path of one machine", func(*File) bool { return true })
}

func grep(t *Tree, re *regexp.Regexp, what string, in func(*File) bool) []Finding {
	var list []Finding
	for _, f := range t.Files {
		if !in(f) {
			continue
		}
		for i, line := range strings.Split(string(f.Src), "\n") {
			if m := re.FindString(line); m != "" {
				list = append(list, Finding{File: f.Path, Line: i + 1, Text: what + ": " + strconv.Quote(m)})
			}
		}
	}
	return inOrder(list)
}

// shortestReason is the minimum length of a reason, in bytes.
const shortestReason = 10

// SkipsHaveReasons requires a reason for every skipped test.
func SkipsHaveReasons(t *Tree) []Finding {
	var list []Finding
	for f := range t.code {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			on, ok := sel.X.(*ast.Ident)
			if !ok || on.Name != "t" && on.Name != "tb" && on.Name != "b" && on.Name != "f" {
				return true
			}
			switch sel.Sel.Name {
			case "Skip" + "Now":
				list = append(list, t.finding(f, call, "a test is skipped without a reason"))
			case "Skip", "Skipf":
				if len(call.Args) == 0 {
					list = append(list, t.finding(f, call, "a test is skipped without a reason"))
					break
				}
				lit, ok := call.Args[0].(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					break
				}
				if reason, err := strconv.Unquote(lit.Value); err == nil && len(strings.TrimSpace(reason)) < shortestReason {
					list = append(list, t.finding(f, call, "%q is no reason to skip a test", reason))
				}
			}
			return true
		})
	}
	return inOrder(list)
}

// longestTest is the maximum number of lines of a function in a test file.
const longestTest = 200

// TestsAreShort requires that functions in test files, tests and helpers, are short enough for a reader.
func TestsAreShort(t *Tree) []Finding {
	var list []Finding
	for f := range t.code {
		if !f.Test() {
			continue
		}
		for _, decl := range f.AST.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := t.fset.Position(fn.End()).Line - t.fset.Position(fn.Pos()).Line + 1; n > longestTest {
				list = append(list, t.finding(f, fn, "%s has %d lines, more than %d: split it by theme", fn.Name.Name, n, longestTest))
			}
		}
	}
	return inOrder(list)
}

// testInText matches a test as named in documents: the package's directory, a dot, the function.
var testInText = regexp.MustCompile("`([a-z][a-z0-9/]*)\\.((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]*)")

// NamedTestsExist requires that the tests named in documents under docs exist.
func NamedTestsExist(t *Tree) []Finding {
	tests := make(map[string]bool)
	for f := range t.code {
		if !f.Test() {
			continue
		}
		for _, decl := range f.AST.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests[f.Dir()+"."+fn.Name.Name] = true
			}
		}
	}
	var list []Finding
	for _, f := range t.Files {
		if !below(f.Path, "docs") || path.Ext(f.Path) != ".md" {
			continue
		}
		for i, text := range bytes.Split(f.Src, []byte("\n")) {
			for _, m := range testInText.FindAllSubmatch(text, -1) {
				if name := string(m[1]) + "." + string(m[2]); !tests[name] {
					list = append(list, Finding{File: f.Path, Line: i + 1, Text: "there is no test " + name})
				}
			}
		}
	}
	return list
}
