//go:build linux && cgo

package rdmacm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// limit bounds every single wait of the tests.
const limit = 30 * time.Second

// soon is a context that ends with the test, or when it is late.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// briefly returns a context that ends while its user is waiting.
func briefly(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// provider makes a provider that has to have given everything back in the end.
func provider(t testing.TB, cfg rdmacm.Config) *rdmacm.Provider {
	t.Helper()
	p, err := rdmacm.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// siw's kernel may keep a connection that was never made for a while.
		if !t.Failed() && !holds(limit, func() bool { return p.OpenObjects() == (rdmacm.OpenObjects{}) }) {
			t.Errorf("the provider still has %+v", p.OpenObjects())
		}
	})
	return p
}

// returns runs f, which must come back in time: what hangs is not to hang the tests.
func returns(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	arrives(t, what, done)
}

// arrives takes from a channel on which something must come in time.
func arrives[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case v := <-ch:
		return v
	case <-late.C:
		buf := make([]byte, 1<<20)
		t.Fatalf("%s has not come back after %v:\n%s", what, limit, buf[:runtime.Stack(buf, true)])
		panic("not reached")
	}
}

// later runs f on another goroutine.
func later(f func() error) <-chan error {
	ch := make(chan error, 1)
	go func() { ch <- f() }()
	return ch
}

// comes waits until a condition is true, which it must be in time.
func comes(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !holds(limit, ok) {
		t.Fatalf("after %v still not: %s", limit, what)
	}
}

func holds(d time.Duration, ok func() bool) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); !ok(); <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// times is n, or a fifth of it with -short.
func times(n int) int {
	if testing.Short() {
		return max(n/5, 2)
	}
	return n
}

// ---- what is there

// objects counts the kernel's verbs objects by device and kind, those left aside
// that say nothing about a leak: contexts stay open with librdmacm.
func objects(t testing.TB) map[string]int {
	t.Helper()
	out, err := exec.Command("rdma", "-j", "resource", "show").Output()
	if err != nil {
		t.Fatalf("rdma resource show: %v", err)
	}
	var devices []map[string]any
	if err := json.Unmarshal(out, &devices); err != nil {
		t.Fatalf("rdma resource show: %v in %s", err, out)
	}
	count := make(map[string]int)
	for _, d := range devices {
		for _, what := range []string{"pd", "cq", "qp", "cm_id", "mr", "srq"} {
			n, _ := d[what].(float64)
			count[fmt.Sprint(d["ifname"], " ", what)] = int(n)
		}
	}
	return count
}

// A tally is everything that could leak.
type tally struct {
	objects           map[string]int
	files, goroutines int
	conns, listeners  int
	regions, windows  int
}

func take(t testing.TB, p *rdmacm.Provider) tally {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := tally{objects: objects(t), files: len(files), goroutines: runtime.NumGoroutine()}
	if p != nil {
		l := p.OpenObjects()
		n.conns, n.listeners, n.regions, n.windows = l.Conns, l.Listeners, l.MRs, l.MWs
	}
	return n
}

// exceeds lists what there is more of than before.
func (n tally) exceeds(before tally) (what []string) {
	for k, v := range n.objects {
		if was, ok := before.objects[k]; ok && v > was {
			what = append(what, fmt.Sprintf("%d of %s", v-was, k))
		}
	}
	for _, f := range []struct {
		what      string
		now, then int
	}{
		{"descriptors", n.files, before.files}, {"goroutines", n.goroutines, before.goroutines},
		{"connections", n.conns, before.conns}, {"listeners", n.listeners, before.listeners},
		{"regions", n.regions, before.regions}, {"windows", n.windows, before.windows},
	} {
		if f.now > f.then {
			what = append(what, fmt.Sprintf("%d %s", f.now-f.then, f.what))
		}
	}
	return what
}

// leavesNothing runs f and looks for leaks. A first run may open something for good, so f runs once
// before.
func leavesNothing(t *testing.T, p *rdmacm.Provider, first, f func()) {
	t.Helper()
	first()
	before := take(t, p)
	f()
	var what []string
	// rxe frees objects after their last packet.
	if !holds(limit, func() bool { what = take(t, p).exceeds(before); return len(what) == 0 }) {
		buf := make([]byte, 1<<20)
		t.Errorf("left behind: %s\n%s", strings.Join(what, ", "), buf[:runtime.Stack(buf, true)])
	}
}

// ---- bare connection manager

func channel(t testing.TB) *rdmacm.EventChannel {
	t.Helper()
	rdmatest.Device(t, "rxe") // or another: without any there is no channel
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ch.Close(); err != nil && !t.Failed() {
			t.Errorf("closing the channel: %v", err)
		}
	})
	return ch
}

// newID makes an ID that is closed with the test.
func newID(t testing.TB, ch *rdmacm.EventChannel) *rdmacm.ID {
	t.Helper()
	id, err := ch.NewID()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { id.Close() })
	return id
}

// listening makes a listener on a free port.
func listening(t testing.TB, ch *rdmacm.EventChannel, addr string) (*rdmacm.ID, netip.AddrPort) {
	t.Helper()
	id := newID(t, ch)
	if err := id.BindAddr(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)); err != nil {
		t.Fatal(err)
	}
	if err := id.Listen(64); err != nil {
		t.Fatal(err)
	}
	return id, id.LocalAddr()
}

// resolved makes an ID that could connect to dst, but for a queue pair.
func resolved(t testing.TB, ch *rdmacm.EventChannel, dst netip.AddrPort) *rdmacm.ID {
	t.Helper()
	id := newID(t, ch)
	if err := id.ResolveAddr(soon(t), netip.AddrPort{}, dst, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := id.ResolveRoute(soon(t), 2*time.Second); err != nil {
		t.Fatal(err)
	}
	return id
}

// A party is an ID with a queue pair and some memory.
type party struct {
	id   *rdmacm.ID
	ctx  *ibv.Context
	pd   *ibv.PD
	cq   *ibv.CQ
	qp   *ibv.QP
	mr   *ibv.MR
	once sync.Once
}

// newParty makes one. The ID stays its owner's.
func newParty(id *rdmacm.ID, inline int) (*party, error) {
	p := &party{id: id, ctx: id.Verbs()}
	if p.ctx == nil {
		return nil, errors.New("the ID has no device")
	}
	if err := p.equip(inline); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *party) equip(inline int) (err error) {
	if p.pd, err = p.ctx.AllocPD(); err != nil {
		return err
	}
	if p.cq, err = p.ctx.CreateCQ(256, nil, 0); err != nil {
		return err
	}
	const all = ibv.AccessLocalWrite | ibv.AccessRemoteRead | ibv.AccessRemoteWrite
	if p.mr, err = p.pd.RegMR(make([]byte, 1<<20), all); err != nil {
		return err
	}
	p.qp, err = p.id.CreateQP(p.pd, ibv.QPInitAttr{
		SendCQ: p.cq, RecvCQ: p.cq, Cap: ibv.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: uint32(inline)},
	})
	return err
}

// close gives back what newParty took.
func (p *party) close() {
	p.once.Do(func() {
		if p.qp != nil {
			p.qp.Close()
		}
		if p.mr != nil {
			p.mr.Close()
		}
		if p.cq != nil {
			p.cq.Close()
		}
		if p.pd != nil {
			p.pd.Close()
		}
		p.ctx.Close()
	})
}

// partyOn is newParty for a test, which closes the party and then its ID.
func partyOn(t testing.TB, id *rdmacm.ID) *party {
	t.Helper()
	p, err := newParty(id, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.close(); id.Close() })
	return p
}

// next polls for the next completion.
func (p *party) next(t testing.TB) ibv.WC {
	t.Helper()
	var wcs [1]ibv.WC
	comes(t, "a completion", func() bool {
		n, err := p.cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
	return wcs[0]
}

// part is an SGE in the party's memory.
func (p *party) part(from, n int) []ibv.SGE {
	return []ibv.SGE{{Buf: p.mr.Bytes()[from : from+n : from+n], LKey: p.mr.LKey()}}
}

// asking has a new client connect to dst, where l listens: l has received the request and has not
// answered. The client's ID is of ch, and answer has what its Connect returns.
func asking(t testing.TB, ch *rdmacm.EventChannel, l *rdmacm.ID, dst netip.AddrPort, param rdmacm.ConnParam) (client *party, id *rdmacm.ID, answer <-chan error) {
	t.Helper()
	for try := 1; ; try++ {
		client, id, answer, err := ask(t, ch, l, dst, param)
		if err == nil {
			return client, id, answer
		}
		if try == pickTries || !portTaken(err) {
			t.Fatal(err)
		}
		t.Logf("once more, from another port: %v", err)
	}
}

// ask is asking once. The error is that of Connect.
func ask(t testing.TB, ch *rdmacm.EventChannel, l *rdmacm.ID, dst netip.AddrPort, param rdmacm.ConnParam) (client *party, id *rdmacm.ID, answer <-chan error, err error) {
	t.Helper()
	client = partyOn(t, resolved(t, ch, dst))
	ctx, cancel := context.WithCancel(soon(t))
	answer = later(func() error {
		_, err := client.id.Connect(soon(t), param)
		cancel() // a request that never left does not arrive
		return err
	})
	if id, err = l.GetRequest(ctx); err == nil {
		return client, id, answer, nil
	}
	told := arrives(t, "Connect", answer)
	if told == nil {
		t.Fatal(err)
	}
	client.close()
	client.id.Close()
	return nil, nil, nil, told
}

// siw connects from the port that the connection manager has picked, which TCP may use
// already, or still remember. So often another one is picked.
const pickTries = 8

func portTaken(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// joined connects two parties, the second one through a listener of its own. Linux's siw may
// lose a listener without a word (docs/tuning.md): then through another one.
func joined(t testing.TB, ch *rdmacm.EventChannel, addr string) (client, server *party) {
	t.Helper()
	param := rdmacm.ConnParam{ResponderResources: 4, InitiatorDepth: 4, RetryCount: 7, RNRRetryCount: 7}
	for try := 1; ; try++ {
		l, at := listening(t, ch, addr)
		client, id, answer, err := ask(t, ch, l, at, param)
		if err != nil {
			if try == pickTries || !portTaken(err) && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatal(err)
			}
			t.Logf("once more, with another listener: %v", err)
			l.Close()
			continue
		}
		server = partyOn(t, id)
		if _, err := id.Accept(soon(t), param); err != nil {
			t.Fatal(err)
		}
		if err := arrives(t, "Connect", answer); err != nil {
			t.Fatal(err)
		}
		l.Close()
		return client, server
	}
}

// ---- the provider

// pair returns two ends of the provider, driven.
func pair(t testing.TB, p fabric.Provider, addr string, attr fabric.ConnAttr) (client, server *fabrictest.Endpoint) {
	t.Helper()
	a, b := fabrictest.Pair(t, p, fabrictest.Setup{Addr: net.JoinHostPort(addr, "0"), Client: attr, Server: attr, Timeout: limit})
	client, server = fabrictest.NewEndpoint(t, "client", a), fabrictest.NewEndpoint(t, "server", b)
	for _, e := range []*fabrictest.Endpoint{client, server} {
		e.Timeout = limit
		e.Start()
	}
	// siw's end that accepted must not be the first that sends.
	server.Receives(1, 16)
	client.Send("the first message", []byte("hello"))
	server.WantMessage("the first message", []byte("hello"))
	return client, server
}

// traffic has both ends write into each other and send, without end: until the
// connection has one. It returns a channel for each end, on which the
// connection's error comes, and a count of messages.
func traffic(t testing.TB, client, server fabric.Conn) (c, s <-chan error, moved *atomic.Int64) {
	t.Helper()
	moved = new(atomic.Int64)
	a, err := newPump(client, moved)
	if err == nil {
		var b *pump
		if b, err = newPump(server, moved); err == nil {
			a.to, b.to = b.in.Segment(), a.in.Segment()
			// On iWARP the end that has connected speaks first.
			return later(func() error { return a.run(2) }), later(func() error { return b.run(0) }), moved
		}
	}
	t.Fatal(err)
	return nil, nil, nil
}

// A pump is one end of traffic.
type pump struct {
	c     fabric.Conn
	in    fabric.MR // receives, and what the peer writes
	out   fabric.MR
	to    fabric.Segment
	moved *atomic.Int64
}

const (
	pumpRecvs = 16
	pumpBytes = 64 << 10
)

func newPump(c fabric.Conn, moved *atomic.Int64) (p *pump, err error) {
	p = &pump{c: c, moved: moved}
	if p.in, err = c.RegMR(make([]byte, pumpBytes+pumpRecvs*64), fabric.AccessLocalWrite|fabric.AccessRemoteWrite); err != nil {
		return nil, err
	}
	if p.out, err = c.RegMR(make([]byte, pumpBytes), 0); err != nil {
		return nil, err
	}
	for i := range pumpRecvs {
		if err := p.recv(i); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *pump) recv(i int) error {
	return p.c.PostRecv([]fabric.RecvWR{{ID: uint64(i), SGE: fabrictest.SGE(p.in, pumpBytes+i*64, 64)}})
}

// send writes a lot and sends a little.
func (p *pump) send() error {
	return p.c.Post([]fabric.SendWR{
		{Op: fabric.OpWrite, SGL: []fabric.SGE{fabrictest.SGE(p.out, 0, pumpBytes)}, RKey: p.to.Handle, RemoteOffset: p.to.Offset},
		{Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{fabrictest.SGE(p.out, 0, 64)}},
	})
}

// run plays ping-pong with so many balls, and returns how the connection ended.
func (p *pump) run(balls int) error {
	for range balls {
		if err := p.send(); err != nil {
			return err
		}
	}
	var wcs [8]fabric.WC
	for {
		n, err := p.c.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Op != fabric.WCRecv || wc.Status != fabric.WCSuccess {
				continue
			}
			p.moved.Add(1)
			// A post that fails is not the news: Poll tells the end.
			if p.recv(int(wc.ID)) == nil {
				p.send()
			}
		}
		if n == 0 {
			p.c.Wait()
		}
	}
}

// ended wants the end of a connection in time, as the error that it should be.
func ended(t testing.TB, what string, ch <-chan error) *fabric.ConnError {
	t.Helper()
	err := arrives(t, what, ch)
	var ce *fabric.ConnError
	if !errors.As(err, &ce) || !errors.Is(err, net.ErrClosed) {
		t.Fatalf("%s: %T (%v), want a *fabric.ConnError that is net.ErrClosed", what, err, err)
	}
	return ce
}

// ---- the machine

// machine skips tests that change network devices on any but the virtual machine.
func machine(t testing.TB) {
	t.Helper()
	if name, _ := os.Hostname(); name != "rpcrdma-vm" {
		t.Skipf("this changes network devices: only in the virtual machine of scripts/vm")
	}
}

// netdev is the network device below a kind of RDMA device.
func netdev(kind string) string { return "rdma-" + kind }

// sh runs a command, which must succeed in time.
func sh(t testing.TB, command ...string) string {
	t.Helper()
	out, err := try(command...)
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
	return out
}

func try(command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	return string(out), err
}

// child is the test itself, as another process that runs test name alone, which
// finds in the environment what its part is.
func child(t testing.TB, name string, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+name+"$", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), append(env, "RPCRDMA_TEST_CHILD="+name)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// isChild reports whether this process is the child of that test.
func isChild(name string) bool { return os.Getenv("RPCRDMA_TEST_CHILD") == name }

// asNobody has the command run without the rights of root.
func asNobody(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can run something as somebody else")
	}
	// Folders above the test program may be closed to others.
	dir, err := os.MkdirTemp("", "rdmacm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program, err := os.ReadFile(cmd.Path)
	if err != nil {
		t.Fatal(err)
	}
	copied := dir + "/test"
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(copied, program, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Args[0], cmd.Dir = copied, copied, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// cpu is the processor time that this process has used.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
