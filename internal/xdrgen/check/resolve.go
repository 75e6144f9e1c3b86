package check

import (
	"math"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// universe maps C types that rpcgen's files use without a declaration; the short ones take four bytes, as in its
// encoding. Immutable.
var universe = map[string]Kind{
	"char": Int32, "short": Int32, "long": Int32, "int8_t": Int32, "int16_t": Int32, "int32_t": Int32,
	"u_char": Uint32, "u_short": Uint32, "u_int": Uint32, "u_long": Uint32,
	"uint": Uint32, "uint8_t": Uint32, "uint16_t": Uint32, "uint32_t": Uint32, "u_int32_t": Uint32,
	"int64_t": Hyper, "quad_t": Hyper, "longlong_t": Hyper,
	"uint64_t": Uhyper, "u_int64_t": Uhyper, "u_quad_t": Uhyper, "u_longlong_t": Uhyper,
	"bool_t": Bool,
}

// kinds are the types that have no parameters. Immutable.
var kinds = map[syntax.Kind]Kind{
	syntax.Int32: Int32, syntax.Uint32: Uint32, syntax.Hyper: Hyper, syntax.Uhyper: Uhyper,
	syntax.Float: Float, syntax.Double: Double, syntax.Quadruple: Quadruple, syntax.Bool: Bool,
}

// unionFrom is a union with labels to be checked once all types are known.
type unionFrom struct {
	typ    *Type
	source *syntax.Union
}

// typeDef completes a type with a name. A body is the type itself; everything else is a Typedef.
func (c *checker) typeDef(t *Type, source syntax.Type) {
	c.spec.Types = append(c.spec.Types, t)
	switch source := source.(type) {
	case *syntax.Enum, *syntax.Struct, *syntax.Union:
		c.body(t, source)
	default:
		t.Kind = Typedef
		t.Elem = c.typ(source, t.Name+"_element", t.Name)
		c.distinct(t)
	}
}

// distinct records the annotations of a typedef that becomes a distinct Go type, or a hand-written one.
func (c *checker) distinct(t *Type) {
	for _, a := range t.Doc.Annotations() {
		switch {
		case a.Word == "distinct":
			if t.Distinct = t.Elem.Name == "" && t.Elem.Kind <= String && t.Elem.Kind != Quadruple; !t.Distinct {
				c.errs.Add(a.Pos, "only a typedef of a number, a bool or a string can be distinct")
			}
		case a.Word == "extern":
			if t.Extern = t.Elem.Name == "" && (t.Elem.Kind == String || t.Elem.Kind == Opaque || t.Elem.Kind == Array); !t.Extern {
				c.errs.Add(a.Pos, "only a typedef of opaque data, a string or an array can be extern")
			}
		}
	}
}

// typ returns the type of a declaration. A body in it gets a name.
func (c *checker) typ(source syntax.Type, name, within string) *Type {
	t := &Type{Pos: source.At()}
	switch source := source.(type) {
	case *syntax.Basic:
		t.Kind = kinds[source.Kind]
	case *syntax.Ref:
		return c.ref(source)
	case *syntax.String:
		t.Kind = String
		c.length(t, source.Len)
	case *syntax.Opaque:
		t.Kind, t.Fixed = Opaque, source.Fixed
		c.length(t, source.Len)
	case *syntax.Array:
		t.Kind, t.Fixed = Array, source.Fixed
		c.length(t, source.Len)
		t.Elem = c.typ(source.Elem, name, within)
	case *syntax.Optional:
		t.Kind = Optional
		t.Elem = c.typ(source.Elem, name, within)
	default:
		t.Name, t.Within = name, within
		c.spec.Types = append(c.spec.Types, t)
		c.body(t, source)
	}
	return t
}

// length computes the length of an array; nil means no limit. RFC 4506 section 4.13.
func (c *checker) length(t *Type, v *syntax.Value) {
	if t.Len = math.MaxUint32; v != nil {
		t.Len, t.LenOf = c.unsigned(*v, "length"), v.Name
	}
}

// ref finds a type by its name.
func (c *checker) ref(r *syntax.Ref) *Type {
	if t := c.types[r.Name]; t != nil {
		return t
	}
	if kind, ok := universe[r.Name]; ok && r.Keyword == "" {
		return &Type{Pos: r.Pos, Kind: kind}
	}
	c.errs.Add(r.Pos, "type %s is not declared", r.Name)
	return &Type{Pos: r.Pos, Kind: Int32}
}

// body completes an enumeration, a structure or a union.
func (c *checker) body(t *Type, source syntax.Type) {
	switch source := source.(type) {
	case *syntax.Enum:
		c.enum(t, source)
	case *syntax.Struct:
		t.Kind = Struct
		names := make(map[string]bool)
		for _, m := range source.Members {
			if m.Type != nil { // the grammar has void everywhere
				c.unique(names, m)
				t.Members = append(t.Members, c.member(t, m))
			}
		}
	case *syntax.Union:
		t.Kind = Union
		t.Discriminant = c.member(t, source.Discriminant)
		c.unions = append(c.unions, unionFrom{t, source})
		if len(source.Arms) == 0 {
			c.errs.Add(t.Pos, "union has no arms")
		}
		// An arm may have the name of the discriminant: RFC 5531 section 9, rejected_reply.
		names := make(map[string]bool)
		for _, a := range source.Arms {
			arm := &Arm{Pos: a.Pos, Default: a.Default, Doc: a.Member.Doc}
			if a.Member.Type != nil {
				c.unique(names, a.Member)
				arm.Member = c.member(t, a.Member)
			}
			t.Arms = append(t.Arms, arm)
		}
	}
}

// unique reports a second member with the same name. RFC 4506 section 6.4, 4.
func (c *checker) unique(names map[string]bool, m *syntax.Member) {
	if names[m.Name] {
		c.errs.Add(m.Pos, "member %s is declared twice", m.Name)
	}
	names[m.Name] = true
}

func (c *checker) member(t *Type, m *syntax.Member) *Member {
	return &Member{Pos: m.Pos, Name: m.Name, Type: c.typ(m.Type, t.Name+"_"+m.Name, t.Name+"."+m.Name), Doc: m.Doc}
}

// enum computes the constants of an enumeration. RFC 4506 section 4.3.
func (c *checker) enum(t *Type, source *syntax.Enum) {
	t.Kind = Enum
	t.Open = annotated(t.Doc, "open")
	if c.scoped[t] = c.scopes[source]; c.scoped[t] != nil {
		t.Scoped = true
	}
	for i, k := range c.enums[source] {
		n, ok := c.compute(k)
		if ok && !n.In(math.MinInt32, math.MaxInt32) {
			c.errs.Add(k.Pos, "value of %s is %s, which does not fit an enumeration's 32 bits", k.Name, n)
		}
		t.Values = append(t.Values, &Enumerator{Ident: k.Ident, Value: n, Doc: source.Values[i].Doc})
	}
}

// union checks the labels of a union. RFC 4506 sections 4.15 and 6.4, 5.
func (c *checker) union(u unionFrom) {
	lo, hi := int64(math.MinInt32), int64(math.MaxInt32)
	disc := u.typ.Discriminant.Type.Base()
	switch disc.Kind {
	case Int32, Enum:
	case Uint32:
		lo, hi = 0, math.MaxUint32
	case Bool:
		lo, hi = 0, 1
	default:
		c.errs.Add(u.typ.Discriminant.Pos, "discriminant %s is neither an integer of 32 bits nor a bool nor an enumeration", u.typ.Discriminant.Name)
		return
	}
	values := make(map[syntax.Int]*Enumerator)
	for _, v := range disc.Values {
		if values[v.Value] == nil {
			values[v.Value] = v
		}
	}
	seen, defaults := make(map[syntax.Int]bool), 0
	for i, arm := range u.source.Arms {
		if arm.Default {
			if defaults++; defaults > 1 {
				c.errs.Add(arm.Pos, "second default")
			}
		}
		for _, l := range arm.Labels {
			n, ok := c.valueIn(l, c.scoped[disc])
			switch {
			case !ok:
				continue
			case !n.In(lo, hi) || disc.Kind == Enum && !disc.Open && values[n] == nil:
				c.errs.Add(l.Pos, "case %s is not a value of the discriminant", l)
			case seen[n]:
				c.errs.Add(l.Pos, "case %s is declared twice", l)
			}
			seen[n] = true
			label := Label{Value: n, Name: l.Name, Enum: values[n]}
			for _, v := range disc.Values { // this name, if the value has several
				if v.Name == l.Name && v.Value == n {
					label.Enum = v
					break
				}
			}
			u.typ.Arms[i].Labels = append(u.typ.Arms[i].Labels, label)
		}
	}
}
