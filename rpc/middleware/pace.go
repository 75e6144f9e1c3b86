package middleware

import (
	"fmt"
	"math"
	"time"
)

// A pace is a rate, and how much may come at once. Times are those since some moment.
//
// It is the generic cell rate algorithm: each event moves the time at which the next would be due by
// one interval, and may come earlier than due by what a burst has. One time is all that there is to
// keep of a caller, and one that is over is as good as none.
//
// A rate.Limiter of golang.org/x/time keeps the same bounds, but of each caller 80 bytes and a lock
// inside the Limiter's, which still has to see whether the caller can be forgotten. It would take the
// place of the two lines of next alone, and be the library's second dependency.
type pace struct {
	interval time.Duration // between two events; 0: there is no limit
	early    time.Duration // how much earlier than due an event may come
}

// newPace returns the pace of rate events per second, burst of them at once. A burst of 0 is as
// many as come in a second, and at least one.
func newPace(rate float64, burst int) (pace, error) {
	if rate == 0 && burst == 0 {
		return pace{}, nil
	}
	if !(rate > 0) || math.IsInf(rate, 1) || burst < 0 {
		return pace{}, fmt.Errorf("middleware: a rate of %v per second, %d at once", rate, burst)
	}
	if burst == 0 {
		burst = int(min(max(math.Ceil(rate), 1), math.MaxInt32))
	}
	interval := max(float64(time.Second)/rate, 1)
	early := interval * float64(burst-1)
	if !(interval+early <= math.MaxInt64/4) { // which may not be a number
		return pace{}, fmt.Errorf("middleware: %d at once take too long at a rate of %v per second", burst, rate)
	}
	return pace{interval: time.Duration(interval), early: time.Duration(early)}, nil
}

// next is the time until an event may come, and when the one after it is due.
func (p pace) next(due, now time.Duration) (wait, then time.Duration) {
	due = max(due, now)
	return max(due-p.early-now, 0), due + p.interval
}
