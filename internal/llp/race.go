//go:build race

package llp

import "syscall"

// RaceRelease and RaceAcquire tell the race detector that what one end has done before it sends happens before
// what the other end, in the same process, does after it receives. Package syscall annotates its own calls;
// these two are such calls, of no bytes. A Stream calls RaceRelease before the peer can see what it has written,
// after the last look at the caller's memory, and RaceAcquire once it has seen what the peer has written. fd may be any
// descriptor that can be read.
func RaceRelease()       { syscall.Write(-1, nil) }
func RaceAcquire(fd int) { syscall.Read(fd, nil) }
