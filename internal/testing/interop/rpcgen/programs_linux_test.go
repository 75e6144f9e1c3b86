//go:build generated

package rpcgen

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// patience bounds a run of a program.
const patience = time.Minute

// need returns the path of a program. Without it the test is skipped, or fails if RPCRDMA_REQUIRE
// names rpcgen.
func need(t *testing.T, name, debian string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		rdmatest.Lacking(t, "rpcgen", err.Error()+" (Debian package "+debian+")")
	}
	return path
}

// build compiles client.c or server.c with what rpcgen makes of echo.x. It returns the program.
func build(t *testing.T, name string) (path string) {
	t.Helper()
	rpcgen, cc, pkgConfig := need(t, "rpcgen", "rpcsvc-proto"), need(t, "cc", "gcc"), need(t, "pkg-config", "pkg-config")
	flags, err := exec.Command(pkgConfig, "--cflags", "--libs", "libtirpc").Output()
	if err != nil {
		rdmatest.Lacking(t, "rpcgen", "libtirpc is not there for C programs (Debian package libtirpc-dev): pkg-config: "+err.Error())
	}
	dir := t.TempDir()
	sources := []string{name + ".c", "values.c"}
	for _, file := range append([]string{"values.h"}, sources...) {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		testutil.Must(t, err)
		testutil.WriteFiles(t, dir, map[string]string{file: string(text)})
	}
	text, err := os.ReadFile("echo.x")
	testutil.Must(t, err)
	testutil.WriteFiles(t, dir, map[string]string{"echo.x": string(text)})
	stubs := map[string]string{"client": "-l", "server": "-m"}[name]
	for _, f := range []struct{ flag, file string }{{"-h", "echo.h"}, {"-c", "echo_xdr.c"}, {stubs, "echo_stubs.c"}} {
		// ANSI C, several arguments, results in the caller's memory.
		run(t, dir, rpcgen, "-C", "-N", "-M", f.flag, "-o", f.file, "echo.x")
		if strings.HasSuffix(f.file, ".c") {
			sources = append(sources, f.file)
		}
	}
	args := append([]string{"-g", "-Wall", "-o", name}, sources...)
	run(t, dir, cc, append(args, strings.Fields(string(flags))...)...)
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

// A program is one of ours in C that runs.
type program struct {
	t      *testing.T
	out    testutil.Lines // standard output
	stderr bytes.Buffer   // after its end
	ended  chan error     // its exit status, once
}

// start runs a program until it ends, or the test.
func start(t *testing.T, path string, args ...string) *program {
	t.Helper()
	p := &program{t: t, ended: make(chan error, 1)}
	cmd := exec.Command(path, args...)
	cmd.Stderr = &p.stderr
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err, cmd.Start())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			p.out.Add(lines.Text())
		}
		p.ended <- cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-gone
	})
	return p
}

// wantSuccess waits until the program ends, with status 0.
func (p *program) wantSuccess() {
	p.t.Helper()
	select {
	case err := <-p.ended:
		if err != nil {
			p.t.Errorf("the program in C ends with %v\n%s", err, &p.stderr)
		}
	case <-time.After(patience):
		p.t.Fatal("the program in C does not end")
	}
}
