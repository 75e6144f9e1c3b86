package gen

import "strings"

// Procedures that stream their results: see package rpc/stream.

// clientStream writes the method that returns the results.
func (g *generator) clientStream(s *service, m *method, params, args string) {
	g.use("context", "iter", pkgStream, pkgXDR)
	typ := g.typ(m.Streamed.Type)
	g.p("")
	g.prose([]string{
		m.name + " calls " + m.Name + ", and returns the results that the server streams. Each range over them opens a stream.",
		"A [*stream.GapError] says that some are missing, and the stream goes on. Any other error is the last.",
	}, m.Doc)
	g.p("func (c *%s) %s(ctx context.Context%s) iter.Seq2[%s, error] {", s.client, m.name, params, typ)
	g.p("call, err := c.%sCall(%s)", lower(m.name), args)
	g.p("return stream.Receive(ctx, c.caller, call, err, func(d *xdr.Decoder) (res %s) {", typ)
	g.strict(s, m, m.Streamed)
	g.decodeValue(m.Streamed, "res")
	g.p("return res\n})\n}")
}

// serverStream writes the method of the handler.
func (g *generator) serverStream(s *service, m *method) {
	g.use(pkgStream)
	typ := g.typ(m.Streamed.Type)
	g.p("\nfunc (h *%sHandler) serve%s(ctx context.Context, req *rpc.Request, res *rpc.Response) {", s.local, m.name)
	g.p("dec := req.Decoder()\nd := &dec\nopen := h.streams.Accept(ctx, req, res, d)\nif open == nil {\nreturn\n}")
	from := g.out.Len()
	call := "ctx, req"
	if len(m.params) > 0 {
		g.p("d.Copy() // as the stream outlives the call\nvar x struct {")
		for _, p := range m.params {
			g.p("%s %s", p.name, p.typ)
		}
		g.p("}")
	}
	for _, p := range m.params {
		g.decodeValue(p.Member, "x."+p.name)
		if p.pointer {
			call += ", &x." + p.name
		} else {
			call += ", x." + p.name
		}
	}
	g.p("if err := d.End(); err != nil {\nres.FailArgs(req, err)\nreturn\n}")
	g.p("stream.Start(open, func(b []byte, v %s) ([]byte, error) {", typ)
	g.wrap = "nil, %s"
	g.check(m.Streamed.Type, "v", place{})
	g.wrap = ""
	g.appendValue(m.Streamed, "v")
	g.p("return b, nil\n}, func(ctx context.Context, req *rpc.Request, out *stream.Sender[%s]) error {", typ)
	g.p("return h.impl.%s(%s, out)\n})\n}", m.name, call)
	if strings.Contains(string(g.out.Bytes()[from:]), "xdr.") {
		g.use(pkgXDR)
	}
}
