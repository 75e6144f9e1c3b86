package gen

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
)

// codec writes the methods of a type. An alias has those of the aliased type, if any.
func (g *generator) codec(t *check.Type) {
	if t.Kind == check.Typedef && !defined(t) || t.OnlyFlat || t.Extern {
		return
	}
	g.use(pkgXDR)
	name := g.names.types[t]

	g.p("\n// Append appends the encoding of v to b.")
	g.p("func (v *%s) Append(b []byte) []byte {", name)
	g.appendBody(t, "*v")
	g.returnLast()

	g.p("\n// Decode decodes v and leaves its error in d.%s", views(t))
	g.p("func (v *%s) Decode(d *xdr.Decoder) {", name)
	if t.Recursive {
		g.p("if !d.Enter() {\nreturn\n}\ndefer d.Leave()")
	}
	g.decodeBody(t, "*v")
	g.p("}")
	g.head(t)

	g.p("\n// Check returns an [*xdr.CheckError] if v is out of the bounds of %s.", t.Name)
	g.p("func (v *%s) Check() error {", name)
	g.checkBody(t)
	g.p("return nil\n}")
}

// head writes the methods for the part before the item at the end of a value, which may be stored separately.
func (g *generator) head(t *check.Type) {
	if t.Head == nil {
		return
	}
	item, name := "", g.names.types[t]
	text := g.capture(func() {
		g.items(t.Head, func(_ *check.Member, e string) { item = strings.TrimPrefix(e, "v.") }, func() { g.appendBody(t, "*v") })
		g.returnLast()
	})
	g.p("\n// AppendHead is Append without %s and its length, which are the end.", item)
	g.p("func (v *%s) AppendHead(b []byte) []byte {\n%s", name, text)

	g.p("\n// DecodeHead is Decode without %s and its length, which are the end.", item)
	g.p("func (v *%s) DecodeHead(d *xdr.Decoder) {", name)
	g.items(t.Head, func(_ *check.Member, e string) { g.p("%s = nil", e) }, func() { g.decodeBody(t, "*v") })
	g.p("}")
}

// returnLast ends a function that returns b. If the last statement assigns to b, it returns the assigned value instead.
func (g *generator) returnLast() {
	text := bytes.TrimSuffix(g.out.Bytes(), []byte{'\n'})
	start := bytes.LastIndexByte(text, '\n') + 1
	if value, ok := bytes.CutPrefix(text[start:], []byte("b = ")); ok {
		value := string(value)
		g.out.Truncate(start)
		g.p("return %s\n}", value)
		return
	}
	g.p("return b\n}")
}

// views returns the comment about the memory to which a decoded value refers.
func views(t *check.Type) string {
	opaque := func(t *check.Type) bool {
		for t.Name == "" && t.Elem != nil {
			t = t.Elem
		}
		extern := t.Extern
		t = t.Base()
		return t.Kind == check.Opaque && !t.Fixed && !extern
	}
	found := t.Kind == check.Typedef && opaque(t.Elem)
	if t.Kind == check.Struct || t.Kind == check.Union {
		for _, f := range t.Fields() {
			found = found || opaque(f.Type)
		}
	}
	if found {
		return " Byte slices are views of the input of d."
	}
	return ""
}

// operand returns an expression in a form that can be followed by a selector, an index or a slice.
func operand(e string) string {
	if strings.HasPrefix(e, "*") {
		return "(" + e + ")"
	}
	return e
}

// through is operand for what Go accesses through a pointer: methods and arrays.
func through(e string) string { return operand(strings.TrimPrefix(e, "*")) }

// index returns the expression for element i of an array.
func index(t *check.Type, e, i string) string {
	if t.Fixed {
		return through(e) + "[" + i + "]"
	}
	return operand(e) + "[" + i + "]"
}

// chain returns the field that links the structures of a chain, or "" if t is not linked.
func (g *generator) chain(t *check.Type) string {
	if !t.Chained() {
		return ""
	}
	return g.fields[t][t.Members[len(t.Members)-1]]
}

// appendBody writes the statements that append e, a value of the named type t, member by member.
func (g *generator) appendBody(t *check.Type, e string) {
	switch t.Kind {
	case check.Enum:
		g.p("b = xdr.AppendInt32(b, int32(%s))", e)
	case check.Typedef:
		if t.Distinct {
			g.append(t.Elem, g.typ(t.Elem)+"("+e+")")
			return
		}
		g.append(t.Elem, e)
	case check.Struct:
		link := g.chain(t)
		if link != "" {
			g.p("for ; v != nil; v = v.%s {", link)
		}
		for _, m := range t.Members {
			if link != "" && g.fields[t][m] == link {
				g.p("b = xdr.AppendBool(b, v.%s != nil)\n}", link)
			} else {
				g.appendMember(t, m, e)
			}
		}
	case check.Union:
		g.appendUnion(t, e)
	}
}

// appendMember appends a member of e, which is of type t.
func (g *generator) appendMember(t *check.Type, m *check.Member, e string) {
	if m.Flat {
		g.appendBody(m.Type.Base(), e)
	} else {
		g.appendValue(m, through(e)+"."+g.fields[t][m])
	}
}

// appendValue appends the value e of a member, an argument or a result, unless it is an item: see items.
func (g *generator) appendValue(m *check.Member, e string) {
	if g.isItem(m) {
		g.item(m, e)
	} else {
		g.append(m.Type, e)
	}
}

func (g *generator) appendUnion(t *check.Type, e string) {
	g.append(t.Discriminant.Type, g.discriminant(t, e))
	g.branches(t, g.discriminant(t, e), func(a *check.Arm) {
		if a == nil || a.Member == nil {
			return
		}
		if !a.Pointer {
			g.appendMember(t, a.Member, e)
			return
		}
		field := through(e) + "." + g.fields[t][a.Member]
		g.p("if %s != nil {", field)
		g.append(a.Member.Type, "*"+field)
		g.p("}")
	})
}

// discriminant returns the Go expression for the discriminant of a union e.
func (g *generator) discriminant(t *check.Type, e string) string {
	return through(e) + "." + g.fields[t][t.Discriminant]
}

// branches writes a switch on the discriminant of a union, disc, or an if for a bool. body writes the statements for an
// arm, or for nil if a value has no arm. Empty branches are omitted where that makes no difference.
func (g *generator) branches(t *check.Type, disc string, body func(a *check.Arm)) {
	if t.Discriminant.Type.Base().Kind == check.Bool {
		yes := g.capture(func() { body(armOf(t, "1")) })
		no := g.capture(func() { body(armOf(t, "0")) })
		switch {
		case yes != "" && no != "":
			g.p("if %s {\n%s} else {\n%s}", disc, yes, no)
		case yes != "":
			g.p("if %s {\n%s}", disc, yes)
		case no != "":
			g.p("if !%s {\n%s}", disc, no)
		}
		return
	}
	other := armOf(t, "")
	rest, some := g.capture(func() { body(other) }), false
	cases := g.capture(func() {
		for _, a := range t.Arms {
			if a == other {
				continue
			}
			text := g.capture(func() { body(a) })
			if some = some || text != ""; text == "" && rest == "" {
				continue
			}
			var labels []string
			for _, l := range a.Labels {
				labels = append(labels, g.label(t, l))
			}
			g.p("case %s:\n%s", strings.Join(labels, ", "), strings.TrimSuffix(text, "\n"))
		}
	})
	switch {
	case some || rest != "" && cases != "":
		if rest != "" {
			rest = "default:\n" + rest
		}
		g.p("switch %s {\n%s%s}", disc, cases, rest)
	default:
		g.out.WriteString(rest)
	}
}

// armOf returns the arm for a value of the discriminant, or for all values without a label if value is "".
func armOf(t *check.Type, value string) *check.Arm {
	var other *check.Arm
	for _, a := range t.Arms {
		for _, l := range a.Labels {
			if l.Value.String() == value {
				return a
			}
		}
		if a.Default {
			other = a
		}
	}
	return other
}

// capture returns what f writes.
func (g *generator) capture(f func()) string {
	start := g.out.Len()
	f()
	text := string(g.out.Bytes()[start:])
	g.out.Truncate(start)
	return text
}

// simple lists the types that functions of package xdr encode.
var simple = [...]struct {
	kind check.Kind
	name string
}{
	{check.Int32, "Int32"}, {check.Uint32, "Uint32"}, {check.Hyper, "Int64"}, {check.Uhyper, "Uint64"},
	{check.Float, "Float32"}, {check.Double, "Float64"}, {check.Bool, "Bool"}, {check.String, "String"},
}

// function returns the name of a type's functions in package xdr, or "" if none exist.
func function(t *check.Type) string {
	for _, s := range simple {
		if s.kind == t.Kind {
			return s.name
		}
	}
	return ""
}

// append writes the statements that append e, of type t, to b.
func (g *generator) append(t *check.Type, e string) {
	switch {
	case t.Base().Kind == check.Enum:
		g.p("b = xdr.AppendInt32(b, int32(%s))", e)
		return
	case g.around(t):
		g.appendBody(t, e)
		return
	case t.Name != "" && methods(t):
		g.p("b = %s.Append(b)", through(e))
		return
	case t.Kind == check.Typedef:
		g.append(t.Elem, e)
		return
	}
	switch t.Kind {
	case check.Quadruple:
		g.p("b = xdr.AppendFixedOpaque(b, %s[:])", through(e))
	case check.Opaque:
		if t.Fixed {
			g.p("b = xdr.AppendFixedOpaque(b, %s[:])", through(e))
		} else {
			g.p("b = xdr.AppendOpaque(b, %s)", e)
		}
	case check.Array:
		if !t.Fixed {
			g.p("b = xdr.AppendUint32(b, uint32(len(%s)))", e)
		}
		g.p("for i := range %s {", e)
		g.append(t.Elem, index(t, e, "i"))
		g.p("}")
	case check.List:
		g.p("for i := range %s {\nb = xdr.AppendBool(b, true)", e)
		// The members of an element are written out rather than encoded by its method: saving a call per element saves
		// up to half of the time of a long list. Lists within lists are not written out, because each level could
		// double the code.
		body := ""
		switch {
		case t.Elem.Kind == check.Struct && !t.Elem.Recursive && !g.element:
			g.element = true
			body = g.capture(func() { g.appendBody(t.Elem, "*e") })
			g.element = false
		case t.Elem.Name == "" && (t.Elem.Kind == check.Array || t.Elem.Kind == check.List): // of a flat list
			body = g.capture(func() { g.append(t.Elem, "*e") })
		}
		if body != "" {
			g.p("e := &%s\n%s", index(t, e, "i"), strings.TrimSuffix(body, "\n"))
		} else {
			g.append(t.Elem, index(t, e, "i"))
		}
		g.p("}\nb = xdr.AppendBool(b, false)")
	case check.Optional:
		g.p("b = xdr.AppendBool(b, %s != nil)\nif %s != nil {", e, e)
		g.append(t.Elem, "*"+e)
		g.p("}")
	default:
		g.p("b = xdr.Append%s(b, %s)", function(t), e)
	}
}

// decodeBody writes the statements that decode e, a value of the named type t, member by member.
func (g *generator) decodeBody(t *check.Type, e string) {
	switch t.Kind {
	case check.Enum:
		g.p("%s = %s(d.Int32())", e, g.names.types[t])
		if !t.Open {
			g.p("if !v.Valid() {\nd.Invalid(%q, int64(*v))\n}", t.Name)
		}
	case check.Typedef:
		switch {
		case t.Distinct && t.Elem.Kind == check.String:
			g.p("%s = %s(d.String(%s))", e, g.names.types[t], g.length(t.Elem))
		case t.Distinct:
			g.p("%s = %s(d.%s())", e, g.names.types[t], function(t.Elem))
		case t.Bulk() && t.Base().Kind == check.Opaque:
			g.p("%s = d.Bulk(%s)", e, g.limit(t))
		default:
			g.decode(t.Elem, e)
		}
	case check.Struct:
		link := g.chain(t)
		if link != "" {
			g.p("for {")
		}
		for _, m := range t.Members {
			if link != "" && g.fields[t][m] == link {
				g.p("if !d.Optional() {\nv.%s = nil\nreturn\n}", link)
				g.p("v.%s = xdr.New(d, v.%s)\nv = v.%s\n}", link, link, link)
			} else {
				g.decodeMember(t, m, e)
			}
		}
	case check.Union:
		g.decodeUnion(t, e, false)
	}
}

// decodeMember decodes a member of e, which is of type t.
func (g *generator) decodeMember(t *check.Type, m *check.Member, e string) {
	switch {
	case m.Flat && m.Type.Base().Kind == check.Union:
		g.decodeUnion(m.Type.Base(), e, true)
	case m.Flat:
		g.decodeBody(m.Type.Base(), e)
	default:
		g.decodeValue(m, through(e)+"."+g.fields[t][m])
	}
}

// decodeValue decodes the value e of a member, an argument or a result, unless it is an item: see items.
func (g *generator) decodeValue(m *check.Member, e string) {
	switch {
	case g.isItem(m):
		g.item(m, e)
	case m.Bulk():
		g.p("%s = d.Bulk(%s)", e, g.limit(m.Type))
	default:
		g.decode(m.Type, e)
	}
}

// decodeUnion zeroes the fields of all arms but one. flat is set if e has other fields too.
func (g *generator) decodeUnion(t *check.Type, e string, flat bool) {
	disc, fields, v := g.fields[t][t.Discriminant], 0, through(e)
	g.decode(t.Discriminant.Type, v+"."+disc)
	for _, a := range t.Arms {
		if a.Member != nil {
			fields++
			flat = flat || a.Member.Flat
		}
	}
	reset := func(a *check.Arm) {
		switch {
		case flat:
			g.clear(t, a, v)
		case a != nil && a.Member != nil && fields > 1:
			keep := g.fields[t][a.Member]
			g.p("%s = %s{%s: %s.%s, %s: %s.%s}", e, g.names.types[t], disc, v, disc, keep, v, keep)
		case (a == nil || a.Member == nil) && fields > 0:
			g.p("%s = %s{%s: %s.%s}", e, g.names.types[t], disc, v, disc)
		}
	}
	g.branches(t, v+"."+disc, func(a *check.Arm) {
		reset(a)
		switch {
		case a == nil:
			g.noArm(t, e, "d.Invalid")
		case a.Member == nil:
		case a.Pointer:
			field := g.fields[t][a.Member]
			g.p("%s.%s = xdr.New(d, %s.%s)", v, field, v, field)
			g.decode(a.Member.Type, "*"+v+"."+field)
		default:
			g.decodeMember(t, a.Member, e)
		}
	})
}

// clear zeroes the fields of a union in v that a value of the arm does not have. Slices keep memory that can be reused.
func (g *generator) clear(t *check.Type, arm *check.Arm, v string) {
	for _, f := range t.Fields() {
		if f.In(arm) {
			continue
		}
		field := v + "." + g.fieldName(f.Member)
		switch b := f.Type.Base(); {
		case f.Pointer():
			g.p("%s = nil", field)
		case !g.isExtern(f.Type) && (b.Kind == check.List || b.Kind == check.Array && !b.Fixed):
			g.p("%s = %s[:0]", field, field)
		default:
			g.p("%s = %s", field, g.zero(f.Type))
		}
	}
}

// isExtern reports whether Go has a hand-written type.
func (g *generator) isExtern(t *check.Type) bool {
	for t.Kind == check.Typedef && !t.Extern {
		t = t.Elem
	}
	return t.Extern
}

// noArm writes a call with the name and the value of a discriminant that has no arm.
func (g *generator) noArm(t *check.Type, e, f string) {
	value := "int64(" + g.discriminant(t, e) + ")"
	if t.Discriminant.Type.Base().Kind == check.Bool {
		if value = "0"; armOf(t, "1") == nil {
			value = "1"
		}
	}
	g.p("%s(%q, %s)", f, t.Discriminant.Name+" of "+t.Name, value)
}

// decode writes the statements that decode e, of type t, from d.
func (g *generator) decode(t *check.Type, e string) {
	switch {
	case g.around(t):
		g.decodeBody(t, e)
		return
	case t.Name != "" && methods(t):
		g.p("%s.Decode(d)", through(e))
		return
	case t.Kind == check.Typedef:
		g.decode(t.Elem, e)
		return
	}
	switch t.Kind {
	case check.Quadruple:
		g.p("copy(%s[:], d.FixedOpaque(16))", through(e))
	case check.Opaque:
		if t.Fixed {
			g.p("copy(%s[:], d.FixedOpaque(%s))", through(e), g.length(t))
		} else {
			g.p("%s = d.Opaque(%s)", e, g.length(t))
		}
	case check.String:
		g.p("%s = d.String(%s)", e, g.length(t))
	case check.Array:
		if !t.Fixed {
			g.p("%s = xdr.Resize(d, %s, d.Count(%s, %d))", e, e, g.length(t), t.Elem.Min)
		}
		g.p("for i := range %s {", e)
		g.decode(t.Elem, index(t, e, "i"))
		g.p("}")
	case check.List:
		g.p("%s = %s[:0]\nfor d.Optional() {", e, operand(e))
		list, pointer := strings.CutPrefix(e, "*")
		if !pointer {
			list = "&" + e
		}
		if elem := "xdr.Extend(d, " + list + ")"; methods(t.Elem) && !g.around(t.Elem) {
			g.p("%s.Decode(d)\n}", elem)
		} else {
			g.p("e := %s", elem)
			g.decode(t.Elem, "*e")
			g.p("}")
		}
	case check.Optional:
		g.p("if d.Optional() {\n%s = xdr.New(d, %s)", e, e)
		g.decode(t.Elem, "*"+e)
		g.p("} else {\n%s = nil\n}", e)
	default:
		g.p("%s = d.%s()", e, function(t))
	}
}

// checked finds the types with values that may exceed their bounds. It repeats until nothing changes, because types may
// contain each other.
func checked(spec *check.Spec) map[*check.Type]bool {
	found := make(map[*check.Type]bool)
	for changed := true; changed; {
		changed = false
		for _, t := range spec.Types {
			if !found[t] && hasBounds(t, found, true) {
				found[t], changed = true, true
			}
		}
	}
	return found
}

// hasBounds reports whether a value of type t may exceed its bounds, given the named types for which that is known. If
// top is set, t itself is not looked up.
func hasBounds(t *check.Type, found map[*check.Type]bool, top bool) bool {
	if t.Name != "" && !top {
		return found[t]
	}
	switch t.Kind {
	case check.Enum:
		return !t.Open
	case check.String:
		return t.Len < math.MaxUint32
	case check.Opaque:
		return !t.Fixed && t.Len < math.MaxUint32
	case check.Array:
		return !t.Fixed && t.Len < math.MaxUint32 || hasBounds(t.Elem, found, false)
	case check.Optional, check.List, check.Typedef:
		return hasBounds(t.Elem, found, false)
	case check.Struct:
		for _, m := range t.Members {
			if hasBounds(m.Type, found, false) {
				return true
			}
		}
	case check.Union:
		if !t.Complete() || hasBounds(t.Discriminant.Type, found, false) {
			return true
		}
		for _, a := range t.Arms {
			if a.Pointer || a.Member != nil && hasBounds(a.Member.Type, found, false) {
				return true
			}
		}
	}
	return false
}

func (g *generator) checkBody(t *check.Type) {
	switch t.Kind {
	case check.Enum:
		if !t.Open {
			g.p("if !v.Valid() {\nreturn xdr.Undefined(%q, int64(*v))\n}", t.Name)
		}
	case check.Typedef:
		g.check(t.Elem, "*v", place{})
	case check.Struct:
		link := g.chain(t)
		if link != "" && g.checked[t] {
			g.p("for ; v != nil; v = v.%s {", link)
		}
		for _, m := range t.Members {
			switch field := g.fields[t][m]; {
			case m.Flat:
				g.checkBody(m.Type.Base())
			case link == "" || field != link:
				g.check(m.Type, "v."+field, place{field: field})
			}
		}
		if link != "" && g.checked[t] {
			g.p("}")
		}
	case check.Union:
		g.checkUnion(t)
	}
}

func (g *generator) checkUnion(t *check.Type) {
	if !g.checked[t] {
		return
	}
	disc := g.fields[t][t.Discriminant]
	g.check(t.Discriminant.Type, "v."+disc, place{field: disc})
	g.branches(t, "v."+disc, func(a *check.Arm) {
		if a == nil {
			g.noArm(t, "*v", "return xdr.Undefined")
			return
		}
		if a.Member == nil {
			return
		}
		if a.Member.Flat {
			g.checkBody(a.Member.Type.Base())
			return
		}
		field := g.fields[t][a.Member]
		if !a.Pointer {
			g.check(a.Member.Type, "v."+field, place{field: field})
			return
		}
		g.p("if v.%s == nil {\nreturn &xdr.CheckError{Field: %q, What: \"is nil\"}\n}", field, field)
		g.check(a.Member.Type, "*v."+field, place{field: field})
	})
}

// place is the place of an error of Check: a field, or the value itself if the field is "", or, with depth, an element
// of that, or of an element of that, and so on.
type place struct {
	field string
	depth int
}

// variable returns the variable for the index of an element at a depth.
func variable(depth int) string {
	if depth == 1 {
		return "i"
	}
	return "i" + strconv.Itoa(depth)
}

// err returns the expression that adds the place to an error.
func (p place) err() string {
	e := "err"
	for depth := p.depth; depth > 1; depth-- {
		e = fmt.Sprintf(`xdr.InElement("", %s, %s)`, variable(depth), e)
	}
	switch {
	case p.depth > 0:
		return fmt.Sprintf("xdr.InElement(%q, i, %s)", p.field, e)
	case p.field != "":
		return fmt.Sprintf("xdr.InField(%q, err)", p.field)
	}
	return e
}

// returned returns the result of check for the error err at the place.
func (g *generator) returned(at place) string {
	if g.wrap == "" {
		return at.err()
	}
	return fmt.Sprintf(g.wrap, at.err())
}

// check writes the statements that return the error of e, of type t, at the place.
func (g *generator) check(t *check.Type, e string, at place) {
	if !hasBounds(t, g.checked, false) {
		return
	}
	switch {
	case t.Name != "" && methods(t):
		g.p("if err := %s.Check(); err != nil {\nreturn %s\n}", through(e), g.returned(at))
		return
	case t.Kind == check.Typedef:
		g.check(t.Elem, e, at)
		return
	}
	if (t.Kind == check.Array || t.Kind == check.Opaque || t.Kind == check.String) && !t.Fixed && t.Len < math.MaxUint32 {
		g.p("if err := xdr.CheckLen(len(%s), %s); err != nil {\nreturn %s\n}", e, g.length(t), g.returned(at))
	}
	switch t.Kind {
	case check.Array, check.List:
		if hasBounds(t.Elem, g.checked, false) {
			at.depth++
			g.p("for %s := range %s {", variable(at.depth), e)
			g.check(t.Elem, index(t, e, variable(at.depth)), at)
			g.p("}")
		}
	case check.Optional:
		g.p("if %s != nil {", e)
		g.check(t.Elem, "*"+e, at)
		g.p("}")
	}
}
