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
		} {
			t.Run(kind+"/"+tt.name, func(t *testing.T) {
				leak.Check(t)
				b := onDevice(t, kind, tt.cfg)
				t.Run("Long", func(t *testing.T) { testLong(t, b) })
				t.Run("EndsUnderLoad", func(t *testing.T) { testEndsUnderLoad(t, b) })
			})
		}
	}
}
