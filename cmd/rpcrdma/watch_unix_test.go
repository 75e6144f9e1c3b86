//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A watch that is stopped for a while, as by ^Z, costs the server little and learns that it
// has missed changes.
func TestWatchStorm(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, "--dir", dir)
	w := startWatch(t, s.watchURL("/"))
	testutil.Must(t, w.cmd.Process.Signal(syscall.SIGSTOP))
	for i := range 10_000 {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%0100d", i)), nil, 0o644))
	}
	testutil.Must(t, w.cmd.Process.Signal(syscall.SIGCONT))
	w.until("rescan this directory")
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "last"), 0o755))
	w.until("created     last/")
}
