package fabrictest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/rpcrdma/rpcrdma/fabric"
)

const (
	readable = fabric.AccessRemoteRead
	writable = fabric.AccessLocalWrite | fabric.AccessRemoteWrite
)

func memoryChecks() []check {
	return []check{
		{"WriteThenSend", writeThenSend},
		{"WriteGather", writeGather},
		{"WriteOfNothing", writeOfNothing},
		{"Read", readSizes},
		{"ReadSilentAtSource", readSilentAtSource},
		{"ReadScatter", readScatter},
		{"ManyReads", manyReads},
		{"Fence", fence},
		{"Segment", segment},
		{"WriteWithoutRight", func(s *scene) { withoutRight(s, fabric.OpWrite, readable) }},
		{"ReadWithoutRight", func(s *scene) { withoutRight(s, fabric.OpRead, writable) }},
		{"LocalRegionIsPrivate", localRegionIsPrivate},
		{"WriteOutOfBounds", func(s *scene) { outOfBounds(s, fabric.OpWrite) }},
		{"ReadOutOfBounds", func(s *scene) { outOfBounds(s, fabric.OpRead) }},
		{"UnknownHandle", unknownHandle},
		{"HandleOfAnotherConn", handleOfAnotherConn},
		{"HandleAfterClose", handleAfterClose},
		{"Foreign", foreign},
	}
}

// put and get return a Write to and a Read from offset at of the peer's segment.
func put(id uint64, seg fabric.Segment, at int, sgl ...fabric.SGE) fabric.SendWR {
	return fabric.SendWR{ID: id, Op: fabric.OpWrite, Flags: fabric.Signaled, SGL: sgl,
		RKey: seg.Handle, RemoteOffset: seg.Offset + uint64(at)}
}

func get(id uint64, seg fabric.Segment, at int, sgl ...fabric.SGE) fabric.SendWR {
	wr := put(id, seg, at, sgl...)
	wr.Op = fabric.OpRead
	return wr
}

// writeThenSend: a Send arrives after the data of earlier Writes has been placed, and a Write
// alone causes no completion at the peer (RFC 5666 section 2).
func writeThenSend(s *scene) {
	const n = 3*4096 + 100
	client, server := s.pair(stage{})
	sink := server.Region(n, writable)
	seg := sink.Segment()
	out := client.Region(n, 0)
	client.Receives(1, 1)
	for round := range repeat(1000) {
		Fill(out.Bytes(), uint64(round))
		server.Receives(1, 8)
		word := client.Message(binary.BigEndian.AppendUint32(nil, uint32(round)))
		client.Post("three Writes and a Send",
			put(1, seg, 0, SGE(out, 0, 5000)),
			put(2, seg, 5000, SGE(out, 5000, 1)),
			put(3, seg, 5001, SGE(out, 5001, n-5001)),
			word)
		server.WantMessage("the Send after the Writes", binary.BigEndian.AppendUint32(nil, uint32(round)))
		if !bytes.Equal(sink.Bytes(), out.Bytes()) {
			s.Fatalf("round %d: the Send has arrived, the Writes before it have not", round)
		}
		for id := uint64(1); id <= 3; id++ {
			client.WantSent("a Write", id)
		}
		client.WantSent("the Send after the Writes", word.ID)
		server.WantNothing("than a Send")
		server.Send("a word that the memory is free again", nil)
		client.WantMessage("a word that the memory is free again", nil)
		client.Receives(1, 1)
	}
}

// writeGather: a Write gathers several SGEs.
func writeGather(s *scene) {
	client, server := s.pair(stage{})
	n := min(client.Conn.Capabilities().MaxSendSGE, 16)
	out := client.Region(1<<16, 0)
	Fill(out.Bytes(), 21)
	sink := server.Region(1<<16, writable)
	var sgl []fabric.SGE
	var want []byte
	for i := range n {
		sgl = append(sgl, SGE(out, 1000*(n-i), 3+100*i))
		want = append(want, sgl[i].Buf...)
	}
	server.Receives(1, 1)
	client.Post("a gathered Write", put(1, sink.Segment(), 33, sgl...))
	client.WantSent("a gathered Write", 1)
	client.Send("a Send after it", nil)
	server.WantMessage("a Send after it", nil)
	if !bytes.Equal(sink.Bytes()[33:33+len(want)], want) {
		s.Error("a gathered Write has other bytes than its pieces")
	}
	if i := slices.IndexFunc(sink.Bytes()[33+len(want):], func(b byte) bool { return b != 0 }); i >= 0 || !bytes.Equal(sink.Bytes()[:33], make([]byte, 33)) {
		s.Error("a gathered Write has changed memory beside its place")
	}
}

// writeOfNothing: an empty Write places nothing and completes.
func writeOfNothing(s *scene) {
	client, server := s.pair(stage{})
	sink := server.Region(64, writable)
	seg := sink.Segment()
	client.Post("Writes of nothing", put(1, seg, 0), put(2, seg, 64))
	client.WantSent("a Write of nothing", 1)
	client.WantSent("a Write of nothing at the end", 2)
	s.exchange("after Writes of nothing", client, server)
}

// readSizes: Reads of all sizes and offsets return the right bytes.
func readSizes(s *scene) {
	const n = 1 << 20
	client, server := s.pair(stage{})
	src := server.Region(n, readable)
	Fill(src.Bytes(), 22)
	seg := src.Segment()
	in := client.Region(n+2, fabric.AccessLocalWrite)
	for id, c := range []struct{ at, n int }{
		{0, 1}, {0, n}, {n - 1, 1}, {7, 4096}, {4095, 2}, {100, 65536}, {1, n - 1}, {n, 0}, {0, 0},
	} {
		clear(in.Bytes())
		what := fmt.Sprintf("a Read of %d bytes at %d", c.n, c.at)
		client.Post(what, get(uint64(id), seg, c.at, SGE(in, 1, c.n)))
		wc := client.WantSent(what, uint64(id))
		if wc.Op != fabric.WCRead || wc.Len != uint32(c.n) {
			s.Errorf("%s: completion has opcode %d and length %d", what, wc.Op, wc.Len)
		}
		if !bytes.Equal(in.Bytes()[1:1+c.n], src.Bytes()[c.at:c.at+c.n]) {
			s.Errorf("%s has brought other bytes", what)
		}
		if in.Bytes()[0] != 0 || in.Bytes()[1+c.n] != 0 {
			s.Errorf("%s has changed memory beside its sink", what)
		}
	}
}

// readSilentAtSource: a Read causes no completion at its source (RFC 5666 section 2).
func readSilentAtSource(s *scene) {
	client, server := s.pair(stage{})
	src := server.Region(4096, readable)
	Fill(src.Bytes(), 23)
	in := client.Region(4096, fabric.AccessLocalWrite)
	server.Receives(3, 8)
	for id := range uint64(20) {
		client.Post("a Read", get(id, src.Segment(), 0, SGE(in, 0, 4096)))
		client.WantSent("a Read", id)
	}
	client.Send("the word that the Reads are over", []byte("done"))
	server.WantMessage("the word that the Reads are over", []byte("done"))
	server.WantNothing("from Reads by the peer")
}

// readScatter: a Read scatters over up to MaxReadSGE SGEs.
func readScatter(s *scene) {
	client, server := s.pair(stage{})
	n := min(client.Conn.Capabilities().MaxReadSGE, 16)
	src := server.Region(1<<14, readable)
	Fill(src.Bytes(), 24)
	in := client.Region(1<<14, fabric.AccessLocalWrite)
	var sgl []fabric.SGE
	total := 0
	for i := range n {
		sgl = append(sgl, SGE(in, 1000*(n-1-i), 1+60*i))
		total += 1 + 60*i
	}
	client.Post("a scattered Read", get(1, src.Segment(), 5, sgl...))
	if wc := client.WantSent("a scattered Read", 1); int(wc.Len) != total {
		s.Errorf("a scattered Read of %d bytes completed with length %d", total, wc.Len)
	}
	rest := src.Bytes()[5:]
	for i, sge := range sgl {
		if !bytes.Equal(sge.Buf, rest[:len(sge.Buf)]) {
			s.Errorf("piece %d of a scattered Read has other bytes", i)
		}
		rest = rest[len(sge.Buf):]
	}
	sgl = append(sgl[:0:0], make([]fabric.SGE, client.Conn.Capabilities().MaxReadSGE+1)...)
	for i := range sgl {
		sgl[i] = SGE(in, i, 1)
	}
	if client.TryPost(get(2, src.Segment(), 0, sgl...)) == nil {
		client.WantFailed("a Read into too many pieces", 2, s.local(fabric.WCLocQPOpErr)...)
	}
}

// manyReads: both ends may post more Reads than may be outstanding. The adapter queues them.
func manyReads(s *scene) {
	const reads, size = 100, 8192
	client, server := s.pair(stage{
		client: fabric.ConnAttr{SendDepth: 128, RecvDepth: 16, InboundReads: 2, OutboundReads: 3},
		server: fabric.ConnAttr{SendDepth: 128, RecvDepth: 16, InboundReads: 3, OutboundReads: 2},
	})
	ends := []*Endpoint{client, server}
	var src, in [2]fabric.MR
	for i, e := range ends {
		src[i] = e.Region(reads*size, readable)
		Fill(src[i].Bytes(), uint64(25+i))
		in[i] = e.Region(reads*size, fabric.AccessLocalWrite)
	}
	for round := range 3 {
		for i, e := range ends {
			wrs := make([]fabric.SendWR, reads)
			for r := range wrs {
				wrs[r] = get(uint64(r), src[1-i].Segment(), size*(reads-1-r), SGE(in[i], size*r, size))
			}
			e.Post("many Reads", wrs...)
		}
		for i, e := range ends {
			for r := range reads {
				e.WantSent("one of many Reads", uint64(r))
				if !bytes.Equal(in[i].Bytes()[size*r:][:size], src[1-i].Bytes()[size*(reads-1-r):][:size]) {
					s.Fatalf("%s: Read %d of round %d has brought other bytes", e.Name, r, round)
				}
			}
		}
	}
}

// fence: a fenced Send does not overtake a Read. When the Send arrives, the source of the Read may be reused.
func fence(s *scene) {
	const n = 1 << 17
	client, server := s.pair(stage{})
	src := server.Region(n, readable)
	in := client.Region(n, fabric.AccessLocalWrite)
	client.Receives(1, 1)
	for round := range uint64(repeat(200)) {
		Fill(src.Bytes(), round)
		server.Send("a word that there is something to read", nil)
		client.WantMessage("a word that there is something to read", nil)
		client.Receives(1, 1)
		server.Receives(1, 1)
		word := client.Message(nil)
		word.Flags |= fabric.Fence
		client.Post("a Read and a fenced Send", get(1, src.Segment(), 0, SGE(in, 0, n)), word)
		server.WantMessage("a fenced Send after a Read", nil)
		Fill(src.Bytes(), ^round)
		client.WantSent("the Read before a fenced Send", 1)
		client.WantSent("a fenced Send", word.ID)
		if !bytes.Equal(in.Bytes(), Pattern(n, round)) {
			s.Fatalf("round %d: the Read before a fenced Send returned what was written after the Send", round)
		}
	}
}

// segment: the Segment of a region covers all of it, and is zero without remote rights.
func segment(s *scene) {
	client, _ := s.pair(stage{})
	for _, n := range []int{1, 4095, 4096, 70000} {
		if seg := client.Region(n, writable|readable).Segment(); seg.Handle == 0 || seg.Length != uint32(n) {
			s.Errorf("a region of %d bytes is called %+v", n, seg)
		}
	}
	for _, access := range []fabric.Access{0, fabric.AccessLocalWrite} {
		if seg := client.Region(4096, access).Segment(); seg.Handle != 0 {
			s.Errorf("a region without remote rights has the handle %#x", seg.Handle)
		}
	}
	mr := client.Region(4096, readable)
	s.within("MR.Close", mr.Close)
	s.within("a second MR.Close", mr.Close)
}

// An outrage is a Write or Read that must be refused.
type outrage struct {
	what string
	op   fabric.Opcode
	// target prepares the victim and returns the handle and offset that the offender accesses.
	target func(victim *Endpoint) (handle uint32, offset uint64)
	length int
}

// refuse expects an outrage by a client to be refused: nothing is placed or fetched, and the connection ends at both
// ends. Other connections are not affected.
func (s *scene) refuse(l fabric.Listener, o outrage) {
	s.Helper()
	client, server := s.pairAt(l, stage{})
	handle, offset := o.target(server)
	out := client.Region(o.length, fabric.AccessLocalWrite)
	if o.op == fabric.OpWrite {
		Fill(out.Bytes(), 99)
	}
	client.Receives(1, 16)
	server.Receives(2, 16)
	wr := fabric.SendWR{ID: 1, Op: o.op, Flags: fabric.Signaled, RKey: handle, RemoteOffset: offset, SGL: []fabric.SGE{SGE(out, 0, o.length)}}
	s.wantOutrageRefused(o.what, client, server, wr)
	if o.op == fabric.OpRead && !bytes.Equal(out.Bytes(), make([]byte, o.length)) {
		s.Errorf("%s has brought data", o.what)
	}
	client.Close()
	server.Close()
}

// wantOutrageRefused posts wr, which the victim must refuse, and a message after it, which
// must not arrive.
func (s *scene) wantOutrageRefused(what string, offender, victim *Endpoint, wr fabric.SendWR) {
	s.Helper()
	offender.Post(what, wr, offender.Message([]byte("still here")))
	if _, data, err := victim.NextRecv(); err != nil {
		s.Fatalf("%s: want the receives to be flushed after %s: %v", victim.Name, what, err)
	} else if data != nil && !(s.cfg.Limits.LateReads && wr.Op == fabric.OpRead) {
		s.Fatalf("%s was executed: the message after it has arrived", what)
	}
	s.wantRefused(what, offender, wr, fabric.WCRemAccessErr)
	mine := offender.WantEnd("after " + what)
	victim.WantEnd("after " + what)
	if mine.Clean && !s.cfg.Limits.CoarseEnd {
		s.Errorf("%s has ended the connection cleanly, says the offender: %v", what, mine)
	}
}

// withoutRight: a region does not permit operations without the right.
func withoutRight(s *scene, op fabric.Opcode, access fabric.Access) {
	if op == fabric.OpRead && s.cfg.Limits.LooseReads {
		s.Skip("the provider declares that a Read needs no right")
	}
	l := s.listen(attr)
	a, b := s.pairAt(l, stage{})
	memory := Pattern(4096, 31)
	s.refuse(l, outrage{
		what: describe(op) + " without the right",
		op:   op, length: 64,
		target: func(victim *Endpoint) (uint32, uint64) {
			seg := s.register(victim, memory, access).Segment()
			return seg.Handle, seg.Offset
		},
	})
	if !bytes.Equal(memory, Pattern(4096, 31)) {
		s.Error("memory has changed")
	}
	s.exchange("beside a connection that was ended", a, b)
}

func describe(op fabric.Opcode) string {
	if op == fabric.OpWrite {
		return "a Write"
	}
	return "a Read"
}

// localRegionIsPrivate: the peer cannot use the local key of a region without remote rights to access it.
func localRegionIsPrivate(s *scene) {
	l := s.listen(attr)
	a, b := s.pairAt(l, stage{})
	memory := Pattern(4096, 32)
	for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead} {
		if op == fabric.OpRead && s.cfg.Limits.LooseReads {
			continue
		}
		s.refuse(l, outrage{
			what: describe(op) + " with the local key of a local region",
			op:   op, length: 64,
			target: func(victim *Endpoint) (uint32, uint64) {
				exposed := s.register(victim, memory, writable|readable) // for its offset
				local := s.register(victim, memory, fabric.AccessLocalWrite)
				exposed.Close()
				return local.LKey(), exposed.Segment().Offset
			},
		})
	}
	if !bytes.Equal(memory, Pattern(4096, 32)) {
		s.Error("memory has changed")
	}
	s.exchange("beside connections that were ended", a, b)
}

// bounds returns accesses outside a segment of n bytes.
func bounds(n int) []struct {
	what   string
	at     func(offset uint64) uint64
	length int
} {
	end := uint64(n)
	return []struct {
		what   string
		at     func(offset uint64) uint64
		length int
	}{
		{"one byte after the end", func(o uint64) uint64 { return o + end }, 1},
		{"over the end", func(o uint64) uint64 { return o + end - 1 }, 2},
		{"one byte too long", func(o uint64) uint64 { return o }, n + 1},
		{"one byte before the start", func(o uint64) uint64 { return o - 1 }, 1},
		{"over the beginning", func(o uint64) uint64 { return o - 1 }, 2},
		{"far away", func(o uint64) uint64 { return o + 1<<40 }, 1},
		{"away by what does not fit 32 bits", func(o uint64) uint64 { return o + 1<<32 }, 1},
		{"at the last offset there is", func(uint64) uint64 { return math.MaxUint64 }, 1},
		{"over the last offset there is", func(uint64) uint64 { return math.MaxUint64 - 9 }, 100},
		{"long, so that its end is inside again", func(o uint64) uint64 { return o - 4000 }, 4100},
	}
}

// outOfBounds: a handle gives access to no byte outside its region.
func outOfBounds(s *scene, op fabric.Opcode) {
	const n, margin = 4096, 8192
	l := s.listen(attr)
	a, b := s.pairAt(l, stage{})
	memory := Pattern(n+2*margin, 33)
	for _, c := range bounds(n) {
		what := describe(op) + " " + c.what
		s.refuse(l, outrage{
			what: what, op: op, length: c.length,
			target: func(victim *Endpoint) (uint32, uint64) {
				seg := s.register(victim, memory[margin:margin+n], writable|readable).Segment()
				return seg.Handle, c.at(seg.Offset)
			},
		})
		if !bytes.Equal(memory[:margin], Pattern(n+2*margin, 33)[:margin]) ||
			!bytes.Equal(memory[margin+n:], Pattern(n+2*margin, 33)[margin+n:]) {
			s.Fatalf("%s has changed memory outside the region", what)
		}
		Fill(memory, 33) // the part within bounds may have been placed before the rest was refused
	}
	s.exchange("beside connections that were ended", a, b)
}

// unknownHandle: a handle that was never returned gives no access. Neither does a handle with a wrong key part.
func unknownHandle(s *scene) {
	l := s.listen(attr)
	a, b := s.pairAt(l, stage{})
	memory := Pattern(4096, 34)
	for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead} {
		for _, c := range []struct {
			what  string
			wrong func(handle uint32) uint32
		}{
			{"handle 0", func(uint32) uint32 { return 0 }},
			{"the highest handle", func(uint32) uint32 { return math.MaxUint32 }},
			{"another key", func(h uint32) uint32 { return h ^ 1 }},
			{"another index", func(h uint32) uint32 { return h ^ 1<<20 }},
		} {
			s.refuse(l, outrage{
				what: describe(op) + " with " + c.what,
				op:   op, length: 64,
				target: func(victim *Endpoint) (uint32, uint64) {
					seg := s.register(victim, memory, writable|readable).Segment()
					return c.wrong(seg.Handle), seg.Offset
				},
			})
			if !bytes.Equal(memory, Pattern(4096, 34)) {
				s.Fatalf("%s with %s has changed memory", describe(op), c.what)
			}
		}
	}
	s.exchange("beside connections that were ended", a, b)
}

// handleOfAnotherConn: a handle is valid only on its own connection, not on other connections of the same process (RFC
// 5042 section 5.2: protection domains).
func handleOfAnotherConn(s *scene) {
	l := s.listen(attr)
	owner, server := s.pairAt(l, stage{})
	memory := Pattern(4096, 35)
	seg := s.register(server, memory, writable|readable).Segment()
	for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead} {
		s.refuse(l, outrage{
			what: describe(op) + " with the handle of another connection",
			op:   op, length: 64,
			target: func(*Endpoint) (uint32, uint64) { return seg.Handle, seg.Offset },
		})
	}
	if !bytes.Equal(memory, Pattern(4096, 35)) {
		s.Fatal("memory of another connection has changed")
	}
	in := owner.Region(4096, fabric.AccessLocalWrite)
	owner.Post("a Read by the one it was given to", get(1, seg, 0, SGE(in, 0, 4096)))
	owner.WantSent("a Read by the one it was given to", 1)
	if !bytes.Equal(in.Bytes(), Pattern(4096, 35)) {
		s.Error("a Read has brought other bytes")
	}
	s.exchange("after others have tried", owner, server)
}

// handleAfterClose: a handle is invalid after its region was closed, even if its table entry
// is reused.
func handleAfterClose(s *scene) {
	l := s.listen(attr)
	a, b := s.pairAt(l, stage{})
	memory := Pattern(4096, 36)
	for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead} {
		s.refuse(l, outrage{
			what: describe(op) + " with the handle of a region that is closed",
			op:   op, length: 64,
			target: func(victim *Endpoint) (uint32, uint64) {
				mr := s.register(victim, memory, writable|readable)
				seg := mr.Segment()
				s.within("MR.Close", mr.Close)
				s.register(victim, memory, writable|readable) // may reuse its table entry
				return seg.Handle, seg.Offset
			},
		})
	}
	if !bytes.Equal(memory, Pattern(4096, 36)) {
		s.Error("memory has changed")
	}
	s.exchange("beside connections that were ended", a, b)
}
