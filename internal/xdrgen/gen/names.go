package gen

import (
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
)

// names holds the Go names of a package.
type names struct {
	used  map[string]bool
	types map[*check.Type]string
	enums map[*check.Enumerator]string

	consts map[string]string // of constants, by their names in the source

	// Names of numbers, by their names in the source: several versions may have the same.
	programs, versions, procs map[number]string
}

// number is a named number of a program.
type number struct {
	name  string
	value uint32
}

// nameAll chooses the Go names of a specification.
func nameAll(spec *check.Spec) *names {
	n := &names{
		used: make(map[string]bool), types: make(map[*check.Type]string),
		enums: make(map[*check.Enumerator]string), consts: make(map[string]string),
		programs: make(map[number]string), versions: make(map[number]string), procs: make(map[number]string),
	}
	n.reserve(spec)
	for _, t := range spec.Types {
		if t.OnlyFlat {
			n.types[t] = check.GoName(t.Name) // for names of functions
			continue
		}
		n.types[t] = unique(n.used, t.Go, t.Name, "Type")
	}
	for _, c := range spec.Consts {
		n.consts[c.Name] = unique(n.used, c.Go, c.Name, "Const")
	}
	for _, t := range spec.Types {
		for _, v := range t.Values {
			name := check.GoName(v.Name)
			if rest, begins := strings.CutPrefix(name, n.types[t]); t.Scoped && (!begins || strings.ToLower(rest) == rest) {
				name = n.types[t] + name
			}
			n.enums[v] = free(n.used, v.Go, name, "Value")
		}
	}
	n.numbers(spec.Programs)
	return n
}

// reserve reserves the names that the source requests.
func (n *names) reserve(spec *check.Spec) {
	for _, t := range spec.Types {
		n.used[t.Go] = true
		for _, v := range t.Values {
			n.used[v.Go] = true
		}
	}
	for _, c := range spec.Consts {
		n.used[c.Go] = true
	}
	for _, p := range spec.Programs {
		n.used[p.Go] = true
		for _, v := range p.Versions {
			n.used[v.Go] = true
			for _, proc := range v.Procs {
				n.used[proc.Go] = true
			}
		}
	}
}

// numbers names the numbers of programs, each once.
func (n *names) numbers(programs []*check.Program) {
	add := func(to map[number]string, asked, name string, value uint32, suffix string) {
		if key := (number{name, value}); to[key] == "" {
			to[key] = unique(n.used, asked, name, suffix)
		}
	}
	for _, p := range programs {
		add(n.programs, p.Go, p.Name, p.Number, "Program")
	}
	for _, p := range programs {
		for _, v := range p.Versions {
			add(n.versions, v.Go, v.Name, v.Number, "Version")
		}
	}
	for _, p := range programs {
		for _, v := range p.Versions {
			for _, proc := range v.Procs {
				add(n.procs, proc.Go, proc.Name, proc.Number, "Proc")
			}
		}
	}
}

// members chooses the names of a type's fields: the discriminant and the arms of a union, or the members of a
// structure.
func members(t *check.Type) map[*check.Member]string {
	used := map[string]bool{"Append": true, "Decode": true, "Check": true}
	if t.Head != nil {
		used["AppendHead"], used["DecodeHead"] = true, true
	}
	fields := make(map[*check.Member]string)
	list := t.Members
	if t.Kind == check.Union {
		list = []*check.Member{t.Discriminant}
		for _, a := range t.Arms {
			if a.Member != nil {
				list = append(list, a.Member)
			}
		}
	}
	for _, m := range list {
		used[m.Go] = true
	}
	for _, m := range list {
		if !m.Flat {
			fields[m] = unique(used, m.Go, m.Name, "Field")
		}
	}
	return fields
}

// unique returns the Go name that the source requests, or else an unused one for a name of the source.
func unique(used map[string]bool, asked, name, suffix string) string {
	return free(used, asked, check.GoName(name), suffix)
}

// free is unique for a name that already is a Go name.
func free(used map[string]bool, asked, s, suffix string) string {
	if asked != "" {
		return asked
	}
	if used[s] {
		s += suffix
	}
	for base, i := s, 2; used[s]; i++ {
		s = base + strconv.Itoa(i)
	}
	used[s] = true
	return s
}
