package layers

import (
	"go/ast"
	"path"
	"strconv"
	"strings"
)

// scope resolves names of types within the module, by syntax. Imports from elsewhere are known only by their paths.
type scope struct {
	tree  *Tree
	types map[string]map[string]declared // by directory and name
}

// declared is a named type and where it is declared.
type declared struct {
	file     *File
	typ      ast.Expr
	pointers map[string]bool // methods with pointer receivers
}

func newScope(t *Tree) *scope {
	s := &scope{tree: t, types: make(map[string]map[string]declared)}
	for f := range t.code {
		if s.types[f.Dir()] == nil {
			s.types[f.Dir()] = make(map[string]declared)
		}
		for _, decl := range f.AST.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range d.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok {
					s.types[f.Dir()][spec.Name.Name] = declared{f, spec.Type, make(map[string]bool)}
				}
			}
		}
	}
	for f := range t.code {
		for _, decl := range f.AST.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Recv == nil {
				continue
			}
			recv := d.Recv.List[0].Type
			if named, ok := s.types[f.Dir()][receiver(recv)]; ok {
				if _, ok := recv.(*ast.StarExpr); ok {
					named.pointers[d.Name.Name] = true
				}
			}
		}
	}
	return s
}

// imported returns the directory of the module's package that a file imports as name.
func (s *scope) imported(f *File, name string) (dir string, ours bool) {
	return strings.CutPrefix(importPath(f, name), Module+"/")
}

// importPath returns the path of the package that a file imports as name, or "" if none exists.
func importPath(f *File, name string) string {
	for _, spec := range f.AST.Imports {
		to, err := strconv.Unquote(spec.Path.Value)
		if err == nil && (spec.Name != nil && spec.Name.Name == name || spec.Name == nil && path.Base(to) == name) {
			return to
		}
	}
	return ""
}

// named returns the declaration that a type expression names, if it is in the module.
func (s *scope) named(f *File, e ast.Expr) (declared, bool) {
	switch e := e.(type) {
	case *ast.Ident:
		d, ok := s.types[f.Dir()][e.Name]
		return d, ok
	case *ast.SelectorExpr:
		if pkg, ok := e.X.(*ast.Ident); ok {
			if dir, ours := s.imported(f, pkg.Name); ours {
				d, ok := s.types[dir][e.Sel.Name]
				return d, ok
			}
		}
	}
	return declared{}, false
}

// mutator returns a called method with a pointer to the type as its receiver.
func (s *scope) mutator(f *File, e ast.Expr, called map[string]bool) string {
	d, ok := s.named(f, e)
	if !ok {
		return ""
	}
	for name := range called {
		if d.pointers[name] {
			return name
		}
	}
	return ""
}

// volatile returns the name of a part of a type that changes without an assignment: a lock or anything else of package
// sync, an atomic, a channel. It returns "" if none exists.
func (s *scope) volatile(f *File, e ast.Expr) string {
	return s.find(f, e, make(map[ast.Expr]bool), func(f *File, e ast.Expr) string {
		switch e := e.(type) {
		case *ast.ChanType:
			return "a channel"
		case *ast.SelectorExpr:
			if pkg, ok := e.X.(*ast.Ident); ok {
				if to := importPath(f, pkg.Name); to == "sync" || to == "sync/atomic" {
					return pkg.Name + "." + e.Sel.Name
				}
			}
		}
		return ""
	})
}

// refers reports whether a type contains a pointer, through which a value that is never assigned can change.
func (s *scope) refers(f *File, e ast.Expr) bool {
	return s.find(f, e, make(map[ast.Expr]bool), func(_ *File, e ast.Expr) string {
		if _, ok := e.(*ast.StarExpr); ok {
			return "a pointer"
		}
		return ""
	}) != ""
}

// find searches for what match names in a type and, within the module, in the types of which it consists. It ignores
// parameters and results of functions, and types in seen.
func (s *scope) find(f *File, e ast.Expr, seen map[ast.Expr]bool, match func(*File, ast.Expr) string) string {
	if e == nil || seen[e] {
		return ""
	}
	seen[e] = true
	if found := match(f, e); found != "" {
		return found
	}
	var parts []ast.Expr
	switch e := e.(type) {
	case *ast.Ident, *ast.SelectorExpr:
		if d, ok := s.named(f, e); ok {
			return s.find(d.file, d.typ, seen, match)
		}
	case *ast.ParenExpr:
		parts = []ast.Expr{e.X}
	case *ast.StarExpr:
		parts = []ast.Expr{e.X}
	case *ast.IndexExpr:
		parts = []ast.Expr{e.X, e.Index}
	case *ast.IndexListExpr:
		parts = append(e.Indices, e.X)
	case *ast.ArrayType:
		parts = []ast.Expr{e.Elt}
	case *ast.MapType:
		parts = []ast.Expr{e.Key, e.Value}
	case *ast.StructType:
		for _, field := range e.Fields.List {
			parts = append(parts, field.Type)
		}
	}
	for _, part := range parts {
		if found := s.find(f, part, seen, match); found != "" {
			return found
		}
	}
	return ""
}
