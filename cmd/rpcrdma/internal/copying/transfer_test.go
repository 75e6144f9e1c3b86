package copying

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// An incomplete file that another process has renamed is missing, unless the call was sent twice.
func TestPartRenamedByOthers(t *testing.T) {
	dir := t.TempDir()
	c, _ := serveDir(t, dir)
	tr := &transfer{Target: &remote.Target{Client: c}}
	top, err := c.Mnt(t.Context(), "/")
	testutil.Must(t, err)
	part, fh, err := tr.createPart(t.Context(), top, 0o644)
	testutil.Must(t, err, os.Rename(filepath.Join(dir, part), filepath.Join(dir, "name")))
	if err := tr.renamePart(t.Context(), top, fh, part, "name"); !remote.IsMissing(err) {
		t.Errorf("RENAME: %v", err)
	}
}

// The rights of directories are taken from the deepest on: those above are needed to reach it.
func TestFinishDirs(t *testing.T) {
	tr := &transfer{opened: []openedDir{{rel: "."}, {rel: "a"}, {rel: "a/b"}, {rel: "c"}}}
	var order []string
	err := tr.finishDirs(t.Context(), func(d openedDir) error {
		order = append(order, d.rel)
		return nil
	})
	if got := strings.Join(order, " "); err != nil || got != "c a/b a ." {
		t.Errorf("%s, %v", got, err)
	}
}
