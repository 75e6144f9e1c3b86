package bridge

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestMigrationPage builds the program of docs/migration.md, which serves go-nfs over RDMA, and runs
// the command that the page has for it.
func TestMigrationPage(t *testing.T) {
	doc, err := os.ReadFile("../../docs/migration.md")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the documentation is in the repository, and this module is not: there is no docs/migration.md")
	}
	testutil.Must(t, err)
	_, program, ok := strings.Cut(string(doc), "`main.go`:\n\n```go\n")
	program, _, _ = strings.Cut(program, "```")
	_, console, more := strings.Cut(string(doc), "```console\n$ ./main 127.0.0.1:20200 &\nlistening on 127.0.0.1:20200\n$ rpcrdma ")
	console, _, _ = strings.Cut(console, "```")
	args, want, _ := strings.Cut(console, "\n")
	if !ok || !more {
		t.Fatalf("the page has a program: %v; and two commands: %v", ok, more)
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "main")
	testutil.Must(t, os.WriteFile(source, []byte(program), 0o600))
	// Files that are named are built with the modules of this directory, wherever they are.
	build := exec.Command("go", "build", "-o", binary, source)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	command := buildCommand(t)
	server := exec.Command(binary, "127.0.0.1:0")
	stdout, err := server.StdoutPipe()
	testutil.Must(t, err, server.Start())
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("the program says %q, %v", line, err)
	}
	got, err := exec.Command(command, strings.Fields(strings.ReplaceAll(args, "127.0.0.1:20200", addr))...).CombinedOutput()
	if err != nil || string(got) != want {
		t.Errorf("rpcrdma %s: %v, and prints %q, want %q", args, err, got, want)
	}
}

// buildCommand builds the command rpcrdma, and returns the path of the binary.
func buildCommand(t *testing.T) string {
	t.Helper()
	command := filepath.Join(t.TempDir(), "rpcrdma")
	build := exec.Command("go", "build", "-o", command, ".")
	build.Dir = "../../cmd/rpcrdma"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	return command
}
