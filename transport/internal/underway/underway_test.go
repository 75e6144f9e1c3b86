package underway

import (
	"math/rand/v2"
	"testing"
)

// TestTable compares a Table with a map, with xids that follow one another across the wrap, with some
// that share their low bits, and with some at random.
func TestTable(t *testing.T) {
	for _, tt := range []struct {
		name string
		next func(i uint32) uint32
	}{
		{"in a row", func(i uint32) uint32 { return i - 500 }},
		{"one place", func(i uint32) uint32 { return i * 0x0e8b2f51 }}, // by the inverse of the factor,
		{"at random", func(i uint32) uint32 { return i * 0x9E3779B1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			var table Table[uint32]
			want := make(map[uint32]*uint32)
			var in []uint32
			for i := range uint32(2000) {
				xid := tt.next(i)
				if rng.IntN(100) < 55 {
					call := &xid
					table.Add(xid, call)
					want[xid] = call
					in = append(in, xid)
				}
				if len(in) > 0 && rng.IntN(100) < 50 {
					k := rng.IntN(len(in))
					table.Remove(in[k])
					delete(want, in[k])
					in[k] = in[len(in)-1]
					in = in[:len(in)-1]
				}
				if got := table.Find(xid); got != want[xid] {
					t.Fatalf("call %d: Find returns %p, want %p", i, got, want[xid])
				}
			}
			for _, xid := range in {
				if got := table.Find(xid); got != want[xid] {
					t.Fatalf("Find(%#x) returns %p, want %p", xid, got, want[xid])
				}
				table.Remove(xid)
			}
			if table.n != 0 {
				t.Errorf("%d calls are left", table.n)
			}
		})
	}
}

// TestTableGrows: a table has at most twice as many places as it ever held at once.
func TestTableGrows(t *testing.T) {
	var table Table[int]
	for i := range uint32(1 << 16) {
		table.Add(i, new(int))
		if i >= 100 {
			table.Remove(i - 100)
		}
	}
	if n := len(table.places); n != 256 {
		t.Errorf("%d places for 101 calls, want 256", n)
	}
}
