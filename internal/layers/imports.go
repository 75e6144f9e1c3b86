package layers

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Imports compares every import with [Layers]. A package outside of all layers is a finding too.
func Imports(t *Tree) []Finding {
	var list []Finding
	unlisted := make(map[string]bool)
	for f := range t.code {
		layer, ok := LayerOf(f.Dir())
		if !ok {
			if !unlisted[f.Dir()] {
				unlisted[f.Dir()] = true
				list = append(list, t.finding(f, f.AST.Name, "package %s is in no layer: add a row to internal/layers/layers.go", f.Dir()))
			}
			continue
		}
		for _, spec := range f.AST.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			if err != nil || standard(to) {
				continue
			}
			if own, ours := strings.CutPrefix(to, Module+"/"); ours {
				target, ok := LayerOf(own)
				switch {
				case ok && target.Path == layer.Path:
				case ok && slices.Contains(layer.May, target.Path), slices.Contains(layer.May, "*"):
				case ok && f.Test() && (slices.Contains(layer.Tests, target.Path) || slices.Contains(testLayers, target.Path)):
				default:
					list = append(list, t.finding(f, spec, "%s may not import %s", layer.Path, own))
				}
				continue
			}
			if !covers(layer.External, to) && !(f.Test() && covers(testExternal, to)) {
				list = append(list, t.finding(f, spec, "%s may not import %s", layer.Path, to))
			}
		}
	}
	return inOrder(list)
}

// standard reports whether an import path is of the standard library, or the
// pseudo package "C": their first element has no dot.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// CgoInOneLayer allows import "C" only in layer cgo, and in the example of a program with its own C code.
func CgoInOneLayer(t *Tree) []Finding {
	var list []Finding
	for f := range t.code {
		for _, spec := range f.AST.Imports {
			if spec.Path.Value == `"C"` && !below(f.Dir(), "cgo") && f.Dir() != "examples/verbs/dc" {
				list = append(list, t.finding(f, spec, `only layer cgo may import "C"`))
			}
		}
	}
	return inOrder(list)
}

// graphEdge is an edge of the package graph. Names are quoted paths, because of the
// slashes.
var graphEdge = regexp.MustCompile(`(?m)^\s*\w+\["([^"]+)"\]\s*-->\s*\w+\["([^"]+)"\]\s*$`)

// graphFile is the document with the graph.
const graphFile = "docs/architecture.md"

// GraphMatches compares the graph in docs/architecture.md with [Layers]: both must have the same edges. Layers that may
// import everything are not compared.
func GraphMatches(t *Tree) []Finding {
	at := slices.IndexFunc(t.Files, func(f *File) bool { return f.Path == graphFile })
	if at < 0 {
		return []Finding{{File: graphFile, Text: "the document is missing"}}
	}
	drawn := make(map[string]bool)
	for _, m := range graphEdge.FindAllSubmatch(t.Files[at].Src, -1) {
		drawn[string(m[1])+" --> "+string(m[2])] = true
	}
	var list []Finding
	for _, r := range Layers {
		for _, to := range r.May {
			if to == "*" {
				continue
			}
			edge := r.Path + " --> " + to
			if !drawn[edge] {
				list = append(list, Finding{File: graphFile, Text: "the graph lacks " + edge})
			}
			delete(drawn, edge)
		}
	}
	for edge := range drawn {
		list = append(list, Finding{File: graphFile, Text: "the graph has " + edge + ", the table of layers does not"})
	}
	return inOrder(list)
}
