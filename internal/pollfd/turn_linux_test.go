package pollfd

import (
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestTurn: with one processor, a goroutine that polls and yields now and then lets goroutines run
// that are parked on descriptors.
func TestTurn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	turn, err := NewTurn()
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Close()
	fd, r, w := pipe(t)
	// A thread of Go's that has just learned of the byte may be off its processor: without turns,
	// every round would wait for the monitor.
	const rounds = 20
	late := 0
	for round := range rounds {
		done := make(chan error, 1)
		parked := make(chan struct{}, 2)
		go func() {
			done <- fd.Await(func() bool {
				var b [1]byte
				n, _ := syscall.Read(r, b[:])
				select {
				case parked <- struct{}{}:
				default:
				}
				return n == 1
			})
		}()
		<-parked
		runtime.Gosched() // it parks
		syscall.Write(w, []byte{1})
		turns, start := 0, time.Now()
		for ; len(done) == 0; turns++ {
			if time.Since(start) > 10*time.Second {
				t.Fatalf("round %d: not woken in %d turns", round, turns)
			}
			turn.Take()
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if turns > 10 {
			late++
			t.Logf("round %d: woken after %d turns", round, turns)
		}
	}
	if late > rounds/2 {
		t.Errorf("%d of %d rounds took more than 10 turns", late, rounds)
	}
}

func TestTurnAllocs(t *testing.T) {
	turn, err := NewTurn()
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, turn.Take); n != 0 {
		t.Errorf("%v allocations", n)
	}
	turn.Close()
	start := time.Now()
	turn.Take()
	if d := time.Since(start); d > time.Second {
		t.Errorf("after Close: %v", d)
	}
}

func BenchmarkTurn(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	turn, err := NewTurn()
	if err != nil {
		b.Fatal(err)
	}
	defer turn.Close()
	for b.Loop() {
		turn.Take()
	}
}
