package check

import (
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// A ddp is the annotation of an item that may be placed directly: that is DDP-eligible, in the
// words of RFC 8166 section 6.1.
type ddp struct {
	syntax.Pos
	procs []string // the procedures for which it holds; nil: all
}

// holds reports whether the annotation is for a procedure.
func (d *ddp) holds(p *Proc) bool {
	if d == nil || d.procs == nil || p.Name == "" { // of a head
		return d != nil
	}
	for _, name := range d.procs {
		if name == p.Name {
			return true
		}
	}
	return false
}

// Bulk reports whether a member may be placed directly, for some procedure at least.
func (m *Member) Bulk() bool { return m.ddp != nil }

// items finds the members with the annotation ddp. They are opaque data and strings without a fixed
// length: what has a length word in front, which stays in the stream. Strings become opaque data,
// as the memory that they are placed in is the caller's.
func (c *checker) items() {
	for _, t := range c.spec.Types {
		c.misplaced(t.Doc, "ddp")
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
}

// misplaced reports annotations of something that has none.
func (c *checker) misplaced(doc syntax.Comments, word string) {
	for _, a := range doc.Annotations() {
		if a.Word == word {
			c.errs.Add(a.Pos, "%s belongs to a member of a structure or an arm of a union", word)
		}
	}
}

func (c *checker) item(m *Member) {
	for _, a := range m.Doc.Annotations() {
		if a.Word != "ddp" {
			continue
		}
		m.ddp = &ddp{Pos: a.Pos}
		if a.Text != "" {
			for name := range strings.SplitSeq(a.Text, ",") {
				m.ddp.procs = append(m.ddp.procs, strings.TrimSpace(name))
			}
		}
		switch b := m.Type.Base(); {
		case m.Type.extern():
			c.errs.Add(a.Pos, "%s cannot be placed directly: Go has its type by hand", m.Name)
		case b.Kind == String:
			m.Type = &Type{Pos: b.Pos, Kind: Opaque, Len: b.Len, LenOf: b.LenOf}
		case b.Kind != Opaque:
			c.errs.Add(a.Pos, "%s cannot be placed directly: it is neither opaque data nor a string", m.Name)
		case b.Fixed:
			c.errs.Add(a.Pos, "%s cannot be placed directly: its length is fixed", m.Name)
		}
	}
}

// extern reports whether Go has a type by hand, perhaps by way of aliases.
func (t *Type) extern() bool {
	for t.Kind == Typedef && !t.Extern {
		t = t.Elem
	}
	return t.Extern
}
