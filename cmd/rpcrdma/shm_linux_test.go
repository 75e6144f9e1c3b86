package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestShm: files go both ways over shared memory. The socket is the only way to the server for clients
// that name it, and is gone with the server.
func TestShm(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(t.TempDir(), "socket")
	s := startServer(t, "--dir", dir, "--shm", socket)
	text := strings.Repeat("over shared memory\n", 100_000)
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"put", "--shm", socket, from, "nfs://no.such.host/file"},
		{"get", "--shm", socket, "nfs://no.such.host/file", to},
		{"get", "--shm", socket, "--connections", "2", "nfs://no.such.host/file", to + "2"},
		{"ping", "--shm", socket, "--count", "2", "no.such.host"},
	} {
		mustRun(t, args...)
	}
	if got, err := os.ReadFile(to); string(got) != text {
		t.Errorf("%d bytes come back, %v; want %d", len(got), err, len(text))
	}
	if out := mustRun(t, "probe", "--shm", socket, "localhost"); !strings.Contains(out, "shm\n") {
		t.Errorf("probe: %s", out)
	}
	for option, value := range map[string]string{"provider": "rdma", "rpcbind": "localhost"} {
		mustFail(t, 2, "--shm and --"+option+" are mutually exclusive", "ls", "--shm", socket, "--"+option+"="+value, "nfs://localhost/")
	}
	packets := to + ".pcapng"
	mustRun(t, "get", "--shm", socket, "--capture", packets, "nfs://no.such.host/file", to+"3")
	if out := mustRun(t, "decode", packets); !strings.Contains(out, "127.0.0.1:1") || !strings.Contains(out, "READ") {
		t.Errorf("decode: %s", out)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is left")
	}
	mustFail(t, 1, "no connection to "+socket+" over shm: no such file or directory", "ls", "--shm", socket, "nfs://localhost/")
}

// TestShmAllow: a client there has no address, so an export for some addresses is not for it.
func TestShmAllow(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	startServer(t, "--export", t.TempDir()+"=/some,allow=127.0.0.0/8", "--export", t.TempDir()+"=/all", "--shm", socket)
	mustRun(t, "ls", "--shm", socket, "nfs://localhost/all")
	mustFail(t, 1, "/some", "ls", "--shm", socket, "nfs://localhost/some")
}
