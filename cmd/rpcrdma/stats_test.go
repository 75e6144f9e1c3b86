package main

import (
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// Statistics below a directory are printed instead of this machine's.
func TestStatsRoot(t *testing.T) {
	if out := mustRun(t, "stats", "--root", t.TempDir()); !strings.HasPrefix(out, "no NFS server") {
		t.Errorf("%q", out)
	}
	if out := mustRun(t, "stats", "--root", "internal/look/testdata/stats/before"); !strings.Contains(out, "NFS 3 READ") {
		t.Errorf("%s", out)
	}
	mustRun(t, "stats") // of this machine, whatever it has
}

// The command asks a running server, and prints rates with --interval.
func TestStatsOfServer(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": randomText(1, 100000)})
	s := startServer(t, "--dir", dir, "--metrics-addr", "127.0.0.1:0")
	addr := strings.TrimPrefix(s.http, "http://")
	mustRun(t, "cat", s.url("/file"))
	out := mustRun(t, "stats", addr)
	for _, want := range []string{"server " + addr + "\n", "connections opened", "NFS 3 READ", "transport\n", "write chunk", "adapter\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	total := decodeJSON[look.Sample](t, mustRun(t, "stats", "--json", addr))
	if total.Seconds != 0 || total.Sections[0].Figures["connections opened"] != 1 {
		t.Errorf("%+v", total)
	}
	lines := strings.Split(strings.TrimSpace(mustRun(t, "stats", "--json", "--interval", "1s", "--count", "2", addr)), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines", len(lines))
	}
	last := decodeJSON[look.Sample](t, lines[1])
	if last.Seconds < 0.9 || last.Sections[0].Figures["connections opened"] != 0 {
		t.Errorf("%+v", last)
	}
	mustFail(t, 1, "connection refused", "stats", "127.0.0.1:1")
	mustFail(t, 1, "does not speak HTTP: give the --metrics-addr", "stats", s.addr)
	mustFail(t, 2, "want HOST or HOST:PORT", "stats", "a:b:c")
	mustFail(t, 2, "--interval is a time above 0", "stats", "--count", "3")
	mustFail(t, 2, "--interval is a time above 0", "stats", "--interval", "-1s")
	mustFail(t, 2, "--interval 100ms is too short: a server looks at itself once in 1s", "stats", "--interval", "100ms", addr)
	mustFail(t, 2, "unexpected argument", "stats", "127.0.0.1:1", "127.0.0.1:2")
}
