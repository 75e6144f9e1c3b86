package fabrictest

import (
	"bytes"
	"errors"
	"runtime"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// foreign: memory that is known only by its address works like other memory. A request with memory outside the region
// fails.
func foreign(s *scene) {
	const n = 3 * 4096
	client, server := s.pair(stage{})
	mem := make([]byte, n+8) // the region is the first n bytes
	var pin runtime.Pinner
	pin.Pin(&mem[0])
	defer pin.Unpin()
	whole := fabric.Foreign{Addr: uint64(uintptr(unsafe.Pointer(&mem[0]))), Len: n}
	mr, err := client.Conn.RegForeign(whole, readable|writable)
	if errors.Is(err, fabric.ErrNotSupported) {
		s.lack("foreign memory", err)
	}
	if err != nil {
		s.Fatalf("register foreign memory: %v", err)
	}
	seg := mr.Segment()
	if mr.Bytes() != nil || seg.Handle == 0 || seg.Length != n {
		s.Fatalf("a region of foreign memory of %d bytes is called %+v, and its bytes are %d", n, seg, len(mr.Bytes()))
	}
	part := func(at, length uint64) fabric.SGE {
		f := whole.Slice(at, length)
		return fabric.SGE{LKey: mr.LKey(), Foreign: &f}
	}
	want := func(what string, got, want []byte) {
		s.Helper()
		if !bytes.Equal(got, want) {
			s.Fatalf("%s: %s, want %s", what, brief(got), brief(want))
		}
	}
	there := server.Region(n, readable|writable)
	Fill(there.Bytes(), 51)

	client.Receives(1, 8)
	server.Post("a Write to foreign memory", put(1, seg, 100, SGE(there, 0, 5000)), server.Message([]byte("written")))
	client.WantMessage("a Send after a Write", []byte("written"))
	want("written by the peer", mem[100:5100], there.Bytes()[:5000])
	server.Post("a Read from foreign memory", get(2, seg, 100, SGE(there, 6000, 5000)))
	server.WantSent("a Write to foreign memory", 1)
	server.NextSend() // the Send
	server.WantSent("a Read from foreign memory", 2)
	want("read by the peer", there.Bytes()[6000:11000], mem[100:5100])

	client.Post("a Write from and a Read to foreign memory", put(3, there.Segment(), 11000, part(100, 1000)), get(4, there.Segment(), 1, part(8000, 4000)))
	client.WantSent("a Write from foreign memory", 3)
	client.WantSent("a Read to foreign memory", 4)
	want("read into foreign memory", mem[8000:12000], there.Bytes()[1:4001])
	server.Receives(1, 64)
	client.Post("a Send from foreign memory", fabric.SendWR{ID: 5, Flags: fabric.Signaled, SGL: []fabric.SGE{part(8000, 64)}})
	client.WantSent("a Send from foreign memory", 5)
	server.WantMessage("a Send from foreign memory", there.Bytes()[1:65])
	want("written from foreign memory", there.Bytes()[11000:12000], mem[100:1100])

	if err := client.TryPostRecv(fabric.RecvWR{ID: 6, SGE: part(2000, 64)}); err != nil {
		s.Fatalf("a receive into foreign memory: %v", err)
	}
	server.Send("a message to foreign memory", Pattern(64, 52))
	if wc, _, err := client.NextRecv(); err != nil || wc.ID != 6 || wc.Len != 64 {
		s.Fatalf("a receive into foreign memory: %+v, %v", wc, err)
	}
	want("received into foreign memory", mem[2000:2064], Pattern(64, 52))
	foreignWindow(s, client, server, whole, mem)

	outside := fabric.Foreign{Addr: whole.Addr + n - 8, Len: 16}
	wr := fabric.SendWR{ID: 7, Flags: fabric.Signaled, SGL: []fabric.SGE{{LKey: mr.LKey(), Foreign: &outside}}}
	if client.TryPost(wr) == nil {
		s.wantRefused("a Send of what lies outside of the region", client, wr, fabric.WCLocProtErr, fabric.WCLocQPOpErr)
	}
	if err := mr.Close(); err != nil {
		s.Errorf("close: %v", err)
	}
}

// foreignWindow: a window opens a part of a region of foreign memory.
func foreignWindow(s *scene, client, server *Endpoint, whole fabric.Foreign, mem []byte) {
	if !client.Conn.Capabilities().MemoryWindows {
		return
	}
	s.Helper()
	// Use a region without remote rights, which only the window exposes.
	mr, err := client.Conn.RegForeign(whole, fabric.AccessLocalWrite)
	if err != nil {
		s.Fatalf("register foreign memory for a window: %v", err)
	}
	part := func(at, length uint64) fabric.SGE {
		f := whole.Slice(at, length)
		return fabric.SGE{LKey: mr.LKey(), Foreign: &f}
	}
	mw := client.Window()
	seg, err := mw.Prepare(part(4096, 100), openWrite)
	if err != nil {
		s.Fatalf("a window over foreign memory: %v", err)
	}
	client.Post("a bind", bindWR(8, mw))
	client.WantSent("a bind", 8)
	out := server.Region(100, 0)
	Fill(out.Bytes(), 53)
	server.Post("a Write through a window", put(9, seg, 0, SGE(out, 0, 100)))
	server.WantSent("a Write through a window", 9)
	s.exchange("after a Write through a window", client, server)
	if !bytes.Equal(mem[4096:4196], out.Bytes()) {
		s.Errorf("a window over foreign memory: %s, want %s", brief(mem[4096:4196]), brief(out.Bytes()))
	}
	if _, err := mw.Prepare(part(0, 100), openWrite); err == nil {
		s.Error("a window that is bound may be prepared")
	}
}
