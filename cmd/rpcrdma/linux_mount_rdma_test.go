//go:build linux && cgo

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// longTests reports whether the tests with the kernel's NFS client do all that they can:
// RPCRDMA_LINUX_LONG is set, and not "links".
func longTests() bool {
	v := os.Getenv("RPCRDMA_LINUX_LONG")
	return v != "" && v != "links"
}

// allLinks reports whether they use every link, or, in a short run, a few of them one alone.
func allLinks() bool { return os.Getenv("RPCRDMA_LINUX_LONG") != "" }

// sh runs a program that must succeed, and returns its output.
func sh(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// ext4 mounts a new ext4 file system of some MiB, for the time of the test: it has handles,
// generations and stable cookies, which the root file system of the virtual machine lacks.
// Looking at a directory does not change it.
func ext4(t *testing.T, size int) (dir string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	dir = publicDir(t)
	sh(t, "truncate", "-s", fmt.Sprintf("%dM", size), image)
	sh(t, "mkfs.ext4", "-q", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-O", "^has_journal", image)
	sh(t, "modprobe", "-a", "loop", "ext4")
	sh(t, "mount", "-o", "loop,nodiratime", image, dir)
	t.Cleanup(func() { sh(t, "umount", dir) })
	return dir
}

// A link is a way from the kernel's NFS client to a server.
type link struct {
	kind     string // of the device
	provider string // of our server
}

func (l link) String() string { return l.kind + "/" + l.provider }

// links are the devices on both sides, and our software adapter against the kernel's.
func links() []link { return []link{{"rxe", "rdma"}, {"siw", "rdma"}, {"siw", "iwarp"}} }

// onLinks runs a test on every link.
func onLinks(t *testing.T, f func(t *testing.T, l link)) {
	kernelServer(t) // with it the modules of the client are there, too
	for _, l := range links() {
		t.Run(l.String(), func(t *testing.T) {
			rdmatest.Device(t, l.kind)
			f(t, l)
		})
	}
}

// A mountedServer is a serve command that the kernel's client has mounted.
type mountedServer struct {
	t      *testing.T
	args   []string
	user   int // that the server is; 0: root
	addr   string
	tcp    string
	mount  string // where
	cmd    *exec.Cmd
	stderr *bytes.Buffer
}

// mountServer serves dir and mounts it. user is the server's.
func mountServer(t *testing.T, l link, dir string, user int, args ...string) *mountedServer {
	t.Helper()
	addr := rdmatest.Device(t, l.kind)
	s := &mountedServer{
		t: t, user: user, addr: anyPort(addr), tcp: anyPort(addr), mount: publicDir(t),
		args: append([]string{"--dir", dir, "--provider", l.provider, "--squash", "none"}, args...),
	}
	s.start(s.wait())
	t.Cleanup(s.stop)
	s.remount()
	t.Cleanup(s.unmount)
	return s
}

// waiting is a process that becomes the server on a signal.
type waiting struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader

	stderr bytes.Buffer
}

// wait makes a process that becomes the server, at the same addresses as before.
func (s *mountedServer) wait() *waiting {
	s.t.Helper()
	// The directory of the test binary is root's, so the server is given the open file.
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		s.t.Fatal(err)
	}
	defer self.Close()
	w := new(waiting)
	w.cmd = command(context.Background(), append([]string{"-c", `read _ && exec /proc/self/fd/3 "$@"`, "sh", "serve", "--addr", s.addr, "--tcp-addr", s.tcp}, s.args...)...)
	w.cmd.Path = "/bin/sh"
	w.cmd.ExtraFiles = []*os.File{self}
	w.cmd.Stderr = &w.stderr
	if s.user != 0 {
		w.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.user), Gid: uint32(s.user)}}
	}
	var outErr error
	w.in, err = w.cmd.StdinPipe()
	w.out, outErr = w.cmd.StdoutPipe()
	if err := errors.Join(err, outErr, w.cmd.Start()); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { w.in.Close() }) // it ends, if it still waits
	return w
}

// start has a process become the server.
func (s *mountedServer) start(w *waiting) {
	s.t.Helper()
	s.cmd, s.stderr = w.cmd, &w.stderr
	fmt.Fprintln(w.in)
	r := bufio.NewReader(w.out)
	line, err := r.ReadString('\n')
	addr, tcp := listening.FindStringSubmatch(line), tcpAddr.FindStringSubmatch(line)
	if err != nil || addr == nil || tcp == nil {
		s.kill()
		s.t.Fatalf("serve says %q, %v\n%s", line, err, s.stderr)
	}
	s.addr, s.tcp = addr[1], tcp[1]
	go io.Copy(io.Discard, r)
}

// kill ends the server without a warning.
func (s *mountedServer) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// stop ends the server in order.
func (s *mountedServer) stop() {
	s.cmd.Process.Signal(syscall.SIGTERM)
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("serve: %v\n%s", err, s.stderr)
	}
}

func (s *mountedServer) unmount() { sh(s.t, "umount", s.mount) }

// remount mounts the server, again if it is mounted: nothing comes from a cache then.
func (s *mountedServer) remount() {
	s.t.Helper()
	if strings.Contains(sh(s.t, "cat", "/proc/mounts"), " "+s.mount+" nfs ") {
		s.unmount()
	}
	host, port, _ := net.SplitHostPort(s.addr)
	_, mountPort, _ := net.SplitHostPort(s.tcp)
	sh(s.t, "mount", "-t", "nfs", "-o", "vers=3,proto=rdma,port="+port+",mountproto=tcp,mountport="+mountPort+",nolock", host+":/", s.mount)
}

// mountKernel exports dir with the kernel's server and mounts it over rxe.
func mountKernel(t *testing.T, dir string) (mounted string) {
	t.Helper()
	source, options := exportKernel(t, dir)
	mounted = publicDir(t)
	sh(t, "mount", "-t", "nfs", "-o", options, source, mounted)
	t.Cleanup(func() { sh(t, "umount", mounted) })
	return mounted
}

// exportKernel exports dir with the kernel's server, and returns how its client mounts it over rxe.
func exportKernel(t *testing.T, dir string) (source, options string) {
	t.Helper()
	top, port := kernelServer(t)
	if dir != top && !strings.HasPrefix(dir, top+"/") {
		sh(t, "exportfs", "-o", "rw,insecure,no_root_squash,no_subtree_check,fsid=77", "*:"+dir)
		t.Cleanup(func() { sh(t, "exportfs", "-u", "*:"+dir) })
	}
	return rdmatest.Device(t, "rxe") + ":" + dir, "vers=3,proto=rdma,port=" + port + ",mountproto=tcp,nolock"
}
