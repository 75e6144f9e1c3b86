package arena

import (
	"cmp"
	"errors"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A pinning is an adapter that has all memory registered, and so resident.
type pinning struct {
	pinned *int
}

func (p pinning) RegMR(b []byte, access fabric.Access) (fabric.MR, error) {
	*p.pinned += len(b)
	return pinnedMR{n: len(b), pinned: p.pinned}, nil
}

type pinnedMR struct {
	fabric.MR
	n      int
	pinned *int
}

func (pinnedMR) LKey() uint32 { return 7 }

func (m pinnedMR) Close() error { *m.pinned -= m.n; return nil }

// An arena with registered memory has little more than what is in use: a slab of 64 KiB at first, or as
// much as its owner begins with, then a quarter more at a time.
func TestArenaPinsLittleMore(t *testing.T) {
	for _, first := range []int{0, 28 << 10} {
		pinsLittleMore(t, first)
	}
}

func pinsLittleMore(t *testing.T, first int) {
	pinned := 0
	a := New(pinning{pinned: &pinned}, Options{Small: 4096, First: first})
	const size = 4 << 10
	for n := 1; n <= 300; n++ {
		b, err := a.Get(size)
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Bytes) != size || b.LKey != 7 {
			t.Fatalf("buffer %d has %d bytes under key %d", n, len(b.Bytes), b.LKey)
		}
		b.Bytes[0], b.Bytes[size-1] = 1, 1
		if most := max(cmp.Or(first, SlabSize), n*size+max(n*size/4, leastSlab)); pinned < n*size || pinned > most {
			t.Fatalf("%d KiB are pinned for %d, want at most %d", pinned>>10, n*size>>10, most>>10)
		}
	}
	// A buffer longer than a slab has its own.
	before := pinned
	if _, err := a.Get(1 << 20); err != nil {
		t.Fatal(err)
	}
	if pinned != before+1<<20 {
		t.Errorf("a buffer of 1 MiB has pinned %d KiB", (pinned-before)>>10)
	}
	a.Drop()
	if pinned != 0 {
		t.Errorf("%d bytes are pinned after the end", pinned)
	}
}

// bulk returns an arena of bulk buffers of one slab each, and what it counts.
func bulk(opt Options) (*Arena, *Usage) {
	opt.LocalDMA, opt.Small, opt.Usage = true, 4096, new(Usage)
	return New(nil, opt), opt.Usage
}

func get(t *testing.T, a *Arena, n int) *Buffer {
	t.Helper()
	b, err := a.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMaxBulk(t *testing.T) {
	for _, strict := range []bool{false, true} {
		told := 0
		a, _ := bulk(Options{MaxBulk: 3 * SlabSize, Strict: strict, OnBulk: func() { told++ }})
		var bufs []*Buffer
		for range 3 {
			bufs = append(bufs, get(t, a, SlabSize))
		}
		if got := a.Stats(); got.Bulk != 3*SlabSize || got.Buffers != 3 || told != 3 || !a.Bulky() {
			t.Errorf("strict %v: %+v, told %d times", strict, got, told)
		}
		b, err := a.Get(SlabSize)
		if strict != errors.Is(err, ErrFull) {
			t.Errorf("strict %v: one more than the limit: %v", strict, err)
		}
		get(t, a, 100) // small buffers do not count
		if strict {
			a.Put(bufs[0])
			if _, err := a.Get(SlabSize / 2); err != nil { // the room of another class
				t.Errorf("there is room for one: %v", err)
			}
		} else {
			a.Put(b)
			a.Put(bufs[0])
			get(t, a, 2*SlabSize)
			if n := a.Stats().Bulk; n != 4*SlabSize {
				t.Errorf("%d bytes are mapped for %d in use", n, 4*SlabSize)
			}
		}
		a.Drop()
	}
}

// Mapped memory is that in use at once between two sweeps, and what Trim leaves.
func TestSweep(t *testing.T) {
	const size = SlabSize
	a, usage := bulk(Options{})
	is := func(what string, slabs, idle int) {
		t.Helper()
		if got := a.Stats().Bulk; got != slabs*size || usage.Idle.Load() != int64(idle*size) {
			t.Errorf("%s: %d bytes are mapped, %d idle; want %d and %d slabs of %d", what, got, usage.Idle.Load(), slabs, idle, size)
		}
	}
	x, y, z := get(t, a, size), get(t, a, size), get(t, a, size)
	is("three in use", 3, 0)
	a.Put(x)
	a.Put(y)
	a.Sweep()
	is("they were in use before this sweep", 3, 2)
	if n := a.Trim(size); n != size {
		t.Errorf("Trim has unmapped %d bytes", n)
	}
	is("one is trimmed", 2, 1)
	a.Put(z)
	is("none is in use", 2, 2)
	a.Sweep()
	is("one was in use since the last sweep", 1, 1)
	a.Sweep()
	is("none was", 0, 0)
	if n := a.Trim(size); n != 0 || a.Bulky() {
		t.Errorf("Trim has unmapped %d bytes of none", n)
	}
	a.Drop()
}

// A buffer may come back after the end, and the count of the others' memory is right.
func TestUsageAfterEnd(t *testing.T) {
	a, usage := bulk(Options{})
	small, used, idle := get(t, a, 100), get(t, a, SlabSize), get(t, a, SlabSize)
	a.Put(idle)
	if usage.Base.Load() != SlabSize || usage.Idle.Load() != SlabSize {
		t.Errorf("%d and %d bytes", usage.Base.Load(), usage.Idle.Load())
	}
	a.Hold()
	a.Drop()
	if got := a.Stats(); got.Refs != 1 || got.Slabs != 3 {
		t.Errorf("%+v while somebody holds it", got)
	}
	a.Drop()
	a.Put(used)
	a.Put(small)
	if usage.Base.Load() != 0 || usage.Idle.Load() != 0 || a.Stats() != (Stats{}) {
		t.Errorf("after the end %d and %d bytes, %+v", usage.Base.Load(), usage.Idle.Load(), a.Stats())
	}
}

func TestSpare(t *testing.T) {
	var s spareSlabs
	if s.take() != nil || s.keep(make([]byte, SlabSize/2)) {
		t.Error("there is one")
	}
	dirty := make([]byte, SlabSize)
	for i := range dirty {
		dirty[i] = 1
	}
	s.keep(dirty)
	for i, c := range s.take() {
		if c != 0 {
			t.Fatalf("byte %d is that of another connection", i)
		}
	}
	for i := range maxSpareSlabs + 1 {
		if s.keep(dirty) != (i < maxSpareSlabs) {
			t.Errorf("slab %d", i)
		}
	}
}
