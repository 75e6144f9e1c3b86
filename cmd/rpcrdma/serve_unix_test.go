//go:build unix

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A copy does not replace a special file, nor a link to one: root could do so with a device.
func TestSpecialInTheWay(t *testing.T) {
	export, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, export, map[string]string{"file": "x", "link": "-> file", "large": randomText(1, 2<<20)})
	testutil.WriteFiles(t, local, map[string]string{"away": "-> fifo", "tree/": ""})
	names := []string{"fifo", "tree/file", "tree/link", "tree/large"}
	for _, name := range names {
		testutil.Must(t, syscall.Mkfifo(filepath.Join(local, name), 0o644))
	}
	s := startServer(t, "--dir", export)
	const says = ": is a special file, which is not replaced; - is standard output"
	newPlace(map[string]string{"SERVER": s.addr, "LOCAL": local}).tellAll(t, []mistake{
		{1, "get nfs://SERVER/file LOCAL/fifo", "get nfs://SERVER/file: local file LOCAL/fifo" + says},
		{1, "get nfs://SERVER/file LOCAL/away", "get nfs://SERVER/file: local file LOCAL/away" + says},
	})
	mustSkip(t, []string{"file skipped: local file file" + says, "link skipped: local file link" + says, "large skipped: local file large" + says},
		"get", "-r", s.url("/"), filepath.Join(local, "tree"))
	for _, name := range names {
		if info, err := os.Lstat(filepath.Join(local, name)); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// No fifo is opened: that would wait for a process at the other end.
func TestFIFO(t *testing.T) {
	export, local, copied := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "copied")
	for _, dir := range []string{export, local} {
		testutil.WriteFiles(t, dir, map[string]string{"file": "x"})
		testutil.Must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	}
	s := startServer(t, "--dir", export)
	mustFail(t, 1, "is a fifo, which cannot be copied", "get", s.url("/fifo"), copied)
	mustFail(t, 1, "fifo is neither a file nor a directory", "put", filepath.Join(local, "fifo"), s.url("/x"))
	// Everything else is copied.
	for _, args := range [][]string{{"get", "-r", s.url("/"), copied}, {"put", "-r", local, s.url("/put")}} {
		r := runCommand(t, args...)
		if r.status != 1 || !strings.Contains(r.stderr, ": fifo skipped: it is ") || !strings.HasSuffix(r.stderr, ": 1 thing was skipped, everything else is copied\n") {
			t.Errorf("%s: status %d\n%s", args, r.status, r.stderr)
		}
	}
	for _, dir := range []string{copied, filepath.Join(export, "put")} {
		if files := describe(t, dir); len(files) != 1 || !strings.HasSuffix(files["file"], " x") {
			t.Errorf("copied to %s: %q", dir, files)
		}
	}
}

// A put skips local files that cannot be read.
func TestPutUnreadable(t *testing.T) {
	export, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, local, map[string]string{"a": "x", "closed/inner": "x", "secret": "x", "z/b": "x"})
	testutil.Must(t, os.Chmod(filepath.Join(local, "secret"), 0))
	testutil.Must(t, os.Chmod(filepath.Join(local, "closed"), 0))
	t.Cleanup(func() { os.Chmod(filepath.Join(local, "closed"), 0o755) })
	s := startServer(t, "--dir", export)
	cmd := command(t.Context(), "put", "-r", local, s.url("/copy"))
	if os.Geteuid() == 0 {
		// The unprivileged user must be able to execute the program.
		cmd.Path = filepath.Join(local, "..", "command")
		program, err := os.ReadFile(os.Args[0])
		testutil.Must(t, err)
		testutil.Must(t, os.WriteFile(cmd.Path, program, 0o755))
		testutil.Must(t, os.Chmod(filepath.Dir(cmd.Path), 0o755))
		testutil.Must(t, os.Chmod(local, 0o755), os.Chmod(export, 0o777))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = local
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.Run()
	for _, want := range []string{
		": closed skipped: local file closed: permission denied\n", ": secret skipped: local file secret: permission denied\n",
		": 2 things were skipped, everything else is copied\n",
	} {
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("status %d, lacks %q:\n%s", cmd.ProcessState.ExitCode(), want, &stderr)
		}
	}
	got := describe(t, filepath.Join(export, "copy"))
	if len(got) != 4 || !strings.HasSuffix(got["a"], " x") || !strings.HasSuffix(got["z/b"], " x") {
		t.Errorf("copied: %q", got)
	}
}
