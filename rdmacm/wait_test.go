//go:build linux && cgo

package rdmacm_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// waitModes are the ways to wait, and each with a shared completion queue. Poll is last: it keeps a
// processor from the others. Immutable.
var waitModes = []rdmacm.Config{
	{Wait: rdmacm.WaitEvent}, {Wait: rdmacm.WaitAdaptive},
	{Wait: rdmacm.WaitEvent, SharedCQ: 8192}, {Wait: rdmacm.WaitAdaptive, SharedCQ: 8192},
	{Wait: rdmacm.WaitPoll}, {Wait: rdmacm.WaitPoll, SharedCQ: 8192},
}

func onModes(t *testing.T, f func(t *testing.T, addr string, cfg rdmacm.Config)) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		for _, cfg := range waitModes {
			t.Run(modeName(cfg), func(t *testing.T) { f(t, addr, cfg) })
		}
	})
}

func modeName(cfg rdmacm.Config) string {
	name := cfg.Wait.String()
	if cfg.SharedCQ > 0 {
		name += " shared"
	}
	return name
}

// TestRDMAWake: Wake ends the Wait of now or else the next one, in every mode, and
// also while another connection of the same queue does the waiting.
func TestRDMAWake(t *testing.T) {
	onModes(t, func(t *testing.T, addr string, cfg rdmacm.Config) {
		p := provider(t, cfg)
		c, s := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Timeout: limit})
		t.Run("before", func(t *testing.T) {
			c.Wake()
			returns(t, "Wait after Wake", func() {
				if err := c.Wait(); err != nil {
					t.Error(err)
				}
			})
		})
		t.Run("meanwhile", func(t *testing.T) {
			for range times(50) {
				var waiting sync.WaitGroup
				for _, conn := range []fabric.Conn{c, s} {
					waiting.Go(func() { conn.Wait() })
				}
				time.Sleep(rand.N(2 * time.Millisecond)) // at any moment of Wait
				c.Wake()
				s.Wake()
				returns(t, "Wait", waiting.Wait)
			}
		})
		t.Run("by Close", func(t *testing.T) {
			done := later(c.Wait)
			time.Sleep(rand.N(2 * time.Millisecond))
			returns(t, "Close", func() { c.Close() })
			if err := arrives(t, "Wait", done); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Wait after Close: %v", err)
			}
		})
	})
}

// TestRDMAIdle: connections on which nothing happens cost next to nothing.
func TestRDMAIdle(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		for _, cfg := range waitModes {
			if cfg.Wait == rdmacm.WaitPoll {
				continue // that is its purpose
			}
			t.Run(modeName(cfg), func(t *testing.T) {
				p := provider(t, cfg)
				var waiting sync.WaitGroup
				var conns []fabric.Conn
				for range 10 {
					c, s := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Timeout: limit})
					conns = append(conns, c, s)
				}
				for _, c := range conns {
					waiting.Go(func() { c.Wait() })
				}
				const during = time.Second
				var share float64
				// Work that set-up has left is done before long.
				if !holds(limit, func() bool {
					before := cpu(t)
					time.Sleep(during) // the thing measured is that nothing happens
					share = float64(cpu(t)-before) / float64(during)
					return share < 0.02
				}) {
					t.Errorf("%d idle connections use %.1f %% of a processor", len(conns), 100*share)
				}
				t.Logf("%d idle connections: %.2f %% of a processor", len(conns), 100*share)
				for _, c := range conns {
					c.Close()
				}
				returns(t, "Wait after Close", waiting.Wait)
			})
		}
	})
}

// TestRDMAOneProcessor: both ends on one processor do not wait for each other's spinning.
func TestRDMAOneProcessor(t *testing.T) {
	onModes(t, func(t *testing.T, addr string, cfg rdmacm.Config) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		p := provider(t, cfg)
		c, s := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Timeout: limit})
		a, b := newBall(t, c), newBall(t, s)
		start := time.Now()
		const rounds = 500
		serve, play := later(func() error { return b.play(rounds, false) }), later(func() error { return a.play(rounds, true) })
		if err := errors.Join(arrives(t, "ping", play), arrives(t, "pong", serve)); err != nil {
			t.Fatal(err)
		}
		t.Logf("%v each round", time.Since(start)/rounds)
	})
}

// A ball is one end of a game of ping-pong.
type ball struct {
	c  fabric.Conn
	mr fabric.MR
}

const ballBytes = 64

func newBall(t testing.TB, c fabric.Conn) *ball {
	t.Helper()
	mr, err := c.RegMR(make([]byte, 5*ballBytes), fabric.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	b := &ball{c, mr}
	for i := range uint64(4) {
		if err := b.recv(i); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *ball) recv(i uint64) error {
	return b.c.PostRecv([]fabric.RecvWR{{ID: i, SGE: fabrictest.SGE(b.mr, int(i)*ballBytes, ballBytes)}})
}

// hit sends message n.
func (b *ball) hit(n uint64) error {
	sge := fabrictest.SGE(b.mr, 4*ballBytes, ballBytes)
	fabrictest.Fill(sge.Buf, n)
	return b.c.Post([]fabric.SendWR{{Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{sge}}})
}

// play plays so many rounds: each hit is answered by the other end.
func (b *ball) play(rounds uint64, serve bool) error {
	var wcs [8]fabric.WC
	var got uint64
	sent := uint64(0)
	flying := 0 // the buffer is the device's
	for got < rounds || flying > 0 {
		if flying == 0 && sent < rounds && (serve && sent == got || !serve && sent < got) {
			if err := b.hit(sent); err != nil {
				return err
			}
			sent++
			flying++
		}
		if got == rounds && sent == rounds && flying == 0 {
			break
		}
		n, err := b.c.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			switch {
			case wc.Status != fabric.WCSuccess:
				return fmt.Errorf("status %v", wc.Status)
			case wc.Op == fabric.WCSend:
				flying--
			default:
				if want := fabrictest.Pattern(ballBytes, got); string(b.mr.Bytes()[wc.ID*ballBytes:][:wc.Len]) != string(want) {
					return fmt.Errorf("message %d has been damaged", got)
				}
				got++
				if err := b.recv(wc.ID); err != nil {
					return err
				}
			}
		}
		if n == 0 {
			if err := b.c.Wait(); err != nil {
				return err
			}
		}
	}
	if !serve && sent < rounds {
		return b.last(sent)
	}
	return nil
}

// last answers the last hit and waits until it has left.
func (b *ball) last(n uint64) error {
	if err := b.hit(n); err != nil {
		return err
	}
	var wcs [8]fabric.WC
	for {
		k, err := b.c.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:k] {
			if wc.Op == fabric.WCSend {
				return nil
			}
		}
		if k == 0 {
			b.c.Wait()
		}
	}
}

// TestRDMASharedQueue: many connections on one completion queue, each with a waiter of its own, all
// of them at work while others are closed and made anew. A waiter gets the completions of its
// connection, whichever goroutine polls the queue.
func TestRDMASharedQueue(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		for _, mode := range []rdmacm.WaitMode{rdmacm.WaitEvent, rdmacm.WaitAdaptive} {
			t.Run(mode.String(), func(t *testing.T) {
				p := provider(t, rdmacm.Config{Wait: mode, SharedCQ: 16384})
				attr := fabric.ConnAttr{SendDepth: 32, RecvDepth: 32}
				join := func() (*ball, *ball) {
					c, s := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Client: attr, Server: attr, Timeout: limit})
					return newBall(t, c), newBall(t, s)
				}
				rounds := uint64(times(300))
				var playing sync.WaitGroup
				var finished atomic.Int64
				game := func(a, b *ball) {
					for i, end := range []*ball{a, b} {
						playing.Go(func() {
							if err := end.play(rounds, i == 0); err != nil {
								t.Errorf("end %d: %v", i, err)
							}
							finished.Add(1)
						})
					}
				}
				for range 10 {
					game(join())
				}
				// Besides: games that are broken off by either end.
				for i := range times(30) {
					a, b := join()
					over := [2]<-chan error{
						later(func() error { return a.play(1<<40, true) }), later(func() error { return b.play(1<<40, false) }),
					}
					time.Sleep(rand.N(3 * time.Millisecond)) // at any moment
					returns(t, "Close", func() { []*ball{a, b}[i%2].c.Close() })
					for _, end := range over {
						arrives(t, "a game that was broken off", end)
					}
					a.c.Close()
					b.c.Close()
				}
				done := make(chan struct{})
				go func() { playing.Wait(); close(done) }()
				for was := int64(-1); ; {
					select {
					case <-done:
						return
					case <-time.After(limit):
						if now := finished.Load(); now == was {
							buf := make([]byte, 1<<20)
							t.Fatalf("%d of 20 ends have come to an end: a wake-up has been lost\n%s", now, buf[:runtime.Stack(buf, true)])
						} else {
							was = now
						}
					}
				}
			})
		}
	})
}

// TestRDMASharedQueueLead: the goroutine that leads the waiting on a shared queue may stop for good;
// another has to take over.
func TestRDMASharedQueueLead(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		p := provider(t, rdmacm.Config{Wait: rdmacm.WaitEvent, SharedCQ: 4096})
		const pairs = 6
		var ends [pairs][2]*ball
		for i := range ends {
			c, s := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Timeout: limit})
			ends[i] = [2]*ball{newBall(t, c), newBall(t, s)}
		}
		for round := range times(100) {
			// All wait for a message; they come one by one and in any order, and a waiter that has one
			// stops waiting.
			var waiting [pairs]<-chan error
			for i := range ends {
				b := ends[i][1]
				waiting[i] = later(func() error {
					var wcs [1]fabric.WC
					for {
						n, err := b.c.Poll(wcs[:])
						if err != nil {
							return err
						}
						if n == 1 {
							return b.recv(wcs[0].ID)
						}
						if err := b.c.Wait(); err != nil {
							return err
						}
					}
				})
			}
			for _, i := range rand.Perm(pairs) {
				a := ends[i][0]
				if err := a.hit(uint64(round)); err != nil {
					t.Fatal(err)
				}
				if err := arrives(t, fmt.Sprintf("round %d, connection %d", round, i), waiting[i]); err != nil {
					t.Fatal(err)
				}
				var wcs [1]fabric.WC
				comes(t, "the completion of the Send", func() bool {
					n, err := a.c.Poll(wcs[:])
					return n == 1 && err == nil && wcs[0].Status == fabric.WCSuccess
				})
			}
		}
	})
}

// TestRDMASharedQueueChurn: connections that come and go leave a shared queue alone:
// what they did not poll is no longer there, and never takes the place of others'.
func TestRDMASharedQueueChurn(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		attr := fabric.ConnAttr{SendDepth: 32, RecvDepth: 96}
		p := provider(t, rdmacm.Config{SharedCQ: 600})
		stay := func() (c, s *fabrictest.Endpoint) { return pair(t, p, addr, attr) }
		c, s := stay()
		c.Stop() // nothing polls
		s.Stop()
		for i := range times(30) {
			a, b := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Client: attr, Server: attr, Timeout: limit})
			for _, conn := range []fabric.Conn{a, b} {
				mr, err := conn.RegMR(make([]byte, 64), fabric.AccessLocalWrite)
				if err != nil {
					t.Fatal(err)
				}
				wrs := make([]fabric.RecvWR, attr.RecvDepth)
				for j := range wrs {
					wrs[j] = fabric.RecvWR{ID: uint64(j), SGE: fabrictest.SGE(mr, 0, 64)}
				}
				if err := conn.PostRecv(wrs); err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
			}
			for _, conn := range []fabric.Conn{a, b} {
				var wc [1]fabric.WC
				if n, err := conn.Poll(wc[:]); n != 0 || err != nil {
					t.Fatalf("round %d: a new connection has %+v, %v", i, wc[:n], err)
				}
			}
			a.Close()
			b.Close()
		}
		c.Start()
		s.Start()
		for i := range 50 {
			s.Receives(1, 64)
			c.Send("a message", fabrictest.Pattern(64, uint64(i)))
			s.WantMessage("a message", fabrictest.Pattern(64, uint64(i)))
		}
	})
}

// TestRDMASharedQueueTurnover: the last connection of a shared queue may leave while
// the next one joins it.
func TestRDMASharedQueueTurnover(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		p := provider(t, rdmacm.Config{SharedCQ: 4096})
		l, err := p.Listen(soon(t), net.JoinHostPort(addr, "0"), fabric.ConnAttr{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var workers sync.WaitGroup
		for range 4 {
			workers.Go(func() {
				for range times(40) {
					c, err := p.Resolve(soon(t), l.Addr().String(), fabric.ConnAttr{})
					if err != nil {
						t.Errorf("Resolve: %v", err)
						return
					}
					c.Close()
				}
			})
		}
		returns(t, "connections that come and go", workers.Wait)
	})
}
