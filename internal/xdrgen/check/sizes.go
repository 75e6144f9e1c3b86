package check

import (
	"cmp"
	"slices"
)

// Sizes in bytes of what encodings are made of. RFC 4506 section 3.
const unit = 4

func padded(n int64) int64 { return (n + unit - 1) / unit * unit }

// sizes computes the sizes of all types, and reports types that are too large or too small.
func (c *checker) sizes() {
	order := slices.Clone(c.spec.Types)
	group := c.components(false)
	slices.SortStableFunc(order, func(a, b *Type) int { return cmp.Compare(group[a], group[b]) })
	for len(order) > 0 {
		n := 1
		for n < len(order) && group[order[n]] == group[order[0]] {
			n++
		}
		c.groupSizes(order[:n])
		order = order[n:]
	}
	memory := make(map[*Type]bool)
	for _, t := range c.spec.Types {
		if c.memory(t, memory) > maxMemory {
			c.errs.Add(t.Pos, "type %s takes more than %d bytes of memory", t.Name, maxMemory)
		}
	}
	c.each(func(u use, _, _ *Type) {
		if u.typ.Name == "" {
			u.typ.Min, u.typ.Max = u.typ.size()
		}
	})
	c.each(func(u use, from, _ *Type) {
		if from != nil && from.Kind == Array && !from.Fixed && u.typ.Min == 0 {
			// Otherwise four bytes of a message could stand for four billion elements.
			c.errs.Add(from.Pos, "elements of a variable-length array take no bytes")
		}
	})
}

// groupSizes computes the sizes of types that contain each other, and only each other. The shortest encoding is
// approximated in rounds: there is one without recursion.
func (c *checker) groupSizes(group []*Type) {
	for _, t := range group {
		t.Min, t.Max = Unbounded, Unbounded
	}
	for changed := true; changed; {
		changed = false
		for _, t := range group {
			lo, hi := t.size()
			if changed = changed || lo != t.Min; t.Recursive {
				hi = Unbounded
			}
			t.Min, t.Max = lo, hi
		}
		if !group[0].Recursive {
			break
		}
	}
}

// size returns the sizes of the shortest and the longest encoding, given those of the named types of which t consists.
func (t *Type) size() (lo, hi int64) {
	switch n := int64(t.Len); t.Kind {
	case Hyper, Uhyper, Double:
		return 8, 8
	case Quadruple:
		return 16, 16
	case String:
		return unit, unit + padded(n)
	case Opaque:
		if t.Fixed {
			return padded(n), padded(n)
		}
		return unit, unit + padded(n)
	case Array:
		lo, hi = t.Elem.known()
		if t.Fixed {
			return mul(n, lo), mul(n, hi)
		}
		return unit, add(unit, mul(n, hi))
	case Optional:
		_, hi = t.Elem.known()
		return unit, add(unit, hi)
	case List:
		return unit, Unbounded
	case Typedef:
		return t.Elem.known()
	case Struct:
		for _, m := range t.Members {
			l, h := m.Type.known()
			lo, hi = add(lo, l), add(hi, h)
		}
		return lo, hi
	case Union:
		return t.unionSize()
	}
	return unit, unit
}

// known returns the sizes of a type with a name, or computes those of a type without one.
func (t *Type) known() (lo, hi int64) {
	if t.Name != "" {
		return t.Min, t.Max
	}
	return t.size()
}

func (t *Type) unionSize() (lo, hi int64) {
	lo = Unbounded
	for _, a := range t.Arms {
		var l, h int64
		if a.Member != nil {
			l, h = a.Member.Type.known()
		}
		lo, hi = min(lo, l), max(hi, h)
	}
	if len(t.Arms) == 0 {
		lo = 0
	}
	return add(lo, unit), add(hi, unit)
}

// memory estimates the size of a value in memory.
func (c *checker) memory(t *Type, done map[*Type]bool) int64 {
	const word = 8
	if done[t] {
		return t.memory
	}
	switch t.Kind {
	case Quadruple, String:
		t.memory = 2 * word
	case Opaque:
		if t.memory = 3 * word; t.Fixed {
			t.memory = int64(t.Len)
		}
	case Array:
		if t.memory = 3 * word; t.Fixed {
			t.memory = mul(int64(t.Len), max(1, c.memory(t.Elem, done)))
		}
	case List:
		t.memory = 3 * word
	case Typedef:
		t.memory = c.memory(t.Elem, done)
	case Struct:
		t.memory = 0
		for _, m := range t.Members {
			t.memory = add(t.memory, c.memory(m.Type, done))
		}
	case Union:
		t.memory = word
		for _, a := range t.Arms {
			if a.Pointer {
				t.memory = add(t.memory, word)
			} else if a.Member != nil {
				t.memory = add(t.memory, c.memory(a.Member.Type, done))
			}
		}
	default:
		t.memory = word
	}
	done[t] = true
	return t.memory
}
