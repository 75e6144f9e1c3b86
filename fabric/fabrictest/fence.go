package fabrictest

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
)

func fenceChecks() []check {
	return []check{
		{"LocalInvStopsWrites", func(s *scene) { stopsWrites(s, revokeByLocalInv, asDeclared) }},
		{"LocalInvStopsReads", func(s *scene) { stopsReads(s, revokeByLocalInv, asDeclared) }},
		{"WindowCloseStopsWrites", func(s *scene) { stopsWrites(s, revokeByMWClose, asDeclared) }},
		{"WindowCloseStopsReads", func(s *scene) { stopsReads(s, revokeByMWClose, asDeclared) }},
		{"RegionCloseStopsWrites", func(s *scene) { stopsWrites(s, revokeByMRClose, asDeclared) }},
		{"RegionCloseStopsReads", func(s *scene) { stopsReads(s, revokeByMRClose, asDeclared) }},
		{"ConnCloseStopsWrites", func(s *scene) { stopsWrites(s, revokeByConnClose, strong) }},
		{"ConnCloseStopsReads", func(s *scene) { stopsReads(s, revokeByConnClose, strong) }},
		{"RegionCloseStopsOwnRead", ownReadStops},
		{"RegionCloseStopsReceive", receiveStops},
		{"ConnCloseStopsReceives", connCloseStopsReceives},
	}
}

// A revoker exposes memory of the owner. It returns the segment and a function that revokes access and must be a fence.
type revoker func(s *scene, owner *Endpoint, memory []byte, access fabric.Access) (fabric.Segment, func())

// A strength reports whether a fence is required even with WeakRevocation.
type strength bool

const (
	asDeclared strength = false // not with WeakRevocation
	strong     strength = true
)

func revokeByLocalInv(s *scene, owner *Endpoint, memory []byte, access fabric.Access) (fabric.Segment, func()) {
	s.needWindows(owner)
	mr := s.register(owner, memory, fabric.AccessLocalWrite)
	seg := s.bind(owner, owner.Window(), SGE(mr, 0, len(memory)), access)
	return seg, func() {
		// The peer's access may end the connection first, which is a fence, too.
		const id = 7003
		owner.Post("a local invalidation", localInvWR(id, seg.Handle))
		if wc, err := owner.NextSend(); err != nil || wc.ID != id || wc.Status != fabric.WCSuccess && wc.Status != fabric.WCFlushErr {
			s.Fatalf("%s: a local invalidation completed with %v of %d (%v)", owner.Name, wc.Status, wc.ID, err)
		}
	}
}

func revokeByMWClose(s *scene, owner *Endpoint, memory []byte, access fabric.Access) (fabric.Segment, func()) {
	s.needWindows(owner)
	mr := s.register(owner, memory, fabric.AccessLocalWrite)
	mw := owner.Window()
	seg := s.bind(owner, mw, SGE(mr, 0, len(memory)), access)
	return seg, func() {
		s.within("MW.Close", mw.Close)
	}
}

func revokeByMRClose(s *scene, owner *Endpoint, memory []byte, access fabric.Access) (fabric.Segment, func()) {
	mr := s.register(owner, memory, access|fabric.AccessLocalWrite)
	return mr.Segment(), func() {
		s.within("MR.Close", mr.Close)
	}
}

func revokeByConnClose(s *scene, owner *Endpoint, memory []byte, access fabric.Access) (fabric.Segment, func()) {
	mr := s.register(owner, memory, access|fabric.AccessLocalWrite)
	return mr.Segment(), owner.Close
}

// needWindows skips the check if the end has no memory windows.
func (s *scene) needWindows(e *Endpoint) {
	s.Helper()
	if !e.Conn.Capabilities().MemoryWindows {
		_, err := e.Conn.AllocMW()
		s.lack("memory windows", err)
	}
}

const (
	hammerSize  = 24 << 10 // bytes of an access
	hammerSlots = 4        // outstanding accesses
	hammerRest  = 64       // accesses after the fence before the hammer stops
)

// A hammer accesses memory of the peer repeatedly.
type hammer struct {
	end    *Endpoint
	seg    fabric.Segment
	op     fabric.Opcode
	slots  []fabric.MR
	fenced atomic.Bool // the owner has revoked access
	begun  fabric.SendWR
	last   fabric.SendWR
	// visit is called with the slot of each Read that has succeeded, and before
	// each Write.
	visit func(n int, slot []byte) error
}

func (s *scene) newHammer(e *Endpoint, seg fabric.Segment, op fabric.Opcode) *hammer {
	s.Helper()
	h := &hammer{end: e, seg: seg, op: op, begun: e.Message([]byte("begun")), last: e.Message([]byte("still here"))}
	for range hammerSlots {
		h.slots = append(h.slots, e.Region(hammerSize, fabric.AccessLocalWrite))
	}
	return h
}

// swing accesses memory until the connection ends, as it should. If the connection does not end, swing stops hammerRest
// accesses after the fence and sends a message that must not arrive.
func (h *hammer) swing() error {
	rest := hammerRest
	for n := 0; rest > 0; n++ {
		slot := h.slots[n%hammerSlots]
		if n >= hammerSlots {
			wc, err := h.end.NextSend()
			if err != nil || wc.Status != fabric.WCSuccess {
				return nil
			}
			if h.op == fabric.OpRead {
				if err := h.visit(n-hammerSlots, slot.Bytes()); err != nil {
					return err
				}
			}
		}
		if h.op == fabric.OpWrite {
			if err := h.visit(n, slot.Bytes()); err != nil {
				return err
			}
		}
		if h.fenced.Load() {
			rest--
		}
		wr := put(uint64(n), h.seg, 0, SGE(slot, 0, hammerSize))
		wr.Op = h.op
		if h.end.TryPost(wr) != nil {
			return nil
		}
		if n == hammerSlots {
			if h.end.TryPost(h.begun) != nil {
				return nil
			}
			// begun is unsignaled: its completion would be among those of the accesses.
		}
	}
	_ = h.end.TryPost(h.last) // fails if the connection has ended
	return nil
}

// stopsWrites: after the fence no byte is written for the peer, which keeps writing until the
// connection ends.
func stopsWrites(s *scene, revoke revoker, how strength) {
	l := s.listen(attr)
	for round := range repeat(20) {
		client, server := s.pairAt(l, stage{})
		memory := make([]byte, hammerSize)
		seg, fence := revoke(s, server, memory, fabric.AccessRemoteWrite)
		weak := how == asDeclared && server.Conn.Capabilities().WeakRevocation
		server.Receives(2, 16)
		h := s.newHammer(client, seg, fabric.OpWrite)
		h.begun.Flags, h.last.Flags = 0, 0
		h.visit = func(n int, slot []byte) error {
			copy(slot, bytes.Repeat([]byte{byte(n + 1)}, len(slot)))
			return nil
		}
		swung := later(h.swing)
		server.WantMessage("the word that the peer writes", []byte("begun"))
		fence()
		then := bytes.Clone(memory)
		h.fenced.Store(true)
		s.wantStopped("Writes", client, server, swung)
		if !weak && !bytes.Equal(memory, then) {
			s.Fatalf("round %d: memory has changed after the fence", round)
		}
		client.Close()
		server.Close()
	}
}

// wantStopped expects the end of the connection to stop a hammer.
func (s *scene) wantStopped(what string, client, server *Endpoint, swung <-chan error) {
	s.Helper()
	if _, data, err := server.NextRecv(); err == nil && data != nil {
		s.Fatalf("%s are still executed after the fence", what)
	}
	if err := s.result("the hammer", swung); err != nil {
		s.Fatal(err)
	}
	client.WantEnd("after the fence")
	server.WantEnd("after the fence")
}

// stopsReads: after the fence no byte is read for the peer.
func stopsReads(s *scene, revoke revoker, how strength) {
	l := s.listen(attr)
	for round := range repeat(20) {
		client, server := s.pairAt(l, stage{})
		memory := make([]byte, hammerSize)
		Fill(memory, uint64(round))
		seg, fence := revoke(s, server, memory, fabric.AccessRemoteRead)
		weak := how == asDeclared && server.Conn.Capabilities().WeakRevocation
		server.Receives(2, 16)
		h := s.newHammer(client, seg, fabric.OpRead)
		h.begun.Flags, h.last.Flags = 0, 0
		h.visit = func(n int, slot []byte) error {
			if !weak && !bytes.Equal(slot, Pattern(hammerSize, uint64(round))) {
				return fmt.Errorf("round %d: Read %d returned what was written after the fence", round, n)
			}
			clear(slot)
			return nil
		}
		swung := later(h.swing)
		server.WantMessage("the word that the peer reads", []byte("begun"))
		fence()
		Fill(memory, ^uint64(round))
		h.fenced.Store(true)
		s.wantStopped("Reads", client, server, swung)
		client.Close()
		server.Close()
	}
}

// ownReadStops: after a region is closed, a Read by its owner does not write to it either.
func ownReadStops(s *scene) {
	const n = 1 << 20
	l := s.listen(attr)
	for round := range repeat(20) {
		client, server := s.pairAt(l, stage{})
		src := server.Region(n, readable)
		Fill(src.Bytes(), uint64(round))
		memory := make([]byte, n)
		sink := s.register(client, memory, fabric.AccessLocalWrite)
		client.Post("a Read", get(1, src.Segment(), 0, SGE(sink, 0, n)))
		s.within("MR.Close", sink.Close)
		then := bytes.Clone(memory)
		wc, err := client.NextSend()
		if err != nil {
			s.Fatalf("want the Read to complete: %v", err)
		}
		weak := client.Conn.Capabilities().WeakRevocation
		if !weak && wc.Status == fabric.WCSuccess && !bytes.Equal(then, src.Bytes()) {
			s.Fatalf("round %d: a Read has succeeded whose sink was closed before it was filled", round)
		}
		if wc.Status != fabric.WCSuccess {
			client.WantEnd("after a Read whose sink is closed")
		}
		client.Close()
		server.Close()
		if !weak && !bytes.Equal(memory, then) {
			s.Fatalf("round %d: memory has changed after the fence", round)
		}
	}
}

// receiveStops: after a region is closed, a receive that is already posted does not write to it either.
func receiveStops(s *scene) {
	client, server := s.pair(stage{})
	memory := make([]byte, 64)
	mr := s.register(server, memory, fabric.AccessLocalWrite)
	if err := server.TryPostRecv(fabric.RecvWR{ID: 1, SGE: SGE(mr, 0, 64)}); err != nil {
		s.Fatalf("post a receive: %v", err)
	}
	s.within("MR.Close", mr.Close)
	wr := client.Message(Pattern(64, 51))
	client.Post("a message", wr)
	if wc, _, err := server.NextRecv(); err != nil || wc.Status == fabric.WCSuccess {
		s.Errorf("a receive whose region is closed completed with %v (%v)", wc.Status, err)
	}
	client.WantEnd("after a message to a closed region")
	server.WantEnd("after a message to a closed region")
	if !bytes.Equal(memory, make([]byte, 64)) {
		s.Error("a message was placed in a region that is closed")
	}
}

// connCloseStopsReceives: after Close the adapter uses no memory: nothing is written to posted
// receives, although the peer keeps sending.
func connCloseStopsReceives(s *scene) {
	const n = 64
	l := s.listen(attr)
	for round := range repeat(20) {
		client, server := s.pairAt(l, stage{})
		memory := make([]byte, n*1024)
		mr := s.register(server, memory, fabric.AccessLocalWrite)
		for i := range n {
			if err := server.TryPostRecv(fabric.RecvWR{ID: uint64(i), SGE: SGE(mr, i*1024, 1024)}); err != nil {
				s.Fatalf("post a receive: %v", err)
			}
		}
		wrs := make([]fabric.SendWR, n)
		for i := range wrs {
			wrs[i] = client.Message(Pattern(1024, uint64(i)))
		}
		sent := later(func() error {
			for _, wr := range wrs {
				if client.TryPost(wr) != nil {
					break
				}
			}
			return nil
		})
		server.WantRecv("the first of many messages")
		server.Close()
		then := bytes.Clone(memory)
		if err := s.result("Post", sent); err != nil {
			s.Fatal(err)
		}
		client.WantEnd("after the peer's Close")
		if !bytes.Equal(memory, then) {
			s.Fatalf("round %d: memory has changed after Close", round)
		}
		client.Close()
	}
}
