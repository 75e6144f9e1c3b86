package status

import "sync/atomic"

// minute is how many seconds a history goes back.
const minute = 60

// countBits are those of a count in a history; the seconds of the clock have the others.
const countBits = 40

// A history has a count for each of the latest seconds: the second in the upper bits of a word, so that a word of a
// minute ago is known as such, and the count in the lower ones.
type history [minute]atomic.Uint64

// add adds n to the count of a second, in Unix time.
func (h *history) add(second int64, n uint64) {
	slot, stamp := &h[uint64(second)%minute], uint64(second)<<countBits
	for {
		was, is := slot.Load(), stamp|n
		if was>>countBits == stamp>>countBits {
			is = was + n
		} else if int64(was-stamp) > 0 && was != 0 {
			return // the second was over a minute before another one that has been counted
		}
		// Not Add: by now, the slot may be a later second's.
		if slot.CompareAndSwap(was, is) {
			return
		}
	}
}

// list returns the counts of the minute before a second, the oldest first.
func (h *history) list(second int64) []uint64 {
	list := make([]uint64, minute)
	for i := range list {
		at := second - minute + int64(i)
		if w := h[uint64(at)%minute].Load(); w>>countBits == uint64(at)<<countBits>>countBits {
			list[i] = w & (1<<countBits - 1)
		}
	}
	return list
}

// rateOver is how many seconds a rate is the mean of.
const rateOver = 10

// rate returns the mean of the latest counts of a list that begins to count so many seconds ago.
func rate(list []uint64, age int64) float64 {
	over := min(max(age, 1), rateOver)
	sum := uint64(0)
	for _, n := range list[minute-over:] {
		sum += n
	}
	return float64(sum) / float64(over)
}
