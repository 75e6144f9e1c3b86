//go:build linux

package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/interop/rping"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// patience bounds every test of one conversation. The devices are emulated, in
// a machine that may be emulated.
const patience = 60 * time.Second

// A provider is one of our adapters, with its test environment.
type provider struct {
	name string

	// peer is the kind of device that rping uses; both use its address.
	peer string

	// deaf: a server may miss a client's first message. Linux's siw does not check whether
	// data has arrived between its MPA reply and the moment at which it connects its socket to
	// the queue pair; a client on siw waits for the answer and sends nothing more. (Our own
	// adapter does, see package iwarp.)
	deaf bool

	// new returns the adapter, or skips the test. gone, if not nil, returns an error if the
	// adapter still has open objects.
	new func(t *testing.T) (p fabric.Provider, gone func() error)
}

// open is new with a check for open objects at the end of the test.
func (p provider) open(t *testing.T) fabric.Provider {
	t.Helper()
	f, gone := p.new(t)
	t.Cleanup(func() {
		if gone == nil {
			return
		}
		if err := gone(); err != nil {
			t.Error("left behind: ", err)
		}
	})
	return f
}

// each runs a test with each provider.
func each(t *testing.T, providers []provider, test func(t *testing.T, p provider)) {
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) { test(t, p) })
	}
}

// pings are the rows of conversations.
var pings = []struct {
	ipv6        bool
	size, count int
}{
	{size: rping.DefaultSize, count: 1},
	{size: rping.DefaultSize, count: 10},
	{size: rping.MinSize, count: 10},
	{size: 4096, count: 10},
	{size: 65535, count: 10}, // the limit of rping
	{size: 999, count: 200},
	{ipv6: true, size: rping.DefaultSize, count: 10},
	{ipv6: true, size: 65535, count: 3},
}

// conversations runs a test for each row of pings, with the server's address.
func conversations(t *testing.T, p provider, test func(t *testing.T, addr string, size, count int)) {
	for _, c := range pings {
		t.Run(fmt.Sprintf("IPv6=%t size=%d count=%d", c.ipv6, c.size, c.count), func(t *testing.T) {
			addr := ""
			if c.ipv6 {
				addr = rdmatest.Device6(t, p.peer)
			} else {
				addr = rdmatest.Device(t, p.peer)
			}
			test(t, addr, c.size, c.count)
		})
	}
}

// testServer: rping's client pings our server.
func testServer(t *testing.T, p provider) {
	conversations(t, p, func(t *testing.T, addr string, size, count int) {
		s := &rping.Server{Provider: p.open(t), Validate: true}
		r, served := serveRping(t, testContext(t), p, s, addr, "-S", strconv.Itoa(size), "-C", strconv.Itoa(count), "-V", "-v")
		got := <-served
		r.wantSuccess()
		r.wantTexts("ping data: ", size, count)
		if got.pings != count || got.err != nil {
			t.Errorf("our server has answered %d pings and ends with %v", got.pings, got.err)
		}
	})
}

// testClient: our client pings rping's server.
func testClient(t *testing.T, p provider) {
	conversations(t, p, func(t *testing.T, addr string, size, count int) {
		c := &rping.Client{Provider: p.open(t), Size: size, Count: count, Validate: true}
		r, at := startRpingServer(t, p, addr, "-S", strconv.Itoa(size), "-v")
		if n, err := r.pingFrom(testContext(t), c, at); n != count || err != nil {
			t.Errorf("our client has had %d pings and ends with %v", n, err)
		}
		r.wantSuccess()
		r.wantTexts("server ping data: ", size, count)
	})
}

// testSeveral: our server serves several clients concurrently, with one listener.
func testSeveral(t *testing.T, p provider) {
	const clients, count = 4, 20
	addr := rdmatest.Device(t, p.peer)
	s := &rping.Server{Provider: p.open(t), Validate: true}
	ctx := testContext(t)
	l := listen(t, ctx, s, addr)
	defer l.Close()
	served := make(chan result, clients)
	for range clients {
		go func() {
			n, err := serveHeard(ctx, l, s, p.deaf)
			served <- result{n, err}
		}()
	}
	var rs []*program
	for range clients {
		rs = append(rs, startRping(t, p.peer, "-c", "-a", addr, "-p", portOf(l), "-S", "4096", "-C", strconv.Itoa(count), "-V"))
	}
	missed := 0
	for range clients {
		switch got := <-served; {
		case errors.Is(got.err, errDeaf):
			missed++
		case got.pings != count || got.err != nil:
			t.Errorf("our server has answered %d pings and ends with %v", got.pings, got.err)
		}
	}
	if missed > 0 {
		// Which clients they were is unknown, but all others have been served.
		t.Logf("siw has missed the first message of %d clients", missed)
		return
	}
	for _, r := range rs {
		r.wantSuccess()
	}
}

// testInARow: our client connects many times, each time as a new client.
func testInARow(t *testing.T, p provider) {
	const times = 200
	addr := rdmatest.Device(t, p.peer)
	f := p.open(t)
	r, at := startRpingServer(t, p, addr, "-P") // serves until it is killed
	c := &rping.Client{Provider: f, Count: 1, Validate: true}
	if _, err := r.pingFrom(testContext(t), c, at); err != nil {
		t.Fatal(err)
	}
	missed := 0
	for i := range times {
		n, err := runHeard(testContext(t), c, at, p.deaf)
		// A port that siw uses again a moment later may meet what is left of its last connection.
		if missed < times/50 && (errors.Is(err, errDeaf) || p.deaf && errors.Is(err, syscall.ECONNRESET)) {
			missed++
			t.Logf("connection %d: %v", i, err)
		} else if n != 1 || err != nil {
			t.Fatalf("connection %d: %d pings and %v", i, n, err)
		}
	}
}

// A result has the results of Run or Serve.
type result struct {
	pings int
	err   error
}

// testContext returns a context with the timeout patience.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// serve starts to serve one client. It returns the address, and a channel for the result.
func serve(t *testing.T, s *rping.Server, addr string) (served <-chan result, port string) {
	t.Helper()
	ctx := testContext(t)
	l := listen(t, ctx, s, addr)
	results := make(chan result, 1)
	go func() {
		n, err := s.Serve(ctx, l)
		l.Close()
		results <- result{n, err}
	}()
	return results, portOf(l)
}

// serveRping starts our server, and then rping as its client. It returns rping and a channel
// for the result.
func serveRping(t *testing.T, ctx context.Context, p provider, s *rping.Server, addr string, args ...string) (r *program, served <-chan result) {
	t.Helper()
	l := listen(t, ctx, s, addr)
	r = startRping(t, p.peer, append([]string{"-c", "-a", addr, "-p", portOf(l)}, args...)...)
	results := make(chan result, 1)
	go func() {
		tries := 1
		if p.deaf {
			tries = 3
		}
		for {
			tries--
			n, err := serveHeard(ctx, l, s, tries > 0)
			if !errors.Is(err, errDeaf) {
				l.Close()
				results <- result{n, err}
				return
			}
			t.Log(err)
			r.restart()
		}
	}()
	return r, results
}

// errDeaf is the reason why the tests cancel a connection, see provider.deaf.
var errDeaf = errors.New("the client's first message has not come: siw may have missed it")

// serveHeard is Serve, but with giveUp it does not wait forever for the first message.
func serveHeard(ctx context.Context, l fabric.Listener, s *rping.Server, giveUp bool) (int, error) {
	if !giveUp {
		return s.Serve(ctx, l)
	}
	c, err := l.Accept(ctx)
	if err != nil {
		return 0, err
	}
	watched := *s
	return watch(ctx, &watched.OnPing, func(ctx context.Context) (int, error) { return watched.ServeConn(ctx, c) })
}

// runHeard is Run, but with giveUp it does not wait forever for the first answer. It is
// repeated after a collision.
func runHeard(ctx context.Context, c *rping.Client, at string, giveUp bool) (n int, err error) {
	for {
		if giveUp {
			watched := *c
			n, err = watch(ctx, &watched.OnPing, func(ctx context.Context) (int, error) { return watched.Run(ctx, at) })
		} else {
			n, err = c.Run(ctx, at)
		}
		if !collision(err) || ctx.Err() != nil {
			return n, err
		}
	}
}

// listen starts a listener of a server on a free port.
func listen(t *testing.T, ctx context.Context, s *rping.Server, addr string) fabric.Listener {
	t.Helper()
	for {
		l, err := s.Listen(ctx, net.JoinHostPort(addr, "0"))
		if err == nil {
			return l
		}
		if !collision(err) || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// collision reports whether the connection manager assigned a port that is in use: it chooses
// among ports that it has not assigned itself, without asking TCP, which siw uses. EADDRNOTAVAIL is of a port
// that a connection to the same server has left a moment ago.
func collision(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// watch makes run fail with errDeaf if *onPing is not called for a while.
func watch(ctx context.Context, onPing *func([]byte), run func(context.Context) (int, error)) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(patience/6, func() { cancel(errDeaf) })
	defer timer.Stop()
	then := *onPing
	*onPing = func(text []byte) {
		timer.Stop()
		if then != nil {
			then(text)
		}
	}
	n, err := run(ctx)
	if n == 0 && err != nil && context.Cause(ctx) == errDeaf {
		err = errDeaf
	}
	return n, err
}

func portOf(l fabric.Listener) string {
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		panic(err) // not the address of a device
	}
	return port
}

// startRping starts rping.
func startRping(t *testing.T, kind string, args ...string) *program {
	t.Helper()
	return startProgram(t, kind, "rping", "rdmacm-utils", args...)
}

// nextPort is the next port for servers of others. The kernel does not assign ports from this range.
var nextPort atomic.Int32

// freePort returns a port at addr for a server of others.
func freePort(addr string) string {
	for {
		port := strconv.Itoa(rping.Port + int(nextPort.Add(1)))
		if l, err := net.Listen("tcp", net.JoinHostPort(addr, port)); err == nil { // or else another process has it
			l.Close()
			return port
		}
	}
}

// startRpingServer starts rping as a server at addr, on a new port.
func startRpingServer(t *testing.T, p provider, addr string, args ...string) (r *program, at string) {
	t.Helper()
	port := freePort(addr)
	r = startRping(t, p.peer, append([]string{"-s", "-a", addr, "-p", port}, args...)...)
	r.deaf = p.deaf
	return r, net.JoinHostPort(addr, port)
}

// pingFrom runs our client, as soon as rping listens.
func (r *program) pingFrom(ctx context.Context, c *rping.Client, at string) (int, error) {
	r.t.Helper()
	for tries := 2; ; {
		r.awaitListening("futex")
		n, err := runHeard(ctx, c, at, r.deaf && tries > 0)
		var se *rping.SetupError
		switch {
		case errors.Is(err, errDeaf):
			tries--
			r.t.Log(err)
			r.restart()
		case !errors.As(err, &se):
			return n, err
		}
		select {
		case <-r.exited:
			r.t.Fatalf("rping has exited: %s\n%v", r.state(), err)
		case <-ctx.Done():
			r.t.Fatalf("rping is not to be connected to: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// awaitListening returns when a server listens. It does not report it; but when its main thread waits
// in the kernel's function where, it waits for a client (proc(5), wchan). Trying to connect
// instead would disturb siw: a connection that arrives during rdma_listen hangs, and with it
// all later ones. If the kernel does not provide wchan, awaitListening waits for a fixed time.
func (r *program) awaitListening(where string) {
	r.mu.Lock()
	wchan := fmt.Sprintf("/proc/%d/wchan", r.cmd.Process.Pid)
	r.mu.Unlock()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(2 * time.Second); ; {
		if b, _ := os.ReadFile(wchan); bytes.Contains(b, []byte(where)) {
			return
		}
		select {
		case <-tick.C:
		case <-r.exited:
			return
		case <-late:
			return
		}
	}
}

// wantSuccess wants the program to exit successfully. At its end one of rping's threads closes the channel from which another
// reads events; if that one is late, it ends the process with an error. What was said before counts.
func (r *program) wantSuccess() {
	r.t.Helper()
	r.wantExit()
	if r.err != nil && !strings.HasSuffix(strings.TrimSpace(r.stderr.String()), "rdma_get_cm_event: Bad file descriptor") {
		r.t.Errorf("%s failed: %s", r.name, r.state())
	}
}

// wantTexts wants rping to have printed the texts of count pings.
func (r *program) wantTexts(prefix string, size, count int) {
	r.t.Helper()
	var want []string
	text := make([]byte, size)
	for i := range count {
		rping.PutText(text, i)
		want = append(want, prefix+string(text[:size-1]))
	}
	got := strings.Split(strings.TrimSuffix(r.stdout.String(), "\n"), "\n")
	if !slices.Equal(got, want) {
		r.t.Errorf("rping has printed %d lines, want %d; the first is %.80q, want %.80q", len(got), count, got[0], want[0])
	}
}
