//go:build linux

package interop

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/interop/rping"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// verbsProvider is our adapter on rdma-core, with a device of the kind that rping uses.
func verbsProvider(name, peer string, cfg rdmacm.Config) provider {
	return provider{
		name: name,
		peer: peer,
		deaf: peer == "siw", // which is accepted here
		new: func(t *testing.T) (fabric.Provider, func() error) {
			p, err := rdmacm.New(cfg)
			if errors.Is(err, rdmacm.ErrNotBuilt) {
				rdmatest.Lacking(t, peer, err.Error())
			}
			if err != nil {
				t.Fatal(err)
			}
			return p, func() error {
				if live := p.OpenObjects(); live != (rdmacm.OpenObjects{}) {
					return fmt.Errorf("%+v", live)
				}
				return nil
			}
		},
	}
}

var verbsProviders = []provider{
	verbsProvider("rxe", "rxe", rdmacm.Config{}),
	verbsProvider("rxeEvent", "rxe", rdmacm.Config{Wait: rdmacm.WaitEvent}),
	verbsProvider("siw", "siw", rdmacm.Config{}),
	verbsProvider("siwSharedCQ", "siw", rdmacm.Config{SharedCQ: 256}),
}

func TestRDMARpingServerVerbs(t *testing.T)  { each(t, verbsProviders, testServer) }
func TestRDMARpingClientVerbs(t *testing.T)  { each(t, verbsProviders, testClient) }
func TestRDMARpingSeveralVerbs(t *testing.T) { each(t, verbsProviders, testSeveral) }
func TestRDMARpingInARowVerbs(t *testing.T)  { each(t, verbsProviders, testInARow) }

func TestRDMARpingKilledClientVerbs(t *testing.T)  { each(t, verbsProviders, testKilledClient) }
func TestRDMARpingKilledServerVerbs(t *testing.T)  { each(t, verbsProviders, testKilledServer) }
func TestRDMARpingStoppedServerVerbs(t *testing.T) { each(t, verbsProviders, testStoppedServer) }
func TestRDMARpingStoppedClientVerbs(t *testing.T) { each(t, verbsProviders, testStoppedClient) }
func TestRDMARpingRejectedVerbs(t *testing.T)      { each(t, verbsProviders, testRejected) }

// TestRDMARpingIwarpAndVerbs runs our client and our server: one on the software adapter, the
// other on rdma-core and siw.
func TestRDMARpingIwarpAndVerbs(t *testing.T) {
	verbs := verbsProvider("siw", "siw", rdmacm.Config{})
	for _, soft := range iwarpClients {
		t.Run(soft.name+"/client", func(t *testing.T) { testTogether(t, soft, verbs) })
	}
	for _, soft := range iwarpServers {
		t.Run(soft.name+"/server", func(t *testing.T) { testTogether(t, verbs, soft) })
	}
}

// testTogether: our client pings our server.
func testTogether(t *testing.T, client, server provider) {
	addr := rdmatest.Device(t, server.peer)
	for _, size := range []int{rping.DefaultSize, 4096, 1 << 20} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			const count = 50
			s := &rping.Server{Provider: server.open(t), MaxSize: size, Validate: true}
			served, port := serve(t, s, addr)
			c := &rping.Client{Provider: client.open(t), Size: size, Count: count, Validate: true}
			n, err := runHeard(testContext(t), c, net.JoinHostPort(addr, port), false)
			if n != count || err != nil {
				t.Errorf("the client has had %d pings and ends with %v", n, err)
			}
			if got := <-served; got.pings != count || got.err != nil {
				t.Errorf("the server has answered %d pings and ends with %v", got.pings, got.err)
			}
		})
	}
}
