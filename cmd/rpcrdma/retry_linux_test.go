package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/copying"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd/dirfs"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A server that is killed in the middle of a copy, and started again, does not end it. The
// connection is cut at the same place each time, and the server is another process when it is
// made again.
func TestRetryAfterRestart(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	files := map[string]string{"large": randomText(1, 9<<20+7), "second": randomText(2, 3<<20), "link": "-> a/0", "empty/": ""}
	for i := range 200 {
		files["a/"+string(rune('0'+i%10))+string(rune('0'+i/10))] = randomText(uint64(i), 1000+i)
	}
	testutil.WriteFiles(t, source, files)
	for _, tt := range []struct {
		name  string
		limit int64 // bytes from the server before the cut
		args  func(addr, to string) []string
	}{
		{"get", 5 << 20, func(addr, to string) []string { return []string{"get", "-r", "nfs://" + addr + "/tree", to} }},
		{"get, small files", 100 << 10, func(addr, to string) []string { return []string{"get", "-r", "nfs://" + addr + "/tree", to} }},
		{"put", 60 << 10, func(addr, to string) []string {
			return []string{"put", "-r", source, "nfs://" + addr + "/" + filepath.Base(to)}
		}},
		{"cp", 6 << 20, func(addr, to string) []string {
			return []string{"cp", "-r", "nfs://" + addr + "/tree", "nfs://" + addr + "/" + filepath.Base(to)}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, state := t.TempDir(), t.TempDir()
			testutil.WriteFiles(t, filepath.Join(dir, "tree"), files)
			args := []string{"--dir", dir, "--state", state, "--async"}
			s := startServer(t, args...)
			p := newProxy(t, s.addr, tt.limit, true, true)
			to := filepath.Join(dir, "copy")
			if strings.HasPrefix(tt.name, "get") {
				to = filepath.Join(t.TempDir(), "copy")
			}
			c := start(t, t.TempDir(), append(tt.args(p.addr, to), "--retry", "40s", "--json")...)
			<-p.reached
			s.kill()
			startServer(t, append(args, "--addr", s.addr)...)
			if c.wait() != 0 || strings.Contains(c.stderr.String(), "error") {
				t.Fatal(c.stderr.String())
			}
			wantTree(t, to, source)
			r := decodeJSON[copying.ResultJSON](t, c.stdout.String())
			if r.Stats.Conns < 2 || r.Stats.Resent == 0 || r.Files != 202 || r.Skipped != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Nor does it end the removal of a tree.
func TestRetryRemoval(t *testing.T) {
	files := map[string]string{"kept": "x"}
	for i := range 600 {
		files[fmt.Sprintf("tree/%d/%d", i%7, i)] = ""
	}
	dir, state := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, files)
	args := []string{"--dir", dir, "--state", state, "--async"}
	s := startServer(t, args...)
	p := newProxy(t, s.addr, 100<<10, true, true)
	c := start(t, t.TempDir(), "rm", "-r", "--retry", "40s", "nfs://"+p.addr+"/tree")
	<-p.reached
	s.kill()
	if _, err := os.Stat(filepath.Join(dir, "tree")); err != nil {
		t.Fatalf("the connection is cut too late: %v", err)
	}
	startServer(t, append(args, "--addr", s.addr)...)
	c.want(0)
	wantGone(t, filepath.Join(dir, "tree"))
	wantFile(t, filepath.Join(dir, "kept"), "x")
}

// When the server does not come back, or comes back without its handles, the command says so.
func TestRetryInVain(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"large": randomText(1, 9<<20), "tree/large": randomText(2, 9<<20), "tree/second": randomText(3, 2<<20)})
	s := startServer(t, "--dir", dir)
	gone := startProxy(t, s.addr, 3<<20, true)
	c := start(t, t.TempDir(), "get", "--retry", "300ms", "nfs://"+gone.addr+"/large", filepath.Join(local, "x"))
	<-gone.reached
	c.want(1, "connection lost, trying for 300ms to get it back\n", "connection lost, and not made again for 300ms: no connection to "+gone.addr+" over iwarp: ", "\n")
	for _, name := range []string{"large", "tree"} {
		s := startServer(t, "--dir", dir)
		p := newProxy(t, s.addr, 3<<20, true, true)
		c := start(t, t.TempDir(), "get", "-r", "--retry", "40s", "nfs://"+p.addr+"/"+name, filepath.Join(local, "y"))
		<-p.reached
		s.kill()
		startServer(t, "--dir", dir, "--addr", s.addr)
		c.want(1, ": the server was started again and has forgotten its handles ('rpcrdma serve --state' keeps them)\n")
		if strings.Contains(c.stderr.String(), "skipped") {
			t.Errorf("what is stale is skipped:\n%s", &c.stderr)
		}
	}
	for name, what := range describe(t, local) {
		if !strings.HasPrefix(what, "d") {
			t.Errorf("left behind: %s", name)
		}
	}
}

// amnesia serves a directory, executes each of the procedures once without an answer, and
// remembers nothing of that when it is called again: as a server does that was killed between
// the two.
func amnesia(t *testing.T, dir string, procs ...uint32) (addr string) {
	t.Helper()
	disk, err := dirfs.Open(dir, nil)
	testutil.Must(t, err)
	t.Cleanup(func() { disk.Close() })
	files, err := nfsd.New(&nfsd.Config{Exports: []nfsd.Export{{Name: "/", FS: disk, Squash: nfsd.SquashNone}}})
	testutil.Must(t, err)
	var mu sync.Mutex
	once := make(map[uint32]bool)
	for _, proc := range procs {
		once[proc] = true
	}
	server, err := transport.NewServer(nil)
	testutil.Must(t, err)
	for _, p := range files.Programs() {
		if p.Number == nfs.Program {
			inner := p.Handler
			p.Idempotent = rpc.Every // so that no reply is kept
			p.Handler = rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
				inner.ServeRPC(ctx, req, res)
				mu.Lock()
				defer mu.Unlock()
				if once[req.Proc] {
					delete(once, req.Proc)
					req.Conn().Close()
				}
			})
		}
		testutil.Must(t, server.Register(p))
	}
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() {
		server.Close()
		serving.Wait()
		mu.Lock()
		defer mu.Unlock()
		for proc := range once {
			t.Errorf("%s was not called", nfs.ProcName(proc))
		}
	})
	return l.Addr().String()
}

// A call that must not be executed twice, and is, because its reply is lost with the server, is
// seen through.
func TestRetryOfChanges(t *testing.T) {
	local := filepath.Join(t.TempDir(), "local")
	testutil.WriteFiles(t, local, map[string]string{"file": "contents", "sub/second": "more", "link": "-> file"})
	for _, proc := range []uint32{nfs.ProcCreate, nfs.ProcMkdir, nfs.ProcSymlink, nfs.ProcRename, nfs.ProcWrite, nfs.ProcSetAttr} {
		t.Run(nfs.ProcName(proc), func(t *testing.T) {
			dir := t.TempDir()
			addr := amnesia(t, dir, proc)
			args := []string{"put", "-r", "-P", "1", "--retry", "40s", local, "nfs://" + addr + "/new"}
			if proc == nfs.ProcSetAttr {
				args = append(args, "--resume")
			}
			c := start(t, t.TempDir(), args...)
			got := c.wait()
			for line := range strings.Lines(c.stderr.String()) {
				// How long the connection is away decides whether these are printed.
				if got != 0 || !strings.Contains(line, ": connection lost, trying for 40s") && !strings.HasSuffix(line, ": connected again\n") {
					t.Errorf("status %d, and: %s", got, line)
				}
			}
			wantTree(t, filepath.Join(dir, "new"), local)
		})
	}
	t.Run("REMOVE", func(t *testing.T) {
		// RENAME fails, and the REMOVE of the incomplete file is executed twice.
		dir := t.TempDir()
		addr := amnesia(t, dir, nfs.ProcRemove)
		testutil.WriteFiles(t, dir, map[string]string{"tree/file/in the way": "x"})
		c := start(t, t.TempDir(), "put", "-r", "--retry", "40s", local, "nfs://"+addr+"/tree")
		c.want(1, "file skipped: is a directory (NFS3ERR_ISDIR)\n", "1 thing was skipped")
		if parts, err := filepath.Glob(filepath.Join(dir, "tree", ".rpcrdma-*")); err != nil || len(parts) > 0 {
			t.Errorf("left behind: %v, %v", parts, err)
		}
	})
}
