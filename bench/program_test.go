//go:build unix

package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// A program that hangs, one that prints without end and one that complains: each ends, with an error
// that says which.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		script string
		limit  time.Duration
		want   string
		kind   any
	}{
		"hangs":     {"echo before >&2\nsleep 1000 &\nsleep 1000", 300 * time.Millisecond, "hangs was killed: it had not ended after 300ms", new(*limited.TimeError)},
		"chatters":  {"while :; do echo word word word word word word word word; done", time.Minute, "chatters was killed: it had printed more than 1048576 bytes", new(*limited.OutputError)},
		"complains": {"echo rdma_resolve_addr: no such device >&2\nexit 1", time.Minute, "exit status 1: rdma_resolve_addr: no such device", nil},
		"mumbles":   {"echo what", time.Minute, "invalid character", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+tt.script+"\n"), 0o777); err != nil {
				t.Fatal(err)
			}
			in, err := cVerbs(dir, name+" -m poll", "192.0.2.1", 0, tt.limit).Start()
			if err != nil {
				t.Fatal(err)
			}
			err = in.Do(1)
			var p *ProgramError
			if !errors.As(err, &p) || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), name) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if tt.kind != nil && !errors.As(err, tt.kind) {
				t.Errorf("%v is no %T", err, tt.kind)
			}
		})
	}
}
