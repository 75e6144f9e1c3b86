//go:build linux && cgo

package rdmacm_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// exchanges makes a connection and sends a message over it.
func exchanges(t *testing.T, p fabric.Provider, addr string) {
	t.Helper()
	client, server := pair(t, p, addr, fabric.ConnAttr{})
	client.Close()
	server.Close()
}

// TestRDMADeviceRemoved: a device that goes away in the middle of everything ends its
// connections, on both sides, and does not take the provider with it: when it is
// back, new connections work.
func TestRDMADeviceRemoved(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		machine(t)
		name := kind + "0"
		t.Cleanup(func() {
			letGo() // if the provider did not
			try("rdma", "link", "add", name, "type", kind, "netdev", netdev(kind))
		})
		p := provider(t, rdmacm.Config{})
		for round := range 3 {
			client, server := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Timeout: limit})
			c, s, moved := traffic(t, client, server)
			comes(t, "traffic", func() bool { return moved.Load() > 10 })
			removed := later(func() error { _, err := try("rdma", "link", "del", name); return err })
			told := 0
			for what, ch := range map[string]<-chan error{"client": c, "server": s} {
				end := ended(t, what, ch)
				t.Logf("round %d: %s: %v", round, what, end)
				if errors.Is(end, syscall.ENODEV) && strings.Contains(end.Error(), name) {
					told++
				}
			}
			// The first one to know ends the connection, and so the other may hear from
			// it before it hears of the device.
			if told == 0 {
				t.Errorf("round %d: neither end says that the device is gone", round)
			}
			returns(t, "Close", func() { client.Close(); server.Close() })
			waitRemoved(t, removed)
			if c, err := p.Resolve(soon(t), net.JoinHostPort(addr, "4000"), fabric.ConnAttr{}); err == nil {
				c.Close()
				t.Error("Resolve without a device succeeded")
			} else if !errors.Is(err, syscall.ENODEV) {
				t.Errorf("Resolve without a device: %v", err)
			}
			sh(t, "rdma", "link", "add", name, "type", kind, "netdev", netdev(kind))
			// Its addresses are announced a moment later.
			comes(t, "the device is back", func() bool {
				c, err := p.Resolve(soon(t), net.JoinHostPort(addr, "4000"), fabric.ConnAttr{})
				if err == nil {
					c.Close()
				}
				return err == nil
			})
			exchanges(t, p, addr)
		}
	})
}

// letGo has librdmacm look at the list of devices, and close those that are gone.
func letGo() {
	var lib cgo.RDMACore
	if list, _, errno := lib.GetDevices(); errno == 0 {
		lib.FreeDevices(list)
	}
}

// waitRemoved waits for the end of "rdma link del". The kernel waits until the device is closed, and
// the provider closes it with its last connection there.
func waitRemoved(t *testing.T, removed <-chan error) {
	t.Helper()
	if err := arrives(t, "rdma link del", removed); err != nil {
		t.Fatalf("rdma link del: %v", err)
	}
}

// TestRDMARefusedRequest: a request that the peer's device refuses is why the connection
// has ended, also when the connection manager is heard first: the peer learns of the
// refusal, too, and closes its end.
func TestRDMARefusedRequest(t *testing.T) {
	addr := rdmatest.Device(t, "rxe") // siw completes a Write before the peer has it
	p := provider(t, rdmacm.Config{})
	for range 3 {
		c, s := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Timeout: limit})
		mr, err1 := c.RegMR(make([]byte, 64), fabric.AccessLocalWrite)
		at, err2 := s.RegMR(make([]byte, 64), fabric.AccessLocalWrite)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if err := s.PostRecv([]fabric.RecvWR{{SGE: fabrictest.SGE(at, 0, 64)}}); err != nil {
			t.Fatal(err)
		}
		write := fabric.SendWR{ID: 7, Op: fabric.OpWrite, Flags: fabric.Signaled, SGL: []fabric.SGE{fabrictest.SGE(mr, 0, 64)}, RKey: 0xbad}
		if err := c.Post([]fabric.SendWR{write}); err != nil {
			t.Fatal(err)
		}
		var wcs [2]fabric.WC
		returns(t, "the end of the peer", func() {
			for {
				if _, err := s.Poll(wcs[:]); err != nil {
					return
				}
				s.Wait()
			}
		})
		s.Close()
		arrives(t, "the peer's end", rdmacm.Left(c))
		n, err := c.Poll(wcs[:])
		if n != 1 || err != nil || wcs[0].ID != 7 || wcs[0].Status != fabric.WCRemAccessErr {
			t.Errorf("the Write completed with %+v, %v", wcs[:n], err)
		}
		_, err = c.Poll(wcs[:])
		var failed *rdmacm.WCError
		if !errors.As(err, &failed) || failed.Status != fabric.WCRemAccessErr {
			t.Errorf("the connection has ended with %v, want the Write's failure", err)
		}
		c.Close()
	}
}

// TestRDMALinkDown: while the network is away messages may or may not get through: a
// machine's own addresses stay reachable over lo. Nothing hangs, Close comes back, and
// what is new works when the network is back.
func TestRDMALinkDown(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		machine(t)
		p := provider(t, rdmacm.Config{AckTimeout: 12, RetryCount: 1})
		client, server := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Timeout: limit})
		c, s, moved := traffic(t, client, server)
		comes(t, "traffic", func() bool { return moved.Load() > 10 })
		v6 := rdmatest.Device6(t, kind)
		t.Cleanup(func() {
			try("ip", "link", "set", netdev(kind), "up")
			try("ip", "addr", "add", v6+"/64", "dev", netdev(kind), "nodad") // a link that goes down loses it
		})
		sh(t, "ip", "link", "set", netdev(kind), "down")
		at := moved.Load()
		goesOn := holds(2*time.Second, func() bool { return moved.Load() > at+20 })
		t.Logf("with the link down traffic goes on: %v", goesOn)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		returns(t, "Resolve", func() {
			conn, err := p.Resolve(ctx, net.JoinHostPort(addr, "4000"), fabric.ConnAttr{})
			if err == nil {
				err = conn.Connect(ctx, nil)
				conn.Close()
			}
			if err == nil {
				t.Error("connected to nobody")
			}
		})
		sh(t, "ip", "link", "set", netdev(kind), "up")
		returns(t, "Close", func() { client.Close(); server.Close() })
		ended(t, "client", c)
		ended(t, "server", s)
		resolves := func() bool {
			conn, err := p.Resolve(soon(t), net.JoinHostPort(addr, "4000"), fabric.ConnAttr{})
			if err == nil {
				conn.Close()
			}
			return err == nil
		}
		comes(t, "the device is back", resolves)
		if kind == "rxe" {
			// A packet of the connection manager without a route leaves rxe's queue pair for it in its
			// error state, for good (Linux 6.1). A provider without connections does not hear that the
			// device goes.
			name := kind + "0"
			removed := later(func() error { _, err := try("rdma", "link", "del", name); return err })
			comes(t, "the device's end", func() bool { letGo(); return len(removed) > 0 })
			waitRemoved(t, removed)
			sh(t, "rdma", "link", "add", name, "type", kind, "netdev", netdev(kind))
			comes(t, "the device is new", resolves)
		}
		exchanges(t, p, addr)
	})
}

// TestRDMAPeerKilled: a process that dies leaves its kernel to end the connection.
func TestRDMAPeerKilled(t *testing.T) {
	const name = "TestRDMAPeerKilled"
	if isChild(name) {
		serveUntilKilled(t)
		return
	}
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		p := provider(t, rdmacm.Config{})
		cmd := child(t, name, "RPCRDMA_TEST_ADDR="+addr)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		at := make(chan string, 1)
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if s, ok := strings.CutPrefix(lines.Text(), "serving "); ok {
					at <- s
				}
			}
		}()
		c, err := p.Resolve(soon(t), arrives(t, "the child's address", at), fabric.ConnAttr{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		mr, err := c.RegMR(make([]byte, 64), fabric.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.PostRecv([]fabric.RecvWR{{ID: 1, SGE: fabrictest.SGE(mr, 0, 64)}}); err != nil {
			t.Fatal(err)
		}
		if err := c.Connect(soon(t), nil); err != nil {
			t.Fatal(err)
		}
		if err := c.Post([]fabric.SendWR{{ID: 2, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{fabrictest.SGE(mr, 0, 64)}}}); err != nil {
			t.Fatal(err)
		}
		replied := make(chan struct{})
		over := later(func() error {
			var wcs [4]fabric.WC
			for {
				n, err := c.Poll(wcs[:])
				if err != nil {
					return err
				}
				for _, wc := range wcs[:n] {
					if wc.Op == fabric.WCRecv && wc.Status == fabric.WCSuccess {
						c.PostRecv([]fabric.RecvWR{{ID: 1, SGE: fabrictest.SGE(mr, 0, 64)}})
						close(replied)
					}
				}
				if n == 0 {
					c.Wait()
				}
			}
		})
		arrives(t, "the reply", replied)
		cmd.Process.Kill()
		end := ended(t, "the connection to a process that was killed", over)
		t.Logf("%v", end)
		if !end.Remote {
			t.Errorf("the peer is dead, and the end is said to be this side's: %v", end)
		}
	})
}

// serveUntilKilled is the child: it answers one message and waits.
func serveUntilKilled(t *testing.T) {
	p, err := rdmacm.New(rdmacm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := p.Listen(soon(t), net.JoinHostPort(os.Getenv("RPCRDMA_TEST_ADDR"), "0"), fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("serving %s\n", l.Addr())
	c, err := l.Accept(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	mr, err := c.RegMR(make([]byte, 64), fabric.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.PostRecv([]fabric.RecvWR{{ID: 1, SGE: fabrictest.SGE(mr, 0, 64)}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Accept(soon(t), nil); err != nil {
		t.Fatal(err)
	}
	var wcs [4]fabric.WC
	for {
		n, err := c.Poll(wcs[:])
		if err != nil {
			t.Fatal(err) // the parent is gone
		}
		if n == 0 {
			c.Wait()
		}
		for _, wc := range wcs[:n] {
			if wc.Op == fabric.WCRecv {
				c.Post([]fabric.SendWR{{ID: 2, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{fabrictest.SGE(mr, 0, 64)}}})
			}
		}
	}
}

// TestRDMAManyConnections: a thousand connections, one after the other, leave nothing in the kernel
// or in this process.
func TestRDMAManyConnections(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		for _, run := range []struct {
			cfg  rdmacm.Config
			tens int
		}{{rdmacm.Config{}, 80}, {rdmacm.Config{SharedCQ: 4096}, 20}} {
			t.Run(modeName(run.cfg), func(t *testing.T) {
				p := provider(t, run.cfg)
				round := func() {
					listen := func() fabric.Listener {
						l, err := p.Listen(soon(t), net.JoinHostPort(addr, "0"), fabric.ConnAttr{})
						if err != nil {
							t.Fatal(err)
						}
						return l
					}
					l := listen()
					defer func() { l.Close() }()
					for i := range 10 {
						c, s, err := connect(t, p, l)
						if errors.Is(err, syscall.ECONNREFUSED) && kind == "siw" {
							// Linux's siw may lose a listener without a word (docs/tuning.md).
							t.Logf("once more, with another listener: %v", err)
							l.Close()
							l = listen()
							c, s, err = connect(t, p, l)
						}
						if err != nil {
							t.Fatal(err)
						}
						mr, err := c.RegMR(make([]byte, 100), fabric.AccessLocalWrite)
						if err == nil {
							err = c.PostRecv([]fabric.RecvWR{{SGE: fabrictest.SGE(mr, 0, 100)}})
						}
						if err != nil {
							t.Fatal(err)
						}
						if i%2 == 0 {
							c, s = s, c
						}
						c.Close()
						s.Close()
					}
				}
				leavesNothing(t, p, round, func() {
					for range times(run.tens) {
						round()
					}
				})
			})
		}
	})
}

// connect makes a connection through a listener.
func connect(t testing.TB, p fabric.Provider, l fabric.Listener) (client, server fabric.Conn, err error) {
	t.Helper()
	for try := 1; ; try++ {
		client, err = p.Resolve(soon(t), l.Addr().String(), fabric.ConnAttr{})
		if err != nil {
			return nil, nil, err
		}
		ctx, cancel := context.WithCancel(soon(t))
		answer := later(func() error {
			err := client.Connect(ctx, nil)
			if err != nil {
				cancel()
			}
			return err
		})
		server, err = l.Accept(ctx)
		if err == nil {
			err = server.Accept(ctx, nil)
		}
		told := arrives(t, "Connect", answer)
		cancel()
		if err == nil && told == nil {
			return client, server, nil
		}
		client.Close()
		if server != nil {
			server.Close() // a device with an open connection cannot be removed
		}
		if try == pickTries || !portTaken(told) {
			return nil, nil, errors.Join(err, told)
		}
	}
}

// TestRDMAAbandonedSetup: set-up that is abandoned at any step leaves nothing open.
func TestRDMAAbandonedSetup(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		p := provider(t, rdmacm.Config{})
		listen := func() fabric.Listener {
			l, err := p.Listen(soon(t), net.JoinHostPort(addr, "0"), fabric.ConnAttr{})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		resolve := func(l fabric.Listener) fabric.Conn {
			c, err := p.Resolve(soon(t), l.Addr().String(), fabric.ConnAttr{})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		// requested returns a connection with a peer that has asked and waits for the answer.
		requested := func(l fabric.Listener) (c, s fabric.Conn, connecting <-chan error) {
			c = resolve(l)
			connecting = later(func() error { return c.Connect(soon(t), nil) })
			s, err := l.Accept(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			return c, s, connecting
		}
		for _, step := range []struct {
			name string
			f    func()
		}{
			{"resolved", func() {
				l := listen()
				resolve(l).Close()
				l.Close()
			}},
			{"connecting", func() {
				l := listen()
				c := resolve(l)
				if err := c.Connect(briefly(t), nil); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Connect that nobody answers: %v", err)
				}
				c.Close()
				l.Close()
			}},
			{"connecting, closed", func() {
				l := listen()
				c := resolve(l)
				connecting := later(func() error { return c.Connect(soon(t), nil) })
				c.Close()
				if err := arrives(t, "Connect", connecting); !errors.Is(err, net.ErrClosed) {
					t.Errorf("Connect after Close: %v", err)
				}
				l.Close()
			}},
			{"requested", func() {
				l := listen()
				c, s, connecting := requested(l)
				s.Close()
				if err := arrives(t, "Connect", connecting); err == nil {
					t.Error("connected to an end that was closed")
				}
				c.Close()
				l.Close()
			}},
			{"requested, never looked at", func() {
				l := listen()
				c := resolve(l)
				connecting := later(func() error { return c.Connect(soon(t), nil) })
				l.Close()
				if err := arrives(t, "Connect", connecting); err == nil {
					t.Error("connected to a listener that was closed")
				}
				c.Close()
			}},
			{"requester gone", func() {
				l := listen()
				c, s, connecting := requested(l)
				c.Close()
				arrives(t, "Connect", connecting)
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				s.Accept(ctx, nil)
				cancel()
				s.Close()
				l.Close()
			}},
			{"accepted", func() {
				l := listen()
				c, s, connecting := requested(l)
				if err := s.Accept(soon(t), nil); err != nil {
					t.Errorf("Accept: %v", err)
				}
				s.Close()
				arrives(t, "Connect", connecting)
				c.Close()
				l.Close()
			}},
			{"rejected", func() {
				l := listen()
				c, s, connecting := requested(l)
				if err := s.Reject(nil); err != nil {
					t.Errorf("Reject: %v", err)
				}
				var no *fabric.RejectError
				if err := arrives(t, "Connect", connecting); !errors.As(err, &no) {
					t.Errorf("Connect after Reject: %v", err)
				}
				c.Close()
				l.Close()
			}},
		} {
			t.Run(step.name, func(t *testing.T) {
				n := times(50)
				if kind == "siw" && (step.name == "connecting" || step.name == "requester gone") {
					// The kernel's iWARP connection manager takes no request back:
					// the ID stays until siw has given up on the reply, after 10 s.
					n = 1
				}
				if kind == "siw" && step.name == "connecting, closed" {
					// A connection that goes before siw has accepted it takes the listener
					// with it, and now and then the kernel: see scripts/test-rdma.
					n = times(5)
				}
				leavesNothing(t, p, step.f, func() {
					for range n {
						step.f()
					}
				})
			})
		}
	})
}

// TestRDMALockedMemory: a process that may lock little memory learns so from the call that asks for
// too much.
func TestRDMALockedMemory(t *testing.T) {
	const name = "TestRDMALockedMemory"
	if isChild(name) {
		const most = 64 << 10
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			t.Fatal(err)
		}
		p := provider(t, rdmacm.Config{})
		c, err := p.Resolve(soon(t), net.JoinHostPort(os.Getenv("RPCRDMA_TEST_ADDR"), "4000"), fabric.ConnAttr{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if mr, err := c.RegMR(make([]byte, most/4), 0); err != nil {
			t.Errorf("a little memory: %v", err)
		} else {
			mr.Close()
		}
		mr, err := c.RegMR(make([]byte, 1<<20), fabric.AccessLocalWrite)
		if err == nil {
			mr.Close()
			t.Fatal("1 MiB has been registered under a limit of 64 KiB")
		}
		t.Log(err)
		var m *ibv.MemlockError
		if !errors.As(err, &m) || m.Limit != most || m.Requested < 1<<20 || !strings.Contains(err.Error(), fmt.Sprint(most)) {
			t.Errorf("%T: %v", err, err)
		}
		return
	}
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		cmd := child(t, name, "RPCRDMA_TEST_ADDR="+addr)
		asNobody(t, cmd)
		if out, err := cmd.Output(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// TestRDMANoPermission: the error of a process that may not open the connection manager's device
// names the device.
func TestRDMANoPermission(t *testing.T) {
	const name, path = "TestRDMANoPermission", "/dev/infiniband/rdma_cm"
	if isChild(name) {
		_, err := rdmacm.New(rdmacm.Config{})
		if !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), path) {
			t.Errorf("New: %v", err)
		}
		return
	}
	rdmatest.Device(t, "rxe")
	machine(t)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(path, info.Mode().Perm())
	cmd := child(t, name)
	asNobody(t, cmd)
	if out, err := cmd.Output(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestRDMAUnservableRequest: a request that this side lacks the means for is rejected and logged; the
// listener goes on.
func TestRDMAUnservableRequest(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		var log safeBuffer
		p := provider(t, rdmacm.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		// No device has such a queue.
		l, err := p.Listen(soon(t), net.JoinHostPort(addr, "0"), fabric.ConnAttr{RecvDepth: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		accepting := later(func() error { _, err := l.Accept(soon(t)); return err })
		for range 3 {
			c, err := p.Resolve(soon(t), l.Addr().String(), fabric.ConnAttr{})
			if err != nil {
				t.Fatal(err)
			}
			var no *fabric.RejectError
			if err := c.Connect(soon(t), nil); !errors.As(err, &no) {
				t.Errorf("Connect: %v", err)
			}
			c.Close()
		}
		l.Close()
		if err := arrives(t, "Accept", accepting); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v", err)
		}
		if s := log.String(); strings.Count(s, "connection request rejected") != 3 || !strings.Contains(s, "receive queue") || !strings.Contains(s, addr) {
			t.Errorf("the log says: %s", s)
		}
	})
}

// A safeBuffer is a bytes.Buffer for several goroutines.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
