package dirwatch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// watchDir returns a Watcher of a new directory, which must leave nothing open at the end of the
// test.
func watchDir(t *testing.T) (c *Watcher, dir string) {
	t.Helper()
	leak.Check(t)
	dir = filepath.Join(t.TempDir(), "export")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = New(root, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		root.Close()
		if len(c.watched) != 0 || c.names != 0 {
			t.Errorf("%d directories and %d names are still watched", len(c.watched), c.names)
		}
	})
	return c, dir
}

func (w *Watcher) mustWatch(t *testing.T, path string, recursive bool) (*interest, *testutil.Lines) {
	t.Helper()
	l := new(testutil.Lines)
	i, err := w.watch(path, &interest{recursive: recursive, tell: func(e notify.Event) { l.Add(e.String()) }})
	if err != nil {
		t.Fatal(err)
	}
	return i, l
}

// wantLines compares events. A change of contents may be reported once more than it happened, when a
// directory has just been read.
func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	modified := func(s string) bool { return strings.HasPrefix(s, "modified ") }
	if !slices.ContainsFunc(want, modified) {
		got = slices.DeleteFunc(got, modified)
	}
	testutil.WantLines(t, got, want...)
}

// Everything that can happen to a name is reported, once.
func TestChanges(t *testing.T) {
	c, dir := watchDir(t)
	in := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	outside := filepath.Join(filepath.Dir(dir), "outside")
	testutil.WriteFiles(t, dir, map[string]string{"old": "1", "sub/old": "2", "sub/deep/old": "3", "other/x": "4"})
	_, all := c.mustWatch(t, "", true)
	_, flat := c.mustWatch(t, "/sub", false)

	testutil.Must(t, os.Mkdir(in("new"), 0o755))
	wantLines(t, all.Wait(t, "new/"), "created new/")
	testutil.Must(t, os.Chmod(in("new"), 0o700))
	wantLines(t, all.Wait(t, "new/"), "attributes new/")
	testutil.Must(t, os.Symlink("/", in("sub/link")))
	wantLines(t, all.Wait(t, "link"), "created sub/link")
	wantLines(t, flat.Wait(t, "link"), "created link")
	testutil.Must(t, os.Truncate(in("sub/deep/old"), 0))
	wantLines(t, all.Wait(t, "deep/old"), "modified sub/deep/old")
	testutil.Must(t, os.Chmod(in("old"), 0o600))
	wantLines(t, all.Wait(t, "old"), "attributes old")

	testutil.Must(t, os.Rename(in("old"), in("sub/a b\n")))
	wantLines(t, all.Wait(t, `\n"`), `renamed old -> "sub/a b\n"`)
	wantLines(t, flat.Wait(t, `\n"`), `created "a b\n"`)
	testutil.Must(t, os.Rename(in("sub/a b\n"), in("sub/old")))
	wantLines(t, all.Wait(t, "-> sub/old"), `renamed "sub/a b\n" -> sub/old`)
	wantLines(t, flat.Wait(t, "-> old"), `renamed "a b\n" -> old`)
	testutil.Must(t, os.Rename(in("sub/old"), in("old")))
	wantLines(t, all.Wait(t, "-> old"), "renamed sub/old -> old")
	wantLines(t, flat.Wait(t, "old"), "removed old")
	testutil.Must(t, os.Rename(in("old"), outside))
	wantLines(t, all.Wait(t, "old"), "removed old")
	testutil.Must(t, os.Rename(outside, in("sub/back")))
	wantLines(t, all.Wait(t, "back"), "created sub/back")
	wantLines(t, flat.Wait(t, "back"), "created back")

	// A directory is renamed with its contents, and watched in its new place.
	testutil.Must(t, os.Rename(in("other"), in("new/here")))
	wantLines(t, all.Wait(t, "here/"), "renamed other/ -> new/here/")
	testutil.Must(t, os.WriteFile(in("new/here/y"), nil, 0o644))
	wantLines(t, all.Wait(t, "y"), "created new/here/y")
	testutil.Must(t, os.Rename(in("new/here"), in("sub/here")))
	wantLines(t, all.Wait(t, "-> sub/here/"), "renamed new/here/ -> sub/here/")
	wantLines(t, flat.Wait(t, "here/"), "created here/")
	testutil.Must(t, os.Rename(in("sub/here"), outside))
	wantLines(t, all.Wait(t, "here/"), "removed sub/here/")
	wantLines(t, flat.Wait(t, "here/"), "removed here/")
	testutil.Must(t, os.WriteFile(filepath.Join(outside, "unseen"), nil, 0o644))
	testutil.Must(t, os.Rename(outside, in("here")))
	wantLines(t, all.Wait(t, "here/y"), "created here/", "created here/unseen", "created here/x", "created here/y")
	testutil.Must(t, os.RemoveAll(in("here")))
	got := all.Wait(t, "here/")
	slices.Sort(got)
	wantLines(t, got, "removed here/", "removed here/unseen", "removed here/x", "removed here/y")
	wantLines(t, flat.All())
}

// Trees that are made faster than they can be watched are reported completely, each name once.
func TestChangesTrees(t *testing.T) {
	c, dir := watchDir(t)
	_, l := c.mustWatch(t, "", true)
	want := make(map[string]bool)
	for i := range 20 {
		at := ""
		for j := range 8 {
			at += fmt.Sprintf("%d.%d/", i, j)
			testutil.Must(t, os.Mkdir(filepath.Join(dir, at), 0o755))
			want["created "+at] = true
			for k := range 3 {
				name := at + fmt.Sprint("file", k)
				testutil.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
				want["created "+name] = true
			}
		}
	}
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "last"), nil, 0o644))
	got := make(map[string]int)
	for _, line := range l.Wait(t, "last") {
		got[line]++
	}
	for line := range want {
		if got[line] != 1 {
			t.Errorf("%d times %q", got[line], line)
		}
	}
	for line, n := range got {
		if strings.HasPrefix(line, "created ") && n != 1 {
			t.Errorf("%d times %q", n, line)
		}
		if strings.HasPrefix(line, "removed ") || strings.HasPrefix(line, "renamed ") {
			t.Errorf("told of what has not happened: %q", line)
		}
	}
}

// Replaying the events of many concurrent changes leads to the final tree.
func TestChangesReplay(t *testing.T) {
	c, dir := watchDir(t)
	there := make(map[string]bool)
	var mu sync.Mutex
	under := func(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
	if _, err := c.watch("", &interest{recursive: true, tell: func(e notify.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch e.Kind {
		case notify.Created:
			there[e.Path] = true
		case notify.Removed:
			for path := range there {
				if under(path, e.Path) {
					delete(there, path)
				}
			}
		case notify.Renamed:
			moved := make(map[string]bool)
			for path := range there {
				switch {
				case under(path, e.From):
					moved[e.Path+strings.TrimPrefix(path, e.From)] = true
					delete(there, path)
				case under(path, e.Path):
					delete(there, path)
				}
			}
			for path := range moved {
				there[path] = true
			}
		}
	}}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			own := filepath.Join(dir, fmt.Sprint("w", w))
			for i := range 60 {
				a, b := filepath.Join(own, fmt.Sprint("a", i)), filepath.Join(dir, fmt.Sprintf("b%d.%d", w, i%7))
				os.MkdirAll(filepath.Join(a, "c", "d"), 0o755)
				os.WriteFile(filepath.Join(a, "c", "f"), []byte("x"), 0o644)
				os.WriteFile(filepath.Join(a, "c", ".part"), []byte("x"), 0o644)
				os.Rename(filepath.Join(a, "c", ".part"), filepath.Join(a, "c", "d", "whole"))
				os.RemoveAll(b)
				os.Rename(filepath.Join(a, "c"), b)
				if i%3 == 0 {
					os.RemoveAll(a)
				}
			}
		})
	}
	wg.Wait()
	want := make(map[string]bool)
	testutil.Must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); rel != "." {
			want[rel] = true
		}
		return err
	}))
	equal := func() bool {
		mu.Lock()
		defer mu.Unlock()
		if len(there) != len(want) {
			return false
		}
		for path := range want {
			if !there[path] {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(testutil.Patience); !equal(); runtime.Gosched() {
		if time.Now().After(end) {
			mu.Lock()
			for path := range want {
				if !there[path] {
					t.Errorf("%s is missing", path)
				}
			}
			for path := range there {
				if !want[path] {
					t.Errorf("%s is not there", path)
				}
			}
			t.FailNow()
		}
	}
}

// Nothing outside of the tree can be watched, whatever the name or link.
func TestChangesEscape(t *testing.T) {
	c, dir := watchDir(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	testutil.WriteFiles(t, outside, map[string]string{"secret/x": ""})
	testutil.WriteFiles(t, dir, map[string]string{
		"out": "-> ../outside", "abs": "-> " + outside, "in": "-> real", "real/deep/": "", "file": "",
	})
	for path, want := range map[string]error{
		"../outside": fs.ErrNotExist, "/../../outside": fs.ErrNotExist, "real/../../outside": fs.ErrNotExist,
		outside: fs.ErrNotExist,
		"out":   syscall.ENOTDIR, "out/secret": syscall.ENOTDIR, "abs": syscall.ENOTDIR, "abs/secret": syscall.ENOTDIR,
		"in": syscall.ENOTDIR, "in/deep": syscall.ENOTDIR, "file": syscall.ENOTDIR, "nope": fs.ErrNotExist,
		"real\x00": syscall.EINVAL,
	} {
		if i, err := c.watch(path, &interest{recursive: true, tell: func(notify.Event) {}}); !errors.Is(err, want) {
			t.Errorf("watch %q: %v, want %v", path, err, want)
			c.unwatch(i)
		}
	}
	if c.source != nil || len(c.watched) != 0 {
		t.Error("something is watched though nobody wants to know")
	}

	// A directory is replaced by a link and back, again and again.
	_, l := c.mustWatch(t, "", true)
	real, aside := filepath.Join(dir, "real"), filepath.Join(dir, "aside")
	for i := range 200 {
		testutil.Must(t, os.Rename(real, aside), os.Symlink(outside, real))
		testutil.Must(t, os.WriteFile(filepath.Join(outside, "secret", fmt.Sprint("s", i)), nil, 0o644))
		testutil.Must(t, os.WriteFile(filepath.Join(outside, fmt.Sprint("s", i)), nil, 0o644))
		testutil.Must(t, os.Remove(real), os.Rename(aside, real))
	}
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "last"), nil, 0o644))
	for _, line := range l.Wait(t, "created last") {
		if strings.Contains(line, "secret") || strings.Contains(line, "/s") {
			t.Errorf("told of what is outside: %q", line)
		}
	}
	// It is still watched.
	testutil.Must(t, os.WriteFile(filepath.Join(real, "deep", "end"), nil, 0o644))
	l.Wait(t, "created real/deep/end")
}

// If a directory is replaced by a link after it has been opened, the directory is watched
// and not the target of the link; or nothing is.
func TestChangesKey(t *testing.T) {
	top := t.TempDir()
	testutil.WriteFiles(t, top, map[string]string{"export/real/": "", "outside/": ""})
	in := func(name string) string { return filepath.Join(top, name) }
	f, err := os.Open(in("export/real"))
	testutil.Must(t, err)
	info, err := f.Stat()
	testutil.Must(t, err, os.Rename(in("export/real"), in("export/aside")), os.Symlink("../outside", in("export/real")))
	f, key, err := new(slots).keep(f, in("export/real"))
	testutil.Must(t, err)
	defer f.Close()
	w, err := fsnotify.NewWatcher()
	testutil.Must(t, err, w.Add(key))
	defer w.Close()
	if still(key, info) != nil {
		return // it is noticed
	}
	testutil.Must(t, os.WriteFile(in("outside/secret"), nil, 0o644), os.WriteFile(in("export/aside/file"), nil, 0o644))
	select {
	case ev := <-w.Events:
		if want := filepath.Join(key, "file"); ev.Name != want || !ev.Has(fsnotify.Create) {
			t.Errorf("told of %v, want %s created", ev, want)
		}
	case <-time.After(testutil.Patience):
		t.Error("told of nothing")
	}
}

// Events that arrive late, when everything is as before again, do no harm.
func TestChangesLate(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(in func(string) string)
	}{
		{"there and back", func(in func(string) string) {
			os.Rename(in("real"), in("aside"))
			os.Rename(in("aside"), in("real"))
		}},
		{"with a link meanwhile", func(in func(string) string) {
			os.Rename(in("real"), in("aside"))
			os.Symlink("..", in("real"))
			os.Remove(in("real"))
			os.Rename(in("aside"), in("real"))
		}},
		{"with a directory meanwhile", func(in func(string) string) {
			os.Rename(in("real"), in("aside"))
			os.MkdirAll(in("real/deep"), 0o755)
			os.RemoveAll(in("real"))
			os.Rename(in("aside"), in("real"))
		}},
		{"in a circle", func(in func(string) string) {
			os.Rename(in("real"), in("a"))
			os.Rename(in("other"), in("real"))
			os.Rename(in("a"), in("other"))
			os.Rename(in("real"), in("a"))
			os.Rename(in("other"), in("real"))
			os.Rename(in("a"), in("other"))
		}},
		{"into each other", func(in func(string) string) {
			os.Rename(in("real"), in("other/real"))
			os.Rename(in("other/real/deep"), in("deep"))
			os.Rename(in("other/real"), in("real"))
			os.Rename(in("deep"), in("real/deep"))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, dir := watchDir(t)
			in := func(name string) string { return filepath.Join(dir, name) }
			testutil.WriteFiles(t, dir, map[string]string{"real/deep/": "", "other/": ""})
			_, l := c.mustWatch(t, "", true)
			for i := range 3 {
				c.mu.Lock()
				for range i + 1 {
					tt.do(in)
				}
				testutil.Must(t, os.WriteFile(in(fmt.Sprint("late", i)), nil, 0o644))
				c.mu.Unlock()
				l.Wait(t, fmt.Sprint("created late", i))
				for _, name := range []string{"real/x", "real/deep/x", "other/x"} {
					name += fmt.Sprint(i)
					testutil.Must(t, os.WriteFile(in(name), nil, 0o644))
					l.Wait(t, "created "+name)
				}
			}
		})
	}
}

// The interest in a directory ends when the directory is removed or renamed.
func TestChangesGone(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(in func(string) string) error
	}{
		{"removed", func(in func(string) string) error { return os.RemoveAll(in("a/b")) }},
		{"renamed", func(in func(string) string) error { return os.Rename(in("a/b"), in("a/c")) }},
		{"renamed above", func(in func(string) string) error { return os.Rename(in("a"), in("c")) }},
		{"gone out", func(in func(string) string) error { return os.Rename(in("a"), in("../c")) }},
		{"replaced", func(in func(string) string) error { return syscall.Rename(in("e"), in("a/b")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, dir := watchDir(t)
			in := func(name string) string { return filepath.Join(dir, name) }
			testutil.Must(t, os.MkdirAll(in("a/b"), 0o755), os.Mkdir(in("d"), 0o755), os.Mkdir(in("e"), 0o755))
			_, l := c.mustWatch(t, "a/b", true)
			_, other := c.mustWatch(t, "d", false)
			testutil.Must(t, tt.do(in))
			l.Wait(t, "ended "+notify.StatusGone.Error())
			testutil.Must(t, os.WriteFile(in("d/x"), nil, 0o644))
			wantLines(t, other.Wait(t, "x"), "created x")
		})
	}
}

// Only directories of interest are watched, within limits.
func TestChangesLimits(t *testing.T) {
	c, dir := watchDir(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	for i := range 10 {
		testutil.Must(t, os.MkdirAll(in(fmt.Sprintf("many/%d", i)), 0o755))
	}
	testutil.Must(t, os.MkdirAll(in("few/x/y"), 0o755))
	few, _ := c.mustWatch(t, "few", true)
	if len(c.watched) != 4 { // with the export
		t.Errorf("%d directories are watched, want 4", len(c.watched))
	}
	c.maxDirs = 9
	if _, err := c.watch("", &interest{recursive: true, tell: func(notify.Event) {}}); !errors.Is(err, notify.StatusTooMuch) {
		t.Errorf("watch: %v, want %v", err, notify.StatusTooMuch)
	}
	if len(c.watched) != 4 {
		t.Errorf("%d directories are watched after a failure, want 4", len(c.watched))
	}
	flat, l := c.mustWatch(t, "many", false)
	testutil.Must(t, os.Mkdir(in("many/new"), 0o755))
	l.Wait(t, "new/")
	c.unwatch(few)
	if len(c.watched) != 2 {
		t.Errorf("%d directories are watched, want 2", len(c.watched))
	}
	// A watch that outgrows a limit ends.
	_, grows := c.mustWatch(t, "few", true)
	for i := range 10 {
		testutil.Must(t, os.Mkdir(in(fmt.Sprintf("few/%d", i)), 0o755))
	}
	grows.Wait(t, "ended "+notify.StatusTooMuch.Error())
	c.maxDirs = MaxDirs
	_, names := c.mustWatch(t, "few", true)
	c.mu.Lock()
	c.maxNames = c.names + 10
	c.mu.Unlock()
	for i := range 20 {
		testutil.Must(t, os.WriteFile(in(fmt.Sprintf("few/x/%d", i)), nil, 0o644))
	}
	names.Wait(t, "ended "+notify.StatusTooMuch.Error())
	testutil.Must(t, os.Mkdir(in("many/last"), 0o755))
	l.Wait(t, "last/")
	c.unwatch(flat)
	c.unwatch(flat)
	if c.source != nil || len(c.watched) != 0 {
		t.Error("something is watched though nobody wants to know")
	}
}

// A loss of events is reported, and the state of the tree is found again.
func TestChangesLost(t *testing.T) {
	c, dir := watchDir(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	testutil.WriteFiles(t, dir, map[string]string{"a/x": "", "b/x": "", "b/moves/x": "", "c": ""})
	_, l := c.mustWatch(t, "", true)
	c.mu.Lock()
	source := c.source
	// The system does not report these changes.
	for key := range c.watched {
		testutil.Must(t, source.Remove(key))
	}
	testutil.Must(t, os.Rename(in("b/moves"), in("a/moved")), os.Remove(in("b/x")), os.Mkdir(in("b/d"), 0o755))
	testutil.Must(t, os.Remove(in("c")), os.MkdirAll(in("c/d"), 0o755), os.WriteFile(in("a/y"), nil, 0o644))
	for key := range c.watched {
		testutil.Must(t, source.Add(key))
	}
	source.mu.Lock()
	source.lost = true
	source.mu.Unlock()
	c.mu.Unlock()
	source.kick <- struct{}{}
	wantLines(t, l.Wait(t, "created b/d/"), "overflow ./ changes were lost: rescan this directory",
		"removed c", "created c/", "created c/d/",
		"removed b/moves/", "created a/moved/", "created a/moved/x", "created a/y",
		"removed b/x", "created b/d/")
	for _, name := range []string{"a/moved/z", "c/d/z", "b/d/z"} {
		testutil.Must(t, os.WriteFile(in(name), nil, 0o644))
		wantLines(t, l.Wait(t, "z"), "created "+name)
	}
}

// fsnotify stops watching a renamed directory. Changes before it is watched again are reported.
func TestChangesGap(t *testing.T) {
	c, dir := watchDir(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	testutil.WriteFiles(t, dir, map[string]string{"d/old": "", "d/gone": ""})
	_, l := c.mustWatch(t, "", true)
	c.mu.Lock()
	key := c.top.dirs["d"].key
	testutil.Must(t, os.Rename(in("d"), in("e")))
	testutil.Eventually(t, "it is not watched", func() bool { return !slices.Contains(c.source.WatchList(), key) })
	testutil.Must(t, os.Remove(in("e/gone")), os.WriteFile(in("e/old"), []byte("1"), 0o644), os.MkdirAll(in("e/new/x"), 0o755))
	c.mu.Unlock()
	got := l.Wait(t, "modified e/old")
	slices.Sort(got)
	want := []string{"created e/new/", "created e/new/x/", "modified e/old", "removed e/gone", "renamed d/ -> e/"}
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	testutil.Must(t, os.WriteFile(in("e/z"), nil, 0o644))
	wantLines(t, l.Wait(t, "z"), "created e/z")
}

// A change is reported to those that may read the directories down to it, when it happens.
func TestChangesMay(t *testing.T) {
	c, dir := watchDir(t)
	testutil.WriteFiles(t, dir, map[string]string{"a/open/x": "", "a/shut/deep/x": ""})
	all := func(path string, recursive bool) (*testutil.Lines, error) {
		l := new(testutil.Lines)
		may := func(d *os.File, list bool) bool {
			info, err := d.Stat()
			return err == nil && info.Mode()&1 != 0 && (!list || info.Mode()&4 != 0)
		}
		_, err := c.Watch(path, recursive, may, func(e notify.Event) { l.Add(e.String()) })
		return l, err
	}
	testutil.Must(t, os.Chmod(filepath.Join(dir, "a/shut"), 0o700))
	for _, path := range []string{"a/shut", "a/shut/deep", "a/shut/nothing"} { // nor does it learn what is there
		if _, err := all(path, false); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if c.source != nil || len(c.watched) != 0 {
		t.Error("something is watched without any right to see it")
	}
	l, err := all("", true)
	testutil.Must(t, err)
	in := func(name string) string { return filepath.Join(dir, name) }
	testutil.Must(t, os.Rename(in("a/shut/deep/x"), in("a/shut/y")), os.Rename(in("a/open/x"), in("a/shut/deep/z")))
	wantLines(t, l.Wait(t, "x"), "removed a/open/x")
	testutil.Must(t, os.Chmod(in("a/shut"), 0o755), os.Mkdir(in("a/shut/deep/new"), 0o755))
	wantLines(t, l.Wait(t, "new/"), "attributes a/shut/", "created a/shut/deep/new/")
	testutil.Must(t, os.Chmod(in("a"), 0o700), os.Mkdir(in("a/shut/deep/secret"), 0o755), os.Mkdir(in("last"), 0o755))
	wantLines(t, l.Wait(t, "last/"), "attributes a/", "created last/")

	// A way through a directory that may not be listed.
	testutil.Must(t, os.Chmod(in("a"), 0o711))
	if _, err := all("a", true); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a: %v", err)
	}
	l, err = all("a/shut", true)
	testutil.Must(t, err, os.Mkdir(in("a/shut/deep/end"), 0o755))
	wantLines(t, l.Wait(t, "end/"), "created deep/end/")
}
