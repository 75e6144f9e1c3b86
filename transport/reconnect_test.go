package transport

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// Connections that come back (RFC 5666 section 8, RFC 8167 section 5.4).

// answerNext answers the next call.
func (p *peer) answerNext(what string) rpcrdma.Header {
	p.t.Helper()
	h, _ := p.message(what)
	p.reply(rpcrdma.Header{XID: h.XID})
	return h
}

// proven makes a call on the client's connection and has it answered.
func proven(p *peer, cl *Client) {
	p.t.Helper()
	done := async(cl, bg, testCall())
	p.answerNext("a call")
	if err := outcome(p.t, done); err != nil {
		p.t.Fatal(err)
	}
}

func TestNoReconnect(t *testing.T) {
	t.Run("a client that has one connection tries for no other", func(t *testing.T) {
		// A reply of the client's own holds up the end of its connection, at a time when its
		// callers know of that already.
		released := make(chan struct{})
		data := make([]byte, 16)
		callback := Program{Number: testProg, Low: 1, High: 1, Inline: Every, Idempotent: Every,
			Handler: HandlerFunc(func(_ context.Context, _ *Request, res *Response) {
				res.AddItem(data, func() { <-released })
			})}
		clientTo(t, &Config{NoReconnect: true, KeepAlive: -1, Callbacks: []Program{callback}}, func(ps *peers, p *peer, cl *Client) {
			released = make(chan struct{})
			proven(p, cl)
			settle()
			p.holdSends = true
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			p.message("the reply of the client")
			leader := async(cl, bg, testCall())
			p.message("a call")
			follower := async(cl, bg, testCall())
			p.message("a second call")
			other := ps.next()
			p.hangUp()
			synctest.Wait()
			close(released)
			var closed *ClosedError
			for _, done := range []<-chan error{leader, follower} {
				if err := outcome(t, done); !errors.As(err, &closed) {
					t.Errorf("a call returned %v", err)
				}
			}
			other.quiet("there is one connection")
			if n := ps.attempts(); n != 1 {
				t.Errorf("%d connections were tried, want 1", n)
			}
			<-cl.Done()
			if err := cl.Err(); !errors.As(err, &closed) {
				t.Errorf("Err is %v", err)
			}
		})
	})
}

func TestBackchannelDrops(t *testing.T) {
	prog := Program{Number: testProg, Low: 1, High: 1}
	conns := make(chan *Conn, 1)
	prog.Handler = HandlerFunc(func(_ context.Context, req *Request, _ *Response) { conns <- req.Conn() })
	t.Run("BIDI-6-2 a client that drops its connection on the first call is not called again", func(t *testing.T) {
		serverTo(t, nil, []Program{prog}, func(ps *peers, s *Server) {
			conns = make(chan *Conn, 1)
			p := ps.arrive(s, "client")
			p.send(callBytes(rpcrdma.Header{XID: 1}, procReady), 0)
			p.message("the reply")
			b := NewBackchannel()
			defer b.Close()
			if err := b.Bind(<-conns, 0); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- b.Call(bg, testCall()) }()
			p.message("the call")
			p.hangUp()
			var not *NotReadyError
			if err := outcome(t, done); !errors.As(err, &not) || !not.Dropped {
				t.Errorf("the call returned %v", err)
			}
		})
	})
}

func TestReconnectRaces(t *testing.T) {
	t.Run("whatever the moment, one connection takes the place of one", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			ctx, cancel := context.WithCancel(bg)
			var calls sync.WaitGroup
			for range 8 {
				calls.Go(func() {
					for ctx.Err() == nil {
						call := testCall()
						call.NoResend = true
						_ = cl.Call(ctx, call)
					}
				})
			}
			proof := func(p *peer) {
				p.mu.Lock()
				n := len(p.sends)
				p.mu.Unlock()
				if n > 0 {
					h, _ := p.message("a call")
					p.reply(rpcrdma.Header{XID: h.XID})
				}
			}
			all := []*peer{p}
			for range 500 {
				q := ps.next()
				proof(p)
				p.hangUp()
				synctest.Wait()
				time.Sleep(time.Minute)
				synctest.Wait()
				all, p = append(all, q), q
			}
			cancel()
			calls.Wait()
			cl.Close()
			synctest.Wait()
			for i, q := range all {
				if !q.over() {
					t.Errorf("connection %d was left open", i)
				}
			}
			if n := ps.attempts(); n != len(all) {
				t.Errorf("%d connections were tried, want %d", n, len(all))
			}
		})
	})
}
