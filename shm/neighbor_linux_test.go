package shm

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
)

// pair returns two neighbors of each other.
func pair(t *testing.T) (a, b *neighbor) {
	t.Helper()
	var ns [2]neighbors
	bellA, bellB, err := newBell()
	if err != nil {
		t.Fatal(err)
	}
	if a, err = ns[0].newNeighbor(bellA); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.release)
	if b, err = ns[1].newNeighbor(bellB); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.release)
	for _, n := range [][2]*neighbor{{a, b}, {b, a}} {
		if err := n[0].meet(n[1].file, neighborKey{target: "other"}); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// A visitor is a connection of which only goroutines park, one at each place, and look at their counters of hints.
type visitor struct {
	*stream
	hints [2]atomic.Uint32
	seen  [2]chan struct{}
}

func visit(t *testing.T, n *neighbor) *visitor {
	v := &visitor{stream: new(stream)}
	v.parker.init(n)
	number := n.number()
	n.enter(number, v.stream)
	var wg sync.WaitGroup
	for i := range v.seen {
		v.seen[i] = make(chan struct{})
		wg.Go(func() {
			park := v.Read
			if i == hintWrite {
				park = v.Write
			}
			for last := uint32(0); ; last++ {
				if park(func(uintptr) bool { return v.hints[i].Load() != last }) != nil {
					return
				}
				select { // until then it does not park, and cannot lead
				case v.seen[i] <- struct{}{}:
				case <-t.Context().Done():
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		v.parker.Close()
		wg.Wait()
		n.exit(number)
	})
	return v
}

// tell has a goroutine of v go on, with a hint from a.
func (v *visitor) tell(a *neighbor, number, which int) {
	v.hints[which].Add(1)
	a.tell(hintOf(uint32(number), uint32(which)))
}

// woken waits until the goroutine has gone on.
func (v *visitor) woken(t *testing.T, which int) {
	t.Helper()
	if t.Failed() {
		return
	}
	select {
	case <-v.seen[which]:
	case <-time.After(10 * time.Second):
		t.Errorf("a goroutine at place %d is not woken", which)
	}
}

// TestHintsArrive: each hint wakes its goroutine, whichever goroutine leads, or is about to, also if the leader is late
// by more hints than a board has, or the peer has written anything to its board before.
func TestHintsArrive(t *testing.T) {
	leak.Check(t)
	for _, conns := range []int{1, 2, 5, 100} {
		a, b := pair(t)
		all := make([]*visitor, conns)
		for i := range all {
			all[i] = visit(t, b)
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 10_000 {
			i, which := r.IntN(conns), r.IntN(2)
			all[i].tell(a, i, which)
			all[i].woken(t, which)
		}
		var wg sync.WaitGroup
		for k := range uint64(4) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(k, 3))
				var mine []int
				for i := int(k); i < 2*conns; i += 4 {
					mine = append(mine, i)
				}
				shuffle := func() { r.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] }) }
				for range 5000 / conns {
					shuffle()
					for _, i := range mine {
						all[i/2].tell(a, i/2, i%2)
						if r.IntN(5) == 0 {
							all[i/2].places[i%2].wake() // as timers and calls do
						}
					}
					shuffle()
					for _, i := range mine {
						all[i/2].woken(t, i%2)
					}
				}
			})
		}
		wg.Wait()
		for range 100 {
			b.recv.Lock() // the leader is late
			which := r.IntN(2)
			for i := range all {
				all[i].tell(a, i, which)
			}
			for range r.IntN(3 * boardHints) {
				a.tell(hintOf(r.Uint32N(uint32(2*conns)), uint32(r.IntN(2))))
			}
			b.recv.Unlock()
			for i := range all {
				all[i].woken(t, which)
			}
		}
		// A peer that writes something else to its board may miss wake-ups until it stops.
		for range 1000 {
			mutateBoard(r, a.mine)
			a.tell(hint(r.Uint32()))
		}
		for i := range all {
			all[i].hints[hintRead].Add(1)
			for range 2 * boardHints { // more than any position is ahead that is not taken for wrong
				a.tell(hintOf(uint32(i), hintRead))
			}
			all[i].woken(t, hintRead)
		}
	}
}

// TestNeighbors: connections to one address have one neighbor in common, also those that are made and closed at
// once, and nothing is left of it after the last.
func TestNeighbors(t *testing.T) {
	leak.Check(t)
	before := mappings(t)
	p := New(Config{})
	e := startEchoer(t, p)
	defer p.Close()
	const dialers, dials = 16, 20
	kept, err := talk(p, e.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	known := func() int {
		p.neighbors.mu.Lock()
		defer p.neighbors.mu.Unlock()
		return len(p.neighbors.known)
	}
	round := func() {
		t.Helper()
		var wg sync.WaitGroup
		for i := range dialers {
			wg.Go(func() {
				for range dials {
					c, err := talk(p, e.l.Addr().String())
					if err == nil {
						err = c.say(fabrictest.Pattern(echoLen, uint64(i)))
					}
					if err != nil {
						t.Error(err)
						return
					}
					c.Close()
					<-e.ends
				}
			})
		}
		wg.Wait()
	}
	round()
	if n := known(); n != 2 { // this process is at both ends
		t.Errorf("%d neighbors with connections", n)
	}
	kept.Close()
	<-e.ends
	round()
	if n := known(); n != 0 {
		t.Errorf("%d neighbors without connections", n)
	}
	if n := mappings(t); n != before {
		t.Errorf("%d mappings, %d before", n, before)
	}
}

// TestNeighborGone: a request to join a neighbor that the server has dropped, with the last connection, succeeds.
func TestNeighborGone(t *testing.T) {
	leak.Check(t)
	p, q := New(Config{}), New(Config{})
	e := startEchoer(t, q)
	defer q.Close()
	addr := e.l.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	old, s := spied(t, p, e.l.Addr())
	first, err := join(ctx, old)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	s.conn.CloseWrite() // the server's end ends, and this one is not closed
	<-e.ends
	second, err := talk(p, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := second.say([]byte("here")); err != nil {
		t.Error(err)
	}
	if n := p.neighbors.find(neighborKey{target: addr}); n == s.made.at {
		t.Error("the connection has the neighbor of the one before")
	} else {
		n.release()
	}
}
