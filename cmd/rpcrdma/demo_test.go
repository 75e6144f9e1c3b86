package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestDemo(t *testing.T) {
	from := filepath.Join(t.TempDir(), "tree")
	writeFiles(t, from, map[string]string{"a": "1", "b/c": "2"})
	out := mustRun(t, "demo", "--from", from, "--largest", "1048577")
	for _, want := range []string{"SHA-256 of 19 files, 3.2 MiB: the same before, after reading and after writing",
		"rpcrdma: watching rdma://127.0.0.1:", "watch told of 19 files as they came, those that are there, by ", "write chunk", "  get ", "  put "} {
		if !strings.Contains(out, want) {
			t.Errorf("demo lacks %q:\n%s", want, out)
		}
	}
}

// One byte that differs is noticed.
func TestDemoCanFail(t *testing.T) {
	r := runCommand(t, "demo", "--largest", "65537", "--flip")
	if r.status != 1 || !strings.Contains(r.stderr, "sizes/65537.bin has SHA-256 ") || !strings.Contains(r.stderr, "1 of 14 files are not what they were after having been written") {
		t.Errorf("status %d\n%s", r.status, r.stderr)
	}
}

// A file that watch has not told of is noticed, one that is not there likewise, and so is
// what it has missed.
func TestDemoWatch(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"a": "", "b/c": ""})
	for _, tt := range []struct{ lines, err string }{
		{`{"event":"created","path":"a"} {"event":"created","path":"b","directory":true} {"event":"created","path":"b/.x"} {"event":"renamed","path":"b/c","from":"b/.x"}`, ""},
		{`{"event":"created","path":"x"} {"event":"created","path":"a"} {"event":"created","path":"b/c"} {"event":"removed","path":"x"}`, ""},
		{`{"event":"created","path":"a"} {"event":"created","path":"b"}`, "watch has ended"},
		{`{"event":"created","path":"d"} {"event":"created","path":"a"} {"event":"created","path":"b/c"}`, "watch has ended"},
		{`{"event":"created","path":"a"} {"event":"overflow","path":""}`, "watch has missed something"},
		{`created`, "watch prints"},
	} {
		lines := make(chan []byte, 10)
		for _, line := range strings.Split(tt.lines, " ") {
			lines <- []byte(line)
		}
		if tt.err != "" {
			close(lines)
		}
		var told demoTold
		err := told.follow(t.Context(), lines, dir, func() error { return nil })
		if (err == nil) != (tt.err == "") || err != nil && !strings.HasPrefix(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q", tt.lines, err, tt.err)
		}
	}
}

func TestCompareTrees(t *testing.T) {
	want := map[string]fileSum{"a": {1, [32]byte{1}}, "b": {2, [32]byte{2}}, "c": {3, [32]byte{3}}}
	got := map[string]fileSum{"a": {1, [32]byte{9}}, "b": {9, [32]byte{2}}, "d": {}}
	wrong := compareTrees(want, got)
	if len(wrong) != 4 || compareTrees(want, want) != nil {
		t.Fatalf("%q", wrong)
	}
	for i, text := range []string{"a has SHA-256 09", "b has 9 bytes, want 2", "c is missing", "d comes from nowhere"} {
		if !strings.HasPrefix(wrong[i], text) {
			t.Errorf("%q, want %q", wrong[i], text)
		}
	}
}
