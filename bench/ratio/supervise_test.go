package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// rowsVariable makes this test binary a process that measures, with rows that go wrong.
const rowsVariable = "RATIO_TEST_ROWS"

// testRows is the process.
func testRows(keep string) error {
	w, err := workOf()
	if err != nil {
		return err
	}
	row := func(id string, goal int, do func() error) valueTask {
		return valueTask{id: id, what: "a row", goals: []int{goal}, measure: func() ([]result.Value, error) {
			fmt.Fprintf(os.Stderr, "%s says this\n", id)
			return []result.Value{{ID: id, Goal: goal, Exact: true}}, do()
		}}
	}
	well := func() error { return nil }
	p := plan{title: "rows", values: []valueTask{
		row("well 1", 1, well),
		row("hangs", 2, func() error { hangHere(); return nil }),
		row("well 2", 3, well),
		row("fails", 4, func() error {
			return &bench.ProgramError{Command: "program", Err: errors.New("as it must"), Output: limited.Result{Stdout: []byte("all of it")}}
		}),
		row("dies", 5, func() error { os.Exit(3); return nil }),
		row("well 3", 6, well),
		row("left", 7, well),
	}, missing: []result.Missing{{Goal: 8, Why: "not here"}}}
	return w.do(&p, measurer{Options: measure.Options{Rounds: 10, Run: time.Millisecond}, re: regexp.MustCompile("^[^l]")}, keep, filepath.Join(filepath.Dir(keep), "failed"))
}

func hangHere() { time.Sleep(time.Hour) }

// A row that hangs, one that fails and one with a process that dies: each is named, its output is
// kept, and all others are measured.
func TestSupervisor(t *testing.T) {
	dir := t.TempDir()
	keep := filepath.Join(dir, "results.json")
	s := &supervisor{command: "go run it", keep: keep, logs: filepath.Join(dir, "failed"), limit: 3 * time.Second, env: []string{rowsVariable + "=" + keep}}
	f, err := s.run(t.Context())
	if f == nil || err == nil || !s.any {
		t.Fatalf("%v, %v", f, err)
	}
	for _, want := range []string{
		"hangs: it had not ended after 3s, the limit of a row, and was killed", "fails: program: as it must: all of it", "dies: its process ended: exit status 3",
		"3 rows failed; what they have printed is in " + s.logs,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error has no %q: %v", want, err)
		}
	}
	var ids []string
	for _, v := range f.Values {
		ids = append(ids, v.ID)
	}
	if got := strings.Join(ids, ", "); got != "well 1, well 2, well 3" {
		t.Errorf("measured: %s", got)
	}
	why := make(map[int]string)
	for _, m := range f.Missing {
		if why[m.Goal] != "" {
			t.Errorf("goal %d is missing twice", m.Goal)
		}
		why[m.Goal] = m.Why
	}
	if len(why) != 5 || why[7] != "left out by -run" || why[8] != "not here" || !strings.Contains(why[2], "limit of a row") {
		t.Errorf("missing: %v", why)
	}
	if f.Title != "rows" || f.Provenance.Command != "go run it" || f.Provenance.Rounds != 10 {
		t.Errorf("%+v", f.Provenance)
	}

	// Their output, and where the one that hangs does.
	for id, want := range map[string][]string{
		"hangs": {"hangs says this", "hangHere(", "was killed"}, "fails": {"fails says this", "standard output:\nall of it"}, "dies": {"dies says this"},
	} {
		b, err := os.ReadFile(filepath.Join(s.logs, logName(id)))
		for _, w := range want {
			if err != nil || !strings.Contains(string(b), w) {
				t.Errorf("%s: no %q in its log: %v", id, w, err)
			}
		}
		if strings.Contains(string(b), "well") {
			t.Errorf("%s: the log has what others said: %s", id, b)
		}
	}

	// The file that was kept is the same, and says it on its page.
	kept, err := result.Load(keep)
	if err != nil || len(kept.Failed) != 3 || kept.Failed[0].Output != "failed/hangs.txt" {
		t.Fatalf("%v: %+v", err, kept)
	}
	if page := kept.Markdown(); !strings.Contains(page, "| hangs | a row | it had not ended after 3s, the limit of a row, and was killed | failed/hangs.txt |") {
		t.Error(page)
	}
}

// hangsVariable makes this test binary a process that measures, with a row of each kind that
// hangs.
const hangsVariable = "RATIO_TEST_HANGS"

// testHangs is the process.
func testHangs(keep string) error {
	w, err := workOf()
	if err != nil {
		return err
	}
	var setups []string
	well := unsteady("well", 0, &setups)
	hanging := func(change func(*bench.Workload, *bench.Instance)) bench.Workload {
		h := bench.Workload{Name: "hangs"}
		in := &bench.Instance{Call: func(int) error { time.Sleep(time.Millisecond); return nil }, Close: func() error { return nil }}
		h.Setup = func() (*bench.Instance, error) { return in, nil }
		change(&h, in)
		return h
	}
	call := hanging(func(_ *bench.Workload, in *bench.Instance) { in.Call = func(int) error { hangHere(); return nil } })
	pair := func(id string, a bench.Workload, b ...bench.Workload) measure.Pair {
		return measure.Pair{ID: id, Goal: 1, What: "a row", A: a, B: b}
	}
	again := unsteady("again", 9, &setups)
	setup := again.Setup
	again.Setup = func() (*bench.Instance, error) {
		if len(w.Skip) > 0 && w.Skip[len(w.Skip)-1] == "distribution" {
			hangHere() // all rows have been measured once
		}
		return setup()
	}
	p := plan{
		title: "rows",
		pairs: tasks([]measure.Pair{
			pair("again", again, well),
			pair("set-up", hanging(func(w *bench.Workload, _ *bench.Instance) {
				w.Setup = func() (*bench.Instance, error) { hangHere(); return nil, nil }
			}), well),
			pair("first well", well, well),
			pair("call", well, call),
			pair("flush", hanging(func(_ *bench.Workload, in *bench.Instance) { in.Flush = func() error { hangHere(); return nil } }), well),
			pair("condition", hanging(func(_ *bench.Workload, in *bench.Instance) { in.Enter = func() error { hangHere(); return nil } }), well),
			pair("close", well, hanging(func(_ *bench.Workload, in *bench.Instance) { in.Close = func() error { hangHere(); return nil } })),
			pair("last well", well, well),
		}),
		sweeps:        []sweepTask{{rounds: 1, goals: []int{2}, Sweep: measure.Sweep{ID: "sweep", What: "a row", Points: []measure.Point{{Series: "s", X: 1, W: call}}}}},
		distributions: []measure.Distribution{{ID: "distribution", What: "a row", Points: []measure.Point{{Series: "s", W: call}}}},
	}
	if len(w.Skip) > 0 {
		// Whether the machine was busy before the run must not matter here.
		f, err := result.Load(keep)
		if err != nil {
			return err
		}
		f.Provenance.Busy = false
		if err := f.Save(keep); err != nil {
			return err
		}
	}
	m := measurer{Options: measure.Options{Rounds: 1, Run: time.Millisecond, Shared: true}, re: regexp.MustCompile(""), budget: time.Hour}
	return w.do(&p, m, keep, filepath.Join(filepath.Dir(keep), "failed"))
}

// Rows of any kind that hang, wherever it is, end after their limit and are named, and the
// others are measured.
func TestSupervisorEndsRows(t *testing.T) {
	keep := filepath.Join(t.TempDir(), "results.json")
	s := &supervisor{keep: keep, logs: filepath.Join(filepath.Dir(keep), "failed"), limit: 1500 * time.Millisecond, env: []string{hangsVariable + "=" + keep}}
	f, err := s.run(t.Context())
	if f == nil || err == nil {
		t.Fatalf("%v, %v", f, err)
	}
	failed := make(map[string]string)
	for _, x := range f.Failed {
		failed[x.ID] = x.Why
	}
	for _, id := range []string{"set-up", "call", "flush", "condition", "close", "sweep", "distribution", "again again"} {
		if !strings.Contains(failed[id], "the limit of a row, and was killed") {
			t.Errorf("%s: %q", id, failed[id])
		}
		log, err := os.ReadFile(filepath.Join(s.logs, logName(id)))
		if err != nil || !strings.Contains(string(log), "hangHere(") {
			t.Errorf("%s: what is kept of it does not show where it hangs: %v", id, err)
		}
	}
	if len(failed) != 8 || len(f.Failed) != 8 {
		t.Errorf("failed: %v", failed)
	}
	var ids []string
	for _, p := range f.Pairs {
		ids = append(ids, p.ID)
	}
	if got := strings.Join(ids, ", "); got != "again, first well, last well" {
		t.Errorf("measured: %s", got)
	}
}

// A process that does not get as far as a row is not started again and again.
func TestSupervisorGivesUp(t *testing.T) {
	s := &supervisor{keep: filepath.Join(t.TempDir(), "none", "results.json"), limit: time.Minute}
	s.env = []string{rowsVariable + "=" + s.keep}
	if f, err := s.run(t.Context()); f != nil || err == nil {
		t.Errorf("%v, %v", f, err)
	}
}

func TestKeepFailed(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "failed")
	for _, name := range []string{"a.txt", "b.txt"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := keepFailed(from, to); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(from, name)); err != nil {
			t.Fatal(err)
		}
	}
	if files, err := os.ReadDir(to); err != nil || len(files) != 1 || files[0].Name() != "b.txt" {
		t.Errorf("%v, %v: what is left of another run", files, err)
	}
	if err := keepFailed(filepath.Join(from, "none"), to); err != nil {
		t.Error(err)
	}
}
