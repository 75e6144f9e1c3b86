package main

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A liveness probe, which connects to the NFS port, does not wait for others that do.
func TestLivenessUnderFlood(t *testing.T) {
	s := startServer(t, "--dir", t.TempDir(), "--tcp-addr", "127.0.0.1:0")
	var done atomic.Int64
	stop := cmdtest.Flood(t, 4, func(ctx context.Context) {
		if conn, err := cmdtest.DialerFrom("127.0.0.1").DialContext(ctx, "tcp", s.tcp); err == nil {
			done.Add(1)
			conn.Close()
		}
		time.Sleep(2 * time.Millisecond)
	})
	defer stop()
	testutil.Eventually(t, "it is a flood", func() bool { return done.Load() >= 1000 })
	for range 4 {
		conn, err := cmdtest.DialerFrom("127.0.0.2").DialContext(t.Context(), "tcp", s.tcp)
		testutil.Must(t, err)
		conn.Close()
	}
}
