package main

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// unsteady returns a workload that takes longer in the second run of a round the first few times that
// it is set up, and not after that. Its times are made up, so that the machine's load does not
// matter.
func unsteady(name string, times int, setups *[]string) bench.Workload {
	return bench.Workload{Name: name, Setup: func() (*bench.Instance, error) {
		*setups = append(*setups, name)
		run := -1 // the one that calibrates
		times--
		return &bench.Instance{
			Batch: func(n int) (time.Duration, error) {
				cost := time.Millisecond
				// The second round is the other way round.
				if k := run % 4; times >= 0 && (k == 1 || k == 2) {
					cost *= 2
				}
				run++
				return time.Duration(n) * cost, nil
			},
			Close: func() error { return nil },
		}, nil
	}}
}

// againPlan has rows that are undisturbed at once, at the second and at the third time, one that
// never is, and one that fails when it is repeated.
func againPlan(setups *[]string) plan {
	row := func(id string, goal, times int) measure.Pair {
		return measure.Pair{ID: id, Goal: goal, What: "a row", A: unsteady(id, times, setups), B: list(unsteady("b", 0, new([]string)))}
	}
	fails := row("fails", 0, 9)
	first := true
	setup := fails.A.Setup
	fails.A.Setup = func() (*bench.Instance, error) {
		if !first {
			return nil, errors.New("it fails")
		}
		first = false
		return setup()
	}
	p := plan{pairs: tasks([]measure.Pair{row("steady", 0, 0), row("second", 0, 1), row("third", 3, 2), row("never", 0, 99), fails})}
	p.pairs[2].derived = func(r result.Pair) result.Value {
		return result.Value{ID: "derived", Value: r.Ratio, Busy: r.Disturbed()}
	}
	p.sweeps = []sweepTask{{
		rounds: 4, Sweep: measure.Sweep{ID: "sweep", What: "a sweep", Points: []measure.Point{{Series: "s", X: 1, W: unsteady("sweep", 1, setups)}}},
		derived: func(r result.Sweep) []result.Value { return []result.Value{{ID: "of sweep"}} },
	}}
	return p
}

func againMeasurer() *measurer {
	return &measurer{
		Options: measure.Options{Rounds: 2, Run: time.Millisecond, Shared: true},
		re:      regexp.MustCompile(""), begin: time.Now(), budget: time.Hour,
	}
}

func TestAgain(t *testing.T) {
	var setups []string
	p := againPlan(&setups)
	m := againMeasurer()
	err := m.all(&p)
	if err == nil || strings.Count(err.Error(), "it fails") != 1 {
		t.Errorf("%v", err)
	}
	for id, want := range map[string]struct {
		disturbed bool
		again     int
	}{"steady": {false, 0}, "second": {false, 1}, "third": {false, 2}, "fails": {true, 0}} {
		i := slices.IndexFunc(m.file.Pairs, func(r result.Pair) bool { return r.ID == id })
		if i < 0 {
			t.Errorf("%s is missing", id)
			continue
		}
		if r := m.file.Pairs[i]; r.Disturbed() != want.disturbed || r.Again != want.again {
			t.Errorf("%s: disturbed %t, measured again %d times, want %t and %d", id, r.Disturbed(), r.Again, want.disturbed, want.again)
		}
	}
	if len(m.file.Pairs) != 5 || len(m.file.Sweeps) != 1 || m.file.Sweeps[0].Disturbed() || m.file.Sweeps[0].Again != 1 {
		t.Errorf("%d pairs, sweeps %+v", len(m.file.Pairs), m.file.Sweeps)
	}
	if len(m.file.Values) != 2 || m.file.Values[0].ID != "derived" || m.file.Values[0].Busy || m.file.Values[0].Value != 1 {
		t.Errorf("%+v", m.file.Values)
	}
	// All rows first, then the disturbed ones, those with a goal before the others.
	want := "third steady second never fails sweep, third second never sweep, third never, never"
	if got := strings.Join(setups, " "); got != strings.ReplaceAll(want, ",", "") {
		t.Errorf("measured %s, want %s", got, want)
	}
	if len(m.file.Failed) != 1 || m.file.Failed[0].ID != "fails again" {
		t.Errorf("%+v", m.file.Failed)
	}
}

// Nothing is repeated when the time is over, without a limit, where the whole run is disturbed,
// and what another process has done already.
func TestAgainEnds(t *testing.T) {
	for what, prepare := range map[string]func(*measurer){
		"no time is left": func(m *measurer) {
			m.told = func(e event, _ error) error {
				if e.ID == "sweep" && e.Kind == taskEnds {
					m.begin = m.begin.Add(-2 * time.Hour)
				}
				return nil
			}
		},
		"there is no limit":    func(m *measurer) { m.budget = 0 },
		"the machine was busy": func(m *measurer) { m.file.Provenance.Busy = true },
		"it has been done": func(m *measurer) {
			m.skip = make(map[string]bool)
			for _, id := range []string{"second", "third", "never", "fails", "sweep"} {
				for _, n := range []string{"", " 2", " 3"} {
					m.skip[id+againSuffix+n] = true
				}
			}
		},
	} {
		var setups []string
		p := againPlan(&setups)
		m := againMeasurer()
		prepare(m)
		if err := m.all(&p); err != nil || len(setups) != 6 {
			t.Errorf("%s: %v, measured %v", what, err, setups)
		}
	}
}

func TestSteadier(t *testing.T) {
	for _, tt := range []struct {
		disturbed    bool
		control      result.Float
		wasDisturbed bool
		before       result.Float
		want         bool
	}{
		{false, 1.07, true, 0.9, true},
		{true, 1.2, true, 0.85, false},
		{true, 0.9, true, 1.2, true},
		{true, 1, false, 1.05, false},
	} {
		if got := steadier(tt.disturbed, tt.control, tt.wasDisturbed, tt.before); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
}
