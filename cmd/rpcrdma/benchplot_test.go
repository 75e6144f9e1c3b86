package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// Plots have what was measured, as text and in a file of XML.
func TestBenchPlots(t *testing.T) {
	s := startServer(t, "--dir", t.TempDir())
	file := filepath.Join(t.TempDir(), "plots.svg")
	testutil.Must(t, os.WriteFile(file, []byte(strings.Repeat("what was there\n", 10000)), 0o644))
	out := mustRun(t, "bench", "--op", "read,null", "--size", "1Ki..4Ki", "--depth", "1,2,4", "--calls", "2000", "--plot", "--svg", file, s.addr)
	for _, want := range []string{
		"\nthroughput by size at " + s.addr + " over iwarp\nMiB/s\n", " a  read, depth 1\n", " b  read, depth 2\n",
		"\nrate by depth at " + s.addr + " over iwarp\ncalls/s\n", " c  read of 4Ki\n", " d  null\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(out, "latency at") {
		t.Error("there are latencies of 12 steps")
	}
	if t.Failed() {
		t.Log(out)
	}
	f, err := os.Open(file)
	testutil.Must(t, err)
	defer f.Close()
	lines := 0
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		testutil.Must(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
		}
	}
	if lines != 7 {
		t.Errorf("%d lines in the file, want 7", lines)
	}

	if out := mustRun(t, "bench", "--op", "null", "--depth", "1", "--calls", "2000", "--plot", s.addr); !strings.Contains(out, "\nlatency at "+s.addr) || !strings.Contains(out, "a  null") {
		t.Errorf("no latencies:\n%s", out)
	}
	newPlace(map[string]string{"SERVER": s.addr, "DIR": t.TempDir()}).tellAll(t, []mistake{
		{1, "bench --svg DIR/no/plots.svg SERVER", "bench: --svg: local file DIR/no/plots.svg: no such file or directory"},
		{1, "bench --svg DIR --op null SERVER", "bench: --svg: local file DIR: is a directory"},
	})
	mustSay := "--plot is for people, and --json for programs: --svg FILE goes with it"
	if r := runCommand(t, "bench", "--plot", "--json", s.addr); r.status != 2 || !strings.Contains(r.stderr, mustSay) {
		t.Errorf("status %d\n%s", r.status, r.stderr)
	}
	r := runCommand(t, "bench", "--op", "null", "--depth", "1", "--calls", "1", "--plot", s.addr)
	if r.status != 1 || r.stderr != "rpcrdma: bench "+s.addr+": there is nothing to draw: measure several sizes or depths, or more calls\n" {
		t.Errorf("status %d\n%s", r.status, r.stderr)
	}
}
