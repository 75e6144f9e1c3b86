package grpcrdma_test

import (
	"context"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/shm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// onBeds runs a test over each kind of connection that every machine has.
func onBeds(t *testing.T, test func(t *testing.T, p fabric.Provider, addr string)) {
	for _, bed := range []struct {
		name string
		p    fabric.Provider
		addr string
	}{
		{"iwarp", iwarp.New(iwarp.Config{}), "127.0.0.1:0"},
		{"tcp", transport.TCP{}, "127.0.0.1:0"},
		{"shm", shm.New(shm.Config{}), "@"},
	} {
		t.Run(bed.name, func(t *testing.T) {
			leak.Check(t)
			test(t, bed.p, bed.addr)
		})
	}
}

// serve runs srv until the test ends, and returns a connection to it.
func serve(t *testing.T, p fabric.Provider, addr string, srv *grpcrdma.Server, opts ...grpcrdma.Option) *grpcrdma.ClientConn {
	t.Helper()
	l, err := srv.Listen(context.Background(), p, addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	cc, err := grpcrdma.Dial(context.Background(), p, l.Addr().String(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cc.Close()
		srv.Stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return cc
}
