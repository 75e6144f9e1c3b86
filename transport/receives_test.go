package transport

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// TestReceivesFollowCalls checks that a client posts receives for the replies to its calls, not for its whole grant.
func TestReceivesFollowCalls(t *testing.T) {
	t.Run("V1-3.3-6 one call at a time takes few receives, many take as many, and no reply is needed for that", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			for range 20 {
				p.opens(cl, 64)
			}
			if n := p.posted(); n > firstReplies+1+leastBatch {
				t.Errorf("%d receives are posted for one call at a time", n)
			}
			var calls []<-chan error
			for range 80 {
				calls = append(calls, async(cl, bg, testCall()))
			}
			var xids []uint32
			for len(xids) < 64 {
				h, _ := p.message("a call that is granted")
				xids = append(xids, h.XID)
			}
			p.quiet("64 are granted")
			if n := p.posted(); n < 64 {
				t.Errorf("%d receives are posted for 64 replies", n)
			}
			for i, xid := range xids {
				p.reply(rpcrdma.Header{XID: xid, Credit: 64})
				if i < 16 {
					h, _ := p.message("a call that has waited")
					xids = append(xids, h.XID)
				}
			}
			for _, xid := range xids[64:] {
				p.reply(rpcrdma.Header{XID: xid, Credit: 64})
			}
			for _, done := range calls {
				if err := outcome(t, done); err != nil {
					t.Error(err)
				}
			}
		})
	})

	t.Run("V1-3.3-6 without memory for receives, as many calls as there are receives for", func(t *testing.T) {
		p := newPeer(t)
		clientOver(t, p, nil, func(c peerConn) fabric.Conn { return fewReceives{c, firstReplies + leastBatch} }, func(_ *peers, cl *Client) {
			p.opens(cl, 64)
			var calls []<-chan error
			for range 5 {
				calls = append(calls, async(cl, bg, testCall()))
			}
			for n := 5; n > 0; {
				var xids []uint32
				for range min(n, firstReplies) {
					h, _ := p.message("a call")
					xids = append(xids, h.XID)
				}
				p.quiet("there are no receives")
				for _, xid := range xids {
					p.reply(rpcrdma.Header{XID: xid, Credit: 64})
				}
				n -= len(xids)
				settle()
			}
			for _, done := range calls {
				if err := outcome(t, done); err != nil {
					t.Error(err)
				}
			}
		})
	})
}

// endsMeanwhile is a connection that ends while many receives are posted.
type endsMeanwhile struct{ peerConn }

func (c endsMeanwhile) PostRecv(wrs []fabric.RecvWR) error {
	if len(wrs) < postBatch {
		return c.peerConn.PostRecv(wrs)
	}
	c.hangUp()
	time.Sleep(time.Second) // in fake time: the connection is over
	return nil
}

// TestEndWhileReceivesGrow checks that the memory of a connection that ends is released, including memory that is being
// allocated.
func TestEndWhileReceivesGrow(t *testing.T) {
	p := newPeer(t)
	clientOver(t, p, nil, func(c peerConn) fabric.Conn { return endsMeanwhile{c} }, func(_ *peers, cl *Client) {
		p.opens(cl, 128)
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		var calls []<-chan error
		for range 100 {
			calls = append(calls, async(cl, ctx, testCall()))
		}
		time.Sleep(2 * time.Minute)
		for _, done := range calls {
			if err := outcome(t, done); err == nil {
				t.Error("a call has succeeded")
			}
		}
		if !p.over() {
			t.Error("the connection lives: receives were posted in short lists")
		}
	})
}

// TestGrantGrows checks that a client that uses all of its grant is granted 64 and then 128 credits within as many
// calls as plan.Load.Raise returns. A client that makes one call at a time keeps its grant.
func TestGrantGrows(t *testing.T) {
	testServer(t, &Settings{Credits: 128}, func(p *peer, s *Server, svc *testService) {
		xid, grant := uint32(0), 1
		reached := map[int]int{}
		one := func() {
			xid++
			p.send(callBytes(rpcrdma.Header{XID: xid, Credit: 128}, procEcho, opaque("x")...), 0)
			h, _ := p.message("a reply")
			grant = int(h.Credit)
		}
		for range 50 {
			one()
		}
		if n := p.posted(); grant != initialGrant || n > initialGrant+leastBatch {
			t.Errorf("one call at a time is granted %d, with %d receives", grant, n)
		}
		calls := 0
		for grant < 128 && calls < 1000 {
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
			calls += n
			reached[grant] = calls
		}
		if a, b := reached[64], reached[128]; a == 0 || a > 52 || b == 0 || b > 116 {
			t.Errorf("64 are granted after %d calls, 128 after %d", a, b)
		}
	})
}
