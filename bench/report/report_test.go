package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

var update = flag.Bool("update", false, "write golden files anew")

// results has one ratio, which reaches its goal, is below its floor, or is disturbed.
func results(ratio, control float64) *result.File {
	return &result.File{
		Title: "A sample",
		Provenance: result.Provenance{
			Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Commit: "0123456789ab", Machine: "some processor", Kernel: "linux 6.1", Go: "go1.99",
			Load: [2]string{"0.10", "1.20"}, Command: "ratio", Rounds: 12, Run: time.Second,
		},
		Pairs: []result.Pair{{
			ID: "13", Goal: 13, What: "NULL over echo", Kind: result.Time, A: "Null", B: "TCPEcho", Bs: 1, Floor: 1.6, Want: 1.25,
			TimeA: 24 * time.Microsecond, TimeB: 20 * time.Microsecond, Ratio: result.Float(ratio), Low: 1, High: 2, Control: result.Float(control),
		}},
		Sweeps: []result.Sweep{{ID: "rxe depth", What: "Rate over depth", X: "depth", Show: "calls", Control: 1, Points: []result.Point{
			{Series: "RPC", X: 1, Time: 10 * time.Microsecond}, {Series: "RPC", X: 16, Time: 2 * time.Microsecond}, {Series: "gRPC", X: 1, Time: 40 * time.Microsecond},
		}}},
		Distributions: []result.Distribution{{ID: "latency", What: "Times", Busy: true, Series: []result.DistributionLine{
			{Name: "RPC", Calls: 10, Quantiles: []result.Quantile{{P: 0, Time: 5000}, {P: 0.5, Time: 10000}, {P: 0.99, Time: 20000}, {P: 1, Time: 30000}}},
		}}},
		Missing: []result.Missing{{Goal: 5, Why: "there is no hardware"}},
	}
}

func busy(f *result.File) *result.File {
	f.Provenance.Busy = true
	return f
}

func save(t *testing.T, f *result.File) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "results.json")
	if err := f.Save(name); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestExitStatus(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("no results"), 0o666); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		args   []string
		status int
		stderr string
	}{
		{"the goal is reached", []string{save(t, results(1.2, 1))}, 0, ""},
		{"the floor is kept", []string{save(t, results(1.5, 1))}, 0, ""},
		{"the floor is broken", []string{save(t, results(1.7, 1))}, 1, "report: below the floor: 13 (1.70, floor 1.60)\n"},
		{"it was disturbed", []string{save(t, results(1.7, 1.1))}, 0, ""},
		{"the machine was busy", []string{save(t, busy(results(1.7, 1)))}, 0, ""},
		{"one of two", []string{save(t, results(1.2, 1)), save(t, results(1.7, 1))}, 1, "below the floor"},
		{"the goals alone", []string{"-goals", save(t, results(1.7, 1))}, 1, "below the floor"},
		{"no file", nil, 2, "FILE... is missing"},
		{"unknown flag", []string{"-x"}, 2, "flag provided but not defined"},
		{"help", []string{"-h"}, 0, "Usage"},
		{"a file that is not there", []string{filepath.Join(dir, "none")}, 1, "no such file"},
		{"a file of something else", []string{junk}, 1, "neither results in JSON nor"},
		{"a broken file", []string{broken}, 1, "unexpected end"},
		{"a folder that cannot be made", []string{"-o", filepath.Join(junk, "x"), save(t, results(1.2, 1))}, 1, "not a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := run(tt.args, &stdout, &stderr); got != tt.status {
				t.Errorf("exit status %d, want %d\n%s", got, tt.status, &stderr)
			}
			if !strings.Contains(stderr.String(), tt.stderr) || (tt.stderr == "") != (stderr.Len() == 0) {
				t.Errorf("stderr is %q, want %q in it", &stderr, tt.stderr)
			}
		})
	}
}

// TestFolder: a page that names the plots, the plots, and everything as data.
func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	var stdout, stderr bytes.Buffer
	if got := run([]string{"-o", dir, "-title", "Some machine", save(t, results(1.2, 1))}, &stdout, &stderr); got != 0 {
		t.Fatalf("exit status %d\n%s", got, &stderr)
	}
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "page.md")
	if *update {
		if err := os.WriteFile(golden, page, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, want) {
		t.Errorf("the page is not %s; -update writes it anew. Got:\n%s", golden, page)
	}
	for name, words := range map[string][]string{
		"rxe-depth.svg": {"<svg", ">Rate over depth<", ">calls outstanding<", ">thousand calls per second<", ">RPC<", ">gRPC<"},
		"latency.svg":   {"<svg", ">Times (disturbed: do not quote)<", ">99<", ">RPC<"},
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range words {
			if !bytes.Contains(b, []byte(w)) {
				t.Errorf("%s lacks %q", name, w)
			}
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r reportJSON
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Goals) != 36 || len(r.Files) != 1 || len(r.Files[0].Pairs) != 1 {
		t.Fatalf("%d goals, %d files", len(r.Goals), len(r.Files))
	}
	if g := r.Goals[12]; g.Number != 13 || len(g.Rows) != 1 || g.Rows[0].Verdict != result.Reached || g.Why != nil {
		t.Errorf("goal 13 is %+v", g)
	}
	if g := r.Goals[4]; len(g.Rows) != 0 || len(g.Why) != 1 || g.Why[0] != "there is no hardware" {
		t.Errorf("goal 5 is %+v", g)
	}
}

const benchmarks = `goos: linux
goarch: amd64
pkg: github.com/rpcrdma/rpcrdma/bench
cpu: Some Processor
BenchmarkNull/prov=iwarp/depth=1-2         	   50000	     10000 ns/op	       9500 p50-ns	       0 B/op	       0 allocs/op
BenchmarkNull/prov=iwarp/depth=1-2         	   50000	     14000 ns/op	       9700 p50-ns	       0 B/op	       0 allocs/op
BenchmarkNull/prov=iwarp/depth=1-2         	   50000	     12000 ns/op	       9600 p50-ns	       0 B/op	       0 allocs/op
BenchmarkNull/prov=iwarp/depth=1           	   50000	     20000 ns/op
BenchmarkPush/prov=iwarp/size=1Mi/depth=4-2
    bench_test.go:1: something was said
BenchmarkPush/prov=iwarp/size=1Mi/depth=4-2 	    1000	   200000 ns/op	5242.88 MB/s
BenchmarkTalk says something
PASS
ok  	github.com/rpcrdma/rpcrdma/bench	1.234s
`

func TestBenchmarks(t *testing.T) {
	f, err := parseBenchmarks(benchmarks)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Benchmarks) != 3 || f.Provenance.Machine != "Some Processor" || f.Provenance.Go != "linux/amd64" {
		t.Fatalf("%+v", f)
	}
	null, one, push := f.Benchmarks[0], f.Benchmarks[1], f.Benchmarks[2]
	if null.Name != "Null/prov=iwarp/depth=1" || null.Procs != 2 || null.Runs != 3 || null.Keys["prov"] != "iwarp" || null.Keys["depth"] != "1" {
		t.Errorf("%+v", null)
	}
	if got, want := null.Metrics["ns/op"], (result.Spread{Median: 12000, Low: 11000, High: 13000}); got != want {
		t.Errorf("ns/op %+v, want %+v", got, want)
	}
	if one.Procs != 1 || one.Runs != 1 || one.Metrics["ns/op"].Median != 20000 {
		t.Errorf("%+v", one)
	}
	if push.Keys["size"] != "1Mi" || push.Metrics["MB/s"].Median != 5242.88 {
		t.Errorf("%+v", push)
	}
	text := f.Markdown()
	for _, want := range []string{
		"- machine: Some Processor\n", "| | CPUs | runs | B/op | MB/s | allocs/op | ns/op | p50-ns |\n",
		"| Null/prov=iwarp/depth=1 | 2 | 3 | 0 (0 to 0) | - | 0 (0 to 0) | 1.2e+04 (1.1e+04 to 1.3e+04) | 9600 (9550 to 9650) |\n",
		"| Push/prov=iwarp/size=1Mi/depth=4 | 2 | 1 | - | 5243 | - | 2e+05 | - |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	for _, bad := range []string{"", "PASS\n", "BenchmarkX 10 1 ns/op 2\n", "BenchmarkX 10 fast ns/op\n"} {
		if _, err := parseBenchmarks(bad); err == nil {
			t.Errorf("%q has benchmarks", bad)
		}
	}
	// It is found out which sort of file it is.
	name := filepath.Join(t.TempDir(), "bench.txt")
	if err := os.WriteFile(name, []byte(benchmarks), 0o666); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if got := run([]string{name}, &stdout, &stderr); got != 0 || !strings.Contains(stdout.String(), "## Benchmarks") {
		t.Errorf("exit status %d\n%s%s", got, &stdout, &stderr)
	}
}

// A plot that cannot be drawn is an error, not a panic.
func TestBadPlots(t *testing.T) {
	for _, f := range []*result.File{
		{Sweeps: []result.Sweep{{ID: "x"}}},
		{Sweeps: []result.Sweep{{ID: "x", Points: []result.Point{{Series: "a", X: 0, Time: 1}}}}},
		{Sweeps: []result.Sweep{{ID: "x", Points: []result.Point{{Series: "a", X: 1}}}}},
		{Distributions: []result.Distribution{{ID: "x"}}},
		{Distributions: []result.Distribution{{ID: "x", Series: []result.DistributionLine{{Name: "a"}}}}},
	} {
		if _, err := plotAll(t.TempDir(), f); err == nil {
			t.Errorf("%+v has been drawn", f)
		}
	}
}
