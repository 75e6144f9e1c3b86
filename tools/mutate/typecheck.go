package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// listLimit is for go list, which compiles what the packages import.
const listLimit = 10 * time.Minute

// A typeChecker checks packages as defects leave them: most of what compiling them would
// find, in a fraction of the time.
type typeChecker struct {
	fset     *token.FileSet
	packages map[string]*goPackage // by directory, from the root
	imports  types.Importer
}

// A goPackage is what go list tells of a package.
type goPackage struct {
	Dir, ImportPath   string
	Export            string // the file with what it exports
	GoFiles, CgoFiles []string
	ImportMap         map[string]string

	files map[string]*ast.File // without defects, by name
}

// newTypeChecker prepares for checks of the packages in some directories of the tree.
func newTypeChecker(ctx context.Context, root string, dirs []string) (*typeChecker, error) {
	args := []string{"list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,CgoFiles,ImportMap"}
	for _, dir := range dirs {
		args = append(args, "./"+dir)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	r, err := (&limited.Program{Cmd: cmd, Limit: listLimit, MaxOutput: maxOutput}).Run(ctx)
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, r.Said())
	}
	c := &typeChecker{fset: token.NewFileSet(), packages: make(map[string]*goPackage)}
	exports := make(map[string]string)
	for d := json.NewDecoder(strings.NewReader(string(r.Stdout))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if dir, err := filepath.Rel(root, p.Dir); err == nil && slices.Contains(dirs, dir) {
			c.packages[dir] = &p
		}
	}
	c.imports = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("go list does not know %s", path)
		}
		return os.Open(exports[path])
	})
	return c, nil
}

// check checks the packages of changed files, by the contents that they have now. Tests are
// not checked.
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
		if err == nil {
			conf := types.Config{Importer: c.imports, FakeImportC: true}
			_, err = conf.Check(p.ImportPath, c.fset, files, nil)
		}
		all = errors.Join(all, err)
	}
	return all
}

// parse returns the files of a package, some of which have changed.
func (p *goPackage) parse(fset *token.FileSet, dir string, changed map[string]string) ([]*ast.File, error) {
	if p.files == nil {
		p.files = make(map[string]*ast.File)
	}
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
