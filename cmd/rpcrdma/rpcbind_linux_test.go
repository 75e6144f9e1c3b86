package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind/rpcbindtest"
)

// registered lists the mappings of serve in the answer to DUMP: "PROGRAM VERSION NETID ADDRESS".
func registered(t *testing.T) (list []string) {
	t.Helper()
	c := rpcbind.Client{Addr: rpcbindtest.Addr}
	all, err := c.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.Prog == nfs.Program || m.Prog == nfs.MountProgram {
			list = append(list, fmt.Sprintf("%d %d %s %s", m.Prog, m.Vers, m.Netid, m.Addr))
		}
	}
	slices.Sort(list)
	return list
}

// TestRPCBind: clients find a server that is registered with the real rpcbind.
// CTX-1833-1: register and look up netid rdma. V1-10-1: a service over RDMA registers like
// one over TCP, and DUMP has its netid and port. RFC 5666 section 10.
func TestRPCBind(t *testing.T) {
	rpcbindtest.Run(t, func(t *testing.T) {
		dir, local := t.TempDir(), t.TempDir()
		testutil.WriteFiles(t, dir, map[string]string{"file": "x"})
		s := startServer(t, "--dir", dir, "--tcp-addr", "127.0.0.1:0", "--rpcbind")
		uaddr := func(addr string) string {
			a, err := net.ResolveTCPAddr("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			return rpcbind.FormatAddr(a.AddrPort())
		}
		want := []string{
			"100003 3 rdma " + uaddr(s.addr), "100003 3 tcp " + uaddr(s.tcp),
			"100005 3 rdma " + uaddr(s.addr), "100005 3 tcp " + uaddr(s.tcp),
		}
		if got := registered(t); !slices.Equal(got, want) {
			t.Errorf("registered is %q, want %q", got, want)
		}

		t.Run("clients", func(t *testing.T) {
			if out := mustRun(t, "ls", "--rpcbind", "nfs://127.0.0.1/"); out != "file\n" {
				t.Errorf("ls prints %q", out)
			}
			copied := filepath.Join(local, "copy")
			mustRun(t, "get", "--rpcbind="+rpcbindtest.Addr, "nfs://127.0.0.1/file", copied)
			mustRun(t, "put", "--rpcbind", copied, "nfs://127.0.0.1/again")
			if b, err := os.ReadFile(filepath.Join(dir, "again")); err != nil || string(b) != "x" {
				t.Errorf("put: %q, %v", b, err)
			}
			for _, prog := range []string{"100003", "100005"} {
				if out := mustRun(t, "ping", "-c", "1", "--rpcbind", "--prog", prog, "127.0.0.1"); !strings.Contains(out, " at "+s.addr+" over iwarp\n") {
					t.Errorf("ping prints\n%s", out)
				}
			}
			for _, asking := range []string{"--timeout=1m", "--rpcbind"} { // unasked, and asked for
				if out := mustRun(t, "ls", "--provider", "tcp", asking, "127.0.0.1:/again"); out != "again\n" {
					t.Errorf("ls over TCP prints %q", out)
				}
				if out := mustRun(t, "ping", "-c", "1", "--provider", "tcp", "--prog", "100005", asking, "127.0.0.1"); !strings.Contains(out, " at "+s.tcp+" over tcp\n") {
					t.Errorf("ping over TCP prints\n%s", out)
				}
			}
			if i := decodeJSON[look.InfoJSON](t, mustRun(t, "probe", "--json", "--rpcbind", "127.0.0.1")); i.Remote != s.addr {
				t.Errorf("probe: %+v", i)
			}
			mustFail(t, 1, "the rpcbind at 127.0.0.1:111 has no program 300000 version 1 over rdma registered",
				"ping", "--rpcbind", "--prog", "300000", "--vers", "1", "127.0.0.1")
		})
		t.Run("call", func(t *testing.T) {
			const file = "internal/calling/testdata/rpcbind.x"
			out := mustRun(t, "call", "--provider", "tcp", file, rpcbindtest.Addr, "GETADDR",
				`{"r_prog": 100003, "r_vers": 3, "r_netid": "tcp", "r_addr": "", "r_owner": ""}`)
			if want := fmt.Sprintf("%q\n", uaddr(s.tcp)); out != want {
				t.Errorf("GETADDR prints %s, want %s", out, want)
			}
			// rpcbind has registered itself, and finds its own port.
			dump := mustRun(t, "call", "--provider", "tcp", file, "127.0.0.1", "RPCBPROG.DUMP")
			if n := strings.Count(dump, `"r_prog": 100003`); n != 2 || !strings.Contains(dump, `"r_netid": "rdma"`) {
				t.Errorf("DUMP prints\n%s", dump)
			}
			_, port, _ := net.SplitHostPort(s.tcp)
			out = mustRun(t, "call", "--provider", "tcp", "--vers", "2", file, rpcbindtest.Addr, "GETPORT", `{"prog": 100003, "vers": 3, "prot": 6, "port": 0}`)
			if out != port+"\n" {
				t.Errorf("GETPORT prints %s, want %s", out, port)
			}
		})
		t.Run("another server", func(t *testing.T) {
			mustFail(t, 1, "registering NFS version 3 over rdma with the rpcbind at localhost:111: another address is registered already",
				"serve", "--dir", dir, "--addr", "127.0.0.1:0", "--rpcbind")
			if got := registered(t); !slices.Equal(got, want) {
				t.Errorf("then registered is %q, want %q", got, want)
			}
		})
		t.Run("the end", func(t *testing.T) {
			if err := s.stop(); err != nil {
				t.Fatalf("%v\n%s", err, &s.stderr)
			}
			if got := registered(t); len(got) != 0 {
				t.Errorf("SIGTERM leaves %q", got)
			}
		})
		t.Run("all or nothing", func(t *testing.T) {
			c := rpcbind.Client{Addr: rpcbindtest.Addr}
			theirs := rpcbind.Mapping{Prog: nfs.MountProgram, Vers: nfs.MountVersion, Netid: rpcbind.TCP, Addr: "127.0.0.1.2.3"}
			if err := c.Set(t.Context(), theirs); err != nil {
				t.Fatal(err)
			}
			mustFail(t, 1, "registering MOUNT version 3 over tcp", "serve", "--dir", dir, "--addr", "127.0.0.1:0", "--tcp-addr", "127.0.0.1:0", "--rpcbind")
			if got := registered(t); !slices.Equal(got, []string{"100005 3 tcp 127.0.0.1.2.3"}) {
				t.Errorf("then registered is %q", got)
			}
		})
	})
}

// TestShowmount: the showmount of Linux finds the exports and their clients.
func TestShowmount(t *testing.T) {
	showmount, err := exec.LookPath("showmount")
	if err != nil {
		t.Skip("showmount is not installed: see scripts/setup")
	}
	rpcbindtest.Run(t, func(t *testing.T) {
		a, b := t.TempDir(), t.TempDir()
		s := startServer(t, "--export", a+"=/all", "--export", b+"=/some,allow=192.0.2.0/24,allow=2001:db8::1", "--tcp-addr", "127.0.0.1:0", "--rpcbind")
		testutil.Must(t, s.dialNFS(t).Null(t.Context()))
		mntOf(t, s.dialNFS(t), "/all")
		for flag, want := range map[string][]string{"-e": {"/all", "(everyone)", "/some", "192.0.2.0/24,2001:db8::1/128"}, "-a": {"127.0.0.1:/all"}} {
			out, err := exec.CommandContext(t.Context(), showmount, "--no-headers", flag, "127.0.0.1").CombinedOutput()
			if err != nil || !slices.Equal(strings.Fields(string(out)), want) {
				t.Errorf("showmount %s prints %q, %v", flag, out, err)
			}
		}
		want, err := exec.CommandContext(t.Context(), showmount, "-e", "127.0.0.1").Output()
		testutil.Must(t, err)
		for _, args := range [][]string{{"--provider", "tcp", "127.0.0.1"}, {"--rpcbind", "127.0.0.1"}} {
			if got := mustRun(t, append([]string{"exports"}, args...)...); got != string(want) {
				t.Errorf("exports %s prints\n%s\nshowmount -e\n%s", args, got, want)
			}
		}
	})
}
