package main

import (
	"bufio"
	"cmp"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/internal/limited"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// Calls on RDMA devices are counted in the virtual machine of scripts/vm with one processor: everything takes turns
// there, so that the counts hardly vary. They include the kernel and its software device.

// deviceKind is a kind of call on a device, a row of make bench-rdma.
type deviceKind struct {
	row, name string
	n         int // calls of the shorter run
	of        func(at func(rdmacm.WaitMode) bench.Site) bench.Workload
	c         string  // C program that does the same without RPC; empty for polling, which requires two processors
	floor     float64 // of the ratio to it, like that of the times in make bench-rdma
}

// deviceKinds lists the rows for each device. Immutable.
var deviceKinds = []deviceKind{
	{"1", "NULL, polled", 1000, func(at func(rdmacm.WaitMode) bench.Site) bench.Workload { return bench.Null(at(rdmacm.WaitPoll), 1) }, "", 0},
	{"2", "NULL, with events", 1000, func(at func(rdmacm.WaitMode) bench.Site) bench.Workload { return bench.Null(at(rdmacm.WaitEvent), 1) }, "pingpong", 1.5},
	{"6 d1", "echo of 64 B, 1 outstanding", 1000, func(at func(rdmacm.WaitMode) bench.Site) bench.Workload {
		return bench.Echo(at(rdmacm.WaitAdaptive), 64, 1)
	}, "pipeline -d 1", 0.6},
	{"6 d8", "echo of 64 B, 8 outstanding", 3200, func(at func(rdmacm.WaitMode) bench.Site) bench.Workload {
		return bench.Echo(at(rdmacm.WaitAdaptive), 64, 8)
	}, "pipeline -d 8", 0.6},
	{"6 d32", "echo of 64 B, 32 outstanding", 3200, func(at func(rdmacm.WaitMode) bench.Site) bench.Workload {
		return bench.Echo(at(rdmacm.WaitAdaptive), 64, 32)
	}, "pipeline -d 32", 0.6},
	{"6 d128", "echo of 64 B, 128 outstanding", 3200, func(at func(rdmacm.WaitMode) bench.Site) bench.Workload {
		return bench.Echo(at(rdmacm.WaitAdaptive), 64, 128)
	}, "pipeline -d 128", 0.6},
	{"7a", "1 MiB to the client, 4 outstanding", 60, func(at func(rdmacm.WaitMode) bench.Site) bench.Workload {
		return bench.PushWith(at(rdmacm.WaitAdaptive), bench.Ends{Kept: true}, mib, 4)
	}, "stream -o write -d 4", 0.85},
	{"7c", "1 MiB to the server, 4 outstanding", 60, func(at func(rdmacm.WaitMode) bench.Site) bench.Workload {
		return bench.PullWith(at(rdmacm.WaitAdaptive), bench.Ends{Kept: true}, mib, 4)
	}, "stream -o read -d 4", 0.85},
	{"30", "connect, NULL, close", 40, func(at func(rdmacm.WaitMode) bench.Site) bench.Workload { return bench.Connect(at(rdmacm.WaitEvent)) }, "connect", 0.6},
}

// devices lists the kinds of devices. Immutable.
var devices = []string{"rxe", "siw"}

// times is how often each row is counted; the median is used.
const times = 3

const (
	childOfDevices = "devices"
	cVerbs         = "bench/cverbs/bin"
	fileMaps       = "maps"
	fileKernel     = "kallsyms"
	fileCounts     = "counts"
)

// childDevices makes the calls of all rows on all devices in the virtual machine, and saves in dir the data for naming
// addresses.
func childDevices(dir string, out io.Writer) error {
	var t told
	for _, device := range devices {
		host := os.Getenv("RPCRDMA_" + strings.ToUpper(device) + "_ADDR")
		for _, k := range deviceKinds {
			row := kind{k.name, k.n, nil, true}
			row.of = func(bench.Site) bench.Workload {
				return k.of(func(wait rdmacm.WaitMode) bench.Site { return bench.OnDevice(device, host, bench.Adapter{Wait: wait}) })
			}
			allocs, err := row.makeCalls(bench.Site{}, times)
			if err != nil {
				return fmt.Errorf("%s %s: %w", device, k.row, err)
			}
			t.Allocs = append(t.Allocs, allocs)
			c, err := k.inC(host)
			if err != nil {
				return err
			}
			t.C = append(t.C, c)
		}
	}
	for name, from := range map[string]string{fileMaps: "/proc/self/maps", fileKernel: "/proc/kallsyms"} {
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o666); err != nil {
			return err
		}
	}
	return json.NewEncoder(out).Encode(t)
}

// inC returns the time of the C program in ns per operation, on a machine with a clock that counts instructions: each
// is a nanosecond. It returns 0 if instructions are not counted.
func (k *deviceKind) inC(host string) (float64, error) {
	name, options, _ := strings.Cut(k.c, " ")
	if name == "" {
		return 0, nil
	}
	in, err := bench.CVerbs(cVerbs, strings.TrimSpace(name+" -m event "+options), host, 0).Start()
	if err != nil {
		return 0, err
	}
	took, err := in.Batch(2 * k.n)
	return float64(took) / float64(2*k.n), errors.Join(err, in.Close())
}

const (
	vm      = "scripts/vm"
	vmLimit = 20 * time.Minute
)

// measuredDevices returns the costs of calls of a program on devices: this program built from another tree, or, if
// program is "", built from this one with cgo. The working directory must be the root of the tree.
func measuredDevices(ctx context.Context, program string) (*record, error) {
	dir, err := os.MkdirTemp("", "instructions")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", "--version").Output()
	if err != nil {
		return nil, err
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return nil, fmt.Errorf("qemu-system-x86_64 tells no version: %q", out)
	}
	version := string(m[1])
	library, err := buildPlugin(ctx, dir, version)
	if err != nil {
		return nil, err
	}
	if program == "" {
		program = filepath.Join(dir, "instructions")
		build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", program, module+"bench/instructions")
		build.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	cmd := exec.Command(vm, "--cpus", "1", "--timeout", fmt.Sprint(int(vmLimit.Seconds())), "--out", dir,
		"--plugin", library+",out="+filepath.Join(dir, fileCounts), "--", program)
	cmd.Env = append(os.Environ(), childVariable+"="+childOfDevices, "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	result, err := (&limited.Program{Cmd: cmd, Limit: vmLimit + time.Minute}).Run(ctx)
	if err != nil {
		return nil, fmt.Errorf("in the virtual machine: %w\n%s", err, result.Stderr)
	}
	var t told
	if err := json.Unmarshal(result.Stdout, &t); err != nil {
		return nil, fmt.Errorf("in the virtual machine: %w", err)
	}
	name, err := deviceNames(dir, program)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, fileCounts))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := parse(f, name)
	if err != nil {
		return nil, err
	}
	r := &record{Go: runtime.Version(), Emulator: version}
	return r, all.deviceRows(r, t)
}

// deviceRows adds the rows of all devices to r.
func (all tallies) deviceRows(r *record, t told) error {
	if n := len(devices) * len(deviceKinds); len(t.Allocs) != n || len(t.C) != n {
		return fmt.Errorf("the child has told of %d rows, want %d", min(len(t.Allocs), len(t.C)), n)
	}
	for i := range t.Allocs {
		device, k := devices[i/len(deviceKinds)], deviceKinds[i%len(deviceKinds)]
		var rows []Row
		for again := range times {
			row, err := all.perCall(i*times+again, k.n)
			if err != nil {
				return fmt.Errorf("%s %s: %w", device, k.row, err)
			}
			row.Repeats = row.Parts[partRepeats]
			row.Instructions = round(row.Instructions - row.Repeats)
			delete(row.Parts, partRepeats)
			delete(row.Packages, repetitions)
			row.Top = slices.DeleteFunc(row.Top, func(f Function) bool { return f.Name == repetitions })
			rows = append(rows, row)
		}
		slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Instructions, b.Instructions) })
		row := rows[len(rows)/2]
		row.Least, row.Most = rows[0].Instructions, rows[len(rows)-1].Instructions
		row.Kind, row.Adapter, row.ID, row.Allocs = k.name, device, k.row, round(t.Allocs[i])
		row.C = round(t.C[i])
		r.Rows = append(r.Rows, row)
	}
	return nil
}

// span is a range of addresses with a name.
type span struct {
	from, to uint64
	name     string
}

// spans is sorted by address.
type spans []span

// at returns the name of an address.
func (s spans) at(pc uint64) (string, bool) {
	i, found := slices.BinarySearchFunc(s, pc, func(x span, pc uint64) int { return cmp.Compare(x.from, pc) })
	if !found {
		i--
	}
	if i < 0 || pc >= s[i].to {
		return "", false
	}
	return s[i].name, true
}

// Names of code other than Go functions: see partOf.
const (
	repetitions  = "repetitions of string instructions"
	prefixC      = "C/"      // followed by the shared library, or by the function of the program's C code
	prefixKernel = "kernel/" // followed by the module, if any, and the function
	elsewhere    = "other programs"
)

// deviceNames returns a function that names an address in the virtual machine: the program's functions, the shared
// libraries and the kernel's functions. Other programs are idle meanwhile.
func deviceNames(dir, program string) (func(pc uint64, repeats bool) string, error) {
	list, err := programSpans(program)
	if err != nil {
		return nil, err
	}
	maps, err := os.Open(filepath.Join(dir, fileMaps))
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	more, err := librarySpans(maps, program)
	if err != nil {
		return nil, err
	}
	symbols, err := os.Open(filepath.Join(dir, fileKernel))
	if err != nil {
		return nil, err
	}
	defer symbols.Close()
	kernel, err := kernelSpans(symbols)
	if err != nil {
		return nil, err
	}
	list = slices.Concat(list, more, kernel)
	slices.SortStableFunc(list, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	return func(pc uint64, repeats bool) string {
		if repeats {
			return repetitions
		}
		name, ok := list.at(pc)
		if !ok {
			return elsewhere
		}
		return name
	}, nil
}

// programSpans returns the functions of a program loaded at its link address. C functions have no package.
func programSpans(program string) (spans, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Type != elf.ET_EXEC {
		return nil, fmt.Errorf("%s is %v, want %v", program, f.Type, elf.ET_EXEC)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	var list spans
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Size == 0 {
			continue
		}
		name := s.Name
		if !strings.Contains(name, ".") {
			name = prefixC + name
		}
		list = append(list, span{s.Value, s.Value + s.Size, name})
	}
	return list, nil
}

// librarySpans returns the spans of shared libraries that a process has mapped for execution, from its maps.
func librarySpans(r io.Reader, program string) (spans, error) {
	var list spans
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// 7f24a1000000-7f24a1020000 r-xp 00003000 08:01 1234   /usr/lib/libibverbs.so.1
		fields := strings.Fields(lines.Text())
		if len(fields) != 6 || !strings.HasPrefix(fields[1], "r-x") || fields[5] == program {
			continue
		}
		low, high, _ := strings.Cut(fields[0], "-")
		from, err1 := strconv.ParseUint(low, 16, 64)
		to, err2 := strconv.ParseUint(high, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(filepath.Base(fields[5]), ".so")
		if from < kernelBegin { // the vsyscall page is not part of the process
			list = append(list, span{from, to, prefixC + name})
		}
	}
	return list, lines.Err()
}

// kernelBegin is the start of the kernel's half of the address space.
const kernelBegin = 1 << 63

// kernelSpans returns the kernel's functions, from its symbol list.
func kernelSpans(r io.Reader) (spans, error) {
	var list spans
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// ffffffffc0601000 t rxe_requester	[rdma_rxe]
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || !strings.ContainsAny(fields[1], "tTwW") {
			continue
		}
		from, err := strconv.ParseUint(fields[0], 16, 64)
		if err != nil {
			return nil, err
		}
		if from < kernelBegin { // per-CPU symbols are offsets
			continue
		}
		name := prefixKernel
		if len(fields) > 3 {
			name += strings.Trim(fields[3], "[]") + "/"
		}
		list = append(list, span{from, from, name + fields[2]})
	}
	if len(list) == 0 {
		return nil, errors.New("the kernel tells no addresses")
	}
	slices.SortStableFunc(list, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	list = slices.CompactFunc(list, func(a, b span) bool { return a.from == b.from })
	for i := range list {
		list[i].to = ^uint64(0)
		if i+1 < len(list) {
			list[i].to = list[i+1].from
		}
	}
	return list, lines.Err()
}
