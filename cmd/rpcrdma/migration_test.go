package main

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
	commands := docCommands(string(doc))
	if !ok || len(commands) != 2 {
		t.Fatalf("the page has %d commands, and a program: %v", len(commands), ok)
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "main")
	testutil.Must(t, os.WriteFile(source, []byte(program), 0o600))
	// Files that are named are built with the modules of this directory, wherever they are.
	if out, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	server := exec.Command(binary, "127.0.0.1:0")
	stdout, err := server.StdoutPipe()
	testutil.Must(t, err, server.Start())
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok || !strings.HasPrefix(commands[0].want[0], "listening on ") {
		t.Fatalf("the program says %q, %v", line, err)
	}
	args := strings.Fields(strings.ReplaceAll(commands[1].text, "127.0.0.1:20200", addr))
	if got, want := mustRun(t, args[1:]...), strings.Join(commands[1].want, "\n")+"\n"; got != want {
		t.Errorf("%s prints %q, want %q", commands[1].text, got, want)
	}
}
