package transport

import (
	"testing"
	"testing/synctest"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// TestGrantFollowsLoad checks that a client is granted fewer credits while its calls wait for memory.
func TestGrantFollowsLoad(t *testing.T) {
	const size = 60_000
	// loaded sends two calls for each that there is memory for, with credits to grant, and
	// returns the grants before the load, under it, and in the last reply of the load.
	loaded := func(t *testing.T, credits, fit int) (before, under, last uint32) {
		cfg := &Settings{Credits: credits, MaxMessage: 1 << 16, MaxMemory: fit << 16}
		testServer(t, cfg, func(p *peer, s *Server, svc *testService) {
			data := make([]byte, size)
			p.send(callBytes(rpcrdma.Header{XID: 1}, procEcho, opaque("x")...), 0)
			h, _ := p.message("a reply without load")
			before = h.Credit
			for xid := range uint32(2 * fit) {
				h := rpcrdma.Header{XID: 10 + xid, Credit: 100, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(10+xid, data)}}}
				p.send(callBytes(h, procHold, xdr.AppendUint32(nil, size)...), 0)
				synctest.Wait()
			}
			if n := int(svc.running.Load()); n != fit {
				t.Fatalf("%d calls run, memory is for %d", n, fit)
			}
			for i := range 2 * fit {
				svc.gate <- struct{}{}
				h, _ := p.message("a reply under load")
				if h.Credit < 1 {
					t.Errorf("reply %d grants nothing", i)
				}
				if i == 0 {
					under = h.Credit
				}
				last = h.Credit
			}
		})
		return before, under, last
	}

	t.Run("V1-3.3-5 the grant falls under load, and rises again with its end", func(t *testing.T) {
		for _, credits := range []int{initialGrant, 128} {
			before, under, last := loaded(t, credits, 2)
			if before < initialGrant || under > before || under >= last || last < before {
				t.Errorf("%d credits: the grant is %d, %d under load, and then %d", credits, before, under, last)
			}
		}
	})

	t.Run("V1-3.3-4 V1-3.3-8 however small, the grant does not fall to zero", func(t *testing.T) {
		for credits := 1; credits <= plan.LoadedShare; credits++ {
			before, under, last := loaded(t, credits, 1)
			if before != uint32(credits) || under != 1 || last != before {
				t.Errorf("%d credits: the grant is %d, %d under load, and then %d", credits, before, under, last)
			}
		}
	})
}
