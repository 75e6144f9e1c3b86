package house

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Imports holds every import against the table of rooms. A package in no room is
// a finding too: it needs a row.
func Imports(t *Tree) []Finding {
	var list []Finding
	homeless := make(map[string]bool)
	for f := range t.code {
		room, ok := RoomOf(f.Dir())
		if !ok {
			if !homeless[f.Dir()] {
				homeless[f.Dir()] = true
				list = append(list, t.finding(f, f.AST.Name, "package %s lies in no room: give it a row in internal/house/rooms.go", f.Dir()))
			}
			continue
		}
		for _, spec := range f.AST.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			if err != nil || standard(to) {
				continue
			}
			if own, ours := strings.CutPrefix(to, Module+"/"); ours {
				target, ok := RoomOf(own)
				switch {
				case ok && target.Path == room.Path:
				case ok && slices.Contains(room.May, target.Path), slices.Contains(room.May, "*"):
				case ok && f.Test() && (slices.Contains(room.Tests, target.Path) || slices.Contains(testRooms, target.Path)):
				default:
					list = append(list, t.finding(f, spec, "%s may not import %s", room.Path, own))
				}
				continue
			}
			if !covers(room.Third, to) && !(f.Test() && covers(testThird, to)) {
				list = append(list, t.finding(f, spec, "%s may not import %s", room.Path, to))
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

// CgoInOneRoom allows the pseudo package "C" in room cgo alone.
func CgoInOneRoom(t *Tree) []Finding {
	var list []Finding
	for f := range t.code {
		for _, spec := range f.AST.Imports {
			if spec.Path.Value == `"C"` && !below(f.Dir(), "cgo") {
				list = append(list, t.finding(f, spec, "only room cgo talks to C"))
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

// MapIsTrue compares the graph in docs/architecture.md with the table of rooms:
// the same arrows, no more and no less. Rooms that may import everything are
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
	for _, r := range Rooms {
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
		list = append(list, Finding{File: mapFile, Text: "the graph has " + arrow + ", the table of rooms has not"})
	}
	return inOrder(list)
}
