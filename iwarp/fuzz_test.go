//go:build linux

package iwarp

import (
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// fuzzTarget is a target on an established stream whose STags are the same in
// every run.
func fuzzTarget(t testing.TB, p *Provider, crc bool) *target {
	c, peer := streamPair(t, p, fabric.ConnAttr{InboundReads: 2}, crc)
	c.stags.tokens = seededTokens([32]byte{})
	g := &target{c: c, peer: peer}
	g.prepare(t)
	post(t, c, fabric.SendWR{ID: 1, Op: fabric.OpRead, Flags: fabric.Signaled, RKey: 3, SGL: []fabric.SGE{{Buf: g.slab[9*4096:][:100]}}})
	return g
}

// FuzzStream feeds an established connection with what a peer may think of.
// Whatever that is: no panic, no byte where the peer may not write, every
// request completes once, the end is typed, and nothing is left open.
func FuzzStream(f *testing.F) {
	seed := func(crc bool, fpdus ...func(g *target) []byte) {
		p := New(Config{})
		g := fuzzTarget(f, p, crc)
		var b []byte
		for _, fp := range fpdus {
			b = append(b, fp(g)...)
		}
		g.c.Close()
		g.peer.c.Close()
		f.Add(b, crc, uint16(1000))
	}
	send := func(msn uint32, n int) func(g *target) []byte {
		return func(g *target) []byte {
			return g.peer.fpdu(untagged(rdmap.OpSend, true, 0, msn, 0), garbage[:n])
		}
	}
	write := func(last bool, off uint64, n int) func(g *target) []byte {
		return func(g *target) []byte {
			return g.peer.fpdu(tagged(rdmap.OpWrite, last, g.write.Handle, g.write.Offset+off), garbage[:n])
		}
	}
	read := func(g *target) []byte {
		return g.peer.fpdu(readRequest(1, rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 4096, SrcSTag: g.read.Handle, SrcTO: g.read.Offset}))
	}
	inv := func(g *target) []byte {
		return g.peer.fpdu(ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpSendSEInv), ULP32: g.window.Handle, MSN: 1}))
	}
	response := func(g *target) []byte {
		return g.peer.fpdu(tagged(rdmap.OpReadResponse, true, sinkSTag(1), sinkTO(1)), garbage[:100])
	}
	term := func(g *target) []byte {
		m := quoteRead(segment{payload: make([]byte, rdmap.ReadRequestLen)})
		return g.peer.fpdu(rdmap.AppendTerminate(untagged(rdmap.OpTerminate, true, 2, 1, 0), &m))
	}
	for _, crc := range []bool{false, true} {
		seed(crc, send(1, 10), write(true, 8, 100), send(2, 64))
		seed(crc, write(false, 0, 2048), write(true, 2048, 2048), read, send(1, 0))
		seed(crc, inv, send(2, 1))
		seed(crc, response, term)
		seed(crc, write(true, 4000, 200))
	}
	p := New(Config{})
	f.Fuzz(func(t *testing.T, b []byte, crc bool, cut uint16) {
		if len(b) > 32<<10 {
			return
		}
		g := fuzzTarget(t, p, crc)
		// In two pieces, so that FPDUs are seen to grow.
		k := min(int(cut), len(b))
		g.peer.c.Write(b[:k])
		var wc [8]fabric.WC
		n, _ := g.c.Poll(wc[:])
		g.peer.c.Write(b[k:])
		g.peer.c.(*net.UnixConn).CloseWrite()
		wcs, _ := drive(t, g.c)
		wcs = append(wc[:n:n], wcs...)
		got := map[uint64]int{}
		for _, w := range wcs {
			got[w.ID]++
		}
		if got[1] != 1 || got[100] != 1 || got[101] != 1 {
			t.Fatalf("completions %+v", wcs)
		}
		for i, b := range g.slab {
			if page := i / 4096; b != guard && page != 1 && page != 7 && !(page == 9 && i%4096 < 128) {
				t.Fatalf("byte %d of page %d has been written", i%4096, page)
			}
		}
		g.c.Close()
		g.peer.c.Close()
		if l := p.Live(); l != (Live{}) {
			t.Fatalf("left open: %+v", l)
		}
	})
}
