package check

import "slices"

// flats applies the annotation flat of members: the fields of a structure or union become fields of the enclosing Go
// type, and a linked list of structures with one member becomes a slice of that member's type.
func (c *checker) flats() {
	for _, t := range c.spec.Types {
		for _, m := range t.members() {
			c.flat(m)
		}
	}
	if c.errs.Err() != nil {
		return
	}
	for _, t := range c.spec.Types {
		if slices.ContainsFunc(t.members(), func(m *Member) bool { return m.Flat }) {
			c.flatNames(t)
		}
	}
	c.onlyFlat()
}

func (c *checker) flat(m *Member) {
	for _, a := range m.Doc.Annotations() {
		if a.Word != "flat" {
			continue
		}
		switch b := m.Type.Base(); {
		case b.Kind == List && b.Elem.Base().Kind == Struct && len(b.Elem.Base().Members) == 1:
			b.Elem.OnlyFlat = true // unless there are other uses
			m.Type = &Type{Pos: b.Pos, Kind: List, Elem: b.Elem.Base().Members[0].Type}
		case b.Kind != Struct && b.Kind != Union:
			c.errs.Add(a.Pos, "%s cannot be flat: it is neither a structure, nor a union, nor a linked list of structures with one member", m.Name)
		case b.Recursive:
			c.errs.Add(a.Pos, "%s cannot be flat: its type is recursive", m.Name)
		default:
			m.Flat = true
		}
	}
}

// A Field is one of the Go fields of a type, including those of its flat members.
type Field struct {
	*Member
	Union *Type  // the innermost union with a discriminant that selects it; nil if none does
	Arms  []*Arm // arms of Union that have it
	outer []*Arm // the same for the union to which the field belongs; nil: all
	own   bool   // declared by an arm of that union rather than by a flat member's type
}

// In reports whether an arm of the union to which the field belongs has the field. A nil arm stands for values without
// an arm.
func (f Field) In(a *Arm) bool { return f.outer == nil || slices.Contains(f.outer, a) }

// Pointer reports whether the field is a pointer to the member's type: see [Arm].
func (f Field) Pointer() bool {
	return len(f.Arms) == 1 && f.Arms[0].Pointer && f.Arms[0].Member == f.Member
}

// Fields returns the fields of a structure or union in the order of the source. Arms of a union may share a field if
// all but one have it from flat members: it is then listed once, with the first member. Members declared by the arms
// themselves have separate names.
func (t *Type) Fields() []Field {
	var list []Field
	if t.Kind == Struct {
		for _, m := range t.Members {
			list = append(list, m.fields()...)
		}
		return list
	}
	list = append(list, Field{Member: t.Discriminant})
	for _, a := range t.Arms {
		if a.Member == nil {
			continue
		}
		for _, f := range a.Member.fields() {
			f.own = !a.Member.Flat
			i := slices.IndexFunc(list, func(other Field) bool {
				return other.Union == t && !slices.Contains(other.Arms, a) && other.common(f.Member) && !(other.own && f.own)
			})
			if i >= 0 {
				list[i].Arms = append(list[i].Arms, a)
				list[i].outer = list[i].Arms
				list[i].own = list[i].own || f.own
				continue
			}
			f.outer = []*Arm{a}
			if f.Union == nil {
				f.Union, f.Arms = t, f.outer
			}
			list = append(list, f)
		}
	}
	for i, f := range list {
		if f.Union == t && len(f.Arms) == len(t.Arms) && t.Complete() {
			list[i] = Field{Member: f.Member}
		}
	}
	return list
}

// fields returns the fields that a member yields.
func (m *Member) fields() []Field {
	if !m.Flat {
		return []Field{{Member: m}}
	}
	return m.Type.Base().Fields()
}

// key returns the name of a member's field, before names that clash with methods get a suffix.
func (m *Member) key() string {
	if m.Go != "" {
		return m.Go
	}
	return GoName(m.Name)
}

// common reports whether two members of different arms can share a field.
func (m *Member) common(other *Member) bool {
	return m.key() == other.key() && sameGo(m.Type, other.Type)
}

// sameGo reports whether two declarations have the same Go type.
func sameGo(a, b *Type) bool {
	if a.Name != "" || b.Name != "" {
		return a == b
	}
	if a.Kind != b.Kind || a.Fixed != b.Fixed || a.Fixed && a.Len != b.Len {
		return false
	}
	return a.Elem == nil || sameGo(a.Elem, b.Elem)
}

// Complete reports whether every value of the discriminant has an arm.
func (t *Type) Complete() bool {
	labels := 0
	for _, a := range t.Arms {
		if a.Default {
			return true
		}
		labels += len(a.Labels)
	}
	return t.Discriminant.Type.Base().Kind == Bool && labels == 2
}

// flatNames reports fields with the same name.
func (c *checker) flatNames(t *Type) {
	used := map[string]bool{"Append": true, "Decode": true, "Check": true, "AppendHead": true, "DecodeHead": true}
	for _, f := range t.Fields() {
		if key := f.key(); used[key] {
			c.errs.Add(t.Pos, "%s has two fields or methods of the name %s: choose names by comments go", t.Name, key)
		} else {
			used[key] = true
		}
	}
}

// onlyFlat finds the types that occur only in flat members: Go does not need them.
func (c *checker) onlyFlat() {
	uses := make(map[*Type]int)
	c.each(func(u use, _, _ *Type) { uses[u.typ]++ })
	for _, t := range c.spec.Types {
		for _, m := range t.members() {
			if m.Flat {
				uses[m.Type]--
				m.Type.OnlyFlat = true
			}
		}
	}
	for _, t := range c.spec.Types {
		t.OnlyFlat = t.OnlyFlat && uses[t] == 0
	}
}

// heads applies the annotation head of types: they get methods for everything before the length of their last item,
// which may be placed directly.
func (c *checker) heads() {
	for _, t := range c.spec.Types {
		for _, a := range t.Doc.Annotations() {
			if a.Word != "head" {
				continue
			}
			p := new(Proc)
			if p.around(c.spec); t.Recursive || !p.ends(t) {
				c.errs.Add(a.Pos, "%s has no head: it does not end with its only item marked ddp", t.Name)
			}
			t.Head = p
		}
	}
}

// ends reports whether values of a type have at most one item, at the end.
func (p *Proc) ends(t *Type) bool {
	if !p.Contains(t) || t.Recursive {
		return false
	}
	last := func(m *Member) bool { return p.Items[m] || p.ends(m.Type) }
	switch t.Kind {
	case Typedef:
		return p.ends(t.Elem)
	case Struct:
		n := len(t.Members) - 1
		for _, m := range t.Members[:n] {
			if p.Items[m] || p.Contains(m.Type) {
				return false
			}
		}
		return last(t.Members[n])
	case Union:
		for _, m := range t.members() {
			if (p.Items[m] || p.Contains(m.Type)) && !last(m) {
				return false
			}
		}
		return true
	}
	return false
}
