package fabrictest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// Access rights of windows.
const (
	openRead  = fabric.AccessRemoteRead
	openWrite = fabric.AccessRemoteWrite
	openBoth  = openRead | openWrite
)

func windowChecks() []check {
	return []check{
		{"BindUseInvalidate", bindUseInvalidate},
		{"BindInFrontOfSend", bindInFrontOfSend},
		{"RebindChangesKey", rebindChangesKey},
		{"ManyWindows", manyWindows},
		{"SendInv", sendInv},
		{"SendInvOfNothing", sendInvOfNothing},
		{"SendInvOfAnotherConn", sendInvOfAnotherConn},
		{"StaleKey", staleKey},
		{"AfterLocalInv", afterLocalInv},
		{"LocalInvInFrontOfSend", localInvInFrontOfSend},
		{"AfterClose", windowAfterClose},
		{"WithoutRight", windowWithoutRight},
		{"OutOfBounds", windowOutOfBounds},
		{"HandleOfAnotherConn", windowOfAnotherPeer},
		{"PrepareWhileBound", prepareWhileBound},
		{"BindUnprepared", bindUnprepared},
		{"BindWhatIsNotOurs", bindWhatIsNotOurs},
		{"LocalInvOfNothing", localInvOfNothing},
	}
}

// windows connects a pair of Endpoints. It skips the check if the server has no memory windows.
func (s *scene) windows(l fabric.Listener) (client, server *Endpoint) {
	s.Helper()
	client, server = s.pairAt(l, stage{})
	if !server.Conn.Capabilities().MemoryWindows {
		_, err := server.Conn.AllocMW()
		s.lack("memory windows", err)
	}
	return client, server
}

// remoteInvalidation connects a pair like windows. It skips the check if the peer cannot invalidate windows.
func (s *scene) remoteInvalidation(l fabric.Listener) (client, server *Endpoint) {
	s.Helper()
	client, server = s.windows(l)
	if !client.Conn.Capabilities().RemoteInvalidate {
		err := client.Conn.Post([]fabric.SendWR{{Op: fabric.OpSendInv, RKey: 1}})
		s.lack("remote invalidation", err)
	}
	return client, server
}

// lack skips a check if the provider lacks a capability, of which err must be the proof.
func (s *scene) lack(capability string, err error) {
	s.Helper()
	if !errors.Is(err, fabric.ErrNotSupported) {
		s.Fatalf("Capabilities says that there is no %s, and using it says %v, want fabric.ErrNotSupported", capability, err)
	}
	if s.cfg.Complete {
		s.Fatalf("the provider is declared complete and has no %s: %v", capability, err)
	}
	s.Skip(Lack{capability, err})
}

// bindWR returns the request that binds mw.
func bindWR(id uint64, mw fabric.MW) fabric.SendWR {
	return fabric.SendWR{ID: id, Op: fabric.OpBindMW, Flags: fabric.Signaled, MW: mw}
}

// localInvWR returns the request that invalidates handle.
func localInvWR(id uint64, handle uint32) fabric.SendWR {
	return fabric.SendWR{ID: id, Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: handle}
}

// bind exposes mem through mw.
func (s *scene) bind(e *Endpoint, mw fabric.MW, mem fabric.SGE, access fabric.Access) fabric.Segment {
	s.Helper()
	seg, err := mw.Prepare(mem, access)
	if err != nil {
		s.Fatalf("%s: prepare a window: %v", e.Name, err)
	}
	if seg.Handle == 0 || seg.Length != uint32(len(mem.Buf)) {
		s.Fatalf("%s: a window over %d bytes is called %+v", e.Name, len(mem.Buf), seg)
	}
	const id = 7001
	e.Post("a bind", bindWR(id, mw))
	if wc := e.WantSent("a bind", id); wc.Op != fabric.WCBindMW {
		s.Fatalf("%s: a bind completed with opcode %d", e.Name, wc.Op)
	}
	return seg
}

// invalidate invalidates the window bound to handle.
func (s *scene) invalidate(e *Endpoint, handle uint32) {
	s.Helper()
	const id = 7002
	e.Post("a local invalidation", localInvWR(id, handle))
	if wc := e.WantSent("a local invalidation", id); wc.Op != fabric.WCLocalInv {
		s.Fatalf("%s: a local invalidation completed with opcode %d", e.Name, wc.Op)
	}
}

// inside reports whether an access is between two offsets from the start of a window.
func inside(at func(uint64) uint64, length int, from, to int64) bool {
	const base = 1 << 40
	off := int64(at(base) - base)
	return off >= from && off+int64(length) <= to
}

// bindUseInvalidate: a window exposes memory between bind and invalidation, repeatedly.
func bindUseInvalidate(s *scene) {
	client, server := s.windows(s.listen(attr))
	mw := server.Window()
	local := server.Region(8192, fabric.AccessLocalWrite)
	own := client.Region(8192, fabric.AccessLocalWrite)
	for round := range uint64(repeat(60)) {
		at, n := int(13*round), 1000+int(round)
		seg := s.bind(server, mw, SGE(local, at, n), openBoth)
		Fill(own.Bytes()[:n], round)
		server.Receives(1, 1)
		client.Post("a Write and a Read through a window",
			put(1, seg, 0, SGE(own, 0, n)),
			get(2, seg, 10, SGE(own, 4096, n-10)))
		client.WantSent("a Write through a window", 1)
		client.WantSent("a Read through a window", 2)
		client.Send("the word that the window is not used any more", nil)
		server.WantMessage("the word that the window is not used any more", nil)
		if !bytes.Equal(local.Bytes()[at:at+n], Pattern(n, round)) {
			s.Fatalf("round %d: a Write through a window is not in its place", round)
		}
		if !bytes.Equal(own.Bytes()[4096:4096+n-10], Pattern(n, round)[10:]) {
			s.Fatalf("round %d: a Read through a window has brought other bytes", round)
		}
		s.invalidate(server, seg.Handle)
	}
	s.within("MW.Close", mw.Close)
	s.within("a second MW.Close", mw.Close)
}

// segmentBytes encodes a segment for a message.
func segmentBytes(seg fabric.Segment) []byte {
	b := binary.BigEndian.AppendUint32(nil, seg.Handle)
	b = binary.BigEndian.AppendUint32(b, seg.Length)
	return binary.BigEndian.AppendUint64(b, seg.Offset)
}

func segmentOf(b []byte) fabric.Segment {
	return fabric.Segment{
		Handle: binary.BigEndian.Uint32(b),
		Length: binary.BigEndian.Uint32(b[4:]),
		Offset: binary.BigEndian.Uint64(b[8:]),
	}
}

// bindInFrontOfSend: a bind takes effect before a later Send. The peer may use the handle as soon as it receives the
// Send.
func bindInFrontOfSend(s *scene) {
	client, server := s.windows(s.listen(attr))
	mw := server.Window()
	local := server.Region(4096, fabric.AccessLocalWrite)
	out := client.Region(4096, 0)
	for round := range uint64(repeat(60)) {
		client.Receives(1, 16)
		server.Receives(1, 1)
		seg, err := mw.Prepare(SGE(local, 0, 4096), openWrite)
		if err != nil {
			s.Fatalf("prepare a window: %v", err)
		}
		bind, word := bindWR(1, mw), server.Message(segmentBytes(seg))
		bind.Flags = 0
		server.Post("a bind and its name", bind, word)
		_, name := client.WantRecv("the name of a window")
		Fill(out.Bytes(), round)
		answer := client.Message(nil)
		client.Post("a Write and an answer", put(1, segmentOf(name), 0, SGE(out, 0, 4096)), answer)
		server.WantSent("the name of a window", word.ID)
		server.WantMessage("an answer", nil)
		if !bytes.Equal(local.Bytes(), Pattern(4096, round)) {
			s.Fatalf("round %d: the Write through a window has not been placed", round)
		}
		client.WantSent("a Write", 1)
		client.WantSent("an answer", answer.ID)
		s.invalidate(server, seg.Handle)
	}
}

// rebindChangesKey: each binding has a new handle.
func rebindChangesKey(s *scene) {
	_, server := s.windows(s.listen(attr))
	mw := server.Window()
	local := server.Region(4096, fabric.AccessLocalWrite)
	last := fabric.Segment{}
	for round := range 20 {
		seg := s.bind(server, mw, SGE(local, 0, 64), openRead)
		if seg.Handle == last.Handle {
			s.Fatalf("binding %d has the handle %#x of the one before", round, seg.Handle)
		}
		last = seg
		s.invalidate(server, seg.Handle)
	}
	first, err := mw.Prepare(SGE(local, 0, 64), openRead)
	if err != nil {
		s.Fatalf("prepare: %v", err)
	}
	second, err := mw.Prepare(SGE(local, 64, 64), openRead)
	if err != nil {
		s.Fatalf("prepare a window that is prepared and not bound: %v", err)
	}
	if first.Handle == second.Handle || first.Handle == last.Handle {
		s.Errorf("two preparations have the handles %#x and %#x", first.Handle, second.Handle)
	}
}

// manyWindows: windows are independent of each other, even over the same region.
func manyWindows(s *scene) {
	const n, size = 40, 100
	client, server := s.windows(s.listen(attr))
	local := server.Region(n*size, fabric.AccessLocalWrite)
	own := client.Region(n*size, fabric.AccessLocalWrite)
	Fill(own.Bytes(), 41)
	var segs []fabric.Segment
	var binds, puts, invs []fabric.SendWR
	handles := make(map[uint32]bool)
	for i := range n {
		mw := server.Window()
		seg, err := mw.Prepare(SGE(local, i*size, size), openWrite)
		if err != nil {
			s.Fatalf("prepare window %d: %v", i, err)
		}
		handles[seg.Handle] = true
		segs = append(segs, seg)
		binds = append(binds, bindWR(uint64(i), mw))
		puts = append(puts, put(uint64(i), seg, 0, SGE(own, i*size, size)))
		if i%2 == 0 {
			invs = append(invs, localInvWR(uint64(i), seg.Handle))
		}
	}
	if len(handles) != n {
		s.Errorf("%d windows have %d handles", n, len(handles))
	}
	server.Post("many binds", binds...)
	for i := range n {
		server.WantSent("one of many binds", uint64(i))
	}
	server.Receives(1, 1)
	client.Post("many Writes", puts...)
	for i := range n {
		client.WantSent("one of many Writes", uint64(i))
	}
	client.Send("the word that all is written", nil)
	server.WantMessage("the word that all is written", nil)
	if !bytes.Equal(local.Bytes(), own.Bytes()) {
		s.Error("Writes through many windows are not in their places")
	}
	server.Post("invalidations of every second window", invs...)
	for _, inv := range invs {
		server.WantSent("one of many invalidations", inv.ID)
	}
	server.Receives(1, 1)
	Fill(own.Bytes(), 42)
	client.Post("a Write through a window beside those that are closed", put(1, segs[1], 0, SGE(own, size, size)))
	client.WantSent("a Write through a window beside those that are closed", 1)
	client.Send("the word that it is written", nil)
	server.WantMessage("the word that it is written", nil)
	if !bytes.Equal(local.Bytes()[size:2*size], own.Bytes()[size:2*size]) {
		s.Error("a Write through a window beside those that are closed is not in its place")
	}
}

// sendInv: a Send may invalidate a window of the peer. The receive completion reports the invalidation, the handle is
// invalid, and the window can be bound again.
func sendInv(s *scene) {
	l := s.listen(attr)
	client, server := s.remoteInvalidation(l)
	mw := server.Window()
	local := server.Region(4096, fabric.AccessLocalWrite)
	out := client.Region(4096, 0)
	for round := range uint64(repeat(60)) {
		seg := s.bind(server, mw, SGE(local, 0, 4096), openWrite)
		server.Receives(2, 16)
		Fill(out.Bytes(), round)
		plain, last := client.Message([]byte("plain")), client.Message([]byte("last"))
		last.Op, last.RKey = fabric.OpSendInv, seg.Handle
		client.Post("a Send, a Write, and a Send with invalidation", plain, put(1, seg, 0, SGE(out, 0, 4096)), last)
		if wc := server.WantMessage("a plain Send", []byte("plain")); wc.WithInv {
			s.Fatal("a plain Send is reported to have invalidated something")
		}
		wc := server.WantMessage("a Send with invalidation", []byte("last"))
		if !wc.WithInv || wc.InvalidatedKey != seg.Handle {
			s.Fatalf("a Send with invalidation of %#x is reported to have invalidated %#x (%v)", seg.Handle, wc.InvalidatedKey, wc.WithInv)
		}
		if !bytes.Equal(local.Bytes(), Pattern(4096, round)) {
			s.Fatalf("round %d: the Write before a Send with invalidation is not placed", round)
		}
		client.WantSent("a plain Send", plain.ID)
		client.WantSent("a Write", 1)
		if wc := client.WantSent("a Send with invalidation", last.ID); wc.Op != fabric.WCSend {
			s.Fatalf("a Send with invalidation completed with opcode %d", wc.Op)
		}
	}
	for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead} {
		client, server := s.pairAt(l, stage{})
		memory := server.Region(4096, fabric.AccessLocalWrite)
		seg := s.bind(server, server.Window(), SGE(memory, 0, 4096), openBoth)
		server.Receives(3, 16)
		last := client.Message(nil)
		last.Op, last.RKey = fabric.OpSendInv, seg.Handle
		client.Post("a Send with invalidation", last)
		client.WantSent("a Send with invalidation", last.ID)
		server.WantMessage("a Send with invalidation", nil)
		own := client.Region(64, fabric.AccessLocalWrite)
		wr := put(1, seg, 0, SGE(own, 0, 64))
		wr.Op = op
		s.wantOutrageRefused(describe(op)+" through a window that the peer has closed", client, server, wr)
	}
}

const twice = "a second Send with invalidation of one window"

// sendInvOfNothing: a Send with Invalidate of a handle that is not bound is refused.
func sendInvOfNothing(s *scene) {
	l := s.listen(attr)
	for _, c := range []struct {
		what string
		key  func(server *Endpoint) uint32
	}{
		{"a Send with invalidation of handle 0", func(*Endpoint) uint32 { return 0 }},
		{"a Send with invalidation of an unknown handle", func(*Endpoint) uint32 { return 0xfffffff7 }},
		{twice, func(server *Endpoint) uint32 {
			local := server.Region(64, fabric.AccessLocalWrite)
			seg := s.bind(server, server.Window(), SGE(local, 0, 64), openRead)
			s.invalidate(server, seg.Handle)
			return seg.Handle
		}},
	} {
		if c.what == twice && s.cfg.Limits.LooseInvalidation {
			continue // it would crash the kernel
		}
		client, server := s.remoteInvalidation(l)
		key := c.key(server)
		server.Receives(2, 16)
		wr := client.Message(nil)
		wr.Op, wr.RKey = fabric.OpSendInv, key
		if c.what == twice && s.cfg.Limits.CrossedInvalidation {
			server.Receives(1, 16)
			client.Post(c.what, wr)
			client.WantSent(c.what, wr.ID)
			if wc, _, err := server.NextRecv(); err != nil || wc.Status != fabric.WCSuccess || !wc.WithInv || wc.InvalidatedKey != key {
				s.Fatalf("%s: %s arrives as %+v (%v)", server.Name, c.what, wc, err)
			}
			wr = client.Message(nil) // a second invalidation must be refused
			wr.Op, wr.RKey = fabric.OpSendInv, key
		}
		s.wantSendRefused(c.what, client, server, wr)
	}
}

// wantSendRefused posts a Send that the victim must refuse, and a message after it. It expects the connection to end at
// both ends.
func (s *scene) wantSendRefused(what string, offender, victim *Endpoint, wr fabric.SendWR) {
	s.Helper()
	offender.Post(what, wr, offender.Message([]byte("still here")))
	if s.cfg.Limits.LooseInvalidation {
		// The victim detects the error; the offender sees only the end.
		if wc, _, err := victim.NextRecv(); err != nil || wc.Status == fabric.WCSuccess {
			s.Fatalf("%s: %s has arrived (%v)", victim.Name, what, err)
		}
		offender.WantEnd("after " + what)
		victim.WantEnd("after " + what)
		return
	}
	for range 2 {
		if wc, _, err := victim.NextRecv(); err != nil {
			s.Fatalf("%s: want the receives to be flushed after %s: %v", victim.Name, what, err)
		} else if wc.Status == fabric.WCSuccess {
			s.Fatalf("%s: %s has arrived", victim.Name, what)
		}
	}
	s.wantRefused(what, offender, wr, fabric.WCRemAccessErr, fabric.WCRemInvReqErr, fabric.WCRemOpErr)
	offender.WantEnd("after " + what)
	victim.WantEnd("after " + what)
}

// sendInvOfAnotherConn: a Send cannot invalidate windows of another connection.
func sendInvOfAnotherConn(s *scene) {
	l := s.listen(attr)
	if s.cfg.Limits.LooseInvalidation {
		s.Skip("the provider declares that anybody may invalidate any window")
	}
	client, server := s.remoteInvalidation(l)
	local := server.Region(4096, fabric.AccessLocalWrite)
	Fill(local.Bytes(), 43)
	seg := s.bind(server, server.Window(), SGE(local, 0, 4096), openRead)

	other, victim := s.pairAt(l, stage{})
	victim.Receives(2, 16)
	wr := other.Message(nil)
	wr.Op, wr.RKey = fabric.OpSendInv, seg.Handle
	s.wantSendRefused("a Send with invalidation of another connection's window", other, victim, wr)

	in := client.Region(4096, fabric.AccessLocalWrite)
	client.Post("a Read through a window that another has tried to close", get(1, seg, 0, SGE(in, 0, 4096)))
	client.WantSent("a Read through a window that another has tried to close", 1)
	if !bytes.Equal(in.Bytes(), Pattern(4096, 43)) {
		s.Error("a Read through a window has brought other bytes")
	}
}

// refuseWindow is like refuse for a window over the middle of a region that only the window exposes. The memory must not
// change.
func (s *scene) refuseWindow(l fabric.Listener, what string, op fabric.Opcode, length int,
	target func(victim *Endpoint, mw fabric.MW, mem fabric.SGE) (uint32, uint64)) {
	s.Helper()
	const n, margin = 4096, 8192
	memory := Pattern(n+2*margin, 44)
	s.refuse(l, outrage{
		what: describe(op) + " " + what, op: op, length: length,
		target: func(victim *Endpoint) (uint32, uint64) {
			local := s.register(victim, memory, fabric.AccessLocalWrite)
			return target(victim, victim.Window(), SGE(local, margin, n))
		},
	})
	if want := Pattern(n+2*margin, 44); !bytes.Equal(memory[:margin], want[:margin]) || !bytes.Equal(memory[margin+n:], want[margin+n:]) {
		s.Fatalf("%s %s has changed memory outside the window", describe(op), what)
	} else if length <= n && !bytes.Equal(memory, want) {
		s.Fatalf("%s %s has changed memory", describe(op), what)
	}
}

// both runs f for Writes and for Reads, with another connection that must not be affected.
func (s *scene) both(l fabric.Listener, f func(op fabric.Opcode)) {
	s.Helper()
	a, b := s.pairAt(l, stage{})
	f(fabric.OpWrite)
	f(fabric.OpRead)
	s.exchange("beside connections that were ended", a, b)
}

// staleKey: the handle of an earlier binding does not give access to the current one.
func staleKey(s *scene) {
	l := s.listen(attr)
	s.windows(l)
	s.both(l, func(op fabric.Opcode) {
		s.refuseWindow(l, "with the name of an earlier binding", op, 64,
			func(victim *Endpoint, mw fabric.MW, mem fabric.SGE) (uint32, uint64) {
				old := s.bind(victim, mw, mem, openBoth)
				s.invalidate(victim, old.Handle)
				s.bind(victim, mw, mem, openBoth)
				return old.Handle, old.Offset
			})
	})
}

// afterLocalInv: after its invalidation a handle gives no access.
func afterLocalInv(s *scene) {
	l := s.listen(attr)
	s.windows(l)
	s.both(l, func(op fabric.Opcode) {
		s.refuseWindow(l, "through a window after its invalidation", op, 64,
			func(victim *Endpoint, mw fabric.MW, mem fabric.SGE) (uint32, uint64) {
				seg := s.bind(victim, mw, mem, openBoth)
				s.invalidate(victim, seg.Handle)
				return seg.Handle, seg.Offset
			})
		s.refuseWindow(l, "through a window that is prepared and not bound", op, 64,
			func(_ *Endpoint, mw fabric.MW, mem fabric.SGE) (uint32, uint64) {
				seg, err := mw.Prepare(mem, openBoth)
				if err != nil {
					s.Fatalf("prepare a window: %v", err)
				}
				return seg.Handle, seg.Offset
			})
	})
}

// localInvInFrontOfSend: an invalidation takes effect before a later Send.
func localInvInFrontOfSend(s *scene) {
	client, server := s.windows(s.listen(attr))
	memory := Pattern(4096, 45)
	local := s.register(server, memory, fabric.AccessLocalWrite)
	seg := s.bind(server, server.Window(), SGE(local, 0, 4096), openWrite)
	client.Receives(2, 16)
	server.Receives(1, 16)
	inv, word := localInvWR(1, seg.Handle), server.Message([]byte("closed"))
	inv.Flags = 0
	server.Post("an invalidation and the word of it", inv, word)
	client.WantMessage("the word that a window is closed", []byte("closed"))
	server.WantSent("the word that a window is closed", word.ID)
	own := client.Region(64, 0)
	s.wantOutrageRefused("a Write after the word that the window is closed", client, server, put(1, seg, 0, SGE(own, 0, 64)))
	server.Close()
	if !bytes.Equal(memory, Pattern(4096, 45)) {
		s.Error("memory has changed")
	}
}

// windowAfterClose: a closed window gives no access, even if it was bound.
func windowAfterClose(s *scene) {
	l := s.listen(attr)
	s.windows(l)
	s.both(l, func(op fabric.Opcode) {
		s.refuseWindow(l, "through a window that is closed", op, 64,
			func(victim *Endpoint, mw fabric.MW, mem fabric.SGE) (uint32, uint64) {
				seg := s.bind(victim, mw, mem, openBoth)
				s.within("MW.Close", mw.Close)
				s.bind(victim, victim.Window(), mem, openBoth) // may reuse its table entry
				return seg.Handle, seg.Offset
			})
	})
}

// windowWithoutRight: a window does not permit operations for which it lacks the right, whatever the region's rights.
func windowWithoutRight(s *scene) {
	l := s.listen(attr)
	s.windows(l)
	s.both(l, func(op fabric.Opcode) {
		access := openRead
		if op == fabric.OpRead {
			access = openWrite
		}
		s.refuseWindow(l, "through a window without the right", op, 64,
			func(victim *Endpoint, mw fabric.MW, mem fabric.SGE) (uint32, uint64) {
				seg := s.bind(victim, mw, mem, access)
				return seg.Handle, seg.Offset
			})
	})
}

// windowOutOfBounds: a window gives access to its memory and to no other byte of the region.
func windowOutOfBounds(s *scene) {
	l := s.listen(attr)
	s.windows(l)
	s.both(l, func(op fabric.Opcode) {
		for _, c := range bounds(4096) {
			if s.cfg.Limits.LooseWindows && inside(c.at, c.length, -8192, 4096+8192) {
				continue // inside the underlying region
			}
			s.refuseWindow(l, "through a window, "+c.what, op, c.length,
				func(victim *Endpoint, mw fabric.MW, mem fabric.SGE) (uint32, uint64) {
					seg := s.bind(victim, mw, mem, openBoth)
					return seg.Handle, c.at(seg.Offset)
				})
		}
	})
}

// windowOfAnotherPeer: only the peer of its own connection can access a window.
func windowOfAnotherPeer(s *scene) {
	l := s.listen(attr)
	client, server := s.windows(l)
	local := server.Region(4096, fabric.AccessLocalWrite)
	Fill(local.Bytes(), 46)
	seg := s.bind(server, server.Window(), SGE(local, 0, 4096), openBoth)
	for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead} {
		s.refuse(l, outrage{
			what: describe(op) + " through a window of another connection",
			op:   op, length: 64,
			target: func(*Endpoint) (uint32, uint64) { return seg.Handle, seg.Offset },
		})
	}
	in := client.Region(4096, fabric.AccessLocalWrite)
	client.Post("a Read by the one it is open to", get(1, seg, 0, SGE(in, 0, 4096)))
	client.WantSent("a Read by the one it is open to", 1)
	if !bytes.Equal(in.Bytes(), Pattern(4096, 46)) {
		s.Error("memory of another connection has changed")
	}
}

// prepareWhileBound: Prepare of a bound window fails, and the window stays bound.
func prepareWhileBound(s *scene) {
	client, server := s.windows(s.listen(attr))
	local := server.Region(4096, fabric.AccessLocalWrite)
	Fill(local.Bytes(), 47)
	mw := server.Window()
	seg := s.bind(server, mw, SGE(local, 0, 4096), openRead)
	if _, err := mw.Prepare(SGE(local, 0, 64), openRead); err == nil {
		s.Fatal("a window that is bound could be prepared")
	}
	in := client.Region(4096, fabric.AccessLocalWrite)
	client.Post("a Read", get(1, seg, 0, SGE(in, 0, 4096)))
	client.WantSent("a Read", 1)
	if !bytes.Equal(in.Bytes(), local.Bytes()) {
		s.Error("a Read through a window has brought other bytes")
	}
	s.invalidate(server, seg.Handle)
	s.bind(server, mw, SGE(local, 0, 64), openRead)
}

// wantBindRefused expects a bind to be refused, by Post or by its completion.
func (s *scene) wantBindRefused(what string, e *Endpoint, mw fabric.MW) {
	s.Helper()
	if err := e.TryPost(bindWR(1, mw)); err != nil {
		var ce *fabric.ConnError
		if errors.As(err, &ce) || errors.Is(err, fabric.ErrQueueFull) {
			s.Fatalf("%s: post %s: %v", e.Name, what, err)
		}
		return
	}
	e.WantFailed(what, 1, s.local(fabric.WCMWBindErr)...)
	e.WantEnd("after " + what)
}

// bindUnprepared: a bind needs a window that has been prepared and is not bound.
func bindUnprepared(s *scene) {
	l := s.listen(attr)
	_, server := s.windows(l)
	s.wantBindRefused("a bind of a window that is not prepared", server, server.Window())
	s.wantBindRefused("a bind of no window", s.server(l), nil)

	server = s.server(l)
	mw := server.Window()
	local := server.Region(64, fabric.AccessLocalWrite)
	s.bind(server, mw, SGE(local, 0, 64), openRead)
	s.wantBindRefused("a second bind of a window", server, mw)

	server = s.server(l)
	mw = server.Window()
	local = server.Region(64, fabric.AccessLocalWrite)
	seg := s.bind(server, mw, SGE(local, 0, 64), openRead)
	s.invalidate(server, seg.Handle)
	s.wantBindRefused("a bind of a window whose preparation is used up", server, mw)

	server = s.server(l)
	mw = server.Window()
	local = server.Region(64, fabric.AccessLocalWrite)
	if _, err := mw.Prepare(SGE(local, 0, 64), openRead); err != nil {
		s.Fatalf("prepare a window: %v", err)
	}
	mw.Close()
	s.wantBindRefused("a bind of a window that is closed", server, mw)
}

func (s *scene) server(l fabric.Listener) *Endpoint {
	s.Helper()
	_, server := s.pairAt(l, stage{})
	return server
}

// bindWhatIsNotOurs: a window cannot have more rights than its region, and both must belong to
// the connection.
func bindWhatIsNotOurs(s *scene) {
	l := s.listen(attr)
	_, third := s.windows(l)
	backing := make([]byte, 4096)
	foreign := s.register(third, backing, fabric.AccessLocalWrite)
	for _, c := range []struct {
		what   string
		access fabric.Access
		mem    func(e *Endpoint) fabric.SGE
	}{
		{"memory that ends outside the region", openRead, func(e *Endpoint) fabric.SGE {
			return fabric.SGE{Buf: backing[:65], LKey: s.register(e, backing[:64], fabric.AccessLocalWrite).LKey()}
		}},
		{"memory that begins outside the region", openRead, func(e *Endpoint) fabric.SGE {
			return fabric.SGE{Buf: backing[:64], LKey: s.register(e, backing[1:64], fabric.AccessLocalWrite).LKey()}
		}},
		{"a region of another connection", openRead, func(*Endpoint) fabric.SGE { return SGE(foreign, 0, 64) }},
		{"a region that is closed", openRead, func(e *Endpoint) fabric.SGE {
			mr := s.register(e, backing, fabric.AccessLocalWrite)
			mr.Close()
			return SGE(mr, 0, 64)
		}},
		{"writing to a region that is only for reading", fabric.AccessRemoteWrite, func(e *Endpoint) fabric.SGE {
			return SGE(s.register(e, backing, 0), 0, 64)
		}},
	} {
		e := s.server(l)
		mw := e.Window()
		if _, err := mw.Prepare(c.mem(e), c.access); err == nil {
			s.wantBindRefused("a bind to "+c.what, e, mw)
		}
	}

	e := s.server(l)
	mw := third.Window()
	if _, err := mw.Prepare(SGE(foreign, 0, 64), openRead); err != nil {
		s.Fatalf("prepare a window: %v", err)
	}
	s.wantBindRefused("a bind of another connection's window", e, mw)
}

// localInvOfNothing: an invalidation of a handle that is not bound fails.
func localInvOfNothing(s *scene) {
	l := s.listen(attr)
	_, server := s.windows(l)
	local := server.Region(64, fabric.AccessLocalWrite)
	seg := s.bind(server, server.Window(), SGE(local, 0, 64), openRead)
	s.invalidate(server, seg.Handle)
	for _, key := range []uint32{seg.Handle, 0xfffffff7} {
		what := fmt.Sprintf("an invalidation of %#x, which is not bound", key)
		e := server
		if key != seg.Handle {
			e = s.server(l)
		}
		if e.TryPost(localInvWR(1, key)) != nil {
			continue
		}
		wc, err := e.NextSend()
		if err != nil || wc.Status == fabric.WCSuccess || wc.Status == fabric.WCFlushErr {
			s.Errorf("%s: completed with %v (%v), want a failure", what, wc.Status, err)
			continue
		}
		e.WantEnd("after " + what)
	}
}
