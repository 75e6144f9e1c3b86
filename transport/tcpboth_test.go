package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Calls in both directions over TCP, and what only sockets show.

// A wrapped connection hides the socket from the transport.
type wrapped struct{ net.Conn }

func dialWrapped(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	return wrapped{c}, err
}

// callable is a client that executes errands, and its server's way to it.
func callable(t *testing.T, cfg transport.Settings, e *errander, dial func(ctx context.Context, addr string) (net.Conn, error)) (w *tcpWorld, cl *transport.Client, cn *transport.Conn) {
	t.Helper()
	conns := make(chan *transport.Conn, 1)
	e.ready = func(req *rpc.Request) { conns <- req.Conn().(*transport.Conn) }
	w = startTCP(t, &cfg, e.program())
	cfg.Callbacks = []rpc.Program{e.program()}
	cl, err := transport.DialTCPWith(bg, w.addr, transport.Once(&cfg).Client(), dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	if err := cl.Call(bg, &rpc.Call{Prog: errands, Vers: 1, Proc: procReady}); err != nil {
		t.Fatal(err)
	}
	return w, cl, <-conns
}

// TestTCPBothWays checks that both ends can call each other at full speed with bulk data in all directions, so that the
// buffers of both sockets are full. No call may wait forever, and no data may be mixed up.
func TestTCPBothWays(t *testing.T) {
	for name, dial := range map[string]func(ctx context.Context, addr string) (net.Conn, error){
		"sockets": transport.TCP{}.DialStream, "other connections": dialWrapped,
	} {
		t.Run(name, func(t *testing.T) {
			_, cl, cn := callable(t, transport.Settings{BackwardCredits: 12}, new(errander), dial)
			cn.AllowBackward(0)
			if i := cn.Info(); i.BackwardCredits != 12 || i.Credits != transport.DefaultCredits || i.Provider != "tcp" {
				t.Errorf("the connection is %+v", i)
			}
			ctx, cancel := context.WithTimeout(bg, 2*time.Minute)
			defer cancel()
			calls := 2000
			if raceEnabled || testing.Short() {
				calls /= 5
			}
			var wg sync.WaitGroup
			for i, w := range []way{cl.Call, cn.Call} {
				for g := range 16 {
					wg.Go(func() {
						var r runner
						rng := rand.New(rand.NewPCG(uint64(g), uint64(i)))
						for range calls / 16 {
							e := randomErrand(rng, rng.Uint64(), true)
							if rng.IntN(3) == 0 {
								e.in, e.out = rng.IntN(longestErrand), rng.IntN(longestErrand)
							}
							if err := errors.Join(r.run(ctx, w, e)); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
			}
			wg.Wait()
		})
	}
}

func TestTCPConn(t *testing.T) {
	var quick atomic.Pointer[error]
	var back atomic.Pointer[transport.Conn]
	e := &errander{}
	e.meet = func(ctx context.Context) { // is in the middle of an errand for the server
		if err := back.Load().Null(ctx, prog, 1); err != nil {
			t.Error(err)
		}
	}
	w, cl, cn := callable(t, transport.Settings{}, e, transport.TCP{}.DialStream)
	back.Store(cl.Latest())
	var r runner
	t.Run("before the client is ready", func(t *testing.T) {
		var notReady *rpc.NotReadyError
		if err := cn.Null(bg, errands, 1); !errors.As(err, &notReady) || notReady.Dropped {
			t.Error(err)
		}
	})
	cn.AllowBackward(3)
	t.Run("a callback calls the server before it answers", func(t *testing.T) {
		if err := errors.Join(r.run(bg, cn.Call, errand{no: 7, proc: procMeet, in: 100, out: 100_000})); err != nil {
			t.Error(err)
		}
		if i := cn.Info(); i.BackwardCredits != 3 {
			t.Errorf("the connection is %+v", i)
		}
	})
	t.Run("an inline handler gets an error, not a deadlock", func(t *testing.T) {
		w2 := startTCP(t, nil, rpc.Program{Number: prog + 9, Low: 1, High: 1, Inline: rpc.Every,
			Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
				req.Conn().AllowBackward(0)
				err := req.Conn().Null(ctx, prog, 1)
				quick.Store(&err)
			})})
		if err := w2.dial(t, nil).Call(bg, &rpc.Call{Prog: prog + 9, Vers: 1, Proc: 1}); err != nil {
			t.Error(err)
		}
		if err := *quick.Load(); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the inline handler's call: %v", err)
		}
	})
	t.Run("an optional operation", func(t *testing.T) {
		var op *transport.OperationError
		if _, err := cn.Operate(bg, transport.Optional{Type: 9}); !errors.As(err, &op) {
			t.Error(err)
		}
	})
	t.Run("the end", func(t *testing.T) {
		if cn.Err() != nil {
			t.Error(cn.Err())
		}
		cn.Close()
		<-cn.Done()
		if err := cn.Err(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if err := cn.Null(bg, errands, 1); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		<-cl.Done()
		testutil.Eventually(t, "the server forgets the connection", func() bool { return w.server.Stats().OpenConns == 0 })
	})
}

// TestTCPBackchannel checks that a Backchannel continues on the client's next connection, from TCP to TCP, and from TCP
// to RDMA and back, as when a service migrates step by step.
func TestTCPBackchannel(t *testing.T) {
	provider := iwarp.New(iwarp.Config{})
	back := transport.NewBackchannel()
	bound := make(chan struct{}, 10)
	var hold atomic.Pointer[chan struct{}]
	e := &errander{}
	e.ready = func(req *rpc.Request) {
		if err := back.Bind(req.Conn(), 0); err != nil {
			t.Error(err)
		}
		bound <- struct{}{}
	}
	w := startTCP(t, nil, e.program())
	l, err := w.server.Listen(bg, provider, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(l) }()
	defer func() { <-served }()
	defer w.server.Close()

	mine := &errander{meet: func(context.Context) { <-*hold.Load() }}
	cfg := &transport.Settings{Callbacks: []rpc.Program{mine.program()}, NoReconnect: true}
	connect := func(rdma bool) (cl *transport.Client) {
		var err error
		if rdma {
			cl, err = transport.Dial(bg, provider, l.Addr().String(), cfg.Client())
		} else {
			cl, err = transport.DialTCP(bg, w.addr, cfg.Client())
		}
		if err == nil {
			err = cl.Call(bg, &rpc.Call{Prog: errands, Vers: 1, Proc: procReady})
		}
		if err != nil {
			t.Fatal(err)
		}
		<-bound
		return cl
	}
	var r runner
	cl := connect(false)
	for i, rdma := range []bool{false, true, false, true, true, false} {
		if err := errors.Join(r.run(bg, back.Call, errand{no: uint64(i), proc: procErrand, in: 50, out: 60})); err != nil {
			t.Fatal(err)
		}
		gate := make(chan struct{})
		hold.Store(&gate)
		under := make(chan error, 1)
		go func() { // is under way when the connection is lost
			var r runner
			under <- errors.Join(r.run(bg, back.Call, errand{no: 100, proc: procMeet, in: 5, out: 6}))
		}()
		testutil.Eventually(t, "the call is under way", func() bool { return cl.Stats().Calls >= 3 })
		cl.Close()
		next := connect(rdma)
		close(gate)
		if err := <-under; err != nil {
			t.Errorf("step %d: %v", i, err)
		}
		cl = next
	}
	cl.Close()
	back.Close()
}

// TestTCPHalfSent checks that an abandoned, partly sent call is sent completely, from a copy, and that the connection
// survives.
func TestTCPHalfSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	cl, err := transport.DialTCP(bg, l.Addr().String(), (&transport.Settings{MaxMessage: 64 << 20}).Client())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	peer := <-accepted
	defer peer.Close()

	data := make([]byte, 32<<20) // more than the buffers of two sockets take
	fill(data, 1)
	want := xdr.AppendOpaque(nil, data)
	ctx, cancel := context.WithCancel(bg)
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procSum, Args: xdr.AppendUint32(nil, uint32(len(data))), ReadItems: []rpc.ReadItem{{Offset: 4, Data: data}}}
	done := make(chan error, 1)
	go func() { done <- cl.Call(ctx, &call) }()
	head := make([]byte, 1000)
	if _, err := io.ReadFull(peer, head); err != nil {
		t.Fatal(err)
	}
	queued := make(chan error, 1)
	go func() {
		call := rpc.Call{Prog: prog, Vers: 1, Proc: procSum, Args: make([]byte, 10_000)}
		queued <- cl.Call(ctx, &call)
	}()
	cancel()
	for _, c := range []chan error{done, queued} {
		if err := <-c; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	clear(data)
	null := make(chan error, 1)
	go func() { null <- cl.Null(bg, prog, 1) }()
	rest := make([]byte, 4+40+len(want)-len(head))
	if _, err := io.ReadFull(peer, rest); err != nil {
		t.Fatal(err)
	}
	if got := append(head, rest...)[44:]; !bytes.Equal(got, want) {
		t.Error("the call is spoiled")
	}
	for { // perhaps the one that was queued, then the last
		msg, err := readRecord(peer)
		if err != nil {
			t.Fatal(err)
		}
		var h oncrpc.CallHeader
		if _, err := oncrpc.ConsumeCall(msg, &h); err != nil {
			t.Fatal(err)
		}
		reply := oncrpc.AppendReply(oncrpc.AppendRecordMark(nil, 24, true), &oncrpc.ReplyHeader{XID: h.XID})
		if _, err := peer.Write(reply); err != nil {
			t.Fatal(err)
		}
		if h.Proc == 0 {
			break
		}
	}
	if err := <-null; err != nil {
		t.Error(err)
	}
}

// TestTCPEarlyReply checks that a server that answers a call before it has been sent completely gets the rest of the
// call, not what its memory contains later.
func TestTCPEarlyReply(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	data := make([]byte, 16<<20)
	fill(data, 1)
	want := xdr.AppendOpaque(nil, data)
	got := make(chan []byte, 1)
	answered := make(chan struct{})
	go func() {
		peer, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer peer.Close()
		head := make([]byte, 1000)
		if _, err := io.ReadFull(peer, head); err != nil {
			t.Error(err)
		}
		xid, _, _ := oncrpc.Peek(head[4:])
		peer.Write(oncrpc.AppendReply(oncrpc.AppendRecordMark(nil, 24, true), &oncrpc.ReplyHeader{XID: xid}))
		<-answered
		rest := make([]byte, 44+len(want)-len(head))
		if _, err := io.ReadFull(peer, rest); err != nil {
			t.Error(err)
		}
		got <- append(head, rest...)[44:]
	}()
	cl, err := transport.DialTCP(bg, l.Addr().String(), (&transport.Settings{MaxMessage: 64 << 20}).Client())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procSum, Args: xdr.AppendUint32(nil, uint32(len(data))), ReadItems: []rpc.ReadItem{{Offset: 4, Data: data}}}
	if err := cl.Call(bg, &call); err != nil {
		t.Fatal(err)
	}
	clear(data)
	close(answered)
	if !bytes.Equal(<-got, want) {
		t.Error("the call is spoiled")
	}
}

// TestRequestMemory checks, over RDMA and TCP, what a handler gets and passes through its request: memory, and the
// notification that the reply's memory is no longer in use.
func TestRequestMemory(t *testing.T) {
	for _, rdma := range []bool{false, true} {
		for _, n := range []int{10, 100_000} {
			var released atomic.Int32
			var serving atomic.Bool
			h := rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
				serving.Store(true)
				b := req.Alloc(n)
				fill(b, 5)
				own := bytes.Repeat([]byte{6}, n)
				for range 2 {
					req.WhenReleased(func() {
						if serving.Load() {
							t.Error("released while the handler runs")
						}
						clear(own)
						released.Add(1)
					})
				}
				res.AddItem(b, nil)
				res.AddItem(own, nil)
				if req.Proc == 2 {
					res.Fail(oncrpc.SystemErr)
				}
				if req.Alloc(-1) != nil || req.Alloc(1<<30) != nil {
					t.Error("Alloc returns more than a message may have")
				}
				serving.Store(false)
			})
			p := rpc.Program{Number: prog + 5, Low: 1, High: 1, Handler: h}
			var cl *transport.Client
			if rdma {
				w := onIwarp(iwarp.Config{}).start(t, nil)
				if err := w.server.Register(p); err != nil {
					t.Fatal(err)
				}
				cl = w.dial(t, nil)
			} else {
				cl = startTCP(t, nil, p).dial(t, nil)
			}
			call := rpc.Call{Prog: prog + 5, Vers: 1, Proc: 1, WriteItems: []rpc.WriteItem{{Buf: make([]byte, n)}, {Buf: make([]byte, n)}}}
			if err := cl.Call(bg, &call); err != nil {
				t.Fatal(err)
			}
			want := make([]byte, n)
			fill(want, 5)
			d := call.Decoder()
			if first, second := d.Item(), d.Item(); d.End() != nil || !bytes.Equal(first, want) || bytes.Count(second, []byte{6}) != n {
				t.Errorf("RDMA %v, %d bytes: other results (%v)", rdma, n, d.Err())
			}
			testutil.Eventually(t, "the memory is released", func() bool { return released.Load() == 2 })
			call.Proc = 2
			if err := cl.Call(bg, &call); err == nil {
				t.Error("no error")
			}
			testutil.Eventually(t, "the memory of an error is released", func() bool { return released.Load() == 4 })
		}
	}
}

// TestHandlersCallBack checks that handlers may call their client over RDMA and TCP, however many calls of any length
// the client has under way.
func TestHandlersCallBack(t *testing.T) {
	const callers, back = 64, 0x20000091
	for _, tt := range []struct {
		name  string
		cfg   transport.Config
		args  int
		times int // each caller's calls
	}{
		{"calls longer than a buffer", transport.Config{}, 6000, 1},
		{"more calls than credits", transport.Config{Credits: 8}, 100, 1},
		{"both, again and again", transport.Config{Credits: 8, MaxMessage: 1 << 20, MaxMemory: 8 << 20}, 50_000, 4},
	} {
		for _, provider := range []fabric.Provider{iwarp.New(iwarp.Config{}), transport.TCP{}} {
			t.Run(tt.name+"/"+fmt.Sprintf("%T", provider), func(t *testing.T) {
				s, err := transport.NewServer(&transport.ServerConfig{Config: tt.cfg})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				err = s.Register(rpc.Program{Number: prog, Low: 1, High: 1, Idempotent: rpc.Every,
					Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
						req.Conn().AllowBackward(0)
						if req.Conn().Call(ctx, &rpc.Call{Prog: back, Vers: 1, Proc: 1}) != nil {
							res.Fail(oncrpc.SystemErr)
						}
					})})
				if err != nil {
					t.Fatal(err)
				}
				l, err := s.Listen(bg, provider, "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				go s.Serve(l)
				nothing := rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) {})
				cl, err := transport.Dial(bg, provider, l.Addr().String(), &transport.ClientConfig{
					Config:    transport.Config{MaxMessage: tt.cfg.MaxMessage},
					KeepAlive: time.Second,
					Callbacks: []rpc.Program{{Number: back, Low: 1, High: 1, Inline: rpc.Every, Idempotent: rpc.Every, Handler: nothing}},
				})
				if err != nil {
					t.Fatal(err)
				}
				defer cl.Close()
				ctx, cancel := context.WithTimeout(bg, 10*time.Second)
				defer cancel()
				var done atomic.Int64
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for range tt.times {
							if err := cl.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: 1, Args: make([]byte, tt.args)}); err == nil {
								done.Add(1)
							}
						}
					})
				}
				wg.Wait()
				if n := done.Load(); n != int64(callers*tt.times) {
					t.Errorf("%d of %d calls were answered", n, callers*tt.times)
				}
			})
		}
	}
}

// TestHandlersWait checks how many handlers may wait for another call of their client on a new connection, see Program.
func TestHandlersWait(t *testing.T) {
	for _, tt := range []struct {
		provider fabric.Provider
		room     int
		more     int // calls that there is room for after a reply with all but one in use; 0: as before
	}{
		{iwarp.New(iwarp.Config{}), 4, 16},
		{transport.TCP{}, 16, 0},
	} {
		t.Run(fmt.Sprintf("%T", tt.provider), func(t *testing.T) {
			s, err := transport.NewServer(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			waiting, gate := make(chan struct{}, 100), make(chan struct{})
			err = s.Register(rpc.Program{Number: prog, Low: 1, High: 1, Idempotent: rpc.Every,
				Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
					if req.Proc == 1 {
						waiting <- struct{}{}
						select {
						case <-gate:
						case <-ctx.Done():
						}
					}
				})})
			if err != nil {
				t.Fatal(err)
			}
			l, err := s.Listen(bg, tt.provider, "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go s.Serve(l)
			cl, err := transport.Dial(bg, tt.provider, l.Addr().String(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			call := func(proc uint32, patience time.Duration) error {
				ctx, cancel := context.WithTimeout(bg, patience)
				defer cancel()
				return cl.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: proc})
			}
			var wg sync.WaitGroup
			wait := func(n int) {
				for range n {
					wg.Go(func() {
						if err := call(1, time.Minute); err != nil {
							t.Error(err)
						}
					})
				}
				for range n {
					<-waiting
				}
			}
			if err := call(2, time.Minute); err != nil { // the first reply has the first grant
				t.Fatal(err)
			}
			wait(tt.room - 1)
			if err := call(2, time.Minute); err != nil {
				t.Errorf("with %d that wait: %v", tt.room-1, err)
			}
			full := tt.room
			if tt.more > 0 {
				full = tt.more
			}
			wait(full - tt.room + 1)
			if err := call(2, 200*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("with %d that wait: %v", full, err)
			}
			close(gate)
			wg.Wait()
			if err := call(2, time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
}
