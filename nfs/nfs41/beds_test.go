package nfs41

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/leak"
	"github.com/rpcrdma/rpcrdma/internal/rdmatest"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/transport"
)

var bg = context.Background()

// patience is how long something may take that takes no time when all is well.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	openDevices()
	os.Exit(leak.Main(m))
}

// openDevices opens the RDMA devices that tests use: librdmacm never closes them, and
// they are not left behind by a test.
func openDevices() {
	p, err := rdmacm.New(rdmacm.Config{})
	if err != nil {
		return // the tests tell
	}
	for _, addr := range rdmatest.Addrs() {
		if l, err := p.Listen(bg, addr+":0", fabric.ConnAttr{}); err == nil {
			l.Close()
		}
	}
}

// A bed is what the tests of both ends together run on: a provider, and the host at which
// it can be reached.
type bed struct {
	provider fabric.Provider
	host     string
	live     func() (conns, mrs, mws int) // what the provider holds open
	version  transport.Version            // of RPC-over-RDMA, that servers speak
}

func onIwarp() *bed {
	p := iwarp.New(iwarp.Config{})
	return &bed{provider: p, host: "127.0.0.1", live: func() (conns, mrs, mws int) {
		l := p.Live()
		return l.Conns, l.MRs, l.MWs
	}}
}

// onDevice is a device of the kind "rxe" or "siw", if there is one.
func onDevice(t testing.TB, kind string) *bed {
	t.Helper()
	host := rdmatest.Device(t, kind)
	p, err := rdmacm.New(rdmacm.Config{})
	if errors.Is(err, rdmacm.ErrNotBuilt) {
		rdmatest.Lacking(t, kind, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return &bed{provider: p, host: host, live: func() (conns, mrs, mws int) {
		l := p.Live()
		return l.Conns, l.MRs, l.MWs
	}}
}

// check looks at the end of a test for what it has left behind.
func (b *bed) check(t testing.TB) {
	leak.Check(t)
	t.Cleanup(func() { // after the cleanups of the test
		if conns, mrs, mws := b.live(); conns != 0 || mrs != 0 || mws != 0 {
			t.Errorf("left open: %d connections, %d regions, %d windows", conns, mrs, mws)
		}
	})
}

// A world is a Server that listens.
type world struct {
	*bed
	addr     string
	srv      *Server
	t        *transport.Server
	sessions chan *ServerSession // as they are made

	// handle, if not nil, stands in front of the server.
	handle func(ctx context.Context, req *transport.Request, res *transport.Response, next transport.Handler)
}

// start makes a server, which ends with the test.
func (b *bed) start(t testing.TB, cfg *ServerConfig) *world {
	t.Helper()
	w := &world{bed: b, sessions: make(chan *ServerSession, 16)}
	w.open(t, cfg)
	w.serve(t, net.JoinHostPort(b.host, "0"))
	return w
}

// open makes the server, which ends with the test.
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

// serve puts a transport under the server.
func (w *world) serve(t testing.TB, addr string) {
	t.Helper()
	ts, err := transport.NewServer(&transport.Config{Version: w.version})
	if err != nil {
		t.Fatal(err)
	}
	p := w.srv.Program()
	next := p.Handler
	p.Handler = transport.HandlerFunc(func(ctx context.Context, req *transport.Request, res *transport.Response) {
		if w.handle != nil {
			w.handle(ctx, req, res, next)
			return
		}
		next.ServeRPC(ctx, req, res)
	})
	if err := ts.Register(p); err != nil {
		t.Fatal(err)
	}
	l, err := ts.Listen(bg, w.provider, addr)
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

// dial makes a session, which ends with the test.
func (w *world) dial(t testing.TB, cfg *Config) *Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	s, err := Dial(ctx, w.provider, w.addr, cfg)
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
