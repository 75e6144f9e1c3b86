package main

import (
	"bytes"
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
)

// main module, whose directory is the top of the repository.
const mainModule = "github.com/rpcrdma/rpcrdma"

// unpromised lists directories whose packages are importable, and for the repository's own use:
// docs/stability.md names them. Immutable.
var unpromised = []string{"bench", "cgo", "cmd", "examples", "interop", "rpcbind/rpcbindtest", "tools"}

// A goPackage is what go list tells of a package.
type goPackage struct {
	ImportPath, Name, Dir, Export string
	GoFiles, CgoFiles             []string
	Module                        *struct {
		Path string
		Main bool
	}
}

// listed reports whether a package has a listing.
func (p *goPackage) listed() bool {
	dir := strings.TrimPrefix(p.ImportPath, mainModule+"/")
	return p.ours() && p.Name != "main" && !slices.Contains(strings.Split(dir, "/"), "internal") &&
		!slices.ContainsFunc(unpromised, func(other string) bool { return dir == other || strings.HasPrefix(dir, other+"/") })
}

// ours reports whether a package is one of the repository.
func (p *goPackage) ours() bool { return p.Module != nil && p.Module.Main }

// top returns the directory of the main module.
func top() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", mainModule).Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// goList asks for packages of one platform, in the order of their imports.
func goList(dir, cgo string, args ...string) ([]*goPackage, error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Name,Dir,Export,GoFiles,CgoFiles,Module"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "GOOS=linux", "GOARCH=amd64", "GOFLAGS=", "CGO_ENABLED="+cgo)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	var list []*goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(goPackage)
		switch err := d.Decode(p); {
		case errors.Is(err, io.EOF):
			return list, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		list = append(list, p)
	}
}

// listings returns the API by package directory.
func listings(root string) (map[string][]string, error) {
	_, list, err := load(root)
	if err != nil {
		return nil, err
	}
	api := make(map[string][]string)
	for _, pkg := range list {
		api[strings.TrimPrefix(pkg.Path(), mainModule+"/")] = describe(pkg)
	}
	return api, nil
}

// load type-checks the repository and returns the packages that have listings.
func load(root string) (*checker, []*types.Package, error) {
	patterns := []string{"./..."}
	exporters, err := filepath.Glob(filepath.Join(root, "exporters", "*"))
	if err != nil {
		return nil, nil, err
	}
	for _, dir := range exporters {
		patterns = append(patterns, "./exporters/"+filepath.Base(dir)+"/...")
	}
	list, err := goList(root, "1", patterns...)
	if err != nil {
		return nil, nil, err
	}
	foreign := []string{"-export"}
	for _, p := range list {
		if !p.ours() && p.ImportPath != "unsafe" && p.ImportPath != "runtime/cgo" {
			foreign = append(foreign, p.ImportPath)
		}
	}
	// What others have is compiled, and without cgo, so that no C compiler is needed.
	compiled, err := goList(root, "0", foreign...)
	if err != nil {
		return nil, nil, err
	}
	c := newChecker(compiled)
	var listed []*types.Package
	for _, p := range list {
		if !p.ours() || p.Name == "main" {
			continue
		}
		pkg, err := c.check(p)
		if err != nil {
			return nil, nil, err
		}
		if p.listed() {
			listed = append(listed, pkg)
		}
	}
	return c, listed, nil
}

// A checker type-checks packages whose imports it has checked before, or has as export data.
type checker struct {
	fset    *token.FileSet
	checked map[string]*types.Package
	files   map[string][]*ast.File
	others  types.Importer
}

func newChecker(compiled []*goPackage) *checker {
	c := &checker{fset: token.NewFileSet(), checked: make(map[string]*types.Package), files: make(map[string][]*ast.File)}
	exports := make(map[string]string)
	for _, p := range compiled {
		exports[p.ImportPath] = p.Export
	}
	c.others = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("package %s is not compiled", path)
		}
		return os.Open(exports[path])
	})
	return c
}

// Import returns a package that another one imports.
func (c *checker) Import(path string) (*types.Package, error) {
	if pkg := c.checked[path]; pkg != nil {
		return pkg, nil
	}
	return c.others.Import(path)
}

// check type-checks a package. Names of C are taken as they come: no exported one depends on them.
func (c *checker) check(p *goPackage) (*types.Package, error) {
	var files []*ast.File
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		f, err := parser.ParseFile(c.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: c, FakeImportC: true, Sizes: types.SizesFor("gc", "amd64"), IgnoreFuncBodies: true}
	pkg, err := conf.Check(p.ImportPath, c.fset, files, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path.Base(p.ImportPath), err)
	}
	c.checked[p.ImportPath], c.files[p.ImportPath] = pkg, files
	return pkg, nil
}
