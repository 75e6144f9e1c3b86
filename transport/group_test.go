package transport

import (
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// spots is a provider of scripted peers at several addresses.
type spots struct {
	t *testing.T

	mu     sync.Mutex
	lines  map[string][]*peer     // to be connected to, in this order
	silent map[string]bool        // no server answers there, not even to refuse
	dials  map[string][]time.Time // of each attempt
	taken  []*peer
}

func (s *spots) Name() string { return "script" }
func (s *spots) Close() error { return nil }

func (s *spots) Listen(context.Context, string, fabric.ConnAttr) (fabric.Listener, error) {
	return nil, errors.ErrUnsupported
}

func (s *spots) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials[addr] = append(s.dials[addr], time.Now())
	if s.silent[addr] {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, ctx.Err()
	}
	line := s.lines[addr]
	if len(line) == 0 {
		return nil, errors.New("script: nobody is at " + addr)
	}
	p := line[0]
	s.lines[addr] = line[1:]
	s.taken = append(s.taken, p)
	p.attr = attr
	return peerConn{p}, nil
}

// next is one more peer to be connected to at addr.
func (s *spots) next(addr string) *peer {
	p := newPeer(s.t)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines[addr] = append(s.lines[addr], p)
	return p
}

// tried is how often a connection to addr was tried.
func (s *spots) tried(addr string) int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dials[addr])
}

// inSpots runs a conversation in fake time.
func inSpots(t *testing.T, script func(s *spots)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &spots{t: t, lines: make(map[string][]*peer), silent: make(map[string]bool), dials: make(map[string][]time.Time)}
		script(s)
		synctest.Wait()
		for i, p := range s.taken {
			if !p.over() || p.openWindows() > 0 {
				t.Errorf("connection %d: over is %v, with %d windows", i, p.over(), p.openWindows())
			}
		}
	})
}

// group runs a conversation with a group that has one connection, to p, at address "a".
func group(t *testing.T, cfg *ClientConfig, addrs []string, script func(s *spots, p *peer, g *Group)) {
	t.Helper()
	inSpots(t, func(s *spots) {
		p := s.next("a")
		g := s.dial(cfg, addrs...)
		defer g.close(t)
		script(s, p, g)
	})
}

func (s *spots) dial(cfg *ClientConfig, addrs ...string) *Group {
	s.t.Helper()
	g, err := DialGroup(bg, s, addrs, plain(cfg))
	if err != nil {
		s.t.Fatal(err)
	}
	settle()
	return g
}

// plain is cfg with version 1 alone, which has no messages at set-up.
func plain(cfg *ClientConfig) *ClientConfig {
	var c ClientConfig
	if cfg != nil {
		c = *cfg
	}
	c.Version = Version1
	return &c
}

// close ends a group and checks that it holds no memory.
func (g *Group) close(t *testing.T) {
	t.Helper()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	for _, m := range g.list() {
		checkArena(t, m.cl.conn())
	}
	for i, m := range g.list() {
		if m.calls.Load() != 0 || m.bulk.Load() != 0 {
			t.Errorf("member %d counts %d calls and %d bytes", i, m.calls.Load(), m.bulk.Load())
		}
	}
}

// grant gives p's client so many credits, with the reply to a call.
func (p *peer) grant(credits uint32, of rpc.Caller) {
	p.t.Helper()
	done := async(of, bg, testCall())
	h, _ := p.message("a call")
	p.reply(rpcrdma.Header{XID: h.XID, Credit: credits})
	if err := outcome(p.t, done); err != nil {
		p.t.Fatal(err)
	}
	settle()
}

// answer replies to a call of numbered, which must be the next message and have this number.
func (p *peer) answer(n, credits uint32) rpcrdma.Header {
	p.t.Helper()
	h, got := p.numberedCall("a call")
	if got != n {
		p.t.Fatalf("call %d was sent, want %d", got, n)
	}
	p.reply(rpcrdma.Header{XID: h.XID, Credit: credits})
	return h
}

// two runs a conversation with a group of two connections, p at "a" and q at "b", of two credits
// each.
func two(t *testing.T, cfg *ClientConfig, script func(s *spots, p, q *peer, g *Group)) {
	t.Helper()
	group(t, cfg, []string{"a", "b"}, func(s *spots, p *peer, g *Group) {
		p.grant(2, g)
		q := s.next("b")
		for n := range uint32(3) {
			async(g, bg, numbered(n))
			synctest.Wait()
		}
		time.Sleep(growAfter)
		if n := s.tried("b"); n != 1 {
			t.Fatalf("%d attempts to add a connection", n)
		}
		for n := range uint32(3) {
			p.answer(n, 2)
		}
		q.grant(2, g.list()[1].cl)
		script(s, p, q, g)
	})
}

// TestGroupSpreads checks which connection a call uses, and when connections are added.
func TestGroupSpreads(t *testing.T) {
	t.Run("calls share the first connection as long as it has credits, then go where the fewest are", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			var done []<-chan error
			for n := range uint32(6) {
				done = append(done, async(g, bg, numbered(n)))
				synctest.Wait()
			}
			// 0 and 1 have credits of the first, 2 and 3 of the second; the others wait, one at each.
			p.answer(0, 2)
			p.answer(1, 2)
			p.answer(4, 2)
			q.answer(2, 2)
			q.answer(3, 2)
			q.answer(5, 2)
			for n := range done {
				if err := outcome(t, done[n]); err != nil {
					t.Errorf("call %d: %v", n, err)
				}
			}
			if st, i := g.Stats(), g.Info(); st.Calls != 11 || st.Conns != 2 || st.OpenConns != 2 || i.Credits != 4 {
				t.Errorf("%+v, %d credits", st, i.Credits)
			}
		})
	})

	t.Run("bulk data goes over all connections", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			read := func() (*rpc.Call, <-chan error) {
				call := &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, fullBulk)}}}
				done := async(g, bg, call)
				synctest.Wait()
				return call, done
			}
			read()
			p.message("the first")
			read()
			q.message("the second: the first connection is busy with a MiB")
			small := async(g, bg, numbered(7))
			p.answer(7, 2)
			if err := outcome(t, small); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("an item that is more than keeps a connection busy goes to the first without bulk data", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			async(g, bg, numbered(7))
			p.message("a call: the second connection has fewer")
			async(g, bg, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, fullBulk+1)}}})
			p.message("the call with the item")
		})
	})

	t.Run("a connection is added when all are busy for a while, not for a moment, and no more than there may be", func(t *testing.T) {
		group(t, &ClientConfig{Connections: 3}, []string{"a"}, func(s *spots, p *peer, g *Group) {
			p.grant(1, g)
			async(g, bg, numbered(0))
			async(g, bg, numbered(1))
			synctest.Wait()
			h, _ := p.numberedCall("a call")
			time.Sleep(growAfter / 2)
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 1}) // the other takes the credit, and none waits
			time.Sleep(growAfter)
			if n := s.tried("a"); n != 1 {
				t.Errorf("%d connections for a moment's load", n)
			}
			for range 3 {
				s.next("a")
			}
			for n := range uint32(20) {
				async(g, bg, numbered(n))
				time.Sleep(2 * growAfter)
			}
			time.Sleep(time.Minute)
			if n := s.tried("a"); n != 3 {
				t.Errorf("%d connections, want 3", n)
			}
		})
	})

	t.Run("calls that wait for credits are no reason for another connection if credits are soon free", func(t *testing.T) {
		for every, want := range map[time.Duration]int{longCall / 2: 1, 2 * longCall: 2} {
			group(t, nil, []string{"a"}, func(s *spots, p *peer, g *Group) {
				p.grant(1, g)
				s.next("a")
				async(g, bg, numbered(0))
				for n := range uint32(50) {
					async(g, bg, numbered(n+1))
					time.Sleep(every)
					h, _ := p.numberedCall("a call")
					if want > 1 && s.tried("a") == want {
						return
					}
					p.reply(rpcrdma.Header{XID: h.XID, Credit: 1})
				}
				if n := s.tried("a"); n != want {
					t.Errorf("calls of %v: %d connections, want %d", every, n, want)
				}
			})
		}
	})

	t.Run("a connection that cannot be added is tried again with growing pauses, while calls wait", func(t *testing.T) {
		group(t, nil, []string{"a"}, func(s *spots, p *peer, g *Group) {
			p.grant(1, g)
			done := []<-chan error{async(g, bg, testCall()), async(g, bg, testCall())}
			time.Sleep(5 * time.Minute)
			if n := s.tried("a") - 1; n < 30 || n > 45 {
				t.Errorf("%d attempts in five minutes", n)
			}
			p.answerNext("a call")
			p.answerNext("the other")
			for _, d := range done {
				if err := outcome(t, d); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(20 * time.Second)
			before := s.tried("a")
			time.Sleep(5 * time.Minute)
			if n := s.tried("a"); n != before {
				t.Errorf("%d attempts though no call waits", n-before)
			}
		})
	})
}

// TestGroupXIDs checks that connections of a group never use the same xid, because a server may treat them as one
// client.
func TestGroupXIDs(t *testing.T) {
	two(t, nil, func(_ *spots, _, _ *peer, g *Group) {
		members := *g.members.Load()
		if members[0].cl.conn().counter() != members[1].cl.conn().counter() {
			t.Error("two connections count their xids apart")
		}
	})
}

// TestGroupIdle checks that added connections are closed when they are idle, and made again under load.
func TestGroupIdle(t *testing.T) {
	two(t, nil, func(s *spots, p, q *peer, g *Group) {
		time.Sleep(3 * defaultGroupIdle)
		if synctest.Wait(); !q.over() || p.over() {
			t.Fatalf("the added connection is over: %v, the first: %v", q.over(), p.over())
		}
		if st := g.Stats(); st.OpenConns != 1 {
			t.Errorf("%+v", st)
		}
		q = s.next("b")
		for n := range uint32(3) {
			async(g, bg, numbered(n))
			synctest.Wait()
		}
		time.Sleep(growAfter)
		if n := s.tried("b"); n != 2 {
			t.Fatalf("%d attempts", n)
		}
		last := async(g, bg, numbered(3))
		q.answer(3, 2)
		if err := outcome(t, last); err != nil {
			t.Error(err)
		}
		if len(g.list()) != 2 {
			t.Errorf("%d members", len(g.list()))
		}
	})
}

// TestGroupFailover checks the calls of a lost connection.
func TestGroupFailover(t *testing.T) {
	reads := &ClientConfig{Idempotent: func(_, _, proc uint32) bool { return proc == 7 }}

	t.Run("a call that waits for a credit goes to another connection at once, one that was sent to the next of its own", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			var done []<-chan error
			for n := range uint32(6) {
				done = append(done, async(g, bg, numbered(n)))
				synctest.Wait()
			}
			h0, _ := p.numberedCall("call 0")
			h1, _ := p.numberedCall("call 1")
			q.answer(2, 100)
			q.answer(3, 100)
			q.answer(5, 100)
			lost := time.Now()
			p.hangUp()
			q.answer(4, 100)
			if err := outcome(t, done[4]); err != nil || !time.Now().Equal(lost) {
				t.Errorf("the call that had not been sent returned %v after %v", err, time.Since(lost))
			}
			q.quiet("the others have been sent")
			after := async(g, bg, numbered(9))
			q.answer(9, 100)
			if err := outcome(t, after); err != nil {
				t.Errorf("a call made while the first connection is down: %v", err)
			}
			p = s.next("a")
			time.Sleep(time.Minute)
			xids := make(map[uint32]bool)
			for range 2 {
				h, n := p.numberedCall("a call again")
				p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
				xids[h.XID] = n < 2
			}
			if !xids[h0.XID] || !xids[h1.XID] {
				t.Errorf("sent again as %v, they were %#x and %#x", xids, h0.XID, h1.XID)
			}
			for _, n := range []int{0, 1, 2, 3, 5} {
				if err := outcome(t, done[n]); err != nil {
					t.Errorf("call %d: %v", n, err)
				}
			}
			if st := g.Stats(); st.Resent != 2 {
				t.Errorf("%+v", st)
			}
		})
	})

	t.Run("a call that is made again after a denial goes to the next of its own, with its xid", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			call := numbered(7)
			denied := async(g, bg, call)
			first := p.answer(7, 2)
			if err := outcome(t, denied); err != nil {
				t.Fatal(err)
			}
			rpc.StateOf(call).Again = true
			for n := range uint32(2) {
				async(g, bg, numbered(n))
				synctest.Wait()
			}
			again := async(g, bg, call)
			synctest.Wait()
			q.quiet("it has room, but is not where the call was executed")
			p.hangUp()
			p = s.next("a")
			time.Sleep(time.Minute)
			found := false
			for range 3 {
				h, n := p.numberedCall("a call again")
				p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
				found = found || n == 7 && h.XID == first.XID
			}
			if err := outcome(t, again); err != nil || !found {
				t.Errorf("made again with its xid %#x: %v, %v", first.XID, found, err)
			}
		})
	})

	t.Run("a call that is made again after a denial goes to another connection only if it is idempotent", func(t *testing.T) {
		two(t, reads, func(s *spots, p, q *peer, g *Group) {
			calls := []*rpc.Call{numbered(0), {Prog: testProg, Vers: 1, Proc: 8, Args: []byte{0, 0, 0, 1}}}
			for n, call := range calls {
				denied := async(g, bg, call)
				p.answer(uint32(n), 2)
				if err := outcome(t, denied); err != nil {
					t.Fatal(err)
				}
				rpc.StateOf(call).Again = true
			}
			g.First().Close()
			again := async(g, bg, calls[1])
			if err := outcome(t, again); !errors.As(err, new(*rpc.ClosedError)) || g.Err() != nil {
				t.Errorf("%v, and of the Group: %v", err, g.Err())
			}
			q.quiet("the call may have been executed")
			again = async(g, bg, calls[0])
			q.answer(0, 2)
			if err := outcome(t, again); err != nil {
				t.Errorf("idempotent: %v", err)
			}
		})
	})

	t.Run("an idempotent call that was sent is made at once on another connection, as a new one", func(t *testing.T) {
		two(t, reads, func(s *spots, p, q *peer, g *Group) {
			safe := async(g, bg, numbered(1))
			h, _ := p.numberedCall("a call")
			other := testCall()
			other.Proc = 8
			unsafe := async(g, bg, other)
			synctest.Wait()
			p.hangUp()
			h2 := q.answer(1, 2)
			if err := outcome(t, safe); err != nil || h2.XID == h.XID {
				t.Errorf("%v, with the xids %#x and %#x", err, h.XID, h2.XID)
			}
			q.quiet("the other call is not idempotent")
			if st := g.Stats(); st.Resent != 1 {
				t.Errorf("%+v", st)
			}
			p = s.next("a")
			time.Sleep(time.Minute)
			p.answerNext("the other call")
			if err := outcome(t, unsafe); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("NoResend fails a call that was sent, idempotent or not", func(t *testing.T) {
		two(t, reads, func(s *spots, p, q *peer, g *Group) {
			call := numbered(1)
			call.NoResend = true
			done := async(g, bg, call)
			p.message("the call")
			p.hangUp()
			var lost *rpc.LostError
			if err := outcome(t, done); !errors.As(err, &lost) || !lost.Sent {
				t.Errorf("%v", err)
			}
			q.quiet("it is not made again")
		})
	})

	t.Run("a call that was sent to an address that does not come back ends with its context", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
			done := async(g, ctx, numbered(1))
			p.message("the call")
			p.hangUp()
			time.Sleep(time.Minute)
			var lost *rpc.LostError
			if err := outcome(t, done); !errors.As(err, &lost) || !lost.Sent || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			q.quiet("it is not made elsewhere")
		})
	})

	t.Run("KeepAlive notices a connection that is silent", func(t *testing.T) {
		cfg := *reads
		cfg.KeepAlive = 5 * time.Second
		two(t, &cfg, func(s *spots, p, q *peer, g *Group) {
			done := async(g, bg, numbered(1))
			p.message("the call")
			for end := time.Now().Add(3 * cfg.KeepAlive); !p.over() && time.Now().Before(end); {
				time.Sleep(time.Second)
			}
			q.answer(1, 2)
			if err := outcome(t, done); err != nil || !p.over() {
				t.Errorf("%v, and the silent connection is over: %v", err, p.over())
			}
		})
	})

	t.Run("a server that breaks the protocol does not get its call again; others go on elsewhere", func(t *testing.T) {
		two(t, reads, func(s *spots, p, q *peer, g *Group) {
			item := &rpc.Call{Prog: testProg, Vers: 1, Proc: 7, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}}
			victim := async(g, bg, item)
			h, _ := p.message("a call with a write chunk")
			other := async(g, bg, numbered(1))
			h2, _ := p.numberedCall("another")
			p.send(p.replyBytes(rpcrdma.Header{XID: h2.XID, Credit: 2}, nil), h.Writes[0][0].Handle)
			var broke *rpc.PeerError
			if err := outcome(t, victim); !errors.As(err, &broke) {
				t.Errorf("%v", err)
			}
			<-other
			q.quiet("neither is made again")
			next := async(g, bg, numbered(2))
			q.answer(2, 2)
			if err := outcome(t, next); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestGroupAllLost checks a group that has lost all connections.
func TestGroupAllLost(t *testing.T) {
	t.Run("calls wait for any connection, those that were sent for theirs", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			sent := async(g, bg, numbered(0))
			h, _ := p.numberedCall("a call")
			q.hangUp()
			p.hangUp()
			synctest.Wait()
			unsent := async(g, bg, numbered(1))
			time.Sleep(time.Minute)
			q = s.next("b")
			time.Sleep(20 * time.Second)
			q.answer(1, 2)
			if err := outcome(t, unsent); err != nil {
				t.Error(err)
			}
			p = s.next("a")
			time.Sleep(20 * time.Second)
			if h2 := p.answer(0, 2); h2.XID != h.XID {
				t.Errorf("the xid was %#x and is %#x", h.XID, h2.XID)
			}
			if err := outcome(t, sent); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("an address without a connection is tried, too", func(t *testing.T) {
		group(t, &ClientConfig{Connections: 1}, []string{"a", "b"}, func(s *spots, p *peer, g *Group) {
			p.hangUp()
			synctest.Wait()
			q := s.next("b")
			done := async(g, bg, numbered(1))
			time.Sleep(tryNext)
			q.answer(1, 2)
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("so is one that had no room when the group has grown as far as it may", func(t *testing.T) {
		group(t, nil, []string{"a", "b"}, func(s *spots, p *peer, g *Group) {
			p.grant(1, g)
			p2 := s.next("a") // no connection goes to "b" yet
			for n := range uint32(2) {
				async(g, bg, numbered(n))
				synctest.Wait()
			}
			time.Sleep(2 * growAfter) // the first attempt is at "b"
			p.answer(0, 1)
			p.answer(1, 1)
			if s.tried("a") != 2 || s.tried("b") != 1 {
				t.Fatalf("%d and %d attempts", s.tried("a"), s.tried("b"))
			}
			time.Sleep(time.Second)
			p.hangUp()
			p2.hangUp()
			synctest.Wait()
			q := s.next("b")
			done := async(g, bg, numbered(3))
			time.Sleep(3 * tryNext)
			q.answer(3, 2)
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("a call that waits ends with its context, and says why there is no connection", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			p.hangUp()
			q.hangUp()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
			done := async(g, ctx, testCall())
			time.Sleep(time.Minute)
			err := outcome(t, done)
			var lost *rpc.LostError
			if !errors.As(err, &lost) || lost.Sent || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, net.ErrClosed) ||
				!strings.Contains(err.Error(), "nobody is at a") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
			if g.Err() != nil || g.Info().Credits != 2 {
				t.Errorf("%v, %+v", g.Err(), g.Info())
			}
		})
	})

	t.Run("an idempotent call that was sent says so though it waits for any connection", func(t *testing.T) {
		two(t, &ClientConfig{Idempotent: func(_, _, _ uint32) bool { return true }}, func(s *spots, p, q *peer, g *Group) {
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
			done := async(g, ctx, numbered(0))
			p.message("the call")
			q.hangUp()
			p.hangUp()
			time.Sleep(time.Minute)
			var lost *rpc.LostError
			if err := outcome(t, done); !errors.As(err, &lost) || !lost.Sent {
				t.Errorf("%v", err)
			}
		})
	})

	t.Run("with NoReconnect the group ends with its last connection", func(t *testing.T) {
		two(t, &ClientConfig{NoReconnect: true}, func(s *spots, p, q *peer, g *Group) {
			time.Sleep(time.Hour) // and keeps what is idle
			sent := async(g, bg, numbered(0))
			p.message("a call")
			p.hangUp()
			if err := outcome(t, sent); !errors.Is(err, net.ErrClosed) {
				t.Errorf("%v", err)
			}
			next := async(g, bg, numbered(1))
			q.answer(1, 2)
			if err := outcome(t, next); err != nil || g.Err() != nil {
				t.Errorf("%v, %v", err, g.Err())
			}
			q.hangUp()
			synctest.Wait()
			select {
			case <-g.Done():
			default:
				t.Error("it has not ended")
			}
			if err := g.Null(bg, testProg, 1); !errors.Is(err, net.ErrClosed) || g.Err() == nil {
				t.Errorf("%v, %v", err, g.Err())
			}
		})
	})
}

// TestDialGroup checks how the first connection is made.
func TestDialGroup(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script func(s *spots)
		after  time.Duration
		at     string // where it connects; empty: nowhere
	}{
		{"the first address", func(s *spots) { s.next("a"); s.next("b") }, 0, "a"},
		{"one that refuses", func(s *spots) { s.next("b") }, 0, "b"},
		{"one that is silent", func(s *spots) { s.silent["a"] = true; s.next("b") }, tryNext, "b"},
		{"two that are silent", func(s *spots) { s.silent["a"], s.silent["b"] = true, true; s.next("c") }, 2 * tryNext, "c"},
		{"none", func(*spots) {}, 0, ""},
		{"all silent", func(s *spots) { s.silent["a"], s.silent["b"], s.silent["c"] = true, true, true }, time.Minute, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inSpots(t, func(s *spots) {
				tt.script(s)
				ctx, cancel := context.WithTimeout(bg, time.Minute)
				defer cancel()
				start := time.Now()
				g, err := DialGroup(ctx, s, []string{"a", "b", "c"}, plain(nil))
				if took := time.Since(start); took != tt.after {
					t.Errorf("it took %v, want %v", took, tt.after)
				}
				if tt.at == "" {
					var dial *DialError
					if !errors.As(err, &dial) || g != nil {
						t.Fatalf("%v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer g.close(t)
				if at := g.First().addr; at != tt.at || len(g.list()) != 1 {
					t.Errorf("%d members, connected to %s, want %s", len(g.list()), at, tt.at)
				}
			})
		})
	}

	t.Run("what makes no sense", func(t *testing.T) {
		for _, tt := range []struct {
			addrs []string
			cfg   *ClientConfig
		}{
			{nil, nil},
			{make([]string, 65), nil},
			{[]string{"a"}, &ClientConfig{Connections: -1}},
			{[]string{"a"}, &ClientConfig{Connections: 65}},
			{[]string{"a"}, &ClientConfig{Config: Config{Credits: -1}}},
		} {
			if g, err := DialGroup(bg, &spots{}, tt.addrs, tt.cfg); err == nil || g != nil {
				t.Errorf("%d addresses, %+v: no error", len(tt.addrs), tt.cfg)
			}
		}
		if _, err := DialGroup(bg, nil, []string{"a"}, nil); err == nil {
			t.Error("no provider: no error")
		}
	})
}

// TestGroupEnds checks Close and Shutdown with calls in every state.
func TestGroupEnds(t *testing.T) {
	t.Run("Close fails calls that were sent, that wait for a credit, and that come later", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			var done []<-chan error
			for n := range uint32(6) {
				done = append(done, async(g, bg, numbered(n)))
				synctest.Wait()
			}
			for range 2 {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}
			done = append(done, async(g, bg, testCall()))
			var closed *rpc.ClosedError
			for n := range done {
				if err := outcome(t, done[n]); !errors.As(err, &closed) || closed.Reason != nil {
					t.Errorf("call %d: %v", n, err)
				}
			}
			<-g.Done()
			if !errors.As(g.Err(), &closed) {
				t.Errorf("%v", g.Err())
			}
		})
	})

	t.Run("Close ends what waits for any connection, and attempts to make one", func(t *testing.T) {
		group(t, nil, []string{"a", "b"}, func(s *spots, p *peer, g *Group) {
			s.silent["a"], s.silent["b"] = true, true
			p.hangUp()
			synctest.Wait()
			done := async(g, bg, testCall())
			time.Sleep(time.Second)
			if s.tried("b") != 1 {
				t.Error("the other address is not tried")
			}
			closing := time.Now()
			g.Close()
			if err := outcome(t, done); !errors.Is(err, net.ErrClosed) || !time.Now().Equal(closing) {
				t.Errorf("%v after %v", err, time.Since(closing))
			}
		})
	})

	t.Run("Shutdown waits for the calls under way", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			var done []<-chan error
			for n := range uint32(3) {
				done = append(done, async(g, bg, numbered(n)))
				synctest.Wait()
			}
			shut := make(chan error, 1)
			go func() { shut <- g.Shutdown(bg) }()
			synctest.Wait()
			if late := async(g, bg, testCall()); !errors.Is(outcome(t, late), net.ErrClosed) {
				t.Error("a call after Shutdown is made")
			}
			p.answer(0, 2)
			q.answer(2, 2)
			if synctest.Wait(); len(shut) != 0 {
				t.Error("Shutdown has not waited")
			}
			p.answer(1, 2)
			for n := range done {
				if err := outcome(t, done[n]); err != nil {
					t.Errorf("call %d: %v", n, err)
				}
			}
			if err := outcome(t, shut); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("Shutdown ends with its context", func(t *testing.T) {
		two(t, nil, func(s *spots, p, q *peer, g *Group) {
			done := async(g, bg, numbered(0))
			p.message("a call")
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
			if err := g.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if err := outcome(t, done); !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	})
}

// TestGroupCallbacks checks that the server's calls use the first connection, and that OnReconnect is called for that
// connection only.
func TestGroupCallbacks(t *testing.T) {
	var told []*Client
	cfg := &ClientConfig{Callbacks: callback(), OnReconnect: func(cl *Client) { told = append(told, cl) }}
	two(t, cfg, func(s *spots, p, q *peer, g *Group) {
		p.send(callBytes(rpcrdma.Header{XID: 5}, 0), 0)
		if h, _ := p.message("the reply"); h.XID != 5 {
			t.Errorf("%+v", h)
		}
		before := g.Stats().Dropped
		q.send(callBytes(rpcrdma.Header{XID: 6}, 0), 0)
		time.Sleep(time.Second)
		q.quiet("it has no callbacks")
		if n := g.Stats().Dropped - before; n != 1 {
			t.Errorf("%d messages dropped", n)
		}
		s.next("a")
		s.next("b")
		q.hangUp()
		p.hangUp()
		time.Sleep(time.Minute)
		if s.tried("a") != 2 || s.tried("b") != 1 {
			t.Errorf("%d and %d attempts: a client with callbacks is connected at once", s.tried("a"), s.tried("b"))
		}
		if !slices.Equal(told, []*Client{g.First()}) {
			t.Errorf("OnReconnect was called %d times", len(told))
		}
	})
}

// TestGroupVersion checks that a group ends when its server no longer supports a version that the group supports.
func TestGroupVersion(t *testing.T) {
	inSpots(t, func(s *spots) {
		p, q := greeting(t, nil), greeting(t, nil)
		s.lines["a"] = []*peer{p, q}
		var g *Group
		var err error
		cfg := &ClientConfig{Config: Config{NoRemoteInvalidation: true}}
		go func() { g, err = DialGroup(bg, s, []string{"a"}, cfg) }()
		p.speaks2()
		settle()
		if err != nil || g == nil {
			t.Fatal(err)
		}
		defer g.close(t)
		p.finishes(g.First(), 2)
		p.hangUp()
		synctest.Wait()
		done := async(g, bg, testCall())
		time.Sleep(time.Second)
		q.speaks(3, 4)
		var none *rpc.VersionError
		if err := outcome(t, done); !errors.As(err, &none) || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
		select {
		case <-g.Done():
		default:
			t.Error("it has not ended")
		}
		if n := s.tried("a"); n != 2 {
			t.Errorf("%d attempts", n)
		}
	})
}

// TestStatsSum checks that the sum includes every counter.
func TestStatsSum(t *testing.T) {
	var one, sum rpc.Stats
	v := reflect.ValueOf(&one).Elem()
	for i := range v.NumField() {
		v.Field(i).SetUint(uint64(i + 1))
	}
	sum.Add(&one)
	sum.Add(&one)
	for i := range v.NumField() {
		if n := reflect.ValueOf(sum).Field(i).Uint(); n != 2*uint64(i+1) {
			t.Errorf("%s is %d, want %d", v.Type().Field(i).Name, n, 2*(i+1))
		}
	}
	snapshot := (&counters{Stats: sum}).snapshot()
	n := 0
	for c, value := range snapshot.Counters() {
		if n++; value != 2*uint64(n) || c.Name == "" || c.Help == "" {
			t.Errorf("counter %d is %+v, and %d in a snapshot", n, c, value)
		}
	}
	if n != v.NumField() {
		t.Errorf("%d of %d fields have a Counter", n, v.NumField())
	}
}
