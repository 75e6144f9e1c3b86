//go:build unix

package transport_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TestIwarpDescriptors checks that a server without free file descriptors keeps running, and so do its clients.
func TestIwarpDescriptors(t *testing.T) {
	const env = "RPCRDMA_TEST_DESCRIPTORS"
	if os.Getenv(env) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestIwarpDescriptors$", "-test.v", "-test.timeout=50s")
		cmd.Env = append(os.Environ(), env+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "went on without descriptors") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	w := onIwarp(iwarp.Config{}).start(t, nil)
	cl := w.dial(t, nil)
	// All descriptors but one are taken: that is the attacker's end of a connection.
	var files []*os.File
	limit := syscall.Rlimit{Cur: 64, Max: 64}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		files = append(files, f)
	}
	files[len(files)-1].Close()
	c, err := net.Dial("tcp", w.addr) // there is no descriptor to accept it with
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if err := cl.Null(bg, prog, 1); err != nil {
			t.Fatalf("a connected client: %v", err)
		}
	}
	c.Close()
	for _, f := range files[:len(files)-1] {
		f.Close()
	}
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	next, err := transport.Dial(ctx, w.provider, w.addr, transport.Once(nil).Client())
	if err != nil {
		t.Fatalf("with descriptors again: %v", err)
	}
	defer next.Close()
	if err := next.Null(bg, prog, 1); err != nil {
		t.Fatal(err)
	}
	t.Log("went on without descriptors")
}
