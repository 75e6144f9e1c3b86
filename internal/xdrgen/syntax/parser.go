package syntax

// A Source is one file to compile.
type Source struct {
	Name string // used in positions
	Text []byte
}

// Options change how sources are read.
type Options struct {
	// Defines lists names that are defined for #ifdef, with the value 1.
	Defines []string

	// Include finds the .x file that #include "name" in file from refers to. It returns the path for positions, which
	// also identifies the file: each is read only once. If Include is nil, such lines are ignored.
	Include func(from, name string) (path string, text []byte, err error)
}

// Parse parses sources into one tree. The error joins one [*Error] for each mistake found, up to [MaxErrors]. The tree
// then has what was understood.
func Parse(sources []Source, opt Options) (*File, error) {
	var errs Errors
	s := &scanner{opt: opt, errs: &errs, macros: make(map[string]Value), read: make(map[string]bool)}
	for _, name := range opt.Defines {
		s.macros[name] = Value{Int: IntOf(1)}
	}
	file := new(File)
	for _, source := range sources {
		file.Names = append(file.Names, source.Name)
		if !s.read[source.Name] && s.count(source.Name, source.Text) {
			s.file(source.Name, string(source.Text))
		}
	}
	for _, c := range s.consts {
		file.Decls = append(file.Decls, c)
	}
	end := token{kind: tokEOF, text: "end of file"}
	if n := len(s.tokens); n > 0 {
		end.Pos = s.tokens[n-1].Pos
	} else if len(sources) > 0 {
		end.Pos = Pos{sources[0].Name, 1, 1}
	}
	p := &parser{tokens: append(s.tokens, end), errs: &errs}
	for p.peek().kind != tokEOF && !errs.Full() {
		start := p.next
		if d := p.definition(); d != nil {
			file.Decls = append(file.Decls, d)
		}
		p.recover(start, true)
	}
	file.Notes = append(s.notes, p.notes...)
	return file, errs.Err()
}

// parser is a recursive descent parser. After a mistake it is stuck: until recover is called, no method takes another
// token, so that every loop ends and no further error follows from the first.
type parser struct {
	tokens []token // the last one is the end of the file
	next   int
	errs   *Errors
	stuck  bool
	depth  int // nesting of bodies
	notes  []Note
}

func (p *parser) peek() *token { return &p.tokens[p.next] }

// is reports whether the next token is punctuation of this kind.
func (p *parser) is(kind tokenKind) bool { return !p.stuck && p.peek().kind == kind }

// isWord reports whether the next token is this word.
func (p *parser) isWord(text string) bool {
	t := p.peek()
	return !p.stuck && t.text == text && (t.kind == tokKeyword || t.kind == tokIdent)
}

// take returns the next token and advances.
func (p *parser) take() *token {
	t := p.peek()
	if !p.stuck && t.kind != tokEOF {
		p.next++
	}
	return t
}

func (p *parser) got(kind tokenKind) bool {
	ok := p.is(kind)
	if ok {
		p.take()
	}
	return ok
}

func (p *parser) gotWord(text string) bool {
	ok := p.isWord(text)
	if ok {
		p.take()
	}
	return ok
}

// want takes punctuation of this kind, or reports that what is missing.
func (p *parser) want(kind tokenKind, what string) {
	if !p.got(kind) {
		p.expected(what)
	}
}

// expected reports that the next token is not the required one.
func (p *parser) expected(what string) {
	if !p.stuck {
		p.errs.Add(p.peek().Pos, "expected %s, found %s", what, p.peek())
	}
	p.stuck = true
}

// recover continues after a mistake in what began at token start: after the semicolon that ends it, or before the brace
// that closes the enclosing body. At the top level no brace closes it.
func (p *parser) recover(start int, top bool) {
	if !p.stuck {
		return
	}
	p.stuck = false
	depth := 0
	for _, t := range p.tokens[start:p.next] {
		switch t.kind {
		case '{':
			depth++
		case '}':
			depth--
		}
	}
	for p.peek().kind != tokEOF {
		switch p.peek().kind {
		case '{':
			depth++
		case '}':
			if depth <= 0 && !top {
				return
			}
			depth = max(depth-1, 0)
		case ';':
			if depth <= 0 {
				p.take()
				return
			}
		}
		p.take()
	}
}

func (p *parser) ident(what string) Ident {
	if !p.is(tokIdent) {
		p.expected(what)
		return Ident{Pos: p.peek().Pos}
	}
	t := p.take()
	return Ident{t.Pos, t.text}
}

// value parses a constant or the name of one. RFC 4506 section 6.3, value.
func (p *parser) value() Value {
	switch t := p.peek(); {
	case p.is(tokIdent):
		p.take()
		return Value{Pos: t.Pos, Name: t.text}
	case p.is(tokNumber):
		p.take()
		return Value{Pos: t.Pos, Int: t.num}
	}
	p.expected("a number or the name of a constant")
	return Value{Pos: p.peek().Pos}
}

// comments collects the comments of the declaration from token start to the last one taken.
func (p *parser) comments(start int) Comments {
	c := Comments{Before: p.tokens[start].before}
	for i := start; i < p.next; i++ {
		if i > start {
			c.After = append(c.After, p.tokens[i].before...)
		}
		c.After = append(c.After, p.tokens[i].after...)
	}
	return c
}

// bodyComments is comments for a definition with a body: comments in the body belong to its members, except one after
// the opening brace.
func (p *parser) bodyComments(start, brace, end int) Comments {
	c := Comments{Before: p.tokens[start].before}
	inside := false // within a union's parentheses: comments of the discriminant
	for i := start; i <= brace && i < p.next; i++ {
		kind := p.tokens[i].kind
		if inside = inside || kind == '('; inside {
			inside = kind != ')'
			continue
		}
		if i > start {
			c.After = append(c.After, p.tokens[i].before...)
		}
		c.After = append(c.After, p.tokens[i].after...)
	}
	for i := max(end, brace+1); i < p.next; i++ {
		c.After = append(c.After, p.tokens[i].after...)
	}
	return c
}

// definition parses a definition of RFC 4506 section 6.3, or a program of RFC 5531 section 12.2.
func (p *parser) definition() Decl {
	start := p.next
	switch t := p.peek(); {
	case p.gotWord("const"):
		return p.constant(start)
	case p.gotWord("typedef"):
		return p.typedef(start)
	case p.isWord("enum"), p.isWord("struct"), p.isWord("union"):
		return p.named(start)
	case t.kind == tokIdent && t.text == "program":
		p.take()
		return p.program(start)
	case p.got(';'):
		return nil // an empty definition, as in published files
	case t.kind == tokIdent && (t.text == "package" || t.text == "import") && p.tokens[p.next+1].kind == tokString:
		p.take()
		p.take()
		p.want(';', `";"`)
		p.notes = append(p.notes, Note{Pos: t.Pos, Text: t.text + " of another compiler is ignored"})
		return nil
	}
	p.expected("a definition")
	return nil
}

// constant parses const identifier = constant. RFC 4506 section 4.17.
func (p *parser) constant(start int) Decl {
	c := &Const{Name: p.ident("the name of the constant")}
	p.want('=', `"="`)
	if p.is(tokString) { // as rpcgen accepts it
		c.Text, c.IsText = p.take().text, true
	} else {
		c.Value = p.value()
	}
	p.want(';', `";"`)
	c.Doc = p.comments(start)
	return p.unlessStuck(c)
}

// unlessStuck drops a definition that was not understood.
func (p *parser) unlessStuck(d Decl) Decl {
	if p.stuck {
		return nil
	}
	return d
}

// typedef parses typedef declaration. RFC 4506 section 4.18.
func (p *parser) typedef(start int) Decl {
	brace := p.firstBrace()
	m := p.declaration(needName)
	end := p.next
	p.want(';', `";"`)
	if !p.stuck && m.Type == nil {
		p.errs.Add(m.Pos, "typedef of void")
		return nil
	}
	d := &TypeDef{Name: Ident{m.Pos, m.Name}, Type: m.Type}
	if brace < 0 {
		d.Doc = p.comments(start)
	} else {
		d.Doc = p.bodyComments(start, brace, end)
	}
	return p.unlessStuck(d)
}

// firstBrace returns the token that opens the body of the type that begins here, or -1 if it has no body.
func (p *parser) firstBrace() int {
	for i := p.next; i < len(p.tokens); i++ {
		switch p.tokens[i].kind {
		case '{':
			return i
		case ';', '}', tokEOF:
			return -1
		}
	}
	return -1
}

// named parses enum, struct or union with a name and a body, which is the same as a typedef. RFC 4506 section 4.18. RFC
// 1833 has struct *name { ... }: a typedef of a pointer to the body.
func (p *parser) named(start int) Decl {
	word := p.take()
	pointer := word.text == "struct" && p.got('*')
	name := p.ident("the name of the " + word.text)
	brace := p.firstBrace()
	t := p.body(word)
	end := p.next - 1
	p.want(';', `";"`)
	if pointer {
		t = &Optional{word.Pos, t}
	}
	d := &TypeDef{Name: name, Type: t}
	if !p.stuck {
		d.Doc = p.bodyComments(start, brace, end)
	}
	return p.unlessStuck(d)
}

// body parses what follows the word enum, struct or union and perhaps a name.
func (p *parser) body(word *token) Type {
	if p.depth == MaxNesting {
		if !p.stuck {
			p.errs.Add(word.Pos, "bodies are nested deeper than %d", MaxNesting)
		}
		p.stuck = true
	}
	p.depth++
	defer func() { p.depth-- }()
	switch word.text {
	case "enum":
		return p.enum(word.Pos)
	case "struct":
		return p.structure(word.Pos)
	}
	return p.union(word.Pos)
}

// enum parses enum-body. RFC 4506 section 4.3.
func (p *parser) enum(at Pos) Type {
	e := &Enum{Pos: at}
	p.want('{', `"{"`)
	for !p.stuck {
		start := p.next
		v := Enumerator{Name: p.ident("the name of a value")}
		if p.got('=') {
			value := p.value()
			v.Value = &value
		}
		more := p.got(',')
		v.Doc = p.comments(start)
		if !p.stuck {
			e.Values = append(e.Values, v)
		}
		if !more || p.is('}') { // a comma after the last one, as in published files
			break
		}
	}
	p.want('}', `"," or "}"`)
	return e
}

// structure parses struct-body. RFC 4506 section 4.14.
func (p *parser) structure(at Pos) Type {
	s := &Struct{Pos: at}
	p.want('{', `"{"`)
	for !p.stuck && !p.is('}') {
		start := p.next
		m := p.member()
		if !p.stuck {
			s.Members = append(s.Members, m)
		}
		if !p.goOn(start) {
			break
		}
	}
	p.want('}', `"}"`)
	return s
}

// goOn recovers from a mistake in what began at token start within a body, and reports whether the body continues.
func (p *parser) goOn(start int) bool {
	if p.errs.Full() || p.peek().kind == tokEOF {
		return false
	}
	p.recover(start, false)
	return p.peek().kind != tokEOF
}

// member parses declaration ";".
func (p *parser) member() *Member {
	start, brace := p.next, p.firstBrace()
	m := p.declaration(needName)
	end := p.next
	p.want(';', `";"`)
	if brace < 0 {
		m.Doc = p.comments(start)
	} else if !p.stuck {
		m.Doc = p.bodyComments(start, brace, end)
	}
	return m
}

// union parses union-body. RFC 4506 section 4.15.
func (p *parser) union(at Pos) Type {
	u := &Union{Pos: at}
	if !p.gotWord("switch") {
		p.expected(`"switch"`)
	}
	p.want('(', `"("`)
	start := p.next
	u.Discriminant = p.declaration(needName)
	u.Discriminant.Doc = p.comments(start)
	u.Discriminant.Doc.After = append(u.Discriminant.Doc.After, p.peek().before...)
	if !p.stuck && u.Discriminant.Type == nil {
		p.errs.Add(u.Discriminant.Pos, "discriminant is void")
	}
	p.want(')', `")"`)
	p.want('{', `"{"`)
	for !p.stuck && !p.is('}') {
		start := p.next
		arm := p.arm()
		if !p.stuck {
			u.Arms = append(u.Arms, arm)
		}
		if !p.goOn(start) {
			break
		}
	}
	p.want('}', `"case", "default" or "}"`)
	return u
}

// arm parses one case-spec or the default of a union-body. Published files have default among the labels.
func (p *parser) arm() *Arm {
	start := p.next
	arm := &Arm{Pos: p.peek().Pos}
	for {
		if p.gotWord("case") {
			arm.Labels = append(arm.Labels, p.value())
		} else if p.gotWord("default") {
			arm.Default = true
		} else {
			break
		}
		p.want(':', `":"`)
	}
	if p.next == start {
		p.expected(`"case" or "default"`)
	}
	labels := p.next
	arm.Member = p.member()
	if !p.stuck && len(arm.Member.Doc.Before) == 0 {
		arm.Member.Doc.Before = p.comments(start).Before
		for i := start; i < labels; i++ {
			arm.Member.Doc.Before = append(arm.Member.Doc.Before[:len(arm.Member.Doc.Before):len(arm.Member.Doc.Before)], p.tokens[i].after...)
		}
	}
	return arm
}

// Whether a declaration must have a name: parameters of procedures need not.
const (
	needName = true
	mayName  = false
)

// declaration parses declaration of RFC 4506 section 6.3.
func (p *parser) declaration(needsName bool) *Member {
	m := &Member{Pos: p.peek().Pos}
	switch t := p.peek(); {
	case p.gotWord("void"):
		return m
	case p.gotWord("opaque"):
		p.name(m, needsName)
		o := &Opaque{Pos: t.Pos}
		switch {
		case p.got('['):
			o.Fixed = true
			o.Len = p.length(']')
		case p.got('<'):
			o.Len = p.length('>')
		default:
			p.expected(`"[" or "<"`)
		}
		m.Type = o
		return m
	case p.gotWord("string"):
		p.name(m, needsName)
		s := &String{Pos: t.Pos}
		if p.got('<') {
			s.Len = p.length('>')
		}
		m.Type = s
		return m
	}
	m.Type = p.specifier()
	if p.is('*') {
		at := p.take().Pos
		m.Type = &Optional{at, m.Type}
		p.name(m, needsName)
		return m
	}
	p.name(m, needsName)
	switch at := p.peek().Pos; {
	case p.got('['):
		m.Type = &Array{Pos: at, Elem: m.Type, Fixed: true, Len: p.length(']')}
	case p.got('<'):
		m.Type = &Array{Pos: at, Elem: m.Type, Len: p.length('>')}
	}
	return m
}

// name reads the name of a declaration.
func (p *parser) name(m *Member, needed bool) {
	if needed || p.is(tokIdent) {
		id := p.ident("a name")
		m.Pos, m.Name = id.Pos, id.Name
	}
}

// length reads the value before a closing bracket. Between < and > it may be missing.
func (p *parser) length(end tokenKind) *Value {
	if end == '>' && p.got('>') {
		return nil
	}
	v := p.value()
	p.want(end, `"`+string(rune(end))+`"`)
	return &v
}

// specifier parses type-specifier of RFC 4506 section 6.3.
func (p *parser) specifier() Type {
	t := p.peek()
	switch {
	case p.gotWord("unsigned"):
		return p.unsigned(t.Pos)
	case p.isWord("enum"), p.isWord("struct"), p.isWord("union"):
		p.take()
		if p.is(tokIdent) { // as in C
			id := p.ident("")
			return &Ref{id, t.text}
		}
		return p.body(t)
	}
	for _, b := range basics {
		if p.gotWord(b.word) {
			return &Basic{t.Pos, b.kind}
		}
	}
	if p.is(tokIdent) {
		return p.ref()
	}
	p.expected("a type")
	return &Basic{Pos: t.Pos}
}

// basics lists the type specifiers that consist of one word.
var basics = [...]struct {
	word string
	kind Kind
}{
	{"int", Int32}, {"hyper", Hyper}, {"float", Float}, {"double", Double},
	{"quadruple", Quadruple}, {"bool", Bool},
}

// unsigned parses what follows the word unsigned. Alone it means unsigned int. C types are encoded as rpcgen does.
func (p *parser) unsigned(at Pos) Type {
	switch {
	case p.gotWord("hyper"):
		return &Basic{at, Uhyper}
	case p.gotWord("int"), p.gotWord("char"), p.gotWord("short"):
	case p.gotWord("long"):
		p.gotWord("int")
	}
	return &Basic{at, Uint32}
}

// ref parses the name of a type. C types are not keywords.
func (p *parser) ref() Type {
	id := p.ident("a type")
	return &Ref{Ident: id}
}

// program parses program-def. RFC 5531 section 12.2.
func (p *parser) program(start int) Decl {
	d := &Program{Name: p.ident("the name of the program")}
	brace := p.next
	p.want('{', `"{"`)
	for !p.stuck && !p.is('}') {
		start := p.next
		v := p.version()
		if !p.stuck {
			d.Versions = append(d.Versions, v)
		}
		if !p.goOn(start) {
			break
		}
	}
	end := p.next
	p.want('}', `"}"`)
	p.want('=', `"="`)
	d.Number = p.value()
	p.want(';', `";"`)
	if !p.stuck {
		d.Doc = p.bodyComments(start, brace, end)
	}
	return p.unlessStuck(d)
}

// version parses version-def.
func (p *parser) version() *Version {
	start := p.next
	if !p.gotWord("version") {
		p.expected(`"version" or "}"`)
	}
	v := &Version{Name: p.ident("the name of the version")}
	brace := p.next
	p.want('{', `"{"`)
	for !p.stuck && !p.is('}') {
		start := p.next
		proc := p.procedure()
		if !p.stuck {
			v.Procs = append(v.Procs, proc)
		}
		if !p.goOn(start) {
			break
		}
	}
	end := p.next
	p.want('}', `"}"`)
	p.want('=', `"="`)
	v.Number = p.value()
	p.want(';', `";"`)
	if !p.stuck {
		v.Doc = p.bodyComments(start, brace, end)
	}
	return v
}

// procedure parses procedure-def. Parameters may have names, which are ignored.
func (p *parser) procedure() *Proc {
	start := p.next
	proc := new(Proc)
	if !p.gotWord("void") {
		proc.Result = p.simple()
	}
	proc.Name = p.ident("the name of the procedure")
	p.want('(', `"("`)
	for !p.is(')') {
		if m := p.parameter(); m.Type != nil {
			proc.Args = append(proc.Args, m)
		}
		if !p.got(',') {
			break
		}
	}
	p.want(')', `"," or ")"`)
	p.want('=', `"="`)
	proc.Number = p.value()
	p.want(';', `";"`)
	proc.Doc = p.comments(start)
	return proc
}

// parameter parses the type of a procedure's argument, and perhaps a name.
func (p *parser) parameter() *Member {
	if p.isWord("opaque") {
		p.expected("the name of a type")
		return new(Member)
	}
	return p.declaration(mayName)
}

// simple parses the type of a result: a type-specifier, or string, as rpcgen accepts it.
func (p *parser) simple() Type {
	t := p.peek()
	if p.gotWord("string") {
		s := &String{Pos: t.Pos}
		if p.got('<') {
			s.Len = p.length('>')
		}
		return s
	}
	typ := p.specifier()
	if p.is('*') {
		at := p.take().Pos
		typ = &Optional{at, typ}
	}
	return typ
}
