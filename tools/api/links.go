package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// unresolved matches text that looks like a link to a name but is not one. An index of an array and the host of an
// address, [HOST]:PORT, are not matched. Immutable.
var unresolved = regexp.MustCompile(`(?:^|[^A-Za-z0-9])(\[\*?(?:[a-z][a-z0-9]*\.)?[A-Z][A-Za-z0-9_]*(?:\.[A-Z][A-Za-z0-9_]*)?\])(?:[^:]|$)`)

// badLinks returns the broken links in the comments of a package: to a name that does not exist, or in a package that
// no file imports, for which readers see brackets.
func (c *checker) badLinks(pkg *types.Package) (findings []string, err error) {
	d, err := doc.NewFromFiles(c.fset, slices.Clone(c.files[pkg.Path()]), pkg.Path(), doc.PreserveAST)
	if err != nil {
		return nil, err
	}
	look := func(at, text string) {
		walk(d.Parser().Parse(text).Content, func(t comment.Text) {
			switch t := t.(type) {
			case comment.Plain:
				for _, m := range unresolved.FindAllStringSubmatch(string(t), -1) {
					findings = append(findings, fmt.Sprintf("%s, %s: %s is no link", pkg.Path(), at, m[1]))
				}
			case *comment.DocLink:
				if to := c.target(pkg, t); to != "" {
					findings = append(findings, fmt.Sprintf("%s, %s: there is no %s", pkg.Path(), at, to))
				}
			}
		})
	}
	look("package", d.Doc)
	for _, f := range d.Funcs {
		look(f.Name, f.Doc)
	}
	for _, v := range slices.Concat(d.Consts, d.Vars) {
		look(v.Names[0], v.Doc)
	}
	for _, t := range d.Types {
		look(t.Name, t.Doc)
		ast.Inspect(t.Decl, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok {
				look(t.Name, f.Doc.Text()+"\n\n"+f.Comment.Text())
			}
			return true
		})
		for _, f := range slices.Concat(t.Funcs, t.Methods) {
			look(t.Name+"."+f.Name, f.Doc)
		}
		for _, v := range slices.Concat(t.Consts, t.Vars) {
			look(v.Names[0], v.Doc)
		}
	}
	return findings, nil
}

// target returns the target of a link if it does not exist. Foreign packages are not checked.
func (c *checker) target(pkg *types.Package, l *comment.DocLink) string {
	if l.Name == "" || l.ImportPath != "" && c.checked[l.ImportPath] == nil {
		return ""
	}
	if l.ImportPath != "" {
		pkg = c.checked[l.ImportPath]
	}
	name := l.Name
	if l.Recv != "" {
		name = l.Recv
	}
	obj := pkg.Scope().Lookup(name)
	if obj == nil {
		return pkg.Name() + "." + name
	}
	if l.Recv == "" {
		return ""
	}
	if m, _, _ := types.LookupFieldOrMethod(obj.Type(), true, pkg, l.Name); m == nil {
		return pkg.Name() + "." + l.Recv + "." + l.Name
	}
	return ""
}

// walk calls do for the pieces of text in blocks of a comment, except code.
func walk(blocks []comment.Block, do func(comment.Text)) {
	texts := func(list []comment.Text) {
		for _, t := range list {
			do(t)
		}
	}
	for _, b := range blocks {
		switch b := b.(type) {
		case *comment.Paragraph:
			texts(b.Text)
		case *comment.Heading:
			texts(b.Text)
		case *comment.List:
			for _, item := range b.Items {
				walk(item.Content, do)
			}
		}
	}
}

// links returns the broken links of all packages with listings.
func links(root string) ([]string, error) {
	c, list, err := load(root)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, pkg := range list {
		findings, err := c.badLinks(pkg)
		if err != nil {
			return nil, err
		}
		for _, f := range findings {
			all = append(all, strings.TrimPrefix(f, mainModule+"/"))
		}
	}
	return all, nil
}
