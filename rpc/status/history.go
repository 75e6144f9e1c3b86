package status

import "sync/atomic"

// minute is the length of a history in seconds.
const minute = 60

// countBits is the number of bits of a count in a history; the other bits hold the second.
const countBits = 40

// A history has a count for each recent second. Each word has the second in the upper bits, so that a word from a
// minute ago is recognized as old, and the count in the lower bits.
type history [minute]atomic.Uint64

// add adds n to the count of a second, in Unix time.
func (h *history) add(second int64, n uint64) {
	slot, stamp := &h[uint64(second)%minute], uint64(second)<<countBits
	for {
		was, is := slot.Load(), stamp|n
		if was>>countBits == stamp>>countBits {
			is = was + n
		} else if int64(was-stamp) > 0 && was != 0 {
			return // the second is over a minute older than one already counted
		}
		// Not Add: the slot may belong to a later second by now.
		if slot.CompareAndSwap(was, is) {
			return
		}
	}
}

// list returns the counts of the minute before a second, oldest first.
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

// rateOver is the number of seconds that a rate averages.
const rateOver = 10

// rate returns the mean of the latest counts in list. Counting began age seconds ago.
func rate(list []uint64, age int64) float64 {
	over := min(max(age, 1), rateOver)
	sum := uint64(0)
	for _, n := range list[minute-over:] {
		sum += n
	}
	return float64(sum) / float64(over)
}
