// Package golist queries packages with the go command and imports their exported declarations, for programs and tests
// that type-check code of this repository.
package golist

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"time"
)

// timeLimit allows the go command to compile everything.
const timeLimit = 10 * time.Minute

// A Package is the output of go list -json for a package.
type Package struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string // without tests and files that use cgo
	CgoFiles   []string
	Export     string // file with export data, with -export
	DepOnly    bool   // listed only because another package imports it
	Module     *Module
}

// A Module is the module of a package. Packages of the standard library have none.
type Module struct {
	Path string
	Main bool
}

// List runs go list -json with additional arguments in a directory, and with additional environment variables. Packages
// come after their imports.
func List(ctx context.Context, dir string, env []string, args ...string) ([]*Package, error) {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Name,Dir,GoFiles,CgoFiles,Export,DepOnly,Module"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	var list []*Package
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(Package)
		switch err := d.Decode(p); {
		case errors.Is(err, io.EOF):
			return list, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		list = append(list, p)
	}
}

// Importer returns an importer for the packages of a list made with -export.
func Importer(fset *token.FileSet, list []*Package) types.Importer {
	files := make(map[string]string)
	for _, p := range list {
		files[p.ImportPath] = p.Export
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("package %s is not part of the module or of what it depends on", path)
		}
		return os.Open(files[path])
	})
}
