// Package hello tests the two programs of helloworld.
package hello

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestPrograms: both programs greet, over what they say.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", dir+"/", "./...").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, name := range []string{"tcp", "rdma"} {
		server := exec.Command(filepath.Join(dir, name), "serve", "127.0.0.1:0")
		out, err := server.StdoutPipe()
		testutil.Must(t, err, server.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		testutil.Must(t, err)
		addr := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
		for _, other := range []string{"tcp", "rdma"} {
			got, err := exec.CommandContext(t.Context(), filepath.Join(dir, other), "greet", addr, "world").Output()
			if same := name == other; same != (string(got) == "Hello world\n") || same != (err == nil) {
				t.Errorf("%s to the server over %s: %q, %v", other, name, got, err)
			}
		}
		testutil.Must(t, server.Process.Kill())
		_ = server.Wait() // killed
	}
}

// TestDifference: the README has all lines in which the programs differ, but those of comments and imports.
func TestDifference(t *testing.T) {
	diff, err := exec.Command("diff", "-U0", "tcp/main.go", "rdma/main.go").Output()
	if err == nil {
		t.Fatal("the programs are the same")
	}
	var changed strings.Builder
	for line := range strings.Lines(string(diff)) {
		if strings.HasPrefix(line, "-\t") && !strings.Contains(line, "\t\"") || strings.HasPrefix(line, "+\t") && !strings.Contains(line, "\t\"") {
			changed.WriteString(line)
		}
	}
	page, err := os.ReadFile("../README.md")
	testutil.Must(t, err)
	if want := "```diff\n" + changed.String() + "```\n"; !strings.Contains(string(page), want) {
		t.Errorf("README.md does not have the difference:\n%s", want)
	}
}
