package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strings"
)

// record holds all rows, and what they depend on.
type record struct {
	Date     string `json:"date"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`       // version
	Emulator string `json:"emulator"` // version
	Rows     []Row  `json:"rows"`
}

// A Row is the cost of a call, at both ends together.
type Row struct {
	Kind         string             `json:"kind"`
	Adapter      string             `json:"adapter"`
	Instructions float64            `json:"instructions"`
	Parts        map[string]float64 `json:"parts"`    // instructions, by part of the program
	Packages     map[string]float64 `json:"packages"` // by package, without the rarest
	Syscalls     map[string]float64 `json:"syscalls"` // by name
	Allocs       float64            `json:"allocations"`
	Top          []Function         `json:"top"` // the most expensive functions

	// Only for RDMA devices.
	ID      string  `json:"id,omitempty"`    // of the row of make bench-rdma
	Least   float64 `json:"least,omitempty"` // lowest and highest count of instructions
	Most    float64 `json:"most,omitempty"`
	Repeats float64 `json:"repeats,omitempty"` // repetitions of string instructions, which are not counted as instructions
	C       float64 `json:"c,omitempty"`       // C program: instructions with repetitions
}

// A Function is the cost of one function in a call.
type Function struct {
	Name         string  `json:"name"`
	Instructions float64 `json:"instructions"`
}

// crossings returns the sum of the system calls.
func (r *Row) crossings() (sum float64) {
	for _, v := range r.Syscalls {
		sum += v
	}
	return sum
}

// own returns the cost of the transport and its message codecs.
func (r *Row) own() float64 { return r.Parts[partTransport] + r.Parts[partMessages] }

// Parts of the program.
const (
	partTransport = "transport"
	partMessages  = "messages"
	partAdapter   = "adapter"
	partSockets   = "sockets"
	partCopying   = "copying"
	partRuntime   = "Go"
	partBench     = "benchmark"

	// Only for RDMA devices.
	partC       = "C"
	partDevice  = "device"
	partKernel  = "kernel"
	partRepeats = "repeats"
	partOthers  = "others"
)

// parts lists the parts in the order of the page. Immutable.
var parts = []struct{ name, what string }{
	{partTransport, "`transport`, `rpc`, `internal/baton`, `internal/lockorder`"},
	{partMessages, "`proto/xdr`, `proto/oncrpc`, `proto/rpcrdma`"},
	{partAdapter, "`iwarp`, `shm`, `proto/mpa`, `proto/ddp`, `proto/rdmap`; `internal/testing/simfabric`"},
	{partSockets, "packages `net`, `internal/poll` and `syscall`; of the runtime what polls sockets, and what comes before and after a system call"},
	{partCopying, "of the runtime `memmove` and `memclr`: data is copied, memory cleared"},
	{partRuntime, "the rest of the runtime and of the standard library: scheduler, locks, memory, time"},
	{partBench, "the benchmark itself"},
}

// prefixes maps prefixes of function names to parts; the first match applies. Immutable.
var prefixes = []struct{ prefix, part string }{
	{module + "proto/mpa.", partAdapter},
	{module + "proto/ddp.", partAdapter},
	{module + "proto/rdmap.", partAdapter},
	{module + "proto/", partMessages},
	{module + "iwarp.", partAdapter},
	{module + "shm.", partAdapter},
	{module + "internal/testing/simfabric.", partAdapter},
	{module + "fabric.", partAdapter},
	{module + "rdmacm.", partAdapter},
	{module + "ibv.", partAdapter},
	{module + "cgo.", partAdapter},
	{module + "internal/pollfd.", partAdapter},
	{module + "bench", partBench},
	{module, partTransport},
	{"net.", partSockets},
	{"internal/poll.", partSockets},
	{"syscall.", partSockets},
	{"internal/runtime/syscall", partSockets},
	{"golang.org/x/sys/", partSockets},
	{"runtime.netpoll", partSockets},
	{"runtime.(*pollDesc)", partSockets},
	{"runtime.entersyscall", partSockets},
	{"runtime.reentersyscall", partSockets},
	{"runtime.exitsyscall", partSockets},
	{"runtime.cgocall", partSockets},
	{"runtime.asmcgocall", partSockets},
	{prefixC, partC},
	{prefixKernel + "rdma_rxe/", partDevice},
	{prefixKernel + "siw/", partDevice},
	{prefixKernel, partKernel},
	{repetitions, partRepeats},
	{elsewhere, partOthers},
	{"runtime.memmove", partCopying},
	{"runtime.memclr", partCopying},
}

// packageOf returns the package of a function, or the module of a kernel function.
func packageOf(name string) string {
	switch {
	case strings.HasPrefix(name, prefixKernel):
		return path.Dir(name)
	case strings.HasPrefix(name, prefixC):
		return name
	}
	whole, _, _ := strings.Cut(name, "[") // type parameters contain paths too
	slash := strings.LastIndexByte(whole, '/') + 1
	last, _, _ := strings.Cut(whole[slash:], ".")
	return whole[:slash] + last
}

const module = "github.com/rpcrdma/rpcrdma/"

// partOf returns the part to which a function belongs.
func partOf(name string) string {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p.prefix) {
			return p.part
		}
	}
	return partRuntime
}

func syscallName(number int) string {
	return cmp.Or(syscallNames[number], fmt.Sprintf("system call %d", number))
}

// leastShare is the smallest share of a call for which a function is in the record.
const leastShare = 0.01

func top(functions map[string]float64) []Function {
	sum := 0.0
	for _, v := range functions {
		sum += v
	}
	var list []Function
	for name, v := range functions {
		if v >= leastShare*sum {
			list = append(list, Function{name, round(v)})
		}
	}
	slices.SortFunc(list, func(a, b Function) int {
		return cmp.Or(cmp.Compare(b.Instructions, a.Instructions), strings.Compare(a.Name, b.Name))
	})
	return list
}

// round keeps hundredths: rarer events do not belong to a call.
func round(v float64) float64 { return math.Round(v*100) / 100 }

// load reads the record.
func load(name string) (*record, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r := new(record)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

func (r *record) save(name string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o666)
}

// row finds a row.
func (r *record) row(kind, adapter string) *Row {
	for i := range r.Rows {
		if r.Rows[i].Kind == kind && r.Rows[i].Adapter == adapter {
			return &r.Rows[i]
		}
	}
	return nil
}

// syscalls formats the system calls of a row: 2 readv, 2 writev.
func (r *Row) syscalls() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(r.Syscalls)) {
		if v := r.Syscalls[name]; v >= 0.05 {
			list = append(list, fmt.Sprintf("%s %s", decimal(v), name))
		}
	}
	return cmp.Or(strings.Join(list, ", "), "none")
}

// decimal formats a number with at most two places.
func decimal(v float64) string {
	s := fmt.Sprintf("%.2f", v)
	if s = strings.TrimRight(strings.TrimRight(s, "0"), "."); s == "-0" {
		return "0"
	}
	return s
}
