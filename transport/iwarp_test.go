package transport_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestIwarpTransport(t *testing.T) { runSuite(t, onIwarp(iwarp.Config{})) }

// TestIwarpInvalidation checks V1-11-3 PVT-3.2-1: the handle of a reply with invalidation is no longer valid.
func TestIwarpInvalidation(t *testing.T) { testInvalidated(t, onIwarp(iwarp.Config{})) }

// TestIwarpSizes checks an adapter that splits messages at other sizes.
func TestIwarpSizes(t *testing.T) {
	for _, cfg := range []iwarp.Config{{CRC: true}, {MaxFPDU: 1448}} {
		t.Run(fmt.Sprintf("%+v", cfg), func(t *testing.T) { testSizes(t, onIwarp(cfg)) })
	}
}

// portTaken fails the first connections for want of a local port, like a provider with a kernel that
// opens TCP connections from ports that TCP uses already.
type portTaken struct {
	fabric.Provider
	times int
	errno syscall.Errno
}

func (p *portTaken) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	if p.times--; p.times >= 0 {
		return nil, p.errno
	}
	return p.Provider.Resolve(ctx, addr, attr)
}

// TestDialPicksAnotherPort checks that a busy local port fails Dial only if all ports that it tries are busy.
func TestDialPicksAnotherPort(t *testing.T) {
	for _, c := range []struct {
		times int
		errno syscall.Errno
		ok    bool
	}{{3, syscall.EADDRINUSE, true}, {4, syscall.EADDRINUSE, false}, {3, syscall.EADDRNOTAVAIL, true}, {4, syscall.EADDRNOTAVAIL, false}} {
		w := onIwarp(iwarp.Config{}).start(t, nil)
		cl, err := transport.Dial(context.Background(), &portTaken{w.provider, c.times, c.errno}, w.addr, nil)
		if (err == nil) != c.ok || !c.ok && !errors.Is(err, c.errno) {
			t.Errorf("%d ports taken, %v: %v", c.times, c.errno, err)
		}
		if err == nil {
			cl.Close()
		}
	}
}

// TestIwarpBeyondGrant checks V1-3.3-6: callers that wait for credits hardly slow down those that have credits. With
// four times as many callers as the grant, the rate of calls stays the same.
func TestIwarpBeyondGrant(t *testing.T) {
	const grant, calls, rounds = 32, 3000, 10
	w := onIwarp(iwarp.Config{}).start(t, &transport.Settings{Credits: grant})
	cl := w.dial(t, nil)
	rate := func(callers int) float64 {
		var wg sync.WaitGroup
		start := time.Now()
		for range callers {
			wg.Go(func() {
				var call rpc.Call
				data, buf := make([]byte, 64), make([]byte, 64)
				for range calls / callers {
					if err := echo(cl, procEcho, data, buf, &call); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return float64(calls/callers*callers) / time.Since(start).Seconds()
	}
	rate(grant) // credits grow, buffers are made
	// In turns, until a round shows it: others use the machine. A collapse is one in all.
	best := 0.0
	for range rounds {
		within, beyond := rate(grant), rate(4*grant)
		t.Logf("%.0f calls/s within the grant, %.0f beyond: %.2f", within, beyond, beyond/within)
		if best = max(best, beyond/within); best >= 0.5 {
			break
		}
	}
	if best < 0.5 {
		t.Errorf("with %d callers instead of %d no more than %.2f of the calls per second", 4*grant, grant, best)
	}
	if got := cl.Info().Credits; got > grant {
		t.Errorf("the grant is %d", got)
	}
}
