package transport

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// bridgedWithin is bridged, with a Middleware.
func bridgedWithin(t *testing.T, m rpc.Middleware, script func(ps *peers, s *Server, l net.Listener)) {
	t.Helper()
	var l net.Listener
	serverFor(t, &Settings{Middleware: []rpc.Middleware{m}}, func(s *Server) { l = s.Bridge(opaqueBinding{}, testProg) },
		func(ps *peers, s *Server) { script(ps, s, l) })
}

// patience gives a call a second.
func patience(next rpc.Handler) rpc.Handler {
	return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		next.ServeRPC(ctx, req, res)
	})
}

// TestBridgeGivenUp checks calls for which middleware allows less time than their connection has. A call that is read
// after that time is complete, and its reply is dropped.
func TestBridgeGivenUp(t *testing.T) {
	bridgedWithin(t, patience, func(ps *peers, s *Server, l net.Listener) {
		p := ps.arrive(s, "client")
		args := opaque(string(bytes.Repeat([]byte("data"), 3000)))
		h := rpcrdma.Header{XID: 1, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(1, args[4:])}}}
		p.send(callBytes(h, 1, args[:4]...), 0)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		begin := make([]byte, 60)
		if n, err := c.Read(begin); n != len(begin) || err != nil {
			t.Fatal(n, err)
		}
		time.Sleep(time.Second)
		_, payload := p.message("SYSTEM_ERR")
		var rh oncrpc.ReplyHeader
		if _, err := oncrpc.ConsumeReply(payload, &rh); err != nil || rh.XID != 1 || rh.AcceptStat != oncrpc.SystemErr {
			t.Errorf("answer is %+v, %v", rh, err)
		}
		if n := s.cache.Stats().Entries; n != 0 {
			t.Errorf("%d replies are remembered", n)
		}
		// The memory of the call is another's now.
		h = rpcrdma.Header{XID: 2, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(2, bytes.Repeat([]byte("x"), len(args)-4))}}}
		p.send(callBytes(h, 1, args[:4]...), 0)
		synctest.Wait()
		rest := make([]byte, len(record(appendCall(nil, 1, 1, args...)))-len(begin))
		if n, err := c.Read(rest); n < len(rest) || err != nil {
			t.Fatal(n, err)
		}
		if got := append(begin, rest...)[4:]; !bytes.Equal(got, appendCall(nil, 1, 1, args...)) {
			t.Error("the record is not the call that came")
		}
		readRecord(t, c)
		if _, err := c.Write(append(record(replyMsg(1, opaque("late"))), record(replyMsg(2, opaque("in time")))...)); err != nil {
			t.Fatal(err)
		}
		if _, results := p.replies(2, "the reply to the second call"); !bytes.Equal(results, opaque("in time")) {
			t.Errorf("results are %q", results)
		}
	})
}

// TestBridgeUnread checks that calls that are abandoned before they are read use no memory.
func TestBridgeUnread(t *testing.T) {
	bridgedWithin(t, patience, func(ps *peers, s *Server, l net.Listener) {
		p := ps.arrive(s, "client")
		args := opaque(string(bytes.Repeat([]byte("data"), 3000)))
		xid := uint32(0)
		call := func() []byte {
			xid++
			h := rpcrdma.Header{XID: xid, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(xid, args[4:])}}}
			p.send(callBytes(h, 1, args[:4]...), 0)
			synctest.Wait()
			return appendCall(nil, xid, 1, args...)
		}
		want := call()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(readRecord(t, c), want) {
			t.Error("the record is not the call that came")
		}
		unread := c.(*serverRecords).Unread
		begun, rest := 0, []byte(nil) // of a call that is half read
		for range 2 {
			for range 40 {
				call()
				call()
				time.Sleep(time.Second)
				synctest.Wait()
			}
			for range 1 + begun + 80 {
				p.message("SYSTEM_ERR")
			}
			if calls, size := unread(); calls != begun || size != len(rest) {
				t.Errorf("%d calls with %d bytes are there to be read, want %d with %d", calls, size, begun, len(rest))
			}
			got := make([]byte, len(rest))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, rest) {
				t.Errorf("not the rest of the call that came: %v", err)
			}
			if want := call(); !bytes.Equal(readRecord(t, c), want) {
				t.Error("the record is not the call that came")
			}
			whole := record(call())
			begun, rest = 1, whole[len(whole)/2:]
			if n, err := c.Read(make([]byte, len(whole)/2)); n != len(whole)/2 || err != nil {
				t.Fatal(n, err)
			}
		}
	})
}

// TestBridgeAnsweredEarly checks that a reply may be written before the call has been read completely.
func TestBridgeAnsweredEarly(t *testing.T) {
	bridged(t, opaqueBinding{}, func(p *peer, _ *Server, l net.Listener) {
		args := opaque(string(bytes.Repeat([]byte("data"), 3000)))
		for xid := uint32(1); xid < 4; xid++ {
			h := rpcrdma.Header{XID: xid, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(xid, bytes.Clone(args[4:]))}}}
			p.send(callBytes(h, 1, args[:4]...), 0)
			if xid == 1 {
				c, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					for xid := uint32(1); xid < 4; xid++ {
						if !bytes.Equal(readRecord(t, c), appendCall(nil, xid, 1, args...)) {
							t.Errorf("the record of call %d is not the call that came", xid)
						}
					}
				}()
				defer func() {
					for xid := uint32(1); xid < 4; xid++ {
						c.Write(record(replyMsg(xid, nil)))
						p.message("the reply")
					}
					p.send(callBytes(rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(9, make([]byte, len(args)-4))}}}, 1, args[:4]...), 0)
					synctest.Wait()
				}()
			}
			synctest.Wait()
		}
	})
}

// TestBridgeLateWrapper checks that a call is lost if its connection ends before middleware passes it on.
func TestBridgeLateWrapper(t *testing.T) {
	for _, known := range []bool{false, true} {
		var gate chan struct{}
		wait := func(next rpc.Handler) rpc.Handler {
			return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
				if req.Proc == procHold {
					<-gate
				}
				next.ServeRPC(ctx, req, res)
			})
		}
		bridgedWithin(t, wait, func(ps *peers, s *Server, l net.Listener) {
			gate = make(chan struct{})
			p := ps.arrive(s, "client")
			if known { // the connection has a net.Conn
				p.send(callBytes(rpcrdma.Header{XID: 1}, procEcho), 0)
				c, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				readRecord(t, c)
				c.Write(record(replyMsg(1, nil)))
				p.message("the reply")
			}
			p.send(callBytes(rpcrdma.Header{XID: 2}, procHold, opaque("late")...), 0)
			synctest.Wait()
			p.hangUp()
			synctest.Wait()
			close(gate)
			for _, c := range ps.seen {
				checkArena(t, c)
			}
			b := s.bridges[0]
			if n := len(b.conns) + len(b.accept); n != 0 {
				t.Errorf("%d net.Conns are left", n)
			}
			entries := 0
			if known {
				entries = 1 // of the first call
			}
			if n := s.cache.Stats().Entries; n != entries {
				t.Errorf("%d replies are remembered", n)
			}
		})
	}
}
