package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// asCommand in the environment makes the test binary the command itself, so that
// tests run real processes.
const asCommand = "RPCRDMA_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	testbed.OpenDevices()
	os.Exit(cmdtest.Main(m))
}

// testTimeout bounds every wait, so that a hanging test says where it hangs.
const testTimeout = time.Minute

// A result is the result of a command.
type result struct {
	status         int
	stdout, stderr string
}

// command returns the command with arguments, ready to start.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", quickEnd())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // prints stacks
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// quickEnd is in the environment of processes: otherwise the race detector makes each wait a second
// at its end.
func quickEnd() string { return "GORACE=atexit_sleep_ms=0 " + os.Getenv("GORACE") }

// runCommand runs the command to its end.
func runCommand(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// mustRun runs a command that must succeed without output on standard error, and returns
// its standard output.
func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	r := runCommand(t, args...)
	if r.status != 0 || r.stderr != "" {
		t.Fatalf("rpcrdma %s: status %d\n%s", strings.Join(args, " "), r.status, r.stderr)
	}
	return r.stdout
}

// mustFail runs a command that must fail with status and one line on standard error
// that contains text.
func mustFail(t *testing.T, status int, text string, args ...string) {
	t.Helper()
	r := runCommand(t, args...)
	lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
	if status == 2 {
		lines = lines[:len(lines)-1] // where help is
	}
	if r.status != status || len(lines) != 1 || !strings.HasPrefix(lines[0], "rpcrdma: ") || !strings.Contains(lines[0]+"\n", text) {
		t.Errorf("rpcrdma %s: status %d, want %d and one line with %q:\n%s", strings.Join(args, " "), r.status, status, text, r.stderr)
	}
}

// mustSkip runs a command on a tree that must name what it skips, in any order, and count it
// in its last line.
func mustSkip(t *testing.T, skipped []string, args ...string) {
	t.Helper()
	r := runCommand(t, args...)
	lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
	last := lines[len(lines)-1]
	for _, want := range skipped {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, ": "+want) }) {
			t.Errorf("rpcrdma %s: not named: %q", strings.Join(args, " "), want)
		}
	}
	if r.status != 1 || len(lines) != len(skipped)+1 || !strings.Contains(last, ": "+cli.Things(len(skipped))+" skipped, everything else is ") {
		t.Errorf("rpcrdma %s: status %d, want 1 and %d skipped:\n%s", strings.Join(args, " "), r.status, len(skipped), r.stderr)
	}
}

// A started is a command that a test does something to.
type started struct {
	t      *testing.T
	name   string
	stderr strings.Builder
	stdout strings.Builder
	wait   func() int
	signal func(os.Signal) error
}

// notices are the messages of --retry. Immutable.
var notices = regexp.MustCompile(`(?m)^rpcrdma: .*: (connection lost, trying for \S+ to get it back|connected again)\n`)

// start starts a command with its records of --resume in the directory cache.
func start(t *testing.T, cache string, args ...string) *started {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	cmd := command(ctx, args...)
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+cache)
	s := &started{t: t, name: strings.Join(args, " ")}
	cmd.Stderr, cmd.Stdout = &s.stderr, &s.stdout
	testutil.Must(t, cmd.Start())
	var once sync.Once
	s.wait = func() int {
		once.Do(func() {
			cmd.Wait()
			cancel()
		})
		return cmd.ProcessState.ExitCode()
	}
	s.signal = cmd.Process.Signal
	t.Cleanup(func() { s.wait() })
	return s
}

// want waits for the end, which must have the status and, in order, the parts of standard error.
// Without parts there may be nothing but that the connection was lost and came back.
func (s *started) want(status int, parts ...string) {
	s.t.Helper()
	got := s.wait()
	rest := s.stderr.String()
	for _, part := range parts {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			s.t.Errorf("rpcrdma %s: standard error lacks %q:\n%s", s.name, part, s.stderr.String())
		}
		rest = after
	}
	if len(parts) == 0 {
		rest = notices.ReplaceAllString(rest, "")
	}
	if got != status || len(parts) == 0 && rest != "" {
		s.t.Errorf("rpcrdma %s: status %d, want %d:\n%s", s.name, got, status, s.stderr.String())
	}
}

// A testServer is a serve command.
type testServer struct {
	cmd    *exec.Cmd
	addr   string // HOST:PORT
	tcp    string // HOST:PORT, with --tcp-addr
	http   string // http://HOST:PORT, with --metrics-addr
	stderr cmdtest.LineBuffer
	rest   chan string // of standard output, at the end
	once   sync.Once
	result error
}

func (s *testServer) url(path string) string { return "nfs://" + s.addr + path }

var (
	listening   = regexp.MustCompile(`listening on (\S+)`)
	tcpAddr     = regexp.MustCompile(`and (\S+) \(tcp\)`)
	metricsAddr = regexp.MustCompile(`metrics at (http://\S+)/`)
)

// startServer runs serve until the test ends, when it must stop with status 0.
func startServer(t *testing.T, args ...string) *testServer {
	t.Helper()
	return startServing(t, command(context.Background(), append([]string{"serve", "--addr", "127.0.0.1:0", "--squash", "none"}, args...)...))
}

// startServing is startServer for a command that is ready to start.
func startServing(t *testing.T, cmd *exec.Cmd) *testServer {
	t.Helper()
	s := &testServer{cmd: cmd, rest: make(chan string, 1)}
	s.cmd.Stderr = &s.stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("serve: %v\n%s", err, &s.stderr)
		}
	})
	late := time.AfterFunc(testTimeout, func() { s.cmd.Process.Signal(syscall.SIGQUIT) })
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	late.Stop()
	match := listening.FindStringSubmatch(line)
	if err != nil || match == nil {
		t.Fatalf("serve says %q, %v\n%s", line, err, &s.stderr)
	}
	s.addr = match[1]
	if match := tcpAddr.FindStringSubmatch(line); match != nil {
		s.tcp = match[1]
	}
	if match := metricsAddr.FindStringSubmatch(line); match != nil {
		s.http = match[1]
	}
	go func() {
		rest, _ := io.ReadAll(r)
		s.rest <- string(rest)
	}()
	return s
}

// stop ends the server with SIGTERM, and returns the result.
func (s *testServer) stop() error {
	s.once.Do(func() {
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			s.result = err
			return
		}
		late := time.AfterFunc(testTimeout, func() { s.cmd.Process.Signal(syscall.SIGQUIT) })
		defer late.Stop()
		s.rest <- <-s.rest // Wait closes the pipe
		s.result = s.cmd.Wait()
	})
	return s.result
}

// kill ends the server at once.
func (s *testServer) kill() {
	s.once.Do(func() {
		s.cmd.Process.Kill()
		s.rest <- <-s.rest
		s.cmd.Wait()
	})
}

// dialNFS connects a client in this process.
func (s *testServer) dialNFS(t *testing.T) *nfs.Client {
	t.Helper()
	c, err := nfs.Dial(t.Context(), iwarp.New(iwarp.Config{}), s.addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// root mounts the export.
func root(t *testing.T, c *nfs.Client) nfs.FileHandle {
	t.Helper()
	fh, err := c.Mnt(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	return fh
}

// wantTree compares two trees: names, types, permissions, contents.
func wantTree(t *testing.T, got, want string) {
	t.Helper()
	g, w := describe(t, got), describe(t, want)
	for name := range w {
		if g[name] != w[name] {
			t.Errorf("%s: %.60q, want %.60q", name, g[name], w[name])
		}
	}
	for name := range g {
		if _, ok := w[name]; !ok {
			t.Errorf("%s should not be there: %.60q", name, g[name])
		}
	}
}

func describe(t *testing.T, dir string) map[string]string {
	t.Helper()
	tree := make(map[string]string)
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == dir {
			return err
		}
		var data []byte
		switch {
		case info.Mode().IsRegular():
			data, err = os.ReadFile(path)
		case info.Mode().Type() == os.ModeSymlink:
			var target string
			target, err = os.Readlink(path)
			data = []byte(target)
		}
		rel, _ := filepath.Rel(dir, path)
		tree[rel] = info.Mode().String() + " " + string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// decodeJSON decodes output that must be one object.
func decodeJSON[T any](t *testing.T, out string) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Errorf("more than one object in\n%s", out)
	}
	return v
}

// A proxy stands between a client and a server. After limit bytes from the server it cuts
// the connection or falls silent. With again, connections made after a cut get through.
type proxy struct {
	addr    string
	reached chan struct{} // closed at the limit
}

func startProxy(t *testing.T, to string, limit int64, cut bool) *proxy {
	t.Helper()
	return newProxy(t, to, limit, cut, false)
}

func newProxy(t *testing.T, to string, limit int64, cut, again bool) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), reached: make(chan struct{})}
	var wg sync.WaitGroup
	end := make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		close(end)
		wg.Wait()
	})
	pass := func(client net.Conn, n int64) {
		server, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer server.Close()
		wg.Go(func() { io.Copy(server, client); server.Close() })
		io.CopyN(client, server, n)
	}
	wg.Go(func() {
		client, err := l.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		pass(client, limit)
		close(p.reached)
		if !cut {
			<-end
			return
		}
		client.Close()
		for again {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer client.Close()
				pass(client, math.MaxInt64)
			})
		}
	})
	return p
}

// publicDir is a directory that every user can walk to.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
