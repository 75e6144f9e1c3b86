// Package cprog builds and runs C programs for tests, with the output of rpcgen and with libtirpc.
package cprog

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// Patience limits a run of a program.
const Patience = time.Minute

// need returns the path of a program. Without it, need skips the test, or fails it if RPCRDMA_REQUIRE names rpcgen.
func need(t *testing.T, name, debian string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		rdmatest.Lacking(t, "rpcgen", err.Error()+" (Debian package "+debian+")")
	}
	return path
}

// Build compiles client.c or server.c, by name, with values.c and the output of rpcgen for echo.x, all in the directory
// of package internal/testing/interop/rpcgen. It returns the program.
func Build(t *testing.T, rpcgenDir, name string, flags ...string) (path string) {
	t.Helper()
	rpcgen, cc, pkgConfig := need(t, "rpcgen", "rpcsvc-proto"), need(t, "cc", "gcc"), need(t, "pkg-config", "pkg-config")
	libs, err := exec.Command(pkgConfig, "--cflags", "--libs", "libtirpc").Output()
	if err != nil {
		rdmatest.Lacking(t, "rpcgen", "libtirpc is not there for C programs (Debian package libtirpc-dev): pkg-config: "+err.Error())
	}
	dir := t.TempDir()
	sources := []string{name + ".c", "values.c"}
	for _, file := range append([]string{"values.h"}, sources...) {
		text, err := os.ReadFile(filepath.Join(rpcgenDir, "testdata", file))
		testutil.Must(t, err)
		testutil.WriteFiles(t, dir, map[string]string{file: string(text)})
	}
	text, err := os.ReadFile(filepath.Join(rpcgenDir, "echo.x"))
	testutil.Must(t, err)
	testutil.WriteFiles(t, dir, map[string]string{"echo.x": string(text)})
	ends := map[string]string{"client": "-l", "server": "-m"}[name]
	for _, f := range []struct{ flag, file string }{{"-h", "echo.h"}, {"-c", "echo_xdr.c"}, {ends, "echo_ends.c"}} {
		// ANSI C, several arguments, results in the caller's memory.
		run(t, dir, rpcgen, "-C", "-N", "-M", f.flag, "-o", f.file, "echo.x")
		if strings.HasSuffix(f.file, ".c") {
			sources = append(sources, f.file)
		}
	}
	run(t, dir, cc, slices.Concat([]string{"-g", "-Wall", "-o", name}, flags, sources, strings.Fields(string(libs)))...)
	return filepath.Join(dir, name)
}

// run runs a compiler.
func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
}

// A Program is a running program.
type Program struct {
	Out testutil.Lines // standard output

	t      *testing.T
	stderr bytes.Buffer // complete after the program has ended
	ended  chan error   // receives its exit status once
}

// Start runs a program until it or the test ends. A nil env is the environment of the test.
func Start(t *testing.T, env []string, path string, args ...string) *Program {
	t.Helper()
	p := &Program{t: t, ended: make(chan error, 1)}
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Stderr = env, &p.stderr
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err, cmd.Start())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			p.Out.Add(lines.Text())
		}
		p.ended <- cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-gone
	})
	return p
}

// WantSuccess waits until the program ends, and fails the test unless its status is 0.
func (p *Program) WantSuccess() {
	p.t.Helper()
	select {
	case err := <-p.ended:
		if err != nil {
			p.t.Errorf("the program in C ends with %v\n%s", err, &p.stderr)
		}
	case <-time.After(Patience):
		p.t.Fatal("the program in C does not end")
	}
}
