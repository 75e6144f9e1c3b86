package main

import (
	"reflect"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/tree"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// What a server exports is listed by exports, and by ls of its root if that is no export.
func TestListExports(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"a/b": "x"})
	s := startServer(t, "--export", dir+"=/one", "--export", other+"=/two/deep,allow=192.0.2.0/24,allow=2001:db8::1")
	if got, want := mustRun(t, "exports", s.addr), "Export list for 127.0.0.1:\n/one      (everyone)\n/two/deep 192.0.2.0/24,2001:db8::1/128\n"; got != want {
		t.Errorf("exports prints\n%s, want\n%s", got, want)
	}
	got := decodeJSON[tree.ExportsJSON](t, mustRun(t, "exports", "--json", s.addr))
	want := tree.ExportsJSON{Server: s.addr, Exports: []tree.ExportJSON{
		{Path: "/one", Clients: []string{}}, {Path: "/two/deep", Clients: []string{"192.0.2.0/24", "2001:db8::1/128"}},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("exports --json: %+v, want %+v", got, want)
	}
	if got := mustRun(t, "ls", s.url("/")); got != "one/\ntwo/deep/\n" {
		t.Errorf("ls prints %q", got)
	}
	r := runCommand(t, "ls", "-r", s.url("/"))
	if want := "one/\none/a/\none/a/b\n"; r.stdout != want || r.status != 1 {
		t.Errorf("ls -r: status %d, %q, want %q\n%s", r.status, r.stdout, want, r.stderr)
	}
	mustFail(t, 1, "/two: the server exports only /one, /two/deep", "ls", s.url("/two"))
}
