package gen

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
)

// server writes the interface of a version's server, and the code that executes calls with it.
func (g *generator) server(s *service) {
	g.use("context", pkgRPC, pkgOncrpc)
	g.p(`
// %[3]s %[1]sServer executes %[2]s.
// Its methods are called by many goroutines at once.
//
// Arguments are valid until the method returns. Byte slices in them refer to the received message,
// and results may do so, too; they must not refer to anything else in the arguments. res is zero, and
// belongs to the server again when the method returns. Other memory that results refer to must not
// change until the reply has been sent: memory from req.Alloc is sent from where it is and needs
// nothing else, and for other memory req.WhenReleased reports when it is free.
//
// An error that is, or wraps, oncrpc.GarbageArgs, oncrpc.ProcUnavail or oncrpc.SystemErr, or an
// oncrpc.AuthStat such as oncrpc.AuthTooWeak, goes to the caller. Any other error goes to Config.Logger, and is
// SYSTEM_ERR to the caller, unless the results have an arm for its text. So are results that Check refuses.
type %[1]sServer interface {`, s.base, s.doc, article(s.base))
	for i, m := range s.procs {
		if i > 0 {
			g.p("")
		}
		g.prose([]string{fmt.Sprintf("%s executes %s.", m.name, m.Name)}, m.Doc)
		g.p("%s(%s) error", m.name, g.serverParams(m, true))
	}
	g.p("}")
	g.p(`
// Unimplemented%[1]sServer answers all procedures with PROC_UNAVAIL. Servers that embed it need
// only have the methods of their procedures.
type Unimplemented%[1]sServer struct{}

var _ %[1]sServer = Unimplemented%[1]sServer{}
`, s.base)
	for _, m := range s.procs {
		g.p("// %s returns oncrpc.ProcUnavail.", m.name)
		g.p("func (Unimplemented%sServer) %s(%s) error {\nreturn oncrpc.ProcUnavail\n}\n", s.base, m.name, g.serverParams(m, false))
	}
	g.program(s)
	for _, m := range s.procs {
		g.serverMethod(s, m)
	}
}

// program writes the function that makes an rpc.Program of a server.
func (g *generator) program(s *service) {
	g.p(`// %[1]sProgram returns the program that impl executes: for Register of a server, for
// ClientConfig.Callbacks, or for [rpc.Versions] if there are several versions.
func %[1]sProgram(impl %[1]sServer) rpc.Program {
	return rpc.Program{
		Number: %[2]s, Low: %[3]s, High: %[3]s,
		Names: []*oncrpc.Program{%[6]s},
		Handler: &%[4]sHandler{impl: impl}, Binding: %[5]s{}, Padded: true,
		Idempotent: func(vers, proc uint32) bool {
			return %[5]s{}.Idempotent(rpc.Procedure{Prog: %[2]s, Vers: vers, Proc: proc})
		},`, s.base, s.prog, s.vers, s.local, s.binding, s.names)
	if list := s.having(func(m *method) bool { return m.Inline }); list != "" {
		g.p("Inline: func(_, proc uint32) bool {\nswitch proc {\ncase %s:\nreturn true\n}\nreturn false\n},", list)
	}
	if s.alone {
		g.p("Independent: true,")
	}
	g.p("}\n}")
	if !s.wrapped {
		g.p(`
// Register%[1]s has s execute %[2]s with impl.
func Register%[1]s(s rpc.Registrar, impl %[1]sServer) error { return s.Register(%[1]sProgram(impl)) }`, s.base, s.doc)
	}
	g.p(`
// %[4]s %[3]sHandler decodes the arguments of calls and encodes their results.
type %[3]sHandler struct {
	impl %[1]sServer
`, s.base, s.doc, s.local, article(s.base))
	for _, m := range s.procs {
		if m.pooled() && m.Streamed == nil {
			g.use(pkgGen)
			g.p("%sCalls gen.Pool[%s%sCall]", lower(m.name), s.local, m.name)
		}
	}
	if slices.ContainsFunc(s.procs, func(m *method) bool { return m.Streamed != nil }) {
		g.p("streams stream.Streams")
	}
	g.p("}")
	g.p(`
// ServeRPC executes one call.
func (h *%sHandler) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	switch req.Proc {`, s.local)
	for _, m := range s.procs {
		g.p("case %s:\nh.serve%s(ctx, req, res)", m.number, m.name)
	}
	g.p("default:\nres.Fail(oncrpc.ProcUnavail)\n}\n}")
}

// having returns the constants of the procedures for which f is true.
func (s *service) having(f func(m *method) bool) string {
	var list []string
	for _, m := range s.procs {
		if f(m) {
			list = append(list, m.number)
		}
	}
	text := strings.Join(list, ", ")
	if len(text) > lineLength {
		text = strings.Join(list, ",\n")
	}
	return text
}

// pooled reports whether calls of the procedure reuse memory.
func (m *method) pooled() bool { return len(m.params) > 0 || m.result() != nil }

// grows reports whether arguments may hold more memory than those of one call use: arrays and lists keep unused
// elements.
func (m *method) grows() bool {
	seen := make(map[*check.Type]bool)
	for _, p := range m.params {
		if contains(m.Proc, p.Type, slice, seen) {
			return true
		}
	}
	return false
}

// slice reports whether a type without a name is a Go slice with its own elements.
func slice(t *check.Type) bool { return t.Kind == check.List || t.Kind == check.Array && !t.Fixed }

// serverParams returns the parameters of a server's method.
func (g *generator) serverParams(m *method, named bool) string {
	list := []string{"ctx context.Context", "req *rpc.Request"}
	for _, p := range m.params {
		list = append(list, p.declare())
	}
	if m.result() != nil {
		list = append(list, "res *"+g.typ(m.result()))
	}
	if m.Streamed != nil {
		g.use(pkgStream)
		list = append(list, "out *stream.Sender["+g.typ(m.Streamed.Type)+"]")
	}
	if !named {
		for i, p := range list {
			_, list[i], _ = strings.Cut(p, " ")
		}
	}
	return strings.Join(list, ", ")
}

// serverMethod writes the method of the handler for one procedure.
func (g *generator) serverMethod(s *service, m *method) {
	if m.Streamed != nil {
		g.serverStream(s, m)
		return
	}
	typ := s.local + m.name + "Call"
	if m.pooled() {
		g.p("\n// %s %s is one call of %s.\ntype %s struct {", article(s.base), typ, m.Name, typ)
		for _, p := range m.params {
			g.p("%s %s", p.name, p.typ)
		}
		if m.grows() {
			g.p("kept uint64 // see [xdr.Decoder.Keep]")
		}
		if m.result() != nil {
			g.p("res %s", g.typ(m.result()))
		}
		g.p("}")
	}
	g.p("\nfunc (h *%sHandler) serve%s(ctx context.Context, req *rpc.Request, res *rpc.Response) {", s.local, m.name)
	done := ""
	if m.pooled() {
		done = fmt.Sprintf("h.%sCalls.Put(x)", lower(m.name))
		if m.grows() {
			done = "if d.Keep(&x.kept) {\n" + done + "\n}"
		}
		g.p("x := h.%sCalls.Get()", lower(m.name))
	}
	call := "ctx, req"
	g.p("dec := req.Decoder()\nd := &dec")
	from := g.out.Len()
	var args []*check.Member
	for _, p := range m.params {
		args = append(args, p.Member)
	}
	g.strict(s, m, args...)
	for _, p := range m.params {
		g.decodeValue(p.Member, "x."+p.name)
		if p.pointer {
			call += ", &x." + p.name
		} else {
			call += ", x." + p.name
		}
	}
	if m.result() != nil {
		call += ", &x.res"
	}
	g.p("if err := d.End(); err != nil {\n%s\nres.FailArgs(req, err)\nreturn\n}", done)
	if arg, left := m.TimeLeft(); left != nil {
		g.use(pkgGen)
		g.p("ctx, cancel := gen.Deadline(ctx, x.%s.%s)\ndefer cancel()", m.value(g, check.Path{arg}), g.fieldName(left))
	}
	g.p("err := h.impl.%s(%s)", m.name, call)
	if m.result() == nil {
		g.p("if err != nil {\nres.FailWith(req, err)\n}\n%s\n}", done)
	} else {
		g.serverResults(s, m)
		g.p("x.res = %s\n%s\n}", g.zero(m.result()), done)
		g.checkFunction(s, m)
	}
	if strings.Contains(string(g.out.Bytes()[from:]), "xdr.") {
		g.use(pkgXDR)
	}
}

// serverResults writes the statements that check and encode x.res.
func (g *generator) serverResults(s *service, m *method) {
	if a := m.Failure(); a != nil {
		t := m.result().Base()
		g.p("if text, ok := res.ErrorText(req, err, %d); ok {", a.Member.Type.Base().Len)
		g.p("err, x.res = nil, %s{%s: %s, %s: text}\n}", g.typ(m.result()), g.fields[t][t.Discriminant], g.label(t, a.Labels[0]), g.fields[t][a.Member])
	}
	if hasBounds(m.result(), g.checked, false) {
		check := fmt.Sprintf("check%s%s(&x.res)", s.base, m.name)
		if methods(m.result()) {
			check = "x.res.Check()"
		}
		g.p("if err == nil {\nerr = %s\n}", check)
	}
	g.p("if err != nil {\nres.FailWith(req, err)\n} else {")
	if methods(m.result()) && !m.Holds(m.Returned) && m.result().Base().Kind != check.Enum {
		g.p("res.Results = x.res.Append(res.Results)")
	} else {
		g.p("b := res.Results")
		g.items(m.Proc, func(_ *check.Member, e string) {
			g.p("res.Results = b\nres.AddItem(%s, nil)\nb = res.Results", e)
		}, func() { g.appendValue(m.Returned, "x.res") })
		g.p("res.Results = b")
	}
	g.p("}")
}

// checkFunction writes the function that checks results of a type without methods.
func (g *generator) checkFunction(s *service, m *method) {
	if methods(m.result()) || !hasBounds(m.result(), g.checked, false) {
		return
	}
	g.p("\n// check%s%s returns an [*xdr.CheckError] if results of %s are out of bounds.", s.base, m.name, m.Name)
	g.p("func check%s%s(res *%s) error {", s.base, m.name, g.typ(m.result()))
	g.check(m.result(), "*res", place{})
	g.p("return nil\n}")
}
