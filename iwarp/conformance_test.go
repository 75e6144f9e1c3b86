//go:build linux

package iwarp_test

import (
	"io"
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

func conformance(t *testing.T, cfg iwarp.Config, groups ...string) {
	p := iwarp.New(cfg)
	fabrictest.Run(t, fabrictest.Config{
		New: func(testing.TB) fabric.Provider {
			p = iwarp.New(cfg)
			return p
		},
		Complete: true,
		Groups:   groups,
		Limits: fabrictest.Limits{
			ClientFirst:     !cfg.PeerToPeer,
			LocalCompletion: true, CrossedInvalidation: true,
		},
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
}

func TestConformance(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  iwarp.Config
	}{
		{"Default", iwarp.Config{}},
		{"CRC", iwarp.Config{CRC: true}},
		{"PeerToPeer", iwarp.Config{PeerToPeer: true}},
		{"SmallFPDU", iwarp.Config{MaxFPDU: 1448, CRC: true}},
	} {
		t.Run(tc.name, func(t *testing.T) { conformance(t, tc.cfg) })
	}
	t.Run("Park", func(t *testing.T) { conformance(t, iwarp.Config{Park: true}, "Progress", "End") })
}
