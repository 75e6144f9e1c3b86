package transport

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Optional operations of version 2 (version two section 3.1), and the properties operation
// of docs/protocol.md, which is one.

// Operations of the tests. Requests begin with "?", answers with "!"; the answer has
// otherwise what the request has.
const (
	testOp       = 0x7e57 + iota // with an RPC message or without
	testOpMust                   // with one
	testOpNever                  // without
	testOpFails                  // all its requests fail
	testOpAsks                   // which this end does not execute
	testOpLong                   // its answers have 4096 bytes more
	testOpBreaks                 // its answers break its rule: without a message
)

func testOps() []Operation {
	echo := func(_ context.Context, _ rpc.Conn, m Optional) (Optional, error) {
		info := append([]byte("!"), bytes.TrimPrefix(m.Info, []byte("?"))...)
		return Optional{Info: info, Payload: bytes.Clone(m.Payload)}, nil
	}
	ops := []Operation{
		{Type: testOp, Handle: echo},
		{Type: testOpMust, Payload: PayloadMust, Handle: echo},
		{Type: testOpNever, Payload: PayloadNever, Handle: echo},
		{Type: testOpFails, Handle: func(context.Context, rpc.Conn, Optional) (Optional, error) {
			return Optional{Info: []byte("!no")}, errors.New("no")
		}},
		{Type: testOpAsks},
		{Type: testOpLong, Handle: func(_ context.Context, _ rpc.Conn, m Optional) (Optional, error) {
			return Optional{Info: []byte("!"), Payload: make([]byte, 4096-28+len(m.Payload))}, nil
		}},
		{Type: testOpBreaks, Payload: PayloadNever, Handle: func(context.Context, rpc.Conn, Optional) (Optional, error) {
			return Optional{Info: []byte("!"), Payload: []byte("message")}, nil
		}},
	}
	for i := range ops {
		ops[i].IsAnswer = func(info []byte) bool { return len(info) > 0 && info[0] == '!' }
	}
	return ops
}

// optBytes is an RDMA_OPTIONAL.
func optBytes(xid, typ uint32, info string, payload ...byte) []byte {
	h := rpcrdma.Header{XID: xid, Vers: 2, Credit: 8, Proc: rpcrdma.ProcOptional, OptType: typ, OptInfo: []byte(info)}
	return append(rpcrdma.AppendHeader(nil, &h), payload...)
}

// invalOption is the whole answer to an operation that is not known.
func invalOption(xid, credit uint32) []byte {
	b := xdr.AppendUint32(nil, xid)
	for _, w := range []uint32{2, credit, 4, 3} {
		b = xdr.AppendUint32(b, w)
	}
	return b
}

// operated is the outcome of a request.
type operated struct {
	answer Optional
	err    error
}

func operateAsync(ctx context.Context, m Optional, do func(context.Context, Optional) (Optional, error)) <-chan operated {
	done := make(chan operated, 1)
	go func() {
		answer, err := do(ctx, m)
		done <- operated{answer, err}
	}()
	return done
}

// result is the outcome of a request that must be over.
func result(t *testing.T, done <-chan operated) (Optional, error) {
	t.Helper()
	synctest.Wait()
	select {
	case o := <-done:
		return o.answer, o.err
	default:
		t.Fatal("the operation is not over")
		return Optional{}, nil
	}
}

// succeeds checks the answer of a request.
func succeeds(t *testing.T, done <-chan operated, typ uint32, info, payload string) {
	t.Helper()
	if m, err := result(t, done); err != nil || m.Type != typ || string(m.Info) != info || string(m.Payload) != payload {
		t.Errorf("the answer is %+v, %v", m, err)
	}
}

// optional waits for an RDMA_OPTIONAL.
func (p *peer) optional(what string) (h rpcrdma.Header, payload []byte) {
	p.t.Helper()
	h, payload = p.message(what)
	if h.Proc != rpcrdma.ProcOptional || h.Vers != 2 || h.Credit == 0 {
		p.t.Fatalf("%s: it is %+v", what, h)
	}
	return h, payload
}

// server2 runs a conversation with a server on a connection of version 2 that knows the
// operations of the tests, unless cfg has others.
func server2(t *testing.T, cfg *Settings, script func(p *peer, s *Server, svc *testService)) {
	t.Helper()
	c := Settings{Operations: testOps()}
	if cfg != nil {
		c = *cfg
	}
	auto(t, greeting(t, nil), &c, func(p *peer, s *Server, svc *testService) {
		p.proves(0x0001, 2)
		script(p, s, svc)
	})
}

func TestOptionalUnknown(t *testing.T) {
	types := []uint32{0xdeadbeef, 0, 1, 5, testOp, rpcrdma.OptProperties + 1, 0xffffffff}

	t.Run("V2-3.1-2 V2-3.1-3 a server says RDMA_ERR_INVAL_OPTION in 20 bytes, and goes on", func(t *testing.T) {
		for _, before := range []uint32{0, 1, 2} { // version of a call before
			auto(t, greeting(t, nil), nil, func(p *peer, s *Server, _ *testService) {
				if before > 0 {
					p.proves(1, before)
				}
				posted := p.posted()
				for i, typ := range types {
					for _, msg := range [][]byte{
						optBytes(0xc0ffee00+uint32(i), typ, ""), optBytes(0xc0ffee00+uint32(i), typ, "?what"),
						append(optBytes(0xc0ffee00+uint32(i), typ, "?what"), appendCall(nil, 1, procEcho)...),
					} {
						p.send(msg, 0)
						if got, want := p.next("an RDMA_ERROR").msg, invalOption(0xc0ffee00+uint32(i), initialGrant); !bytes.Equal(got, want) {
							t.Fatalf("the answer is %x, want %x", got, want)
						}
					}
				}
				if n := p.posted(); n <= posted-recvBatch {
					t.Errorf("%d receives are posted, %d before", n, posted)
				}
				if st := s.Stats(); int(st.ErrChunk) != 3*len(types) || st.Optional != 0 {
					t.Errorf("counters are %+v", st)
				}
				p.proves(2, max(before, 1))
			})
		}
	})

	t.Run("V2-3.1-2 V2-3.1-3 and so does a client", func(t *testing.T) {
		client2(t, nil, func(p *peer, cl *Client) {
			done := async(cl, bg, testCall())
			h, _ := p.message("a call")
			for _, typ := range types {
				for _, xid := range []uint32{h.XID, 0xc0ffee} { // of the call, and of none
					p.send(optBytes(xid, typ, "?what"), 0)
					if got, want := p.next("an RDMA_ERROR").msg, invalOption(xid, 1); !bytes.Equal(got, want) {
						t.Fatalf("the answer is %x, want %x", got, want)
					}
				}
			}
			p.reply(rpcrdma.Header{XID: h.XID, Vers: 2})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("V2-3.1-3 one that the end only requests, and more data than the limit", func(t *testing.T) {
		ops := testOps()
		for _, limit := range []int{0, 8, -1} {
			most := limit
			if limit == 0 {
				most = rpcrdma.DefaultOptInfo
			}
			cfg := &Settings{Operations: ops, Limits: rpcrdma.Limits{OptInfo: limit}}
			server2(t, cfg, func(p *peer, _ *Server, _ *testService) {
				p.send(optBytes(7, testOpAsks, ""), 0)
				if got, want := p.next("an RDMA_ERROR").msg, invalOption(7, initialGrant); !bytes.Equal(got, want) {
					t.Errorf("the answer is %x, want %x", got, want)
				}
				if limit >= 0 {
					p.send(optBytes(8, testOp, "?"+string(make([]byte, most-1))), 0)
					if h, _ := p.optional("an answer"); len(h.OptInfo) != most {
						t.Errorf("the answer is %+v", h)
					}
				}
				p.send(optBytes(9, testOp, "?"+string(make([]byte, max(most, 0)))), 0)
				if got, want := p.next("an RDMA_ERROR").msg, invalOption(9, initialGrant); !bytes.Equal(got, want) {
					t.Errorf("the answer is %x, want %x", got, want)
				}
			})
		}
	})

	t.Run("there is no RDMA_OPTIONAL in version 1", func(t *testing.T) {
		testServer(t, &Settings{Operations: testOps(), Version: Version1}, func(p *peer, _ *Server, _ *testService) {
			msg := optBytes(7, testOp, "?x")
			p.send(msg, 0)
			if h, _ := p.message("an RDMA_ERROR"); h.Err != rpcrdma.ErrVers || h.VersHigh != 1 {
				t.Errorf("the answer is %+v", h)
			}
			msg[7] = 1
			p.send(msg, 0)
			if h, _ := p.message("an RDMA_ERROR"); h.Err != rpcrdma.ErrChunk || h.Vers != 1 {
				t.Errorf("the answer is %+v", h)
			}
		})
	})
}

// TestOptionalRequested checks requests on the wire, the memory of answers, and requests that are not sent.
func TestOptionalRequested(t *testing.T) {
	ops := &Settings{Operations: testOps()}

	t.Run("V2-4.2-8 a request and its answer, word by word, with an RPC message and without", func(t *testing.T) {
		client2(t, &Settings{Operations: testOps(), Credits: 77}, func(p *peer, cl *Client) {
			for _, tt := range []struct {
				typ           uint32
				info, payload string
			}{
				{testOp, "?", ""}, {testOp, "", ""}, {testOp, "?12345", "an RPC message"},
				{testOpMust, "?1", "an RPC message"}, {testOpNever, "?1", ""}, {testOpAsks, "?1", "x"},
			} {
				done := operateAsync(bg, Optional{Type: tt.typ, Info: []byte(tt.info), Payload: []byte(tt.payload)}, cl.Operate)
				got := p.next("a request").msg
				xid := word(got, 0)
				want := xdr.AppendUint32(nil, xid)
				for _, w := range []uint32{2, 77, 5, tt.typ} {
					want = xdr.AppendUint32(want, w)
				}
				want = append(xdr.AppendOpaque(want, []byte(tt.info)), tt.payload...)
				if !bytes.Equal(got, want) {
					t.Fatalf("the request is %x, want %x", got, want)
				}
				p.send(optBytes(xid, tt.typ, "!answer", []byte(tt.payload)...), 0)
				succeeds(t, done, tt.typ, "!answer", tt.payload)
				settle()
			}
			if st := cl.Stats(); st.Optional != 6 || st.Calls != 1 {
				t.Errorf("counters are %+v", st)
			}
			p.finishes(cl, 2)
		})
	})

	t.Run("the answer's memory is the caller's", func(t *testing.T) {
		client2(t, ops, func(p *peer, cl *Client) {
			for _, payload := range []string{"message", ""} {
				done := operateAsync(bg, Optional{Type: testOp, Info: []byte("?")}, cl.Operate)
				h, _ := p.optional("a request")
				p.send(optBytes(h.XID, testOp, "!first", []byte(payload)...), 0)
				m, err := result(t, done)
				if err != nil {
					t.Fatal(err)
				}
				settle()
				for range 40 { // every receive is used again
					p.finishes(cl, 2)
				}
				if m.Info = append(m.Info, "-and-more"...); string(m.Info) != "!first-and-more" || string(m.Payload) != payload {
					t.Errorf("the answer has become %q %q", m.Info, m.Payload)
				}
			}
		})
	})

	t.Run("what is not sent", func(t *testing.T) {
		client2(t, ops, func(p *peer, cl *Client) {
			for _, m := range []Optional{
				{Type: 0xdeadbeef}, {Type: rpcrdma.OptProperties}, {Type: testOpMust}, {Type: testOpNever, Payload: []byte("x")},
			} {
				_, err := cl.Operate(bg, m)
				var not *OperationError
				if !errors.As(err, &not) || not.Type != m.Type || !errors.Is(err, errors.ErrUnsupported) {
					t.Errorf("%+v: %v", m, err)
				}
			}
			ctx, cancel := context.WithCancel(bg)
			cancel()
			if _, err := cl.Operate(ctx, Optional{Type: testOp}); !errors.Is(err, context.Canceled) {
				t.Errorf("with an ended context: %v", err)
			}
			p.quiet("none of these is a request")
			p.finishes(cl, 2)
		})
		for what, start := range map[string]func(d *dialing, p *peer){
			"a server of version 1": func(_ *dialing, p *peer) { p.speaks(1, 1) },
			"a client of version 1": func(d *dialing, _ *peer) {
				d.close()
				d.another()
				d.dial(&Settings{Version: Version1, Operations: testOps()})
			},
		} {
			dials(t, &Settings{Operations: testOps()}, func(d *dialing, p *peer) {
				start(d, p)
				_, err := d.client().Operate(bg, Optional{Type: testOp, Info: []byte("?")})
				var not *OperationError
				if !errors.As(err, &not) || not.Type != testOp || !errors.Is(err, errors.ErrUnsupported) {
					t.Errorf("%s: %v", what, err)
				}
				d.last.quiet("version 1 has no such message")
				d.last.finishes(d.cl, 1)
			})
		}
	})
}

// TestOptionalRequestedLimits checks that inline threshold and credits apply to requests as they do to calls.
func TestOptionalRequestedLimits(t *testing.T) {
	ops := &Settings{Operations: testOps()}

	t.Run("V2-2.3-3 a request fits into the threshold or is not made", func(t *testing.T) {
		client2(t, ops, func(p *peer, cl *Client) {
			for _, most := range []int{4096, 4095} {
				done := operateAsync(bg, Optional{Type: testOp, Info: []byte("?"), Payload: make([]byte, most-28)}, cl.Operate)
				if n := len(p.next("a request").msg); n != most {
					t.Errorf("the request has %d bytes, want %d", n, most)
				}
				p.send(optBytes(p.pendingXID(cl), testOp, "!"), 0)
				succeeds(t, done, testOp, "!", "")
				settle()
			}
			for _, m := range []Optional{
				{Type: testOp, Info: []byte("?"), Payload: make([]byte, 4096-28+1)},
				{Type: testOp, Info: make([]byte, 4096)},
				{Type: testOp, Info: make([]byte, 1<<20), Payload: make([]byte, 1<<20)},
			} {
				_, err := cl.Operate(bg, m)
				var size *rpc.SizeError
				if !errors.As(err, &size) || size.Limit != 4096 || size.Size != 24+xdr.Padded(len(m.Info))+len(m.Payload) {
					t.Errorf("%d and %d bytes: %v", len(m.Info), len(m.Payload), err)
				}
			}
			p.quiet("they are too long")
			p.finishes(cl, 2)
		})
	})

	t.Run("V2-5-2 a request takes a credit, and an answer grants as a reply does", func(t *testing.T) {
		client2(t, &Settings{Operations: testOps(), Credits: 20}, func(p *peer, cl *Client) {
			p.opens2(cl, 1)
			request := func() <-chan operated {
				return operateAsync(bg, Optional{Type: testOp, Info: []byte("?")}, cl.Operate)
			}
			first := request()
			h, _ := p.optional("a request")
			second := request()
			p.quiet("the request has the one credit")
			call := async(cl, bg, testCall())
			p.quiet("calls wait as well")
			msg := optBytes(h.XID, testOp, "!")
			msg[11] = 3
			p.send(msg, 0)
			succeeds(t, first, testOp, "!", "")
			h2, _ := p.message("the second request")
			c, _ := p.message("the call")
			if h2.Proc == rpcrdma.ProcMsg {
				h2, c = c, h2 // they left at the same time
			}
			if n := cl.Info().Credits; n != 3 {
				t.Errorf("%d credits, want 3", n)
			}
			p.send(invalOption(h2.XID, 100), 0)
			if _, err := result(t, second); err == nil {
				t.Error("the request was refused")
			}
			if n := cl.Info().Credits; n != 3 {
				t.Errorf("%d credits after an RDMA_ERROR, want 3", n)
			}
			p.reply(rpcrdma.Header{XID: c.XID, Vers: 2})
			if err := outcome(t, call); err != nil {
				t.Error(err)
			}
			// Each has a receive for its answer.
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			p.opens2(cl, 20)
			for n := 1; n <= 20; n++ {
				operateAsync(ctx, Optional{Type: testOp, Info: []byte("?")}, cl.Operate)
				if s := p.next("a request"); s.posted < n {
					t.Errorf("%d receives are posted for %d answers", s.posted, n)
				}
			}
		})
	})
}

// TestOptionalRequestedAnswers checks refusals, malformed answers, and answers without a request.
func TestOptionalRequestedAnswers(t *testing.T) {
	ops := &Settings{Operations: testOps()}

	t.Run("refusals and senseless answers end the request, and nothing else", func(t *testing.T) {
		for _, tt := range []struct {
			name   string
			typ    uint32
			answer func(xid uint32) []byte
			is     func(err error) bool
		}{
			{"RDMA_ERR_INVAL_OPTION", testOp, func(xid uint32) []byte { return invalOption(xid, 100) },
				func(err error) bool {
					e := new(*rpc.RDMAError)
					return errors.As(err, e) && (*e).Code == rpcrdma.ErrInvalOption
				}},
			{"RDMA_ERR_BAD_HEADER", testOp, func(xid uint32) []byte { return append(invalOption(xid, 100)[:19], 2) },
				func(err error) bool {
					e := new(*rpc.RDMAError)
					return errors.As(err, e) && (*e).Code == rpcrdma.ErrBadHeader
				}},
			{"ERR_VERS", testOp, func(xid uint32) []byte { return errVers(xid, 1, 1) },
				func(err error) bool {
					e := new(*rpc.RDMAError)
					return errors.As(err, e) && (*e).Code == rpcrdma.ErrVers
				}},
			{"a reply", testOp, func(xid uint32) []byte {
				return (&peer{}).replyBytes(rpcrdma.Header{XID: xid, Vers: 2, Credit: 1}, nil)
			},
				func(err error) bool { return errors.As(err, new(*rpc.BadReplyError)) }},
			{"RDMA_NOMSG", testOp, func(xid uint32) []byte {
				return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 2, Credit: 1, Proc: rpcrdma.ProcNomsg})
			}, func(err error) bool { return errors.As(err, new(*rpc.BadReplyError)) }},
			{"no RPC message where one must be", testOpMust, func(xid uint32) []byte { return optBytes(xid, testOpMust, "!") },
				func(err error) bool { return errors.As(err, new(*rpc.BadReplyError)) }},
			{"an RPC message where none may be", testOpNever, func(xid uint32) []byte { return optBytes(xid, testOpNever, "!", 1, 2, 3, 4) },
				func(err error) bool { return errors.As(err, new(*rpc.BadReplyError)) }},
			{"more data than the limit", testOp, func(xid uint32) []byte { return optBytes(xid, testOp, "!"+string(make([]byte, 1024))) },
				func(err error) bool { return errors.As(err, new(*rpc.BadReplyError)) }},
			{"an answer cut short", testOp, func(xid uint32) []byte { return optBytes(xid, testOp, "!answer")[:28] },
				func(err error) bool { return errors.As(err, new(*rpc.BadReplyError)) }},
		} {
			client2(t, ops, func(p *peer, cl *Client) {
				call := async(cl, bg, testCall())
				other, _ := p.message("a call")
				m := Optional{Type: tt.typ, Info: []byte("?")}
				if tt.typ == testOpMust {
					m.Payload = []byte("message")
				}
				done := operateAsync(bg, m, cl.Operate)
				h, _ := p.optional("a request")
				p.send(tt.answer(h.XID), 0)
				if _, err := result(t, done); !tt.is(err) {
					t.Errorf("%s: the request returned %v", tt.name, err)
				}
				settle()
				p.quiet("an answer is not answered")
				p.reply(rpcrdma.Header{XID: other.XID, Vers: 2})
				if err := outcome(t, call); err != nil {
					t.Errorf("%s: the call returned %v", tt.name, err)
				}
				p.finishes(cl, 2)
			})
		}
	})

	t.Run("answers that nobody asked for are dropped", func(t *testing.T) {
		client2(t, ops, func(p *peer, cl *Client) {
			call := async(cl, bg, testCall())
			c, _ := p.message("a call")
			done := operateAsync(bg, Optional{Type: testOp, Info: []byte("?")}, cl.Operate)
			h, _ := p.optional("a request")
			before := p.posted()
			for i := range 300 {
				switch i % 4 {
				case 0:
					p.send(optBytes(h.XID+1, testOp, "!other xid"), 0)
				case 1:
					p.send(optBytes(h.XID, testOpNever, "!other operation"), 0)
				case 2:
					p.send(optBytes(c.XID, testOp, "!that is a call"), 0)
				case 3:
					p.send(optBytes(h.XID, testOpAsks, "!not requested"), 0)
				}
				p.quiet("answers are not answered")
			}
			if n := cl.Stats().Dropped; n != 300 {
				t.Errorf("%d messages were dropped", n)
			}
			if n := p.posted(); n <= before-recvBatch {
				t.Errorf("%d receives are posted, %d before", n, before)
			}
			p.send(optBytes(h.XID, testOp, "!the answer"), 0)
			succeeds(t, done, testOp, "!the answer", "")
			p.reply(rpcrdma.Header{XID: c.XID, Vers: 2})
			if err := outcome(t, call); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestOptionalRequestedEnds checks that requests end with their context or connection.
func TestOptionalRequestedEnds(t *testing.T) {
	ops := &Settings{Operations: testOps()}

	t.Run("a request whose context ends: its credit comes back with the late answer, which is dropped", func(t *testing.T) {
		for _, answer := range []func(xid uint32) []byte{
			func(xid uint32) []byte { return optBytes(xid, testOp, "!late", 1, 2, 3, 4) },
			func(xid uint32) []byte { return invalOption(xid, 1) },
		} {
			client2(t, ops, func(p *peer, cl *Client) {
				p.opens2(cl, 1)
				ctx, cancel := context.WithCancel(bg)
				done := operateAsync(ctx, Optional{Type: testOp, Info: []byte("?")}, cl.Operate)
				h, _ := p.optional("a request")
				settle()
				cancel()
				if _, err := result(t, done); !errors.Is(err, context.Canceled) {
					t.Errorf("the request returned %v", err)
				}
				call := async(cl, bg, testCall())
				p.quiet("the server may still be at it")
				settle()
				p.send(answer(h.XID), 0)
				c, _ := p.message("the call")
				if c.XID == h.XID {
					t.Error("the call has the xid of the request")
				}
				p.reply(rpcrdma.Header{XID: c.XID, Vers: 2})
				if err := outcome(t, call); err != nil {
					t.Error(err)
				}
				if st := cl.Stats(); st.Canceled != 1 || st.Dropped != 1 {
					t.Errorf("counters are %+v", st)
				}
			})
		}
	})

	t.Run("the end of the connection is that of a request, or it is made again, with its xid", func(t *testing.T) {
		client2(t, ops, func(p *peer, cl *Client) {
			done := operateAsync(bg, Optional{Type: testOp, Info: []byte("?")}, cl.Operate)
			p.optional("a request")
			p.hangUp()
			if _, err := result(t, done); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the request returned %v", err)
			}
		})
		for _, speak := range []uint32{2, 1} {
			dials(t, &Settings{Operations: testOps(), NoRemoteInvalidation: true}, func(d *dialing, p *peer) {
				p.speaks2()
				cl := d.client()
				p.finishes(cl, 2)
				done := operateAsync(bg, Optional{Type: testOp, Info: []byte("?again"), Payload: []byte("message")}, cl.Operate)
				first := p.next("a request").msg
				q := d.another()
				p.hangUp()
				synctest.Wait()
				time.Sleep(time.Second)
				if speak == 1 {
					q.speaks(1, 1)
					if _, err := result(t, done); !errors.Is(err, errors.ErrUnsupported) {
						t.Errorf("on a connection of version 1 the request returned %v", err)
					}
					q.finishes(cl, 1)
					return
				}
				q.speaks2()
				again := q.next("the request again").msg
				if !bytes.Equal(first, again) {
					t.Errorf("the request is %x, it was %x", again, first)
				}
				q.send(optBytes(word(again, 0), testOp, "!at last"), 0)
				succeeds(t, done, testOp, "!at last", "")
				if st := cl.Stats(); st.Resent != 1 {
					t.Errorf("counters are %+v", st)
				}
			})
		}
	})
}

// opens2 makes a call on a client's connection of version 2, and grants it credits.
func (p *peer) opens2(cl *Client, credits uint32) {
	p.t.Helper()
	done := async(cl, bg, testCall())
	h, _ := p.message("a call")
	p.reply(rpcrdma.Header{XID: h.XID, Vers: 2, Credit: credits})
	if err := outcome(p.t, done); err != nil {
		p.t.Fatal(err)
	}
	settle()
}

// pendingXID is the xid of the client's one call or request under way.
func (p *peer) pendingXID(cl *Client) uint32 {
	p.t.Helper()
	synctest.Wait()
	c := cl.conn()
	defer c.state.Unlock()
	for _, s := range c.state.Lock().calls.all {
		if s.state == slotPending {
			return s.xid
		}
	}
	p.t.Fatal("nothing is under way")
	return 0
}

// TestOptionalExecuted checks that both ends execute requests.
func TestOptionalExecuted(t *testing.T) {
	ends := map[string]func(t *testing.T, script func(p *peer, credit uint32, goesOn func())){
		"server": func(t *testing.T, script func(p *peer, credit uint32, goesOn func())) {
			server2(t, nil, func(p *peer, _ *Server, _ *testService) {
				xid := uint32(0xf000)
				script(p, initialGrant, func() { xid++; p.proves(xid, 2) })
			})
		},
		"client": func(t *testing.T, script func(p *peer, credit uint32, goesOn func())) {
			client2(t, &Settings{Operations: testOps(), Callbacks: callback(), BackwardCredits: 3}, func(p *peer, cl *Client) {
				script(p, 3, func() { p.finishes(cl, 2) })
			})
		},
	}
	for end, on := range ends {
		t.Run("V2-4.2-8 data and RPC message come apart, and the answer has the same xid/"+end, func(t *testing.T) {
			on(t, func(p *peer, credit uint32, goesOn func()) {
				for _, tt := range []struct {
					typ           uint32
					info, payload string
				}{{testOp, "?", ""}, {testOp, "?12345", "an RPC message"}, {testOpMust, "?1", "x"}, {testOpNever, "?1", ""}} {
					p.send(optBytes(0xabcd, tt.typ, tt.info, []byte(tt.payload)...), 0)
					h, payload := p.optional("the answer")
					if h.XID != 0xabcd || h.OptType != tt.typ || h.Credit != credit || string(h.OptInfo) != "!"+tt.info[1:] || string(payload) != tt.payload {
						t.Errorf("the answer to %+v is %+v %q", tt, h, payload)
					}
				}
				goesOn()
			})
		})

		t.Run("V2-4.2-8 what breaks the rule for RPC messages gets RDMA_ERR_BAD_HEADER, what fails RDMA_ERR_INVAL_OPTION/"+end, func(t *testing.T) {
			on(t, func(p *peer, credit uint32, goesOn func()) {
				for _, tt := range []struct {
					msg  []byte
					code byte
				}{
					{optBytes(7, testOpMust, "?"), 2}, {optBytes(7, testOpNever, "?", 1, 2, 3, 4), 2}, {optBytes(7, testOp, "?padded")[:28], 2},
					{optBytes(7, testOpFails, "?"), 3}, {optBytes(7, testOpBreaks, "?"), 3}, {optBytes(7, testOpAsks, "?"), 3},
					{optBytes(7, testOpLong, "?", 1), 3}, {optBytes(7, testOp, "?"+string(make([]byte, 1024))), 3},
				} {
					p.send(tt.msg, 0)
					want := append(invalOption(7, credit)[:19], tt.code)
					if got := p.next("an RDMA_ERROR").msg; !bytes.Equal(got, want) {
						t.Errorf("the answer to %x is %x, want %x", tt.msg, got, want)
					}
				}
				p.send(optBytes(7, testOpLong, "?"), 0)
				if n := len(p.next("an answer as long as they get").msg); n != 4096 {
					t.Errorf("the answer has %d bytes", n)
				}
				goesOn()
			})
		})

		t.Run("requests leave nothing behind/"+end, func(t *testing.T) {
			on(t, func(p *peer, credit uint32, goesOn func()) {
				before := p.posted()
				for i := range uint32(500) {
					p.send(optBytes(i, testOp, "?", make([]byte, 4096-28)...), 0)
					if h, payload := p.optional("the answer"); h.XID != i || h.Credit != credit || len(payload) != 4096-28 {
						t.Fatalf("the answer is %+v", h)
					}
				}
				if n := p.posted(); n <= before-recvBatch {
					t.Errorf("%d receives are posted, %d before", n, before)
				}
				goesOn()
			})
		})
	}

	t.Run("requests in both directions at once, with the same xid", func(t *testing.T) {
		client2(t, &Settings{Operations: testOps()}, func(p *peer, cl *Client) {
			done := operateAsync(bg, Optional{Type: testOp, Info: []byte("?ours")}, cl.Operate)
			h, _ := p.optional("a request")
			p.send(optBytes(h.XID, testOp, "?the peer's"), 0)
			if a, _ := p.optional("the answer to the peer's"); a.XID != h.XID || string(a.OptInfo) != "!the peer's" {
				t.Errorf("the answer is %+v", a)
			}
			p.send(optBytes(h.XID, testOp, "!answer"), 0)
			succeeds(t, done, testOp, "!answer", "")
		})
		caller2(t, &Settings{Operations: testOps()}, func(p *peer, s *Server, cn *Conn) {
			done := operateAsync(bg, Optional{Type: testOp, Info: []byte("?ours")}, cn.Operate)
			h, _ := p.optional("a request")
			p.send(optBytes(h.XID, testOp, "?the peer's"), 0)
			if a, _ := p.optional("the answer to the peer's"); a.XID != h.XID || string(a.OptInfo) != "!the peer's" {
				t.Errorf("the answer is %+v", a)
			}
			p.proves(h.XID, 2) // and a call
			p.send(optBytes(h.XID, testOp, "!answer"), 0)
			succeeds(t, done, testOp, "!answer", "")
		})
	})

	t.Run("V2-5.1-1 an answer is a first reply, too", func(t *testing.T) {
		auto(t, greeting(t, nil), &Settings{Operations: testOps()}, func(p *peer, s *Server, _ *testService) {
			p.send(optBytes(1, testOp, "?", make([]byte, 1024)...), 0)
			if h, _ := p.message("an RDMA_ERROR: the answer is too long"); h.Err != rpcrdma.ErrInvalOption {
				t.Errorf("the answer is %+v", h)
			}
			p.send(optBytes(2, testOp, "?"), 0)
			p.optional("the answer")
			p.send(optBytes(3, testOp, "?", make([]byte, 4096-28)...), 0)
			if _, payload := p.optional("the answer"); len(payload) != 4096-28 {
				t.Errorf("the answer has %d bytes behind it", len(payload))
			}
		})
	})
}

// TestOptionalExecutedLimits checks requests beyond the grant, overlong requests, and floods of them.
func TestOptionalExecutedLimits(t *testing.T) {
	t.Run("a client that requests more than it was granted loses the connection", func(t *testing.T) {
		var canceled atomic.Int32
		server := &Settings{Credits: 4, Operations: []Operation{{Type: testOp, IsAnswer: testOps()[0].IsAnswer,
			Handle: func(ctx context.Context, _ rpc.Conn, _ Optional) (Optional, error) {
				<-ctx.Done()
				canceled.Add(1)
				return Optional{}, nil
			}}}}
		server2(t, server, func(p *peer, s *Server, _ *testService) {
			n := 0
			for ; n < 200 && !p.over(); n++ {
				p.mu.Lock()
				room := len(p.recvs) > 0
				p.mu.Unlock()
				if !room {
					break // an adapter ends the connection here
				}
				p.send(optBytes(uint32(n), testOp, "?"), 0)
			}
			if n > 4+leastBatch {
				t.Errorf("%d requests were taken at once", n)
			}
			p.hangUp()
			synctest.Wait()
			if seen := canceled.Load(); int(seen) != n {
				t.Errorf("%d of %d handlers have seen the end", seen, n)
			}
		})
	})

	t.Run("floods of requests that nobody knows, from a peer that takes no answers, end the connection", func(t *testing.T) {
		flood := func(t *testing.T, p *peer, c *conn) {
			p.mu.Lock()
			p.holdSends = true
			p.mu.Unlock()
			n := 0
			for ; n < 5000 && !p.over(); n++ {
				p.send(optBytes(uint32(n), 0xdeadbeef, "?"), 0)
			}
			var broke *rpc.PeerError
			if err := c.endErr(); !errors.As(err, &broke) || n > 200 {
				t.Errorf("after %d requests the connection's end is %v", n, err)
			}
		}
		server2(t, nil, func(p *peer, s *Server, _ *testService) { flood(t, p, theConn(s)) })
		client2(t, nil, func(p *peer, cl *Client) { flood(t, p, cl.conn()) })
	})

	t.Run("a Handle that panics, or calls runtime.Goexit", func(t *testing.T) {
		for name, ends := range map[string]func(){"panic": func() { panic("as it was told") }, "Goexit": runtime.Goexit} {
			server := &Settings{Logger: slog.New(slog.DiscardHandler), Operations: []Operation{{Type: testOp, IsAnswer: testOps()[0].IsAnswer,
				Handle: func(_ context.Context, _ rpc.Conn, m Optional) (Optional, error) {
					if string(m.Info) == "?ends" {
						ends()
					}
					return Optional{Info: []byte("!done")}, nil
				}}}}
			server2(t, server, func(p *peer, s *Server, _ *testService) {
				p.send(optBytes(7, testOp, "?ends"), 0)
				if got, want := p.next("an RDMA_ERROR").msg, invalOption(7, initialGrant); !bytes.Equal(got, want) {
					t.Errorf("%s: the answer is %x, want %x", name, got, want)
				}
				p.send(optBytes(8, testOp, "?"), 0)
				if h, _ := p.optional("the next answer"); h.XID != 8 {
					t.Errorf("%s: the next answer is %+v", name, h)
				}
			})
		}
	})

	t.Run("a client that makes many requests at once is granted more", func(t *testing.T) {
		var gate chan struct{}
		server := &Settings{Operations: []Operation{{Type: testOp, IsAnswer: testOps()[0].IsAnswer,
			Handle: func(context.Context, rpc.Conn, Optional) (Optional, error) {
				<-gate
				return Optional{Info: []byte("!done")}, nil
			}}}}
		server2(t, server, func(p *peer, s *Server, _ *testService) {
			gate = make(chan struct{})
			for xid := range uint32(initialGrant) {
				msg := optBytes(xid, testOp, "?")
				msg[11] = 100 // credits
				p.send(msg, 0)
				synctest.Wait()
			}
			close(gate)
			for range initialGrant {
				if h, _ := p.optional("an answer"); h.Credit <= initialGrant || h.Credit > 100 {
					t.Errorf("the grant is %d", h.Credit)
				}
			}
		})
	})

	t.Run("a server of version 1, and messages that are too long", func(t *testing.T) {
		auto(t, greeting(t, nil), &Settings{Operations: testOps()}, func(p *peer, s *Server, _ *testService) {
			p.proves(1, 1)
			cn := &theConn(s).public
			cn.AllowBackward(0)
			synctest.Wait()
			if _, err := cn.Operate(bg, Optional{Type: testOp, Info: []byte("?")}); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("on a connection of version 1: %v", err)
			}
			p.quiet("version 1 has no such message")
		})
		caller2(t, &Settings{Operations: testOps()}, func(p *peer, s *Server, cn *Conn) {
			var size *rpc.SizeError
			if _, err := cn.Operate(bg, Optional{Type: testOp, Info: make([]byte, 4096)}); !errors.As(err, &size) {
				t.Errorf("a request that is too long: %v", err)
			}
			p.quiet("it is too long")
		})
	})
}

// TestOptionalExecutedHandlers checks requests made by handlers, and requests executed during Shutdown.
func TestOptionalExecutedHandlers(t *testing.T) {
	t.Run("Shutdown lets requests finish", func(t *testing.T) {
		var gate chan struct{}
		server := &Settings{Operations: []Operation{{Type: testOp, IsAnswer: testOps()[0].IsAnswer,
			Handle: func(context.Context, rpc.Conn, Optional) (Optional, error) {
				<-gate
				return Optional{Info: []byte("!done")}, nil
			}}}}
		server2(t, server, func(p *peer, s *Server, _ *testService) {
			gate = make(chan struct{})
			p.send(optBytes(7, testOp, "?"), 0)
			synctest.Wait()
			down := make(chan error, 1)
			go func() { down <- s.Shutdown(bg) }()
			synctest.Wait()
			p.send(optBytes(8, testOp, "?"), 0)
			p.quiet("the server takes no more")
			if p.over() {
				t.Fatal("the connection has ended")
			}
			close(gate)
			if h, _ := p.optional("the answer"); h.XID != 7 {
				t.Errorf("the answer is %+v", h)
			}
			if err := outcome(t, down); err != nil || !p.over() {
				t.Errorf("Shutdown returned %v", err)
			}
			p.quiet("what came after Shutdown was not executed")
		})
	})

	t.Run("from a handler, to the end that has called", func(t *testing.T) {
		results := make(chan operated, 1)
		first := true
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, Idempotent: rpc.Every, Inline: func(_, proc uint32) bool { return proc == procFail },
			Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
				cn := req.Conn().(*Conn)
				if req.Proc == procHold && !first {
					cn.AllowBackward(1)
				}
				first = false
				m, err := cn.Operate(ctx, Optional{Type: testOp, Info: []byte("?who")})
				results <- operated{m, err}
			})}
		synctest.Test(t, func(t *testing.T) {
			results, first = make(chan operated, 1), true
			p := greeting(t, nil)
			s, err := NewServer((&Settings{Operations: testOps()}).Server())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Register(prog); err != nil {
				t.Fatal(err)
			}
			l, err := s.Listen(bg, p, "script:20049")
			if err != nil {
				t.Fatal(err)
			}
			go s.Serve(l)
			defer s.Close()
			synctest.Wait()
			var not *rpc.NotReadyError
			p.send(callBytes(rpcrdma.Header{XID: 1, Vers: 2}, procHold), 0)
			p.replies(1, "the reply")
			if _, err := result(t, results); !errors.As(err, &not) {
				t.Errorf("before AllowBackward: %v", err)
			}
			p.send(callBytes(rpcrdma.Header{XID: 2, Vers: 2}, procHold), 0)
			h, _ := p.optional("the handler's request")
			if string(h.OptInfo) != "?who" {
				t.Errorf("the request is %+v", h)
			}
			p.send(optBytes(h.XID, testOp, "!me"), 0)
			p.replies(2, "the reply")
			succeeds(t, results, testOp, "!me", "")
			p.send(callBytes(rpcrdma.Header{XID: 3, Vers: 2}, procFail), 0)
			p.replies(3, "the reply")
			if _, err := result(t, results); err != errInline {
				t.Errorf("from a handler that is Inline: %v", err)
			}
		})
	})
}

// ---- properties

// propertiesOf takes the properties apart that a message has.
func (p *peer) propertiesOf(h rpcrdma.Header, payload []byte) rpcrdma.Properties {
	p.t.Helper()
	props, err := rpcrdma.ConsumeProperties(h.OptInfo)
	if err != nil || h.OptType != rpcrdma.OptProperties || len(payload) > 0 {
		p.t.Fatalf("the properties are in %+v %x, %v", h, payload, err)
	}
	return props
}

// offered waits for the offer of a client and checks it.
func (p *peer) offered(send, recv uint32, invalidation bool) uint32 {
	p.t.Helper()
	h, payload := p.optional("an offer")
	want := rpcrdma.Properties{Dir: rpcrdma.PropOffer, SendSize: send, RecvSize: recv, RemoteInvalidation: invalidation}
	if got := p.propertiesOf(h, payload); got != want {
		p.t.Errorf("the offer is %+v, want %+v", got, want)
	}
	p.quiet("until the answer there is no call")
	return h.XID
}

func propBytes(xid uint32, props rpcrdma.Properties) []byte {
	return optBytes(xid, rpcrdma.OptProperties, string(rpcrdma.AppendProperties(nil, props)))
}

func accept(send, recv uint32, invalidation bool) rpcrdma.Properties {
	return rpcrdma.Properties{Dir: rpcrdma.PropAccept, SendSize: send, RecvSize: recv, RemoteInvalidation: invalidation}
}

func offer(send, recv uint32, invalidation bool) rpcrdma.Properties {
	return rpcrdma.Properties{Dir: rpcrdma.PropOffer, SendSize: send, RecvSize: recv, RemoteInvalidation: invalidation}
}

func reject(reason rpcrdma.PropReason) rpcrdma.Properties {
	return rpcrdma.Properties{Dir: rpcrdma.PropReject, Reason: reason}
}

// TestPropertiesOffered checks that a client states its properties in its first call and keeps to the answer.
func TestPropertiesOffered(t *testing.T) {
	t.Run("V2-2.1-1 V2-2.3-2 thresholds are the smaller ones, in each direction, and replies may invalidate", func(t *testing.T) {
		for _, tt := range []struct {
			own  [2]int // sent and received by the client
			peer [2]uint32
			want [2]int
			flag [2]bool
		}{
			{[2]int{16384, 16384}, [2]uint32{16384, 16384}, [2]int{16384, 16384}, [2]bool{true, true}},
			{[2]int{16384, 8192}, [2]uint32{12288, 65536}, [2]int{12288, 8192}, [2]bool{true, false}},
			{[2]int{8192, 16384}, [2]uint32{65536, 4096}, [2]int{8192, 4096}, [2]bool{false, true}},
			{[2]int{1024, 262144}, [2]uint32{1 << 20, 0xfffffffc}, [2]int{4096, 262144}, [2]bool{true, true}},
			{[2]int{4096, 4096}, [2]uint32{4096, 4096}, [2]int{4096, 4096}, [2]bool{true, true}},
		} {
			cfg := &Settings{InlineSend: tt.own[0], InlineRecv: tt.own[1], NoPrivateData: true, NoRemoteInvalidation: !tt.flag[0]}
			conversation := func(d *dialing, p *peer, older bool) {
				h, told := p.askedWith()
				xid := h.XID
				if want := offer(uint32(max(tt.own[0], 4096)), uint32(max(tt.own[1], 4096)), tt.flag[0]); told == nil || *told != want {
					t.Errorf("the first message tells %+v, want %+v", told, want)
				}
				if older {
					p.unavailable(xid)
					xid = p.offered(uint32(max(tt.own[0], 4096)), uint32(max(tt.own[1], 4096)), tt.flag[0])
				}
				p.mu.Lock()
				for _, r := range p.recvs { // before the offer
					if n := len(r.SGE.Buf); n < tt.own[1] {
						t.Errorf("a receive of %d bytes is posted, %d are offered", n, tt.own[1])
					}
				}
				p.mu.Unlock()
				if d.over() {
					t.Fatal("Dial has returned before the answer")
				}
				answer := accept(tt.peer[1], tt.peer[0], tt.flag[1])
				var operations uint64
				if older {
					p.send(propBytes(xid, answer), 0)
					operations = 1
				} else {
					p.reply(rpcrdma.Header{XID: xid, Vers: 2}, rpcrdma.AppendProperties(nil, answer)...)
				}
				cl := d.client()
				i := cl.Info()
				if i.InlineSend != tt.want[0] || i.InlineRecv != tt.want[1] || !i.Properties || i.PrivateData || i.RemoteInvalidation != (tt.flag[0] && tt.flag[1]) {
					t.Errorf("ConnInfo is %+v", i)
				}
				p.inlineUpTo(cl, tt.want[0])
				p.takesUpTo(cl, tt.want[1])
				if i.RemoteInvalidation {
					p.invalidates(cl)
				}
				if st := cl.Stats(); st.Optional != operations {
					t.Errorf("counters are %+v", st)
				}
			}
			dials(t, cfg, func(d *dialing, p *peer) { conversation(d, p, false) })
			dials(t, cfg, func(d *dialing, p *peer) { conversation(d, p, true) })
		}
	})

	t.Run("whatever else the results are, everything stays as it is, and it is not told again", func(t *testing.T) {
		good := rpcrdma.AppendProperties(nil, accept(8192, 8192, true))
		for name, results := range map[string][]byte{
			"RDMA_PROP_MALFORMED":      rpcrdma.AppendProperties(nil, reject(rpcrdma.PropMalformed)),
			"RDMA_PROP_NOT_NOW":        rpcrdma.AppendProperties(nil, reject(rpcrdma.PropNotNow)),
			"a reason of its own":      rpcrdma.AppendProperties(nil, reject(99)),
			"none":                     nil,
			"an offer":                 rpcrdma.AppendProperties(nil, offer(8192, 8192, true)),
			"sizes below 4096":         rpcrdma.AppendProperties(nil, accept(4092, 8192, true)),
			"half an answer":           good[:12],
			"one and a half":           append(good[:16:16], 0, 0, 0, 0),
			"a direction there is not": {0, 0, 0, 9},
		} {
			dials(t, &Settings{InlineSend: 16384, InlineRecv: 16384}, func(d *dialing, p *peer) {
				p.reply(rpcrdma.Header{XID: p.asked().XID, Vers: 2}, results...)
				cl := d.client()
				if i := cl.Info(); i.Version != 2 || i.InlineSend != 4096 || i.InlineRecv != 4096 || i.Properties || i.RemoteInvalidation {
					t.Errorf("%s: ConnInfo is %+v", name, i)
				}
				p.quiet("it is told once")
				p.finishes(cl, 2)
				p.invalidates(cl) // the notification holds
				p.inlineUpTo(cl, 4096)
			})
		}
	})

	t.Run("no threshold is lowered", func(t *testing.T) {
		dialsTo(t, greeting(t, hello(false, 8192, 8192)), &Settings{InlineSend: 16384, InlineRecv: 16384}, func(d *dialing, p *peer) {
			p.speaks2()
			xid := p.offered(16384, 16384, true)
			p.send(propBytes(xid, accept(4096, 12288, true)), 0)
			if i := d.client().Info(); i.InlineSend != 12288 || i.InlineRecv != 8192 || !i.Properties || !i.RemoteInvalidation {
				t.Errorf("ConnInfo is %+v", i)
			}
		})
	})
}

// TestPropertiesOfferedAgain checks that a client offers its properties by the optional operation if the server does
// not execute that first call.
func TestPropertiesOfferedAgain(t *testing.T) {
	t.Run("a server that does not execute the call is offered them by the operation", func(t *testing.T) {
		for _, reply := range []oncrpc.ReplyHeader{
			{AcceptStat: oncrpc.ProgUnavail},
			{AcceptStat: oncrpc.ProgMismatch, Low: 2, High: 4},
			{AcceptStat: oncrpc.ProcUnavail},
			{AcceptStat: oncrpc.GarbageArgs},
			{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: oncrpc.AuthTooWeak},
		} {
			dials(t, nil, func(d *dialing, p *peer) {
				reply.XID = p.asked().XID
				p.send(oncrpc.AppendReply(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: reply.XID, Vers: 2, Credit: 3}), &reply), 0)
				p.send(propBytes(p.offered(4096, 4096, true), accept(4096, 4096, true)), 0)
				if i := d.client().Info(); !i.Properties || !i.RemoteInvalidation {
					t.Errorf("%+v: ConnInfo is %+v", reply, i)
				}
			})
		}
	})

	t.Run("whatever else the answer is, everything stays as it is", func(t *testing.T) {
		raw := func(info ...byte) func(uint32) []byte {
			return func(xid uint32) []byte { return optBytes(xid, rpcrdma.OptProperties, string(info)) }
		}
		good := rpcrdma.AppendProperties(nil, accept(8192, 8192, true))
		for name, answer := range map[string]func(xid uint32) []byte{
			"RDMA_PROP_MALFORMED":         func(xid uint32) []byte { return propBytes(xid, reject(rpcrdma.PropMalformed)) },
			"RDMA_PROP_NOT_NOW":           func(xid uint32) []byte { return propBytes(xid, reject(rpcrdma.PropNotNow)) },
			"a reason that is not known":  func(xid uint32) []byte { return propBytes(xid, reject(99)) },
			"RDMA_ERR_INVAL_OPTION":       func(xid uint32) []byte { return invalOption(xid, 1) },
			"RDMA_ERR_BAD_HEADER":         func(xid uint32) []byte { return append(invalOption(xid, 1)[:19], 2) },
			"sizes below 4096":            func(xid uint32) []byte { return propBytes(xid, accept(4092, 8192, true)) },
			"sizes that are no multiples": func(xid uint32) []byte { return propBytes(xid, accept(8192, 8191, true)) },
			"half an answer":              raw(good[:12]...),
			"one and a half":              raw(append(good, 0, 0, 0, 0)...),
			"a rejection cut short":       raw(0, 0, 0, 2),
			"a direction there is not":    raw(0, 0, 0, 9),
			"an RPC message behind":       func(xid uint32) []byte { return append(propBytes(xid, accept(8192, 8192, true)), 1, 2, 3, 4) },
		} {
			dials(t, &Settings{InlineSend: 16384, InlineRecv: 16384}, func(d *dialing, p *peer) {
				p.speaks2()
				p.send(answer(p.offered(16384, 16384, true)), 0)
				cl := d.client()
				if i := cl.Info(); i.Version != 2 || i.InlineSend != 4096 || i.InlineRecv != 4096 || i.Properties || i.RemoteInvalidation {
					t.Errorf("%s: ConnInfo is %+v", name, i)
				}
				p.quiet("answers are not answered, and it is offered once")
				p.finishes(cl, 2)
				// The offer holds.
				p.reply(rpcrdma.Header{XID: 77, Vers: 2}, make([]byte, 16384-rpcrdma.MinHeaderSize-24)...)
				p.invalidates(cl)
				p.inlineUpTo(cl, 4096)
			})
		}
	})
}

// TestPropertiesOfferedWhen checks when a client makes an offer, and events before the answer.
func TestPropertiesOfferedWhen(t *testing.T) {
	t.Run("an offer is one of its connection, in version 2, when there is something to tell", func(t *testing.T) {
		dials(t, &Settings{InlineRecv: 8192, NoRemoteInvalidation: true}, func(d *dialing, p *peer) {
			p.speaks2()
			p.send(propBytes(p.offered(4096, 8192, false), accept(8192, 8192, true)), 0)
			cl := d.client()
			p.finishes(cl, 2)
			if i := cl.Info(); i.InlineRecv != 8192 || i.RemoteInvalidation {
				t.Errorf("ConnInfo is %+v", i)
			}
			q := d.another()
			p.hangUp()
			synctest.Wait()
			done := async(cl, bg, testCall())
			time.Sleep(time.Second)
			q.speaks2()
			q.send(propBytes(q.offered(4096, 8192, false), reject(2)), 0)
			h, _ := q.message("the call")
			q.reply(rpcrdma.Header{XID: h.XID, Vers: 2})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			if i := cl.Info(); i.InlineRecv != 4096 || i.Properties {
				t.Errorf("properties have outlived their connection: %+v", i)
			}
		})
		for _, cfg := range []*Settings{
			{NoRemoteInvalidation: true},
			{NoRemoteInvalidation: true, InlineSend: 1024, InlineRecv: 1024},
		} {
			dials(t, cfg, func(d *dialing, p *peer) {
				p.speaks2()
				d.client()
				p.quiet("there is nothing to tell")
			})
		}
		dials(t, &Settings{InlineSend: 8192}, func(d *dialing, p *peer) {
			p.speaks(1, 1)
			d.client()
			p.quiet("version 1 has no such message")
		})
		p := greeting(t, nil) // without windows not all handles may be invalidated
		p.caps.MemoryWindows = false
		dialsTo(t, p, nil, func(d *dialing, p *peer) {
			p.speaks2()
			d.client()
			p.quiet("there is nothing to tell")
		})
	})

	t.Run("the offer is under way: calls of the server, the end of the context, and that of the connection", func(t *testing.T) {
		dials(t, &Settings{InlineSend: 8192}, func(d *dialing, p *peer) {
			p.speaks2()
			xid := p.offered(8192, 4096, true)
			p.send(callBytes(rpcrdma.Header{XID: xid, Vers: 2}, 1), 0)
			if h, _ := p.message("the answer to the call"); h.XID != xid || h.Proc != rpcrdma.ProcMsg {
				t.Errorf("the answer is %+v", h)
			}
			q := d.another()
			d.another()
			settle()
			d.stop()
			if err := d.fails(); !errors.Is(err, context.Canceled) || !p.over() {
				t.Errorf("Dial returned %v", err)
			}
			d.dial(&Settings{InlineSend: 8192})
			q.speaks2()
			q.offered(8192, 4096, true)
			q.hangUp()
			if err := d.fails(); !errors.Is(err, net.ErrClosed) || errors.As(err, new(*rpc.VersionError)) || d.attempts() != 2 {
				t.Errorf("Dial returned %v after %d connections", err, d.attempts())
			}
		})
	})

	t.Run("an offer of the server's is rejected", func(t *testing.T) {
		good := rpcrdma.AppendProperties(nil, offer(8192, 8192, true))
		for _, tt := range []struct {
			msg    []byte
			reason rpcrdma.PropReason
		}{
			{propBytes(7, offer(8192, 8192, true)), rpcrdma.PropNotNow},
			{optBytes(7, rpcrdma.OptProperties, string(good[:8])), rpcrdma.PropMalformed},
			{optBytes(7, rpcrdma.OptProperties, string(good), 1, 2, 3, 4), rpcrdma.PropMalformed},
			{propBytes(7, offer(8192, 4095, true)), rpcrdma.PropMalformed},
		} {
			client2(t, &Settings{InlineSend: 4096}, func(p *peer, cl *Client) {
				p.send(tt.msg, 0)
				h, payload := p.optional("a rejection")
				if got := p.propertiesOf(h, payload); h.XID != 7 || got != reject(tt.reason) {
					t.Errorf("the answer to %x is %+v", tt.msg, got)
				}
				if i := cl.Info(); i.InlineSend != 4096 || i.InlineRecv != 4096 || i.Properties || i.RemoteInvalidation {
					t.Errorf("ConnInfo is %+v", i)
				}
				p.finishes(cl, 2)
			})
		}
	})
}

// invalidates makes a call with a reply that invalidates its memory.
func (p *peer) invalidates(cl *Client) {
	p.t.Helper()
	done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 300_000)}}})
	h, _ := p.message("a call with a chunk")
	p.send(p.replyBytes(rpcrdma.Header{XID: h.XID, Vers: 2, Writes: []rpcrdma.WriteChunk{{}}}, nil), h.Writes[0][0].Handle)
	if err := outcome(p.t, done); err != nil || p.openWindows() != 0 {
		p.t.Errorf("a call whose reply invalidates: %v, %d windows are open", err, p.openWindows())
	}
}

// largeMessages configures a server with thresholds of 16384 bytes and with operations.
func largeMessages() *Settings {
	return &Settings{InlineSend: 16384, InlineRecv: 16384, NoPrivateData: true, Operations: testOps()}
}

// answerTo sends an offer by the optional operation and returns the answer.
func (p *peer) answerTo(msg []byte) rpcrdma.Properties {
	p.t.Helper()
	p.send(msg, 0)
	h, payload := p.optional("the answer to an offer")
	if h.XID != word(msg, 0) {
		p.t.Errorf("the answer has the xid %#x", h.XID)
	}
	return p.propertiesOf(h, payload)
}

// exchange calls a procedure of the properties program and returns the reply.
func (p *peer) exchange(h rpcrdma.Header, vers, proc uint32, args []byte) (oncrpc.ReplyHeader, []byte) {
	p.t.Helper()
	h.Credit = 8
	msg := oncrpc.AppendCall(rpcrdma.AppendHeader(nil, &h), &oncrpc.CallHeader{
		XID: h.XID, RPCVers: 2, Prog: rpcrdma.PropProgram, Vers: vers, Proc: proc,
	})
	p.send(append(msg, args...), 0)
	back, payload := p.message("the reply to the exchange")
	var r oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(payload, &r)
	if err != nil || back.XID != h.XID || back.Vers != h.Vers || r.XID != h.XID || back.Credit == 0 {
		p.t.Fatalf("the reply is %+v %+v, %v", back, r, err)
	}
	return r, payload[n:]
}

// tells offers properties by a call and returns the answer.
func (p *peer) tells(args []byte) rpcrdma.Properties {
	p.t.Helper()
	r, results := p.exchange(rpcrdma.Header{XID: 7, Vers: 2}, 1, 1, args)
	props, err := rpcrdma.ConsumeProperties(results)
	if r.Err() != nil || err != nil {
		p.t.Fatalf("the reply is %+v with %x, %v", r, results, err)
	}
	return props
}

// TestPropertiesAccepted checks that a server accepts an offer and keeps to it once it has answered.
func TestPropertiesAccepted(t *testing.T) {
	large := largeMessages()

	t.Run("V2-2.1-1 V2-2.3-2 16384 bytes in both directions and invalidation, from the answer on", func(t *testing.T) {
		server2(t, large, func(p *peer, s *Server, _ *testService) {
			p.mu.Lock()
			for _, r := range p.recvs {
				if n := len(r.SGE.Buf); n != 16384 {
					t.Errorf("a receive of %d bytes is posted before the answer, want 16384", n)
				}
			}
			p.mu.Unlock()
			if got := p.answerTo(propBytes(7, offer(16384, 16384, true))); got != accept(16384, 16384, true) {
				t.Errorf("the answer is %+v", got)
			}
			if i := theConn(s).info(); i.InlineSend != 16384 || i.InlineRecv != 16384 || !i.Properties || !i.RemoteInvalidation {
				t.Errorf("ConnInfo is %+v", i)
			}
			// As soon as the answer is there: a call and a reply as long as they get.
			args := make([]byte, 16384-rpcrdma.MinHeaderSize-40)
			for xid := range uint32(30) {
				p.send(callBytes(rpcrdma.Header{XID: xid, Vers: 2}, procArgs, args...), 0)
				if h, results := p.replies(xid, "the reply"); len(results) != len(args) || h.Vers != 2 {
					t.Fatalf("the reply is %+v with %d bytes", h, len(results))
				}
			}
			h := rpcrdma.Header{XID: 8, Vers: 2, Writes: []rpcrdma.WriteChunk{{p.offer(0x77, make([]byte, 100))}}}
			p.send(callBytes(h, procEcho, opaque("x")...), 0)
			if s := p.next("the reply"); s.inv != 0x77 {
				t.Errorf("the reply invalidates %#x", s.inv)
			}
			// Not in other versions, not by errors, not by answers to operations.
			h.Vers = 1
			p.send(callBytes(h, procEcho, opaque("x")...), 0)
			if s := p.next("the reply in version 1"); s.inv != 0 {
				t.Errorf("the reply in version 1 invalidates %#x", s.inv)
			}
			h.Vers = 2
			p.send(callBytes(h, procAlloc, xdr.AppendUint32(nil, 101)...), 0)
			if s := p.next("an RDMA_ERROR"); s.inv != 0 || word(s.msg, 3) != 4 {
				t.Errorf("an RDMA_ERROR invalidates %#x", s.inv)
			}
			p.send(optBytes(9, testOp, "?"), 0)
			if s := p.next("an answer"); s.inv != 0 {
				t.Errorf("an answer invalidates %#x", s.inv)
			}
		})
	})

	t.Run("each direction has the smaller size, and none is lowered", func(t *testing.T) {
		for _, tt := range []struct {
			offer      rpcrdma.Properties
			hello      []byte
			send, recv int
			inv        bool
		}{
			{offer(4096, 8192, false), nil, 8192, 4096, false},
			{offer(0xfffffffc, 0xfffffffc, true), nil, 16384, 16384, true},
			{offer(4096, 4096, true), hello(false, 8192, 12288), 12288, 8192, true},
		} {
			cfg := &Settings{InlineSend: 16384, InlineRecv: 16384}
			auto(t, greeting(t, tt.hello), cfg, func(p *peer, s *Server, _ *testService) {
				p.proves(1, 2)
				if got := p.answerTo(propBytes(7, tt.offer)); got != accept(16384, 16384, true) {
					t.Errorf("the answer is %+v", got)
				}
				if i := theConn(s).info(); i.InlineSend != tt.send || i.InlineRecv != tt.recv || i.RemoteInvalidation != tt.inv {
					t.Errorf("ConnInfo is %+v", i)
				}
			})
		}
	})

	t.Run("flags without a meaning are ignored", func(t *testing.T) {
		server2(t, large, func(p *peer, s *Server, _ *testService) {
			msg := propBytes(7, offer(8192, 8192, false))
			copy(msg[len(msg)-4:], []byte{0xff, 0xff, 0xff, 0xfe})
			if got := p.answerTo(msg); got != accept(16384, 16384, true) || theConn(s).info().RemoteInvalidation {
				t.Errorf("the answer is %+v", got)
			}
		})
	})

	t.Run("replies to calls in the other direction are never sent with invalidation", func(t *testing.T) {
		svc := &testService{}
		dials(t, &Settings{Callbacks: []rpc.Program{svc.program()}, PeerChunks: AllChunks, KeepAlive: -1}, func(d *dialing, p *peer) {
			p.speaks2()
			p.send(propBytes(p.offered(4096, 4096, true), accept(4096, 4096, true)), 0)
			if i := d.client().Info(); !i.RemoteInvalidation {
				t.Fatalf("ConnInfo is %+v", i)
			}
			h := rpcrdma.Header{XID: 3, Vers: 2, Writes: []rpcrdma.WriteChunk{{p.offer(0x77, make([]byte, 100))}}}
			p.send(callBytes(h, procEcho, opaque("x")...), 0)
			if s := p.next("the reply"); s.inv != 0 {
				t.Errorf("the reply invalidates %#x", s.inv)
			}
			if !slices.Contains(p.ops, fabric.OpWrite) {
				t.Error("nothing was written")
			}
		})
	})
}

// TestPropertiesRejected checks offers that a server rejects, and answers without an offer.
func TestPropertiesRejected(t *testing.T) {
	large := largeMessages()

	t.Run("offers that are malformed", func(t *testing.T) {
		good := rpcrdma.AppendProperties(nil, offer(8192, 8192, true))
		for name, msg := range map[string][]byte{
			"none":                        optBytes(7, rpcrdma.OptProperties, ""),
			"half":                        optBytes(7, rpcrdma.OptProperties, string(good[:12])),
			"with words behind":           optBytes(7, rpcrdma.OptProperties, string(good)+"\x00\x00\x00\x00"),
			"with an RPC message":         optBytes(7, rpcrdma.OptProperties, string(good), appendCall(nil, 7, procEcho)...),
			"sizes of 0":                  propBytes(7, offer(0, 8192, true)),
			"a size below 4096":           propBytes(7, offer(8192, 4092, true)),
			"a size that is no multiple":  propBytes(7, offer(8193, 8192, true)),
			"a direction that is not one": optBytes(7, rpcrdma.OptProperties, "\x00\x00\x00\x09"+string(good[4:])),
		} {
			server2(t, large, func(p *peer, s *Server, _ *testService) {
				if got := p.answerTo(msg); got != reject(rpcrdma.PropMalformed) {
					t.Errorf("%s: the answer is %+v", name, got)
				}
				if i := theConn(s).info(); i.InlineSend != 4096 || i.InlineRecv != 4096 || i.Properties || i.RemoteInvalidation {
					t.Errorf("%s: ConnInfo is %+v", name, i)
				}
				p.proves(2, 2)
				// It was none, and may still come.
				if got := p.answerTo(propBytes(8, offer(8192, 8192, false))); got != accept(16384, 16384, true) {
					t.Errorf("%s: the answer to a good one is %+v", name, got)
				}
			})
		}
	})

	t.Run("a second offer, and one while calls are executed, are rejected", func(t *testing.T) {
		server2(t, large, func(p *peer, s *Server, svc *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 3, Vers: 2}, procHold), 0)
			synctest.Wait()
			if got := p.answerTo(propBytes(7, offer(8192, 8192, true))); got != reject(rpcrdma.PropNotNow) {
				t.Errorf("while a call is executed the answer is %+v", got)
			}
			if i := theConn(s).info(); i.InlineSend != 4096 || i.Properties {
				t.Errorf("ConnInfo is %+v", i)
			}
			close(svc.gate)
			p.replies(3, "the reply")
			if got := p.answerTo(propBytes(8, offer(8192, 8192, true))); got != accept(16384, 16384, true) {
				t.Errorf("the answer is %+v", got)
			}
			for range 50 {
				if got := p.answerTo(propBytes(9, offer(12288, 12288, false))); got != reject(rpcrdma.PropNotNow) {
					t.Errorf("the answer to another is %+v", got)
				}
			}
			if i := theConn(s).info(); i.InlineSend != 8192 || i.InlineRecv != 8192 || !i.RemoteInvalidation {
				t.Errorf("ConnInfo is %+v", i)
			}
			p.proves(2, 2)
		})
	})

	t.Run("answers to offers that were never made are dropped", func(t *testing.T) {
		server2(t, large, func(p *peer, s *Server, _ *testService) {
			for _, msg := range [][]byte{
				propBytes(7, accept(16384, 16384, true)), propBytes(7, reject(1)), propBytes(7, accept(1, 1, true)),
				optBytes(7, rpcrdma.OptProperties, "\x00\x00\x00\x01"), optBytes(7, rpcrdma.OptProperties, "\x00\x00\x00\x02", 1),
			} {
				before := s.Stats().Dropped
				p.send(msg, 0)
				p.quiet("answers are not answered")
				if n := s.Stats().Dropped; n != before+1 {
					t.Errorf("%d messages were dropped", n-before)
				}
			}
			if i := theConn(s).info(); i.InlineSend != 4096 || i.Properties {
				t.Errorf("ConnInfo is %+v", i)
			}
			p.proves(2, 2)
		})
	})
}

// TestPropertiesAcceptedByCall checks offers made by a call of the properties program.
func TestPropertiesAcceptedByCall(t *testing.T) {
	large := largeMessages()

	t.Run("V2-5.1-1 V2-2.3-2 by a call, which may be the first message: the same, in one round trip", func(t *testing.T) {
		for _, first := range []bool{true, false} {
			auto(t, greeting(t, nil), large, func(p *peer, s *Server, _ *testService) {
				if !first {
					p.proves(1, 2)
				}
				if got := p.tells(rpcrdma.AppendProperties(nil, offer(8192, 12288, true))); got != accept(16384, 16384, true) {
					t.Errorf("the answer is %+v", got)
				}
				if i := theConn(s).info(); i.Version != 2 || i.InlineSend != 12288 || i.InlineRecv != 8192 || !i.Properties || !i.RemoteInvalidation {
					t.Errorf("ConnInfo is %+v", i)
				}
				args := make([]byte, 8192-rpcrdma.MinHeaderSize-40)
				p.send(callBytes(rpcrdma.Header{XID: 3, Vers: 2}, procArgs, args...), 0)
				if h, results := p.replies(3, "the reply"); len(results) != len(args) || h.Vers != 2 {
					t.Errorf("the reply is %+v with %d bytes", h, len(results))
				}
				h := rpcrdma.Header{XID: 8, Vers: 2, Writes: []rpcrdma.WriteChunk{{p.offer(0x77, make([]byte, 100))}}}
				p.send(callBytes(h, procEcho, opaque("x")...), 0)
				if s := p.next("the reply"); s.inv != 0x77 {
					t.Errorf("the reply invalidates %#x", s.inv)
				}
				again := rpcrdma.AppendProperties(nil, offer(8192, 8192, false))
				if got := p.tells(again); got != reject(rpcrdma.PropNotNow) {
					t.Errorf("the answer to another is %+v", got)
				}
				if got := p.answerTo(optBytes(9, rpcrdma.OptProperties, string(again))); got != reject(rpcrdma.PropNotNow) {
					t.Errorf("the answer to one by the operation is %+v", got)
				}
				if i := theConn(s).info(); i.InlineSend != 12288 || i.InlineRecv != 8192 || !i.RemoteInvalidation {
					t.Errorf("ConnInfo is %+v", i)
				}
			})
		}
	})

	t.Run("calls that are malformed, and of what there is not", func(t *testing.T) {
		good := rpcrdma.AppendProperties(nil, offer(8192, 8192, true))
		server2(t, large, func(p *peer, s *Server, _ *testService) {
			for _, args := range [][]byte{
				nil, good[:12], append(good[:16:16], 0, 0, 0, 0), {0, 0, 0, 9},
				rpcrdma.AppendProperties(nil, accept(8192, 8192, true)), rpcrdma.AppendProperties(nil, reject(1)),
				rpcrdma.AppendProperties(nil, offer(0, 8192, true)), rpcrdma.AppendProperties(nil, offer(8192, 4095, true)),
			} {
				if got := p.tells(args); got != reject(rpcrdma.PropMalformed) {
					t.Errorf("the answer to %x is %+v", args, got)
				}
			}
			for _, tt := range []struct {
				h          rpcrdma.Header
				vers, proc uint32
				want       oncrpc.ReplyHeader
			}{
				{rpcrdma.Header{XID: 7, Vers: 2}, 1, 0, oncrpc.ReplyHeader{XID: 7}},
				{rpcrdma.Header{XID: 7, Vers: 2}, 1, 2, oncrpc.ReplyHeader{XID: 7, AcceptStat: oncrpc.ProcUnavail}},
				{rpcrdma.Header{XID: 7, Vers: 2}, 2, 1, oncrpc.ReplyHeader{XID: 7, AcceptStat: oncrpc.ProgMismatch, Low: 1, High: 1}},
				{rpcrdma.Header{XID: 7, Vers: 1}, 1, 1, oncrpc.ReplyHeader{XID: 7, AcceptStat: oncrpc.ProgUnavail}},
			} {
				r, results := p.exchange(tt.h, tt.vers, tt.proc, good)
				if r.AcceptStat != tt.want.AcceptStat || r.Stat != tt.want.Stat || r.Low != tt.want.Low || r.High != tt.want.High || len(results) != 0 {
					t.Errorf("the reply to procedure %d of version %d in %+v is %+v with %x", tt.proc, tt.vers, tt.h, r, results)
				}
			}
			if i := theConn(s).info(); i.InlineSend != 4096 || i.InlineRecv != 4096 || i.Properties || i.RemoteInvalidation {
				t.Errorf("ConnInfo is %+v", i)
			}
			// None of them was an offer, and one may still come.
			if got := p.tells(good); got != accept(16384, 16384, true) {
				t.Errorf("the answer to a good one is %+v", got)
			}
		})
	})

	t.Run("a call while calls are executed is rejected", func(t *testing.T) {
		good := rpcrdma.AppendProperties(nil, offer(8192, 8192, true))
		server2(t, large, func(p *peer, s *Server, svc *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 3, Vers: 2}, procHold), 0)
			synctest.Wait()
			if got := p.tells(good); got != reject(rpcrdma.PropNotNow) {
				t.Errorf("the answer is %+v", got)
			}
			close(svc.gate)
			p.replies(3, "the reply")
			if i := theConn(s).info(); i.Properties {
				t.Errorf("ConnInfo is %+v", i)
			}
		})
	})
}
