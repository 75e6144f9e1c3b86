//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// A changing is a server with an exports file that a test changes.
type changing struct {
	*testServer
	t    *testing.T
	file string
}

func startChanging(t *testing.T, lines []string, args ...string) *changing {
	t.Helper()
	c := &changing{t: t, file: filepath.Join(t.TempDir(), "exports")}
	c.write(lines...)
	c.testServer = startServer(t, append([]string{"--exports", c.file}, args...)...)
	return c
}

func (c *changing) write(lines ...string) {
	c.t.Helper()
	testutil.Must(c.t, os.WriteFile(c.file, []byte(strings.Join(lines, "\n")), 0o600))
}

// change has the server read other lines, and waits until it has exports with these names.
func (c *changing) change(names string, lines ...string) {
	c.t.Helper()
	c.write(lines...)
	testutil.Must(c.t, c.cmd.Process.Signal(syscall.SIGHUP))
	testutil.Eventually(c.t, "exports are "+names, func() bool { return c.names() == names })
}

// refused has the server read lines that are no good, and waits until it says so.
func (c *changing) refused(text string, lines ...string) {
	c.t.Helper()
	c.write(lines...)
	before := c.names()
	testutil.Must(c.t, c.cmd.Process.Signal(syscall.SIGHUP))
	testutil.Eventually(c.t, "the log has "+text, func() bool { return strings.Contains(c.stderr.String(), text) })
	if !strings.Contains(c.stderr.String(), "the exports stay as they were") || c.names() != before {
		c.t.Errorf("the exports were %s and are %s; the log says\n%s", before, c.names(), &c.stderr)
	}
}

// names are those of the exports, in order.
func (c *changing) names() string {
	c.t.Helper()
	list, err := c.dialNFS(c.t).Exports(c.t.Context())
	testutil.Must(c.t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Dir+fmt.Sprint(e.Groups))
	}
	return strings.Join(names, " ")
}

// The exports file is read again at SIGHUP. Clients of remaining exports notice nothing, those of
// removed exports are notified, and a file with an error changes nothing.
func TestReload(t *testing.T) {
	a, b, other := t.TempDir(), t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, a, map[string]string{"file": "a", "dir/file": "x"})
	testutil.WriteFiles(t, b, map[string]string{"file": "b"})
	testutil.WriteFiles(t, other, map[string]string{"file": "other"})
	s := startChanging(t, []string{a + "=/a", b + "=/b"})
	c, ctx := s.dialNFS(t), t.Context()
	fileOf := func(export string) nfs.FileHandle {
		t.Helper()
		fh, err := c.Mnt(ctx, export)
		testutil.Must(t, err)
		return fhOf(t, c, fh, "file")
	}
	inA, inB := fileOf("/a"), fileOf("/b")
	want := func(what string, fh nfs.FileHandle, want nfs.Status) {
		t.Helper()
		_, err := c.GetAttr(ctx, fh)
		wantStatus(t, what, err, want)
	}
	s.change("/c[] /b[] /a[]", other+"=/c", b+"=/b", a+"=/a,ro")
	want("a kept export", inA, nfs.StatusOK)
	want("a kept export", inB, nfs.StatusOK)
	if again := fileOf("/a"); again != inA {
		t.Error("the file has another handle")
	}
	_, err := c.Write(ctx, inA, 0, []byte("x"), nfs.FileSync)
	wantStatus(t, "WRITE to an export that is read-only now", err, nfs.StatusROFS)

	s.change("/a[]", a+"=/a")
	want("an export that is gone", inB, nfs.StatusStale)
	want("a kept export", inA, nfs.StatusOK)
	_, err = c.Mnt(ctx, "/b")
	var refused *nfs.MountError
	if !errors.As(err, &refused) || refused.Status != nfs.MountAcces {
		t.Errorf("MNT of an export that is gone: %v", err)
	}
	_, err = c.Write(ctx, inA, 0, []byte("A"), nfs.FileSync)
	testutil.Must(t, err)

	s.change("/a[] /b[192.0.2.0/24]", a+"=/a", b+"=/b,allow=192.0.2.0/24")
	want("an export for others", inB, nfs.StatusStale)
	s.change("/b[] /a[]", b+"=/b", a+"=/a")
	want("an export that is back", inB, nfs.StatusOK)

	s.refused(filepath.Base(s.file)+":2: want ro", a+"=/a", b+"=/b,rw")
	s.refused("no such file or directory", a+"=/a", filepath.Join(b, "none")+"=/b")
	s.refused("no exports", "# nothing")
	s.refused("--exports "+s.file+" is in", filepath.Dir(s.file)+"=/a")
	s.refused(`two exports have the name`, a+"=/a", other+"=/a")
	want("after errors", inA, nfs.StatusOK)
	want("after errors", inB, nfs.StatusOK)

	// Another directory under the same name has other files, also if it is in the same place.
	s.change("/a[] /b[]", a+"=/a", other+"=/b")
	want("an export that is another directory now", inB, nfs.StatusStale)
	fileOf("/b")
	testutil.Must(t, os.Rename(a, a+"-was"), os.Mkdir(a, 0o755))
	testutil.WriteFiles(t, a, map[string]string{"file": "new"})
	want("a directory that was moved away", inA, nfs.StatusOK)
	s.change("/b[] /a[]", other+"=/b", a+"=/a")
	want("a directory that was moved away, after SIGHUP", inA, nfs.StatusStale)
	if out := mustRun(t, "get", s.url("/a/file"), "-"); out != "new" {
		t.Errorf("%q", out)
	}
}

// Under load, clients of an export that stays see no error, however often others come and go.
func TestReloadUnderLoad(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, a, map[string]string{"file": strings.Repeat("a", 100_000)})
	testutil.WriteFiles(t, b, map[string]string{"file": "b"})
	s := startChanging(t, []string{a + "=/a"})
	fh := fhOf(t, s.dialNFS(t), mntOf(t, s.dialNFS(t), "/a"), "file")
	var done atomic.Bool
	var calls atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		c := s.dialNFS(t)
		wg.Go(func() {
			buf := make([]byte, 100_000)
			for !done.Load() {
				n, _, err := c.Read(t.Context(), fh, 0, buf)
				if err != nil || n != len(buf) {
					t.Errorf("READ: %d bytes, %v", n, err)
					return
				}
				_, err = c.Mnt(t.Context(), "/b")
				var refused *nfs.MountError
				if err != nil && (!errors.As(err, &refused) || refused.Status != nfs.MountAcces) {
					t.Errorf("MNT: %v", err)
					return
				}
				calls.Add(1)
			}
		})
	}
	for range 15 {
		s.change("/b[] /a[]", b+"=/b", a+"=/a")
		s.change("/a[]", a+"=/a")
	}
	before := calls.Load()
	testutil.Eventually(t, "calls go on", func() bool { return calls.Load() > before+10 || t.Failed() })
	done.Store(true)
	wg.Wait()
}

// mntOf mounts an export.
func mntOf(t *testing.T, c *nfs.Client, name string) nfs.FileHandle {
	t.Helper()
	fh, err := c.Mnt(t.Context(), name)
	testutil.Must(t, err)
	return fh
}

// Watches of a removed export end with an event, and watches of other exports go on.
func TestReloadEndsWatches(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	s := startChanging(t, []string{a + "=/a", b + "=/b"})
	inA, inB := startWatch(t, s.watchURL("/a")), startWatch(t, s.watchURL("/b"))
	s.change("/b[]", b+"=/b")
	testutil.Eventually(t, "watch ends", func() bool { return strings.Contains(inA.stderr.String(), "removed") })
	if status := inA.wait(); status != 1 {
		t.Errorf("watch of an export that is gone: status %d\n%s", status, inA.stderr)
	}
	testutil.WriteFiles(t, b, map[string]string{"new": "x"})
	inB.until("new")
}

// Files of the server's own are in no directory that clients can change.
func TestOwnFilesOutside(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"exports": dir + "\n", "sub/": ""})
	mustFail(t, 1, "--exports "+dir+"/exports is in", "serve", "--addr", "127.0.0.1:0", "--exports", dir+"/exports")
	mustFail(t, 1, "--access-log "+dir+"/sub/log is in", "serve", "--addr", "127.0.0.1:0", "--dir", dir, "--access-log", dir+"/sub/log")
	mustFail(t, 1, "--state "+dir+"/sub is in", "serve", "--addr", "127.0.0.1:0", "--dir", dir, "--state", dir+"/sub", "--read-only")
	if list, err := os.ReadDir(filepath.Join(dir, "sub")); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	s := startServer(t, "--exports", dir+"/exports", "--read-only", "--access-log", dir+"/sub/log")
	if out := mustRun(t, "get", s.url(dir+"/exports"), "-"); out != dir+"\n" {
		t.Errorf("%q", out)
	}
}

// At SIGHUP the access log is opened again, so that a file that has been moved away is not written
// any more, and no line is lost.
func TestReloadAccessLog(t *testing.T) {
	dir, logs := t.TempDir(), t.TempDir()
	file := filepath.Join(logs, "log")
	s := startServer(t, "--dir", dir, "--access-log", file)
	c := s.dialNFS(t)
	top := root(t, c)
	lines := func(name string) int {
		text, err := os.ReadFile(filepath.Join(logs, name))
		if errors.Is(err, os.ErrNotExist) {
			return -1
		}
		testutil.Must(t, err)
		return strings.Count(string(text), "\n")
	}
	calls := 1
	for i := range 5 {
		for range 10 {
			_, err := c.GetAttr(t.Context(), top)
			testutil.Must(t, err)
			calls++
		}
		testutil.Must(t, os.Rename(file, fmt.Sprint(file, i)), s.cmd.Process.Signal(syscall.SIGHUP))
		testutil.Eventually(t, "the log is opened again", func() bool { return lines("log") >= 0 })
	}
	// A log that cannot be opened again stays where it is.
	testutil.Must(t, os.Rename(file, file+"-last"), os.Mkdir(file, 0o700), s.cmd.Process.Signal(syscall.SIGHUP))
	testutil.Eventually(t, "it is said", func() bool { return strings.Contains(s.stderr.String(), "stays in the file that is open") })
	_, err := c.GetAttr(t.Context(), top)
	testutil.Must(t, err)
	calls++
	testutil.Must(t, s.stop())
	list, err := filepath.Glob(file + "?*")
	testutil.Must(t, err)
	sum := 0
	for _, name := range list {
		sum += lines(filepath.Base(name))
	}
	if sum != calls || len(list) != 6 {
		t.Errorf("%d lines in %q, of %d calls", sum, list, calls)
	}
}
