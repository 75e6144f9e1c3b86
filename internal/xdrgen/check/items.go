package check

import (
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// ddp is the annotation of an item that may be placed directly: a DDP-eligible one, in the words of RFC 8166 section
// 6.1.
type ddp struct {
	syntax.Pos
	procs []string // procedures to which it applies; nil: all
}

// holds reports whether the annotation applies to a procedure.
func (d *ddp) holds(p *Proc) bool {
	if d == nil || d.procs == nil || p.Name == "" { // for a head
		return d != nil
	}
	for _, name := range d.procs {
		if name == p.Name {
			return true
		}
	}
	return false
}

// Bulk reports whether a member may be placed directly in at least one procedure.
func (m *Member) Bulk() bool { return m.ddp != nil }

// Bulk reports whether values of a type may be placed directly in at least one procedure.
func (t *Type) Bulk() bool { return t.ddp != nil }

// items finds the members, arguments and results with the annotation ddp, or with a type that has it. They must be
// opaque data and strings without a fixed length, because the length word stays in the stream. Strings become opaque
// data, because the caller owns the memory in which they are placed.
func (c *checker) items() {
	for _, t := range c.spec.Types {
		if t.Kind != Typedef {
			c.misplaced(t.Doc, "ddp")
		} else if t.ddp = annotation(t.Doc); t.ddp != nil {
			c.placeable(t.ddp, t.Name, t)
		}
	}
	for _, t := range c.spec.Types {
		for _, m := range t.Members {
			c.item(m)
		}
		if t.Kind == Union {
			c.misplaced(t.Discriminant.Doc, "ddp")
		}
		for _, a := range t.Arms {
			if a.Member != nil {
				c.item(a.Member)
			} else {
				c.misplaced(a.Doc, "ddp")
			}
		}
	}
	for _, p := range c.spec.Programs {
		for _, v := range p.Versions {
			for _, proc := range v.Procs {
				for _, a := range proc.Args {
					c.item(a)
				}
				if proc.Returned != nil {
					c.item(proc.Returned)
				}
			}
		}
	}
}

// misplaced reports annotations in places where they have no meaning.
func (c *checker) misplaced(doc syntax.Comments, word string) {
	for _, a := range doc.Annotations() {
		if a.Word == word {
			c.errs.Add(a.Pos, "%s belongs to a member of a structure, an arm of a union or a typedef", word)
		}
	}
}

// annotation returns the annotation ddp, or nil. Of several, the last one applies.
func annotation(doc syntax.Comments) (d *ddp) {
	for _, a := range doc.Annotations() {
		if a.Word != "ddp" {
			continue
		}
		d = &ddp{Pos: a.Pos}
		if a.Text != "" {
			for name := range strings.SplitSeq(a.Text, ",") {
				d.procs = append(d.procs, strings.TrimSpace(name))
			}
		}
	}
	return d
}

// placeable reports an annotation of an item that cannot be placed directly.
func (c *checker) placeable(d *ddp, name string, t *Type) {
	switch base := t.Base(); {
	case t.extern():
		c.errs.Add(d.Pos, "%s cannot be placed directly: Go has its type by hand", name)
	case base.Kind != Opaque && base.Kind != String:
		c.errs.Add(d.Pos, "%s cannot be placed directly: it is neither opaque data nor a string", name)
	case base.Fixed:
		c.errs.Add(d.Pos, "%s cannot be placed directly: its length is fixed", name)
	}
}

// item finds the annotation of a member: its own, or that of the first typedef on the way to its type.
func (c *checker) item(m *Member) {
	if m.ddp = annotation(m.Doc); m.ddp != nil {
		c.placeable(m.ddp, m.Name, m.Type)
	}
	for t := m.Type; m.ddp == nil && t.Kind == Typedef; t = t.Elem {
		m.ddp = t.ddp
	}
	if b := m.Type.Base(); m.ddp != nil && b.Kind == String {
		m.Type = &Type{Pos: b.Pos, Kind: Opaque, Len: b.Len, LenOf: b.LenOf}
	}
}

// extern reports whether Go has a hand-written type, perhaps through aliases.
func (t *Type) extern() bool {
	for t.Kind == Typedef && !t.Extern {
		t = t.Elem
	}
	return t.Extern
}
