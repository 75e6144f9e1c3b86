package main

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// smallDisk mounts a file system of 1 MiB. It skips the test if it may not mount.
func smallDisk(t *testing.T, flags uintptr) string {
	t.Helper()
	dir := t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", flags, "size=1m")
	if errors.Is(err, syscall.EPERM) {
		if os.Geteuid() == 0 && os.Getenv("RPCRDMA_REQUIRE") != "" {
			t.Fatalf("root may not mount: %v", err)
		}
		t.Skipf("mounting takes root, outside of most containers: %v", err)
	}
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, syscall.Unmount(dir, 0)) })
	return dir
}

// An error of a disk that is full, or read-only, says so at both ends, and nothing is left on the
// disk.
func TestMistakesOfDisks(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	full, fixed := smallDisk(t, 0), smallDisk(t, syscall.MS_RDONLY)
	large := randomText(1, 2<<20)
	testutil.WriteFiles(t, dir, map[string]string{"large": large})
	testutil.WriteFiles(t, local, map[string]string{"large": large})
	s := startServer(t, "--export", dir+"=/", "--export", full+"=/full", "--export", fixed+"=/fixed")
	newPlace(map[string]string{"SERVER": s.addr, "LOCAL": local, "FULL": full, "FIXED": fixed}).tellAll(t, []mistake{
		{1, "get nfs://SERVER/large FULL/x", "get nfs://SERVER/large: local file FULL/x: no space left on device"},
		{1, "get nfs://SERVER/large FIXED/x", "get nfs://SERVER/large: local file FIXED/x: read-only file system"},
		{1, "put LOCAL/large nfs://SERVER/full/x", "put nfs://SERVER/full/x: no space left on the server (NFS3ERR_NOSPC)"},
		{1, "put LOCAL/large nfs://SERVER/fixed/x", "put nfs://SERVER/fixed/x: the server is read-only (NFS3ERR_ROFS)"},
		{1, "mkdir nfs://SERVER/fixed/x", "mkdir nfs://SERVER/fixed/x: the server is read-only (NFS3ERR_ROFS)"},
	})
	for _, at := range []string{full, fixed} {
		if left, err := filepath.Glob(filepath.Join(at, "*")); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	}
}

// A server that maps root to nobody refuses root a file that only root may read: most users meet this
// first.
func TestMistakesOfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a server that is not root's takes nobody for anybody else")
	}
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"secret/file": "x"})
	testutil.WriteFiles(t, local, map[string]string{"file": "x"})
	testutil.Must(t, os.Chmod(filepath.Join(dir, "secret"), 0o700), os.Chmod(dir, 0o755))
	s := startServer(t, "--export", dir+"=/,squash=root")
	const root = "; servers take root for nobody unless they are told not to (--squash none, no_root_squash)"
	newPlace(map[string]string{"SERVER": s.addr, "LOCAL": local}).tellAll(t, []mistake{
		{1, "put LOCAL/file nfs://SERVER/x", "put nfs://SERVER/x: permission denied (NFS3ERR_ACCES)" + root},
		{1, "ls nfs://SERVER/secret", "ls nfs://SERVER/secret: permission denied (NFS3ERR_ACCES)" + root},
		{1, "cat nfs://SERVER/secret/file", "cat nfs://SERVER/secret/file: permission denied (NFS3ERR_ACCES)" + root},
		{1, "watch rdma://SERVER/secret", "watch rdma://SERVER/secret: no permission to list it (ACCES)" + root},
	})
}
