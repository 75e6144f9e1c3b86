package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// page returns the page of a record, in Markdown.
func (r *record) page() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Instructions of a call

Written by `+"`make instructions`"+`; do not edit. What a call costs at both ends together: instructions outside of the kernel, system
calls, and allocations. These are counts: they do not depend on what else the machine does. `+"`TestInstructions`"+` of
[bench/instructions](../../../bench/instructions) fails if a call takes 5 %% more or fewer instructions than here.

- date: %s
- commit: %s
- Go: %s, linux/amd64, GOMAXPROCS=1, without cgo, without garbage collection
- emulator: %s %s, a processor of the kind %s

Client and server are one process, in QEMU's user-mode emulation with [a plugin](../../../bench/instructions/plugin/count.c) that counts.
After a warm-up there is a run of n calls and one of 2n, and the difference is divided by n. A string instruction counts
once for each repetition. A native processor that has wider vectors copies memory with fewer instructions.

`, r.Date, r.Commit, r.Go, emulator, r.Emulator, processor)
	for _, p := range parts {
		fmt.Fprintf(&b, "- %s: %s\n", p.name, p.what)
	}
	for _, a := range adapters {
		fmt.Fprintf(&b, "\n## %s\n\nOver %s.\n\n", a.title, a.what)
		r.table(&b, a.name)
		if a.name == simulated {
			b.WriteString("\nThis adapter stands for one that costs nothing; its own instructions are those of a simulation. What counts are\n" +
				"the columns transport and messages.\n")
		}
	}
	r.breakdown(&b, kinds[0].name, "iwarp")
	r.breakdown(&b, manyCalls, "iwarp")
	return b.String()
}

// table writes the rows of an adapter.
func (r *record) table(b *strings.Builder, adapter string) {
	b.WriteString("| | instructions |")
	for _, p := range parts {
		fmt.Fprintf(b, " %s |", p.name)
	}
	b.WriteString(" system calls | allocations |\n|---|---|" + strings.Repeat("---|", len(parts)) + "---|---|\n")
	for i := range r.Rows {
		x := &r.Rows[i]
		if x.Adapter != adapter {
			continue
		}
		fmt.Fprintf(b, "| %s | **%s** |", x.Kind, grouped(x.Instructions))
		for _, p := range parts {
			fmt.Fprintf(b, " %s |", grouped(x.Parts[p.name]))
		}
		fmt.Fprintf(b, " %s | %s |\n", x.syscalls(), decimal(x.Allocs))
	}
}

// breakdown writes the packages and the functions of a row.
func (r *record) breakdown(b *strings.Builder, kind, adapter string) {
	x := r.row(kind, adapter)
	if x == nil {
		return
	}
	line := func(cells string, v float64) {
		fmt.Fprintf(b, "| %s | %s | %.1f |\n", cells, grouped(v), 100*v/x.Instructions)
	}
	fmt.Fprintf(b, "\n## What %s over %s consists of\n\n", kind, adapter)
	b.WriteString("| package | instructions | % |\n|---|---|---|\n")
	rest := x.Instructions
	names := slices.SortedFunc(maps.Keys(x.Packages), func(m, n string) int {
		return cmp.Or(cmp.Compare(x.Packages[n], x.Packages[m]), strings.Compare(m, n))
	})
	for _, name := range names {
		v := x.Packages[name]
		if v < leastPackage*x.Instructions {
			break
		}
		rest -= v
		line("`"+strings.TrimPrefix(name, module)+"`", v)
	}
	line("all others", rest)
	b.WriteString("\nFunctions with 1 % or more; what the compiler has inlined belongs to its caller:\n\n")
	b.WriteString("| function | part | instructions | % |\n|---|---|---|---|\n")
	rest = x.Instructions
	for _, f := range x.Top {
		rest -= f.Instructions
		line("`"+strings.TrimPrefix(f.Name, module)+"` | "+partOf(f.Name), f.Instructions)
	}
	line("all others |", rest)
}

// leastPackage is the smallest share of a call for which a package is in the table.
const leastPackage = 0.002

// grouped formats a count with a comma every three digits.
func grouped(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
