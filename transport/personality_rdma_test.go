//go:build linux && cgo

package transport_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// onAdapter is an adapter as its drivers describe it.
func onAdapter(t *testing.T, a *cgotest.Personality) *bed {
	addr := netip.MustParseAddr("192.0.2.1")
	return &bed{
		addr: addr.String() + ":0", slow: 30, allocates: true, waits: a.Name != "irdma over iWARP", refused: "192.0.2.1", chunkAllocs: 1000, idle: 8 << 20,
		open: func() (fabric.Provider, live, error) {
			lib := cgotest.New(t)
			lib.AddAdapter(a, addr)
			p, err := rdmacm.NewOn(lib, rdmacm.Config{})
			if err != nil {
				return nil, nil, err
			}
			t.Cleanup(func() { p.Close() })
			return p, func() (conns, mrs, mws int) {
				l := p.OpenObjects()
				return l.Conns, l.MRs, l.MWs
			}, nil
		},
	}
}

// TestPersonalities checks calls on each adapter. The first adapter runs calls of all kinds, and the others only calls
// that depend on windows, queues, the order of completions, and the end of the connection.
func TestPersonalities(t *testing.T) {
	first := true
	for _, a := range cgotest.Personalities {
		if !a.Carries {
			continue
		}
		all := first
		first = false
		t.Run(a.Name, func(t *testing.T) {
			b := onAdapter(t, &a)
			if all {
				b.slow = 4
			}
			for _, tt := range suite {
				if all || slices.Contains([]string{"Sizes", "Long", "Parallel", "Cancel", "EndsUnderLoad", "Faults", "RegisteredMemory"}, tt.name) {
					t.Run(tt.name, func(t *testing.T) {
						leak.Check(t)
						tt.run(t, b)
					})
				}
			}
			t.Run("Foreign", func(t *testing.T) { runForeign(t, b, true) })
		})
	}
}
