package loadgen

import (
	"fmt"
	"io"
	"math/bits"
	"strings"
	"time"
)

// A Histogram counts durations in buckets no wider than 1/64 of the durations in them, which bounds the error of its
// quantiles. Its size is fixed, 30 KB. The zero value is empty and ready for use. A Histogram must not be used
// concurrently.
type Histogram struct {
	buckets  [histogramSize]uint64
	n        uint64
	min, max time.Duration
}

// Each duration of less than 2^fineBits ns has a bucket of its own; above that, every
// power of two is divided into 2^fineBits buckets.
const (
	fineBits      = 6
	histogramSize = (64 - fineBits) << fineBits
)

// bucketOf returns the number of the bucket of d, which is not negative.
func bucketOf(d time.Duration) int {
	v := uint64(d)
	shift := max(0, bits.Len64(v)-fineBits-1)
	return shift<<fineBits + int(v>>shift)
}

// bucketStart returns the least duration in bucket i.
func bucketStart(i int) time.Duration {
	shift := max(0, i>>fineBits-1)
	return time.Duration(i-shift<<fineBits) << shift
}

// N returns how many durations were counted.
func (h *Histogram) N() uint64 { return h.n }

// Min returns the shortest duration, or 0 if none exists.
func (h *Histogram) Min() time.Duration { return h.min }

// Max returns the longest duration, or 0 if none exists.
func (h *Histogram) Max() time.Duration { return h.max }

// Add counts d. A negative duration counts as 0.
func (h *Histogram) Add(d time.Duration) {
	d = max(0, d)
	if h.n == 0 || d < h.min {
		h.min = d
	}
	h.max = max(h.max, d)
	h.n++
	h.buckets[bucketOf(d)]++
}

// Merge adds the durations counted by o.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	if h.n == 0 || o.min < h.min {
		h.min = o.min
	}
	h.max = max(h.max, o.max)
	h.n += o.n
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
}

// Quantile returns the duration that the fraction q of all durations did not exceed, to
// the precision of a bucket. It returns 0 if nothing was counted.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := uint64(q * float64(h.n))
	if float64(rank) < q*float64(h.n) {
		rank++
	}
	rank = max(1, rank)
	var seen uint64
	for i, n := range h.buckets {
		if seen += n; seen >= rank {
			middle := (bucketStart(i) + bucketStart(i+1)) / 2
			return min(max(middle, h.min), h.max)
		}
	}
	return h.max
}

// A Bar is a row of a histogram: how many durations were shorter than Below, but not
// shorter than the previous bar's Below.
type Bar struct {
	Below float64 `json:"below_us"` // in microseconds
	Calls uint64  `json:"calls"`
}

// Bars returns two bars for each power of two, from the first to the last bar that is not empty.
func (h *Histogram) Bars() []Bar {
	const step = 1 << (fineBits - 1)
	list := []Bar{}
	for i := 0; i < histogramSize; i += step {
		var n uint64
		for _, k := range h.buckets[i : i+step] {
			n += k
		}
		if n > 0 || len(list) > 0 {
			list = append(list, Bar{Micros(bucketStart(i + step)), n})
		}
	}
	for len(list) > 0 && list[len(list)-1].Calls == 0 {
		list = list[:len(list)-1]
	}
	return list
}

// Draw writes a line for each bar. The longest bar has width columns.
func (h *Histogram) Draw(w io.Writer, width int) error {
	list := h.Bars()
	var most uint64
	for _, b := range list {
		most = max(most, b.Calls)
	}
	for _, b := range list {
		below := time.Duration(b.Below * 1000).Round(10 * time.Nanosecond)
		line := strings.Repeat("#", int(b.Calls*uint64(width)/most))
		if line == "" && b.Calls > 0 {
			line = "." // less than a column
		}
		if _, err := fmt.Fprintf(w, "  < %-10v %6.2f %%  %s\n", below, 100*float64(b.Calls)/float64(h.n), line); err != nil {
			return err
		}
	}
	return nil
}

// Micros returns d in microseconds.
func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
