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

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Calls in both directions on one connection (RFC 8167).

// procReady is by what a scripted client says that it is ready for calls.
const procReady = 20

// A callerService is a testService of which procReady leaves the connection to the test.
type callerService struct {
	testService
	conns chan *Conn
}

func (s *callerService) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	if req.Proc == procReady {
		s.conns <- req.Conn().(*Conn)
		return
	}
	s.testService.ServeRPC(ctx, req, res)
}

// caller runs a conversation with a server that calls a scripted client. cn is the way to
// it, with AllowBackward still to be called.
func caller(t *testing.T, cfg *Settings, script func(p *peer, s *Server, cn *Conn)) {
	t.Helper()
	callerOf(t, newPeer(t), cfg, script)
}

func callerOf(t *testing.T, p *peer, cfg *Settings, script func(p *peer, s *Server, cn *Conn)) {
	t.Helper()
	svc := &callerService{}
	prog := svc.program()
	prog.Handler = svc
	serverOf(t, p, cfg, []rpc.Program{prog}, func(p *peer, s *Server) {
		svc.gate = make(chan struct{})
		svc.conns = make(chan *Conn, 1)
		script(p, s, svc.ready(p, 0x5ead))
	})
}

// ready has a client say that it is ready, in a call with the given xid.
func (s *callerService) ready(p *peer, xid uint32) *Conn {
	p.t.Helper()
	p.send(callBytes(rpcrdma.Header{XID: xid}, procReady), 0)
	_, payload := p.message("the reply to a client that is ready")
	accepted(p.t, payload, xid)
	return <-s.conns
}

// backward starts a call of a server's.
func backward(cn *Conn, ctx context.Context, call *rpc.Call) <-chan error {
	done := make(chan error, 1)
	go func() { done <- cn.Call(ctx, call) }()
	return done
}

func testCall() *rpc.Call { return &rpc.Call{Prog: testProg, Vers: 1, Proc: 7} }

// callee runs a conversation with a client that a scripted server calls.
func callee(t *testing.T, cfg Settings, script func(p *peer, cl *Client, svc *testService)) {
	t.Helper()
	calleeOf(t, newPeer(t), cfg, script)
}

func calleeOf(t *testing.T, p *peer, cfg Settings, script func(p *peer, cl *Client, svc *testService)) {
	t.Helper()
	svc := &testService{}
	cfg.Callbacks = []rpc.Program{svc.program()}
	cfg.KeepAlive = -1
	clientOf(t, p, &cfg, func(p *peer, cl *Client) {
		svc.gate = make(chan struct{})
		settle()
		script(p, cl, svc)
	})
}

// replies checks that the next message is the reply to a call of the scripted end's, and
// returns its header and results.
func (p *peer) replies(xid uint32, what string) (rpcrdma.Header, []byte) {
	p.t.Helper()
	h, payload := p.message(what)
	if h.XID != xid || h.Proc != rpcrdma.ProcMsg {
		p.t.Fatalf("%s: it is %+v", what, h)
	}
	return h, accepted(p.t, payload, xid)
}

// opens makes a call on a client's connection and grants it credits.
func (p *peer) opens(cl *Client, credits uint32) {
	p.t.Helper()
	done := async(cl, bg, testCall())
	h, _ := p.message("a call")
	p.reply(rpcrdma.Header{XID: h.XID, Credit: credits})
	if err := outcome(p.t, done); err != nil {
		p.t.Fatal(err)
	}
	settle()
}

// TestCallbackReply checks a client's replies to calls from its server.
func TestCallbackReply(t *testing.T) {
	t.Run("BIDI-5.2-1 BIDI-5.2-2 BIDI-5.2-3 BIDI-5.2-4 BIDI-4.1-4 the reply word by word", func(t *testing.T) {
		callee(t, Settings{Credits: 32, BackwardCredits: 2}, func(p *peer, cl *Client, _ *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 0xabcd, Credit: 99}, procEcho, opaque("calling")...), 0)
			got := p.next("the reply").msg
			// xid, version, granted credits, RDMA_MSG, no chunks; then xid, REPLY, accepted
			for i, want := range []uint32{0xabcd, 1, 2, 0, 0, 0, 0, 0xabcd, 1, 0, 0, 0, 0} {
				if word(got, i) != want {
					t.Errorf("word %d is %#x, want %#x", i, word(got, i), want)
				}
			}
			if !bytes.Equal(got[52:], opaque("calling")) {
				t.Errorf("results are %x", got[52:])
			}
			done := async(cl, bg, testCall())
			h := p.answerNext("a call of the client's")
			if h.Credit != 32 {
				t.Errorf("the client asks for %d credits, want 32", h.Credit)
			}
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("BIDI-5.2-2 the reply has the version of its call, whatever the connection's is", func(t *testing.T) {
		svc := &testService{}
		cfg := &Settings{Version: VersionAuto, NoRemoteInvalidation: true, KeepAlive: -1, Callbacks: []rpc.Program{svc.program()}}
		for spoken := uint32(1); spoken <= 2; spoken++ {
			dials(t, cfg, func(d *dialing, p *peer) {
				if spoken == 2 {
					p.speaks2()
				} else {
					p.speaks(1, 1)
				}
				cl := d.client()
				p.finishes(cl, spoken)
				for xid := uint32(1); xid <= 6; xid++ {
					vers := xid%2 + 1
					p.send(callBytes(rpcrdma.Header{XID: xid, Vers: vers}, procEcho, opaque("x")...), 0)
					if h, _ := p.replies(xid, "the reply"); h.Vers != vers {
						t.Errorf("on a connection of version %d the reply to a call of version %d has version %d", spoken, vers, h.Vers)
					}
				}
			})
		}
	})

	t.Run("BIDI-2.3-1 a connection with calls from the server alone", func(t *testing.T) {
		callee(t, Settings{}, func(p *peer, cl *Client, _ *testService) {
			for xid := range uint32(100) {
				p.send(callBytes(rpcrdma.Header{XID: xid}, procEcho, opaque("calling")...), 0)
				p.replies(xid, "the reply")
			}
			if st := cl.Stats(); st.Calls != 100 || st.Replies != 100 {
				t.Errorf("counters are %+v", st)
			}
		})
	})

	t.Run("BIDI-4.2-1 the reply to a callback is as long as a call", func(t *testing.T) {
		p := newPeer(t)
		p.hello = rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 2048, RecvSize: 4096})
		calleeOf(t, p, Settings{}, func(p *peer, cl *Client, _ *testService) {
			if i := cl.Info(); i.InlineSend != 4096 || i.InlineRecv != 2048 {
				t.Fatalf("thresholds are %d and %d", i.InlineSend, i.InlineRecv)
			}
			fit := uint32(4096-rpcrdma.MinHeaderSize-24) / 4
			p.send(callBytes(rpcrdma.Header{XID: 7}, procLong, xdr.AppendUint32(nil, fit)...), 0)
			if s := p.next("the reply"); len(s.msg) != 4096 {
				t.Errorf("the reply has %d bytes", len(s.msg))
			}
			p.send(callBytes(rpcrdma.Header{XID: 8}, procLong, xdr.AppendUint32(nil, fit+1)...), 0)
			if h, _ := p.message("an RDMA_ERROR"); h.Err != rpcrdma.ErrChunk {
				t.Errorf("a reply that is too long: %+v", h)
			}
		})
	})
}

// TestCallbackBothWays checks that simultaneous calls in both directions are independent.
func TestCallbackBothWays(t *testing.T) {
	t.Run("BIDI-2.4.1-1 one xid in both directions at once", func(t *testing.T) {
		callee(t, Settings{}, func(p *peer, cl *Client, svc *testService) {
			done := async(cl, bg, testCall())
			h, _ := p.message("the client's call")
			p.send(callBytes(rpcrdma.Header{XID: h.XID}, procHold), 0)
			p.quiet("the callback is being executed")
			if svc.running.Load() != 1 {
				t.Fatal("the callback is not executed")
			}
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			settle()
			close(svc.gate)
			p.replies(h.XID, "the reply to the callback")
		})
	})

	t.Run("RDMA_ERROR is about the client's own call, though the server has used the same xid", func(t *testing.T) {
		callee(t, Settings{}, func(p *peer, cl *Client, svc *testService) {
			done := async(cl, bg, testCall())
			h, _ := p.message("the client's call")
			p.send(callBytes(rpcrdma.Header{XID: h.XID}, procHold), 0)
			synctest.Wait()
			p.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{
				XID: h.XID, Vers: 1, Credit: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk}), 0)
			var refused *rpc.RDMAError
			if err := outcome(t, done); !errors.As(err, &refused) {
				t.Errorf("the call returned %v", err)
			}
			settle()
			close(svc.gate)
			p.replies(h.XID, "the reply to the callback, which goes on")
		})
	})

	t.Run("BIDI-4.1-1 each direction goes on when the other has no credits left", func(t *testing.T) {
		callee(t, Settings{BackwardCredits: 2}, func(p *peer, cl *Client, svc *testService) {
			var done []<-chan error
			for range 2 {
				done = append(done, async(cl, bg, testCall()))
			}
			first, _ := p.message("the one call that the client may make")
			p.quiet("the other call has no credit")
			for xid := range uint32(50) {
				p.send(callBytes(rpcrdma.Header{XID: xid}, procEcho, opaque("x")...), 0)
				p.replies(xid, "the reply to a callback")
			}
			for xid := range uint32(2) {
				p.send(callBytes(rpcrdma.Header{XID: 100 + xid}, procHold), 0)
			}
			p.reply(rpcrdma.Header{XID: first.XID, Credit: 1})
			p.answerNext("the client's second call, with all callbacks taken")
			for _, d := range done {
				if err := outcome(t, d); err != nil {
					t.Error(err)
				}
			}
			settle()
			close(svc.gate)
			p.message("the reply to a callback")
			p.message("the reply to a callback")
		})
	})
}

// TestCallbackCredits checks the credits and receives for calls from the server.
func TestCallbackCredits(t *testing.T) {
	t.Run("BIDI-4.1-5 credits in a call are a request and leave the client's window alone", func(t *testing.T) {
		callee(t, Settings{Credits: 32}, func(p *peer, cl *Client, _ *testService) {
			p.opens(cl, 32)
			for _, credit := range []uint32{1, 1 << 31} {
				p.send(callBytes(rpcrdma.Header{XID: credit, Credit: credit}, procEcho, opaque("x")...), 0)
				if h, _ := p.replies(credit, "the reply"); h.Credit != DefaultBackward {
					t.Errorf("the client grants %d", h.Credit)
				}
			}
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			for range 40 {
				async(cl, ctx, testCall())
			}
			for range 32 {
				p.message("a call")
			}
			p.quiet("32 calls are all that the server has granted")
		})
	})

	t.Run("BIDI-4.1-6a BIDI-4.1-6b credits of RDMA_NOMSG, RDMA_DONE, RDMA_ERROR and of malformed messages count for neither window", func(t *testing.T) {
		callee(t, Settings{Credits: 32}, func(p *peer, cl *Client, _ *testService) {
			p.opens(cl, 5)
			for _, credit := range []uint32{0, 1, 9999} {
				for _, h := range []rpcrdma.Header{
					{Proc: rpcrdma.ProcNomsg, HasReply: true, Reply: rpcrdma.WriteChunk{{Handle: 1, Length: 100}}},
					{Proc: rpcrdma.ProcDone},
					{Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk},
				} {
					h.XID, h.Vers, h.Credit = 77, 1, credit
					p.send(rpcrdma.AppendHeader(nil, &h), 0)
					settle()
					p.quiet("there is nothing to answer")
				}
				if i := cl.Info(); i.Credits != 5 || i.BackwardCredits != DefaultBackward {
					t.Errorf("after credits of %d: %d and %d", credit, i.Credits, i.BackwardCredits)
				}
			}
			if st := cl.Stats(); st.Dropped != 9 {
				t.Errorf("%d messages were dropped, want 9", st.Dropped)
			}
		})
	})

	t.Run("BIDI-4.3.1-1 BIDI-6-3 receives for all callbacks are there before the connection, and for each call on top", func(t *testing.T) {
		const backward = 12
		callee(t, Settings{Credits: 64, BackwardCredits: backward}, func(p *peer, cl *Client, svc *testService) {
			if p.early < backward+1 {
				t.Errorf("%d receives were posted when the connection was made, want %d callbacks and a reply", p.early, backward)
			}
			p.opens(cl, 64)
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			for calls := 1; calls <= 64; calls++ {
				async(cl, ctx, testCall())
				if s := p.next("a call"); s.posted < backward+calls {
					t.Fatalf("%d receives for %d callbacks and %d replies", s.posted, backward, calls)
				}
			}
			for xid := range uint32(backward) { // callbacks take their own
				p.send(callBytes(rpcrdma.Header{XID: xid}, procHold), 0)
			}
			if n := p.posted(); n < 64 {
				t.Errorf("%d receives are left for 64 replies", n)
			}
			close(svc.gate)
			for range backward {
				if s := p.next("the reply to a callback"); s.posted < 64+1 {
					t.Errorf("%d receives are left for 64 replies and the next callback", s.posted)
				}
			}
		})
	})
}

// TestCallbackChunks checks that a client accepts chunks only if it is configured to.
func TestCallbackChunks(t *testing.T) {
	t.Run("BIDI-5.3-4 a client that takes no chunks says ERR_CHUNK in 20 bytes, and goes on", func(t *testing.T) {
		for _, h := range []rpcrdma.Header{
			{Writes: []rpcrdma.WriteChunk{{{Handle: 1, Length: 100, Offset: peerBase}}}},
			{Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: rpcrdma.Segment{Handle: 1, Length: 8, Offset: peerBase}}}},
			{HasReply: true, Reply: rpcrdma.WriteChunk{{Handle: 1, Length: 100, Offset: peerBase}}},
			{Proc: rpcrdma.ProcNomsg, Reads: []rpcrdma.ReadSegment{{Segment: rpcrdma.Segment{Handle: 1, Length: 80, Offset: peerBase}}}},
		} {
			callee(t, Settings{BackwardCredits: 3}, func(p *peer, cl *Client, _ *testService) {
				h.XID = 0xc0ffee
				before := p.posted()
				for range 10 {
					p.send(callBytes(h, procEcho, xdr.AppendUint32(nil, 8)...), 0)
					want := []byte{0, 0xc0, 0xff, 0xee, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 2}
					if got := p.next("an RDMA_ERROR").msg; !bytes.Equal(got, want) {
						t.Fatalf("answer is %x, want %x", got, want)
					}
				}
				if n := p.posted(); n <= before-recvBatch {
					t.Errorf("%d receives are posted, %d before", n, before)
				}
				p.send(callBytes(rpcrdma.Header{XID: 8}, procEcho, opaque("still here")...), 0)
				p.replies(8, "the reply to a good call")
			})
		}
	})

	t.Run("BIDI-5.3-1 a client that takes chunks: read, write and reply chunks, and a long call", func(t *testing.T) {
		callee(t, Settings{PeerChunks: AllChunks}, func(p *peer, cl *Client, _ *testService) {
			data := bytes.Repeat([]byte("chunk by chunk "), 400) // 6000 bytes
			mem := make([]byte, 8000)
			p.send(callBytes(rpcrdma.Header{XID: 1,
				Reads:  []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(1, data)}},
				Writes: []rpcrdma.WriteChunk{{p.offer(2, mem)}}}, procEcho, xdr.AppendUint32(nil, 6000)...), 0)
			h, results := p.replies(1, "the reply")
			if h.Writes[0].Length() != 6000 || !bytes.Equal(mem[:6000], data) || !bytes.Equal(results, xdr.AppendUint32(nil, 6000)) {
				t.Errorf("reply is %+v %x", h, results)
			}
			msg := appendCall(nil, 2, procArgs, opaque(string(data))...)
			clear(mem)
			p.send(callBytes(rpcrdma.Header{XID: 2, Proc: rpcrdma.ProcNomsg,
				Reads:    []rpcrdma.ReadSegment{{Segment: p.offer(3, msg)}},
				HasReply: true, Reply: rpcrdma.WriteChunk{p.offer(4, mem)}}, 0), 0)
			s := p.next("the reply to a long call")
			if _, err := rpcrdma.ConsumeHeader(s.msg, &h, nil); err != nil || h.Proc != rpcrdma.ProcNomsg || s.inv != 0 {
				t.Fatalf("reply is %+v, %v", h, err)
			}
			if got := accepted(t, mem[:h.Reply.Length()], 2); !bytes.Equal(got, opaque(string(data))) {
				t.Errorf("results have %d bytes", len(got))
			}
		})
	})
}

// TestCallbackUnwanted checks which messages a client drops, and which end the connection.
func TestCallbackUnwanted(t *testing.T) {
	t.Run("BIDI-2-2 replies that nobody awaits are dropped and counted, however many", func(t *testing.T) {
		callee(t, Settings{}, func(p *peer, cl *Client, _ *testService) {
			p.opens(cl, 8)
			before := p.posted()
			const n = 1000
			for xid := range uint32(n) {
				p.reply(rpcrdma.Header{XID: xid, Credit: 8})
				p.quiet("a reply is not answered")
			}
			if st := cl.Stats(); st.Dropped != n {
				t.Errorf("%d dropped, want %d", st.Dropped, n)
			}
			if now := p.posted(); now <= before-recvBatch {
				t.Errorf("%d receives are posted, %d before", now, before)
			}
			p.opens(cl, 8)
		})
	})

	t.Run("without Callbacks a call from the server is dropped", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			settle()
			p.send(callBytes(rpcrdma.Header{XID: 7}, 0), 0)
			p.quiet("there is no program")
			if st := cl.Stats(); st.Dropped != 1 || cl.Info().BackwardCredits != 0 {
				t.Errorf("counters are %+v", st)
			}
		})
	})

	t.Run("a server that calls more than it was granted loses the connection", func(t *testing.T) {
		callee(t, Settings{PeerChunks: AllChunks, BackwardCredits: 4}, func(p *peer, cl *Client, _ *testService) {
			done := async(cl, bg, testCall())
			p.message("the call")
			seg := p.offer(1, opaque("many"))
			for xid := range uint32(200) { // calls that leave their receives free
				if p.over() {
					break
				}
				p.send(callBytes(rpcrdma.Header{XID: xid, Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: seg}}}, procHold), 0)
			}
			var broke *rpc.PeerError
			if err := outcome(t, done); !errors.As(err, &broke) || !errors.Is(err, net.ErrClosed) {
				t.Errorf("the call returned %v", err)
			}
		})
	})

	t.Run("so does one that calls and takes no replies", func(t *testing.T) {
		callee(t, Settings{BackwardCredits: 4}, func(p *peer, cl *Client, _ *testService) {
			p.holdSends = true
			n := uint32(0)
			for ; n < 200 && !p.over(); n++ {
				p.send(callBytes(rpcrdma.Header{XID: n}, procEcho, opaque("x")...), 0)
			}
			var broke *rpc.PeerError
			if err := cl.Call(bg, testCall()); !errors.As(err, &broke) {
				t.Errorf("after %d calls a call of the client's returned %v", n, err)
			}
		})
	})

	t.Run("PVT-4.1-2 a call that invalidates the memory of a call of the client's ends the connection", func(t *testing.T) {
		callee(t, Settings{}, func(p *peer, cl *Client, _ *testService) {
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}})
			h, _ := p.message("a call with a write chunk")
			p.send(callBytes(rpcrdma.Header{XID: 7}, procEcho, opaque("x")...), h.Writes[0][0].Handle)
			var broke *rpc.PeerError
			if err := outcome(t, done); !errors.As(err, &broke) {
				t.Errorf("the call returned %v", err)
			}
		})
	})
}

// TestCallbackHandlers checks that a client's handlers may call the server, and that Close and Shutdown end them.
func TestCallbackHandlers(t *testing.T) {
	t.Run("a callback calls the server before it answers", func(t *testing.T) {
		prog := rpc.Program{Number: testProg, Low: 1, High: 1,
			Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
				req.Conn().AllowBackward(1) // nothing to a client
				call := testCall()
				if err := req.Conn().Call(ctx, call); err != nil {
					t.Error(err)
				}
				res.Results = append(res.Results, call.Results...)
			})}
		client(t, &Settings{Callbacks: []rpc.Program{prog}, KeepAlive: -1}, func(p *peer, cl *Client) {
			settle()
			for xid := range uint32(20) {
				p.send(callBytes(rpcrdma.Header{XID: xid}, 1), 0)
				h, _ := p.message("the call of the handler")
				p.reply(rpcrdma.Header{XID: h.XID}, opaque("back and forth")...)
				if _, results := p.replies(xid, "the reply"); !bytes.Equal(results, opaque("back and forth")) {
					t.Errorf("results are %q", results)
				}
				settle()
			}
		})
	})

	t.Run("Close and Shutdown while callbacks are executed", func(t *testing.T) {
		for _, idempotent := range []bool{true, false} { // else the client would remember the reply
			for _, end := range []func(cl *Client) error{(*Client).Close, func(cl *Client) error { return cl.Shutdown(bg) }} {
				svc := &testService{}
				prog := svc.program()
				if !idempotent {
					prog.Idempotent = nil
				}
				client(t, &Settings{Callbacks: []rpc.Program{prog}, KeepAlive: -1}, func(p *peer, cl *Client) {
					svc.gate = make(chan struct{})
					settle()
					for xid := range uint32(5) {
						p.send(callBytes(rpcrdma.Header{XID: xid}, procHold), 0)
					}
					synctest.Wait()
					if n := svc.running.Load(); n != 5 {
						t.Fatalf("%d callbacks run", n)
					}
					if err := end(cl); err != nil {
						t.Error(err)
					}
					p.quiet("the connection has ended")
					if n := svc.running.Load(); n != 0 || !p.over() {
						t.Errorf("%d callbacks run on", n)
					}
				})
			}
		}
	})
}

func TestAllowBackward(t *testing.T) {
	t.Run("a call that stands in line when the half opens is let go", func(t *testing.T) {
		gate := make(chan struct{})
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, Inline: rpc.Every, Idempotent: rpc.Every}
		var cn *Conn
		prog.Handler = rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, _ *rpc.Response) {
			cn = req.Conn().(*Conn)
			<-gate // the leader is here, and does not see that it is to open the half
		})
		serverOf(t, newPeer(t), nil, []rpc.Program{prog}, func(p *peer, s *Server) {
			gate = make(chan struct{})
			p.send(callBytes(rpcrdma.Header{XID: 1}, procHold), 0)
			synctest.Wait()
			cn.AllowBackward(0)
			done := backward(cn, bg, testCall())
			synctest.Wait()
			close(gate)
			p.message("the reply")
			h, _ := p.message("the call")
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("BIDI-6-1 before it every call fails, and nothing is on the wire", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			var not *rpc.NotReadyError
			if err := cn.Call(bg, testCall()); !errors.As(err, &not) || not.Dropped {
				t.Errorf("Call returned %v", err)
			}
			if err := cn.Null(bg, testProg, 1); !errors.As(err, &not) {
				t.Errorf("Null returned %v", err)
			}
			time.Sleep(time.Minute)
			p.quiet("the client has not said that it is ready")
			if n := cn.Info().BackwardCredits; n != 0 {
				t.Errorf("%d backward credits", n)
			}
		})
	})

	t.Run("BIDI-4.1-3 never more calls than allowed, or granted, whichever is less", func(t *testing.T) {
		for _, tt := range []struct {
			most, allow, grant, want int
		}{
			{0, 3, 8, 3}, {0, 8, 2, 2}, {0, 0, 100, DefaultBackward}, {4, 0, 100, 4}, {4, 100, 100, 4}, {0, -1, 3, 3},
			{0, 8, 0, 1}, // zero counts as one
		} {
			caller(t, &Settings{BackwardCredits: tt.most}, func(p *peer, s *Server, cn *Conn) {
				cn.AllowBackward(tt.allow)
				var done []<-chan error
				for range 20 {
					done = append(done, backward(cn, bg, testCall()))
				}
				asked := tt.allow
				if most := cn.cfg.BackwardCredits; asked <= 0 || asked > most {
					asked = most
				}
				first, _ := p.message("the first call")
				p.quiet("there is one credit before the first reply")
				grant := func(xid uint32) {
					b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: uint32(tt.grant)})
					p.send(oncrpc.AppendReply(b, &oncrpc.ReplyHeader{XID: xid}), 0)
				}
				grant(first.XID)
				var flight []uint32
				for range tt.want {
					h, _ := p.message("a call")
					if int(h.Credit) != asked {
						t.Fatalf("%+v: the server asks for %d", tt, h.Credit)
					}
					flight = append(flight, h.XID)
				}
				for answered := 1; answered < 20; answered++ { // a slow client
					time.Sleep(time.Second)
					p.quiet("the client has granted no more")
					if n := cn.Info().BackwardCredits; n != tt.want {
						t.Fatalf("%+v: %d credits", tt, n)
					}
					xid := flight[0]
					flight = flight[1:]
					grant(xid)
					if answered+len(flight) < 19 {
						h, _ := p.message("the next call")
						flight = append(flight, h.XID)
					}
				}
				for _, d := range done {
					if err := outcome(t, d); err != nil {
						t.Error(err)
					}
				}
			})
		}
	})

	t.Run("it may be called again, for more calls or for fewer, which the next reply puts into force", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			cn.AllowBackward(6)
			for range 40 {
				backward(cn, ctx, testCall())
			}
			var flight []uint32
			answer := func(want int) {
				t.Helper()
				p.reply(rpcrdma.Header{XID: flight[0], Credit: 100})
				flight = flight[1:]
				for len(flight) < want {
					h, _ := p.message("a call")
					flight = append(flight, h.XID)
				}
				p.quiet("no more are allowed")
				if len(flight) != want {
					t.Errorf("%d calls in flight, want %d", len(flight), want)
				}
			}
			h, _ := p.message("the first call")
			flight = append(flight, h.XID)
			answer(6)
			cn.AllowBackward(3)
			for _, want := range []int{5, 4, 3, 3, 3} {
				answer(want)
			}
			cn.AllowBackward(8)
			for range 5 {
				answer(8)
			}
		})
	})

	t.Run("calls that wait for a credit go in line", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			cn.AllowBackward(0)
			ctx, leave := context.WithCancel(bg)
			defer leave()
			for i := range uint32(10) {
				c := bg
				if i == 4 {
					c = ctx
				}
				backward(cn, c, &rpc.Call{Prog: testProg, Vers: 1, Args: xdr.AppendUint32(nil, i)})
				synctest.Wait()
			}
			leave()
			line := []uint32{0, 1, 2, 3, 5, 6, 7, 8, 9}
			for place, i := range line {
				h, payload := p.message("a call")
				// Two that get their credits at once send their calls themselves, in any order.
				n := word(payload, 10)
				if at := slices.Index(line, n); at < place-1 || at > place+1 {
					t.Errorf("call %d comes in place of %d", n, i)
				}
				p.reply(rpcrdma.Header{XID: h.XID, Credit: 1 + i%2})
				if i%2 == 1 {
					p.reply(rpcrdma.Header{XID: 0xffff, Credit: 1}) // a grant may be taken back
				}
			}
			p.quiet("one has left the line")
		})
	})

	t.Run("BIDI-4.3.2-2a BIDI-4.3.2-2b a receive for each reply is there before its call, on top of those for the client", func(t *testing.T) {
		caller(t, &Settings{Credits: 32, BackwardCredits: 24}, func(p *peer, s *Server, cn *Conn) {
			cn.AllowBackward(0)
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			var flight []uint32
			for i := range 24 {
				backward(cn, ctx, testCall())
				s := p.next("a call")
				flight = append(flight, word(s.msg, 0))
				if i == 0 {
					p.reply(rpcrdma.Header{XID: flight[0], Credit: 24})
					flight = flight[:0]
				}
				if forward := cn.Info().Credits; s.posted < forward+len(flight) {
					t.Fatalf("%d receives are posted for %d calls and %d replies", s.posted, forward, len(flight))
				}
			}
			for xid := range uint32(cn.Info().Credits) { // the client uses all of its own
				p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 8}, procHold), 0)
			}
			for _, xid := range flight {
				p.reply(rpcrdma.Header{XID: xid, Credit: 24})
			}
			p.quiet("all have been answered")
			if p.over() {
				t.Error("the connection has ended")
			}
		})
	})
}

// TestBackwardCall checks a server's calls to its client, alone and alongside the client's own calls.
func TestBackwardCall(t *testing.T) {
	t.Run("BIDI-5.1-1 BIDI-5.1-2 BIDI-5.1-3 BIDI-5.1-4 the call word by word", func(t *testing.T) {
		caller(t, &Settings{Credits: 77}, func(p *peer, s *Server, cn *Conn) {
			cn.AllowBackward(5)
			seen := make(map[uint32]bool)
			for range 200 {
				done := backward(cn, bg, &rpc.Call{Prog: testProg, Vers: 3, Proc: 9, Args: opaque("hello")})
				got := p.next("the call").msg
				xid := word(got, 0)
				// version, requested credits, RDMA_MSG, no chunks; xid, CALL, RPC version, program, ...
				for i, want := range []uint32{xid, 1, 5, 0, 0, 0, 0, xid, 0, 2, testProg, 3, 9, 0, 0, 0, 0} {
					if word(got, i) != want {
						t.Fatalf("word %d is %#x, want %#x", i, word(got, i), want)
					}
				}
				if !bytes.Equal(got[68:], opaque("hello")) {
					t.Errorf("arguments are %x", got[68:])
				}
				if seen[xid] {
					t.Fatalf("xid %#x comes again", xid)
				}
				seen[xid] = true
				p.reply(rpcrdma.Header{XID: xid}, 1, 2, 3, 4)
				if err := outcome(t, done); err != nil {
					t.Fatal(err)
				}
			}
		})
	})

	t.Run("BIDI-2.4.1-1 one xid in both directions at once", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			cn.AllowBackward(0)
			call := testCall()
			done := backward(cn, bg, call)
			h, _ := p.message("the server's call")
			p.send(callBytes(rpcrdma.Header{XID: h.XID}, procEcho, opaque("the client's call")...), 0)
			if _, results := p.replies(h.XID, "the reply to the client"); !bytes.Equal(results, opaque("the client's call")) {
				t.Errorf("results are %q", results)
			}
			p.send(callBytes(rpcrdma.Header{XID: h.XID}, procHold), 0)
			p.reply(rpcrdma.Header{XID: h.XID}, opaque("the client's reply")...)
			if err := outcome(t, done); err != nil || !bytes.Equal(call.Results, opaque("the client's reply")) {
				t.Errorf("the call returned %v, results are %q", err, call.Results)
			}
		})
	})

	t.Run("RDMA_ERROR is about the server's own call, though the client has used the same xid", func(t *testing.T) {
		svc := &callerService{}
		prog := svc.program()
		prog.Handler = svc
		serverOf(t, newPeer(t), nil, []rpc.Program{prog}, func(p *peer, s *Server) {
			svc.gate, svc.conns = make(chan struct{}), make(chan *Conn, 1)
			cn := svc.ready(p, 1)
			cn.AllowBackward(0)
			done := backward(cn, bg, testCall())
			h, _ := p.message("the server's call")
			p.send(callBytes(rpcrdma.Header{XID: h.XID}, procHold), 0)
			refuse := rpcrdma.AppendHeader(nil, &rpcrdma.Header{
				XID: h.XID, Vers: 1, Credit: 9, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk})
			p.send(refuse, 0)
			var refused *rpc.RDMAError
			if err := outcome(t, done); !errors.As(err, &refused) {
				t.Errorf("the call returned %v", err)
			}
			p.send(refuse, 0)
			if n := cn.Info().BackwardCredits; n != 1 {
				t.Errorf("an RDMA_ERROR has granted %d", n)
			}
			close(svc.gate)
			p.replies(h.XID, "the reply to the client, whose call goes on")
		})
	})
}

// TestBackwardCredits checks that each direction has separate credits.
func TestBackwardCredits(t *testing.T) {
	t.Run("BIDI-4.1-1 BIDI-4.1-2 each direction goes on when the other has no credits left", func(t *testing.T) {
		svc := &callerService{}
		prog := svc.program()
		prog.Handler = svc
		serverOf(t, newPeer(t), &Settings{Credits: 8}, []rpc.Program{prog}, func(p *peer, s *Server) {
			svc.gate, svc.conns = make(chan struct{}), make(chan *Conn, 1)
			cn := svc.ready(p, 1)
			before := cn.Info().Credits
			cn.AllowBackward(2)
			synctest.Wait()
			if n := cn.Info().Credits; n != before {
				t.Errorf("the client's grant was %d and is %d", before, n)
			}
			slow := backward(cn, bg, testCall()) // takes the one credit
			h, _ := p.message("the server's call")
			for xid := range uint32(50) {
				p.send(callBytes(rpcrdma.Header{XID: xid}, procEcho, opaque("x")...), 0)
				if r, _ := p.replies(xid, "the reply to the client"); int(r.Credit) != before {
					t.Fatalf("the client is granted %d, it was %d", r.Credit, before)
				}
			}
			for xid := range uint32(before) {
				p.send(callBytes(rpcrdma.Header{XID: xid}, procHold), 0)
			}
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
			if err := outcome(t, slow); err != nil {
				t.Error(err)
			}
			for range 20 { // the client has no credits left
				done := backward(cn, bg, testCall())
				p.answerNext("a call of the server's")
				if err := outcome(t, done); err != nil {
					t.Error(err)
				}
			}
			close(svc.gate)
			for range before {
				p.message("a reply to the client")
			}
		})
	})

	t.Run("credits of RDMA_NOMSG, RDMA_DONE and RDMA_ERROR, and of calls, are no grant", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			cn.AllowBackward(8)
			done := backward(cn, bg, testCall())
			h := p.answerNext("a call")
			if err := outcome(t, done); err != nil || h.Credit != 8 {
				t.Fatal(err)
			}
			forward := cn.Info().Credits
			for _, credit := range []uint32{0, 1, 9999} {
				for _, h := range []rpcrdma.Header{
					{Proc: rpcrdma.ProcNomsg, HasReply: true, Reply: rpcrdma.WriteChunk{{Handle: 1, Length: 100}}}, // refused
					{Proc: rpcrdma.ProcDone}, {Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk},
				} {
					h.XID, h.Vers, h.Credit = 77, 1, credit
					p.send(rpcrdma.AppendHeader(nil, &h), 0)
					if h.Proc == rpcrdma.ProcNomsg {
						p.message("an RDMA_ERROR: it could have been a call")
					}
					p.quiet("there is nothing to answer")
				}
				p.send(callBytes(rpcrdma.Header{XID: 9, Credit: 1}, procEcho, opaque("x")...), 0)
				p.replies(9, "a reply")
				if i := cn.Info(); i.Credits != forward || i.BackwardCredits != 8 {
					t.Errorf("after credits of %d: %d and %d", credit, i.Credits, i.BackwardCredits)
				}
			}
		})
	})

	t.Run("replies that nobody awaits are dropped and counted, however many", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			cn.AllowBackward(0)
			before := p.posted()
			for xid := range uint32(1000) {
				p.reply(rpcrdma.Header{XID: xid, Credit: 8})
				p.quiet("a reply is not answered")
			}
			if st := s.Stats(); st.Dropped != 1000 {
				t.Errorf("%d dropped", st.Dropped)
			}
			if now := p.posted(); now <= before-recvBatch {
				t.Errorf("%d receives are posted, %d before", now, before)
			}
			done := backward(cn, bg, testCall())
			p.answerNext("a call")
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestBackwardChunks checks backward calls that have chunks, or would need them.
func TestBackwardChunks(t *testing.T) {
	t.Run("BIDI-4.2-1 BIDI-5.3-2 without chunks a call is as long as a reply, and what is longer fails before it is sent", func(t *testing.T) {
		p := newPeer(t)
		p.hello = rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 2048})
		callerOf(t, p, nil, func(p *peer, s *Server, cn *Conn) {
			cn.AllowBackward(0)
			fit := 2048 - rpcrdma.MinHeaderSize - 40
			done := backward(cn, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: make([]byte, fit), MaxResults: 4096 - rpcrdma.MinHeaderSize - 32})
			got := p.next("a call at the threshold")
			if len(got.msg) != 2048 {
				t.Errorf("the call has %d bytes", len(got.msg))
			}
			p.reply(rpcrdma.Header{XID: word(got.msg, 0)}, make([]byte, 4096-rpcrdma.MinHeaderSize-24)...)
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			regions := p.regions()
			for name, call := range map[string]*rpc.Call{
				"arguments":  {Args: make([]byte, fit+4)},
				"an item":    {Args: xdr.AppendUint32(nil, 4000), ReadItems: []rpc.ReadItem{{Offset: 4, Data: make([]byte, 4000)}}},
				"results":    {MaxResults: 4096 - rpcrdma.MinHeaderSize - 32 + 1},
				"write item": {WriteItems: []rpc.WriteItem{{Buf: make([]byte, 8000)}}},
			} {
				call.Prog, call.Vers = testProg, 1
				var size *rpc.SizeError
				if err := cn.Call(bg, call); !errors.As(err, &size) {
					t.Errorf("%s: the call returned %v", name, err)
				}
				p.quiet("it has failed before it was sent")
			}
			if p.openWindows() > regions || p.over() {
				t.Error("memory has been exposed, or the connection ended")
			}
			done = backward(cn, bg, testCall())
			p.answerNext("the credits are all there")
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("BIDI-5.3-1 BIDI-5.1-4 BIDI-4.2-1 with chunks: read, write and reply chunks, and a long call", func(t *testing.T) {
		p := newPeer(t)
		p.hello = rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 2048})
		callerOf(t, p, &Settings{PeerChunks: AllChunks}, func(p *peer, s *Server, cn *Conn) {
			cn.AllowBackward(0)
			data := bytes.Repeat([]byte("backward"), 700)
			call := &rpc.Call{Prog: testProg, Vers: 1, Args: xdr.AppendUint32(nil, 5600), MaxResults: 8,
				ReadItems:  []rpc.ReadItem{{Offset: 4, Data: data}},
				WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}}
			done := backward(cn, bg, call)
			h, _ := p.message("a call with chunks")
			if got := p.read(h.Reads); !bytes.Equal(got, data) || h.Reads[0].Position != 44 {
				t.Errorf("the read chunk has %d bytes at %d", len(got), h.Reads[0].Position)
			}
			p.write(h.Writes[0][0], "placed")
			back := rpcrdma.Header{XID: h.XID, Writes: []rpcrdma.WriteChunk{{h.Writes[0][0]}}}
			back.Writes[0][0].Length = 6
			p.reply(back, xdr.AppendUint32(nil, 6)...)
			if err := outcome(t, done); err != nil || string(call.WriteItems[0].Buf[:6]) != "placed" {
				t.Errorf("the call returned %v, %q", err, call.WriteItems[0].Buf[:6])
			}

			long := &rpc.Call{Prog: testProg, Vers: 1, Args: bytes.Repeat([]byte("args"), 600), MaxResults: 5000}
			done = backward(cn, bg, long)
			h, _ = p.message("a long call")
			msg := p.read(h.Reads)
			if h.Proc != rpcrdma.ProcNomsg || h.Reads[0].Position != 0 || word(msg, 0) != h.XID || word(msg, 1) != 0 || !bytes.Equal(msg[40:], long.Args) {
				t.Fatalf("the call is %+v", h)
			}
			reply := oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: h.XID})
			reply = append(reply, bytes.Repeat([]byte("back"), 1000)...)
			p.write(h.Reply[0], string(reply))
			back = rpcrdma.Header{XID: h.XID, Vers: 1, Credit: 1, Proc: rpcrdma.ProcNomsg, HasReply: true, Reply: rpcrdma.WriteChunk{h.Reply[0]}}
			back.Reply[0].Length = uint32(len(reply))
			p.send(rpcrdma.AppendHeader(nil, &back), 0)
			if err := outcome(t, done); err != nil || len(long.Results) != 4000 {
				t.Errorf("the call returned %v and %d bytes", err, len(long.Results))
			}
			if n := p.openWindows(); n != p.regions() {
				t.Errorf("%d windows are open", n)
			}
		})
	})

	t.Run("a call that is given up closes its memory, and its late reply gives the credit back", func(t *testing.T) {
		caller(t, &Settings{PeerChunks: AllChunks}, func(p *peer, s *Server, cn *Conn) {
			cn.AllowBackward(0)
			ctx, cancel := context.WithCancel(bg)
			done := backward(cn, ctx, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}})
			h, _ := p.message("a call with a write chunk")
			p.write(h.Writes[0][0], "in time")
			cancel()
			if err := outcome(t, done); err != context.Canceled {
				t.Errorf("the call returned %v", err)
			}
			if _, err := p.reach(h.Writes[0][0], 2); err == nil {
				t.Error("the memory is open")
			}
			next := backward(cn, bg, testCall())
			p.quiet("the client owes a reply")
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 1})
			h2, _ := p.message("the next call")
			if h2.XID == h.XID {
				t.Error("the xid comes again")
			}
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 1}) // twice
			p.quiet("the reply of another call")
			p.reply(rpcrdma.Header{XID: h2.XID, Credit: 1})
			if err := outcome(t, next); err != nil {
				t.Error(err)
			}
		})
	})
}

// inlineCaller is a program with Inline handlers that make calls with what callers returns.
func inlineCaller(t *testing.T, callers func(cn *Conn) []rpc.Caller) rpc.Program {
	return rpc.Program{Number: testProg, Low: 1, High: 1, Inline: rpc.Every, Idempotent: rpc.Every,
		Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, _ *rpc.Response) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			for _, c := range callers(req.Conn().(*Conn)) {
				if err := c.Call(ctx, testCall()); err != errInline {
					t.Errorf("a call with a %T returned %v", c, err)
				}
				if err := CallAll(ctx, c, testCall()); !slices.Equal(err, []error{errInline}) {
					t.Errorf("a Pipeline of a %T returned %v", c, err)
				}
			}
		})}
}

// TestInlineCalls checks that an Inline handler that makes a call of any kind gets an error instead of deadlocking.
func TestInlineCalls(t *testing.T) {
	t.Run("at a server", func(t *testing.T) {
		prog := inlineCaller(t, func(cn *Conn) []rpc.Caller {
			b := NewBackchannel()
			if err := b.Bind(cn, 0); err != nil {
				t.Error(err)
			}
			return []rpc.Caller{cn, rpc.CallerFunc(cn.Call), b}
		})
		serverOf(t, newPeer(t), nil, []rpc.Program{prog}, func(p *peer, s *Server) {
			p.send(callBytes(rpcrdma.Header{XID: 7}, 1), 0)
			p.replies(7, "the reply")
		})
	})

	t.Run("at a client", func(t *testing.T) {
		var g *Group
		prog := inlineCaller(t, func(cn *Conn) []rpc.Caller { return []rpc.Caller{cn, g.First(), g} })
		cfg := &ClientConfig{Callbacks: []rpc.Program{prog}}
		group(t, cfg, []string{"a"}, func(s *spots, p *peer, it *Group) {
			g = it
			p.send(callBytes(rpcrdma.Header{XID: 7}, 1), 0)
			p.replies(7, "the reply")
		})
	})
}

// TestBackwardHandlers checks that a handler may call its client.
func TestBackwardHandlers(t *testing.T) {
	t.Run("a handler calls back before it answers", func(t *testing.T) {
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, Idempotent: rpc.Every,
			Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
				req.Conn().AllowBackward(0)
				call := testCall()
				if err := req.Conn().Call(ctx, call); err != nil {
					t.Error(err)
				}
				res.Results = append(res.Results, call.Results...)
			})}
		serverOf(t, newPeer(t), nil, []rpc.Program{prog}, func(p *peer, s *Server) {
			for xid := uint32(1); xid < 20; xid++ {
				p.send(callBytes(rpcrdma.Header{XID: xid}, 1), 0)
				h, _ := p.message("the call of the handler")
				p.reply(rpcrdma.Header{XID: h.XID}, opaque("back and forth")...)
				if _, results := p.replies(xid, "the reply"); !bytes.Equal(results, opaque("back and forth")) {
					t.Errorf("results are %q", results)
				}
			}
		})
	})
}

// TestBackwardEnds checks backward calls that are under way when either end closes.
func TestBackwardEnds(t *testing.T) {
	t.Run("calls end with their connection, when the client goes and when the server does", func(t *testing.T) {
		for name, end := range map[string]func(p *peer, s *Server, cn *Conn){
			"the client hangs up": func(p *peer, _ *Server, _ *Conn) { p.hangUp() },
			"Conn.Close":          func(_ *peer, _ *Server, cn *Conn) { cn.Close() },
			"Server.Close":        func(_ *peer, s *Server, _ *Conn) { s.Close() },
			"Server.Shutdown": func(_ *peer, s *Server, _ *Conn) {
				if err := s.Shutdown(bg); err != nil {
					t.Error(err)
				}
			},
		} {
			caller(t, nil, func(p *peer, s *Server, cn *Conn) {
				cn.AllowBackward(0)
				var done []<-chan error
				for range 3 { // one is sent, two stand in line
					done = append(done, backward(cn, bg, testCall()))
				}
				p.message("the call")
				end(p, s, cn)
				for _, d := range done {
					var closed *rpc.ClosedError
					if err := outcome(t, d); !errors.As(err, &closed) || !errors.Is(err, net.ErrClosed) {
						t.Errorf("%s: the call returned %v", name, err)
					}
				}
				p.quiet("the connection has ended")
				select {
				case <-cn.Done():
				default:
					t.Errorf("%s: Done is not closed", name)
				}
				if err := cn.Call(bg, testCall()); !errors.Is(err, net.ErrClosed) || !errors.Is(cn.Err(), net.ErrClosed) {
					t.Errorf("%s: a late call returned %v", name, err)
				}
			})
		}
	})

	t.Run("Shutdown lets a handler finish that waits for a callback", func(t *testing.T) {
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, Idempotent: rpc.Every,
			Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
				req.Conn().AllowBackward(0)
				if err := req.Conn().Call(ctx, testCall()); err != nil {
					t.Error(err)
				}
			})}
		serverOf(t, newPeer(t), nil, []rpc.Program{prog}, func(p *peer, s *Server) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			h, _ := p.message("the callback")
			down := make(chan error, 1)
			go func() { down <- s.Shutdown(bg) }()
			synctest.Wait()
			p.reply(rpcrdma.Header{XID: h.XID})
			p.replies(1, "the reply to the client")
			if err := outcome(t, down); err != nil {
				t.Error(err)
			}
		})
	})
}
