package layers

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// stateExceptions maps the mutable package-level variables that library layers keep, as directory.name, to the reasons.
// TestStateExceptionsAreNeeded fails if an entry is no longer needed. Immutable.
var stateExceptions = map[string]string{
	"internal/lockorder.held":        "which locks each goroutine holds, in builds with the race detector",
	"transport/internal/arena.spare": "pages that are reused across connections, so that a short connection does not pay for mapping them",
}

// NoPackageState forbids init functions and mutable package-level variables in library
// layers. These variables pass:
//   - assertions (var _ I = ...), embedded files, sentinel errors;
//   - unexported tables of literals;
//   - variables with a comment that says "immutable": exported tables and computed values;
//   - those in stateExceptions.
//
// None but the last may be written by any package of the module, or have a type that changes without
// an assignment: one that contains, at any depth within the module, a lock, an atomic, another type
// of package sync or a channel. Writes of tests do not count: they restore the value.
//
// The rule works on syntax and does not follow aliases: a write through a second
// variable that shares a map or a slice escapes it.
func NoPackageState(t *Tree) []Finding {
	var list []Finding
	for _, v := range stateFindings(t) {
		if stateExceptions[v.name] == "" {
			list = append(list, v.Finding)
		}
	}
	return inOrder(list)
}

// stateFinding is a finding about the variable called name, as directory.name.
type stateFinding struct {
	name string
	Finding
}

// stateFindings applies the rule without its exceptions.
func stateFindings(t *Tree) []stateFinding {
	s := newScope(t)
	writes := s.writes()
	var list []stateFinding
	for f := range t.linked {
		for _, decl := range f.AST.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					list = append(list, stateFinding{Finding: t.finding(f, d, "library layers have no init functions")})
				}
			case *ast.GenDecl:
				if d.Tok != token.VAR {
					continue
				}
				for v := range variables(f, d) {
					if problem := s.judge(v, writes[f.Dir()][v.name.Name]); problem != "" {
						list = append(list, stateFinding{f.Dir() + "." + v.name.Name, t.finding(f, v.name, "variable %s: %s", v.name.Name, problem)})
					}
				}
			}
		}
	}
	return list
}

// variable is a package-level variable.
type variable struct {
	file     *File
	name     *ast.Ident
	typ      ast.Expr // nil: the type of value
	value    ast.Expr // nil: the zero value, or one of several results of a call
	promised bool     // the comment says that it is immutable
}

// variables yields the variables of a declaration, except blank ones.
func variables(f *File, d *ast.GenDecl) func(func(variable) bool) {
	return func(yield func(variable) bool) {
		for _, spec := range d.Specs {
			spec := spec.(*ast.ValueSpec)
			for i, name := range spec.Names {
				if name.Name == "_" {
					continue
				}
				v := variable{file: f, name: name, typ: spec.Type, promised: promised(d.Doc) || promised(spec.Doc) || promised(spec.Comment)}
				if i < len(spec.Values) {
					v.value = spec.Values[i]
				}
				if !yield(v) {
					return
				}
			}
		}
	}
}

// judge returns what is wrong with a variable, or "" if nothing is.
func (s *scope) judge(v variable, w writes) string {
	typ := v.typ
	if typ == nil {
		typ = literalType(v.value)
	}
	if what := s.volatile(v.file, typ); what != "" {
		return "package-level state: it contains " + what
	}
	if w.assigned {
		return "package-level state: it is written after initialization"
	}
	if method := s.mutator(v.file, typ, w.methods); method != "" {
		return "package-level state: method " + method + " has a pointer receiver"
	}
	if v.promised || sentinel(v.name.Name, v.value) || !v.name.IsExported() && s.constant(v, typ) {
		return ""
	}
	return `package-level state, or a table whose comment lacks the word "immutable"`
}

// literalType returns the type of a composite literal, or of the address of one.
func literalType(e ast.Expr) ast.Expr {
	if addr, ok := e.(*ast.UnaryExpr); ok && addr.Op == token.AND {
		e = addr.X
	}
	if lit, ok := e.(*ast.CompositeLit); ok {
		return lit.Type
	}
	return nil
}

// constant reports whether a variable that is never written never changes.
func (s *scope) constant(v variable, typ ast.Expr) bool {
	if v.value == nil && typ == nil {
		return false
	}
	return (v.value == nil || s.frozen(v.file, v.value)) && !s.refers(v.file, typ)
}

var promise = regexp.MustCompile(`(?i)\bimmutable\b`)

// promised reports whether a comment says that a variable never changes, or that the go command sets it.
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

// makers lists functions with results that cannot be modified. Immutable.
var makers = map[string]bool{
	"crc32.MakeTable":     true,
	"errors.New":          true,
	"netip.MustParse":     true,
	"regexp.MustCompile":  true,
	"strings.NewReplacer": true,
	"time.Date":           true,
	"time.Unix":           true,
}

// frozen reports whether an expression consists only of literals and names.
func (s *scope) frozen(f *File, e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit, *ast.Ident, *ast.SelectorExpr:
		return true
	case *ast.UnaryExpr:
		return e.Op != token.AND && e.Op != token.ARROW && s.frozen(f, e.X)
	case *ast.BinaryExpr:
		return s.frozen(f, e.X) && s.frozen(f, e.Y)
	case *ast.ParenExpr:
		return s.frozen(f, e.X)
	case *ast.KeyValueExpr:
		return s.frozen(f, e.Key) && s.frozen(f, e.Value)
	case *ast.CompositeLit:
		return !s.refers(f, e.Type) && !slices.ContainsFunc(e.Elts, func(el ast.Expr) bool { return !s.frozen(f, el) })
	case *ast.CallExpr:
		return s.frozenCall(f, e)
	}
	return false
}

// frozenCall is frozen for calls of makers and for conversions.
func (s *scope) frozenCall(f *File, e *ast.CallExpr) bool {
	switch fun := e.Fun.(type) {
	case *ast.SelectorExpr:
		pkg, ok := fun.X.(*ast.Ident)
		return ok && makers[pkg.Name+"."+fun.Sel.Name]
	case *ast.ArrayType: // for example []byte("text")
		return len(e.Args) == 1 && s.frozen(f, e.Args[0])
	case *ast.Ident:
		return len(e.Args) == 1 && s.frozen(f, e.Args[0]) && basic[fun.Name]
	}
	return false
}

// basic lists the predeclared types. Immutable.
var basic = map[string]bool{
	"any": true, "bool": true, "byte": true, "error": true, "float32": true, "float64": true,
	"int": true, "int8": true, "int16": true, "int32": true, "int64": true, "rune": true, "string": true,
	"uint": true, "uint8": true, "uint16": true, "uint32": true, "uint64": true, "uintptr": true,
}

// writes records the module's writes to a package-level variable.
type writes struct {
	assigned bool            // it or a part of it is assigned, or its address taken
	methods  map[string]bool // methods called on it
}

// writes returns, by directory and name, the writes of the module's packages to each other's package-level names and to
// their own, in functions that are not tests.
func (s *scope) writes() map[string]map[string]writes {
	all := make(map[string]map[string]writes)
	for f := range s.tree.code {
		if f.Test() {
			continue
		}
		for _, decl := range f.AST.Decls {
			local := localNames(decl)
			touched(decl, func(e ast.Expr, method string) {
				if dir, name := s.root(f, e, local); name != "" {
					note(all, dir, name, method)
				}
			})
		}
	}
	return all
}

// note adds a call of method, or an assignment if method is "", to all.
func note(all map[string]map[string]writes, dir, name, method string) {
	if all[dir] == nil {
		all[dir] = make(map[string]writes)
	}
	w := all[dir][name]
	if w.methods == nil {
		w.methods = make(map[string]bool)
	}
	if method == "" {
		w.assigned = true
	} else {
		w.methods[method] = true
	}
	all[dir][name] = w
}

// touched calls touch with method "" for each expression to which a declaration writes, and with the method for each
// expression on which it calls one.
func touched(decl ast.Decl, touch func(e ast.Expr, method string)) {
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, lhs := range n.Lhs {
				touch(lhs, "")
			}
		case *ast.IncDecStmt:
			touch(n.X, "")
		case *ast.RangeStmt:
			touch(n.Key, "")
			touch(n.Value, "")
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				touch(n.X, "")
			}
		case *ast.CallExpr:
			switch fun := n.Fun.(type) {
			case *ast.Ident:
				if (fun.Name == "delete" || fun.Name == "clear" || fun.Name == "copy") && len(n.Args) > 0 {
					touch(n.Args[0], "")
				}
			case *ast.SelectorExpr:
				if whole(fun.X) {
					touch(fun.X, fun.Sel.Name)
				}
			}
		}
		return true
	})
}

// whole reports whether an expression may name a whole variable: v or pkg.V.
func whole(e ast.Expr) bool {
	if sel, ok := e.(*ast.SelectorExpr); ok {
		e = sel.X
	}
	_, ok := e.(*ast.Ident)
	return ok
}

// localNames lists the names that a function declares: its parameters and variables.
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

// root returns the package-level variable of which an expression such as v.f[i] or pkg.V[i] is a part, and its
// package's directory. name is empty if the variable is local.
func (s *scope) root(f *File, e ast.Expr, local map[string]bool) (dir, name string) {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			if local[x.Name] {
				return "", ""
			}
			return f.Dir(), x.Name
		case *ast.SelectorExpr:
			if pkg, ok := x.X.(*ast.Ident); ok && !local[pkg.Name] {
				if dir, ours := s.imported(f, pkg.Name); ours {
					return dir, x.Sel.Name
				}
			}
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
			return "", ""
		}
	}
}
