package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/serving"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// A slowDisk has READs of one file, slowName, wait below the server as on a disk that is slow: diskTime
// each, and those from offset hangsAt until the end of the test.
type slowDisk struct {
	end     chan struct{}
	hanging atomic.Int32
}

const (
	slowName = "slow"
	diskTime = 250 * time.Millisecond
	hangsAt  = 1
)

// open is a serving.DirOpener.
func (d *slowDisk) open(dir string, async bool, s *serving.State, log *slog.Logger) (nfsd.FS, io.Closer, error) {
	fs, files, err := serving.OpenDir(dir, async, s, log)
	if err != nil {
		return nil, nil, err
	}
	top, err := fs.Root(context.Background())
	if err != nil {
		return nil, nil, err
	}
	defer top.Release()
	file, err := top.Lookup(context.Background(), &nfsd.Caller{}, slowName)
	if err != nil {
		return nil, nil, err
	}
	defer file.Release()
	return &slowFS{FS: fs, disk: d, slow: file.AppendHandle(nil)}, files, nil
}

// A slowFS is a file system with a file on a slow disk.
type slowFS struct {
	nfsd.FS
	disk *slowDisk
	slow []byte // the file's handle
}

func (f *slowFS) Node(ctx context.Context, handle []byte) (nfsd.Node, error) {
	n, err := f.FS.Node(ctx, handle)
	if err == nil && bytes.Equal(handle, f.slow) {
		n = &slowNode{n, f.disk}
	}
	return n, err
}

// A slowNode is a file that can be read, slowly.
type slowNode struct {
	nfsd.Node
	disk *slowDisk
}

func (n *slowNode) ReadAt(ctx context.Context, who *nfsd.Caller, b []byte, off int64) (int, error) {
	var done <-chan time.Time
	if off == hangsAt {
		n.disk.hanging.Add(1)
		defer n.disk.hanging.Add(-1)
	} else { // time stands for a disk's: there is nothing else to wait for
		timer := time.NewTimer(diskTime)
		defer timer.Stop()
		done = timer.C
	}
	select {
	case <-done:
	case <-n.disk.end:
	case <-ctx.Done():
	}
	return n.Node.ReadAt(ctx, who, b, off)
}

// startSlow is startServer for a server in this process, with a slow disk.
func startSlow(t *testing.T, args ...string) (*testServer, *slowDisk) {
	t.Helper()
	disk := &slowDisk{end: make(chan struct{})}
	line := cmdtest.Serve(t, serving.NewFrom(disk.open), args...)
	t.Cleanup(func() { close(disk.end) })
	match, web := listening.FindStringSubmatch(line), metricsAddr.FindStringSubmatch(line)
	if match == nil || web == nil {
		t.Fatalf("serve says %q", line)
	}
	return &testServer{addr: match[1], http: web[1]}, disk
}

// hang has one READ under way that lasts as long as the test.
func (d *slowDisk) hang(t *testing.T, s *testServer) {
	t.Helper()
	c := s.dialNFS(t)
	file := fhOf(t, c, root(t, c), slowName)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = c.Read(ctx, file, hangsAt, make([]byte, 4096)) // the result does not matter
	}()
	t.Cleanup(func() { cancel(); <-done })
	testutil.Eventually(t, "a READ hangs", func() bool { return d.hanging.Load() == 1 })
}

// readSlowly reads from the slow disk until the test ends.
func readSlowly(t *testing.T, s *testServer) {
	t.Helper()
	c := s.dialNFS(t)
	file := fhOf(t, c, root(t, c), slowName)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 1<<20); ctx.Err() == nil; {
			if _, _, err := c.Read(ctx, file, 0, buf); err != nil && ctx.Err() == nil {
				t.Errorf("a slow READ: %v", err)
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}
