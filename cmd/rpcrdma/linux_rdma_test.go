//go:build linux && cgo

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/copying"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// linuxFiles are copied from Linux and back.
func linuxFiles(t *testing.T) (source string) {
	t.Helper()
	source = filepath.Join(t.TempDir(), "source")
	files := map[string]string{"empty": "", "one": "1", "dir/deep/x": randomText(1, 65537)}
	for _, size := range []int{1021, 4095, 4097, 65521, 1 << 20, 1<<20 + 1, 3_000_000} {
		files[fmt.Sprintf("sizes/%d", size)] = randomText(uint64(size), size)
	}
	testutil.WriteFiles(t, source, files)
	return source
}

// kernelServer returns the directory that the kernel's NFS server exports, and its port for RDMA,
// as scripts/vm --nfsd sets them up.
func kernelServer(t *testing.T) (dir, port string) {
	t.Helper()
	dir, port = os.Getenv("RPCRDMA_NFSD_DIR"), os.Getenv("RPCRDMA_NFSD_PORT")
	if dir == "" || port == "" {
		t.Skip("RPCRDMA_NFSD_DIR and RPCRDMA_NFSD_PORT do not tell of a kernel's NFS server: run it with scripts/test-rdma --nfsd")
	}
	return dir, port
}

// TestRDMALinuxServer: our client moves a tree to the kernel's NFS server and back,
// over each device, and from the software adapter to siw.
func TestRDMALinuxServer(t *testing.T) {
	dir, port := kernelServer(t)
	for _, tt := range []struct{ kind, provider string }{{"rxe", "rdma"}, {"siw", "rdma"}, {"siw", "iwarp"}} {
		t.Run(tt.kind+"/"+tt.provider, func(t *testing.T) {
			at := net.JoinHostPort(rdmatest.Device(t, tt.kind), port)
			source, back := linuxFiles(t), filepath.Join(t.TempDir(), "back")
			there, err := os.MkdirTemp(dir, "test")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(there)
			url := "nfs://" + at + filepath.Join(there, "up")
			with := []string{"--provider", tt.provider}
			mustRun(t, append([]string{"put", "-r", source, url}, with...)...)
			wantTree(t, filepath.Join(there, "up"), source)
			got := decodeJSON[copying.ResultJSON](t, mustRun(t, append([]string{"get", "-r", "--json", url, back}, with...)...))
			wantTree(t, back, source)
			if got.Stats.WriteChunk == 0 {
				t.Errorf("nothing came through write chunks: %+v", got)
			}
			// Linux has only version 1 and says so: the connection continues in it.
			if got.Stats.ErrVers != 1 || got.Stats.Conns != 1 || got.Stats.Resent != 0 {
				t.Errorf("the version took more than a question and an answer: %+v", got.Stats)
			}
			for _, version := range []string{"auto", "1"} {
				info := decodeJSON[look.InfoJSON](t, mustRun(t, append([]string{"probe", "--json", "--version", version, at}, with...)...))
				if info.Version != 1 || info.NullCall != "answered" || info.Credits == 0 || !info.PrivateData || info.Properties {
					t.Errorf("probe --version %s: %+v", version, info)
				}
			}
			mustFail(t, 1, "versions 1 to 1", append([]string{"probe", "--version", "2", at}, with...)...)
		})
	}
}

// TestRDMALinuxServerOverTCP: without RDMA, our client finds the kernel's NFS server by rpcbind, uses its
// files, lists its exports as showmount does, and calls MOUNT as a .x file declares it.
func TestRDMALinuxServerOverTCP(t *testing.T) {
	dir, _ := kernelServer(t)
	source, back := linuxFiles(t), filepath.Join(t.TempDir(), "back")
	there, err := os.MkdirTemp(dir, "test")
	testutil.Must(t, err)
	defer os.RemoveAll(there)
	const host = "127.0.0.1"
	url := host + ":" + filepath.Join(there, "up")
	mustRun(t, "put", "--provider", "tcp", "-r", source, url)
	wantTree(t, filepath.Join(there, "up"), source)
	mustRun(t, "get", "--provider", "tcp", "-r", url, back)
	wantTree(t, back, source)
	if out := mustRun(t, "ls", "--provider", "tcp", url); out != "dir/\nempty\none\nsizes/\n" {
		t.Errorf("ls prints %q", out)
	}
	want, err := exec.Command("showmount", "-e", host).Output()
	testutil.Must(t, err)
	if got := mustRun(t, "exports", "--provider", "tcp", host); got != string(want) {
		t.Errorf("exports prints\n%s\nshowmount -e\n%s", got, want)
	}
	exports := mustRun(t, "call", "--provider", "tcp", mountX, host, "EXPORT")
	if !strings.Contains(exports, fmt.Sprintf("\"ex_dir\": %q", dir)) {
		t.Errorf("EXPORT prints\n%s", exports)
	}
	if fh := textAt(t, mustRun(t, "call", "--provider", "tcp", mountX, host, "MNT", fmt.Sprintf("%q", dir)), "mountinfo", "fhandle"); fh == "" {
		t.Error("MNT returns no handle")
	}
}

// TestRDMALinuxClient: the kernel's NFS client mounts our server, and copies a tree to it
// and back, over each device.
func TestRDMALinuxClient(t *testing.T) {
	kernelServer(t) // with it the modules of the client are there, too
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		exported, mounted := t.TempDir(), t.TempDir()
		source, back := linuxFiles(t), filepath.Join(t.TempDir(), "back")
		s := startServer(t, "--dir", exported, "--provider", "rdma", "--addr", anyPort(addr), "--tcp-addr", anyPort(addr))
		_, rdmaPort, _ := net.SplitHostPort(s.addr)
		_, mountPort, _ := net.SplitHostPort(s.tcp)
		sh := func(name string, args ...string) {
			t.Helper()
			if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
				t.Fatalf("%s %v: %v\n%s", name, args, err, out)
			}
		}
		options := mountOptions(rdmaPort, mountPort)
		sh("mount", "-t", "nfs", "-o", options, addr+":/", mounted)
		unmount := func() { sh("umount", mounted) }
		defer func() { unmount() }()
		sh("cp", "-a", source, filepath.Join(mounted, "up"))
		// Mount again, so that nothing comes from the cache.
		unmount()
		wantTree(t, filepath.Join(exported, "up"), source)
		sh("mount", "-t", "nfs", "-o", options, addr+":/", mounted)
		sh("cp", "-a", filepath.Join(mounted, "up"), back)
		wantTree(t, back, source)
		sh("rm", "-r", filepath.Join(mounted, "up"))
	})
}
