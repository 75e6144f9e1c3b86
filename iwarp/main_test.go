package iwarp

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain looks for goroutines and descriptors that the tests have left
// behind.
func TestMain(m *testing.M) {
	goroutines, fds := runtime.NumGoroutine(), openFiles()
	code := m.Run()
	if code == 0 && !leavesNothing(goroutines, fds) {
		code = 99
	}
	os.Exit(code)
}

func leavesNothing(goroutines, fds int) bool {
	for end := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		g, f := runtime.NumGoroutine(), openFiles()
		if g <= goroutines && f <= fds {
			return true
		}
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			fmt.Fprintf(os.Stderr, "left behind: %d goroutines, %d descriptors\n%s\n", g-goroutines, f-fds, buf[:runtime.Stack(buf, true)])
			return false
		}
	}
}

// openFiles counts descriptors, but for those of the runtime's poller.
func openFiles() int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range d {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:") {
			n++
		}
	}
	return n
}
