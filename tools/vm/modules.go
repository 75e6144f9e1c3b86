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

// moduleTree knows the modules of one kernel by what depmod writes.
type moduleTree struct {
	paths    map[string]string   // of each module below the directory, by its name
	needs    map[string][]string // the modules that each needs, by name
	builtins map[string]bool
}

// readModules reads the tables that depmod has left in a directory of modules.
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

// addModule parses a line of modules.dep: "path: path of what it needs ...".
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

// moduleName is the name of a module by its file. The kernel takes dashes in names for
// underscores.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// moduleError is a module that the kernel does not have.
type moduleError struct{ name string }

func (e *moduleError) Error() string {
	return fmt.Sprintf("the guest's kernel has no module '%s': choose another one with --kernel-package", e.name)
}

// closure lists the paths of the named modules and of all that they need, each once
// and after what it needs itself.
func (t *moduleTree) closure(names ...string) (paths []string, err error) {
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if seen[name] || t.builtins[name] {
			return nil
		}
		seen[name] = true
		for _, need := range slices.Backward(t.needs[name]) { // as modprobe does it
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
