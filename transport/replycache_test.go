package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A client that has lost a reply sends the call again, on another connection: it is
// executed once.

// A onceService counts what it executes. Nothing of it is idempotent but procArgs, and
// procHold, which waits for the gate and nothing else, returns its argument from Alloc.
type onceService struct {
	testService
	runs  atomic.Int32
	ended atomic.Int32 // executions with a context that has ended
}

func (s *onceService) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	s.runs.Add(1)
	if req.Proc != procHold {
		s.testService.ServeRPC(ctx, req, res)
		return
	}
	<-s.gate
	if ctx.Err() != nil {
		s.ended.Add(1)
	}
	d := xdr.NewDecoder(req.Args)
	data := d.Opaque(1 << 20)
	b := res.Alloc(len(data))
	copy(b, data)
	res.AddItem(b, nil)
}

func (s *onceService) program() rpc.Program {
	p := s.testService.program()
	p.Handler = s
	p.Idempotent = func(_, proc uint32) bool { return proc == procArgs }
	return p
}

// remembers runs a conversation with a server that executes calls once.
func remembers(t *testing.T, cfg *Settings, script func(ps *peers, s *Server, svc *onceService)) {
	t.Helper()
	svc := &onceService{}
	serverTo(t, cfg, []rpc.Program{svc.program()}, func(ps *peers, s *Server) {
		svc.gate = make(chan struct{})
		script(ps, s, svc)
	})
}

// ran checks how many calls have been executed.
func (s *onceService) ran(t *testing.T, want int32) {
	t.Helper()
	synctest.Wait()
	if n := s.runs.Load(); n != want {
		t.Errorf("%d calls have been executed, want %d", n, want)
	}
}

// TestReplyCacheReplays checks that a repeated call is answered from the cache, into the chunks that it provides.
func TestReplyCacheReplays(t *testing.T) {
	t.Run("a reply is put on the wire again, in the chunks of the call that comes again", func(t *testing.T) {
		for _, dma := range []bool{true, false} {
			remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
				arrive := func() *peer {
					p := newPeer(t)
					p.caps.LocalDMA = dma
					return ps.enter(s, "client", p)
				}
				data := strings.Repeat("once ", 500) // 2500 bytes, which fit inline
				call := func(h rpcrdma.Header) []byte {
					h.XID = 7
					return callBytes(h, procEcho, opaque(data)...)
				}
				inline := func(p *peer, what string) {
					t.Helper()
					p.send(call(rpcrdma.Header{}), 0)
					if _, results := p.replies(7, what); !bytes.Equal(results, opaque(data)) {
						t.Errorf("%s: results have %d bytes", what, len(results))
					}
				}
				placed := func(p *peer, what string, sizes ...int) {
					t.Helper()
					var chunk rpcrdma.WriteChunk
					var mem [][]byte
					for i, n := range sizes {
						mem = append(mem, make([]byte, n))
						chunk = append(chunk, p.offer(uint32(40+i), mem[i]))
					}
					p.send(call(rpcrdma.Header{Writes: []rpcrdma.WriteChunk{chunk}}), 0)
					h, results := p.replies(7, what)
					if got := string(bytes.Join(mem, nil)); got[:len(data)] != data || h.Writes[0].Length() != uint64(len(data)) ||
						!bytes.Equal(results, xdr.AppendUint32(nil, uint32(len(data)))) {
						t.Errorf("%s: %+v %x", what, h, results)
					}
				}
				p := arrive()
				inline(p, "the reply, inline")
				p.hangUp()
				p = arrive()
				placed(p, "the reply again, in a write chunk", 4000)
				placed(p, "the reply on the same connection, in a chunk of two segments", 2000, 1000)
				p.hangUp()
				p = arrive()
				inline(p, "the reply again, inline")
				p.send(call(rpcrdma.Header{Writes: []rpcrdma.WriteChunk{{p.offer(1, make([]byte, 99))}}}), 0)
				if h, _ := p.message("an RDMA_ERROR"); h.Err != rpcrdma.ErrChunk {
					t.Errorf("a chunk that is too short: %+v", h)
				}
				inline(p, "the reply is remembered all the same")
				svc.ran(t, 1)
				if n := s.Stats().Replayed; n != 5 {
					t.Errorf("%d replies were replayed, want 5", n)
				}
			})
		}
	})

	t.Run("a long reply, in a write chunk, then in a reply chunk, and the other way round", func(t *testing.T) {
		for _, first := range []string{"write", "reply"} {
			remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
				want := make([]byte, 6001)
				for i := range want {
					want[i] = byte(i)
				}
				for i := range 4 {
					p := ps.arrive(s, "client")
					mem := make([]byte, 9000)
					h := rpcrdma.Header{XID: 7}
					write := (i%2 == 0) == (first == "write")
					if write {
						h.Writes = []rpcrdma.WriteChunk{{p.offer(1, mem)}}
					} else {
						h.HasReply, h.Reply = true, rpcrdma.WriteChunk{p.offer(1, mem)}
					}
					p.send(callBytes(h, procAlloc, xdr.AppendUint32(nil, 6001)...), 0)
					r, _ := p.message("the reply")
					if write && !bytes.Equal(mem[:6001], want) {
						t.Errorf("%d: the write chunk has other bytes", i)
					}
					if !write && !bytes.Equal(accepted(t, mem[:r.Reply.Length()], 7), opaque(string(want))) {
						t.Errorf("%d: the reply chunk has other bytes", i)
					}
					p.hangUp()
				}
				svc.ran(t, 1)
			})
		}
	})

	t.Run("errors are remembered, and no items with them", func(t *testing.T) {
		remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
			for range 3 {
				p := ps.arrive(s, "client")
				p.send(callBytes(rpcrdma.Header{XID: 7, Writes: []rpcrdma.WriteChunk{{p.offer(1, make([]byte, 99))}}}, procFail), 0)
				h, payload := p.message("the reply")
				var reply oncrpc.ReplyHeader
				if _, err := oncrpc.ConsumeReply(payload, &reply); err != nil || reply.AcceptStat != oncrpc.GarbageArgs || h.Writes[0].Length() != 0 {
					t.Errorf("the reply is %+v %+v, %v", h, reply, err)
				}
				p.hangUp()
			}
			svc.ran(t, 1)
		})
	})
}

// TestReplyCacheSameCall checks that an equal xid alone does not make two calls the same.
func TestReplyCacheSameCall(t *testing.T) {
	t.Run("one xid and other calls", func(t *testing.T) {
		remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
			msg := func(c oncrpc.CallHeader, args ...byte) []byte {
				c.XID, c.RPCVers, c.Prog, c.Vers = 7, 2, testProg, 1
				b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 7, Vers: 1, Credit: 1})
				return append(oncrpc.AppendCall(b, &c), args...)
			}
			cred := func(uid uint32) oncrpc.Auth { return (&oncrpc.AuthSys{Machine: "client", UID: uid}).Auth() }
			far := func(n int, last byte) []byte {
				b := bytes.Repeat([]byte{1}, n)
				b[len(b)-1] = last
				return opaque(string(b))
			}
			calls := []struct {
				name string
				host string
				msg  []byte
			}{
				{"a call", "client", msg(oncrpc.CallHeader{Proc: procEcho}, opaque("args")...)},
				{"another host", "other", msg(oncrpc.CallHeader{Proc: procEcho}, opaque("args")...)},
				{"a machine of a network", "[2001:db8::1]", msg(oncrpc.CallHeader{Proc: procEcho}, opaque("args")...)},
				{"another machine of it", "[2001:db8::2]", msg(oncrpc.CallHeader{Proc: procEcho}, opaque("args")...)},
				{"other arguments", "client", msg(oncrpc.CallHeader{Proc: procEcho}, opaque("argz")...)},
				{"longer ones", "client", msg(oncrpc.CallHeader{Proc: procEcho}, append(opaque("args"), 0, 0, 0, 0)...)},
				{"a long argument", "client", msg(oncrpc.CallHeader{Proc: procEcho}, far(240, 1)...)},
				{"with another end", "client", msg(oncrpc.CallHeader{Proc: procEcho}, far(240, 2)...)},
				{"another procedure", "client", msg(oncrpc.CallHeader{Proc: procTwo}, opaque("")...)},
				{"a credential", "client", msg(oncrpc.CallHeader{Proc: procEcho, Cred: cred(1)}, opaque("args")...)},
				{"another credential", "client", msg(oncrpc.CallHeader{Proc: procEcho, Cred: cred(2)}, opaque("args")...)},
			}
			for round := range 3 {
				for i, c := range calls {
					p := ps.arrive(s, c.host)
					p.send(c.msg, 0)
					p.message(c.name)
					want := int32(i + 1)
					if round > 0 {
						want = int32(len(calls))
					}
					if n := svc.runs.Load(); n != want {
						t.Fatalf("%s, round %d: %d executed, want %d", c.name, round, n, want)
					}
				}
			}
		})
	})
}

// TestReplyCacheWaits checks calls that are repeated while the first one is still running.
func TestReplyCacheWaits(t *testing.T) {
	t.Run("calls that come again while the first is executed wait for it, and all are answered", func(t *testing.T) {
		for _, lost := range []bool{true, false} {
			remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
				call := callBytes(rpcrdma.Header{XID: 7}, procHold, opaque("wait")...)
				p := ps.arrive(s, "client")
				p.send(call, 0)
				synctest.Wait()
				if lost {
					p.hangUp()
				}
				var all []*peer
				for range 3 {
					q := ps.arrive(s, "client")
					q.send(call, 0)
					all = append(all, q)
				}
				all[2].send(call, 0) // twice on one connection
				all[1].hangUp()      // and gone again
				for _, q := range all {
					q.quiet("the call is being executed")
				}
				svc.ran(t, 1)
				close(svc.gate)
				if !lost {
					p.replies(7, "the reply to the first")
				}
				for _, q := range []*peer{all[0], all[2], all[2]} {
					if _, results := q.replies(7, "the reply"); !bytes.Equal(results, opaque("wait")) {
						t.Errorf("results are %q", results)
					}
				}
				svc.ran(t, 1)
				if svc.ended.Load() != 0 {
					t.Error("the context ended with the connection")
				}
				synctest.Wait()
				for _, c := range ps.seen {
					if !c.lives() {
						checkArena(t, c) // nothing is kept of connections that have ended
					}
				}
			})
		}
	})

	t.Run("calls that wait are answered though the reply is too long to be kept", func(t *testing.T) {
		remembers(t, &Settings{ReplyCache: ReplyCache{Bytes: 800}}, func(ps *peers, s *Server, svc *onceService) {
			call := callBytes(rpcrdma.Header{XID: 7}, procHold, opaque(strings.Repeat("x", 999))...)
			p, q := ps.arrive(s, "client"), ps.arrive(s, "client")
			p.send(call, 0)
			synctest.Wait()
			q.send(call, 0)
			synctest.Wait()
			close(svc.gate)
			for _, p := range []*peer{p, q} {
				if _, results := p.replies(7, "the reply"); !bytes.Equal(results, opaque(strings.Repeat("x", 999))) {
					t.Errorf("results have %d bytes", len(results))
				}
			}
			svc.ran(t, 1)
			p.send(call, 0)
			p.replies(7, "a reply that nobody remembers")
			svc.ran(t, 2)
			if n := s.cache.Stats().Entries; n != 0 {
				t.Errorf("%d entries are left", n)
			}
		})
	})

	t.Run("a client that sends one call again and again, without waiting, loses its connection and nothing is left", func(t *testing.T) {
		remembers(t, &Settings{Credits: 4}, func(ps *peers, s *Server, svc *onceService) {
			p := ps.arrive(s, "client")
			call := callBytes(rpcrdma.Header{XID: 7, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(1, []byte("flood"))}}},
				procHold, xdr.AppendUint32(nil, 5)...)
			n := 0
			for ; n < 200 && !p.over(); n++ {
				p.send(call, 0)
			}
			if !p.over() {
				t.Errorf("%d calls are waiting", n)
			}
			svc.ran(t, 1)
			close(svc.gate)
			synctest.Wait()
			checkArena(t, ps.seen[0])
			q := ps.arrive(s, "client")
			q.send(callBytes(rpcrdma.Header{XID: 7}, procHold, opaque("flood")...), 0)
			q.replies(7, "the reply, on a new connection")
			svc.ran(t, 1)
		})
	})
}

// TestReplyCacheOutlives checks executions and replies that outlive the connection of their call.
func TestReplyCacheOutlives(t *testing.T) {
	t.Run("a reply that meets a dead connection is remembered, with memory that outlives it", func(t *testing.T) {
		for _, size := range []int{4, 100_000} { // there is no registered memory for the second
			svc := &onceService{}
			serverTo(t, nil, []rpc.Program{svc.program()}, func(ps *peers, s *Server) {
				svc.gate = make(chan struct{})
				ps.wrap = func(c peerConn) fabric.Conn { return deadMemory{c} }
				data := bytes.Repeat([]byte("data"), size/4)
				p := newPeer(t)
				p.caps.LocalDMA = false
				ps.enter(s, "client", p)
				p.send(callBytes(rpcrdma.Header{XID: 7, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(1, data)}}},
					procHold, xdr.AppendUint32(nil, uint32(size))...), 0)
				svc.ran(t, 1)
				p.hangUp()
				synctest.Wait()
				close(svc.gate)
				synctest.Wait()
				checkArena(t, ps.seen[0])
				q := ps.arrive(s, "client")
				mem := make([]byte, size)
				q.send(callBytes(rpcrdma.Header{XID: 7, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: q.offer(1, data)}},
					Writes: []rpcrdma.WriteChunk{{q.offer(2, mem)}}}, procHold, xdr.AppendUint32(nil, uint32(size))...), 0)
				q.replies(7, "the reply")
				if !bytes.Equal(mem, data) {
					t.Error("the write chunk has other bytes")
				}
				svc.ran(t, 1)
				if svc.ended.Load() != 0 {
					t.Error("the context ended with the connection")
				}
			})
		}
	})

	t.Run("what is idempotent is executed again, and its context ends with the connection", func(t *testing.T) {
		var ended atomic.Int32
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, Idempotent: rpc.Every,
			Handler: rpc.HandlerFunc(func(ctx context.Context, _ *rpc.Request, _ *rpc.Response) {
				<-ctx.Done()
				ended.Add(1)
			})}
		serverTo(t, nil, []rpc.Program{prog}, func(ps *peers, s *Server) {
			for i := range int32(3) {
				p := ps.arrive(s, "client")
				p.send(callBytes(rpcrdma.Header{XID: 7}, procHold), 0)
				p.quiet("the call is executed until its connection ends")
				p.hangUp()
				synctest.Wait()
				if n := ended.Load(); n != i+1 {
					t.Errorf("%d executions have ended, want %d", n, i+1)
				}
			}
		})
	})

	t.Run("the context of what is remembered ends with the server", func(t *testing.T) {
		var ended atomic.Int32
		prog := rpc.Program{Number: testProg, Low: 1, High: 1,
			Handler: rpc.HandlerFunc(func(ctx context.Context, _ *rpc.Request, _ *rpc.Response) {
				<-ctx.Done()
				ended.Add(1)
			})}
		serverTo(t, nil, []rpc.Program{prog}, func(ps *peers, s *Server) {
			p := ps.arrive(s, "client")
			p.send(callBytes(rpcrdma.Header{XID: 7}, procHold), 0)
			synctest.Wait()
			p.hangUp()
			time.Sleep(time.Hour)
			if ended.Load() != 0 {
				t.Error("the context has ended with the connection")
			}
			s.Close()
			synctest.Wait()
			if ended.Load() != 1 {
				t.Error("the handler runs on")
			}
		})
	})

	t.Run("a client remembers, too, what it has executed for its server", func(t *testing.T) {
		svc := &onceService{}
		cfg := &Settings{Callbacks: []rpc.Program{svc.program()}, KeepAlive: -1}
		clientTo(t, cfg, func(ps *peers, p *peer, cl *Client) {
			svc.gate = make(chan struct{})
			call := callBytes(rpcrdma.Header{XID: 7}, procHold, opaque("once")...)
			p.send(call, 0)
			svc.ran(t, 1)
			q := ps.next()
			p.hangUp()
			time.Sleep(time.Second)
			q.send(call, 0)
			q.quiet("the call is being executed")
			close(svc.gate)
			q.replies(7, "the reply on the new connection")
			r := ps.next()
			q.hangUp()
			time.Sleep(time.Second)
			r.send(call, 0)
			r.replies(7, "the reply again")
			svc.ran(t, 1)
		})
	})
}

// TestReplyCacheBounds checks the limits of the cache, in replies and in bytes.
func TestReplyCacheBounds(t *testing.T) {
	t.Run("no more replies than the configuration says: the oldest is forgotten", func(t *testing.T) {
		remembers(t, &Settings{ReplyCache: ReplyCache{Entries: 4}}, func(ps *peers, s *Server, svc *onceService) {
			ask := func(xid uint32, runs int32) {
				t.Helper()
				p := ps.arrive(s, "client")
				defer p.hangUp()
				p.send(callBytes(rpcrdma.Header{XID: xid}, procEcho, opaque("x")...), 0)
				p.replies(xid, "the reply")
				svc.ran(t, runs)
			}
			for xid := range uint32(5) {
				ask(xid, int32(xid)+1)
			}
			for xid := uint32(4); xid > 0; xid-- {
				ask(xid, 5)
			}
			ask(0, 6) // pushes 1 out
			ask(2, 6)
			ask(1, 7)
			for xid := range uint32(100) {
				ask(100+xid, int32(xid)+8)
			}
			if st := s.cache.Stats(); st.Replies != 4 || st.Entries != 4 {
				t.Errorf("%d replies are kept, %d entries", st.Replies, st.Entries)
			}
		})
	})

	t.Run("no more bytes either, and none of results over an eighth of them", func(t *testing.T) {
		const most = 80_000
		remembers(t, &Settings{ReplyCache: ReplyCache{Bytes: most}}, func(ps *peers, s *Server, svc *onceService) {
			runs := int32(0)
			ask := func(xid uint32, size int, again bool) {
				t.Helper()
				p := ps.arrive(s, "client")
				defer p.hangUp()
				p.send(callBytes(rpcrdma.Header{XID: xid, Writes: []rpcrdma.WriteChunk{{p.offer(1, make([]byte, size))}}},
					procAlloc, xdr.AppendUint32(nil, uint32(size))...), 0)
				p.replies(xid, "the reply")
				if again {
					runs++
				}
				svc.ran(t, runs)
				checkCache(t, s)
			}
			const head = 24 + 4 // of the reply, and the item's length
			ask(1, most/8-head, true)
			ask(1, most/8-head, false)
			ask(2, most/8-head+1, true)
			ask(2, most/8-head+1, true) // not kept
			for xid := range uint32(20) {
				ask(100+xid, 8000, true)
			}
			ask(1, most/8-head, true) // forgotten
			ask(119, 8000, false)
		})
	})
}

// A deadMemory registers none after its end.
type deadMemory struct{ peerConn }

func (c deadMemory) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	c.mu.Lock()
	end := c.end
	c.mu.Unlock()
	if end != nil {
		return nil, end
	}
	return c.peerConn.RegMR(buf, access)
}

// A recordServer serves a bridge's connections: it counts records and returns their
// arguments.
type recordServer struct {
	runs atomic.Int32
	gate chan struct{}
}

func (s *recordServer) serve(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			var mu sync.Mutex
			for {
				var mark [4]byte
				if _, err := io.ReadFull(nc, mark[:]); err != nil {
					return
				}
				record := make([]byte, binary.BigEndian.Uint32(mark[:])&^oncrpc.LastFragment)
				if _, err := io.ReadFull(nc, record); err != nil {
					return
				}
				s.runs.Add(1)
				go func() {
					var h oncrpc.CallHeader
					n, _ := oncrpc.ConsumeCall(record, &h)
					if h.Proc == procHold {
						<-s.gate
					}
					reply := append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: h.XID}), record[n:]...)
					mu.Lock()
					defer mu.Unlock()
					_, _ = nc.Write(append(oncrpc.AppendRecordMark(nil, len(reply), true), reply...))
				}()
			}
		}()
	}
}

// An echoBinding says that all of a result is an item.
type echoBinding struct{ rpc.Binding }

func (echoBinding) Call(rpc.Procedure, []byte, []rpc.Range) ([]rpc.Range, rpc.ReplyBounds) {
	return nil, rpc.ReplyBounds{}
}
func (echoBinding) Reply(_ rpc.Procedure, results []byte, _ bool, items []rpc.Range) []rpc.Range {
	return append(items, rpc.Range{Offset: 4, Length: int(binary.BigEndian.Uint32(results))})
}
func (echoBinding) Idempotent(p rpc.Procedure) bool { return p.Proc == procArgs }

func TestReplyCacheBridge(t *testing.T) {
	bridged := func(t *testing.T, script func(ps *peers, s *Server, rs *recordServer)) {
		t.Helper()
		for _, cfg := range []*Settings{nil, {Middleware: []rpc.Middleware{wrapper}}} {
			rs := &recordServer{}
			serverFor(t, cfg, func(s *Server) {
				rs.gate = make(chan struct{})
				go rs.serve(s.Bridge(echoBinding{}, testProg))
			}, func(ps *peers, s *Server) { script(ps, s, rs) })
		}
	}

	t.Run("a call that comes again is not read again", func(t *testing.T) {
		bridged(t, func(ps *peers, s *Server, rs *recordServer) {
			for i := range 4 {
				p := ps.arrive(s, "client")
				h := rpcrdma.Header{XID: 7}
				mem := make([]byte, 100)
				if i%2 == 1 {
					h.Writes = []rpcrdma.WriteChunk{{p.offer(1, mem)}}
				}
				p.send(callBytes(h, procEcho, opaque("records")...), 0)
				_, results := p.replies(7, "the reply")
				if i%2 == 0 && !bytes.Equal(results, opaque("records")) || i%2 == 1 && string(mem[:7]) != "records" {
					t.Errorf("%d: results are %q, the chunk has %q", i, results, mem)
				}
				p.hangUp()
			}
			synctest.Wait()
			if n := rs.runs.Load(); n != 1 {
				t.Errorf("%d calls were read", n)
			}
			for range 2 {
				p := ps.arrive(s, "client")
				p.send(callBytes(rpcrdma.Header{XID: 8}, procArgs, opaque("idempotent")...), 0)
				p.replies(8, "the reply")
				p.hangUp()
			}
			if n := rs.runs.Load(); n != 3 {
				t.Errorf("%d calls were read, want those that are idempotent, too", n)
			}
		})
	})

	t.Run("one that comes again before it is answered waits", func(t *testing.T) {
		bridged(t, func(ps *peers, s *Server, rs *recordServer) {
			p, q := ps.arrive(s, "client"), ps.arrive(s, "client")
			call := callBytes(rpcrdma.Header{XID: 7}, procHold, opaque("records")...)
			p.send(call, 0)
			synctest.Wait()
			q.send(call, 0)
			q.quiet("the call has no reply yet")
			close(rs.gate)
			p.replies(7, "the reply")
			q.replies(7, "the reply to the call that came again")
			if n := rs.runs.Load(); n != 1 {
				t.Errorf("%d calls were read", n)
			}
		})
	})

	t.Run("what has no reply when its connection ends is forgotten: the net.Conn ends with that", func(t *testing.T) {
		bridged(t, func(ps *peers, s *Server, rs *recordServer) {
			p, q := ps.arrive(s, "client"), ps.arrive(s, "client")
			call := callBytes(rpcrdma.Header{XID: 7}, procHold, opaque("records")...)
			p.send(call, 0)
			synctest.Wait()
			q.send(call, 0)
			synctest.Wait()
			p.hangUp()
			if !q.over() {
				t.Error("a call that waits for what nobody knows does not lose its connection")
			}
			q.quiet("there is no answer")
			for _, c := range ps.seen {
				checkArena(t, c)
			}
			if n := s.cache.Stats().Entries; n != 0 {
				t.Errorf("%d entries are left", n)
			}
			close(rs.gate)
			r := ps.arrive(s, "client")
			r.send(call, 0)
			r.replies(7, "the reply")
			if n := rs.runs.Load(); n != 2 {
				t.Errorf("%d calls were read, want 2", n)
			}
		})
	})
}

// TestReplyCacheAllocs checks that caching a reply allocates nothing once the cache is full.
func TestReplyCacheAllocs(t *testing.T) {
	if lockorder.Checked {
		t.Skip("the check of the order of locks allocates")
	}
	_, cfg, err := (&Settings{ReplyCache: ReplyCache{Entries: 100}}).Server().settle()
	if err != nil {
		t.Fatal(err)
	}
	c, _ := newConn(peerConn{newPeer(t)}, "script", cfg, roleServer, nil)
	r := newRegistry(cfg)
	x := newExchange(c, 0)
	c.reg = r
	x.call = oncrpc.CallHeader{Prog: testProg, Vers: 1, Proc: 1}
	x.msg = appendCall(nil, 1, 1, opaque("arguments")...)
	x.items = []origin.Item{{At: 4, Data: make([]byte, 500)}}
	head, results := make([]byte, 24), make([]byte, 100)
	once := func() {
		x.call.XID++
		if x.recall() {
			t.Fatal("a call that is new has been answered")
		}
		x.remember(head, results)
	}
	for range 10_000 {
		once()
	}
	if n := testing.AllocsPerRun(10_000, once); n != 0 {
		t.Errorf("%v allocations for each reply", n)
	}
	if st := r.cache.Stats(); st.Replies != 100 || st.Bytes != 100*624 {
		t.Errorf("%d replies with %d bytes", st.Replies, st.Bytes)
	}
}
