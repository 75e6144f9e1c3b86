//go:build linux && cgo

package rdmacm

import "testing"

// A ring that grows keeps what is outstanding under its position, wherever in the ring
// that was, for both ends of the queue.
func TestRingGrows(t *testing.T) {
	for _, start := range []uint64{0, 5, firstRecvs - 1, 1000003} {
		var q workQueue
		var w back
		w.init(&q, 100, firstRecvs)
		r := front{&q, w.slots}
		w.tail = start
		q.head.Store(start)
		q.returned.Store(start)
		taken := start // positions before it are the caller's again
		for round := range 4 {
			for w.room() > 0 {
				if w.tight(1) {
					r.grow(&w, w.sizeFor(1))
				}
				if w.used() >= len(w.slots) {
					t.Fatalf("from %d: %d places for one more than %d", start, len(w.slots), w.used())
				}
				w.push(slot{id: w.tail * 3})
				// A third of them is done and taken at once: the head moves, too.
				if w.tail%3 == 0 && round < 2 {
					taken++
					q.head.Store(taken)
					q.returned.Store(taken)
				}
				for pos := taken; pos != w.tail; pos++ {
					if got := r.at(pos).id; got != pos*3 || !r.outstanding(pos) {
						t.Fatalf("from %d: position %d has request %d, outstanding %v", start, pos, got, r.outstanding(pos))
					}
				}
				if r.outstanding(taken - 1) {
					t.Fatalf("from %d: position %d is outstanding, and was taken", start, taken-1)
				}
			}
			taken = w.tail
			q.head.Store(taken)
			q.returned.Store(taken)
		}
		if len(w.slots) != 100 {
			t.Errorf("the ring has grown to %d", len(w.slots))
		}
	}
}

// One with few requests outstanding stays short, however many there are in a row.
func TestRingStaysShort(t *testing.T) {
	var q workQueue
	var w back
	w.init(&q, 1000, firstRecvs)
	for range 10000 {
		if w.tight(4) {
			t.Fatalf("no room for 4 with %d outstanding", w.used())
		}
		w.tail += 4
		q.head.Add(4)
		q.returned.Add(4)
	}
}
