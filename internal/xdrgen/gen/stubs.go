package gen

import (
	"cmp"
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// service is one version of a program, for which stubs are generated.
type service struct {
	prog, vers string // names of the constants
	doc        string // name in comments
	base       string // prefix of its exported Go types
	local      string // prefix of its unexported ones
	client     string // type of the client
	newClient  string // function that returns a client
	binding    string // type of the binding
	names      string // variable with the names
	program    string // name of the program in errors
	version    uint32
	number     uint32 // number of the program
	lax        bool   // pad bytes are ignored
	alone      bool   // handlers do not wait for other calls of their client
	wrapped    bool   // client and binding are unexported, and no function registers a server
	procs      []*method
	null       string // method for procedure 0
	nullProc   *check.Proc
	plainNull  string // its name in errors
}

// method is a procedure in Go.
type method struct {
	*check.Proc
	name   string // name of the method
	plain  string // name of the procedure in errors
	start  string // name of the client's method for a Pipeline
	number string // name of the constant
	params []param
	bufs   []string // client parameters for bulk results
}

// result returns the type of the result, or nil for void.
func (m *method) result() *check.Type {
	if m.Returned == nil {
		return nil
	}
	return m.Returned.Type
}

// param is an argument of a procedure as a parameter of a method.
type param struct {
	*check.Member
	name, typ string
	pointer   bool // the parameter is a pointer to typ
}

// stubs writes the client, the server and the binding of each version of each program.
func (g *generator) stubs() {
	for _, p := range g.spec.Programs {
		for _, v := range p.Versions {
			s := g.service(p, v)
			g.programNames(s)
			g.client(s)
			g.server(s)
			g.binding(s)
		}
	}
}

// service chooses the names of a version's stubs.
func (g *generator) service(p *check.Program, v *check.Version) *service {
	s := &service{
		prog: g.names.programs[number{p.Name, p.Number}], vers: g.names.versions[number{v.Name, v.Number}],
		doc: fmt.Sprintf("version %s of program %s", v.Name, p.Name), number: p.Number, lax: v.Lax, alone: v.Independent,
		wrapped: v.Wrapped, program: p.Name, version: v.Number,
	}
	used := map[string]bool{"Cred": true, "Verf": true, "NoResend": true, "MaxDecoded": true}
	prefix := commonPrefix(v.Procs)
	for _, proc := range v.Procs {
		name := unique(used, "", strings.TrimPrefix(proc.Name, prefix), "Proc")
		if proc.Number == 0 {
			s.null, s.nullProc, s.plainNull = name, proc, strings.TrimPrefix(proc.Name, prefix)
			continue
		}
		m := &method{Proc: proc, name: name, plain: strings.TrimPrefix(proc.Name, prefix), number: g.names.procs[number{proc.Name, proc.Number}]}
		g.params(m)
		s.procs = append(s.procs, m)
	}
	if s.null == "" && !used["Null"] {
		s.null = "Null"
	}
	for _, m := range s.procs {
		m.start = "Start" + m.name
		for used[m.start] {
			m.start += "Call"
		}
		used[m.start] = true
	}
	s.base = g.base(p, v, s.procs)
	s.local = lower(s.base)
	s.client, s.newClient, s.binding, s.names = s.base+"Client", "New"+s.base+"Client", s.base+"Binding", s.base+"Names"
	if s.wrapped {
		s.client, s.newClient, s.binding, s.names = lower(s.client), lower(s.newClient), lower(s.binding), lower(s.names)
	}
	for _, suffix := range []string{"_PROG", "_PROGRAM"} {
		if name, found := strings.CutSuffix(s.program, suffix); found && name != "" {
			s.program = name
		}
	}
	return s
}

// maxNamed is the largest number of a procedure with a name at run time: names are in a slice.
const maxNamed = 1000

// programNames writes the variable with the names of a version: those of the source, without the prefix of all
// procedures and the usual suffix of programs.
func (g *generator) programNames(s *service) {
	g.use(pkgOncrpc)
	g.p("\n// %s are the names of %s, for errors and metrics. Immutable.", s.names, s.doc)
	g.p("var %s = &oncrpc.Program{\nNumber: %s, Vers: %s, Name: %q,\nProcedures: []string{", s.names, s.prog, s.vers, s.program)
	line, next := `"NULL",`, uint32(1)
	if s.nullProc != nil {
		line = strconv.Quote(s.plainNull) + ","
	}
	for _, m := range s.byNumber() {
		item := strconv.Quote(m.plain) + ","
		if m.Proc.Number != next {
			item = fmt.Sprintf("%d: %s", m.Proc.Number, item)
		}
		next = m.Proc.Number + 1
		if len(line)+len(item) > lineLength {
			g.p("%s", line)
			line = ""
		}
		line += " " + item
	}
	g.p("%s\n},", line)
	longest := int64(0)
	for _, m := range s.procs {
		longest = max(longest, m.Longest)
	}
	if longest > 0 {
		g.p("Longest: %d,", longest)
	}
	g.p("}")
}

// byNumber returns the procedures with names at run time.
func (s *service) byNumber() []*method {
	list := slices.DeleteFunc(slices.Clone(s.procs), func(m *method) bool { return m.Proc.Number > maxNamed })
	slices.SortFunc(list, func(a, b *method) int { return cmp.Compare(a.Proc.Number, b.Proc.Number) })
	return list
}

// base returns the prefix for the names of a version's types and functions: the version's name, or else the names of
// program and version.
func (g *generator) base(p *check.Program, v *check.Version, procs []*method) string {
	free := func(base string) bool {
		names := []string{
			base + "Client", "New" + base + "Client", base + "Server", "Unimplemented" + base + "Server",
			base + "Program", "Register" + base, base + "Binding", base + "Names", lower(base) + "Handler",
			lower(base) + "Client", "new" + base + "Client", lower(base) + "Binding", lower(base) + "Names",
		}
		for _, m := range procs {
			names = append(names, lower(base)+m.name+"Call", "check"+base+m.name)
		}
		for _, n := range names {
			if g.names.used[n] {
				return false
			}
		}
		for _, n := range names {
			g.names.used[n] = true
		}
		return true
	}
	base := check.GoName(v.Name)
	if free(base) {
		return base
	}
	base = check.GoName(p.Name) + base
	for s, i := base, 2; ; s, i = base+strconv.Itoa(i), i+1 {
		if free(s) {
			return s
		}
	}
}

// commonPrefix returns the common prefix of all procedure names, up to an underscore. The rest of each name begins with
// a letter.
func commonPrefix(procs []*check.Proc) string {
	if len(procs) == 0 {
		return ""
	}
	prefix := procs[0].Name
	for _, p := range procs {
		for !strings.HasPrefix(p.Name, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
	}
	for prefix != "" {
		prefix = prefix[:strings.LastIndexByte(prefix, '_')+1]
		good := true
		for _, p := range procs {
			rest := strings.TrimPrefix(p.Name, prefix)
			good = good && rest != "" && rest[0] != '_' && (rest[0] < '0' || rest[0] > '9')
		}
		if good {
			break
		}
		prefix = strings.TrimSuffix(prefix, "_")
	}
	return prefix
}

// lower makes the first letter of a Go name lower case.
func lower(name string) string { return strings.ToLower(name[:1]) + name[1:] }

// reserved lists variables of generated functions, and packages. Immutable.
var reserved = map[string]bool{
	"b": true, "c": true, "call": true, "ctx": true, "d": true, "err": true, "h": true, "i": true, "impl": true, "kept": true,
	"dec": true, "done": true, "left": true, "timed": true, "failed": true, "p": true, "req": true, "res": true, "results": true, "x": true,
	"context": true, "fmt": true, "oncrpc": true, "rpc": true, "gen": true, "iter": true, "out": true, "stream": true, "v": true, "xdr": true, "strconv": true,
}

// taken reports whether the name refers to something else in generated functions.
func (g *generator) taken(name string) bool { return reserved[name] || g.names.used[name] }

// params chooses the parameters of a method: structures and unions are passed as pointers, everything else by value.
func (g *generator) params(m *method) {
	used := make(map[string]bool)
	name := func(want, suffix string) string {
		s := want
		if token.IsKeyword(s) || types.Universe.Lookup(s) != nil || g.taken(s) || used[s] {
			s += suffix
		}
		for base, i := s, 2; g.taken(s) || used[s]; i++ {
			s = base + strconv.Itoa(i)
		}
		used[s] = true
		return s
	}
	for i, a := range m.Args {
		want := lower(check.GoName(a.Name))
		switch {
		case a.Name != "":
		case len(m.Args) == 1:
			want = "args"
		default:
			want = "arg" + strconv.Itoa(i+1)
		}
		kind := a.Type.Base().Kind
		m.params = append(m.params, param{
			Member: a, name: name(want, "Arg"), typ: g.typ(a.Type), pointer: kind == check.Struct || kind == check.Union,
		})
	}
	for _, r := range m.Received {
		m.bufs = append(m.bufs, name(lower(check.GoName(r.Member.Name)), "Buf"))
	}
}

// declare returns a parameter as a declaration.
func (p param) declare() string {
	if p.pointer {
		return p.name + " *" + p.typ
	}
	return p.name + " " + p.typ
}

// value returns the expression for a parameter's value in the form that append and check expect.
func (p param) value() string {
	if p.pointer {
		return "*" + p.name
	}
	return p.name
}

// at returns the place of a parameter for errors of Check: a single structure is the value itself.
func (m *method) at(p param) place {
	if p.pointer && len(m.params) == 1 {
		return place{}
	}
	return place{field: p.name}
}

// prose returns a comment's lines, preceded by first.
func (g *generator) prose(first []string, doc syntax.Comments) {
	for _, line := range first {
		g.p("// %s", line)
	}
	for i, line := range doc.Lines() {
		if i == 0 {
			g.p("//")
		}
		g.p("// %s", line)
	}
}

// fieldName returns the Go name of a member of a structure or union.
func (g *generator) fieldName(m *check.Member) string {
	for _, t := range g.spec.Types {
		if name := g.fields[t][m]; name != "" {
			return name
		}
	}
	return ""
}

// zero returns the zero value of a type.
func (g *generator) zero(t *check.Type) string {
	switch b := t.Base(); {
	case g.isExtern(t):
		return "*new(" + g.typ(t) + ")"
	case b.Kind == check.Bool:
		return "false"
	case b.Kind == check.String:
		return `""`
	case b.Kind == check.Struct, b.Kind == check.Union, b.Kind == check.Quadruple, b.Fixed:
		return g.typ(t) + "{}"
	case b.Kind == check.Opaque, b.Kind == check.Array, b.Kind == check.Optional, b.Kind == check.List:
		return "nil"
	}
	return "0"
}

// opaqueIn reports whether decoding a value refers to opaque data other than items. Hand-written types have copies.
func (g *generator) opaqueIn(p *check.Proc, t *check.Type) bool {
	seen := make(map[*check.Type]bool)
	for _, t := range g.spec.Types {
		seen[t] = t.Extern
	}
	return contains(p, t, func(t *check.Type) bool { return t.Kind == check.Opaque && !t.Fixed }, seen)
}

// strict makes the Decoder check pad bytes if the values may contain any, not counting items.
func (g *generator) strict(s *service, m *method, values ...*check.Member) {
	for _, v := range values {
		if !s.lax && !v.Bulk() && contains(m.Proc, v.Type, padded, make(map[*check.Type]bool)) {
			g.p("d.Strict()")
			return
		}
	}
}

// padded reports whether pad bytes can follow a value of a type without a name.
func padded(t *check.Type) bool {
	return t.Kind == check.String || t.Kind == check.Opaque && (!t.Fixed || t.Len%4 != 0)
}

// contains reports whether f is true for t or for a type of which it consists, except items.
func contains(p *check.Proc, t *check.Type, f func(*check.Type) bool, seen map[*check.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	if f(t) || t.Elem != nil && contains(p, t.Elem, f, seen) {
		return true
	}
	members := t.Members
	for _, a := range t.Arms {
		if a.Member != nil {
			members = append(members[:len(members):len(members)], a.Member)
		}
	}
	for _, m := range members {
		if !p.Items[m] && contains(p, m.Type, f, seen) {
			return true
		}
	}
	return false
}
