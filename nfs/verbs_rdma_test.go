package nfs

import "testing"

func TestRDMANFS(t *testing.T) {
	for _, kind := range []string{"rxe", "siw"} {
		t.Run(kind, func(t *testing.T) { runSuite(t, onDevice(t, kind)) })
	}
}
