package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/mod/modfile"
)

// tidy runs go mod tidy in every module. That command ignores workspaces and would download a published version of the
// other modules, which differs from the tree or does not exist. It therefore gets files with replace directives in
// place of the module's own, and no hashes of our modules.
func (t *tree) tidy(write bool, w io.Writer) error {
	dir, err := os.MkdirTemp("", "release-tidy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	untidy := false
	for _, m := range t.modules {
		told, err := t.tidyOne(m, dir, write)
		if err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
		if len(told) > 0 {
			untidy = true
			if _, err := fmt.Fprintf(w, "%s\n(in %s)\n", bytes.TrimSpace(told), m.dir); err != nil {
				return err
			}
		}
	}
	if untidy {
		return errors.New("these are not tidy, 'go run ./tools/release tidy -w' makes them so")
	}
	if write { // so that later modules read what was written
		if t, err = load(t.root); err != nil {
			return err
		}
		if err := t.rejoin(); err != nil {
			return err
		}
	}
	return join(slices.Concat(t.structure(), t.joined()))
}

// tidyOne tidies one module, or returns what would change.
func (t *tree) tidyOne(m *module, dir string, write bool) (diff []byte, err error) {
	args := []string{"mod", "tidy"}
	if !write {
		args = append(args, "-diff")
	}
	other := m.published() && len(m.uses) > 0
	mod, sum := filepath.Join(dir, "tidy.mod"), filepath.Join(dir, "tidy.sum")
	if other {
		if err := t.replaced(m, mod, sum); err != nil {
			return nil, err
		}
		args = append(args, "-modfile="+mod)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(t.root, filepath.FromSlash(m.dir))
	cmd.Env = append(cmd.Environ(), "GOWORK=off", "GOFLAGS=")
	var said bytes.Buffer
	cmd.Stderr = &said
	diff, err = cmd.Output()
	switch {
	case len(diff) > 0 && !write:
		return diff, nil
	case err != nil:
		return nil, fmt.Errorf("go mod tidy: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	case write && other:
		return nil, t.takeBack(m, mod, sum)
	}
	return nil, nil
}

// replaced writes a go.mod that replaces the modules of the repository that a module needs with their directories, and
// a go.sum without them.
func (t *tree) replaced(m *module, mod, sum string) error {
	f, err := readMod(t.file(m, "go.mod"))
	if err != nil {
		return err
	}
	for _, o := range t.requires(m) {
		if err := f.AddReplace(o.path, "", filepath.Join(t.root, filepath.FromSlash(o.dir)), ""); err != nil {
			return err
		}
	}
	is, err := os.ReadFile(t.file(m, "go.sum"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(os.WriteFile(mod, modfile.Format(f.Syntax), 0o666), os.WriteFile(sum, sumFile(t.withoutOurs(is)), 0o666))
}

// takeBack restores a module's own form of the files that replaced has written and go mod tidy has changed.
func (t *tree) takeBack(m *module, mod, sum string) error {
	f, err := readMod(mod)
	if err != nil {
		return err
	}
	for _, o := range t.requires(m) {
		if err := f.DropReplace(o.path, ""); err != nil {
			return err
		}
	}
	f.Cleanup()
	is, err := os.ReadFile(t.file(m, "go.sum"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	tidy, err := os.ReadFile(sum)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	lines := t.withoutOurs(tidy)
	for line := range bytes.Lines(is) {
		if line := string(bytes.TrimSpace(line)); t.sumOfOurs(line) {
			lines = append(lines, line)
		}
	}
	return errors.Join(writeChanged(t.file(m, "go.mod"), modfile.Format(f.Syntax)), writeChanged(t.file(m, "go.sum"), sumFile(lines)))
}
