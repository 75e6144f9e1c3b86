package nfs

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
)

func TestRDMANFS(t *testing.T) {
	for _, kind := range rdmatest.Kinds() {
		t.Run(kind, func(t *testing.T) { runSuite(t, testbed.Device(t, kind)) })
	}
}
