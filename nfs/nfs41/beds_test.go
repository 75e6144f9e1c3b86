package nfs41

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

var bg = context.Background()

// patience is the timeout of operations that normally take no time.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	testbed.OpenDevices()
	os.Exit(leak.Main(m))
}

// A bed is the environment of a test, and the version of RPC-over-RDMA that its servers speak.
type bed struct {
	*testbed.Bed
	version transport.Version
}

// A world is a Server with its transport.
type world struct {
	*bed
	addr     string
	srv      *Server
	t        *transport.Server
	sessions chan *ServerSession // as they are made

	// handle, if not nil, handles requests instead of the server.
	handle func(ctx context.Context, req *rpc.Request, res *rpc.Response, next rpc.Handler)
}

// start starts a server, which is closed at the end of the test.
func start(t testing.TB, b *bed, cfg *ServerConfig) *world {
	t.Helper()
	w := &world{bed: b, sessions: make(chan *ServerSession, 16)}
	w.open(t, cfg)
	w.serve(t, net.JoinHostPort(b.Host, "0"))
	return w
}

// open creates the Server, which is closed at the end of the test.
func (w *world) open(t testing.TB, cfg *ServerConfig) {
	var c ServerConfig
	if cfg != nil {
		c = *cfg
	}
	if c.OnSession == nil {
		c.OnSession = func(ctx context.Context, ss *ServerSession) { w.sessions <- ss }
	}
	srv := NewServer(&c)
	w.srv = srv
	t.Cleanup(func() { srv.Close() })
}

// serve starts the transport of the server.
func (w *world) serve(t testing.TB, addr string) {
	t.Helper()
	ts, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Version: w.version}})
	if err != nil {
		t.Fatal(err)
	}
	p := w.srv.Program()
	next := p.Handler
	p.Handler = rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		if w.handle != nil {
			w.handle(ctx, req, res, next)
			return
		}
		next.ServeRPC(ctx, req, res)
	})
	if err := ts.Register(p); err != nil {
		t.Fatal(err)
	}
	l, err := ts.Listen(bg, w.Provider, addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- ts.Serve(l) }()
	t.Cleanup(func() {
		ts.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	w.t, w.addr = ts, l.Addr().String()
}

// dial creates a session, which is closed at the end of the test.
func (w *world) dial(t testing.TB, cfg *Config) *Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	s, err := Dial(ctx, w.Provider, w.addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// next returns the server's end of the next session.
func (w *world) next(t testing.TB) *ServerSession {
	t.Helper()
	select {
	case ss := <-w.sessions:
		return ss
	case <-time.After(patience):
		t.Fatal("no session was made")
		return nil
	}
}
