package serving

import (
	"context"
	"log/slog"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// Signs of life end when the server is stuck.
func TestWatchdogOfStuckServer(t *testing.T) {
	m := cmdtest.NewServiceManager(t)
	t.Setenv("WATCHDOG_USEC", "3000")
	ctx, cancel := context.WithCancel(t.Context())
	stuck, free, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	calls := 0
	go func() {
		defer close(done)
		(&manager{log: slog.New(slog.DiscardHandler)}).watched(ctx, func() {
			if calls++; calls == 3 {
				close(stuck)
				<-free
			}
		})
	}()
	<-stuck
	for range 2 {
		if got := m.Read(testutil.Patience); got != "WATCHDOG=1" {
			t.Errorf("the service manager hears %q, want a sign of life", got)
		}
	}
	m.Silent()
	cancel()
	close(free)
	<-done
}
