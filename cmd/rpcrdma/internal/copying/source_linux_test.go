package copying

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A fifo that takes the place of a file at any moment is not waited for.
func TestOpenLocalFifo(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x"})
	testutil.Must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600), os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "name")))
	root, err := os.OpenRoot(dir)
	testutil.Must(t, err)
	defer root.Close()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 1; ; i++ { // renaming a file to another name of itself does nothing
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			part := filepath.Join(dir, "part")
			err := os.Link(filepath.Join(dir, []string{"file", "fifo"}[i%2]), part)
			if err = errors.Join(err, os.Rename(part, filepath.Join(dir, "name"))); err != nil {
				stopped <- err
				return
			}
		}
	}()
	files, others := 0, 0
	opened := make(chan error, 1)
	go func() {
		for n := 0; n < 5000 || files == 0 || others == 0; n++ { // the other goroutine may not run for a while
			if files == 0 || others == 0 {
				runtime.Gosched()
			}
			f, err := openLocal(root, "name")
			switch {
			case err == nil:
				files++
				f.Close()
			case errors.Is(err, errNotFile):
				others++
			default:
				opened <- err
				return
			}
		}
		opened <- nil
	}()
	select {
	case err := <-opened:
		testutil.Must(t, err)
	case <-time.After(testutil.Patience):
		t.Fatal("openLocal waits for a fifo, or the name never changes")
	}
	close(stop)
	testutil.Must(t, <-stopped)
}
