package transport

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Features that RFC 8166 has removed from the protocol, and Config.RFC5666 turns on.

// paddedProgram answers two opaques with the second in front of the first.
func paddedProgram(padded, readReplies bool) rpc.Program {
	return rpc.Program{Number: testProg, Low: 1, High: 1, Padded: padded, ReadReplies: readReplies,
		Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			d := req.Decoder()
			a, b := d.Opaque(1<<20), d.Opaque(1<<20)
			if d.End() != nil {
				res.Fail(4) // GARBAGE_ARGS
				return
			}
			res.AddItem(bytes.Clone(b), nil)
			res.AddItem(bytes.Clone(a), nil)
		})}
}

func letters(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(i%26)
	}
	return b
}

func TestPaddedCalls(t *testing.T) {
	old := &RFC5666{Align: 64, Thresh: 512}

	t.Run("V1-3.9-1 V1-3.9-2 V1-4.1-9 what a client sends", func(t *testing.T) {
		for _, size := range []int{511, 512, 513, 1000} {
			client(t, &Settings{RFC5666: old}, func(p *peer, cl *Client) {
				data := letters(size)
				async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: xdr.AppendUint32(nil, uint32(size)), ReadItems: []rpc.ReadItem{{Offset: 4, Data: data}}})
				h, payload := p.message("the call")
				at := bytes.Index(payload, data)
				if size < 512 {
					if h.Proc != rpcrdma.ProcMsg || at != 44 {
						t.Errorf("%d bytes: %v, data at %d", size, h.Proc, at)
					}
					return
				}
				if h.Proc != rpcrdma.ProcMsgp || h.Align != 64 || h.Thresh != 512 {
					t.Errorf("%d bytes: header is %+v", size, h)
				}
				if at != 64 || len(payload) != 64+xdr.Padded(size) {
					t.Errorf("%d bytes: the data begins at %d of %d", size, at, len(payload))
				}
			})
		}
	})

	t.Run("V1-3.9-1 what is as long and not for a chunk keeps a call from being padded", func(t *testing.T) {
		client(t, &Settings{RFC5666: old}, func(p *peer, cl *Client) {
			args := append(make([]byte, 512), 0, 0, 2, 88)
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: args, ReadItems: []rpc.ReadItem{{Offset: len(args), Data: letters(600)}}})
			if h, _ := p.message("the call"); h.Proc != rpcrdma.ProcMsg {
				t.Errorf("sent as %v", h.Proc)
			}
		})
	})

	t.Run("V1-3.9-1 nobody pads without being told to", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: xdr.AppendUint32(nil, 600), ReadItems: []rpc.ReadItem{{Offset: 4, Data: letters(600)}}})
			if h, _ := p.message("the call"); h.Proc != rpcrdma.ProcMsg {
				t.Errorf("sent as %v", h.Proc)
			}
		})
	})

	t.Run("V1-3.9-3 V1-3.9-4 each message's own alignment and threshold count", func(t *testing.T) {
		serverOf(t, newPeer(t), &Settings{RFC5666: &RFC5666{}}, []rpc.Program{paddedProgram(true, false)}, func(p *peer, s *Server) {
			for i, m := range []rpcrdma.Header{{Align: 64, Thresh: 100}, {Align: 512, Thresh: 30}, {Align: 1, Thresh: 0}, {Align: 4096, Thresh: 1000}, {Align: 7, Thresh: 100}} {
				for _, size := range []int{int(m.Thresh) - 1, int(m.Thresh), int(m.Thresh) + 1, 33} {
					size = max(size, 0)
					m.XID, m.Proc = uint32(100*i+size), rpcrdma.ProcMsgp
					m.Vers, m.Credit = 1, 8
					head := rpcrdma.AppendHeader(nil, &m)
					msg := appendCall(nil, m.XID, 1)
					for _, data := range [][]byte{letters(size), letters(40)} {
						msg = xdr.AppendUint32(msg, uint32(len(data)))
						if m.Align > 1 && len(data) >= int(m.Thresh) {
							for len(msg)%int(m.Align) != 0 {
								msg = append(msg, 0xff)
							}
						}
						msg = append(msg, data...)
						msg = append(msg, zeros[:xdr.Pad(len(data))]...)
					}
					if len(head)+len(msg) > 4096 {
						continue
					}
					p.send(append(head, msg...), 0)
					_, payload := p.message("the reply")
					got := accepted(t, payload, m.XID)
					if want := append(opaque(string(letters(40))), opaque(string(letters(size)))...); !bytes.Equal(got, want) {
						t.Fatalf("align %d, thresh %d, %d bytes: results are %x", m.Align, m.Thresh, size, got)
					}
				}
			}
		})
	})

	t.Run("V1-3.9-4 padding beyond the message is an argument that does not decode", func(t *testing.T) {
		serverOf(t, newPeer(t), &Settings{RFC5666: &RFC5666{}}, []rpc.Program{paddedProgram(true, false)}, func(p *peer, s *Server) {
			m := rpcrdma.Header{XID: 3, Vers: 1, Credit: 8, Proc: rpcrdma.ProcMsgp, Align: 1 << 31, Thresh: 1}
			p.send(append(rpcrdma.AppendHeader(nil, &m), appendCall(nil, 3, 1, opaque("hello")...)...), 0)
			if _, payload := p.message("the reply"); word(payload, 5) != 4 {
				t.Errorf("reply is %x, want GARBAGE_ARGS", payload)
			}
		})
	})

	t.Run("V1-3.9-4 padding with no room behind it for the data, whatever is missing, is one, too", func(t *testing.T) {
		serverOf(t, newPeer(t), &Settings{RFC5666: &RFC5666{}}, []rpc.Program{paddedProgram(true, false)}, func(p *peer, s *Server) {
			for align := uint32(2); align <= 80; align++ { // 2 of the 6 bytes after the length word
				m := rpcrdma.Header{XID: align, Vers: 1, Credit: 8, Proc: rpcrdma.ProcMsgp, Align: align, Thresh: 1}
				args := append(xdr.AppendUint32(nil, 2), make([]byte, 6)...)
				p.send(append(rpcrdma.AppendHeader(nil, &m), appendCall(nil, align, 1, args...)...), 0)
				if _, payload := p.message("the reply"); word(payload, 5) != 4 {
					t.Fatalf("align %d: reply is %x, want GARBAGE_ARGS", align, payload)
				}
			}
		})
	})

	t.Run("V1-3.9-3 a program that does not skip padding is spared it", func(t *testing.T) {
		serverOf(t, newPeer(t), &Settings{RFC5666: &RFC5666{}}, []rpc.Program{paddedProgram(false, false)}, func(p *peer, s *Server) {
			m := rpcrdma.Header{XID: 3, Vers: 1, Credit: 8, Proc: rpcrdma.ProcMsgp, Align: 64, Thresh: 100}
			p.send(append(rpcrdma.AppendHeader(nil, &m), appendCall(nil, 3, 1, opaque("hello")...)...), 0)
			if h, _ := p.message("the answer"); h.Proc != rpcrdma.ProcError || h.Err != rpcrdma.ErrChunk || h.XID != 3 {
				t.Errorf("answer is %+v", h)
			}
		})
	})
}

// lentArgs are arguments with results that a server lends when it sends at most 1024 bytes inline:
// 3000 bytes, and 10.
func lentArgs() []byte {
	return append(opaque(string(letters(10))), opaque(string(letters(3000)))...)
}

// lends runs script with a server that has answered lentArgs in read chunks: h is the header
// of the reply, and RDMA_DONE has not been sent.
func lends(t *testing.T, cfg Settings, script func(p *peer, s *Server, h rpcrdma.Header)) {
	t.Helper()
	cfg.InlineSend = 1024
	if cfg.RFC5666 == nil {
		cfg.RFC5666 = &RFC5666{}
	}
	serverOf(t, newPeer(t), &cfg, []rpc.Program{paddedProgram(false, true)}, func(p *peer, s *Server) {
		p.send(callBytes(rpcrdma.Header{XID: 3}, 1, lentArgs()...), 0)
		h, payload := p.message("the reply")
		if h.Proc != rpcrdma.ProcMsg || len(h.Reads) != 2 || h.Reads[0].Position != 28 || h.Reads[1].Position != 28+3000+4 || len(payload) != 24+8 {
			t.Fatalf("reply is %+v with %d bytes", h, len(payload))
		}
		if got := p.read(h.Reads[:1]); !bytes.Equal(got, letters(3000)) {
			t.Fatal("the first chunk has other data")
		}
		script(p, s, h)
	})
}

// doneBytes is an RDMA_DONE.
func doneBytes(xid uint32) []byte {
	return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 8, Proc: rpcrdma.ProcDone})
}

// lendsOne exposes data and returns a read list of this one chunk.
func (p *peer) lendsOne(pos uint32, data []byte) []rpcrdma.ReadSegment {
	return []rpcrdma.ReadSegment{{Position: pos, Segment: p.offer(0xfeed, data)}}
}

// TestReadRepliesLent checks that a server exposes its results until RDMA_DONE or the end of the connection.
func TestReadRepliesLent(t *testing.T) {
	t.Run("V1-3.8-5 V1-3.8-6 memory is lent until RDMA_DONE, which costs a receive that is posted again", func(t *testing.T) {
		lends(t, Settings{}, func(p *peer, s *Server, h rpcrdma.Header) {
			if n := p.openWindows(); n != 2 {
				t.Fatalf("%d windows are open, want 2", n)
			}
			before := p.posted()
			for range 20 { // another reply's name
				p.send(doneBytes(99), 0)
				synctest.Wait()
			}
			if n := p.openWindows(); n != 2 {
				t.Errorf("%d windows are open after RDMA_DONE for something else", n)
			}
			p.send(doneBytes(3), 0)
			if n := p.openWindows(); n != 0 {
				t.Errorf("%d windows are open after RDMA_DONE", n)
			}
			p.quiet("RDMA_DONE gets no answer")
			if after := p.posted(); after < before-recvBatch {
				t.Errorf("%d receives are posted, before it were %d", after, before)
			}
			p.send(callBytes(rpcrdma.Header{XID: 4}, 1, append(opaque("a"), opaque("b")...)...), 0)
			if h, _ := p.message("the next reply"); h.Credit < 2 { // V1-3.8-7 V1-3.8-9
				t.Errorf("grant is %d", h.Credit)
			}
		})
	})

	t.Run("V1-3.8-3 a client that does not say RDMA_DONE loses its connection", func(t *testing.T) {
		lends(t, Settings{RFC5666: &RFC5666{DoneTimeout: 5 * time.Second}}, func(p *peer, s *Server, h rpcrdma.Header) {
			time.Sleep(4 * time.Second)
			if p.openWindows() != 2 || p.over() {
				t.Fatal("it ended too soon")
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if !p.over() || p.openWindows() != 0 {
				t.Errorf("the connection lives, %d windows are open", p.openWindows())
			}
		})
	})

	t.Run("V1-3.8-7 beside the calls of the whole grant there is room for RDMA_DONE, each time", func(t *testing.T) {
		for _, credits := range []int{1, 2, 4} {
			cfg := &Settings{Credits: credits, InlineSend: 1024, RFC5666: &RFC5666{}}
			serverOf(t, newPeer(t), cfg, []rpc.Program{paddedProgram(false, true)}, func(p *peer, s *Server) {
				for round := range 3 * recvBatch { // receives are posted again some together
					for i := range credits {
						p.send(callBytes(rpcrdma.Header{XID: uint32(round*credits + i), Credit: uint32(credits)}, 1, lentArgs()...), 0)
					}
					var lent []uint32
					for range credits {
						h, _ := p.message("a reply")
						if len(h.Reads) == 0 || int(h.Credit) != credits {
							t.Fatalf("the reply is %+v", h)
						}
						lent = append(lent, h.XID)
					}
					// It may send as many calls, and owes RDMA_DONE for each reply.
					if n := p.posted(); n < credits+len(lent) {
						t.Fatalf("round %d: %d receives for %d calls and %d RDMA_DONE", round, n, credits, len(lent))
					}
					for _, xid := range lent {
						p.send(doneBytes(xid), 0)
					}
				}
				if n := p.openWindows(); n != 0 {
					t.Errorf("%d windows are open", n)
				}
			})
		}
	})

	t.Run("V1-4.2-6 RDMA_DONE for nothing, while replies are being made", func(t *testing.T) {
		gate := make(chan struct{})
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, ReadReplies: true, Handler: rpc.HandlerFunc(func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
			<-gate
			res.AddItem(letters(9000), nil)
		})}
		serverOf(t, newPeer(t), &Settings{RFC5666: &RFC5666{}}, []rpc.Program{prog}, func(p *peer, s *Server) {
			gate = make(chan struct{})
			const calls = 4
			for xid := range uint32(calls) {
				p.send(callBytes(rpcrdma.Header{XID: xid + 1}, 1), 0)
			}
			synctest.Wait()
			close(gate)
			for range 5 {
				p.send(doneBytes(99), 0)
			}
			for range calls {
				h, _ := p.message("a reply")
				p.send(doneBytes(h.XID), 0)
			}
			if n := p.openWindows(); n != 0 {
				t.Errorf("%d windows are open", n)
			}
		})
	})

	t.Run("the end of the connection ends the loan", func(t *testing.T) {
		lends(t, Settings{}, func(p *peer, s *Server, h rpcrdma.Header) { p.hangUp() })
	})
}

// TestReadRepliesPlaced checks replies that need no read chunks, or may not have them.
func TestReadRepliesPlaced(t *testing.T) {
	big := letters(6000)

	t.Run("V1-3.4-5 V1-3.8-4 without the switch, or the program's word, there are none", func(t *testing.T) {
		for _, c := range []struct {
			o       *RFC5666
			allowed bool
		}{{nil, true}, {&RFC5666{}, false}} {
			serverOf(t, newPeer(t), &Settings{RFC5666: c.o, InlineSend: 1024}, []rpc.Program{paddedProgram(false, c.allowed)}, func(p *peer, s *Server) {
				p.send(callBytes(rpcrdma.Header{XID: 3}, 1, lentArgs()...), 0)
				if h, _ := p.message("the answer"); h.Proc != rpcrdma.ProcError || h.Err != rpcrdma.ErrChunk {
					t.Errorf("answer is %+v", h)
				}
			})
		}
	})

	t.Run("V1-3.8-4 what fits inline or into the chunks of the call is not lent", func(t *testing.T) {
		serverOf(t, newPeer(t), &Settings{InlineSend: 1024, RFC5666: &RFC5666{}}, []rpc.Program{paddedProgram(false, true)}, func(p *peer, s *Server) {
			chunk := func(handle uint32, n int) rpcrdma.WriteChunk {
				return rpcrdma.WriteChunk{p.offer(handle, make([]byte, n))}
			}
			few := append(opaque("a"), opaque("b")...)
			for what, call := range map[string][]byte{
				"inline":               callBytes(rpcrdma.Header{XID: 3}, 1, few...),
				"into the reply chunk": callBytes(rpcrdma.Header{XID: 3, HasReply: true, Reply: chunk(1, 4000)}, 1, lentArgs()...),
				"into the write list":  callBytes(rpcrdma.Header{XID: 3, Writes: []rpcrdma.WriteChunk{chunk(2, 3000), chunk(3, 10)}}, 1, lentArgs()...),
				"into both": callBytes(rpcrdma.Header{XID: 3, Writes: []rpcrdma.WriteChunk{chunk(4, 3000)},
					HasReply: true, Reply: chunk(5, 4000)}, 1, lentArgs()...),
			} {
				p.send(call, 0)
				h, _ := p.message("the reply")
				if h.Proc == rpcrdma.ProcError || len(h.Reads) != 0 {
					t.Errorf("%s: the reply is %+v", what, h)
				}
				if n := p.openWindows(); n != 0 {
					t.Errorf("%s: %d windows are open", what, n)
				}
			}
		})
	})

	t.Run("V1-5.1-4 a reply whose head does not fit goes as a whole", func(t *testing.T) {
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, ReadReplies: true, Handler: rpc.HandlerFunc(func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
			res.Results = append(res.Results, big...)
			res.AddItem(letters(5), nil)
			res.Results = append(res.Results, 1, 2, 3, 4)
		})}
		serverOf(t, newPeer(t), &Settings{RFC5666: &RFC5666{}}, []rpc.Program{prog}, func(p *peer, s *Server) {
			p.send(callBytes(rpcrdma.Header{XID: 3}, 1), 0)
			h, payload := p.message("the reply")
			if h.Proc != rpcrdma.ProcNomsg || len(h.Reads) != 1 || h.Reads[0].Position != 0 || len(payload) != 0 {
				t.Fatalf("reply is %+v with %d bytes", h, len(payload))
			}
			want := append(append([]byte(nil), big...), opaque(string(letters(5)))...)
			if got := accepted(t, p.read(h.Reads), 3); !bytes.Equal(got, append(want, 1, 2, 3, 4)) {
				t.Error("the chunk has another message")
			}
			p.send(doneBytes(3), 0)
			if n := p.openWindows(); n != 0 {
				t.Errorf("%d windows are open", n)
			}
		})
	})
}

// TestReadRepliesFetched checks that a client fetches the read chunks of a reply and sends RDMA_DONE.
func TestReadRepliesFetched(t *testing.T) {
	big := letters(6000)

	t.Run("V1-3.5-3 a client fetches the chunks, says RDMA_DONE once, and with the reply's xid", func(t *testing.T) {
		client(t, &Settings{RFC5666: &RFC5666{}}, func(p *peer, cl *Client) {
			call := &rpc.Call{Prog: testProg, Vers: 1}
			over := async(cl, bg, call)
			h, _ := p.message("the call")
			p.noReads = true
			p.reply(rpcrdma.Header{XID: h.XID, Reads: p.lendsOne(28, big)}, 0, 0, 0x17, 0x70)
			p.quiet("nothing has been fetched yet")
			p.mu.Lock()
			p.doReads()
			p.notify()
			p.mu.Unlock()
			d := p.next("RDMA_DONE")
			if !bytes.Equal(d.msg, doneBytes(h.XID)) && (len(d.msg) != 16 || word(d.msg, 0) != h.XID || word(d.msg, 3) != 3) {
				t.Errorf("sent %x", d.msg)
			}
			if err := outcome(t, over); err != nil || !bytes.Equal(call.Results, opaque(string(big))) {
				t.Errorf("%v, %d bytes of results", err, len(call.Results))
			}
			p.quiet("one RDMA_DONE is enough")
		})
	})

	t.Run("V1-5.1-4 a whole reply in a read chunk", func(t *testing.T) {
		client(t, &Settings{RFC5666: &RFC5666{}}, func(p *peer, cl *Client) {
			call := &rpc.Call{Prog: testProg, Vers: 1}
			over := async(cl, bg, call)
			h, _ := p.message("the call")
			msg := p.replyBytes(rpcrdma.Header{XID: h.XID}, big)[28:]
			p.send(p.replyBytes(rpcrdma.Header{XID: h.XID, Proc: rpcrdma.ProcNomsg, Reads: p.lendsOne(0, msg)}, nil), 0)
			p.next("RDMA_DONE")
			if err := outcome(t, over); err != nil || !bytes.Equal(call.Results, big) {
				t.Errorf("%v, %d bytes of results", err, len(call.Results))
			}
		})
	})

	t.Run("V1-3.8-8 RDMA_DONE counts against the credits", func(t *testing.T) {
		client(t, &Settings{RFC5666: &RFC5666{}}, func(p *peer, cl *Client) {
			first := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, _ := p.message("the first call")
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
			if err := outcome(t, first); err != nil {
				t.Fatal(err)
			}
			a := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			ha, _ := p.message("call a")
			b := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			hb, _ := p.message("call b")
			c := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			p.quiet("two calls use both credits")
			p.noReads = true
			p.reply(rpcrdma.Header{XID: ha.XID, Credit: 2, Reads: p.lendsOne(24, big)})
			p.quiet("RDMA_DONE is owed")
			p.mu.Lock()
			p.holdSends = true
			p.doReads()
			p.notify()
			p.mu.Unlock()
			if d := p.next("RDMA_DONE"); len(d.msg) != 16 {
				t.Fatalf("sent %x", d.msg)
			}
			p.quiet("RDMA_DONE has not left yet")
			p.completeSends()
			hc, _ := p.message("call c")
			p.reply(rpcrdma.Header{XID: hb.XID, Credit: 2})
			p.reply(rpcrdma.Header{XID: hc.XID, Credit: 2})
			if err := errors.Join(outcome(t, a), outcome(t, b), outcome(t, c)); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("a read list that makes no message fails the call, and frees the server", func(t *testing.T) {
		client(t, &Settings{RFC5666: &RFC5666{}}, func(p *peer, cl *Client) {
			over := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, _ := p.message("the call")
			p.reply(rpcrdma.Header{XID: h.XID, Reads: p.lendsOne(4000, big)})
			if d := p.next("RDMA_DONE"); len(d.msg) != 16 {
				t.Fatalf("sent %x", d.msg)
			}
			var bad *rpc.BadReplyError
			if err := outcome(t, over); !errors.As(err, &bad) {
				t.Errorf("the call returned %v", err)
			}
		})
	})

	t.Run("V1-3.5-2 without the switch a reply with read chunks fails its call, and nothing is fetched", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			over := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, _ := p.message("the call")
			p.reply(rpcrdma.Header{XID: h.XID, Reads: p.lendsOne(28, big)}, 0, 0, 0x17, 0x70)
			var bad *rpc.BadReplyError
			if err := outcome(t, over); !errors.As(err, &bad) {
				t.Errorf("the call returned %v", err)
			}
			p.quiet("no RDMA_DONE")
		})
	})
}

func TestInflatedLengths(t *testing.T) {
	for _, c := range []struct {
		o    *RFC5666
		room int
		want uint32
	}{{nil, 100, 5}, {&RFC5666{}, 100, 5}, {&RFC5666{InflateLengths: true}, 100, 8}, {&RFC5666{InflateLengths: true}, 6, 6}} {
		t.Run("V1-3.7-6 the length of a write chunk with and without padding", func(t *testing.T) {
			testServer(t, &Settings{RFC5666: c.o}, func(p *peer, s *Server, svc *testService) {
				mem := make([]byte, c.room)
				p.send(callBytes(rpcrdma.Header{XID: 5, Writes: []rpcrdma.WriteChunk{{p.offer(0xabc, mem)}}}, procEcho, opaque("hello")...), 0)
				h, _ := p.message("the reply")
				if len(h.Writes) != 1 || h.Writes[0][0].Length != c.want || string(mem[:5]) != "hello" || mem[5] != 0 {
					t.Errorf("%+v: reply is %+v, memory %q", c, h, mem)
				}
			})
		})
	}
}
