package transport_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestIwarpTransport(t *testing.T) { runSuite(t, onIwarp(iwarp.Config{})) }

// TestIwarpInvalidation: V1-11-3 PVT-3.2-1 the handle of a reply with invalidation is dead.
func TestIwarpInvalidation(t *testing.T) { testInvalidated(t, onIwarp(iwarp.Config{})) }

// TestIwarpSizes: the adapter cuts messages into pieces of other sizes.
func TestIwarpSizes(t *testing.T) {
	for _, cfg := range []iwarp.Config{{CRC: true}, {MaxFPDU: 1448}} {
		t.Run(fmt.Sprintf("%+v", cfg), func(t *testing.T) { testSizes(t, onIwarp(cfg)) })
	}
}

// portTaken fails the first connections for want of a local port, as a provider does
// whose kernel opens TCP connections from ports that TCP uses already.
type portTaken struct {
	fabric.Provider
	times int
}

func (p *portTaken) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	if p.times--; p.times >= 0 {
		return nil, syscall.EADDRINUSE
	}
	return p.Provider.Resolve(ctx, addr, attr)
}

// TestDialPicksAnotherPort: a local port that is taken is the caller's problem only
// when all that are tried are.
func TestDialPicksAnotherPort(t *testing.T) {
	for _, c := range []struct {
		times int
		ok    bool
	}{{3, true}, {4, false}} {
		w := onIwarp(iwarp.Config{}).start(t, nil)
		cl, err := transport.Dial(context.Background(), &portTaken{w.provider, c.times}, w.addr, nil)
		if (err == nil) != c.ok || !c.ok && !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%d ports taken: %v", c.times, err)
		}
		if err == nil {
			cl.Close()
		}
	}
}
