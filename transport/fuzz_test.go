package transport

import (
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// FuzzServer sends a server one message with arbitrary bytes. The server must answer it once, ignore it, or end the
// connection, without leaks or crashes. Memory that the message may name exists under handles 1 to 3.
func FuzzServer(f *testing.F) {
	p := newPeer(nil)
	seg := func(h uint32, n int) rpcrdma.Segment { return p.offer(h, make([]byte, n)) }
	for _, msg := range [][]byte{
		callBytes(rpcrdma.Header{XID: 5}, procEcho, opaque("hello")...),
		callBytes(rpcrdma.Header{XID: 5, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: seg(1, 500)}}}, procEcho, 0, 0, 1, 0xf4),
		callBytes(rpcrdma.Header{XID: 5, Writes: []rpcrdma.WriteChunk{{seg(2, 100), seg(3, 100)}}}, procEcho, opaque("hello")...),
		callBytes(rpcrdma.Header{XID: 5, HasReply: true, Reply: rpcrdma.WriteChunk{seg(2, 9000)}}, procLong, 0, 0, 8, 0),
		callBytes(rpcrdma.Header{XID: 5, Proc: rpcrdma.ProcNomsg, Reads: []rpcrdma.ReadSegment{{Segment: seg(1, 500)}}}, 0),
		rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 5, Vers: 1, Proc: rpcrdma.ProcDone}),
		rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 5, Vers: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk}),
		{1, 2, 3},
	} {
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		if len(msg) > DefaultInline {
			return
		}
		p := newPeer(t)
		p.hostile = true
		for h := uint32(1); h <= 3; h++ {
			p.offer(h, make([]byte, 10_000))
		}
		testServerOf(t, p, nil, func(p *peer, s *Server, svc *testService) {
			close(svc.gate)
			p.send(msg, 0)
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			st := s.Stats()
			if len(p.sends) > 1 {
				t.Fatalf("%d answers to one message", len(p.sends))
			}
			if len(p.sends) == 0 && p.end == nil && st.Dropped != 1 {
				t.Fatalf("neither answered nor ignored: %+v", st)
			}
			if len(p.sends) == 1 {
				var h rpcrdma.Header
				if _, err := rpcrdma.ConsumeHeader(p.sends[0].msg, &h, nil); err != nil {
					t.Fatalf("a malformed answer: %v", err)
				}
				if xid := binary.BigEndian.Uint32(msg); h.XID != xid {
					t.Fatalf("answer has xid %#x, not %#x", h.XID, xid)
				}
			}
		})
	})
}

// FuzzClient answers a client's call with arbitrary bytes that contain its xid. The call must end once or keep waiting.
// Its memory must be closed when it has ended.
func FuzzClient(f *testing.F) {
	p := &peer{}
	for _, msg := range [][]byte{
		p.replyBytes(rpcrdma.Header{}, xdr.AppendUint32(nil, 7)),
		p.replyBytes(rpcrdma.Header{Writes: []rpcrdma.WriteChunk{{{Length: 9000}}}}, nil),
		p.replyBytes(rpcrdma.Header{Proc: rpcrdma.ProcNomsg, HasReply: true, Reply: rpcrdma.WriteChunk{{Length: 100}}}, nil),
		rpcrdma.AppendHeader(nil, &rpcrdma.Header{Vers: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrVers, VersLow: 1, VersHigh: 2}),
		{0, 0, 0, 0, 1},
	} {
		f.Add(msg, false)
		f.Add(msg, true)
	}
	f.Fuzz(func(t *testing.T, msg []byte, chunks bool) {
		if len(msg) > DefaultInline {
			return
		}
		client(t, nil, func(p *peer, cl *Client) {
			call := rpc.Call{Prog: testProg, Vers: 1}
			if chunks {
				call.WriteItems, call.MaxResults = []rpc.WriteItem{{Buf: make([]byte, 9000)}}, 10_000
			}
			done := async(cl, bg, &call)
			h, _ := p.message("the call")
			if len(msg) >= 4 {
				binary.BigEndian.PutUint32(msg, h.XID)
			}
			// Right names in the places of the seeds', so that lengths matter.
			if chunks && len(msg) >= 60 {
				s := h.Writes[0][0]
				binary.BigEndian.PutUint32(msg[28:], s.Handle)
				binary.BigEndian.PutUint64(msg[36:], s.Offset)
			}
			p.send(msg, 0)
			synctest.Wait()
			select {
			case <-done:
				if n := p.openWindows(); n != 0 {
					t.Fatalf("%d windows are open after the call", n)
				}
				if w := call.WriteItems; chunks && w[0].N > len(w[0].Buf) {
					t.Fatalf("%d bytes in a buffer of %d", w[0].N, len(w[0].Buf))
				}
			default:
			}
			p.quiet("nothing is answered")
		})
	})
}
