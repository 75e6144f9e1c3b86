package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/conformance"
)

// checkAll checks everything that does not require running tests: that the rules and tests exist, and that each defect
// applies and leaves Go files that parse and packages that type-check.
func checkAll(ctx context.Context, root string, defects []*defect, rules *rules, w io.Writer) (bool, error) {
	tree := os.DirFS(root)
	ok := true
	tests := testNames{tree: tree, of: make(map[string][]string)}
	applied := make(map[*defect]map[string]string)
	var dirs []string
	for _, d := range defects {
		changed, err := d.apply(tree)
		if err := errors.Join(rules.check(d), tests.check(d), err, parses(changed)); err != nil {
			fmt.Fprintf(w, "%s: %v\n", d.path(), err)
			ok = false
			continue
		}
		applied[d] = changed
		for name := range changed {
			if path.Ext(name) == ".go" {
				dirs = append(dirs, path.Dir(name))
			}
		}
	}
	slices.Sort(dirs)
	types, err := newTypeChecker(ctx, root, slices.Compact(dirs))
	if err != nil {
		return false, err
	}
	for _, d := range defects {
		if err := types.check(applied[d]); err != nil {
			fmt.Fprintf(w, "%s: it does not build: %v\n", d.path(), err)
			ok = false
		}
	}
	return ok, nil
}

// parses parses the Go files that a defect changes.
func parses(changed map[string]string) error {
	var all error
	for name, text := range changed {
		if path.Ext(name) == ".go" {
			_, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
			all = errors.Join(all, err)
		}
	}
	return all
}

// testNames finds the functions in the test files of each package, on demand.
type testNames struct {
	tree fs.FS
	of   map[string][]string // by directory
}

// check reports tests of a defect that name a function that does not exist.
func (n *testNames) check(d *defect) error {
	for _, t := range d.tests {
		names, err := n.in(strings.TrimPrefix(t.pkg, "./"))
		if err != nil {
			return err
		}
		for _, name := range t.functions() {
			if !slices.Contains(names, name) {
				return fmt.Errorf("%s has no test function %s", t.pkg, name)
			}
		}
	}
	return nil
}

func (n *testNames) in(dir string) ([]string, error) {
	if names, ok := n.of[dir]; ok {
		return names, nil
	}
	files, err := fs.Glob(n.tree, dir+"/*"+testSuffix)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, file := range files {
		src, err := fs.ReadFile(n.tree, file)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				names = append(names, fn.Name.Name)
			}
		}
	}
	n.of[dir] = names
	return names, nil
}

// rules holds the rules of the catalogue, and the tests that bear the id of each.
type rules struct {
	known map[string]bool
	tests map[string][]string
}

// readRules reads the catalogue of this program's tree, and the tests of another tree.
func readRules(tree fs.FS) (*rules, error) {
	c, err := conformance.Ours()
	if err != nil {
		return nil, err
	}
	s, err := conformance.Scan(tree, c)
	if err != nil {
		return nil, err
	}
	r := &rules{known: make(map[string]bool), tests: s.Tests}
	for _, rule := range c.Rules {
		r.known[rule.ID] = true
	}
	return r, nil
}

// bears reports whether a test function of a package bears an id.
func (r *rules) bears(pkg, function, id string) bool {
	name := strings.TrimPrefix(pkg, "./") + "." + function
	return slices.ContainsFunc(r.tests[id], func(t string) bool { return strings.TrimRight(t, "†") == name })
}

// check requires each rule of a defect to be in the catalogue, and one of its tests to bear the rule's id.
func (r *rules) check(d *defect) error {
	for _, id := range d.rules {
		if !r.known[id] {
			return fmt.Errorf("there is no rule %s", id)
		}
		if !slices.ContainsFunc(d.tests, func(t test) bool {
			return slices.ContainsFunc(t.functions(), func(name string) bool { return r.bears(t.pkg, name, id) })
		}) {
			return fmt.Errorf("none of its tests bears the id %s", id)
		}
	}
	return nil
}
