package gen

import (
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
)

// binding writes the upper-layer binding of a version (RFC 8166 section 6).
func (g *generator) binding(s *service) {
	g.use(pkgRPC)
	g.p(`
// %[1]s is the upper-layer binding of %[2]s:
// see RFC 8166 section 6.`, s.binding, s.doc)
	g.bindingDoc(s)
	g.p(`type %[1]s struct{}

var (
	_ rpc.Binding     = %[1]s{}
	_ rpc.Idempotence = %[1]s{}
)

// Call finds the items in the arguments of a call, and bounds its results.
func (%[1]s) Call(p rpc.Procedure, args []byte, items []rpc.Range) ([]rpc.Range, rpc.ReplyBounds) {
	var bounds rpc.ReplyBounds
	if p.Prog != %[3]s || p.Vers != %[4]s {
		return items[:0], bounds
	}`, s.binding, s.doc, s.prog, s.vers)
	cases := g.capture(func() {
		for _, m := range s.procs {
			g.callCase(m)
		}
	})
	if cases != "" {
		g.p("switch p.Proc {\n%s}", cases)
	}
	g.p("return items[:0], bounds\n}")

	g.p(`
// Reply finds the items in the results of a call.
func (%[1]s) Reply(p rpc.Procedure, results []byte, reduced bool, items []rpc.Range) []rpc.Range {
	if p.Prog != %[2]s || p.Vers != %[3]s {
		return items[:0]
	}`, s.binding, s.prog, s.vers)
	cases = g.capture(func() {
		for _, m := range s.procs {
			if len(m.Received) > 0 {
				g.p("case %s:", m.number)
				w := &walker{g: g, m: m, names: make(map[string]string)}
				w.member(m.Returned, nil)
				w.flush()
			}
		}
	})
	if cases != "" {
		g.use(pkgGen)
		g.p("w := gen.NewWalk(results, reduced, items)\nswitch p.Proc {\n%sdefault:\nreturn items[:0]\n}", cases)
		g.p("items, _ = w.Items()\nreturn items\n}")
	} else {
		g.p("return items[:0]\n}")
	}

	g.p("\n// Idempotent reports whether a procedure may be executed again.")
	g.p("func (%s) Idempotent(p rpc.Procedure) bool {", s.binding)
	if list := s.having(func(m *method) bool { return m.Idempotent }); list != "" {
		g.p("if p.Prog != %s || p.Vers != %s {\nreturn false\n}", s.prog, s.vers)
		g.p("switch p.Proc {\ncase %s:\nreturn true\n}", list)
	}
	g.p("return false\n}")
	g.skipFunctions()
}

// bindingDoc lists the items.
func (g *generator) bindingDoc(s *service) {
	var lines []string
	for _, m := range s.procs {
		list := func(items []*check.Member, where string) {
			for _, item := range items {
				name := item.Name
				if name == "" {
					name = "an argument"
				}
				line := fmt.Sprintf("//   - %s, in the %s of %s", name, where, m.Name)
				if !slices.Contains(lines, line) {
					lines = append(lines, line)
				}
			}
		}
		list(m.Sent, "arguments")
		for _, r := range m.Received {
			list([]*check.Member{r.Member}, "results")
		}
	}
	if len(lines) == 0 {
		g.p("// No items may be placed directly.")
		return
	}
	g.p("// These items may be placed directly:\n//\n%s", strings.Join(lines, "\n"))
}

// callCase writes the part of Call for one procedure.
func (g *generator) callCase(m *method) {
	w := &walker{g: g, m: m, names: make(map[string]string)}
	for _, p := range m.Bound.Counts {
		w.want(p)
	}
	for _, r := range m.Received {
		for _, p := range r.Bound.Counts {
			w.want(p)
		}
	}
	if m.Bound.Bytes == 0 && len(m.Received) == 0 && len(m.Sent) == 0 && len(w.wanted) == 0 {
		return
	}
	g.p("case %s:", m.number)
	if m.Bound.Bytes > 0 {
		g.p("bounds.MaxResults = %d", m.Bound.Bytes)
	}
	if len(m.Received) > 0 && !slices.ContainsFunc(m.Received, func(r check.Received) bool { return r.Bound.Counts != nil }) {
		g.itemBounds(m, w)
	}
	if len(m.Sent) == 0 && len(w.wanted) == 0 {
		return
	}
	g.use(pkgGen)
	g.p("w := gen.NewWalk(args, false, items)")
	for _, p := range m.params {
		w.member(p.Member, check.Path{p.Member})
	}
	w.flush()
	if len(w.wanted) == 0 {
		g.p("items, _ = w.Items()\nreturn items, bounds")
		return
	}
	g.p("items, ok := w.Items()\nif ok {")
	if len(m.Bound.Counts) > 0 {
		g.p("bounds.MaxResults += %s", g.bound(m, check.Bound{Counts: m.Bound.Counts}, w.name))
	}
	if slices.ContainsFunc(m.Received, func(r check.Received) bool { return r.Bound.Counts != nil }) {
		g.itemBounds(m, w)
	}
	g.p("}\nreturn items, bounds")
}

func (g *generator) itemBounds(m *method, w *walker) {
	var list []string
	for _, r := range m.Received {
		list = append(list, g.bound(m, r.Bound, w.name))
	}
	g.p("bounds.Items, bounds.NumItems = [4]int{%s}, %d", strings.Join(list, ", "), len(list))
}

// walker writes the statements that walk through a stream, w, past each of its parts. It records items, and keeps
// integers on which bounds depend. It skips adjacent parts of fixed size together.
type walker struct {
	g      *generator
	m      *method
	wanted []check.Path
	names  map[string]string // variables for wanted
	fixed  int64             // bytes to skip
	in     string            // "d" in a function that skips a type, where there are no items
}

// want keeps the integers at the paths.
func (w *walker) want(paths []check.Path) {
	for _, path := range paths {
		if w.names[w.key(path)] == "" {
			w.names[w.key(path)] = w.variable(path[len(path)-1].Name)
			w.wanted = append(w.wanted, path)
		}
	}
}

// variable chooses the name of a variable for a member.
func (w *walker) variable(member string) string {
	name := lower(check.GoName(member))
	if taken := []string{"args", "bounds", "items", "ok", "p", "w"}; w.g.taken(name) || slices.Contains(taken, name) ||
		token.IsKeyword(name) || types.Universe.Lookup(name) != nil {
		name += "Arg"
	}
	used := slices.Collect(maps.Values(w.names))
	for base, i := name, 2; w.g.taken(name) || slices.Contains(used, name); i++ {
		name = base + strconv.Itoa(i)
	}
	return name
}

func (w *walker) key(path check.Path) string { return fmt.Sprint([]*check.Member(path)) }

// name returns the variable that holds an integer.
func (w *walker) name(_ *generator, path check.Path) string { return w.names[w.key(path)] }

func (w *walker) flush() {
	if w.fixed > 0 {
		w.g.p("%s.FixedOpaque(%d)", w.decoder(), w.fixed)
		w.fixed = 0
	}
}

// decoder returns the variable that has the Decoder's methods.
func (w *walker) decoder() string {
	if w.in != "" {
		return w.in
	}
	return "w"
}

// block writes statements in braces.
func (w *walker) block(f func()) {
	f()
	w.flush()
}

// member skips a member at a path, which is nil in results.
func (w *walker) member(m *check.Member, path check.Path) {
	g := w.g
	if w.in == "" && w.m.Items[m] {
		w.flush()
		g.p("w.Item(%s)", g.limit(m.Type))
		return
	}
	if path != nil {
		if name := w.names[w.key(path)]; name != "" {
			w.flush()
			g.p("%s := w.%s()", name, function(m.Type.Base()))
			return
		}
	}
	w.value(m.Type, path)
}

// limit returns the length of opaque data or a string, through typedefs.
func (g *generator) limit(t *check.Type) string { return g.length(t.Base()) }

// leads reports whether the path leads to an integer that is wanted.
func (w *walker) leads(path check.Path) bool {
	return path != nil && slices.ContainsFunc(w.wanted, func(p check.Path) bool {
		return len(p) > len(path) && slices.Equal(p[:len(path)], path)
	})
}

// value skips a value.
func (w *walker) value(t *check.Type, path check.Path) {
	g := w.g
	into := w.in == "" && w.m.Contains(t) || w.leads(path)
	switch {
	case !into && g.uniform(t):
		if w.fixed += t.Max; w.fixed > math.MaxInt32/2 {
			w.flush()
		}
		return
	case t.Kind == check.Typedef && (into || !t.Recursive || !defined(t)):
		w.value(t.Elem, path)
		return
	case !into && t.Name != "":
		w.flush()
		d := "&w.Decoder"
		if w.in != "" {
			d = w.in
		}
		g.p("%s(%s)", g.skip(t).name, d)
		return
	}
	w.body(t, path)
}

// uniform reports whether all encodings of a type have the same length, and a decoder accepts any bytes for them.
// Enumerations count, because their values are not checked.
func (g *generator) uniform(t *check.Type) bool {
	if t.Min != t.Max || t.Max > math.MaxInt32 {
		return false
	}
	u, ok := g.uniforms[t]
	if !ok {
		switch u = true; t.Kind {
		case check.Bool, check.Union, check.Optional, check.List:
			u = false
		case check.Array, check.Typedef:
			u = g.uniform(t.Elem)
		case check.Struct:
			for _, m := range t.Members {
				u = u && g.uniform(m.Type)
			}
		}
		g.uniforms[t] = u
	}
	return u
}

// body is value for a type with members to be walked individually.
func (w *walker) body(t *check.Type, path check.Path) {
	g, d := w.g, w.decoder()
	switch t.Kind {
	case check.Typedef:
		w.value(t.Elem, path)
		return
	case check.Struct:
		for _, m := range t.Members {
			next := path
			if path != nil {
				next = append(path[:len(path):len(path)], m)
			}
			w.member(m, next)
		}
		return
	case check.Union:
		w.flush()
		w.union(t)
		return
	}
	w.flush()
	switch t.Kind {
	case check.Bool:
		g.p("%s.Bool()", d)
	case check.Opaque, check.String:
		g.p("%s.Opaque(%s)", d, g.length(t))
	case check.Optional:
		g.p("if %s.Optional() {", d)
		w.block(func() { w.value(t.Elem, nil) })
		g.p("}")
	case check.List:
		g.p("for %s.Optional() {", d)
		w.block(func() { w.value(t.Elem, nil) })
		g.p("}")
	case check.Array:
		count := fmt.Sprintf("%s.Count(%s, %d)", d, g.length(t), t.Elem.Min)
		if t.Fixed {
			count = g.length(t)
		} else if g.uniform(t.Elem) {
			size := ""
			if t.Elem.Max > 1 {
				size = fmt.Sprintf("*%d", t.Elem.Max)
			}
			g.p("%s.FixedOpaque(%s%s)", d, count, size)
			return
		}
		// After an error the loop would go on without any input.
		g.p("for range %s {\nif %s.Err() != nil {\nbreak\n}", count, d)
		w.block(func() { w.value(t.Elem, nil) })
		g.p("}")
	}
}

// union skips a union: a switch on its discriminant.
func (w *walker) union(t *check.Type) {
	g, d := w.g, w.decoder()
	disc := t.Discriminant.Type.Base()
	read := d + "." + function(disc) + "()"
	if disc.Kind == check.Enum {
		read = fmt.Sprintf("%s(%s.Int32())", g.names.types[disc], d)
	}
	arm := func(a *check.Arm) string {
		return g.capture(func() {
			switch {
			case a == nil:
				g.p("%s.Fail(%q)", d, t.Discriminant.Name+" of "+t.Name+" is not defined")
			case a.Member != nil:
				w.block(func() { w.member(a.Member, nil) })
			}
		})
	}
	if disc.Kind == check.Bool {
		g.p("if %s {\n%s}", read, arm(armOf(t, "1")))
		if no := arm(armOf(t, "0")); no != "" {
			g.out.Truncate(g.out.Len() - len("\n"))
			g.p(" else {\n%s}", no)
		}
		return
	}
	g.p("switch %s {", read)
	other := armOf(t, "")
	for _, a := range t.Arms {
		if a == other {
			continue
		}
		var labels []string
		for _, l := range a.Labels {
			labels = append(labels, g.label(t, l))
		}
		g.p("case %s:\n%s", strings.Join(labels, ", "), strings.TrimSuffix(arm(a), "\n"))
	}
	if text := arm(other); text != "" {
		g.p("default:\n%s", strings.TrimSuffix(text, "\n"))
	}
	g.p("}")
}

// skip is a function that skips values of a type.
type skip struct {
	name    string
	written bool
}

// skip returns the function that skips values of a named type, which will be written.
func (g *generator) skip(t *check.Type) *skip {
	f := g.skips[t]
	if f == nil {
		f = &skip{name: "skip" + g.names.types[t]}
		for base, i := f.name, 2; g.names.used[f.name]; i++ {
			f.name = base + strconv.Itoa(i)
		}
		g.names.used[f.name] = true
		g.skips[t] = f
	}
	return f
}

// skipFunctions writes the functions that skip values of named types, for those that are used and not written yet.
func (g *generator) skipFunctions() {
	for more := true; more; {
		more = false
		for _, t := range g.spec.Types {
			f := g.skips[t]
			if f == nil || f.written {
				continue
			}
			f.written, more = true, true
			g.use(pkgXDR)
			g.p("\n// %[1]s goes beyond a %[2]s.\nfunc %[1]s(d *xdr.Decoder) {", f.name, t.Name)
			if t.Recursive {
				g.p("if !d.Enter() {\nreturn\n}\ndefer d.Leave()")
			}
			w := &walker{g: g, in: "d"}
			if t.Chained() {
				g.p("for {")
				for _, m := range t.Members[:len(t.Members)-1] {
					w.member(m, nil)
				}
				w.flush()
				g.p("if !d.Optional() {\nreturn\n}\n}")
			} else {
				w.block(func() { w.body(t, nil) })
			}
			g.p("}")
		}
	}
}
