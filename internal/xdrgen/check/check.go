package check

import (
	"slices"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// maxMemory limits the size of a value in memory, in bytes, without what pointers refer to: Go has no types that are
// much larger.
const maxMemory = 1 << 30

// Check returns the meaning of a syntax tree. The error joins an [*syntax.Error] for each mistake, up to
// [syntax.MaxErrors].
func Check(file *syntax.File) (*Spec, error) {
	c := &checker{
		spec:   &Spec{Names: file.Names},
		consts: make(map[string]*constant),
		types:  make(map[string]*Type),
	}
	c.declare(file)
	c.define(file)
	if c.goNames(); c.errs.Err() != nil {
		return nil, c.errs.Err()
	}
	// From here on every name has a meaning.
	if c.typedefs(); c.errs.Err() != nil {
		return nil, c.errs.Err()
	}
	for _, u := range c.unions {
		c.union(u)
	}
	c.items()
	c.lists()
	if c.recursion(); c.errs.Err() != nil {
		return nil, c.errs.Err()
	}
	c.flats()
	c.heads()
	c.sizes()
	return c.spec, c.errs.Err()
}

// checker is the state of one Check.
type checker struct {
	spec   *Spec
	errs   syntax.Errors
	consts map[string]*constant
	types  map[string]*Type
	enums  map[*syntax.Enum][]*constant
	scopes map[*syntax.Enum]scope // scopes of scoped enumerations
	scoped map[*Type]scope        // the same, by type
	unions []unionFrom
}

// scope holds the values of a scoped enumeration.
type scope map[string]*constant

// constant is a constant or an enumerator that may not have been computed yet.
type constant struct {
	syntax.Ident
	source *syntax.Value // nil: one more than prev
	prev   *constant     // the previous enumerator, or nil
	scope  scope         // to which source may refer, or nil
	text   bool          // it is not a number
	value  syntax.Int
	state  state
}

type state int

const (
	unknown state = iota
	busy
	known
	wrong
)

// declare records all names, so that their order in the source does not matter.
func (c *checker) declare(file *syntax.File) {
	c.enums, c.scopes, c.scoped = make(map[*syntax.Enum][]*constant), make(map[*syntax.Enum]scope), make(map[*Type]scope)
	programs := make(map[string]bool)
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *syntax.Const:
			value := d.Value
			c.constant(&constant{Ident: d.Name, source: &value, text: d.IsText})
		case *syntax.TypeDef:
			if c.sameName(d) {
				continue
			}
			if c.types[d.Name.Name] != nil {
				c.errs.Add(d.Name.Pos, "type %s is declared twice", d.Name.Name)
				continue
			}
			c.types[d.Name.Name] = &Type{Pos: d.Name.Pos, Name: d.Name.Name, Doc: d.Doc}
			if enum, ok := d.Type.(*syntax.Enum); ok && annotated(d.Doc, "scoped") {
				c.scopes[enum] = make(scope)
			}
			c.enumerators(d.Type)
		case *syntax.Program:
			if programs[d.Name.Name] {
				c.errs.Add(d.Name.Pos, "program %s is declared twice", d.Name.Name)
			}
			programs[d.Name.Name] = true
		}
	}
	for _, d := range file.Decls {
		if d, ok := d.(*syntax.Program); ok {
			c.numbers(d)
		}
	}
}

// sameName reports whether a definition is typedef struct x x, which has no effect.
func (c *checker) sameName(d *syntax.TypeDef) bool {
	ref, ok := d.Type.(*syntax.Ref)
	return ok && ref.Keyword != "" && ref.Name == d.Name.Name
}

func (c *checker) constant(k *constant) {
	names := c.consts
	if k.scope != nil {
		names = k.scope
	}
	if names[k.Name] != nil {
		c.errs.Add(k.Pos, "constant %s is declared twice", k.Name)
		return
	}
	names[k.Name] = k
}

// annotated reports whether doc has an annotation without text.
func annotated(doc syntax.Comments, word string) bool {
	return slices.ContainsFunc(doc.Annotations(), func(a syntax.Annotation) bool { return a.Word == word })
}

// enumerators records the constants of the enumerations in a type.
func (c *checker) enumerators(t syntax.Type) {
	switch t := t.(type) {
	case *syntax.Enum:
		var prev *constant
		for _, v := range t.Values {
			k := &constant{Ident: v.Name, source: v.Value, prev: prev, scope: c.scopes[t]}
			c.constant(k)
			c.enums[t] = append(c.enums[t], k)
			prev = k
		}
	case *syntax.Struct:
		for _, m := range t.Members {
			c.enumerators(m.Type)
		}
	case *syntax.Union:
		c.enumerators(t.Discriminant.Type)
		for _, arm := range t.Arms {
			c.enumerators(arm.Member.Type)
		}
	case *syntax.Array:
		c.enumerators(t.Elem)
	case *syntax.Optional:
		c.enumerators(t.Elem)
	}
}

// numbers records the names in a program as constants, unless other constants have these names. Procedures of several
// versions may share a name.
func (c *checker) numbers(d *syntax.Program) {
	add := func(name syntax.Ident, value syntax.Value) {
		if c.consts[name.Name] == nil {
			c.consts[name.Name] = &constant{Ident: name, source: &value}
		}
	}
	add(d.Name, d.Number)
	for _, v := range d.Versions {
		add(v.Name, v.Number)
		for _, p := range v.Procs {
			add(p.Name, p.Number)
		}
	}
}

// define gives each name its meaning.
func (c *checker) define(file *syntax.File) {
	done := make(map[string]bool)
	for _, d := range file.Decls {
		if c.errs.Full() {
			return
		}
		switch d := d.(type) {
		case *syntax.Const:
			k := &Const{Ident: d.Name, Text: d.Text, IsText: d.IsText, Doc: d.Doc}
			if !d.IsText {
				k.Value, _ = c.value(d.Value)
			}
			c.spec.Consts = append(c.spec.Consts, k)
		case *syntax.TypeDef:
			if !c.sameName(d) && !done[d.Name.Name] {
				done[d.Name.Name] = true
				c.typeDef(c.types[d.Name.Name], d.Type)
			} else if c.sameName(d) {
				c.typ(d.Type, "", "")
			}
		case *syntax.Program:
			c.program(d)
		}
	}
}

// value computes a constant. ok is false if it has no value, which is reported once.
func (c *checker) value(v syntax.Value) (n syntax.Int, ok bool) { return c.valueIn(v, nil) }

// valueIn is value, but looks up the names of a scoped enumeration first.
func (c *checker) valueIn(v syntax.Value, own scope) (n syntax.Int, ok bool) {
	if v.Name == "" {
		return v.Int, true
	}
	k := own[v.Name]
	if k == nil {
		k = c.consts[v.Name]
	}
	switch {
	case k != nil:
		return c.compute(k)
	case v.Name == "TRUE": // RFC 4506 section 4.4
		return syntax.IntOf(1), true
	case v.Name == "FALSE":
		return syntax.IntOf(0), true
	}
	c.errs.Add(v.Pos, "constant %s is not declared", v.Name)
	return n, false
}

// compute is value for a declared constant.
func (c *checker) compute(k *constant) (syntax.Int, bool) {
	switch {
	case k.state == busy:
		c.errs.Add(k.Pos, "constant %s is defined by itself", k.Name)
		k.state = wrong
	case k.text:
		c.errs.Add(k.Pos, "constant %s is used as a number, but is a text", k.Name)
		k.state = wrong
	case k.state == unknown:
		k.state = busy
		ok := true
		switch {
		case k.source != nil:
			k.value, ok = c.valueIn(*k.source, k.scope)
		case k.prev != nil:
			if k.value, ok = c.compute(k.prev); ok {
				if k.value, ok = k.value.Next(); !ok {
					c.errs.Add(k.Pos, "value of %s does not fit 64 bits", k.Name)
				}
			}
		}
		if k.state = known; !ok {
			k.state = wrong
		}
	}
	return k.value, k.state == known
}

// unsigned computes a constant that must be a 32-bit unsigned integer.
func (c *checker) unsigned(v syntax.Value, what string) uint32 {
	n, ok := c.value(v)
	if !ok {
		return 0
	}
	if !n.In(0, 1<<32-1) {
		c.errs.Add(v.Pos, "%s is %s, not within 0 and 4294967295", what, n)
		return 0
	}
	u, _ := n.Uint64()
	return uint32(u)
}

// program checks the numbers in a program. RFC 5531 section 12.3.
func (c *checker) program(d *syntax.Program) {
	prog := &Program{Ident: d.Name, Doc: d.Doc, Number: c.unsigned(d.Number, "program number")}
	versions, names := make(map[uint32]bool), make(map[string]bool)
	for _, v := range d.Versions {
		version := &Version{Ident: v.Name, Doc: v.Doc, Number: c.unsigned(v.Number, "version number")}
		switch {
		case versions[version.Number]:
			c.errs.Add(v.Number.Pos, "program %s has version %d twice", d.Name.Name, version.Number)
		case names[v.Name.Name]:
			c.errs.Add(v.Name.Pos, "program %s has version %s twice", d.Name.Name, v.Name.Name)
		}
		versions[version.Number], names[v.Name.Name] = true, true
		c.procedures(version, v)
		prog.Versions = append(prog.Versions, version)
	}
	c.spec.Programs = append(c.spec.Programs, prog)
}

func (c *checker) procedures(version *Version, v *syntax.Version) {
	numbers, names := make(map[uint32]bool), make(map[string]bool)
	for _, p := range v.Procs {
		proc := &Proc{Ident: p.Name, Doc: p.Doc, Number: c.unsigned(p.Number, "procedure number")}
		switch {
		case numbers[proc.Number]:
			c.errs.Add(p.Number.Pos, "version %s has procedure %d twice", v.Name.Name, proc.Number)
		case names[p.Name.Name]:
			c.errs.Add(p.Name.Pos, "version %s has procedure %s twice", v.Name.Name, p.Name.Name)
		}
		numbers[proc.Number], names[p.Name.Name] = true, true
		for _, a := range p.Args {
			c.noBody(a.Type)
			proc.Args = append(proc.Args, &Member{Pos: a.Pos, Name: a.Name, Type: c.typ(a.Type, "", ""), Doc: a.Doc})
		}
		if p.Result != nil {
			c.noBody(p.Result)
			result := c.typ(p.Result, "", "")
			proc.Returned = &Member{Pos: result.Pos, Name: result.Name, Type: result}
			if result.Name == "" {
				proc.Returned.Name = "result"
			}
		}
		version.Procs = append(version.Procs, proc)
	}
}

// noBody rejects declarations of types within those of procedures: the types would have no name.
func (c *checker) noBody(t syntax.Type) {
	switch u := t.(type) {
	case *syntax.Array:
		t = u.Elem
	case *syntax.Optional:
		t = u.Elem
	}
	switch t := t.(type) {
	case *syntax.Enum, *syntax.Struct, *syntax.Union:
		c.errs.Add(t.At(), "type of a procedure needs a name")
	}
}
