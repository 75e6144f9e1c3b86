package main

import (
	"fmt"
	"io"
	"math/bits"
	"strings"
	"time"
)

// A histogram counts durations in buckets that are no wider than 1/64 of what is in
// them: so precise are its quantiles. It has a fixed size, whatever is counted, and one
// owner.
type histogram struct {
	buckets  [histogramSize]uint64
	n        uint64
	min, max time.Duration
}

// A duration of up to 2^fineBits ns has a bucket of its own; above that every power of
// two is divided into 2^fineBits of them.
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

// bucketStart is the least duration in bucket i.
func bucketStart(i int) time.Duration {
	shift := max(0, i>>fineBits-1)
	return time.Duration(i-shift<<fineBits) << shift
}

func (h *histogram) add(d time.Duration) {
	d = max(0, d) // a clock that is set back
	if h.n == 0 || d < h.min {
		h.min = d
	}
	h.max = max(h.max, d)
	h.n++
	h.buckets[bucketOf(d)]++
}

// merge adds what o has counted.
func (h *histogram) merge(o *histogram) {
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

// quantile is the shortest duration that the part q of all did not exceed, as far as
// buckets tell.
func (h *histogram) quantile(q float64) time.Duration {
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

// A bar is a row of the histogram: how many durations there were below a limit, and not
// below the limit of the bar before.
type bar struct {
	Below float64 `json:"below_us"`
	Calls uint64  `json:"calls"`
}

// bars returns one bar for every half of a power of two that has something in it, and
// for the empty ones between them.
func (h *histogram) bars() []bar {
	const step = 1 << (fineBits - 1)
	list := []bar{}
	for i := 0; i < histogramSize; i += step {
		var n uint64
		for _, k := range h.buckets[i : i+step] {
			n += k
		}
		if n > 0 || len(list) > 0 {
			list = append(list, bar{micros(bucketStart(i + step)), n})
		}
	}
	for len(list) > 0 && list[len(list)-1].Calls == 0 {
		list = list[:len(list)-1]
	}
	return list
}

// print draws the histogram, of at most width columns.
func (h *histogram) print(w io.Writer, width int) {
	list := h.bars()
	var most uint64
	for _, b := range list {
		most = max(most, b.Calls)
	}
	for _, b := range list {
		below := time.Duration(b.Below * 1000).Round(10 * time.Nanosecond)
		line := strings.Repeat("#", int(b.Calls*uint64(width)/most))
		if line == "" && b.Calls > 0 {
			line = "." // there is something, and too little of it to draw
		}
		fmt.Fprintf(w, "  < %-10v %6.2f %%  %s\n", below, 100*float64(b.Calls)/float64(h.n), line)
	}
}

// micros is a duration in microseconds.
func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
