package transport_test

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

var (
	simSeeds   = flag.Int("seeds", 0, "TestSimulation: how many histories; 0 is 2000, or 300 with the race detector")
	simFirst   = flag.Uint64("first", 1, "TestSimulation: the first seed")
	simTwice   = flag.Int("twice", 0, "TestSimulation: how many histories are run twice and compared")
	simVerbose = flag.Bool("history", false, "TestSimulation: print everything that happens")
)

// TestSimulation runs histories of simulated connections: see simworld_test.go.
func TestSimulation(t *testing.T) {
	n := *simSeeds
	if n == 0 {
		n = 2000
		if raceEnabled {
			n = 300
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the same again for the same seed
	var log func(string, ...any)
	if *simVerbose {
		log = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	}
	for i := range uint64(n) {
		h := newSimHistory(*simFirst + i)
		res := simulate(t, h, log)
		if i < uint64(*simTwice) {
			if again := simulate(t, h, nil); again.hash != res.hash {
				t.Errorf("seed %d: two runs differ", *simFirst+i)
			}
		}
		if len(res.wrong) > 0 {
			t.Errorf("seed %d:\n%s\n%s", *simFirst+i, strings.Join(res.wrong, "\n"), h)
		}
	}
}
