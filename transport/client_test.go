package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

var bg = context.Background()

// TestScriptedPeer is an example of a conversation with a scripted peer.
func TestScriptedPeer(t *testing.T) {
	client(t, nil, func(p *peer, cl *Client) {
		done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 7, Args: []byte{0, 0, 0, 42}})
		h, payload := p.message("the call")
		if h.Proc != rpcrdma.ProcMsg || word(payload, 5) != 7 || word(payload, 10) != 42 {
			t.Fatalf("call is %+v %x", h, payload)
		}
		p.reply(rpcrdma.Header{XID: h.XID})
		if err := outcome(t, done); err != nil {
			t.Fatal(err)
		}
	})
}

func TestInlineCall(t *testing.T) {
	t.Run("V1-3.1-1 V1-3.2 V1-4.1-2 a short call is one Send with the RPC message behind 28 bytes", func(t *testing.T) {
		client(t, &Settings{Credits: 32}, func(p *peer, cl *Client) {
			call := &rpc.Call{Prog: testProg, Vers: 1, Proc: 3}
			done := async(cl, bg, call)
			s := p.next("the call")
			if len(s.msg) != 68 {
				t.Fatalf("an AUTH_NONE call without arguments takes %d bytes, want 28+40 (CTX-5531-1)", len(s.msg))
			}
			if word(s.msg, 0) != word(s.msg, 7) {
				t.Error("rdma_xid differs from the RPC message's xid")
			}
			for i, want := range []uint32{1: 1, 2: 32, 3: 0, 4: 0, 5: 0, 6: 0} { // V1-4.1-1, V1-3.3-1, V1-4.1-13
				if i > 0 && word(s.msg, i) != want {
					t.Errorf("header word %d is %d, want %d", i, word(s.msg, i), want)
				}
			}
			p.reply(rpcrdma.Header{XID: word(s.msg, 0)}, 1, 2, 3, 4)
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(call.Results, []byte{1, 2, 3, 4}) {
				t.Errorf("results are %x", call.Results)
			}
			if p.posts != 1 || len(p.ops) != 1 {
				t.Errorf("%d doorbells for %v, want one for the Send (V1-3-1)", p.posts, p.ops)
			}
		})
	})

	t.Run("V1-8-1 an error of RPC is an ordinary reply", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 9})
			h, _ := p.message("the call")
			b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 1, Credit: 1})
			p.send(oncrpc.AppendReply(b, &oncrpc.ReplyHeader{XID: h.XID, AcceptStat: oncrpc.ProgMismatch, Low: 1, High: 3}), 0)
			var re *oncrpc.RPCError
			if err := outcome(t, done); !errors.As(err, &re) || re.High != 3 {
				t.Fatalf("call returned %v", err)
			}
		})
	})
}

func TestCredits(t *testing.T) {
	t.Run("CCP-6.1-4 CTX-8166-1 the second call waits for the first reply, and RDMA_ERROR does not open the window", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			var done []<-chan error
			for range 3 {
				done = append(done, async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1}))
			}
			h, _ := p.message("the first call")
			time.Sleep(2 * time.Second)
			p.quiet("there is no reply yet")
			p.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{
				XID: h.XID, Vers: 1, Credit: 100, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk}), 0)
			h2, _ := p.message("one more call")
			p.quiet("credits in an RDMA_ERROR say nothing (V2-5-2)")
			p.reply(rpcrdma.Header{XID: h2.XID, Credit: 2})
			h3, _ := p.message("the third call")
			p.reply(rpcrdma.Header{XID: h3.XID})
			failed := 0
			for _, d := range done {
				if outcome(t, d) != nil {
					failed++
				}
			}
			if failed != 1 {
				t.Errorf("%d calls failed, want the one that was refused", failed)
			}
		})
	})

	t.Run("V2-5-2 nor does a message that cannot be the reply to its call", func(t *testing.T) {
		for name, msg := range map[string]func(xid uint32) []byte{
			"RDMA_MSGP": func(xid uint32) []byte {
				b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 100, Proc: rpcrdma.ProcMsgp})
				return oncrpc.AppendReply(b, &oncrpc.ReplyHeader{XID: xid})
			},
			"another xid within": func(xid uint32) []byte {
				b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 100})
				return oncrpc.AppendReply(b, &oncrpc.ReplyHeader{XID: xid + 1})
			},
			"half an RPC header": func(xid uint32) []byte {
				b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 100})
				return append(b, oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: xid})[:4]...)
			},
			"a list with no end": func(xid uint32) []byte {
				b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 100})
				b[19] = 2
				return b
			},
		} {
			client(t, nil, func(p *peer, cl *Client) {
				for range 4 {
					async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
				}
				for range 3 {
					h, _ := p.message("a call")
					p.quiet(name + ": one call at a time before the first reply")
					p.send(msg(h.XID), 0)
				}
				h, _ := p.message("the last call")
				p.reply(rpcrdma.Header{XID: h.XID, Credit: 5})
				if synctest.Wait(); cl.Info().Credits != 5 {
					t.Errorf("%s: %d credits after a reply that grants 5", name, cl.Info().Credits)
				}
			})
		}
	})

	open := func(p *peer, cl *Client, credit uint32) {
		done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
		h, _ := p.message("a call")
		p.reply(rpcrdma.Header{XID: h.XID, Credit: credit})
		if err := outcome(p.t, done); err != nil {
			p.t.Fatal(err)
		}
	}

	t.Run("V1-3.3-6 V1-3.3-3 calls in flight never exceed an absolute grant", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			open(p, cl, 4)
			for range 100 {
				async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			}
			var xids []uint32
			for range 4 {
				h, _ := p.message("a call within the grant")
				xids = append(xids, h.XID)
			}
			p.quiet("four calls are in flight")
			p.reply(rpcrdma.Header{XID: xids[2], Credit: 4})
			p.message("one call for the one answered")
			p.quiet("a grant is absolute, not an increment")
		})
	})

	t.Run("V1-3.3-5 V1-3.3-9 the latest grant counts, in the order of arrival", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			open(p, cl, 8)
			for range 20 {
				async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			}
			var xids []uint32
			for range 8 {
				h, _ := p.message("a call")
				xids = append(xids, h.XID)
			}
			for _, i := range []int{7, 3, 0, 5, 1, 6} { // six of eight are answered
				p.reply(rpcrdma.Header{XID: xids[i], Credit: 2})
			}
			p.quiet("two are in flight, and the grant is two")
			p.reply(rpcrdma.Header{XID: xids[2], Credit: 2})
			p.message("one more")
			p.quiet("two are in flight")
		})
	})

	t.Run("CTX-8166 a grant of zero counts as one", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, _ := p.message("a call")
			b := p.replyBytes(rpcrdma.Header{XID: h.XID}, nil)
			clear(b[8:12])
			p.send(b, 0)
			outcome(t, done)
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			p.message("the next call")
		})
	})

	t.Run("BIDI-4.3.1-1 CCP-6-2 receives are posted before calls, for each call in flight", func(t *testing.T) {
		client(t, &Settings{Credits: 64}, func(p *peer, cl *Client) {
			open(p, cl, 1000)
			for range 200 {
				async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			}
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.sends) != 64 {
				t.Errorf("%d calls in flight, want the 64 asked for, not the 1000 granted", len(p.sends))
			}
			if len(p.recvs) < len(p.sends) {
				t.Errorf("%d receives for %d calls", len(p.recvs), len(p.sends))
			}
		})
	})
}

func TestReadChunk(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 900)[:8997]

	t.Run("V1-3.4-3 V1-3.4-8 V1-3.4-11 V1-3.7-4 an item leaves through a chunk at its position", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			args := xdr.AppendUint32([]byte{0, 0, 0, 9}, uint32(len(data)))
			args = append(args, 0xaa, 0xbb, 0xcc, 0xdd)
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: args, ReadItems: []rpc.ReadItem{{Offset: 8, Data: data}}})
			h, payload := p.message("the call")
			if h.Proc != rpcrdma.ProcMsg || len(h.Reads) != 1 || h.Reads[0].Position != 48 || int(h.Reads[0].Length) != len(data) {
				t.Fatalf("call header is %+v", h)
			}
			if len(payload) != 40+12 || !bytes.Equal(payload[40:], args) {
				t.Errorf("inline part is %x, want the count and the tail without data or padding", payload[40:])
			}
			if !bytes.Equal(p.read(h.Reads), data) {
				t.Error("chunk has other bytes")
			}
			if _, err := p.reach(h.Reads[0].Segment, fabric.AccessRemoteWrite); err == nil {
				t.Error("a read chunk can be written (V1-11-4)")
			}
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
			if n := p.openWindows(); n != 0 {
				t.Errorf("%d windows are open after the call (V1-7-1, V1-3.5-2)", n)
			}
			p.quiet("no RDMA_DONE follows (V1-3.5-2)")
		})
	})

	t.Run("V1-3.4-12 several segments have one position", func(t *testing.T) {
		client(t, &Settings{MaxSegment: 4000}, func(p *peer, cl *Client) {
			args := xdr.AppendUint32(nil, uint32(len(data)))
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: args, ReadItems: []rpc.ReadItem{{Offset: 4, Data: data}}})
			h, _ := p.message("the call")
			if len(h.Reads) != 3 || !bytes.Equal(p.read(h.Reads), data) {
				t.Fatalf("read list is %+v", h.Reads)
			}
			for _, s := range h.Reads {
				if s.Position != 44 {
					t.Errorf("position is %d", s.Position)
				}
			}
		})
	})

	t.Run("V1-3.7-2 positions of later items count padding that is not sent", func(t *testing.T) {
		client(t, &Settings{PeerChunks: AllChunks}, func(p *peer, cl *Client) {
			args := xdr.AppendUint32(nil, 3001)
			args = xdr.AppendUint32(args, 3002)
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: args, ReadItems: []rpc.ReadItem{{Offset: 4, Data: data[:3001]}, {Offset: 8, Data: data[:3002]}}})
			h, payload := p.message("the call")
			if len(h.Reads) != 2 || h.Reads[0].Position != 44 || h.Reads[1].Position != 44+3004+4 || len(payload) != 48 {
				t.Fatalf("read list is %+v, inline part of %d bytes", h.Reads, len(payload))
			}
		})
	})

	t.Run("V1-3.4-1 an item that fits goes inline with its padding", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			args := append(xdr.AppendUint32(nil, 5), 9, 9, 9, 9)
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: args, ReadItems: []rpc.ReadItem{{Offset: 4, Data: []byte("hello")}}})
			h, payload := p.message("the call")
			want := append(xdr.AppendUint32(nil, 5), "hello\x00\x00\x00\x09\x09\x09\x09"...)
			if len(h.Reads) != 0 || !bytes.Equal(payload[40:], want) {
				t.Fatalf("arguments are %x", payload[40:])
			}
		})
	})
}

func TestLongCall(t *testing.T) {
	t.Run("V1-5.1-1 V1-4-1 V1-4.1-11 a call over the threshold goes into a position-zero chunk", func(t *testing.T) {
		p := newPeer(t)
		p.hello = nil // 1024 bytes (PVT-3.1-2)
		clientOf(t, p, nil, func(p *peer, cl *Client) {
			for _, n := range []int{1024 - 28 - 40, 1024 - 28 - 36} {
				args := bytes.Repeat([]byte{7}, n)
				done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: args})
				s := p.next("a call")
				var h rpcrdma.Header
				end, err := rpcrdma.ConsumeHeader(s.msg, &h, nil)
				if err != nil {
					t.Fatal(err)
				}
				if n == 1024-68 {
					if h.Proc != rpcrdma.ProcMsg || len(s.msg) != 1024 {
						t.Errorf("at the threshold the call is %v of %d bytes", h.Proc, len(s.msg))
					}
				} else {
					if h.Proc != rpcrdma.ProcNomsg || end != len(s.msg) || h.Reads[0].Position != 0 {
						t.Fatalf("above the threshold the call is %+v", h)
					}
					msg := p.read(h.Reads)
					if len(msg) != 40+n || word(msg, 0) != h.XID || !bytes.Equal(msg[40:], args) {
						t.Errorf("the chunk has %d bytes, xid %#x", len(msg), word(msg, 0))
					}
				}
				p.reply(rpcrdma.Header{XID: h.XID})
				if err := outcome(t, done); err != nil {
					t.Fatal(err)
				}
			}
		})
	})

	t.Run("Linux servers are never sent a position-zero chunk with others: items go into it", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			args := bytes.Repeat([]byte{7}, 8000)
			for at, n := range map[int]uint32{396: 3, 400: 0, 7996: 5} {
				binary.BigEndian.PutUint32(args[at:], n)
			}
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: args, ReadItems: []rpc.ReadItem{
				{Offset: 400, Data: []byte("odd")}, {Offset: 404, Data: nil}, {Offset: 8000, Data: []byte("five5")}}})
			h, _ := p.message("the call")
			for _, s := range h.Reads {
				if s.Position != 0 {
					t.Errorf("position is %d", s.Position)
				}
			}
			want := append(bytes.Clone(args[:400]), "odd\x00"...)
			want = append(append(want, args[400:]...), "five5\x00\x00\x00"...)
			if got := p.read(h.Reads)[40:]; !bytes.Equal(got, want) {
				t.Errorf("message is %d bytes, want %d", len(got), len(want))
			}
		})
	})
}

func TestWriteChunk(t *testing.T) {
	t.Run("V1-3.4-4 V1-3.6-3 V1-3.4-16 results land in the caller's memory", func(t *testing.T) {
		client(t, &Settings{MaxSegment: 4096}, func(p *peer, cl *Client) {
			buf := make([]byte, 3*4096)
			call := &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: buf}}, MaxResults: 100}
			for _, n := range []int{0, 5000, len(buf)} {
				done := async(cl, bg, call)
				h, _ := p.message("the call")
				if len(h.Writes) != 1 || len(h.Writes[0]) != 3 || h.HasReply {
					t.Fatalf("call header is %+v", h)
				}
				if _, err := p.reach(h.Writes[0][0], fabric.AccessRemoteRead); err == nil {
					t.Error("a write chunk can be read (V1-11-4)")
				}
				ret := rpcrdma.Header{XID: h.XID, Writes: []rpcrdma.WriteChunk{append(rpcrdma.WriteChunk(nil), h.Writes[0]...)}}
				data := strings.Repeat("x", n)
				for i := range ret.Writes[0] { // V1-3.6-2: 4096, 904, 0
					s := &ret.Writes[0][i]
					s.Length = uint32(min(n, 4096))
					p.write(*s, data[:s.Length])
					data, n = data[s.Length:], n-int(s.Length)
				}
				total := int(ret.Writes[0].Length())
				p.reply(ret, xdr.AppendUint32(nil, uint32(total))...)
				if err := outcome(t, done); err != nil {
					t.Fatal(err)
				}
				w := call.WriteItems[0]
				if w.N != total || w.Chunked != (total > 0) || !bytes.Equal(buf[:total], bytes.Repeat([]byte("x"), total)) {
					t.Errorf("write item has %d bytes, want %d", w.N, total)
				}
				if len(call.Results) != 4 {
					t.Errorf("results are %x, want the count alone", call.Results)
				}
				if n := p.openWindows(); n != 0 {
					t.Errorf("%d windows are open after the call", n)
				}
			}
		})
	})

	t.Run("V1-3.7-6 A5 a length with padding is accepted and cut", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			call := &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 5001)}}}
			done := async(cl, bg, call)
			h, _ := p.message("the call")
			p.write(h.Writes[0][0], "data")
			h.Writes[0][0].Length = 5004
			p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes})
			if err := outcome(t, done); err != nil || call.WriteItems[0].N != 5001 {
				t.Fatalf("call returned %v, item of %d bytes", err, call.WriteItems[0].N)
			}
		})
	})

	t.Run("V1-3.4-4 small results are asked for inline", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			call := &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 1000)}}, MaxResults: 100}
			done := async(cl, bg, call)
			h, _ := p.message("the call")
			if len(h.Writes) != 0 || h.HasReply {
				t.Fatalf("call header is %+v", h)
			}
			p.reply(rpcrdma.Header{XID: h.XID}, xdr.AppendOpaque(nil, []byte("abc"))...)
			if err := outcome(t, done); err != nil || call.WriteItems[0].Chunked || len(call.Results) != 8 {
				t.Fatalf("%v %+v", err, call)
			}
		})
	})
}

func TestReplyChunk(t *testing.T) {
	results := bytes.Repeat([]byte("results."), 1000)
	reply := func(h rpcrdma.Header) []byte {
		return append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: h.XID}), results...)
	}

	t.Run("V1-5.2-1 V1-5.2-3 V1-5.2-5 a long reply comes through the reply chunk", func(t *testing.T) {
		client(t, &Settings{MaxSegment: 4096}, func(p *peer, cl *Client) {
			call := &rpc.Call{Prog: testProg, Vers: 1, MaxResults: 10000}
			done := async(cl, bg, call)
			h, _ := p.message("the call")
			if !h.HasReply || len(h.Reply) != 3 || h.Reply.Length() < 10024 {
				t.Fatalf("call header is %+v", h)
			}
			msg := string(reply(h))
			p.write(h.Reply[0], msg[:4096])
			p.write(h.Reply[1], msg[4096:])
			h.Reply[1].Length, h.Reply[2].Length = uint32(len(msg)-4096), 0
			p.reply(rpcrdma.Header{XID: h.XID, Proc: rpcrdma.ProcNomsg, HasReply: true, Reply: h.Reply})
			if err := outcome(t, done); err != nil || !bytes.Equal(call.Results, results) {
				t.Fatalf("call returned %v with %d bytes", err, len(call.Results))
			}
			p.quiet("no RDMA_DONE follows")
		})
	})

	t.Run("V1-5.2-6 a reply chunk may stay unused, present or not", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			for _, present := range []bool{true, false} {
				call := &rpc.Call{Prog: testProg, Vers: 1, MaxResults: 10000}
				done := async(cl, bg, call)
				h, _ := p.message("the call")
				h.Reply[0].Length = 0
				ret := rpcrdma.Header{XID: h.XID}
				if present {
					ret.HasReply, ret.Reply = true, h.Reply
				}
				p.reply(ret, 0, 0, 0, 1)
				if err := outcome(t, done); err != nil || len(call.Results) != 4 {
					t.Fatal(err, call.Results)
				}
			}
		})
	})

	t.Run("V1-3.8-1 V1-5.1-5 everything in one call", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			data := bytes.Repeat([]byte("d"), 5000)
			buf := make([]byte, 6000)
			args := xdr.AppendUint32(nil, 5000)
			call := &rpc.Call{Prog: testProg, Vers: 1, Args: args, MaxResults: 10000,
				ReadItems: []rpc.ReadItem{{Offset: 4, Data: data}}, WriteItems: []rpc.WriteItem{{Buf: buf}}}
			done := async(cl, bg, call)
			h, _ := p.message("the call")
			if len(h.Reads) != 1 || len(h.Writes) != 1 || !h.HasReply {
				t.Fatalf("call header is %+v", h)
			}
			p.write(h.Writes[0][0], "w")
			msg := reply(h)
			p.write(h.Reply[0], string(msg))
			h.Writes[0][0].Length, h.Reply[0].Length = 1, uint32(len(msg))
			p.reply(rpcrdma.Header{XID: h.XID, Proc: rpcrdma.ProcNomsg, Writes: h.Writes, HasReply: true, Reply: h.Reply})
			if err := outcome(t, done); err != nil || buf[0] != 'w' || !bytes.Equal(call.Results, results) {
				t.Fatal(err)
			}
			if n := p.openWindows(); n != 0 {
				t.Errorf("%d windows are open after the call", n)
			}
		})
	})
}

// TestBadReply checks that a malformed reply fails its call and affects nothing else.
func TestBadReply(t *testing.T) {
	seg := func(h rpcrdma.Header) rpcrdma.Segment { return h.Writes[0][0] }
	tests := []struct {
		name  string
		reply func(p *peer, h rpcrdma.Header) []byte
	}{
		{"CTX-8166-2 with a read list", func(p *peer, h rpcrdma.Header) []byte {
			return p.replyBytes(rpcrdma.Header{XID: h.XID, Reads: []rpcrdma.ReadSegment{{Segment: seg(h)}}}, nil)
		}},
		{"with a write chunk more than offered", func(p *peer, h rpcrdma.Header) []byte {
			return p.replyBytes(rpcrdma.Header{XID: h.XID, Writes: append(h.Writes, h.Writes[0])}, nil)
		}},
		{"with more bytes than offered", func(p *peer, h rpcrdma.Header) []byte {
			h.Writes[0][0].Length += 4
			return p.replyBytes(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, nil)
		}},
		{"with another handle", func(p *peer, h rpcrdma.Header) []byte {
			h.Writes[0][0].Handle++
			return p.replyBytes(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, nil)
		}},
		{"with another offset", func(p *peer, h rpcrdma.Header) []byte {
			h.Writes[0][0].Offset++
			return p.replyBytes(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, nil)
		}},
		{"inline and in the reply chunk", func(p *peer, h rpcrdma.Header) []byte {
			return p.replyBytes(rpcrdma.Header{XID: h.XID, HasReply: true, Reply: h.Reply}, nil)
		}},
		{"RDMA_NOMSG with an unused reply chunk", func(p *peer, h rpcrdma.Header) []byte {
			h.Reply[0].Length = 0
			return p.replyBytes(rpcrdma.Header{XID: h.XID, Proc: rpcrdma.ProcNomsg, HasReply: true, Reply: h.Reply}, nil)
		}},
		{"RDMA_NOMSG without a reply chunk", func(p *peer, h rpcrdma.Header) []byte {
			return p.replyBytes(rpcrdma.Header{XID: h.XID, Proc: rpcrdma.ProcNomsg}, nil)
		}},
		{"whose RPC header is cut short", func(p *peer, h rpcrdma.Header) []byte {
			b := p.replyBytes(rpcrdma.Header{XID: h.XID}, nil)
			return b[:len(b)-4]
		}},
		{"that is neither call nor reply", func(p *peer, h rpcrdma.Header) []byte {
			b := callBytes(rpcrdma.Header{XID: h.XID}, 1)
			b[rpcrdma.MinHeaderSize+7] = 2
			return b
		}},
		{"RDMA_MSGP", func(p *peer, h rpcrdma.Header) []byte {
			b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 1, Credit: 1, Proc: rpcrdma.ProcMsgp})
			return oncrpc.AppendReply(b, &oncrpc.ReplyHeader{XID: h.XID})
		}},
		{"of version 2", func(p *peer, h rpcrdma.Header) []byte {
			return p.replyBytes(rpcrdma.Header{XID: h.XID, Vers: 2}, nil)
		}},
		{"of an unknown kind", func(p *peer, h rpcrdma.Header) []byte {
			b := p.replyBytes(rpcrdma.Header{XID: h.XID}, nil)
			b[15] = 9
			return b
		}},
		{"with a list discriminator of 2", func(p *peer, h rpcrdma.Header) []byte {
			b := p.replyBytes(rpcrdma.Header{XID: h.XID}, nil)
			b[19] = 2
			return b
		}},
	}
	for _, tt := range tests {
		t.Run("V1-4.2-6 "+tt.name, func(t *testing.T) {
			client(t, nil, func(p *peer, cl *Client) {
				done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, MaxResults: 10000,
					WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}})
				h, _ := p.message("the call")
				p.send(tt.reply(p, h), 0)
				var re *rpc.BadReplyError
				if err := outcome(t, done); !errors.As(err, &re) {
					t.Fatalf("call returned %v, want a BadReplyError", err)
				}
				p.quiet("a bad reply is never answered")
				if n := p.openWindows(); n != 0 {
					t.Errorf("%d windows are open after the call", n)
				}
				done = async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
				h, _ = p.message("the next call: the connection lives")
				p.reply(rpcrdma.Header{XID: h.XID})
				if err := outcome(t, done); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestRDMAError(t *testing.T) {
	tests := []struct {
		name string
		msg  func(xid uint32) []byte
		code rpcrdma.ErrCode
	}{
		{"V1-4.2-3 V1-4.2-4 A9 ERR_VERS with another version in its header", func(xid uint32) []byte {
			return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 2, Proc: rpcrdma.ProcError,
				Err: rpcrdma.ErrVers, VersLow: 2, VersHigh: 3})
		}, rpcrdma.ErrVers},
		{"V1-4.3-6 ERR_CHUNK", func(xid uint32) []byte {
			return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk})
		}, rpcrdma.ErrChunk},
		{"V1-4.3-7 an unknown error of 20 bytes", func(xid uint32) []byte {
			b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk})
			b[19] = 9
			return b
		}, 9},
		{"V1-4.3-7 an unknown error of 52 bytes", func(xid uint32) []byte {
			b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk})
			b[19] = 9
			return append(b, make([]byte, 32)...)
		}, 9},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client(t, nil, func(p *peer, cl *Client) {
				done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
				h, _ := p.message("the call")
				p.send(tt.msg(h.XID), 0)
				var re *rpc.RDMAError
				if err := outcome(t, done); !errors.As(err, &re) || re.Code != tt.code || re.XID != h.XID {
					t.Fatalf("call returned %v, want RDMAError %v", err, tt.code)
				}
				if low, high := re.VersLow, re.VersHigh; tt.code == rpcrdma.ErrVers && (low != 2 || high != 3) {
					t.Errorf("the versions are %d to %d, want 2 to 3", low, high)
				}
				p.quiet("nobody answers an error")
			})
		})
	}
}

// TestIgnored checks that messages that do not concern one of this client's calls change nothing, in particular not the
// credits that the server has granted.
func TestIgnored(t *testing.T) {
	const granted = 5
	done := func(credit uint32, behind ...byte) []byte {
		return append(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 77, Vers: 1, Credit: credit, Proc: rpcrdma.ProcDone}), behind...)
	}
	refused := func(credit uint32) []byte {
		return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 77, Vers: 1, Credit: credit, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk})
	}
	long := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 77, Vers: 1, Credit: 9999, Proc: rpcrdma.ProcNomsg,
		HasReply: true, Reply: rpcrdma.WriteChunk{{Handle: 1, Length: 100}}})
	short := append(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 77, Vers: 1, Credit: 9999}), 0, 0, 0, 77)
	msgs := map[string][]byte{
		"A14 a short message":                       {1, 2, 3},
		"A14 an empty message":                      {},
		"V1-4.2-6 a reply to no call":               (&peer{}).replyBytes(rpcrdma.Header{XID: 77, Credit: granted}, nil),
		"BIDI-2.4-1 a call":                         callBytes(rpcrdma.Header{XID: 77}, 1),
		"V1-4.2-6 a malformed error":                {0, 0, 0, 77, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 4},
		"an error about no call":                    refused(0),
		"CTX-8166-2 BIDI-4.1-6a RDMA_DONE with 0":   done(0),
		"BIDI-4.1-6a RDMA_DONE with 1":              done(1),
		"BIDI-4.1-6a RDMA_DONE with 9999":           done(9999),
		"BIDI-4.1-6a RDMA_NOMSG with 9999":          long,
		"BIDI-4.1-6a an RDMA_MSG that says nothing": short,
		"BIDI-4.1-6b RDMA_ERROR with 9999":          refused(9999),
		"V1-4.1-12 an RDMA_DONE with lists":         done(9999, make([]byte, 12)...),
		"V1-4.1-12 an RDMA_DONE with a message":     done(9999, callBytes(rpcrdma.Header{XID: 77}, 1)[16:]...),
	}
	for name, msg := range msgs {
		t.Run(name, func(t *testing.T) {
			client(t, nil, func(p *peer, cl *Client) {
				p.opens(cl, granted)
				over := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
				h, _ := p.message("the call")
				before := p.posted()
				for range recvBatch { // each uses a receive, and all but a few are posted again
					p.send(msg, 0)
					p.quiet("it is ignored")
					if g := cl.Info().Credits; g != granted {
						t.Fatalf("the grant changed from %d to %d", granted, g)
					}
				}
				if n := p.posted(); n > before || n <= before-recvBatch {
					t.Errorf("%d receives are posted, %d before; fewer than %d may wait", n, before, recvBatch)
				}
				if n := cl.Stats().Dropped; n != recvBatch {
					t.Errorf("%d are counted, want %d", n, recvBatch)
				}
				p.reply(rpcrdma.Header{XID: h.XID})
				if err := outcome(t, over); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestPeersCall(t *testing.T) {
	t.Run("BIDI-2.4-1 a call with the xid of a pending call of ours leaves that untouched", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, _ := p.message("the call")
			p.send(callBytes(rpcrdma.Header{XID: h.XID}, 1), 0)
			p.quiet("nobody serves it here")
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// TestFewCredits checks that a client may request few credits.
func TestFewCredits(t *testing.T) {
	client(t, &Settings{Credits: 1}, func(p *peer, cl *Client) {
		for range 3 {
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, _ := p.message("a call")
			if h.Credit != 1 {
				t.Errorf("asks for %d credits", h.Credit)
			}
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 32})
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestThresholds(t *testing.T) {
	tests := []struct {
		name       string
		hello      []byte
		send, recv int
		seen       bool
	}{
		{"PVT-4.2-4 PVT-4.2-5 the smaller of one's send and the other's receive size",
			rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 2048, RecvSize: 3072}), 3072, 2048, true},
		{"PVT-5.1-1 none: 1024 both ways", nil, 1024, 1024, false},
		{"PVT-5.2-2 no identifier", bytes.Repeat([]byte{0x5a}, 56), 1024, 1024, false},
		{"PVT-6-1 version 2", []byte{0xf6, 0xab, 0x0e, 0x18, 2, 0, 3, 3}, 1024, 1024, false},
		{"PVT-5.2-3 cut short", []byte{0xf6, 0xab, 0x0e, 0x18, 1, 0, 3}, 1024, 1024, false},
		{"PVT-5.2-1 at an odd offset", append(make([]byte, 13), 0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3), 4096, 4096, true},
		{"PVT-5-1 with more behind", append([]byte{0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3}, make([]byte, 40)...), 4096, 4096, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPeer(t)
			p.hello = tt.hello
			clientOf(t, p, nil, func(p *peer, cl *Client) {
				i := cl.Info()
				if i.InlineSend != tt.send || i.InlineRecv != tt.recv || i.PrivateData != tt.seen {
					t.Errorf("thresholds %d, %d, private data %v", i.InlineSend, i.InlineRecv, i.PrivateData)
				}
				if want := []byte{0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3}; !bytes.Equal(p.got, want) { // PVT-4-5
					t.Errorf("sent private data %x, want %x", p.got, want)
				}
				args := bytes.Repeat([]byte{1}, tt.send-68)
				async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: args})
				if s := p.next("a call at the threshold (PVT-3.1-3)"); len(s.msg) != tt.send {
					t.Errorf("call of %d bytes, want %d", len(s.msg), tt.send)
				}
			})
		})
	}
}

func TestRemoteInvalidation(t *testing.T) {
	hello := rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 4096})

	t.Run("PVT-3.2-4 what the peer invalidates is not invalidated again, the rest is", func(t *testing.T) {
		p := newPeer(t)
		p.hello = hello
		clientOf(t, p, nil, func(p *peer, cl *Client) {
			if !cl.Info().RemoteInvalidation {
				t.Fatal("not agreed on")
			}
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, MaxResults: 10000, WriteItems: []rpc.WriteItem{
				{Buf: make([]byte, 5000)}, {Buf: make([]byte, 5000)}}})
			h, _ := p.message("a call with three chunks")
			p.send(p.replyBytes(rpcrdma.Header{XID: h.XID}, nil), h.Writes[1][0].Handle)
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
			inv := 0
			for _, op := range p.ops {
				if op == fabric.OpLocalInv {
					inv++
				}
			}
			if inv != 2 || p.openWindows() != 0 {
				t.Errorf("%d local invalidations, want 2; %d windows open", inv, len(p.windows))
			}
		})
	})

	t.Run("PVT-4.1-2 invalidating another call's memory ends the connection", func(t *testing.T) {
		p := newPeer(t)
		p.hello = hello
		clientOf(t, p, nil, func(p *peer, cl *Client) {
			first := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, _ := p.message("a call")
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 8})
			outcome(t, first)
			a := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 5000)}}})
			ha, _ := p.message("a call with a chunk")
			b := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			hb, _ := p.message("a call without")
			p.send(p.replyBytes(rpcrdma.Header{XID: hb.XID}, nil), ha.Writes[0][0].Handle)
			var pe *rpc.PeerError
			if err := outcome(t, a); !errors.As(err, &pe) || !errors.Is(err, net.ErrClosed) {
				t.Errorf("call returned %v, want a PeerError", err)
			}
			outcome(t, b)
		})
	})

	t.Run("PVT-3.2-3 R is clear when memory is registered without windows", func(t *testing.T) {
		p := newPeer(t)
		p.hello = hello
		p.caps.MemoryWindows, p.caps.LocalDMA = false, false
		clientOf(t, p, &Settings{BounceMax: -1}, func(p *peer, cl *Client) {
			if p.got[5] != 0 || cl.Info().RemoteInvalidation {
				t.Errorf("private data is %x", p.got)
			}
			data := make([]byte, 5000)
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: xdr.AppendUint32(nil, 5000),
				ReadItems: []rpc.ReadItem{{Offset: 4, Data: data}}, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 5000)}}})
			before := p.regions()
			h, _ := p.message("the call")
			p.write(h.Writes[0][0], "x")
			p.read(h.Reads)
			if _, err := p.reach(h.Reads[0].Segment, fabric.AccessRemoteWrite); err == nil {
				t.Error("a read chunk can be written")
			}
			h.Writes[0][0].Length = 1
			p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes})
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
			if n := p.regions(); n != before-2 {
				t.Errorf("%d regions alive, %d before the reply: the call's two are not deregistered", n, before)
			}
			if _, err := p.reach(h.Reads[0].Segment, fabric.AccessRemoteRead); err == nil {
				t.Error("the read chunk is still open")
			}
		})
	})
}

// opensTwo makes a call on a client's connection and grants it two credits.
func (p *peer) opensTwo(cl *Client) {
	done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
	h, _ := p.message("a call")
	p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
	outcome(p.t, done)
}

// TestCancel checks that when the context of a call ends, the call returns only after its memory is fenced.
func TestCancel(t *testing.T) {
	t.Run("memory is closed, the credit stays taken until the late reply", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			p.opensTwo(cl)
			ctx, cancel := context.WithCancel(bg)
			buf := make([]byte, 9000)
			done := async(cl, ctx, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: buf}}})
			h, _ := p.message("the call")
			p.write(h.Writes[0][0], "early")
			cancel()
			time.Sleep(10 * time.Millisecond)
			if err := outcome(t, done); !errors.Is(err, context.Canceled) {
				t.Fatalf("call returned %v", err)
			}
			if _, err := p.reach(h.Writes[0][0], fabric.AccessRemoteWrite); err == nil {
				t.Error("the peer can still write (V1-11-3)")
			}
			// One of two credits is still taken.
			a := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			b := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			ha, _ := p.message("the call that has the other credit")
			p.quiet("the grant is used up")
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 2}) // the late reply
			hb, _ := p.message("the call that waited")
			p.reply(rpcrdma.Header{XID: ha.XID, Credit: 2})
			p.reply(rpcrdma.Header{XID: hb.XID, Credit: 2})
			if err := outcome(t, a); err != nil {
				t.Error(err)
			}
			if err := outcome(t, b); err != nil {
				t.Error(err)
			}
			if hb.XID == h.XID {
				t.Error("an xid was used again")
			}
		})
	})

	t.Run("where only the end of the connection is a fence, it ends", func(t *testing.T) {
		weak := newPeer(t)
		weak.caps.WeakRevocation = true
		clientOf(t, weak, nil, func(p *peer, cl *Client) {
			p.opensTwo(cl)
			ctx, cancel := context.WithCancel(bg)
			plain := async(cl, ctx, &rpc.Call{Prog: testProg, Vers: 1})
			p.message("a call that lends no memory")
			cancel()
			time.Sleep(10 * time.Millisecond)
			if err := outcome(t, plain); !errors.Is(err, context.Canceled) || cl.Err() != nil {
				t.Fatalf("call returned %v, the connection is %v", err, cl.Err())
			}
			ctx, cancel = context.WithCancel(bg)
			done := async(cl, ctx, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}})
			p.message("a call that lends memory")
			cancel()
			time.Sleep(10 * time.Millisecond)
			if err := outcome(t, done); !errors.Is(err, context.Canceled) {
				t.Fatalf("call returned %v", err)
			}
			if <-cl.Done(); !errors.Is(cl.Err(), errWeakFence) {
				t.Errorf("the connection ended with %v", cl.Err())
			}
		})
	})

	t.Run("the call returns after the fence, and a reply that comes before it frees the credit", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			p.opensTwo(cl)
			p.holdInv = true
			ctx, cancel := context.WithCancel(bg)
			done := async(cl, ctx, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}})
			h, _ := p.message("the call")
			cancel()
			time.Sleep(10 * time.Millisecond)
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 1})
			synctest.Wait()
			select {
			case err := <-done:
				t.Fatalf("the call returned %v before its memory was fenced", err)
			default:
			}
			p.completeInv()
			if err := outcome(t, done); !errors.Is(err, context.Canceled) {
				t.Errorf("call returned %v", err)
			}
			async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			p.message("a call that takes the one credit")
		})
	})

	t.Run("a fence that never comes costs the connection, not the caller's time", func(t *testing.T) {
		for _, answered := range []bool{false, true} {
			client(t, nil, func(p *peer, cl *Client) {
				p.opensTwo(cl)
				p.holdInv = true
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				start := time.Now()
				done := async(cl, ctx, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}})
				h, _ := p.message("the call")
				if answered {
					p.reply(rpcrdma.Header{XID: h.XID})
				}
				err := <-done
				if took := time.Since(start); (err == nil) != answered || took > 3*time.Second {
					t.Errorf("call returned %v after %v", err, took)
				}
				if _, err := p.reach(h.Writes[0][0], fabric.AccessRemoteWrite); err == nil {
					t.Error("the peer can still write")
				}
				if <-cl.Done(); !errors.Is(cl.Err(), errStuck) {
					t.Errorf("the connection ended with %v", cl.Err())
				}
			})
		}
	})
}

// TestGivenUpInTime checks that a leader notices the end of its context after a tick, and at once after an earlier call
// was abandoned.
func TestGivenUpInTime(t *testing.T) {
	giveUp := func(p *peer, cl *Client) (took time.Duration) {
		ctx, cancel := context.WithCancel(bg)
		done := async(cl, ctx, testCall())
		h, _ := p.message("the call")
		start := time.Now()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			p.t.Fatalf("call returned %v", err)
		}
		took = time.Since(start)
		p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
		return took
	}
	answered := func(p *peer, cl *Client) {
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		done := async(cl, ctx, testCall())
		h, _ := p.message("the call")
		p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
		if err := outcome(p.t, done); err != nil {
			p.t.Fatal(err)
		}
	}
	t.Run("first after a tick, then at once", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			p.opensTwo(cl)
			if took := giveUp(p, cl); took == 0 || took > tickTime {
				t.Errorf("the first returned after %v", took)
			}
			for n := range 3 {
				answered(p, cl)
				if took := giveUp(p, cl); took != 0 {
					t.Errorf("number %d behind it returned after %v", n, took)
				}
			}
			for range waryLeads {
				answered(p, cl)
			}
			if st := cl.conn().state.Lock(); st.wary != 0 || st.unwatch != nil {
				t.Errorf("after %d good calls the next %d are watched", waryLeads, st.wary)
			}
			cl.conn().state.Unlock()
		})
	})
	t.Run("on the next connection, too", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.opensTwo(cl)
			giveUp(p, cl)
			q := ps.next()
			p.hangUp()
			if took := giveUp(q, cl); took != 0 {
				t.Errorf("it returned after %v", took)
			}
		})
	})
}

// TestCancelWaiting checks contexts that end before the call is sent, or while it follows a leader or waits for a
// credit.
func TestCancelWaiting(t *testing.T) {
	t.Run("a follower's call ends while another leads", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			p.opensTwo(cl)
			a := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			ha, _ := p.message("the leader's call")
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			b := async(cl, ctx, &rpc.Call{Prog: testProg, Vers: 1})
			p.message("the follower's call")
			time.Sleep(time.Second)
			if err := outcome(t, b); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("call returned %v", err)
			}
			p.reply(rpcrdma.Header{XID: ha.XID})
			if err := outcome(t, a); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("a call that waits for a credit leaves the line", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			a := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, _ := p.message("the first call")
			ctx, cancel := context.WithCancel(bg)
			b := async(cl, ctx, &rpc.Call{Prog: testProg, Vers: 1})
			c := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			synctest.Wait()
			cancel()
			if err := outcome(t, b); !errors.Is(err, context.Canceled) {
				t.Errorf("call returned %v", err)
			}
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 1})
			outcome(t, a)
			h, _ = p.message("the call behind it")
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 1})
			if err := outcome(t, c); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("a call that waited for a credit, and was made by who had it, is given up", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			a := async(cl, bg, testCall())
			ha, _ := p.message("the first call")
			ctx, cancel := context.WithCancel(bg)
			b := async(cl, ctx, testCall())
			synctest.Wait()
			c := async(cl, bg, testCall())
			synctest.Wait()
			p.reply(rpcrdma.Header{XID: ha.XID, Credit: 1})
			outcome(t, a)
			hb, _ := p.message("the second call")
			cancel()
			time.Sleep(10 * time.Millisecond)
			if err := outcome(t, b); !errors.Is(err, context.Canceled) {
				t.Errorf("call returned %v", err)
			}
			p.quiet("the credit stays taken")
			p.reply(rpcrdma.Header{XID: hb.XID, Credit: 1})
			hc, _ := p.message("the third call")
			p.reply(rpcrdma.Header{XID: hc.XID, Credit: 1})
			if err := outcome(t, c); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("an ended context sends nothing", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			ctx, cancel := context.WithCancel(bg)
			cancel()
			if err := cl.Call(ctx, &rpc.Call{Prog: testProg, Vers: 1}); !errors.Is(err, context.Canceled) {
				t.Errorf("call returned %v", err)
			}
			p.quiet("nothing was to be sent")
		})
	})
}

// TestLine checks that a goroutine that returns a credit makes the call of the caller that has waited longest.
func TestLine(t *testing.T) {
	// waiting has the test hold the only credit, and a call in line for it.
	waiting := func(t *testing.T, call *rpc.Call, f func(p *peer, cl *Client, held *slot, done <-chan error)) {
		client(t, nil, func(p *peer, cl *Client) {
			held, err := cl.conn().acquire(bg, pendingOf(testCall()))
			if err != nil {
				t.Fatal(err)
			}
			done := async(cl, bg, call)
			p.quiet("there is no credit")
			f(p, cl, held, done)
		})
	}
	sent := func(p *peer) int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.sends)
	}
	replied := func(t *testing.T, p *peer, done <-chan error) {
		p.answerNext("the call that waited")
		if err := outcome(t, done); err != nil {
			t.Error(err)
		}
	}

	t.Run("the call has left when the credit has been given back", func(t *testing.T) {
		waiting(t, testCall(), func(p *peer, cl *Client, held *slot, done <-chan error) {
			held.giveBack()
			if n := sent(p); n != 1 {
				t.Errorf("%d messages have been sent, want the call", n)
			}
			replied(t, p, done)
		})
	})

	t.Run("one with chunks is made by its own caller", func(t *testing.T) {
		call := testCall()
		call.WriteItems = []rpc.WriteItem{{Buf: make([]byte, 9000)}}
		waiting(t, call, func(p *peer, cl *Client, held *slot, done <-chan error) {
			if cl.conn().plain(pendingOf(call)) {
				t.Error("the call counts as plain")
			}
			held.giveBack()
			replied(t, p, done)
		})
	})

	t.Run("the connection ends before the reply", func(t *testing.T) {
		waiting(t, testCall(), func(p *peer, cl *Client, held *slot, done <-chan error) {
			held.giveBack()
			p.hangUp()
			if err := outcome(t, done); !errors.Is(err, net.ErrClosed) {
				t.Errorf("call returned %v", err)
			}
		})
	})

	t.Run("the connection has ended before the credit comes back", func(t *testing.T) {
		waiting(t, testCall(), func(p *peer, cl *Client, held *slot, done <-chan error) {
			p.hangUp()
			time.Sleep(time.Second) // no goroutine leads, and the background looks now and then
			if err := outcome(t, done); !errors.Is(err, net.ErrClosed) {
				t.Errorf("call returned %v", err)
			}
			held.giveBack()
			if n := sent(p); n != 0 {
				t.Errorf("%d messages have been sent", n)
			}
		})
	})
}

func TestEnds(t *testing.T) {
	t.Run("all calls fail when the peer goes", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			var done []<-chan error
			for range 5 {
				done = append(done, async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}}))
			}
			p.message("the first call")
			p.hangUp()
			for _, d := range done {
				var ce *fabric.ConnError
				if err := outcome(t, d); !errors.Is(err, net.ErrClosed) || !errors.As(err, &ce) || !ce.Remote {
					t.Errorf("call returned %v", err)
				}
			}
			if n := p.openWindows(); n != 0 {
				t.Errorf("%d windows open", n)
			}
			<-cl.Done()
			if err := cl.Call(bg, &rpc.Call{Prog: testProg, Vers: 1}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a call afterwards returned %v", err)
			}
		})
	})

	t.Run("an idle connection notices that the peer is gone", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			time.Sleep(time.Second)
			p.hangUp()
			synctest.Wait()
			select {
			case <-cl.Done():
			default:
				t.Error("not noticed")
			}
		})
	})

	t.Run("Close fails calls under way, twice and from anywhere", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			p.message("the call")
			go cl.Close()
			cl.Close()
			if err := outcome(t, done); !errors.Is(err, net.ErrClosed) {
				t.Errorf("call returned %v", err)
			}
		})
	})

	t.Run("Shutdown waits for calls under way and refuses new ones", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, _ := p.message("the call")
			down := make(chan error, 1)
			go func() { down <- cl.Shutdown(bg) }()
			synctest.Wait()
			if err := cl.Call(bg, &rpc.Call{Prog: testProg, Vers: 1}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a new call returned %v", err)
			}
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			if err := outcome(t, down); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("two Shutdowns at once return when the call under way has", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, _ := p.message("the call")
			down := make(chan error, 2)
			for range 2 {
				go func() { down <- cl.Shutdown(bg) }()
				synctest.Wait()
			}
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			for range 2 {
				if err := outcome(t, down); err != nil {
					t.Error(err)
				}
			}
		})
	})

	t.Run("Shutdown gives up with its context", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			p.message("the call")
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			if err := cl.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Shutdown returned %v", err)
			}
			if err := outcome(t, done); !errors.Is(err, net.ErrClosed) {
				t.Errorf("call returned %v", err)
			}
		})
	})
}

func TestCallErrors(t *testing.T) {
	client(t, &Settings{MaxMessage: 1 << 16}, func(p *peer, cl *Client) {
		big := make([]byte, 1<<16)
		for name, call := range map[string]*rpc.Call{
			"too long a call":        {Args: big},
			"too long an item":       {Args: xdr.AppendUint32(nil, uint32(len(big))), ReadItems: []rpc.ReadItem{{Offset: 4, Data: big}}},
			"too long a reply":       {MaxResults: 1 << 16},
			"an item without memory": {WriteItems: []rpc.WriteItem{{}}},
			"an offset beyond":       {Args: make([]byte, 4), ReadItems: []rpc.ReadItem{{Offset: 5, Data: big[:1]}}},
			"a length that lies":     {Args: xdr.AppendUint32(nil, 2), ReadItems: []rpc.ReadItem{{Offset: 4, Data: big[:1]}}},
			"no length":              {Args: make([]byte, 8), ReadItems: []rpc.ReadItem{{Offset: 3, Data: big[:1]}}},
			"a negative offset":      {Args: make([]byte, 4), ReadItems: []rpc.ReadItem{{Offset: -1, Data: big[:1]}}},
		} {
			call.Prog, call.Vers = testProg, 1
			err := cl.Call(bg, call)
			if err == nil {
				t.Errorf("%s: no error", name)
			} else if strings.HasPrefix(name, "too long") {
				var se *rpc.SizeError
				if !errors.As(err, &se) || se.Size <= se.Limit {
					t.Errorf("%s: %v", name, err)
				}
			}
			var item *rpc.ItemError
			if lies := strings.Contains(name, "length"); errors.As(err, &item) != lies {
				t.Errorf("%s: is it an *ItemError: %v", name, !lies)
			}
			p.quiet(name)
		}
		// The slots came back.
		done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
		h, _ := p.message("a good call")
		p.reply(rpcrdma.Header{XID: h.XID})
		if err := outcome(t, done); err != nil {
			t.Fatal(err)
		}
	})
}
