package main

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"debug/gosym"
	_ "embed" // of the plugin
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

//go:embed plugin/count.c
var plugin string

const (
	emulator = "qemu-x86_64"

	// processor is the processor that is emulated. The Go runtime adapts to it: this one has no wide vectors, so that
	// memory is copied in the same way under any QEMU.
	processor = "Nehalem"

	// childLimit is several times what all rows take on a slow machine.
	childLimit = 5 * time.Minute
)

// missingError means that calls cannot be counted here.
type missingError struct{ what string }

func (e *missingError) Error() string { return e.what }

// able returns a *missingError if instructions cannot be counted on this machine.
func able(ctx context.Context) error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return &missingError{fmt.Sprintf("this is %s/%s: what is recorded are instructions of linux/amd64", runtime.GOOS, runtime.GOARCH)}
	}
	for _, program := range []string{emulator, "cc"} {
		if _, err := exec.LookPath(program); err != nil {
			return &missingError{fmt.Sprintf("there is no %s here (scripts/setup instructions installs it)", program)}
		}
	}
	help, err := exec.CommandContext(ctx, emulator, "--help").Output()
	if err == nil && !bytes.Contains(help, []byte("-plugin")) {
		return &missingError{fmt.Sprintf("this %s takes no plugins", emulator)}
	}
	return err
}

// measured builds this program without cgo and without the race detector, however the caller was built, and returns its
// counts.
func measured(ctx context.Context) (*record, error) {
	if err := able(ctx); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "instructions")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "instructions")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", program, module+"bench/instructions")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	result, err := (&limited.Program{Cmd: exec.Command(program, "-json"), Limit: 2 * childLimit}).Run(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, result.Stderr)
	}
	r := new(record)
	return r, json.Unmarshal(result.Stdout, r)
}

// count runs this program in the emulator and returns the cost of its calls.
func count(ctx context.Context) (*record, error) {
	dir, err := os.MkdirTemp("", "instructions")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	version, err := emulatorVersion(ctx)
	if err != nil {
		return nil, err
	}
	library, err := buildPlugin(ctx, dir, version)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	counts := filepath.Join(dir, "counts")
	cmd := exec.Command(emulator, "-cpu", processor, "-plugin", library+",out="+counts, self)
	cmd.Env = append(os.Environ(), childVariable+"=1", "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	result, err := (&limited.Program{Cmd: cmd, Limit: childLimit}).Run(ctx)
	if err != nil {
		return nil, fmt.Errorf("in %s: %w\n%s", emulator, err, result.Stderr)
	}
	var t told
	if err := json.Unmarshal(result.Stdout, &t); err != nil {
		return nil, fmt.Errorf("in %s: %w", emulator, err)
	}
	f, err := os.Open(counts)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := functions(self)
	if err != nil {
		return nil, err
	}
	rows, err := parse(f, func(pc uint64, _ bool) string { return names(pc) })
	if err != nil {
		return nil, err
	}
	r := &record{Go: runtime.Version(), Emulator: version}
	list := pairs()
	if len(t.Allocs) != len(list) {
		return nil, fmt.Errorf("the child has told of %d rows, want %d", len(t.Allocs), len(list))
	}
	for i, p := range list {
		row, err := rows.perCall(i, p.n)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", p.kind.name, p.adapter.name, err)
		}
		row.Kind, row.Adapter, row.Allocs = p.kind.name, p.adapter.name, round(t.Allocs[i])
		r.Rows = append(r.Rows, row)
	}
	return r, nil
}

var versionText = regexp.MustCompile(`version ((\d+)\.[0-9.]+)`) // immutable

// emulatorVersion returns the emulator's version, such as 7.2.22.
func emulatorVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, emulator, "--version").Output()
	if err != nil {
		return "", err
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s tells no version: %q", emulator, out)
	}
	return string(m[1]), nil
}

// buildPlugin compiles the plugin for the interface version that the emulator requires.
func buildPlugin(ctx context.Context, dir, version string) (library string, err error) {
	source := filepath.Join(dir, "count.c")
	if err := os.WriteFile(source, []byte(plugin), 0o600); err != nil {
		return "", err
	}
	major, _, _ := strings.Cut(version, ".")
	api := 2
	if n, err := strconv.Atoi(major); err == nil && n < 9 {
		api = 1
	}
	library = filepath.Join(dir, "count.so")
	out, err := exec.CommandContext(ctx, "cc", "-O2", "-shared", "-fPIC", "-pthread", fmt.Sprintf("-DPLUGIN_VERSION=%d", api), "-o", library, source).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cc: %w\n%s", err, out)
	}
	return library, nil
}

// tally is the cost of one run.
type tally struct {
	functions map[string]int64 // instructions
	syscalls  map[int]int64
}

// tallies maps marks to runs.
type tallies map[int]tally

// parse reads the plugin's file. name returns the name of the function at an address; repeats is set for repetitions of
// a string instruction.
func parse(r io.Reader, name func(pc uint64, repeats bool) string) (tallies, error) {
	all := make(tallies)
	type block struct {
		pc      uint64
		repeats bool
	}
	names := make(map[block]string)
	var now tally
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		bad := fmt.Errorf("line %d of the counts: %q", n, lines.Text())
		fields := bytes.Fields(lines.Bytes())
		var v [2]uint64
		for i, f := range fields[min(1, len(fields)):] {
			x, err := strconv.ParseUint(string(f), 10, 64)
			if err != nil || i >= len(v) {
				return nil, bad
			}
			v[i] = x
		}
		switch {
		case len(fields) == 2 && string(fields[0]) == "m":
			now = tally{make(map[string]int64), make(map[int]int64)}
			all[int(v[0])] = now
		case now.functions == nil:
			return nil, bad
		case len(fields) == 3 && string(fields[0]) == "s":
			now.syscalls[int(v[0])] += int64(v[1])
		case len(fields) == 3 && (string(fields[0]) == "b" || string(fields[0]) == "r"):
			at := block{v[0], string(fields[0]) == "r"}
			function, ok := names[at]
			if !ok {
				function = name(at.pc, at.repeats)
				names[at] = function
			}
			now.functions[function] += int64(v[1])
		default:
			return nil, bad
		}
	}
	return all, lines.Err()
}

// outside is the name for code that is not Go: the C library, and the kernel's vDSO page.
const outside = "C"

// functions returns a function that finds the functions of a program loaded at its link address. Inlined code belongs
// to the enclosing function.
func functions(program string) (at func(pc uint64) string, err error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Type != elf.ET_EXEC {
		return nil, fmt.Errorf("%s is %v, want %v", program, f.Type, elf.ET_EXEC)
	}
	lines, text := f.Section(".gopclntab"), f.Section(".text")
	if lines == nil || text == nil {
		return nil, fmt.Errorf("%s has no table of lines", program)
	}
	data, err := lines.Data()
	if err != nil {
		return nil, err
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr))
	if err != nil {
		return nil, err
	}
	return func(pc uint64) string {
		if f := table.PCToFunc(pc); f != nil {
			return f.Name
		}
		return outside
	}, nil
}

// perCall computes the cost of a call from the runs of a row.
func (all tallies) perCall(row, n int) (Row, error) {
	once, ok1 := all[row*marksOfRow+markFirst]
	twice, ok2 := all[row*marksOfRow+markSecond]
	if !ok1 || !ok2 {
		return Row{}, errors.New("its marks are missing: does the emulator load the plugin?")
	}
	r := Row{Parts: make(map[string]float64), Packages: make(map[string]float64), Syscalls: make(map[string]float64)}
	functions := make(map[string]float64)
	for name, v := range twice.functions {
		per := float64(v-once.functions[name]) / float64(n)
		functions[name] += per
		r.Parts[partOf(name)] += per
		r.Packages[packageOf(name)] += per
		r.Instructions += per
	}
	for number, v := range twice.syscalls {
		if per := round(float64(v-once.syscalls[number]) / float64(n)); per != 0 && !besides[number] {
			r.Syscalls[syscallName(number)] = per
		}
	}
	r.Top = top(functions)
	r.Instructions = round(r.Instructions)
	for part, v := range r.Parts {
		r.Parts[part] = round(v)
	}
	maps.DeleteFunc(r.Packages, func(_ string, v float64) bool { return v < 1 })
	for name, v := range r.Packages {
		r.Packages[name] = round(v)
	}
	return r, nil
}
