package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// Files that the checks read, relative to the top.
const (
	changelog = "CHANGELOG.md"
	listings  = "docs/api"
	recorded  = "internal/testing/interop/released/testdata"
)

// problems lists what prevents a version, one per line.
type problems []string

func (p problems) Error() string { return strings.Join(p, "\n") }

// join returns problems as an error.
func join(list []string) error {
	if len(list) == 0 {
		return nil
	}
	return problems(list)
}

// clean requires the tree to match its commit.
func (t *tree) clean() []string {
	switch out, err := t.git("status", "--porcelain"); {
	case err != nil:
		return []string{err.Error()}
	case out != "":
		return []string{"the tree differs from what is committed:\n" + strings.TrimSuffix(out, "\n")}
	}
	return nil
}

// check returns everything that prevents a version. Tags are required only if tagged is set.
func (t *tree) check(version string, tagged bool) error {
	findings := slices.Concat(t.clean(), t.structure(), t.joined(), t.announced(version), t.compatible(version), t.required(version))
	if tagged {
		findings = append(findings, t.untagged(version)...)
	}
	return join(findings)
}

// announced requires a valid version for tags, its section in the changelog, and recordings of what it sends.
func (t *tree) announced(version string) (findings []string) {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return []string{fmt.Sprintf("%q is not a version such as v1.2.3", version)}
	}
	if major := semver.Major(version); major != "v0" && major != "v1" {
		findings = append(findings, fmt.Sprintf("%s: the paths of its modules would end in /%s", version, major))
	}
	text, err := os.ReadFile(filepath.Join(t.root, changelog))
	if err != nil {
		return append(findings, err.Error())
	}
	switch notes, ok := section(string(text), version); {
	case !ok:
		findings = append(findings, fmt.Sprintf("%s has no section \"## %s\"", changelog, version))
	case notes == "":
		findings = append(findings, fmt.Sprintf("%s says nothing about %s", changelog, version))
	}
	if rest, _ := section(string(text), "Unreleased"); rest != "" {
		findings = append(findings, changelog+" has entries that are unreleased")
	}
	series := semver.MajorMinor(version)
	if list, err := os.ReadDir(filepath.Join(t.root, filepath.FromSlash(recorded), series)); err != nil || len(list) == 0 {
		findings = append(findings, fmt.Sprintf("%s/%s: no recordings of what this version says on the wire", recorded, series))
	}
	return findings
}

// section returns the text of the changelog under the heading of a version, without the headings in it, and whether the
// heading exists.
func section(text, version string) (notes string, ok bool) {
	for line := range strings.Lines(text) {
		if title, heading := strings.CutPrefix(line, "## "); heading {
			if ok {
				break
			}
			name, _, _ := strings.Cut(strings.TrimSpace(title), " ")
			ok = name == version
		} else if ok && !strings.HasPrefix(line, "#") {
			notes += line
		}
	}
	return strings.TrimSpace(notes), ok
}

// required requires every published module to require this version of the others, with the hashes that the module proxy
// will compute.
func (t *tree) required(version string) (findings []string) {
	for _, m := range t.published() {
		for _, r := range m.mod.Require {
			if t.ours(r.Mod.Path) && r.Mod.Version != version {
				findings = append(findings, fmt.Sprintf("%s: requires %s, want %s", t.rel(m, "go.mod"), r.Mod, version))
			}
		}
		if len(findings) > 0 {
			continue // their hashes would be wrong too
		}
		got, want, err := t.sumLines(m, version)
		if err != nil {
			findings = append(findings, err.Error())
		} else if !bytes.Equal(got, want) {
			findings = append(findings, t.rel(m, "go.sum")+": the hashes of the repository's modules are not those of "+version)
		}
	}
	return findings
}

// sumLines returns the current go.sum of a module, and the one with the hashes of a version of the repository's
// modules.
func (t *tree) sumLines(m *module, version string) (is, want []byte, err error) {
	is, err = os.ReadFile(t.file(m, "go.sum"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	lines := t.withoutOurs(is)
	for _, o := range t.requires(m) {
		more, err := t.sums(o, version)
		if err != nil {
			return nil, nil, err
		}
		lines = append(lines, more...)
	}
	return is, sumFile(lines), nil
}

// withoutOurs returns the lines of a go.sum about other modules.
func (t *tree) withoutOurs(sum []byte) []string {
	lines := strings.Split(strings.TrimSpace(string(sum)), "\n")
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" || t.sumOfOurs(line) })
}

// sumFile returns a go.sum with these lines, in the order of the go command: by version, not alphabetically.
func sumFile(lines []string) []byte {
	if len(lines) == 0 {
		return nil
	}
	lines = slices.Clone(lines)
	slices.SortStableFunc(lines, func(a, b string) int {
		x, y := strings.Fields(a), strings.Fields(b)
		if len(x) < 2 || len(y) < 2 {
			return strings.Compare(a, b)
		}
		v, mod := strings.CutSuffix(x[1], "/go.mod")
		w, mod2 := strings.CutSuffix(y[1], "/go.mod")
		order := cmp.Or(strings.Compare(x[0], y[0]), semver.Compare(v, w))
		if order == 0 && mod != mod2 {
			if order = -1; mod {
				order = 1
			}
		}
		return order
	})
	return []byte(strings.Join(lines, "\n") + "\n")
}

// prepare writes a version into the module files.
func (t *tree) prepare(version string) error {
	if err := join(slices.Concat(t.clean(), t.structure(), t.announced(version), t.compatible(version))); err != nil {
		return err
	}
	for _, m := range t.published() {
		mod, err := t.atVersion(m, version)
		if err != nil {
			return err
		}
		if err := writeChanged(t.file(m, "go.mod"), mod); err != nil {
			return err
		}
		if m.mod, err = modfile.Parse(t.rel(m, "go.mod"), mod, nil); err != nil {
			return err
		}
	}
	// The top module contains go.work, which must therefore be written before its hash is computed. Each module
	// contains its go.sum, which must be written before the module's hash, which later modules need.
	if err := t.rejoin(); err != nil {
		return err
	}
	for _, m := range t.published() {
		_, sum, err := t.sumLines(m, version)
		if err != nil {
			return err
		}
		if err := writeChanged(t.file(m, "go.sum"), sum); err != nil {
			return err
		}
	}
	return join(slices.Concat(t.joined(), t.required(version)))
}

// writeChanged writes a file if its contents differ.
func writeChanged(name string, text []byte) error {
	switch was, err := os.ReadFile(name); {
	case err == nil && bytes.Equal(was, text), errors.Is(err, os.ErrNotExist) && len(text) == 0:
		return nil
	}
	return os.WriteFile(name, text, 0o666)
}

// untagged requires the tags of a version on the commit that is checked out.
func (t *tree) untagged(version string) (findings []string) {
	out, err := t.git("tag", "--points-at", "HEAD")
	if err != nil {
		return []string{err.Error()}
	}
	for _, m := range t.published() {
		if !slices.Contains(strings.Fields(out), m.tag(version)) {
			findings = append(findings, "no tag "+m.tag(version)+" on this commit")
		}
	}
	return findings
}

// tag prints or creates the tags of a version, in order, and prints how to publish them: all at once, so that no module
// is visible before its requirements.
func (t *tree) tag(version string, create bool, w io.Writer) error {
	if err := t.check(version, false); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(t.root, changelog))
	if err != nil {
		return err
	}
	notes, _ := section(string(text), version)
	var tags []string
	for _, m := range t.published() {
		tags = append(tags, m.tag(version))
	}
	out, err := t.git(append([]string{"tag", "--list"}, tags...)...)
	if err != nil {
		return err
	}
	if out != "" {
		return fmt.Errorf("these tags exist, and a version is never changed: %s", strings.Join(strings.Fields(out), " "))
	}
	for _, tag := range tags {
		if create {
			if _, err := t.git("tag", "--annotate", "--cleanup=verbatim", "--message", tag+"\n\n"+notes+"\n", tag); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(w, tag); err != nil {
			return err
		}
	}
	if create {
		_, err = fmt.Fprintln(w, "git push --atomic origin "+strings.Join(tags, " "))
	}
	return err
}

// released returns the newest version with a tag that is older than before, or "" if none exists. Only the tags of the
// top module count.
func (t *tree) released(before string) (string, error) {
	out, err := t.git("tag", "--list", "v*")
	if err != nil {
		return "", err
	}
	last := ""
	for _, tag := range strings.Fields(out) {
		if semver.IsValid(tag) && semver.Prerelease(tag) == "" && semver.Compare(tag, before) < 0 && (last == "" || semver.Compare(tag, last) > 0) {
			last = tag
		}
	}
	return last, nil
}

// compatible requires a version to have everything that the previous one offered, as promised by docs/install.md: from
// v1 on, and within v0.x. Recordings must be unchanged.
func (t *tree) compatible(version string) (findings []string) {
	last, err := t.released(version)
	if err != nil {
		return []string{err.Error()}
	}
	if last == "" {
		return nil
	}
	// Recordings of what a version sent must not change.
	if out, err := t.git("diff", "--no-renames", "--name-only", "--diff-filter=MDT", last, "--", recorded); err != nil {
		findings = append(findings, err.Error())
	} else {
		for name := range strings.FieldsSeq(out) {
			findings = append(findings, name+" is not as in "+last)
		}
	}
	if semver.Major(last) == "v0" && semver.MajorMinor(last) != semver.MajorMinor(version) {
		return findings
	}
	names, err := t.git("ls-tree", "-r", "-z", "--name-only", last, "--", listings)
	if err != nil {
		return append(findings, err.Error())
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(names, "\x00"), "\x00") {
		if name == "" {
			continue
		}
		was, err := t.git("show", last+":"+name)
		if err != nil {
			return append(findings, err.Error())
		}
		is, err := os.ReadFile(filepath.Join(t.root, filepath.FromSlash(name)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return append(findings, err.Error())
		}
		offered := strings.Split(string(is), "\n")
		for line := range strings.SplitSeq(was, "\n") {
			if line != "" && !slices.Contains(offered, line) {
				findings = append(findings, fmt.Sprintf("%s: %s had %q", name, last, line))
			}
		}
	}
	return findings
}
