package main

import (
	"fmt"
	"go/types"
	"slices"
	"strings"
)

// describe lists the exported declarations of a package, in order.
func describe(pkg *types.Package) []string {
	d := &describer{pkg: pkg}
	for _, name := range pkg.Scope().Names() {
		obj := pkg.Scope().Lookup(name)
		if !obj.Exported() {
			continue
		}
		switch obj := obj.(type) {
		case *types.Const:
			typ := ""
			if t, ok := obj.Type().(*types.Basic); !ok || t.Info()&types.IsUntyped == 0 {
				typ = d.typ(obj.Type()) + " "
			}
			d.add("const %s %s= %s", name, typ, obj.Val().ExactString())
		case *types.Var:
			d.add("var %s %s", name, d.typ(obj.Type()))
		case *types.Func:
			d.add("func %s%s", name, d.signature(obj.Signature()))
		case *types.TypeName:
			d.typeName(obj)
		}
	}
	slices.Sort(d.lines)
	return slices.Compact(d.lines)
}

// describer collects the lines of one package.
type describer struct {
	pkg   *types.Package
	lines []string
}

func (d *describer) add(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *describer) qualify(other *types.Package) string {
	if other == d.pkg {
		return ""
	}
	return other.Name()
}

// typ prints a type as the package's own files would name it.
func (d *describer) typ(t types.Type) string { return types.TypeString(nameless(t), d.qualify) }

// signature formats what follows the name of a function.
func (d *describer) signature(s *types.Signature) string {
	return strings.TrimPrefix(d.typ(s), "func")
}

// nameless returns a type without the names of parameters, which are not part of it.
func nameless(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Signature:
		if t.TypeParams().Len() > 0 {
			return t // its type parameters cannot belong to another signature too
		}
		return types.NewSignatureType(nil, nil, nil, namelessTuple(t.Params()), namelessTuple(t.Results()), t.Variadic())
	case *types.Pointer:
		return types.NewPointer(nameless(t.Elem()))
	case *types.Slice:
		return types.NewSlice(nameless(t.Elem()))
	case *types.Array:
		return types.NewArray(nameless(t.Elem()), t.Len())
	case *types.Map:
		return types.NewMap(nameless(t.Key()), nameless(t.Elem()))
	case *types.Chan:
		return types.NewChan(t.Dir(), nameless(t.Elem()))
	}
	return t
}

func namelessTuple(t *types.Tuple) *types.Tuple {
	var list []*types.Var
	for v := range t.Variables() {
		list = append(list, types.NewParam(v.Pos(), v.Pkg(), "", nameless(v.Type())))
	}
	return types.NewTuple(list...)
}

// typeName describes a type with its fields and methods.
func (d *describer) typeName(obj *types.TypeName) {
	if obj.IsAlias() {
		d.add("type %s = %s", obj.Name(), d.typ(types.Unalias(obj.Type())))
		return
	}
	named := obj.Type().(*types.Named)
	head := "type " + strings.TrimPrefix(types.TypeString(named, d.qualify), d.pkg.Name()+".")
	switch u := named.Underlying().(type) {
	case *types.Struct:
		d.structure(head+" struct", named, u)
	case *types.Interface:
		d.contract(head+" interface", u)
		return
	default:
		d.add("%s %s", head, d.typ(u))
	}
	d.methods(named)
}

func (d *describer) structure(head string, named *types.Named, s *types.Struct) {
	if named.TypeParams().Len() == 0 && types.Comparable(named) {
		d.add("%s, comparable", head)
	} else {
		d.add("%s", head)
	}
	for f := range s.Fields() {
		switch {
		case !f.Exported():
		case f.Embedded():
			d.add("%s, embedded %s", head, d.typ(f.Type()))
		default:
			d.add("%s, %s %s", head, f.Name(), d.typ(f.Type()))
		}
	}
}

// contract describes an interface.
func (d *describer) contract(head string, i *types.Interface) {
	var names []string
	hidden := false
	for m := range i.Methods() {
		if !m.Exported() {
			hidden = true
			continue
		}
		names = append(names, m.Name())
		d.add("%s, %s%s", head, m.Name(), d.signature(m.Signature()))
	}
	for t := range i.EmbeddedTypes() {
		if _, ok := t.Underlying().(*types.Interface); !ok {
			names = append(names, d.typ(t)) // a constraint
		}
	}
	if hidden {
		names = append(names, "unexported methods")
	}
	d.add("%s { %s }", head, strings.Join(names, ", "))
}

// methods describes the methods of a type, including those of embedded types.
func (d *describer) methods(named *types.Named) {
	values := types.NewMethodSet(named)
	for sel := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		m, ok := sel.Obj().(*types.Func)
		if !ok || !m.Exported() {
			continue
		}
		receiver := named.Obj().Name()
		if values.Lookup(m.Pkg(), m.Name()) == nil {
			receiver = "*" + receiver
		}
		d.add("method (%s) %s%s", receiver, m.Name(), d.signature(m.Signature()))
	}
}
