package rate

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// TestGate: a burst passes at once, then what the rate permits; the next event that passes has the
// number of those left out.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(2, 3)
		if err != nil || !r.Limits() {
			t.Fatal(r, err)
		}
		g := NewGate(r)
		for i, tt := range []struct {
			pause   time.Duration
			passes  bool
			omitted int
		}{
			{0, true, 0}, {0, true, 0}, {0, true, 0}, {0, false, 0}, {499 * time.Millisecond, false, 0},
			{time.Millisecond, true, 2}, {0, false, 0}, {time.Hour, true, 1}, {0, true, 0}, {0, true, 0}, {0, false, 0},
		} {
			time.Sleep(tt.pause)
			if omitted, ok := g.Pass(); ok != tt.passes || omitted != tt.omitted {
				t.Errorf("event %d: %v, %d omitted", i, ok, omitted)
			}
		}
		free := NewGate(Rate{})
		for range 1000 {
			if _, ok := free.Pass(); !ok {
				t.Fatal("the zero Rate limits")
			}
		}
	})
}

func TestNew(t *testing.T) {
	for _, tt := range []struct {
		perSecond float64
		burst     int
	}{{-1, 0}, {math.NaN(), 0}, {math.Inf(1), 0}, {1, -1}, {0, 1}, {1e-12, 0}, {1e-300, math.MaxInt}} {
		if r, err := New(tt.perSecond, tt.burst); err == nil {
			t.Errorf("%v: %+v", tt, r)
		}
	}
}
