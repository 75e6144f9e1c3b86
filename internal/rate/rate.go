// Package rate limits how often something happens: calls of a caller, records in a log.
package rate

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// A Rate limits the events per second, and the size of a burst. The zero value has no limit. Times are durations since
// a fixed moment.
//
// It implements the generic cell rate algorithm: each event moves the time at which the next is due by one interval,
// and may come earlier than due by the length of a burst. Its only state is one time, which need not be kept once it
// has passed.
//
// A rate.Limiter of golang.org/x/time has 80 bytes and its own lock, inside a middleware.Limiter, which must know when
// a caller can be forgotten. It would replace the two lines of Next, and would be the library's second dependency.
type Rate struct {
	interval time.Duration // between two events; 0: no limit
	early    time.Duration // how much earlier than due an event may come
}

// New returns a Rate of perSecond events, with bursts of burst events. A burst of 0 means the number of events per
// second, and at least one.
func New(perSecond float64, burst int) (Rate, error) {
	if perSecond == 0 && burst == 0 {
		return Rate{}, nil
	}
	if !(perSecond > 0) || math.IsInf(perSecond, 1) || burst < 0 {
		return Rate{}, fmt.Errorf("a rate of %v per second, %d at once", perSecond, burst)
	}
	if burst == 0 {
		burst = int(min(max(math.Ceil(perSecond), 1), math.MaxInt32))
	}
	interval := max(float64(time.Second)/perSecond, 1)
	early := interval * float64(burst-1)
	if !(interval+early <= math.MaxInt64/4) { // the value may be NaN
		return Rate{}, fmt.Errorf("%d at once take too long at a rate of %v per second", burst, perSecond)
	}
	return Rate{interval: time.Duration(interval), early: time.Duration(early)}, nil
}

// Limits reports whether there is a limit.
func (r Rate) Limits() bool { return r.interval > 0 }

// Next returns the time to wait for the next event, and when the one after it is due.
func (r Rate) Next(due, now time.Duration) (wait, then time.Duration) {
	due = max(due, now)
	return max(due-r.early-now, 0), due + r.interval
}

// A Gate passes events at a Rate, and counts the others. It is safe for concurrent use.
type Gate struct {
	rate  Rate
	start time.Time

	mu      sync.Mutex
	due     time.Duration // see Rate.Next
	omitted int           // events since the last one that passed
}

// NewGate returns a Gate that passes events at the rate r.
func NewGate(r Rate) *Gate { return &Gate{rate: r, start: time.Now()} }

// Pass reports whether an event passes, and how many events before it did not.
func (g *Gate) Pass() (omitted int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	wait, due := g.rate.Next(g.due, time.Since(g.start))
	if wait > 0 {
		g.omitted++
		return 0, false
	}
	omitted, g.due, g.omitted = g.omitted, due, 0
	return omitted, true
}
