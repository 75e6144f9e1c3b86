package transport_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A stranger is a server that knows records alone: answer makes the reply to a call.
type stranger struct {
	calls  atomic.Int32
	answer func(h *oncrpc.CallHeader, args []byte) (*oncrpc.ReplyHeader, []byte)
}

func (s *stranger) serve(t testing.TB, l net.Listener) {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		conns.Go(func() {
			defer c.Close()
			for {
				msg, err := readRecord(c)
				if err != nil {
					return
				}
				var h oncrpc.CallHeader
				n, err := oncrpc.ConsumeCall(msg, &h)
				if err != nil {
					t.Error(err)
					return
				}
				s.calls.Add(1)
				rh, results := s.answer(&h, msg[n:])
				rh.XID = h.XID
				if writeRecord(c, append(oncrpc.AppendReply(nil, rh), results...)) != nil {
					return
				}
			}
		})
	}
}

// startStranger bridges s to a new server, and returns a client.
func startStranger(t *testing.T, s *stranger, cfg transport.Config) *transport.Client {
	t.Helper()
	leak.Check(t)
	provider := iwarp.New(iwarp.Config{})
	server, err := transport.NewServer(&transport.ServerConfig{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	bridge := server.Bridge(opaqueBinding{}, prog)
	l, err := server.Listen(bg, provider, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(l) })
	wg.Go(func() { s.serve(t, bridge) })
	t.Cleanup(func() { server.Close(); wg.Wait() })
	return dialNew(t, provider, l.Addr().String(), nil)
}

// mirror answers with the arguments.
func mirror(_ *oncrpc.CallHeader, args []byte) (*oncrpc.ReplyHeader, []byte) {
	return &oncrpc.ReplyHeader{}, args
}

// TestBridgeMiddleware checks that middleware wraps a bridge's calls in the same way as a program's handlers.
func TestBridgeMiddleware(t *testing.T) {
	verf := oncrpc.Auth{Flavor: oncrpc.FlavorShort, Body: []byte("proof")}
	cred := (&oncrpc.AuthSys{Machine: "m", UID: 7}).Auth()
	bulk := bytes.Repeat([]byte("bulk"), 5000)
	for _, tt := range []struct {
		name  string
		proc  uint32
		args  []byte
		reply oncrpc.ReplyHeader // the stranger's
		sizes [2]int             // of results and items
	}{
		{"a call", 1, opaqueArgs([]byte("data")), oncrpc.ReplyHeader{Verf: verf}, [2]int{4, 4}},
		{"without results", 1, nil, oncrpc.ReplyHeader{}, [2]int{}},
		{"procedure 0", 0, nil, oncrpc.ReplyHeader{}, [2]int{}},
		{"bulk", 2, opaqueArgs(bulk), oncrpc.ReplyHeader{Verf: verf}, [2]int{4, len(bulk)}},
		{"PROC_UNAVAIL", 3, nil, oncrpc.ReplyHeader{Verf: verf, AcceptStat: oncrpc.ProcUnavail}, [2]int{}},
		{"PROG_MISMATCH", 3, nil, oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: 2, High: 9}, [2]int{}},
		{"AUTH_TOOWEAK", 3, nil, oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: oncrpc.AuthTooWeak}, [2]int{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var mu sync.Mutex
			var begun rpc.Request
			var got oncrpc.ReplyHeader
			var sizes [2]int
			look := func(next rpc.Handler) rpc.Handler {
				return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
					mu.Lock()
					defer mu.Unlock()
					begun = *req
					begun.Cred.Body, begun.Args = bytes.Clone(req.Cred.Body), bytes.Clone(req.Args)
					if rpc.ConnFromContext(ctx) != req.Conn() || rpc.IsInline(ctx) {
						t.Error("the context is not that of the call")
					}
					next.ServeRPC(ctx, req, res)
					if !bytes.Equal(req.Args, begun.Args) {
						t.Error("the arguments have changed")
					}
					got = res.Status()
					got.Verf.Body = bytes.Clone(got.Verf.Body)
					sizes[0], sizes[1] = res.Size()
				})
			}
			s := &stranger{answer: func(_ *oncrpc.CallHeader, args []byte) (*oncrpc.ReplyHeader, []byte) {
				if tt.reply.Err() != nil {
					args = nil
				}
				h := tt.reply
				return &h, args
			}}
			var o seen
			cl := startStranger(t, s, transport.Config{Middleware: []rpc.Middleware{look}, Observer: &o})
			call := rpc.Call{Prog: prog, Vers: 1, Proc: tt.proc, Cred: cred, Args: tt.args, MaxResults: 4}
			buf := make([]byte, len(tt.args))
			if len(buf) > 0 {
				call.WriteItems = []rpc.WriteItem{{Buf: buf}}
			}
			err := cl.Call(bg, &call)
			if want := tt.reply.Err(); (err == nil) != (want == nil) {
				t.Fatal(err, "want", want)
			}
			if call.Reply.Stat != tt.reply.Stat || call.Reply.AcceptStat != tt.reply.AcceptStat || call.Reply.AuthStat != tt.reply.AuthStat ||
				call.Reply.Low != tt.reply.Low || call.Reply.High != tt.reply.High || !bytes.Equal(call.Reply.Verf.Body, tt.reply.Verf.Body) {
				t.Errorf("the client got %+v, want %+v", call.Reply, tt.reply)
			}
			if d := call.Decoder(); err == nil && len(tt.args) > 0 && !bytes.Equal(d.Item(), tt.args[4:4+len(tt.args)-4]) {
				t.Error("other data came back")
			}
			event := o.last(t, tt.proc)
			mu.Lock()
			defer mu.Unlock()
			if begun.Procedure != (rpc.Procedure{Prog: prog, Vers: 1, Proc: tt.proc}) || !bytes.Equal(begun.Cred.Body, cred.Body) || !bytes.Equal(begun.Args, tt.args) {
				t.Errorf("the call is %+v", begun)
			}
			if sizes != tt.sizes || !bytes.Equal(got.Verf.Body, tt.reply.Verf.Body) || got.AcceptStat != tt.reply.AcceptStat || got.AuthStat != tt.reply.AuthStat || got.High != tt.reply.High {
				t.Errorf("the outcome is %+v, %v bytes, want %v", got, sizes, tt.sizes)
			}
			if event.Handler <= 0 || event.Status.AcceptStat != tt.reply.AcceptStat || event.Status.AuthStat != tt.reply.AuthStat {
				t.Errorf("the Observer has %v, %+v", event.Handler, event.Status)
			}
		})
	}
}

func opaqueArgs(data []byte) []byte { return xdr.AppendOpaque(nil, data) }

// TestBridgeRefusals checks that a call that middleware refuses in any way is never read, and that the next call is.
func TestBridgeRefusals(t *testing.T) {
	refusals := []*oncrpc.RPCError{
		{AcceptStat: oncrpc.ProgMismatch, Low: 3, High: 9},
		{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.RPCMismatch, Low: 2, High: 4},
	}
	for _, stat := range []oncrpc.AcceptStat{oncrpc.ProgUnavail, oncrpc.ProcUnavail, oncrpc.GarbageArgs, oncrpc.SystemErr} {
		refusals = append(refusals, &oncrpc.RPCError{AcceptStat: stat})
	}
	for stat := oncrpc.AuthBadCred; stat <= oncrpc.AuthGSSCtx; stat++ {
		refusals = append(refusals, &oncrpc.RPCError{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: stat})
	}
	refuse := func(next rpc.Handler) rpc.Handler {
		return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			switch n := int(req.Proc); {
			case n < len(refusals):
				res.Reject(refusals[n])
			case n == len(refusals):
				panic("a defect of the wrapper")
			default:
				next.ServeRPC(ctx, req, res)
			}
		})
	}
	s := &stranger{answer: mirror}
	cl := startStranger(t, s, transport.Config{Middleware: []rpc.Middleware{refuse}, Logger: quietLog})
	for i := range len(refusals) + 1 {
		want := oncrpc.RPCError{AcceptStat: oncrpc.SystemErr}
		if i < len(refusals) {
			want = *refusals[i]
		}
		want.Prog, want.Vers, want.Proc = prog, 1, uint32(i)
		var got *oncrpc.RPCError
		if err := cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: uint32(i)}); !errors.As(err, &got) || *got != want {
			t.Errorf("%v, want %v", err, &want)
		}
	}
	if n := s.calls.Load(); n != 0 {
		t.Errorf("%d calls were read", n)
	}
	if err := cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: 100}); err != nil || s.calls.Load() != 1 {
		t.Errorf("%v, %d calls were read", err, s.calls.Load())
	}
}

// TestBridgeRewrites checks that the reader of the bridge gets the call as rewritten by middleware, and that the client
// gets the reply as rewritten by middleware.
func TestBridgeRewrites(t *testing.T) {
	nobody := (&oncrpc.AuthSys{Machine: "m", UID: 65534}).Auth()
	rewrite := func(next rpc.Handler) rpc.Handler {
		return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			req.Cred = nobody
			req.SetArgs(opaqueArgs(slices.Repeat(req.Args[4:8], 2000)))
			next.ServeRPC(ctx, req, res)
			if !res.Join() {
				t.Error("Join failed")
			}
			res.Results = append(res.Results, "tail"...)
		})
	}
	var cred atomic.Value
	s := &stranger{answer: func(h *oncrpc.CallHeader, args []byte) (*oncrpc.ReplyHeader, []byte) {
		cred.Store(bytes.Clone(h.Cred.Body))
		return mirror(h, args)
	}}
	cl := startStranger(t, s, transport.Config{Middleware: []rpc.Middleware{rewrite}})
	call := rpc.Call{Prog: prog, Vers: 1, Proc: 1, Args: opaqueArgs([]byte("four")), MaxResults: 10_000}
	if err := cl.Call(bg, &call); err != nil {
		t.Fatal(err)
	}
	if want := append(opaqueArgs(bytes.Repeat([]byte("four"), 2000)), "tail"...); !bytes.Equal(call.Results, want) {
		t.Errorf("%d bytes of results, want %d", len(call.Results), len(want))
	}
	if got := cred.Load().([]byte); !bytes.Equal(got, nobody.Body) {
		t.Errorf("the credential was %x", got)
	}
}

// TestBridgeWithoutHandler checks that Accept and calls fail if a Middleware returns no handler.
func TestBridgeWithoutHandler(t *testing.T) {
	none := func(rpc.Handler) rpc.Handler { return nil }
	server, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Middleware: []rpc.Middleware{none}}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := server.Bridge(nil, prog).Accept(); err == nil || errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept returned %v", err)
	}
	provider := iwarp.New(iwarp.Config{})
	l, err := server.Listen(bg, provider, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(l)
	var refused *oncrpc.RPCError
	if err := dialNew(t, provider, l.Addr().String(), nil).Null(bg, prog, 1); !errors.As(err, &refused) || refused.AcceptStat != oncrpc.ProgUnavail {
		t.Errorf("the call returned %v", err)
	}
}
