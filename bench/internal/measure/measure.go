// Package measure compares workloads by running them in turns.
//
// The same program read a round trip of 18, 97 and 58 microseconds within minutes
// on one machine, depending on what else it did. A number means something only
// next to another that was taken at the same time: so a pair is run as A B A,
// again and again, in short runs, and what is reported is the median of the
// rounds' ratios. The two runs of A in a round should be equal: how far they are
// apart, the control, says what the ratio is worth.
package measure

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
)

// Kind is what is compared.
type Kind int

const (
	// Time per call: the smaller the ratio, the better is A.
	Time Kind = iota
	// Rate, of calls or, where both sides move payload, of bytes: the larger the
	// ratio, the better is A.
	Rate
)

// A Pair is a comparison, A over B.
type Pair struct {
	ID   string // short
	What string // one line

	Kind Kind
	A    bench.Workload
	B    []bench.Workload // of several, the best one counts

	// Floor and Goal are ratios that have to be and ought to be reached; 0 is none.
	Floor, Goal float64
}

// Options say how long to measure.
type Options struct {
	Rounds int           // at least 10 for a result to be quoted
	Run    time.Duration // of one run; a pair takes Rounds * (2 + len(B)) of them

	// clock and cpu are for tests; nil means the machine's.
	clock, cpu func() time.Duration
}

// tolerance is how far the control may be from 1.
const tolerance = 0.08

// A Result is what was measured for a pair. A and B are medians.
type Result struct {
	Pair
	Against bench.Workload // the best of Pair.B

	TimeA, TimeB time.Duration // per call

	Ratio    float64 // median of the rounds
	Low      float64 // first quartile
	High     float64 // third quartile
	Control  float64 // A over A
	CPURatio float64 // of processor time per call, or per byte; NaN if unknown
}

// Verdict holds the result against floor and goal.
type Verdict string

// The verdicts.
const (
	None      Verdict = ""             // there is neither floor nor goal
	Disturbed Verdict = "disturbed"    // the control is off: measure again
	Below     Verdict = "below floor"  //
	Above     Verdict = "above floor"  // and short of the goal
	Reached   Verdict = "goal reached" //
)

// Verdict judges the result.
func (r *Result) Verdict() Verdict {
	reached := func(limit float64) bool {
		if r.Kind == Time {
			return r.Ratio <= limit
		}
		return r.Ratio >= limit
	}
	switch {
	case r.disturbed():
		return Disturbed
	case r.Floor != 0 && !reached(r.Floor):
		return Below
	case r.Goal != 0 && reached(r.Goal):
		return Reached
	case r.Floor != 0 || r.Goal != 0:
		return Above
	}
	return None
}

func (r *Result) disturbed() bool { return math.Abs(r.Control-1) > tolerance }

// A runner is a workload that is set up, with what has been measured of it.
type runner struct {
	bench.Workload
	in    *bench.Instance
	calls int

	time, cpu []float64 // ns per call, by round
}

// Run measures a pair.
func Run(p Pair, o Options) (result Result, err error) {
	if o.clock == nil {
		o.clock, o.cpu = monotonic, processorTime
	}
	runners := make([]*runner, 0, 2+len(p.B))
	defer func() {
		for _, r := range runners {
			err = errors.Join(err, r.in.Close())
		}
	}()
	for _, w := range append([]bench.Workload{p.A}, p.B...) {
		in, err := w.Start()
		if err != nil {
			return Result{}, err
		}
		r := &runner{Workload: w, in: in}
		runners = append(runners, r)
		if err := r.calibrate(o); err != nil {
			return Result{}, fmt.Errorf("%s: %w", w.Name, err)
		}
	}
	// A's second run of each round, on the same connection.
	a := runners[0]
	again := &runner{Workload: a.Workload, in: a.in, calls: a.calls}
	order := append(slices.Clone(runners), again)
	for range o.Rounds {
		for _, r := range order {
			if err := r.run(o); err != nil {
				return Result{}, fmt.Errorf("%s: %w", r.Name, err)
			}
		}
		// What comes first or last must not matter.
		slices.Reverse(order)
	}

	b := slices.MinFunc(runners[1:], func(x, y *runner) int {
		return cmp.Compare(median(x.perUnit(a)), median(y.perUnit(a)))
	})
	ratios := b.ratios(a, a.time, b.time)
	if p.Kind == Rate {
		for i := range ratios {
			ratios[i] = 1 / ratios[i]
		}
	}
	slices.Sort(ratios)
	return Result{
		Pair: p, Against: b.Workload,
		TimeA: time.Duration(median(a.time)), TimeB: time.Duration(median(b.time)),
		Ratio: quantile(ratios, 0.5), Low: quantile(ratios, 0.25), High: quantile(ratios, 0.75),
		Control:  median(a.ratios(again, again.time, a.time)),
		CPURatio: median(b.ratios(a, a.cpu, b.cpu)),
	}, nil
}

// ratios returns x over r's own y, round by round, corrected for payload where
// both move some.
func (r *runner) ratios(of *runner, x, y []float64) []float64 {
	scale := 1.0
	if r.Bytes > 0 && of.Bytes > 0 {
		scale = float64(r.Bytes) / float64(of.Bytes)
	}
	list := make([]float64, len(x))
	for i := range list {
		list[i] = x[i] / y[i] * scale
	}
	return list
}

// perUnit returns r's times, for as many bytes as a call of ref moves.
func (r *runner) perUnit(ref *runner) []float64 {
	list := slices.Clone(r.time)
	if r.Bytes > 0 && ref.Bytes > 0 {
		for i := range list {
			list[i] *= float64(ref.Bytes) / float64(r.Bytes)
		}
	}
	return list
}

// calibrate finds how many calls make a run, and warms up.
func (r *runner) calibrate(o Options) error {
	for n := 1; ; n *= 2 {
		took, err := r.timed(n, o)
		if err != nil {
			return err
		}
		if took >= o.Run/4 || n > 1<<28 {
			r.calls = max(1, int(float64(n)*float64(o.Run)/float64(max(1, took))))
			return nil
		}
	}
}

// run makes one run. Everyone begins without the garbage of others.
func (r *runner) run(o Options) error {
	runtime.GC()
	cpu := o.cpu()
	took, err := r.timed(r.calls, o)
	if err != nil {
		return err
	}
	used := float64(o.cpu() - cpu)
	if r.in.Batch != nil {
		used = math.NaN() // another process's
	}
	r.time = append(r.time, float64(took)/float64(r.calls))
	r.cpu = append(r.cpu, used/float64(r.calls))
	return nil
}

// timed does n calls.
func (r *runner) timed(n int, o Options) (time.Duration, error) {
	if r.in.Batch != nil {
		return r.in.Batch(n)
	}
	start := o.clock()
	err := r.in.Do(n)
	return o.clock() - start, err
}

var epoch = time.Now() // immutable

func monotonic() time.Duration { return time.Since(epoch) }

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return quantile(sorted, 0.5)
}

// quantile interpolates in a sorted list.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[low]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}
