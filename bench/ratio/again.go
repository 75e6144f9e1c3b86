package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// Rows that were disturbed are measured again while there is time, with more rounds: on a machine with other load most
// of them are eventually undisturbed. Rows are selected by their control and by the CPU usage of other processes, never
// by their ratio.

const (
	// maxAgain is how often a row is measured again.
	maxAgain = 3

	// moreRounds multiplies the rounds of a row that is measured again.
	moreRounds = 2
)

// again measures the disturbed rows of a plan again.
func (m *measurer) again(p *plan) error {
	if m.budget == 0 || m.file.Provenance.Busy {
		return nil // without a limit, or if it would not help
	}
	for n := 1; n <= maxAgain; n++ {
		for _, t := range m.disturbed(p, n) {
			if time.Since(m.begin) > m.budget {
				return nil
			}
			if m.skip[t.id] {
				continue
			}
			fmt.Fprintf(os.Stderr, "%4.0fs %s: %s\n", time.Since(m.begin).Seconds(), t.id, t.what)
			if err := m.perform(t); err != nil {
				return err
			}
		}
	}
	return nil
}

// perform executes a task and reports its events. It returns only errors of the supervisor connection; an error of the
// task is in the results.
func (m *measurer) perform(t task) error {
	e := event{Kind: taskBegins, ID: t.id, What: t.what, Goals: t.goals}
	if err := m.tell(e, nil); err != nil {
		return err
	}
	e.Kind = taskEnds
	err := t.do()
	if err != nil {
		e.Why = oneLine(err)
		err = fmt.Errorf("%s: %w", t.id, err)
		fmt.Fprintln(os.Stderr, err)
		m.failed = append(m.failed, err)
		failRow(&m.file, e)
	}
	return m.tell(e, err)
}

// disturbed returns tasks for the n-th repetition of disturbed rows, those with goals first. It leaves out rows after a
// failed repetition.
func (m *measurer) disturbed(p *plan, n int) []task {
	var first, rest []task
	add := func(id, what string, goal bool, do func() error) {
		name := id + againSuffix
		if slices.ContainsFunc(m.file.Failed, func(f result.Failed) bool { return strings.HasPrefix(f.ID, name) }) {
			return
		}
		if n > 1 {
			name += fmt.Sprintf(" %d", n)
		}
		t := task{id: name, what: what, do: do}
		if goal {
			first = append(first, t)
		} else {
			rest = append(rest, t)
		}
	}
	for _, t := range p.pairs {
		if i := slices.IndexFunc(m.file.Pairs, func(r result.Pair) bool { return r.ID == t.ID }); i >= 0 && m.file.Pairs[i].Disturbed() {
			add(t.ID, t.What, t.Goal > 0, func() error { return m.pairAgain(t, i, n) })
		}
	}
	for _, t := range p.sweeps {
		if i := slices.IndexFunc(m.file.Sweeps, func(r result.Sweep) bool { return r.ID == t.ID }); i >= 0 && m.file.Sweeps[i].Disturbed() {
			add(t.ID, t.What, len(t.goals) > 0, func() error { return m.sweepAgain(t, i, n) })
		}
	}
	return append(first, rest...)
}

// againSuffix follows a row's ID in the ID of its repetition.
const againSuffix = " again"

// pairAgain replaces result i if the new one is more reliable.
func (m *measurer) pairAgain(t pairTask, i, n int) error {
	o := m.Options
	o.Rounds *= moreRounds
	t.Rounds *= moreRounds
	r, err := measure.Run(t.Pair, o)
	if err != nil {
		return err
	}
	r.Again = n
	if !steadier(r.Disturbed(), r.Control, m.file.Pairs[i].Disturbed(), m.file.Pairs[i].Control) {
		return nil
	}
	m.file.Pairs[i] = r
	if t.derived != nil {
		m.file.SetValue(t.derived(r))
	}
	return nil
}

// sweepAgain is pairAgain for a sweep.
func (m *measurer) sweepAgain(t sweepTask, i, n int) error {
	o := m.sweepOptions(t)
	o.Rounds *= moreRounds
	r, err := measure.RunSweep(t.Sweep, o)
	if err != nil {
		return err
	}
	r.Again = n
	if !steadier(r.Disturbed(), r.Control, m.file.Sweeps[i].Disturbed(), m.file.Sweeps[i].Control) {
		return nil
	}
	m.file.Sweeps[i] = r
	for _, v := range t.values(r) {
		m.file.SetValue(v)
	}
	return nil
}

// steadier reports whether a new result is more reliable than an old one.
func steadier(disturbed bool, control result.Float, wasDisturbed bool, before result.Float) bool {
	if disturbed != wasDisturbed {
		return wasDisturbed
	}
	return math.Abs(float64(control)-1) < math.Abs(float64(before)-1)
}
