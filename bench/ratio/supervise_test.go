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

// A row that hangs, one that fails and one whose process dies: each is named, what it has
// printed is kept, and all others are measured.
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

	// What they printed, of the one that hangs also where.
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
