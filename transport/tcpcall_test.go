package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Conversations over TCP, on net.Pipe and in fake time, with a client of which the server is
// played.

// A tcpScene is a client over TCP under test.
type tcpScene struct {
	t     *testing.T
	cl    *Client
	conns chan *tcpPeer // the server's ends, as they are made
	fail  atomic.Bool   // no connections are made
}

// tcpClient runs a conversation with a client.
func tcpClient(t *testing.T, cfg *Settings, script func(sc *tcpScene, p *tcpPeer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sc := &tcpScene{t: t, conns: make(chan *tcpPeer, 100)}
		var ends []*tcpPeer
		var err error
		sc.cl, err = DialTCPWith(bg, "server:1", cfg.Client(), func(ctx context.Context, addr string) (net.Conn, error) {
			if sc.fail.Load() || addr != "server:1" {
				return nil, errors.New("nobody listens")
			}
			a, b := net.Pipe()
			p := (&tcpPeer{Conn: b, t: t}).listen()
			ends = append(ends, p)
			sc.conns <- p
			return hostConn{a, addr}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { // also when the script ends early
			sc.cl.Close()
			for _, p := range ends {
				p.Close()
			}
		}()
		script(sc, <-sc.conns)
		sc.cl.Close()
		for _, p := range ends {
			p.Close()
		}
		synctest.Wait()
		if err := sc.cl.Null(bg, testProg, 1); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a call of a closed client: %v", err)
		}
		c := sc.cl.latest().(*tcpConn)
		if n, waiting := c.awaits(), c.connStats().Waiting; n != 0 || waiting != 0 {
			t.Errorf("in the end %d calls are pending, %d wait", n, waiting)
		}
	})
}

// next is the next connection that the client makes, which must be there.
func (sc *tcpScene) next(what string) *tcpPeer {
	sc.t.Helper()
	time.Sleep(time.Second) // there are pauses after connections that were of no use
	synctest.Wait()
	select {
	case p := <-sc.conns:
		return p
	default:
		sc.t.Fatalf("%s: no connection is made", what)
	}
	return nil
}

// received takes the next call, of the given procedure, and returns its xid and arguments.
func (p *tcpPeer) received(what string, proc uint32) (xid uint32, args []byte) {
	p.t.Helper()
	msg := p.message(what)
	var h oncrpc.CallHeader
	n, err := oncrpc.ConsumeCall(msg, &h)
	if err != nil || h.Proc != proc || h.Prog != testProg {
		p.t.Fatalf("%s: %+v, %v", what, h, err)
	}
	return h.XID, msg[n:]
}

// answer sends a reply.
func (p *tcpPeer) answer(xid uint32, results ...byte) {
	p.send(append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: xid}), results...))
}

func TestTCPCalls(t *testing.T) {
	t.Run("the message is as the caller says, with its items in place", func(t *testing.T) {
		tcpClient(t, nil, func(sc *tcpScene, p *tcpPeer) {
			args := append(xdr.AppendUint32(xdr.AppendUint32(nil, 5), 3), 9, 9, 9, 9)
			call := rpc.Call{Prog: testProg, Vers: 1, Proc: 3, Args: args, ReadItems: []rpc.ReadItem{{Offset: 4, Data: []byte("first")}, {Offset: 8, Data: []byte("two")}},
				WriteItems: []rpc.WriteItem{{Buf: make([]byte, 100), Chunked: true, N: 7}}}
			done := async(sc.cl, bg, &call)
			xid, got := p.received("a call", 3)
			want := append(append(opaque("first"), opaque("two")...), 9, 9, 9, 9)
			if !bytes.Equal(got, want) {
				t.Errorf("arguments are %x, want %x", got, want)
			}
			p.answer(xid, opaque("results")...)
			if err := outcome(t, done); err != nil {
				t.Fatal(err)
			}
			d := call.Decoder()
			if item := d.Item(); string(item) != "results" || d.End() != nil || call.WriteItems[0].Chunked || call.WriteItems[0].N != 0 {
				t.Errorf("%q %v %+v", item, d.Err(), call.WriteItems[0])
			}
		})
	})
	t.Run("replies in any order", func(t *testing.T) {
		tcpClient(t, nil, func(sc *tcpScene, p *tcpPeer) {
			var calls [3]rpc.Call
			var done [3]<-chan error
			var xids [3]uint32
			for i := range calls {
				calls[i] = rpc.Call{Prog: testProg, Vers: 1, Proc: uint32(i), MaxResults: 40_000}
				done[i] = async(sc.cl, bg, &calls[i])
				xids[i], _ = p.received("a call", uint32(i))
			}
			for _, i := range []int{2, 0, 1} {
				p.answer(xids[i], bytes.Repeat([]byte{byte(i)}, 16_000*i)...)
				if err := outcome(t, done[i]); err != nil || len(calls[i].Results) != 16_000*i {
					t.Errorf("call %d: %d bytes, %v", i, len(calls[i].Results), err)
				}
			}
		})
	})
	t.Run("a reply in fragments", func(t *testing.T) {
		tcpClient(t, nil, func(sc *tcpScene, p *tcpPeer) {
			call := rpc.Call{Prog: testProg, Vers: 1, Proc: 1}
			done := async(sc.cl, bg, &call)
			xid, _ := p.received("a call", 1)
			msg := append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: xid}), 1, 2, 3, 4)
			for i := range msg {
				p.Write(append(oncrpc.AppendRecordMark(nil, 1, i == len(msg)-1), msg[i]))
			}
			if err := outcome(t, done); err != nil || !bytes.Equal(call.Results, []byte{1, 2, 3, 4}) {
				t.Errorf("%x %v", call.Results, err)
			}
		})
	})
	t.Run("callers wait for their turn", func(t *testing.T) {
		tcpClient(t, &Settings{Credits: 2}, func(sc *tcpScene, p *tcpPeer) {
			var done [5]<-chan error
			ctx, cancel := context.WithCancel(bg)
			for i := range done {
				c := bg
				if i == 2 {
					c = ctx
				}
				done[i] = async(sc.cl, c, &rpc.Call{Prog: testProg, Vers: 1, Proc: uint32(i)})
				synctest.Wait()
			}
			first, _ := p.received("the first", 0)
			second, _ := p.received("the second", 1)
			p.quiet("with two calls in flight")
			cancel()
			if err := outcome(t, done[2]); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			p.answer(first)
			outcome(t, done[0])
			fourth, _ := p.received("the fourth", 3)
			p.quiet("again")
			p.answer(fourth)
			p.answer(second)
			fifth, _ := p.received("the fifth", 4)
			p.answer(fifth)
			for _, i := range []int{1, 3, 4} {
				if err := outcome(t, done[i]); err != nil {
					t.Error(err)
				}
			}
		})
	})
}

// TestTCPCancel checks that a canceled call does not affect other calls.
func TestTCPCancel(t *testing.T) {
	t.Run("its late reply is dropped", func(t *testing.T) {
		for _, size := range []int{0, 30_000} {
			tcpClient(t, &Settings{Credits: 1}, func(sc *tcpScene, p *tcpPeer) {
				ctx, cancel := context.WithCancel(bg)
				done := async(sc.cl, ctx, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1, MaxResults: size})
				xid, _ := p.received("a call", 1)
				cancel()
				if err := outcome(t, done); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				next := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 2})
				xid2, _ := p.received("the next", 2)
				p.answer(xid, make([]byte, size)...)
				p.answer(xid2)
				if err := outcome(t, next); err != nil {
					t.Error(err)
				}
				if st := sc.cl.Stats(); st.Canceled != 1 || st.Dropped != 1 || st.Conns != 1 {
					t.Errorf("counters are %+v", st)
				}
			})
		}
	})
	t.Run("in the middle of its reply", func(t *testing.T) {
		tcpClient(t, nil, func(sc *tcpScene, p *tcpPeer) {
			ctx, cancel := context.WithCancel(bg)
			call := rpc.Call{Prog: testProg, Vers: 1, Proc: 1, MaxResults: 100_000}
			done := async(sc.cl, ctx, &call)
			xid, _ := p.received("a call", 1)
			msg := append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: xid}), make([]byte, 60_000)...)
			p.Write(append(marked(len(msg)), msg[:30_000]...))
			cancel()
			if err := outcome(t, done); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			next := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 2})
			xid2, _ := p.received("the next", 2)
			p.Write(msg[30_000:])
			p.answer(xid2)
			if err := outcome(t, next); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("before it could be sent", func(t *testing.T) {
		// The server does not read: the queue stays bounded, and each call counts until it is out.
		synctest.Test(t, func(t *testing.T) {
			a, b := net.Pipe()
			cl, err := DialTCPWith(bg, "server:1", (&Settings{Credits: 3, NoReconnect: true}).Client(), func(context.Context, string) (net.Conn, error) { return a, nil })
			if err != nil {
				t.Fatal(err)
			}
			sent := 0
			for range 10 {
				ctx, cancel := context.WithTimeout(bg, time.Second)
				call := rpc.Call{Prog: testProg, Vers: 1, Proc: 1, Args: make([]byte, 1000)}
				if err := cl.Call(ctx, &call); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				if pendingOf(&call).sent {
					sent++
				}
				cancel()
			}
			if sent != 3 {
				t.Errorf("%d calls are queued", sent)
			}
			p := (&tcpPeer{Conn: b, t: t}).listen()
			for range 3 {
				p.received("a call that has been given up", 1)
			}
			p.quiet("no more")
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 2})
			xid, _ := p.received("the next", 2)
			p.answer(xid)
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			cl.Close()
			p.Close()
		})
	})
}

// TestTCPHostileServers checks how a client handles a server that violates the protocol.
func TestTCPHostileServers(t *testing.T) {
	reply := func(xid uint32, results ...byte) []byte {
		return append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: xid}), results...)
	}
	record := func(msg []byte) []byte { return append(marked(len(msg)), msg...) }
	const most = 10_000
	for _, tt := range []struct {
		name string
		send func(xid uint32) []byte
		bad  bool          // the call fails with a *BadReplyError
		ends string        // the connection ends for this reason
		in   time.Duration // then
	}{
		{"a reply longer than the call has room for", func(xid uint32) []byte { return record(reply(xid, make([]byte, most+9)...)) }, true, "", 0},
		{"a reply that fits no buffer, and is longer", func(xid uint32) []byte { return record(reply(xid, make([]byte, 1<<20)...)) }, true, "", 0},
		{"in fragments", func(xid uint32) []byte {
			b := reply(xid, make([]byte, 20_000)...)
			return append(append(oncrpc.AppendRecordMark(nil, 5000, false), b[:5000]...), append(oncrpc.AppendRecordMark(nil, len(b)-5000, true), b[5000:]...)...)
		}, true, "", 0},
		{"a reply without a header", func(xid uint32) []byte { return record(xdr.AppendUint32(xdr.AppendUint32(nil, xid), 1)) }, true, "", 0},
		{"a reply to another call", func(xid uint32) []byte { return record(reply(xid + 1)) }, false, "", 0},
		{"a call, where there are no callbacks", func(xid uint32) []byte { return record(appendCall(nil, xid, 1)) }, false, "", 0},
		{"a long call", func(xid uint32) []byte { return record(appendCall(nil, xid, 1, make([]byte, 1<<20)...)) }, false, "", 0},
		{"a message of no type", func(xid uint32) []byte { return record(xdr.AppendUint32(xdr.AppendUint32(nil, xid), 7)) }, false, "", 0},
		{"a message of nothing", func(uint32) []byte { return marked(0) }, false, "", 0},
		{"a message of more than MaxMessage", func(uint32) []byte { return marked(5 << 20) }, false, "more than MaxMessage", 0},
		{"an empty fragment", func(uint32) []byte { return make([]byte, 4) }, false, "empty fragment", 0},
		{"half a reply", func(xid uint32) []byte { return record(reply(xid, 1, 2, 3, 4))[:20] }, false, "rest of a message has not come", 30 * time.Second},
		{"half a long reply", func(xid uint32) []byte { return append(marked(9000), reply(xid)...) }, false, "rest of a message has not come", 30 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tcpClient(t, &Settings{NoReconnect: true}, func(sc *tcpScene, p *tcpPeer) {
				done := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1, MaxResults: most - 32})
				xid, _ := p.received("a call", 1)
				go p.Write(tt.send(xid))
				synctest.Wait()
				if tt.ends != "" {
					time.Sleep(tt.in)
					var closed *rpc.ClosedError
					if err := outcome(t, done); !errors.As(err, &closed) || !bytes.Contains([]byte(err.Error()), []byte(tt.ends)) {
						t.Errorf("the call: %v", err)
					}
					p.ended("then")
					return
				}
				if tt.bad {
					var bad *rpc.BadReplyError
					if err := outcome(t, done); !errors.As(err, &bad) {
						t.Errorf("the call: %v", err)
					}
				} else {
					p.answer(xid)
					if err := outcome(t, done); err != nil {
						t.Errorf("the call: %v", err)
					}
				}
				next := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 2})
				xid, _ = p.received("the next", 2)
				p.answer(xid)
				if err := outcome(t, next); err != nil {
					t.Errorf("the next call: %v", err)
				}
			})
		})
	}
}

// TestTCPReconnect checks that a client over TCP reconnects by the same rules as over RDMA.
func TestTCPReconnect(t *testing.T) {
	t.Run("calls are sent again, with their xids, and new ones have others", func(t *testing.T) {
		tcpClient(t, nil, func(sc *tcpScene, p *tcpPeer) {
			done := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1})
			once := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 2, NoResend: true})
			seen := map[uint32]bool{}
			var xid uint32
			for range 2 {
				msg := p.message("a call")
				seen[word(msg, 0)] = true
				if word(msg, 5) == 1 {
					xid = word(msg, 0)
				}
			}
			p.Close()
			p = sc.next("the next connection")
			if got, _ := p.received("the call again", 1); got != xid {
				t.Errorf("it has the xid %#x, had %#x", got, xid)
			}
			var lost *rpc.LostError
			if err := outcome(t, once); !errors.As(err, &lost) || !lost.Sent {
				t.Errorf("the call that is not to be sent again: %v", err)
			}
			third := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 3})
			got, _ := p.received("another call", 3)
			if seen[got] {
				t.Errorf("it has the xid of another, %#x", got)
			}
			p.answer(got)
			p.answer(xid)
			if err := errors.Join(outcome(t, done), outcome(t, third)); err != nil {
				t.Error(err)
			}
			if st := sc.cl.Stats(); st.Resent != 1 || st.Conns != 2 {
				t.Errorf("counters are %+v", st)
			}
		})
	})
	t.Run("a context that ends first", func(t *testing.T) {
		tcpClient(t, nil, func(sc *tcpScene, p *tcpPeer) {
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
			done := async(sc.cl, ctx, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1})
			p.received("a call", 1)
			sc.fail.Store(true)
			p.Close()
			time.Sleep(time.Minute)
			var lost *rpc.LostError
			if err := outcome(t, done); !errors.As(err, &lost) || !lost.Sent || !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			sc.fail.Store(false)
			time.Sleep(2 * defaultMaxPause) // no pause is longer
			again := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 2})
			p = sc.next("once there is a server")
			xid, _ := p.received("a call", 2)
			p.answer(xid)
			if err := outcome(t, again); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("NoReconnect", func(t *testing.T) {
		tcpClient(t, &Settings{NoReconnect: true}, func(sc *tcpScene, p *tcpPeer) {
			done := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1})
			p.received("a call", 1)
			p.Close()
			var closed *rpc.ClosedError
			var ended *fabric.ConnError
			if err := outcome(t, done); !errors.As(err, &closed) || !errors.As(err, &ended) || !ended.Remote || !ended.Clean {
				t.Error(err)
			}
			<-sc.cl.Done()
			if !errors.As(sc.cl.Err(), &closed) {
				t.Error(sc.cl.Err())
			}
		})
	})
	t.Run("IdleTimeout and KeepAlive", func(t *testing.T) {
		tcpClient(t, &Settings{IdleTimeout: time.Minute}, func(sc *tcpScene, p *tcpPeer) {
			time.Sleep(3 * time.Minute)
			p.ended("an idle connection")
			done := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1})
			p = sc.next("for a call")
			xid, _ := p.received("it", 1)
			p.answer(xid)
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
		tcpClient(t, &Settings{KeepAlive: time.Minute}, func(sc *tcpScene, p *tcpPeer) {
			done := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1})
			xid, _ := p.received("a call", 1)
			babble := func(d time.Duration) {
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Second) {
					p.answer(xid + 100)
				}
			}
			babble(2*time.Minute + time.Second)
			p.received("is the server there", 0)
			babble(50 * time.Second)
			time.Sleep(10 * time.Second)
			p.ended("it is not")
			p = sc.next("the next connection")
			if got, _ := p.received("the call again", 1); got != xid {
				t.Errorf("xid %#x, want %#x", got, xid)
			}
			p.answer(xid)
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("the first connection cannot be made", func(t *testing.T) {
		var dial *DialError
		_, err := DialTCPWith(bg, "x", nil, func(context.Context, string) (net.Conn, error) { return nil, io.ErrNoProgress })
		if !errors.As(err, &dial) || !errors.Is(err, io.ErrNoProgress) || dial.Provider != "tcp" {
			t.Error(err)
		}
	})
}

// TestTCPEnds checks the end of a client.
func TestTCPEnds(t *testing.T) {
	t.Run("Shutdown waits for calls", func(t *testing.T) {
		tcpClient(t, nil, func(sc *tcpScene, p *tcpPeer) {
			done := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1})
			xid, _ := p.received("a call", 1)
			down := make(chan error, 1)
			go func() { down <- sc.cl.Shutdown(bg) }()
			synctest.Wait()
			if err := sc.cl.Null(bg, testProg, 1); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a call behind Shutdown: %v", err)
			}
			p.quiet("before the reply")
			p.answer(xid)
			if err := errors.Join(outcome(t, done), outcome(t, down)); err != nil {
				t.Error(err)
			}
			p.ended("then")
		})
	})
	t.Run("its context ends the wait", func(t *testing.T) {
		tcpClient(t, nil, func(sc *tcpScene, p *tcpPeer) {
			done := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1})
			p.received("a call", 1)
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			if err := sc.cl.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if err := outcome(t, done); !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	})
	t.Run("Close fails calls, those in line as well", func(t *testing.T) {
		tcpClient(t, &Settings{Credits: 1}, func(sc *tcpScene, p *tcpPeer) {
			done := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1, Args: make([]byte, 50_000)})
			inLine := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 2})
			synctest.Wait()
			sc.cl.Close()
			var closed *rpc.ClosedError
			for _, d := range []<-chan error{done, inLine} {
				if err := outcome(t, d); !errors.As(err, &closed) || closed.Reason != nil {
					t.Error(err)
				}
			}
		})
	})
}
