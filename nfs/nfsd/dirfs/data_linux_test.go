package dirfs

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// node returns a file's node, open for rights, until the test ends.
func (w *world) node(name string, rights uint32) *node {
	w.t.Helper()
	n, err := w.fs.root.child(new(nfsd.Caller), name)
	testutil.Must(w.t, err)
	w.stop = append([]func(){n.Release}, w.stop...)
	if rights != 0 {
		_, err = n.Open(w.t.Context(), new(nfsd.Caller), rights)
		testutil.Must(w.t, err)
	}
	return n
}

// An error in the middle of what is read is no end of the file.
func TestReadError(t *testing.T) {
	w := newWorld(t, modes()[2].cfg, nil)
	page := os.Getpagesize()
	w.put("file", string(make([]byte, 2*page)))
	n := w.node("file", nfs.AccessRead)
	// The kernel cannot write to the second half.
	b, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	testutil.Must(t, err)
	defer unix.Munmap(b)
	testutil.Must(t, unix.Mprotect(b[page:], unix.PROT_NONE))
	for _, tt := range []struct {
		off  int64
		b    []byte
		want int
		err  error
	}{
		{0, b, page, unix.EFAULT}, {0, b[page:], 0, unix.EFAULT}, {0, b[:page], page, nil}, {int64(page) + 1, b[:page], page - 1, nil},
	} {
		if got, err := n.ReadAt(t.Context(), nil, tt.b, tt.off); got != tt.want || err != tt.err {
			t.Errorf("%d bytes at %d: %d, %v, want %d, %v", len(tt.b), tt.off, got, err, tt.want, tt.err)
		}
	}
}

// While another process has a lease on a file, clients get an error that makes them try again.
func TestLease(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, nil)
		w.put("file", "x")
		fh := w.lookup("file")
		f, err := os.Open(w.path("file"))
		testutil.Must(t, err)
		defer f.Close()
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
			t.Skip("no leases: ", err)
		}
		end := time.AfterFunc(10*time.Second, func() { unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) })
		write := func() nfs.Status {
			var res nfs.WriteRes
			w.must(user(), nfs.ProcWrite, &nfs.WriteArgs{File: fh, Count: 1, Data: []byte("y")}, &res)
			return res.Status
		}
		w.want("WRITE during the lease", write(), nfs.StatusJukebox)
		if end.Stop() {
			_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
			testutil.Must(t, err)
		}
		w.want("WRITE after the lease", write(), nfs.StatusOK)
	})
}
