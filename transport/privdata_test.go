package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// The rules of RFC 8797 for connections. The format is tested in proto/rpcrdma.

// hello is private data with both sizes and the R bit.
func hello(r bool, send, recv int) []byte {
	return rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: r, SendSize: send, RecvSize: recv})
}

// greeting is a peer that gives private data b.
func greeting(t *testing.T, b []byte) *peer {
	p := newPeer(t)
	p.hello = b
	return p
}

// noMessage are contents of the private data that are no message of version 1.
var noMessage = map[string][]byte{
	"none":                                   nil,
	"zeros":                                  make([]byte, 56),
	"others' data":                           bytes.Repeat([]byte{0x5a}, 56),
	"seven octets":                           hello(true, 8192, 8192)[:7],
	"version 0":                              version(0),
	"version 2":                              version(2),
	"version 255 and more octets":            append(version(255), 1, 2, 3, 4),
	"the identifier's last octet is another": otherIdentifier(3),
	"the identifier's third octet is another":  otherIdentifier(2),
	"the identifier's second octet is another": otherIdentifier(1),
	"the identifier's first octet is another":  otherIdentifier(0),
	"an identifier with the octets turned":     {0x18, 0x0e, 0xab, 0xf6, 1, 1, 7, 7},
	"the last four octets":                     append(make([]byte, 52), 0xf6, 0xab, 0x0e, 0x18),
	"the last seven octets":                    append(make([]byte, 49), hello(true, 8192, 8192)[:7]...),
}

// version is a message of another version.
func version(v byte) []byte {
	b := hello(true, 8192, 8192)
	b[4] = v
	return b
}

// otherIdentifier is a message with an identifier that has one bit of octet i wrong.
func otherIdentifier(i int) []byte {
	b := hello(true, 8192, 8192)
	b[i] ^= 1
	return b
}

// TestPrivateDataExchange checks the private data that each end sends.
func TestPrivateDataExchange(t *testing.T) {
	const name = "PVT-4-1 PVT-4-5 both ends give eight octets of one form"
	for _, tt := range []struct {
		name string
		cfg  *Settings
		caps func(*fabric.Capabilities)
		want []byte
	}{
		{"defaults", nil, nil, []byte{0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3}},
		{"PVT-4.2-1 the least", &Settings{InlineSend: 1024, InlineRecv: 1024}, nil, []byte{0xf6, 0xab, 0x0e, 0x18, 1, 1, 0, 0}},
		{"PVT-4.2-1 the most", &Settings{InlineSend: 262144, InlineRecv: 262144}, nil, []byte{0xf6, 0xab, 0x0e, 0x18, 1, 1, 255, 255}},
		{"PVT-3.1-1 one of each", &Settings{InlineSend: 2048, InlineRecv: 65536}, nil, []byte{0xf6, 0xab, 0x0e, 0x18, 1, 1, 1, 63}},
		{"PVT-4.2-2 sizes between the steps", &Settings{InlineSend: 4095, InlineRecv: 9000}, nil, []byte{0xf6, 0xab, 0x0e, 0x18, 1, 1, 2, 7}},
		{"PVT-4.1-3 no remote invalidation", &Settings{NoRemoteInvalidation: true}, nil, []byte{0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3}},
		{"PVT-3.2-2 an adapter without remote invalidation", nil,
			func(c *fabric.Capabilities) { c.RemoteInvalidate = false }, []byte{0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3}},
		{"PVT-1-1 not wanted", &Settings{NoPrivateData: true}, nil, nil},
	} {
		t.Run(name+"/"+tt.name, func(t *testing.T) {
			check := func(p *peer) {
				t.Helper()
				if !bytes.Equal(p.got, tt.want) {
					t.Errorf("private data is %x, want %x", p.got, tt.want)
				}
			}
			for _, on := range []func(*peer){
				func(p *peer) { clientOf(t, p, tt.cfg, func(p *peer, _ *Client) { check(p) }) },
				func(p *peer) { testServerOf(t, p, tt.cfg, func(p *peer, _ *Server, _ *testService) { check(p) }) },
			} {
				p := newPeer(t)
				if tt.caps != nil {
					tt.caps(&p.caps)
				}
				on(p)
			}
		})
	}

	t.Run("PVT-4.2-1 sizes that no message can express are refused", func(t *testing.T) {
		for _, size := range []int{-1, 1, 1023, 262145} {
			for _, cfg := range []*Settings{{InlineSend: size}, {InlineRecv: size}} {
				if _, err := NewServer(cfg.Server()); err == nil {
					t.Errorf("%+v is accepted", cfg)
				}
			}
		}
	})
}

// thresholds are pairs of sizes of this end and of the peer, and the smaller ones.
var thresholds = func() (list []threshold) {
	for _, n := range []int{1024, 2048, 4096, 65536, 262144} {
		list = append(list,
			threshold{262144, 262144, n, 262144, 262144, n},
			threshold{n, 262144, 262144, 262144, n, 262144},
			threshold{262144, 262144, 262144, n, n, 262144},
			threshold{262144, n, 262144, 262144, 262144, n},
			threshold{n, n, n, n, n, n})
	}
	return append(list,
		threshold{5000, 5000, 262144, 262144, 4096, 4096}, // not multiples of 1024
		threshold{2048, 3072, 8192, 8192, 2048, 3072},
		threshold{8192, 8192, 2048, 3072, 3072, 2048})
}()

type threshold struct {
	ownSend, ownRecv, peerSend, peerRecv int

	send, recv int // in force for messages of this end, and of the peer
}

func (th *threshold) cfg() *Settings {
	return &Settings{InlineSend: th.ownSend, InlineRecv: th.ownRecv, Credits: 2}
}

// TestThresholdsClient checks that calls up to the threshold are inline and longer ones are not, and that replies of
// the size that this end offers to receive arrive.
func TestThresholdsClient(t *testing.T) {
	for _, th := range thresholds {
		t.Run(fmt.Sprintf("PVT-3.1-1 PVT-3.1-3 PVT-4.2-4 PVT-4.2-6 %+v", th), func(t *testing.T) {
			clientOf(t, greeting(t, hello(false, th.peerSend, th.peerRecv)), th.cfg(), func(p *peer, cl *Client) {
				if i := cl.Info(); i.InlineSend != th.send || i.InlineRecv != th.recv || !i.PrivateData {
					t.Errorf("thresholds %d and %d", i.InlineSend, i.InlineRecv)
				}
				for _, over := range []int{0, 4} {
					call := &rpc.Call{Prog: testProg, Vers: 1, Args: bytes.Repeat([]byte{1}, th.send-68+over)}
					done := async(cl, bg, call)
					s := p.next("a call at the threshold, or over it")
					if inline := word(s.msg, 3) == uint32(rpcrdma.ProcMsg); inline != (over == 0) || len(s.msg) > th.send {
						t.Errorf("%d bytes over the threshold: a Send of %d, inline: %v", over, len(s.msg), inline)
					}
					results := bytes.Repeat([]byte{2}, th.recv-28-24)
					p.reply(rpcrdma.Header{XID: word(s.msg, 0)}, results...) // fails if the receive is shorter
					if err := outcome(t, done); err != nil || !bytes.Equal(call.Results, results) {
						t.Errorf("call returned %v with %d bytes, want %d", err, len(call.Results), len(results))
					}
				}
			})
		})
	}
}

// TestThresholdsServer checks the thresholds for a server's calls and replies.
func TestThresholdsServer(t *testing.T) {
	for _, th := range thresholds {
		t.Run(fmt.Sprintf("PVT-3.1-1 PVT-3.1-3 PVT-4.2-5 PVT-4.2-6 %+v", th), func(t *testing.T) {
			testServerOf(t, greeting(t, hello(false, th.peerSend, th.peerRecv)), th.cfg(), func(p *peer, _ *Server, _ *testService) {
				fit := (th.send - 28 - 24) / 4
				for over := range 2 {
					args := make([]byte, th.recv-68) // fails if the receive is shorter
					copy(args, xdr.AppendUint32(nil, uint32(fit+over)))
					p.send(callBytes(rpcrdma.Header{XID: 9}, procLong, args...), 0)
					s := p.next("a reply at the threshold, or an RDMA_ERROR")
					if over == 0 && len(s.msg) != th.send || over > 0 && word(s.msg, 3) != uint32(rpcrdma.ProcError) {
						t.Errorf("%d words over the threshold: a Send of %d, RPC-over-RDMA message %d", over, len(s.msg), word(s.msg, 3))
					}
				}
			})
		})
	}
}

// TestPrivateDataNone checks that a peer without this protocol's private data is treated as if it had stated 1024 bytes
// and no remote invalidation.
func TestPrivateDataNone(t *testing.T) {
	for what, b := range noMessage {
		t.Run("PVT-5.1-1 PVT-5.2-2 PVT-5.2-3 PVT-3.1-2 PVT-6-1 "+what, func(t *testing.T) {
			clientOf(t, greeting(t, b), nil, func(p *peer, cl *Client) {
				if i := cl.Info(); i.InlineSend != 1024 || i.InlineRecv != 1024 || i.RemoteInvalidation || i.PrivateData {
					t.Errorf("the client has %+v", i)
				}
				async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: make([]byte, 1024-68+4)})
				if h, _ := p.message("a call over 1024 bytes"); h.Proc != rpcrdma.ProcNomsg {
					t.Errorf("the call is %v", h.Proc)
				}
			})
			testServerOf(t, greeting(t, b), nil, func(p *peer, _ *Server, _ *testService) {
				mem := p.offer(5, make([]byte, 9000))
				p.send(callBytes(rpcrdma.Header{XID: 9, HasReply: true, Reply: rpcrdma.WriteChunk{mem}},
					procLong, xdr.AppendUint32(nil, (1024-48-24)/4+1)...), 0)
				s := p.next("a reply over 1024 bytes")
				if word(s.msg, 3) != uint32(rpcrdma.ProcNomsg) {
					t.Errorf("a reply inline, of %d bytes", len(s.msg))
				}
				if s.inv != 0 {
					t.Errorf("the reply invalidates %d", s.inv)
				}
			})
		})
	}
}

// TestPrivateDataFound checks that the message is found at any position, whatever surrounds it.
func TestPrivateDataFound(t *testing.T) {
	said := hello(true, 2048, 3072)
	check := func(t *testing.T, b []byte) {
		t.Helper()
		clientOf(t, greeting(t, b), nil, func(_ *peer, cl *Client) {
			if i := cl.Info(); i.InlineSend != 3072 || i.InlineRecv != 2048 || !i.RemoteInvalidation {
				t.Errorf("%x: the client has %+v", b, i)
			}
		})
		testServerOf(t, greeting(t, b), nil, func(p *peer, s *Server, _ *testService) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for c := range s.conns {
				if i := c.info(); i.InlineSend != 3072 || i.InlineRecv != 2048 || !i.RemoteInvalidation {
					t.Errorf("%x: the server has %+v", b, i)
				}
			}
		})
	}
	t.Run("PVT-5.2-1 PVT-5-1 at any offset, with others' octets on both sides", func(t *testing.T) {
		for at := range 48 {
			b := bytes.Repeat([]byte{0xf6}, 56) // each could be where the identifier begins
			copy(b[at:], said)
			check(t, b)
		}
	})
	t.Run("PVT-5.2-3 behind an identifier that is none of version 1", func(t *testing.T) {
		check(t, append(version(2), said...))
		check(t, append(version(2)[:5], said...))
		check(t, append([]byte{0xf6, 0xab, 0x0e}, said...))
	})
	t.Run("PVT-4-9 with reserved bits", func(t *testing.T) {
		b := bytes.Clone(said)
		b[5] = 0xff
		check(t, b)
		b[5] = 0xfe
		clientOf(t, greeting(t, b), nil, func(_ *peer, cl *Client) {
			if i := cl.Info(); i.RemoteInvalidation || i.InlineSend != 3072 {
				t.Errorf("without R: the client has %+v", i)
			}
		})
	})
}

// TestPrivateDataOptional checks that messages are the same with and without private data, and that all four
// combinations of ends understand each other.
func TestPrivateDataOptional(t *testing.T) {
	t.Run("PVT-1-1 PVT-5-1 no message of version 1 changes", func(t *testing.T) {
		var calls, replies [][]byte
		for _, cfg := range []*Settings{nil, {NoPrivateData: true}} {
			for _, b := range [][]byte{nil, hello(true, 4096, 4096)} {
				clientOf(t, greeting(t, b), cfg, func(p *peer, cl *Client) {
					call := &rpc.Call{Prog: testProg, Vers: 1, Args: []byte("args")}
					done := async(cl, bg, call)
					s := p.next("a call")
					p.reply(rpcrdma.Header{XID: word(s.msg, 0)}, 1, 2, 3, 4)
					if err := outcome(t, done); err != nil || !bytes.Equal(call.Results, []byte{1, 2, 3, 4}) {
						t.Errorf("call returned %v with %x", err, call.Results)
					}
					clear(s.msg[:4]) // the xids differ
					clear(s.msg[28:32])
					calls = append(calls, s.msg)
				})
				testServerOf(t, greeting(t, b), cfg, func(p *peer, _ *Server, _ *testService) {
					p.send(callBytes(rpcrdma.Header{XID: 9}, procEcho, opaque("hello")...), 0)
					replies = append(replies, p.next("the reply").msg)
				})
			}
		}
		for i := range calls {
			if !bytes.Equal(calls[i], calls[0]) {
				t.Errorf("a call is\n%x, another\n%x", calls[i], calls[0])
			}
			if !bytes.Equal(replies[i], replies[0]) {
				t.Errorf("a reply is\n%x, another\n%x", replies[i], replies[0])
			}
		}
	})

	t.Run("PVT-4.1-3 PVT-5.1-1 an end that gives none takes 1024 bytes and invalidates nothing", func(t *testing.T) {
		cfg := &Settings{NoPrivateData: true}
		clientOf(t, greeting(t, hello(true, 8192, 8192)), cfg, func(_ *peer, cl *Client) {
			// The peer's receives are as long as it says; it believes ours to be 1024 long.
			if i := cl.Info(); i.InlineRecv != 1024 || i.RemoteInvalidation {
				t.Errorf("the client has %+v", i)
			}
		})
		testServerOf(t, greeting(t, hello(true, 8192, 8192)), cfg, func(p *peer, _ *Server, _ *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 9, Writes: []rpcrdma.WriteChunk{{p.offer(5, make([]byte, 99))}}},
				procEcho, opaque("x")...), 0)
			if s := p.next("the reply"); s.inv != 0 {
				t.Errorf("the reply invalidates %d", s.inv)
			}
		})
	})
}

// TestPrivateDataFixed checks that settings last as long as their connection.
func TestPrivateDataFixed(t *testing.T) {
	t.Run("PVT-4-2 nothing changes on a connection", func(t *testing.T) {
		clientOf(t, greeting(t, hello(true, 2048, 2048)), nil, func(p *peer, cl *Client) {
			before := cl.Info()
			p.hello = hello(false, 8192, 8192) // as if it spoke again
			for range 3 {
				done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: make([]byte, 2048-68)})
				s := p.next("a call at the threshold")
				if len(s.msg) != 2048 {
					t.Errorf("a Send of %d bytes", len(s.msg))
				}
				p.reply(rpcrdma.Header{XID: word(s.msg, 0), Credit: 1})
				if err := outcome(t, done); err != nil {
					t.Fatal(err)
				}
			}
			if after := cl.Info(); after != before {
				t.Errorf("settings were\n%+v and are\n%+v", before, after)
			}
		})
	})

	t.Run("PVT-4-3 the next connection has its own", func(t *testing.T) {
		hellos := []struct {
			b          []byte
			send, recv int
			inv        bool
		}{
			{hello(true, 2048, 3072), 3072, 2048, true},
			{nil, 1024, 1024, false},
			{hello(false, 8192, 8192), 8192, 8192, false},
			{hello(true, 1024, 8192), 8192, 1024, true},
		}
		cfg := &Settings{InlineSend: 8192, InlineRecv: 8192}
		same := func(what string, i rpc.ConnInfo, k int) {
			t.Helper()
			if h := hellos[k]; i.InlineSend != h.send || i.InlineRecv != h.recv || i.RemoteInvalidation != h.inv {
				t.Errorf("%s %d has %+v", what, k, i)
			}
		}
		clientOver(t, greeting(t, hellos[0].b), cfg, nil, func(ps *peers, cl *Client) {
			ps.mu.Lock()
			p := ps.last
			ps.mu.Unlock()
			same("the client's connection", cl.Info(), 0)
			proven(p, cl)
			for k := range hellos {
				h := hellos[(k+1)%len(hellos)] // the first one's again in the end
				q := ps.next()
				q.hello = h.b
				time.Sleep(steady) // so that the next one follows at once
				p.hangUp()
				settle()
				done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: make([]byte, h.send-68)})
				s := q.next("a call on the next connection")
				if len(s.msg) != h.send || word(s.msg, 3) != uint32(rpcrdma.ProcMsg) {
					t.Errorf("connection %d: a call at the threshold of %d is a Send of %d, RPC-over-RDMA message %d", k+1, h.send, len(s.msg), word(s.msg, 3))
				}
				q.reply(rpcrdma.Header{XID: word(s.msg, 0)}, make([]byte, h.recv-28-24)...)
				if err := outcome(t, done); err != nil {
					t.Fatal(err)
				}
				same("the client's connection", cl.Info(), (k+1)%len(hellos))
				p = q
			}
			if n := ps.attempts(); n != len(hellos)+1 {
				t.Errorf("%d connections", n)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			s, err := NewServer(cfg.Server())
			if err != nil {
				t.Fatal(err)
			}
			for k, h := range hellos {
				p := greeting(t, h.b)
				l, err := s.Listen(context.Background(), p, "script:20049")
				if err != nil {
					t.Fatal(err)
				}
				served := make(chan error, 1)
				go func() { served <- s.Serve(l) }()
				synctest.Wait()
				s.mu.Lock()
				for c := range s.conns {
					same("the server's connection", c.info(), k)
				}
				if len(s.conns) != 1 {
					t.Errorf("%d connections", len(s.conns))
				}
				s.mu.Unlock()
				p.hangUp()
				l.Close()
				if err := <-served; !errors.Is(err, net.ErrClosed) {
					t.Errorf("Serve returned %v", err)
				}
				synctest.Wait()
			}
			s.Close()
		})
	})
}

// TestInvalidation checks which handle each reply invalidates.
func TestInvalidation(t *testing.T) {
	chunk := func(p *peer, handle uint32) []rpcrdma.WriteChunk {
		return []rpcrdma.WriteChunk{{p.offer(handle, make([]byte, 99))}}
	}

	t.Run("PVT-4.1-2 each reply names a handle of its own call", func(t *testing.T) {
		testServerOf(t, greeting(t, hello(true, 4096, 4096)), nil, func(p *peer, _ *Server, _ *testService) {
			for _, xid := range []uint32{50, 51, 52} { // all are there before the first is answered
				p.send(callBytes(rpcrdma.Header{XID: xid, Writes: chunk(p, xid+1000)}, procEcho, opaque("x")...), 0)
			}
			for range 3 {
				s := p.next("a reply")
				if xid := word(s.msg, 0); s.inv != xid+1000 {
					t.Errorf("the reply to call %d invalidates %d", xid, s.inv)
				}
			}
		})
	})

	t.Run("PVT-3.2-2 an adapter that cannot does not, whatever the peer says", func(t *testing.T) {
		p := greeting(t, hello(true, 4096, 4096))
		p.caps.RemoteInvalidate = false
		testServerOf(t, p, nil, func(p *peer, _ *Server, _ *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 9, Writes: chunk(p, 5)}, procEcho, opaque("x")...), 0)
			if s := p.next("the reply"); s.inv != 0 {
				t.Errorf("the reply invalidates %d", s.inv)
			}
		})
	})

	t.Run("PVT-3.2-1 PVT-3.2-4 a reply closes the one handle that it names, and the call closes the rest", func(t *testing.T) {
		clientOf(t, greeting(t, hello(true, 4096, 4096)), nil, func(p *peer, cl *Client) {
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{
				{Buf: make([]byte, 5000)}, {Buf: make([]byte, 5000)}}})
			h, _ := p.message("a call with two chunks")
			p.holdInv = true
			first, second := h.Writes[0][0], h.Writes[1][0]
			p.send(p.replyBytes(rpcrdma.Header{XID: h.XID}, nil), first.Handle)
			synctest.Wait()
			for _, wr := range p.heldInv {
				if wr.Op != fabric.WCLocalInv {
					t.Errorf("%v is held back", wr)
				}
			}
			if n := len(p.heldInv); n != 1 {
				t.Errorf("%d local invalidations, want one, of handle %#x", n, second.Handle)
			}
			select {
			case err := <-done:
				t.Errorf("the call returned %v before its memory was closed", err)
			default:
			}
			p.completeInv()
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
			if n := cl.Stats().Invalidated; n != 1 {
				t.Errorf("%d replies are counted as having invalidated", n)
			}
		})
	})

	t.Run("PVT-4.1-4 calls invalidate nothing", func(t *testing.T) {
		clientOf(t, greeting(t, hello(true, 4096, 4096)), nil, func(p *peer, cl *Client) {
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 5000)}}})
			if s := p.next("a call with a chunk"); s.inv != 0 {
				t.Errorf("it invalidates %d", s.inv)
			}
		})
	})
}
