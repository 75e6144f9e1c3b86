package check

import "math"

// use is a reference from one type to another.
type use struct {
	typ   *Type // as written: it may have no name
	value bool  // each value contains one, without a pointer in between
	arm   *Arm  // arm of the union through which it is used
}

// uses yields the types of which t directly consists.
func (t *Type) uses(yield func(use) bool) {
	switch t.Kind {
	case Typedef:
		yield(use{typ: t.Elem, value: true})
	case Array:
		yield(use{typ: t.Elem, value: t.Fixed}) // Go checks the elements of an empty array too
	case Optional, List:
		yield(use{typ: t.Elem})
	case Struct:
		for _, m := range t.Members {
			if !yield(use{typ: m.Type, value: true}) {
				return
			}
		}
	case Union:
		if !yield(use{typ: t.Discriminant.Type, value: true}) {
			return
		}
		for _, a := range t.Arms {
			if a.Member != nil && !yield(use{typ: a.Member.Type, value: !a.Pointer, arm: a}) {
				return
			}
		}
	}
}

// typedefs resolves typedefs, and reports names that only refer to each other, perhaps through pointers.
func (c *checker) typedefs() {
	done := make(map[*Type]bool)
	for _, t := range c.spec.Types {
		path := make(map[*Type]bool)
		for t.Kind == Typedef && !done[t] {
			if path[t] {
				c.errs.Add(t.Pos, "type %s is defined by itself", t.Name)
				return
			}
			path[t] = true
			for t = t.Elem; t.Kind == Optional; {
				t = t.Elem
			}
		}
		for t := range path {
			done[t] = true
		}
	}
	for _, t := range c.spec.Types {
		var path []*Type
		for t.Kind == Typedef && t.base == nil {
			path = append(path, t)
			t = t.Elem
		}
		for _, p := range path {
			p.base = t.Base()
		}
	}
}

// lists finds the structures that are used only as elements of linked lists, removes their links and turns every
// pointer to one into a List. A list needs a head: a structure to which only its own link points does not count.
func (c *checker) lists() {
	nodes, heads := make(map[*Type]bool), make(map[*Type]bool)
	for _, t := range c.spec.Types {
		if t.Kind == Struct && linked(t) {
			nodes[t] = true
		}
	}
	c.each(func(u use, from, root *Type) {
		node := u.typ.Base()
		switch {
		case from == nil || from.Kind != Optional && from.Kind != Typedef:
			delete(nodes, node) // a typedef counts as a use where it is used itself
		case from.Kind == Optional && root != node:
			heads[node] = true
		}
	})
	c.each(func(u use, from, _ *Type) {
		if node := u.typ.Base(); from != nil && from.Kind == Optional && nodes[node] && heads[node] {
			from.Kind = List
		}
	})
	for _, t := range c.spec.Types {
		if nodes[t] && heads[t] {
			last := len(t.Members) - 1
			t.Link = t.Members[last].Name
			t.Members = t.Members[:last]
		}
	}
}

// linked reports whether the last member of a structure, and no other one, is a pointer to the
// structure.
func linked(t *Type) bool {
	for i, m := range t.Members {
		b := m.Type.Base()
		if self := b.Kind == Optional && b.Elem.Base() == t; self != (i == len(t.Members)-1) {
			return false
		}
	}
	return len(t.Members) > 0
}

// each calls f for every use of a type, with the type that uses it and the enclosing type with a name. Both are nil for
// a procedure.
func (c *checker) each(f func(u use, from, root *Type)) {
	var visit func(u use, from, root *Type)
	visit = func(u use, from, root *Type) {
		f(u, from, root)
		if u.typ.Name == "" {
			for v := range u.typ.uses {
				visit(v, u.typ, root)
			}
		}
	}
	for _, t := range c.spec.Types {
		for u := range t.uses {
			visit(u, t, t)
		}
	}
	for _, p := range c.spec.Programs {
		for _, v := range p.Versions {
			for _, proc := range v.Procs {
				for _, a := range proc.Args {
					visit(use{typ: a.Type, value: true}, nil, nil)
				}
				if proc.Returned != nil {
					visit(use{typ: proc.Returned.Type, value: true}, nil, nil)
				}
			}
		}
	}
}

// named yields the types with names to which t refers, or, with values, only those that each value contains.
func (t *Type) named(values bool, yield func(use) bool) {
	for u := range t.uses {
		switch {
		case values && !u.value:
		case u.typ.Name != "":
			if !yield(u) {
				return
			}
		default:
			more := true
			u.typ.named(values, func(v use) bool {
				v.arm = u.arm
				more = yield(v)
				return more
			})
			if !more {
				return
			}
		}
	}
}

// recursion finds the types that contain themselves: invalid ones, arms of unions that must be pointers, and types of
// unlimited depth.
func (c *checker) recursion() {
	group := c.components(true)
	for _, t := range c.spec.Types {
		t.named(true, func(u use) bool {
			if u.arm != nil && group[u.typ] == group[t] {
				u.arm.Pointer = true
			}
			return true
		})
	}
	group = c.components(true)
	for _, t := range c.spec.Types {
		t.named(true, func(u use) bool {
			if group[u.typ] == group[t] {
				c.errs.Add(t.Pos, "each %s contains another one", t.Name)
			}
			return true
		})
	}
	group = c.components(false)
	for _, t := range c.spec.Types {
		t.named(false, func(u use) bool {
			t.Recursive = t.Recursive || group[u.typ] == group[t]
			return true
		})
	}
}

// components numbers the types so that those that contain each other have the same number, by Tarjan's algorithm. A
// type has a higher number than the types of which it consists.
func (c *checker) components(values bool) map[*Type]int {
	var (
		group  = make(map[*Type]int)
		index  = make(map[*Type]int) // order of the visits, from 1
		stack  []*Type
		groups int
		visit  func(t *Type) int
	)
	visit = func(t *Type) int {
		index[t] = len(index) + 1
		low, base := index[t], len(stack)
		stack = append(stack, t)
		t.named(values, func(u use) bool {
			if index[u.typ] == 0 {
				low = min(low, visit(u.typ))
			} else if group[u.typ] == 0 {
				low = min(low, index[u.typ])
			}
			return true
		})
		if low == index[t] {
			groups++
			for _, member := range stack[base:] {
				group[member] = groups
			}
			stack = stack[:base]
		}
		return low
	}
	for _, t := range c.spec.Types {
		if index[t] == 0 {
			visit(t)
		}
	}
	return group
}

// Saturating addition and multiplication of non-negative sizes.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func mul(a, b int64) int64 {
	if a != 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}
