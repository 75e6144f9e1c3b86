package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// Flags say what is exported to whom; an export's own options come before them.
func TestExportFlags(t *testing.T) {
	here, err := os.Getwd()
	testutil.Must(t, err)
	for _, tt := range []struct {
		args string
		want string // exports, or the error after "error: "
	}{
		{"--dir x", "x as / squash root 65534 65534 []"},
		{"--dir x --read-only --squash all --anonuid 5 --anongid 6 --allow 10.0.0.0/8 --allow 192.0.2.1", "x as / ro squash all 5 6 [10.0.0.0/8 192.0.2.1/32]"},
		{"--export x", "x as " + here + "/x squash root 65534 65534 []"},
		{"--export x=/y --dir z", "x as /y squash root 65534 65534 [] | z as / squash root 65534 65534 []"},
		{
			"--squash none --allow 10.0.0.0/8 --anonuid 9 --export a=/a,ro,squash=all,anonuid=7,anongid=8,allow=192.0.2.0/24,allow=::1 --export b=/b",
			"a as /a ro squash all 7 8 [192.0.2.0/24 ::1/128] | b as /b squash none 9 65534 [10.0.0.0/8]",
		},
		{"", "error: --dir DIR is missing"},
		{"--export =/x", "error: want DIR"}, {"--export x=y", "error: want DIR"}, {"--export x=", "error: want DIR"},
		{"--export x,rw", "error: want ro, squash="}, {"--export x,squash=some", "error: want none, root or all"},
		{"--export x,anonuid=me", "error: is not a number"}, {"--export x,anongid=-1", "error: is not a number"},
		{`--export a\,b\=c\\=/n\,m,ro`, `a,b=c\ as /n,m ro squash root 65534 65534 []`},
		{`--export x\\\`, "error: behind the backslash"}, {"--export x,ro=no", "error: ro takes no value"},
		{"--dir x --allow 192.0.2.7/24 --allow ::ffff:10.1.2.3/112", "x as / squash root 65534 65534 [192.0.2.0/24 10.1.0.0/16]"},
		{"--dir x --allow ::ffff:10.1.2.3 --allow fe80::1%eth0", "x as / squash root 65534 65534 [10.1.2.3/32 fe80::1/128]"},
		{"--dir x --allow ::ffff:0:0/95", "error: not of both"},
		{"--export a=/x --export b=/y/../x/", `error: two exports have the name "/x"`}, {"--dir a --export b=/", `error: two exports have the name "/"`},
		{"--export x,allow=everybody", "error: allow: want a network"}, {"--squash x", "error: want none"}, {"--allow x", "error: want a network"},
		{"--dir x --anonuid 0", "error: cannot be root"}, {"--export x,anongid=0", "error: cannot be root"},
	} {
		var o exportFlags
		cmd := &cobra.Command{}
		o.add(cmd)
		err := cmd.Flags().Parse(strings.Fields(tt.args))
		var list []exportSpec
		if err == nil {
			list, err = o.exports()
		}
		var got []string
		for _, e := range list {
			ro := ""
			if e.ReadOnly {
				ro = " ro"
			}
			got = append(got, fmt.Sprintf("%s as %s%s squash %v %d %d %v", e.dir, e.Name, ro, e.Squash, e.AnonUID, e.AnonGID, e.Allow))
		}
		text, wantError := strings.CutPrefix(tt.want, "error: ")
		if wantError != (err != nil) || err != nil && !strings.Contains(err.Error(), text) || err == nil && strings.Join(got, " | ") != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.args, got, err, tt.want)
		}
	}
}

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

// The state is in no directory that clients can read, by whatever name.
func TestStateOutside(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"sub/": ""})
	link := filepath.Join(other, "link")
	testutil.Must(t, os.Symlink(filepath.Join(dir, "sub"), link))
	for path, ok := range map[string]bool{
		other: true, filepath.Join(other, "new"): true, dir + "2": true,
		dir: false, dir + "/": false, filepath.Join(dir, "sub"): false, filepath.Join(dir, "new", "state"): false,
		link: false, filepath.Join(link, "new"): false, filepath.Join(other, "..", filepath.Base(dir), "x"): false,
	} {
		if err := outside("--state", path, dir); (err == nil) != ok {
			t.Errorf("%s in %s: %v", path, dir, err)
		}
	}
}

// A state keeps pairs, all or none of them.
func TestStateStore(t *testing.T) {
	dir := t.TempDir()
	s, err := openState(dir)
	testutil.Must(t, err)
	key := s.key
	testutil.Must(t, s.update(func(put func(k, v []byte) error) error {
		return errors.Join(put([]byte("a"), []byte("1")), put([]byte("b"), []byte("2")), put([]byte("a"), []byte("3")), put([]byte("none"), nil))
	}))
	failed := errors.New("failed")
	if err := s.update(func(put func(k, v []byte) error) error { return errors.Join(put([]byte("b"), []byte("x")), failed) }); !errors.Is(err, failed) {
		t.Error(err)
	}
	testutil.Must(t, s.Close())
	s, err = openState(dir)
	testutil.Must(t, err)
	defer s.Close()
	if !bytes.Equal(s.key, key) {
		t.Error("another key")
	}
	for k, want := range map[string]string{"a": "3", "b": "2", "none": ""} {
		if got, err := s.Get([]byte(k)); err != nil || string(got) != want || (got == nil) != (want == "") {
			t.Errorf("%s: %q, %v, want %q", k, got, err, want)
		}
	}
	testutil.Must(t, os.WriteFile(filepath.Join(dir, stateKey), []byte("short"), 0o600))
	if _, err := openKey(dir); err == nil || !strings.Contains(err.Error(), "has 5 bytes") {
		t.Errorf("a damaged key: %v", err)
	}
}

// A fakeSource notes what is watched.
type fakeSource struct{ seen *[]string }

func (f fakeSource) Watch(dir string, _ bool, _ func(notify.Event)) (func(), error) {
	*f.seen = append(*f.seen, dir)
	return func() {}, nil
}

// Directories are watched in the export that they belong to.
func TestWatchedExports(t *testing.T) {
	var top, a, ab []string
	exports := []watchedExport{{"a", fakeSource{&a}}, {"a/b", fakeSource{&ab}}}
	all, withTop := newWatched(), newWatched()
	all.set(exports)
	withTop.set(append([]watchedExport{{"", fakeSource{&top}}}, exports...))
	for _, dir := range []string{"", "x", "ax", "a", "a/x", "/a//x", "a/b", "a/bc", "a/b/c", "a/../x"} {
		if _, err := withTop.Watch(dir, false, nil); err != nil {
			t.Errorf("%q: %v", dir, err)
		}
	}
	if want := []string{"", "x", "ax"}; !slices.Equal(top, want) {
		t.Errorf("in /: %q, want %q", top, want)
	}
	if want := []string{"", "x", "x", "bc", "../x"}; !slices.Equal(a, want) {
		t.Errorf("in /a: %q, want %q", a, want)
	}
	if want := []string{"", "c"}; !slices.Equal(ab, want) {
		t.Errorf("in /a/b: %q, want %q", ab, want)
	}
	for _, dir := range []string{"", "x", "ax"} {
		if _, err := all.Watch(dir, false, nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", dir, err)
		}
	}
}

// What a client may not see it is not told of either.
func TestWatchNeedsNoRights(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, "--export", dir+"=/all,allow=127.0.0.0/8", "--export", dir+"=/root,squash=root", "--export", dir+"=/open,squash=none")
	paths := map[string]bool{"/all": false, "/root": os.Geteuid() != 0, "/open": true}
	for path, ok := range paths {
		if ok {
			continue
		}
		mustFail(t, 1, "no such directory", "watch", s.url(path))
	}
}
