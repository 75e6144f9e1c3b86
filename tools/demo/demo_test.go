package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// runWith runs the demo with a command that is built for the test.
func runWith(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	command := filepath.Join(t.TempDir(), "rpcrdma")
	build := exec.Command("go", "build", "-o", command, ".")
	build.Dir = "../../cmd/rpcrdma"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out, says bytes.Buffer
	status = runDemo(t.Context(), slices.Concat([]string{"-command", command}, args), &out, &says)
	return status, out.String(), says.String()
}

// mustRun is runWith for a demo that must succeed.
func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	status, stdout, stderr := runWith(t, args...)
	if status != 0 || stderr != "" {
		t.Fatalf("status %d\n%s", status, stderr)
	}
	return stdout
}

func TestDemo(t *testing.T) {
	from := filepath.Join(t.TempDir(), "tree")
	testutil.WriteFiles(t, from, map[string]string{"a": "1", "b/c": "2"})
	out := mustRun(t, "--from", from, "--largest", "1048577")
	for _, want := range []string{"SHA-256 of 19 files, 3.2 MiB: equal before, after reading and after writing",
		"rpcrdma: watching rdma://127.0.0.1:", "watch reported exactly these files as they were made: 19 files, ", "write chunk", "  get ", "  put "} {
		if !strings.Contains(out, want) {
			t.Errorf("demo lacks %q:\n%s", want, out)
		}
	}
}

// The demo copies what can be compared of a tree, and names what it leaves out.
func TestDemoLeavesOut(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join(dir, "tree")
	testutil.WriteFiles(t, from, map[string]string{"a": "1", "b/c": "2"})
	again := filepath.Join(dir, "other", "tree") // two trees, one name
	testutil.WriteFiles(t, again, map[string]string{"a": "3"})
	sizes := filepath.Join(dir, "sizes") // the demo's own name
	testutil.WriteFiles(t, sizes, map[string]string{"0.bin": "4"})
	for link, target := range map[string]string{"dangling": "nowhere", "dir": "b", "file": "a", "loop": "loop", "out": dir} {
		if err := os.Symlink(target, filepath.Join(from, link)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", filepath.Join(from, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out := mustRun(t, "--from", from, "--from", again, "--from", sizes, "--largest", "1")
	for _, want := range []string{"left out of " + from + ": sockets (1), symbolic links (5)\n", "SHA-256 of 6 files, "} {
		if !strings.Contains(out, want) {
			t.Errorf("demo lacks %q:\n%s", want, out)
		}
	}
	if n := strings.Count(out, "left out"); n != 1 {
		t.Errorf("%d trees have something left out, want 1:\n%s", n, out)
	}
	status, _, stderr := runWith(t, "--from", filepath.Join(dir, "missing"))
	if status != 1 || !strings.HasPrefix(stderr, "demo: ") || !strings.Contains(stderr, "no such file") {
		t.Errorf("a tree that is missing: status %d\n%s", status, stderr)
	}
}

// A refusing file system has files that may not be read, or are gone.
type refusing struct {
	fs.FS
	paths map[string]error
}

func (r refusing) Open(path string) (fs.File, error) {
	if err := r.paths[path]; err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return r.FS.Open(path)
}

func TestCopyTree(t *testing.T) {
	tree := fstest.MapFS{
		"a": {Data: []byte("1")}, "b/c": {Data: []byte("2")}, "b/secret": {}, "closed/x": {}, "gone": {},
		"disk": {Mode: fs.ModeDevice}, "tty": {Mode: fs.ModeDevice | fs.ModeCharDevice}, "pipe": {Mode: fs.ModeNamedPipe}, "odd": {Mode: fs.ModeIrregular},
	}
	to := t.TempDir()
	left, err := copyTree(t.Context(), to, refusing{tree, map[string]error{
		"b/secret": fs.ErrPermission, "closed": fs.ErrPermission, "gone": fs.ErrNotExist,
	}})
	const want = "devices (2), files removed meanwhile (1), files that may not be read (2), pipes (1), special files (1)"
	if err != nil || left.String() != want {
		t.Errorf("left out %v, %v, want %s", left, err, want)
	}
	files, err := filesIn(to)
	if err != nil || !maps.Equal(files, map[string]bool{"a": true, "b/c": true}) {
		t.Errorf("copied %v, %v", files, err)
	}
	for _, path := range []string{".", "a"} {
		if _, err := copyTree(t.Context(), t.TempDir(), refusing{tree, map[string]error{path: syscall.EIO}}); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s cannot be read: %v", path, err)
		}
	}
	if _, err := copyTree(t.Context(), t.TempDir(), refusing{tree, map[string]error{".": fs.ErrPermission}}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("nothing can be read: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := copyTree(ctx, t.TempDir(), tree); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interrupt: %v", err)
	}
}

// One different byte is found.
func TestDemoCanFail(t *testing.T) {
	status, _, stderr := runWith(t, "--largest", "65537", "--flip")
	if status != 1 || !strings.Contains(stderr, "sizes/65537.bin has SHA-256 ") || !strings.Contains(stderr, "1 of 14 files differ after having been written") {
		t.Errorf("status %d\n%s", status, stderr)
	}
}

// The demo notices a file that watch has not reported, one that does not exist, and an overflow.
func TestDemoWatch(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"a": "", "b/c": ""})
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
	for i, text := range []string{"a has SHA-256 09", "b has 9 bytes, want 2", "c is missing", "d should not exist"} {
		if !strings.HasPrefix(wrong[i], text) {
			t.Errorf("%q, want %q", wrong[i], text)
		}
	}
}
