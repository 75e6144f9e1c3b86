package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// onBoth runs a test over RDMA and over TCP, with a server of programs.
func onBoth(t *testing.T, scfg *transport.ServerConfig, ccfg *transport.ClientConfig, programs []rpc.Program, f func(t *testing.T, cl *transport.Client)) {
	t.Helper()
	for _, b := range []struct {
		name     string
		provider func() fabric.Provider
	}{
		{"iwarp", func() fabric.Provider { return iwarp.New(iwarp.Config{}) }},
		{"TCP", func() fabric.Provider { return transport.TCP{} }},
	} {
		t.Run(b.name, func(t *testing.T) {
			leak.Check(t)
			p := b.provider()
			f(t, dialNew(t, p, serveNew(t, p, scfg, programs), ccfg))
		})
	}
}

// serveNew serves programs until the test ends, and returns the address.
func serveNew(t *testing.T, p fabric.Provider, cfg *transport.ServerConfig, programs []rpc.Program) string {
	t.Helper()
	server, err := transport.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range programs {
		if err := server.Register(program); err != nil {
			t.Fatal(err)
		}
	}
	l, err := server.Listen(bg, p, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Close(); wg.Wait() })
	return l.Addr().String()
}

func dialNew(t *testing.T, p fabric.Provider, addr string, cfg *transport.ClientConfig) *transport.Client {
	t.Helper()
	cl, err := transport.Dial(bg, p, addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// handler is a program with the number prog that f executes.
func handler(f rpc.HandlerFunc) rpc.Program {
	return rpc.Program{Number: prog, Low: 1, High: 1, Handler: f, Idempotent: rpc.Every}
}

// A lockedBuffer is a buffer for many goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// take returns what was written, and forgets it.
func (l *lockedBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.b.String()
	l.b.Reset()
	return s
}

var quietLog = slog.New(slog.NewTextHandler(io.Discard, nil))

// TestRejections checks that a handler can refuse a call in every way that RPC defines, and that the caller sees the
// refusal.
func TestRejections(t *testing.T) {
	accepted := func(s oncrpc.AcceptStat) *oncrpc.RPCError { return &oncrpc.RPCError{AcceptStat: s} }
	denied := func(s oncrpc.AuthStat) *oncrpc.RPCError {
		return &oncrpc.RPCError{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: s}
	}
	mismatch := &oncrpc.RPCError{AcceptStat: oncrpc.ProgMismatch, Low: 3, High: 9}
	rpcMismatch := &oncrpc.RPCError{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.RPCMismatch, Low: 2, High: 4}
	type response = rpc.Response
	type tt struct {
		name string
		do   func(req *rpc.Request, res *response)
		want *oncrpc.RPCError // nil: a success, with results
	}
	all := []tt{
		{"nothing", func(*rpc.Request, *response) {}, nil},
		{"PROG_MISMATCH", func(_ *rpc.Request, res *response) { res.Reject(mismatch) }, mismatch},
		{"RPC_MISMATCH", func(_ *rpc.Request, res *response) { res.Reject(rpcMismatch) }, rpcMismatch},
		{"an unknown reply_stat", func(_ *rpc.Request, res *response) { res.Reject(&oncrpc.RPCError{Stat: 7}) }, accepted(oncrpc.SystemErr)},
		{"an unknown accept_stat", func(_ *rpc.Request, res *response) { res.Reject(accepted(77)) }, accepted(oncrpc.SystemErr)},
		{"an unknown reject_stat", func(_ *rpc.Request, res *response) {
			res.Reject(&oncrpc.RPCError{Stat: oncrpc.MsgDenied, RejectStat: 9})
		}, accepted(oncrpc.SystemErr)},
		{"a denial that says AUTH_OK", func(_ *rpc.Request, res *response) { res.Reject(denied(oncrpc.AuthOK)) }, accepted(oncrpc.SystemErr)},
		{"the last counts: Fail", func(_ *rpc.Request, res *response) {
			res.Deny(oncrpc.AuthTooWeak)
			res.Fail(oncrpc.ProcUnavail)
		}, accepted(oncrpc.ProcUnavail)},
		{"the last counts: Deny", func(_ *rpc.Request, res *response) {
			res.Reject(mismatch)
			res.Deny(oncrpc.AuthTooWeak)
		}, denied(oncrpc.AuthTooWeak)},
		{"taken back with Success", func(_ *rpc.Request, res *response) { res.Deny(oncrpc.AuthTooWeak); res.Fail(oncrpc.Success) }, nil},
		{"taken back with AUTH_OK", func(_ *rpc.Request, res *response) { res.Fail(oncrpc.SystemErr); res.Deny(oncrpc.AuthOK) }, nil},
		{"taken back with nil", func(_ *rpc.Request, res *response) { res.Reject(mismatch); res.Reject(nil) }, nil},
		{"an error that is an AuthStat", func(req *rpc.Request, res *response) {
			res.FailWith(req, fmt.Errorf("who are you: %w", oncrpc.AuthRejectedCred))
		}, denied(oncrpc.AuthRejectedCred)},
		{"an error that is another server's", func(req *rpc.Request, res *response) {
			res.FailWith(req, fmt.Errorf("asking another: %w", denied(oncrpc.AuthTooWeak)))
		}, accepted(oncrpc.SystemErr)},
	}
	for s := oncrpc.ProgUnavail; s <= oncrpc.SystemErr; s++ {
		if s == oncrpc.ProgMismatch {
			continue
		}
		all = append(all,
			tt{"Fail " + s.String(), func(_ *rpc.Request, res *response) { res.Fail(s) }, accepted(s)},
			tt{"Reject " + s.String(), func(_ *rpc.Request, res *response) { res.Reject(accepted(s)) }, accepted(s)})
	}
	for s := oncrpc.AuthBadCred; s <= oncrpc.AuthGSSCtx+1; s++ {
		all = append(all,
			tt{"Deny " + s.String(), func(_ *rpc.Request, res *response) { res.Deny(s) }, denied(s)},
			tt{"Reject " + s.String(), func(_ *rpc.Request, res *response) { res.Reject(denied(s)) }, denied(s)})
	}
	verf := oncrpc.Auth{Flavor: oncrpc.FlavorShort, Body: []byte("proof")}
	var mu sync.Mutex // what goes through a socket orders nothing for the race detector
	var status oncrpc.ReplyHeader
	program := handler(func(_ context.Context, req *rpc.Request, res *response) {
		res.Verf = verf
		res.AddItem([]byte("results"), nil)
		all[req.Proc-1].do(req, res)
		mu.Lock()
		defer mu.Unlock()
		status = res.Status()
	})
	program.Inline = rpc.Every
	onBoth(t, &transport.ServerConfig{Config: transport.Config{Logger: quietLog}}, nil, []rpc.Program{program}, func(t *testing.T, cl *transport.Client) {
		for i, tt := range all {
			call := rpc.Call{Prog: prog, Vers: 1, Proc: uint32(i + 1)}
			err := cl.Call(bg, &call)
			if tt.want == nil {
				if err != nil || !bytes.Equal(call.Results, xdr.AppendOpaque(nil, []byte("results"))) {
					t.Errorf("%s: %v, results %q", tt.name, err, call.Results)
				}
			} else {
				want := *tt.want
				want.Prog, want.Vers, want.Proc = prog, 1, uint32(i+1)
				var got *oncrpc.RPCError
				if !errors.As(err, &got) || *got != want {
					t.Errorf("%s: %v, want %v", tt.name, err, &want)
				}
				mu.Lock()
				if e := status.Err().(*oncrpc.RPCError); *e != *tt.want {
					t.Errorf("%s: Status is %v", tt.name, e)
				}
				mu.Unlock()
				if len(call.Results) > 0 {
					t.Errorf("%s: results %q", tt.name, call.Results)
				}
			}
			has := call.Reply.Verf.Flavor == verf.Flavor && bytes.Equal(call.Reply.Verf.Body, verf.Body)
			if want := tt.want == nil || tt.want.Stat == oncrpc.MsgAccepted; has != want {
				t.Errorf("%s: the verifier is %v", tt.name, call.Reply.Verf)
			}
		}
	})
}

// TestProgramAuth checks that the program's decision comes first, for all procedures, and that a refused call costs
// nothing but the reply.
func TestProgramAuth(t *testing.T) {
	var executed atomic.Int32
	program := handler(func(context.Context, *rpc.Request, *rpc.Response) { executed.Add(1) })
	program.Idempotent = nil
	program.Auth = func(req *rpc.Request) oncrpc.AuthStat {
		if req.Proc == 66 {
			panic("a defect of the check")
		}
		if sys, ok := req.AuthSys(); ok && sys.UID == 7 && req.Conn() != nil && len(req.Args) == 0 {
			return oncrpc.AuthOK
		}
		return oncrpc.AuthTooWeak
	}
	friend, stranger := oncrpc.AuthSys{Machine: "m", UID: 7}, oncrpc.AuthSys{Machine: "m", UID: 8}
	trailing := friend.Auth()
	trailing.Body = append(trailing.Body, 0, 0, 0, 0)
	onBoth(t, &transport.ServerConfig{Config: transport.Config{Logger: quietLog}}, nil, []rpc.Program{program}, func(t *testing.T, cl *transport.Client) {
		executed.Store(0)
		for _, tt := range []struct {
			name string
			cred oncrpc.Auth
			ok   bool
		}{
			{"AUTH_NONE", oncrpc.Auth{}, false},
			{"a friend", friend.Auth(), true},
			{"a stranger", stranger.Auth(), false},
			{"a body cut short", oncrpc.Auth{Flavor: oncrpc.FlavorSys, Body: friend.Auth().Body[:8]}, false},
			{"bytes behind the body", trailing, false},
			{"another flavor with that body", oncrpc.Auth{Flavor: oncrpc.FlavorShort, Body: friend.Auth().Body}, false},
			{"the friend again", friend.Auth(), true},
		} {
			for proc := range uint32(2) {
				err := cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: proc, Cred: tt.cred})
				var got *oncrpc.RPCError
				if tt.ok != (err == nil) || !tt.ok && (!errors.As(err, &got) || got.Stat != oncrpc.MsgDenied || got.AuthStat != oncrpc.AuthTooWeak) {
					t.Errorf("%s, procedure %d: %v", tt.name, proc, err)
				}
			}
		}
		var got *oncrpc.RPCError
		if err := cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: 66}); !errors.As(err, &got) || got.Stat != oncrpc.MsgAccepted || got.AcceptStat != oncrpc.SystemErr {
			t.Errorf("a check that panics: %v", err)
		}
		if n := executed.Load(); n != 2 {
			t.Errorf("%d calls were executed, want the friend's two, without procedure 0", n)
		}
	})
}

// TestNullProcedure checks that a program's handler can execute procedure 0.
func TestNullProcedure(t *testing.T) {
	program := func(number, vers uint32, null bool) rpc.Program {
		return rpc.Program{Number: number, Low: vers, High: vers, Null: null, Handler: rpc.HandlerFunc(
			func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
				res.Results = append(res.Results, "done"...)
			})}
	}
	weak := program(prog+2, 2, false)
	weak.Auth = func(*rpc.Request) oncrpc.AuthStat { return oncrpc.AuthTooWeak }
	both, err := rpc.Versions(program(prog+2, 1, true), weak, program(prog+2, 3, false))
	if err != nil {
		t.Fatal(err)
	}
	programs := []rpc.Program{program(prog, 1, true), program(prog+1, 1, false), both}
	onBoth(t, nil, nil, programs, func(t *testing.T, cl *transport.Client) {
		for _, tt := range []struct {
			prog, vers uint32
			want       string
			denied     bool
		}{{prog, 1, "done", false}, {prog + 1, 1, "", false}, {prog + 2, 1, "done", false}, {prog + 2, 2, "", true}, {prog + 2, 3, "", false}} {
			call := rpc.Call{Prog: tt.prog, Vers: tt.vers}
			if err := cl.Call(bg, &call); (err != nil) != tt.denied || string(call.Results) != tt.want {
				t.Errorf("program %d version %d: %v, %q", tt.prog, tt.vers, err, call.Results)
			}
		}
	})
}

// TestMiddleware checks that wrappers are called from the outermost inward and see the outcome of a call, and that a
// wrapper's panic is treated like a handler's.
func TestMiddleware(t *testing.T) {
	const well, refused, panics, tooLong, early = 1, 2, 3, 4, 5
	var mu sync.Mutex
	var trace []string
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		trace = append(trace, fmt.Sprintf(format, args...))
	}
	wrapper := func(name string) rpc.Middleware {
		return func(next rpc.Handler) rpc.Handler {
			return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
				note("%s begins", name)
				defer func() {
					h := res.Status()
					results, items := res.Size()
					note("%s ends: %v %v %d+%d", name, h.Stat, h.AcceptStat, results, items)
				}()
				if name == "b" && req.Proc == early {
					panic("a defect of the wrapper")
				}
				next.ServeRPC(ctx, req, res)
				if name == "b" && req.Proc == tooLong {
					res.Verf.Body = make([]byte, oncrpc.MaxAuthBody+1)
				}
			})
		}
	}
	program := handler(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		note("executed")
		res.Results = append(res.Results, 1, 2, 3, 4)
		res.AddItem([]byte("hello"), nil)
		switch req.Proc {
		case refused:
			res.Fail(oncrpc.ProcUnavail)
		case panics:
			panic("a defect of the handler")
		}
	})
	program.Handler = rpc.Chain(program.Handler, wrapper("c"))
	var log lockedBuffer
	cfg := &transport.ServerConfig{Config: transport.Config{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Middleware: []rpc.Middleware{wrapper("a"), wrapper("b")},
	}}
	onBoth(t, cfg, nil, []rpc.Program{program}, func(t *testing.T, cl *transport.Client) {
		const begin, success = "a begins,b begins,c begins,executed,", "MSG_ACCEPTED SUCCESS 8+5"
		const fails = "MSG_ACCEPTED PROC_UNAVAIL 8+5"
		for _, tt := range []struct {
			proc  uint32
			want  oncrpc.AcceptStat
			trace string
			log   string
		}{
			{0, oncrpc.Success, "", ""},
			{well, oncrpc.Success, begin + "c ends: " + success + ",b ends: " + success + ",a ends: " + success, ""},
			{refused, oncrpc.ProcUnavail, begin + "c ends: " + fails + ",b ends: " + fails + ",a ends: " + fails, ""},
			{panics, oncrpc.SystemErr, begin + "c ends: " + success + ",b ends: " + success + ",a ends: " + success, "a defect of the handler"},
			{early, oncrpc.SystemErr, "a begins,b begins,b ends: MSG_ACCEPTED SUCCESS 0+0,a ends: MSG_ACCEPTED SUCCESS 0+0", "a defect of the wrapper"},
			{tooLong, oncrpc.SystemErr, begin + "c ends: " + success + ",b ends: " + success + ",a ends: " + success, "a verifier of 401 bytes"},
		} {
			mu.Lock()
			trace = nil
			mu.Unlock()
			log.take()
			err := cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: tt.proc})
			var got *oncrpc.RPCError
			if errors.As(err, &got); (err == nil) != (tt.want == oncrpc.Success) || err != nil && got.AcceptStat != tt.want {
				t.Errorf("procedure %d: %v", tt.proc, err)
			}
			mu.Lock()
			if s := strings.Join(trace, ","); s != tt.trace {
				t.Errorf("procedure %d: %s", tt.proc, s)
			}
			mu.Unlock()
			if s := log.take(); !strings.Contains(s, tt.log) || tt.log == "" && s != "" {
				t.Errorf("procedure %d: the log is %q", tt.proc, s)
			}
		}
	})

	s, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{
		Middleware: []rpc.Middleware{func(rpc.Handler) rpc.Handler { return nil }}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Register(program) == nil {
		t.Error("a program without a handler was registered")
	}
}

// TestHandlerContext checks that a handler's context contains its connection, whichever goroutine executes the call,
// and whether or not its reply is cached.
func TestHandlerContext(t *testing.T) {
	type key struct{}
	program := handler(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		derived, cancel := context.WithCancel(context.WithValue(ctx, key{}, 1))
		defer cancel()
		ok := rpc.ConnFromContext(ctx) == req.Conn() && rpc.ConnFromContext(derived) == req.Conn() &&
			rpc.IsInline(ctx) == (req.Proc&1 > 0) && rpc.IsInline(derived) == (req.Proc&1 > 0) &&
			ctx.Err() == nil && ctx.Value(key{}) == nil && derived.Value(key{}) == 1
		if _, has := ctx.Deadline(); has || !ok {
			res.Fail(oncrpc.SystemErr)
		}
	})
	program.Inline = func(_, proc uint32) bool { return proc&1 > 0 }
	program.Idempotent = func(_, proc uint32) bool { return proc&2 > 0 }
	onBoth(t, nil, nil, []rpc.Program{program}, func(t *testing.T, cl *transport.Client) {
		for proc := range uint32(4) {
			if err := cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: 4 + proc}); err != nil {
				t.Errorf("procedure %d: %v", 4+proc, err)
			}
		}
	})
	if cn := rpc.ConnFromContext(bg); cn != nil || rpc.IsInline(bg) {
		t.Errorf("without a handler: %v", cn)
	}
}

// TestMiddlewareAllocs checks that neither wrappers that need no memory nor a check of AUTH_SYS allocate.
func TestMiddlewareAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	var conns []rpc.Conn
	pass := func(next rpc.Handler) rpc.Handler {
		return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			if sys, ok := req.AuthSys(); !ok || sys.UID != 5 || !slices.Contains(conns, rpc.ConnFromContext(ctx)) {
				res.Deny(oncrpc.AuthTooWeak)
				return
			}
			next.ServeRPC(ctx, req, res)
			results, items := res.Size()
			if h := res.Status(); results+items == 0 || h.Err() != nil {
				res.Fail(oncrpc.SystemErr)
			}
		})
	}
	program := rpc.Program{
		Number: prog, Low: 1, High: 1, Handler: &service{}, Idempotent: rpc.Every,
		Inline: func(_, proc uint32) bool { return proc == procEcho },
		Auth: func(req *rpc.Request) oncrpc.AuthStat {
			if cn := req.Conn(); cn.RemoteAddrPort().IsValid() && !slices.Contains(conns, cn) {
				conns = append(conns, cn)
			}
			return oncrpc.AuthOK
		},
	}
	cfg := &transport.ServerConfig{Config: transport.Config{Middleware: []rpc.Middleware{pass, pass}}}
	sys := oncrpc.AuthSys{Machine: "machine", UID: 5, GIDs: []uint32{1, 2, 3}}
	cred := sys.Auth()
	onBoth(t, cfg, nil, []rpc.Program{program}, func(t *testing.T, cl *transport.Client) {
		data, buf := make([]byte, 64), make([]byte, 64)
		for _, proc := range []uint32{procEcho, procSlow} {
			want := 0.0
			if cl.Info().Provider != "tcp" && proc == procSlow {
				want = 1 // the goroutine's, as without wrappers
			}
			call := rpc.Call{Cred: cred}
			f := func() {
				if err := echo(cl, proc, data, buf, &call); err != nil {
					t.Fatal(err)
				}
			}
			for range 200 {
				f()
			}
			if n := testing.AllocsPerRun(1000, f); n > want {
				t.Errorf("procedure %d: %v allocations per call, want %v", proc, n, want)
			}
		}
	})
}
