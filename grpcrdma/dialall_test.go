package grpcrdma_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TestDialAll: calls and streams reach all servers in turn. With the loss of one its streams are UNAVAILABLE, and calls
// and other streams go on, until it is back and has its turn again.
func TestDialAll(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		const n = 3
		var servers [n]*grpcrdma.Server
		var addrs [n]string
		for i := range n {
			servers[i], addrs[i] = startAt(t, p, addr)
		}
		c := dialAll(t, p, addrs[:])
		reachAll(t, c, addrs[:])
		talk := func(s testgrpc.TestService_FullDuplexCallClient) error {
			err := s.Send(&testgrpc.StreamingOutputCallRequest{})
			if _, lost := s.Recv(); lost != nil {
				err = lost
			}
			return err
		}
		streams := make(map[string]testgrpc.TestService_FullDuplexCallClient)
		for range n {
			var at peer.Peer
			s, err := c.FullDuplexCall(t.Context(), grpc.Peer(&at))
			if err == nil {
				err = talk(s)
			}
			if err != nil {
				t.Fatal(err)
			}
			streams[at.Addr.String()] = s
		}
		if len(streams) != n {
			t.Errorf("streams have reached %d of %v", len(streams), addrs)
		}
		servers[0].Stop()
		for at, s := range streams {
			if err := talk(s); at == addrs[0] && status.Code(err) != codes.Unavailable || at != addrs[0] && err != nil {
				t.Errorf("a stream with %s: %v", at, err)
			}
		}
		reachAll(t, c, addrs[1:])
		startAt(t, p, addrs[0])
		reachAll(t, c, addrs[:])
	})
}

// TestDialAllLater: servers may come after their client. Calls before that are UNAVAILABLE, or wait if they
// are to. Those that are there have as many calls each.
func TestDialAllLater(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		var addrs [3]string
		var before [3]*grpcrdma.Server
		for i := range addrs {
			before[i], addrs[i] = startAt(t, p, addr)
		}
		for _, srv := range before {
			srv.Stop()
		}
		c := dialAll(t, p, addrs[:])
		call := func(limit time.Duration, opts ...grpc.CallOption) codes.Code {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{}, opts...)
			return status.Code(err)
		}
		wait := grpc.WaitForReady(true)
		if got := call(time.Minute); got != codes.Unavailable {
			t.Errorf("without a server: %v", got)
		}
		if got := call(100*time.Millisecond, wait); got != codes.DeadlineExceeded {
			t.Errorf("without a server in time: %v", got)
		}
		waits := make(chan codes.Code)
		go func() { waits <- call(time.Minute, wait) }()
		startAt(t, p, addrs[2])
		if got := <-waits; got != codes.OK {
			t.Errorf("after waiting for a server: %v", got)
		}
		reachAll(t, c, addrs[2:])
		startAt(t, p, addrs[0])
		reachAll(t, c, []string{addrs[0], addrs[2]})
		startAt(t, p, addrs[1])
		reachAll(t, c, addrs[:])
	})
}

// startAt runs a server until the test ends.
func startAt(t *testing.T, p fabric.Provider, addr string) (*grpcrdma.Server, string) {
	t.Helper()
	srv := grpcrdma.NewServer()
	testgrpc.RegisterTestServiceServer(srv, &service{unary: echoes, duplex: echoStream})
	var l *transport.Listener
	testutil.Eventually(t, "the address is free", func() (ok bool) {
		var err error
		l, err = srv.Listen(context.Background(), p, addr)
		return err == nil
	})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return srv, l.Addr().String()
}

func dialAll(t *testing.T, p fabric.Provider, addrs []string) testgrpc.TestServiceClient {
	t.Helper()
	cfg := transport.ClientConfig{Config: grpcrdma.Config(4 << 20), MaxPause: 100 * time.Millisecond}
	cc, err := grpcrdma.DialAll(p, addrs, grpcrdma.WithTransport(cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return testgrpc.NewTestServiceClient(cc)
}

// reachAll waits until calls reach all of addrs in turn, and no other.
func reachAll(t *testing.T, c testgrpc.TestServiceClient, addrs []string) {
	t.Helper()
	const each = 10
	var by map[string]int
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		by = make(map[string]int)
		for range each * len(addrs) {
			var at peer.Peer
			if _, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}, grpc.Peer(&at)); err != nil {
				t.Fatal(err)
			}
			by[at.Addr.String()]++
		}
		if !slices.ContainsFunc(addrs, func(addr string) bool { return by[addr] != each }) {
			return
		}
	}
	t.Fatalf("calls have reached %v of %v", by, addrs)
}

// TestDialAllFails: there has to be an address, and a way to it.
func TestDialAllFails(t *testing.T) {
	for _, tt := range []struct {
		p     fabric.Provider
		addrs []string
		cfg   transport.ClientConfig
	}{
		{p: transport.TCP{}},
		{addrs: []string{"a", "b"}},
		{p: transport.TCP{}, addrs: []string{"a", "b"}, cfg: transport.ClientConfig{NoReconnect: true}},
	} {
		if cc, err := grpcrdma.DialAll(tt.p, tt.addrs, grpcrdma.WithTransport(tt.cfg)); err == nil {
			t.Errorf("there is a client of %q over %v with %+v", tt.addrs, tt.p, tt.cfg)
			cc.Close()
		}
	}
}
