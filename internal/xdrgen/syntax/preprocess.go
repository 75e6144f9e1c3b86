package syntax

import (
	"strconv"
	"strings"
)

// condFrom is an open #if, #ifdef or #ifndef.
type condFrom struct {
	at    Pos
	word  string
	skip  bool // the following lines are not compiled
	outer bool // neither is the surrounding code
	other bool // #else was seen
}

// skipped reports whether the current line is in a part that is not compiled.
func (f *source) skipped() bool {
	return len(f.conds) > 0 && f.conds[len(f.conds)-1].skip
}

// passed skips a line that rpcgen copies to its output.
func (f *source) passed(at Pos) {
	f.rest()
	if !f.skipped() {
		f.note(at, "line for rpcgen's output is ignored")
	}
}

// directive processes a line that begins with #.
func (f *source) directive(at Pos) {
	line := f.logicalLine()[1:]
	word, arg := cutWord(line)
	switch word {
	case "if", "ifdef", "ifndef":
		f.open(at, word, arg)
		return
	case "else", "endif":
		f.turn(at, word)
		return
	case "elif", "elifdef", "elifndef":
		// It would be compiled after a part that was skipped.
		if n := len(f.conds); n == 0 || !f.conds[n-1].outer {
			f.errs.Add(at, "#%s is not supported", word)
		}
		return
	}
	if f.skipped() {
		return
	}
	switch {
	case word == "define":
		f.define(at, arg)
	case word == "undef":
		name, _ := cutWord(arg)
		delete(f.macros, name)
	case word == "include":
		f.include(at, arg)
	case word == "line" || word != "" && digit(word[0]):
		f.marker(at, word, arg)
	case word == "error":
		f.errs.Add(at, "#error %s", arg)
	case word != "":
		f.note(at, "#%s is ignored", word)
	}
}

// logicalLine consumes and returns a line with those joined to it by backslashes, and without comments.
func (f *source) logicalLine() string {
	var line strings.Builder
	for f.off < len(f.src) && f.src[f.off] != '\n' {
		switch {
		case f.src[f.off] == '\\' && f.at(1) == '\n':
			f.off++
			f.newline()
			f.off++
		case f.src[f.off] == '\\' && f.at(1) == '\r' && f.at(2) == '\n':
			f.off += 2
			f.newline()
			f.off++
		case f.src[f.off] == '/' && f.at(1) == '*':
			at, end := f.pos(), strings.Index(f.src[f.off+2:], "*/")
			if end < 0 {
				f.errs.Add(at, "comment is not closed")
				f.off = len(f.src)
				break
			}
			for stop := f.off + 2 + end + 2; f.off < stop; f.off++ {
				if f.src[f.off] == '\n' {
					f.newline()
				}
			}
			line.WriteByte(' ')
		case f.src[f.off] == '/' && f.at(1) == '/':
			f.rest()
		default:
			line.WriteByte(f.src[f.off])
			f.off++
		}
	}
	return strings.TrimRight(line.String(), " \t\r\f\v")
}

// cutWord returns the first word of a line, and the rest after the space that follows.
func cutWord(line string) (word, rest string) {
	line = strings.TrimLeft(line, " \t")
	i := 0
	for i < len(line) && (letter(line[i]) || digit(line[i])) {
		i++
	}
	return line[:i], strings.TrimLeft(line[i:], " \t")
}

// open begins a conditional part.
func (f *source) open(at Pos, word, arg string) {
	outer := f.skipped()
	cond := condFrom{at: at, word: "#" + word, outer: outer, skip: outer}
	if !outer {
		switch name, _ := cutWord(arg); {
		case word == "if":
			cond.skip = !f.evaluate(at, arg)
		case name == "":
			f.errs.Add(at, "expected a name after #%s", word)
		default:
			_, defined := f.macros[name]
			cond.skip = defined != (word == "ifdef")
		}
	}
	f.conds = append(f.conds, cond)
}

// turn processes #else and #endif.
func (f *source) turn(at Pos, word string) {
	if len(f.conds) == 0 {
		f.errs.Add(at, "#%s without #if", word)
		return
	}
	last := &f.conds[len(f.conds)-1]
	switch {
	case word == "endif":
		f.conds = f.conds[:len(f.conds)-1]
	case last.other:
		f.errs.Add(at, "second #else")
	default:
		last.other = true
		last.skip = !last.skip || last.outer
	}
}

// define turns #define NAME VALUE into a constant. A name without a value is known to #ifdef.
func (f *source) define(at Pos, arg string) {
	name, text := cutWord(arg)
	if name == "" || digit(name[0]) {
		f.errs.Add(at, "expected a name after #define")
		return
	}
	if rest := strings.TrimLeft(arg, " \t")[len(name):]; strings.HasPrefix(rest, "(") {
		f.note(at, "macro %s with parameters is ignored", name)
		return
	}
	value := Value{Pos: at}
	switch word, rest := cutWord(text); {
	case text == "":
		f.macros[name] = value
		return
	case word != "" && rest == "" && letter(word[0]):
		value.Name = word
	default:
		n, err := parseInt(strings.Trim(text, "()"))
		if err != nil {
			f.macros[name] = value
			f.note(at, "#define %s is ignored: its value is no number", name)
			return
		}
		value.Int = n
	}
	f.macros[name] = value
	f.consts = append(f.consts, &Const{Name: Ident{at, name}, Value: value})
}

// include scans another .x file. Other files are assumed to be C.
func (f *source) include(at Pos, arg string) {
	if len(arg) < 2 || arg[0] != '"' || arg[len(arg)-1] != '"' || !strings.HasSuffix(arg, `.x"`) || f.opt.Include == nil {
		f.note(at, "#include %s is ignored", arg)
		return
	}
	name, src, err := f.opt.Include(f.name, arg[1:len(arg)-1])
	switch {
	case err != nil:
		f.errs.Add(at, "%v", err)
	case f.read[name]:
	case f.depth == MaxNesting:
		f.errs.Add(at, "#include nested deeper than %d", MaxNesting)
	case !f.count(name, src):
	default:
		f.settle(token{}, false)
		f.depth++
		f.file(name, string(src))
		f.depth--
		f.rowOfToken = -1
	}
}

// count adds a file to the size of the input, and reports whether it is within the limit.
func (s *scanner) count(name string, src []byte) bool {
	if s.size += len(src); s.size > MaxInput {
		s.errs.Add(Pos{File: name}, "input is longer than %d bytes", MaxInput)
		return false
	}
	return true
}

// marker changes positions: # 12 "file" describes the next line.
func (f *source) marker(at Pos, word, arg string) {
	if word == "line" {
		word, arg = cutWord(arg)
	}
	line, err := strconv.ParseUint(word, 10, 31)
	if err != nil {
		f.errs.Add(at, "%s is not the number of a line", strconv.Quote(word))
		return
	}
	if parts := strings.SplitN(arg, `"`, 3); len(parts) == 3 && parts[0] == "" {
		f.name = parts[1]
	}
	f.line = max(1, int(line)) - 1 // the end of this line still follows; C compilers write # 0
}

// evaluate computes the expression of #if: numbers and names, defined, !, &&, || and
// parentheses. A name that is not defined is 0, as in C.
func (f *source) evaluate(at Pos, text string) bool {
	c := condition{f: f, at: at, text: text}
	v := c.or(0)
	if c.space(); c.text != "" && !c.bad {
		c.fail()
	}
	return v
}

// condition is the rest of the expression of an #if.
type condition struct {
	f    *source
	at   Pos
	text string
	bad  bool
}

func (c *condition) fail() {
	if !c.bad {
		c.f.errs.Add(c.at, "#if: expected the end of the line or an operator, found %s", strconv.Quote(c.text))
	}
	c.bad = true
}

func (c *condition) space() { c.text = strings.TrimLeft(c.text, " \t") }

func (c *condition) got(prefix string) (ok bool) {
	c.space()
	c.text, ok = strings.CutPrefix(c.text, prefix)
	return ok
}

func (c *condition) or(depth int) bool {
	v := c.and(depth)
	for !c.bad && c.got("||") {
		w := c.and(depth)
		v = v || w
	}
	return v
}

func (c *condition) and(depth int) bool {
	v := c.not(depth)
	for !c.bad && c.got("&&") {
		w := c.not(depth)
		v = v && w
	}
	return v
}

func (c *condition) not(depth int) bool {
	negated := false
	for c.got("!") {
		negated = !negated
	}
	return c.operand(depth) != negated
}

func (c *condition) operand(depth int) bool {
	if c.got("(") {
		if depth == MaxNesting {
			c.fail()
			return false
		}
		v := c.or(depth + 1)
		if !c.bad && !c.got(")") {
			c.fail()
		}
		return v
	}
	word, rest := cutWord(c.text)
	if word == "" {
		c.fail()
		return false
	}
	c.text = rest
	if word == "defined" {
		paren := c.got("(")
		if word, c.text = cutWord(c.text); word == "" || paren && !c.got(")") {
			c.fail()
		}
		_, ok := c.f.macros[word]
		return ok
	}
	return c.value(word)
}

// value returns the truth value of a number or a name.
func (c *condition) value(word string) bool {
	for range MaxNesting { // names that stand for names
		if digit(word[0]) {
			n, err := parseInt(word)
			if err != nil {
				c.f.errs.Add(c.at, "#if: %v", err)
			}
			return n != Int{}
		}
		v, ok := c.f.macros[word]
		if !ok {
			return false
		}
		if v.Name == "" {
			return v.Int != Int{}
		}
		word = v.Name
	}
	return false
}
