package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// vmSetup is how long the virtual machine may take besides what it is booted for.
const vmSetup = 3 * time.Minute

// runVM runs this program with -rdma in a virtual machine. Whether the machine that it
// runs on was busy cannot be seen inside: it is watched from here. When some of it has
// failed there is a file as well as an error.
func runVM(ctx context.Context, command, cverbs, logs string, budget, rowLimit time.Duration) (*result.File, error) {
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
		limit = budget + rowLimit + vmSetup // a row may have begun at the end of the budget
	}
	args := []string{"--timeout", fmt.Sprint(int(limit.Seconds())), "--out", dir, "--", self, "-rdma"}
	flag.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "vm", "rdma", "json", "check", "cverbs", "failed":
		default:
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	args = append(args, "-cverbs", cverbs, "-json", kept, "-failed", filepath.Join(dir, failedDir))
	cmd := exec.Command("scripts/vm", args...)
	cmd.Env = append(os.Environ(), measure.CommitVariable+"="+measure.Commit())
	cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
	others := measure.Others()
	// The machine has a limit of its own and gives the results of a run that reaches it;
	// this one is for when that does not work.
	_, failed := (&limited.Program{Cmd: cmd, Limit: limit + vmSetup}).Run(ctx)
	used, tooMuch := others()
	if err := keepFailed(filepath.Join(dir, failedDir), logs); err != nil {
		failed = errors.Join(failed, err)
	} else if failed != nil && logs != "" {
		failed = fmt.Errorf("%w (what rows that failed have printed is in %s here)", failed, logs)
	}
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

// failedDir has, of each row that failed, what it printed.
const failedDir = "failed"

// keepFailed copies what rows have printed out of the folder that goes away.
func keepFailed(from, to string) error {
	if _, err := os.Stat(from); err != nil || to == "" {
		return nil
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(from))
}
