//go:build linux && cgo

package grpcrdma_test

import (
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
)

// TestRDMAGRPC runs on devices what runs over the other providers.
func TestRDMAGRPC(t *testing.T) {
	for _, kind := range rdmatest.Kinds() {
		t.Run(kind, func(t *testing.T) {
			bed := testbed.Device(t, kind)
			addr := net.JoinHostPort(bed.Host, "0")
			t.Run("Channel", func(t *testing.T) { testChannel(t, bed.Provider, addr) })
			t.Run("Interop", func(t *testing.T) { testInterop(t, bed.Provider, addr) })
			t.Run("Sizes", func(t *testing.T) { testSizes(t, bed.Provider, addr) })
			t.Run("Order", func(t *testing.T) { testOrder(t, bed.Provider, addr) })
			t.Run("Cut", func(t *testing.T) { testCut(t, bed.Provider, addr) })
		})
	}
}
