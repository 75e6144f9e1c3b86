package measure

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// A machine has a clock that moves only when its workloads are called.
type machine struct {
	now, cpu time.Duration
	order    []string
	closed   []string
}

func (m *machine) options(rounds int) Options {
	return Options{
		Rounds: rounds, Run: time.Millisecond, Shared: true,
		clock: func() time.Duration { return m.now },
		cpu:   func() time.Duration { return m.cpu },
	}
}

// workload takes cost for a call; half of it is processor time.
func (m *machine) workload(name string, bytes int, cost func() time.Duration) bench.Workload {
	return bench.Workload{Name: name, Bytes: bytes, Setup: func() (*bench.Instance, error) {
		return &bench.Instance{
			Call: func(int) error {
				if n := len(m.order); n == 0 || m.order[n-1] != name {
					m.order = append(m.order, name)
				}
				d := cost()
				m.now += d
				m.cpu += d / 2
				return nil
			},
			Close: func() error { m.closed = append(m.closed, name); return nil },
		}, nil
	}}
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func near(got, want float64) bool { return math.Abs(got-want) < 1e-6 }

func TestRatioOfTimes(t *testing.T) {
	var m machine
	r, err := Run(Pair{
		A: m.workload("a", 0, always(30*time.Microsecond)),
		B: []bench.Workload{m.workload("slow", 0, always(50*time.Microsecond)), m.workload("fast", 0, always(20*time.Microsecond))},
	}, m.options(10))
	if err != nil {
		t.Fatal(err)
	}
	if !near(float64(r.Ratio), 1.5) || !near(float64(r.Control), 1) || !near(float64(r.CPURatio), 1.5) || r.B != "fast" {
		t.Errorf("ratio %v, control %v, cpu %v against %s, want 1.5, 1, 1.5 against fast", r.Ratio, r.Control, r.CPURatio, r.B)
	}
	if r.TimeA != 30*time.Microsecond || r.TimeB != 20*time.Microsecond {
		t.Errorf("times %v and %v", r.TimeA, r.TimeB)
	}
	if !slices.Equal(m.closed, []string{"a", "slow", "fast"}) {
		t.Errorf("closed %v", m.closed)
	}
}

// TestRatioOfRates: twice the payload in three times the time is two thirds of
// the rate.
func TestRatioOfRates(t *testing.T) {
	var m machine
	r, err := Run(Pair{
		Kind: result.Rate,
		A:    m.workload("a", 2000, always(30*time.Microsecond)),
		B:    []bench.Workload{m.workload("b", 1000, always(10*time.Microsecond))},
	}, m.options(10))
	if err != nil {
		t.Fatal(err)
	}
	if !near(float64(r.Ratio), 2.0/3) {
		t.Errorf("ratio %v, want 2/3", r.Ratio)
	}
}

// TestTurns: the sides alternate, and neither is always first.
func TestTurns(t *testing.T) {
	var m machine
	if _, err := Run(Pair{
		A: m.workload("a", 0, always(30*time.Microsecond)),
		B: []bench.Workload{m.workload("b", 0, always(30*time.Microsecond)), m.workload("c", 0, always(30*time.Microsecond))},
	}, m.options(2)); err != nil {
		t.Fatal(err)
	}
	// Calibration, then a b c a, a c b a.
	if got := strings.Join(m.order, " "); got != "a b c a b c a c b a" {
		t.Errorf("order %s", got)
	}
}

// TestDriftCancels: a machine that gets slower all the time has the same ratios
// and a control that is off by at most a round's drift.
func TestDriftCancels(t *testing.T) {
	var m machine
	drifting := func(d time.Duration) func() time.Duration {
		return func() time.Duration { return d + time.Duration(float64(d)*m.now.Seconds()) }
	}
	r, err := Run(Pair{
		A: m.workload("a", 0, drifting(30*time.Microsecond)),
		B: []bench.Workload{m.workload("b", 0, drifting(20*time.Microsecond))},
	}, m.options(20))
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(float64(r.Ratio)-1.5) > 0.02 || math.Abs(float64(r.Control)-1) > 0.02 {
		t.Errorf("ratio %v, control %v", r.Ratio, r.Control)
	}
}

// TestControlSeesTrouble: when A is slower each second time, the result is not
// worth its paper.
func TestControlSeesTrouble(t *testing.T) {
	var m machine
	calls := 0
	r, err := Run(Pair{
		Floor: 10,
		A: m.workload("a", 0, func() time.Duration {
			// Calibration and first runs take 64 calls in all.
			if calls++; calls > 64 {
				return 60 * time.Microsecond
			}
			return 30 * time.Microsecond
		}),
		B: []bench.Workload{m.workload("b", 0, always(20*time.Microsecond))},
	}, m.options(1))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Verdict(); got != result.Disturbed {
		t.Errorf("control %v, verdict %q", r.Control, got)
	}
}

// TestErrors: what fails is named, and what was set up is closed.
func TestErrors(t *testing.T) {
	var m machine
	broken := errors.New("wire cut")
	good := m.workload("good", 0, always(time.Microsecond))
	noCall := bench.Workload{Name: "no call", Setup: func() (*bench.Instance, error) {
		return &bench.Instance{Call: func(int) error { return broken }, Close: func() error { return nil }}, nil
	}}
	noSetup := bench.Workload{Name: "no set-up", Setup: func() (*bench.Instance, error) { return nil, broken }}
	for _, w := range []bench.Workload{noCall, noSetup} {
		m.closed = nil
		_, err := Run(Pair{A: good, B: []bench.Workload{w}}, m.options(1))
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), w.Name) {
			t.Errorf("%s: %v", w.Name, err)
		}
		if !slices.Equal(m.closed, []string{"good"}) {
			t.Errorf("%s: closed %v", w.Name, m.closed)
		}
	}
}

// TestConditions: what goes on beside a workload goes on while that runs, and then only.
func TestConditions(t *testing.T) {
	var m machine
	on := false
	w := m.workload("a", 0, func() time.Duration {
		if !on {
			t.Error("called without its condition")
		}
		return 10 * time.Microsecond
	}).In("x", func() (enter, leave, end func() error, err error) {
		return func() error { on = true; return nil }, func() error { on = false; return nil },
			func() error { m.closed = append(m.closed, "x"); return nil }, nil
	})
	b := m.workload("b", 0, func() time.Duration {
		if on {
			t.Error("called with another's condition")
		}
		return 10 * time.Microsecond
	})
	r, err := Run(Pair{A: w, B: []bench.Workload{b}}, m.options(3))
	if err != nil || r.A != "a/x" {
		t.Error(r.A, err)
	}
	if !slices.Equal(m.closed, []string{"a", "x", "b"}) {
		t.Errorf("closed %v", m.closed)
	}
}

// TestQuantiles: of single calls, which a real clock times.
func TestQuantiles(t *testing.T) {
	// A fake clock determines the number of calls of a run.
	var m machine
	n := 0
	w := m.workload("a", 0, func() time.Duration {
		if n++; n%20 == 0 { // 5 %
			for start := time.Now(); time.Since(start) < time.Millisecond; {
			}
		}
		return 10 * time.Microsecond
	})
	r, err := Run(Pair{A: w, Of: result.SelfP99}, m.options(3))
	if err != nil {
		t.Fatal(err)
	}
	if r.Ratio < 20 || r.B != "" {
		t.Errorf("p99 over p50 is %v", r.Ratio)
	}
	d, err := RunDistribution(Distribution{ID: "d", Points: []Point{{"a", 0, w}}}, m.options(2))
	if err != nil {
		t.Fatal(err)
	}
	q := d.Series[0].Quantiles
	if d.Series[0].Name != "a" || d.Series[0].Calls == 0 || len(q) != len(quantiles) || !slices.IsSortedFunc(q, func(x, y result.Quantile) int { return int(x.Time - y.Time) }) {
		t.Errorf("%+v", d)
	}
	sorted := []time.Duration{1, 2, 3, 4}
	for q, want := range map[float64]time.Duration{0: 1, 0.25: 1, 0.26: 2, 0.5: 2, 0.99: 4, 1: 4} {
		if got := timeQuantile(sorted, q); got != want {
			t.Errorf("quantile %v of %v is %v, want %v", q, sorted, got, want)
		}
	}
}

func TestSweep(t *testing.T) {
	var m machine
	var points []Point
	for _, x := range []int{1, 2, 4} {
		points = append(points, Point{"s", x, m.workload("w", x, always(time.Duration(x)*10*time.Microsecond))})
	}
	r, err := RunSweep(Sweep{ID: "s", What: "w", X: "size", Show: "bytes", Points: points}, m.options(4))
	if err != nil {
		t.Fatal(err)
	}
	if !near(float64(r.Control), 1) || len(r.Points) != 3 || len(m.closed) != 3 {
		t.Fatalf("%+v, closed %v", r, m.closed)
	}
	for i, p := range r.Points {
		if p.X != points[i].X || p.Time != time.Duration(p.X)*10*time.Microsecond || p.Low != p.Time || !near(r.Value(&p)/1e5, 1) {
			t.Errorf("%+v, %v", p, r.Value(&p))
		}
	}
}

// TestOthers: what others use is seen, what this process uses is not.
func TestOthers(t *testing.T) {
	w := others{start: time.Now().Add(-time.Second), ok: true, mine: familyTime()}
	w.all, _ = machineTime()
	w.all -= 100 * time.Second // all of this was used by other processes
	if used, tooMuch := w.result(); !tooMuch || used < 50 {
		t.Errorf("others used %v, too much: %t", used, tooMuch)
	}
	w.mine -= 100 * time.Second
	if used, _ := w.result(); used > 50 {
		t.Errorf("what was used here is said to be others': %v", used)
	}
	w.shared = true
	if used, tooMuch := w.result(); tooMuch || !math.IsNaN(float64(used)) {
		t.Errorf("what cannot be known is said to be %v, %t", used, tooMuch)
	}
	if got, ok := parseStat("cpu  1 2 3 1000 1000 4 5 6 0 0\ncpu0 ..."); !ok || got != 210*time.Millisecond {
		t.Errorf("%v, %t", got, ok)
	}
	for _, bad := range []string{"", "cpu", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8"} {
		if _, ok := parseStat(bad); ok {
			t.Errorf("%q is understood", bad)
		}
	}
}
