package transport_test

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/leak"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

var kinds = []string{"rxe", "siw"} // immutable

func TestRDMATransport(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { runSuite(t, onDevice(t, kind, rdmacm.Config{})) })
	}
}

// TestRDMAModes: other ways to wait for completions.
func TestRDMAModes(t *testing.T) {
	for _, kind := range kinds {
		for _, tt := range []struct {
			name string
			cfg  rdmacm.Config
		}{
			{"Event", rdmacm.Config{Wait: rdmacm.WaitEvent}},
			{"Poll", rdmacm.Config{Wait: rdmacm.WaitPoll}},
			{"SharedCQ", rdmacm.Config{SharedCQ: 8192}},
			{"UnsafeWindows", rdmacm.Config{UnsafeWindows: true}},
		} {
			if tt.cfg.UnsafeWindows && kind != "rxe" {
				continue // the switch is about rxe
			}
			t.Run(kind+"/"+tt.name, func(t *testing.T) {
				b := onDevice(t, kind, tt.cfg)
				for _, test := range []struct {
					name string
					run  func(*testing.T, *bed)
				}{{"Long", testLong}, {"Parallel", testParallel}, {"EndsUnderLoad", testEndsUnderLoad}} {
					t.Run(test.name, func(t *testing.T) {
						leak.Check(t)
						test.run(t, b)
					})
				}
			})
		}
	}
}
