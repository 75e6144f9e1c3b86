// Package leak looks for what tests leave behind: goroutines and descriptors.
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

// patience is how long goroutines that have been told to end may take to do so.
const patience = 10 * time.Second

// Main runs the tests of a package and returns the exit status: 99 if they passed
// and left something behind.
//
//	func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
func Main(m *testing.M) int {
	before := now()
	code := m.Run()
	// Fuzzing keeps workers of its own.
	if fuzzing := flag.Lookup("test.fuzz"); code == 0 && (fuzzing == nil || fuzzing.Value.String() == "") {
		if !settled(before, patience, os.Stderr) {
			return 99
		}
	}
	return code
}

// A count is what there is at one moment.
type count struct{ goroutines, descriptors int }

func now() count { return count{runtime.NumGoroutine(), descriptors()} }

// settled waits until no more is there than before, or says what is.
func settled(before count, patience time.Duration, w io.Writer) bool {
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		c := now()
		if c.goroutines <= before.goroutines && c.descriptors <= before.descriptors {
			return true
		}
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			fmt.Fprintf(w, "left behind: %d goroutines, %d descriptors\n%s\n",
				c.goroutines-before.goroutines, c.descriptors-before.descriptors, buf[:runtime.Stack(buf, true)])
			return false
		}
	}
}

// descriptors counts open files, but for those of the runtime's poller. Where
// /proc is not to be had it returns 0.
func descriptors() int {
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
