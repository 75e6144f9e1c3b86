package main

import (
	"fmt"
	"strings"
)

// deviceParts are the columns of the tables of devices. Immutable.
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
kernel's instructions. No test holds these counts. The first column is the row of `+"`make bench-rdma`"+`.

- date: %s
- commit: %s
- Go: %s, linux/amd64, GOMAXPROCS=1, with cgo, without garbage collection
- emulator: qemu-system-x86_64 %s, whose clock is the number of instructions

Each row is counted %d times, as a run of n and one of 2n calls. The numbers are those of the median; spread is the most less the
least, in %%. The second and later repetitions of a string instruction are not among the instructions; they are how the kernel
copies, a byte each.

In C is what a program of [bench/cverbs](../../../bench/cverbs) takes that moves the same messages without RPC, with events: instructions and
repetitions together. The ratio is to it, with our repetitions: of times in row 2, where more is slower, and of rates in rows 6 and 7, where
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
		b.WriteString(" repetitions | in C | ratio | allocations | spread |\n|---|---|---|" + strings.Repeat("---|", len(deviceParts)) + "---|---|---|---|---|\n")
		for i := range r.Rows {
			x := &r.Rows[i]
			if x.Adapter != device {
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | **%s** |", x.ID, x.Kind, grouped(x.Instructions))
			for _, p := range deviceParts {
				fmt.Fprintf(&b, " %s |", grouped(x.Parts[p.name]))
			}
			fmt.Fprintf(&b, " %s | %s | %s | %.1f |\n", grouped(x.Repeats), x.overC(), decimal(x.Allocs), 100*(x.Most-x.Least)/x.Instructions)
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

// overC formats two cells: what the C program takes, and the ratio to it, of times in row 2 and
// of rates in the others.
func (r *Row) overC() string {
	if r.C == 0 {
		return "- | -"
	}
	ratio := r.C / (r.Instructions + r.Repeats)
	if r.ID == "2" {
		ratio = 1 / ratio
	}
	return fmt.Sprintf("%s | %.2f", grouped(r.C), ratio)
}
