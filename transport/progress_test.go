package transport

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// TestStandAside checks that the keeper of a server's connection stands aside while there are only backward calls.
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

// TestTurns checks that the keeper stands aside while the ends take turns.
func TestTurns(t *testing.T) {
	const procTurn, procOther = 2, 3
	var cn *Conn
	var w rpc.Waiter
	var posted chan bool // gets a value after each message of the goroutine that waits, if handlers are to wait for that
	prog := rpc.Program{Number: testProg, Low: 1, High: 1, Inline: rpc.Every, Idempotent: rpc.Every,
		Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			switch req.Proc {
			case procReady:
				cn = req.Conn().(*Conn)
				cn.AllowBackward(0)
				w = cn.NewWaiter()
			case procTurn:
				res.Linger()
				w.Wake(true)
				if posted != nil {
					<-posted
				}
			}
		})}
	// script runs with a goroutine that waits, answers unless it is mute, and is busy for a while.
	script := func(t *testing.T, mute bool, busy time.Duration, f func(p *peer, turn func(), aside func() bool)) {
		serverOf(t, newPeer(t), nil, []rpc.Program{prog}, func(p *peer, _ *Server) {
			xid, call := uint32(1), uint32(0)
			p.send(callBytes(rpcrdma.Header{XID: xid}, procReady), 0)
			p.replies(xid, "the reply to a client that is ready")
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for w.Wait(bg) == nil {
					if !mute {
						cn.Start(testCall(), func(error) {})
					}
					if posted != nil {
						posted <- true
					}
					time.Sleep(busy)
				}
			}()
			f(p, func() {
				if call != 0 {
					p.reply(rpcrdma.Header{XID: call})
				}
				xid++
				p.send(callBytes(rpcrdma.Header{XID: xid}, procTurn), 0)
				messages := 1
				if !mute {
					messages++
				}
				for range messages {
					h, payload := p.message("the messages of a turn")
					if _, dir, _ := oncrpc.Peek(payload); dir == oncrpc.Call {
						call = h.XID
					}
				}
				time.Sleep(2 * busy) // until the other goroutine waits again, and not at the instant when it does
			}, func() bool {
				synctest.Wait()
				defer cn.rdma().state.Unlock()
				return cn.rdma().state.Lock().aside
			})
			p.hangUp()
			<-ended
		})
	}
	t.Run("a call outside the turns brings the keeper back", func(t *testing.T) {
		script(t, false, 0, func(p *peer, turn func(), aside func() bool) {
			for n := range 3 * manyBackward {
				if turn(); aside() != (n >= manyBackward) {
					t.Fatalf("after %d turns the keeper stands aside: %t", n+1, aside())
				}
			}
			p.send(callBytes(rpcrdma.Header{XID: 1000}, procOther), 0)
			p.replies(1000, "the reply to another call")
			if aside() {
				t.Error("the keeper stands aside")
			}
		})
	})
	t.Run("a goroutine that is busy makes others wait for a moment at most", func(t *testing.T) {
		script(t, false, time.Millisecond, func(p *peer, turn func(), aside func() bool) {
			stood := 0
			for range 3 * manyBackward {
				if turn(); aside() {
					stood++
				}
			}
			if stood > 0 {
				t.Errorf("the keeper stood aside %d times, longer than a tick", stood)
			}
		})
	})
	t.Run("a goroutine that is busy is quicker than the reply", func(t *testing.T) {
		posted = make(chan bool, 1)
		defer func() { posted = nil }()
		script(t, false, time.Millisecond, func(p *peer, turn func(), _ func() bool) {
			for range manyBackward + 1 { // after the last one the keeper stands aside
				turn()
			}
		})
	})
	t.Run("messages without answers are no turns", func(t *testing.T) {
		script(t, true, 0, func(p *peer, turn func(), aside func() bool) {
			for range 3 * manyBackward {
				if turn(); aside() {
					t.Fatal("the keeper stands aside")
				}
			}
		})
	})
}

// TestSingles checks that the keeper executes calls that arrive one at a time.
func TestSingles(t *testing.T) {
	const proc, procSlow, procExit, procBack = 2, 3, 4, 5
	var cn *Conn
	var away bool // while the latest call was executed
	var gate chan struct{}
	prog := rpc.Program{Number: testProg, Low: 1, High: 1, Idempotent: rpc.Every,
		Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			cn = req.Conn().(*Conn)
			away = cn.rdma().state.Lock().away
			cn.rdma().state.Unlock()
			switch req.Proc {
			case procSlow:
				<-gate
			case procExit:
				runtime.Goexit()
			case procBack:
				cn.AllowBackward(0)
				if err := cn.Call(ctx, testCall()); err != nil {
					t.Error(err)
				}
			}
		})}
	script := func(t *testing.T, f func(t *testing.T, p *peer, s *Server, call func(proc uint32) uint32)) {
		serverOf(t, newPeer(t), nil, []rpc.Program{prog}, func(p *peer, s *Server) {
			gate = make(chan struct{})
			xid := uint32(0)
			call := func(proc uint32) uint32 {
				xid++
				p.send(callBytes(rpcrdma.Header{XID: xid}, proc), 0)
				return xid
			}
			for n := range 2 * manySingles {
				p.replies(call(proc), "a reply")
				if away != (n >= manySingles-1) {
					t.Fatalf("the keeper executes call %d: %t", n+1, away)
				}
			}
			f(t, p, s, call)
		})
	}
	// soon lets the time pass that it takes until another goroutine is the keeper.
	soon := func() {
		time.Sleep(2 * quietTime)
		synctest.Wait()
	}
	for _, tt := range []struct {
		name string
		f    func(t *testing.T, p *peer, s *Server, call func(proc uint32) uint32)
	}{
		{"while one takes long, others are answered", func(t *testing.T, p *peer, s *Server, call func(proc uint32) uint32) {
			slow := call(procSlow)
			synctest.Wait()
			other := call(proc)
			soon()
			p.replies(other, "the reply to the second call")
			close(gate)
			p.replies(slow, "the reply to the slow call")
			for range manySingles {
				p.replies(call(proc), "a reply")
				if away {
					t.Fatal("the keeper executes calls soon after one took long")
				}
			}
		}},
		{"a handler that ends the goroutine", func(t *testing.T, p *peer, s *Server, call func(proc uint32) uint32) {
			xid := call(procExit)
			if h, _ := p.message("a reply"); h.XID != xid {
				t.Errorf("a message with XID %d", h.XID)
			}
			call(proc)
			soon()
			p.message("a reply")
		}},
		{"a handler that calls its caller", func(t *testing.T, p *peer, s *Server, call func(proc uint32) uint32) {
			xid := call(procBack)
			soon() // what a leader is asked to do for the first such call
			h, _ := p.message("a backward call")
			p.reply(rpcrdma.Header{XID: h.XID})
			p.replies(xid, "the reply")
			p.replies(call(proc), "the next reply")
		}},
		{"the peer hangs up meanwhile", func(t *testing.T, p *peer, s *Server, call func(proc uint32) uint32) {
			call(procSlow)
			synctest.Wait()
			p.hangUp()
			soon()
			if err := cn.Err(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the connection's end is %v", err)
			}
			close(gate)
		}},
		{"Shutdown waits for it", func(t *testing.T, p *peer, s *Server, call func(proc uint32) uint32) {
			xid := call(procSlow)
			synctest.Wait()
			done := make(chan error, 1)
			go func() { done <- s.Shutdown(bg) }()
			soon()
			select {
			case err := <-done:
				t.Errorf("Shutdown has returned: %v", err)
			default:
			}
			close(gate)
			p.replies(xid, "the reply")
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { script(t, tt.f) })
	}
}

// TestTokenPassedOn checks a follower whose context ends just as it gets the token. The follower must pass the token
// on, so that the next one need not wait for the tick.
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

// TestLastPass checks a caller that finds the queue full while the last pass over completions makes room. The caller
// must try again, because nothing else wakes it.
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
