package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"testing"
	"testing/synctest"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// gss is an RPCSEC_GSS credential for data, with a service (RFC 2203 section 5.3.1).
func gss(service uint32) oncrpc.Auth {
	var b []byte
	for _, w := range []uint32{1, 0, 17, service} {
		b = xdr.AppendUint32(b, w)
	}
	return oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: xdr.AppendOpaque(b, []byte("context"))}
}

func TestProtectedCalls(t *testing.T) {
	for _, c := range []struct {
		name    string
		service uint32
		chunks  bool
	}{{"authentication alone", 1, true}, {"integrity", 2, false}, {"privacy", 3, false}} {
		t.Run("V1-11-1 "+c.name, func(t *testing.T) {
			client(t, &Settings{PeerChunks: AllChunks}, func(p *peer, cl *Client) {
				data := letters(9000)
				call := &rpc.Call{Prog: testProg, Vers: 1, Cred: gss(c.service), Args: xdr.AppendUint32(nil, 9000),
					ReadItems: []rpc.ReadItem{{Offset: 4, Data: data}}, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}, MaxResults: 100}
				async(cl, bg, call)
				h, payload := p.message("the call")
				if c.chunks {
					if h.Proc != rpcrdma.ProcMsg || len(h.Reads) != 1 || len(h.Writes) != 1 {
						t.Errorf("call is %+v", h)
					}
					return
				}
				if h.Proc != rpcrdma.ProcNomsg || len(h.Writes) != 0 || len(payload) != 0 {
					t.Errorf("call is %+v with %d bytes", h, len(payload))
				}
				for _, s := range h.Reads {
					if s.Position != 0 {
						t.Errorf("a chunk at position %d", s.Position)
					}
				}
				if msg := p.read(h.Reads); !bytes.Contains(msg, data) {
					t.Error("the message has other data")
				}
				if !h.HasReply || h.Reply.Length() < 9100 {
					t.Errorf("the reply chunk is %+v", h.Reply)
				}
			})
		})
	}
}

// TestProtectedRecords checks that a record that passes through keeps the xid, which its verifier signs, and stays
// complete.
func TestProtectedRecords(t *testing.T) {
	t.Run("V1-11-1 a record of a client", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			c := NewRecordConn(cl, opaqueBinding{max: 9000}, 0)
			defer c.Close()
			const xid = 0xabcdef01
			h := oncrpc.CallHeader{XID: xid, RPCVers: 2, Prog: testProg, Vers: 1, Proc: 1, Cred: gss(2)}
			msg := append(oncrpc.AppendCall(nil, &h), opaque(string(letters(6000)))...)
			for range 2 { // the xid is free again after the reply
				if _, err := c.Write(record(msg)); err != nil {
					t.Fatal(err)
				}
				rh, _ := p.message("the call")
				if rh.XID != xid || rh.Proc != rpcrdma.ProcNomsg || len(rh.Writes) > 0 || !bytes.Equal(p.read(rh.Reads), msg) {
					t.Fatalf("call is %+v", rh)
				}
				p.reply(rpcrdma.Header{XID: xid}, 1, 2, 3, 4)
				if got := readRecord(t, c); binary.BigEndian.Uint32(got) != xid || !bytes.HasSuffix(got, []byte{1, 2, 3, 4}) {
					t.Errorf("record is %x", got)
				}
			}
		})
	})

	t.Run("two calls cannot have one xid", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			first := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			fh, _ := p.message("the first call")
			p.reply(rpcrdma.Header{XID: fh.XID})
			if err := outcome(t, first); err != nil {
				t.Fatal(err)
			}
			a, b := NewRecordConn(cl, nil, 0), NewRecordConn(cl, nil, 0)
			defer a.Close()
			defer b.Close()
			h := oncrpc.CallHeader{XID: 77, RPCVers: 2, Prog: testProg, Vers: 1, Proc: 1, Cred: gss(2)}
			a.Write(record(oncrpc.AppendCall(nil, &h)))
			p.message("the call")
			b.Write(record(oncrpc.AppendCall(nil, &h)))
			p.quiet("the xid is in use")
			if _, err := b.Read(make([]byte, 4)); err == nil {
				t.Error("the second call was made")
			}
			p.reply(rpcrdma.Header{XID: 77})
			synctest.Wait()
			readRecord(t, a)
		})
	})

	t.Run("V1-11-1 a record of a server", func(t *testing.T) {
		bridged(t, opaqueBinding{}, func(p *peer, s *Server, l net.Listener) {
			mem := make([]byte, 9000)
			msg := oncrpc.AppendCall(nil, &oncrpc.CallHeader{XID: 5, RPCVers: 2, Prog: testProg, Vers: 1, Proc: 1, Cred: gss(3)})
			// A peer need not offer what will not be used, but it may.
			h := rpcrdma.Header{XID: 5, Vers: 1, Credit: 8, Writes: []rpcrdma.WriteChunk{{p.offer(0xabc, mem)}}}
			p.send(append(rpcrdma.AppendHeader(nil, &h), msg...), 0)
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if got := readRecord(t, c); !bytes.Equal(got, msg) {
				t.Errorf("record is %x", got)
			}
			if _, err := c.Write(record(replyMsg(5, opaque("sealed")))); err != nil {
				t.Fatal(err)
			}
			rh, payload := p.message("the reply")
			if !bytes.Equal(accepted(t, payload, 5), opaque("sealed")) || len(rh.Writes) != 1 || rh.Writes[0][0].Length != 0 {
				t.Errorf("reply is %+v %x", rh, payload)
			}
		})
	})
}

// TestProtectedAtServer checks that a client that offers or has sent chunks for protected data receives nothing into
// them.
func TestProtectedAtServer(t *testing.T) {
	protected := func(service uint32, h rpcrdma.Header, args ...byte) []byte {
		h.XID, h.Vers, h.Credit = 5, 1, 8
		msg := oncrpc.AppendCall(nil, &oncrpc.CallHeader{XID: 5, RPCVers: 2, Prog: testProg, Vers: 1, Proc: procEcho, Cred: gss(service)})
		return append(append(rpcrdma.AppendHeader(nil, &h), msg...), args...)
	}
	for _, c := range []struct {
		name    string
		service uint32
		chunks  bool
	}{{"authentication alone", 1, true}, {"integrity", 2, false}, {"privacy", 3, false}} {
		t.Run("V1-11-1 a write chunk, "+c.name, func(t *testing.T) {
			testServer(t, nil, func(p *peer, _ *Server, _ *testService) {
				mem := make([]byte, 100)
				p.send(protected(c.service, rpcrdma.Header{Writes: []rpcrdma.WriteChunk{{p.offer(0xabc, mem)}}}, opaque("sealed")...), 0)
				h, payload := p.message("the reply")
				want, placed := opaque("sealed"), uint32(0)
				if c.chunks {
					want, placed = xdr.AppendUint32(nil, 6), 6
				}
				if got := accepted(t, payload, 5); !bytes.Equal(got, want) || len(h.Writes) != 1 || h.Writes[0][0].Length != placed {
					t.Errorf("reply is %+v %x", h, got)
				}
			})
		})
		t.Run("V1-11-1 a read chunk, "+c.name, func(t *testing.T) {
			testServer(t, nil, func(p *peer, _ *Server, _ *testService) {
				cred := gss(c.service)
				at := uint32(40 + cred.Size() - 8 + 4)
				p.send(protected(c.service, rpcrdma.Header{Reads: []rpcrdma.ReadSegment{{Position: at, Segment: p.offer(1, []byte("sealed"))}}}, 0, 0, 0, 6), 0)
				_, payload := p.message("the reply")
				var h oncrpc.ReplyHeader
				if _, err := oncrpc.ConsumeReply(payload, &h); err != nil || (h.AcceptStat == oncrpc.Success) != c.chunks {
					t.Errorf("reply is %+v, %v", h, err)
				}
			})
		})
	}
}

// TestVerifierRemembered checks that the verifier is part of a cached reply, and that results that were built in their
// final place go out complete.
func TestVerifierRemembered(t *testing.T) {
	verf := oncrpc.Auth{Flavor: oncrpc.FlavorShort, Body: []byte(letters(61))}
	for _, dma := range []bool{true, false} {
		for _, size := range []int{1000, 4000} { // inline; in the reply chunk, for the verifier
			data := append(opaque(string(letters(size-16))), opaque("an item!")...)
			runs := 0
			program := rpc.Program{Number: testProg, Low: 1, High: 1, Inline: rpc.Every, Handler: rpc.HandlerFunc(
				func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
					runs++
					res.Results = append(res.Results, data[:size-12]...)
					res.AddItem(data[size-8:], nil)
					res.Verf = verf
				})}
			serverTo(t, nil, []rpc.Program{program}, func(ps *peers, s *Server) {
				for i := range 3 {
					p := newPeer(t)
					p.caps.LocalDMA = dma
					p = ps.enter(s, "client", p)
					mem := make([]byte, 8192)
					p.send(callBytes(rpcrdma.Header{XID: 7, HasReply: true, Reply: rpcrdma.WriteChunk{p.offer(1, mem)}}, 1), 0)
					h, msg := p.message("the reply")
					if h.Proc == rpcrdma.ProcNomsg {
						msg = mem[:h.Reply.Length()]
					}
					var r oncrpc.ReplyHeader
					n, err := oncrpc.ConsumeReply(msg, &r)
					if err != nil || r.Err() != nil || !bytes.Equal(r.Verf.Body, verf.Body) || !bytes.Equal(msg[n:], data) || (h.Proc == rpcrdma.ProcNomsg) != (size > 1000) {
						t.Errorf("%d bytes, LocalDMA %v, time %d: %+v %v, %d bytes", size, dma, i, h, err, len(msg)-n)
					}
					p.hangUp()
				}
				if runs != 1 {
					t.Errorf("executed %d times", runs)
				}
			})
		}
	}
}
