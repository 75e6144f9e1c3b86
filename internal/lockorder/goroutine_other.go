//go:build race && !(linux && amd64 && !purego)

package lockorder

import (
	"runtime"
	"strconv"
)

// goroutine returns the number of the calling goroutine. The runtime shows it only at the head of a stack trace.
func goroutine() uint64 {
	var buf [32]byte
	b := buf[len("goroutine "):runtime.Stack(buf[:], false)]
	n := 0
	for n < len(b) && '0' <= b[n] && b[n] <= '9' {
		n++
	}
	id, _ := strconv.ParseUint(string(b[:n]), 10, 64)
	return id
}
