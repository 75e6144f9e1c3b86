package transport

import (
	"testing"
	"testing/synctest"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// TestGrantFollowsLoad: a client whose calls wait for memory is granted less, until they
// do not wait any more.
func TestGrantFollowsLoad(t *testing.T) {
	t.Run("V1-3.3-5 V1-3.3-4 V1-3.3-8 the grant falls under load, never to zero, and rises again", func(t *testing.T) {
		const size = 60_000
		cfg := &Config{MaxMessage: 1 << 16, MaxMemory: 1 << 17} // for two calls
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			data := make([]byte, size)
			send := func(xid, proc uint32) {
				h := rpcrdma.Header{XID: xid, Credit: 100, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(xid, data)}}}
				p.send(callBytes(h, proc, xdr.AppendUint32(nil, size)...), 0)
				synctest.Wait()
			}
			p.send(callBytes(rpcrdma.Header{XID: 1}, procEcho, opaque("x")...), 0)
			h, _ := p.message("a reply without load")
			before := h.Credit
			for xid := range uint32(2) {
				send(10+xid, procHold)
			}
			for xid := range uint32(3) { // there is no memory for these
				send(20+xid, procHold)
			}
			if n := svc.running.Load(); n != 2 {
				t.Fatalf("%d calls run", n)
			}
			svc.gate <- struct{}{}
			h, _ = p.message("a reply under load")
			if h.Credit < 1 || h.Credit >= before {
				t.Errorf("under load the grant is %d, it was %d", h.Credit, before)
			}
			close(svc.gate)
			for range 4 {
				h, _ = p.message("a reply")
				if h.Credit < 1 {
					t.Error("a grant of zero")
				}
			}
			p.send(callBytes(rpcrdma.Header{XID: 2}, procEcho, opaque("x")...), 0)
			if h, _ = p.message("a reply after the load"); h.Credit < before {
				t.Errorf("after the load the grant is %d, it was %d", h.Credit, before)
			}
		})
	})
}
