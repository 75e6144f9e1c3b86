package pollfd

import (
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestTurn: with one processor, who polls and takes a turn now and then lets those run
// that are parked on descriptors.
func TestTurn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	turn, err := NewTurn()
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Close()
	fd, r, w := pipe(t)
	for round := range 20 {
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
		turns := 0
		for ; len(done) == 0; turns++ {
			if turns == 1000 {
				t.Fatalf("round %d: not woken in %d turns", round, turns)
			}
			turn.Take()
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if turns > 10 {
			t.Errorf("round %d: woken after %d turns", round, turns)
		}
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
