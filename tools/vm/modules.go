//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// moduleTree describes the modules of one kernel, from the files of depmod.
type moduleTree struct {
	paths    map[string]string   // path of each module relative to the directory, by name
	needs    map[string][]string // modules that each needs, by name
	builtins map[string]bool
}

// readModules reads the tables of depmod from a directory of modules.
func readModules(dir string) (*moduleTree, error) {
	t := &moduleTree{paths: map[string]string{}, needs: map[string][]string{}, builtins: map[string]bool{}}
	for file, add := range map[string]func(string){"modules.dep": t.addModule, "modules.builtin": t.addBuiltin} {
		f, err := os.Open(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		err = eachLine(f, add)
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return t, nil
}

func eachLine(r io.Reader, do func(string)) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		do(lines.Text())
	}
	return lines.Err()
}

// addModule parses a line of modules.dep: "path: paths of needed modules ...".
func (t *moduleTree) addModule(line string) {
	file, needs, ok := strings.Cut(line, ":")
	if !ok {
		return
	}
	name := moduleName(file)
	t.paths[name] = file
	for _, need := range strings.Fields(needs) {
		t.needs[name] = append(t.needs[name], moduleName(need))
	}
}

// addBuiltin parses a line of modules.builtin: the path that the module would have.
func (t *moduleTree) addBuiltin(line string) { t.builtins[moduleName(line)] = true }

// moduleName returns the name of a module from its file name. The kernel treats dashes in names as underscores.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// moduleError is the error for a module that the kernel does not have.
type moduleError struct{ name string }

func (e *moduleError) Error() string {
	return fmt.Sprintf("the guest's kernel has no module '%s': choose another one with --kernel-package", e.name)
}

// closure lists the paths of the named modules and of all that they need, each once and after its own dependencies.
func (t *moduleTree) closure(names ...string) (paths []string, err error) {
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if seen[name] || t.builtins[name] {
			return nil
		}
		seen[name] = true
		for _, need := range slices.Backward(t.needs[name]) { // same order as modprobe
			if err := add(need); err != nil {
				return err
			}
		}
		file, ok := t.paths[name]
		if !ok {
			return &moduleError{name}
		}
		paths = append(paths, file)
		return nil
	}
	for _, name := range names {
		if err := add(moduleName(name)); err != nil {
			return nil, err
		}
	}
	return paths, nil
}
