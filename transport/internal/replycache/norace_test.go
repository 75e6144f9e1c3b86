//go:build !race

package replycache

import "testing"

// A cache that is full takes the memory of what it forgets.
func TestAllocs(t *testing.T) {
	if n := testing.AllocsPerRun(1000, full(t)); n != 0 {
		t.Errorf("%v allocations for a call", n)
	}
}
