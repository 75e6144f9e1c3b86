package transport

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Rules of RFC 5666 that are no one feature's.

// A wrapped is a scripted peer with some methods of its connection replaced.
type wrapped struct {
	*peer
	wrap func(peerConn) fabric.Conn
}

func (w wrapped) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	c, err := w.peer.Resolve(ctx, addr, attr)
	return w.wrap(c.(peerConn)), err
}

func (w wrapped) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	w.attr = attr
	l, err := w.peer.Listen(ctx, addr, attr)
	return wrappedListener{l, w.wrap}, err
}

type wrappedListener struct {
	fabric.Listener
	wrap func(peerConn) fabric.Conn
}

func (l wrappedListener) Accept(ctx context.Context) (fabric.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return l.wrap(c.(peerConn)), nil
}

// wrappedServer runs a conversation with a server on a wrapped peer.
func wrappedServer(t *testing.T, cfg *Settings, wrap func(peerConn) fabric.Conn, script func(p *peer, svc *testService)) {
	t.Helper()
	p := newPeer(t)
	synctest.Test(t, func(t *testing.T) {
		p.t = t
		p.changed = make(chan struct{})
		s, err := NewServer(cfg.Server())
		if err != nil {
			t.Fatal(err)
		}
		svc := &testService{gate: make(chan struct{})}
		if err := s.Register(svc.program()); err != nil {
			t.Fatal(err)
		}
		l, err := s.Listen(bg, wrapped{p, wrap}, "script:20049")
		if err != nil {
			t.Fatal(err)
		}
		go s.Serve(l)
		synctest.Wait()
		defer s.Close()
		script(p, svc)
	})
}

// fewReceives is a connection that takes no receives but the first ones, which may be
// posted again and again.
type fewReceives struct {
	peerConn
	most int
}

var errNoReceive = errors.New("script: no more receives")

func (c fewReceives) PostRecv(wrs []fabric.RecvWR) error {
	for _, wr := range wrs {
		if int(uint32(wr.ID)) >= c.most {
			return errNoReceive
		}
	}
	return c.peerConn.PostRecv(wrs)
}

func TestRuleStarvedServer(t *testing.T) {
	t.Run("V1-3.3-10 replies leave when no more receives can be posted", func(t *testing.T) {
		most := initialGrant + leastBatch
		wrappedServer(t, nil, func(c peerConn) fabric.Conn { return fewReceives{c, most} }, func(p *peer, svc *testService) {
			for xid := range uint32(initialGrant) { // enough for the server to want more
				p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 100}, procHold), 0)
			}
			close(svc.gate)
			for range initialGrant {
				h, payload := p.message("a reply")
				accepted(t, payload, h.XID)
			}
		})
	})
}

// watched is a connection that says how many receives are posted when it is offered or
// accepted.
type watched struct {
	peerConn
	posted *int
}

func (c watched) Connect(ctx context.Context, private []byte) error {
	*c.posted = len(c.recvs)
	return c.peerConn.Connect(ctx, private)
}

func (c watched) Accept(ctx context.Context, private []byte) error {
	*c.posted = len(c.recvs)
	return c.peerConn.Accept(ctx, private)
}

func TestRuleReceivesFirst(t *testing.T) {
	t.Run("BIDI-4-1 receives are posted before anything can arrive", func(t *testing.T) {
		posted := 0
		wrap := func(c peerConn) fabric.Conn { return watched{c, &posted} }
		wrappedServer(t, nil, wrap, func(*peer, *testService) {
			if posted < initialGrant {
				t.Errorf("a server accepts with %d receives posted", posted)
			}
		})
		posted = 0
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t)
			cl, err := Dial(bg, wrapped{p, wrap}, "script:20049", once(nil).Client())
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			if posted < 1 {
				t.Errorf("a client connects with %d receives posted", posted)
			}
		})
	})
}

func TestRuleEligibility(t *testing.T) {
	t.Run("V1-3.4-2 arguments that nobody marked are in no chunk of their own", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: opaque(string(make([]byte, 8000)))})
			h, _ := p.message("a call over the threshold")
			if h.Proc != rpcrdma.ProcNomsg || slices.ContainsFunc(h.Reads, func(s rpcrdma.ReadSegment) bool { return s.Position != 0 }) {
				t.Errorf("call header is %+v", h)
			}
		})
	})
	t.Run("V1-3.4-2 results that nobody marked are in no write chunk", func(t *testing.T) {
		testServer(t, nil, func(p *peer, _ *Server, _ *testService) {
			for _, words := range []uint32{10, 5000} { // inline, and in the reply chunk
				p.send(callBytes(rpcrdma.Header{XID: 9, HasReply: true,
					Writes: []rpcrdma.WriteChunk{{p.offer(1, make([]byte, 30000))}},
					Reply:  rpcrdma.WriteChunk{p.offer(2, make([]byte, 30000))}}, procLong, xdr.AppendUint32(nil, words)...), 0)
				h, _ := p.message("the reply")
				if len(h.Writes) != 1 || h.Writes[0].Length() != 0 || (h.Proc == rpcrdma.ProcNomsg) != (words == 5000) {
					t.Errorf("%d words: reply header is %+v", words, h)
				}
			}
		})
	})
}

func TestRuleChunkLengths(t *testing.T) {
	t.Run("V1-3.4-9 a chunk that is shorter than its count is an error", func(t *testing.T) {
		testServer(t, nil, func(p *peer, _ *Server, _ *testService) {
			for _, sum := range []int{0, 4, 96} {
				h := rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{
					{Position: 44, Segment: p.offer(1, make([]byte, sum/2))},
					{Position: 44, Segment: p.offer(2, make([]byte, sum-sum/2))}}}
				p.send(callBytes(h, procEcho, xdr.AppendUint32(nil, 100)...), 0)
				_, payload := p.message("an error")
				var rh oncrpc.ReplyHeader
				if _, err := oncrpc.ConsumeReply(payload, &rh); err != nil || rh.AcceptStat != oncrpc.GarbageArgs {
					t.Errorf("count 100, chunk of %d bytes: %+v", sum, rh)
				}
			}
		})
		client(t, nil, func(p *peer, cl *Client) {
			rc := NewRecordConn(cl, opaqueBinding{max: 9000}, 0)
			if _, err := rc.Write(record(appendCall(nil, 7, 1, opaque("x")...))); err != nil {
				t.Fatal(err)
			}
			h, _ := p.message("the call")
			h.Writes[0][0].Length = 4996
			p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, xdr.AppendUint32(nil, 5000)...)
			synctest.Wait()
			var re *rpc.BadReplyError
			if n, err := rc.Read(make([]byte, 10000)); !errors.As(err, &re) {
				t.Errorf("count 5000, chunk of 4996 bytes: read %d bytes, error %v", n, err)
			}
		})
	})

	t.Run("V1-3.4-9 a chunk that is longer than its count is an error", func(t *testing.T) {
		svc := &testService{}
		bound := svc.program()
		bound.Binding = opaqueBinding{}
		serverOf(t, newPeer(t), nil, []rpc.Program{bound}, func(p *peer, _ *Server) {
			for _, c := range []struct {
				pos, sum int
				want     oncrpc.AcceptStat
			}{{44, 101, oncrpc.Success}, {44, 104, oncrpc.Success}, {44, 100, oncrpc.GarbageArgs}, {44, 105, oncrpc.GarbageArgs}, {44, 200, oncrpc.GarbageArgs}, {40, 101, oncrpc.GarbageArgs}} {
				h := rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{{Position: uint32(c.pos), Segment: p.offer(1, make([]byte, c.sum))}}}
				p.send(callBytes(h, procEcho, xdr.AppendUint32(nil, 101)...), 0)
				_, payload := p.message("the answer")
				var rh oncrpc.ReplyHeader
				if _, err := oncrpc.ConsumeReply(payload, &rh); err != nil || rh.AcceptStat != c.want {
					t.Errorf("count 101, chunk of %d bytes at %d: %+v, want %v", c.sum, c.pos, rh, c.want)
				}
			}
		})
		bridged(t, opaqueBinding{}, func(p *peer, _ *Server, _ net.Listener) {
			h := rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(1, make([]byte, 105))}}}
			p.send(callBytes(h, procEcho, xdr.AppendUint32(nil, 101)...), 0)
			_, payload := p.message("an error")
			var rh oncrpc.ReplyHeader
			if _, err := oncrpc.ConsumeReply(payload, &rh); err != nil || rh.AcceptStat != oncrpc.GarbageArgs {
				t.Errorf("count 101, chunk of 105 bytes: %+v", rh)
			}
		})
		for written, ok := range map[uint32]bool{5001: true, 5004: true, 5000: false, 5005: false, 5008: false} {
			client(t, nil, func(p *peer, cl *Client) {
				rc := NewRecordConn(cl, opaqueBinding{max: 9000}, 0)
				defer rc.Close()
				if _, err := rc.Write(record(appendCall(nil, 7, 1, opaque("x")...))); err != nil {
					t.Fatal(err)
				}
				h, _ := p.message("the call")
				h.Writes[0][0].Length = written
				p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, xdr.AppendUint32(nil, 5001)...)
				synctest.Wait()
				var re *rpc.BadReplyError
				if n, err := rc.Read(make([]byte, 10000)); ok != (err == nil) || !ok && !errors.As(err, &re) {
					t.Errorf("count 5001, chunk of %d bytes: read %d bytes, error %v", written, n, err)
				}
			})
		}
	})

	t.Run("V1-3.4-17 what is beyond the length written is nobody's", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			buf := make([]byte, 9000)
			call := &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: buf}}, MaxResults: 10000}
			done := async(cl, bg, call)
			h, _ := p.message("the call")
			p.write(h.Writes[0][0], "data"+string(bytes.Repeat([]byte{0xee}, 8000)))
			msg := append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: h.XID}), 1, 2, 3, 4)
			p.write(h.Reply[0], string(msg)+string(bytes.Repeat([]byte{0xee}, 8000)))
			h.Writes[0][0].Length, h.Reply[0].Length = 4, uint32(len(msg))
			p.reply(rpcrdma.Header{XID: h.XID, Proc: rpcrdma.ProcNomsg, Writes: h.Writes, HasReply: true, Reply: h.Reply})
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
			if w := call.WriteItems[0]; w.N != 4 || string(buf[:w.N]) != "data" || !bytes.Equal(call.Results, []byte{1, 2, 3, 4}) {
				t.Errorf("item of %d bytes, results %x", w.N, call.Results)
			}
		})
	})

	t.Run("CTX-8166-3 a server writes and returns no padding", func(t *testing.T) {
		testServer(t, nil, func(p *peer, _ *Server, _ *testService) {
			mem := bytes.Repeat([]byte{0xee}, 16)
			p.send(callBytes(rpcrdma.Header{XID: 9, Writes: []rpcrdma.WriteChunk{{p.offer(1, mem)}}}, procEcho, opaque("hello")...), 0)
			h, payload := p.message("the reply")
			if h.Writes[0][0].Length != 5 || string(mem[:5]) != "hello" || !bytes.Equal(mem[5:], bytes.Repeat([]byte{0xee}, 11)) {
				t.Errorf("length %d, memory %x", h.Writes[0][0].Length, mem)
			}
			if got := accepted(t, payload, 9); !bytes.Equal(got, []byte{0, 0, 0, 5}) {
				t.Errorf("inline results are %x, want the count alone", got)
			}
		})
	})
	t.Run("CTX-8166-3 a client reserves no room for padding", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 5001)}}})
			h, _ := p.message("the call")
			if n := h.Writes[0].Length(); n != 5001 {
				t.Errorf("a chunk of %d bytes is offered", n)
			}
		})
	})
}

func TestRuleStream(t *testing.T) {
	t.Run("V1-3.7-1 an item that is inline has its length in front and zeros behind", func(t *testing.T) {
		want := []byte("\x00\x00\x00\x05hello\x00\x00\x00")
		client(t, nil, func(p *peer, cl *Client) {
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: []byte{0, 0, 0, 5}, ReadItems: []rpc.ReadItem{{Offset: 4, Data: []byte("hello")}}})
			if _, payload := p.message("the call"); !bytes.Equal(payload[40:], want) {
				t.Errorf("arguments are %q", payload[40:])
			}
		})
		testServer(t, nil, func(p *peer, _ *Server, _ *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 9}, procEcho, want...), 0)
			if _, payload := p.message("the reply"); !bytes.Equal(accepted(t, payload, 9), want) {
				t.Errorf("results are %q", payload[24:])
			}
		})
	})

	t.Run("V1-4-2 put together, a message is what it is on TCP", func(t *testing.T) {
		item := bytes.Repeat([]byte("odd"), 2001)
		for _, fill := range []int{0, 3000, 5000} { // two chunks, and all of it in one
			for _, cfg := range []*Settings{nil, {PeerChunks: AllChunks}, {MaxSegment: 1000}, {PeerChunks: AllChunks, MaxSegment: 1000}} {
				client(t, cfg, func(p *peer, cl *Client) {
					args := append(bytes.Repeat([]byte{7}, fill), 0, 0, 0x17, 0x73)
					from := len(args)
					args = append(args, 0, 0, 0, 3, 1, 2, 3, 4)
					async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1, Args: args, ReadItems: []rpc.ReadItem{{Offset: from, Data: item}, {Offset: from + 4, Data: []byte("abc")}}})
					h, payload := p.message("the call")
					tcp := append(appendCall(nil, h.XID, 1, bytes.Repeat([]byte{7}, fill)...), opaque(string(item))...)
					tcp = append(append(tcp, opaque("abc")...), 1, 2, 3, 4)
					if got := p.assemble(&h, payload); !bytes.Equal(got, tcp) {
						t.Errorf("%d bytes in front, %+v: message of %d bytes, want %d", fill, cfg, len(got), len(tcp))
					}
				})
			}
		}
	})

	t.Run("V1-4.1-4 every message is of version 1", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			for _, n := range []int{4, 8000} {
				done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: make([]byte, n)})
				s := p.next("a call")
				if v := word(s.msg, 1); v != 1 {
					t.Errorf("RPC-over-RDMA message %d has version %d", word(s.msg, 3), v)
				}
				p.reply(rpcrdma.Header{XID: word(s.msg, 0)})
				outcome(t, done)
			}
		})
		testServer(t, nil, func(p *peer, _ *Server, _ *testService) {
			for i, call := range [][]byte{
				callBytes(rpcrdma.Header{XID: 9}, procEcho, opaque("hello")...),
				callBytes(rpcrdma.Header{XID: 9, HasReply: true, Reply: rpcrdma.WriteChunk{p.offer(1, make([]byte, 30000))}},
					procLong, 0, 0, 0x13, 0x88),
				callBytes(rpcrdma.Header{XID: 9, Proc: rpcrdma.ProcNomsg}, 0),
			} {
				p.send(call, 0)
				s := p.next("an answer")
				want := []rpcrdma.Proc{rpcrdma.ProcMsg, rpcrdma.ProcNomsg, rpcrdma.ProcError}[i]
				if v := word(s.msg, 1); v != 1 || word(s.msg, 3) != uint32(want) {
					t.Errorf("RPC-over-RDMA message %d has version %d, want %v of version 1", word(s.msg, 3), v, want)
				}
			}
		})
	})
}

// assemble puts a call together as RFC 5666 section 3.5 says: inline data up to each
// position, the chunk, and what its padding would be.
func (p *peer) assemble(h *rpcrdma.Header, inline []byte) []byte {
	var lead []rpcrdma.ReadSegment
	for len(h.Reads) > 0 && h.Reads[0].Position == 0 {
		lead, h.Reads = append(lead, h.Reads[0]), h.Reads[1:]
	}
	if len(lead) > 0 {
		inline = p.read(lead)
	}
	var msg []byte
	for len(h.Reads) > 0 {
		at := int(h.Reads[0].Position)
		n := min(at-len(msg), len(inline))
		msg, inline = append(msg, inline[:n]...), inline[n:]
		i := slices.IndexFunc(h.Reads, func(s rpcrdma.ReadSegment) bool { return int(s.Position) != at })
		if i < 0 {
			i = len(h.Reads)
		}
		msg = append(msg, p.read(h.Reads[:i])...)
		msg = append(msg, make([]byte, -len(msg)&3)...)
		h.Reads = h.Reads[i:]
	}
	return append(msg, inline...)
}

func TestRuleCredits(t *testing.T) {
	t.Run("V1-4.1-5 the grant bounds a burst, whether it rises or falls", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			for range 40 {
				async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			}
			var flight []uint32
			for _, grant := range []int{1, 3, 7, 7, 2, 1, 5} {
				synctest.Wait()
				for len(p.sends) > 0 {
					flight = append(flight, word(p.next("a call").msg, 0))
				}
				p.reply(rpcrdma.Header{XID: flight[0], Credit: uint32(grant)})
				before := len(flight) - 1
				flight = flight[1:]
				synctest.Wait()
				if n, want := before+len(p.sends), max(before, grant); n != want {
					t.Errorf("%d calls in flight after a grant of %d, with %d before; want %d", n, grant, before, want)
				}
			}
		})
	})

	t.Run("BIDI-2.4-2 no two calls in flight have one xid", func(t *testing.T) {
		const window, rounds = 64, 500
		client(t, &Settings{Credits: window}, func(p *peer, cl *Client) {
			flight := make(map[uint32]bool)
			for range window {
				go func() {
					for cl.Call(bg, &rpc.Call{Prog: testProg, Vers: 1}) == nil {
					}
				}()
			}
			take := func() {
				synctest.Wait()
				for len(p.sends) > 0 {
					xid := word(p.next("a call").msg, 0)
					if flight[xid] {
						t.Fatalf("%#x is in flight twice", xid)
					}
					flight[xid] = true
				}
			}
			for range rounds {
				take()
				n := 0
				for xid := range flight { // in any order, some of them
					delete(flight, xid)
					p.reply(rpcrdma.Header{XID: xid, Credit: window})
					if n++; n == 20 {
						break
					}
				}
			}
			if take(); len(flight) != window {
				t.Errorf("%d calls are in flight, want %d", len(flight), window)
			}
		})
	})
}

func TestRuleXIDs(t *testing.T) {
	t.Run("BIDI-2.4-2 a call does not get the xid of one in flight that has brought its own", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			p.opens(cl, 3)
			var flight []uint32
			for range 2 {
				async(cl, bg, testCall())
				h, _ := p.message("a call")
				flight = append(flight, h.XID)
			}
			for _, xid := range flight {
				p.reply(rpcrdma.Header{XID: xid, Credit: 3})
			}
			settle()
			coming := cl.conn().counter().last.Load() + 2 // of the second call from now
			rc := NewRecordConn(cl, nil, 0)
			defer rc.Close()
			sealed := oncrpc.AppendCall(nil, &oncrpc.CallHeader{XID: coming, RPCVers: 2, Prog: testProg, Vers: 1, Proc: 1,
				Cred: oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: make([]byte, 20)}})
			if _, err := rc.Write(record(sealed)); err != nil {
				t.Fatal(err)
			}
			if h, _ := p.message("a call whose header is signed"); h.XID != coming {
				t.Fatalf("the xid is %#x, want %#x", h.XID, coming)
			}
			call := testCall()
			done := async(cl, bg, call)
			h, _ := p.message("a call")
			if h.XID == coming {
				t.Fatalf("%#x is in flight twice", h.XID)
			}
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 3}, 1, 2, 3, 4)
			if err := outcome(t, done); err != nil || !bytes.Equal(call.Results, []byte{1, 2, 3, 4}) {
				t.Errorf("the call returned %v, results %x", err, call.Results)
			}
			p.reply(rpcrdma.Header{XID: coming, Credit: 3}, 5, 6, 7, 8)
			if msg := readRecord(t, rc); word(msg, 0) != coming || !bytes.HasSuffix(msg, []byte{5, 6, 7, 8}) {
				t.Errorf("the record is %x", msg)
			}
		})
	})

	t.Run("BIDI-2.4-2 a call that brings the xid of one in flight is not sent", func(t *testing.T) {
		for _, brought := range []bool{false, true} { // the one in flight has brought it, too
			client(t, nil, func(p *peer, cl *Client) {
				p.opens(cl, 3)
				rc := NewRecordConn(cl, nil, 0)
				defer rc.Close()
				sealed := func(xid uint32) []byte {
					return record(oncrpc.AppendCall(nil, &oncrpc.CallHeader{XID: xid, RPCVers: 2, Prog: testProg, Vers: 1, Proc: 1,
						Cred: oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: make([]byte, 20)}}))
				}
				if brought {
					if _, err := rc.Write(sealed(0xabcd)); err != nil {
						t.Fatal(err)
					}
				} else {
					async(cl, bg, testCall())
				}
				h, _ := p.message("a call")
				if _, err := rc.Write(sealed(h.XID)); err != nil {
					t.Fatal(err)
				}
				p.quiet("there is a call with this xid")
				if _, err := rc.Read(make([]byte, 4)); !errors.Is(err, errSameXID) {
					t.Errorf("it is answered with %v", err)
				}
			})
		}
	})
}

func TestRuleWritesBeforeSend(t *testing.T) {
	t.Run("V1-2-3 what was Written is there when the reply is", func(t *testing.T) {
		s, err := NewServer(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		err = s.Register(rpc.Program{Number: testProg, Low: 1, High: 1, Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			res.AddItem(bytes.Repeat(req.Args[:4], 16<<10), nil)
		})})
		if err != nil {
			t.Fatal(err)
		}
		provider := iwarp.New(iwarp.Config{})
		l, err := s.Listen(bg, provider, "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go s.Serve(l)
		cl, err := Dial(bg, provider, l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		buf := make([]byte, 64<<10)
		call := &rpc.Call{Prog: testProg, Vers: 1, Proc: 1, WriteItems: []rpc.WriteItem{{Buf: buf}}}
		for i := range uint32(1000) {
			call.Args = xdr.AppendUint32(call.Args[:0], i)
			if err := cl.Call(bg, call); err != nil {
				t.Fatal(err)
			}
			if !call.WriteItems[0].Chunked || !bytes.Equal(buf, bytes.Repeat(call.Args, 16<<10)) {
				t.Fatalf("after call %d the memory has other bytes", i)
			}
		}
	})
}

func TestRuleSecurity(t *testing.T) {
	t.Run("a call that RPCSEC_GSS has sealed goes as it is", func(t *testing.T) {
		// RFC 2203 section 5.3.2.3: the arguments are one opaque item.
		cred := oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: make([]byte, 20)}
		body := opaque(string(bytes.Repeat([]byte("sealed"), 1500)))
		client(t, nil, func(p *peer, cl *Client) {
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1, Cred: cred, Args: body, MaxResults: 9000})
			h, payload := p.message("the call")
			if h.Proc != rpcrdma.ProcNomsg || len(h.Writes) != 0 || !h.HasReply {
				t.Errorf("call header is %+v", h)
			}
			var ch oncrpc.CallHeader
			msg := p.assemble(&h, payload)
			n, err := oncrpc.ConsumeCall(msg, &ch)
			if err != nil || ch.Cred.Flavor != cred.Flavor || !bytes.Equal(ch.Cred.Body, cred.Body) || !bytes.Equal(msg[n:], body) {
				t.Errorf("call is %+v, %v", ch, err)
			}
		})
	})
}

// TestRuleNoDone checks clients that never send RDMA_DONE, whether or not they fetch replies.
func TestRuleNoDone(t *testing.T) {
	const size = 60_000
	lending := rpc.Program{Number: testProg, Low: 1, High: 1, ReadReplies: true,
		Handler: rpc.HandlerFunc(func(_ context.Context, _ *rpc.Request, res *rpc.Response) { res.AddItem(res.Alloc(size), nil) }),
		Inline:  func(uint32, uint32) bool { return true },
	}
	call := func(xid uint32) []byte { return callBytes(rpcrdma.Header{XID: xid}, 1) }

	t.Run("V1-11-5 V1-11-8 they hold little memory, for a while, and disturb nobody", func(t *testing.T) {
		cfg := &Settings{MaxMessage: 1 << 16, MaxMemory: 1 << 18, RFC5666: &RFC5666{DoneTimeout: 5 * time.Second}}
		serverOf(t, newPeer(t), cfg, []rpc.Program{lending}, func(p *peer, s *Server) {
			for xid := range uint32(1000) {
				if p.posted() == 0 || p.over() {
					break
				}
				p.send(call(xid), 0)
				synctest.Wait()
				if n := p.openWindows(); n > cfg.MaxMemory/size+1 {
					t.Fatalf("%d replies are lent, memory is for %d", n, cfg.MaxMemory/size)
				}
			}
			if p.openWindows() < 2 {
				t.Error("nothing is lent")
			}

			other := newPeer(t)
			l, err := s.Listen(bg, other, "script:2")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- s.Serve(l) }()
			synctest.Wait()
			other.send(call(7), 0)
			if h, _ := other.message("a reply to somebody else"); len(h.Reads) != 1 {
				t.Errorf("reply header is %+v", h)
			}
			other.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 7, Vers: 1, Credit: 8, Proc: rpcrdma.ProcDone}), 0)
			if n := other.openWindows(); n != 0 {
				t.Errorf("%d windows are open after RDMA_DONE", n)
			}

			time.Sleep(6 * time.Second)
			if n := p.openWindows(); n != 0 || !p.over() {
				t.Errorf("%d windows are open after the time allowed", n)
			}
			if other.over() {
				t.Error("the other client lost its connection")
			}
			l.Close()
			<-served
		})
	})

	t.Run("V1-11-5 each reply that is lent has its own time", func(t *testing.T) {
		done := func(xid uint32) []byte {
			return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 8, Proc: rpcrdma.ProcDone})
		}
		cfg := &Settings{RFC5666: &RFC5666{DoneTimeout: 5 * time.Second}}
		for _, together := range []bool{false, true} { // the replies before the last one are lent with it, or over
			serverOf(t, newPeer(t), cfg, []rpc.Program{lending}, func(p *peer, _ *Server) {
				const last = 4
				for xid := range uint32(last + 1) {
					p.send(call(xid), 0)
					p.message("a reply")
					if !together && xid < last {
						p.send(done(xid), 0)
					}
				}
				for xid := range uint32(last) {
					if together {
						p.send(done(xid), 0)
					}
				}
				if n := p.openWindows(); n != 1 {
					t.Fatalf("%d windows are open, want that of the last reply", n)
				}
				time.Sleep(4 * time.Second)
				if p.over() {
					t.Fatal("the connection ended too soon")
				}
				time.Sleep(2 * time.Second)
				if n := p.openWindows(); n != 0 || !p.over() {
					t.Errorf("together %v: %d windows are open after the time allowed", together, n)
				}
			})
		}
	})

	t.Run("V1-11-7 the grant is never zero for want of RDMA_DONE", func(t *testing.T) {
		for _, credits := range []int{1, 2, 128} {
			serverOf(t, newPeer(t), &Settings{Credits: credits, RFC5666: &RFC5666{}}, []rpc.Program{lending}, func(p *peer, _ *Server) {
				for xid := range uint32(20) {
					p.send(call(xid), 0)
					if h, _ := p.message("a reply"); h.Credit < 1 || len(h.Reads) != 1 {
						t.Fatalf("%d credits, reply %d: %+v", credits, xid, h)
					}
				}
			})
		}
	})
}

func TestRuleNoRoomForPrivateData(t *testing.T) {
	t.Run("PVT-4-4 what does not fit is not sent, and not relied on", func(t *testing.T) {
		for _, room := range []int{0, 7, 8} {
			p := newPeer(t)
			p.caps.MaxPrivateData = room
			clientOf(t, p, nil, func(p *peer, cl *Client) {
				want := 0
				if room == 8 {
					want = 8
				}
				info := cl.Info()
				if len(p.got) != want {
					t.Errorf("%d octets of private data, there is room for %d", len(p.got), room)
				}
				if said := want == 8; (info.InlineRecv == 4096) != said || info.RemoteInvalidation && !said {
					t.Errorf("room for %d octets: %+v", room, info)
				}
			})
		}
	})
}

// A stingyConn takes receives back, but at most there were at set-up.
type stingyConn struct{ peerConn }

func (c stingyConn) PostRecv(wrs []fabric.RecvWR) error {
	c.mu.Lock()
	early := c.early
	c.mu.Unlock()
	more := early > 0 && slices.ContainsFunc(wrs, func(wr fabric.RecvWR) bool { return int(uint32(wr.ID)) >= early })
	if more {
		return errors.New("script: no more receives")
	}
	return c.peerConn.PostRecv(wrs)
}

func TestRuleReceivesForGrants(t *testing.T) {
	t.Run("CCP-6-2 BIDI-4.3.2-1 what the adapter does not take is not granted", func(t *testing.T) {
		wrap := func(c peerConn) fabric.Conn { return stingyConn{c} }
		wrappedServer(t, nil, wrap, func(p *peer, svc *testService) {
			for xid := range uint32(initialGrant) { // half of it in use asks for more
				p.send(callBytes(rpcrdma.Header{XID: xid + 1, Credit: 100}, procHold), 0)
				synctest.Wait()
			}
			close(svc.gate)
			for range initialGrant {
				if h, _ := p.message("a reply"); h.Credit > initialGrant {
					t.Fatalf("the grant is %d, there are receives for %d", h.Credit, initialGrant)
				}
			}
		})
	})
}
