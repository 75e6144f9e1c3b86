//go:build linux

package capture

import (
	"io"
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// TestConformance: a recorded provider behaves as the one it wraps. The group "Cost" is left out:
// it measures allocations, which recording makes.
func TestConformance(t *testing.T) {
	for _, cfg := range []Config{{}, {Framing: RoCE, SnapLen: 64}, {Queue: 1 << 12}} {
		t.Run(cfg.Framing.String(), func(t *testing.T) {
			p := iwarp.New(iwarp.Config{})
			fabrictest.Run(t, fabrictest.Config{
				New: func(t testing.TB) fabric.Provider {
					p = iwarp.New(iwarp.Config{})
					w := New(io.Discard, &cfg)
					t.Cleanup(func() { testutil.Must(t, w.Close()) })
					return w.Provider(p)
				},
				Groups:   []string{"Setup", "Message", "Memory", "Window", "Fence", "Progress", "End"},
				Bulk:     8 << 20,
				Complete: true,
				Limits:   fabrictest.Limits{ClientFirst: true, LocalCompletion: true, CrossedInvalidation: true},
				Live: func() (conns, mrs, mws int) {
					l := p.OpenObjects()
					return l.Conns, l.MRs, l.MWs
				},
				Stall: func(t testing.TB, addr string) io.Closer {
					c, err := net.Dial("tcp", addr)
					if err != nil {
						t.Fatal(err)
					}
					return c
				},
			})
		})
	}
}
