//go:build race

package llp

import "syscall"

// RaceRelease tells the race detector that what this end has done happens before what the other end, in the same
// process, does after RaceAcquire. A Stream calls it after it has read the caller's memory, and before the peer can see
// what it has written. Package syscall annotates its own calls; this one writes nothing.
func RaceRelease() { syscall.Write(-1, nil) }

// RaceAcquire is the other half of RaceRelease. A Stream calls it once it has seen what the peer has written. fd is any
// descriptor that can be read.
func RaceAcquire(fd int) { syscall.Read(fd, nil) }
