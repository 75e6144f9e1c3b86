package nfsd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Calls that wait are let in from their owners in turn; each owner has at most its share.
func TestGateTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate[string, string](gateLimits{all: 4, share: 3, host: 1})
		var order []string
		var mu sync.Mutex
		hold := make(chan struct{})
		start := func(k string) {
			go func() {
				o, err := g.enter(t.Context(), k[:1], k)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, k)
				mu.Unlock()
				<-hold
				g.leave(o)
			}()
			synctest.Wait()
		}
		for range 6 {
			start("a")
		}
		for range 3 {
			start("b")
		}
		// a would leave less for others with a third one than it has.
		if got := fmt.Sprint(order); got != "[a a b]" {
			t.Errorf("let in at first: %s", got)
		}
		start("c")
		if got := fmt.Sprint(order); got != "[a a b c]" {
			t.Errorf("let in with room for one more: %s", got)
		}
		for range 7 {
			hold <- struct{}{}
			synctest.Wait()
		}
		if n := len(order); n != 10 {
			t.Errorf("%d of 10 are in", n)
		}
		close(hold)
		synctest.Wait()
		if len(g.conns)+len(g.hosts) != 0 || g.free != 4 || g.next.first != nil {
			t.Errorf("left: %d owners, %d free", len(g.conns), g.free)
		}
	})
}

// A call that gives up while it waits takes no place, and hands on one that it has got.
func TestGateGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate[int, int](gateLimits{all: 1, share: 1, host: 1})
		one, err := g.enter(t.Context(), 1, 1)
		testutil.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var failed atomic.Int64
		for k := range 3 {
			go func() {
				if _, err := g.enter(ctx, k%2, k); err != nil {
					failed.Add(1)
				}
			}()
		}
		entered := make(chan *owner[int, int], 1)
		go func() {
			o, err := g.enter(t.Context(), 9, 9)
			if err != nil {
				t.Error(err)
			}
			entered <- o
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if failed.Load() != 3 {
			t.Errorf("%d have given up", failed.Load())
		}
		g.leave(one)
		g.leave(<-entered)
		if len(g.conns)+len(g.hosts) != 0 || g.free != 1 {
			t.Errorf("left: %d owners, %d free", len(g.conns), g.free)
		}
	})
}

// Many owners, some of which give up: there are never too many, none is forgotten, and nothing is
// left in the end.
func TestGateStorm(t *testing.T) {
	g := newGate[int, int](gateLimits{all: 5, share: 2, host: 1})
	var running, entered atomic.Int64
	var each [7]atomic.Int64
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for range 200 {
				k := rnd.IntN(len(each))
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(300))*time.Microsecond)
				if o, err := g.enter(ctx, k%3, k); err == nil {
					entered.Add(1)
					if n := running.Add(1); n > 5 {
						t.Errorf("%d at a time", n)
					}
					if n := each[k].Add(1); n > 2 {
						t.Errorf("%d of one owner at a time", n)
					}
					each[k].Add(-1)
					running.Add(-1)
					g.leave(o)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if len(g.conns)+len(g.hosts) != 0 || g.free != 5 || g.next.first != nil || entered.Load() == 0 {
		t.Errorf("left: %d owners, %d free; %d were let in", len(g.conns), g.free, entered.Load())
	}
}

// A connection with calls that all hang in a file system does not hold up another one, and its calls
// that have not begun are dropped when it ends.
func TestHangingCalls(t *testing.T) {
	f, other := newPlain(), newPlain()
	c := newSite(t, &Config{Exports: []Export{{Name: "/hangs", FS: f}, {Name: "/works", FS: other}}, MaxCalls: 24, MaxConnCalls: 4})
	hangs, works := c.mnt("/hangs").Handle, c.mnt("/works").Handle
	f.block = make(chan struct{})
	cl := c.dial()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			cred := &oncrpc.AuthSys{UID: 1, GID: 1}
			cl.Call(ctx, &rpc.Call{Prog: nfs.Program, Vers: 3, Proc: nfs.ProcGetAttr, Args: hangs.Append(nil), Cred: cred.Auth()})
		})
	}
	testutil.Eventually(t, "as many calls hang as may", func() bool { return f.blocked.Load() == 4 })
	for range 20 {
		if s := c.status(nfs.ProcGetAttr, &works); s != nfs.StatusOK {
			t.Fatal(s)
		}
	}
	cl.Close()
	cancel()
	wg.Wait()
	testutil.Eventually(t, "calls that wait are dropped", func() bool {
		c.server.gate.mu.Lock()
		defer c.server.gate.mu.Unlock()
		waiting := 0
		for _, o := range c.server.gate.conns {
			for w := o.first; w != nil; w = w.behind {
				waiting++
			}
		}
		return waiting == 0
	})
	if n := f.blocked.Load(); n != 4 {
		t.Errorf("%d calls have got to the file system", n)
	}
	close(f.block)
}

// Whatever others hold, there is room for one more call of another host, and of another connection of a
// host that holds what it can get.
func TestGateLeavesRoom(t *testing.T) {
	g := newGate[int, int](gateLimits{all: 256, share: 64, host: 2, conn: 1})
	var held []*owner[int, int]
	hold := func(host, conn int) (n int) {
		for o := g.try(host, conn); o != nil; o = g.try(host, conn) {
			held = append(held, o)
			n++
		}
		return n
	}
	first := hold(0, 0)
	if second := hold(0, 1); first != 43 || second < 20 {
		t.Errorf("connections of a host hold %d and %d of 256 places", first, second)
	}
	for conn := range 500 {
		hold(0, 2+conn)
	}
	if n := len(held); n != 86 {
		t.Errorf("500 connections of a host hold %d of 256 places, want a third", n)
	}
	for host := range 10 {
		hold(1+host, 1000+host)
	}
	if n := len(held); n < 200 || n > 255 {
		t.Errorf("11 hosts hold %d of 256 places", n)
	}
	if o := g.try(20, 2000); o == nil {
		t.Error("there is none for another host")
	} else {
		g.leave(o)
	}
	for _, o := range held {
		g.leave(o)
	}
	if g.free != 256 || len(g.hosts)+len(g.conns) != 0 {
		t.Errorf("%d places are free", g.free)
	}
}

// A host with many connections gets as many turns as one with a single connection.
func TestGateHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate[string, string](gateLimits{all: 1, share: 1, host: 1})
		busy := g.try("x", "x")
		order := ""
		for _, k := range []string{"a1", "a1", "a2", "a3", "a4", "b1", "b1", "b1"} {
			go func() {
				o, err := g.enter(t.Context(), k[:1], k)
				if err != nil {
					t.Error(err)
				}
				order += k + " "
				g.leave(o)
			}()
			synctest.Wait()
		}
		g.leave(busy)
		synctest.Wait()
		if want := "a1 b1 a2 b1 a3 b1 a4 a1 "; order != want {
			t.Errorf("let in: %s, want %s", order, want)
		}
	})
}
