package grpcrdma_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
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
		{"iwarp", iwarp.New(iwarp.Config{}), host + ":0"},
		{"tcp", transport.TCP{}, host + ":0"},
		{"shm", shm.New(shm.Config{}), "@"},
	} {
		t.Run(bed.name, func(t *testing.T) {
			leak.Check(t)
			test(t, bed.p, bed.addr)
		})
	}
}

// host is a loopback address that other processes hardly use. A port of 127.0.0.1 that a server has given up may belong
// to another test's server a moment later.
var host = func() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1" // the one of 127.0.0.0/8 that there is
	}
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}()

// serve runs srv until the test ends, and returns a connection to it.
func serve(t *testing.T, p fabric.Provider, addr string, srv *grpcrdma.Server, opts ...grpcrdma.Option) *grpcrdma.ClientConn {
	t.Helper()
	cc, err := grpcrdma.Dial(context.Background(), p, listen(t, p, addr, srv), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// listen runs srv until the test ends, and returns where.
func listen(t *testing.T, p fabric.Provider, addr string, srv *grpcrdma.Server) string {
	t.Helper()
	l, err := srv.Listen(context.Background(), p, addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}
