package main

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A mute is a server that does not answer one procedure. It passes NULL, which a server
// answers by itself, to a program that never answers.
type mute struct {
	*hostile
	prog, proc uint32
	end        chan struct{}
}

func (m *mute) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	if req.Prog == m.prog && req.Proc == m.proc {
		<-m.end
		res.Fail(oncrpc.SystemErr)
		return
	}
	if req.Prog != nfs.Program && req.Prog != nfs.MountProgram {
		return
	}
	m.hostile.ServeRPC(ctx, req, res)
}

func (m *mute) start(t *testing.T) string {
	t.Helper()
	server, err := transport.NewServer(nil)
	testutil.Must(t, err)
	var serving sync.WaitGroup
	var bridge net.Listener
	if m.proc == 0 {
		bridge = server.Bridge(nfs.Binding{}, m.prog)
		serving.Go(func() {
			if conn, err := bridge.Accept(); err == nil {
				io.Copy(io.Discard, conn)
				conn.Close()
			}
		})
	}
	for prog, vers := range map[uint32]uint32{nfs.Program: 3, nfs.MountProgram: 3, notify.RpcrdmaNotify: notify.NotifyV1, loadgen.ProgramNumber: loadgen.ProgramVersion} {
		if m.proc == 0 && prog == m.prog {
			continue
		}
		testutil.Must(t, server.Register(rpc.Program{Number: prog, Low: vers, High: vers, Handler: m}))
	}
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	m.end = make(chan struct{})
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() {
		close(m.end)
		server.Close()
		if bridge != nil {
			bridge.Close()
		}
		serving.Wait()
	})
	return l.Addr().String()
}

// Whichever call a server does not answer, the command ends, and its error has the call and the state
// of the connection.
func TestStalls(t *testing.T) {
	local := t.TempDir()
	testutil.WriteFiles(t, local, map[string]string{"file": "x", "large": strings.Repeat("x", 3*4096)})
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, as the system does for it
	testutil.Must(t, err)
	defer silent.Close()
	in := func(name string) string { return filepath.Join(local, name) }
	state := regexp.MustCompile(`\(calls in flight: \d, credits: \d+, replies before: \d+, RPC-over-RDMA version 2 over iwarp\)\n$`)
	const (
		none  = 0
		limit = "3s"
	)
	var running sync.WaitGroup
	for _, tt := range []struct {
		prog, proc uint32
		want       string // the text after the limit
		args       []string
	}{
		{none, 0, "connecting to ADDR over iwarp", []string{"ls", "nfs://ADDR/"}},
		{none, 0, "connecting to ADDR over iwarp", []string{"ping", "ADDR"}},
		{none, 0, "connecting to ADDR over iwarp", []string{"probe", "ADDR"}},
		{none, 0, "connecting to ADDR over iwarp", []string{"watch", "rdma://ADDR/"}},
		{none, 0, "asking the rpcbind at ADDR", []string{"ls", "--rpcbind=ADDR", "nfs://127.0.0.1/"}},
		{none, 0, "asking the rpcbind at ADDR", []string{"ping", "--rpcbind=ADDR", "127.0.0.1"}},
		{nfs.Program, 0, "NULL of NFS version 3 (calls in flight: 1, credits: ", []string{"ping", "ADDR"}},
		{nfs.Program, 0, "NULL of NFS version 3 (calls in flight: 1, ", []string{"probe", "ADDR"}},
		{loadgen.ProgramNumber, 0, "NULL of RPCRDMA_BENCH version 1 (calls in flight: 1, ", []string{"bench", "ADDR"}},
		{loadgen.ProgramNumber, loadgen.ProcEcho, "calls of echo of 64, depth 3 (calls in flight: 3, ", []string{"bench", "--op", "echo", "--depth", "3", "ADDR"}},
		{notify.RpcrdmaNotify, notify.NotifyWatch, "WATCH of /dir (calls in flight: 1, ", []string{"watch", "rdma://ADDR/dir"}},
		{nfs.MountProgram, 0, "MOUNT NULL (calls in flight: 1, ", []string{"ls", "nfs://ADDR/"}},
		{nfs.MountProgram, nfs.MountProcExport, "MOUNT EXPORT (calls in flight: 1, ", []string{"ls", "nfs://ADDR/"}},
		{nfs.MountProgram, nfs.MountProcMnt, "MOUNT MNT (calls in flight: 1, ", []string{"ls", "nfs://ADDR/"}},
		{nfs.Program, nfs.ProcGetAttr, "GETATTR (calls in flight: 1, ", []string{"ls", "nfs://ADDR/"}},
		{nfs.Program, nfs.ProcReadDirPlus, "READDIRPLUS of / (calls in flight: 1, ", []string{"ls", "nfs://ADDR/"}},
		{nfs.Program, nfs.ProcReadDirPlus, "READDIRPLUS of / (calls in flight: 1, ", []string{"get", "-r", "nfs://ADDR/", in("tree")}},
		{nfs.Program, nfs.ProcLookup, "LOOKUP (calls in flight: 1, ", []string{"get", "nfs://ADDR/file", in("copy")}},
		{nfs.Program, nfs.ProcRead, "READ of /file (calls in flight: 1, ", []string{"get", "nfs://ADDR/file", in("copy")}},
		{nfs.Program, nfs.ProcReadLink, "READLINK of /link (calls in flight: 1, ", []string{"get", "-r", "nfs://ADDR/", in("tree2")}},
		{nfs.Program, nfs.ProcCreate, "CREATE (calls in flight: 1, ", []string{"put", in("file"), "nfs://ADDR/new"}},
		{nfs.Program, nfs.ProcWrite, "WRITE of /new and 2 more (calls in flight: 3, ", []string{"put", in("large"), "nfs://ADDR/new"}},
		{nfs.Program, nfs.ProcCommit, "COMMIT of /new (calls in flight: 1, ", []string{"put", in("large"), "nfs://ADDR/new"}},
		{nfs.Program, nfs.ProcRename, "RENAME (calls in flight: 1, ", []string{"put", in("file"), "nfs://ADDR/new"}},
	} {
		addr := silent.Addr().String()
		if tt.prog != none {
			m := &mute{prog: tt.prog, proc: tt.proc, hostile: &hostile{
				entries: map[string][]nfs.DirEntry{"/": {hostileEntry("file", "f", nfs.TypeReg), hostileEntry("link", "l", nfs.TypeLnk)}},
				data:    "contents",
			}}
			addr = m.start(t)
		}
		want := "no answer from the server for " + limit + ": " + strings.ReplaceAll(tt.want, "ADDR", addr)
		args := []string{tt.args[0], "--timeout", limit}
		for _, arg := range tt.args[1:] {
			args = append(args, strings.ReplaceAll(arg, "ADDR", addr))
		}
		running.Go(func() {
			r := runCommand(t, args...)
			if r.status != 1 || !strings.Contains(r.stderr, want) || tt.prog != none && !state.MatchString(r.stderr) {
				t.Errorf("%q: status %d, want %q:\n%s", args, r.status, want, r.stderr)
			}
		})
	}
	running.Go(func() {
		r := runCommand(t, "ping", "--timeout", "1s", "--debug-stalls", silent.Addr().String())
		if r.status != 1 || !strings.Contains(r.stderr, "and all goroutines are:\ngoroutine ") || !strings.Contains(r.stderr, "transport.Dial(") {
			t.Errorf("ping --debug-stalls: status %d\n%s", r.status, r.stderr)
		}
	})
	running.Go(func() {
		// Without a limit, an interrupt ends it. It is at work when the server has been
		// called.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		cmd := command(ctx, "ping", "--timeout", "none", l.Addr().String())
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Error(err)
			return
		}
		if c, err := l.Accept(); err == nil {
			defer c.Close()
			c.Read(make([]byte, 1))
		}
		cmd.Process.Signal(syscall.SIGINT)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 1 || stderr.String() != "rpcrdma: ping: interrupted\n" {
			t.Errorf("interrupted: status %d\n%s", code, &stderr)
		}
	})
	running.Wait()
	if left, _ := filepath.Glob(in(".rpcrdma-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// Commands without a time limit end when their work does.
func TestCommandsWithoutLimit(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x"})
	s := startServer(t, "--dir", dir, "--timeout", "none")
	for _, none := range []string{"0", "none"} {
		mustRun(t, "ping", "--timeout", none, "-c", "1", s.addr)
		mustRun(t, "probe", "--timeout", none, s.addr)
		mustRun(t, "bench", "--timeout", none, "--op", "null", "--calls", "5", "--depth", "1", s.addr)
		mustRun(t, "ls", "--timeout", none, s.url("/"))
		if err := os.Remove(filepath.Join(dir, "watched")); err != nil && none == "none" {
			t.Error(err)
		}
		watching := command(t.Context(), "watch", "--timeout", none, "--count", "1", "rdma://"+s.addr+"/")
		stderr, err := watching.StderrPipe()
		testutil.Must(t, err, watching.Start())
		if n, err := stderr.Read(make([]byte, 1)); n != 1 {
			t.Errorf("watch: %v", err)
		}
		testutil.WriteFiles(t, dir, map[string]string{"watched": "x"})
		testutil.Must(t, watching.Wait())
	}
	mustFail(t, 2, "want a time such as 90s or 2m, or none", "ping", "--timeout", "-1s", s.addr)
}
