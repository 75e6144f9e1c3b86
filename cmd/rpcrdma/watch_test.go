package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
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

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A testWatch is a watch command.
type testWatch struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // of standard output
	stderr *cmdtest.LineBuffer
	once   sync.Once
	status int
}

// startWatch runs watch until the test ends, and returns when it has subscribed.
func startWatch(t *testing.T, args ...string) *testWatch {
	t.Helper()
	w := &testWatch{t: t, lines: make(chan string, 1<<16), stderr: &cmdtest.LineBuffer{}}
	w.cmd = command(context.Background(), append([]string{"watch"}, args...)...)
	w.cmd.Stderr = w.stderr
	out, err := w.cmd.StdoutPipe()
	testutil.Must(t, err, w.cmd.Start())
	go func() {
		defer close(w.lines)
		for r := bufio.NewScanner(out); r.Scan(); {
			w.lines <- r.Text()
		}
	}()
	t.Cleanup(func() { w.stop(syscall.SIGTERM) })
	w.wantError("watching " + args[len(args)-1])
	return w
}

// stop ends the command with a signal and returns its status.
func (w *testWatch) stop(sig os.Signal) int {
	w.once.Do(func() {
		w.cmd.Process.Signal(sig)
		w.status = w.wait()
	})
	return w.status
}

// wait waits for the end of the command and returns its status.
func (w *testWatch) wait() int {
	late := time.AfterFunc(testTimeout, func() { w.cmd.Process.Signal(syscall.SIGQUIT) })
	defer late.Stop()
	for range w.lines { // Wait closes the pipe
	}
	w.cmd.Wait()
	return w.cmd.ProcessState.ExitCode()
}

// wantError waits until standard error has text.
func (w *testWatch) wantError(text string) {
	w.t.Helper()
	for end := time.Now().Add(testTimeout); !strings.Contains(w.stderr.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("watch does not say %q, but\n%s", text, w.stderr)
		}
	}
}

// until returns the lines up to one that ends in text, without changes of contents, which may be
// reported once more than they happen.
func (w *testWatch) until(text string) (got []string) {
	w.t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case line, ok := <-w.lines:
			if !ok {
				w.t.Fatalf("watch has ended without %q, with %q and\n%s", text, got, w.stderr)
			}
			last := strings.HasSuffix(line, text)
			if last || !strings.HasPrefix(line, "modified ") {
				got = append(got, line)
			}
			if last {
				return got
			}
		case <-timeout:
			w.t.Fatalf("watch does not print %q, but %q and says\n%s", text, got, w.stderr)
		}
	}
}

func (s *testServer) watchURL(path string) string { return "rdma://" + s.addr + path }

// A relay stands between clients and a server, and can be cut.
type relay struct {
	addr string
	mu   sync.Mutex
	open map[net.Conn]bool
	held bool         // no new connection is let through
	mute *atomic.Bool // what comes by the connections that there are goes nowhere

	carried cmdtest.LineBuffer // all bytes, of both directions
}

// A muteConn is a connection of a relay.
type muteConn struct {
	net.Conn
	mute *atomic.Bool
}

func (c muteConn) Write(p []byte) (int, error) {
	if c.mute.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func startRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	r := &relay{addr: l.Addr().String(), open: make(map[net.Conn]bool), mute: new(atomic.Bool)}
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		r.cut(true)
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			r.mu.Lock()
			held, mute := r.held, r.mute
			if !held {
				r.open[client], r.open[server] = true, true
			}
			r.mu.Unlock()
			if held {
				client.Close()
				server.Close()
				continue
			}
			for _, c := range [][2]net.Conn{{client, server}, {server, client}} {
				running.Go(func() {
					io.Copy(muteConn{c[0], mute}, io.TeeReader(c[1], &r.carried))
					if !mute.Load() { // otherwise the other end does not learn of that either
						c[0].Close()
					}
				})
			}
		}
	})
	return r
}

// cut ends all connections. hold refuses new ones.
func (r *relay) cut(hold bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = hold
	for c := range r.open {
		c.Close()
	}
	clear(r.open)
}

// silence stops the traffic of all connections without ending them.
func (r *relay) silence() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mute.Store(true)
	r.mute = new(atomic.Bool)
}

// Changes by clients and by local programs are printed.
func TestWatch(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"sub/old": "x", "sub/deep/": ""})
	testutil.WriteFiles(t, local, map[string]string{"file": "12345"})
	s := startServer(t, "--dir", dir)
	w := startWatch(t, s.watchURL("/sub"))
	flat := startWatch(t, "--no-recursive", s.url("/sub"))
	in := func(name string) string { return filepath.Join(dir, "sub", name) }

	testutil.Must(t, os.Mkdir(in("a"), 0o755))
	testutil.WantLines(t, w.until("a/"), `created     a/`)
	testutil.Must(t, os.Rename(in("old"), in("a/new\n")), os.Chmod(in("a/new\n"), 0o600))
	testutil.WantLines(t, w.until(`attributes  "a/new\n"`), `renamed     old -> "a/new\n"`, `attributes  "a/new\n"`)
	testutil.WantLines(t, flat.until("removed     old"), `created     a/`, `removed     old`)
	f, err := os.OpenFile(in("a/new\n"), os.O_WRONLY, 0)
	testutil.Must(t, err)
	_, err = f.WriteString("y")
	testutil.Must(t, err, f.Close())
	testutil.WantLines(t, w.until("new\\n\""), `modified    "a/new\n"`)
	testutil.Must(t, os.RemoveAll(in("a")))
	testutil.WantLines(t, w.until("a/"), `removed     "a/new\n"`, `removed     a/`)
	testutil.WantLines(t, flat.until("removed     a/"), `removed     a/`)

	// Through NFS.
	mustRun(t, "put", filepath.Join(local, "file"), s.url("/sub/deep/file"))
	testutil.WantLines(t, w.until("deep/file"), "created     deep/file")

	// An interrupt ends it with status 0.
	for _, w := range []*testWatch{w, flat} {
		if status := w.stop(syscall.SIGINT); status != 0 || strings.Count(w.stderr.String(), "\n") != 1 {
			t.Errorf("interrupted: status %d\n%s", status, w.stderr)
		}
	}
}

// With --json each event is an object, and --count ends the command after so many.
func TestWatchJSON(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, "--dir", dir)
	w := startWatch(t, "--json", "--count", "3", s.watchURL("/"))
	var got []look.WatchJSON
	for _, do := range []func() error{
		func() error { return os.Mkdir(filepath.Join(dir, "a"), 0o755) },
		func() error { return os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")) },
		func() error { return os.Remove(filepath.Join(dir, "b")) },
	} {
		testutil.Must(t, do())
		got = append(got, decodeJSON[look.WatchJSON](t, w.until("}")[0]))
	}
	w.once.Do(func() { w.status = w.wait() })
	want := []look.WatchJSON{
		{Event: "created", Path: "a", Directory: true},
		{Event: "renamed", Path: "b", From: "a", Directory: true},
		{Event: "removed", Path: "b", Directory: true},
	}
	if !slices.Equal(got, want) || w.status != 0 {
		t.Errorf("status %d, %+v, want %+v", w.status, got, want)
	}
}

// A lost connection is reported, each time, and the watch goes on.
func TestWatchCut(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, "--dir", dir)
	r := startRelay(t, s.addr)
	w := startWatch(t, "rdma://"+r.addr+"/")
	mkdir := func(format string, i int) string {
		name := fmt.Sprintf(format, i)
		testutil.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		return "created     " + name + "/"
	}
	const overflow = "overflow    ./ changes were lost: rescan this directory"
	says := func(text string, n int) {
		t.Helper()
		testutil.Eventually(t, "it says "+text, func() bool { return strings.Count(w.stderr.String(), text) == n })
	}
	const cuts = connect.PaceBurst // all of which it tells
	for i := range cuts {
		before := mkdir("before%d", i)
		testutil.WantLines(t, w.until(before), before)
		r.cut(true)
		says(": connection lost, trying to get it back\n", i+1)
		mkdir("between%d", i)
		r.cut(false)
		testutil.WantLines(t, w.until("rescan this directory"), overflow)
		says(": connected again: changes may have been missed\n", i+1)
	}
	if status := w.stop(syscall.SIGTERM); status != 0 || strings.Count(w.stderr.String(), "\n") != 1+2*cuts {
		t.Errorf("status %d\n%s", status, w.stderr)
	}
}

// A silent connection is noticed and replaced.
func TestWatchSilence(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, "--dir", dir)
	r := startRelay(t, s.addr)
	w := startWatch(t, "--timeout", "2s", "rdma://"+r.addr+"/")
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "a"), 0o755))
	w.until("a/")
	r.silence()
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "b"), 0o755))
	testutil.WantLines(t, w.until("rescan this directory"), "overflow    ./ changes were lost: rescan this directory")
}

// A restarted server does not know its clients, and they say so.
func TestWatchRestart(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, "--dir", dir)
	w := startWatch(t, s.watchURL("/"))
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "before"), 0o755))
	testutil.WantLines(t, w.until("before/"), "created     before/")
	testutil.Must(t, s.stop())
	w.wantError(": connection lost, trying to get it back\n")
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "between"), 0o755))
	again := startServer(t, "--dir", dir, "--addr", s.addr)
	w.wantError(": connected again: changes may have been missed\n")
	overflowed := w.until("rescan this directory")
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "after"), 0o755))
	testutil.WantLines(t, append(overflowed, w.until("after/")...), "overflow    ./ changes were lost: rescan this directory", "created     after/")

	// The removal of the directory ends the command.
	w2 := startWatch(t, again.watchURL("/before"))
	testutil.Must(t, again.stop(), os.Remove(filepath.Join(dir, "before")))
	last := startServer(t, "--dir", dir, "--addr", s.addr)
	w2.once.Do(func() { w2.status = w2.wait() })
	if w2.status != 1 || !strings.Contains(w2.stderr.String(), ": no such directory (NOENT), or its export is not for this host") {
		t.Errorf("status %d\n%s", w2.status, w2.stderr)
	}
	w3 := startWatch(t, last.watchURL("/between"))
	testutil.Must(t, os.Remove(filepath.Join(dir, "between")))
	w3.once.Do(func() { w3.status = w3.wait() })
	if w3.status != 1 || !strings.HasSuffix(w3.stderr.String(), "rpcrdma: watch "+last.watchURL("/between")+": the directory has been removed or renamed (GONE)\n") {
		t.Errorf("status %d\n%s", w3.status, w3.stderr)
	}
}

// A watch ends even if its output is not read.
func TestWatchUnread(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, "--dir", dir)
	w := &testWatch{t: t, stderr: &cmdtest.LineBuffer{}}
	w.cmd = command(t.Context(), "watch", s.watchURL("/"))
	w.cmd.Stderr = w.stderr
	out, err := w.cmd.StdoutPipe()
	testutil.Must(t, err, w.cmd.Start())
	w.wantError("watching")
	const size = 64 << 10 // of a pipe
	for i := range size / 50 {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%0100d", i)), nil, 0o644))
	}
	_, err = out.Read(make([]byte, 1)) // it prints
	testutil.Must(t, err, w.cmd.Process.Signal(syscall.SIGINT))
	if err := w.cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v\n%s", err, w.stderr)
	}
}

func TestWatchMessages(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x", "out": "-> /"})
	s := startServer(t, "--dir", dir)

	// A server with another program.
	server, err := transport.NewServer(nil)
	testutil.Must(t, err, server.Register(loadgen.Program()))
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })

	for _, tt := range []struct {
		status int
		text   string
		args   []string
	}{
		{1, "watch " + s.watchURL("/nope") + ": no such directory (NOENT)", []string{s.watchURL("/nope")}},
		{1, "not a directory (NOTDIR)", []string{s.watchURL("/file")}},
		{1, "not a directory (NOTDIR)", []string{s.watchURL("/out")}},
		{1, "no such directory (NOENT)", []string{s.watchURL("/../../etc")}},
		{1, "the server does not have RPCRDMA_NOTIFY (PROG_UNAVAIL)", []string{"rdma://" + l.Addr().String() + "/"}},
		{1, "connection refused", []string{"rdma://127.0.0.1:1/"}},
		{1, "no answer from the server for 300ms: connecting to ", []string{"--timeout", "300ms", "rdma://" + startProxy(t, s.addr, 0, false).addr + "/"}},
		{2, "want rdma://HOST[:PORT]/EXPORT/PATH", []string{"somewhere"}},
		{2, "want rdma://HOST[:PORT]/EXPORT/PATH", []string{"http://host/"}},
		{2, "--count is -1", []string{"--count", "-1", s.watchURL("/")}},
		{2, "argument URL is missing", nil},
	} {
		mustFail(t, tt.status, tt.text, append([]string{"watch"}, tt.args...)...)
	}
}
