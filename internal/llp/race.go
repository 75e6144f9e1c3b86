//go:build race

package llp

import "syscall"

// RaceRelease tells the race detector that everything this end has done happens before what the other end, in the same
// process, does after RaceAcquire. A Stream calls it after it has read the caller's memory, and before the peer can see
// the data written. Package syscall annotates its own calls; this one writes nothing.
func RaceRelease() { syscall.Write(-1, nil) }

// RaceAcquire is the counterpart of RaceRelease. A Stream calls it after it has seen what the peer has written. fd is
// any readable descriptor.
func RaceAcquire(fd int) { syscall.Read(fd, nil) }
