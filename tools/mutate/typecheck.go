package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/golist"
)

// typeChecker checks packages after a defect has been applied. It finds most of what compiling them would, in a
// fraction of the time.
type typeChecker struct {
	fset     *token.FileSet
	packages map[string]*goPackage // by directory relative to the root
	imports  types.Importer
}

// goPackage is a package without defects.
type goPackage struct {
	*golist.Package
	files map[string]*ast.File // those needed so far, by name
}

// newTypeChecker returns a typeChecker for the packages in some directories of the tree.
func newTypeChecker(ctx context.Context, root string, dirs []string) (*typeChecker, error) {
	args := []string{"-export", "-deps"}
	for _, dir := range dirs {
		args = append(args, "./"+dir)
	}
	list, err := golist.List(ctx, root, nil, args...)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	c := &typeChecker{fset: fset, packages: make(map[string]*goPackage), imports: golist.Importer(fset, list)}
	for _, p := range list {
		if dir, err := filepath.Rel(root, p.Dir); err == nil && !p.DepOnly {
			c.packages[dir] = &goPackage{p, make(map[string]*ast.File)}
		}
	}
	return c, nil
}

// check checks the packages of changed files with their new contents. It does not check tests.
func (c *typeChecker) check(changed map[string]string) error {
	var dirs []string
	for name := range changed {
		if path.Ext(name) == ".go" && !strings.HasSuffix(name, testSuffix) {
			dirs = append(dirs, path.Dir(name))
		}
	}
	slices.Sort(dirs)
	var all error
	for _, dir := range slices.Compact(dirs) {
		p := c.packages[dir]
		if p == nil {
			return fmt.Errorf("go list found no package in %s", dir)
		}
		files, err := p.parse(c.fset, dir, changed)
		if err == nil && len(p.CgoFiles) == 0 { // the types of C are unknown here
			conf := types.Config{Importer: c.imports, FakeImportC: true}
			_, err = conf.Check(p.ImportPath, c.fset, files, nil)
		}
		all = errors.Join(all, err)
	}
	return all
}

// parse returns the files of a package, some of which are changed.
func (p *goPackage) parse(fset *token.FileSet, dir string, changed map[string]string) ([]*ast.File, error) {
	var files []*ast.File
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		at := path.Join(dir, name)
		f := p.files[name]
		if text, ok := changed[at]; ok {
			var err error
			if f, err = parser.ParseFile(fset, at, text, parser.SkipObjectResolution); err != nil {
				return nil, err
			}
		} else if f == nil {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, err
			}
			if f, err = parser.ParseFile(fset, at, text, parser.SkipObjectResolution); err != nil {
				return nil, err
			}
			p.files[name] = f
		}
		files = append(files, f)
	}
	return files, nil
}
