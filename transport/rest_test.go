package transport

import (
	"testing"
	"testing/synctest"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// TestReceivesRest checks that a formerly busy connection that now has one call at a time is granted less, and releases
// used receives and the memory of calls.
func TestReceivesRest(t *testing.T) {
	t.Run("V1-3.3-2 V1-3.3-3 a server's grant falls, and its receives only after the client has followed", func(t *testing.T) {
		p := newPeer(t)
		p.caps.LocalDMA = false
		testServerOf(t, p, &Settings{Credits: 128}, func(p *peer, s *Server, svc *testService) {
			xid, grant := uint32(0), 1
			burst := func() {
				n := grant
				for range n {
					xid++
					p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 128}, procHold), 0)
					synctest.Wait()
				}
				for range n {
					svc.gate <- struct{}{}
					h, _ := p.message("a reply")
					grant = int(h.Credit)
				}
			}
			one := func() {
				xid++
				p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 128}, procEcho, opaque("x")...), 0)
				h, _ := p.message("a reply")
				grant = int(h.Credit)
			}
			for grant < 128 {
				burst()
			}
			c := s.only()
			busy := c.arena.Stats().Bytes
			for range 12 * restCalls {
				before := grant
				one()
				if grant > before {
					t.Fatalf("the grant rises from %d to %d", before, grant)
				}
				if n := p.posted(); n < grant {
					t.Fatalf("%d receives for a grant of %d", n, grant)
				}
				if n := p.posted(); grant < before && n < before { // which the client has used until now
					t.Fatalf("the grant falls from %d to %d with %d receives", before, grant, n)
				}
			}
			if grant != initialGrant {
				t.Errorf("the grant has fallen to %d", grant)
			}
			for range 2 * 128 {
				one()
			}
			if n := p.posted(); n > initialGrant+leastBatch {
				t.Errorf("%d receives are posted", n)
			}
			if n := c.arena.Stats().Bytes; n > busy/3 {
				t.Errorf("%d bytes are mapped, %d were", n, busy)
			}
			for grant < 128 { // as before
				burst()
			}
			if n := p.posted(); n < 128 {
				t.Errorf("%d receives for 128 calls", n)
			}
		})
	})

	t.Run("V1-3.3-2 a client in the middle of it goes on", func(t *testing.T) {
		testServer(t, &Settings{Credits: 128}, func(p *peer, s *Server, svc *testService) {
			xid, grant := uint32(0), 1
			for round := range 3000 { // a few calls at a time, and now and then all that is granted
				n := min(grant, 3)
				if round < 10 || round%500 == 0 {
					n = grant
				}
				for range n {
					xid++
					p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 128}, procHold), 0)
				}
				for range n {
					svc.gate <- struct{}{}
					h, _ := p.message("a reply")
					grant = int(h.Credit)
				}
				if n := p.posted(); n < grant {
					t.Fatalf("%d receives for a grant of %d", n, grant)
				}
			}
		})
	})

	t.Run("a client's", func(t *testing.T) {
		p := newPeer(t)
		p.caps.LocalDMA = false
		clientOf(t, p, nil, func(p *peer, cl *Client) {
			p.opens(cl, 64)
			var calls []<-chan error
			for range 64 {
				calls = append(calls, async(cl, bg, testCall()))
			}
			var xids []uint32
			for range 64 {
				h, _ := p.message("a call")
				xids = append(xids, h.XID)
			}
			for _, xid := range xids {
				p.reply(rpcrdma.Header{XID: xid, Credit: 64})
			}
			for _, done := range calls {
				if err := outcome(t, done); err != nil {
					t.Fatal(err)
				}
			}
			busy := cl.conn().arena.Stats().Bytes
			if n := p.posted(); n < 64 {
				t.Errorf("%d receives are posted for 64 calls", n)
			}
			for range 8 * restCalls {
				p.opens(cl, 64)
			}
			if n := p.posted(); n > firstReplies+1+leastBatch {
				t.Errorf("%d receives are posted for one call at a time", n)
			}
			if n := cl.conn().arena.Stats().Bytes; n > busy/3 {
				t.Errorf("%d bytes are mapped, %d were", n, busy)
			}
			if n := cl.Info().Credits; n != 64 {
				t.Errorf("%d credits", n)
			}
		})
	})
}
