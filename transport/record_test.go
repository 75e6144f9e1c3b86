package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
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

// opaqueBinding makes every stream that starts with an opaque<> eligible in both
// directions: the item is that opaque, and what follows is a tail.
type opaqueBinding struct{ max int }

func (b opaqueBinding) Call(_ rpc.Procedure, args []byte, items []rpc.Range) ([]rpc.Range, rpc.ReplyBounds) {
	bounds := rpc.ReplyBounds{MaxResults: 64, NumItems: 1}
	bounds.Items[0] = b.max
	return b.Reply(rpc.Procedure{}, args, false, items), bounds
}

func (b opaqueBinding) Reply(_ rpc.Procedure, results []byte, reduced bool, items []rpc.Range) []rpc.Range {
	n, size := xdr.ConsumeUint32(results)
	if size < 0 || !reduced && int(n) > len(results)-4 {
		return items[:0]
	}
	return append(items[:0], rpc.Range{Offset: 4, Length: int(n)})
}

func record(msg []byte) []byte { return append(oncrpc.AppendRecordMark(nil, len(msg), true), msg...) }

func readRecord(t *testing.T, c net.Conn) []byte {
	t.Helper()
	mark := make([]byte, 4)
	if _, err := io.ReadFull(c, mark); err != nil {
		t.Fatal(err)
	}
	n, last, _ := oncrpc.ConsumeRecordMark(mark)
	if !last {
		t.Fatal("a record in fragments")
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// bridged runs a conversation with a server that has a bridge, without middleware and with some.
func bridged(t *testing.T, b rpc.Binding, script func(p *peer, s *Server, l net.Listener)) {
	t.Helper()
	for _, cfg := range []*ServerConfig{nil, {Config: Config{Middleware: []rpc.Middleware{wrapper}}}} {
		p := newPeer(t)
		synctest.Test(t, func(t *testing.T) {
			p.t = t
			p.changed = make(chan struct{})
			s, err := NewServer(cfg)
			if err != nil {
				t.Fatal(err)
			}
			nl := s.Bridge(b, testProg)
			l, err := s.Listen(bg, p, "script:1")
			if err != nil {
				t.Fatal(err)
			}
			go s.Serve(l)
			synctest.Wait()
			defer s.Close()
			script(p, s, nl)
		})
	}
}

// wrapper is a Middleware that does nothing.
func wrapper(next rpc.Handler) rpc.Handler {
	return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) { next.ServeRPC(ctx, req, res) })
}

func replyMsg(xid uint32, results []byte) []byte {
	return append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: xid}), results...)
}

// TestBridge checks that calls are read as records, and that records written are replies.
func TestBridge(t *testing.T) {
	t.Run("calls are read and replies written as records, in any order", func(t *testing.T) {
		bridged(t, nil, func(p *peer, s *Server, l net.Listener) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1, opaque("one")...), 0)
			synctest.Wait() // middleware may take its time
			p.send(callBytes(rpcrdma.Header{XID: 2}, 1, opaque("two")...), 0)
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if got := readRecord(t, c); !bytes.Equal(got, appendCall(nil, 1, 1, opaque("one")...)) {
				t.Errorf("record is %x", got)
			}
			readRecord(t, c)
			for _, xid := range []uint32{2, 1} {
				for _, b := range record(replyMsg(xid, opaque("done"))) { // byte by byte
					if _, err := c.Write([]byte{b}); err != nil {
						t.Fatal(err)
					}
				}
				h, payload := p.message("the reply")
				if got := accepted(t, payload, xid); h.XID != xid || !bytes.Equal(got, opaque("done")) {
					t.Errorf("reply %+v %x", h, got)
				}
			}
			// Fragments make one record; two records fit one Write.
			p.send(callBytes(rpcrdma.Header{XID: 3}, 1), 0)
			p.send(callBytes(rpcrdma.Header{XID: 4}, 1), 0)
			readRecord(t, c)
			readRecord(t, c)
			m := replyMsg(3, nil)
			b := oncrpc.AppendRecordMark(nil, 8, false)
			b = append(b, m[:8]...)
			b = oncrpc.AppendRecordMark(b, len(m)-8, true)
			b = append(append(b, m[8:]...), record(replyMsg(4, nil))...)
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
			p.message("a reply")
			p.message("another")
		})
	})

	t.Run("chunks are whole on the inside, and placed by the binding on the outside", func(t *testing.T) {
		bridged(t, opaqueBinding{}, func(p *peer, s *Server, l net.Listener) {
			data := strings.Repeat("data", 2000)
			mem := make([]byte, 9000)
			p.send(callBytes(rpcrdma.Header{XID: 1,
				Reads:  []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(1, []byte(data))}},
				Writes: []rpcrdma.WriteChunk{{p.offer(2, mem)}}}, 1, xdr.AppendUint32(nil, 8000)...), 0)
			c, _ := l.Accept()
			if got := readRecord(t, c); !bytes.Equal(got, appendCall(nil, 1, 1, opaque(data)...)) {
				t.Errorf("record of %d bytes", len(got))
			}
			c.Write(record(replyMsg(1, append(opaque(data[:7001]), 1, 2, 3, 4))))
			h, payload := p.message("the reply")
			if got := accepted(t, payload, 1); !bytes.Equal(got, append(xdr.AppendUint32(nil, 7001), 1, 2, 3, 4)) {
				t.Errorf("inline results are %x", got)
			}
			if h.Writes[0].Length() != 7001 || string(mem[:7001]) != data[:7001] {
				t.Errorf("chunk came back with %d bytes", h.Writes[0].Length())
			}
			// Without a chunk the same reply is long.
			p.send(callBytes(rpcrdma.Header{XID: 2, HasReply: true, Reply: rpcrdma.WriteChunk{p.offer(3, mem)}}, 1), 0)
			readRecord(t, c)
			c.Write(record(replyMsg(2, opaque(data[:7001]))))
			h, _ = p.message("the reply")
			if h.Proc != rpcrdma.ProcNomsg || !bytes.Equal(accepted(t, mem[:h.Reply.Length()], 2), opaque(data[:7001])) {
				t.Errorf("reply %+v", h)
			}
		})
	})

	t.Run("without a binding a long reply goes to the reply chunk; a header that cannot be read is SYSTEM_ERR", func(t *testing.T) {
		bridged(t, nil, func(p *peer, s *Server, l net.Listener) {
			mem := make([]byte, 9000)
			p.send(callBytes(rpcrdma.Header{XID: 1, HasReply: true, Reply: rpcrdma.WriteChunk{p.offer(3, mem)}}, 1), 0)
			c, _ := l.Accept()
			readRecord(t, c)
			want := replyMsg(1, bytes.Repeat([]byte("long"), 2000))
			c.Write(record(want))
			h, _ := p.message("the reply")
			if h.Proc != rpcrdma.ProcNomsg || !bytes.Equal(mem[:h.Reply.Length()], want) {
				t.Errorf("reply %+v", h)
			}
			p.send(callBytes(rpcrdma.Header{XID: 2}, 1), 0)
			readRecord(t, c)
			// PROG_MISMATCH without its range of versions.
			odd := xdr.AppendUint32(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: 2})[:20], 2)
			c.Write(record(odd))
			_, payload := p.message("the answer to the odd reply")
			var reply oncrpc.ReplyHeader
			if _, err := oncrpc.ConsumeReply(payload, &reply); err != nil || reply.XID != 2 || reply.AcceptStat != oncrpc.SystemErr {
				t.Errorf("reply is %+v, %v", reply, err)
			}
		})
	})

	t.Run("errors of RPC pass", func(t *testing.T) {
		bridged(t, opaqueBinding{}, func(p *peer, s *Server, l net.Listener) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			c, _ := l.Accept()
			readRecord(t, c)
			c.Write(record(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: 1, Stat: oncrpc.MsgDenied,
				RejectStat: oncrpc.AuthError, AuthStat: oncrpc.AuthTooWeak})))
			_, payload := p.message("the reply")
			var h oncrpc.ReplyHeader
			if _, err := oncrpc.ConsumeReply(payload, &h); err != nil || h.AuthStat != oncrpc.AuthTooWeak {
				t.Errorf("reply is %+v, %v", h, err)
			}
		})
	})

	t.Run("other programs are not bridged", func(t *testing.T) {
		bridged(t, nil, func(p *peer, s *Server, l net.Listener) {
			b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 1, Vers: 1, Credit: 1})
			p.send(oncrpc.AppendCall(b, &oncrpc.CallHeader{XID: 1, RPCVers: 2, Prog: 5, Vers: 1}), 0)
			_, payload := p.message("the reply")
			var h oncrpc.ReplyHeader
			if _, err := oncrpc.ConsumeReply(payload, &h); err != nil || h.AcceptStat != oncrpc.ProgUnavail {
				t.Errorf("reply is %+v, %v", h, err)
			}
		})
	})
}

// TestBridgeSameXID checks a call with the xid of another call that has no reply yet.
func TestBridgeSameXID(t *testing.T) {
	t.Run("an xid used twice at once for different calls is refused", func(t *testing.T) {
		bridged(t, nil, func(p *peer, s *Server, l net.Listener) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			synctest.Wait()
			p.send(callBytes(rpcrdma.Header{XID: 1}, 2), 0)
			_, payload := p.message("SYSTEM_ERR")
			var h oncrpc.ReplyHeader
			if _, err := oncrpc.ConsumeReply(payload, &h); err != nil || h.XID != 1 || h.AcceptStat != oncrpc.SystemErr {
				t.Errorf("answer is %+v, %v", h, err)
			}
		})
	})

	t.Run("a call that comes twice is executed once", func(t *testing.T) {
		bridged(t, nil, func(p *peer, s *Server, l net.Listener) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			c, _ := l.Accept()
			readRecord(t, c)
			synctest.Wait()
			if err := c.SetReadDeadline(time.Now()); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("there is another record: %v", err)
			}
			c.Write(record(replyMsg(1, []byte{0, 0, 0, 7})))
			for range 2 {
				if h, payload := p.message("the reply"); h.XID != 1 || payload[len(payload)-1] != 7 {
					t.Errorf("reply %+v, %x", h, payload)
				}
			}
		})
	})
}

// TestBridgeEnds checks that a net.Conn and its connection end together.
func TestBridgeEnds(t *testing.T) {
	t.Run("deadlines and ends", func(t *testing.T) {
		bridged(t, nil, func(p *peer, s *Server, l net.Listener) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			c, _ := l.Accept()
			readRecord(t, c)
			c.SetDeadline(time.Now().Add(time.Second))
			start := time.Now()
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("Read returned %v after %v", err, time.Since(start))
			}
			c.SetDeadline(time.Time{})
			got := make(chan error, 1)
			go func() {
				_, err := c.Read(make([]byte, 1))
				got <- err
			}()
			synctest.Wait()
			p.hangUp()
			if err := outcome(t, got); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Read returned %v", err)
			}
			if _, err := c.Write(record(replyMsg(1, nil))); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Write returned %v", err)
			}
			l.Close()
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept returned %v", err)
			}
		})
	})

	t.Run("an orderly end reads as on TCP", func(t *testing.T) {
		orderly := &fabric.ConnError{Provider: "script", Remote: true, Clean: true}
		bridged(t, nil, func(p *peer, s *Server, l net.Listener) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			c, _ := l.Accept()
			readRecord(t, c)
			p.finish(orderly)
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("server: Read returned %v", err)
			}
		})
		client(t, nil, func(p *peer, cl *Client) {
			c := NewRecordConn(cl, nil, 0)
			time.Sleep(time.Second) // idle: without calls
			p.finish(orderly)
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("client: Read returned %v", err)
			}
			c.Close()
		})
	})

	t.Run("closing the net.Conn ends the connection", func(t *testing.T) {
		bridged(t, nil, func(p *peer, s *Server, l net.Listener) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			c, _ := l.Accept()
			c.Close()
			c.Close()
			synctest.Wait()
			if p.end == nil {
				t.Error("it lives")
			}
		})
	})

	t.Run("nonsense written ends the connection", func(t *testing.T) {
		for name, b := range map[string][]byte{
			"a record too long": oncrpc.AppendRecordMark(nil, 1<<30, true),
			"a call":            record(appendCall(nil, 1, 1)),
		} {
			bridged(t, nil, func(p *peer, s *Server, l net.Listener) {
				p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
				c, _ := l.Accept()
				if _, err := c.Write(b); err == nil {
					t.Errorf("%s: no error", name)
				}
				synctest.Wait()
				if p.end == nil {
					t.Errorf("%s: the connection lives", name)
				}
			})
		}
	})
}

func TestRecordConn(t *testing.T) {
	t.Run("bulk leaves and comes back through chunks", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			c := NewRecordConn(cl, opaqueBinding{max: 9000}, 0)
			data := strings.Repeat("data", 2000)
			msg := appendCall(nil, 0xabcdef01, 1, append(opaque(data), 9, 9, 9, 9)...)
			go c.Write(record(msg))
			h, payload := p.message("the call")
			if len(h.Reads) != 1 || len(h.Writes) != 1 || string(p.read(h.Reads)) != data || word(payload, 0) != h.XID {
				t.Fatalf("call is %+v", h)
			}
			p.write(h.Writes[0][0], data[:5001])
			h.Writes[0][0].Length = 5001
			p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, append(xdr.AppendUint32(nil, 5001), 7, 7, 7, 7)...)
			want := replyMsg(0xabcdef01, append(opaque(data[:5001]), 7, 7, 7, 7))
			if got := readRecord(t, c); !bytes.Equal(got, want) {
				t.Errorf("record of %d bytes, want %d", len(got), len(want))
			}
			// The server may keep the item inline as well.
			go c.Write(record(msg))
			h, _ = p.message("the call")
			h.Writes[0][0].Length = 0
			p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, opaque("inline")...)
			if got := readRecord(t, c); !bytes.Equal(got, replyMsg(0xabcdef01, opaque("inline"))) {
				t.Errorf("record is %x", got)
			}
			c.Close()
		})
	})

	t.Run("without a binding, long replies have a reply chunk", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			c := NewRecordConn(cl, nil, 20000)
			go c.Write(record(appendCall(nil, 1, 1)))
			h, _ := p.message("the call")
			if !h.HasReply || h.Reply.Length() < 20000 {
				t.Fatalf("call is %+v", h)
			}
			msg := replyMsg(h.XID, bytes.Repeat([]byte("r"), 15000))
			p.write(h.Reply[0], string(msg))
			h.Reply[0].Length = uint32(len(msg))
			p.reply(rpcrdma.Header{XID: h.XID, Proc: rpcrdma.ProcNomsg, HasReply: true, Reply: h.Reply})
			if got := readRecord(t, c); binary.BigEndian.Uint32(got) != 1 || !bytes.Equal(got[4:], msg[4:]) {
				t.Errorf("record of %d bytes", len(got))
			}
			c.Close()
		})
	})

	t.Run("a length that its chunk does not have breaks the stream", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			c := NewRecordConn(cl, opaqueBinding{max: 9000}, 0)
			go c.Write(record(appendCall(nil, 1, 1, opaque("x")...)))
			h, _ := p.message("the call")
			p.write(h.Writes[0][0], "abc")
			h.Writes[0][0].Length = 3
			p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, xdr.AppendUint32(nil, 500)...)
			synctest.Wait()
			var re *rpc.BadReplyError
			if _, err := c.Read(make([]byte, 4)); !errors.As(err, &re) {
				t.Errorf("Read returned %v", err)
			}
			c.Close()
		})
	})

	t.Run("an RPC error is a record like others", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			c := NewRecordConn(cl, nil, 0)
			go c.Write(record(appendCall(nil, 1, 1)))
			h, _ := p.message("the call")
			b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 1, Credit: 1})
			p.send(oncrpc.AppendReply(b, &oncrpc.ReplyHeader{XID: h.XID, AcceptStat: oncrpc.ProcUnavail}), 0)
			var r oncrpc.ReplyHeader
			if _, err := oncrpc.ConsumeReply(readRecord(t, c), &r); err != nil || r.AcceptStat != oncrpc.ProcUnavail || r.XID != 1 {
				t.Errorf("reply is %+v, %v", r, err)
			}
			c.Close()
		})
	})
}
