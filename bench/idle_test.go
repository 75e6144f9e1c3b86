//go:build linux

package bench

import (
	"syscall"
	"testing"
	"time"
)

// TestManyIdleConnections: 10,000 connections over the software adapter that have been used
// and are idle take at most 1 GiB of a server, after garbage collection.
func TestManyIdleConnections(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("it makes 10,000 connections and measures memory")
	}
	const conns, most = 10_000, 1 << 30
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	// The runtime has raised the soft limit to the hard one, here and in the processes that are
	// measured.
	if files.Max < conns+100 {
		t.Skipf("a process may open %d files", files.Max)
	}
	i, err := MeasureIdle(Software(Adapter{}), conns, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a connection takes %.1f KiB of the client, %.1f KiB of the server", i.ClientResident/1024, i.ServerResident/1024)
	if got := i.ServerResident * conns; got > most {
		t.Errorf("%d connections take %.0f MiB of the server, at most %d MiB are allowed", conns, got/(1<<20), most>>20)
	}
}
