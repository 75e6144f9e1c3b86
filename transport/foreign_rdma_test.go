//go:build linux && cgo

package transport_test

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

func TestRDMAForeign(t *testing.T) {
	for _, kind := range rdmatest.Kinds() {
		t.Run(kind, func(t *testing.T) { runForeign(t, onDevice(t, kind, rdmacm.Config{}), false) })
	}
	t.Run("rxe with windows", func(t *testing.T) {
		runForeign(t, onDevice(t, "rxe", rdmacm.Config{UnsafeWindows: true}), false)
	})
}
