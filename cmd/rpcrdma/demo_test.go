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
	for _, want := range []string{"SHA-256 of 19 files, 3.2 MiB: the same before, after reading and after writing", "write chunk", "  get ", "  put "} {
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
