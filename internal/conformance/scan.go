package conformance

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Sources holds the references to rules in the Go files of a tree.
type Sources struct {
	// Tests maps a rule's id to the sorted tests that name it: "transport.TestCredits". A test names the ids in its
	// comments and strings, including those of functions that it uses, and of tables from which it runs subtests.
	Tests map[string][]string

	// Named maps each id to a position in test files, whether in a test or not.
	Named map[string]string

	// Places maps a rule's id, or a section as in "RFC 5666 3.6", to the files other than tests with comments that name
	// it.
	Places map[string][]string
}

// Scan reads the Go files of a tree, except for those in testdata, in directories with a name that
// begins with a dot or an underscore, and those that are not built on Linux.
func Scan(fsys fs.FS, c *Catalogue) (*Sources, error) {
	s := &Sources{Tests: make(map[string][]string), Named: make(map[string]string), Places: make(map[string][]string)}
	// The platform on which all tests are built.
	platform := build.Default
	platform.GOOS, platform.GOARCH, platform.CgoEnabled = "linux", "amd64", true
	platform.JoinPath = path.Join
	platform.OpenFile = func(name string) (io.ReadCloser, error) { return fsys.Open(name) }
	// Tests of code that a test generates: see internal/testing/generated.
	generated := platform
	generated.BuildTags = []string{"generated"}

	fset := token.NewFileSet()
	packages := make(map[string]*testPackage)
	var dirs []string
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != "." && (base[0] == '.' || base[0] == '_' || base == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		dir := path.Dir(name)
		if ok, err := platform.MatchFile(dir, path.Base(name)); err != nil {
			return err
		} else if later, _ := generated.MatchFile(dir, path.Base(name)); !ok && !later {
			return nil
		}
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !strings.HasSuffix(name, "_test.go") {
			if !strings.HasSuffix(dir, "test") { // names of test suites end like that
				s.places(c, f, name)
			}
			return nil
		}
		for _, m := range c.ids.FindAllString(string(src), -1) {
			if s.Named[m] == "" {
				s.Named[m] = name
			}
		}
		// A package and its external tests may have functions with the same name.
		key := dir + " " + f.Name.Name
		if packages[key] == nil {
			packages[key] = &testPackage{name: dir, decls: make(map[string]*decl)}
			dirs = append(dirs, key)
		}
		packages[key].add(c, f, strings.HasSuffix(name, deviceFiles))
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, key := range dirs {
		packages[key].tests(s.Tests)
	}
	for _, list := range s.Tests {
		slices.Sort(list)
	}
	for id, list := range s.Tests {
		s.Tests[id] = slices.Compact(list)
	}
	return s, nil
}

// cited matches sections as comments cite them: "RFC 5666 section 3.6", "RFC 8797 sections
// 4.1, 4.2 and 5.1".
var (
	cited  = regexp.MustCompile(`RFC (\d+),? sections? (\d+(?:\.\d+)*(?:(?:,| and|, and) \d+(?:\.\d+)*)*)`)
	number = regexp.MustCompile(`\d+(?:\.\d+)*`)
)

func (s *Sources) places(c *Catalogue, f *ast.File, name string) {
	add := func(key string) {
		if !slices.Contains(s.Places[key], name) {
			s.Places[key] = append(s.Places[key], name)
		}
	}
	for _, group := range f.Comments {
		text := strings.Join(strings.Fields(group.Text()), " ")
		for _, id := range c.ids.FindAllString(text, -1) {
			add(id)
		}
		for _, m := range cited.FindAllStringSubmatch(text, -1) {
			for _, section := range number.FindAllString(m[2], -1) {
				add("RFC " + m[1] + " " + section)
			}
		}
	}
}

// Tests that need an RDMA device are in files with this suffix, and are marked like this.
const (
	deviceFiles = "_rdma_test.go"
	deviceMark  = "†"
)

// testPackage is the test files of one package.
type testPackage struct {
	name  string
	decls map[string]*decl // of the package, by name
}

// decl is a function or variable in test files.
type decl struct {
	test   bool // go test runs it
	dead   bool // it is always skipped
	table  bool // a variable or constant
	runs   bool // it runs subtests with names from a table
	ids    []string
	uses   []string // identifiers that it uses
	device bool     // in a file of tests for RDMA devices
}

func (p *testPackage) add(c *Catalogue, f *ast.File, device bool) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil || d.Body == nil {
				continue
			}
			info := function(c, f, d)
			info.device = device
			p.decls[d.Name.Name] = info
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				spec, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				info := &decl{table: true}
				for _, v := range spec.Values {
					ast.Inspect(v, func(n ast.Node) bool { info.note(c, n); return true })
				}
				for _, name := range spec.Names {
					p.decls[name.Name] = info
				}
			}
		}
	}
}

// note records the ids and identifiers in a node.
func (d *decl) note(c *Catalogue, n ast.Node) {
	switch n := n.(type) {
	case *ast.Ident:
		d.uses = append(d.uses, n.Name)
	case *ast.BasicLit:
		if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
			d.ids = append(d.ids, c.ids.FindAllString(text, -1)...)
		}
	}
}

// function analyzes a function of a test file. Subtests that are always skipped are ignored;
// if such a subtest has its name from a table, it is unknown which names remain, and the whole
// function counts as skipped.
func function(c *Catalogue, f *ast.File, fn *ast.FuncDecl) *decl {
	d := &decl{test: isTest(fn), dead: skips(fn.Body)}
	var skipped []ast.Node
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			run := isRun(call)
			d.runs = d.runs || run && !literal(call.Args[0])
			for _, arg := range call.Args {
				if lit, ok := arg.(*ast.FuncLit); ok && skips(lit.Body) {
					d.dead = d.dead || run && !literal(call.Args[0])
					skipped = append(skipped, call)
					return false
				}
			}
		}
		d.note(c, n)
		return true
	})
	if fn.Doc != nil {
		d.ids = append(d.ids, c.ids.FindAllString(fn.Doc.Text(), -1)...)
	}
	for _, group := range f.Comments {
		if group.Pos() < fn.Body.Pos() || group.End() > fn.Body.End() || slices.ContainsFunc(skipped, func(n ast.Node) bool {
			return n.Pos() <= group.Pos() && group.End() <= n.End()
		}) {
			continue
		}
		d.ids = append(d.ids, c.ids.FindAllString(group.Text(), -1)...)
	}
	return d
}

// isTest reports whether go test runs a function: tests, and fuzz targets with their seed
// corpus.
func isTest(fn *ast.FuncDecl) bool {
	name, params := fn.Name.Name, fn.Type.Params.List
	if len(params) != 1 || name == "TestMain" {
		return false
	}
	ptr, ok := params[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	sel, ok := ptr.X.(*ast.SelectorExpr)
	return ok && (strings.HasPrefix(name, "Test") && sel.Sel.Name == "T" || strings.HasPrefix(name, "Fuzz") && sel.Sel.Name == "F")
}

// skips reports whether a body is empty or has an unconditional call of Skip.
func skips(body *ast.BlockStmt) bool {
	if len(body.List) == 0 {
		return true
	}
	for _, stmt := range body.List {
		expr, ok := stmt.(*ast.ExprStmt)
		if !ok {
			continue
		}
		if call, ok := expr.X.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
				switch sel.Sel.Name {
				case "Skip", "Skipf", "SkipNow":
					return true
				}
			}
		}
	}
	return false
}

func isRun(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Run" && len(call.Args) == 2
}

func literal(e ast.Expr) bool {
	_, ok := e.(*ast.BasicLit)
	return ok
}

// tests adds the package's tests to the rules that they name.
func (p *testPackage) tests(to map[string][]string) {
	for name, d := range p.decls {
		if !d.test || d.dead {
			continue
		}
		name = p.name + "." + name
		if d.device {
			name += deviceMark
		}
		for _, id := range p.reach(d, make(map[*decl]bool)) {
			to[id] = append(to[id], name)
		}
	}
}

// reach collects the ids of d and of everything it uses.
func (p *testPackage) reach(d *decl, seen map[*decl]bool) []string {
	seen[d] = true
	ids := slices.Clone(d.ids)
	for _, name := range d.uses {
		used := p.decls[name]
		if used == nil || seen[used] || used.dead || used.test || used.table && !d.runs {
			continue
		}
		ids = append(ids, p.reach(used, seen)...)
	}
	return ids
}
