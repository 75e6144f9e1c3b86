//go:build linux

package iwarp

import (
	"bytes"
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// fuzzTarget returns a target on an established stream, with the same STags in every run, and
// the peer's descriptor.
func fuzzTarget(t testing.TB, p *Provider, crc bool) (*target, int) {
	c, fd := bareStream(t, p, fabric.ConnAttr{InboundReads: 2}, crc)
	c.stags.seed()
	g := &target{c: c, peer: &rawPeer{t: t, crc: crc}}
	g.prepare(t)
	post(t, c, fabric.SendWR{ID: 1, Op: fabric.OpRead, Flags: fabric.Signaled, RKey: 3, SGL: []fabric.SGE{{Buf: g.slab[9*4096:][:20]}}})
	return g, fd
}

// FuzzStream sends arbitrary bytes to an established connection. There must be no panic, no
// change of memory that the peer may not write, exactly one completion of each request, a
// typed end, and nothing left open.
//
// Seeds are short, since the fuzzer minimizes each new input in quadratic time.
// FuzzConversation has long payloads.
func FuzzStream(f *testing.F) {
	seed := func(crc bool, fpdus ...func(g *target) []byte) {
		g, fd := fuzzTarget(f, New(Config{}), crc)
		var b []byte
		for _, fp := range fpdus {
			b = append(b, fp(g)...)
		}
		g.c.Close()
		syscall.Close(fd)
		f.Add(b, crc, uint16(len(b)*2/3))
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
		return g.peer.fpdu(tagged(rdmap.OpReadResponse, true, sinkSTag(1), sinkTO(1)), garbage[:20])
	}
	term := func(g *target) []byte {
		m := quoteRead(segment{payload: make([]byte, rdmap.ReadRequestLen)})
		return g.peer.fpdu(rdmap.AppendTerminate(untagged(rdmap.OpTerminate, true, 2, 1, 0), &m))
	}
	for _, crc := range []bool{false, true} {
		seed(crc, send(1, 10), write(true, 8, 10), send(2, 64))
		seed(crc, write(false, 0, 16), write(true, 16, 16), read, send(1, 0))
		seed(crc, inv, send(2, 1))
		seed(crc, response, term)
		seed(crc, write(true, 4080, 20))
	}
	p := New(Config{})
	f.Fuzz(func(t *testing.T, b []byte, crc bool, cut uint16) {
		if len(b) > 32<<10 {
			return
		}
		g, fd := fuzzTarget(t, p, crc)
		got := map[uint64]int{}
		// take polls until there is nothing.
		take := func() error {
			var wc [8]fabric.WC
			for {
				n, err := g.c.Poll(wc[:])
				for _, w := range wc[:n] {
					got[w.ID]++
				}
				if n == 0 || err != nil {
					return err
				}
			}
		}
		// In two pieces, to test partial FPDUs, and then the end.
		k := min(int(cut), len(b))
		syscall.Write(fd, b[:k])
		take()
		syscall.Write(fd, b[k:])
		syscall.Shutdown(fd, syscall.SHUT_WR)
		var end error
		for end == nil {
			if end = take(); end == nil {
				g.c.Wait() // for data after rxBurst
			}
		}
		var ce *fabric.ConnError
		if !errors.As(end, &ce) || !errors.Is(end, net.ErrClosed) {
			t.Fatalf("ended with %T: %v", end, end)
		}
		if len(got) != 3 || got[1] != 1 || got[100] != 1 || got[101] != 1 {
			t.Fatalf("completions %v", got)
		}
		for page := range 10 {
			m := g.slab[page*4096:][:4096]
			switch page {
			case 1, 7: // the peer's
				continue
			case 9:
				m = m[128:]
			}
			if !bytes.Equal(m, guards[:len(m)]) {
				t.Fatalf("page %d has been written", page)
			}
		}
		g.c.Close()
		syscall.Close(fd)
		if l := p.OpenObjects(); l != (OpenObjects{}) {
			t.Fatalf("left open: %+v", l)
		}
	})
}

var guards = bytes.Repeat([]byte{guard}, 4096)
