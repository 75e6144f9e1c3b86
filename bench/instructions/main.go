// Command instructions counts what a call costs: the instructions of both ends together, by
// package and function, their system calls and allocations. Counts do not depend on what else
// the machine does, and hardly on the machine.
//
//	go run ./bench/instructions                    print the page
//	go run ./bench/instructions -record            and write testdata/recorded.json and docs/reports/bench/instructions.md
//	go run ./bench/instructions -devices           print the part of the page that is about RDMA devices
//	go run ./bench/instructions -devices -record   and write testdata/devices.json and docs/reports/bench/instructions.md
//
// The program runs itself in QEMU's user-mode emulation, with a plugin that counts. Of each kind of
// call there is a run of n and one of 2n calls; the difference is n calls, without what is done once.
// TestInstructions compares with the record, so that no change makes calls more expensive unnoticed.
//
// Calls on RDMA devices are counted in the same way in the virtual machine of scripts/vm, with
// the kernel's instructions. To compare two trees, build this program in both, and pass each as
// -program: the machine and all that counts is the same.
//
// It needs x86-64, Linux, qemu-x86_64 (Debian's qemu-user) and a C compiler, or what scripts/vm
// needs.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"time"

	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
)

// The files of -record, from the root of the module.
const (
	recordFile  = "bench/instructions/testdata/recorded.json"
	devicesFile = "bench/instructions/testdata/devices.json"
	pageFile    = "docs/reports/bench/instructions.md"
)

func main() {
	if isChild() {
		do := child
		if os.Getenv(childVariable) == childOfDevices {
			do = func(out io.Writer) error { return childDevices(os.Getenv("RPCRDMA_OUT"), out) }
		}
		if err := do(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "instructions:", err)
			os.Exit(1)
		}
		return
	}
	record := flag.Bool("record", false, "write what is counted into "+path.Dir(recordFile)+", and "+pageFile)
	devices := flag.Bool("devices", false, "count calls on RDMA devices instead, in the virtual machine of "+vm)
	program := flag.String("program", "", "with -devices: the calls of this `file`, which another tree has built with cgo")
	bare := flag.Bool("json", false, "count with this program as it was built, and print what is counted as JSON")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*bare, *record, *devices, *program); err != nil {
		fmt.Fprintln(os.Stderr, "instructions:", err)
		os.Exit(1)
	}
}

func run(bare, save, devices bool, program string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	file := recordFile
	part := (*record).page
	counted := measured
	switch {
	case devices:
		file, part = devicesFile, (*record).devicesPage
		counted = func(ctx context.Context) (*record, error) { return measuredDevices(ctx, program) }
	case bare: // the caller has built this program
		counted = count
	}
	r, err := counted(ctx)
	if err != nil {
		return err
	}
	if bare {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	r.Date, r.Commit = time.Now().UTC().Format(time.DateOnly), measure.Commit()
	if !save {
		_, err := fmt.Print(part(r))
		return err
	}
	if err := r.save(file); err != nil {
		return err
	}
	whole, err := wholePage(".")
	if err != nil {
		return err
	}
	if err := os.WriteFile(pageFile, []byte(whole), 0o666); err != nil {
		return err
	}
	return r.breaches()
}

// wholePage returns the page with all that is recorded in the tree at root.
func wholePage(root string) (string, error) {
	r, err := load(filepath.Join(root, recordFile))
	if err != nil {
		return "", err
	}
	devices, err := load(filepath.Join(root, devicesFile))
	if err != nil {
		return "", err
	}
	return r.page() + "\n" + devices.devicesPage(), nil
}
