// Package underway finds the call for a reply.
package underway

import "math/bits"

// A Table holds the calls in flight on a connection, by xid. The zero value is empty.
//
// Xids are consecutive. A multiplication spreads them over the places, so that there are gaps between them. If the
// place of a call is taken, the call is in one of the places after it, before the next gap. The table is never more
// than half full.
type Table[T any] struct {
	places []place[T] // a power of two, or empty
	shift  uint8      // shift of a product that leaves the index of a place
	n      int
}

type place[T any] struct {
	xid  uint32
	call *T // nil: the place is free
}

// Find returns the call with xid, or nil.
func (t *Table[T]) Find(xid uint32) *T {
	if t.n == 0 {
		return nil
	}
	p := &t.places[t.find(xid)]
	return p.call
}

// Add adds a call, unless another one has its xid.
func (t *Table[T]) Add(xid uint32, call *T) (added bool) {
	if 2*(t.n+1) > len(t.places) {
		t.grow()
	}
	p := &t.places[t.find(xid)]
	if p.call != nil {
		return false
	}
	*p = place[T]{xid, call}
	t.n++
	return true
}

// Remove removes the call with xid, which must be in the table.
func (t *Table[T]) Remove(xid uint32) {
	mask := len(t.places) - 1
	free := t.find(xid)
	// Calls after it, up to the next free place, move there unless that is before their home.
	for i := (free + 1) & mask; t.places[i].call != nil; i = (i + 1) & mask {
		if home := t.home(t.places[i].xid); (i-home)&mask >= (i-free)&mask {
			t.places[free] = t.places[i]
			free = i
		}
	}
	t.places[free] = place[T]{}
	t.n--
}

// home returns the preferred place of xid: Fibonacci hashing.
func (t *Table[T]) home(xid uint32) int { return int(xid * 0x9E3779B1 >> t.shift) }

// find returns the place of the call with xid, or else where it belongs.
func (t *Table[T]) find(xid uint32) int {
	mask := len(t.places) - 1
	i := t.home(xid)
	for t.places[i].call != nil && t.places[i].xid != xid {
		i = (i + 1) & mask
	}
	return i
}

func (t *Table[T]) grow() {
	old := t.places
	t.places = make([]place[T], max(2*len(old), 4))
	t.shift = uint8(33 - bits.Len(uint(len(t.places))))
	for _, p := range old {
		if p.call != nil {
			t.places[t.find(p.xid)] = p
		}
	}
}
