package measure

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
)

// A machine has a clock that moves only when its workloads are called.
type machine struct {
	now, cpu time.Duration
	order    []string
	closed   []string
}

func (m *machine) options(rounds int) Options {
	return Options{
		Rounds: rounds, Run: time.Millisecond,
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
	if !near(r.Ratio, 1.5) || !near(r.Control, 1) || !near(r.CPURatio, 1.5) || r.Against.Name != "fast" {
		t.Errorf("ratio %v, control %v, cpu %v against %s, want 1.5, 1, 1.5 against fast", r.Ratio, r.Control, r.CPURatio, r.Against.Name)
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
		Kind: Rate,
		A:    m.workload("a", 2000, always(30*time.Microsecond)),
		B:    []bench.Workload{m.workload("b", 1000, always(10*time.Microsecond))},
	}, m.options(10))
	if err != nil {
		t.Fatal(err)
	}
	if !near(r.Ratio, 2.0/3) {
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
// and a control that is off by no more than a round's drift.
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
	if math.Abs(r.Ratio-1.5) > 0.02 || math.Abs(r.Control-1) > 0.02 {
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
	if got := r.Verdict(); got != Disturbed {
		t.Errorf("control %v, verdict %q", r.Control, got)
	}
}

func TestVerdict(t *testing.T) {
	tests := []struct {
		r    Result
		want Verdict
	}{
		{Result{Ratio: 3, Control: 1}, None},
		{Result{Pair: Pair{Floor: 1.6, Goal: 1.25}, Ratio: 1.2, Control: 1.07}, Reached},
		{Result{Pair: Pair{Floor: 1.6, Goal: 1.25}, Ratio: 1.3, Control: 0.93}, Above},
		{Result{Pair: Pair{Floor: 1.6, Goal: 1.25}, Ratio: 1.7, Control: 1}, Below},
		{Result{Pair: Pair{Floor: 1.6, Goal: 1.25}, Ratio: 1.2, Control: 1.09}, Disturbed},
		{Result{Pair: Pair{Kind: Rate, Floor: 2.5, Goal: 3.5}, Ratio: 3.6, Control: 1}, Reached},
		{Result{Pair: Pair{Kind: Rate, Floor: 2.5, Goal: 3.5}, Ratio: 3, Control: 1}, Above},
		{Result{Pair: Pair{Kind: Rate, Floor: 2.5, Goal: 3.5}, Ratio: 2, Control: 1}, Below},
		{Result{Pair: Pair{Kind: Rate, Floor: 2.5}, Ratio: 9, Control: 1}, Above},
	}
	for _, tt := range tests {
		if got := tt.r.Verdict(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.r, got, tt.want)
		}
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

func TestReport(t *testing.T) {
	p := Begin("ratio -rounds 9", Options{Rounds: 9, Run: time.Millisecond})
	p.Busy = true
	p.End()
	var b strings.Builder
	err := Report(&b, p, []Result{
		{
			Pair:    Pair{ID: "13", What: "NULL call over echo", A: bench.Workload{Name: "Null"}, B: make([]bench.Workload, 1), Floor: 1.6, Goal: 1.25},
			Against: bench.Workload{Name: "TCPEcho"}, TimeA: 24 * time.Microsecond, TimeB: 20 * time.Microsecond,
			Ratio: 1.2, Low: 1.1, High: 1.3, Control: 1.01, CPURatio: math.NaN(),
		},
		{
			Pair:    Pair{ID: "16", What: "put", Kind: Rate, A: bench.Workload{Name: "Put", Bytes: 1e6}, B: make([]bench.Workload, 2), Goal: 3.5},
			Against: bench.Workload{Name: "GRPC", Bytes: 1e6}, TimeA: 500 * time.Microsecond, TimeB: 2 * time.Millisecond,
			Ratio: 4, Low: 4, High: 4, Control: 1, CPURatio: 0.25,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 13 | NULL call over echo | 24µs | 20µs | **1.20** | 1.10 to 1.30 | 1.01 | - | ≤ 1.60 | ≤ 1.25 | goal reached |",
		"| 16 | put | 2.00 GB/s | 0.50 GB/s | **4.00** | 4.00 to 4.00 | 1.00 | 0.25 | - | ≥ 3.50 | goal reached |",
		"- 16: Put over GRPC, the best of 2",
		"- command: `ratio -rounds 9`",
		"The machine was busy",
		"Fewer than 10 rounds",
		"GOMAXPROCS",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, b.String())
		}
	}
}
