package layers

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"slices"
	"strings"
)

// A Group is a part of a package: files that may refer to each other and to files of earlier groups.
type Group struct {
	Name  string
	Files []string // without ".go"
}

// TransportGroups orders the files of package transport. Immutable.
//
// The second group is large because its types refer to each other: a conn to its leader, slots
// and exchanges, which in turn refer to the conn. Its files are divided by concern.
var TransportGroups = []Group{
	{"terms", []string{"doc", "errors", "journal", "locks", "options", "tally"}},
	{"one connection", []string{
		"agree", "await", "build", "calls", "ccp", "config", "conn", "connection", "contexts", "core", "exch", "exchange", "holdings", "lane",
		"leader", "observation", "operation", "pending", "progress", "registry", "reply", "replycache", "requester",
		"receives", "responder", "rfc5666",
		"sendqueue", "setup", "slots", "starttls", "version", "waiter", "watch",
	}},
	{"over connections", []string{"backchannel", "link", "tcpcall", "tcpconn", "tcpexch"}},
	{"client", []string{"client", "dialer", "group", "groupdial", "memory", "negotiate", "pipeline", "tcpdial"}},
	{"server", []string{"bridge", "limits_other", "limits_unix", "record", "server", "serverdma", "tcpserve"}},
}

// groupOf returns the index of a file's group, or -1 if it is in none.
func groupOf(groups []Group, file string) int {
	name := strings.TrimSuffix(path.Base(file), ".go")
	return slices.IndexFunc(groups, func(g Group) bool { return slices.Contains(g.Files, name) })
}

// InGroups compares the table with the names of a package's files, without tests. Each file must be in exactly one
// group, and each name in the table must be that of a file.
func InGroups(groups []Group, files []string) []Finding {
	var list []Finding
	there := make(map[string]bool)
	for _, file := range files {
		there[strings.TrimSuffix(path.Base(file), ".go")] = true
		if groupOf(groups, file) < 0 {
			list = append(list, Finding{File: file, Text: "the file is in no group: add it to internal/layers/order.go"})
		}
	}
	seen := make(map[string]bool)
	for _, g := range groups {
		for _, name := range g.Files {
			if !there[name] {
				list = append(list, Finding{File: name + ".go", Text: fmt.Sprintf("group %q has a file that does not exist", g.Name)})
			}
			if seen[name] {
				list = append(list, Finding{File: name + ".go", Text: fmt.Sprintf("group %q has a file of another group", g.Name)})
			}
			seen[name] = true
		}
	}
	return inOrder(list)
}

// PointsDown type-checks the files of a package and finds references to declarations in files of later groups: types,
// functions, methods, fields, variables and constants. It reports one finding for each file and declaration, at the
// first reference. It leaves files in no group to [InGroups].
func PointsDown(groups []Group, fset *token.FileSet, files []*ast.File, imports types.Importer) ([]Finding, error) {
	info := types.Info{Uses: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: imports}
	pkg, err := config.Check(files[0].Name.Name, fset, files, &info)
	if err != nil {
		return nil, err
	}
	type use struct {
		file string
		of   types.Object
	}
	first := make(map[use]token.Position)
	for id, of := range info.Uses {
		if of.Pkg() != pkg || !of.Pos().IsValid() {
			continue
		}
		at := fset.Position(id.Pos())
		u := use{at.Filename, of}
		if old, ok := first[u]; !ok || at.Offset < old.Offset {
			first[u] = at
		}
	}
	var list []Finding
	for u, at := range first {
		declared := fset.Position(u.of.Pos()).Filename
		from, to := groupOf(groups, at.Filename), groupOf(groups, declared)
		if from >= 0 && from < to {
			list = append(list, Finding{File: at.Filename, Line: at.Line, Text: fmt.Sprintf(
				"group %q refers to %s of %s in group %q", groups[from].Name, u.of.Name(), path.Base(declared), groups[to].Name)})
		}
	}
	return inOrder(list), nil
}
