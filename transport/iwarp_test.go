package transport_test

import (
	"fmt"
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
)

func TestIwarpTransport(t *testing.T) { runSuite(t, onIwarp(iwarp.Config{})) }

// TestIwarpSizes: the adapter cuts messages into pieces of other sizes.
func TestIwarpSizes(t *testing.T) {
	for _, cfg := range []iwarp.Config{{CRC: true}, {MaxFPDU: 1448}} {
		t.Run(fmt.Sprintf("%+v", cfg), func(t *testing.T) { testSizes(t, onIwarp(cfg)) })
	}
}
