package main

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	gomod "golang.org/x/mod/module"
)

// unpublished lists the directories of modules that exist only for clones. Immutable.
var unpublished = []string{"bench", "tools"}

// module is a module of the repository.
type module struct {
	path string
	dir  string // slash-separated, "." for the top one
	mod  *modfile.File
	uses []string // paths of required modules of ours
}

// published reports whether users download the module.
func (m *module) published() bool { return !slices.Contains(unpublished, m.dir) }

// tag returns the name of the tag for a version of the module.
func (m *module) tag(version string) string { return path.Join(m.dir, version) }

// tree is a repository and its modules, each after those that it requires.
type tree struct {
	root    string
	work    *modfile.WorkFile
	modules []*module
}

// load reads go.work and the go.mod files that it lists.
func load(root string) (*tree, error) {
	name := filepath.Join(root, "go.work")
	src, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork(name, src, nil)
	if err != nil {
		return nil, err
	}
	byPath := make(map[string]*module)
	var main *module
	for _, use := range work.Use {
		m := &module{dir: path.Clean(use.Path)}
		if m.mod, err = readMod(filepath.Join(root, filepath.FromSlash(m.dir), "go.mod")); err != nil {
			return nil, err
		}
		m.path = m.mod.Module.Mod.Path
		byPath[m.path] = m
		if m.dir == "." {
			main = m
		}
	}
	if main == nil {
		return nil, fmt.Errorf("%s: no module at the top", name)
	}
	for _, m := range byPath {
		// A module is found only if its path matches its directory.
		if want := path.Join(main.path, m.dir); m.path != want {
			return nil, fmt.Errorf("%s/go.mod: the module is called %s, want %s", m.dir, m.path, want)
		}
		for _, r := range m.mod.Require {
			if byPath[r.Mod.Path] != nil {
				m.uses = append(m.uses, r.Mod.Path)
			}
		}
	}
	t := &tree{root: root, work: work}
	done := make(map[string]bool)
	for len(done) < len(byPath) {
		before := len(done)
		for _, p := range slices.Sorted(maps.Keys(byPath)) {
			m := byPath[p]
			if done[p] || slices.ContainsFunc(m.uses, func(use string) bool { return !done[use] }) {
				continue
			}
			done[p] = true
			t.modules = append(t.modules, m)
		}
		if len(done) == before {
			return nil, fmt.Errorf("%s: modules require each other in a circle", name)
		}
	}
	return t, nil
}

func readMod(name string) (*modfile.File, error) {
	src, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(name, src, nil)
}

// published returns the modules that users download, in order.
func (t *tree) published() []*module {
	return slices.DeleteFunc(slices.Clone(t.modules), func(m *module) bool { return !m.published() })
}

// ours reports whether path is a module of the repository.
func (t *tree) ours(path string) bool {
	return slices.ContainsFunc(t.modules, func(m *module) bool { return m.path == path })
}

// file returns the name of a file of a module.
func (t *tree) file(m *module, name string) string {
	return filepath.Join(t.root, filepath.FromSlash(m.dir), name)
}

// atVersion returns the go.mod of a module with one version required of all others. Comments and the order of the lines
// are kept.
func (t *tree) atVersion(m *module, version string) ([]byte, error) {
	f, err := readMod(t.file(m, "go.mod"))
	if err != nil {
		return nil, err
	}
	for _, use := range m.uses {
		if err := f.AddRequire(use, version); err != nil {
			return nil, err
		}
	}
	return modfile.Format(f.Syntax), nil
}

// structure returns what makes a module unusable for users, whatever the version.
func (t *tree) structure() (findings []string) {
	for _, m := range t.published() {
		for _, r := range m.mod.Replace {
			findings = append(findings, fmt.Sprintf("%s: replaces %s: nobody can install a command from it", t.rel(m, "go.mod"), r.Old.Path))
		}
		for _, e := range m.mod.Exclude {
			findings = append(findings, fmt.Sprintf("%s: excludes %s, which has no effect for users", t.rel(m, "go.mod"), e.Mod))
		}
		for _, use := range m.uses {
			if slices.ContainsFunc(t.modules, func(o *module) bool { return o.path == use && !o.published() }) {
				findings = append(findings, fmt.Sprintf("%s: requires %s, which is not published", t.rel(m, "go.mod"), use))
			}
		}
	}
	return findings
}

// replaces returns the replacements that go.work must have, in order: the versions that the published modules require
// of each other. The go command asks for their go.mod files even in a workspace with the modules, and they may not be
// published yet.
func (t *tree) replaces() (list []modfile.Replace) {
	for _, m := range t.published() {
		for _, r := range m.mod.Require {
			if !t.ours(r.Mod.Path) || slices.ContainsFunc(list, func(o modfile.Replace) bool { return o.Old == r.Mod }) {
				continue
			}
			for _, o := range t.modules {
				if o.path == r.Mod.Path {
					list = append(list, modfile.Replace{Old: r.Mod, New: gomod.Version{Path: "./" + strings.TrimPrefix(o.dir, ".")}})
				}
			}
		}
	}
	return list
}

// joined requires go.work to have these replacements, and no others of the repository.
func (t *tree) joined() (findings []string) {
	want := t.replaces()
	for _, r := range want {
		if !slices.ContainsFunc(t.work.Replace, func(has *modfile.Replace) bool { return has.Old == r.Old && has.New == r.New }) {
			findings = append(findings, fmt.Sprintf("go.work: lacks %s => %s", r.Old, r.New.Path))
		}
	}
	for _, has := range t.work.Replace {
		if t.ours(has.Old.Path) && !slices.ContainsFunc(want, func(r modfile.Replace) bool { return r.Old == has.Old }) {
			findings = append(findings, fmt.Sprintf("go.work: replaces %s, which nothing requires", has.Old))
		}
	}
	return findings
}

// rejoin writes into go.work what joined requires.
func (t *tree) rejoin() error {
	if len(t.joined()) == 0 {
		return nil
	}
	want := t.replaces()
	for _, has := range slices.Clone(t.work.Replace) {
		if !t.ours(has.Old.Path) {
			continue
		}
		// One that differs only in the version keeps its place and comments.
		i := slices.IndexFunc(want, func(r modfile.Replace) bool { return r.Old.Path == has.Old.Path })
		if i < 0 || has.Old.Version == "" {
			if err := t.work.DropReplace(has.Old.Path, has.Old.Version); err != nil {
				return err
			}
			continue
		}
		at := 1 // after the path
		if !has.Syntax.InBlock {
			at++
		}
		has.Syntax.Token[at], has.Old.Version = want[i].Old.Version, want[i].Old.Version
		want = slices.Delete(want, i, i+1)
	}
	for _, r := range want {
		if err := t.work.AddReplace(r.Old.Path, r.Old.Version, r.New.Path, ""); err != nil {
			return err
		}
	}
	t.work.Cleanup()
	return writeChanged(filepath.Join(t.root, "go.work"), modfile.Format(t.work.Syntax))
}

// rel returns the name of a module's file for messages.
func (t *tree) rel(m *module, name string) string { return path.Join(m.dir, name) }

// requires returns the modules of the repository that a module needs, directly or not, in order.
func (t *tree) requires(m *module) []*module {
	needed := make(map[string]bool)
	var need func(m *module)
	need = func(m *module) {
		for _, o := range t.modules {
			if slices.Contains(m.uses, o.path) && !needed[o.path] {
				needed[o.path] = true
				need(o)
			}
		}
	}
	need(m)
	return slices.DeleteFunc(slices.Clone(t.modules), func(o *module) bool { return !needed[o.path] })
}

// sumOfOurs reports whether a line of a go.sum is about a module of the repository.
func (t *tree) sumOfOurs(line string) bool {
	path, _, _ := strings.Cut(line, " ")
	return t.ours(path)
}
