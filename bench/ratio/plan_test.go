package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

func TestMain(m *testing.M) {
	bench.Child()
	for variable, work := range map[string]func(keep string) error{rowsVariable: testRows, hangsVariable: testHangs} {
		if keep, ok := os.LookupEnv(variable); ok {
			if err := work(keep); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// tasks are the goals that each task is about, by its ID.
func (p *plan) tasks(t *testing.T) map[string][]int {
	all := make(map[string][]int)
	add := func(id, what string, goals ...int) {
		if _, ok := all[id]; ok || id == "" || what == "" {
			t.Errorf("task %q, %q, is there twice or has no name", id, what)
		}
		all[id] = goals
	}
	for _, x := range p.pairs {
		add(x.ID, x.What, x.Goal)
		if (x.Of == result.SelfP99) != (len(x.B) == 0) {
			t.Errorf("%s compares %q with %d others", x.ID, x.Of, len(x.B))
		}
		if smaller := x.Kind != result.Rate; x.Floor != 0 && x.Want != 0 && smaller != (x.Want < x.Floor) {
			t.Errorf("%s: floor %v and goal %v are the wrong way round", x.ID, x.Floor, x.Want)
		}
	}
	for _, x := range p.values {
		add(x.id, x.what, x.goals...)
	}
	for _, x := range p.sweeps {
		add(x.ID, x.What, x.goals...)
	}
	for _, x := range p.distributions {
		add(x.ID, x.What)
	}
	return all
}

// Every goal has a row in each of the two plans, or a reason for its absence.
func TestEveryGoalIsPlanned(t *testing.T) {
	t.Setenv("RPCRDMA_RXE_ADDR", "192.0.2.1")
	t.Setenv("RPCRDMA_SIW_ADDR", "192.0.2.2")
	t.Setenv("RPCRDMA_HW_ADDR", "")
	devices, err := devicePlan("bin")
	if err != nil {
		t.Fatal(err)
	}
	software := softwarePlan()
	for name, p := range map[string]*plan{"software": &software, "devices": &devices} {
		known := make(map[int]string)
		for _, m := range p.missing {
			if m.Why == "" {
				t.Errorf("%s: no reason for goal %d", name, m.Goal)
			}
			known[m.Goal] = "missing"
		}
		for id, goals := range p.tasks(t) {
			for _, g := range goals {
				if g != 0 && known[g] == "missing" {
					t.Errorf("%s: %s measures goal %d, which is said not to be measured", name, id, g)
				}
				if g != 0 {
					known[g] = id
				}
			}
		}
		for _, g := range result.Goals {
			if known[g.Number] == "" {
				t.Errorf("%s: nothing about goal %d, %s", name, g.Number, g.What)
			}
		}
	}
}

// With an address of hardware goal 5 follows from the first pair there.
func TestHardware(t *testing.T) {
	t.Setenv("RPCRDMA_RXE_ADDR", "")
	t.Setenv("RPCRDMA_SIW_ADDR", "")
	t.Setenv("RPCRDMA_HW_ADDR", "192.0.2.3")
	p, err := devicePlan("bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range p.missing {
		if m.Goal == 5 {
			t.Errorf("goal 5 is not to be measured: %s", m.Why)
		}
	}
	first := p.pairs[0]
	if first.ID != "hw 1" || first.derived == nil {
		t.Fatalf("the first pair is %s", first.ID)
	}
	v := first.derived(result.Pair{TimeA: 3500, TimeB: 2000, Control: 1})
	if v.Goal != 5 || v.Value != 1.5 || v.Verdict() != result.Above {
		t.Errorf("%+v", v)
	}
}

func TestNoDevice(t *testing.T) {
	t.Setenv("RPCRDMA_RXE_ADDR", "")
	t.Setenv("RPCRDMA_SIW_ADDR", "")
	t.Setenv("RPCRDMA_HW_ADDR", "")
	if _, err := devicePlan("bin"); err == nil {
		t.Error("there is a plan without a device")
	}
}

// Some of each kind of task, for real: numbers come out, and what was left out says why.
func TestMeasurer(t *testing.T) {
	m := &measurer{
		Options: measure.Options{Rounds: 2, Run: 5 * time.Millisecond},
		re:      regexp.MustCompile(`^(13|13 p2|25|count|conns|latency) `), begin: time.Now(),
	}
	p := softwarePlan()
	for i := range p.sweeps {
		if s := &p.sweeps[i]; s.ID == "conns" {
			s.Points = s.Points[:2]
		}
	}
	if err := m.all(&p); err != nil {
		t.Fatal(err)
	}
	f := &m.file
	if len(f.Pairs) != 3 || len(f.Values) != 11 || len(f.Sweeps) != 1 || len(f.Distributions) != 1 {
		t.Fatalf("%d pairs, %d values, %d sweeps, %d distributions", len(f.Pairs), len(f.Values), len(f.Sweeps), len(f.Distributions))
	}
	for _, r := range f.Pairs {
		if !(r.Ratio > 0) || !(r.Control > 0) {
			t.Errorf("%+v", r)
		}
	}
	for _, v := range f.Values {
		if v.Goal == 18 && v.Value != 0 && !raceEnabled { // the race detector allocates
			t.Errorf("%s: %v", v.What, v.Value)
		}
		if v.Goal != 18 && !(v.Value > 0) {
			t.Errorf("%s: %v", v.What, v.Value)
		}
	}
	why := make(map[int]bool)
	for _, x := range f.Missing {
		why[x.Goal] = true
	}
	for _, g := range []int{1, 5, 14, 22, 26, 30} {
		if !why[g] {
			t.Errorf("nothing says why goal %d was not measured", g)
		}
	}
	// When the time is over nothing more is begun.
	late := &measurer{Options: m.Options, re: regexp.MustCompile(""), begin: time.Now().Add(-time.Hour), budget: time.Minute}
	late.told = func(e event, _ error) error {
		if e.Kind != taskLeftOut {
			t.Errorf("%s %s after the time was over", e.ID, e.Kind)
		}
		return nil
	}
	if err := late.all(&p); err != nil {
		t.Error(err)
	}
}

// A failure is reported, with its goals, and does not stop the rest.
func TestFailure(t *testing.T) {
	broken := errors.New("cut\n|wire|")
	noSetup := bench.Workload{Name: "broken", Setup: func() (*bench.Instance, error) { return nil, broken }}
	p := plan{
		pairs: tasks([]measure.Pair{
			{ID: "a", Goal: 7, What: "broken", A: noSetup, B: list(noSetup)},
			{ID: "b", Goal: 8, What: "whole", A: bench.TCPEcho(64), B: list(bench.TCPEcho(64))},
		}),
		distributions: []measure.Distribution{{ID: "c", What: "broken", Points: []measure.Point{{W: noSetup}}}},
		sweeps:        []sweepTask{{rounds: 1, Sweep: measure.Sweep{ID: "d", What: "broken", Points: []measure.Point{{W: noSetup}}}}},
		values:        []valueTask{{id: "e", what: "broken", goals: []int{9}, measure: func() ([]result.Value, error) { return []result.Value{{}}, broken }}},
	}
	m := &measurer{Options: measure.Options{Rounds: 1, Run: time.Millisecond}, re: regexp.MustCompile(""), begin: time.Now()}
	err := m.all(&p)
	if !errors.Is(err, broken) || strings.Count(err.Error(), "broken: cut") != 3 {
		t.Errorf("%v", err)
	}
	f := &m.file
	if len(f.Pairs) != 1 || f.Pairs[0].ID != "b" || len(f.Distributions)+len(f.Sweeps)+len(f.Values) != 0 {
		t.Errorf("%+v", f)
	}
	if len(f.Missing) != 2 || f.Missing[0] != (result.Missing{Goal: 9, Why: `e: cut; \|wire\|`}) || f.Missing[1].Goal != 7 {
		t.Errorf("%+v", f.Missing)
	}
}

func TestLinearity(t *testing.T) {
	var s result.Sweep
	for _, size := range sizes {
		took := 10*time.Microsecond + time.Duration(size) // 1 GB/s
		if size == aboveThreshold {
			took *= 3
		}
		s.Points = append(s.Points,
			result.Point{Series: kept, X: size, Time: time.Millisecond},
			result.Point{Series: perCall, X: size, Time: took, Low: took, High: took})
	}
	v := linearity("rxe", s, perCall, "")
	if len(v) != 2 || v[0].Value < 2.9 || v[0].Value > 3.1 || v[1].Value < 3 || v[1].Value > 3.5 || v[0].Low != v[0].Value || v[1].High != v[1].Value {
		t.Errorf("%+v", v)
	}
}

func TestProcessors(t *testing.T) {
	for cpus, want := range map[int]string{1: "[1]", 2: "[1 2]", 6: "[1 2 4 6]", 64: "[1 2 4 8 16 32 64]", 100: "[1 2 4 8 16 32 64]"} {
		if got := fmt.Sprint(processors(cpus)); got != want {
			t.Errorf("%d CPUs: %s, want %s", cpus, got, want)
		}
	}
}
