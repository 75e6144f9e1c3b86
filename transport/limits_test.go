package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/hosts"
)

// The memory that peers can make an end keep, and what happens at each limit.

// join makes p another connection to the server.
func (p *peer) join(s *Server, host string) *conn {
	p.t.Helper()
	p.addr = peerAddr(host)
	before := s.connections()
	l, err := s.Listen(context.Background(), p, "script:2")
	if err != nil {
		p.t.Fatal(err)
	}
	go s.Serve(l)
	synctest.Wait()
	for c := range s.connections() {
		if _, ok := before[c]; !ok {
			return c
		}
	}
	return nil
}

// rdmaConns returns the connections over RDMA. mu is held.
func (s *Server) rdmaConns() (list []*conn) {
	for c := range s.conns {
		if c, ok := c.(*conn); ok {
			list = append(list, c)
		}
	}
	return list
}

func (s *Server) connections() map[*conn]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := make(map[*conn]struct{})
	for _, c := range s.rdmaConns() {
		m[c] = struct{}{}
	}
	return m
}

func (s *Server) only() *conn {
	for c := range s.connections() {
		return c
	}
	return nil
}

// reserved returns the reservations of the calls of all connections.
func (s *Server) reserved() int64 {
	synctest.Wait()
	return s.memory.Stats().Held
}

// offering is a call that offers a write chunk of n bytes for its result.
func (p *peer) offering(xid uint32, n int, proc uint32) {
	p.t.Helper()
	seg := rpcrdma.Segment{Handle: xid, Length: uint32(n), Offset: peerBase}
	if proc != procHold {
		seg = p.offer(xid, make([]byte, n))
	}
	p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 100, Writes: []rpcrdma.WriteChunk{{seg}}}, proc, xdr.AppendUint32(nil, uint32(min(n, 60_000)))...), 0)
	synctest.Wait()
}

func TestMemoryIsReserved(t *testing.T) {
	const size = 60_000 // takes 64 KiB
	cfg := &Settings{MaxMessage: 1 << 16, MaxMemory: 1 << 18}

	t.Run("what a call offers for its results is reserved before it runs", func(t *testing.T) {
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			for xid := uint32(1); xid <= 6; xid++ {
				p.offering(xid, size, procHold)
			}
			if n := svc.running.Load(); n != 4 {
				t.Errorf("%d calls run, memory is for 4", n)
			}
			if n := s.reserved(); n != 1<<18 {
				t.Errorf("%d bytes are reserved", n)
			}
			p.send(callBytes(rpcrdma.Header{XID: 100}, procEcho, opaque("x")...), 0)
			if h, _ := p.message("the reply to a call without chunks"); h.XID != 100 {
				t.Errorf("reply to %d", h.XID)
			}
			svc.gate <- struct{}{}
			if n := svc.running.Load(); n < 3 {
				t.Errorf("%d calls run", n)
			}
			synctest.Wait()
			if n := svc.running.Load(); n != 4 {
				t.Errorf("%d calls run after one is over, memory is for 4", n)
			}
			close(svc.gate)
			for range 6 {
				p.message("a reply")
			}
			p.completeSends()
			if n := s.reserved(); n != 0 {
				t.Errorf("%d bytes are reserved in the end", n)
			}
		})
	})

	t.Run("results that turn out short leave room while their reply is on its way", func(t *testing.T) {
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			p.holdSends = true
			close(svc.gate)
			for xid := uint32(1); xid <= 6; xid++ {
				p.offering(xid, size, procHold) // which has none
			}
			if n := s.Stats().Replies; n != 6 {
				t.Errorf("%d of 6 calls are answered", n)
			}
			if n := s.reserved(); n != 0 {
				t.Errorf("%d bytes are reserved", n)
			}
			p.completeSends()
		})
	})

	t.Run("chunks beyond MaxMessage count as MaxMessage", func(t *testing.T) {
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			for xid := uint32(1); xid <= 5; xid++ {
				p.offering(xid, 1<<31-4, procHold)
			}
			if n := svc.running.Load(); n != 4 {
				t.Errorf("%d calls run, memory is for 4", n)
			}
			close(svc.gate)
		})
	})

	t.Run("one call is let through however much it needs", func(t *testing.T) {
		testServer(t, &Settings{MaxMessage: 1 << 16, MaxMemory: 1 << 16}, func(p *peer, s *Server, svc *testService) {
			big := func(xid uint32) {
				h := rpcrdma.Header{XID: xid, Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: p.offer(xid, make([]byte, size))}},
					Writes: []rpcrdma.WriteChunk{{p.offer(100+xid, make([]byte, size))}}}
				p.send(callBytes(h, procHold), 0)
				synctest.Wait()
			}
			big(1)
			big(2)
			p.send(callBytes(rpcrdma.Header{XID: 3}, procEcho, opaque("x")...), 0)
			if n := svc.running.Load(); n != 1 || s.reserved() != 1<<17 {
				t.Errorf("%d calls run, with %d bytes", n, s.reserved())
			}
			close(svc.gate)
			for range 3 {
				p.message("a reply")
			}
		})
	})

	t.Run("memory that was not offered is given as long as there is some", func(t *testing.T) {
		var got chan int
		var gate chan struct{}
		grab := rpc.Program{Number: testProg, Low: 1, High: 1, Handler: rpc.HandlerFunc(func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
			got <- len(res.Alloc(size))
			<-gate
		})}
		serverOf(t, newPeer(t), cfg, []rpc.Program{grab}, func(p *peer, s *Server) {
			got, gate = make(chan int, 10), make(chan struct{})
			for xid := uint32(1); xid <= 6; xid++ {
				p.send(callBytes(rpcrdma.Header{XID: xid}, 1), 0)
				synctest.Wait()
			}
			close(gate)
			n := 0
			for range 6 {
				p.message("a reply")
				n += <-got
			}
			if n != 4*size {
				t.Errorf("%d bytes were given, want %d", n, 4*size)
			}
			p.completeSends()
			if n := s.reserved(); n != 0 {
				t.Errorf("%d bytes are reserved in the end", n)
			}
		})
	})

	t.Run("an RDMA_ERROR that is not taken holds nothing of the results", func(t *testing.T) {
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			p.holdSends = true
			for xid := uint32(1); xid <= 6; xid++ {
				p.send(callBytes(rpcrdma.Header{XID: xid}, procAlloc, xdr.AppendUint32(nil, size)...), 0)
				synctest.Wait()
			}
			if n := s.Stats().ErrChunk; n != 6 || s.reserved() != 0 {
				t.Errorf("%d errors, %d bytes are reserved", n, s.reserved())
			}
			p.completeSends()
		})
	})

	t.Run("the end of a connection leaves nothing reserved", func(t *testing.T) {
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			p.holdSends, p.noReads = true, true
			p.offering(1, size, procAlloc) // its reply is not taken
			p.offering(2, size, procHold)  // runs
			h := rpcrdma.Header{XID: 3, Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: p.offer(3, make([]byte, size))}}}
			p.send(callBytes(h, procHold), 0) // is pulled
			p.offering(4, size, procHold)
			p.offering(5, size, procHold) // waits
			if n := s.reserved(); n != 1<<18 {
				t.Errorf("%d bytes are reserved", n)
			}
			p.hangUp()
			synctest.Wait()
			close(svc.gate)
			if n := s.reserved(); n != 0 || s.memory.Stats().Hosts+s.memory.Stats().Tenants != 0 || s.memory.Stats().Waiting > 0 {
				t.Errorf("%d bytes are reserved by %d hosts, %d connections", n, s.memory.Stats().Hosts, s.memory.Stats().Tenants)
			}
			if n := s.memory.Stats().Base + s.memory.Stats().Idle; n != 0 {
				t.Errorf("%d bytes count as mapped", n)
			}
		})
	})
}

func TestTotalMemory(t *testing.T) {
	const unit = 1 << 20

	t.Run("greedy connections leave some to the next one, of another host more", func(t *testing.T) {
		cfg := &Settings{MaxMessage: unit, MaxMemory: 16 * unit, MaxTotalMemory: 128 * unit, Credits: 32}
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			xid := uint32(0)
			greed := func(p *peer, n int) {
				for range n {
					if p.posted() == 0 {
						return
					}
					xid++
					p.offering(xid, unit, procHold)
				}
			}
			attackers := []*peer{p}
			for range 7 {
				a := newPeer(t)
				a.join(s, "script:1")
				attackers = append(attackers, a)
			}
			for range 3 {
				for _, a := range attackers {
					greed(a, 8)
				}
			}
			held := s.reserved()
			if held != 8*startMessages*unit {
				t.Errorf("8 connections hold %d units", held/unit)
			}
			same, other := newPeer(t), newPeer(t)
			c := same.join(s, "script:1")
			greed(same, 8)
			if n := c.tenant.Held(); n < 3*unit {
				t.Errorf("one more connection of the host has got %d units", n/unit)
			}
			for range 12 { // until a connection of this host gets nothing
				a := newPeer(t)
				a.join(s, "script:1")
				greed(a, 8)
			}
			if n := s.reserved(); n > 64*unit || n < 50*unit {
				t.Errorf("a host holds %d units of 128", n/unit)
			}
			c = other.join(s, "elsewhere:1")
			greed(other, 8)
			if n := c.tenant.Held(); n < 4*unit {
				t.Errorf("a connection of another host has got %d units", n/unit)
			}
			if n := s.reserved(); n > 128*unit {
				t.Errorf("%d units are reserved, of 128", n/unit)
			}
			close(svc.gate)
			synctest.Wait()
			if n := s.reserved(); n != 0 {
				t.Errorf("%d bytes are reserved in the end", n)
			}
		})
	})

	t.Run("who takes replies may have more, until it does not", func(t *testing.T) {
		cfg := &Settings{MaxMessage: unit, MaxMemory: 16 * unit, Credits: 64}
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			xid := uint32(0)
			most := func() int32 {
				for range 17 {
					if xid++; p.posted() > 0 {
						p.offering(xid, unit, procHold)
					}
				}
				n := svc.running.Load()
				for synctest.Wait(); svc.running.Load() > 0; synctest.Wait() {
					svc.gate <- struct{}{}
				}
				return n
			}
			take := func(n int) {
				for range n {
					xid++
					p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 100, Writes: []rpcrdma.WriteChunk{{p.offer(xid, make([]byte, unit))}}},
						procAlloc, xdr.AppendUint32(nil, unit)...), 0)
					synctest.Wait()
				}
			}
			if n := most(); n != 4 {
				t.Errorf("at first %d calls run", n)
			}
			for _, want := range []int32{8, 16, 16} {
				take(int(want) / 2)
				if n := most(); n != want {
					t.Errorf("then %d calls run, want %d", n, want)
				}
			}
			p.holdSends = true
			take(1)
			time.Sleep(slowTime + 3*sweepTime)
			p.holdSends = false
			p.completeSends()
			if n := most(); n != 4 {
				t.Errorf("after a while without progress %d calls run", n)
			}
		})
	})

	t.Run("those that wait are served in turn", func(t *testing.T) {
		// Room for two calls, for many hosts.
		cfg := &Settings{MaxMessage: unit, MaxMemory: 2 * unit, MaxTotalMemory: 4 * unit}
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			peers := []*peer{p}
			for i := range 3 {
				q := newPeer(t)
				q.join(s, fmt.Sprintf("host%d:1", i))
				peers = append(peers, q)
			}
			for i, q := range peers {
				for j := range 3 {
					q.offering(uint32(10*i+j), unit, procHold)
				}
			}
			running := svc.running.Load()
			if running < 1 || running > 4 {
				t.Fatalf("%d calls run", running)
			}
			answered := func() (n [4]int) {
				synctest.Wait()
				for i, q := range peers {
					n[i] = q.unread()
				}
				return n
			}
			for range 12 {
				svc.gate <- struct{}{}
				n := answered()
				// No client is two rounds ahead of one that still waits.
				for i := range n {
					for j := range n {
						if n[i] > n[j]+2 {
							t.Fatalf("answered so far: %v", n)
						}
					}
				}
			}
			if n := answered(); n != [4]int{3, 3, 3, 3} {
				t.Errorf("answered: %v", n)
			}
			if n := s.reserved(); n != 0 {
				t.Errorf("%d bytes are reserved in the end", n)
			}
		})
	})

	t.Run("free memory of one connection is given back when another needs it", func(t *testing.T) {
		const unit, size = 1 << 16, 60_000
		// The two of them have 4 units of their own buffers and need 3 more each.
		const room = 8 * unit
		cfg := &Settings{MaxMessage: unit, MaxMemory: room, MaxTotalMemory: room}
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			q := newPeer(t)
			q.join(s, "elsewhere:1")
			use := func(p *peer) {
				for xid := range uint32(4) {
					h := rpcrdma.Header{XID: xid, Credit: 100, Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: p.offer(xid, make([]byte, size))}}}
					p.send(callBytes(h, procHold), 0)
				}
				for synctest.Wait(); svc.running.Load() > 0; synctest.Wait() {
					svc.gate <- struct{}{}
				}
				total := s.memory.Stats().Base + s.memory.Stats().Idle + s.reserved()
				if total > room {
					t.Errorf("%d units count, of %d", total/unit, room/unit)
				}
			}
			for range 5 {
				use(p)
				use(q)
			}
		})
		// The same with next to no room beside the connections' own buffers.
		cfg.MaxMemory, cfg.MaxTotalMemory = 2*unit, 3*unit
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			close(svc.gate)
			q := newPeer(t)
			q.join(s, "elsewhere:1")
			for xid := range uint32(20) {
				for _, p := range []*peer{p, q} {
					h := rpcrdma.Header{XID: xid, Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: p.offer(xid, make([]byte, size))}}}
					p.send(callBytes(h, procHold), 0)
					p.message("a reply")
					if total := s.memory.Stats().Base + s.memory.Stats().Idle + s.reserved(); total > 3*unit {
						t.Fatalf("%d bytes count, of %d", total, 3*unit)
					}
				}
			}
		})
	})
}

// TestIdleMemory checks that an idle connection releases the memory of calls.
func TestIdleMemory(t *testing.T) {
	mapped := func(c *conn) int {
		return c.arena.Stats().Bytes
	}
	for _, registered := range []bool{false, true} {
		p := newPeer(t)
		p.caps.LocalDMA = !registered
		t.Run(fmt.Sprintf("a server's, registered %v", registered), func(t *testing.T) {
			testServerOf(t, p, nil, func(p *peer, s *Server, svc *testService) {
				c := s.only()
				before, regions := mapped(c), p.regions()
				xid := uint32(0)
				for _, size := range []int{8_000, 60_000, 250_000, 1 << 20, 3 << 20} {
					for range 3 {
						xid++
						h := rpcrdma.Header{XID: xid, Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: p.offer(xid, make([]byte, size))}}}
						p.send(callBytes(h, procHold), 0)
					}
					for range 3 {
						synctest.Wait()
						svc.gate <- struct{}{}
						p.message("a reply")
					}
				}
				used := mapped(c)
				if used < before+8<<20 {
					t.Fatalf("%d bytes are mapped, %d before", used, before)
				}
				time.Sleep(2*trimTime + 2*sweepTime)
				if n := mapped(c); n > before+arena.SlabSize {
					t.Errorf("%d bytes are mapped after a while, %d before", n, before)
				}
				if n := p.regions(); n > regions+2 {
					t.Errorf("%d regions are registered, %d before", n, regions)
				}
				if n := s.memory.Stats().Idle; n != 0 {
					t.Errorf("%d bytes count as idle", n)
				}
			})
		})
	}

	t.Run("a client's", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			before := mapped(cl.conn())
			for range 3 {
				call := rpc.Call{Prog: testProg, Vers: 1, Proc: 1, MaxResults: 1 << 20}
				done := async(cl, context.Background(), &call)
				h, _ := p.message("a call")
				reply := rpcrdma.Header{XID: h.XID, Vers: 1, Credit: 8, HasReply: true, Reply: h.Reply}
				reply.Reply[0].Length = 0
				p.send(oncrpc.AppendReply(rpcrdma.AppendHeader(nil, &reply), &oncrpc.ReplyHeader{XID: h.XID}), 0)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			if n := mapped(cl.conn()); n < before+1<<20 {
				t.Fatalf("%d bytes are mapped, %d before", n, before)
			}
			time.Sleep(2*trimTime + 2*sweepTime)
			if n := mapped(cl.conn()); n != before {
				t.Errorf("%d bytes are mapped after a while, %d before", n, before)
			}
			if cl.conn().watched.Load() {
				t.Error("there is a timer for it still")
			}
		})
	})

	t.Run("what is in use again and again is not mapped anew", func(t *testing.T) {
		p := newPeer(t)
		p.caps.LocalDMA = false // so that it can be counted
		testServerOf(t, p, nil, func(p *peer, s *Server, svc *testService) {
			close(svc.gate)
			data := make([]byte, 1<<20)
			key := uint32(0)
			for i := range uint32(1000) {
				h := rpcrdma.Header{XID: i, Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: p.offer(7, data)}}}
				p.send(callBytes(h, procHold), 0)
				p.message("a reply")
				if i == 10 {
					key = p.nextKey
				}
				time.Sleep(50 * time.Millisecond)
			}
			if p.nextKey != key {
				t.Error("memory has been registered after the first calls")
			}
		})
	})

	t.Run("one size after another takes no more than MaxMemory", func(t *testing.T) {
		const unit = 1 << 16
		cfg := &Settings{MaxMessage: 8 * unit, MaxMemory: 16 * unit}
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			c := s.only()
			for _, size := range []int{8 * unit, 4 * unit, 2 * unit, unit} {
				n := uint32(0)
				for ; n < 3; n++ {
					h := rpcrdma.Header{XID: n, Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: p.offer(n, make([]byte, size-1000))}}}
					p.send(callBytes(h, procHold), 0)
				}
				for range n {
					synctest.Wait()
					svc.gate <- struct{}{}
					p.message("a reply")
				}
				if n := c.arena.Stats().Bulk; n > 16*unit {
					t.Errorf("%d units are mapped, of 16", n/unit)
				}
			}
		})
	})
}

func TestStall(t *testing.T) {
	const size = 60_000
	stalled := func(t *testing.T, p *peer, c *conn, wait time.Duration, replies, reads int) {
		t.Helper()
		time.Sleep(wait - sweepTime)
		if p.over() {
			t.Fatalf("the connection has ended: %v", c.endErr())
		}
		time.Sleep(3 * sweepTime)
		var e *rpc.StallError
		if !p.over() || !errors.As(c.endErr(), &e) || !errors.Is(c.endErr(), net.ErrClosed) {
			t.Fatalf("the connection's end is %v", c.endErr())
		}
		if e.Replies != replies || e.Reads != reads || e.For != c.cfg.StallTimeout || !e.Timeout() {
			t.Errorf("the error is %#v", e)
		}
	}

	t.Run("a client that takes no replies", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, svc *testService) {
			c := s.only()
			p.holdSends = true
			p.offering(1, size, procAlloc)
			p.offering(2, size, procAlloc)
			stalled(t, p, c, 30*time.Second, 2, 0)
			if n := s.reserved(); n != 0 {
				t.Errorf("%d bytes are reserved", n)
			}
		})
	})

	t.Run("a client that takes no small replies: some may be without a completion", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, svc *testService) {
			c := s.only()
			p.holdSends = true
			for xid := range uint32(fabric.MaxDeferred) {
				p.send(callBytes(rpcrdma.Header{XID: xid}, 0), 0)
				p.message("a reply")
			}
			time.Sleep(time.Hour)
			p.send(callBytes(rpcrdma.Header{XID: 100}, 0), 0)
			p.message("one reply more")
			stalled(t, p, c, 30*time.Second, 1, 0)
		})
	})

	t.Run("a client that does not answer Reads", func(t *testing.T) {
		testServer(t, &Settings{StallTimeout: 5 * time.Second}, func(p *peer, s *Server, svc *testService) {
			c := s.only()
			p.noReads = true
			h := rpcrdma.Header{XID: 1, Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: p.offer(1, make([]byte, size))}}}
			p.send(callBytes(h, procHold), 0)
			stalled(t, p, c, 5*time.Second, 0, 1)
		})
	})

	t.Run("a server that does not answer Reads", func(t *testing.T) {
		cfg := &Settings{RFC5666: &RFC5666{}}
		client(t, cfg, func(p *peer, cl *Client) {
			p.noReads = true
			done := async(cl, context.Background(), &rpc.Call{Prog: testProg, Vers: 1, Proc: 1, MaxResults: 100})
			h, _ := p.message("a call")
			p.send(callBytes(rpcrdma.Header{XID: h.XID, Proc: rpcrdma.ProcNomsg, Reads: []rpcrdma.ReadSegment{{Segment: p.offer(1, make([]byte, 100))}}}, 0), 0)
			synctest.Wait()
			stalled(t, p, cl.conn(), 30*time.Second, 0, 1)
			var e *rpc.StallError
			if err := <-done; !errors.As(err, &e) {
				t.Errorf("the call has failed with %v", err)
			}
		})
	})

	t.Run("slow is not stalled, and neither is idle", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, svc *testService) {
			p.holdSends = true
			for xid := range uint32(10) {
				p.offering(xid, 4096, procAlloc)
				p.offering(100+xid, 4096, procAlloc)
				time.Sleep(25 * time.Second)
				p.completeSends()
				synctest.Wait()
			}
			time.Sleep(time.Hour)
			p.offering(200, 4096, procAlloc)
			time.Sleep(5 * time.Second)
			if p.over() {
				t.Fatal("the connection has ended")
			}
			p.completeSends()
		})
	})

	t.Run("never", func(t *testing.T) {
		testServer(t, &Settings{StallTimeout: -1}, func(p *peer, s *Server, svc *testService) {
			p.holdSends = true
			p.offering(1, size, procAlloc)
			time.Sleep(24 * time.Hour)
			if p.over() {
				t.Error("the connection has ended")
			}
		})
	})
}

// rejected is a peer that notes how it was turned away.
type rejected struct {
	*peer
	why  []byte
	was  bool
	next chan fabric.Conn
	once sync.Once
	fail []error // of Accept
}

type rejectedConn struct {
	peerConn
	r *rejected
}

func (c rejectedConn) Reject(why []byte) error {
	c.r.why, c.r.was = bytes.Clone(why), true
	return c.peerConn.Close()
}

func (r *rejected) Accept(context.Context) (fabric.Conn, error) {
	r.mu.Lock()
	if len(r.fail) > 0 {
		err := r.fail[0]
		r.fail = r.fail[1:]
		r.mu.Unlock()
		return nil, err
	}
	r.mu.Unlock()
	c, ok := <-r.next
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (r *rejected) Close() error { r.once.Do(func() { close(r.next) }); return nil }

func (r *rejected) Listen(context.Context, string, fabric.ConnAttr) (fabric.Listener, error) {
	return rejectedListener{r}, nil
}

type rejectedListener struct{ *rejected }

func (l rejectedListener) Addr() net.Addr { return l.addr }

// knock asks the server for a connection as p.
func (r *rejected) knock(t *testing.T, host string) (p *peer, ok bool) {
	p = newPeer(t)
	p.addr = peerAddr(host)
	r.was = false
	r.next <- rejectedConn{peerConn{p}, r}
	synctest.Wait()
	return p, !r.was
}

// door runs a conversation with a server that accepts connections by itself.
func door(t *testing.T, cfg *Settings, script func(r *rejected, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(inVersion1(cfg).Server())
		if err != nil {
			t.Fatal(err)
		}
		svc := &testService{gate: make(chan struct{})}
		if err := s.Register(svc.program()); err != nil {
			t.Fatal(err)
		}
		r := &rejected{peer: newPeer(t), next: make(chan fabric.Conn)}
		l, err := s.Listen(context.Background(), r, "script:1")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		defer func() {
			s.Close()
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Serve returned %v", err)
			}
		}()
		script(r, s)
	})
}

func TestRoomForConnections(t *testing.T) {
	t.Run("a newcomer takes the place of the longest silent one of the greediest host", func(t *testing.T) {
		door(t, &Settings{MaxConns: 4}, func(r *rejected, s *Server) {
			var greedy []*peer
			for range 4 {
				p, ok := r.knock(t, "greedy:1")
				if !ok {
					t.Fatal("rejected with room left")
				}
				greedy = append(greedy, p)
				p.send(callBytes(rpcrdma.Header{XID: 1}, 0), 0)
				p.message("a reply")
				time.Sleep(2 * sweepTime)
			}
			if _, ok := r.knock(t, "greedy:1"); ok {
				t.Error("the host that has all has got one more")
			}
			if !bytes.Contains(r.why, []byte(busyMark)) {
				t.Errorf("it was told %q", r.why)
			}
			// The first is in the middle of a call, the second has just spoken.
			greedy[0].send(callBytes(rpcrdma.Header{XID: 1}, procHold), 0)
			time.Sleep(4 * sweepTime)
			greedy[1].send(callBytes(rpcrdma.Header{XID: 1}, 0), 0)
			synctest.Wait()
			modest, ok := r.knock(t, "modest:1")
			if !ok {
				t.Fatal("no room for another host")
			}
			for i, want := range []bool{false, false, true, false} {
				if greedy[i].over() != want {
					t.Errorf("connection %d has ended: %v", i, !want)
				}
			}
			modest.send(callBytes(rpcrdma.Header{XID: 1}, 0), 0)
			modest.message("the newcomer's reply")
			// 3 to 1: one more. 2 to 2: none.
			if _, ok := r.knock(t, "modest:2"); !ok || !greedy[3].over() {
				t.Errorf("one more: %v, the last of the greedy has ended: %v", ok, greedy[3].over())
			}
			if _, ok := r.knock(t, "modest:3"); ok {
				t.Error("a host has more than another now")
			}
			if n := len(s.connections()); n != 4 {
				t.Errorf("%d connections", n)
			}
		})
	})

	t.Run("a host that has the most gives way though it talks all the time", func(t *testing.T) {
		door(t, &Settings{MaxConns: 2}, func(r *rejected, s *Server) {
			for range 2 {
				p, _ := r.knock(t, "busy:1")
				p.send(callBytes(rpcrdma.Header{XID: 1}, 0), 0)
				p.message("a reply")
			}
			if _, ok := r.knock(t, "other:1"); !ok {
				t.Error("no room")
			}
		})
	})

	t.Run("connections that have called nothing give way soon", func(t *testing.T) {
		door(t, &Settings{MaxConns: 3}, func(r *rejected, s *Server) {
			known, _ := r.knock(t, "a:1")
			known.send(callBytes(rpcrdma.Header{XID: 1}, 0), 0)
			known.message("a reply")
			strange, _ := r.knock(t, "b:1")
			stranger, _ := r.knock(t, "c:1")
			time.Sleep(hosts.StrangerTime - time.Millisecond)
			if _, ok := r.knock(t, "d:1"); ok {
				t.Error("a connection was ended that could still have called")
			}
			time.Sleep(hosts.IdleLook)
			for _, from := range []string{"d:1", "e:1"} {
				newcomer, ok := r.knock(t, from)
				if !ok || known.over() {
					t.Errorf("room %v; one that has called has ended: %v", ok, known.over())
				}
				newcomer.send(callBytes(rpcrdma.Header{XID: 1}, 0), 0)
				newcomer.message("a reply")
			}
			if !strange.over() || !stranger.over() {
				t.Errorf("those that have not called have ended: %v and %v", strange.over(), stranger.over())
			}
		})
	})

	t.Run("a connection of any host gives way when it has been idle for long", func(t *testing.T) {
		door(t, &Settings{MaxConns: 3}, func(r *rejected, s *Server) {
			silent, _ := r.knock(t, "a:1")
			silent.send(callBytes(rpcrdma.Header{XID: 1}, 0), 0)
			silent.message("a reply")
			calls, _ := r.knock(t, "b:1")
			waits, _ := r.knock(t, "c:1")
			waits.send(callBytes(rpcrdma.Header{XID: 1}, procHold), 0)
			time.Sleep(hosts.IdleTime / 2)
			calls.send(callBytes(rpcrdma.Header{XID: 1}, 0), 0)
			calls.message("a reply")
			time.Sleep(hosts.IdleTime/2 - time.Millisecond)
			if _, ok := r.knock(t, "d:1"); ok {
				t.Error("a connection was ended that had not been idle for long enough")
			}
			time.Sleep(hosts.IdleLook + sweepTime) // that long after the call it is noticed
			if _, ok := r.knock(t, "d:1"); !ok || !silent.over() || calls.over() || waits.over() {
				t.Errorf("room %v; ended: silent %v, in use %v, with a call in flight %v", ok, silent.over(), calls.over(), waits.over())
			}
			if _, ok := r.knock(t, "e:1"); ok {
				t.Error("room for one more")
			}
		})
	})

	t.Run("a server without descriptors waits for some", func(t *testing.T) {
		door(t, nil, func(r *rejected, s *Server) {
			r.mu.Lock()
			r.fail = []error{syscall.EMFILE, &net.OpError{Op: "accept", Err: syscall.ENFILE}, syscall.EMFILE}
			r.mu.Unlock()
			r.knock(t, "first:1") // after which Accept fails, several times
			time.Sleep(time.Minute)
			p, ok := r.knock(t, "second:1")
			if !ok || len(r.fail) > 0 {
				t.Fatalf("rejected, %d failures to come", len(r.fail))
			}
			p.send(callBytes(rpcrdma.Header{XID: 1}, 0), 0)
			p.message("a reply")
		})
	})

	t.Run("a host with many connections gets none when their buffers take half of the memory", func(t *testing.T) {
		cfg := &Settings{MaxMessage: 1 << 16, MaxMemory: 1 << 16, MaxTotalMemory: 1 << 17}
		door(t, cfg, func(r *rejected, s *Server) {
			for range hosts.CrowdShare {
				if _, ok := r.knock(t, "a:1"); !ok {
					t.Fatal("rejected")
				}
			}
			if _, ok := r.knock(t, "a:1"); ok {
				t.Error("one more, of the same host")
			}
			time.Sleep(2 * sweepTime)
			if _, ok := r.knock(t, "b:1"); !ok {
				t.Error("no room for another host")
			}
		})
	})

	for limit, want := range map[int]int{1024: 256, 4096: 1024, 1 << 20: 4096, 10: 16} {
		if n := defaultMaxConns(limit); n != want {
			t.Errorf("%d connections with %d descriptors, want %d", n, limit, want)
		}
	}
}

// A full provider turns the first connections away.
type full struct {
	*peer
	times int
	dials int
}

func (f *full) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	f.peer.refuse = nil
	if f.dials++; f.dials <= f.times {
		f.peer.refuse = &fabric.RejectError{Addr: addr, PrivateData: []byte("\x00" + busyMark + "\x00\x00")}
	}
	f.peer.end = nil
	f.attr = attr
	return peerConn{f.peer}, nil
}

func TestServerBusy(t *testing.T) {
	for _, c := range []struct {
		name    string
		times   int
		timeout time.Duration
		ok      bool
		dials   int
	}{
		{"a caller with a deadline tries again", 5, time.Minute, true, 6},
		{"until the deadline", 1000, 10 * time.Second, false, 0},
		{"without one it is told at once", 1000, 0, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &full{peer: newPeer(t), times: c.times}
				ctx := context.Background()
				if c.timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.timeout)
					defer cancel()
				}
				cl, err := Dial(ctx, f, "script:1", once(nil).Client())
				if err == nil {
					cl.Close()
				}
				var b *BusyError
				var r *fabric.RejectError
				if (err == nil) != c.ok || err != nil && (!errors.As(err, &b) || !errors.As(err, &r)) {
					t.Errorf("Dial: %v", err)
				}
				if c.dials > 0 && f.dials != c.dials {
					t.Errorf("%d attempts, want %d", f.dials, c.dials)
				}
			})
		})
	}
	t.Run("another rejection is not that", func(t *testing.T) {
		err := busy("a", &fabric.RejectError{Addr: "a", PrivateData: []byte("rpcr")})
		var b *BusyError
		if errors.As(err, &b) {
			t.Error(err)
		}
	})
}

// TestDefaultsOfLongMessages checks that no default overflows where an int has 32 bits.
func TestDefaultsOfLongMessages(t *testing.T) {
	for _, c := range []struct{ a, b, want int }{{16, 1 << 20, 16 << 20}, {8, math.MaxInt / 8, math.MaxInt / 8 * 8}, {8, math.MaxInt/8 + 1, math.MaxInt}} {
		if got := times(c.a, c.b); got != c.want {
			t.Errorf("%d times %d is %d, want %d", c.a, c.b, got, c.want)
		}
	}
	cfg := ServerConfig{Config: Config{MaxMessage: 1 << 30}}
	if _, err := NewServer(&cfg); err != nil {
		t.Error(err)
	}
}
