//go:build linux

package shm_test

import (
	"io"
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/shm"
)

func TestConformance(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  shm.Config
	}{
		{"Default", shm.Config{}},
		{"SmallRing", shm.Config{Ring: shm.MinRing}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p *shm.Provider
			fabrictest.Run(t, fabrictest.Config{
				New: func(testing.TB) fabric.Provider {
					p = shm.New(tc.cfg)
					return p
				},
				Addr:     "@",
				Complete: true,
				Limits:   fabrictest.Limits{LocalCompletion: true, CrossedInvalidation: true},
				Live: func() (conns, mrs, mws int) {
					l := p.OpenObjects()
					return l.Conns, l.MRs, l.MWs
				},
				Stall: func(t testing.TB, addr string) io.Closer {
					c, err := net.Dial("unix", addr)
					if err != nil {
						t.Fatal(err)
					}
					return c
				},
			})
		})
	}
}
