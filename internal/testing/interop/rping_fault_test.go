//go:build linux

package interop

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/interop/rping"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// before is the number of successful pings before the fault.
const before = 20

// wantEnded wants the error of a connection that the peer has ended.
func wantEnded(t *testing.T, got result) {
	t.Helper()
	var end *fabric.ConnError
	if got.pings < before-1 || !errors.Is(got.err, net.ErrClosed) || !errors.As(got.err, &end) || !end.Remote {
		t.Errorf("our side has %d pings and ends with %v, want an end of the peer's making", got.pings, got.err)
		return
	}
	t.Logf("our side ends with: %v", got.err)
}

// after returns a function that calls f after before calls.
func after(f func()) func([]byte) {
	seen := 0
	return func([]byte) {
		if seen++; seen == before {
			f()
		}
	}
}

// testKilledClient kills rping's client while it waits for our server, which has its text.
func testKilledClient(t *testing.T, p provider) {
	addr := rdmatest.Device(t, p.peer)
	var r *program
	started := make(chan struct{})
	s := &rping.Server{Provider: p.open(t), Validate: true, OnPing: after(func() {
		<-started
		r.kill()
	})}
	r, served := serveRping(t, testContext(t), p, s, addr, "-S", "65535")
	close(started)
	wantEnded(t, <-served)
}

// testKilledServer kills rping's server between two pings of our client.
func testKilledServer(t *testing.T, p provider) {
	addr := rdmatest.Device(t, p.peer)
	f := p.open(t)
	r, at := startRpingServer(t, p, addr, "-S", "65535")
	n, err := r.pingFrom(testContext(t), &rping.Client{Provider: f, Size: 65535, Validate: true, OnPing: after(r.kill)}, at)
	wantEnded(t, result{n, err})
}

// testStoppedServer stops our server in the middle of a ping, while rping's client waits for a
// message: it exits. If it were processing a message it might not exit on siw: it would post
// its next receive to a queue pair in error, which siw does not flush, and wait for that.
func testStoppedServer(t *testing.T, p provider) {
	addr := rdmatest.Device(t, p.peer)
	ctx, stop := context.WithCancel(testContext(t))
	defer stop()
	s := &rping.Server{Provider: p.open(t), OnPing: after(stop)}
	r, served := serveRping(t, ctx, p, s, addr, "-S", "4096")
	if got := <-served; !errors.Is(got.err, context.Canceled) {
		t.Errorf("our server ends with %v", got.err)
	}
	r.wantExit()
	t.Logf("rping: %s", r.state())
}

// testStoppedClient stops our client without a disconnect: rping's server exits.
func testStoppedClient(t *testing.T, p provider) {
	addr := rdmatest.Device(t, p.peer)
	f := p.open(t)
	r, at := startRpingServer(t, p, addr, "-S", "4096")
	ctx, stop := context.WithCancel(testContext(t))
	defer stop()
	n, err := r.pingFrom(ctx, &rping.Client{Provider: f, Size: 4096, OnPing: after(stop)}, at)
	if n != before || !errors.Is(err, context.Canceled) {
		t.Errorf("our client has %d pings and ends with %v", n, err)
	}
	r.wantExit()
	t.Logf("rping: %s", r.state())
}

// testRejected rejects rping's client, which exits.
func testRejected(t *testing.T, p provider) {
	addr := rdmatest.Device(t, p.peer)
	ctx := testContext(t)
	l := listen(t, ctx, &rping.Server{Provider: p.open(t)}, addr)
	defer l.Close()
	r := startRping(t, p.peer, "-c", "-a", addr, "-p", portOf(l))
	c, err := l.Accept(ctx)
	if err != nil {
		r.kill()
		t.Fatalf("%v: %s", err, r.state())
	}
	if err := c.Reject([]byte("no")); err != nil {
		t.Error(err)
	}
	r.wantExit()
	if r.err == nil || !strings.Contains(r.stderr.String(), "RDMA_CM_EVENT_REJECTED") {
		t.Errorf("rping takes a rejection for something else: %s", r.state())
	}
}
