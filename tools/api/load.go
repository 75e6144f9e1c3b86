package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/golist"
)

// The main module. Its directory is the top of the repository.
const mainModule = "github.com/rpcrdma/rpcrdma"

// unpromised lists directories of packages that can be imported but are only for the repository's own use:
// docs/install.md names them. Immutable.
var unpromised = []string{"bench", "cgo", "cmd", "examples", "grpcrdma/examples", "rpc/rpcbind/rpcbindtest", "tools"}

// promised reports whether a package has a listing.
func promised(p *golist.Package) bool {
	dir := strings.TrimPrefix(p.ImportPath, mainModule+"/")
	return ours(p) && p.Name != "main" && !slices.Contains(strings.Split(dir, "/"), "internal") &&
		!slices.ContainsFunc(unpromised, func(other string) bool { return dir == other || strings.HasPrefix(dir, other+"/") })
}

// ours reports whether a package is one of the repository.
func ours(p *golist.Package) bool { return p.Module != nil && p.Module.Main }

// top returns the directory of the main module.
func top() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", mainModule).Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// goList lists packages for one platform, in import order.
func goList(dir, cgo string, args ...string) ([]*golist.Package, error) {
	env := []string{"GOOS=linux", "GOARCH=amd64", "GOFLAGS=", "CGO_ENABLED=" + cgo}
	return golist.List(context.Background(), dir, env, append([]string{"-deps"}, args...)...)
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
	list, err := goList(root, "1", "./...", "./rpc/promrpc/...", "./rpc/otelrpc/...", "./rpc/rpcsec/krb5/...", "./grpcrdma/...")
	if err != nil {
		return nil, nil, err
	}
	foreign := []string{"-export"}
	for _, p := range list {
		if !ours(p) && p.ImportPath != "unsafe" && p.ImportPath != "runtime/cgo" {
			foreign = append(foreign, p.ImportPath)
		}
	}
	// Foreign modules are compiled, and without cgo, so that no C compiler is needed.
	compiled, err := goList(root, "0", foreign...)
	if err != nil {
		return nil, nil, err
	}
	c := newChecker(compiled)
	var listed []*types.Package
	for _, p := range list {
		if !ours(p) || p.Name == "main" {
			continue
		}
		pkg, err := c.check(p)
		if err != nil {
			return nil, nil, err
		}
		if promised(p) {
			listed = append(listed, pkg)
		}
	}
	return c, listed, nil
}

// checker type-checks packages after their imports, unless it has those as export data.
type checker struct {
	fset    *token.FileSet
	checked map[string]*types.Package
	files   map[string][]*ast.File
	others  types.Importer
}

func newChecker(compiled []*golist.Package) *checker {
	fset := token.NewFileSet()
	return &checker{
		fset: fset, checked: make(map[string]*types.Package), files: make(map[string][]*ast.File), others: golist.Importer(fset, compiled),
	}
}

// Import returns a package that another one imports.
func (c *checker) Import(path string) (*types.Package, error) {
	if pkg := c.checked[path]; pkg != nil {
		return pkg, nil
	}
	return c.others.Import(path)
}

// check type-checks a package. It does not check names of C: no exported declaration depends on them.
func (c *checker) check(p *golist.Package) (*types.Package, error) {
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
