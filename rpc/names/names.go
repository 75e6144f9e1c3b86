// Package names assigns an index to each procedure that a process knows by name, for code that counts calls by
// procedure.
//
// Program and procedure numbers come from peers, which may send any. A [Table] has a fixed set of procedures.
// Everything else maps to the entry [Other] of its version of the program, or of the table. So the names that the
// process knows bound the number of counters, and of label values of a metric, whatever its peers send. Each entry has
// an index, so that counters can be kept in a slice and found without an allocation.
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

// MaxEntries is the maximum number of entries in a Table.
const MaxEntries = 4096

// Known returns the versions, in the order of their numbers, of the programs with the given numbers that package dump
// names, such as 100003 for NFS. It leaves out unknown programs.
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
	// Program and Procedure are names. Procedure may be Other, and both are for calls of a program version that is not
	// in the Table.
	Program, Procedure string

	// Prog, Vers and Proc are the numbers. Proc means nothing if Procedure is Other, and none of them means anything if
	// Program is.
	Prog, Vers, Proc uint32
}

// Version returns Vers in decimal, or Other.
func (e Entry) Version() string {
	if e.Program == Other {
		return Other
	}
	return strconv.FormatUint(uint64(e.Vers), 10)
}

// A Table is an immutable set of named procedures. It is safe for concurrent use.
type Table struct {
	entries []Entry
	spans   map[version]span
}

type version struct{ prog, vers uint32 }

// A span is the place of a version's procedures. The entry after the last is its Other.
type span struct{ first, n int }

// New returns a Table of programs. It fails if a program has no name or occurs twice, or if there would be more than
// MaxEntries entries.
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

// Len returns the number of entries, at least one.
func (t *Table) Len() int { return len(t.entries) }

// Index returns the index of the entry of a procedure, in [0, Len()). It does not allocate.
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
