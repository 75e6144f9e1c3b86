package layers

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Imports holds every import against the table of layers. A package in no layer is
// a finding too: it needs a row.
func Imports(t *Tree) []Finding {
	var list []Finding
	homeless := make(map[string]bool)
	for f := range t.code {
		layer, ok := LayerOf(f.Dir())
		if !ok {
			if !homeless[f.Dir()] {
				homeless[f.Dir()] = true
				list = append(list, t.finding(f, f.AST.Name, "package %s lies in no layer: give it a row in internal/layers/layers.go", f.Dir()))
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

// CgoInOneLayer allows the pseudo package "C" in layer cgo alone.
func CgoInOneLayer(t *Tree) []Finding {
	var list []Finding
	for f := range t.code {
		for _, spec := range f.AST.Imports {
			if spec.Path.Value == `"C"` && !below(f.Dir(), "cgo") {
				list = append(list, t.finding(f, spec, "only layer cgo talks to C"))
			}
		}
	}
	return inOrder(list)
}

// mapEdge is an arrow of the graph in the document about the architecture:
// names are quoted paths there, because of the slashes.
var mapEdge = regexp.MustCompile(`(?m)^\s*\w+\["([^"]+)"\]\s*-->\s*\w+\["([^"]+)"\]\s*$`)

// mapFile is where that graph is.
const mapFile = "docs/architecture.md"

// MapIsTrue compares the graph in docs/architecture.md with the table of layers:
// the same arrows, no more and no less. Layers that may import everything are
// left out of both.
func MapIsTrue(t *Tree) []Finding {
	at := slices.IndexFunc(t.Files, func(f *File) bool { return f.Path == mapFile })
	if at < 0 {
		return []Finding{{File: mapFile, Text: "the document is gone"}}
	}
	drawn := make(map[string]bool)
	for _, m := range mapEdge.FindAllSubmatch(t.Files[at].Src, -1) {
		drawn[string(m[1])+" --> "+string(m[2])] = true
	}
	var list []Finding
	for _, r := range Layers {
		for _, to := range r.May {
			if to == "*" {
				continue
			}
			arrow := r.Path + " --> " + to
			if !drawn[arrow] {
				list = append(list, Finding{File: mapFile, Text: "the graph lacks " + arrow})
			}
			delete(drawn, arrow)
		}
	}
	for arrow := range drawn {
		list = append(list, Finding{File: mapFile, Text: "the graph has " + arrow + ", the table of layers has not"})
	}
	return inOrder(list)
}
