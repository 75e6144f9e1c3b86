package result

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write golden files anew")

// golden compares with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what it was; -update writes it anew. Got:\n%s", path, got)
	}
}

func sample() *File {
	nan := Float(math.NaN())
	return &File{
		Format: Format,
		Title:  "A sample",
		Provenance: Provenance{
			Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Commit: "0123456789ab", Machine: "some processor, 2 CPUs", Kernel: "linux 6.1",
			Go: "go1.99 linux/amd64, GOMAXPROCS 2", Modules: []string{"example.com/m v1.2.3"}, Devices: []string{"rxe0", "10.9.9.1 on rdma-rxe with MTU 4200"},
			Load: [2]string{"0.10", "1.20"}, Idle: 0.05, Command: "ratio", Rounds: 12, Run: 100 * time.Millisecond, Duration: 90 * time.Second,
		},
		Pairs: []Pair{
			{
				ID: "13", Goal: 13, What: "NULL call over echo", Kind: Time, A: "Null", B: "TCPEcho", Bs: 1, Floor: 1.6, Want: 1.25,
				TimeA: 24 * time.Microsecond, TimeB: 20 * time.Microsecond, Ratio: 1.2, Low: 1.1, High: 1.3, Control: 1.01, CPURatio: nan, Others: 0.1,
			},
			{
				ID: "16", Goal: 16, What: "put", Kind: Rate, A: "Put", B: "GRPC", Bs: 2, Floor: 2.5, Want: 3.5, BytesA: 1e6, BytesB: 1e6,
				TimeA: 500 * time.Microsecond, TimeB: 2 * time.Millisecond, Ratio: 4, Low: 4, High: 4, Control: 1, CPURatio: 0.25, Others: nan,
			},
			{
				ID: "14a", Goal: 14, What: "too slow", Kind: Time, A: "Null", B: "NetRPC", Bs: 1, Floor: 0.8, Want: 0.55,
				TimeA: 24 * time.Microsecond, TimeB: 24 * time.Microsecond, Ratio: 1, Low: 1, High: 1, Control: 1, CPURatio: 1, Others: 0,
			},
			{
				ID: "15a", Goal: 15, What: "too slow, and disturbed", Kind: Rate, A: "Echo", B: "TCPPipelined", Bs: 1, Floor: 0.6, Want: 0.8,
				TimeA: time.Microsecond, TimeB: 500 * time.Nanosecond, Ratio: 0.5, Low: 0.4, High: 0.7, Control: 1.2, CPURatio: 2, Others: 0,
			},
			{
				ID: "25", Goal: 25, What: "tail", Kind: Time, Of: SelfP99, A: "Null", Floor: 5, Want: 3,
				TimeA: time.Microsecond, Ratio: 2, Low: 1.5, High: 2.5, Control: 1, CPURatio: nan, Others: 0.9, Crowded: true,
			},
		},
		Values: []Value{
			{ID: "18", Goal: 18, What: "allocations", Judged: true, Exact: true},
			{ID: "21", Goal: 21, What: "doorbells", Value: 3, Floor: 2, Want: 1, Judged: true, Exact: true},
			{ID: "22", Goal: 22, What: "memory", Unit: "KiB", Value: 70.25, Low: 69, High: 75, Floor: 128, Want: 72, Judged: true},
			{ID: "x", What: "nothing in particular", Value: 0.5, Exact: true},
		},
		Sweeps: []Sweep{{
			ID: "depth", What: "Rate over depth", X: "depth", Show: "calls", Control: 1.01,
			Points: []Point{
				{"RPC", 1, 0, 10 * time.Microsecond, 9 * time.Microsecond, 11 * time.Microsecond},
				{"gRPC", 1, 0, 40 * time.Microsecond, 39 * time.Microsecond, 41 * time.Microsecond},
				{"RPC", 16, 0, 2 * time.Microsecond, 2 * time.Microsecond, 2 * time.Microsecond},
			},
		}},
		Distributions: []Distribution{{
			ID: "latency", What: "Times",
			Series: []DistributionLine{{"RPC", 1000, []Quantile{{0.5, 10 * time.Microsecond}, {0.9, 11 * time.Microsecond}, {0.99, 20 * time.Microsecond}, {0.9999, time.Millisecond}}}},
		}},
		Missing: []Missing{{1, "there is no RDMA device here"}, {14, "this is not said, since 14a is there"}},
	}
}

func TestMarkdown(t *testing.T) {
	f := sample()
	golden(t, "sample.md", f.Markdown())
	golden(t, "goals.md", GoalsMarkdown([]*File{f}))
	f.Provenance.Busy = true
	f.Provenance.Rounds = 9
	f.MarkBusy()
	text := f.Markdown()
	for _, want := range []string{"**The machine was busy", "**Fewer than 10 rounds: nothing here is to be quoted", "| 13 | NULL call over echo | 24µs | 20µs | **1.20** | 1.10 to 1.30 | 1.01 | - | ≤ 1.60 | ≤ 1.25 | disturbed |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}

// A floor is broken by what was not disturbed, and by nothing else.
func TestBreaches(t *testing.T) {
	f := sample()
	if got, want := Names(f.Breaches()), "14a (1.00, floor 0.80), 21 (3.00, floor 2.00)"; got != want {
		t.Errorf("broken are %s, want %s", got, want)
	}
	f.Provenance.Busy = true
	f.MarkBusy()
	// A count is one on a busy machine, too.
	short := sample()
	short.Provenance.Rounds = 9
	short.MarkBusy()
	if got, want := Names(short.Breaches()), "21 (3.00, floor 2.00)"; got != want {
		t.Errorf("after few rounds %s are broken, want %s", got, want)
	}
	if got, want := Names(f.Breaches()), "21 (3.00, floor 2.00)"; got != want {
		t.Errorf("on a busy machine %s are broken, want %s", got, want)
	}
}

func TestVerdict(t *testing.T) {
	for _, tt := range []struct {
		p    Pair
		want Verdict
	}{
		{Pair{Kind: Time, Ratio: 3, Control: 1}, None},
		{Pair{Kind: Time, Floor: 1.6, Want: 1.25, Ratio: 1.2, Control: 1.07}, Reached},
		{Pair{Kind: Time, Floor: 1.6, Want: 1.25, Ratio: 1.3, Control: 0.93}, Above},
		{Pair{Kind: Time, Floor: 1.6, Want: 1.25, Ratio: 1.7, Control: 1}, Below},
		{Pair{Kind: Time, Floor: 1.6, Want: 1.25, Ratio: 1.2, Control: 1.09}, Disturbed},
		{Pair{Kind: Time, Floor: 1.6, Want: 1.25, Ratio: 1.2, Control: Float(math.NaN())}, Disturbed},
		{Pair{Kind: Time, Floor: 1.6, Want: 1.25, Ratio: 1.2, Control: 1, Crowded: true}, Disturbed},
		{Pair{Kind: Time, Floor: 1.6, Want: 1.25, Ratio: 1.2, Control: 1, Busy: true}, Disturbed},
		{Pair{Kind: Rate, Floor: 2.5, Want: 3.5, Ratio: 3.6, Control: 1}, Reached},
		{Pair{Kind: Rate, Floor: 2.5, Want: 3.5, Ratio: 3, Control: 1}, Above},
		{Pair{Kind: Rate, Floor: 2.5, Want: 3.5, Ratio: 2, Control: 1}, Below},
		{Pair{Kind: Rate, Floor: 2.5, Want: 3.5, Ratio: Float(math.NaN()), Control: 1}, Below},
		{Pair{Kind: Rate, Want: 3.5, Ratio: 2, Control: 1}, Above},
		{Pair{Kind: Rate, Floor: 2.5, Ratio: 9, Control: 1}, Above},
	} {
		if got := tt.p.Verdict(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.p, got, tt.want)
		}
	}
	for _, tt := range []struct {
		v    Value
		want Verdict
	}{
		{Value{Judged: true, Exact: true}, Reached},
		{Value{Judged: true, Exact: true, Value: 1}, Below},
		{Value{Judged: true, Floor: 1, Value: 0.5}, Above},
		{Value{Judged: true, Floor: 1, Value: 0.5, Busy: true}, Disturbed},
		{Value{Value: 1}, None},
	} {
		if got := tt.v.Verdict(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.v, got, tt.want)
		}
	}
}

func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.json")
	f := sample()
	if err := f.Save(name); err != nil {
		t.Fatal(err)
	}
	got, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	if got.Markdown() != f.Markdown() || GoalsMarkdown([]*File{got}) != GoalsMarkdown([]*File{f}) {
		t.Error("a file is not what was saved")
	}
	for text, want := range map[string]string{"{": "unexpected", `{"format":2}`: "format 2, want 1", `{"format":1,"pairs":[{"ratio":"x"}]}`: "cannot unmarshal"} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestGoals(t *testing.T) {
	if len(Goals) != 36 {
		t.Fatalf("%d goals", len(Goals))
	}
	for i, g := range Goals {
		if got, ok := GoalOf(i + 1); g.Number != i+1 || !ok || got != g || g.What == "" || g.Floor == "" || g.Want == "" || !g.Devices && !g.Software {
			t.Errorf("goal %d is %+v", i+1, g)
		}
	}
	for _, n := range []int{0, -1, 37} {
		if _, ok := GoalOf(n); ok {
			t.Errorf("there is a goal %d", n)
		}
	}
}

// The documentation has these goals, and no others.
func TestGoalsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../../docs/reports/bench/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), "\n## Goals\n")
	if !ok {
		t.Fatal("docs/reports/bench/README.md has no section about goals")
	}
	for _, g := range Goals {
		row := fmt.Sprintf("| %d | %s | %s | %s |\n", g.Number, g.What, g.Floor, g.Want)
		if !strings.Contains(text, row) {
			t.Errorf("docs/reports/bench/README.md lacks the row\n%s", row)
		}
	}
	if got, want := strings.Count(text, "\n|"), len(Goals)+2; got != want {
		t.Errorf("docs/reports/bench/README.md has %d rows, want %d", got, want)
	}
}

// The summary fits a small terminal, whatever there is to say.
func TestScreen(t *testing.T) {
	f := sample()
	golden(t, "screen.txt", Screen([]*File{f}))
	all, err := filepath.Glob("../../../docs/reports/bench/*/results.json")
	if err != nil || len(all) < 2 {
		t.Fatalf("%v, %v", all, err)
	}
	for _, name := range all {
		f, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		f.MarkBusy()
		for i := range 20 { // more than there is room for
			f.Failed = append(f.Failed, Failed{ID: fmt.Sprint(i), What: strings.Repeat("what ", 30), Why: "why"})
		}
		text := Screen([]*File{f})
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		for _, l := range lines {
			if utf8.RuneCountInString(l) > screenColumns {
				t.Errorf("%s: a line of %d columns: %s", name, utf8.RuneCountInString(l), l)
			}
		}
		if len(lines) >= screenLines || len(lines) < 20 {
			t.Errorf("%s: %d lines", name, len(lines))
		}
		for _, want := range []string{"Where it pays", "Where it does not", "Below their floors", "failed", "and 17 more"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", name, want, text)
			}
		}
	}
	f.Provenance.Busy = true
	f.MarkBusy()
	if text := Screen([]*File{f}); !strings.Contains(text, "no timing counts") || strings.Contains(text, "Where it pays") {
		t.Errorf("on a busy machine:\n%s", text)
	}
}
