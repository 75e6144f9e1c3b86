//go:build race

package lockorder

import (
	"runtime"
	"sync"
	"testing"
)

// Each goroutine has a number of its own, and keeps it when it moves to another thread or stack.
func TestGoroutine(t *testing.T) {
	const n = 100
	var mu sync.Mutex
	seen := map[uint64]bool{goroutine(): true}
	start, end := make(chan struct{}), make(chan struct{})
	var met, done sync.WaitGroup
	met.Add(n)
	for range n {
		done.Go(func() {
			id := goroutine()
			mu.Lock()
			if seen[id] {
				t.Errorf("two goroutines have the number %d", id)
			}
			seen[id] = true
			mu.Unlock()
			met.Done()
			<-start // all others are there
			for range 10 {
				runtime.Gosched()
				if got := deep(200); got != id {
					t.Errorf("goroutine %d has the number %d on a larger stack", id, got)
				}
			}
			<-end
		})
	}
	met.Wait()
	close(start)
	close(end)
	done.Wait()
}

// deep returns the number as seen below so many calls.
func deep(calls int) uint64 {
	var room [256]byte
	if calls == 0 {
		return goroutine()
	}
	room[calls] = 1
	return deep(calls-1) + uint64(room[0])
}
