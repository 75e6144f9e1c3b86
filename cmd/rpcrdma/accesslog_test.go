package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A server with --access-log writes what clients do.
func TestServeAccessLog(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	file := filepath.Join(t.TempDir(), "log")
	testutil.WriteFiles(t, dir, map[string]string{"file": "hello"})
	testutil.WriteFiles(t, local, map[string]string{"new\x1b": "text"})
	s := startServer(t, "--export", dir+"=/data", "--access-log", file, "--access-log-format", "json")
	mustRun(t, "get", s.url("/data/file"), "-")
	mustRun(t, "put", filepath.Join(local, "new\x1b"), s.url("/data/n%1b"))
	testutil.Must(t, s.stop())
	info, err := os.Stat(file)
	testutil.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	type line struct {
		Time, Client, Procedure, Status, Export, Object, Name, To, Found string
		New                                                              string `json:"new_name"`
		Seconds                                                          float64
		UID, GID, Offset, Bytes, Lost                                    uint64
		AsUID                                                            *uint64 `json:"as_uid"`
		AsGID                                                            *uint64 `json:"as_gid"`
	}
	text, err := os.ReadFile(file)
	testutil.Must(t, err)
	found := make(map[string]string) // objects by name
	var read, written uint64
	for text := range strings.Lines(string(text)) {
		l := decodeJSON[line](t, text)
		at, err := time.Parse("2006-01-02T15:04:05.000000Z", l.Time)
		if err != nil || time.Since(at) > testTimeout || l.Status == "" || l.Seconds <= 0 || l.UID != uint64(os.Geteuid()) || !strings.HasPrefix(l.Client, "127.0.0.1:") {
			t.Errorf("%+v, %v", l, err)
		}
		if l.Found != "" {
			found[l.Name] = l.Found
		}
		switch l.Procedure {
		case "READ":
			if l.Object == found["file"] && l.Status == "NFS3_OK" && l.Export == "/data" {
				read += l.Bytes
			}
		case "WRITE":
			written += l.Bytes
		}
	}
	if read != 5 || written != 4 || found["/data"] == "" && found["/data/file"] == "" || bytes.ContainsRune(text, 0x1b) || !bytes.Contains(text, []byte(`n\u001b`)) {
		t.Errorf("%d bytes read, %d written:\n%s", read, written, text)
	}

	stdout := startServer(t, "--dir", dir, "--access-log", "-")
	c := stdout.dialNFS(t)
	root(t, c)
	testutil.Must(t, c.Close(), stdout.stop())
	if out := <-stdout.rest; !regexp.MustCompile(`^\S+Z 127\.0\.0\.1:\d+ MNT MNT3_OK 0\.\d{6} uid=\d+ gid=\d+ export="/" name="/" found=[0-9a-f]{16}\n`).MatchString(out) {
		t.Errorf("standard output: %q", out)
	}
	if r := runCommand(t, "serve", "--dir", dir, "--access-log", "-", "--json"); r.status != 2 || !strings.Contains(r.stderr, "both print to standard output") {
		t.Errorf("--access-log - --json: status %d\n%s", r.status, r.stderr)
	}
	mustFail(t, 2, "want text or json", "serve", "--dir", dir, "--access-log", "-", "--access-log-format", "xml")
	mustFail(t, 1, "no such file or directory", "serve", "--addr", "127.0.0.1:0", "--dir", dir, "--access-log", filepath.Join(local, "none", "log"))
}
