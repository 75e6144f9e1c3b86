//go:build generated

package service

import (
	"context"
	"testing"
)

// A call that is made again and again allocates what its results need, at both ends together, and
// nothing else.
func TestAllocsPerCall(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, and pools forget")
	}
	each(t, func(t *testing.T, over string) {
		s := newStore()
		b := start(t, over, StoreV1Program(s))
		// One that can end is watched in calls that take longer than a tick, which allocates.
		ctx := context.Background()
		s.values["small"], s.values["large"] = pattern(1000), pattern(MaxValue)
		buf := make([]byte, MaxValue)
		start := 1.0 // of the handler's goroutine, over RDMA
		if over == "tcp" {
			start = 0
		}
		swap := &Pair{Text: pattern(65536), Other: pattern(100_000)}
		for _, tt := range []struct {
			name string
			call func() error
			want float64
		}{
			{"null", func() error { return b.store.Null(ctx) }, 0},
			{"count", func() error { _, err := b.store.Count(ctx, 1); return err }, 0},
			{"swap, two items each way", func() error { _, err := b.store.Swap(ctx, swap, buf, buf[500_000:]); return err }, start},
			{"echo of an opaque", func() error { _, err := b.store.Echo(ctx, &GetArgs{Id: StoreId("12345678")}); return err }, 1},
			// The handler makes a tag, and the client's copy of it.
			{"get, inline", func() error {
				_, err := b.store.Get(ctx, &GetArgs{Id: StoreId("small"), Count: MaxValue}, buf[:1000])
				return err
			}, start + 2},
			{"get, large", func() error {
				_, err := b.store.Get(ctx, &GetArgs{Id: StoreId("large"), Count: MaxValue}, buf)
				return err
			}, start + 2},
		} {
			for range 100 {
				if err := tt.call(); err != nil {
					t.Fatal(tt.name, err)
				}
			}
			n := testing.AllocsPerRun(300, func() {
				if err := tt.call(); err != nil {
					t.Fatal(tt.name, err)
				}
			})
			if n > tt.want {
				t.Errorf("%s: %v allocations, want at most %v", tt.name, n, tt.want)
			}
		}
	})
}
