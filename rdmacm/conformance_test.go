//go:build linux && cgo

package rdmacm_test

import (
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// limits are those of each kind of device.
var limits = map[string]fabrictest.Limits{ // immutable
	"rxe": {
		Shortage: fabrictest.ShortageWaits, PaddedPrivateData: true, CoarseStatus: true,
		LooseWindows: true, LooseInvalidation: true,
	},
	"siw": {
		Shortage: fabrictest.ShortageEnds, LocalCompletion: true, CoarseStatus: true,
		ClientFirst: true, CoarseEnd: true, LateReads: true, LooseReads: true,
	},
}

// The whole suite runs in the default mode, and what differs in the others: how
// they wait.
func TestRDMAConformance(t *testing.T) {
	moving := []string{"Message", "Progress", "End"}
	for _, kind := range []string{"rxe", "siw"} {
		for _, tc := range []struct {
			name   string
			cfg    rdmacm.Config
			groups []string
		}{
			{"Adaptive", rdmacm.Config{}, nil},
			{"Event", rdmacm.Config{Wait: rdmacm.WaitEvent}, moving},
			{"Poll", rdmacm.Config{Wait: rdmacm.WaitPoll}, moving},
			{"SharedCQ", rdmacm.Config{SharedCQ: 4096}, moving},
			{"UnsafeWindows", rdmacm.Config{UnsafeWindows: true}, []string{"Window", "Fence", "Cost"}},
		} {
			if tc.cfg.UnsafeWindows && kind != "rxe" {
				continue // the switch is about rxe
			}
			t.Run(kind+"/"+tc.name, func(t *testing.T) {
				addr := rdmatest.Device(t, kind)
				p, err := rdmacm.New(tc.cfg)
				if err != nil {
					t.Fatal(err)
				}
				fabrictest.Run(t, fabrictest.Config{
					New: func(t testing.TB) fabric.Provider {
						if p, err = rdmacm.New(tc.cfg); err != nil {
							t.Fatal(err)
						}
						return p
					},
					Addr:    addr + ":0",
					Timeout: time.Minute,
					Bulk:    4 << 20,
					Groups:  tc.groups,
					Limits:  limits[kind],
					Live: func() (conns, mrs, mws int) {
						l := p.OpenObjects()
						return l.Conns, l.MRs, l.MWs
					},
				})
			})
		}
	}
}
