package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// operation changes one place in a declaration, which it finds in the syntax tree.
type operation struct {
	dir, decl string // for example ./transport and (*leader).receive
	does      string // the line, for messages
	verb      string
	place     string // key of the node
	nth       int    // number of the node among those with the key, from 1; 0 requires that it is the only one
	text      string // the new text
}

// forms lists the forms of an operation: its verb, and the word between the two parts. An insertion has the text first,
// the others have the place first.
var forms = []struct{ verb, between string }{
	{"drop ", ""}, {"replace ", " with "}, {"set ", " to "}, {"insert ", " before "}, {"insert ", " after "},
}

// parseOperation parses the text after "Do: ".
func parseOperation(dir, decl, does string) (*operation, error) {
	for _, f := range forms {
		place, ok := strings.CutPrefix(does, f.verb)
		if !ok {
			continue
		}
		o := &operation{dir: dir, decl: decl, does: does, verb: strings.TrimSpace(f.verb)}
		if o.verb == "insert" {
			i := max(0, strings.LastIndex(place, f.between))
			o.verb, o.text, place = strings.TrimSpace(f.between), place[:i], strings.TrimPrefix(place[i:], f.between)
		} else if f.between != "" {
			place, o.text, _ = strings.Cut(place, f.between)
		}
		if f.between != "" && o.text == "" {
			continue
		}
		if i := strings.LastIndex(place, " #"); i >= 0 {
			n, err := strconv.Atoi(place[i+2:])
			if err != nil || n < 1 {
				return nil, fmt.Errorf("%q: %q is not a number from #1", does, place[i+1:])
			}
			place, o.nth = place[:i], n
		}
		if o.place = key(place); o.place == "" {
			break
		}
		if o.verb == "set" && !strings.Contains(o.place, " ") {
			o.place = "set " + o.place
		}
		return o, nil
	}
	return nil, fmt.Errorf("%q is not an operation", does)
}

// kinds lists the words with which a place may begin.
var kinds = []string{"call", "case", "default", "defer", "for", "go", "if", "key", "range", "set"}

// key returns a text without white space, except after a word of kinds.
func key(text string) string {
	words := strings.Fields(text)
	if len(words) > 0 && slices.Contains(kinds, words[0]) {
		words[0] += " "
	}
	return strings.Join(words, "")
}

// keys returns the keys of a node.
func keys(n ast.Node) []string {
	switch n := n.(type) {
	case *ast.ExprStmt:
		return keys(n.X)
	case *ast.CallExpr:
		list := []string{key(printed(n)), key("call " + printed(n.Fun))}
		if f, ok := n.Fun.(*ast.SelectorExpr); ok {
			list = append(list, key("call "+f.Sel.Name))
		}
		return list
	case *ast.DeferStmt:
		return []string{key("defer " + printed(n.Call.Fun))}
	case *ast.GoStmt:
		return []string{key("go " + printed(n.Call.Fun))}
	case *ast.AssignStmt:
		return []string{key(printed(n)), key("set " + printed(n.Lhs...))}
	case *ast.ValueSpec:
		return []string{key("set " + printed(n.Names...))}
	case *ast.IfStmt:
		return []string{key("if " + printed(n.Cond))}
	case *ast.ForStmt:
		if n.Cond == nil {
			return []string{key("for")}
		}
		return []string{key("for " + printed(n.Cond))}
	case *ast.RangeStmt:
		return []string{key("range " + printed(n.X))}
	case *ast.CaseClause:
		if n.List == nil {
			return []string{key("default")}
		}
		return []string{key("case " + printed(n.List...))}
	case *ast.CommClause:
		if n.Comm == nil {
			return []string{key("default")}
		}
		return []string{key("case " + printed(n.Comm))}
	case *ast.KeyValueExpr:
		return []string{key(printed(n)), key("key " + printed(n.Key))}
	case *ast.BranchStmt, *ast.IncDecStmt, *ast.ReturnStmt, *ast.SendStmt, ast.Expr:
		return []string{key(printed(n))}
	}
	return nil
}

// printed prints nodes in a canonical form, whatever their layout in the file.
func printed[N ast.Node](list ...N) string {
	var b strings.Builder
	for i, n := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := printer.Fprint(&b, token.NewFileSet(), n); err != nil {
			return err.Error() // not part of a parsed tree
		}
	}
	return b.String()
}

// apply applies the change to the tree as modified by earlier changes.
func (o *operation) apply(tree fs.FS, changed map[string]string) error {
	names, err := (&edit{files: path.Join(o.dir, "*.go")}).names(tree)
	if err != nil {
		return err
	}
	declared := false
	var found []site
	for _, name := range names {
		src, err := contents(tree, changed, name)
		if err != nil {
			return err
		}
		if !strings.Contains(src, o.decl[strings.LastIndex(o.decl, ".")+1:]) {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range declarations(f, o.decl) {
			declared = true
			found = append(found, o.sites(d, site{file: name, src: src, base: fset.File(f.FileStart).Base()})...)
		}
	}
	switch {
	case !declared:
		return fmt.Errorf("%s does not declare %s", o.dir, o.decl)
	case o.nth > 0 && o.nth <= len(found):
		found = found[o.nth-1 : o.nth]
	case o.nth > 0 || len(found) != 1:
		return fmt.Errorf("%s %s has %d places for %q", o.dir, o.decl, len(found), o.does)
	}
	s := found[0]
	text := o.change(s)
	if text == "" || text == s.src {
		return fmt.Errorf("%s %s: %q is not possible there", o.dir, o.decl, o.does)
	}
	changed[s.file] = text
	return nil
}

// declarations returns the functions, variables and constants of a file with a name.
func declarations(f *ast.File, name string) []ast.Node {
	var list []ast.Node
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if functionName(decl) == name {
				list = append(list, decl)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				spec, ok := spec.(*ast.ValueSpec)
				if ok && slices.ContainsFunc(spec.Names, func(id *ast.Ident) bool { return id.Name == name }) {
					list = append(list, spec)
				}
			}
		}
	}
	return list
}

// functionName returns the name of a function as in stack traces, without the package and type parameters: dial,
// client.dial or (*client).dial.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	recv, _, _ := strings.Cut(printed(f.Recv.List[0].Type), "[")
	if recv[0] == '*' {
		recv = "(" + recv + ")"
	}
	return recv + "." + f.Name.Name
}

// site is a node of a file, with the enclosing nodes, innermost last.
type site struct {
	file, src string
	base      int
	node      ast.Node
	around    []ast.Node
}

// sites returns the nodes of a declaration that have the key of the operation.
func (o *operation) sites(decl ast.Node, s site) []site {
	var found []site
	var around []ast.Node
	var end token.Pos // of the last node found
	ast.Inspect(decl, func(n ast.Node) bool {
		if n == nil {
			around = around[:len(around)-1]
			return true
		}
		// A statement may consist of just the expression with its key.
		if slices.Contains(keys(n), o.place) && n.End() != end {
			s.node, s.around, end = n, slices.Clone(around), n.End()
			found = append(found, s)
		}
		around = append(around, n)
		return true
	})
	return found
}

// of returns the source of a node.
func (s site) of(n ast.Node) string { return s.src[int(n.Pos())-s.base : int(n.End())-s.base] }

// with returns the source with the text between two positions replaced.
func (s site) with(from, to token.Pos, text string) string {
	return s.src[:int(from)-s.base] + text + s.src[int(to)-s.base:]
}

// change returns the source after the operation, or "" if the operation is not possible.
func (o *operation) change(s site) string {
	switch o.verb {
	case "drop":
		return s.drop()
	case "replace":
		return s.with(s.node.Pos(), s.node.End(), o.text)
	case "set":
		if list := values(s.node); len(list) > 0 {
			return s.with(list[0].Pos(), list[len(list)-1].End(), o.text)
		}
		return ""
	}
	for i, n := range slices.Backward(append(s.around, s.node)) {
		if _, ok := n.(ast.Stmt); !ok || i == 0 {
			continue
		}
		if _, _, ok := neighbors(s.around[i-1], n); ok {
			if o.verb == "before" {
				return s.with(n.Pos(), n.Pos(), o.text+"\n")
			}
			return s.with(n.End(), n.End(), "\n"+o.text)
		}
	}
	return ""
}

// values returns the parts that determine a node's effect: its condition or its value.
func values(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		return n.Rhs
	case *ast.ValueSpec:
		return n.Values
	case *ast.CaseClause:
		return n.List
	case *ast.KeyValueExpr:
		return []ast.Expr{n.Value}
	case *ast.RangeStmt:
		return []ast.Expr{n.X}
	case *ast.IfStmt:
		return []ast.Expr{n.Cond}
	case *ast.ForStmt:
		if n.Cond != nil {
			return []ast.Expr{n.Cond}
		}
	}
	return nil
}

// drop removes a statement, an operand or an element of a list.
func (s site) drop() string {
	if len(s.around) == 0 {
		return ""
	}
	n, parent := s.node, s.around[len(s.around)-1]
	if p, ok := parent.(*ast.BinaryExpr); ok {
		other := p.X
		if other == n {
			other = p.Y
		}
		return s.with(p.Pos(), p.End(), s.of(other))
	}
	before, after, ok := neighbors(parent, n)
	_, statement := n.(ast.Stmt)
	switch {
	case !ok:
		return ""
	case statement || before == nil && after == nil:
		return s.with(n.Pos(), n.End(), "")
	case after != nil:
		return s.with(n.Pos(), after.Pos(), "")
	}
	return s.with(before.End(), n.End(), "")
}

// neighbors returns the nodes next to n in a list of its parent. ok is false if n is not in one.
func neighbors(parent, n ast.Node) (before, after ast.Node, ok bool) {
	for _, field := range reflect.ValueOf(parent).Elem().Fields() {
		if field.Kind() != reflect.Slice {
			continue
		}
		for i := range field.Len() {
			if field.Index(i).Interface() != n {
				continue
			}
			if i > 0 {
				before = field.Index(i - 1).Interface().(ast.Node)
			}
			if i+1 < field.Len() {
				after = field.Index(i + 1).Interface().(ast.Node)
			}
			return before, after, true
		}
	}
	return nil, nil, false
}
