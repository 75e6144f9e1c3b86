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

// vmSetup limits the time that the virtual machine takes in addition to the measurement.
const vmSetup = 3 * time.Minute

// runVM runs this program with -rdma in a virtual machine. The load of the host is not visible inside, so it is
// measured here. If a part fails, it returns a file as well as an error.
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
	// go run deletes this program when it exits, and the virtual machine uses the host's
	// files.
	if cverbs, err = filepath.Abs(cverbs); err != nil {
		return nil, err
	}
	kept := filepath.Join(dir, "results.json")
	limit := 2 * time.Hour
	if budget > 0 {
		limit = budget + rowLimit + vmSetup // a row may begin at the end of the budget
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
	// The virtual machine has its own limit, and returns the results of a run that reaches it; this limit applies if it
	// hangs.
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

// failedDir is the directory for the output of failed rows.
const failedDir = "failed"

// keepFailed copies the output of rows from the temporary directory.
func keepFailed(from, to string) error {
	if _, err := os.Stat(from); err != nil || to == "" {
		return nil
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(from))
}
