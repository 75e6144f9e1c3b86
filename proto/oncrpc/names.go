package oncrpc

import (
	"fmt"
	"strconv"
)

// A Program describes one version of a program: names for the program and its procedures, which errors, metrics and
// traces use, and the size of its messages. Command xdrgen generates one for each version.
type Program struct {
	Number, Vers uint32   // in RPC calls
	Name         string   // of the program
	Procedures   []string // by number; empty for a procedure without a name

	// Longest is the largest size of arguments or results, in bytes, that the types of the program permit. Parts
	// without a limit count as empty.
	Longest int
}

// Procedure returns the name of a procedure, or "" if it has none.
func (p Program) Procedure(proc uint32) string {
	if uint64(proc) < uint64(len(p.Procedures)) {
		return p.Procedures[proc]
	}
	return ""
}

// CallName returns a readable name of a procedure, such as "GET of STORE v1". It uses numbers for what has no name.
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

// programNumber formats the number of a program in its usual notation: decimal for numbers assigned by the registry,
// and hexadecimal for those from 0x20000000, which RFC 5531 section 8.3 leaves to users.
func programNumber(n uint32) string {
	const ofUsers = 0x20000000
	if n >= ofUsers {
		return "0x" + strconv.FormatUint(uint64(n), 16)
	}
	return strconv.FormatUint(uint64(n), 10)
}
