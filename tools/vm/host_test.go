//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o777); err != nil {
		t.Fatal(err)
	}
}

// realTemp is a temporary directory with a path without symbolic links.
func realTemp(t *testing.T) string {
	t.Helper()
	dir, err := resolved(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCacheDir(t *testing.T) {
	dir := realTemp(t)
	t.Setenv("HOME", filepath.Join(dir, "home"))
	for _, c := range []struct{ own, xdg, want string }{
		{"", "", "home/.cache/rpcrdma/vm"},
		{"", filepath.Join(dir, "xdg"), "xdg/rpcrdma/vm"},
		{filepath.Join(dir, "own"), filepath.Join(dir, "xdg"), "own"},
	} {
		t.Setenv("RPCRDMA_VM_CACHE", c.own)
		t.Setenv("XDG_CACHE_HOME", c.xdg)
		if got, err := cacheDir(); err != nil || got != filepath.Join(dir, c.want) {
			t.Errorf("RPCRDMA_VM_CACHE=%s XDG_CACHE_HOME=%s: %s, %v; want %s", c.own, c.xdg, got, err, c.want)
		}
	}
}

// TestCacheDirLinks: the guest's init must not meet a symbolic link in the path.
func TestCacheDirLinks(t *testing.T) {
	dir := realTemp(t)
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "real"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RPCRDMA_VM_CACHE", filepath.Join(dir, "link", "vm"))
	if got, err := cacheDir(); err != nil || got != filepath.Join(dir, "real", "vm") {
		t.Errorf("%s, %v", got, err)
	}
}

func TestScriptsDir(t *testing.T) {
	dir := realTemp(t)
	t.Setenv(scriptsVariable, dir)
	if _, err := scriptsDir(); err == nil || !strings.Contains(err.Error(), scriptsVariable) {
		t.Errorf("a directory without the guest's scripts: %v", err)
	}
	write(t, filepath.Join(dir, "guest", "init"), "")
	if got, err := scriptsDir(); err != nil || got != dir {
		t.Errorf("%s, %v", got, err)
	}
}

func TestCheckNamesMissingPackages(t *testing.T) {
	dir := realTemp(t)
	write(t, filepath.Join(dir, "modprobe"), "#!/bin/sh\n")
	write(t, filepath.Join(dir, "busybox"), "#!/bin/sh\n") // not a static program
	t.Setenv("PATH", dir)
	err := (&host{scripts: "/s"}).check(requirements(&options{nfsd: true}))
	var missing *missingError
	if !errors.As(err, &missing) {
		t.Fatal(err)
	}
	want := "missing on this machine: qemu-system-x86 busybox-static iproute2 nfs-kernel-server (Debian packages); " +
		"'/s/setup vm' installs what is needed"
	if err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if len(requirements(&options{})) != len(requirements(&options{nfsd: true}))-1 {
		t.Error("the NFS server is required without --nfsd")
	}
}

// TestIsStatic: the go command is linked statically, a shell is not.
func TestIsStatic(t *testing.T) {
	sh, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed, as an example of a program with a dynamic linker")
	}
	if isStatic(sh) {
		t.Errorf("%s counts as static", sh)
	}
	static := filepath.Join(t.TempDir(), "static")
	source := filepath.Join(t.TempDir(), "main.go")
	write(t, source, "package main\n\nfunc main() {}\n")
	build := exec.Command("go", "build", "-o", static, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !isStatic(static) {
		t.Error("a program of Go without cgo does not count as static")
	}
}

// TestLock: the second waits until the first is done, or until its context ends.
func TestLock(t *testing.T) {
	h := &host{cache: t.TempDir()}
	unlock, err := h.lock(t.Context(), func() { t.Error("it waits, and no other run has the lock") })
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	if _, err := h.lock(ctx, func() { stop(errHangs) }); !errors.Is(err, errHangs) {
		t.Errorf("a run that is stopped while it waits: %v", err)
	}
	waited := false
	unlock2, err := h.lock(t.Context(), func() { waited = true; unlock() })
	if err != nil || !waited {
		t.Fatalf("waited %t, %v", waited, err)
	}
	unlock2()
}

// TestCommandGroup: a program is not in our process group, where it would get the
// terminal's signals, and stopping it stops what it has started.
func TestCommandGroup(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	cmd := command(ctx, "sh", "-c", "sleep 60 & wait")
	r, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if group, err := syscall.Getpgid(cmd.Process.Pid); err != nil || group != cmd.Process.Pid {
		t.Errorf("process %d is in group %d, %v", cmd.Process.Pid, group, err)
	}
	stop()
	// Both hold the pipe open.
	if _, err := io.ReadAll(r); err != nil {
		t.Error(err)
	}
	if cmd.Wait() == nil {
		t.Error("it was not stopped")
	}
}

// TestWrapper: scripts/vm builds this program whatever its caller builds, and keeps its
// exit status.
func TestWrapper(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not installed, which runs scripts/vm")
	}
	for option, want := range map[string]int{"--help": 0, "--no-such-option": statusFailed} {
		cmd := exec.Command("../../scripts/vm", option)
		cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=arm64", "GOWORK=/nowhere", "GOFLAGS=-race", "CGO_ENABLED=1")
		out, err := cmd.Output()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: status %d, %v; want %d", option, got, err, want)
		}
		if text := string(out); option == "--help" && text != usage {
			t.Errorf("%s prints %q", option, text)
		}
	}
}
