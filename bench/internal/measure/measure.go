// Package measure compares workloads by running them in turn.
//
// The same program measured a round trip of 18, 97 and 58 microseconds within minutes on one
// machine, depending on other load. A number is meaningful only relative to another that was
// measured at the same time: so a pair is run as A B A, repeatedly, in short runs, and the
// result is the median of the rounds' ratios. The two runs of A in a round should be equal:
// their ratio, the control, shows how reliable the result is. So does the CPU usage of other
// processes.
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
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// A Pair is a comparison, A over B.
type Pair struct {
	ID   string // short
	Goal int    // number of its goal, or 0
	What string // one line

	Kind result.Kind // Time unless set to Rate
	A    bench.Workload
	B    []bench.Workload // if several, the best one counts

	// Of selects a quantity to compare instead of the mean time: result.P99, the 99th percentile of a
	// run, or result.SelfP99, that over the median of the same run, without a B.
	Of string

	// Floor and Want are the ratios that must and should be reached; 0 means none.
	Floor, Want float64

	// Longer multiplies the length of runs; 0 means 1. Rounds, if not 0, overrides
	// Options.Rounds.
	Longer, Rounds int
}

// Options control the length of a measurement.
type Options struct {
	Rounds int           // at least 10 for a result to be quoted
	Run    time.Duration // of one run; a pair takes Rounds * (2 + len(B)) of them

	// Shared is set if part of the work is done outside of this process and its children, as
	// with the kernel's software devices: the usage of other processes cannot be distinguished
	// from it.
	Shared bool

	// clock and cpu are for tests; nil means the machine's.
	clock, cpu func() time.Duration
}

func (o *Options) defaults() {
	if o.clock == nil {
		o.clock, o.cpu = monotonic, bench.ProcessorTime
	}
}

// runner is a workload that has been set up, with its measurements.
type runner struct {
	bench.Workload
	in    *bench.Instance
	of    string
	calls int

	time, cpu []float64 // ns per call, by round
	value     []float64 // the compared values, by round
	all       []time.Duration
	keep      bool // keep all of them
}

// start sets up a workload and calibrates the length of a run.
func start(w bench.Workload, of string, o Options) (*runner, error) {
	in, err := w.Start()
	if err != nil {
		return nil, err
	}
	r := &runner{Workload: w, in: in, of: of}
	if err := r.calibrate(o); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", w.Name, err), in.Close())
	}
	return r, nil
}

// again returns another runner of the same workload, on the same connection.
func (r *runner) again() *runner {
	return &runner{Workload: r.Workload, in: r.in, of: r.of, calls: r.calls}
}

// turns runs all runners in each round, in alternating order, so that the order does not matter.
func turns(order []*runner, rounds int, o Options) error {
	order = slices.Clone(order)
	for range rounds {
		for _, r := range order {
			if err := r.run(o); err != nil {
				return fmt.Errorf("%s: %w", r.Name, err)
			}
		}
		slices.Reverse(order)
	}
	return nil
}

// Run measures a pair.
func Run(p Pair, o Options) (res result.Pair, err error) {
	o.defaults()
	o.Run *= time.Duration(max(1, p.Longer))
	if p.Rounds > 0 {
		o.Rounds = min(o.Rounds, p.Rounds)
	}
	crowd := watchOthers(o)
	runners := make([]*runner, 0, 2+len(p.B))
	closeAll := func() {
		for _, r := range runners {
			err = errors.Join(err, r.in.Close())
		}
		runners = nil
	}
	defer closeAll()
	for _, w := range append([]bench.Workload{p.A}, p.B...) {
		r, err := start(w, p.Of, o)
		if err != nil {
			return res, err
		}
		runners = append(runners, r)
	}
	a := runners[0]
	again := a.again()
	if err := turns(append(slices.Clone(runners), again), o.Rounds, o); err != nil {
		return res, err
	}

	res = result.Pair{
		ID: p.ID, Goal: p.Goal, What: p.What, Kind: p.kind(), Of: p.Of, Floor: result.Float(p.Floor), Want: result.Float(p.Want),
		A: a.Name, Bs: len(p.B), BytesA: a.Bytes, TimeA: time.Duration(median(a.time)),
		Control: result.Float(median(a.ratios(again, again.value, a.value))), CPURatio: result.Float(math.NaN()),
	}
	ratios := slices.Clone(a.value)
	if len(p.B) > 0 {
		b := slices.MinFunc(runners[1:], func(x, y *runner) int {
			return cmp.Compare(median(x.perUnit(a)), median(y.perUnit(a)))
		})
		ratios = b.ratios(a, a.value, b.value)
		if res.Kind == result.Rate {
			for i := range ratios {
				ratios[i] = 1 / ratios[i]
			}
		}
		res.B, res.BytesB, res.TimeB = b.Name, b.Bytes, time.Duration(median(b.time))
		res.CPURatio = result.Float(median(b.ratios(a, a.cpu, b.cpu)))
	}
	slices.Sort(ratios)
	res.Ratio, res.Low, res.High = result.Float(quantile(ratios, 0.5)), result.Float(quantile(ratios, 0.25)), result.Float(quantile(ratios, 0.75))
	// The CPU time of children is known after they have exited.
	closeAll()
	res.Others, res.Crowded = crowd.result()
	return res, err
}

func (p *Pair) kind() result.Kind {
	if p.Kind == "" {
		return result.Time
	}
	return p.Kind
}

// A Point is a workload of a sweep.
type Point struct {
	Series string
	X      int
	W      bench.Workload
}

// A Sweep is a series of workloads that differ in one parameter.
type Sweep struct {
	ID, What, X, Show string // see result.Sweep
	Points            []Point
}

// RunSweep measures all points in turn. The control is that of the first one.
func RunSweep(s Sweep, o Options) (res result.Sweep, err error) {
	o.defaults()
	crowd := watchOthers(o)
	var runners []*runner
	closeAll := func() {
		for _, r := range runners {
			err = errors.Join(err, r.in.Close())
		}
		runners = nil
	}
	defer closeAll()
	for _, p := range s.Points {
		r, err := start(p.W, "", o)
		if err != nil {
			return res, err
		}
		runners = append(runners, r)
	}
	measured := slices.Clone(runners)
	again := runners[0].again()
	if err := turns(append(slices.Clone(runners), again), o.Rounds, o); err != nil {
		return res, err
	}
	closeAll()
	res = result.Sweep{ID: s.ID, What: s.What, X: s.X, Show: s.Show, Control: result.Float(median(measured[0].ratios(again, again.time, measured[0].time)))}
	for i, r := range measured {
		sorted := slices.Sorted(slices.Values(r.time))
		res.Points = append(res.Points, result.Point{
			Series: s.Points[i].Series, X: s.Points[i].X, Bytes: r.Bytes,
			Time: time.Duration(quantile(sorted, 0.5)), Low: time.Duration(quantile(sorted, 0.25)), High: time.Duration(quantile(sorted, 0.75)),
		})
	}
	_, res.Crowded = crowd.result()
	return res, err
}

// A Distribution is a set of workloads for which every call is timed.
type Distribution struct {
	ID, What string
	Points   []Point
}

// RunDistribution measures a distribution.
func RunDistribution(d Distribution, o Options) (res result.Distribution, err error) {
	o.defaults()
	crowd := watchOthers(o)
	var runners []*runner
	closeAll := func() {
		for _, r := range runners {
			err = errors.Join(err, r.in.Close())
		}
		runners = nil
	}
	defer closeAll()
	for _, p := range d.Points {
		r, err := start(p.W, "", o)
		if err != nil {
			return res, err
		}
		r.keep = true
		runners = append(runners, r)
	}
	measured := slices.Clone(runners)
	if err := turns(runners, o.Rounds, o); err != nil {
		return res, err
	}
	closeAll()
	res = result.Distribution{ID: d.ID, What: d.What}
	for i, r := range measured {
		slices.Sort(r.all)
		line := result.DistributionLine{Name: d.Points[i].Series, Calls: len(r.all)}
		for _, p := range quantiles {
			line.Quantiles = append(line.Quantiles, result.Quantile{P: p, Time: timeQuantile(r.all, p)})
		}
		res.Series = append(res.Series, line)
	}
	_, res.Crowded = crowd.result()
	return res, err
}

// quantiles lists the quantiles in a distribution. Immutable.
var quantiles = []float64{0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1}

// ratios returns x over y, round by round, corrected for payload if both have some.
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

// perUnit returns r's values, scaled to the payload of a call of ref.
func (r *runner) perUnit(ref *runner) []float64 {
	list := slices.Clone(r.value)
	if r.Bytes > 0 && ref.Bytes > 0 {
		for i := range list {
			list[i] *= float64(ref.Bytes) / float64(r.Bytes)
		}
	}
	return list
}

// hook calls f, if it is not nil.
func hook(f func() error) error {
	if f == nil {
		return nil
	}
	return f()
}

// calibrate determines the number of calls in a run, and warms up.
func (r *runner) calibrate(o Options) (err error) {
	if err := hook(r.in.Enter); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hook(r.in.Leave)) }()
	for n := 1; ; n *= 2 {
		took, _, err := r.timed(n, o)
		if err != nil {
			return err
		}
		if took >= o.Run/4 || n > 1<<28 {
			r.calls = max(1, int(float64(n)*float64(o.Run)/float64(max(1, took))))
			return nil
		}
	}
}

// run makes one run, after a garbage collection.
func (r *runner) run(o Options) error {
	runtime.GC()
	if err := hook(r.in.Enter); err != nil {
		return err
	}
	cpu, err := r.used(o)
	if err != nil {
		return err
	}
	took, times, err := r.timed(r.calls, o)
	if err != nil {
		return err
	}
	after, err := r.used(o)
	if err != nil {
		return err
	}
	perCall := float64(took) / float64(r.calls)
	r.time = append(r.time, perCall)
	r.cpu = append(r.cpu, (after-cpu)/float64(r.calls))
	switch r.of {
	case result.P99:
		r.value = append(r.value, float64(timeQuantile(times, 0.99)))
	case result.SelfP99:
		r.value = append(r.value, float64(timeQuantile(times, 0.99))/float64(timeQuantile(times, 0.5)))
	default:
		r.value = append(r.value, perCall)
	}
	if r.keep {
		r.all = append(r.all, times...)
	}
	return hook(r.in.Leave)
}

// used returns the CPU time of both ends, NaN for external programs.
func (r *runner) used(o Options) (float64, error) {
	used := float64(o.cpu())
	if r.in.Batch != nil {
		return math.NaN(), nil
	}
	if r.in.Used != nil {
		far, err := r.in.Used()
		if err != nil {
			return 0, err
		}
		used += float64(far)
	}
	return used, nil
}

// timed makes n calls. It returns the sorted times of the calls if r needs them.
func (r *runner) timed(n int, o Options) (took time.Duration, times []time.Duration, err error) {
	if r.in.Batch != nil {
		took, err = r.in.Batch(n)
		return took, nil, err
	}
	begin := o.clock()
	if r.of == "" && !r.keep {
		err = r.in.Do(n)
	} else {
		times, err = r.in.Observe(n)
	}
	took = o.clock() - begin
	slices.Sort(times)
	return took, times, err
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

// timeQuantile returns the shortest time that the fraction q of a sorted list does not exceed.
func timeQuantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
