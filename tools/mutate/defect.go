package main

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/conformance"
)

// A defect is one thing that is wrong with the code, as a patch that puts it in.
type defect struct {
	name  string // of the file, without its ending
	says  string // what is wrong then
	rules []string
	tests []test
	patch []byte
}

// A test is what has to fail with the defect in.
type test struct {
	pkg  string // as go test names it: ./transport
	run  string // as go test -run
	race bool
}

func (t test) String() string {
	if t.race {
		return t.pkg + " " + t.run + " -race"
	}
	return t.pkg + " " + t.run
}

// functions are the names of the test functions, of each alternative of the expression.
func (t test) functions() []string {
	var names []string
	for one := range strings.SplitSeq(t.run, "|") {
		name, _, _ := strings.Cut(one, "/")
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(name, "^"), "$"))
	}
	return names
}

// depth is how many names deep the tests are that are meant, of the alternative where that
// is least.
func (t test) depth() int {
	depth := strings.Count(t.run, "/")
	for one := range strings.SplitSeq(t.run, "|") {
		depth = min(depth, strings.Count(one, "/"))
	}
	return depth
}

// noRule is what stands in the place of a rule's id when no rule is broken.
const noRule = "none"

// parse reads a patch with its header: lines "Defect:", "Rule:" and "Test:", the last as
// often as there are tests.
func parse(name string, patch []byte) (*defect, error) {
	d := &defect{name: name, patch: patch}
	head, _, ok := strings.Cut(string(patch), "\ndiff --git ")
	if !ok {
		return nil, fmt.Errorf("%s: there is no line that begins with \"diff --git\"", name)
	}
	for line := range strings.Lines(head) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, ": ")
		switch value = strings.TrimSpace(value); {
		case line == "":
		case value == "":
			return nil, fmt.Errorf("%s: %q is none of \"Defect: ...\", \"Rule: ...\" and \"Test: ...\"", name, line)
		case key == "Defect" && d.says == "":
			d.says = value
		case key == "Rule" && d.rules == nil:
			if d.rules = []string{}; value != noRule {
				d.rules = strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == ',' })
			}
		case key == "Test":
			words := strings.Fields(value)
			var t test
			if t.race = words[len(words)-1] == "-race"; t.race {
				words = words[:len(words)-1]
			}
			if len(words) < 2 || !strings.HasPrefix(words[0], "./") {
				return nil, fmt.Errorf("%s: the test %q is no package and name, such as ./transport TestName/sub", name, value)
			}
			t.pkg, t.run = path.Clean(words[0]), strings.Join(words[1:], "_")
			t.pkg = "./" + t.pkg
			d.tests = append(d.tests, t)
		default:
			return nil, fmt.Errorf("%s: there is no place for %q", name, line)
		}
	}
	if d.says == "" || d.rules == nil || len(d.tests) == 0 {
		return nil, fmt.Errorf("%s: the header needs \"Defect:\", \"Rule:\" and \"Test:\"", name)
	}
	return d, nil
}

// read reads all defects of a directory, in the order of their names.
func read(dir fs.FS) ([]*defect, error) {
	files, err := fs.Glob(dir, "*.patch")
	if err != nil {
		return nil, err
	}
	var list []*defect
	for _, file := range files {
		patch, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		d, err := parse(strings.TrimSuffix(file, ".patch"), patch)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// rules knows which test bears which id.
type rules struct {
	known map[string]bool
	tests map[string][]string
}

// readRules reads the catalogue of this program's own tree, and the tests of the tree that
// is given.
func readRules(tree fs.FS) (*rules, error) {
	c, err := conformance.Ours()
	if err != nil {
		return nil, err
	}
	s, err := conformance.Scan(tree, c)
	if err != nil {
		return nil, err
	}
	r := &rules{known: make(map[string]bool), tests: s.Tests}
	for _, rule := range c.Rules {
		r.known[rule.ID] = true
	}
	return r, nil
}

// bears reports whether a test function of a package bears an id.
func (r *rules) bears(pkg, function, id string) bool {
	name := strings.TrimPrefix(pkg, "./") + "." + function
	return slices.ContainsFunc(r.tests[id], func(t string) bool { return strings.TrimRight(t, "†") == name })
}

// check looks at what the header says of rules: each is one of the catalogue, and one of
// the tests bears its id.
func (r *rules) check(d *defect) error {
	for _, id := range d.rules {
		if !r.known[id] {
			return fmt.Errorf("there is no rule %s", id)
		}
		if !slices.ContainsFunc(d.tests, func(t test) bool {
			return slices.ContainsFunc(t.functions(), func(name string) bool { return r.bears(t.pkg, name, id) })
		}) {
			return fmt.Errorf("none of its tests bears the id %s", id)
		}
	}
	return nil
}
