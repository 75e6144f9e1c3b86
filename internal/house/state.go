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
	"strings.NewReplacer": true,
	"time.Date":           true,
	"time.Unix":           true,
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
// up, or have their address taken. Names that a function declares itself do not
// count in it.
func assignedNames(t *Tree) map[string]map[string]bool {
	all := make(map[string]map[string]bool)
	for f := range t.code {
		names := all[f.Dir()]
		if names == nil {
			names = make(map[string]bool)
			all[f.Dir()] = names
		}
		for _, decl := range f.AST.Decls {
			local := localNames(decl)
			written := func(e ast.Expr) {
				if name := root(e); !local[name] {
					names[name] = true
				}
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, lhs := range n.Lhs {
						written(lhs)
					}
				case *ast.IncDecStmt:
					written(n.X)
				case *ast.RangeStmt:
					written(n.Key)
					written(n.Value)
				case *ast.UnaryExpr:
					if n.Op == token.AND {
						written(n.X)
					}
				case *ast.CallExpr:
					if fun, ok := n.Fun.(*ast.Ident); ok && (fun.Name == "delete" || fun.Name == "clear" || fun.Name == "copy") && len(n.Args) > 0 {
						written(n.Args[0])
					}
				}
				return true
			})
		}
	}
	return all
}

// localNames lists what a function declares: its parameters and variables.
func localNames(decl ast.Decl) map[string]bool {
	names := make(map[string]bool)
	if _, ok := decl.(*ast.FuncDecl); !ok {
		return names
	}
	declared := func(e ast.Expr) {
		if id, ok := e.(*ast.Ident); ok {
			names[id.Name] = true
		}
	}
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			for _, name := range n.Names {
				declared(name)
			}
		case *ast.ValueSpec:
			for _, name := range n.Names {
				declared(name)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, lhs := range n.Lhs {
					declared(lhs)
				}
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				declared(n.Key)
				declared(n.Value)
			}
		}
		return true
	})
	return names
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
