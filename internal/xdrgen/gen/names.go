package gen

import (
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
)

// GoName returns the Go name that a name of the source becomes, collisions aside.
func GoName(name string) string {
	var b strings.Builder
	for len(name) > 0 {
		n := wordLen(name)
		word := name[:n]
		name = strings.TrimLeft(name[n:], "_")
		if word = strings.TrimLeft(word, "_"); word == "" {
			continue
		}
		if word[1:] != "" && strings.ToUpper(word) == word {
			word = word[:1] + strings.ToLower(word[1:])
		}
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	if s := b.String(); s != "" && (s[0] < '0' || s[0] > '9') {
		return s
	}
	return "X" + b.String()
}

// wordLen returns the length of the first word, which ends before an underscore or behind digits.
func wordLen(name string) int {
	for i := 1; i < len(name); i++ {
		if name[i] == '_' || digit(name[i-1]) && !digit(name[i]) {
			return i
		}
	}
	return len(name)
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// names are the Go names of a package.
type names struct {
	used  map[string]bool
	types map[*check.Type]string
	enums map[*check.Enumerator]string

	consts map[string]string // of constants, by their names in the source

	// Of numbers, by their names in the source: several versions may have the same.
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
	for _, t := range spec.Types {
		n.types[t] = unique(n.used, t.Name, "Type")
	}
	for _, c := range spec.Consts {
		n.consts[c.Name] = unique(n.used, c.Name, "Const")
	}
	for _, t := range spec.Types {
		for _, v := range t.Values {
			n.enums[v] = unique(n.used, v.Name, "Value")
		}
	}
	n.numbers(spec.Programs)
	return n
}

// numbers names those of programs, each number once.
func (n *names) numbers(programs []*check.Program) {
	add := func(to map[number]string, name string, value uint32, suffix string) {
		if key := (number{name, value}); to[key] == "" {
			to[key] = unique(n.used, name, suffix)
		}
	}
	for _, p := range programs {
		add(n.programs, p.Name, p.Number, "Program")
	}
	for _, p := range programs {
		for _, v := range p.Versions {
			add(n.versions, v.Name, v.Number, "Version")
		}
	}
	for _, p := range programs {
		for _, v := range p.Versions {
			for _, proc := range v.Procs {
				add(n.procs, proc.Name, proc.Number, "Proc")
			}
		}
	}
}

// members chooses the names of a type's fields: the discriminant and the arms of a union, or the
// members of a structure.
func members(t *check.Type) map[*check.Member]string {
	used := map[string]bool{"Append": true, "Decode": true, "Check": true}
	fields := make(map[*check.Member]string)
	for _, m := range t.Members {
		fields[m] = unique(used, m.Name, "Field")
	}
	if t.Kind == check.Union {
		fields[t.Discriminant] = unique(used, t.Discriminant.Name, "Field")
		for _, a := range t.Arms {
			if a.Member != nil {
				fields[a.Member] = unique(used, a.Member.Name, "Field")
			}
		}
	}
	return fields
}

// unique returns a Go name for a name of the source that is not in use yet.
func unique(used map[string]bool, name, suffix string) string {
	s := GoName(name)
	if used[s] {
		s += suffix
	}
	for base, i := s, 2; used[s]; i++ {
		s = base + strconv.Itoa(i)
	}
	used[s] = true
	return s
}
