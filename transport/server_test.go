package transport

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Procedures of the test program.
const (
	procEcho  = 1 // opaque<> -> the same, as an item; runs on the leader
	procArgs  = 2 // arguments -> the same bytes, with no item; on a goroutine
	procTwo   = 3 // uint32 a, b -> opaque of a bytes, uint32, opaque of b bytes
	procHold  = 4 // waits for the gate
	procFail  = 5 // GARBAGE_ARGS
	procLong  = 6 // uint32 n -> n words, no item
	procAlloc = 7 // uint32 n -> opaque of n bytes from Alloc
)

type testService struct {
	gate     chan struct{}
	running  atomic.Int32
	released atomic.Int32
}

func (s *testService) program() rpc.Program {
	return rpc.Program{
		Number: testProg, Low: 1, High: 1, Handler: s, Idempotent: rpc.Every,
		Inline: func(_, proc uint32) bool { return proc == procEcho || proc == procFail },
	}
}

func (s *testService) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	s.running.Add(1)
	defer s.running.Add(-1)
	d := xdr.NewDecoder(req.Args)
	switch req.Proc {
	case procEcho:
		data := d.Opaque(1 << 30)
		if d.Err() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		res.AddItem(data, func() { s.released.Add(1) })
	case procArgs:
		res.Results = append(res.Results, req.Args...)
	case procTwo:
		a, b := d.Uint32(), d.Uint32()
		res.AddItem(bytes.Repeat([]byte("a"), int(a)), nil)
		res.Results = xdr.AppendUint32(res.Results, 0x77)
		res.AddItem(bytes.Repeat([]byte("b"), int(b)), nil)
	case procHold:
		select {
		case <-s.gate:
		case <-ctx.Done():
		}
	case procFail:
		res.AddItem([]byte("never sent"), func() { s.released.Add(1) })
		res.Fail(oncrpc.GarbageArgs)
	case procLong:
		for i := range d.Uint32() {
			res.Results = xdr.AppendUint32(res.Results, i)
		}
	case procAlloc:
		b := res.Alloc(int(d.Uint32()))
		for i := range b {
			b[i] = byte(i)
		}
		res.AddItem(b, nil)
	default:
		res.Fail(oncrpc.ProcUnavail)
	}
}

func testServer(t *testing.T, cfg *Settings, script func(p *peer, s *Server, svc *testService)) {
	t.Helper()
	testServerOf(t, newPeer(t), cfg, script)
}

func testServerOf(t *testing.T, p *peer, cfg *Settings, script func(p *peer, s *Server, svc *testService)) {
	t.Helper()
	svc := &testService{}
	serverOf(t, p, cfg, []rpc.Program{svc.program()}, func(p *peer, s *Server) {
		svc.gate = make(chan struct{})
		script(p, s, svc)
	})
}

// accepted checks that a payload is a successful reply and returns its results.
func accepted(t *testing.T, payload []byte, xid uint32) []byte {
	t.Helper()
	var h oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(payload, &h)
	if err != nil || h.Err() != nil || h.XID != xid {
		t.Fatalf("reply is %+v, %v %v", h, err, h.Err())
	}
	return payload[n:]
}

func opaque(s string) []byte { return xdr.AppendOpaque(nil, []byte(s)) }

func TestServerInline(t *testing.T) {
	t.Run("V1-3.1-1 V1-4.1-2 a short call and its reply", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, svc *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 5}, procEcho, opaque("hello")...), 0)
			h, payload := p.message("the reply")
			if h.XID != 5 || h.Vers != 1 || h.Proc != rpcrdma.ProcMsg || h.Credit < 1 {
				t.Errorf("reply header is %+v", h)
			}
			if got := accepted(t, payload, 5); !bytes.Equal(got, opaque("hello")) {
				t.Errorf("results are %x", got)
			}
			if svc.released.Load() != 1 {
				t.Error("the item was not released")
			}
			if st := s.Stats(); st.Calls != 1 || st.Replies != 1 || st.Inline != 1 {
				t.Errorf("counters are %+v", st)
			}
		})
	})

	t.Run("CTX-5531-3 procedure 0 answers in every program", func(t *testing.T) {
		testServer(t, nil, func(p *peer, _ *Server, _ *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 5}, 0), 0)
			_, payload := p.message("the reply")
			if got := accepted(t, payload, 5); len(got) != 0 {
				t.Errorf("results are %x", got)
			}
		})
	})

	t.Run("V1-8-1 CTX-5531-2 errors of RPC", func(t *testing.T) {
		testServer(t, nil, func(p *peer, _ *Server, svc *testService) {
			msg := func(c oncrpc.CallHeader) []byte {
				c.XID = 6
				b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 6, Vers: 1, Credit: 1})
				return oncrpc.AppendCall(b, &c)
			}
			for _, tt := range []struct {
				name string
				msg  []byte
				want oncrpc.ReplyHeader
			}{
				{"PROG_UNAVAIL", msg(oncrpc.CallHeader{RPCVers: 2, Prog: 1}), oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgUnavail}},
				{"PROG_MISMATCH", msg(oncrpc.CallHeader{RPCVers: 2, Prog: testProg, Vers: 2}),
					oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: 1, High: 1}},
				{"PROC_UNAVAIL", callBytes(rpcrdma.Header{XID: 6}, 99), oncrpc.ReplyHeader{AcceptStat: oncrpc.ProcUnavail}},
				{"GARBAGE_ARGS", callBytes(rpcrdma.Header{XID: 6}, procEcho, 0, 0), oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs}},
				{"GARBAGE_ARGS after an item", callBytes(rpcrdma.Header{XID: 6}, procFail), oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs}},
				{"RPC_MISMATCH", msg(oncrpc.CallHeader{RPCVers: 3, Prog: testProg, Vers: 1}),
					oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.RPCMismatch, Low: 2, High: 2}},
			} {
				p.send(tt.msg, 0)
				h, payload := p.message(tt.name)
				var got oncrpc.ReplyHeader
				if _, err := oncrpc.ConsumeReply(payload, &got); err != nil || h.Proc != rpcrdma.ProcMsg {
					t.Fatalf("%s: %v %v", tt.name, h.Proc, err)
				}
				if got.Stat != tt.want.Stat || got.AcceptStat != tt.want.AcceptStat || got.RejectStat != tt.want.RejectStat ||
					got.Low != tt.want.Low || got.High != tt.want.High {
					t.Errorf("%s: reply is %+v", tt.name, got)
				}
			}
			if svc.released.Load() != 1 {
				t.Error("the item of a failed call was not released")
			}
		})
	})
}

func TestServerReadChunks(t *testing.T) {
	data := strings.Repeat("0123456789", 700)
	tests := []struct {
		name string
		cfg  *Settings
		call func(p *peer) []byte
		want []byte // arguments as the handler sees them
	}{
		{"V1-3.5-1 V1-3.4-12 one item in three segments", nil, func(p *peer) []byte {
			h := rpcrdma.Header{XID: 9}
			for i, part := range []string{data[:100], data[100:4097], data[4097:]} {
				h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: 44, Segment: p.offer(uint32(i+1), []byte(part))})
			}
			return callBytes(h, procArgs, xdr.AppendUint32(nil, 7000)...)
		}, opaque(data)},
		{"V1-3.5-1 two items with inline data between and behind", nil, func(p *peer) []byte {
			h := rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{
				{Position: 44, Segment: p.offer(1, []byte(data[:2000]))},
				{Position: 44 + 2000 + 8, Segment: p.offer(2, []byte(data[:3000]))}}}
			args := xdr.AppendUint32(xdr.AppendUint32(xdr.AppendUint32(nil, 2000), 0x55), 3000)
			return callBytes(h, procArgs, xdr.AppendUint32(args, 0x66)...)
		}, append(append(xdr.AppendUint32(opaque(data[:2000]), 0x55), opaque(data[:3000])...), 0, 0, 0, 0x66)},
		{"V1-3.7-2 V1-3.7-3 padding that is sent nowhere", nil, func(p *peer) []byte {
			h := rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{
				{Position: 44, Segment: p.offer(1, []byte("fives"))},
				{Position: 44 + 8 + 4, Segment: p.offer(2, []byte("seven77"))}}}
			return callBytes(h, procArgs, xdr.AppendUint32(xdr.AppendUint32(nil, 5), 7)...)
		}, append(opaque("fives"), opaque("seven77")...)},
		{"V1-3.7-3 two adjacent chunks with no inline data between them", nil, func(p *peer) []byte {
			h := rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{
				{Position: 40, Segment: p.offer(1, []byte("fives"))},
				{Position: 48, Segment: p.offer(2, []byte("seven77"))}}}
			return callBytes(h, procArgs)
		}, []byte("fives\x00\x00\x00seven77\x00")},
		{"V1-3.7-5 A7 padding in the chunk, and its content never used", nil, func(p *peer) []byte {
			h := rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{
				{Position: 44, Segment: p.offer(1, []byte("fives\xff\xff\xff"))}}}
			return callBytes(h, procEcho, xdr.AppendUint32(nil, 5)...)
		}, opaque("fives")},
		{"A7 padding as an extra segment", nil, func(p *peer) []byte {
			h := rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{
				{Position: 44, Segment: p.offer(1, []byte("fives"))},
				{Position: 44, Segment: p.offer(2, make([]byte, 3))}}}
			return callBytes(h, procArgs, append(xdr.AppendUint32(nil, 5), 1, 2, 3, 4)...)
		}, append(opaque("fives"), 1, 2, 3, 4)},
		{"A7 padding inline", nil, func(p *peer) []byte {
			h := rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(1, []byte("fives"))}}}
			return callBytes(h, procArgs, append(xdr.AppendUint32(nil, 5), 0, 0, 0, 1, 2, 3, 4)...)
		}, append(opaque("fives"), 1, 2, 3, 4)},
		{"V1-5.1-2 a position-zero chunk", nil, func(p *peer) []byte {
			msg := appendCall(nil, 9, procArgs, opaque(data)...)
			h := rpcrdma.Header{XID: 9, Proc: rpcrdma.ProcNomsg, Reads: []rpcrdma.ReadSegment{
				{Segment: p.offer(1, msg[:13])}, {Segment: p.offer(2, msg[13:])}}}
			return callBytes(h, 0)
		}, opaque(data)},
		{"V1-5.1-3 A8 a position-zero chunk with data chunks", nil, func(p *peer) []byte {
			msg := appendCall(nil, 9, procArgs, xdr.AppendUint32(nil, 1001)...)
			msg = xdr.AppendUint32(msg, 7) // after the first item
			msg = xdr.AppendUint32(msg, 8) // after the second
			h := rpcrdma.Header{XID: 9, Proc: rpcrdma.ProcNomsg, Reads: []rpcrdma.ReadSegment{
				{Segment: p.offer(1, msg[:42])}, {Segment: p.offer(2, msg[42:])},
				{Position: 44, Segment: p.offer(3, []byte(data[:1001]))},
				{Position: 44 + 1004 + 4, Segment: p.offer(4, []byte(data[:8]))}}}
			return callBytes(h, 0)
		}, append(append(xdr.AppendUint32(opaque(data[:1001]), 7), data[:8]...), 0, 0, 0, 8)},
		{"empty segments", nil, func(p *peer) []byte {
			h := rpcrdma.Header{XID: 9, Reads: []rpcrdma.ReadSegment{
				{Position: 44, Segment: p.offer(1, nil)}, {Position: 44, Segment: p.offer(2, nil)}}}
			return callBytes(h, procArgs, 0, 0, 0, 0)
		}, []byte{0, 0, 0, 0}},
		{"forty segments, of which few are read at once", nil, func(p *peer) []byte {
			h := rpcrdma.Header{XID: 9}
			for i := range 40 {
				h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: 44, Segment: p.offer(uint32(i+1), []byte(data[i*100:][:100]))})
			}
			return callBytes(h, procArgs, xdr.AppendUint32(nil, 4000)...)
		}, opaque(data[:4000])},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			testServer(t, tt.cfg, func(p *peer, s *Server, _ *testService) {
				p.noReads = true
				call := tt.call(p)
				// Room for the results, which are the arguments again.
				var h rpcrdma.Header
				n, err := rpcrdma.ConsumeHeader(call, &h, nil)
				if err != nil {
					t.Fatal(err)
				}
				back := make([]byte, 10000)
				h.HasReply, h.Reply = true, rpcrdma.WriteChunk{p.offer(99, back)}
				p.send(append(rpcrdma.AppendHeader(nil, &h), call[n:]...), 0)
				for i := 0; ; i++ { // the peer's adapter is slow
					synctest.Wait()
					p.mu.Lock()
					if len(p.holdRead) == 0 {
						p.mu.Unlock()
						break
					}
					p.doReads()
					p.notify()
					p.mu.Unlock()
				}
				if most := min(maxReads, p.caps.OutboundReads); p.maxOut > most {
					t.Errorf("%d Reads at once, want at most %d", p.maxOut, most)
				}
				r, payload := p.message("the reply")
				if r.Proc == rpcrdma.ProcNomsg {
					payload = back[:r.Reply[0].Length]
				}
				if got := accepted(t, payload, 9); !bytes.Equal(got, tt.want) {
					t.Errorf("the handler saw %d bytes, want %d\n%.200q\n%.200q", len(got), len(tt.want), got, tt.want)
				}
			})
		})
	}
}

// TestServerReads checks that as many Reads as the adapter has agreed on are under way, for one call or several, and
// never more than maxReads.
func TestServerReads(t *testing.T) {
	for _, agreed := range []int{1, 2, 4, maxReads, 40} {
		for _, calls := range []int{1, 4} {
			t.Run(fmt.Sprintf("V1-3.3-12 of %d calls with forty segments at once, where %d are agreed on", calls, agreed), func(t *testing.T) {
				p := newPeer(t)
				p.caps.OutboundReads = agreed
				testServerOf(t, p, nil, func(p *peer, _ *Server, _ *testService) {
					p.noReads = true
					for xid := range uint32(calls) {
						h := rpcrdma.Header{XID: xid}
						for i := range uint32(40) {
							h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: 44, Segment: p.offer(100*xid+i, make([]byte, 50))})
						}
						p.send(callBytes(h, procArgs, xdr.AppendUint32(nil, 2000)...), 0)
					}
					for range 40 * calls { // each time one of them comes
						synctest.Wait()
						p.mu.Lock()
						if len(p.holdRead) > 0 {
							rest := p.holdRead[1:]
							p.holdRead = p.holdRead[:1]
							p.doReads()
							p.holdRead = rest
							p.notify()
						}
						p.mu.Unlock()
					}
					for range calls {
						h, payload := p.message("a reply")
						if got := accepted(t, payload, h.XID); len(got) != 2004 {
							t.Errorf("the handler saw %d bytes", len(got))
						}
					}
					if want := min(maxReads, agreed); p.maxOut != want {
						t.Errorf("%d Reads at once, want %d", p.maxOut, want)
					}
				})
			})
		}
	}
}

// A malformedCall is a message of version 1 with xid 7, and what the answer says.
type malformedCall struct {
	name string
	msg  []byte
	code rpcrdma.ErrCode
}

// malformedCalls are refused by every server.
func malformedCalls() []malformedCall {
	raw := func(h rpcrdma.Header, payload ...byte) []byte {
		if h.Vers == 0 {
			h.Vers = 1
		}
		return append(rpcrdma.AppendHeader(nil, &h), payload...)
	}
	patch := func(b []byte, at int, v byte) []byte { b[at] = v; return b }
	seg := rpcrdma.Segment{Handle: 1, Length: 8, Offset: peerBase}
	good := func() []byte { return callBytes(rpcrdma.Header{XID: 7}, 0) }
	return []malformedCall{
		{"V1-4.2-3 V1-4.2-4 V1-4.1-7 version 77", patch(good(), 7, 77), rpcrdma.ErrVers},
		{"V1-4.2-3 V1-4.2-4 V2-5.2-1 version 2", patch(good(), 7, 2), rpcrdma.ErrVers},
		{"V1-4.2-2 V1-4.1-14 A15 procedure 5", patch(good(), 15, 5), rpcrdma.ErrChunk},
		{"V1-4.2-2 a list discriminator of 2", patch(good(), 19, 2), rpcrdma.ErrChunk},
		{"V1-4.2-2 a write list discriminator of 7", patch(good(), 23, 7), rpcrdma.ErrChunk},
		{"V1-4.2-2 a reply chunk discriminator of 255", patch(good(), 27, 255), rpcrdma.ErrChunk},
		{"V1-4.2-2 V1-4.2-5 a read list that ends early", raw(rpcrdma.Header{XID: 7})[:16:16], rpcrdma.ErrChunk},
		{"V1-4.2-2 V1-4.2-5 a write chunk count beyond the message", append(raw(rpcrdma.Header{XID: 7})[:20:20], 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff), rpcrdma.ErrChunk},
		{"V1-4.2-2 V1-4.1-10 RDMA_MSG without a message", raw(rpcrdma.Header{XID: 7}), rpcrdma.ErrChunk},
		{"V1-4.2-2 V1-4.1-10 RDMA_MSG with four bytes", raw(rpcrdma.Header{XID: 7}, 0, 0, 0, 7), rpcrdma.ErrChunk},
		{"V1-4.2-2 V1-4.1-2 V1-4.1-3 another xid in the RPC message", raw(rpcrdma.Header{XID: 7}, appendCall(nil, 8, 0)...), rpcrdma.ErrChunk},
		{"V1-4.2-2 an RPC header that is cut short", raw(rpcrdma.Header{XID: 7}, appendCall(nil, 7, 0)[:30]...), rpcrdma.ErrChunk},
		{"V1-4.2-2 CTX-8166-2 A2 RDMA_MSGP", raw(rpcrdma.Header{XID: 7, Proc: rpcrdma.ProcMsgp}, appendCall(nil, 7, 0)...), rpcrdma.ErrChunk},
		{"V1-4.2-2 V1-4.1-11 RDMA_NOMSG with a message", raw(rpcrdma.Header{XID: 7, Proc: rpcrdma.ProcNomsg,
			Reads: []rpcrdma.ReadSegment{{Segment: seg}}}, appendCall(nil, 7, 0)...), rpcrdma.ErrChunk},
		{"V1-4.2-2 RDMA_NOMSG without chunks", raw(rpcrdma.Header{XID: 7, Proc: rpcrdma.ProcNomsg}), rpcrdma.ErrChunk},
		{"V1-4.2-2 RDMA_NOMSG with a reply chunk alone", raw(rpcrdma.Header{XID: 7, Proc: rpcrdma.ProcNomsg,
			HasReply: true, Reply: rpcrdma.WriteChunk{seg}}), rpcrdma.ErrChunk},
		{"V1-4.2-2 RDMA_NOMSG with a data chunk alone", raw(rpcrdma.Header{XID: 7, Proc: rpcrdma.ProcNomsg,
			Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: seg}}}), rpcrdma.ErrChunk},
		{"V1-4.2-2 RDMA_MSG with a position-zero chunk", callBytes(rpcrdma.Header{XID: 7, Reads: []rpcrdma.ReadSegment{{Segment: seg}}}, 0), rpcrdma.ErrChunk},
		{"V1-4.2-2 a position that is not a multiple of four", callBytes(rpcrdma.Header{XID: 7,
			Reads: []rpcrdma.ReadSegment{{Position: 38, Segment: seg}}}, 0), rpcrdma.ErrChunk},
		{"V1-4.2-2 a position beyond the message", callBytes(rpcrdma.Header{XID: 7,
			Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: seg}}}, 0), rpcrdma.ErrChunk},
		{"V1-4.2-2 a position near 4 GiB", callBytes(rpcrdma.Header{XID: 7,
			Reads: []rpcrdma.ReadSegment{{Position: 0xfffffffc, Segment: seg}}}, 0), rpcrdma.ErrChunk},
		{"V1-4.2-2 positions that descend", callBytes(rpcrdma.Header{XID: 7, Reads: []rpcrdma.ReadSegment{
			{Position: 40, Segment: seg}, {Position: 12, Segment: seg}}}, 0), rpcrdma.ErrChunk},
		{"V1-4.2-2 positions that overlap", callBytes(rpcrdma.Header{XID: 7, Reads: []rpcrdma.ReadSegment{
			{Position: 40, Segment: seg}, {Position: 44, Segment: seg}}}, 0), rpcrdma.ErrChunk},
		{"V1-4.2-2 segments of 4 GiB", callBytes(rpcrdma.Header{XID: 7, Reads: []rpcrdma.ReadSegment{
			{Position: 40, Segment: rpcrdma.Segment{Length: 0xffffffff}}, {Position: 40, Segment: rpcrdma.Segment{Length: 0xffffffff}}}}, 0), rpcrdma.ErrChunk},
		{"V1-4.2-2 a message longer than MaxMessage", callBytes(rpcrdma.Header{XID: 7,
			Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: rpcrdma.Segment{Handle: 1, Length: 5 << 20}}}}, 0), rpcrdma.ErrChunk},
		{"V1-4.2-2 a write chunk without segments", callBytes(rpcrdma.Header{XID: 7, Writes: []rpcrdma.WriteChunk{{}}}, 0), rpcrdma.ErrChunk},
		{"V1-4.2-2 more write chunks than the limit", callBytes(rpcrdma.Header{XID: 7, Writes: make([]rpcrdma.WriteChunk, 17)}, 0), rpcrdma.ErrChunk},
	}
}

// TestServerRefuses checks that malformed calls are answered with ERR_CHUNK or ERR_VERS, and that the connection
// continues.
func TestServerRefuses(t *testing.T) {
	for _, tt := range malformedCalls() {
		t.Run(tt.name, func(t *testing.T) {
			testServer(t, nil, func(p *peer, s *Server, _ *testService) {
				before := p.posted()
				p.send(tt.msg, 0)
				got := p.next("an RDMA_ERROR").msg
				// xid, version, credit, RDMA_ERROR, code, and the range of versions
				want := []byte{0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, initialGrant, 0, 0, 0, 4, 0, 0, 0, 2}
				if tt.code == rpcrdma.ErrVers {
					want = append(want, 0, 0, 0, 1, 0, 0, 0, 1)
					want[7], want[19] = byte(word(tt.msg, 1)), 1
				}
				if !bytes.Equal(got, want) {
					t.Fatalf("answer is %x, want %x", got, want)
				}
				if n := p.posted(); n <= before-recvBatch {
					t.Errorf("%d receives are posted, %d before", n, before)
				}
				p.send(callBytes(rpcrdma.Header{XID: 8}, procEcho, opaque("still here")...), 0)
				_, payload := p.message("a reply: the connection goes on")
				accepted(t, payload, 8)
			})
		})
	}
}

// TestServerRefusesLong checks malformed calls in a message that arrives through chunks.
func TestServerRefusesLong(t *testing.T) {
	for _, tt := range []struct {
		name string
		msg  []byte
	}{
		{"V1-4.1-2 V1-4.1-3 V1-4.2-2 another xid in the RPC message", appendCall(nil, 8, procEcho, opaque("hello")...)},
		{"V1-4.1-2 the xid with its octets turned", appendCall(nil, 7<<24, procEcho, opaque("hello")...)},
		{"V1-4.2-2 a reply", oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: 7})},
		{"V1-4.2-2 an RPC header that is cut short", appendCall(nil, 7, procEcho)[:30]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testServer(t, nil, func(p *peer, _ *Server, svc *testService) {
				call := func(xid uint32, msg []byte) []byte {
					return callBytes(rpcrdma.Header{XID: xid, Proc: rpcrdma.ProcNomsg, Reads: []rpcrdma.ReadSegment{{Segment: p.offer(xid, msg)}}}, 0)
				}
				p.send(call(7, tt.msg), 0)
				if h, _ := p.message("an RDMA_ERROR"); h.Proc != rpcrdma.ProcError || h.Err != rpcrdma.ErrChunk || h.XID != 7 {
					t.Errorf("answer is %+v", h)
				}
				if n := svc.released.Load(); n != 0 {
					t.Error("the call was executed")
				}
				p.send(call(9, appendCall(nil, 9, procEcho, opaque("still here")...)), 0)
				_, payload := p.message("a reply: the connection goes on")
				accepted(t, payload, 9)
			})
		})
	}
}

// TestServerIgnores checks that messages that are not requests are never answered.
func TestServerIgnores(t *testing.T) {
	for name, msg := range map[string][]byte{
		"A14 a short message":                             {0, 0, 0, 7, 0, 0, 0, 1},
		"A14 an empty message":                            {},
		"CTX-8166-2 A1 RDMA_DONE":                         rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 7, Vers: 1, Proc: rpcrdma.ProcDone}),
		"V1-4.2-6 RDMA_ERROR":                             rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 7, Vers: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk}),
		"V1-4.2-6 a malformed RDMA_ERROR":                 {0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 4},
		"V1-4.1-12 V1-4.1-15 RDMA_DONE with words behind": append(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 7, Vers: 1, Proc: rpcrdma.ProcDone}), make([]byte, 12)...),
		"BIDI-2-2 a reply":                                (&peer{}).replyBytes(rpcrdma.Header{XID: 7}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			testServer(t, nil, func(p *peer, s *Server, _ *testService) {
				before := p.posted()
				p.send(msg, 0)
				p.quiet("it is no request")
				if n := p.posted(); n <= before-recvBatch || s.Stats().Dropped != 1 {
					t.Errorf("%d receives are posted, %d before; %d dropped", n, before, s.Stats().Dropped)
				}
			})
		})
	}
}

func TestServerWriteChunks(t *testing.T) {
	two := func(a, b uint32) []byte { return xdr.AppendUint32(xdr.AppendUint32(nil, a), b) }

	t.Run("V1-3.6-1 V1-3.6-2 V1-3.6-5 results fill segments in order, and lengths come back", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, _ *testService) {
			mem := [3][]byte{make([]byte, 4096), make([]byte, 4096), make([]byte, 4096)}
			var chunk rpcrdma.WriteChunk
			for i := range mem {
				chunk = append(chunk, p.offer(uint32(i+1), mem[i]))
			}
			n := uint32(5000)
			p.send(callBytes(rpcrdma.Header{XID: 9, Writes: []rpcrdma.WriteChunk{chunk}}, procAlloc, xdr.AppendUint32(nil, n)...), 0)
			h, payload := p.message("the reply")
			got := h.Writes[0]
			for i, want := range []uint32{4096, 904, 0} {
				if got[i].Length != want || got[i].Handle != chunk[i].Handle || got[i].Offset != chunk[i].Offset {
					t.Errorf("segment %d came back as %+v, want length %d", i, got[i], want)
				}
			}
			if r := accepted(t, payload, 9); !bytes.Equal(r, xdr.AppendUint32(nil, n)) {
				t.Errorf("inline results are %x, want the count alone", r)
			}
			for i, b := range append(append(mem[0], mem[1]...), mem[2]...)[:n] {
				if b != byte(i) {
					t.Fatalf("byte %d is %d", i, b)
				}
			}
			if p.posts != 1 { // V1-3.8-2: one list
				t.Errorf("%d doorbells for one reply, want 1", p.posts)
			}
			if last := p.ops[len(p.ops)-1]; last != fabric.OpSend || len(p.ops) != 3 {
				t.Errorf("requests are %v, want Write, Write, Send", p.ops)
			}
		})
	})

	t.Run("V1-3.6-3 V1-3.6-4 each result consumes one chunk, an empty one too", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, _ *testService) {
			for _, n := range [][2]uint32{{10, 20}, {0, 20}, {10, 0}, {0, 0}} {
				m1, m2, m3 := make([]byte, 100), make([]byte, 100), make([]byte, 100)
				p.send(callBytes(rpcrdma.Header{XID: 9, Writes: []rpcrdma.WriteChunk{
					{p.offer(1, m1)}, {p.offer(2, m2)}, {p.offer(3, m3)}}}, procTwo, two(n[0], n[1])...), 0)
				h, payload := p.message("the reply")
				if h.Writes[0].Length() != uint64(n[0]) || h.Writes[1].Length() != uint64(n[1]) || h.Writes[2].Length() != 0 {
					t.Errorf("write list is %+v", h.Writes)
				}
				if string(m1[:n[0]]) != strings.Repeat("a", int(n[0])) || string(m2[:n[1]]) != strings.Repeat("b", int(n[1])) || m1[n[0]] != 0 {
					t.Errorf("chunks have %q and %q", m1, m2)
				}
				want := xdr.AppendUint32(xdr.AppendUint32(xdr.AppendUint32(nil, n[0]), 0x77), n[1])
				if r := accepted(t, payload, 9); !bytes.Equal(r, want) {
					t.Errorf("inline results are %x", r)
				}
			}
		})
	})

	t.Run("V1-3.4-5 notes 3.8 more results than chunks: the rest is inline, with padding", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, _ *testService) {
			for chunks := range 2 {
				h := rpcrdma.Header{XID: 9}
				m := make([]byte, 100)
				if chunks > 0 {
					h.Writes = []rpcrdma.WriteChunk{{p.offer(1, m)}}
				}
				p.send(callBytes(h, procTwo, two(5, 7)...), 0)
				_, payload := p.message("the reply")
				want := xdr.AppendUint32(nil, 5)
				if chunks == 0 {
					want = opaque("aaaaa")
				}
				want = append(xdr.AppendUint32(want, 0x77), opaque("bbbbbbb")...)
				if r := accepted(t, payload, 9); !bytes.Equal(r, want) {
					t.Errorf("%d chunks: inline results are %x, want %x", chunks, r, want)
				}
			}
		})
	})

	t.Run("A5 A11 a result longer than its chunk is an error, not a piece of it", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, _ *testService) {
			m := make([]byte, 99)
			p.send(callBytes(rpcrdma.Header{XID: 9, Writes: []rpcrdma.WriteChunk{{p.offer(1, m)}}}, procAlloc, xdr.AppendUint32(nil, 100)...), 0)
			h, _ := p.message("an RDMA_ERROR")
			if h.Proc != rpcrdma.ProcError || h.Err != rpcrdma.ErrChunk || h.XID != 9 {
				t.Errorf("answer is %+v", h)
			}
			for _, op := range p.ops {
				if op == fabric.OpWrite {
					t.Error("something was written")
				}
			}
		})
	})

	t.Run("an error of RPC leaves chunks unused", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, _ *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 9, Writes: []rpcrdma.WriteChunk{{p.offer(1, make([]byte, 99))}}}, procFail), 0)
			h, _ := p.message("the reply")
			if len(h.Writes) != 1 || h.Writes[0].Length() != 0 {
				t.Errorf("write list is %+v", h.Writes)
			}
		})
	})
}

func TestServerReplyChunk(t *testing.T) {
	words := func(n int) []byte {
		var b []byte
		for i := range n {
			b = xdr.AppendUint32(b, uint32(i))
		}
		return b
	}

	t.Run("V1-5.2-2 V1-5.2-3 V1-5.1-5 a long reply, to a long call", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, _ *testService) {
			mem := [3][]byte{make([]byte, 4096), make([]byte, 4096), make([]byte, 4096)}
			msg := appendCall(nil, 9, procArgs, words(1500)...)
			p.send(callBytes(rpcrdma.Header{XID: 9, Proc: rpcrdma.ProcNomsg, HasReply: true,
				Reads: []rpcrdma.ReadSegment{{Segment: p.offer(9, msg)}},
				Reply: rpcrdma.WriteChunk{p.offer(1, mem[0]), p.offer(2, mem[1]), p.offer(3, mem[2])}}, 0), 0)
			s0 := p.next("the reply")
			var h rpcrdma.Header
			n, err := rpcrdma.ConsumeHeader(s0.msg, &h, nil)
			if err != nil || h.Proc != rpcrdma.ProcNomsg || n != len(s0.msg) {
				t.Fatalf("reply is %+v, %v", h, err)
			}
			if h.Reply[0].Length != 4096 || h.Reply[1].Length != 6024-4096 || h.Reply[2].Length != 0 {
				t.Errorf("reply chunk is %+v", h.Reply)
			}
			got := append(append([]byte(nil), mem[0]...), mem[1]...)[:6024]
			if r := accepted(t, got, 9); !bytes.Equal(r, words(1500)) {
				t.Error("other results")
			}
			if p.ops[len(p.ops)-1] != fabric.OpSend || p.posts != 2 {
				t.Errorf("%d doorbells, %v; want one for the Read and one for the reply", p.posts, p.ops)
			}
		})
	})

	t.Run("V1-5.2-6 a reply that fits stays inline, and the chunk comes back unused", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, _ *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 9, HasReply: true, Reply: rpcrdma.WriteChunk{p.offer(1, make([]byte, 9000))}},
				procArgs, words(10)...), 0)
			h, payload := p.message("the reply")
			if h.Proc != rpcrdma.ProcMsg || !h.HasReply || h.Reply.Length() != 0 {
				t.Errorf("reply is %+v", h)
			}
			accepted(t, payload, 9)
		})
	})

	t.Run("V1-5.2-4 A11 V1-3.4-7 none, or one too small: ERR_CHUNK and no overrun", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, _ *testService) {
			for _, size := range []int{0, 100, 20023} {
				h := rpcrdma.Header{XID: 9}
				if size > 0 {
					h.HasReply, h.Reply = true, rpcrdma.WriteChunk{p.offer(1, make([]byte, size))}
				}
				p.send(callBytes(h, procLong, xdr.AppendUint32(nil, 5000)...), 0)
				r, _ := p.message("an RDMA_ERROR")
				if r.Proc != rpcrdma.ProcError || r.Err != rpcrdma.ErrChunk || r.XID != 9 {
					t.Errorf("answer is %+v", r)
				}
			}
			mem := make([]byte, 20024)
			p.send(callBytes(rpcrdma.Header{XID: 9, HasReply: true, Reply: rpcrdma.WriteChunk{p.offer(1, mem)}},
				procLong, xdr.AppendUint32(nil, 5000)...), 0)
			r, _ := p.message("the reply, in a chunk that just fits")
			if r.Proc != rpcrdma.ProcNomsg || r.Reply.Length() != 20024 || !bytes.Equal(accepted(t, mem, 9), words(5000)) {
				t.Errorf("reply is %+v", r)
			}
		})
	})

	t.Run("V1-3.6-5 items without write chunks go to the reply chunk, in place", func(t *testing.T) {
		for _, dma := range []bool{true, false} {
			p := newPeer(t)
			p.caps.LocalDMA = dma
			testServerOf(t, p, nil, func(p *peer, s *Server, _ *testService) {
				for _, n := range [][2]uint32{{5001, 1002}, {4, 7003}, {0, 4500}} {
					mem := [2][]byte{make([]byte, 999), make([]byte, 9000)}
					p.send(callBytes(rpcrdma.Header{XID: 9, HasReply: true,
						Reply: rpcrdma.WriteChunk{p.offer(1, mem[0]), p.offer(2, mem[1])}},
						procTwo, xdr.AppendUint32(xdr.AppendUint32(nil, n[0]), n[1])...), 0)
					r, _ := p.message("the reply")
					if r.Proc != rpcrdma.ProcNomsg {
						t.Fatalf("reply is %+v", r)
					}
					got := append(mem[0], mem[1]...)[:r.Reply.Length()]
					want := append(xdr.AppendUint32(opaque(strings.Repeat("a", int(n[0]))), 0x77), opaque(strings.Repeat("b", int(n[1])))...)
					if res := accepted(t, got, 9); !bytes.Equal(res, want) {
						t.Errorf("results of %d bytes, want %d", len(res), len(want))
					}
				}
			})
		}
	})

	t.Run("a write chunk and a reply chunk together", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, _ *testService) {
			m1, m2 := make([]byte, 5000), make([]byte, 9000)
			p.send(callBytes(rpcrdma.Header{XID: 9, HasReply: true, Writes: []rpcrdma.WriteChunk{{p.offer(1, m1)}},
				Reply: rpcrdma.WriteChunk{p.offer(2, m2)}}, procTwo, xdr.AppendUint32(xdr.AppendUint32(nil, 4999), 5000)...), 0)
			r, _ := p.message("the reply")
			if r.Proc != rpcrdma.ProcNomsg || r.Writes[0].Length() != 4999 || m1[4998] != 'a' || m1[4999] != 0 {
				t.Fatalf("reply is %+v", r)
			}
			want := append(xdr.AppendUint32(xdr.AppendUint32(nil, 4999), 0x77), opaque(strings.Repeat("b", 5000))...)
			if res := accepted(t, m2[:r.Reply.Length()], 9); !bytes.Equal(res, want) {
				t.Errorf("results of %d bytes, want %d", len(res), len(want))
			}
		})
	})

	t.Run("V1-3.4-7 PVT-4.2-5 no Send is longer than the client's receives", func(t *testing.T) {
		p := newPeer(t)
		p.hello = nil
		testServerOf(t, p, nil, func(p *peer, s *Server, _ *testService) {
			fit := (1024 - 28 - 24) / 4
			p.send(callBytes(rpcrdma.Header{XID: 9}, procLong, xdr.AppendUint32(nil, uint32(fit))...), 0)
			if s0 := p.next("a reply at the threshold"); len(s0.msg) != 1024 {
				t.Errorf("reply of %d bytes, want 1024", len(s0.msg))
			}
			p.send(callBytes(rpcrdma.Header{XID: 9}, procLong, xdr.AppendUint32(nil, uint32(fit+1))...), 0)
			if r, _ := p.message("an RDMA_ERROR"); r.Err != rpcrdma.ErrChunk {
				t.Errorf("answer is %+v", r)
			}
		})
	})
}

func TestServerCredits(t *testing.T) {
	for _, credits := range []int{1, 2, 3, 64} {
		t.Run(fmt.Sprintf("V1-3.3-4 V1-3.3-8 BIDI-4.3.2-1 of %d credits a grant is never zero, and never more than is posted", credits), func(t *testing.T) {
			testServer(t, &Settings{Credits: credits}, func(p *peer, s *Server, svc *testService) {
				if n := p.posted(); n < min(credits, initialGrant) {
					t.Fatalf("%d receives are posted for a client that has not called", n)
				}
				hold, granted := 0, 1
				for xid := uint32(1); xid < 60; xid++ {
					// The client uses what it has, but for one credit.
					if hold+1 < granted {
						p.send(callBytes(rpcrdma.Header{XID: 1000 + xid, Credit: 1000}, procHold), 0)
						hold++
					}
					h := rpcrdma.Header{XID: xid, Vers: 1, Credit: []uint32{0, 1, 1000}[xid%3]} // as it likes
					p.send(appendCall(rpcrdma.AppendHeader(nil, &h), xid, 0), 0)
					r, _ := p.message("the reply to the call that does not wait")
					if r.Credit < 1 || int(r.Credit) > credits {
						t.Fatalf("grant is %d", r.Credit)
					}
					if n := p.posted(); n+hold < int(r.Credit) {
						t.Fatalf("grant is %d with %d receives posted and %d in use", r.Credit, n, hold)
					}
					granted = int(r.Credit)
				}
				if granted != credits {
					t.Errorf("the grant of a client that uses all it has is %d, want %d", granted, credits)
				}
				close(svc.gate)
				for range hold {
					if h, _ := p.message("a reply"); h.Credit < 1 {
						t.Error("a grant of zero")
					}
				}
			})
		})
	}

	t.Run("V1-3.3-2 a client that asks for little gets no more", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, svc *testService) {
			for xid := range uint32(initialGrant - 1) {
				p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 3}, procHold), 0)
			}
			p.send(callBytes(rpcrdma.Header{XID: 99, Credit: 3}, 0), 0)
			if h, _ := p.message("a reply"); h.Credit > initialGrant {
				t.Errorf("grant is %d", h.Credit)
			}
			close(svc.gate)
		})
	})
}

func TestServerMemory(t *testing.T) {
	t.Run("calls beyond MaxMemory wait, and are answered in the end", func(t *testing.T) {
		testServer(t, &Settings{MaxMessage: 1 << 16, MaxMemory: 1 << 17}, func(p *peer, s *Server, svc *testService) {
			data := make([]byte, 60000)
			for xid := uint32(1); xid <= 6; xid++ {
				p.send(callBytes(rpcrdma.Header{XID: xid, Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: p.offer(xid, data)}}}, procHold), 0)
			}
			synctest.Wait()
			if n := svc.running.Load(); n != 2 {
				t.Errorf("%d calls are being executed, memory is for 2", n)
			}
			close(svc.gate)
			seen := map[uint32]bool{}
			for range 6 {
				h, _ := p.message("a reply")
				seen[h.XID] = true
			}
			if len(seen) != 6 {
				t.Errorf("replies to %v", seen)
			}
		})
	})
}

// TestServerSlowReader checks that a client that keeps calling without receiving the replies does not use more than
// MaxMemory.
func TestServerSlowReader(t *testing.T) {
	testServer(t, &Settings{MaxMessage: 1 << 16, MaxMemory: 1 << 18}, func(p *peer, s *Server, svc *testService) {
		p.holdSends = true
		for xid := uint32(1); xid <= 12; xid++ {
			if p.posted() == 0 {
				break
			}
			p.send(callBytes(rpcrdma.Header{XID: xid, Writes: []rpcrdma.WriteChunk{{p.offer(xid, make([]byte, 60_000))}}},
				procAlloc, xdr.AppendUint32(nil, 60_000)...), 0)
		}
		synctest.Wait()
		if n := s.Stats().Replies; n < 3 || n > 6 {
			t.Errorf("%d replies are on their way, memory is for 4", n)
		}
		before := s.Stats().Replies
		p.completeSends()
		synctest.Wait()
		if n := s.Stats().Replies; n <= before {
			t.Errorf("%d replies after some were taken, %d before", n, before)
		}
	})
}

func TestServerInvalidates(t *testing.T) {
	r1 := rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 4096})
	r0 := rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096})
	chunk := func(p *peer, handles ...uint32) rpcrdma.WriteChunk {
		var c rpcrdma.WriteChunk
		for _, h := range handles {
			c = append(c, p.offer(h, make([]byte, 9000)))
		}
		return c
	}
	for _, tt := range []struct {
		name  string
		hello []byte
		cfg   *Settings
		call  func(p *peer) rpcrdma.Header
		inv   uint32
	}{
		{"PVT-4.1-1 PVT-4.1-2 the one handle of the call", r1, nil, func(p *peer) rpcrdma.Header {
			return rpcrdma.Header{Writes: []rpcrdma.WriteChunk{chunk(p, 5)}}
		}, 5},
		{"the one handle of several segments", r1, nil, func(p *peer) rpcrdma.Header {
			return rpcrdma.Header{Writes: []rpcrdma.WriteChunk{chunk(p, 5, 5)}, HasReply: true, Reply: chunk(p, 5)}
		}, 5},
		{"none of two", r1, nil, func(p *peer) rpcrdma.Header {
			return rpcrdma.Header{Writes: []rpcrdma.WriteChunk{chunk(p, 5)}, HasReply: true, Reply: chunk(p, 6)}
		}, 0},
		{"PVT-4.1-4 none for a call without chunks", r1, nil, func(*peer) rpcrdma.Header { return rpcrdma.Header{} }, 0},
		{"PVT-4.1-3 none when the client's R is clear", r0, nil, func(p *peer) rpcrdma.Header {
			return rpcrdma.Header{Writes: []rpcrdma.WriteChunk{chunk(p, 5)}}
		}, 0},
		{"PVT-4.1-3 none when ours is clear", r1, &Settings{NoRemoteInvalidation: true}, func(p *peer) rpcrdma.Header {
			return rpcrdma.Header{Writes: []rpcrdma.WriteChunk{chunk(p, 5)}}
		}, 0},
		{"PVT-5.1-1 none without private data", nil, nil, func(p *peer) rpcrdma.Header {
			return rpcrdma.Header{Writes: []rpcrdma.WriteChunk{chunk(p, 5)}}
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPeer(t)
			p.hello = tt.hello
			testServerOf(t, p, tt.cfg, func(p *peer, s *Server, _ *testService) {
				h := tt.call(p)
				h.XID = 9
				p.send(callBytes(h, procEcho, opaque("x")...), 0)
				if got := p.next("the reply"); got.inv != tt.inv {
					t.Errorf("the reply invalidates %d, want %d", got.inv, tt.inv)
				}
				if tt.inv != 0 {
					h.Writes = []rpcrdma.WriteChunk{{p.offer(tt.inv, make([]byte, 1))}}
					h.HasReply = false
					p.send(callBytes(h, procEcho, opaque("too long")...), 0)
					if got := p.next("an RDMA_ERROR (PVT-4.1-4)"); got.inv != 0 || len(got.msg) != rpcrdma.ErrChunkSize {
						t.Errorf("an error of %d bytes invalidates %d", len(got.msg), got.inv)
					}
				}
			})
		})
	}
}

func TestServerEnds(t *testing.T) {
	t.Run("Shutdown answers what has arrived, and takes no more", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, svc *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, procHold), 0)
			synctest.Wait()
			down := make(chan error, 1)
			go func() { down <- s.Shutdown(bg) }()
			synctest.Wait()
			p.send(callBytes(rpcrdma.Header{XID: 2}, procEcho, opaque("late")...), 0)
			p.quiet("a call that comes too late is not executed")
			close(svc.gate)
			h, payload := p.message("the reply")
			accepted(t, payload, 1)
			if h.XID != 1 {
				t.Errorf("reply is to %d", h.XID)
			}
			if err := outcome(t, down); err != nil {
				t.Error(err)
			}
			if p.end == nil || !p.end.Clean {
				t.Errorf("the connection ended with %v", p.end)
			}
		})
	})

	t.Run("Shutdown gives up with its context", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, svc *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, procHold), 0)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			if err := s.Shutdown(ctx); err != context.DeadlineExceeded {
				t.Errorf("Shutdown returned %v", err)
			}
			p.quiet("the call's reply has nowhere to go")
			if n := svc.running.Load(); n != 0 {
				t.Errorf("%d handlers run on: their context did not end", n)
			}
		})
	})

	for name, answers := range map[string]bool{"once calls are answered": true, "after 10 seconds": false} {
		t.Run("ListenAndServe shuts down with its context, "+name, func(t *testing.T) {
			testServer(t, nil, func(p *peer, s *Server, svc *testService) {
				p.send(callBytes(rpcrdma.Header{XID: 1}, procHold), 0)
				ctx, cancel := context.WithCancel(bg)
				served := make(chan error, 1)
				go func() { served <- s.ListenAndServe(ctx, unvisited{p}, "script:2") }()
				synctest.Wait()
				cancel()
				synctest.Wait()
				start, want := time.Now(), 10*time.Second
				if answers {
					want = 0
					close(svc.gate)
					p.message("the reply")
				}
				if err := <-served; err != ErrServerClosed || time.Since(start) != want {
					t.Errorf("after %v ListenAndServe returned %v", time.Since(start), err)
				}
				if p.end == nil || p.end.Clean != answers {
					t.Errorf("the connection ended with %v", p.end)
				}
			})
		})
	}

	for name, end := range map[string]func(s *Server) error{
		"Close": (*Server).Close, "Shutdown": func(s *Server) error { return s.Shutdown(bg) },
	} {
		t.Run(name+" ends connections that are being set up", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := NewServer(nil)
				testutil.Must(t, err)
				p := newPeer(t)
				p.stuck = true
				l, err := s.Listen(bg, p, "script:1")
				testutil.Must(t, err)
				go s.Serve(l)
				synctest.Wait()
				start := time.Now()
				if err := end(s); err != nil || time.Since(start) > 0 {
					t.Errorf("it takes %v: %v", time.Since(start), err)
				}
			})
		})
	}

	t.Run("handlers' context ends with the connection", func(t *testing.T) {
		testServer(t, nil, func(p *peer, s *Server, svc *testService) {
			for xid := range uint32(5) {
				p.send(callBytes(rpcrdma.Header{XID: xid}, procHold), 0)
			}
			synctest.Wait()
			if svc.running.Load() != 5 {
				t.Fatal("not running")
			}
			p.hangUp()
			synctest.Wait()
			if n := svc.running.Load(); n != 0 {
				t.Errorf("%d handlers run on", n)
			}
		})
	})

	t.Run("V1-3.3-7 more calls than anybody was granted end the connection", func(t *testing.T) {
		const credits = 8
		// Twice the grant, for calls by the last one and the one before, and the Sends that
		// the adapter holds.
		const most = 2*credits + recvBatch + peerSends
		testServer(t, &Settings{Credits: credits}, func(p *peer, s *Server, svc *testService) {
			p.holdSends = true // the peer's adapter takes no replies: Sends never complete
			for xid := range uint32(2 * most) {
				if p.over() {
					if xid < peerSends {
						t.Errorf("the connection ended after %d calls", xid)
					}
					return
				}
				p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 100}, 0), 0)
			}
			t.Errorf("%d calls were taken, %d had been granted", 2*most, credits)
		})
	})

	t.Run("V1-3.3-7 calls that are not answered take no more than the receives there are", func(t *testing.T) {
		const credits = 8
		testServer(t, &Settings{Credits: credits}, func(p *peer, s *Server, svc *testService) {
			xid := uint32(0)
			for ; p.posted() > 0 && xid < 100; xid++ {
				p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 100}, procHold), 0)
			}
			if want := uint32(credits + leastBatch); xid != want || svc.running.Load() != int32(want) {
				t.Errorf("%d calls were taken, %d run, want %d", xid, svc.running.Load(), want)
			}
		})
	})
}

func TestRegister(t *testing.T) {
	s, err := NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	h := rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) {})
	if s.Register(rpc.Program{Number: 1, Low: 1, High: 1, Handler: h}) != nil {
		t.Error("a good program is refused")
	}
	for name, p := range map[string]rpc.Program{
		"twice": {Number: 1, Low: 1, High: 1, Handler: h}, "no handler": {Number: 2}, "no versions": {Number: 3, Low: 2, High: 1, Handler: h},
	} {
		if s.Register(p) == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewServer((&Settings{Credits: -1}).Server()); err == nil || !strings.Contains(err.Error(), "Credits is -1") {
		t.Errorf("a bad configuration gives %v", err)
	}
}
