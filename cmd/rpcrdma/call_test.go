package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

const (
	mountX = "internal/calling/testdata/mount.x"
	nfsX   = "../../nfs/nfs3.x"
	allX   = "internal/calling/testdata/all.x"
)

// A procedure of MOUNT or NFS is called by what a .x file declares, over every provider.
func TestCall(t *testing.T) {
	dir := t.TempDir()
	data := strings.Repeat("0123456789", 10_000)
	testutil.WriteFiles(t, dir, map[string]string{"file": data, "copy": ""})
	s := startServer(t, "--dir", dir, "--tcp-addr", "127.0.0.1:0")
	for provider, addr := range map[string]string{"iwarp": s.addr, "tcp": s.tcp} {
		call := func(file, proc, args string) string {
			t.Helper()
			return mustRun(t, "call", "--provider", provider, file, addr, proc, args)
		}
		if out := call(mountX, "EXPORT", ""); out != `[
  {
    "ex_dir": "/",
    "ex_groups": []
  }
]
` {
			t.Errorf("EXPORT prints\n%s", out)
		}
		if out := call(mountX, "MOUNT_PROGRAM.MNT", `"/no/such"`); out != "{\n  \"fhs_status\": \"MNT3ERR_NOENT\"\n}\n" {
			t.Errorf("MNT prints\n%s", out)
		}
		if out := call(mountX, "0", ""); out != "null\n" {
			t.Errorf("NULL prints %s", out)
		}
		root := textAt(t, call(mountX, "MOUNTPROC3_MNT", `"/"`), "mountinfo", "fhandle")
		lookup := func(name string) string {
			found := call(nfsX, "LOOKUP", fmt.Sprintf(`{"dir": %q, "name": %q}`, root, name))
			return textAt(t, found, "resok", "object")
		}
		read := call(nfsX, "READ", fmt.Sprintf(`{"file": %q, "offset": 0, "count": 100000}`, lookup("file")))
		if got, err := base64.StdEncoding.DecodeString(textAt(t, read, "resok", "data")); err != nil || string(got) != data {
			t.Errorf("READ over %s returns %d bytes, %v", provider, len(got), err)
		}
		write := fmt.Sprintf(`{"file": %q, "offset": 0, "count": 100000, "stable": "FILE_SYNC", "data": %q}`,
			lookup("copy"), base64.StdEncoding.EncodeToString([]byte(data)))
		cmd := command(t.Context(), "call", "-v", "--provider", provider, nfsX, addr, "WRITE", "-")
		cmd.Stdin = strings.NewReader(write)
		out, err := cmd.CombinedOutput()
		if chunked := strings.Contains(string(out), " read_chunk=1 "); err != nil || chunked != (provider == "iwarp") {
			t.Errorf("WRITE over %s: %v, in a chunk: %v\n%s", provider, err, chunked, out)
		}
		wantFile(t, filepath.Join(dir, "copy"), data)
	}
	words := map[string]string{"SERVER": s.addr, "MOUNT": mountX, "ALL": allX, "DIR": dir}
	newPlace(words).tellAll(t, []mistake{
		{2, "call MOUNT SERVER", "argument PROCEDURE is missing"},
		{2, "call MOUNT SERVER MNTS", "MOUNT: no procedure MNTS: it has MOUNTPROC3_EXPORT, MOUNTPROC3_MNT, MOUNTPROC3_NULL, MOUNTPROC3_UMNT"},
		{2, "call MOUNT SERVER MNT", "arguments of MOUNTPROC3_MNT: argument JSON is missing"},
		{2, "call MOUNT SERVER MNT /srv", "arguments of MOUNTPROC3_MNT: not JSON: invalid character '/' looking for beginning of value"},
		{2, "call MOUNT SERVER MNT 7", "arguments of MOUNTPROC3_MNT: want a string, got 7"},
		{2, "call MOUNT SERVER MNT -", "arguments of MOUNTPROC3_MNT: argument JSON is missing"},
		{1, "call nope.x SERVER MNT", "call: local file nope.x: no such file or directory"},
		{1, "call ALL SERVER NOTHING", "call SERVER ALL_NOTHING: the server does not have ALL (PROG_UNAVAIL)"},
		{1, "call --vers 1 ALL 127.0.0.1:1 NOTHING", "call: no connection to 127.0.0.1:1 over iwarp: connection refused: nothing listens there; is the server running, and is this its port?"},
	})
	mustFail(t, 1, ": unexpected character '.', and more mistakes follow", "call", "call_test.go", s.addr, "MNT")
}

// textAt returns the text in an object of a JSON text.
func textAt(t *testing.T, text string, path ...string) string {
	t.Helper()
	var v any
	testutil.Must(t, json.Unmarshal([]byte(text), &v))
	for _, name := range path {
		fields, _ := v.(map[string]any)
		v = fields[name]
	}
	s, ok := v.(string)
	if !ok {
		t.Fatalf("no text at %s in\n%s", path, text)
	}
	return s
}
