package arena

import (
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

// An arena whose memory is registered has little more than what is in use: a slab of 64 KiB
// at first, then a quarter more at a time.
func TestArenaPinsLittleMore(t *testing.T) {
	pinned := 0
	a := New(pinning{pinned: &pinned}, Options{Small: 4096})
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
		if most := max(SlabSize, n*size+max(n*size/4, leastSlab)); pinned < n*size || pinned > most {
			t.Fatalf("%d KiB are pinned for %d, want at most %d", pinned>>10, n*size>>10, most>>10)
		}
	}
	// What is longer than a slab has its own.
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
