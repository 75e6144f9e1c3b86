package transport

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

func TestProceduresServed(t *testing.T) {
	for _, p := range []fabric.Provider{iwarp.New(iwarp.Config{}), TCP{}} {
		t.Run(p.Name(), func(t *testing.T) { testProceduresServed(t, p) })
	}
}

func testProceduresServed(t *testing.T, p fabric.Provider) {
	s, err := NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.Register(rpc.Program{Number: testProg, Low: 1, High: 1, Handler: rpc.Procedures{
		1: func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
			res.Results = append(res.Results, 0, 0, 0, 1)
		},
		3: func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
			res.Results = append(res.Results, 0, 0, 0, 3)
		},
		4: func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
			res.AddItem(make([]byte, 100), nil)
			res.Deny(oncrpc.AuthTooWeak)
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a free port
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.ListenAndServe(ctx, p, addr) }()
	var cl *Client
	for cl == nil { // until it listens
		if cl, err = Dial(ctx, p, addr, nil); err != nil && len(served) > 0 {
			t.Fatal(<-served)
		}
	}
	defer cl.Close()
	var denied *oncrpc.RPCError
	err = cl.Call(ctx, &rpc.Call{Prog: testProg, Vers: 1, Proc: 4, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 200)}}})
	if !errors.As(err, &denied) || denied.Stat != oncrpc.MsgDenied || denied.AuthStat != oncrpc.AuthTooWeak {
		t.Errorf("a call whose credential is refused: %v", err)
	}
	for proc, want := range map[uint32]oncrpc.AcceptStat{1: oncrpc.Success, 2: oncrpc.ProcUnavail, 3: oncrpc.Success} {
		call := rpc.Call{Prog: testProg, Vers: 1, Proc: proc}
		err := cl.Call(ctx, &call)
		var refused *oncrpc.RPCError
		if errors.As(err, &refused) != (want != oncrpc.Success) || call.Reply.AcceptStat != want || err == nil && call.Results[3] != byte(proc) {
			t.Errorf("procedure %d: %v, %x", proc, err, call.Results)
		}
	}
	cancel()
	if err := <-served; err != ErrServerClosed || !errors.Is(err, net.ErrClosed) {
		t.Errorf("ListenAndServe returned %v", err)
	}
	if n := s.Stats().OpenConns; n != 0 {
		t.Errorf("%d connections outlive the server", n)
	}
	if err := s.ListenAndServe(ctx, p, addr); err != ErrServerClosed {
		t.Errorf("ListenAndServe of a closed server returned %v", err)
	}
}

// TestTCPProvider checks that the TCP provider has listeners with an address, and no RDMA.
func TestTCPProvider(t *testing.T) {
	s, err := NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(bg, TCP{}, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	cl, err := Dial(bg, &TCP{}, l.Addr().String(), &ClientConfig{NoReconnect: true})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var refused *oncrpc.RPCError
	if err := cl.Null(bg, testProg, 1); !errors.As(err, &refused) || refused.AcceptStat != oncrpc.ProgUnavail {
		t.Errorf("a call of a program that is not served: %v", err)
	}
	if info := cl.Info(); info.Provider != "tcp" || info.RemoteAddr.String() != l.Addr().String() {
		t.Errorf("the connection is %+v", info)
	}
	if _, err := s.Listen(bg, TCP{}, l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Listen where somebody listens: %v", err)
	}
	s.Close()
	if err := <-served; err != ErrServerClosed {
		t.Errorf("Serve returned %v", err)
	}
	if _, err := s.Listen(bg, TCP{}, "127.0.0.1:0"); err != ErrServerClosed {
		t.Errorf("Listen of a closed server: %v", err)
	}
	if _, err := Dial(bg, TCP{}, l.Addr().String(), nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Dial where nobody listens: %v", err)
	}

	var p fabric.Provider = TCP{}
	if _, err := p.Resolve(bg, "127.0.0.1:1", fabric.ConnAttr{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Resolve: %v", err)
	}
	if _, err := p.Listen(bg, "127.0.0.1:0", fabric.ConnAttr{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Listen: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// A counter is TCP that counts connections.
type counter struct {
	TCP
	dialed, accepted atomic.Int32
}

func (c *counter) DialStream(ctx context.Context, addr string) (net.Conn, error) {
	c.dialed.Add(1)
	return c.TCP.DialStream(ctx, addr)
}

func (c *counter) ListenStream(ctx context.Context, addr string) (net.Listener, error) {
	l, err := c.TCP.ListenStream(ctx, addr)
	return countingListener{l, c}, err
}

type countingListener struct {
	net.Listener
	c *counter
}

func (l countingListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err == nil {
		l.c.accepted.Add(1)
	}
	return nc, err
}

// TestStreamProvider checks that a provider may embed TCP.
func TestStreamProvider(t *testing.T) {
	s, err := NewServer(nil)
	testutil.Must(t, err)
	defer s.Close()
	testutil.Must(t, s.Register(rpc.Program{Number: testProg, Low: 1, High: 1, Handler: rpc.Procedures{}}))
	c := new(counter)
	l, err := s.Listen(bg, c, "127.0.0.1:0")
	testutil.Must(t, err)
	go s.Serve(l)
	cl, err := Dial(bg, c, l.Addr().String(), nil)
	testutil.Must(t, err)
	defer cl.Close()
	testutil.Must(t, cl.Null(bg, testProg, 1))
	g, err := DialGroup(bg, c, []string{l.Addr().String()}, nil)
	testutil.Must(t, err)
	defer g.Close()
	testutil.Must(t, g.Null(bg, testProg, 1))
	if d, a := c.dialed.Load(), c.accepted.Load(); d != 2 || a != 2 {
		t.Errorf("%d connections were made and %d accepted, want 2 of each", d, a)
	}
	if _, err := s.Listen(bg, c, l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Listen on an address in use: %v", err)
	}
}

// TestNoProvider checks that a missing provider is an error, not a panic.
func TestNoProvider(t *testing.T) {
	if _, err := Dial(bg, nil, "script:1", nil); err == nil {
		t.Error("Dial without a provider succeeded")
	}
	s, err := NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var p fabric.Provider
	if _, err := s.Listen(bg, p, "script:1"); err == nil {
		t.Error("Listen without a provider succeeded")
	}
}

// TestConnIdentity checks that a connection has one Conn for all its calls.
func TestConnIdentity(t *testing.T) {
	seen := make(map[*Conn]int)
	prog := rpc.Program{Number: testProg, Low: 1, High: 1, Idempotent: rpc.Every,
		Inline:  func(_, proc uint32) bool { return proc == 1 },
		Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, _ *rpc.Response) { seen[req.Conn().(*Conn)]++ })}
	serverOf(t, newPeer(t), nil, []rpc.Program{prog}, func(p *peer, _ *Server) {
		clear(seen)
		for xid := uint32(1); xid <= 4; xid++ {
			p.send(callBytes(rpcrdma.Header{XID: xid}, 1+xid%2), 0)
			p.message("a reply")
		}
		if len(seen) != 1 {
			t.Errorf("one connection is %d", len(seen))
		}
	})
}
