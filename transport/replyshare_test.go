package transport

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// The shares of the reply cache: hosts have theirs, clients their own replies.

// asks has a client call, and checks whether that is executed.
func (svc *onceService) asks(t *testing.T, p *peer, xid uint32, arg string, anew bool) {
	t.Helper()
	before := svc.runs.Load()
	p.send(callBytes(rpcrdma.Header{XID: xid}, procEcho, opaque(arg)...), 0)
	if _, results := p.replies(xid, "the reply"); !bytes.Equal(results, opaque(arg)) {
		t.Errorf("call %d returned %q, want %q", xid, results, arg)
	}
	if n := svc.runs.Load() - before; (n == 1) != anew {
		t.Errorf("call %d has been executed %d times", xid, n)
	}
}

// checkCache compares what the cache of a server counts with what it holds.
func checkCache(t *testing.T, s *Server) {
	t.Helper()
	if err := s.cache.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestReplyCacheShares(t *testing.T) {
	t.Run("a host that fills the cache costs no other host a reply, while that has its share or less", func(t *testing.T) {
		for _, limits := range []ReplyCache{{Entries: 9}, {Bytes: 9 * 1000}} {
			remembers(t, &Settings{ReplyCache: limits}, func(ps *peers, s *Server, svc *onceService) {
				arg := strings.Repeat("x", 900)
				quiet, second, busy := ps.arrive(s, "quiet"), ps.arrive(s, "second"), ps.arrive(s, "busy")
				for xid := range uint32(3) {
					svc.asks(t, quiet, xid, arg, true)
					svc.asks(t, second, xid, arg, true)
				}
				for xid := range uint32(1000) {
					svc.asks(t, busy, 100+xid, arg, true)
					if xid%100 == 99 {
						more := ps.arrive(s, "busy") // it may have as many connections as it likes
						svc.asks(t, more, 5000+xid, arg, true)
					}
				}
				checkCache(t, s)
				back := ps.arrive(s, "quiet")
				for xid := range uint32(3) {
					svc.asks(t, back, xid, arg, false)
					svc.asks(t, ps.arrive(s, "second"), xid, arg, false)
				}
				svc.asks(t, ps.arrive(s, "busy"), 1099, arg, false)
				// Memory beyond a share is the busy host's to fill.
				for xid := range uint32(3) {
					svc.asks(t, second, 50+xid, arg, true)
				}
				svc.asks(t, busy, 2000, arg, true)
				svc.asks(t, back, 0, arg, false)
				checkCache(t, s)
			})
		}
	})

	t.Run("hosts are forgotten with their replies", func(t *testing.T) {
		remembers(t, &Settings{ReplyCache: ReplyCache{Entries: 10}}, func(ps *peers, s *Server, svc *onceService) {
			for i := range 100 {
				p := ps.arrive(s, fmt.Sprint("host", i))
				svc.asks(t, p, 1, "x", true)
				p.hangUp()
				synctest.Wait()
				checkCache(t, s)
			}
			if n := s.cache.Stats().Hosts; n != 10 {
				t.Errorf("%d hosts are known", n)
			}
		})
	})

	t.Run("whatever comes, the counts and the order of shares are right", func(t *testing.T) {
		_, cfg, err := (&Settings{ReplyCache: ReplyCache{Entries: 40, Bytes: 30_000}}).Server().settle()
		if err != nil {
			t.Fatal(err)
		}
		r := newRegistry(cfg)
		rng := rand.New(rand.NewPCG(1, 2))
		var conns []*conn
		for i := range 12 {
			c, _ := newConn(peerConn{newPeer(t)}, "script", cfg, roleServer, nil)
			c.peerHost = fmt.Sprint("host", i)
			conns = append(conns, c)
		}
		var under []*exch
		for i := range 5000 {
			switch n := rng.IntN(3); {
			case n == 0 && len(under) > 0:
				k := rng.IntN(len(under))
				x := under[k]
				under[k] = under[len(under)-1]
				under = under[:len(under)-1]
				if rng.IntN(8) == 0 {
					x.forgo()
				}
				x.remember(make([]byte, 24), make([]byte, rng.IntN(5000)))
			default:
				c := conns[rng.IntN(1+rng.IntN(len(conns)))]
				x := newExchange(c, 0)
				c.reg = r
				x.call = oncrpc.CallHeader{XID: uint32(i), Prog: testProg, Vers: 1, Proc: 1}
				x.msg = appendCall(nil, uint32(i), 1)
				if x.recall() {
					t.Fatal("a new call was known")
				}
				if x.entry != nil {
					under = append(under, x)
				}
			}
			if err := r.cache.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})

	t.Run("calls under way are bounded: those beyond are executed, end with their connection, and are not remembered", func(t *testing.T) {
		var ended atomic.Int32
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, Handler: rpc.HandlerFunc(func(ctx context.Context, _ *rpc.Request, _ *rpc.Response) {
			<-ctx.Done()
			ended.Add(1)
		})}
		const entries, calls = 32, 100
		serverTo(t, &Settings{ReplyCache: ReplyCache{Entries: entries}}, []rpc.Program{prog}, func(ps *peers, s *Server) {
			for host := range 8 {
				for i := range uint32(calls / 4) {
					p := ps.arrive(s, fmt.Sprint("host", host))
					for k := range uint32(4) {
						p.send(callBytes(rpcrdma.Header{XID: 4*i + k}, procHold), 0)
						synctest.Wait()
					}
					p.hangUp()
				}
				synctest.Wait()
				checkCache(t, s)
				left := min((host+1)*entries/replycache.HostShare, entries)
				if n := int(ended.Load()); s.cache.Stats().Running != left || n != (host+1)*calls-left {
					t.Fatalf("%d calls of %d are under way, %d have ended", s.cache.Stats().Running, (host+1)*calls, n)
				}
			}
		})
	})

	t.Run("calls that wait leave with their connection", func(t *testing.T) {
		remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
			call := callBytes(rpcrdma.Header{XID: 7}, procHold, opaque("wait")...)
			first := ps.arrive(s, "client")
			first.send(call, 0)
			synctest.Wait()
			first.hangUp()
			for range 50 {
				p := ps.arrive(s, "client")
				for range 3 {
					p.send(call, 0)
				}
				synctest.Wait()
				p.hangUp()
				synctest.Wait()
			}
			last := ps.arrive(s, "client")
			last.send(call, 0)
			synctest.Wait()
			if n := s.cache.Stats().Waiting; n != 1 {
				t.Errorf("%d calls wait", n)
			}
			for _, c := range ps.seen[1:51] {
				checkArena(t, c)
			}
			close(svc.gate)
			last.replies(7, "the reply")
			svc.ran(t, 1)
			checkCache(t, s)
		})
	})
}

func TestReplyCacheKey(t *testing.T) {
	t.Run("all of the arguments count, wherever they differ and however they come", func(t *testing.T) {
		remembers(t, &Settings{MaxMessage: 2 << 20}, func(ps *peers, s *Server, svc *onceService) {
			args := bytes.Repeat([]byte("argument"), 1<<17)
			runs := int32(0)
			ask := func(what string, anew bool) {
				t.Helper()
				if anew {
					runs++
				}
				p := ps.arrive(s, "client")
				defer p.hangUp()
				mem := make([]byte, len(args))
				p.send(callBytes(rpcrdma.Header{XID: 7,
					Reads:  []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(1, args)}},
					Writes: []rpcrdma.WriteChunk{{p.offer(2, mem)}}}, procEcho, xdr.AppendUint32(nil, uint32(len(args)))...), 0)
				p.replies(7, what)
				if !bytes.Equal(mem, args) {
					t.Errorf("%s: the results are another call's", what)
				}
				svc.ran(t, runs)
			}
			ask("a call", true)
			ask("the call again", false)
			for _, at := range []int{0, 255, 256, 300, 4096, 99_999, len(args) - 1} {
				args[at] ^= 1
				ask(fmt.Sprintf("with another byte %d", at), true)
				ask(fmt.Sprintf("with another byte %d, again", at), false)
				args[at] ^= 1
				ask("as it was", false)
			}
			long := bytes.Clone(args)
			args = args[:len(args)-4]
			ask("shorter", true)
			args = append(long, 0, 0, 0, 0)
			ask("longer", true)
		})
	})

	t.Run("so do the credential and the verifier, all of them", func(t *testing.T) {
		remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
			body := bytes.Repeat([]byte("body"), 100)
			other := bytes.Clone(body)
			other[399] = 0
			for round := range 2 {
				for i, auth := range []struct{ cred, verf oncrpc.Auth }{
					{oncrpc.Auth{Flavor: 390000, Body: body}, oncrpc.Auth{}},
					{oncrpc.Auth{Flavor: 390001, Body: body}, oncrpc.Auth{}},
					{oncrpc.Auth{Flavor: 390000, Body: other}, oncrpc.Auth{}},
					{oncrpc.Auth{Flavor: 390000, Body: body[:396]}, oncrpc.Auth{}},
					{oncrpc.Auth{Flavor: 390000, Body: body}, oncrpc.Auth{Flavor: 390000}},
					{oncrpc.Auth{Flavor: 390000, Body: body}, oncrpc.Auth{Flavor: 390000, Body: body}},
					{oncrpc.Auth{Flavor: 390000, Body: body}, oncrpc.Auth{Flavor: 390000, Body: other}},
				} {
					p := ps.arrive(s, "client")
					b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 7, Vers: 1, Credit: 1})
					p.send(append(oncrpc.AppendCall(b, &oncrpc.CallHeader{XID: 7, RPCVers: 2, Prog: testProg, Vers: 1, Proc: procEcho,
						Cred: auth.cred, Verf: auth.verf}), opaque("same")...), 0)
					p.message("the reply")
					want := int32(i + 1)
					if round > 0 {
						want = 7
					}
					svc.ran(t, want)
				}
			}
		})
	})
}

func TestReplyCacheLineage(t *testing.T) {
	// talks makes so many calls on p, one after the other.
	talks := func(t *testing.T, svc *onceService, p *peer, first uint32, calls int) {
		t.Helper()
		for i := range uint32(calls) {
			svc.asks(t, p, first+i, "talk", true)
		}
	}
	const enough = 2 * (initialGrant + 1) // calls that show that a client lives on

	t.Run("a connection gets no reply of another whose client lives on", func(t *testing.T) {
		for _, ends := range []bool{false, true} {
			remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
				victim := ps.arrive(s, "host")
				svc.asks(t, victim, 7, "secret", true)
				other := ps.arrive(s, "host")
				talks(t, svc, victim, 100, enough)
				if ends {
					victim.hangUp()
				}
				svc.asks(t, other, 7, "secret", true) // its own call
				svc.asks(t, other, 105, "talk", true)
				next := ps.arrive(s, "host") // of one of them: it is served
				svc.asks(t, next, 7, "secret", false)
				checkCache(t, s)
			})
		}
	})

	t.Run("V1-8-2 what comes again on the connection that had the reply is another call", func(t *testing.T) {
		remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
			p := ps.arrive(s, "host")
			svc.asks(t, p, 7, "again", true)
			svc.asks(t, p, 7, "again", true)
			svc.asks(t, ps.arrive(s, "host"), 7, "again", false)
			checkCache(t, s)
		})
	})

	t.Run("a reply is kept for a client that is away for two minutes, and no longer", func(t *testing.T) {
		remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
			svc.asks(t, ps.arrive(s, "host"), 7, "away", true)
			time.Sleep(2*time.Minute - 1)
			svc.asks(t, ps.arrive(s, "host"), 7, "away", false)
			time.Sleep(time.Nanosecond)
			svc.asks(t, ps.arrive(s, "host"), 7, "away", true)
			checkCache(t, s)
		})
	})

	t.Run("nor of one that is younger, when its own client lives on", func(t *testing.T) {
		remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
			other := ps.arrive(s, "host")
			victim := ps.arrive(s, "host")
			svc.asks(t, victim, 7, "secret", true)
			talks(t, svc, other, 100, enough)
			svc.asks(t, other, 7, "secret", true)
		})
	})

	t.Run("nor does it wait for a call that is executed for one", func(t *testing.T) {
		remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
			call := callBytes(rpcrdma.Header{XID: 7}, procHold, opaque("secret")...)
			victim := ps.arrive(s, "host")
			victim.send(call, 0)
			other := ps.arrive(s, "host")
			svc.ran(t, 1)
			talks(t, svc, victim, 100, enough)
			other.send(call, 0)
			svc.ran(t, 2+enough)
			checkCache(t, s)
			close(svc.gate)
			for _, p := range []*peer{victim, other} {
				if _, results := p.replies(7, "the reply"); !bytes.Equal(results, opaque("secret")) {
					t.Errorf("results are %q", results)
				}
			}
			checkCache(t, s)
		})
	})

	t.Run("the same call of many clients of one host is remembered for some of them", func(t *testing.T) {
		remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
			var all []*peer
			for range 2 * replycache.MaxAlike {
				all = append(all, ps.arrive(s, "host"))
			}
			for i, p := range all {
				talks(t, svc, p, uint32(100*(i+1)), enough)
			}
			for _, p := range all {
				svc.asks(t, p, 7, "the same", true)
			}
			if n := s.cache.Stats().Alike; n != replycache.MaxAlike {
				t.Errorf("%d are alike", n)
			}
			checkCache(t, s)
		})
	})

	// A client that has lost its connection, of which the server knows nothing, or not yet.
	t.Run("what was on its way when the connection was lost is taken for no sign of life, and executed once", func(t *testing.T) {
		for _, late := range []int{0, 1, initialGrant} {
			remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
				p := ps.arrive(s, "host")
				svc.asks(t, p, 7, "first", true)
				svc.asks(t, p, 8, "second", true)
				q := ps.arrive(s, "host")
				svc.asks(t, q, 7, "first", false)
				for i := range uint32(late) { // as many as it had credits
					svc.asks(t, p, 100+i, "late", true)
				}
				svc.asks(t, q, 8, "second", false)
				for i := range uint32(late) {
					svc.asks(t, q, 100+i, "late", false)
				}
				r := ps.arrive(s, "host")
				svc.asks(t, r, 7, "first", false)
			})
		}
	})

	t.Run("a call that arrives on the lost connection after it has been made again is not executed again", func(t *testing.T) {
		remembers(t, nil, func(ps *peers, s *Server, svc *onceService) {
			p := ps.arrive(s, "host")
			svc.asks(t, p, 1, "before", true)
			q := ps.arrive(s, "host")
			svc.asks(t, q, 7, "again", true)
			talks(t, svc, q, 100, 5*enough) // the client lives on, on q
			svc.asks(t, p, 7, "again", false)
			r := ps.arrive(s, "host")
			svc.asks(t, r, 7, "again", false)
		})
	})
}
