package nfs

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/rdmatest"
)

func TestRDMANFS(t *testing.T) {
	for _, kind := range rdmatest.Kinds() {
		t.Run(kind, func(t *testing.T) { runSuite(t, onDevice(t, kind)) })
	}
}
