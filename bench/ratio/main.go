// Command ratio measures pairs of workloads in turn and prints their ratios as a Markdown
// table, with their provenance.
//
//	go run ./bench/ratio                    everything
//	go run ./bench/ratio -run gRPC -check   some, exit status 1 if one misses its floor
//	go run ./bench/ratio -json FILE         and keep the results, for ./bench/report
//	go run ./bench/ratio -rdma              on this machine's RDMA devices
//	go run ./bench/ratio -vm                on those of a virtual machine, which scripts/vm boots
//
// A row that fails or hangs does not affect the others: a separate process measures the rows.
// It is killed if a row takes too long, and another process continues with the next row. The
// results name such a row, its output with the stacks of all goroutines is kept, and the exit
// status is 1. With -budget, rows that were disturbed are measured again until that is used up.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

func main() {
	bench.Child()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ratio:", err)
		os.Exit(1)
	}
}

// plan holds all tasks. A task belongs to the goals that it names.
type plan struct {
	title         string
	pairs         []pairTask
	values        []valueTask
	sweeps        []sweepTask
	distributions []measure.Distribution
	missing       []result.Missing
}

// pairTask is a pair, and optionally a value computed from its result.
type pairTask struct {
	measure.Pair
	derived func(result.Pair) result.Value
}

func tasks(pairs []measure.Pair) []pairTask {
	var list []pairTask
	for _, p := range pairs {
		list = append(list, pairTask{Pair: p})
	}
	return list
}

// valueTask measures numbers other than ratios.
type valueTask struct {
	id, what string
	goals    []int
	measure  func() ([]result.Value, error)
}

// sweepTask is a sweep, and values computed from its result.
type sweepTask struct {
	measure.Sweep
	goals   []int
	rounds  int // maximum
	derived func(result.Sweep) []result.Value
}

func run(ctx context.Context) error {
	var o measure.Options
	flag.IntVar(&o.Rounds, "rounds", 10, "how often each pair is run")
	flag.DurationVar(&o.Run, "time", 100*time.Millisecond, "how long a run takes")
	match := flag.String("run", "", "only what has an ID and a line that match the regular `expression`")
	rdma := flag.Bool("rdma", false, "on RDMA devices, against the C programs in bench/cverbs")
	cverbs := flag.String("cverbs", "bench/cverbs/bin", "where those are, built")
	keep := flag.String("json", "", "write the results to `FILE`, too")
	budget := flag.Duration("budget", 0, "begin no row after this time; rows that are left out are named")
	check := flag.Bool("check", false, "fail if something misses its floor, undisturbed")
	rowLimit := flag.Duration("row-limit", defaultRowLimit, "what a row may take; one that has not ended then is killed and named, and the rest goes on")
	logs := flag.String("failed", "", "keep what rows that fail have printed in this `directory`; without: \"failed\" beside the file of -json")
	inVM := flag.Bool("vm", false, "the same on those of a virtual machine, which scripts/vm boots")
	flag.Parse()
	if flag.NArg() > 0 || o.Rounds < 1 || o.Run <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	re, err := regexp.Compile(*match)
	if err != nil {
		return err
	}
	command := strings.Join(append([]string{"go run ./bench/ratio"}, os.Args[1:]...), " ")
	w, err := workOf()
	if err != nil {
		return err
	}
	o.Shared = *rdma
	planned := func() (plan, error) { return softwarePlan(), nil }
	if *rdma {
		planned = func() (plan, error) { return devicePlan(*cverbs) }
	}
	if w != nil {
		p, err := planned()
		if err != nil {
			return err
		}
		return w.do(&p, measurer{Options: o, re: re, budget: *budget}, *keep, *logs)
	}
	if *logs == "" && *keep != "" {
		*logs = filepath.Join(filepath.Dir(*keep), "failed")
	}
	if *inVM {
		f, err := runVM(ctx, command, *cverbs, *logs, *budget, *rowLimit)
		if f == nil {
			return err
		}
		return errors.Join(finish(f, *keep, *check), err)
	}
	if *rdma {
		if _, err := planned(); err != nil {
			return err
		}
	}
	s := &supervisor{args: os.Args[1:], command: command, keep: *keep, logs: *logs, limit: *rowLimit}
	f, err := s.run(ctx)
	if f == nil {
		return err
	}
	if !s.any {
		return errors.Join(err, fmt.Errorf("nothing matches %q", *match))
	}
	return errors.Join(finish(f, *keep, *check), err)
}

// finish prints the results, saves them, and checks the floors.
func finish(f *result.File, keep string, check bool) error {
	f.MarkBusy()
	if _, err := fmt.Print(f.Markdown()); err != nil {
		return err
	}
	if keep != "" {
		if err := f.Save(keep); err != nil {
			return err
		}
	}
	if breaches := f.Breaches(); check && len(breaches) > 0 {
		return fmt.Errorf("below the floor: %s", result.Names(breaches))
	}
	return nil
}

// measurer executes a plan.
type measurer struct {
	measure.Options
	re     *regexp.Regexp
	begin  time.Time
	budget time.Duration
	file   result.File
	failed []error // errors of tasks

	// Set in a worker; nil otherwise.
	skip map[string]bool // tasks done by a previous worker
	told func(e event, failed error) error
}

// tell reports an event to the supervisor.
func (m *measurer) tell(e event, failed error) error {
	if m.told == nil {
		return nil
	}
	return m.told(e, failed)
}

// wanted reports whether a task is selected, and announces it.
func (m *measurer) wanted(t task) bool {
	why := ""
	switch {
	case !m.re.MatchString(t.id + " " + t.what):
		why = "left out by -run"
	case m.budget > 0 && time.Since(m.begin) > m.budget:
		why = fmt.Sprintf("the time was over after %v", m.budget)
		fmt.Fprintf(os.Stderr, "%s: left out, %s\n", t.id, why)
	default:
		fmt.Fprintf(os.Stderr, "%4.0fs %s: %s\n", time.Since(m.begin).Seconds(), t.id, t.what)
		return true
	}
	for _, g := range t.goals {
		m.file.Missing = append(m.file.Missing, result.Missing{Goal: g, Why: why})
	}
	return false
}

// task is a row, or several that are measured together.
type task struct {
	id, what string
	goals    []int
	do       func() error
}

// tasks returns the tasks of a plan, those with goals first, because there may not be enough time for the rest.
func (m *measurer) tasks(p *plan) []task {
	var tasks []task
	for _, t := range p.values {
		tasks = append(tasks, task{t.id, t.what, t.goals, func() error {
			v, err := t.measure()
			if err == nil {
				m.file.Values = append(m.file.Values, v...)
			}
			return err
		}})
	}
	for _, t := range p.pairs {
		var goals []int
		if t.Goal > 0 {
			goals = []int{t.Goal}
		}
		tasks = append(tasks, task{t.ID, t.What, goals, func() error { return m.pair(t) }})
	}
	for _, d := range p.distributions {
		tasks = append(tasks, task{d.ID, d.What, nil, func() error {
			r, err := measure.RunDistribution(d, m.Options)
			if err == nil {
				m.file.Distributions = append(m.file.Distributions, r)
			}
			return err
		}})
	}
	for _, t := range p.sweeps {
		tasks = append(tasks, task{t.ID, t.What, t.goals, func() error { return m.sweep(t) }})
	}
	slices.SortStableFunc(tasks, func(a, b task) int { return min(1, len(b.goals)) - min(1, len(a.goals)) })
	return tasks
}

// all executes the plan. A task that fails does not stop the others; it becomes the reason why its goals are missing.
func (m *measurer) all(p *plan) error {
	if len(m.skip) == 0 {
		m.file.Missing = append(m.file.Missing, p.missing...)
	}
	m.failed = nil
	for _, t := range m.tasks(p) {
		if m.skip[t.id] {
			continue
		}
		var err error
		if m.wanted(t) {
			err = m.perform(t)
		} else {
			err = m.tell(event{Kind: taskLeftOut, ID: t.id, What: t.what, Goals: t.goals}, nil)
		}
		if err != nil {
			return errors.Join(append(m.failed, err)...)
		}
	}
	return errors.Join(append(m.failed, m.again(p))...)
}

// oneLine formats an error for a cell of a table.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.ReplaceAll(err.Error(), "\n", "; "), "|", "\\|")
}

func (m *measurer) pair(t pairTask) error {
	r, err := measure.Run(t.Pair, m.Options)
	if err != nil {
		return err
	}
	m.file.Pairs = append(m.file.Pairs, r)
	if t.derived != nil {
		m.file.Values = append(m.file.Values, t.derived(r))
	}
	return nil
}

func (m *measurer) sweep(t sweepTask) error {
	r, err := measure.RunSweep(t.Sweep, m.sweepOptions(t))
	if err != nil {
		return err
	}
	m.file.Sweeps = append(m.file.Sweeps, r)
	m.file.Values = append(m.file.Values, t.values(r)...)
	return nil
}

func (m *measurer) sweepOptions(t sweepTask) measure.Options {
	o := m.Options
	o.Run /= 2 // there are many points
	o.Rounds = min(o.Rounds, t.rounds)
	return o
}

// values returns the values computed from a result.
func (t *sweepTask) values(r result.Sweep) []result.Value {
	if t.derived == nil {
		return nil
	}
	list := t.derived(r)
	for i := range list {
		list[i].Busy = list[i].Busy || r.Disturbed()
	}
	return list
}
