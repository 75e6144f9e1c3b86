package transport

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"testing/synctest"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
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
				call := &Call{Prog: testProg, Vers: 1, Cred: gss(c.service), Args: xdr.AppendUint32(nil, 9000),
					ReadItems: []ReadItem{{Offset: 4, Data: data}}, WriteItems: []WriteItem{{Buf: make([]byte, 9000)}}, MaxResults: 100}
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

// TestProtectedRecords: what passes through as a record keeps its xid, which its
// verifier signs, and stays whole.
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
			first := async(cl, bg, &Call{Prog: testProg, Vers: 1})
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
			// Nobody has to offer what will not be used, but somebody may.
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
