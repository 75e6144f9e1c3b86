//go:build unix

package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Nobody opens a fifo, which would wait for somebody at its other end.
func TestFIFO(t *testing.T) {
	export, local, copied := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "copied")
	for _, dir := range []string{export, local} {
		writeFiles(t, dir, map[string]string{"file": "x"})
		must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	}
	s := startServer(t, "--dir", export)
	mustFail(t, 1, "is a fifo, which cannot be copied", "get", s.url("/fifo"), copied)
	mustFail(t, 1, "fifo is neither a file nor a directory", "put", filepath.Join(local, "fifo"), s.url("/x"))
	// What cannot be copied does not keep the rest from it.
	for _, args := range [][]string{{"get", "-r", s.url("/"), copied}, {"put", "-r", local, s.url("/put")}} {
		r := runCommand(t, args...)
		if r.status != 1 || !strings.Contains(r.stderr, ": fifo skipped: it is ") || !strings.HasSuffix(r.stderr, ": 1 thing was skipped, all else is copied\n") {
			t.Errorf("%s: status %d\n%s", args, r.status, r.stderr)
		}
	}
	for _, dir := range []string{copied, filepath.Join(export, "put")} {
		if files := describe(t, dir); len(files) != 1 || !strings.HasSuffix(files["file"], " x") {
			t.Errorf("copied to %s: %q", dir, files)
		}
	}
}
