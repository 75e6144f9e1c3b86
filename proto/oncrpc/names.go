package oncrpc

import (
	"fmt"
	"strconv"
)

// A Program describes one version of a program: the names that errors, metrics and traces have for it and its
// procedures, and the size of its messages. Command xdrgen generates one for each version.
type Program struct {
	Number, Vers uint32   // in RPC calls
	Name         string   // of the program
	Procedures   []string // by number; an empty one has no name

	// Longest is how long arguments or results may be, in bytes, as far as the types of the program say so:
	// parts without a limit count as empty.
	Longest int
}

// Procedure returns the name of a procedure, "" if it has none.
func (p Program) Procedure(proc uint32) string {
	if uint64(proc) < uint64(len(p.Procedures)) {
		return p.Procedures[proc]
	}
	return ""
}

// CallName names a procedure for people, as in "GET of STORE v1". What has no name is a number.
func (p Program) CallName(proc uint32) string {
	procedure, program := p.Procedure(proc), p.Name
	if procedure == "" {
		procedure = "procedure " + strconv.FormatUint(uint64(proc), 10)
	}
	if program == "" {
		program = "program " + programNumber(p.Number)
	}
	return fmt.Sprintf("%s of %s v%d", procedure, program, p.Vers)
}

// programNumber returns the number of a program as people know it: the registry has assigned numbers in decimal,
// and .x files have those that RFC 5531 section 8.3 leaves to users, from 0x20000000, in hexadecimal.
func programNumber(n uint32) string {
	const ofUsers = 0x20000000
	if n >= ofUsers {
		return "0x" + strconv.FormatUint(uint64(n), 16)
	}
	return strconv.FormatUint(uint64(n), 10)
}
