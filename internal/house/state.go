package house

import (
	"go/ast"
	"go/token"
	"regexp"
	"strings"
)

// NoHiddenState forbids init functions and mutable package-level variables in
// library rooms. These pass:
//   - assertions (var _ I = ...), embedded files, sentinel errors;
//   - unexported tables of literals to which the package never assigns;
//   - whatever has "immutable" in its comment, on the writer's word.
func NoHiddenState(t *Tree) []Finding {
	written := assignedNames(t)
	var list []Finding
	for f := range t.linked {
		for _, decl := range f.AST.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					list = append(list, t.finding(f, d, "library rooms have no init functions"))
				}
			case *ast.GenDecl:
				if d.Tok != token.VAR {
					continue
				}
				for _, spec := range d.Specs {
					spec := spec.(*ast.ValueSpec)
					if promised(d.Doc) || promised(spec.Doc) || promised(spec.Comment) {
						continue
					}
					for i, name := range spec.Names {
						var value ast.Expr
						if i < len(spec.Values) {
							value = spec.Values[i]
						}
						switch {
						case name.Name == "_":
						case sentinel(name.Name, value):
						case !name.IsExported() && !written[f.Dir()][name.Name] && (frozen(value) || value == nil && inert(spec.Type)):
						default:
							list = append(list, t.finding(f, name, `variable %s: package-level state, or a table whose comment lacks the word "immutable"`, name.Name))
						}
					}
				}
			}
		}
	}
	return inOrder(list)
}

var promise = regexp.MustCompile(`(?i)\bimmutable\b`)

// promised reports whether a comment says that a variable never changes, or that
// the go command fills it.
func promised(c *ast.CommentGroup) bool {
	if c == nil {
		return false
	}
	for _, line := range c.List {
		if promise.MatchString(line.Text) || strings.HasPrefix(line.Text, "//go:embed ") {
			return true
		}
	}
	return false
}

// sentinel reports whether a variable is an error by its name and its value.
func sentinel(name string, value ast.Expr) bool {
	if !strings.HasPrefix(name, "Err") && !strings.HasPrefix(name, "err") {
		return false
	}
	switch v := value.(type) {
	case *ast.CallExpr:
		return len(v.Args) > 0
	case *ast.CompositeLit:
		return true
	case *ast.UnaryExpr:
		_, literal := v.X.(*ast.CompositeLit)
		return v.Op == token.AND && literal
	}
	return false
}

// makers are functions whose results nobody can change.
var makers = map[string]bool{
	"crc32.MakeTable":     true,
	"errors.New":          true,
	"netip.MustParse":     true,
	"regexp.MustCompile":  true,
	"slog.String":         true,
	"strings.NewReplacer": true,
}

// frozen reports whether an expression is made of literals and names alone.
func frozen(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit, *ast.Ident, *ast.SelectorExpr:
		return true
	case *ast.UnaryExpr:
		return e.Op != token.AND && e.Op != token.ARROW && frozen(e.X)
	case *ast.BinaryExpr:
		return frozen(e.X) && frozen(e.Y)
	case *ast.ParenExpr:
		return frozen(e.X)
	case *ast.KeyValueExpr:
		return frozen(e.Key) && frozen(e.Value)
	case *ast.CompositeLit:
		if !inert(e.Type) {
			return false
		}
		for _, el := range e.Elts {
			if !frozen(el) {
				return false
			}
		}
		return true
	case *ast.CallExpr:
		switch fun := e.Fun.(type) {
		case *ast.SelectorExpr:
			pkg, ok := fun.X.(*ast.Ident)
			return ok && makers[pkg.Name+"."+fun.Sel.Name]
		case *ast.ArrayType: // a conversion such as []byte("text")
			return len(e.Args) == 1 && frozen(e.Args[0])
		case *ast.Ident: // a conversion, as far as syntax can tell
			return len(e.Args) == 1 && frozen(e.Args[0]) && strings.ToLower(fun.Name) == fun.Name && builtin[fun.Name]
		}
	}
	return false
}

// builtin lists the types whose conversions a table may hold.
var builtin = map[string]bool{
	"byte": true, "int": true, "int8": true, "int16": true, "int32": true, "int64": true, "string": true,
	"uint": true, "uint8": true, "uint16": true, "uint32": true, "uint64": true, "uintptr": true,
}

// inert reports whether a value of the type is changed only by assignment: no
// locks, atomics, pools, channels, functions or pointers.
func inert(e ast.Expr) bool {
	switch e := e.(type) {
	case nil: // an element of an enclosing literal, whose type was judged
		return true
	case *ast.Ident:
		return true
	case *ast.SelectorExpr:
		pkg, ok := e.X.(*ast.Ident)
		return ok && pkg.Name != "sync" && pkg.Name != "atomic"
	case *ast.ArrayType:
		return inert(e.Elt)
	case *ast.MapType:
		return inert(e.Key) && inert(e.Value)
	case *ast.StructType:
		for _, field := range e.Fields.List {
			if !inert(field.Type) {
				return false
			}
		}
		return true
	}
	return false
}

// assignedNames lists, per directory, the names that are assigned to, counted
// up, or have their address taken outside of declarations. A local variable of
// the same name counts as well: then "immutable" says what is meant.
func assignedNames(t *Tree) map[string]map[string]bool {
	all := make(map[string]map[string]bool)
	for f := range t.code {
		names := all[f.Dir()]
		if names == nil {
			names = make(map[string]bool)
			all[f.Dir()] = names
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, lhs := range n.Lhs {
					// x := ... makes a variable, x[i] := ... is no Go.
					if n.Tok != token.DEFINE {
						names[root(lhs)] = true
					}
				}
			case *ast.IncDecStmt:
				names[root(n.X)] = true
			case *ast.RangeStmt:
				if n.Tok == token.ASSIGN {
					names[root(n.Key)] = true
					names[root(n.Value)] = true
				}
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					names[root(n.X)] = true
				}
			case *ast.CallExpr:
				if fun, ok := n.Fun.(*ast.Ident); ok && (fun.Name == "delete" || fun.Name == "clear" || fun.Name == "copy") && len(n.Args) > 0 {
					names[root(n.Args[0])] = true
				}
			}
			return true
		})
	}
	return all
}

// root returns the variable that an expression such as v.f[i] is a part of.
func root(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x.Name
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return ""
		}
	}
}
