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
	scope := make(map[string]number)
	for _, t := range c.spec.Types {
		c.goName(&t.Go, t.Doc, scope, number{name: t.Name})
		c.memberNames(t)
		for _, v := range t.Values {
			c.goName(&v.Go, v.Doc, scope, number{name: v.Name})
		}
	}
	for _, k := range c.spec.Consts {
		c.goName(&k.Go, k.Doc, scope, number{name: k.Name})
	}
	for _, p := range c.spec.Programs {
		c.goName(&p.Go, p.Doc, scope, number{name: p.Name})
		for _, v := range p.Versions {
			c.goName(&v.Go, v.Doc, scope, number{name: v.Name})
			for _, proc := range v.Procs { // several versions may have the same one
				c.goName(&proc.Go, proc.Doc, scope, number{proc.Name, proc.Number})
			}
		}
	}
}

// number tells declarations apart that may not share a Go name.
type number struct {
	name  string
	value uint32
}

// memberNames is goNames for the fields of a type.
func (c *checker) memberNames(t *Type) {
	scope := map[string]number{"Append": {}, "Decode": {}, "Check": {}} // methods
	if t.Kind == Union {
		c.goName(&t.Discriminant.Go, t.Discriminant.Doc, scope, number{name: t.Discriminant.Name})
	}
	for i, m := range t.Members {
		c.goName(&m.Go, m.Doc, scope, number{m.Name, uint32(i)})
	}
	for i, a := range t.Arms {
		if a.Member != nil {
			c.goName(&a.Member.Go, a.Member.Doc, scope, number{a.Member.Name, uint32(i) + 1})
		}
	}
}

// goName sets *to to the name that doc has for the declaration what. scope has the names in use.
func (c *checker) goName(to *string, doc syntax.Comments, scope map[string]number, what number) {
	for _, a := range doc.Annotations() {
		if a.Word != "go" {
			continue
		}
		other, used := scope[a.Text]
		switch {
		case !token.IsIdentifier(a.Text), reserved[a.Text], types.Universe.Lookup(a.Text) != nil:
			c.errs.Add(a.Pos, "%q cannot be the name of %s in Go", a.Text, what.name)
		case used && other != what:
			c.errs.Add(a.Pos, "go: name %s is taken", a.Text)
		}
		scope[a.Text] = what
		*to = a.Text
	}
}
