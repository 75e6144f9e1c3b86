package check

import (
	"go/token"
	"go/types"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// reserved lists names that generated code uses otherwise, in addition to those that Go predeclares. Immutable.
var reserved = map[string]bool{
	"_": true, "init": true, "main": true, // not permitted for any declaration
	"xdr": true, "strconv": true, // packages
	"b": true, "d": true, "err": true, "i": true, "v": true, // variables
}

// local lists names that refer to something other than a declaration in generated functions: packages, parameters and
// variables. Fields may have them. Immutable.
var local = [...]string{
	"context", "fmt", "oncrpc", "rpc",
	"args", "bounds", "c", "call", "ctx", "dec", "done", "e", "failed", "h", "impl", "items", "ok", "p", "proc",
	"reduced", "req", "res", "results", "s", "vers", "w", "x",
}

// goNames reads the annotations "go: Name", with which declarations choose their Go names.
func (c *checker) goNames() {
	scope := make(map[string]any)
	for _, name := range local {
		scope[name] = nil
	}
	for _, t := range c.spec.Types {
		if c.goName(&t.Go, t.Doc, scope, t.Name, t); t.Extern && t.Go == "" {
			c.errs.Add(t.Pos, "type %s needs a comment go with the name that Go has it under", t.Name)
		}
		c.memberNames(t)
		for _, v := range t.Values {
			c.goName(&v.Go, v.Doc, scope, v.Name, v)
		}
	}
	for _, k := range c.spec.Consts {
		c.goName(&k.Go, k.Doc, scope, k.Name, k)
	}
	// Equal numbers may share a name: that of a procedure occurs in several versions.
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

// goName sets *to to the name that an annotation in doc gives to a declaration, if there is one. name is the
// declaration's name in the source. scope maps the names in use to what they stand for; what is that for the
// declaration.
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

// GoName returns the Go name for a name of the source, without regard to collisions.
func GoName(name string) string {
	var b strings.Builder
	for len(name) > 0 {
		n := wordLen(name)
		word := name[:n]
		name = strings.TrimLeft(name[n:], "_")
		if word = strings.TrimLeft(word, "_"); word == "" {
			continue
		}
		if word[1:] != "" && strings.ToUpper(word) == word {
			word = word[:1] + strings.ToLower(word[1:])
		}
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	if s := b.String(); s != "" && (s[0] < '0' || s[0] > '9') {
		return s
	}
	return "X" + b.String()
}

// wordLen returns the length of the first word, which ends before an underscore or after digits.
func wordLen(name string) int {
	for i := 1; i < len(name); i++ {
		if name[i] == '_' || digit(name[i-1]) && !digit(name[i]) {
			return i
		}
	}
	return len(name)
}

func digit(c byte) bool { return '0' <= c && c <= '9' }
