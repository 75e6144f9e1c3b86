package transport

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// The keeper of a server's connection stands aside while calls go backward only.
func TestStandAside(t *testing.T) {
	// aside makes as many backward calls as it takes.
	aside := func(t *testing.T, p *peer, cn *Conn) {
		t.Helper()
		cn.AllowBackward(0)
		for range manyBackward {
			done := backward(cn, bg, testCall())
			h, _ := p.message("a backward call")
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 4})
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
		}
		defer cn.rdma().state.Unlock()
		if !cn.rdma().state.Lock().aside {
			t.Fatalf("after %d backward calls the keeper leads", manyBackward)
		}
	}
	leads := func(t *testing.T, cn *Conn) {
		t.Helper()
		synctest.Wait()
		defer cn.rdma().state.Unlock()
		if st := cn.rdma().state.Lock(); st.aside || !st.taken() {
			t.Error("the keeper does not lead")
		}
	}

	t.Run("a forward call waits for a moment at most", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			aside(t, p, cn)
			start := time.Now()
			p.send(callBytes(rpcrdma.Header{XID: 9}, 0), 0)
			for time.Since(start) < 2*quietTime && len(p.sent()) == 0 {
				time.Sleep(quietTime / 10)
				synctest.Wait()
			}
			p.replies(9, "the reply to a forward call")
			leads(t, cn)
		})
	})

	t.Run("a caller that meets a forward call answers it, and the keeper is back", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			aside(t, p, cn)
			done := backward(cn, bg, testCall())
			h, _ := p.message("a backward call")
			p.send(callBytes(rpcrdma.Header{XID: 9}, 0), 0)
			p.replies(9, "the reply to a forward call")
			leads(t, cn)
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 4})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("nobody calls and the peer hangs up", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			aside(t, p, cn)
			p.hangUp()
			time.Sleep(3 * quietTime)
			synctest.Wait()
			if err := cn.Err(); !errors.Is(err, net.ErrClosed) || s.Stats().OpenConns != 0 {
				t.Errorf("the connection's end is %v, %d connections are open", err, s.Stats().OpenConns)
			}
		})
	})

	t.Run("a call is under way and the peer hangs up", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			aside(t, p, cn)
			done := backward(cn, bg, testCall())
			p.message("a backward call")
			p.hangUp()
			if err := outcome(t, done); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the call got %v", err)
			}
			if n := s.Stats().OpenConns; n != 0 {
				t.Errorf("%d connections are open", n)
			}
		})
	})

	t.Run("Shutdown", func(t *testing.T) {
		for _, pending := range []bool{false, true} {
			caller(t, nil, func(p *peer, s *Server, cn *Conn) {
				aside(t, p, cn)
				if pending {
					defer func(done <-chan error) {
						if err := outcome(t, done); !errors.Is(err, net.ErrClosed) {
							t.Errorf("the call got %v", err)
						}
					}(backward(cn, bg, testCall()))
					p.message("a backward call")
				}
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				if err := s.Shutdown(ctx); err != nil {
					t.Errorf("pending %v: %v", pending, err)
				}
			})
		}
	})

	t.Run("Close", func(t *testing.T) {
		caller(t, nil, func(p *peer, s *Server, cn *Conn) {
			aside(t, p, cn)
			cn.Close()
			<-cn.Done()
			if err := cn.Err(); !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	})
}

// TestTokenPassedOn: if the context of a follower ends at the moment when it gets the token, the
// follower hands the token on, and the next does not have to wait for the tick.
func TestTokenPassedOn(t *testing.T) {
	client(t, nil, func(p *peer, cl *Client) {
		p.opens(cl, 4)
		c := cl.conn()
		l := c.take()
		if l == nil {
			t.Fatal("the connection has ended")
		}
		ctx, cancel := context.WithCancel(bg)
		first := async(cl, ctx, testCall())
		p.message("the first follower's call")
		second := async(cl, bg, testCall())
		h, _ := p.message("the second follower's call")

		next := l.giveBack(c.state.Lock()) // the first follower is chosen, and not woken yet
		c.state.Unlock()
		cancel()
		synctest.Wait()
		next.Wake(false)
		if err := outcome(t, first); !errors.Is(err, context.Canceled) {
			t.Errorf("the first call returned %v", err)
		}
		p.reply(rpcrdma.Header{XID: h.XID, Credit: 4})
		if err := outcome(t, second); err != nil { // no time has passed
			t.Error(err)
		}
	})
}

// sent returns the messages that have been sent and not been looked at.
func (p *peer) sent() []sent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sends
}

// fullOnce is a connection with a send queue that is full once: its Post blocks until refuse lets it
// fail.
type fullOnce struct {
	fabric.Conn
	posting chan struct{} // nil: not yet, or not any more
	refuse  chan struct{}
}

func (c *fullOnce) Post(wrs []fabric.SendWR) error {
	if p := c.posting; p != nil {
		c.posting = nil
		close(p)
		<-c.refuse
		return fabric.ErrQueueFull
	}
	return c.Conn.Post(wrs)
}

// TestLastPass: a caller that finds the queue full, while the last pass over completions makes room,
// tries again: nothing else would.
func TestLastPass(t *testing.T) {
	conn := &fullOnce{refuse: make(chan struct{})}
	wrap := func(p peerConn) fabric.Conn { conn.Conn = p; return conn }
	p := newPeer(t)
	clientOver(t, p, nil, wrap, func(_ *peers, cl *Client) {
		p.opens(cl, 4)
		first := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
		h, _ := p.message("the first call")
		posting := make(chan struct{})
		conn.posting, conn.refuse = posting, make(chan struct{})
		second := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
		<-posting
		p.reply(rpcrdma.Header{XID: h.XID, Credit: 4})
		if err := outcome(t, first); err != nil {
			t.Fatal(err)
		}
		close(conn.refuse)
		h, _ = p.message("the second call")
		p.reply(rpcrdma.Header{XID: h.XID, Credit: 4})
		if err := outcome(t, second); err != nil {
			t.Fatal(err)
		}
	})
}
