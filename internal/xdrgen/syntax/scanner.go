package syntax

import (
	"fmt"
	"strings"
)

// scanner produces the tokens of one compilation.
type scanner struct {
	opt  Options
	errs *Errors

	tokens []token
	consts []*Const // of #define
	notes  []Note

	macros map[string]Value // of #define and Options.Defines
	read   map[string]bool  // files already read, by name
	size   int              // of all files, in bytes
	depth  int              // nesting of #include
}

// source is the file being scanned.
type source struct {
	*scanner
	name string // for positions; line markers change it
	src  string
	off  int // of the next byte
	bol  int // where the line begins
	line int // for positions; line markers change it
	row  int // line in src, from 0

	rowOfToken int        // row in which the last token ends; -1: none yet
	rowInUse   int        // row of the last text other than space; -1: none yet
	pending    []Comment  // after the last token
	conds      []condFrom // open #if directives
	rows       [][2]int   // first and last row of each pending comment
}

// file scans a file and the files that it includes. The caller has counted its size.
func (s *scanner) file(name string, src string) {
	s.read[name] = true
	f := &source{scanner: s, name: name, src: src, line: 1, rowOfToken: -1, rowInUse: -1}
	for !s.errs.Full() {
		if !f.next() {
			break
		}
	}
	f.settle(token{}, false)
	for _, c := range f.conds {
		s.errs.Add(c.at, "%s without #endif", c.word)
	}
}

// next scans one token, comment or preprocessor line, and reports whether there was one.
func (f *source) next() bool {
	if !f.space() {
		return false
	}
	at, c, first := f.pos(), f.src[f.off], f.rowInUse != f.row
	defer func() { f.rowInUse = f.row }()
	switch {
	case first && c == '#':
		f.directive(at)
	case first && c == '%':
		f.passed(at)
	case c == '/' && f.at(1) == '*':
		f.blockComment(at)
	case c == '/' && f.at(1) == '/':
		// Not in RFC 4506, but in published files.
		text := f.rest()
		f.comment(at, text[2:], f.row)
	case f.skipped():
		f.off++
	case letter(c):
		text := f.word()
		kind := tokIdent
		if keywords[text] {
			kind = tokKeyword
		}
		f.add(token{Pos: at, kind: kind, text: text})
	case digit(c) || c == '-' && digit(f.at(1)):
		f.number(at)
	case c == '"':
		f.quoted(at)
	default:
		f.punctuation(at, c)
	}
	return true
}

// punctuation scans one character.
func (f *source) punctuation(at Pos, c byte) {
	f.off++
	switch c {
	case '{', '}', '(', ')', '[', ']', '<', '>', ';', ':', ',', '=', '*':
		f.add(token{Pos: at, kind: tokenKind(c), text: string(c)})
	default:
		f.errs.Add(at, "unexpected character %q", c)
	}
}

// number scans a constant.
func (f *source) number(at Pos) {
	start := f.off
	f.off++
	f.word()
	text := f.src[start:f.off]
	n, err := parseInt(text)
	if err != nil {
		f.errs.Add(at, "%v", err)
	}
	f.add(token{Pos: at, kind: tokNumber, text: text, num: n})
}

// quoted scans a quoted string, which must end on its line.
func (f *source) quoted(at Pos) {
	for i := f.off + 1; i < len(f.src) && f.src[i] != '\n'; i++ {
		if f.src[i] == '"' {
			f.add(token{Pos: at, kind: tokString, text: f.src[f.off+1 : i]})
			f.off = i + 1
			return
		}
	}
	f.errs.Add(at, "quote is not closed")
	f.rest()
}

// blockComment scans a comment of RFC 4506 section 6.2.
func (f *source) blockComment(at Pos) {
	start, row := f.off+2, f.row
	for f.off = start; f.off < len(f.src); f.off++ {
		switch {
		case f.src[f.off] == '\n':
			f.newline()
		case f.src[f.off] == '*' && f.at(1) == '/':
			f.off += 2
			f.comment(at, f.src[start:f.off-2], row)
			return
		}
	}
	f.errs.Add(at, "comment is not closed")
}

// comment records a comment that began in the given row.
func (f *source) comment(at Pos, text string, row int) {
	if f.skipped() {
		return
	}
	c := Comment{at, text}
	if c.meant() {
		text := fmt.Sprintf("comment %q is no annotation: each is a comment of its own, in small letters", strings.TrimSpace(text))
		f.notes = append(f.notes, Note{at, text, true})
	}
	f.pending = append(f.pending, c)
	f.rows = append(f.rows, [2]int{row, f.row})
}

// add appends a token, with the comments directly before it.
func (f *source) add(t token) {
	f.settle(t, true)
}

// settle assigns the pending comments to the token before them if they are the last on its line, or to the token t
// after them if there is one and no empty line in between.
func (f *source) settle(t token, more bool) {
	i := 0
	for ; i < len(f.pending); i++ {
		if f.rowOfToken < 0 || f.rows[i][0] != f.rowOfToken {
			break
		}
		last := &f.tokens[len(f.tokens)-1]
		// Within a declaration, a comment followed by another token on its line belongs to that token.
		shared := more && f.rows[len(f.rows)-1][1] == f.row && f.rows[i][0] == f.row
		ended := last.kind == ';' || last.kind == ',' || t.kind == '}' && last.kind != '{'
		if shared && !ended {
			break
		}
		last.after = append(last.after, f.pending[i])
		f.rowOfToken = f.rows[i][1] // the next one may begin where this one ends
	}
	if more {
		first, row := len(f.pending), f.row
		for first > i && f.rows[first-1][1] >= row-1 {
			first--
			row = f.rows[first][0]
		}
		f.lost(f.pending[i:first])
		if t.kind == '}' {
			f.lost(f.pending[first:])
		}
		t.before = append(t.before, f.pending[first:]...)
		f.tokens = append(f.tokens, t)
		f.rowOfToken = f.row
	} else {
		f.lost(f.pending[i:])
	}
	f.pending, f.rows = nil, nil
}

// lost records the annotations among comments that belong to no declaration.
func (f *source) lost(list []Comment) {
	for _, c := range list {
		if a, ok := c.annotation(); ok {
			f.notes = append(f.notes, Note{c.Pos, fmt.Sprintf("annotation %q belongs to no declaration", a.Word), true})
		}
	}
}

// space skips white space, and reports whether anything follows.
func (f *source) space() bool {
	for ; f.off < len(f.src); f.off++ {
		switch f.src[f.off] {
		case '\n':
			f.newline()
		case ' ', '\t', '\r', '\f', '\v':
		default:
			return true
		}
	}
	return false
}

// newline counts the line that ends at the current byte.
func (f *source) newline() {
	f.line++
	f.row++
	f.bol = f.off + 1
}

func (f *source) pos() Pos { return Pos{f.name, f.line, f.off - f.bol + 1} }

// at returns the byte i bytes ahead, 0 after the end.
func (f *source) at(i int) byte {
	if f.off+i < len(f.src) {
		return f.src[f.off+i]
	}
	return 0
}

// word consumes and returns letters, digits and underscores.
func (f *source) word() string {
	start := f.off
	for f.off < len(f.src) && (letter(f.src[f.off]) || digit(f.src[f.off])) {
		f.off++
	}
	return f.src[start:f.off]
}

// rest consumes and returns the rest of the line, without its end.
func (f *source) rest() string {
	start := f.off
	for f.off < len(f.src) && f.src[f.off] != '\n' {
		f.off++
	}
	return f.src[start:f.off]
}

func (s *scanner) note(at Pos, format string, args ...any) {
	s.notes = append(s.notes, Note{Pos: at, Text: fmt.Sprintf(format, args...)})
}

func letter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }
func digit(c byte) bool  { return '0' <= c && c <= '9' }
