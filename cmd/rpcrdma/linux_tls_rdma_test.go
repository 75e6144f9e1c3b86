//go:build linux && cgo

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestRDMALinuxTLS: Linux mounts with xprtsec=mtls, and its users are the one that its certificate stands for.
func TestRDMALinuxTLS(t *testing.T) {
	rdmatest.Device(t, "siw") // in the virtual machine
	tlshd, err := exec.LookPath("tlshd")
	if err != nil {
		t.Skip("there is no daemon for the kernel's handshakes (ktls-utils, from Debian 13 on): ", err)
	}
	sh(t, "modprobe", "-a", "nfsv3", "sunrpc")
	symbols, err := os.ReadFile("/proc/kallsyms")
	testutil.Must(t, err)
	if !bytes.Contains(symbols, []byte(" xs_setup_tcp_tls")) {
		t.Skip("this kernel has no RPC-with-TLS, which is there from Linux 6.5 on")
	}
	sh(t, "modprobe", "tls")
	p, dir, at := newPKI(t), publicDir(t), publicDir(t)
	testutil.Must(t, os.Chmod(dir, 0o777))
	server, client := p.flags(t, "server", "DNS:localhost", "IP:127.0.0.1"), p.flags(t, "client", "DNS:client.example.org")
	users, conf := filepath.Join(p.dir, "users"), filepath.Join(p.dir, "tlshd.conf")
	testutil.WriteFiles(t, p.dir, map[string]string{
		"users": "DNS:client.example.org 4000:4001\n",
		"tlshd.conf": "[authenticate.client]\nx509.truststore=" + p.ca + "\nx509.certificate=" + client[1] +
			"\nx509.private_key=" + client[3] + "\n",
	})
	testutil.Must(t, os.Chmod(conf, 0o600))
	daemon := exec.Command(tlshd, "-s", "-c", conf)
	var log bytes.Buffer
	daemon.Stdout, daemon.Stderr = &log, &log
	testutil.Must(t, daemon.Start())
	defer func() {
		daemon.Process.Signal(syscall.SIGTERM)
		daemon.Wait()
		if t.Failed() {
			t.Logf("tlshd:\n%s", &log)
		}
	}()
	s := startServer(t, append([]string{"--dir", dir, "--provider", "tcp", "--tls", "require", "--tls-squash", users}, server...)...)
	_, port, _ := strings.Cut(s.addr, ":")
	mount := func(security string) error {
		out, err := exec.Command("mount", "-t", "nfs", "-o", "vers=3,proto=tcp,mountproto=tcp,nolock,soft,timeo=100,port="+port+
			",mountport="+port+",xprtsec="+security, "localhost:/", at).CombinedOutput()
		t.Logf("xprtsec=%s: %v %s", security, err, out)
		return err
	}
	testutil.Must(t, mount("mtls"))
	testutil.Must(t, os.WriteFile(filepath.Join(at, "file"), bytes.Repeat([]byte("text"), 1<<20), 0o600))
	got, err := os.ReadFile(filepath.Join(at, "file"))
	info, statErr := os.Stat(filepath.Join(dir, "file"))
	testutil.Must(t, err, statErr)
	if owner := info.Sys().(*syscall.Stat_t); len(got) != 4<<20 || owner.Uid != 4000 || owner.Gid != 4001 {
		t.Errorf("%d bytes of %d:%d", len(got), owner.Uid, owner.Gid)
	}
	sh(t, "umount", at)
	for _, security := range []string{"none", "tls"} { // no TLS, and none with a certificate
		if mount(security) == nil {
			t.Errorf("xprtsec=%s is served", security)
			sh(t, "umount", at)
		}
	}
}
