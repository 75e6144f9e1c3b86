package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// A server can have many exports, which differ.
func TestExports(t *testing.T) {
	a, b, local := t.TempDir(), t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, a, map[string]string{"file": "a", "sub/inner": "x"})
	testutil.WriteFiles(t, b, map[string]string{"file": "b"})
	testutil.WriteFiles(t, local, map[string]string{"new": "new"})
	s := startServer(t, "--export", a+"=/one,ro", "--export", b, "--export", a+"=/closed,allow=192.0.2.0/24")
	if out := mustRun(t, "get", s.url("/one/file"), "-"); out != "a" {
		t.Errorf("%q", out)
	}
	if out := mustRun(t, "get", s.url(b+"/file"), "-"); out != "b" {
		t.Errorf("%q", out)
	}
	mustFail(t, 1, "the server is read-only (NFS3ERR_ROFS)", "put", filepath.Join(local, "new"), s.url("/one/new"))
	mustRun(t, "put", filepath.Join(local, "new"), s.url(b+"/new"))
	mustFail(t, 1, "permission denied (MNT3ERR_ACCES)", "ls", s.url("/closed"))
	c := s.dialNFS(t)
	exports, err := c.Exports(t.Context())
	testutil.Must(t, err)
	if want := fmt.Sprint([]nfs.Export{{Dir: "/one"}, {Dir: b}, {Dir: "/closed", Groups: []string{"192.0.2.0/24"}}}); fmt.Sprint(exports) != want {
		t.Errorf("EXPORT: %v", exports)
	}
	// Another export's handle is no way in.
	from, err := c.Mnt(t.Context(), "/one/sub")
	testutil.Must(t, err)
	to, err := c.Mnt(t.Context(), b)
	testutil.Must(t, err)
	wantStatus(t, "RENAME between exports", c.Rename(t.Context(), to, "new", from, "new"), nfs.StatusXDev)

	mustFail(t, 2, `two exports have the name "/x"`, "serve", "--addr", "127.0.0.1:0", "--export", a+"=/x", "--export", b+"=/x/")
}

// With --state handles are good when the server is started again, and one server at a time uses
// it.
func TestState(t *testing.T) {
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	testutil.WriteFiles(t, dir, map[string]string{"dir/file": "x", "other/file": "y"})
	start := func() (*testServer, *nfs.Client) {
		s := startServer(t, "--dir", dir, "--state", state)
		return s, s.dialNFS(t)
	}
	s, c := start()
	sub := fhOf(t, c, root(t, c), "dir")
	file := fhOf(t, c, sub, "file")
	mustFail(t, 1, "another server uses", "serve", "--addr", "127.0.0.1:0", "--dir", dir, "--state", state)
	testutil.Must(t, s.stop(), os.Rename(filepath.Join(dir, "dir"), filepath.Join(dir, "other", "moved")))
	_, c = start()
	if _, err := c.GetAttr(t.Context(), file); err != nil {
		t.Errorf("a handle of the server before: %v", err)
	}
	if again := fhOf(t, c, sub, "file"); again != file {
		t.Error("the file has another handle")
	}
	info, err := os.Stat(filepath.Join(state, "key"))
	testutil.Must(t, err)
	if info.Mode().Perm() != 0o600 || info.Size() != 32 {
		t.Errorf("the key has mode %v and %d bytes", info.Mode(), info.Size())
	}
}

// A client that may not use an export, or list a directory, cannot watch it.
func TestWatchRights(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"shut/x": ""})
	testutil.Must(t, os.Chmod(dir, 0o755), os.Chmod(filepath.Join(dir, "shut"), 0o700))
	s := startServer(t, "--export", dir+"=/others,allow=192.0.2.0/24", "--export", dir+"=/squashed,squash=root,allow=127.0.0.0/8", "--export", dir+"=/open,squash=none")
	mustFail(t, 1, "no such directory (NOENT), or its export is not for this host", "watch", s.url("/others"))
	startWatch(t, s.url("/squashed"))
	startWatch(t, s.url("/open/shut"))
	if os.Geteuid() == 0 { // otherwise the server is as good as the client
		mustFail(t, 1, "no permission to list it (ACCES)", "watch", s.url("/squashed/shut"))
	}
}
