package syntax

import (
	"slices"
	"strings"
	"unicode"
)

// A Comment is one comment of a source file.
type Comment struct {
	Pos
	Text string // without comment delimiters
}

// Comments are the comments of a declaration: those of Before directly precede it, without an empty line in between,
// and those of After are on its lines.
type Comments struct {
	Before, After []Comment
}

// An Annotation is a comment for the compiler: a word, and a text after a colon.
type Annotation struct {
	Pos
	Word, Text string
}

// annotationWords lists the comments with a meaning for the compiler. All others are prose.
var annotationWords = [...]string{"open", "ddp", "max", "idempotent", "inline", "oneway", "go", "distinct", "flat", "head", "extern", "lax", "independent", "wrapped", "scoped", "stream", "error", "deadline"}

// Annotations returns the comments that are annotations, in the order of the source.
func (c Comments) Annotations() []Annotation {
	var list []Annotation
	for _, comment := range c.all() {
		if a, ok := comment.annotation(); ok {
			list = append(list, a)
		}
	}
	return list
}

func (c Comments) all() []Comment {
	return append(append([]Comment{}, c.Before...), c.After...)
}

// annotation reads a comment such as "open" or "max: 4096".
func (c Comment) annotation() (Annotation, bool) {
	word, text, _ := strings.Cut(strings.TrimSpace(c.Text), ":")
	word = strings.TrimSpace(word)
	for _, w := range annotationWords {
		if word == w {
			return Annotation{c.Pos, word, strings.TrimSpace(text)}, true
		}
	}
	return Annotation{}, false
}

// meant reports whether a comment looks like one or more annotations without being one.
func (c Comment) meant() bool {
	if _, ok := c.annotation(); ok {
		return false
	}
	words := strings.FieldsFunc(c.Text, func(r rune) bool { return !unicode.IsLetter(r) && r != '_' })
	for _, word := range words {
		if !slices.Contains(annotationWords[:], strings.ToLower(word)) {
			return false
		}
	}
	return len(words) > 0
}

// Lines returns the lines of prose without comment delimiters and annotations. An empty line separates comments before
// a declaration from those after it. There is no empty line at either end.
func (c Comments) Lines() []string {
	before, after := prose(c.Before), prose(c.After)
	if len(before) > 0 && len(after) > 0 {
		before = append(before, "")
	}
	return append(before, after...)
}

func prose(list []Comment) []string {
	var lines []string
	for _, c := range list {
		if _, ok := c.annotation(); !ok {
			lines = append(lines, c.lines()...)
		}
	}
	return lines
}

// lines removes the column of stars, and the common indentation of all lines.
func (c Comment) lines() []string {
	lines := strings.Split(strings.Map(printable, strings.ToValidUTF8(c.Text, "?")), "\n")
	for i, line := range lines {
		line = strings.TrimRightFunc(line, unicode.IsSpace)
		if stars := strings.TrimLeft(strings.TrimLeft(line, " \t"), "*"); i > 0 && len(stars) < len(strings.TrimLeft(line, " \t")) {
			line = stars // the column of stars
		}
		lines[i] = strings.TrimRight(line, "* \t")
	}
	lines[0] = strings.TrimLeft(lines[0], "* \t")
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	for len(lines) > 0 && lines[0] == "" {
		lines = lines[1:]
	}
	// The first line of a comment follows the opening delimiter: its indentation counts only if it is the only line.
	indent := -1
	for i, line := range lines {
		if n := len(line) - len(strings.TrimLeft(line, " \t")); line != "" && (i > 0 || n > 0) && (indent < 0 || n < indent) {
			indent = n
		}
	}
	for i, line := range lines {
		if n := len(line) - len(strings.TrimLeft(line, " \t")); line != "" {
			lines[i] = line[max(0, min(indent, n)):]
		}
	}
	return lines
}

// printable drops characters that must not be in a Go comment, or would not be visible.
func printable(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return r
	case r == '\uFEFF' || unicode.IsControl(r):
		return -1
	}
	return r
}
