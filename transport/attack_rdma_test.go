package transport_test

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// TestRDMAMemoryAttacks checks V1-11-3 V1-11-4 on each adapter, for each way in which it exposes memory.
// RPCRDMA_ATTACKS sets the number of attempts on each end.
func TestRDMAMemoryAttacks(t *testing.T) {
	t.Run("iwarp", func(t *testing.T) { runMemoryAttacks(t, onIwarp(iwarp.Config{}), victim{}, 1000) })
	t.Run("rxe", func(t *testing.T) {
		runMemoryAttacks(t, onDevice(t, "rxe", rdmacm.Config{}), victim{looseInvalidation: true}, 300)
	})
	t.Run("rxe with windows", func(t *testing.T) {
		runMemoryAttacks(t, onDevice(t, "rxe", rdmacm.Config{UnsafeWindows: true}), victim{looseWindows: true, looseInvalidation: true}, 300)
	})
	t.Run("siw", func(t *testing.T) {
		runMemoryAttacks(t, onDevice(t, "siw", rdmacm.Config{}), victim{looseReads: true}, 100)
	})
}
