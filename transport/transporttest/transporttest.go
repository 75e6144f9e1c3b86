// Package transporttest runs clients and servers of package transport within a test, over an in-memory adapter and
// network, without sockets and ports. Everything above that is real: framing, chunks, credits, calls in both
// directions, reconnection.
//
// The network can lose connections, refuse them, and delay messages. It uses package time: in a testing/synctest bubble
// the clock is fake, so that a test of timeouts takes no real time.
package transporttest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/simfabric"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A Network connects clients and servers of one test. Its methods may be called by many goroutines at
// once.
type Network struct {
	t      testing.TB
	fabric *simfabric.Fabric
	delay  atomic.Int64
	down   atomic.Bool
}

// New returns a network without delays. The test fails if the transport uses the adapter in a way that no adapter
// tolerates, such as using memory that has been freed.
func New(t testing.TB) *Network {
	n := &Network{t: t}
	n.fabric = simfabric.New(simfabric.Config{
		Decide: n.decide,
		Violation: func(what string) {
			t.Errorf("transporttest: %s", what)
		},
	})
	return n
}

var errDown = errors.New("transporttest: the network is down")

func (n *Network) decide(e simfabric.Event) (v simfabric.Verdict) {
	switch e.Kind {
	case simfabric.Resolve, simfabric.Connect:
		if n.down.Load() {
			v.Err = errDown
		}
	case simfabric.Arrive, simfabric.Respond:
		v.Delay = time.Duration(n.delay.Load())
	}
	return v
}

// Provider returns the adapter, for transport.Dial and Server.Listen. Addresses are IP addresses with ports, which
// exist only in the Network: "192.0.2.1:0" is as good as any.
func (n *Network) Provider() fabric.Provider { return n.fabric }

// Connect starts a server with the programs that register adds, for instance by generated functions, and returns a
// client of it. Both have the default configuration, and are closed when the test ends.
func (n *Network) Connect(register func(s rpc.Registrar) error) *transport.Client {
	n.t.Helper()
	server, err := transport.NewServer(nil)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { server.Close() })
	if err := register(server); err != nil {
		n.t.Fatal(err)
	}
	l, err := server.Listen(context.Background(), n.fabric, "192.0.2.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	n.t.Cleanup(func() {
		server.Close()
		<-served
	})
	client, err := transport.Dial(context.Background(), n.fabric, l.Addr().String(), nil)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { client.Close() })
	return client
}

// Delay sets the time that each message, and each transfer of a chunk, takes to the other end from now on.
func (n *Network) Delay(d time.Duration) { n.delay.Store(int64(d)) }

// Cut breaks all connections. Clients may connect again.
func (n *Network) Cut() { n.fabric.Cut() }

// SetDown makes the network lose all connections and refuse new ones while down is true.
func (n *Network) SetDown(down bool) {
	n.down.Store(down)
	if down {
		n.fabric.Cut()
	}
}
