//go:build linux && cgo

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// sourceTrees are directories of Go's own source: about 100 files, in a long run 2,400.
func sourceTrees() []string {
	if longTests() {
		return []string{"crypto", "runtime"}
	}
	return []string{"net/http"}
}

// packSource makes a tarball of directories of Go's source.
func packSource(t *testing.T, trees ...string) (tarball string) {
	t.Helper()
	tarball = filepath.Join(t.TempDir(), "source.tar")
	root := filepath.Join(strings.TrimSpace(sh(t, "go", "env", "GOROOT")), "src")
	sh(t, "tar", append([]string{"-C", root, "-cf", tarball}, trees...)...)
	return tarball
}

// shortOnOne leaves a short run to one device.
func shortOnOne(t *testing.T, l link) {
	t.Helper()
	if l.kind != "rxe" && !allLinks() {
		t.Skip("one device will do for a short run: set RPCRDMA_LINUX_LONG=links")
	}
}

// sums returns a line for each file below dir: type, mode, sum of the contents, name.
func sums(t *testing.T, dir string) (lines []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var b []byte
		switch {
		case d.Type().IsRegular():
			b, err = os.ReadFile(path)
		case d.Type() == fs.ModeSymlink:
			var s string
			s, err = os.Readlink(path)
			b = []byte(s)
		}
		name, _ := filepath.Rel(dir, path)
		lines = append(lines, fmt.Sprintf("%v %x %s", info.Mode(), sha256.Sum256(b), name))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// wantSums compares two trees.
func wantSums(t *testing.T, what string, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d entries, want %d", what, len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s: %s, want %s", what, got[i], want[i])
		}
	}
}

// TestRDMALinuxTar: tar unpacks a source tree onto our server.
func TestRDMALinuxTar(t *testing.T) {
	onLinks(t, func(t *testing.T, l link) {
		shortOnOne(t, l)
		exported := ext4(t, 1024)
		s := mountServer(t, l, exported, 0)
		tarball, local := packSource(t, sourceTrees()...), t.TempDir()
		begin := time.Now()
		for _, dir := range []string{local, s.mount} {
			sh(t, "tar", "-C", dir, "-xf", tarball)
		}
		want := sums(t, local)[1:] // without the directory itself
		s.remount()
		wantSums(t, "as the client sees it", without(sums(t, s.mount)[1:], "lost+found"), want)
		wantSums(t, "at the server", without(sums(t, exported)[1:], "lost+found"), want)
		t.Logf("%d files unpacked and compared twice in %v", len(want), time.Since(begin).Round(time.Second))
		sh(t, "rm", "-r", filepath.Join(s.mount, strings.Split(sourceTrees()[0], "/")[0]))
	})
}

// without returns the lines that do not end with a name.
func without(lines []string, name string) []string {
	return slices.DeleteFunc(lines, func(s string) bool { return strings.HasSuffix(s, " "+name) })
}

// TestRDMALinuxGit: git clones a repository onto our server, and finds nothing wrong with it.
func TestRDMALinuxGit(t *testing.T) {
	onLinks(t, func(t *testing.T, l link) {
		shortOnOne(t, l)
		s := mountServer(t, l, ext4(t, 1024), 0)
		tree := sourceTrees()[0]
		local, clone := t.TempDir(), filepath.Join(s.mount, "clone")
		sh(t, "tar", "-C", local, "-xf", packSource(t, tree))
		git := func(args ...string) string {
			t.Helper()
			return sh(t, "git", append([]string{"-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "safe.directory=*", "-c", "init.defaultBranch=main"}, args...)...)
		}
		clean := func() {
			t.Helper()
			git("-C", clone, "fsck", "--full", "--strict")
			if out := git("-C", clone, "status", "--porcelain"); out != "" {
				t.Errorf("git status:\n%.500s", out)
			}
		}
		git("-C", local, "init", "-q")
		git("-C", local, "add", ".")
		git("-C", local, "commit", "-q", "-m", "all")
		begin := time.Now()
		git("clone", "-q", "--no-hardlinks", local, clone)
		s.remount()
		clean()
		if longTests() { // work goes on in it
			git("-C", clone, "checkout", "-q", "-b", "work")
			git("-C", clone, "rm", "-q", "-r", tree)
			git("-C", clone, "commit", "-q", "-m", "less")
			git("-C", clone, "gc", "-q")
			git("-C", clone, "checkout", "-q", "main")
			clean()
		}
		t.Logf("clone and the rest in %v", time.Since(begin).Round(time.Second))
	})
}

// TestRDMALinuxFio: fio writes in four patterns, each directly and through memory that is mapped,
// and finds what it has written.
func TestRDMALinuxFio(t *testing.T) {
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("fio is not installed: scripts/setup test-rdma")
	}
	size := "2m"
	if longTests() {
		size = "64m"
	}
	onLinks(t, func(t *testing.T, l link) {
		shortOnOne(t, l)
		s := mountServer(t, l, ext4(t, 1024), 0)
		for _, p := range []struct {
			pattern string
			args    []string
		}{
			{"sequential, direct", []string{"--rw=write", "--bs=256k", "--direct=1", "--ioengine=libaio", "--iodepth=8"}},
			{"random, direct", []string{"--rw=randwrite", "--bs=16k", "--direct=1", "--ioengine=libaio", "--iodepth=8"}},
			{"sequential, mapped", []string{"--rw=write", "--bs=64k", "--ioengine=mmap"}},
			{"random, mapped", []string{"--rw=randwrite", "--bs=4k", "--ioengine=mmap"}},
		} {
			begin := time.Now()
			file := filepath.Join(s.mount, strings.ReplaceAll(p.pattern, ", ", "-"))
			write := append([]string{"--name=job", "--filename=" + file, "--size=" + size, "--verify=crc32c", "--verify_fatal=1", "--randseed=7", "--end_fsync=1"}, p.args...)
			sh(t, "fio", append(write, "--do_verify=1")...)
			// Once more, from the server.
			s.remount()
			sh(t, "fio", append(write, "--verify_only=1")...)
			t.Logf("%s: %s written and verified twice in %v", p.pattern, size, time.Since(begin).Round(100*time.Millisecond))
		}
	})
}

// A loader changes files and knows what must be there in the end.
type loader struct {
	dir    string
	rand   *rand.Rand
	want   map[string][sha256.Size]byte // contents by name
	ops    atomic.Int64
	again  int           // calls that the server had done already when it was asked again
	failed error         // once it has ended
	ended  chan struct{} // closed then
}

// run makes, reads, renames and removes files until stop is closed, or something fails.
func (w *loader) run(stop <-chan struct{}) {
	defer close(w.ended)
	for i := 0; w.failed == nil; i++ {
		select {
		case <-stop:
			return
		default:
		}
		w.failed = w.step(i)
		w.ops.Add(1)
	}
}

func (w *loader) step(i int) error {
	path := func(name string) string { return filepath.Join(w.dir, name) }
	var some string
	for some = range w.want {
		break
	}
	name := fmt.Sprintf("f%d", i)
	switch n := w.rand.IntN(10); {
	case n < 5 || some == "":
		b := []byte(randomText(w.rand.Uint64(), w.rand.IntN(300_000)))
		flags := os.O_WRONLY | os.O_CREATE
		if n%2 == 0 {
			flags |= os.O_EXCL
		}
		f, err := os.OpenFile(path(name), flags, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(b)
		if n == 1 {
			err = errors.Join(err, f.Sync())
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		w.want[name] = sha256.Sum256(b)
	case n < 7:
		b, err := os.ReadFile(path(some))
		if err == nil && sha256.Sum256(b) != w.want[some] {
			err = fmt.Errorf("%s has other contents: %d bytes", some, len(b))
		}
		return err
	case n < 8:
		// When the reply is lost with the server, the next one is asked again, and finds it done.
		err := os.Rename(path(some), path(name))
		if errors.Is(err, fs.ErrNotExist) {
			w.again++
			_, err = os.Lstat(path(name))
		}
		w.want[name] = w.want[some]
		delete(w.want, some)
		return err
	case n < 9:
		err := os.Remove(path(some))
		if errors.Is(err, fs.ErrNotExist) {
			w.again++
			err = nil
		}
		delete(w.want, some)
		return err
	default:
		err := os.Mkdir(path("d"+name), 0o755)
		if errors.Is(err, fs.ErrExist) {
			w.again++
			err = nil
		}
		return err
	}
	return nil
}

// check compares all that must be there with what is.
func (w *loader) check(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	files := 0
	for _, d := range list {
		if d.IsDir() {
			continue
		}
		files++
		b, err := os.ReadFile(filepath.Join(dir, d.Name()))
		if err != nil {
			return err
		}
		if sum, ok := w.want[d.Name()]; !ok || sum != sha256.Sum256(b) {
			return fmt.Errorf("%s: %d bytes of other contents, or it should not be there", d.Name(), len(b))
		}
	}
	if files != len(w.want) {
		return fmt.Errorf("%d files, want %d", files, len(w.want))
	}
	return nil
}

// TestRDMALinuxKilledServer: the server is killed and started again twice while the kernel's
// client works: everything goes on, with the handles that it has, and nothing is lost.
func TestRDMALinuxKilledServer(t *testing.T) {
	onLinks(t, func(t *testing.T, l link) {
		for _, who := range []struct {
			name string
			user int
		}{{"root", 0}, {"user", 1001}} {
			t.Run(who.name, func(t *testing.T) {
				shortOnOne(t, l)
				killServer(t, l, who.user)
			})
		}
	})
}

func killServer(t *testing.T, l link, user int) {
	rdmatest.Device(t, l.kind)
	exported, state := ext4(t, 1024), publicDir(t)
	for _, dir := range []string{exported, state} {
		if err := os.Chown(dir, user, user); err != nil {
			t.Fatal(err)
		}
	}
	s := mountServer(t, l, exported, user, "--state", state)
	// A file that stays open all the time.
	open, err := os.Create(filepath.Join(s.mount, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	// A process that is forked from this one has the files that the load writes, and closes them before
	// it becomes a server: that would wait for the server.
	next := []*waiting{s.wait(), s.wait()}
	stop := make(chan struct{})
	var all sync.WaitGroup
	var loaders []*loader
	for i := range 3 {
		name := fmt.Sprintf("load%d", i)
		if err := os.Mkdir(filepath.Join(s.mount, name), 0o755); err != nil {
			t.Fatal(err)
		}
		w := &loader{dir: filepath.Join(s.mount, name), rand: rand.New(rand.NewPCG(uint64(i), 0)), want: make(map[string][sha256.Size]byte), ended: make(chan struct{})}
		loaders = append(loaders, w)
		all.Go(func() { w.run(stop) })
	}
	// progress waits until all loaders have done n operations more.
	progress := func(n int64) {
		t.Helper()
		for _, w := range loaders {
			for from, end := w.ops.Load(), time.Now().Add(2*time.Minute); w.ops.Load() < from+n; time.Sleep(10 * time.Millisecond) {
				select {
				case <-w.ended:
					return // the reason is printed at the end
				default:
				}
				if time.Now().After(end) {
					// Nothing can be unmounted any more: end here, with all there is to know.
					s.cmd.Process.Signal(syscall.SIGQUIT)
					s.cmd.Wait()
					stats, _ := os.ReadFile("/proc/self/mountstats")
					panic(fmt.Sprintf("%s: no progress after %d operations\n%s\n%s", w.dir, w.ops.Load(), s.stderr, stats))
				}
			}
		}
	}
	some := int64(6)
	if longTests() {
		some = 100
	}
	for _, w := range next {
		progress(some)
		s.kill()
		begin := time.Now()
		s.start(w)
		progress(1)
		t.Logf("the load goes on %v after the server was killed", time.Since(begin).Round(100*time.Millisecond))
		if _, err := open.Write([]byte("still open\n")); err != nil {
			t.Errorf("write to the open file: %v", err)
		}
		if err := open.Sync(); err != nil {
			t.Errorf("sync of the open file: %v", err)
		}
	}
	progress(some)
	close(stop)
	all.Wait()
	s.remount2(t, open)
	total, files, again := int64(0), 0, 0
	for _, w := range loaders {
		name := filepath.Base(w.dir)
		if w.failed != nil {
			what := ""
			if errors.Is(w.failed, syscall.ESTALE) {
				what = " (a handle is stale)"
			}
			t.Errorf("%s: %v%s", name, w.failed, what)
			continue
		}
		for _, dir := range []string{w.dir, filepath.Join(exported, name)} {
			if err := w.check(dir); err != nil {
				t.Errorf("%s: %v", dir, err)
			}
		}
		total, files, again = total+w.ops.Load(), files+len(w.want), again+w.again
	}
	if b, err := os.ReadFile(filepath.Join(exported, "open")); err != nil || !bytes.Equal(b, bytes.Repeat([]byte("still open\n"), 2)) {
		t.Errorf("the open file has %q, %v", b, err)
	}
	t.Logf("killed twice: %d operations, %d files are all there, %d calls were found done already", total, files, again)
}

// remount2 closes what is open and mounts again.
func (s *mountedServer) remount2(t *testing.T, open *os.File) {
	if err := open.Close(); err != nil {
		t.Errorf("close of the open file: %v", err)
	}
	s.remount()
}
