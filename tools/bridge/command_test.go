package bridge

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	gonfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A changing file system is a directory with files that can have their attributes changed.
type changing struct{ billy.Filesystem }

func (fs changing) path(name string) string { return fs.Join(fs.Root(), name) }

func (fs changing) Chmod(name string, mode os.FileMode) error { return os.Chmod(fs.path(name), mode) }

func (fs changing) Lchown(name string, uid, gid int) error { return os.Lchown(fs.path(name), uid, gid) }

func (fs changing) Chown(name string, uid, gid int) error { return os.Chown(fs.path(name), uid, gid) }

func (fs changing) Chtimes(name string, atime, mtime time.Time) error {
	return os.Chtimes(fs.path(name), atime, mtime)
}

// The commands for files use go-nfs, unchanged and over TCP, as any other NFS server.
func TestCommandOverTCP(t *testing.T) {
	rpcrdma := buildCommand(t)
	dir, local := t.TempDir(), t.TempDir()
	text := randomText(3, 3<<20+5)
	testutil.WriteFiles(t, local, map[string]string{"big": text, "tree/a": "1", "tree/b/c": "2"})
	gonfs.Log.SetLevel(gonfs.PanicLevel) // it has no EXPORT, and says so
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		handler := helpers.NewCachingHandler(helpers.NewNullAuthHandler(changing{osfs.New(dir)}), 1024)
		if err := gonfs.Serve(l, handler); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	url := "nfs://" + l.Addr().String()
	words := strings.NewReplacer("URL", url, "LOCAL", local, "HOST", l.Addr().String())
	for _, tt := range []struct{ line, want string }{
		{"put --provider tcp LOCAL/big URL/big", ""},
		{"mkdir --provider tcp URL/dir", ""},
		{"put --provider tcp -r LOCAL/tree URL/dir/tree", ""},
		{"ls --provider tcp URL/", "big\ndir/\n"},
		{"ls --provider tcp -r URL/dir", "tree/\ntree/a\ntree/b/\ntree/b/c\n"},
		{"get --provider tcp URL/big LOCAL/copy", ""},
		{"get --provider tcp -r URL/dir/tree LOCAL/trees", ""},
		{"cat --provider tcp URL/dir/tree/b/c", "2"},
		{"cp --provider tcp URL/dir/tree/a URL/again", ""},
		{"mv --provider tcp URL/again URL/moved", ""},
		{"cat --provider tcp URL/moved", "1"},
		{"rm --provider tcp -r URL/moved URL/dir", ""},
		{"ls --provider auto URL/", "big\n"},
	} {
		cmd := exec.CommandContext(t.Context(), rpcrdma, strings.Fields(words.Replace(tt.line))...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if out, err := cmd.Output(); err != nil || string(out) != tt.want {
			t.Errorf("rpcrdma %s: %v, prints %q, want %q\n%s", tt.line, err, out, tt.want, &stderr)
		}
	}
	for _, name := range []string{filepath.Join(dir, "big"), filepath.Join(local, "copy")} {
		if b, err := os.ReadFile(name); err != nil || string(b) != text {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(local, "trees/b/c")); err != nil || string(b) != "2" {
		t.Errorf("get -r: %q, %v", b, err)
	}
	for _, name := range []string{"ping", "probe"} {
		out, err := exec.CommandContext(t.Context(), rpcrdma, name, "--provider", "tcp", l.Addr().String()).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "tcp") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), rpcrdma, "ping", l.Addr().String()).CombinedOutput()
	if err == nil || !strings.HasSuffix(string(out), " is an ONC RPC server over TCP, not RDMA: use --provider tcp\n") {
		t.Errorf("ping over RDMA: %v\n%s", err, out)
	}
}
