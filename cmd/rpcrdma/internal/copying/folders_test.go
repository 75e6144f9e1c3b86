package copying

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

func TestFolders(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"a/b/file": "1", "c/file": "2", "out": "-> ..", "in": "-> a/b"})
	top, err := os.OpenRoot(dir)
	testutil.Must(t, err)
	defer top.Close()
	s := newFolders(top)
	defer s.close()
	enter := func(path string) *folder {
		t.Helper()
		f, err := s.enter(path)
		testutil.Must(t, err)
		return f
	}
	wantOpen := func(paths ...string) {
		t.Helper()
		ok := len(s.open) == len(paths)
		for _, path := range paths {
			ok = ok && s.open[path] != nil
		}
		if !ok {
			t.Errorf("open are %v, want %v", s.open, paths)
		}
	}
	wantFileIn := func(f *folder, want string) {
		t.Helper()
		if b, err := f.ReadFile("file"); err != nil || string(b) != want {
			t.Errorf("file in %s is %q, %v, want %q", f.path, b, err, want)
		}
	}

	first := enter("a/b")
	if enter("a/b") != first {
		t.Error("a directory was opened twice at a time")
	}
	second := enter("c")
	wantOpen("a/b", "c")
	// It is the directory that was opened, though something else has its name now.
	testutil.Must(t, os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "moved")))
	testutil.WriteFiles(t, dir, map[string]string{"a/b/file": "other"})
	wantFileIn(first, "1")
	s.leave(first)
	wantOpen("a/b", "c")
	s.leave(first)
	wantOpen("c")
	s.leave(second)
	wantOpen("c") // files come directory by directory
	if _, err := first.Stat("file"); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a directory that was left can be used: %v", err)
	}
	wantFileIn(second, "2")
	third := enter("in")
	wantFileIn(third, "other")
	wantOpen("in")
	for _, path := range []string{"out", "..", "../x", "nowhere", "c/file"} {
		if f, err := s.enter(path); err == nil {
			t.Errorf("%s was entered: %v", path, f)
		}
	}
	s.leave(third)
	s.close()
	wantOpen()
}

func TestFoldersTogether(t *testing.T) {
	dir := t.TempDir()
	files := make(map[string]string)
	for i := range 4 {
		files[fmt.Sprintf("%d/file", i)] = fmt.Sprint(i)
	}
	testutil.WriteFiles(t, dir, files)
	top, err := os.OpenRoot(dir)
	testutil.Must(t, err)
	defer top.Close()
	s := newFolders(top)
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Go(func() {
			for k := range 100 {
				want := fmt.Sprint((i + k/3) % 4)
				f, err := s.enter(want)
				if err != nil {
					t.Error(err)
					return
				}
				if b, err := f.ReadFile("file"); err != nil || string(b) != want {
					t.Errorf("file in %s is %q, %v", want, b, err)
				}
				s.leave(f)
			}
		})
	}
	workers.Wait()
	s.close()
	if len(s.open) > 0 {
		t.Errorf("still open: %v", s.open)
	}
}
