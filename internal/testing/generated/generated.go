// Package generated tests packages with code that a test generates and that is not in the tree.
//
// Files that use such code have the build constraint generated, which no ordinary build satisfies. A
// test with the opposite constraint, TestGenerated, generates the code and passes it to [Run]. With a
// flag it leaves the code in a directory, for fuzzing and benchmarks:
//
//	go test ./bench/xdr -run=Generated -keep=/tmp/xdr
//	go test -tags=generated -overlay=/tmp/xdr/overlay.json -bench=. ./bench/xdr
package generated

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

var keep = flag.String("keep", "", "leave the generated code in a directory, and run no test of it")

// Run builds the tests of the package in the current directory together with files, named relative to
// it, and runs each of the tests as a subtest, benchmarks once. The race detector checks them if it
// checks t.
func Run(t *testing.T, files map[string][]byte) {
	t.Helper()
	if *keep != "" {
		overlay(t, *keep, files)
		return
	}
	dir := t.TempDir()
	flags := []string{"-tags=generated", "-overlay=" + overlay(t, dir, files)}
	if raceEnabled {
		flags = append(flags, "-race")
	}
	binary := filepath.Join(dir, "generated.test")
	goCommand(t, append(append([]string{"vet"}, flags...), ".")...)
	goCommand(t, append(append([]string{"test", "-c", "-o", binary}, flags...), ".")...)
	list, err := exec.Command(binary, "-test.list=^(Test|Fuzz|Benchmark)").Output()
	testutil.Must(t, err)
	names := strings.Fields(string(list))
	if len(names) == 0 {
		t.Fatal("no test has the build constraint generated")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) { runOne(t, binary, name) })
	}
}

// overlay writes files into dir, and what makes a go command take them for files of the package. It
// returns the path of the latter.
func overlay(t *testing.T, dir string, files map[string][]byte) string {
	t.Helper()
	pkg, err := os.Getwd()
	testutil.Must(t, err)
	var list struct{ Replace map[string]string }
	list.Replace = make(map[string]string)
	for name, text := range files {
		path := filepath.Join(dir, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, text, 0o666))
		list.Replace[filepath.Join(pkg, name)] = path
	}
	text, err := json.Marshal(list)
	path := filepath.Join(dir, "overlay.json")
	testutil.Must(t, err, os.WriteFile(path, text, 0o666))
	return path
}

// runOne runs one test. Its output is the subtest's.
func runOne(t *testing.T, binary, name string) {
	args := []string{"-test.run=^" + name + "$", "-test.v", "-test.timeout=10m"}
	benchmark := strings.HasPrefix(name, "Benchmark")
	if benchmark {
		args = []string{"-test.run=^$", "-test.bench=^" + name + "$", "-test.benchtime=1x"}
	}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP: "+name+" ")):
		t.Skip(string(out))
	case !benchmark && !bytes.Contains(out, []byte("--- PASS: "+name+" ")):
		t.Errorf("it has not run\n%s", out)
	case testing.Verbose():
		t.Log(string(out))
	}
}

// goCommand runs a go command, which has to succeed.
func goCommand(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out))
	}
}
