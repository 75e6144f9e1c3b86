package transport_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TestHandlerPanics checks that a handler that panics, or ends its goroutine as t.FailNow does, ends only its call.
// This applies in either direction, on the goroutine that moves the connection or on another.
func TestHandlerPanics(t *testing.T) {
	for name, over := range map[string]func() (fabric.Provider, string){
		"iwarp": func() (fabric.Provider, string) { return iwarp.New(iwarp.Config{}), "127.0.0.1:0" },
		"tcp":   func() (fabric.Provider, string) { return transport.TCP{}, "127.0.0.1:0" },
	} {
		p, addr := over()
		t.Run(name+"/panic", func(t *testing.T) {
			handlerPanics(t, p, addr, "a defect of the handler", func() { panic("a defect of the handler") })
		})
		t.Run(name+"/Goexit", func(t *testing.T) { handlerPanics(t, p, addr, "runtime.Goexit", runtime.Goexit) })
	}
}

func handlerPanics(t *testing.T, p fabric.Provider, addr, says string, fail func()) {
	leak.Check(t)
	const inline, alone, late, denied, well = 1, 2, 3, 4, 5
	var released atomic.Int32
	program := func(stray func(*rpc.Request)) rpc.Program {
		return rpc.Program{
			Number: prog, Low: 1, High: 1,
			Inline: func(_, proc uint32) bool { return proc == inline },
			Auth: func(req *rpc.Request) oncrpc.AuthStat {
				if req.Proc == denied {
					fail()
				}
				return oncrpc.AuthOK
			},
			Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
				switch req.Proc {
				case late:
					res.AddItem(res.Alloc(9000), func() { released.Add(1) })
					fallthrough
				case inline, alone:
					fail()
				default:
					stray(req)
				}
			}),
		}
	}
	var log, clientLog lockedBuffer
	conns := make(chan *transport.Conn, 1)
	server, err := transport.NewServer((&transport.Settings{Logger: slog.New(slog.NewTextHandler(&log, nil))}).Server())
	if err == nil {
		err = server.Register(program(func(req *rpc.Request) {
			select {
			case conns <- req.Conn().(*transport.Conn):
			default:
			}
		}))
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := server.Listen(bg, p, addr)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-served })
	cl, err := transport.Dial(bg, p, l.Addr().String(), transport.Once(&transport.Settings{
		Logger:    slog.New(slog.NewTextHandler(&clientLog, nil)),
		Callbacks: []rpc.Program{program(func(*rpc.Request) {})},
	}).Client())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })

	try := func(call func(context.Context, *rpc.Call) error, log *lockedBuffer) {
		t.Helper()
		for _, proc := range []uint32{inline, alone, late, denied, inline} {
			c := rpc.Call{Prog: prog, Vers: 1, Proc: proc}
			var refused *oncrpc.RPCError
			ctx, cancel := context.WithTimeout(bg, 5*time.Second)
			defer cancel()
			if err := call(ctx, &c); !errors.As(err, &refused) || refused.AcceptStat != oncrpc.SystemErr {
				t.Errorf("procedure %d: %v", proc, err)
			}
			got := log.take()
			for _, want := range []string{"level=ERROR", says, "panic_test.go", "proc=", "peer=127.0.0.1"} {
				if !strings.Contains(got, want) {
					t.Errorf("procedure %d: %q is not in the log: %s", proc, want, got)
				}
			}
		}
		if err := call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: well}); err != nil {
			t.Errorf("a call after them: %v", err)
		}
	}
	try(cl.Call, &log)
	if n := released.Load(); n != 1 {
		t.Errorf("an item that was not sent was released %d times", n)
	}
	cn := <-conns
	cn.AllowBackward(0)
	try(cn.Call, &clientLog)
	if st := server.Stats(); st.Conns != 1 || st.OpenConns != 1 {
		t.Errorf("%d connections, %d of them open; want one", st.Conns, st.OpenConns)
	}
}
