//go:build linux && cgo

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/copying"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

func anyPort(addr string) string { return net.JoinHostPort(addr, "0") }

// useServer copies a tree to a server and back, with every command. server and client are
// arguments of the two ends.
func useServer(t *testing.T, server, client []string, name string) {
	t.Helper()
	dir := t.TempDir()
	source, target, back := filepath.Join(dir, "source"), filepath.Join(dir, "target"), filepath.Join(dir, "back")
	files := map[string]string{"empty": "", "one": "1", "dir/deep/x": randomText(1, 65537), "nothing/": "", "link": "-> dir/deep"}
	for _, size := range []int{4095, 4096, 1<<20 + 1} {
		files[fmt.Sprintf("sizes/%d", size)] = randomText(uint64(size), size)
	}
	testutil.WriteFiles(t, source, files)
	os.Mkdir(target, 0o755)
	s := startServer(t, append([]string{"--dir", target}, server...)...)
	with := func(args ...string) []string { return append(args, client...) }

	mustRun(t, with("put", "-r", source, s.url("/up"))...)
	wantTree(t, filepath.Join(target, "up"), source)
	r := decodeJSON[copying.ResultJSON](t, mustRun(t, with("get", "-r", "--json", s.url("/up"), back)...))
	wantTree(t, back, source)
	if r.Stats.WriteChunk == 0 {
		t.Errorf("get: %+v", r)
	}
	if out := mustRun(t, with("ls", s.url("/up"))...); out != "dir/\nempty\nlink\nnothing/\none\nsizes/\n" {
		t.Errorf("ls prints\n%s", out)
	}
	if out := mustRun(t, with("ping", "-c", "10", s.addr)...); !strings.Contains(out, "10 NULL calls to NFS version 3 at "+s.addr+" over "+name+"\n") {
		t.Errorf("ping prints\n%s", out)
	}
	i := decodeJSON[look.InfoJSON](t, mustRun(t, with("probe", "--json", s.addr)...))
	if i.Provider != name || (name == provider.RDMA) == (i.Device == "") || i.Remote != s.addr || i.Credits == 0 || i.NullCall != "answered" {
		t.Errorf("probe: %+v", i)
	}
}

func TestRDMACommands(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		overRDMA := []string{"--provider", "rdma"}
		useServer(t, append(overRDMA, "--addr", anyPort(addr)), overRDMA, "rdma")
	})
}

func TestRDMAIPv6(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		addr6 := rdmatest.Device6(t, kind)
		s := startServer(t, "--dir", t.TempDir(), "--provider", "rdma", "--addr", anyPort(addr6))
		mustRun(t, "ls", "--provider", "rdma", s.url("/"))
	})
}

func TestRDMAWait(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		for _, wait := range []string{"adaptive", "event", "poll"} {
			s := startServer(t, "--dir", t.TempDir(), "--provider", "rdma", "--wait", wait, "--addr", anyPort(addr))
			mustRun(t, "ping", "-c", "5", "--provider", "rdma", "--wait", wait, s.addr)
			if err := s.stop(); err != nil {
				t.Errorf("serve --wait %s: %v\n%s", wait, err, &s.stderr)
			}
		}
	})
}

// The kernel's iWARP and ours interoperate.
func TestRDMAAndIWARP(t *testing.T) {
	addr := rdmatest.Device(t, "siw")
	t.Run("client on the device", func(t *testing.T) {
		useServer(t, []string{"--provider", "iwarp", "--addr", anyPort(addr)}, []string{"--provider", "rdma"}, "rdma")
	})
	t.Run("server on the device", func(t *testing.T) {
		useServer(t, []string{"--provider", "rdma", "--addr", anyPort(addr)}, []string{"--provider", "iwarp"}, "iwarp")
	})
}

// Traffic over a device is recorded, as packets of the software adapter or of RoCE: all calls are
// there, each with its reply, and nothing breaks a rule.
func TestRDMACapture(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		for _, framing := range []string{"iwarp", "roce"} {
			s := recordSession(t, []string{"--addr", anyPort(addr)}, "--provider", "rdma", "--capture-as", framing)
			for _, file := range append(slices.Collect(maps.Values(s.client)), s.server) {
				out := mustRun(t, "decode", "--json", file) // status 1 if a rule is broken
				calls, chunks := 0, uint64(0)
				for line := range strings.Lines(out) {
					var c struct {
						Procedures []struct{ Calls, Failed int }
						Unanswered int
						Gaps       int
						Read       [2]uint64 `json:"read_bytes"`
						Written    [2]uint64 `json:"write_bytes"`
					}
					testutil.Must(t, json.Unmarshal([]byte(line), &c))
					for _, p := range c.Procedures {
						calls += p.Calls
					}
					chunks += c.Read[0] + c.Read[1] + c.Written[0] + c.Written[1]
					if c.Unanswered != 0 || c.Gaps != 0 {
						t.Errorf("%s: %s", filepath.Base(file), line)
					}
				}
				if calls == 0 {
					t.Errorf("%s as %s: no calls\n%s", filepath.Base(file), framing, out)
				}
				if file == s.server && chunks < 2*uint64(len(s.data)) {
					t.Errorf("the server moved %d bytes in chunks\n%s", chunks, out)
				}
			}
		}
	})
}

// auto takes the device, and says so.
func TestRDMAAuto(t *testing.T) {
	run := func(t *testing.T, addr, name, server, client string) {
		s := startServer(t, "--dir", t.TempDir(), "--provider", "auto", "--addr", anyPort(addr))
		for _, args := range [][]string{{"ping", "-c", "1", "--json", s.addr}, {"ls", s.url("/")}, {"probe", s.addr}} {
			r := runCommand(t, append(args, "--provider", "auto")...)
			if want := "rpcrdma: provider " + name + ": " + client; r.status != 0 || !strings.HasPrefix(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("%s: status %d, want %q\n%s", args, r.status, want, r.stderr)
			}
		}
		mustRun(t, "ping", "-c", "1", "--provider", name, s.addr)
		if err := s.stop(); err != nil {
			t.Errorf("serve: %v", err)
		}
		if want := "rpcrdma: provider " + name + ": " + server; !strings.HasPrefix(s.stderr.String(), want) || strings.Count(s.stderr.String(), "\n") != 1 {
			t.Errorf("serve says %q, want %q", &s.stderr, want)
		}
	}
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		run(t, addr, "rdma", "device "+kind+"0 has the address of "+addr, "device "+kind+"0 has a route to "+addr)
	})
	t.Run("loopback", func(t *testing.T) {
		if !provider.HasDevices() {
			t.Skip("no RDMA device that auto could prefer; TestProviderOptions is about this")
		}
		run(t, "127.0.0.1", "iwarp", "no RDMA device has the address of 127.0.0.1", "127.0.0.1:")
	})
	t.Run("all addresses", func(t *testing.T) {
		addr := rdmatest.Device(t, "rxe")
		s := startServer(t, "--dir", t.TempDir(), "--provider", "auto", "--addr", "0.0.0.0:0")
		_, port, _ := net.SplitHostPort(s.addr)
		mustRun(t, "ping", "-c", "1", "--provider", "rdma", net.JoinHostPort(addr, port))
		if err := s.stop(); err != nil || !strings.HasPrefix(s.stderr.String(), "rpcrdma: provider rdma: listening on ") || !strings.Contains(s.stderr.String(), "rxe0") {
			t.Errorf("serve: %v\n%s", err, &s.stderr)
		}
	})
}

// A client of the wrong provider gets a hint.
func TestRDMAWrongProvider(t *testing.T) {
	addr := rdmatest.Device(t, "rxe")
	const iwarpHint = "connection refused (RDMA_CM_EVENT_REJECTED); a server that speaks iWARP over TCP is reached with --provider iwarp"
	s := startServer(t, "--dir", t.TempDir(), "--provider", "iwarp", "--addr", anyPort(addr))
	mustFail(t, 1, iwarpHint, "ping", "--provider", "rdma", s.addr)
	mustFail(t, 1, iwarpHint, "probe", "--provider", "rdma", s.addr)
	mustFail(t, 1, iwarpHint, "ls", "--provider", "rdma", s.url("/"))
	r := runCommand(t, "ls", "--provider", "auto", s.url("/"))
	if r.status != 0 || !strings.HasPrefix(r.stderr, "rpcrdma: provider rdma: device rxe0 ") || !strings.HasSuffix(r.stderr,
		"\nrpcrdma: provider iwarp: no connection to "+s.addr+" over rdma: connection refused (RDMA_CM_EVENT_REJECTED)\n") {
		t.Errorf("auto: status %d\n%s", r.status, r.stderr)
	}

	s = startServer(t, "--dir", t.TempDir(), "--provider", "rdma", "--addr", anyPort(addr))
	const rdmaHint = "connection refused: nothing listens there; a server on an RDMA device is reached with --provider rdma"
	mustFail(t, 1, rdmaHint, "ping", s.addr)
	mustFail(t, 1, rdmaHint, "ls", s.url("/"))
}

// A tree is read from a server and written to another one, which is watched: of each file that is put
// there, the watch reports the name.
func TestRDMATrees(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		dir := t.TempDir()
		source, copied, target := filepath.Join(dir, "source"), filepath.Join(dir, "copied"), filepath.Join(dir, "target")
		files := make(map[string]string)
		for i := range 100 {
			files[fmt.Sprintf("%d/%d", i%7, i)] = randomText(uint64(i), i*i*3)
		}
		for _, size := range []int{0, 1, 3, 1023, 1024, 1025, 4097, 65537, 1<<20 + 1, 8<<20 + 3} {
			files[fmt.Sprintf("sizes/%d", size)] = randomText(uint64(size), size)
		}
		testutil.WriteFiles(t, source, files)
		testutil.Must(t, os.Mkdir(target, 0o755))
		serve := func(args ...string) *testServer {
			return startServer(t, append(args, "--provider", "rdma", "--addr", anyPort(addr))...)
		}
		from, to := serve("--dir", source, "--read-only"), serve("--dir", target)
		mustRun(t, "get", "--provider", "rdma", "-r", from.url("/"), copied)
		wantTree(t, copied, source)
		w := startWatch(t, "--provider", "rdma", "rdma://"+to.addr+"/")
		mustRun(t, "put", "--provider", "rdma", "-r", copied, to.url("/"))
		wantTree(t, target, source)
		missing := maps.Clone(files)
		late := time.After(testTimeout)
		for len(missing) > 0 {
			select {
			case line, ok := <-w.lines:
				if !ok {
					t.Fatalf("the watch has ended:\n%s", w.stderr)
				}
				delete(missing, line[strings.LastIndexByte(line, ' ')+1:])
			case <-late:
				t.Fatalf("the watch has not reported %q", slices.Sorted(maps.Keys(missing)))
			}
		}
	})
}

// Errors say on one line what is wrong.
func TestRDMABadInput(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		dir := t.TempDir()
		s := startServer(t, "--dir", dir, "--provider", "rdma", "--addr", anyPort(addr))
		all := startServer(t, "--dir", dir, "--provider", "rdma", "--addr", "0.0.0.0:0")
		_, allPort, _ := net.SplitHostPort(all.addr)
		serve := func(addr string) []string {
			return []string{"serve", "--dir", dir, "--provider", "rdma", "--addr", addr}
		}
		for _, tt := range []struct {
			text string
			args []string
		}{
			{s.addr + ": address already in use", serve(s.addr)},
			{"address already in use", serve(net.JoinHostPort(addr, allPort))},
			{"address already in use", serve(all.addr)},
			{"no RDMA device has the address of 127.0.0.1:0: 'rpcrdma devices' lists", serve("127.0.0.1:0")},
			{"no RDMA device has the address of 192.0.2.1:0: 'rpcrdma devices' lists", serve("192.0.2.1:0")},
			{"no RDMA device has a route there: 'rpcrdma devices' lists", []string{"ping", "--provider", "rdma", "127.0.0.1:20049"}},
			{"no RDMA device has a route there: 'rpcrdma devices' lists", []string{"ls", "--provider", "rdma", "nfs://192.0.2.1/"}},
			{"; a server that speaks iWARP over TCP is reached with --provider iwarp", []string{"ping", "--provider", "rdma", net.JoinHostPort(addr, "1")}},
			{"no such file (NFS3ERR_NOENT)", []string{"ls", "--provider", "rdma", s.url("/nope")}},
			{"no such file or directory", []string{"serve", "--dir", filepath.Join(dir, "nope"), "--provider", "rdma", "--addr", anyPort(addr)}},
		} {
			mustFail(t, 1, tt.text, tt.args...)
		}
		mustFail(t, 2, "want iwarp, rdma, auto or tcp", "ping", "--provider", "mlx5_0", s.addr)
		if kind == "rxe" {
			mustFail(t, 1, "; a server that speaks iWARP", "ls", "--timeout", "2s", "--provider", "rdma", "nfs://"+addr+"7/")
		}
	})
}

// nobodysCommand returns an executable that user nobody may execute.
func nobodysCommand(t *testing.T) (path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become nobody and have device files of its own")
	}
	// Only the user may enter the directories of tests.
	dir, err := os.MkdirTemp("", "rpcrdma-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "rpcrdma")
	data, err := os.ReadFile(os.Args[0])
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(path, data, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// restricted runs a command as user nobody, with at most memlock KiB of locked memory, and
// with device files of its own, of which those that begin with denied belong to root.
func restricted(t *testing.T, binary, lock, denied string, args ...string) result {
	t.Helper()
	const script = `set -eu
files=$(stat -c '%n %t %T' /dev/infiniband/*)
mount -t tmpfs -o mode=755 none /dev/infiniband
echo "$files" | while read -r name major minor; do
	mknod -m 666 "$name" c $((0x$major)) $((0x$minor))
done
if [ "$2" ]; then chmod 600 /dev/infiniband/"$2"*; fi
ulimit -l "$1"
shift 2
cd /
exec setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"`
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	as := command(ctx) // for its environment
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "sh", "-c", script, "sh", lock, denied, binary}, args...)...)
	cmd.Env = as.Env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func wantOneLine(t *testing.T, r result, text string) {
	t.Helper()
	if r.status != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "rpcrdma: ") || !strings.Contains(r.stderr, text) {
		t.Errorf("status %d, want 1 and one line with %q:\n%s", r.status, text, r.stderr)
	}
}

// wantUnusable checks that devices lists the device and says why it cannot be used.
func wantUnusable(t *testing.T, r result, kind, text string) {
	t.Helper()
	if r.status != 0 || r.stderr != "" {
		t.Fatalf("devices: status %d\n%s", r.status, r.stderr)
	}
	for _, d := range decodeJSON[look.ReportJSON](t, r.stdout).Devices {
		if d.Name == kind+"0" {
			if d.Usable || !strings.Contains(d.Reason, text) {
				t.Errorf("devices: %s usable %v, reason %q, want %q", d.Name, d.Usable, d.Reason, text)
			}
			return
		}
	}
	t.Errorf("devices does not list %s0:\n%s", kind, r.stdout)
}

func TestRDMAMemlock(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		binary := nobodysCommand(t)
		s := startServer(t, "--dir", t.TempDir(), "--provider", "rdma", "--addr", anyPort(addr))
		const limit = "40" // below 32 the library warns by itself
		const text = "this process may lock 40 KiB of memory and needs "
		const advice = ": raise the limit (ulimit -l, "
		for _, args := range [][]string{
			{"ls", "--provider", "rdma", s.url("/")}, // a ping needs less
			{"serve", "--provider", "rdma", "--addr", anyPort(addr), "--dir", "/"},
		} {
			r := restricted(t, binary, limit, "", args...)
			wantOneLine(t, r, text)
			wantOneLine(t, r, " more on "+kind+"0"+advice)
		}
		wantUnusable(t, restricted(t, binary, limit, "", "devices", "--json"), kind, text)
		// With enough locked memory, user nobody needs no privilege.
		if r := restricted(t, binary, "8192", "", "ls", "--provider", "rdma", s.url("/")); r.status != 0 || r.stderr != "" {
			t.Errorf("as nobody: status %d\n%s", r.status, r.stderr)
		}
	})
}

func TestRDMAPermission(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		binary := nobodysCommand(t)
		s := startServer(t, "--dir", t.TempDir(), "--provider", "rdma", "--addr", anyPort(addr))
		for _, denied := range []string{"uverbs", "rdma_cm"} {
			for _, args := range [][]string{
				{"ls", "--provider", "rdma", s.url("/")},
				{"serve", "--provider", "rdma", "--addr", anyPort(addr), "--dir", "/"},
			} {
				r := restricted(t, binary, "unlimited", denied, args...)
				wantOneLine(t, r, "no permission to use ")
				wantOneLine(t, r, ": this needs read and write access to /dev/infiniband/"+denied)
			}
			wantUnusable(t, restricted(t, binary, "unlimited", denied, "devices", "--json"), kind, "no permission to use ")
		}
		wantOneLine(t, restricted(t, binary, "unlimited", "", "serve", "--provider", "rdma", "--addr", net.JoinHostPort(addr, "80"), "--dir", "/"),
			"ports below 1024 are for root")
	})
}

func TestRDMADevices(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		r := decodeJSON[look.ReportJSON](t, mustRun(t, "devices", "--json"))
		i := slices.IndexFunc(r.Devices, func(d provider.Device) bool { return d.Driver == kind })
		if i < 0 || !r.Providers[1].Usable {
			t.Fatalf("no %s in %+v", kind, r)
		}
		d := r.Devices[i]
		if !d.Usable || d.Transport != map[string]string{"rxe": "roce", "siw": "iwarp"}[kind] {
			t.Errorf("%s is %+v", kind, d)
		}
		if !slices.ContainsFunc(d.Addresses, func(a provider.Address) bool { return a.Address == addr && a.Port == 1 && a.NetworkDevice != "" }) {
			t.Errorf("%s lacks address %s: %+v", kind, addr, d.Addresses)
		}
		if p := d.Ports[0]; p.State != "active" || p.LinkLayer != "ethernet" || p.MTU == 0 || p.MaxMessage < 1<<20 || len(p.GIDs) == 0 {
			t.Errorf("port: %+v", p)
		}
		if c := d.Capabilities; c.MaxQP == 0 || c.MaxSGE == 0 || c.MaxCQEntries == 0 || c.InboundReads == 0 || !c.SendWithInvalidate || c.SafeWindows || (len(c.MemoryWindows) > 0) != (kind == "rxe") {
			t.Errorf("capabilities: %+v", c)
		}
		out := mustRun(t, "devices")
		for line := range strings.Lines(out) {
			if len(line) > 101 {
				t.Errorf("a line of %d columns: %s", len(line)-1, line)
			}
		}
		for _, want := range []string{"\n" + d.Name + "\n", "  address               " + addr + " on "} {
			if !strings.Contains(out, want) {
				t.Errorf("devices lacks %q:\n%s", want, out)
			}
		}
	})
}
