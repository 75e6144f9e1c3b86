package main

import (
	"fmt"
	"slices"
	"strings"
)

// deviceParts lists the columns of the tables for devices. Immutable.
var deviceParts = []struct{ name, title, what string }{
	{partTransport, "transport", "`transport`, `rpc`, `internal/baton`, `internal/lockorder`"},
	{partMessages, "messages", "`proto/xdr`, `proto/oncrpc`, `proto/rpcrdma`"},
	{partAdapter, "adapter", "`rdmacm`, `ibv`, `cgo`, `internal/pollfd`"},
	{partC, "libraries", "`cgo`'s functions in C, rdma-core, the C library"},
	{partSockets, "crossing", "of Go's runtime what comes before and after a call into C and a system call, and what polls descriptors"},
	{partCopying, "copying", "of Go's runtime `memmove` and `memclr`"},
	{partRuntime, "Go", "the rest of the runtime and of the standard library"},
	{partDevice, "device", "the kernel's module `rdma_rxe` or `siw`"},
	{partKernel, "kernel", "the rest of the kernel: system calls, verbs, UDP or TCP, scheduler, interrupts"},
	{partBench, "benchmark", "the benchmark itself"},
}

// devicesPage returns the part of the page that is about RDMA devices, in Markdown.
func (r *record) devicesPage() string {
	var b strings.Builder
	fmt.Fprintf(&b, `## RDMA devices

Written by `+"`make instructions-rdma`"+`. The kernel's software devices in the machine of `+"`scripts/vm`"+`, with one processor, and with the
kernel's instructions. The first column is the row of `+"`make bench-rdma`"+`. Where the processor is emulated, times say little, so the
ratios here have the floors of these rows; **bold** is below. `+"`make instructions-rdma`"+` fails then.

- date: %s
- commit: %s
- Go: %s, linux/amd64, GOMAXPROCS=1, with cgo, without garbage collection
- emulator: qemu-system-x86_64 %s, whose clock is the number of instructions

Each row is counted %d times, as a run of n and one of 2n calls. The numbers are those of the median; spread is the most less the
least, in %%. The second and later repetitions of a string instruction are not among the instructions; they are how the kernel
copies, a byte each.

In C is what a program of [bench/cverbs](../../../bench/cverbs) takes that moves the same messages without RPC, with events: instructions and
repetitions together. The ratio is to it, with our repetitions: of times in row 2, where more is slower, and of rates in the others, where
more is faster, as in `+"`make bench-rdma`"+`. Polling has none: on one processor the C program waits for the scheduler.

`, r.Date, r.Commit, r.Go, r.Emulator, times)
	for _, p := range deviceParts {
		fmt.Fprintf(&b, "- %s: %s\n", p.title, p.what)
	}
	for _, device := range devices {
		fmt.Fprintf(&b, "\n### On %s\n\n| | | instructions |", device)
		for _, p := range deviceParts {
			fmt.Fprintf(&b, " %s |", p.title)
		}
		b.WriteString(" repetitions | in C | ratio | floor | allocations | spread |\n|---|---|---|" + strings.Repeat("---|", len(deviceParts)) + "---|---|---|---|---|---|\n")
		for i := range r.Rows {
			x := &r.Rows[i]
			if x.Adapter != device {
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | **%s** |", x.ID, x.Kind, grouped(x.Instructions))
			for _, p := range deviceParts {
				fmt.Fprintf(&b, " %s |", grouped(x.Parts[p.name]))
			}
			fmt.Fprintf(&b, " %s | %s | %s | %.1f |\n", grouped(x.Repeats), x.cells(), decimal(x.Allocs), 100*(x.Most-x.Least)/x.Instructions)
		}
	}
	for _, row := range []string{"2", "6 d32"} {
		for _, k := range deviceKinds {
			if k.row == row {
				r.breakdown(&b, k.name, devices[0])
			}
		}
	}
	return b.String()
}

// kindOf returns the kind of a row on a device.
func (r *Row) kindOf() *deviceKind {
	return &deviceKinds[slices.IndexFunc(deviceKinds, func(k deviceKind) bool { return k.row == r.ID })]
}

// slower reports whether the ratio of a row compares times rather than rates.
func (r *Row) slower() bool { return r.ID == "2" }

// overC returns the ratio to the C program, or 0 if none exists: of times in row 2, of rates in others.
func (r *Row) overC() float64 {
	switch ours := r.Instructions + r.Repeats; {
	case r.C == 0:
		return 0
	case r.slower():
		return ours / r.C
	default:
		return r.C / ours
	}
}

// below reports whether the ratio misses its floor.
func (r *Row) below() bool {
	ratio, floor := r.overC(), r.kindOf().floor
	return ratio != 0 && (r.slower() && ratio > floor || !r.slower() && ratio < floor)
}

// cells formats the cost of the C program, the ratio to it, and its floor.
func (r *Row) cells() string {
	if r.C == 0 {
		return "- | - | -"
	}
	ratio, sign := fmt.Sprintf("%.2f", r.overC()), "≥"
	if r.below() {
		ratio = "**" + ratio + "**"
	}
	if r.slower() {
		sign = "≤"
	}
	return fmt.Sprintf("%s | %s | %s %.2f", grouped(r.C), ratio, sign, r.kindOf().floor)
}

// breaches returns an error that names the rows on devices that miss their floors.
func (r *record) breaches() error {
	var list []string
	for i := range r.Rows {
		if x := &r.Rows[i]; x.ID != "" && x.below() {
			list = append(list, fmt.Sprintf("%s %s (%.2f, floor %.2f)", x.Adapter, x.ID, x.overC(), x.kindOf().floor))
		}
	}
	if len(list) == 0 {
		return nil
	}
	return fmt.Errorf("below the floor in instructions: %s", strings.Join(list, ", "))
}
