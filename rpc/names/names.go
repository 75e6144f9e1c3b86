// Package names numbers the procedures that a process knows by name, for those that count
// calls by procedure.
//
// Program and procedure numbers come from peers, which may send any. A [Table] has a fixed
// set of procedures, and everything else is the entry [Other] of its version of the program,
// or of the table: so the number of counters, and of the label values of a metric, is bounded
// by what the process has named, whatever its peers send. Each entry has an index, so that
// counters can be kept in a slice and be found without an allocation.
package names

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// Other is the name of procedures, and of programs, that are not in a Table.
const Other = "other"

// MaxEntries is how many entries a Table has at most.
const MaxEntries = 4096

// Known returns the versions of programs with the given numbers that package dump names, such as
// 100003 for NFS, in the order of their numbers. It leaves out programs that it does not know.
func Known(numbers ...uint32) []*oncrpc.Program {
	var list []*oncrpc.Program
	for _, n := range numbers {
		name, versions := dump.Program(n)
		for _, v := range versions {
			list = append(list, &oncrpc.Program{Number: n, Vers: v.Number, Name: name, Procedures: v.Procedures})
		}
	}
	return list
}

// An Entry is a procedure of a Table.
type Entry struct {
	// Program and Procedure are names. Either may be Other, and both are for what belongs to
	// no version of a program in the Table.
	Program, Procedure string

	// Prog, Vers and Proc are the numbers. Proc means nothing if Procedure is Other, and none
	// of them does if Program is.
	Prog, Vers, Proc uint32
}

// Version is Vers in decimal, or Other.
func (e Entry) Version() string {
	if e.Program == Other {
		return Other
	}
	return strconv.FormatUint(uint64(e.Vers), 10)
}

// A Table is a set of procedures with names. It does not change, and may be used by many
// goroutines at once.
type Table struct {
	entries []Entry
	spans   map[version]span
}

type version struct{ prog, vers uint32 }

// A span is where the procedures of a version are: after the last is its Other.
type span struct{ first, n int }

// New returns a Table of programs. It fails if one of them has no name or is in the list twice, and
// if there were more than MaxEntries entries.
func New(programs ...*oncrpc.Program) (*Table, error) {
	t := &Table{spans: make(map[version]span)}
	for _, p := range programs {
		v := version{p.Number, p.Vers}
		switch _, twice := t.spans[v]; {
		case p.Name == "" || p.Name == Other:
			return nil, fmt.Errorf("names: program %d has no name of its own", p.Number)
		case twice:
			return nil, fmt.Errorf("names: version %d of program %d is named twice", p.Vers, p.Number)
		case len(t.entries)+len(p.Procedures)+2 > MaxEntries:
			return nil, errTooMany
		}
		t.spans[v] = span{len(t.entries), len(p.Procedures)}
		for n, name := range p.Procedures {
			if name == "" {
				name = Other
			}
			t.entries = append(t.entries, Entry{p.Name, name, p.Number, p.Vers, uint32(n)})
		}
		t.entries = append(t.entries, Entry{p.Name, Other, p.Number, p.Vers, 0})
	}
	t.entries = append(t.entries, Entry{Program: Other, Procedure: Other})
	return t, nil
}

var errTooMany = errors.New("names: too many procedures")

// Len is the number of entries, at least one.
func (t *Table) Len() int { return len(t.entries) }

// Index returns the entry of a procedure, in [0, Len()). It allocates nothing.
func (t *Table) Index(prog, vers, proc uint32) int {
	s, ok := t.spans[version{prog, vers}]
	if !ok {
		return len(t.entries) - 1
	}
	if uint64(proc) >= uint64(s.n) || t.entries[s.first+int(proc)].Procedure == Other {
		return s.first + s.n
	}
	return s.first + int(proc)
}

// At returns the entry with an index that Index has returned.
func (t *Table) At(i int) Entry { return t.entries[i] }
