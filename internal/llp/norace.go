//go:build !race

package llp

// RaceRelease does nothing without the race detector.
func RaceRelease() {}

// RaceAcquire does nothing without the race detector.
func RaceAcquire(fd int) {}
