package transport

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
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

// numbered is a call that is known by a number in its arguments.
func numbered(n uint32) *rpc.Call {
	return &rpc.Call{Prog: testProg, Vers: 1, Proc: 7, Args: xdr.AppendUint32(nil, n)}
}

// numberedCall waits for a call that numbered has made.
func (p *peer) numberedCall(what string) (h rpcrdma.Header, n uint32) {
	p.t.Helper()
	h, payload := p.message(what)
	if h.Proc != rpcrdma.ProcMsg || len(payload) != 44 || word(payload, 0) != h.XID || word(payload, 1) != 0 {
		p.t.Fatalf("%s: it is %+v %x", what, h, payload)
	}
	return h, word(payload, 10)
}

// callback is a program that a client executes.
func callback() []rpc.Program {
	return []rpc.Program{{Number: testProg, Low: 1, High: 1, Inline: rpc.Every, Idempotent: rpc.Every,
		Handler: rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) {})}}
}

// TestReconnectResends checks that a call without a reply is sent again on the next connection.
func TestReconnectResends(t *testing.T) {
	t.Run("V1-8-2 BIDI-5.4-1 CTX-8166-1 calls without a reply are sent again with their xids, others with fresh ones, from one credit on", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 3)
			done := make([]<-chan error, 6)
			for i := range done {
				done[i] = async(cl, bg, numbered(uint32(i)))
				synctest.Wait()
			}
			xids := make(map[uint32]uint32) // by number
			used := make(map[uint32]bool)
			for range 3 {
				h, n := p.numberedCall("a call")
				xids[n], used[h.XID] = h.XID, true
			}
			for i := range 5 { // lost again and again
				q := ps.next()
				p.hangUp()
				p = q
				time.Sleep(time.Minute)
				h, n := p.numberedCall("the first call on the new connection")
				p.quiet("there is one credit before the first reply")
				if n := cl.Info().Credits; n != 1 {
					t.Errorf("%d credits", n)
				}
				for xid := range used {
					if last := cl.conn().counter().last.Load(); int32(last-xid) < 0 {
						t.Errorf("xid %#x may come again, after %#x", xid, last)
					}
				}
				again := func(h rpcrdma.Header, n uint32) {
					t.Helper()
					if xid, sent := xids[n]; sent && xid != h.XID {
						t.Errorf("call %d was sent as %#x and now is as %#x", n, xid, h.XID)
					} else if !sent && used[h.XID] {
						t.Errorf("call %d has the xid %#x of another", n, h.XID)
					}
					xids[n], used[h.XID] = h.XID, true
				}
				again(h, n)
				if i == 4 {
					p.reply(rpcrdma.Header{XID: h.XID, Credit: 100})
					for range 5 {
						h, n := p.numberedCall("a call")
						again(h, n)
						p.reply(rpcrdma.Header{XID: h.XID, Credit: 100})
					}
				}
				settle()
			}
			for i := range done {
				if err := outcome(t, done[i]); err != nil {
					t.Errorf("call %d: %v", i, err)
				}
			}
			st := cl.Stats()
			if st.Resent < 3 || st.Conns != 6 || st.OpenConns != 1 {
				t.Errorf("counters are %+v", st)
			}
			// More calls, on a connection that has xids of five others after it.
			for n := range uint32(100) {
				d := async(cl, bg, numbered(n))
				h, _ := p.numberedCall("a new call")
				if used[h.XID] {
					t.Fatalf("xid %#x comes again", h.XID)
				}
				used[h.XID] = true
				p.reply(rpcrdma.Header{XID: h.XID})
				if err := outcome(t, d); err != nil {
					t.Fatal(err)
				}
			}
		})
	})

	t.Run("BIDI-5.4-1 a call with chunks exposes its memory anew", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			data := bytes.Repeat([]byte("again "), 1000)
			call := &rpc.Call{Prog: testProg, Vers: 1, Args: xdr.AppendUint32(nil, 6000), MaxResults: 8,
				ReadItems:  []rpc.ReadItem{{Offset: 4, Data: data}},
				WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}}
			done := async(cl, bg, call)
			h, _ := p.message("the call")
			first := h.Writes[0][0]
			p.write(first, "on the connection that is lost")
			q := ps.next()
			q.nextKey = 0xabcd0000
			p.hangUp()
			synctest.Wait()
			if n := p.openWindows(); n != 0 {
				t.Errorf("%d windows of the lost connection are open", n)
			}
			time.Sleep(time.Second)
			h2, _ := q.message("the call again")
			if h2.XID != h.XID || h2.Writes[0][0].Handle == first.Handle {
				t.Errorf("the call is %+v, it was %+v", h2, h)
			}
			if !bytes.Equal(q.read(h2.Reads), data) {
				t.Error("the read chunk has other bytes")
			}
			q.write(h2.Writes[0][0], "placed")
			h2.Writes[0][0].Length = 6
			q.reply(rpcrdma.Header{XID: h.XID, Writes: h2.Writes}, xdr.AppendUint32(nil, 6)...)
			if err := outcome(t, done); err != nil || string(call.WriteItems[0].Buf[:6]) != "placed" || call.WriteItems[0].N != 6 {
				t.Errorf("the call returned %v, %q", err, call.WriteItems[0].Buf[:6])
			}
		})
	})
}

// TestNotResent checks which calls are not sent again when the connection is lost.
func TestNotResent(t *testing.T) {
	t.Run("NoResend fails a call that was sent, and leaves one that was not for the next connection", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			first, second := numbered(1), numbered(2)
			first.NoResend, second.NoResend = true, true
			sent := async(cl, bg, first)
			p.message("the call")
			unsent := async(cl, bg, second)
			q := ps.next()
			synctest.Wait()
			p.hangUp()
			err := outcome(t, sent)
			var lost *rpc.LostError
			if !errors.As(err, &lost) || !lost.Sent || lost.Err != nil || !errors.Is(err, net.ErrClosed) {
				t.Errorf("the call returned %v", err)
			}
			if strings.Contains(err.Error(), "\n") || !strings.HasSuffix(err.Error(), "; call may have been executed") {
				t.Errorf("it says %q", err)
			}
			time.Sleep(time.Second)
			h, n := q.numberedCall("the call that had not been sent")
			if n != 2 {
				t.Errorf("call %d was sent", n)
			}
			q.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, unsent); err != nil {
				t.Error(err)
			}
			q.quiet("the other is not sent again")
			// The Call may be used again.
			settle()
			again := async(cl, bg, first)
			h2, _ := q.numberedCall("the same Call, made anew")
			if h2.XID == h.XID {
				t.Error("it has an xid that was used")
			}
			q.reply(rpcrdma.Header{XID: h2.XID})
			if err := outcome(t, again); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("a server that breaks the protocol does not get a call again; calls that it has not got go on", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 2)
			item := &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}}
			victim := async(cl, bg, item)
			h, _ := p.message("a call with a write chunk")
			other := async(cl, bg, testCall())
			h2, _ := p.message("another call")
			unsent := async(cl, bg, numbered(3))
			q := ps.next()
			synctest.Wait()
			// One credit, so that the end of the other call frees none.
			p.send(p.replyBytes(rpcrdma.Header{XID: h2.XID, Credit: 1}, nil), h.Writes[0][0].Handle)
			var broke *rpc.PeerError
			if err := outcome(t, victim); !errors.As(err, &broke) {
				t.Errorf("the call returned %v", err)
			}
			<-other // with an error, or with its reply
			if n := ps.attempts(); n != 1 {
				t.Errorf("%d connections were tried at once, as if the last had been good", n)
			}
			time.Sleep(time.Second)
			hn, n := q.numberedCall("the call that had not been sent")
			if n != 3 {
				t.Errorf("call %d was sent", n)
			}
			q.reply(rpcrdma.Header{XID: hn.XID})
			if err := outcome(t, unsent); err != nil {
				t.Error(err)
			}
			q.quiet("nothing else is sent again")
		})
	})
}

// TestReconnectPauses checks that the pause between attempts to connect grows up to a limit.
func TestReconnectPauses(t *testing.T) {
	t.Run("pauses between attempts: none after a connection that was good, then twice as long each time, up to ten seconds", func(t *testing.T) {
		for range 20 { // the pauses are random
			clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
				proven(p, cl)
				start := time.Now()
				p.hangUp()
				async(cl, bg, testCall())
				if tried := ps.tried()[1:]; len(tried) != 1 || !tried[0].Equal(start) {
					t.Fatalf("attempts at %v, want one at once", tried)
				}
				time.Sleep(5 * time.Minute)
				tried := ps.tried()[2:]
				n := len(tried)
				pause, last, odd := minPause, start, false
				for i, at := range tried {
					d := at.Sub(last)
					if d < pause/2 || d >= pause*3/2 {
						t.Fatalf("attempt %d comes after %v, want between %v and %v", i+1, d, pause/2, pause*3/2)
					}
					odd = odd || d != pause
					last, pause = at, min(2*pause, defaultMaxPause)
				}
				if n < 5*60/15 || n > 5*60/5+10 || !odd {
					t.Errorf("%d attempts in five minutes", n)
				}
				q := ps.next()
				time.Sleep(15 * time.Second)
				q.answerNext("the call, sent again")
				time.Sleep(steady)
				synctest.Wait()
				start = time.Now()
				r := ps.next()
				q.hangUp()
				async(cl, bg, testCall())
				r.message("the call")
				if now := time.Now(); !now.Equal(start) {
					t.Errorf("after a connection that was good: %v", now.Sub(start))
				}
			})
		}
	})

	t.Run("connections that are good for nothing make the pauses grow, too", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			async(cl, bg, testCall())
			pause := minPause
			for i := range 12 {
				q := ps.next()
				p.message("the call")
				lost := time.Now()
				p.hangUp()
				synctest.Wait()
				time.Sleep(pause/2 - 1)
				if n := ps.attempts(); n != i+1 {
					t.Fatalf("connection %d comes too soon", i+1)
				}
				time.Sleep(pause + 1)
				if n := ps.attempts(); n != i+2 {
					t.Fatalf("%d attempts after %v", n, time.Since(lost))
				}
				p, pause = q, min(2*pause, defaultMaxPause)
			}
		})
	})

	t.Run("the longest pause is what the configuration says", func(t *testing.T) {
		for _, most := range []time.Duration{time.Millisecond, 300 * time.Millisecond, time.Minute} {
			clientTo(t, &Settings{MaxPause: most}, func(ps *peers, p *peer, cl *Client) {
				async(cl, bg, testCall())
				p.message("the call")
				p.hangUp()
				time.Sleep(200 * most)
				tried := ps.tried()
				if len(tried) < 102 {
					t.Fatalf("%d attempts", len(tried))
				}
				sum := tried[len(tried)-1].Sub(tried[len(tried)-101])
				if mean := sum / 100; mean < most*3/4 || mean > most*5/4 {
					t.Errorf("a pause is %v in the mean, want %v", mean, most)
				}
			})
		}
		for _, wrong := range []time.Duration{-1, time.Hour + 1} {
			if _, err := Dial(bg, newPeer(t), "script:1", (&Settings{MaxPause: wrong}).Client()); err == nil {
				t.Errorf("a MaxPause of %v is taken", wrong)
			}
		}
	})

	t.Run("an attempt that gets no answer ends, and the next follows", func(t *testing.T) {
		clientTo(t, &Settings{SetupTimeout: 3 * time.Second}, func(ps *peers, p *peer, cl *Client) {
			proven(p, cl)
			stuck := ps.next()
			stuck.stuck = true
			refused := ps.next()
			refused.refuse = errors.New("script: refused")
			q := ps.next()
			p.hangUp()
			done := async(cl, bg, testCall())
			time.Sleep(3*time.Second - 1)
			if n := ps.attempts(); n != 2 {
				t.Errorf("%d attempts", n)
			}
			time.Sleep(time.Second)
			q.answerNext("the call")
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			if !stuck.over() || !refused.over() {
				t.Error("a connection that was not made is open")
			}
		})
	})
}

// A flapper ends the connections of a client that reconnects by itself, and measures the
// pauses.
type flapper struct {
	ps   *peers
	p    *peer
	cl   *Client
	made time.Time                 // when the current connection was made
	use  func(p *peer, cl *Client) // how each connection is used before it is lost
}

// flaps runs script with a client that accepts calls from its server, and so reconnects by
// itself.
func flaps(t *testing.T, use func(p *peer, cl *Client), script func(f *flapper)) {
	t.Helper()
	clientTo(t, &Settings{Callbacks: callback(), KeepAlive: -1}, func(ps *peers, p *peer, cl *Client) {
		script(&flapper{ps: ps, p: p, cl: cl, made: ps.tried()[0], use: use})
	})
}

// lose uses the connection, ends it after it has lived for the given time, and checks that
// the next one follows after pause, give or take half of it.
func (f *flapper) lose(lived, pause time.Duration) {
	t := f.ps.t
	t.Helper()
	f.use(f.p, f.cl)
	settle()
	time.Sleep(lived - time.Since(f.made))
	q := f.ps.next()
	n := f.ps.attempts()
	f.p.hangUp()
	lost := time.Now()
	for f.ps.attempts() == n {
		time.Sleep(time.Millisecond)
	}
	f.made = f.ps.tried()[n]
	if d := f.made.Sub(lost); d < pause/2 || d > pause*3/2 {
		t.Errorf("the next connection comes after %v, want %v", d, pause)
	}
	f.p = q
}

// TestReconnectShortLives checks that the pause after a connection depends on its lifetime and on whether it was used.
func TestReconnectShortLives(t *testing.T) {
	const short = 20 * time.Millisecond

	for name, use := range map[string]func(p *peer, cl *Client){
		"the server has called on": func(p *peer, _ *Client) {
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			settle()
			p.replies(1, "the reply")
		},
		"calls are answered on": proven,
	} {
		t.Run("a short connection that "+name+" costs no pause, but the second does, until one has lived for a while", func(t *testing.T) {
			flaps(t, use, func(f *flapper) {
				for range 3 {
					f.lose(short, 0)
					for pause := minPause; pause < 2*defaultMaxPause; pause *= 2 {
						f.lose(steady-1, min(pause, defaultMaxPause))
					}
					f.lose(steady, 0)
				}
			})
		})
	}

	t.Run("a connection that was of no use has to live for two seconds, and longer than the pause", func(t *testing.T) {
		flaps(t, func(*peer, *Client) {}, func(f *flapper) {
			f.lose(short, minPause)
			f.lose(steady-1, 2*minPause)
			f.lose(steady, 0)
			pause := minPause
			for ; pause < steady; pause *= 2 {
				f.lose(steady-1, pause)
			}
			f.lose(pause-1, pause)
			f.lose(2*pause, 0)
			f.lose(short, minPause)
		})
	})
}

// givesUp makes eight calls, each on its own connection. It cancels the call, has end close
// the connection, and checks the pause before connection i: at least least(i), less than
// most(i).
func givesUp(t *testing.T, weak bool, end func(p *peer, h rpcrdma.Header), least, most func(i int) time.Duration) {
	t.Helper()
	first := newPeer(t)
	first.caps.WeakRevocation = weak
	clientOver(t, first, nil, nil, func(ps *peers, cl *Client) {
		p := first
		for i := range 8 {
			lost := time.Now()
			ctx, cancel := context.WithCancel(bg)
			done := async(cl, ctx, &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}})
			if i > 0 {
				for len(ps.tried()) == i {
					time.Sleep(time.Millisecond)
				}
				if d := ps.tried()[i].Sub(lost); d < least(i) || d >= most(i) {
					t.Errorf("connection %d comes after %v, want %v to %v", i+1, d, least(i), most(i))
				}
			}
			h, _ := p.message("the call")
			cancel()
			settle()
			if err := outcome(t, done); !errors.Is(err, context.Canceled) {
				t.Fatalf("the call returned %v", err)
			}
			q := ps.next()
			q.caps.WeakRevocation = weak
			end(p, h)
			settle() // the client notices
			p = q
		}
	})
}

// TestReconnectGivenUp checks the pause after a connection that ends because its calls were canceled, or after they
// were.
func TestReconnectGivenUp(t *testing.T) {
	always := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

	t.Run("pauses do not grow when calls that are given up take the connection along", func(t *testing.T) {
		givesUp(t, true, func(p *peer, _ rpcrdma.Header) {
			if !p.over() {
				t.Error("the connection is there")
			}
		}, always(minPause/2), always(minPause*3/2))
		givesUp(t, false, func(p *peer, _ rpcrdma.Header) { // as for a late Send with Invalidate
			p.finish(&fabric.ConnError{Provider: "script", Cause: errors.New("script: it invalidates what is gone")})
		}, always(minPause/2), always(minPause*3/2))
	})

	t.Run("pauses grow when it is the server that drops connections with calls that are given up, though it has answered them too late", func(t *testing.T) {
		for _, answers := range []bool{false, true} {
			givesUp(t, false, func(p *peer, h rpcrdma.Header) {
				if answers {
					p.reply(rpcrdma.Header{XID: h.XID})
					settle()
				}
				p.hangUp()
			},
				func(i int) time.Duration { return minPause << (i - 1) / 2 },
				func(i int) time.Duration { return minPause << (i - 1) * 3 / 2 })
		}
	})
}

// TestReconnectWaits checks that a call that waits for a connection returns when its context or the client ends.
func TestReconnectWaits(t *testing.T) {
	t.Run("a call without a deadline waits, one with a deadline fails in time", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
			forever := async(cl, bg, testCall())
			h, _ := p.message("the call")
			sent := async(cl, ctx, testCall())
			p.quiet("one credit")
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 1})
			p.message("the second call")
			forever2 := async(cl, bg, testCall())
			unsent := async(cl, ctx, testCall())
			if err := outcome(t, forever); err != nil {
				t.Error(err)
			}
			p.hangUp()
			time.Sleep(time.Minute - 1)
			select {
			case err := <-sent:
				t.Fatalf("the call returned %v", err)
			default:
			}
			time.Sleep(time.Nanosecond)
			for want, done := range map[bool]<-chan error{true: sent, false: unsent} {
				err := outcome(t, done)
				var lost *rpc.LostError
				if !errors.As(err, &lost) || lost.Sent != want {
					t.Fatalf("the call returned %#v", err)
				}
				if !errors.Is(err, net.ErrClosed) || !errors.Is(err, context.DeadlineExceeded) || lost.Reason == nil {
					t.Errorf("the call returned %v", err)
				}
				var dial *DialError
				if !errors.As(err, &dial) {
					t.Errorf("the reason is %v", lost.Reason)
				}
				text := "connect to script:20049 over script: nobody is there (context deadline exceeded); call was not sent"
				if want {
					text = strings.Replace(text, "was not sent", "may have been executed", 1)
				}
				if err.Error() != text {
					t.Errorf("it says %q, want %q", err, text)
				}
			}
			time.Sleep(24 * time.Hour)
			q := ps.next()
			time.Sleep(15 * time.Second)
			q.answerNext("the call that had the time")
			if err := outcome(t, forever2); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("a context that ends while the call waits for the next connection", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			ctx, cancel := context.WithCancel(bg)
			done := async(cl, ctx, testCall())
			p.message("the call")
			p.hangUp()
			synctest.Wait()
			cancel()
			err := outcome(t, done)
			var lost *rpc.LostError
			if !errors.As(err, &lost) || !lost.Sent || !errors.Is(err, context.Canceled) {
				t.Fatalf("the call returned %v", err)
			}
			if want := "connection to script:20049: script: the line was cut (context canceled); call may have been executed"; !strings.HasSuffix(err.Error(), "(context canceled); call may have been executed") ||
				!strings.Contains(err.Error(), "the line was cut") || strings.Contains(err.Error(), "\n") {
				t.Errorf("it says %q, want something like %q", err, want)
			}
			if err := cl.Call(ctx, testCall()); !errors.Is(err, context.Canceled) {
				t.Errorf("a call with an ended context returned %v", err)
			}
		})
	})

	t.Run("Close and Shutdown release all who wait for a connection", func(t *testing.T) {
		for _, end := range []func(cl *Client) error{(*Client).Close, func(cl *Client) error { return cl.Shutdown(bg) }} {
			for _, state := range []string{"between attempts", "during an attempt"} {
				clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
					if state == "during an attempt" {
						ps.next().stuck = true
						proven(p, cl)
					}
					var done []<-chan error
					for range 5 {
						done = append(done, async(cl, bg, testCall()))
					}
					synctest.Wait()
					p.hangUp()
					synctest.Wait()
					if err := end(cl); err != nil {
						t.Error(err)
					}
					for _, d := range done {
						var closed *rpc.ClosedError
						if err := outcome(t, d); !errors.As(err, &closed) || !errors.Is(err, net.ErrClosed) {
							t.Errorf("%s: the call returned %v", state, err)
						}
					}
					<-cl.Done()
					time.Sleep(time.Hour)
					n := ps.attempts()
					if err := cl.Call(bg, testCall()); !errors.Is(err, net.ErrClosed) {
						t.Errorf("a late call returned %v", err)
					}
					if err := end(cl); err != nil {
						t.Error(err)
					}
					if ps.attempts() != n || n > 2 {
						t.Errorf("%d attempts", n)
					}
				})
			}
		}
	})
}

// TestReconnectCallbacks checks reconnection and the server's calls.
func TestReconnectCallbacks(t *testing.T) {
	t.Run("BIDI-4.3.1-2 receives for all that will be sent, and for the server's calls, come before the connection", func(t *testing.T) {
		const calls, backward = 20, 4
		cfg := &Settings{Credits: 32, BackwardCredits: backward, Callbacks: callback(), KeepAlive: -1}
		clientTo(t, cfg, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, calls)
			for n := range uint32(calls) {
				async(cl, bg, numbered(n))
				p.message("a call")
			}
			p.hangUp() // comes back at once, and is lost again
			synctest.Wait()
			q := ps.next()
			time.Sleep(time.Second)
			synctest.Wait()
			if q.early < calls+backward {
				t.Errorf("%d receives were posted for %d calls and %d of the server's", q.early, calls, backward)
			}
			first := q.next("a call again")
			q.reply(rpcrdma.Header{XID: word(first.msg, 0), Credit: 32})
			for pending := 1; pending < calls; pending++ {
				if s := q.next("a call again"); s.posted < pending+backward {
					t.Errorf("%d receives are posted for %d calls and %d of the server's", s.posted, pending, backward)
				}
			}
			q.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			q.replies(1, "the reply to the server's call")
		})
	})

	t.Run("BIDI-5.4-4 a client with Callbacks comes back though it is idle, one without them when it is called", func(t *testing.T) {
		for _, progs := range [][]rpc.Program{callback(), nil} {
			told := 0
			cfg := &Settings{Callbacks: progs, KeepAlive: -1, OnReconnect: func(cl *Client) { told++ }}
			clientTo(t, cfg, func(ps *peers, p *peer, cl *Client) {
				for i := range 5 {
					p.opens(cl, 8)
					time.Sleep(steady)
					q := ps.next()
					start := time.Now()
					p.hangUp()
					synctest.Wait()
					want := i + 1
					if progs == nil {
						want = i
						time.Sleep(time.Hour)
						start = time.Now()
					}
					if n := ps.attempts() - 1; n != want || told != want {
						t.Fatalf("%d connections made again, and told of %d, want %d", n, told, want)
					}
					done := async(cl, bg, testCall())
					q.answerNext("a call")
					if err := outcome(t, done); err != nil || !time.Now().Equal(start) {
						t.Errorf("%v after %v", err, time.Since(start))
					}
					settle()
					if told != i+1 {
						t.Errorf("told %d times, want %d", told, i+1)
					}
					p = q
				}
			})
		}
	})

	t.Run("OnReconnect calls the server", func(t *testing.T) {
		cfg := &Settings{Callbacks: callback(), KeepAlive: -1, OnReconnect: func(cl *Client) {
			if err := cl.Call(bg, numbered(99)); err != nil {
				t.Error(err)
			}
		}}
		clientTo(t, cfg, func(ps *peers, p *peer, cl *Client) {
			q := ps.next()
			p.hangUp()
			time.Sleep(time.Second)
			h, n := q.numberedCall("the call that says that the client is ready")
			if n != 99 {
				t.Errorf("call %d", n)
			}
			q.reply(rpcrdma.Header{XID: h.XID})
			settle()
			q.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			q.replies(1, "the reply to the server's call, on the new connection")
		})
	})
}

// An unregistering connection ends when it is to expose memory.
type unregistering struct{ peerConn }

func (c unregistering) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	if access&fabric.AccessRemoteWrite == 0 {
		return c.peerConn.RegMR(buf, access)
	}
	c.hangUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	return nil, c.end
}

// TestEndSeenLate checks calls affected by the end of the connection before the leading goroutine has seen it. Such a
// call must treat it as the connection's end.
func TestEndSeenLate(t *testing.T) {
	item := func() *rpc.Call {
		return &rpc.Call{Prog: testProg, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}}
	}
	t.Run("an invalidation that the end has flushed leaves a window that is bound", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.holdInv = true
			first := async(cl, bg, item())
			h, _ := p.message("a call with a write chunk")
			second := async(cl, bg, item())
			p.quiet("there is one credit")
			p.mu.Lock()
			window := p.windows[h.Writes[0][0].Handle]
			p.mu.Unlock()
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 1})
			synctest.Wait()
			q := ps.next()
			p.mu.Lock()
			for _, wc := range p.heldInv {
				wc.Status = fabric.WCFlushErr
				p.wcs = append(p.wcs, wc)
			}
			window.bound = true // the invalidation has not been done
			p.finishLocked(&fabric.ConnError{Provider: "script", Remote: true})
			p.mu.Unlock()
			if err := outcome(t, first); err != nil {
				t.Errorf("the call that was answered returned %v", err)
			}
			time.Sleep(time.Second)
			q.answerNext("the call that waited")
			if err := outcome(t, second); err != nil {
				t.Errorf("the call that waited returned %v", err)
			}
		})
	})

	t.Run("memory that is not registered any more", func(t *testing.T) {
		p := newPeer(t)
		p.caps.MemoryWindows = false
		clientOver(t, p, nil, func(c peerConn) fabric.Conn { return unregistering{c} }, func(ps *peers, cl *Client) {
			proven(p, cl)
			settle()
			q := ps.next()
			done := async(cl, bg, item())
			q.answerNext("the call, on the next connection")
			if err := outcome(t, done); err != nil {
				t.Errorf("the call returned %v", err)
			}
		})
	})
}

func TestIdleTimeout(t *testing.T) {
	const idle = 10 * time.Second
	t.Run("an idle connection is closed in order, and the next call connects at once", func(t *testing.T) {
		clientTo(t, &Settings{IdleTimeout: idle}, func(ps *peers, p *peer, cl *Client) {
			for range 3 {
				proven(p, cl)
				time.Sleep(idle - 1)
				if p.over() {
					t.Fatal("the connection ended too soon")
				}
				time.Sleep(idle + 1)
				if !p.over() || !p.end.Clean {
					t.Fatalf("the connection ended with %v", p.end)
				}
				time.Sleep(time.Hour)
				p = ps.next()
				start := time.Now()
				proven(p, cl)
				if !time.Now().Equal(start) {
					t.Errorf("the connection took %v", time.Since(start))
				}
			}
		})
	})

	t.Run("a connection with a call under way is not idle", func(t *testing.T) {
		clientTo(t, &Settings{IdleTimeout: idle}, func(ps *peers, p *peer, cl *Client) {
			done := async(cl, bg, testCall())
			time.Sleep(time.Hour)
			if p.over() {
				t.Fatal("the connection has ended")
			}
			p.answerNext("the call")
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("keep-alive does not keep it", func(t *testing.T) {
		clientTo(t, &Settings{IdleTimeout: idle, KeepAlive: idle / 5}, func(ps *peers, p *peer, cl *Client) {
			for range 3 {
				proven(p, cl)
				done := async(cl, bg, testCall())
				h, _ := p.message("a call that takes its time")
				for range 20 {
					time.Sleep(idle / 5)
					for p.unread() > 0 {
						p.answerNext("procedure 0, as long as there is a call")
					}
				}
				p.reply(rpcrdma.Header{XID: h.XID})
				if err := outcome(t, done); err != nil {
					t.Error(err)
				}
				time.Sleep(2*idle + time.Second)
				if !p.over() || !p.end.Clean {
					t.Fatalf("the connection ended with %v", p.end)
				}
				p = ps.next()
			}
		})
	})

	t.Run("nor is one on which the server may call", func(t *testing.T) {
		clientTo(t, &Settings{IdleTimeout: idle, Callbacks: callback(), KeepAlive: -1}, func(ps *peers, p *peer, cl *Client) {
			time.Sleep(time.Hour)
			p.send(callBytes(rpcrdma.Header{XID: 1}, 1), 0)
			p.replies(1, "the reply")
		})
	})
}

func TestKeepAlive(t *testing.T) {
	const alive = 10 * time.Second
	null := func(p *peer, what string) rpcrdma.Header {
		p.t.Helper()
		h, payload := p.message(what)
		if len(payload) != 40 || word(payload, 3) != testProg || word(payload, 4) != 1 || word(payload, 5) != 0 {
			p.t.Fatalf("%s: it is %x", what, payload)
		}
		return h
	}
	t.Run("a silent server is asked, with procedure 0 of the program called last", func(t *testing.T) {
		clientTo(t, &Settings{KeepAlive: alive}, func(ps *peers, p *peer, cl *Client) {
			time.Sleep(time.Hour)
			p.quiet("no program has been called")
			p.opens(cl, 8)
			time.Sleep(alive)
			for range 10 {
				time.Sleep(alive)
				h := null(p, "a call of procedure 0")
				p.reply(rpcrdma.Header{XID: h.XID})
				settle()
			}
			if p.over() {
				t.Error("the connection has ended")
			}
		})
	})

	t.Run("one that does not answer has lost the connection", func(t *testing.T) {
		for _, progs := range [][]rpc.Program{nil, callback()} {
			clientTo(t, &Settings{KeepAlive: alive, Callbacks: progs}, func(ps *peers, p *peer, cl *Client) {
				p.opens(cl, 8)
				pending := async(cl, bg, numbered(5))
				h, _ := p.numberedCall("a call that is not answered")
				q := ps.next()
				time.Sleep(3 * alive)
				null(p, "a call of procedure 0")
				time.Sleep(2 * tickTime)
				if !p.over() {
					t.Fatal("the connection lives")
				}
				h2, n := q.numberedCall("the call again, on a new connection")
				if n != 5 || h2.XID != h.XID {
					t.Errorf("call %d with xid %#x", n, h2.XID)
				}
				q.reply(rpcrdma.Header{XID: h2.XID})
				if err := outcome(t, pending); err != nil {
					t.Error(err)
				}
				q.quiet("procedure 0 is not sent again")
			})
		}
	})

	t.Run("nor does a server keep it by messages that answer nothing", func(t *testing.T) {
		clientTo(t, &Settings{KeepAlive: alive}, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 8)
			pending := async(cl, bg, numbered(5))
			h, _ := p.numberedCall("a call that is not answered")
			q := ps.next()
			babble := func(d time.Duration) {
				for end := time.Now().Add(d); !p.over() && time.Now().Before(end); time.Sleep(alive / 4) {
					p.reply(rpcrdma.Header{XID: h.XID + 100})
				}
			}
			babble(5 * alive / 2)
			null(p, "a call of procedure 0")
			babble(alive)
			if !p.over() {
				t.Fatal("the connection lives")
			}
			h, _ = q.numberedCall("the call again, on a new connection")
			q.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, pending); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("a server that is heard, or whose credits are all in use, is not asked", func(t *testing.T) {
		clientTo(t, &Settings{KeepAlive: alive, Callbacks: callback()}, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 8)
			for xid := range uint32(20) {
				time.Sleep(alive / 2)
				p.send(callBytes(rpcrdma.Header{XID: xid}, 1), 0)
				p.replies(xid, "the reply to the server")
			}
			p.opens(cl, 2)
			for n := range uint32(3) {
				async(cl, bg, numbered(n))
			}
			p.message("a call")
			p.message("a call")
			time.Sleep(time.Hour)
			p.quiet("all credits are in use")
			if p.over() {
				t.Error("the connection has ended")
			}
		})
	})

	t.Run("a server that is silent about calls that have been given up has lost the connection", func(t *testing.T) {
		clientTo(t, &Settings{KeepAlive: alive}, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 2)
			kept := async(cl, bg, numbered(1))
			p.message("a call")
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			gone := async(cl, ctx, numbered(2))
			p.message("a call that nobody waits for in the end")
			time.Sleep(time.Hour)
			if err := outcome(t, gone); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the call returned %v", err)
			}
			if p.over() {
				t.Fatal("the connection has ended, with a call under way that may take its time")
			}
			pending(t, kept)
		})
		clientTo(t, &Settings{KeepAlive: alive}, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 2)
			for n := range uint32(2) {
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				async(cl, ctx, numbered(n))
				p.message("a call")
			}
			waits := async(cl, bg, numbered(3))
			q := ps.next()
			time.Sleep(3 * alive)
			if !p.over() {
				t.Fatal("the connection lives: no call can be made on it")
			}
			h, n := q.numberedCall("the call that had no credit")
			if n != 3 {
				t.Errorf("call %d was sent", n)
			}
			q.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, waits); err != nil {
				t.Error(err)
			}
			q.quiet("those that were given up are not made again")
		})
	})

	t.Run("with NoReconnect a silent server is the end of the client", func(t *testing.T) {
		clientTo(t, &Settings{KeepAlive: alive, NoReconnect: true}, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, 8)
			time.Sleep(4 * alive)
			<-cl.Done()
			if err := cl.Err(); !errors.Is(err, errSilent) || !errors.Is(err, net.ErrClosed) {
				t.Errorf("the client ended with %v", err)
			}
		})
	})
}

func TestNoReconnect(t *testing.T) {
	t.Run("a client that has one connection tries for no other", func(t *testing.T) {
		// A reply of the client's own holds up the end of its connection, at a time when its
		// callers know of that already.
		released := make(chan struct{})
		data := make([]byte, 16)
		callback := rpc.Program{Number: testProg, Low: 1, High: 1, Inline: rpc.Every, Idempotent: rpc.Every,
			Handler: rpc.HandlerFunc(func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
				res.AddItem(data, func() { <-released })
			})}
		clientTo(t, &Settings{NoReconnect: true, KeepAlive: -1, Callbacks: []rpc.Program{callback}}, func(ps *peers, p *peer, cl *Client) {
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
			var closed *rpc.ClosedError
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

// readyServer runs a conversation with a server, while clients come and go. ready has a client say
// that it is ready for calls, and returns its connection.
func readyServer(t *testing.T, cfg *Settings, script func(ps *peers, s *Server, ready func(p *peer) *Conn)) {
	t.Helper()
	svc := &callerService{}
	prog := svc.program()
	prog.Handler = svc
	serverTo(t, cfg, []rpc.Program{prog}, func(ps *peers, s *Server) {
		svc.gate, svc.conns = make(chan struct{}), make(chan *Conn, 1)
		script(ps, s, func(p *peer) *Conn { return svc.ready(p, 0x5ead) })
	})
}

// over starts a call on a Backchannel.
func over(b *Backchannel, ctx context.Context, call *rpc.Call) <-chan error {
	done := make(chan error, 1)
	go func() { done <- b.Call(ctx, call) }()
	return done
}

func pending(t *testing.T, done <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		t.Fatalf("the call returned %v", err)
	default:
	}
}

// bind binds a Backchannel to a connection.
func bind(t *testing.T, b *Backchannel, cn *Conn, calls int) {
	t.Helper()
	if err := b.Bind(cn, calls); err != nil {
		t.Fatal(err)
	}
}

// TestBackchannelBind checks that calls use the connection that was bound last, and wait if no connection is bound.
func TestBackchannelBind(t *testing.T) {
	t.Run("BIDI-2-3 BIDI-5.4-3 a server that has calls to make opens no connection and waits for its client", func(t *testing.T) {
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			done := over(b, bg, numbered(1))
			time.Sleep(time.Hour)
			pending(t, done)
			if n := ps.attempts(); n != 0 {
				t.Errorf("%d connections were tried", n)
			}
			p := ps.arrive(s, "client")
			cn := ready(p)
			p.quiet("the Backchannel is not bound yet")
			bind(t, b, cn, 0)
			h, _ := p.numberedCall("the call")
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("Bind on a second connection: what is under way on the first stays there", func(t *testing.T) {
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			p, q := ps.arrive(s, "client"), ps.arrive(s, "client")
			cp, cq := ready(p), ready(q)
			bind(t, b, cp, 0)
			first := over(b, bg, numbered(1))
			h, _ := p.numberedCall("the first call")
			bind(t, b, cq, 0)
			bind(t, b, cq, 0) // once more
			second := over(b, bg, numbered(2))
			h2, n := q.numberedCall("the second call")
			if n != 2 || h2.XID == h.XID {
				t.Errorf("call %d with xid %#x", n, h2.XID)
			}
			p.reply(rpcrdma.Header{XID: h.XID})
			q.reply(rpcrdma.Header{XID: h2.XID})
			for _, d := range []<-chan error{first, second} {
				if err := outcome(t, d); err != nil {
					t.Error(err)
				}
			}
			// The first connection's end takes its calls to the second.
			bind(t, b, cp, 0)
			third := over(b, bg, numbered(3))
			h3, _ := p.numberedCall("the third call")
			bind(t, b, cq, 0)
			q.quiet("the third call is under way elsewhere")
			p.hangUp()
			h4, n := q.numberedCall("the third call again")
			if n != 3 || h4.XID != h3.XID {
				t.Errorf("call %d with xid %#x, was %#x", n, h4.XID, h3.XID)
			}
			q.reply(rpcrdma.Header{XID: h4.XID})
			if err := outcome(t, third); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestBackchannelResends checks that a call without a reply is sent again on the next connection.
func TestBackchannelResends(t *testing.T) {
	t.Run("BIDI-5.4-3 BIDI-4.3.2-3 BIDI-6-2 calls without a reply wait for the client to come back, and go again with their xids", func(t *testing.T) {
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			p := ps.arrive(s, "client")
			bind(t, b, ready(p), 8)
			done := over(b, bg, numbered(0))
			h, _ := p.numberedCall("the first call")
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
			xids := map[uint32]uint32{}
			used := map[uint32]bool{h.XID: true}
			var all []<-chan error
			for n := range uint32(4) {
				all = append(all, over(b, bg, numbered(n)))
				synctest.Wait()
			}
			for range 2 {
				h, n := p.numberedCall("a call")
				xids[n], used[h.XID] = h.XID, true
			}
			p.quiet("the others have no credit")
			p.hangUp()
			for _, d := range all {
				pending(t, d)
			}
			time.Sleep(time.Minute)
			q := ps.arrive(s, "client")
			q.quiet("the client has not said on this connection that it is ready")
			cn := ready(q)
			time.Sleep(time.Minute)
			q.quiet("the upper layer has not said who it is")
			var not *rpc.NotReadyError
			if err := cn.Call(bg, testCall()); !errors.As(err, &not) {
				t.Errorf("a call on the new connection returned %v", err)
			}
			bind(t, b, cn, 8)
			var again int
			for i := range 4 {
				s := q.next("a call")
				if forward := cn.Info().Credits; s.posted < forward+2 && i > 0 || s.posted < forward+1 {
					t.Errorf("%d receives are posted for %d calls of the client's and those of the server", s.posted, forward)
				}
				xid, n := word(s.msg, 0), word(s.msg, 17)
				if old, sent := xids[n]; sent {
					again++
					if xid != old {
						t.Errorf("call %d was sent as %#x and now is as %#x", n, old, xid)
					}
				} else if used[xid] {
					t.Errorf("call %d has the xid %#x of another", n, xid)
				}
				used[xid] = true
				if i == 0 {
					q.quiet("one credit before the first reply")
				}
				q.reply(rpcrdma.Header{XID: xid, Credit: 2})
			}
			for i, d := range all {
				if err := outcome(t, d); err != nil {
					t.Errorf("call %d: %v", i, err)
				}
			}
			if again != 2 || s.Stats().Resent != 2 {
				t.Errorf("%d calls were sent again, %d counted", again, s.Stats().Resent)
			}
			for n := range uint32(50) {
				d := over(b, bg, numbered(n))
				h, _ := q.numberedCall("a new call")
				if used[h.XID] {
					t.Fatalf("xid %#x comes again", h.XID)
				}
				used[h.XID] = true
				q.reply(rpcrdma.Header{XID: h.XID})
				if err := outcome(t, d); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
}

// TestBackchannelReady checks that a client counts as not ready only if it drops its connection on the first call.
func TestBackchannelReady(t *testing.T) {
	t.Run("BIDI-6-2 a client that drops its connection on the first call is not called again", func(t *testing.T) {
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			p := ps.arrive(s, "client")
			bind(t, b, ready(p), 0)
			done, line := over(b, bg, testCall()), over(b, bg, testCall())
			p.message("the call")
			p.hangUp()
			var not *rpc.NotReadyError
			for _, d := range []<-chan error{done, line} {
				if err := outcome(t, d); !errors.As(err, &not) || !not.Dropped {
					t.Errorf("the call returned %v", err)
				}
			}
			q := ps.arrive(s, "client")
			if err := b.Bind(ready(q), 0); !errors.As(err, &not) {
				t.Errorf("Bind returned %v", err)
			}
			if err := b.Null(bg, testProg, 1); !errors.As(err, &not) {
				t.Errorf("Null returned %v", err)
			}
			q.quiet("it would be an attack")
		})
	})

	t.Run("BIDI-6-2 nor by a Pipeline, whether or not it comes back before that has noticed", func(t *testing.T) {
		for _, late := range []bool{false, true} {
			readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
				b := NewBackchannel()
				p, q := ps.arrive(s, "client"), ps.arrive(s, "client")
				cq := ready(q)
				bind(t, b, ready(p), 0)
				pl := NewPipeline(b)
				pl.Start(numbered(0))
				pl.Start(numbered(1)) // for which there is no credit
				if err := pl.Flush(bg); err != nil {
					t.Fatal(err)
				}
				p.numberedCall("the call")
				p.hangUp()
				synctest.Wait()
				if late {
					bind(t, b, cq, 0)
				}
				var not *rpc.NotReadyError
				for range 2 {
					ctx, cancel := context.WithTimeout(bg, time.Minute)
					if call, err := pl.Wait(ctx); call == nil || !errors.As(err, &not) || !not.Dropped {
						t.Errorf("Wait returns %v, %v", call, err)
					}
					cancel()
				}
				if err := b.Bind(cq, 0); !errors.As(err, &not) {
					t.Errorf("Bind returned %v", err)
				}
				q.quiet("it would be an attack")
				pl.Close()
			})
		}
	})

	t.Run("BIDI-6-2 nor by a Pipeline that has gone on to another connection", func(t *testing.T) {
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			p, q := ps.arrive(s, "client"), ps.arrive(s, "client")
			cq := ready(q)
			bind(t, b, ready(p), 0)
			pl := NewPipeline(b)
			defer pl.Close()
			for i, end := range []*peer{p, q} {
				pl.Start(numbered(uint32(i)))
				if err := pl.Flush(bg); err != nil {
					t.Fatal(err)
				}
				end.numberedCall("a call")
				bind(t, b, cq, 0)
			}
			p.hangUp()
			var not *rpc.NotReadyError
			if got := <-soon(pl); got.call == nil || !errors.As(got.err, &not) || !not.Dropped {
				t.Errorf("Wait returns %v, %v", got.call, got.err)
			}
			q.quiet("the call is not sent again")
		})
	})

	t.Run("one that has answered before may lose its connection, and so may one that was not called", func(t *testing.T) {
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			p := ps.arrive(s, "client")
			bind(t, b, ready(p), 0)
			p.hangUp()
			p = ps.arrive(s, "client")
			bind(t, b, ready(p), 0)
			done := over(b, bg, testCall())
			p.answerNext("the first call")
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				done = over(b, bg, testCall())
				p.message("a call")
				p.hangUp()
				p = ps.arrive(s, "client")
				bind(t, b, ready(p), 0)
				p.answerNext("the call again")
				if err := outcome(t, done); err != nil {
					t.Fatal(err)
				}
			}
		})
	})

	t.Run("nor is one not ready that has answered on another connection", func(t *testing.T) {
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			p, q := ps.arrive(s, "client"), ps.arrive(s, "client")
			cp, cq := ready(p), ready(q)
			bind(t, b, cp, 0)
			slow := over(b, bg, numbered(1))
			h, _ := p.numberedCall("a call that is not answered yet")
			bind(t, b, cq, 0)
			quick := over(b, bg, numbered(2))
			q.answerNext("a call on the second connection")
			if err := outcome(t, quick); err != nil {
				t.Fatal(err)
			}
			p.hangUp()
			h2, n := q.numberedCall("the first call, on the second connection")
			if n != 1 || h2.XID != h.XID {
				t.Errorf("call %d with xid %#x, was %#x", n, h2.XID, h.XID)
			}
			q.reply(rpcrdma.Header{XID: h2.XID})
			if err := outcome(t, slow); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestBackchannelEnds checks that a call ends with its context or with Close of the Backchannel, not with a connection.
func TestBackchannelEnds(t *testing.T) {
	t.Run("a call ends with its context, and tells whether it was sent", func(t *testing.T) {
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
			unbound := over(b, ctx, numbered(1))
			time.Sleep(time.Minute)
			var lost *rpc.LostError
			err := outcome(t, unbound)
			if !errors.As(err, &lost) || lost.Sent || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, net.ErrClosed) {
				t.Fatalf("the call returned %v", err)
			}
			if want := "no connection to peer: context deadline exceeded; call was not sent"; err.Error() != want {
				t.Errorf("it says %q, want %q", err, want)
			}
			p := ps.arrive(s, "client")
			bind(t, b, ready(p), 0)
			done := over(b, bg, numbered(1))
			h, _ := p.numberedCall("a call")
			p.reply(rpcrdma.Header{XID: h.XID, Credit: 1})
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
			ctx, cancel = context.WithTimeout(bg, time.Minute)
			defer cancel()
			sent := over(b, ctx, numbered(2))
			p.numberedCall("a call")
			unsent := over(b, ctx, numbered(3))
			synctest.Wait()
			p.hangUp()
			time.Sleep(time.Minute)
			for want, d := range map[bool]<-chan error{true: sent, false: unsent} {
				if err := outcome(t, d); !errors.As(err, &lost) || lost.Sent != want || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the call returned %v", err)
				}
			}
			never := numbered(4)
			never.NoResend = true
			q := ps.arrive(s, "client")
			bind(t, b, ready(q), 0)
			last := over(b, bg, never)
			q.numberedCall("a call that is sent once")
			q.hangUp()
			if err := outcome(t, last); !errors.As(err, &lost) || !lost.Sent || lost.Err != nil {
				t.Errorf("the call returned %v", err)
			}
		})
	})

	t.Run("Close fails calls that wait, and leaves those under way", func(t *testing.T) {
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			waits := over(b, bg, testCall())
			synctest.Wait()
			b.Close()
			b.Close()
			var closed *rpc.ClosedError
			if err := outcome(t, waits); !errors.As(err, &closed) {
				t.Errorf("the call returned %v", err)
			}
			b = NewBackchannel()
			p := ps.arrive(s, "client")
			cn := ready(p)
			bind(t, b, cn, 0)
			under := over(b, bg, testCall())
			h, _ := p.message("the call")
			b.Close()
			if err := b.Bind(cn, 0); !errors.As(err, &closed) {
				t.Errorf("Bind after Close returned %v", err)
			}
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, under); err != nil {
				t.Error(err)
			}
			if err := b.Call(bg, testCall()); !errors.As(err, &closed) {
				t.Errorf("a call after Close returned %v", err)
			}
		})
	})

	t.Run("Server.Shutdown leaves calls of a Backchannel waiting, and Close of that ends them", func(t *testing.T) {
		readyServer(t, nil, func(ps *peers, s *Server, ready func(*peer) *Conn) {
			b := NewBackchannel()
			p := ps.arrive(s, "client")
			bind(t, b, ready(p), 0)
			done := over(b, bg, testCall())
			p.message("a call")
			if err := s.Shutdown(bg); err != nil {
				t.Error(err)
			}
			pending(t, done)
			b.Close()
			if err := outcome(t, done); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the call returned %v", err)
			}
		})
	})
}

// wild answers calls with their own arguments, makes calls with the same xids, says things
// that was not asked for, grants whatever it likes, and ends the connection after a
// number of calls.
func (p *peer) wild(calls int) {
	defer p.hangUp()
	for n := 0; n < calls; {
		s, ok := p.take()
		if !ok {
			return
		}
		var h rpcrdma.Header
		k, err := rpcrdma.ConsumeHeader(s.msg, &h, nil)
		if err != nil || h.Proc != rpcrdma.ProcMsg {
			p.t.Errorf("a message of %+v, %v", h, err)
			return
		}
		payload := s.msg[k:]
		if word(payload, 1) != uint32(oncrpc.Call) {
			if got := payload[24:]; !bytes.Equal(got, opaque("mine")) {
				p.t.Errorf("a call of the peer's returned %q", got)
			}
			continue
		}
		n++
		if rand.N(4) == 0 {
			time.Sleep(rand.N(time.Second))
		}
		reply := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 1, Credit: uint32(rand.N(9))})
		reply = oncrpc.AppendReply(reply, &oncrpc.ReplyHeader{XID: h.XID})
		reply = append(reply, payload[40:]...)
		p.mu.Lock()
		spare := len(p.recvs) > 8+2 // those for replies, and a few
		p.mu.Unlock()
		extra := rand.N(8)
		if !spare {
			extra = -1
		}
		switch extra {
		case 0:
			p.deliver(callBytes(rpcrdma.Header{XID: h.XID}, uint32(procEcho+rand.N(2)), opaque("mine")...))
		case 1:
			p.deliver(p.replyBytes(rpcrdma.Header{XID: rand.Uint32(), Credit: 8}, nil))
		case 2:
			p.deliver(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: rand.Uint32(), Vers: 1, Credit: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk}))
		case 3:
			p.deliver(reply)
		}
		p.deliver(reply)
	}
}

// wildCalls makes calls of all kinds and checks what comes of each. closed is set once
// they may fail.
func wildCalls(t *testing.T, call func(context.Context, *rpc.Call) error, closed *atomic.Bool) {
	var all sync.WaitGroup
	for g := range uint32(8) {
		all.Go(func() {
			for i := range uint32(40) {
				c := numbered(g<<16 | i)
				ctx, cancel := bg, func() {}
				kind := rand.N(8)
				switch kind {
				case 0:
					ctx, cancel = context.WithTimeout(bg, rand.N(2*time.Second))
				case 1:
					c.NoResend = true
				}
				err := call(ctx, c)
				cancel()
				var lost *rpc.LostError
				switch {
				case err == nil:
					if !bytes.Equal(c.Results, c.Args) {
						t.Errorf("call %x returned %x", c.Args, c.Results)
					}
				case kind == 0 && errors.Is(err, context.DeadlineExceeded):
				case kind == 1 && errors.As(err, &lost) && lost.Sent && lost.Err == nil:
				case closed.Load() && errors.Is(err, net.ErrClosed):
					return
				default:
					t.Errorf("a call of kind %d returned %v", kind, err)
				}
			}
		})
	}
	all.Wait()
}

// TestWildPeers checks that every call gets its own reply and nothing leaks, whatever a peer does to end its
// connections again and again.
func TestWildPeers(t *testing.T) {
	prog := func() rpc.Program {
		p := (&testService{}).program()
		p.Idempotent = nil
		return p
	}
	t.Run("a client's servers", func(t *testing.T) {
		for range 5 {
			clientTo(t, &Settings{Callbacks: []rpc.Program{prog()}}, func(ps *peers, p *peer, cl *Client) {
				var wild sync.WaitGroup
				ps.mu.Lock()
				ps.more = func() *peer {
					p := newPeer(t)
					if rand.N(4) == 0 {
						p.refuse = errors.New("script: refused")
					} else {
						wild.Go(func() { p.wild(1 + rand.N(20)) })
					}
					return p
				}
				ps.mu.Unlock()
				wild.Go(func() { p.wild(5) })
				wildCalls(t, cl.Call, new(atomic.Bool))
				st := cl.Stats()
				if st.Conns < 10 || st.Resent == 0 {
					t.Errorf("counters are %+v", st)
				}
				cl.Close()
				wild.Wait()
			})
		}
	})

	t.Run("a client's servers, and its end", func(t *testing.T) {
		for i := range 20 {
			clientTo(t, &Settings{Callbacks: []rpc.Program{prog()}}, func(ps *peers, p *peer, cl *Client) {
				var wild sync.WaitGroup
				ps.mu.Lock()
				ps.more = func() *peer {
					p := newPeer(t)
					switch rand.N(4) {
					case 0:
						p.refuse = errors.New("script: refused")
					case 1:
						p.stuck = true
					default:
						wild.Go(func() { p.wild(1 + rand.N(20)) })
					}
					return p
				}
				ps.mu.Unlock()
				wild.Go(func() { p.wild(5) })
				var closed atomic.Bool
				wild.Go(func() {
					time.Sleep(rand.N(20 * time.Second))
					closed.Store(true)
					if i%2 == 0 {
						if err := cl.Close(); err != nil {
							t.Error(err)
						}
						return
					}
					ctx, cancel := context.WithTimeout(bg, time.Second)
					defer cancel()
					if err := cl.Shutdown(ctx); err != nil && err != context.DeadlineExceeded {
						t.Error(err)
					}
				})
				wildCalls(t, cl.Call, &closed)
				wild.Wait()
				<-cl.Done()
			})
		}
	})

	t.Run("a server's clients", func(t *testing.T) {
		for range 5 {
			svc := &callerService{}
			pr := prog()
			pr.Handler = svc
			serverTo(t, nil, []rpc.Program{pr}, func(ps *peers, s *Server) {
				svc.gate, svc.conns = make(chan struct{}), make(chan *Conn, 1)
				b := NewBackchannel()
				done := make(chan struct{})
				go func() {
					defer close(done)
					wildCalls(t, b.Call, new(atomic.Bool))
				}()
				for i := 0; ; i++ {
					p := ps.arrive(s, "client")
					if err := b.Bind(svc.ready(p, uint32(i)), 8); err != nil {
						t.Fatal(err)
					}
					over := make(chan struct{})
					go func() {
						defer close(over)
						p.wild(1 + rand.N(20))
					}()
					select {
					case <-over:
						continue
					case <-done:
					}
					p.hangUp()
					<-over
					if st := s.Stats(); st.Conns < 10 || st.Resent == 0 {
						t.Errorf("counters are %+v", st)
					}
					return
				}
			})
		}
	})
}

// ends counts the calls that end.
type ends struct {
	rpc.NoObserver
	n atomic.Int32
}

func (e *ends) CallEnded(*rpc.CallEvent) { e.n.Add(1) }

// TestNewClient checks that a client may exist before its server.
func TestNewClient(t *testing.T) {
	t.Run("calls wait for the first connection, and fail with the reason why it cannot be made", func(t *testing.T) {
		inSpots(t, func(s *spots) {
			var told atomic.Int32
			var observed ends
			cl, err := NewClient(s, "a", plain(&ClientConfig{
				Config: Config{Observer: &observed}, IdleTimeout: time.Minute, KeepAlive: time.Minute,
				OnReconnect: func(*Client) { told.Add(1) },
			}))
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			time.Sleep(time.Hour)
			if info, st := cl.Info(), cl.Stats(); cl.Conn() != nil || info.Credits != 0 || st.Conns != 0 || st.OpenConns != 0 {
				t.Errorf("without a server there is connection %v: %+v %+v", cl.Conn(), info, st)
			}
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
			var lost *rpc.LostError
			if err := cl.Call(ctx, testCall()); !errors.As(err, &lost) || lost.Sent || lost.Addr != "a" || !errors.As(lost.Reason, new(*DialError)) {
				t.Errorf("without a server: %#v", err)
			}
			done := async(cl, bg, testCall())
			p := s.next("a")
			time.Sleep(15 * time.Second)
			p.answerNext("the call that waits")
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			if st := cl.Stats(); told.Load() != 1 || observed.n.Load() != 2 || st.Conns != 1 || st.OpenConns != 1 {
				t.Errorf("OnReconnect was called %d times, %d calls were observed: %+v", told.Load(), observed.n.Load(), st)
			}
		})
	})

	for _, name := range []string{"refuses", "is silent"} {
		t.Run("Close while a server "+name, func(t *testing.T) {
			inSpots(t, func(s *spots) {
				s.silent["a"] = name == "is silent"
				cl, err := NewClient(s, "a", plain(nil))
				if err != nil {
					t.Fatal(err)
				}
				done := async(cl, bg, testCall())
				synctest.Wait()
				if err := cl.Close(); err != nil {
					t.Error(err)
				}
				var closed *rpc.ClosedError
				if err := outcome(t, done); !errors.As(err, &closed) || closed.Addr != "a" {
					t.Errorf("the call returned %v", err)
				}
			})
		})
	}

	t.Run("what makes no sense", func(t *testing.T) {
		if cl, err := NewClient(nil, "a", nil); err == nil || cl != nil {
			t.Errorf("no provider: %v, %v", cl, err)
		}
		if cl, err := NewClient(TCP{}, "a", &ClientConfig{NoReconnect: true}); err == nil || cl != nil {
			t.Errorf("NoReconnect: %v, %v", cl, err)
		}
	})
}
