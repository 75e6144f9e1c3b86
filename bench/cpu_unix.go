//go:build unix

package bench

import (
	"syscall"
	"time"
)

// ProcessorTime returns the CPU time of this process, in user and kernel mode.
func ProcessorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
