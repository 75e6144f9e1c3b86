package layers

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
)

// phrase is a phrase that reads as if it were translated.
type phrase struct {
	words   *regexp.Regexp
	instead string
	most    int // maximum number in the tree: lower it when some are gone, and never raise it
}

// phrases lists phrases to count in Go comments and in Markdown. Immutable.
var phrases = []phrase{
	{regexp.MustCompile(`(?i)\btells? (whether|that|of)\b`), "reports whether, says", 0},
	{regexp.MustCompile(`(?i)\bhas (it|them|f) called\b`), "arranges for f to be called", 0},
	{regexp.MustCompile(`(?i)\blets go\b`), "releases", 0},
	{regexp.MustCompile(`(?i)\blikewise\b`), "the noun again: a comment stands alone", 0},
	{regexp.MustCompile(`(?i)\bthat which\b`), "the thing's name", 0},
	{regexp.MustCompile(`(?i)\bbecomes? of\b`), "happens to", 0},
	{regexp.MustCompile(`(?i)\b(is|are) none\b`), "does not exist, has no", 1},
	{regexp.MustCompile(`(?i)\b(whom?|whose|nobody|somebody|whoever)\b`), "which or that, unless it is about people", 54},
	{regexp.MustCompile(`(?i)\bbehind\b`), "after, unless it is a place", 4},
	{regexp.MustCompile(`(?i)\btold\b`), "called, notified, learns", 5},
	{regexp.MustCompile(`(?i)\bof these\b`), "the noun", 0},
	{regexp.MustCompile(`(?i)\bwhat is \w+ed\b`), "the thing's name", 1},
	{regexp.MustCompile(`(?i)\bno more\b($|[^ ]| [^t])`), "no longer, only, at most", 1},
	{regexp.MustCompile(`(?i)\bcomes? to\b`), "reaches, amounts to", 1},
	{regexp.MustCompile(`(?i)\btakes? an? `), "needs, accepts, processes", 2},
	{regexp.MustCompile(`(?i)\b(cancell(ed|ing)|travell(ed|ing)|licences?|behaviour|colours?|favour|honour|neighbours?|offence)\b`), "American spelling", 1},
}

// ReadsNative forbids phrases that a native engineer does not write, and keeps others from increasing. Pages written by
// programs are not counted; the programs' own files are.
func ReadsNative(t *Tree) []Finding {
	var list []Finding
	for _, p := range phrases {
		n, last := 0, Finding{}
		for _, f := range t.Files {
			for line, text := range f.remarks(t) {
				for _, found := range p.words.FindAllString(text, -1) {
					n++
					last = Finding{File: f.Path, Line: line, Text: fmt.Sprintf("%q: write %s", found, p.instead)}
					if p.most == 0 {
						list = append(list, last)
					}
				}
			}
		}
		if p.most > 0 && n > p.most {
			last.Text += fmt.Sprintf(" (%d times in the tree, at most %d)", n, p.most)
			list = append(list, last)
		}
	}
	return inOrder(list)
}

// remarks yields the comment lines of a Go file, or the prose lines of a Markdown file.
func (f *File) remarks(t *Tree) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		switch {
		case f.AST != nil && !ast.IsGenerated(f.AST) && f.Dir() != "internal/layers":
			for _, group := range f.AST.Comments {
				for _, c := range group.List {
					for i, line := range strings.Split(c.Text, "\n") {
						if !yield(t.fset.Position(c.Pos()).Line+i, line) {
							return
						}
					}
				}
			}
		case strings.HasSuffix(f.Path, ".md") && !below(f.Path, "docs/reports"):
			prose(f.Src)(yield)
		}
	}
}
