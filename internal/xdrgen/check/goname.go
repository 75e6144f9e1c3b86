package check

import (
	"go/token"
	"go/types"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// reserved are names that generated code uses for something else, besides those that Go
// predeclares. Immutable.
var reserved = map[string]bool{
	"_": true, "init": true, "main": true, // not for any declaration
	"xdr": true, "strconv": true, // packages
	"b": true, "d": true, "err": true, "i": true, "v": true, // variables
}

// goNames reads the annotations "go: Name", by which declarations choose their Go names.
func (c *checker) goNames() {
	scope := make(map[string]any)
	for _, t := range c.spec.Types {
		c.goName(&t.Go, t.Doc, scope, t.Name, t)
		c.memberNames(t)
		for _, v := range t.Values {
			c.goName(&v.Go, v.Doc, scope, v.Name, v)
		}
	}
	for _, k := range c.spec.Consts {
		c.goName(&k.Go, k.Doc, scope, k.Name, k)
	}
	// Equal numbers may share a name: that of a procedure is in several versions.
	for _, p := range c.spec.Programs {
		c.goName(&p.Go, p.Doc, scope, p.Name, p.Number)
		for _, v := range p.Versions {
			c.goName(&v.Go, v.Doc, scope, v.Name, v.Number)
			for _, proc := range v.Procs {
				c.goName(&proc.Go, proc.Doc, scope, proc.Name, proc.Number)
			}
		}
	}
}

// memberNames is goNames for the fields of a type.
func (c *checker) memberNames(t *Type) {
	scope := map[string]any{"Append": nil, "Decode": nil, "Check": nil} // methods
	if t.Kind == Union {
		c.goName(&t.Discriminant.Go, t.Discriminant.Doc, scope, t.Discriminant.Name, t.Discriminant)
	}
	for _, m := range t.Members {
		c.goName(&m.Go, m.Doc, scope, m.Name, m)
	}
	for _, a := range t.Arms {
		if a.Member != nil {
			c.goName(&a.Member.Go, a.Member.Doc, scope, a.Member.Name, a.Member)
		}
	}
}

// goName sets *to to the name that doc has for a declaration, whose name in the source is name.
// scope has what the names in use stand for, and what is that for the declaration.
func (c *checker) goName(to *string, doc syntax.Comments, scope map[string]any, name string, what any) {
	for _, a := range doc.Annotations() {
		if a.Word != "go" {
			continue
		}
		other, used := scope[a.Text]
		switch {
		case !token.IsIdentifier(a.Text), reserved[a.Text], types.Universe.Lookup(a.Text) != nil:
			c.errs.Add(a.Pos, "%q cannot be the name of %s in Go", a.Text, name)
		case used && other != what:
			c.errs.Add(a.Pos, "go: name %s is taken", a.Text)
		}
		scope[a.Text] = what
		*to = a.Text
	}
}
