package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// defect is a bug in the code, with the changes that inject it.
type defect struct {
	name    string // of the file, without extension
	says    string // what is then wrong with the code
	rules   []string
	tests   []test
	changes []change
}

// change is a part of a defect: an edit or an operation.
type change interface {
	// apply applies the change to the tree as modified by earlier changes.
	apply(tree fs.FS, changed map[string]string) error
}

// test is a test that must fail while the defect is injected.
type test struct {
	pkg  string // as for go test: ./transport
	run  string // as for go test -run
	race bool
}

func (t test) String() string {
	if t.race {
		return t.pkg + " " + t.run + " -race"
	}
	return t.pkg + " " + t.run
}

// functions returns the name of the test function in each alternative of the expression.
func (t test) functions() []string {
	var names []string
	for one := range strings.SplitSeq(t.run, "|") {
		name, _, _ := strings.Cut(one, "/")
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(name, "^"), "$"))
	}
	return names
}

// depth returns how many levels of subtests the expression names, in the alternative that
// names the fewest.
func (t test) depth() int {
	depth := strings.Count(t.run, "/")
	for one := range strings.SplitSeq(t.run, "|") {
		depth = min(depth, strings.Count(one, "/"))
	}
	return depth
}

// noRule stands for the list of ids of a defect that breaks no rule.
const noRule = "none"

// extension is the extension of files with defects.
const extension = ".defect"

// parse reads a defect: its header, then its changes.
func parse(name, text string) (*defect, error) {
	d := &defect{name: name}
	var lines *edit      // edit that the previous line belongs to
	var dir, decl string // from the last line "In: ..."
	idle := false        // no operation has followed it yet
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		var err error
		switch key, value, _ := strings.Cut(line, ": "); {
		case line == "":
			lines = nil
		case lines != nil && strings.ContainsRune(" -+", rune(line[0])):
			err = lines.add(line)
		case key == "File" && value != "" && !idle:
			lines = &edit{files: value}
			d.changes = append(d.changes, lines)
			dir, decl = "", ""
		case key == "In" && strings.HasPrefix(value, "./") && strings.Contains(value, " ") && !idle:
			dir, decl, _ = strings.Cut(value, " ")
			idle = true
		case key == "Do" && decl != "":
			var o *operation
			if o, err = parseOperation(dir, decl, value); err == nil {
				d.changes = append(d.changes, o)
			}
			idle = false
		case len(d.changes) == 0 && decl == "":
			err = d.header(key, strings.TrimSpace(value))
		default:
			err = fmt.Errorf("%q is neither \"File: ...\", \"In: ...\" or \"Do: ...\" nor a line of an edit that begins with ' ', '-' or '+'", line)
		}
		if err != nil {
			return nil, fmt.Errorf("%s%s: %w", name, extension, err)
		}
	}
	if err := d.complete(); err == nil && idle {
		return nil, fmt.Errorf("%s%s: nothing is done in %s", name, extension, decl)
	} else if err != nil {
		return nil, fmt.Errorf("%s%s: %w", name, extension, err)
	}
	return d, nil
}

// header parses a line of the header.
func (d *defect) header(key, value string) error {
	switch {
	case key == "Defect" && d.says == "" && value != "":
		d.says = value
	case key == "Rule" && d.rules == nil && value != "":
		if d.rules = []string{}; value != noRule {
			d.rules = strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == ',' })
		}
	case key == "Test":
		words := strings.Fields(value)
		race := len(words) > 0 && words[len(words)-1] == "-race"
		if race {
			words = words[:len(words)-1]
		}
		if len(words) < 2 || !strings.HasPrefix(words[0], "./") {
			return fmt.Errorf("the test %q is no package and name, such as ./transport TestName/sub", value)
		}
		d.tests = append(d.tests, test{"./" + path.Clean(words[0]), strings.Join(words[1:], "_"), race})
	default:
		return fmt.Errorf("\"%s: %s\" is unexpected in the header", key, value)
	}
	return nil
}

// complete reports what is missing from a defect.
func (d *defect) complete() error {
	if d.says == "" || d.rules == nil || len(d.tests) == 0 {
		return errors.New(`the header needs "Defect:", "Rule:" and "Test:"`)
	}
	if len(d.changes) == 0 {
		return errors.New(`there is no "File:" or "In:" to edit`)
	}
	for _, e := range d.changes {
		if e, ok := e.(*edit); ok && e.old == "" {
			return fmt.Errorf("an edit of %s has no old text", e.files)
		} else if ok && e.old == e.new {
			return fmt.Errorf("an edit of %s changes nothing", e.files)
		}
	}
	return nil
}

// read reads all defects of a directory, in the order of their names.
func read(dir fs.FS) ([]*defect, error) {
	files, err := fs.Glob(dir, "*"+extension)
	if err != nil {
		return nil, err
	}
	var list []*defect
	for _, file := range files {
		text, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		d, err := parse(strings.TrimSuffix(file, extension), string(text))
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// path returns the path of the file, relative to the root of the tree.
func (d *defect) path() string { return path.Join(defectsDir, d.name+extension) }
