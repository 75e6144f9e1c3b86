package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// With --provider tcp the commands use the files of a server over TCP, and with auto as well.
func TestOverTCP(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	text := strings.Repeat("text ", 1<<20)
	testutil.WriteFiles(t, dir, map[string]string{"file": "x", "big": text, "tree/a": "1"})
	s := startServer(t, "--dir", dir, "--tcp-addr", "127.0.0.1:0")
	url := "nfs://" + s.tcp
	if out := mustRun(t, "ls", "--provider", "tcp", url+"/"); out != "big\nfile\ntree/\n" {
		t.Errorf("ls prints %q", out)
	}
	mustRun(t, "get", "--provider", "tcp", url+"/big", filepath.Join(local, "big"))
	wantFile(t, filepath.Join(local, "big"), text)
	mustRun(t, "get", "--provider", "tcp", "--connections", "4", "-r", url+"/tree", filepath.Join(local, "tree"))
	wantFile(t, filepath.Join(local, "tree/a"), "1")
	mustRun(t, "put", "--provider", "tcp", filepath.Join(local, "big"), url+"/again")
	wantFile(t, filepath.Join(dir, "again"), text)
	for _, name := range []string{"ping", "probe"} {
		if out := mustRun(t, name, "--provider", "tcp", s.tcp); !strings.Contains(out, "tcp") || strings.Contains(out, "RDMA") {
			t.Errorf("%s prints\n%s", name, out)
		}
	}
	mustRun(t, "bench", "--provider", "tcp", "--op", "echo", "--time", "10ms", s.tcp)
	w := startWatch(t, "--provider", "tcp", "rdma://"+s.tcp+"/")
	mustRun(t, "mkdir", "--provider", "tcp", url+"/seen")
	select {
	case line := <-w.lines:
		if line != "created     seen/" {
			t.Errorf("watch prints %q", line)
		}
	case <-time.After(testTimeout):
		t.Error("watch prints nothing")
	}

	r := runCommand(t, "cat", "--provider", "auto", url+"/file")
	if want := "\nrpcrdma: provider tcp: " + s.tcp + " is an ONC RPC server over TCP\n"; r.status != 0 || r.stdout != "x" || !strings.HasSuffix(r.stderr, want) {
		t.Errorf("auto: status %d, %q\n%s", r.status, r.stdout, r.stderr)
	}
	r = runCommand(t, "cat", "--provider", "auto", "--capture", filepath.Join(local, "capture"), url+"/file")
	if r.status != 0 || !strings.HasSuffix(r.stderr, " is an ONC RPC server over TCP; --capture does not record it\n") {
		t.Errorf("auto, recorded: status %d\n%s", r.status, r.stderr)
	}
	r = runCommand(t, "ping", "--provider", "auto", "127.0.0.1:1")
	const why = "connection refused: nothing listens there"
	if want := "rpcrdma: ping: no connection to 127.0.0.1:1 over iwarp: " + why + "; no connection to 127.0.0.1:1 over tcp: " + why + "; is the server running, and is this its port?\n"; r.status != 1 || !strings.HasSuffix(r.stderr, want) {
		t.Errorf("auto: status %d\n%s", r.status, r.stderr)
	}
}
