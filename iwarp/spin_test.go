package iwarp

import "testing"

// One processor is left to goroutines that do not poll, and polls that find nothing become rare.
func TestPollers(t *testing.T) {
	for _, procs := range []int32{1, 2, 4} {
		var p polls
		p.procs.Store(procs)
		n := int32(0)
		for range 2 * procs {
			if p.enter() {
				n++
			}
		}
		if n != procs-1 {
			t.Errorf("with %d processors %d goroutines poll", procs, n)
		}
	}
	var p polls
	p.procs.Store(2)
	polled := 0
	for range 10 * seldom {
		room := p.enter()
		if room {
			polled++
		}
		p.leave(room, false)
	}
	if polled > mostlyVain+10 {
		t.Errorf("%d of %d waits poll in vain", polled, 10*seldom)
	}
}
