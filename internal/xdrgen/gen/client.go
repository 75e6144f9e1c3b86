package gen

import (
	"fmt"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// client writes the client of a version.
func (g *generator) client(s *service) {
	g.use(pkgRPC, pkgOncrpc, pkgGen)
	g.p(`
// %[5]s %[1]s calls %[2]s.
// Its methods may be called by many goroutines at once. Memory that an argument refers to belongs to
// the call until the method returns; results are the caller's.
//
// An argument that Check refuses is an [*xdr.CheckError], and nothing is sent. All errors of
// [rpc.Caller] are passed on. Results that cannot be decoded are an [*xdr.DecodeError]. The
// result of a method that returns an error means nothing.
//
// Methods with names that begin with Start start a call in an [gen.Starter], whatever
// %[4]s was called with. Memory that an argument refers to belongs to the call until
// the Starter calls done, with what the other method would have returned. An argument that
// Check refuses is the error of Start, and done is not called.
type %[1]s struct {
	Cred, Verf oncrpc.Auth // of all calls; to be set before the first one
	NoResend   bool        // of all calls: see [rpc.Call]
	MaxDecoded int         // of all calls: see [rpc.Call]

	caller rpc.Caller
	calls  gen.Calls
}

// %[4]s returns a client that makes its calls with c, which stays the caller's.
func %[4]s(c rpc.Caller) *%[1]s { return &%[1]s{caller: c} }

func (c *%[1]s) call(proc uint32) *rpc.Call {
	call := c.calls.Get(%[3]s, proc)
	call.Cred, call.Verf, call.NoResend, call.MaxDecoded = c.Cred, c.Verf, c.NoResend, c.MaxDecoded
	return call
}`, s.client, s.doc, s.names, s.newClient, article(s.client))
	if s.null != "" {
		g.use("context")
		g.p("")
		var doc syntax.Comments
		first := s.null + " calls procedure 0, which does nothing: servers answer it themselves."
		if s.nullProc != nil {
			doc = s.nullProc.Doc
		}
		g.prose([]string{first}, doc)
		g.p("func (c *%s) %s(ctx context.Context) error {", s.client, s.null)
		g.p("call := c.call(0)\nerr := %s\nc.calls.Put(call)\nreturn err\n}", s.wrap("c.caller.Call(ctx, call)"))
	}
	for _, m := range s.procs {
		g.use("context")
		g.clientMethod(s, m)
	}
}

// article returns the article for a Go name, judging by its first letter.
func article(name string) string {
	if strings.Contains("AEIOaeio", name[:1]) {
		return "An"
	}
	return "A"
}

// bufsDoc describes the buffers of a method.
func (g *generator) bufsDoc(m *method) []string {
	var lines []string
	for i, r := range m.Received {
		what := "field " + g.fieldName(r.Member)
		if r.Member == m.Returned {
			what = "the result"
		}
		lines = append(lines, fmt.Sprintf("%s is memory for %s, which is then a part of it.", m.bufs[i], what))
	}
	return lines
}

func (g *generator) clientMethod(s *service, m *method) {
	params, args := "", ""
	for _, p := range m.params {
		params, args = params+", "+p.declare(), args+", "+p.name
	}
	if len(m.bufs) > 0 {
		params, args = params+", "+strings.Join(m.bufs, ", ")+" []byte", args+", "+strings.Join(m.bufs, ", ")
	}
	args = strings.TrimPrefix(args, ", ")
	if m.Streamed != nil {
		g.clientStream(s, m, params, args)
		g.clientCall(s, m, params)
		return
	}
	results, res, done := "error", "", "func(error)"
	if m.result() != nil {
		typ := g.typ(m.result())
		results, res, done = fmt.Sprintf("(res %s, err error)", typ), "res, ", fmt.Sprintf("func(%s, error)", typ)
	}
	own := lower(m.name)
	in := func(ctx string) string { // arguments of the function that makes the Call
		if _, left := m.TimeLeft(); left != nil {
			return ctx + ", " + args
		}
		return args
	}
	g.p("")
	g.prose(append([]string{fmt.Sprintf("%s calls %s.", m.name, m.Name)}, g.bufsDoc(m)...), m.Doc)
	g.p("func (c *%s) %s(ctx context.Context%s) %s {", s.client, m.name, params, results)
	g.p("call, err := c.%sCall(%s)\nif err == nil {", own, in("ctx"))
	g.p("%serr = c.%sEnded(call, c.caller.Call(ctx, call))\n}\nreturn %serr\n}", res, own, res)

	g.p("\n// %s starts a call of %s in p.", m.start, m.name)
	g.p("func (c *%s) %s(p gen.Starter%s, done %s) error {", s.client, m.start, params, done)
	g.p("call, err := c.%sCall(%s)\nif err == nil {", own, in("context.Background()"))
	g.p("p.StartFunc(call, func(err error) { done(c.%sEnded(call, err)) })\n}\nreturn err\n}", own)

	g.clientCall(s, m, params)

	if m.result() == nil {
		results = "error"
	}
	failed := "failed"
	if m.result() == nil {
		failed = "err"
	}
	g.p("\nfunc (c *%s) %sEnded(call *rpc.Call, %s error) %s {", s.client, own, failed, results)
	if m.result() != nil {
		g.p("err = failed")
	}
	g.clientResults(s, m)
	g.p("}")
}

// clientCall writes the function that makes the Call of a method.
func (g *generator) clientCall(s *service, m *method, params string) {
	arg, left := m.TimeLeft()
	if left != nil {
		params = ", ctx context.Context" + params
	}
	g.p("\nfunc (c *%s) %sCall(%s) (*rpc.Call, error) {", s.client, lower(m.name), strings.TrimPrefix(params, ", "))
	g.wrap = fmt.Sprintf(`nil, fmt.Errorf("%sarguments: %%%%w", %%s)`, s.called(m))
	checks := g.capture(func() {
		for _, p := range m.params {
			g.check(p.Type, p.value(), m.at(p))
		}
	})
	g.wrap = ""
	if checks != "" {
		g.use("fmt")
		g.out.WriteString(checks)
		if strings.Contains(checks, "xdr.") {
			g.use(pkgXDR)
		}
	}
	if left != nil {
		name := m.value(g, check.Path{arg})
		g.p("if left := gen.TimeLeft(ctx); left > 0 {\ntimed := *%[1]s\ntimed.%[2]s = left\n%[1]s = &timed\n}", name, g.fieldName(left))
	}
	g.p("call := c.call(%s)", m.number)
	g.clientArgs(m)
	if bound := g.bound(m, m.Bound, m.value); bound != "0" {
		g.p("call.MaxResults = %s", bound)
	}
	for _, buf := range m.bufs {
		g.p("call.Receive(%s)", buf)
	}
	g.p("return call, nil\n}")
}

// wrap returns the expression for an error of the transport as the client returns it.
func (s *service) wrap(err string) string {
	if s.wrapped {
		return err
	}
	return "gen.Wrap(call, " + err + ")"
}

// called returns the beginning of a method's errors.
func (s *service) called(m *method) string {
	if s.wrapped {
		return ""
	}
	return fmt.Sprintf("%s of %s v%d: ", m.plain, s.program, s.version)
}

// clientArgs writes the statements that encode the arguments.
func (g *generator) clientArgs(m *method) {
	if len(m.params) == 0 {
		return
	}
	g.use(pkgXDR)
	if p := m.params[0]; len(m.params) == 1 && methods(p.Type) && !m.Holds(p.Member) && p.Type.Base().Kind != check.Enum {
		g.p("call.Args = %s.Append(call.Args)", p.name)
		return
	}
	g.p("b := call.Args")
	g.items(m.Proc, func(_ *check.Member, e string) {
		g.p("b = xdr.AppendUint32(b, uint32(len(%s)))", e)
		g.p("call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: len(b), Data: %s})", e)
	}, func() {
		for _, p := range m.params {
			g.appendValue(p.Member, p.value())
		}
	})
	g.p("call.Args = b")
}

// clientResults writes the statements that decode the results of a call.
func (g *generator) clientResults(s *service, m *method) {
	g.use("fmt")
	g.p("if err == nil {\nresults := call.Decoder()\nd := &results.Decoder")
	if m.result() != nil {
		g.strict(s, m, m.Returned)
		if !m.Items[m.Returned] && g.opaqueIn(m.Proc, m.result()) {
			g.p("d.Copy() // as call is used again")
		}
		g.items(m.Proc, func(_ *check.Member, e string) { g.p("%s = results.Item()", e) }, func() {
			g.decodeValue(m.Returned, "res")
		})
		if text := g.out.String(); strings.Contains(text[strings.LastIndex(text, "d := &results"):], "xdr.") {
			g.use(pkgXDR)
		}
	}
	failed := ""
	if a := m.Failure(); a != nil {
		t := m.result().Base()
		failed = fmt.Sprintf(" else if %s == %s {\nerr = &rpc.HandlerError{Text: res.%s}\n}", g.discriminant(t, "res"), g.label(t, a.Labels[0]), g.fields[t][a.Member])
	}
	g.p("if err = d.End(); err != nil {\nerr = fmt.Errorf(\"results: %%w\", err)\n}%s\n}", failed)
	if !s.wrapped {
		g.p("err = gen.Wrap(call, err)")
	}
	g.p("c.calls.Put(call)")
	if m.result() != nil {
		g.p("return res, err")
	} else {
		g.p("return err")
	}
}

// value returns an integer in the arguments as an expression.
func (m *method) value(g *generator, path check.Path) string {
	for _, p := range m.params {
		if p.Member == path[0] {
			e := p.name
			for _, member := range path[1:] {
				if !member.Flat {
					e += "." + g.fieldName(member)
				}
			}
			return e
		}
	}
	return ""
}

// bound returns the expression for a bound. value returns that for an integer in the arguments.
func (g *generator) bound(m *method, b check.Bound, value func(*generator, check.Path) string) string {
	e := fmt.Sprint(b.Bytes)
	for i, paths := range b.Counts {
		var list []string
		for _, path := range paths {
			list = append(list, "gen.Counted("+value(g, path)+")")
		}
		term := list[0]
		if len(list) > 1 {
			term = "max(" + strings.Join(list, ", ") + ")"
		}
		if i == 0 && b.Bytes == 0 {
			e = term
		} else {
			e += " + " + term
		}
	}
	return e
}
