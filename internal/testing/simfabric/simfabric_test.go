package simfabric_test

import (
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/simfabric"
)

// TestConformance runs the conformance suite on the simulated adapter: without delays, and
// with delays that reorder everything that may be reordered.
func TestConformance(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  simfabric.Config
	}{
		{"at once", simfabric.Config{}},
		{"delayed", simfabric.Config{Decide: delays}},
		{"delayed, local completion", simfabric.Config{Decide: delays, LocalCompletion: true}},
		{"invalidations may cross", simfabric.Config{CrossedInvalidation: true}},
		{"registered memory alone", simfabric.Config{NoLocalDMA: true, NoWindows: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Violation = func(string) {} // the suite breaks rules on purpose
			f := simfabric.New(tt.cfg)
			fabrictest.Run(t, fabrictest.Config{
				New: func(testing.TB) fabric.Provider {
					f = simfabric.New(tt.cfg)
					return f
				},
				Bulk: 1 << 20,
				Limits: fabrictest.Limits{
					LateReads: true, LocalCompletion: tt.cfg.LocalCompletion, CoarseStatus: true, CoarseEnd: true,
					CrossedInvalidation: tt.cfg.CrossedInvalidation,
				},
				Live: func() (conns, mrs, mws int) { return f.Live() },
				// Its cost does not matter.
				Groups: []string{"Setup", "Message", "Memory", "Window", "Fence", "Progress", "End"},
			})
		})
	}
}

// delays delays one event in eight, by its identity.
func delays(e simfabric.Event) simfabric.Verdict {
	h := simfabric.Hash(uint64(e.Conn), uint64(e.Side), uint64(e.Kind), uint64(e.N))
	if h%8 > 0 {
		return simfabric.Verdict{}
	}
	return simfabric.Verdict{Delay: time.Duration(h >> 8 % 50_000)}
}
