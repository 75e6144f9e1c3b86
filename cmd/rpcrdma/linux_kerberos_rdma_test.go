//go:build linux && cgo

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/internal/testing/kdctest"
	"github.com/rpcrdma/rpcrdma/internal/testing/posixtest"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs/nfs41"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec/krb5"
	"github.com/rpcrdma/rpcrdma/transport"
)

// hostOf is the name of a device's address.
func hostOf(kind string) string { return kind + ".example.com" }

// A linuxRealm is a realm that the virtual machine is in, with the names of its devices.
type linuxRealm struct {
	*realm
	caches string // directory of the users' tickets
}

// joinRealm has the virtual machine join a realm: with names of hosts, keys of both servers and of the machine as a client,
// and the daemons with which the kernel gets tickets.
func joinRealm(t *testing.T) *linuxRealm {
	t.Helper()
	kernelServer(t) // only in the virtual machine
	k := kdctest.New(t, "EXAMPLE.COM")
	hosts := "127.0.0.1 localhost\n127.0.1.1 rpcrdma-vm\n"
	for _, kind := range rdmatest.Kinds() {
		hosts += rdmatest.Device(t, kind) + " " + hostOf(kind) + "\n"
		k.Keytab(t, "nfs/"+hostOf(kind), kdctest.AES)
		k.Run(t, "", "kadmin.local", "ktadd", "-norandkey", "-k", filepath.Join(k.Dir, "server"), "nfs/"+hostOf(kind))
	}
	conf, err := os.ReadFile(k.Config)
	testutil.Must(t, err)
	replaceFile(t, "/etc/hosts", hosts)
	replaceFile(t, "/etc/krb5.conf", string(conf))
	replaceFile(t, "/etc/idmapd.conf", "[General]\nDomain = example.com\nLocal-Realms = EXAMPLE.COM\n")
	r := &linuxRealm{realm: &realm{KDC: k, t: t, server: filepath.Join(k.Dir, "server")}, caches: publicDir(t)}
	sh(t, "modprobe", "rpcsec_gss_krb5")
	startDaemon(t, "rpc.gssd", "-f", "-vvv", "-p", "/var/lib/nfs/rpc_pipefs", "-k", k.Keytab(t, "host/rpcrdma-vm", kdctest.AES), "-d", r.caches)
	return r
}

// withoutKernelServer stops the kernel's NFS server for the time of the test: rpc.gssd makes security contexts for mounts over
// RDMA by TCP, at port 2049.
func withoutKernelServer(t *testing.T) {
	t.Helper()
	_, port := kernelServer(t)
	sh(t, "rpc.nfsd", "0")
	t.Cleanup(func() {
		sh(t, "rpc.nfsd", "4")
		testutil.Must(t, os.WriteFile("/proc/fs/nfsd/portlist", []byte("rdma "+port), 0))
	})
}

// replaceFile replaces a file of the virtual machine for the time of the test.
func replaceFile(t *testing.T, name, text string) {
	t.Helper()
	before, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	testutil.Must(t, os.WriteFile(name, []byte(text), 0o644))
	t.Cleanup(func() { testutil.Must(t, os.WriteFile(name, before, 0o644)) })
}

// startDaemon runs a program until the test ends. Its output is printed if the test fails.
func startDaemon(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // its children may have the pipe
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", name, &out)
		}
	})
}

// login gets tickets for the user of this machine with a principal's name.
func (r *linuxRealm) login(name string, uid int) {
	r.t.Helper()
	cache := filepath.Join(r.caches, fmt.Sprintf("krb5cc_%d", uid))
	r.Run(r.t, "", "kinit", "-k", "-t", r.Keytab(r.t, name, kdctest.AES), "-c", "FILE:"+cache, name)
	testutil.Must(r.t, os.Chown(cache, uid, uid))
}

// runAs runs a program as a user.
func runAs(uid int, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestRDMALinuxKerberosClient: the kernel's NFS client mounts our server with Kerberos, on every link and with every service. Each
// user has its own rights, and no others.
func TestRDMALinuxKerberosClient(t *testing.T) {
	r := joinRealm(t)
	withoutKernelServer(t)
	const daemon, bin, games = 1, 2, 5
	r.login("daemon", daemon)
	r.login("bin", bin)
	source := linuxFiles(t)
	sh(t, "chmod", "-R", "a+rX", filepath.Dir(filepath.Dir(source)))
	for i, l := range links() {
		for j, sec := range []string{"krb5", "krb5i", "krb5p"} {
			if !allLinks() && i != j {
				continue
			}
			t.Run(l.String()+"/"+sec, func(t *testing.T) {
				dir, mounted, local := publicDir(t), publicDir(t), publicDir(t)
				testutil.Must(t, os.Chmod(dir, 0o777|os.ModeSticky), os.Chmod(local, 0o777))
				testutil.WriteFiles(t, dir, map[string]string{"bin": "bin's"})
				testutil.Must(t, os.Chown(filepath.Join(dir, "bin"), bin, bin), os.Chmod(filepath.Join(dir, "bin"), 0o600))
				addr, log := rdmatest.Device(t, l.kind), filepath.Join(t.TempDir(), "log")
				s := startServer(t, "--dir", dir, "--provider", l.provider, "--addr", anyPort(addr), "--tcp-addr", addr, "--squash", "root",
					"--sec", "krb5,krb5i,krb5p", "--keytab", r.server, "--access-log", log)
				_, port, _ := net.SplitHostPort(s.addr)
				_, mountPort, _ := net.SplitHostPort(s.tcp)
				options := mountOptions(port, mountPort)
				if out, err := exec.Command("mount", "-t", "nfs", "-o", options+",sec=sys", hostOf(l.kind)+":/", mounted).CombinedOutput(); err == nil {
					t.Errorf("mounted with sec=sys: %s", out)
				}
				sh(t, "mount", "-t", "nfs", "-o", options+",sec="+sec, hostOf(l.kind)+":/", mounted)
				defer sh(t, "umount", mounted)
				as := func(uid int, name string, args ...string) {
					t.Helper()
					if out, err := runAs(uid, name, args...); err != nil {
						t.Errorf("as %d: %s %v: %v\n%s", uid, name, args, err, out)
					}
				}
				as(daemon, "cp", "-r", source, filepath.Join(mounted, "up"))
				wantTree(t, filepath.Join(dir, "up"), source)
				sh(t, "sh", "-c", "echo 3 >/proc/sys/vm/drop_caches")
				as(daemon, "cp", "-r", filepath.Join(mounted, "up"), filepath.Join(local, "back"))
				wantTree(t, filepath.Join(local, "back"), source)
				as(daemon, "rm", "-r", filepath.Join(mounted, "up"))
				as(bin, "cat", filepath.Join(mounted, "bin"))
				for _, uid := range []int{daemon, games, 0} {
					if out, err := runAs(uid, "cat", filepath.Join(mounted, "bin")); err == nil {
						t.Errorf("user %d reads bin's file: %s", uid, out)
					}
				}
				if out, err := runAs(games, "ls", mounted); err == nil {
					t.Errorf("a user without tickets lists files: %s", out)
				}
				text, err := os.ReadFile(log)
				testutil.Must(t, err)
				service := map[string]string{"krb5": "none", "krb5i": "integrity", "krb5p": "privacy"}[sec]
				for _, want := range []string{
					` WRITE NFS3_OK `,
					fmt.Sprintf(` principal="daemon@EXAMPLE.COM" service=%q as_uid=1 as_gid=1 `, service),
					fmt.Sprintf(` principal="host/rpcrdma-vm@EXAMPLE.COM" service=%q as_uid=65534 `, service),
				} {
					if !strings.Contains(string(text), want) {
						t.Errorf("the access log lacks %q:\n%.5000s", want, text)
					}
				}
			})
		}
	}
}

// TestRDMALinuxKerberosPosix is TestRDMALinuxPosix with Kerberos, where users and their groups are what the server knows of
// principals, and root is the machine.
func TestRDMALinuxKerberosPosix(t *testing.T) {
	r := joinRealm(t)
	withoutKernelServer(t)
	for name, lines := range map[string]string{"/etc/passwd": posixtest.Passwd, "/etc/group": posixtest.Group} {
		before, err := os.ReadFile(name)
		testutil.Must(t, err)
		replaceFile(t, name, string(before)+lines)
	}
	for _, u := range []string{"owner", "member", "other"} {
		info, err := user.Lookup(u)
		testutil.Must(t, err)
		uid, err := strconv.Atoi(info.Uid)
		testutil.Must(t, err)
		r.login(u, uid)
	}
	principals := filepath.Join(t.TempDir(), "principals")
	testutil.WriteFiles(t, filepath.Dir(principals), map[string]string{"principals": "host/rpcrdma-vm@EXAMPLE.COM root\n"})
	for i, l := range links() {
		sec := []string{"krb5", "krb5i", "krb5p"}[i%3]
		t.Run(l.String()+"/"+sec, func(t *testing.T) {
			b, addr := posixBed(t), rdmatest.Device(t, l.kind)
			s := startServer(t, "--dir", b.Export, "--provider", l.provider, "--addr", anyPort(addr), "--tcp-addr", addr, "--squash", "none",
				"--sec", sec, "--keytab", r.server, "--principals", principals)
			_, port, _ := net.SplitHostPort(s.addr)
			_, mountPort, _ := net.SplitHostPort(s.tcp)
			b.Mount = publicDir(t)
			sh(t, "mount", "-t", "nfs", "-o", mountOptions(port, mountPort)+",sec="+sec, hostOf(l.kind)+":/", b.Mount)
			defer sh(t, "umount", b.Mount)
			checkPosix(t, b, 90, 100, 100)
		})
	}
}

// kerberosServer has the kernel's NFS server accept principals of a realm.
func kerberosServer(t *testing.T) (r *linuxRealm, port string) {
	t.Helper()
	r = joinRealm(t)
	server, err := os.ReadFile(r.server)
	testutil.Must(t, err)
	replaceFile(t, "/etc/krb5.keytab", string(server))
	startDaemon(t, "rpc.svcgssd", "-f", "-vvv", "-n")
	_, port = kernelServer(t)
	return r, port
}

// TestRDMALinuxKerberosServer: our client uses files of the kernel's NFS server with Kerberos, on every link and with every service. Each
// user has its own rights, and no others.
func TestRDMALinuxKerberosServer(t *testing.T) {
	r, port := kerberosServer(t)
	const daemon, bin = 1, 2
	dir := ext4(t, 64)
	testutil.Must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	testutil.WriteFiles(t, dir, map[string]string{"bin": "bin's"})
	testutil.Must(t, os.Chown(filepath.Join(dir, "bin"), bin, bin), os.Chmod(filepath.Join(dir, "bin"), 0o600))
	sh(t, "exportfs", "-o", "rw,insecure,no_subtree_check,fsid=77,sec=krb5:krb5i:krb5p", "*:"+dir)
	t.Cleanup(func() { sh(t, "exportfs", "-u", "*:"+dir) })
	source, mounted := linuxFiles(t), publicDir(t)
	for i, l := range links() {
		for j, sec := range []string{"krb5", "krb5i", "krb5p"} {
			if !allLinks() && i != j {
				continue
			}
			t.Run(l.String()+"/"+sec, func(t *testing.T) {
				if sec == "krb5p" { // with which Linux 6.1.192 cannot read its own client's arguments
					options := "vers=3,proto=tcp,mountproto=tcp,nolock,retry=0,sec=" + sec
					if out, err := exec.Command("mount", "-t", "nfs", "-o", options, hostOf(l.kind)+":"+dir, mounted).CombinedOutput(); err != nil {
						t.Skipf("the kernel's server refuses the kernel's client, too, over TCP: %s", out)
					}
					sh(t, "umount", mounted)
				}
				url := "nfs://" + net.JoinHostPort(hostOf(l.kind), port) + dir
				with := append(r.as("daemon", sec), "--provider", l.provider)
				there, back := filepath.Join(dir, "up"), filepath.Join(t.TempDir(), "back")
				mustRun(t, append([]string{"put", "-r", source, url + "/up"}, with...)...)
				wantTree(t, there, source)
				info, err := os.Stat(there)
				testutil.Must(t, err)
				if uid := info.Sys().(*syscall.Stat_t).Uid; uid != daemon {
					t.Errorf("the files are %d's", uid)
				}
				mustRun(t, append([]string{"get", "-r", url + "/up", back}, with...)...)
				wantTree(t, back, source)
				mustRun(t, append([]string{"rm", "-r", url + "/up"}, with...)...)
				mustFail(t, 1, "NFS3ERR_ACCES", append([]string{"cat", url + "/bin"}, with...)...)
				mustFail(t, 1, "NFS3ERR_ACCES", "cat", "--provider", l.provider, url+"/bin")
				as := append(r.as("bin", sec), "--provider", l.provider)
				if out := mustRun(t, append([]string{"cat", url + "/bin"}, as...)...); out != "bin's" {
					t.Errorf("bin reads %q", out)
				}
			})
		}
	}
}

// TestRDMALinuxKerberosLost: the kernel's client sends calls again when its connections are lost, with other sequence numbers, and they are
// executed once. It sets its security contexts up again when the server has forgotten them.
func TestRDMALinuxKerberosLost(t *testing.T) {
	r := joinRealm(t)
	withoutKernelServer(t)
	const daemon, size = 1, 32 << 20
	r.login("daemon", daemon)
	addr := rdmatest.Device(t, "siw")
	dir := publicDir(t)
	testutil.Must(t, os.Chmod(dir, 0o777))
	s := &mountedServer{t: t, addr: anyPort(addr), tcp: addr + ":2049", mount: publicDir(t), args: []string{
		"--dir", dir, "--provider", "iwarp", "--state", t.TempDir(), "--sec", "krb5i", "--keytab", r.server,
	}}
	s.start(s.wait())
	t.Cleanup(s.stop)
	_, port, _ := net.SplitHostPort(s.addr)
	sh(t, "mount", "-t", "nfs", "-o", mountOptions(port, "2049")+",sec=krb5i", hostOf("siw")+":/", s.mount)
	t.Cleanup(s.unmount)
	run := func(script string) <-chan error {
		done := make(chan error, 1)
		go func() {
			out, err := runAs(daemon, "sh", "-ec", "cd "+s.mount+"; "+script)
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			done <- err
		}()
		return done
	}

	// A call that is executed twice fails.
	done, lost := run("for i in $(seq 20); do mkdir a$i; mv a$i b$i; rmdir b$i; done"), 0
	for tick := time.NewTicker(time.Second / 4); ; {
		select {
		case err := <-done:
			testutil.Must(t, err)
		case <-tick.C:
			// The sockets of our adapter, with whatever was under way.
			if lost == 10 {
				tick.Stop()
			} else if out := sh(t, "ss", "-K", "-H", "-t", "state", "established", "sport", "=", ":"+port); out != "" {
				lost++
			}
			continue
		}
		tick.Stop()
		break
	}
	if lost == 0 {
		t.Error("no connection was lost")
	}

	done = run(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x >big; sync big", size))
	testutil.Eventually(t, "a part is written", func() bool {
		info, err := os.Stat(filepath.Join(dir, "big"))
		return err == nil && info.Size() > size/8
	})
	s.kill()
	s.start(s.wait())
	testutil.Must(t, <-done)
	if text, err := os.ReadFile(filepath.Join(dir, "big")); err != nil || len(text) != size || bytes.Count(text, []byte{'x'}) != size {
		t.Errorf("%d bytes of %d are the file's, %v", bytes.Count(text, []byte{'x'}), len(text), err)
	}
}

// TestRDMALinuxMachineCredential: the kernel's server lets the machine credential of a client of NFS 4.1 alone bind and destroy
// its session and id.
func TestRDMALinuxMachineCredential(t *testing.T) {
	r, port := kerberosServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	onLinks(t, func(t *testing.T, l link) {
		p, err := provider.New(l.provider, rdmacm.Config{}, nil)
		testutil.Must(t, err)
		defer p.Close()
		addr := net.JoinHostPort(hostOf(l.kind), port)
		security := func(principal string) *rpcsec.ClientConfig {
			args := r.as(principal, "krb5i")
			initiator, err := krb5.NewInitiator(krb5.InitiatorConfig{Service: "nfs@" + hostOf(l.kind), Keytab: args[3], Principal: principal})
			testutil.Must(t, err)
			return &rpcsec.ClientConfig{Initiator: initiator, Service: rpc.ServiceIntegrity}
		}
		other, err := transport.Dial(ctx, p, addr, nil)
		testutil.Must(t, err)
		defer other.Close()
		compound := func(by rpc.Caller, op uint32, args []byte) nfs41.Status {
			t.Helper()
			// COMPOUND4args: an empty tag, minor version 1, one operation. RFC 8881 section 16.2.
			call := rpc.Call{Prog: nfs41.Program, Vers: nfs41.Version, Proc: nfs41.ProcCompound, Cred: (&oncrpc.AuthSys{}).Auth(), MaxResults: 100}
			for _, word := range []uint32{0, 1, 1, op} {
				call.Args = xdr.AppendUint32(call.Args, word)
			}
			call.Args = append(call.Args, args...)
			testutil.Must(t, by.Call(ctx, &call))
			d := call.Decoder()
			return nfs41.Status(d.Uint32())
		}
		for _, tt := range []struct {
			security *rpcsec.ClientConfig
			want     nfs41.Status
		}{{nil, nfs41.StatusOK}, {security("host/rpcrdma-vm"), nfs41.StatusWrongCred}} {
			s, err := nfs41.Dial(ctx, p, addr, &nfs41.Config{Security: tt.security, Auth: &oncrpc.AuthSys{}})
			testutil.Must(t, err)
			defer s.Close()
			if _, err := s.Sequence(ctx); err != nil {
				t.Error(err)
			}
			info, err := s.Info(ctx)
			testutil.Must(t, err)
			callers := []rpc.Caller{other}
			if tt.security != nil {
				callers = append(callers, rpcsec.NewClient(other, *security("bin")))
			}
			bind := binary.BigEndian.AppendUint64(info.ID[:], 1<<32) // for calls of the client; without RDMA mode
			for _, by := range callers {
				if got := compound(by, nfs41.OpBindConnToSession, bind); got != tt.want {
					t.Errorf("BIND_CONN_TO_SESSION by another caller, %T: %v, want %v", by, got, tt.want)
				}
				if got := compound(by, nfs41.OpDestroySession, info.ID[:]); got != tt.want {
					t.Errorf("DESTROY_SESSION by another caller, %T: %v, want %v", by, got, tt.want)
				}
			}
			if tt.security == nil {
				continue
			}
			testutil.Must(t, s.Bind(ctx))
			if again, err := s.Info(ctx); err != nil || again.ID != info.ID {
				t.Errorf("%+v, %v, before %+v", again, err, info)
			}
			testutil.Must(t, s.Destroy(ctx))
		}
	})
}
