package trace

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// A script is a conversation, operation by operation. The client is direction 0.
type script struct {
	c      *Conversation
	packet int
}

func newScript() *script {
	a := netip.MustParseAddrPort("192.0.2.1:1000")
	s := &script{c: newConversation(iwarpFraming, a, a, false, new(int), new(int))}
	private := rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 4096, RecvSize: 4096})
	s.do(op{kind: opPrivate, data: private})
	s.do(op{kind: opPrivate, dir: 1, data: private, whole: true})
	return s
}

func (s *script) do(o op) {
	s.packet++
	o.packet, o.time = s.packet, int64(s.packet)
	s.c.take(&o)
}

// send sends a message: header h, and the RPC message.
func (s *script) send(dir int, h rpcrdma.Header, msg []byte, change func(*op)) {
	if h.Vers == 0 {
		h.Vers = 1
	}
	b := append(rpcrdma.AppendHeader(nil, &h), msg...)
	o := op{kind: opSend, dir: dir, data: b, size: len(b), whole: true}
	if change != nil {
		change(&o)
	}
	s.do(o)
}

func callMsg(xid uint32) []byte {
	return oncrpc.AppendCall(nil, &oncrpc.CallHeader{XID: xid, RPCVers: 2, Prog: 100003, Vers: 3, Proc: 6})
}

func replyMsg(xid uint32) []byte {
	return oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: xid, Stat: oncrpc.MsgAccepted})
}

func (s *script) call(xid uint32, h rpcrdma.Header) {
	h.XID, h.Credit = xid, 10
	s.send(0, h, callMsg(xid), nil)
}

func (s *script) reply(xid uint32, h rpcrdma.Header) {
	h.XID = xid
	if h.Credit == 0 {
		h.Credit = 2
	}
	s.send(1, h, replyMsg(xid), nil)
}

func (s *script) write(key uint32, offset uint64, n int) {
	s.do(op{kind: opWrite, dir: 1, key: key, offset: offset, data: make([]byte, n), size: n})
}

// two is a write chunk of two segments with these lengths.
func two(a, b uint32) []rpcrdma.WriteChunk {
	return []rpcrdma.WriteChunk{{{Handle: 7, Length: a, Offset: 100}, {Handle: 8, Length: b}}}
}

// TestAnomalies: a violation of a rule is reported with the rule's id, and nothing else is. The ids
// are in a file: this test does not show that the rules are kept.
func TestAnomalies(t *testing.T) {
	read := rpcrdma.Header{Writes: two(50, 50)}
	var got []byte
	for _, tt := range []struct {
		name string
		do   func(s *script)
	}{
		{"a call and its reply", func(s *script) { s.call(1, rpcrdma.Header{}); s.reply(1, rpcrdma.Header{}) }},
		{"a write chunk in part", func(s *script) {
			s.call(1, read)
			s.write(7, 100, 20)
			s.write(7, 120, 30)
			s.write(8, 0, 5)
			s.reply(1, rpcrdma.Header{Writes: two(50, 5)})
		}},
		{"an unused write chunk", func(s *script) { s.call(1, read); s.reply(1, rpcrdma.Header{Writes: two(0, 0)}) }},
		{"padded length", func(s *script) {
			s.call(1, read)
			s.write(7, 100, 5)
			s.reply(1, rpcrdma.Header{Writes: two(8, 0)})
		}},
		{"a read chunk", func(s *script) {
			s.call(1, rpcrdma.Header{Reads: []rpcrdma.ReadSegment{{Position: 40, Segment: rpcrdma.Segment{Handle: 9, Length: 10}}}})
			s.do(op{kind: opRead, dir: 1, key: 9, size: 10})
			s.do(op{kind: opReadData, key: 9, size: 10})
			s.reply(1, rpcrdma.Header{})
		}},
		{"version 2 refused", func(s *script) {
			s.send(0, rpcrdma.Header{XID: 1, Vers: 2, Credit: 1}, callMsg(1), nil)
			s.send(1, rpcrdma.Header{XID: 1, Credit: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrVers, VersLow: 1, VersHigh: 1}, nil, nil)
			s.call(2, rpcrdma.Header{})
		}},
		{"two calls before the first reply", func(s *script) { s.call(1, rpcrdma.Header{}); s.call(2, rpcrdma.Header{}) }},
		{"three calls with two credits", func(s *script) {
			s.call(1, rpcrdma.Header{})
			s.reply(1, rpcrdma.Header{})
			for xid := range uint32(3) {
				s.call(2+xid, rpcrdma.Header{})
			}
		}},
		{"nothing granted", func(s *script) {
			s.call(1, rpcrdma.Header{})
			s.send(1, rpcrdma.Header{XID: 1}, replyMsg(1), nil)
		}},
		{"no call", func(s *script) { s.reply(1, rpcrdma.Header{}) }},
		{"a call again", func(s *script) {
			s.call(1, rpcrdma.Header{})
			s.reply(1, rpcrdma.Header{})
			s.call(2, rpcrdma.Header{})
			s.call(2, rpcrdma.Header{})
		}},
		{"two xids", func(s *script) { s.send(0, rpcrdma.Header{XID: 1}, callMsg(2), nil) }},
		{"neither call nor reply", func(s *script) { s.send(0, rpcrdma.Header{XID: 1}, []byte{0, 0, 0, 1, 0, 0, 0, 2}, nil) }},
		{"no RPC message", func(s *script) { s.send(0, rpcrdma.Header{XID: 1}, nil, nil) }},
		{"no chunk", func(s *script) { s.send(0, rpcrdma.Header{XID: 1, Proc: rpcrdma.ProcNomsg}, nil, nil) }},
		{"no header", func(s *script) {
			s.do(op{kind: opSend, data: []byte{1, 2, 3}, size: 3, whole: true})
		}},
		{"a damaged list", func(s *script) {
			s.send(0, rpcrdma.Header{XID: 1}, callMsg(1), func(o *op) { o.data[16] = 5 })
		}},
		{"a long message", func(s *script) {
			s.send(0, rpcrdma.Header{XID: 1}, append(callMsg(1), make([]byte, 4096)...), nil)
		}},
		{"an invalidation", func(s *script) {
			s.call(1, read)
			s.send(1, rpcrdma.Header{XID: 1, Credit: 1, Writes: two(0, 0)}, replyMsg(1), func(o *op) { o.invalidates, o.key = true, 7 })
		}},
		{"an invalidation of something else", func(s *script) {
			s.c.Private[0].RemoteInvalidation, s.c.Private[1].RemoteInvalidation = true, true
			s.call(1, read)
			s.send(1, rpcrdma.Header{XID: 1, Credit: 1, Writes: two(0, 0)}, replyMsg(1), func(o *op) { o.invalidates, o.key = true, 6 })
		}},
		{"a Write beyond its segment", func(s *script) { s.call(1, read); s.write(7, 100, 51) }},
		{"a Write behind the reply", func(s *script) {
			s.call(1, read)
			s.reply(1, rpcrdma.Header{Writes: two(0, 0)})
			s.write(7, 100, 1)
		}},
		{"a Read of a write chunk", func(s *script) {
			s.call(1, read)
			s.do(op{kind: opRead, dir: 1, key: 7, offset: 100, size: 10})
		}},
		{"a gap", func(s *script) { s.call(1, read); s.write(7, 110, 10) }},
		{"the second segment first", func(s *script) {
			s.call(1, read)
			s.write(7, 100, 10)
			s.write(8, 0, 10)
			s.reply(1, rpcrdma.Header{Writes: two(10, 10)})
		}},
		{"more returned than written", func(s *script) {
			s.call(1, read)
			s.write(7, 100, 10)
			s.reply(1, rpcrdma.Header{Writes: two(20, 0)})
		}},
		{"another handle", func(s *script) {
			s.call(1, read)
			s.reply(1, rpcrdma.Header{Writes: []rpcrdma.WriteChunk{{{Handle: 7, Offset: 100}, {Handle: 9}}}})
		}},
		{"another number of segments", func(s *script) {
			s.call(1, read)
			s.reply(1, rpcrdma.Header{Writes: []rpcrdma.WriteChunk{{{Handle: 7, Offset: 100}}}})
		}},
		{"a reply chunk that nobody offered", func(s *script) {
			s.call(1, read)
			s.reply(1, rpcrdma.Header{HasReply: true, Reply: rpcrdma.WriteChunk{{Handle: 7}}})
		}},
		{"after a gap in the capture", func(s *script) {
			s.do(op{kind: opHole})
			s.reply(1, rpcrdma.Header{})
			s.write(7, 100, 51)
			s.call(2, rpcrdma.Header{})
			s.call(3, rpcrdma.Header{})
			s.call(4, rpcrdma.Header{})
			s.call(5, rpcrdma.Header{})
		}},
	} {
		s := newScript()
		s.call(1000, rpcrdma.Header{}) // makes it a conversation
		s.reply(1000, rpcrdma.Header{Credit: 1})
		tt.do(s)
		got = append(got, tt.name+": "+fmt.Sprintln(len(s.c.Anomalies))...)
		for _, a := range s.c.Anomalies {
			got = append(got, "  "+a.Rule+": "+a.Text+"\n"...)
		}
	}
	testutil.Golden(t, "testdata/anomalies.golden", got)
}

// TestRulesExist: every id that may be reported is in the catalogue.
func TestRulesExist(t *testing.T) {
	catalogue, err := os.ReadFile("../../../../internal/conformance/rules.tsv")
	testutil.Must(t, err)
	source, err := os.ReadFile("conversation.go")
	testutil.Must(t, err)
	ids := regexp.MustCompile(`c\.anomaly\(o, "([^"]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(ids) < 15 {
		t.Errorf("%d anomalies were found", len(ids))
	}
	for _, id := range ids {
		if !strings.Contains(string(catalogue), "\n"+id[1]+"\t") {
			t.Errorf("there is no rule %s", id[1])
		}
	}
}

// TestManyCalls: what a conversation keeps of calls without replies is bounded.
func TestManyCalls(t *testing.T) {
	s := newScript()
	for xid := range uint32(maxCalls + 1000) {
		s.call(xid, rpcrdma.Header{Writes: []rpcrdma.WriteChunk{make(rpcrdma.WriteChunk, 100)}, Reads: nil})
	}
	end := &s.c.ends[0]
	if len(end.calls) != maxCalls || end.n > maxExposed || len(s.c.Anomalies) > maxAnomalies {
		t.Errorf("%d calls, %d segments, %d anomalies", len(end.calls), end.n, len(s.c.Anomalies))
	}
}

// marked puts markers into the stream of an MPA sender: RFC 5044 section 4.3.
func marked(stream []byte) (b []byte) {
	for _, x := range stream {
		if len(b)%markerInterval == 0 {
			b = append(b, 0, 0, 0, 0) // where the FPDU began is of no interest
		}
		b = append(b, x)
	}
	return b
}

// TestMarkers: markers in FPDUs are taken out, wherever segments end.
func TestMarkers(t *testing.T) {
	var stream []byte
	want := make([]int, 0)
	for i, n := range []int{0, 10, 400, 490, 512, 1500, 3} {
		head := ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpSend), MSN: uint32(i + 1)})
		stream = mpa.AppendFPDU(stream, append(head, make([]byte, n)...), true)
		want = append(want, n)
	}
	start := func(kind mpa.Kind, flags mpa.Flags) []byte {
		return mpa.AppendStart(nil, &mpa.Start{Kind: kind, Flags: flags, Revision: 1})
	}
	for _, size := range []int{1, 2, 3, 5, 100, 512, 513, 10000} {
		var got []int
		c := newIwarpConn(func(o *op) {
			switch o.kind {
			case opSend:
				got = append(got, o.size)
			case opFault, opHole:
				t.Errorf("segments of %d bytes: %q", size, o.text)
			}
		}, new(int))
		feed := func(dir int, b []byte, seq uint32) {
			c.side[dir].tcp.segment(&segment{tcp: true, seq: seq, data: b, size: len(b)}, stamp{})
		}
		feed(0, start(mpa.Request, 0), 1000)
		feed(1, start(mpa.Reply, mpa.FlagMarkers), 5000) // the client is to send markers
		seq := uint32(1000 + mpa.StartLen)
		for part := range slices.Chunk(marked(stream), size) {
			feed(0, part, seq)
			seq += uint32(len(part))
		}
		if !slices.Equal(got, want) {
			t.Errorf("segments of %d bytes: messages of %d bytes, want %d", size, got, want)
		}
	}
}

// TestResync: after a gap, frames are found again where a segment begins with one.
func TestResync(t *testing.T) {
	frame := func(n int) []byte {
		head := ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpSend), MSN: 1})
		return mpa.AppendFPDU(nil, append(head, make([]byte, n)...), true)
	}
	var got []int
	holes := 0
	c := newIwarpConn(func(o *op) {
		switch o.kind {
		case opSend:
			got = append(got, o.size)
		case opHole:
			holes++
		}
	}, new(int))
	seq := uint32(1<<32 - 100) // wraps
	for i := range 6 {
		b := frame(100 + i)
		if i != 2 { // which is lost
			c.side[0].tcp.segment(&segment{tcp: true, seq: seq, data: b, size: len(b)}, stamp{})
		}
		seq += uint32(len(b))
	}
	c.side[0].tcp.acknowledged(seq, stamp{})
	if want := []int{100, 101, 103, 104, 105}; !slices.Equal(got, want) || holes == 0 {
		t.Errorf("messages of %d bytes and %d holes, want %d", got, holes, want)
	}
}
