package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// edit replaces whole lines of one file. The old text must occur exactly once in the matching files, so that an edit
// either applies where it is meant to or fails.
type edit struct {
	files    string // pattern of fs.Glob
	old, new string
}

const testSuffix = "_test.go"

// add appends a line of the body: kept (' '), removed ('-') or added ('+'). Comments may change at any time, so an edit
// must not depend on them.
func (e *edit) add(line string) error {
	text := line[1:] + "\n"
	if line[0] != '+' {
		if strings.HasSuffix(e.files, ".go") && strings.HasPrefix(strings.TrimSpace(text), "//") {
			return fmt.Errorf("the old text contains the comment %q", strings.TrimSpace(text))
		}
		e.old += text
	}
	if line[0] != '-' {
		e.new += text
	}
	return nil
}

// apply returns the files that a defect changes, by path, with their new contents. It does not modify the tree.
func (d *defect) apply(tree fs.FS) (map[string]string, error) {
	changed := make(map[string]string)
	for _, e := range d.changes {
		if err := e.apply(tree, changed); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// apply applies the edit to the tree as modified by earlier changes.
func (e *edit) apply(tree fs.FS, changed map[string]string) error {
	names, err := e.names(tree)
	if err != nil {
		return err
	}
	var in, text string
	var places []string // the file of each occurrence
	at := 0
	for _, name := range names {
		s, err := contents(tree, changed, name)
		if err != nil {
			return err
		}
		for _, i := range occurrences(s, e.old) {
			places = append(places, name)
			in, text, at = name, s, i
		}
	}
	if len(places) != 1 {
		first, _, _ := strings.Cut(strings.TrimSpace(e.old), "\n")
		return fmt.Errorf("the text from %q on occurs %d times in %s, not once: %q", first, len(places), e.files, places)
	}
	changed[in] = text[:at] + e.new + text[at+len(e.old):]
	return nil
}

// contents returns a file of the tree as modified by earlier changes.
func contents(tree fs.FS, changed map[string]string, name string) (string, error) {
	if s, ok := changed[name]; ok {
		return s, nil
	}
	b, err := fs.ReadFile(tree, name)
	return string(b), err
}

// names returns the matching files. A pattern matches tests only if it says so.
func (e *edit) names(tree fs.FS) ([]string, error) {
	all, err := fs.Glob(tree, e.files)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.files, err)
	}
	var names []string
	for _, name := range all {
		if !strings.HasSuffix(name, testSuffix) || strings.HasSuffix(e.files, testSuffix) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no file matches %s", e.files)
	}
	return names, nil
}

// occurrences returns the offsets of the lines of text at which old begins. Occurrences
// may overlap.
func occurrences(text, old string) []int {
	var at []int
	next := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(text[next:], old) {
			at = append(at, next)
		}
		next += len(line)
	}
	return at
}

// replace writes the changed files of a tree and returns a function that restores them. It may be called whether or not
// replace failed.
func replace(root string, changed map[string]string) (restore func() error, err error) {
	before := make(map[string][]byte)
	restore = func() error {
		var all error
		for name, b := range before {
			all = errors.Join(all, os.WriteFile(name, b, 0o666))
		}
		return all
	}
	for name, text := range changed {
		at := filepath.Join(root, name)
		b, err := os.ReadFile(at)
		if err != nil {
			return restore, err
		}
		before[at] = b
		if err := os.WriteFile(at, []byte(text), 0o666); err != nil {
			return restore, err
		}
	}
	return restore, nil
}
