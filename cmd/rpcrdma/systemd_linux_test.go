package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// The service manager hears that the server is ready, reads its exports again, lives, and ends.
func TestServiceManager(t *testing.T) {
	m := cmdtest.NewServiceManager(t)
	t.Setenv("WATCHDOG_USEC", "30000")
	dir := t.TempDir()
	s := startChanging(t, []string{dir + "=/a"})
	m.Want("READY=1", "STATUS=listening on "+s.addr+" (iwarp), exporting "+dir+" as /a")
	for range 3 {
		if got := m.Read(testutil.Patience); got != "WATCHDOG=1" {
			t.Fatalf("the service manager hears %q, want a sign of life", got)
		}
	}
	s.change("/b[]", dir+"=/b")
	m.Want("RELOADING=1", "MONOTONIC_USEC=")
	m.Want("READY=1", "STATUS=listening on "+s.addr+" (iwarp), exporting "+dir+" as /b")
	s.refused("no exports", "# nothing")
	m.Want("RELOADING=1", "MONOTONIC_USEC=")
	m.Want("READY=1", "STATUS=listening on "+s.addr+" (iwarp), exporting "+dir+" as /b")
	testutil.Must(t, s.stop())
	m.Want("STOPPING=1", "STATUS=")
}

// A server that does not get ready does not say so.
func TestServiceManagerOfFailure(t *testing.T) {
	m := cmdtest.NewServiceManager(t)
	if r := runCommand(t, "serve", "--dir", t.TempDir()+"/none"); r.status != 1 {
		t.Fatalf("status %d: %s", r.status, r.stderr)
	}
	m.Silent()
}

// A manager that is not there, or asks for nonsense, keeps no server from serving.
func TestServiceManagerIsGone(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	t.Setenv("WATCHDOG_USEC", "often")
	s := startServer(t, "--dir", t.TempDir())
	root(t, s.dialNFS(t))
	testutil.Must(t, s.stop())
	for _, want := range []string{"was not notified", "cannot feed"} {
		if !strings.Contains(s.stderr.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, &s.stderr)
		}
	}
}

// Nor does one that has stopped listening.
func TestServiceManagerIsDeaf(t *testing.T) {
	conn := cmdtest.NotifySocket(t)
	sender, err := net.DialUnix("unixgram", nil, conn.LocalAddr().(*net.UnixAddr))
	testutil.Must(t, err)
	defer sender.Close()
	for err == nil { // until it is full
		testutil.Must(t, sender.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
		_, err = sender.Write([]byte("WATCHDOG=1"))
	}
	s := startServer(t, "--dir", t.TempDir())
	root(t, s.dialNFS(t))
	testutil.Must(t, s.stop())
	if n := strings.Count(s.stderr.String(), "was not notified"); n != 2 {
		t.Errorf("READY and STOPPING are missed %d times:\n%s", n, &s.stderr)
	}
}

// activated is a command that is started with open files, by their names, as systemd does it.
func activated(ctx context.Context, names string, files []*os.File, args ...string) *exec.Cmd {
	cmd := command(ctx, args...)
	// Only the process itself knows its number before it runs.
	cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.ExtraFiles = files
	cmd.Env = append(cmd.Env, fmt.Sprintf("LISTEN_FDS=%d", len(files)), "LISTEN_FDNAMES="+names)
	return cmd
}

// socketFile returns a listening socket as a file, and its address.
func socketFile(t *testing.T, network, addr string) (*os.File, string) {
	t.Helper()
	l, err := net.Listen(network, addr)
	testutil.Must(t, err)
	defer l.Close()
	f, err := l.(interface{ File() (*os.File, error) }).File()
	testutil.Must(t, err)
	t.Cleanup(func() { f.Close() })
	return f, l.Addr().String()
}

// The server uses the sockets that it was started with, whatever its flags say. They stay open when
// it ends: the next server serves clients that connect meanwhile.
func TestSocketActivation(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "text"})
	var files []*os.File
	var addrs []string
	for range 3 {
		f, addr := socketFile(t, "tcp", "127.0.0.1:0")
		files, addrs = append(files, f), append(addrs, addr)
	}
	for range 2 {
		s := startServing(t, activated(context.Background(), "metrics-addr:addr:tcp-addr", files, "serve", "--addr", "192.0.2.1:1", "--dir", dir))
		if s.addr != addrs[1] || s.tcp != addrs[2] || s.http != "http://"+addrs[0] {
			t.Fatalf("listening on %s, %s and %s, want %s", s.addr, s.tcp, s.http, addrs)
		}
		if got := mustRun(t, "cat", s.url("/file")); got != "text" {
			t.Errorf("the file has %q", got)
		}
		conn, err := net.Dial("tcp", s.tcp)
		testutil.Must(t, err)
		conn.Close()
		if status, text := cmdtest.Fetch(t, "GET", s.http+"/healthz", ""); status != 200 {
			t.Errorf("health is %d, %s", status, text)
		}
		testutil.Must(t, s.stop())
		conn, err = net.Dial("tcp", s.addr)
		testutil.Must(t, err)
		conn.Close()
	}
}

// Sockets for another process are left alone.
func TestSocketsOfOthers(t *testing.T) {
	t.Setenv("LISTEN_PID", "1")
	t.Setenv("LISTEN_FDS", "1000")
	s := startServer(t, "--dir", t.TempDir())
	root(t, s.dialNFS(t))
}

func TestSocketsThatDoNotFit(t *testing.T) {
	tcp, addr := socketFile(t, "tcp", "127.0.0.1:0")
	other, _ := socketFile(t, "tcp", "127.0.0.1:0")
	unix, _ := socketFile(t, "unix", filepath.Join(t.TempDir(), "socket"))
	conn, err := net.Dial("tcp", addr)
	testutil.Must(t, err)
	defer conn.Close()
	connection, err := conn.(*net.TCPConn).File()
	testutil.Must(t, err)
	defer connection.Close()
	file, err := os.Open("/dev/null")
	testutil.Must(t, err)
	defer file.Close()
	for _, tt := range []struct {
		names string
		files []*os.File
		args  []string
		want  string
	}{
		{"rpcrdma.socket", []*os.File{tcp}, nil, "rpcrdma.socket of the service manager: want FileDescriptorName=addr, tcp-addr or metrics-addr"},
		{"", []*os.File{tcp}, nil, "LISTEN_FD_3 of the service manager: want FileDescriptorName="},
		{"addr:addr", []*os.File{tcp, other}, nil, "addr of the service manager: there are two of the name"},
		{"addr", []*os.File{connection}, nil, "addr of the service manager: it is a connection"},
		{"addr", []*os.File{unix}, nil, "want ListenStream= with a port of TCP"},
		{"addr", []*os.File{file}, nil, "addr of the service manager: "},
		{"tcp-addr:addr", []*os.File{tcp, other}, []string{"--provider", "rdma"}, "use --provider iwarp"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience) // one that serves would not end
		cmd := activated(ctx, tt.names, tt.files, append([]string{"serve", "--dir", t.TempDir()}, tt.args...)...)
		out, err := cmd.CombinedOutput()
		cancel()
		if status := cmd.ProcessState.ExitCode(); status != 1 {
			t.Errorf("%s: status %d, %v", tt.names, status, err)
		}
		if !strings.HasPrefix(string(out), "rpcrdma: serve: the socket ") || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: serve says %q, want %q", tt.names, out, tt.want)
		}
	}
}

// The units name sockets as the command does, and systemd understands them and thinks them safe.
func TestUnits(t *testing.T) {
	const dir = "../../deploy/systemd"
	var units []string
	for _, pattern := range []string{"/*.service", "/*.socket"} {
		files, err := filepath.Glob(dir + pattern)
		testutil.Must(t, err)
		units = append(units, files...)
	}
	if _, err := os.Stat("../../go.work"); err != nil && len(units) == 0 {
		t.Skip("the units are in the repository, and this module is not: there is no go.work above it")
	}
	names := make(map[string]int)
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		testutil.Must(t, err)
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "FileDescriptorName="); ok {
				names[name]++
			}
		}
	}
	for _, name := range []string{"addr", "tcp-addr", "metrics-addr"} {
		if names[name] != 1 {
			t.Errorf("%d units have a socket %s", names[name], name)
		}
	}
	if len(names) != 3 || len(units) != 4 {
		t.Errorf("sockets are %v, units %q", names, units)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd does not look at the units: it is not installed")
		return
	}
	// The exposure, in tenths, may not become more.
	out, err := exec.Command(analyze, "security", "--offline=true", "--no-pager", "--threshold=17", dir+"/rpcrdma.service").CombinedOutput()
	if err != nil && strings.Contains(string(out), "unrecognized option") { // before systemd 250
		t.Log("this systemd-analyze does not judge units that are not installed")
	} else if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
