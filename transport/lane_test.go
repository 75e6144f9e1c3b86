package transport

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// waits has a Pipeline wait for a call, on another goroutine.
func waits(p *Pipeline, ctx context.Context) <-chan waited {
	ch := make(chan waited, 1)
	go func() {
		call, err := p.Wait(ctx)
		ch <- waited{call, err}
	}()
	return ch
}

type waited struct {
	call *rpc.Call
	err  error
}

func TestPipeline(t *testing.T) {
	t.Run("V1-3.3-6 calls leave in order, as many as there are credits, with one doorbell", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 3)
			pl := NewPipeline(cl)
			defer pl.Close()
			for i := range uint32(5) {
				pl.Start(numbered(i))
			}
			p.quiet("nobody has waited yet")
			p.mu.Lock()
			before := p.posts
			p.mu.Unlock()
			w := waits(pl, bg)
			synctest.Wait()
			p.mu.Lock()
			if n := p.posts - before; n != 1 {
				t.Errorf("%d doorbells", n)
			}
			p.mu.Unlock()
			var xids []uint32
			for want := range uint32(3) {
				h, n := p.numberedCall("a call")
				if n != want {
					t.Errorf("call %d leaves, want %d", n, want)
				}
				xids = append(xids, h.XID)
			}
			p.quiet("there are three credits")
			p.reply(rpcrdma.Header{XID: xids[1], Credit: 3}) // out of order
			got := <-w
			if got.err != nil || word(got.call.Args, 0) != 1 {
				t.Fatalf("Wait returns %v, %v", got.call, got.err)
			}
			w = waits(pl, bg)
			_, n := p.numberedCall("a fourth call")
			if n != 3 {
				t.Errorf("call %d leaves", n)
			}
			p.reply(rpcrdma.Header{XID: xids[0], Credit: 3})
			if got := <-w; got.err != nil || word(got.call.Args, 0) != 0 {
				t.Errorf("Wait returns %v, %v", got.call, got.err)
			}
			if n := pl.Len(); n != 3 {
				t.Errorf("%d calls are left", n)
			}
		})
	})

	t.Run("BIDI-5.4-1 calls without a reply are sent again with their xids", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 2)
			pl := NewPipeline(cl)
			defer pl.Close()
			calls := []*rpc.Call{numbered(0), numbered(1), numbered(2)}
			calls[1].NoResend = true
			for _, call := range calls {
				pl.Start(call)
			}
			w := waits(pl, bg)
			first, _ := p.numberedCall("a call")
			p.numberedCall("a call that must not be sent again")
			q := ps.next()
			p.hangUp()
			var lost *rpc.LostError
			if got := <-w; got.call != calls[1] || !errors.As(got.err, &lost) || !lost.Sent || !errors.Is(got.err, net.ErrClosed) {
				t.Fatalf("Wait returns %v, %v", got.call, got.err)
			}
			w = waits(pl, bg)
			time.Sleep(time.Second)
			for range 2 { // in either order, from one credit on
				h, n := q.numberedCall("a call on the next connection")
				if n == 1 || n == 0 && h.XID != first.XID {
					t.Errorf("call %d is sent as %#x, it was %#x", n, h.XID, first.XID)
				}
				q.reply(rpcrdma.Header{XID: h.XID})
				if got := <-w; got.err != nil || word(got.call.Args, 0) != n {
					t.Errorf("Wait returns %v, %v", got.call, got.err)
				}
				w = waits(pl, bg)
			}
			if got := <-w; got.call != nil || got.err != nil {
				t.Errorf("Wait returns %v, %v", got.call, got.err)
			}
		})
	})

	t.Run("a context ends the wait, Close the calls, whose memory is fenced", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 2)
			pl := NewPipeline(cl)
			item := &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}}
			var ended []error
			pl.StartFunc(item, func(err error) { ended = append(ended, err) })
			pl.StartFunc(numbered(1), func(err error) { ended = append(ended, err) })
			pl.StartFunc(numbered(2), func(err error) { ended = append(ended, err) })
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			w := waits(pl, ctx)
			h, _ := p.message("a call with a write chunk")
			p.numberedCall("another")
			if got := <-w; got.call != nil || !errors.Is(got.err, context.DeadlineExceeded) {
				t.Fatalf("Wait returns %v, %v", got.call, got.err)
			}
			if pl.Len() != 3 || len(ended) != 0 || p.openWindows() == 0 {
				t.Errorf("%d calls, %v", pl.Len(), ended)
			}
			closed := make(chan struct{})
			go func() { pl.Close(); close(closed) }()
			<-closed
			if n := p.openWindows(); n != 0 {
				t.Errorf("%d windows are open after Close", n)
			}
			for _, err := range ended {
				if err != context.Canceled {
					t.Errorf("a call ends with %v", err)
				}
			}
			if pl.Len() != 0 || len(ended) != 3 {
				t.Errorf("%d calls are left, %v", pl.Len(), ended)
			}
			// Late replies give the credits back.
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
			settle()
			if n := cl.Conn().Stats().InFlight; n != 1 {
				t.Errorf("%d calls are in flight", n)
			}
		})
	})

	t.Run("a call that cannot be formed fails alone", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 3)
			pl := NewPipeline(cl)
			bad := &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{}}}
			good := numbered(1)
			pl.Start(bad)
			pl.Start(good)
			if got := <-waits(pl, bg); got.call != bad || !errors.Is(got.err, errEmptyItem) {
				t.Errorf("Wait returns %v, %v", got.call, got.err)
			}
			h, _ := p.numberedCall("the other")
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 3})
			if got := <-waits(pl, bg); got.call != good || got.err != nil {
				t.Errorf("Wait returns %v, %v", got.call, got.err)
			}
		})
	})

	t.Run("with all credits taken it queues behind other callers", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 1)
			held := async(cl, bg, numbered(10))
			h, _ := p.numberedCall("a call of another")
			queued := async(cl, bg, numbered(11))
			synctest.Wait()
			pl := NewPipeline(cl)
			defer pl.Close()
			pl.Start(numbered(0))
			pl.Start(numbered(1))
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			if got := <-waits(pl, ctx); got.call != nil || !errors.Is(got.err, context.DeadlineExceeded) {
				t.Fatalf("Wait returns %v, %v", got.call, got.err)
			}
			w := waits(pl, bg)
			synctest.Wait()
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 1})
			if err := outcome(t, held); err != nil {
				t.Error(err)
			}
			for _, want := range []uint32{11, 0, 1} {
				h, n := p.numberedCall("the next call")
				if n != want {
					t.Errorf("call %d leaves, want %d", n, want)
				}
				p.reply(rpcrdma.Header{XID: h.XID, Credit: 1})
				if n == 11 {
					if err := outcome(t, queued); err != nil {
						t.Error(err)
					}
					continue
				}
				if got := <-w; got.err != nil || word(got.call.Args, 0) != n {
					t.Errorf("Wait returns %v, %v", got.call, got.err)
				}
				w = waits(pl, bg)
			}
			<-w
		})
	})
}

// TestPipelineGone checks that no call ends when its context ends while only the adapter has seen the end of the
// connection.
func TestPipelineGone(t *testing.T) {
	p := newPeer(t)
	p.caps.MemoryWindows = false
	gone := false
	wrap := func(pc peerConn) fabric.Conn { return goneConn{pc, &gone} }
	clientOver(t, p, nil, wrap, func(ps *peers, cl *Client) {
		p.opens(cl, 3)
		pl := NewPipeline(cl)
		defer pl.Close()
		item := &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}}
		other := numbered(1)
		gone = true
		pl.Start(item)
		pl.Start(other)
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		if got := <-waits(pl, ctx); got.call != nil || !errors.Is(got.err, context.DeadlineExceeded) {
			t.Fatalf("Wait returns %v", got.err)
		}
		gone = false
		q := ps.next()
		q.caps.MemoryWindows = false
		p.hangUp()
		for range 2 {
			w := waits(pl, bg)
			h, _ := q.message("a call on the next connection")
			q.reply(rpcrdma.Header{XID: h.XID, Writes: emptied(h.Writes)})
			if got := <-w; got.err != nil {
				t.Fatalf("Wait returns %v, %v", got.call, got.err)
			}
		}
	})
}

// A goneConn registers no memory while gone is set, like an adapter before it reports the end of a
// connection.
type goneConn struct {
	peerConn
	gone *bool
}

func (c goneConn) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	if *c.gone {
		return nil, net.ErrClosed
	}
	return c.peerConn.RegMR(buf, access)
}

// emptied is chunks with nothing written to them.
func emptied(chunks []rpcrdma.WriteChunk) []rpcrdma.WriteChunk {
	list := make([]rpcrdma.WriteChunk, len(chunks))
	for i, segs := range chunks {
		list[i] = slices.Clone(segs)
		for j := range list[i] {
			list[i][j].Length = 0
		}
	}
	return list
}

// TestPipelineEndsWithContext checks that Wait reports the context if both context and connection have ended, and that
// the calls continue.
func TestPipelineEndsWithContext(t *testing.T) {
	clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
		p.opens(cl, 3)
		pl := NewPipeline(cl)
		defer pl.Close()
		pl.Start(numbered(0))
		w := waits(pl, bg)
		h, _ := p.numberedCall("a call")
		p.reply(rpcrdma.Header{XID: h.XID, Credit: 3})
		if got := <-w; got.err != nil {
			t.Fatalf("Wait returns %v, %v", got.call, got.err)
		}
		q := ps.next()
		p.hangUp()
		synctest.Wait()
		pl.Start(numbered(1))
		if call, err := pl.Wait(&endingContext{Context: bg}); call != nil || !errors.Is(err, context.Canceled) {
			t.Fatalf("Wait returns %v, %v", call, err)
		}
		w = waits(pl, bg)
		h, n := q.numberedCall("the call on the next connection")
		q.reply(rpcrdma.Header{XID: h.XID, Credit: 3})
		if got := <-w; got.err != nil || n != 1 {
			t.Errorf("call %d: Wait returns %v, %v", n, got.call, got.err)
		}
	})
}

// An endingContext has ended when it is looked at for the second time.
type endingContext struct {
	context.Context
	looks int
}

func (c *endingContext) Err() error {
	if c.looks++; c.looks == 1 {
		return nil
	}
	return context.Canceled
}

// soon is waits, for a call that must end within a minute.
func soon(p *Pipeline) <-chan waited {
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	time.AfterFunc(time.Minute, cancel)
	return waits(p, ctx)
}

// settled takes what Wait has returned, which must be the call with a number.
func (w waited) settled(t *testing.T, want uint32) {
	t.Helper()
	if w.err != nil || w.call == nil || word(w.call.Args, 0) != want {
		t.Fatalf("Wait returns %v, %v, want call %d", w.call, w.err, want)
	}
}

// answerNumbered answers the next call, which must be the one with a number.
func (p *peer) answerNumbered(want uint32) {
	p.t.Helper()
	h, n := p.numberedCall("a call")
	if n != want {
		p.t.Fatalf("call %d arrives, want %d", n, want)
	}
	p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
}

// TestPipelineBound checks that calls use the connection that was bound last. Calls under way on other connections must
// stay there and block nothing.
func TestPipelineBound(t *testing.T) {
	// bound has call 1 under way on a connection, and then binds another.
	bound := func(t *testing.T, script func(ps *peers, s *Server, ready func(*peer) *Conn, b *Backchannel, pl *Pipeline, p, q *peer, h rpcrdma.Header)) {
		t.Helper()
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			p, q := ps.arrive(s, "client"), ps.arrive(s, "client")
			bind(t, b, ready(p), 2)
			pl := NewPipeline(b)
			defer pl.Close()
			pl.Start(numbered(0))
			w := soon(pl)
			p.answerNumbered(0)
			(<-w).settled(t, 0)
			pl.Start(numbered(1))
			if err := pl.Flush(bg); err != nil {
				t.Fatal(err)
			}
			h, _ := p.numberedCall("a call that has no answer yet")
			bind(t, b, ready(q), 2)
			script(ps, s, ready, b, pl, p, q, h)
		})
	}

	t.Run("calls on both connections end in any order", func(t *testing.T) {
		bound(t, func(_ *peers, _ *Server, _ func(*peer) *Conn, _ *Backchannel, pl *Pipeline, p, q *peer, h rpcrdma.Header) {
			pl.Start(numbered(2))
			w := soon(pl)
			q.answerNumbered(2)
			(<-w).settled(t, 2)
			pl.Start(numbered(3))
			w = soon(pl)
			h3, _ := q.numberedCall("a call")
			synctest.Wait()
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
			(<-w).settled(t, 1)
			w = soon(pl)
			q.reply(rpcrdma.Header{XID: h3.XID, Credit: 2})
			(<-w).settled(t, 3)
			if got := <-soon(pl); got.call != nil || got.err != nil {
				t.Errorf("Wait returns %v, %v", got.call, got.err)
			}
			p.quiet("it is not the latest")
		})
	})

	t.Run("the end of the earlier connection takes its calls to the latest", func(t *testing.T) {
		bound(t, func(_ *peers, _ *Server, _ func(*peer) *Conn, _ *Backchannel, pl *Pipeline, p, q *peer, h rpcrdma.Header) {
			pl.Start(numbered(2))
			pl.Start(numbered(3))
			w := soon(pl)
			h2, n := q.numberedCall("a call")
			synctest.Wait()
			p.hangUp()
			synctest.Wait()
			q.reply(rpcrdma.Header{XID: h2.XID, Credit: 1})
			(<-w).settled(t, n)
			w = soon(pl)
			again, n := q.numberedCall("the call that was lost")
			if n != 1 || again.XID != h.XID {
				t.Errorf("call %d is sent as %#x, want 1 as %#x", n, again.XID, h.XID)
			}
			q.reply(rpcrdma.Header{XID: again.XID, Credit: 1})
			(<-w).settled(t, 1)
			w = soon(pl)
			q.answerNumbered(3)
			(<-w).settled(t, 3)
		})
	})

	t.Run("the wait for a credit, or for a connection, ends with a call", func(t *testing.T) {
		bound(t, func(ps *peers, s *Server, ready func(*peer) *Conn, b *Backchannel, pl *Pipeline, p, q *peer, h rpcrdma.Header) {
			held := over(b, bg, numbered(9)) // has the one credit
			h9, _ := q.numberedCall("a call of another")
			pl.Start(numbered(2))
			w := soon(pl)
			synctest.Wait()
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
			(<-w).settled(t, 1)
			w = soon(pl)
			synctest.Wait()
			q.reply(rpcrdma.Header{XID: h9.XID, Credit: 1})
			if err := outcome(t, held); err != nil {
				t.Error(err)
			}
			q.answerNumbered(2)
			(<-w).settled(t, 2)
		})
		bound(t, func(ps *peers, s *Server, ready func(*peer) *Conn, b *Backchannel, pl *Pipeline, p, q *peer, h rpcrdma.Header) {
			pl.Start(numbered(2))
			w := soon(pl)
			q.answerNumbered(2)
			(<-w).settled(t, 2)
			q.hangUp()
			synctest.Wait()
			pl.Start(numbered(3))
			w = soon(pl)
			synctest.Wait()
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
			(<-w).settled(t, 1)
			w = soon(pl)
			synctest.Wait()
			r := ps.arrive(s, "client")
			bind(t, b, ready(r), 2)
			r.answerNumbered(3)
			(<-w).settled(t, 3)
		})
	})

	t.Run("a connection may become the latest again", func(t *testing.T) {
		bound(t, func(_ *peers, _ *Server, _ func(*peer) *Conn, b *Backchannel, pl *Pipeline, p, q *peer, h rpcrdma.Header) {
			cp := pl.at.(*conn)
			pl.Start(numbered(2))
			w := soon(pl)
			h2, _ := q.numberedCall("a call")
			bind(t, b, &cp.public, 2)
			q.reply(rpcrdma.Header{XID: h2.XID, Credit: 2})
			(<-w).settled(t, 2)
			pl.Start(numbered(3))
			w = soon(pl)
			p.answerNumbered(3)
			(<-w).settled(t, 3)
			w = soon(pl)
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
			(<-w).settled(t, 1)
		})
	})

	t.Run("Close gives up the calls on both", func(t *testing.T) {
		bound(t, func(_ *peers, _ *Server, _ func(*peer) *Conn, _ *Backchannel, pl *Pipeline, p, q *peer, h rpcrdma.Header) {
			var ended []error
			pl.StartFunc(numbered(2), func(err error) { ended = append(ended, err) })
			if err := pl.Flush(bg); err != nil {
				t.Fatal(err)
			}
			q.numberedCall("a call")
			pl.Close()
			if pl.Len() != 0 || len(ended) != 1 || ended[0] != context.Canceled {
				t.Errorf("%d calls are left, %v", pl.Len(), ended)
			}
		})
	})
}

// TestPipelineContext checks that a call that runs on a goroutine has the values of the context in which it was
// started, and ends only with the Pipeline.
func TestPipelineContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		hang := rpc.CallerFunc(func(ctx context.Context, call *rpc.Call) error {
			call.Results, _ = ctx.Value(key{}).([]byte)
			derived, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			<-derived.Done()
			return derived.Err()
		})
		pl := NewPipeline(hang)
		var ended []error
		var calls []*rpc.Call
		for i := range 3 {
			call := testCall()
			calls = append(calls, call)
			pl.StartFunc(call, func(err error) { ended = append(ended, err) })
			ctx, cancel := context.WithTimeout(context.WithValue(bg, key{}, []byte{byte(i)}), time.Second)
			if call, err := pl.Wait(ctx); call != nil || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait returns %v, %v", call, err)
			}
			cancel()
		}
		synctest.Wait()
		if len(ended) > 0 {
			t.Errorf("calls end with the context: %v", ended)
		}
		start := time.Now()
		pl.Close()
		if d := time.Since(start); d != 0 || !slices.Equal(ended, []error{context.Canceled, context.Canceled, context.Canceled}) {
			t.Errorf("after %v the calls ended with %v", d, ended)
		}
		for i, call := range calls {
			if !slices.Equal(call.Results, []byte{byte(i)}) {
				t.Errorf("call %d has the value %v", i, call.Results)
			}
		}
	})
}

// TestPipelineTakesConnection checks calls whose abandonment ends the connection: the other abandoned calls must also
// report this.
func TestPipelineTakesConnection(t *testing.T) {
	calls := func() []*rpc.Call {
		list := make([]*rpc.Call, 3)
		for i := range list {
			list[i] = &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}}
		}
		list[2].NoResend = true
		return list
	}
	weak := func(script func(cl *Client, p *peer)) {
		p := newPeer(t)
		p.caps.WeakRevocation = true
		clientOver(t, p, nil, nil, func(_ *peers, cl *Client) {
			p.opens(cl, 3)
			script(cl, p)
			if !p.over() {
				t.Error("the connection is there")
			}
		})
	}
	for _, of := range []func(*Client) rpc.Caller{
		func(cl *Client) rpc.Caller { return cl },
		func(cl *Client) rpc.Caller { return cl.Conn() },
		func(cl *Client) rpc.Caller { return rpc.CallerFunc(cl.Call) },
		func(cl *Client) rpc.Caller { // the connection is lost first
			return rpc.CallerFunc(func(ctx context.Context, call *rpc.Call) error {
				err := cl.Call(ctx, call)
				if errors.Is(err, context.Canceled) {
					err = &rpc.LostError{Addr: "script", Sent: true, Reason: &rpc.ClosedError{}}
				}
				return err
			})
		},
	} {
		weak(func(cl *Client, p *peer) {
			pl := NewPipeline(of(cl))
			var ended []error
			for _, call := range calls() {
				pl.StartFunc(call, func(err error) { ended = append(ended, err) })
			}
			if err := pl.Flush(bg); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				p.message("a call")
			}
			pl.Close()
			for _, err := range ended {
				lost := (*rpc.LostError)(nil)
				if !errors.Is(err, context.Canceled) || errors.As(err, &lost) && (!lost.Sent || strings.Count(err.Error(), "executed") != 1) {
					t.Errorf("a call ends with %v", err)
				}
			}
			if len(ended) != 3 {
				t.Errorf("%d calls have ended", len(ended))
			}
		})
		weak(func(cl *Client, p *peer) {
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			errs := CallAll(ctx, of(cl), calls()...)
			if !slices.Equal(errs, []error{context.DeadlineExceeded, context.DeadlineExceeded, context.DeadlineExceeded}) {
				t.Errorf("the calls ended with %v", errs)
			}
		})
	}
}
