package rpcbindtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inside is the environment variable that marks the process in the namespaces.
const inside = "RPCRDMA_TEST_RPCBIND"

// Addresses of Run's rpcbind.
const (
	Addr  = "127.0.0.1:111"
	Addr6 = "[::1]:111"
)

// patience bounds the start of the daemon, and a test with it.
const patience = time.Minute

// Run calls f with a freshly started rpcbind that has no registrations except its own. To do so it runs the test t,
// which must not be a subtest, again in a separate process with its own network, mount and PID namespaces. It skips the
// test if rpcbind is not installed or namespaces cannot be created.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if daemon := os.Getenv(inside); daemon != "" {
		start(t, daemon)
		f(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can start rpcbind: it gives up groups, which the namespaces of others do not let it do")
	}
	daemon, err := exec.LookPath("rpcbind")
	if err != nil {
		// PATH may lack /usr/sbin.
		daemon, err = exec.LookPath("/usr/sbin/rpcbind")
	}
	if err != nil {
		t.Skipf("rpcbind is not installed: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+(2*patience).String())
	cmd.Env = append(os.Environ(), inside+"="+daemon)
	// In a PID namespace all processes end with the first one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Start()
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("this root may not make namespaces, and the machine's own port 111 is not ours: %v", err)
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil || !strings.Contains(out.String(), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("beside rpcbind: %v\n%s", err, &out)
	}
	t.Logf("beside rpcbind:\n%s", &out)
}

// start sets up the namespaces and starts the daemon.
func start(t *testing.T, daemon string) {
	t.Helper()
	for _, f := range []func() error{
		func() error { return syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "") }, // first, otherwise the next mount propagates to the host
		func() error { return syscall.Mount("tmpfs", "/run", "tmpfs", 0, "") },
		func() error { return os.Mkdir("/run/rpcbind", 0o755) },
		loopbackUp,
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(daemon, "-f")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	// There is no event to wait for when the daemon starts to listen.
	for giveUp := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		c, err := net.Dial("tcp", Addr)
		if err == nil {
			c.Close()
			return
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s: %v\n%s", daemon, err, &said)
		default:
		}
		if time.Now().After(giveUp) {
			t.Fatalf("%s does not listen: %v\n%s", daemon, err, &said)
		}
	}
}

// loopbackUp brings up the loopback interface of a new network namespace, which also assigns
// its addresses. rtnetlink(7), RTM_NEWLINK: a struct nlmsghdr and a struct ifinfomsg, to which
// the kernel replies with an errno.
func loopbackUp() error {
	s, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer syscall.Close(s)
	const size, loopback = syscall.SizeofNlMsghdr + syscall.SizeofIfInfomsg, 1
	native := binary.NativeEndian
	msg := make([]byte, size)
	native.PutUint32(msg, size)
	native.PutUint16(msg[4:], syscall.RTM_NEWLINK)
	native.PutUint16(msg[6:], syscall.NLM_F_REQUEST|syscall.NLM_F_ACK)
	native.PutUint32(msg[20:], loopback)       // ifi_index
	native.PutUint32(msg[24:], syscall.IFF_UP) // ifi_flags
	native.PutUint32(msg[28:], syscall.IFF_UP) // ifi_change
	if err := syscall.Sendto(s, msg, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	n, _, err := syscall.Recvfrom(s, answer, 0)
	if err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	if n < syscall.SizeofNlMsghdr+4 {
		return errors.New("rtnetlink: truncated reply")
	}
	if errno := int32(native.Uint32(answer[syscall.SizeofNlMsghdr:])); errno != 0 {
		return os.NewSyscallError("rtnetlink: RTM_NEWLINK", syscall.Errno(-errno))
	}
	return nil
}
