package layers

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// prose yields the lines of Markdown outside of code blocks, with their numbers.
func prose(src []byte) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		inside := false
		for i, line := range strings.Split(string(src), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				inside = !inside
			} else if !inside && !yield(i+1, line) {
				return
			}
		}
	}
}

var (
	linkTarget = regexp.MustCompile(`\]\(([^()\s]+)(?: "[^"]*")?\)|^\[[^\]]+\]: +(\S+)`)
	codeSpan   = regexp.MustCompile("``.+?``|`[^`]*`")
	linkText   = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	elsewhere  = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
)

// LinksResolve requires that links in Markdown to the project's own files lead to an existing file or directory, and to
// an existing heading, with GitHub's names for headings.
func LinksResolve(t *Tree) []Finding {
	exists, headings := map[string]bool{".": true}, make(map[string]map[string]bool)
	for name := range t.names {
		for ; name != "."; name = path.Dir(name) {
			exists[name] = true
		}
	}
	for _, f := range t.Files {
		if strings.HasSuffix(f.Path, ".md") {
			headings[f.Path] = anchors(f.Src)
		}
	}
	var list []Finding
	for _, f := range t.Files {
		if !strings.HasSuffix(f.Path, ".md") || slices.Contains(strings.Split(f.Path, "/"), "testdata") {
			continue
		}
		for n, line := range prose(f.Src) {
			for _, m := range linkTarget.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
				target := m[1] + m[2]
				if elsewhere.MatchString(target) {
					continue
				}
				file, anchor, _ := strings.Cut(target, "#")
				at := f.Path
				if file != "" {
					at = path.Join(f.Dir(), file)
				}
				switch {
				case !exists[at]:
					list = append(list, Finding{f.Path, n, "there is no " + strconv.Quote(target)})
				case anchor != "" && !headings[at][anchor]:
					list = append(list, Finding{f.Path, n, "there is no heading " + strconv.Quote(target)})
				}
			}
		}
	}
	return inOrder(list)
}

// anchors returns the names of the headings of a Markdown file.
func anchors(src []byte) map[string]bool {
	set := make(map[string]bool)
	for _, line := range prose(src) {
		level := len(line) - len(strings.TrimLeft(line, "#"))
		if level == 0 || level > 6 || !strings.HasPrefix(line[level:], " ") {
			continue
		}
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linkText.ReplaceAllString(strings.TrimSpace(line[level:]), "$1"))
		for i := 1; set[name]; i++ {
			if again := name + "-" + strconv.Itoa(i); !set[again] {
				name = again
			}
		}
		set[name] = true
	}
	return set
}

// messagesPage is the page that explains messages.
const messagesPage = "docs/troubleshooting.md"

// verb matches the verbs of a format.
var verb = regexp.MustCompile(`%[-+# 0]*[\d.]*[a-zA-Z]`)

// MessagesExist requires that the code prints the messages on the troubleshooting page, which are the lines in blocks
// marked "message". Parts that vary are written as "...". Each piece between them must be in a string of a Go file,
// other than a test, between the verbs of its format. The longest piece of a line must have at least 12 characters.
func MessagesExist(t *Tree) []Finding {
	var page *File
	for _, f := range t.Files {
		if f.Path == messagesPage {
			page = f
		}
	}
	if page == nil {
		return nil
	}
	texts := make(map[string]bool)
	for f := range t.code {
		if !f.Test() {
			ast.Inspect(f.AST, func(n ast.Node) bool {
				e, ok := n.(ast.Expr)
				if !ok {
					return true
				}
				text, ok := constant(e)
				if ok {
					texts[text] = true
				}
				return !ok
			})
		}
	}
	var all strings.Builder
	for text := range texts {
		all.WriteString(verb.ReplaceAllString(text, "\x00") + "\x00")
	}
	known := all.String()
	var list []Finding
	inside := false
	for i, line := range strings.Split(string(page.Src), "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence:
			inside = !inside && fence == "message"
		case inside:
			longest := 0
			for piece := range strings.SplitSeq(line, "...") {
				longest = max(longest, len(piece))
				if !strings.Contains(known, strings.TrimSpace(piece)) {
					list = append(list, Finding{page.Path, i + 1, "no code prints " + strconv.Quote(piece)})
				}
			}
			if longest < 12 {
				list = append(list, Finding{page.Path, i + 1, "a message with no piece of 12 characters"})
			}
		}
	}
	return list
}

// constant returns the value of a string literal, or of several that are added.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		x, ok1 := constant(e.X)
		y, ok2 := constant(e.Y)
		return x + y, e.Op == token.ADD && ok1 && ok2
	}
	return "", false
}
