package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// vmSetup is how long the virtual machine may take besides what it is booted for.
const vmSetup = 3 * time.Minute

// runVM runs this program with -rdma in a virtual machine. Whether the machine that it
// runs on was busy cannot be seen inside: it is watched from here. When some of it has
// failed there is a file as well as an error.
func runVM(command, cverbs string, budget time.Duration) (*result.File, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "ratio")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	// The program of go run goes away with us, and the machine has our files.
	if cverbs, err = filepath.Abs(cverbs); err != nil {
		return nil, err
	}
	kept := filepath.Join(dir, "results.json")
	limit := 2 * time.Hour
	if budget > 0 {
		limit = budget + vmSetup
	}
	args := []string{"--timeout", fmt.Sprint(int(limit.Seconds())), "--out", dir, "--", self, "-rdma"}
	flag.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "vm", "rdma", "json", "check", "cverbs":
		default:
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	args = append(args, "-cverbs", cverbs, "-json", kept)
	cmd := exec.Command("scripts/vm", args...)
	cmd.Env = append(os.Environ(), measure.CommitVariable+"="+measure.Commit())
	cmd.Stderr = os.Stderr
	others := measure.Others()
	failed := cmd.Run()
	used, tooMuch := others()
	if errors.Is(failed, os.ErrNotExist) {
		return nil, fmt.Errorf("%w (-vm is for the root of the working tree)", failed)
	}
	f, err := result.Load(kept)
	if failed != nil {
		failed = fmt.Errorf("in the virtual machine: %w", failed)
	}
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	f.Title = "RDMA devices of a virtual machine"
	f.Provenance.Command = command
	f.Provenance.Idle = used
	f.Provenance.Busy = f.Provenance.Busy || tooMuch
	return f, failed
}
