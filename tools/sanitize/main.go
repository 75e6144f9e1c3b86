// Sanitize runs the tests of what touches C with programs built to notice what tests do
// not: memory of C that is read or written beyond its bounds, after its end, or never
// given back (AddressSanitizer), undefined behavior in C (UndefinedBehaviorSanitizer),
// Go pointers kept in memory of C (GOEXPERIMENT=cgocheck2), and conversions of
// unsafe.Pointer that leave their object (checkptr). The C programs of bench/cverbs are
// built and run so, too.
//
//	go run ./tools/sanitize         all tests that need no device
//	go run ./tools/sanitize -rdma   those with RDMA devices: this machine's, or a virtual machine's
//
// Each pass begins with programs that are wrong, under testdata: one that is not found out
// fails the pass.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

func main() {
	rdma := flag.Bool("rdma", false, "the tests with RDMA devices")
	limit := flag.Duration("limit", 30*time.Minute, "the time limit of each pass; what has not ended then is killed")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var failed []string
	for _, p := range passes {
		if err := p.run(ctx, *rdma, *limit); err != nil {
			fmt.Printf("FAIL  %s: %v\n", p.name, err)
			failed = append(failed, p.name)
		}
	}
	if err := programs(ctx, *rdma, *limit); err != nil {
		fmt.Printf("FAIL  the C programs: %v\n", err)
		failed = append(failed, "the C programs")
	}
	if len(failed) > 0 {
		fmt.Printf("sanitize: failed: %s\n", strings.Join(failed, ", "))
		os.Exit(1)
	}
	fmt.Println("sanitize: nothing found")
}

// pass is one way to build.
type pass struct {
	name string
	env  []string

	// wrong maps programs under testdata to the expected diagnostics.
	wrong map[string]string

	tests, deviceTests []string // packages
}

// Both sanitizers are used together. Leaks are checked at the end of each program.
const (
	cFlags  = "-g -O1 -fno-omit-frame-pointer -fsanitize=undefined -fno-sanitize-recover=all"
	ldFlags = "-fsanitize=undefined"
)

// Immutable.
var passes = []pass{
	{
		name: "AddressSanitizer and UndefinedBehaviorSanitizer",
		env:  []string{"GOFLAGS=-buildvcs=false -asan", "CGO_CFLAGS=" + cFlags, "CGO_LDFLAGS=" + ldFlags},
		wrong: map[string]string{
			"overflow":  "AddressSanitizer: heap-buffer-overflow",
			"undefined": "runtime error: shift exponent 32 is too large",
			"lost":      "LeakSanitizer: detected memory leaks",
		},
		tests:       []string{"./cgo/...", "./ibv/...", "./rdmacm/...", "./internal/pollfd", "./internal/crc32c"},
		deviceTests: []string{"./cgo/...", "./ibv/...", "./rdmacm/...", "./transport"},
	},
	{
		// The race detector, with which make test runs everything, enables checkptr too.
		name: "cgocheck2 and checkptr",
		env:  []string{"GOFLAGS=-buildvcs=false -gcflags=all=-d=checkptr", "GOEXPERIMENT=cgocheck2"},
		wrong: map[string]string{
			"pointer": "unpinned Go pointer stored into non-Go memory",
			"beyond":  "checkptr: unsafe.Slice result straddles multiple allocations",
		},
		tests:       []string{"./cgo/...", "./ibv/...", "./rdmacm/...", "./internal/pollfd", "./internal/crc32c", "./iwarp"},
		deviceTests: []string{"./cgo/...", "./ibv/...", "./rdmacm/...", "./transport"},
	},
}

// testdata has the incorrect programs.
const testdata = "./tools/sanitize/testdata/"

func (p *pass) run(ctx context.Context, rdma bool, limit time.Duration) error {
	fmt.Printf("==    %s\n", p.name)
	for name, want := range p.wrong {
		if err := p.finds(ctx, testdata+name, want, limit); err != nil {
			return err
		}
	}
	if rdma {
		return stream(ctx, limit, p.env, "scripts/test-rdma", append([]string{"--skip", allocs, "--limit", fmt.Sprint(int(limit.Seconds()))}, p.deviceTests...)...)
	}
	return stream(ctx, limit, p.env, "go", append([]string{"test", "-skip=" + allocs, "-timeout=" + limit.String()}, p.tests...)...)
}

// allocs matches tests that count allocations, because sanitizers allocate too.
const allocs = "Alloc"

// finds runs an incorrect program, and requires the expected diagnostic.
func (p *pass) finds(ctx context.Context, program, want string, limit time.Duration) error {
	cmd := exec.Command("go", "run", program)
	cmd.Env = append(os.Environ(), p.env...)
	r, err := (&limited.Program{Cmd: cmd, Limit: limit}).Run(ctx)
	var exit *exec.ExitError
	if err == nil || !errors.As(err, &exit) || !strings.Contains(string(r.Stderr), want) {
		return fmt.Errorf("%s is wrong and was not found out, %v: %s", program, err, r.Said())
	}
	return nil
}

// stream runs a program with output for people.
func stream(ctx context.Context, limit time.Duration, env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	_, err := (&limited.Program{Cmd: cmd, Limit: limit}).Run(ctx)
	return err
}

// cverbs lists the C programs, each with arguments for use with a device. Immutable.
var cverbs = []string{
	"pingpong -m poll -n 100", "pingpong -m event -n 100", "pipeline -d 8 -n 200", "stream -o write -d 4 -s 65536 -n 50",
	"stream -o read -d 4 -s 65536 -n 50", "stream -o push -s 65536 -n 50", "stream -o pull -s 65536 -n 50", "connect -n 20", "mrcost -n 20",
}

// programs builds the C programs with the sanitizers and runs them: with devices for their purpose, and without to
// check that they report an error.
func programs(ctx context.Context, rdma bool, limit time.Duration) error {
	fmt.Println("==    the C programs of bench/cverbs, with AddressSanitizer and UndefinedBehaviorSanitizer")
	dir, err := os.MkdirTemp("", "sanitize")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := stream(ctx, limit, nil, "make", "-s", "-C", "bench/cverbs", "BIN="+dir, "SANITIZE=-fsanitize=address "+cFlags); err != nil {
		return err
	}
	if rdma {
		return onDevices(ctx, dir, limit)
	}
	var failed []error
	for _, command := range append(cverbs[:len(cverbs):len(cverbs)], "extended -n 20") { // not supported by all devices
		words := append(strings.Fields(command), "127.0.0.1")
		r, err := (&limited.Program{Cmd: exec.Command(filepath.Join(dir, words[0]), words[1:]...), Limit: time.Minute}).Run(ctx)
		// The output must be one line, not a sanitizer's report.
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || strings.Count(strings.TrimSpace(string(r.Stderr)), "\n") > 0 {
			failed = append(failed, fmt.Errorf("%s without a device: %v: %s", command, err, r.Said()))
		}
	}
	return errors.Join(failed...)
}

// onDevices runs the programs on the devices that have an address in the environment, or those of a virtual machine.
// Each has a minute.
func onDevices(ctx context.Context, dir string, limit time.Duration) error {
	var script strings.Builder
	script.WriteString("status=0\nulimit -l unlimited\nfor addr in $RPCRDMA_RXE_ADDR $RPCRDMA_SIW_ADDR; do\n")
	for _, command := range cverbs {
		fmt.Fprintf(&script, "\techo \"$addr %s\"; timeout 60 %s/%s $addr || { echo \"status $?: $addr %s\"; status=1; }\n", command, dir, command, command)
	}
	script.WriteString("done\nexit $status\n")
	file := filepath.Join(dir, "all.sh")
	if err := os.WriteFile(file, []byte(script.String()), 0o777); err != nil {
		return err
	}
	if os.Getenv("RPCRDMA_RXE_ADDR")+os.Getenv("RPCRDMA_SIW_ADDR") != "" {
		return stream(ctx, limit, nil, "sh", file)
	}
	return stream(ctx, limit+time.Minute, nil, "scripts/vm", "--timeout", fmt.Sprint(int(limit.Seconds())), "--", "sh", file)
}
