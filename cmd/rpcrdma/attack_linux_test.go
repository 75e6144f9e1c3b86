package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// attacks are the things that a crowd does with connections that are no clients': they return when
// all of it is under way. Immutable.
var attacks = map[string]func(addr string, conns int) error{
	// The beginning of a long WRITE, then a byte a second, each from an address of its own.
	"half calls": func(addr string, conns int) error {
		call := oncrpc.AppendCall(oncrpc.AppendRecordMark(nil, 1<<20, false), &oncrpc.CallHeader{
			XID: 1, RPCVers: oncrpc.Version, Prog: nfs.Program, Vers: nfs.Version, Proc: nfs.ProcWrite,
		})
		return fromHosts(addr, conns, func(c net.Conn) error {
			for b := call; ; b = call[:1] {
				if _, err := c.Write(b); err != nil {
					return err
				}
				time.Sleep(time.Second)
			}
		})
	},
	// Connections that say nothing, each from an address of its own: of one network if it is IPv6.
	"silence": func(addr string, conns int) error {
		return fromHosts(addr, conns, func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err })
	},
	// Connections of one host that call NULL every 800 ms.
	"talk": func(addr string, conns int) error {
		null := oncrpc.AppendCall(nil, &oncrpc.CallHeader{RPCVers: oncrpc.Version, Prog: nfs.Program, Vers: nfs.Version})
		null = append(oncrpc.AppendRecordMark(nil, len(null), true), null...)
		return connectNFS(addr, conns, func(int) net.IP { return net.IPv4(127, 9, 9, 9) }, func(c net.Conn) error {
			reply := make([]byte, 4096)
			for xid := uint32(1); ; xid++ {
				msg := bytes.Clone(null)
				binary.BigEndian.PutUint32(msg[oncrpc.RecordMarkSize:], xid)
				if _, err := c.Write(msg); err != nil {
					return err
				}
				if _, err := c.Read(reply); err != nil {
					return err
				}
				time.Sleep(800 * time.Millisecond)
			}
		})
	},
	// Requests for metrics, as many as there can be.
	"metrics": func(addr string, conns int) error {
		return connectNFS(addr, conns, func(int) net.IP { return net.IPv4(127, 9, 9, 9) }, func(c net.Conn) error {
			go io.Copy(io.Discard, c)
			for {
				if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
					return err
				}
			}
		})
	},
}

// fromHosts is connect from addresses of the loopback network: one host each for IPv4.
func fromHosts(addr string, conns int, talk func(net.Conn) error) error {
	return connectNFS(addr, conns, func(i int) net.IP {
		if strings.HasPrefix(addr, "[") {
			return slices.Concat(attackNet[:8], binary.BigEndian.AppendUint64(nil, uint64(i+1)))
		}
		return net.IPv4(127, 8, byte(i>>8), byte(i))
	}, talk)
}

// attackNet is a network of which all addresses are local in a namespace of inNetwork.
var attackNet = net.ParseIP("fd00:bad::")

// connectNFS keeps so many connections to addr, from addresses of its choice, on which it talks. A
// connection that ends is made again.
func connectNFS(addr string, conns int, from func(i int) net.IP, talk func(net.Conn) error) error {
	var begun sync.WaitGroup
	for i := range conns {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from(i)}}
		begun.Add(1)
		go func() {
			for first := true; ; first = false {
				c, err := d.Dial("tcp", addr)
				if first {
					begun.Done()
				}
				if err == nil {
					_ = talk(c) // until the server ends it
					c.Close()
				}
				time.Sleep(100 * time.Millisecond)
			}
		}()
		if i%64 == 63 {
			begun.Wait() // the server's queue is short
		}
	}
	begun.Wait()
	return nil
}

// An effort is the work that an honest client repeats, on a connection of its own.
type effort func(ctx context.Context) error

// howOften returns how many times a second an effort is made.
func howOften(t *testing.T, window time.Duration, f effort) float64 {
	ctx, cancel := context.WithTimeout(t.Context(), window)
	defer cancel()
	start := time.Now()
	n, failed := 0, 0
	for ctx.Err() == nil {
		err := f(ctx)
		switch {
		case err == nil:
			n++
		case ctx.Err() == nil:
			if failed++; failed == 1 {
				t.Logf("the honest client: %v", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return float64(n) / time.Since(start).Seconds()
}

// underAttack measures efforts before, while and after stop ends an attack, in rounds.
func underAttack(t *testing.T, window time.Duration, start func() (stop func()), efforts map[string]effort) {
	t.Helper()
	best := make(map[string]float64)
	for range 3 {
		rates := make(map[string][3]float64)
		measure := func(i int) {
			for name, f := range efforts {
				r := rates[name]
				r[i] = howOften(t, window, f)
				rates[name] = r
			}
		}
		measure(0)
		stop := start()
		measure(1)
		stop()
		measure(2)
		for name, r := range rates {
			ratio := r[1] / ((r[0] + r[2]) / 2)
			t.Logf("%s: %.1f a second before, %.1f during, %.1f after: %.2f", name, r[0], r[1], r[2], ratio)
			best[name] = max(best[name], ratio)
		}
	}
	for name, ratio := range best {
		if ratio < leastShare {
			t.Errorf("%s: an honest client keeps at most %.2f of its rate, want %.1f", name, ratio, leastShare)
		}
	}
}

// getattr is an effort: a client that connects, calls and leaves.
func getattr(p fabric.Provider, addr string) effort {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		c, err := nfs.Dial(ctx, p, addr, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		root, err := c.Mnt(ctx, "/")
		if err == nil {
			_, err = c.GetAttr(ctx, root)
		}
		return err
	}
}

// TestUnderAttack measures what honest clients of a server get before, during and after attacks from
// other hosts. It takes minutes, and is left out unless RPCRDMA_FAIR=1.
func TestUnderAttack(t *testing.T) {
	if os.Getenv("RPCRDMA_FAIR") == "" {
		t.Skip("it takes minutes: set RPCRDMA_FAIR=1")
	}
	const window = 5 * time.Second
	p := iwarp.New(iwarp.Config{})
	mib := func(p fabric.Provider, addr string) map[uint32]effort {
		ctx := t.Context()
		c, err := nfs.Dial(ctx, p, addr, nil)
		testutil.Must(t, err)
		t.Cleanup(func() { c.Close() })
		root, err := c.Mnt(ctx, "/")
		testutil.Must(t, err)
		file, _, err := c.Lookup(ctx, root, "file")
		testutil.Must(t, err)
		data := make([]byte, 1<<20)
		return map[uint32]effort{
			nfs.ProcRead: func(ctx context.Context) error { _, _, err := c.Read(ctx, file, 0, data); return err },
			nfs.ProcWrite: func(ctx context.Context) error {
				_, err := c.Write(ctx, file, 0, data, nfs.Unstable)
				return err
			},
		}
	}
	crowd := func(what, addr string, conns int) func() func() {
		return func() func() { return startCrowd(t, what, addr, conns, 0) }
	}
	t.Run("half calls", func(t *testing.T) {
		s := startServer(t, "--dir", fairDir(t, 0, 0), "--tcp-addr", "127.0.0.1:0")
		overTCP, overIwarp := mib(transport.TCP{}, s.tcp), mib(p, s.addr)
		underAttack(t, window, crowd("half calls", s.tcp, 160), map[string]effort{
			"READ over TCP": overTCP[nfs.ProcRead], "WRITE over TCP": overTCP[nfs.ProcWrite],
			"READ over iwarp": overIwarp[nfs.ProcRead], "WRITE over iwarp": overIwarp[nfs.ProcWrite],
		})
	})
	for _, what := range []string{"silence", "talk"} {
		t.Run(what, func(t *testing.T) {
			s := startServer(t, "--dir", fairDir(t, 0, 0), "--tcp-addr", "127.0.0.1:0")
			underAttack(t, window, crowd(what, s.tcp, maxConns(t)), map[string]effort{
				"new connections over TCP": getattr(transport.TCP{}, s.tcp), "new connections over iwarp": getattr(p, s.addr),
			})
		})
	}
	t.Run("silence of a network", func(t *testing.T) {
		if !inNetwork(t) {
			return
		}
		s := startServer(t, "--dir", fairDir(t, 0, 0), "--tcp-addr", "[::]:0")
		_, port, _ := net.SplitHostPort(s.tcp)
		underAttack(t, window, crowd("silence", net.JoinHostPort(attackNet.String()+"1", port), maxConns(t)), map[string]effort{
			"new connections over TCP": getattr(transport.TCP{}, net.JoinHostPort("127.0.0.1", port)),
		})
	})
	t.Run("full disk", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can mount a small disk")
		}
		small := publicDir(t)
		testutil.Must(t, syscall.Mount("tmpfs", small, "tmpfs", 0, "size=64k"))
		t.Cleanup(func() { testutil.Must(t, syscall.Unmount(small, 0)) })
		testutil.Must(t, os.WriteFile(filepath.Join(small, "file"), make([]byte, 64<<10), 0o666))
		s := startServer(t, "--export", fairDir(t, 0, 0)+"=/data", "--export", small+"=/small")
		local := filepath.Join(t.TempDir(), "local")
		testutil.Must(t, os.WriteFile(local, make([]byte, 64<<20), 0o666))
		put := func(ctx context.Context) error {
			if out, err := command(ctx, "put", local, s.url("/data/put")).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
		ctx := t.Context()
		c, err := nfs.Dial(ctx, p, s.addr, nil)
		testutil.Must(t, err)
		defer c.Close()
		root, err := c.Mnt(ctx, "/small")
		testutil.Must(t, err)
		file, _, err := c.Lookup(ctx, root, "file")
		testutil.Must(t, err)
		underAttack(t, window, func() (stop func()) {
			var refused atomic.Int64
			done, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				for tick := time.NewTicker(10 * time.Millisecond); ; {
					select {
					case <-done:
						return
					case <-tick.C:
					}
					_, err := c.Write(ctx, file, 64<<10, make([]byte, 1<<20), nfs.FileSync)
					if err != nil {
						refused.Add(1)
					}
				}
			}()
			return func() {
				close(done)
				<-ended
				if refused.Load() == 0 {
					t.Error("no WRITE was refused")
				}
			}
		}, map[string]effort{"put of 64 MiB": put})
	})
	t.Run("metrics", func(t *testing.T) {
		s := startServer(t, "--dir", fairDir(t, 0, 0), "--metrics-addr", "127.0.0.1:0")
		probe := func(ctx context.Context) error {
			next := time.Now().Add(time.Second) // as often as Kubernetes can, which gives each a second
			ctx, cancel := context.WithDeadline(ctx, next)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.http+"/healthz", nil)
			if err != nil {
				return err
			}
			req.Close = true
			res, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				return err
			}
			res.Body.Close()
			time.Sleep(time.Until(next))
			if res.StatusCode != http.StatusOK {
				return fmt.Errorf("/healthz: %s", res.Status)
			}
			return nil
		}
		for _, conns := range []int{8, 1000} {
			underAttack(t, window, crowd("metrics", strings.TrimPrefix(s.http, "http://"), conns), map[string]effort{"/healthz": probe})
		}
	})
}

// maxConns is the number of connections that a server of this process's limits takes.
func maxConns(t *testing.T) int {
	var l syscall.Rlimit
	testutil.Must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l))
	return min(4096, int(l.Max)/4)
}

// inNetwork runs the test again in a network namespace that has all addresses of attackNet, and
// reports whether this is that run.
func inNetwork(t *testing.T) bool {
	const inside = "RPCRDMA_TEST_NAMESPACE"
	if os.Getenv(inside) != "" {
		for _, args := range [][]string{{"link", "set", "lo", "up"}, {"-6", "route", "add", "local", attackNet.String() + "/64", "dev", "lo"}} {
			out, err := exec.Command("ip", args...).CombinedOutput()
			if err != nil {
				t.Fatalf("ip %v: %v: %s", args, err, out)
			}
		}
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can make a network namespace")
	}
	var parts []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		parts = append(parts, "^"+part+"$")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run="+strings.Join(parts, "/"))
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
	return false
}
