package gen

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// lineLength is how long a list on one line may be.
const lineLength = 80

// comment writes the doc comment of a declaration: a first sentence, and the prose of the source.
func (g *generator) comment(first string, doc syntax.Comments) {
	if first != "" {
		g.p("// %s", first)
	}
	for i, line := range doc.Lines() {
		if i == 0 && first != "" {
			g.p("//")
		}
		g.p("// %s", line)
	}
}

// field writes a line within a declaration with the comments of the source: a short one after it, others before it.
func (g *generator) field(line, first string, doc syntax.Comments) {
	lines := doc.Lines()
	if first != "" {
		if len(lines) > 0 {
			first += ": " + lines[0]
			lines = lines[1:]
		}
		lines = append([]string{first}, lines...)
	}
	if len(lines) == 1 && (len(doc.Before) == 0 || first != "") {
		g.p("%s // %s", line, lines[0])
		return
	}
	for _, l := range lines {
		g.p("// %s", l)
	}
	g.p("%s", line)
}

// constants writes the const and #define definitions of the source.
func (g *generator) constants() {
	if len(g.spec.Consts) == 0 {
		return
	}
	g.p("\n// Constants of %s.\nconst (", sources(g.spec))
	for _, c := range g.spec.Consts {
		value := c.Value.String()
		if c.IsText {
			value = strconv.Quote(strings.ToValidUTF8(c.Text, "?"))
		}
		g.field(g.names.consts[c.Name]+" = "+value, "", c.Doc)
	}
	g.p(")")
}

// numbers writes the numbers of programs, versions and procedures.
func (g *generator) numbers() {
	done := make(map[string]bool)
	constant := func(name string, value uint32, doc syntax.Comments) {
		if !done[name] {
			done[name] = true
			g.field(fmt.Sprintf("%s uint32 = %d", name, value), "", doc)
		}
	}
	for _, p := range g.spec.Programs {
		g.p("\n// Program %s, its versions and procedures.", p.Name)
		g.comment("", p.Doc)
		g.p("const (")
		constant(g.names.programs[number{p.Name, p.Number}], p.Number, syntax.Comments{})
		for _, v := range p.Versions {
			g.p("")
			constant(g.names.versions[number{v.Name, v.Number}], v.Number, v.Doc)
			for _, proc := range v.Procs {
				constant(g.names.procs[number{proc.Name, proc.Number}], proc.Number, proc.Doc)
			}
		}
		g.p(")")
	}
}

// declaration writes a type.
func (g *generator) declaration(t *check.Type) {
	if t.OnlyFlat || t.Extern {
		return
	}
	name := g.names.types[t]
	what := map[check.Kind]string{check.Enum: "enum", check.Struct: "struct", check.Union: "union", check.Typedef: "typedef"}[t.Kind]
	first := fmt.Sprintf("%s is %s %s.", name, what, t.Name)
	switch {
	case t.Within != "":
		first = fmt.Sprintf("%s is the %s in %s.", name, what, t.Within)
	case t.Link != "":
		first = fmt.Sprintf("%s is struct %s, an element of a linked list, without the member %s.", name, t.Name, t.Link)
	}
	g.p("")
	g.comment(first, t.Doc)
	switch t.Kind {
	case check.Enum:
		g.enum(t, name)
	case check.Struct:
		g.p("type %s struct {", name)
		for _, f := range t.Fields() {
			g.field(g.member(f, t), g.condition(f), f.Doc)
		}
		g.p("}")
	case check.Union:
		g.union(t, name)
	default:
		equals := ""
		if !defined(t) {
			equals = "= "
		}
		g.p("type %s %s%s", name, equals, g.typ(t.Elem))
	}
}

// union writes first the fields of all values, and then those of some values, grouped where a comment above can name
// the values.
func (g *generator) union(t *check.Type, name string) {
	g.p("type %s struct {", name)
	fields := t.Fields()
	slices.SortStableFunc(fields, func(a, b check.Field) int {
		return cmp.Compare(min(len(a.Arms), 1), min(len(b.Arms), 1))
	})
	group := ""
	for i, f := range fields {
		condition := g.condition(f)
		more := i+1 < len(fields) && condition == g.condition(fields[i+1])
		switch {
		case condition == "":
		case condition == group:
			condition = ""
		case more:
			g.p("\n// I%s:\n", condition[1:])
			group, condition = condition, ""
		}
		g.field(g.member(f, t), condition, f.Doc)
	}
	g.p("}")
}

// member returns a field of t as Go declares it.
func (g *generator) member(f check.Field, t *check.Type) string {
	pointer := ""
	if f.Pointer() {
		pointer = "*"
	}
	return g.fieldName(f.Member) + " " + pointer + g.typ(f.Type)
}

// condition names the values that have a field. It returns "" if all have it.
func (g *generator) condition(f check.Field) string {
	if f.Union == nil {
		return ""
	}
	var labels []string
	for _, a := range f.Arms {
		for _, l := range a.Labels {
			labels = append(labels, g.label(f.Union, l))
		}
		if a.Default {
			labels = append(labels, "another value")
		}
	}
	return "if " + g.fields[f.Union][f.Union.Discriminant] + " is " + strings.Join(labels, ", ")
}

// label returns a value of a discriminant as Go writes it.
func (g *generator) label(union *check.Type, l check.Label) string {
	switch {
	case union.Discriminant.Type.Base().Kind == check.Bool:
		return strconv.FormatBool(l.Value != syntax.Int{})
	case l.Enum != nil:
		return g.names.enums[l.Enum]
	case g.names.consts[l.Name] != "":
		return g.names.consts[l.Name]
	}
	return l.Value.String()
}

func (g *generator) enum(t *check.Type, name string) {
	g.use("strconv")
	g.p("type %s int32\n", name)
	g.p("// Values of %s.\nconst (", name)
	for _, v := range t.Values {
		g.field(fmt.Sprintf("%s %s = %s", g.names.enums[v], name, v.Value), "", v.Doc)
	}
	g.p(")\n")

	g.p("// String is the name in %s, or the number of a value that has none.", sources(g.spec))
	g.p("func (v %s) String() string {\nswitch v {", name)
	values := distinct(t)
	for _, v := range values {
		g.p("case %s:\nreturn %q", g.names.enums[v], v.Name)
	}
	g.p("}\nreturn \"%s(\" + strconv.Itoa(int(v)) + \")\"\n}\n", t.Name)

	g.p("// Valid reports whether v is one of the constants.")
	g.p("func (v %s) Valid() bool {", name)
	slices.SortFunc(values, func(a, b *check.Enumerator) int { return cmp.Compare(int32Of(a), int32Of(b)) })
	first, last := values[0], values[len(values)-1]
	if int64(int32Of(last))-int64(int32Of(first)) == int64(len(values)-1) && len(values) > 2 {
		g.p("return %s <= v && v <= %s\n}", g.names.enums[first], g.names.enums[last])
		return
	}
	var list []string
	for _, v := range values {
		list = append(list, g.names.enums[v])
	}
	text := strings.Join(list, ", ")
	if len(text) > lineLength {
		text = strings.Join(list, ",\n")
	}
	g.p("switch v {\ncase %s:\nreturn true\n}\nreturn false\n}", text)
}

// distinct returns the first enumerator of each value.
func distinct(t *check.Type) []*check.Enumerator {
	seen := make(map[syntax.Int]bool)
	var list []*check.Enumerator
	for _, v := range t.Values {
		if !seen[v.Value] {
			list = append(list, v)
		}
		seen[v.Value] = true
	}
	return list
}

func int32Of(v *check.Enumerator) int32 {
	n, _ := v.Value.Int64()
	return int32(n)
}

// typ returns the Go type of a declaration.
func (g *generator) typ(t *check.Type) string {
	if t.Name != "" {
		return g.names.types[t]
	}
	switch t.Kind {
	case check.Int32:
		return "int32"
	case check.Uint32:
		return "uint32"
	case check.Hyper:
		return "int64"
	case check.Uhyper:
		return "uint64"
	case check.Float:
		return "float32"
	case check.Double:
		return "float64"
	case check.Quadruple:
		return "[16]byte"
	case check.Bool:
		return "bool"
	case check.String:
		return "string"
	case check.Optional:
		return "*" + g.typ(t.Elem)
	case check.List:
		return "[]" + g.typ(t.Elem)
	}
	elem := "byte" // opaque
	if t.Kind == check.Array {
		elem = g.typ(t.Elem)
	}
	if t.Fixed {
		return "[" + g.length(t) + "]" + elem
	}
	return "[]" + elem
}

// length returns the length of an array, as the constant in the source.
func (g *generator) length(t *check.Type) string {
	if name := g.names.consts[t.LenOf]; name != "" {
		return name
	}
	return strconv.FormatUint(uint64(t.Len), 10)
}

// defined reports whether a typedef is a distinct Go type with methods rather than an alias.
func defined(t *check.Type) bool {
	return t.Distinct || t.Extern || t.Elem.Name == "" && (t.Elem.Kind == check.Opaque || t.Elem.Kind == check.Array || t.Elem.Kind == check.List)
}

// methods reports whether the Go type of t has methods.
func methods(t *check.Type) bool {
	for t.Kind == check.Typedef {
		if defined(t) {
			return true
		}
		t = t.Elem
	}
	return t.Kind == check.Enum || t.Kind == check.Struct || t.Kind == check.Union
}
