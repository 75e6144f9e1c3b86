// Package leak detects goroutines and file descriptors that outlive tests.
package leak

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// patience is how long goroutines that are about to exit may take.
const patience = 10 * time.Second

// Main runs the tests of a package and returns the exit status: 99 if they passed but left something open.
//
//	func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
func Main(m *testing.M) int {
	before := now()
	code := m.Run()
	if code == 0 && !fuzzing() && !settled(before, patience, os.Stderr) {
		return 99
	}
	return code
}

// fuzzing reports whether the fuzzing engine is running. It has workers and its own goroutine for signals, which start
// after the target.
func fuzzing() bool {
	f := flag.Lookup("test.fuzz")
	return f != nil && f.Value.String() != ""
}

// Check fails the test if goroutines or descriptors outlive it. Parallel tests cannot
// use it.
func Check(t testing.TB) {
	t.Helper()
	before := now()
	t.Cleanup(func() {
		var what strings.Builder
		if !t.Failed() && !fuzzing() && !settled(before, patience, &what) {
			t.Error(what.String())
		}
	})
}

// count is a snapshot of goroutines and descriptors.
type count struct {
	goroutines  int
	descriptors []string // link targets in /proc/self/fd
}

func now() count { return count{runtime.NumGoroutine(), descriptors()} }

// settled waits until the count is at most that of before, and otherwise prints what remains.
func settled(before count, patience time.Duration, w io.Writer) bool {
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		c := now()
		if c.goroutines <= before.goroutines && len(c.descriptors) <= len(before.descriptors) {
			return true
		}
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			fmt.Fprintf(w, "left behind: %d goroutines, %d descriptors\n",
				c.goroutines-before.goroutines, len(c.descriptors)-len(before.descriptors))
			if len(c.descriptors) > len(before.descriptors) {
				fmt.Fprintf(w, "descriptors: %q, before: %q\n", c.descriptors, before.descriptors)
			}
			if c.goroutines > before.goroutines {
				fmt.Fprintf(w, "%s\n", buf[:runtime.Stack(buf, true)])
			}
			return false
		}
	}
}

// descriptors returns the open descriptors, except those of the runtime's poller, an epoll and an eventfd. Without
// /proc it returns none.
func descriptors() (open []string) {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, e := range d {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:[event") {
			open = append(open, to)
		}
	}
	return open
}
