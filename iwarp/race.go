//go:build race

package iwarp

import "sync/atomic"

// ioSync is how the race detector learns that what one end of a connection did
// before it sent is seen by the other end when it has received, as package
// syscall tells it of its own calls. It exists in race builds alone and decides
// nothing.
var ioSync atomic.Uint32

func raceRelease() { ioSync.Add(1) }
func raceAcquire() { ioSync.Load() }
