package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// Two machines have the same rows in one table, the devices of a third one have theirs.
func TestMachines(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, f *result.File) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := f.Save(filepath.Join(dir, name, "results.json")); err != nil {
			t.Fatal(err)
		}
	}
	fast, slow := results(1.2, 1), results(1.7, 1)
	for _, f := range []*result.File{fast, slow} {
		f.Pairs[0].A = "Null/prov=iwarp"
	}
	slow.Pairs = append(slow.Pairs, result.Pair{ID: "15a", What: "more calls", Kind: result.Rate, A: "Echo/prov=iwarp", B: "GRPC", Ratio: 4, Control: 1.2})
	slow.Values = []result.Value{{ID: "22", What: "memory", Unit: "KiB", Value: 70.25, Floor: 128, Want: 72, Judged: true}}
	device := results(1, 1)
	device.Pairs = []result.Pair{
		{ID: "rxe 1", What: "RPC NULL", Kind: result.Time, A: "Null/prov=rxe", B: "C/pingpong", Ratio: 1.5, Control: 1, Floor: 1.6},
		{ID: "siw 1", What: "RPC NULL", Kind: result.Time, A: "Null/prov=siw", B: "C/pingpong", Ratio: 1.25, Control: 1, Floor: 1.6},
	}
	put("a-fast", fast)
	put("b-slow", slow)
	put("c-devices", device)
	var stdout, stderr bytes.Buffer
	if got := run([]string{"-machines", dir}, &stdout, &stderr); got != 0 {
		t.Fatalf("exit status %d: %s", got, &stderr)
	}
	page := fileText(t, filepath.Join(dir, machinesPage))
	for _, want := range []string{
		"1. [a-fast](a-fast/): some processor", "2. [b-slow](b-slow/)",
		"| 13 | NULL over echo (≤ 1.6; 1.25) | 1.20 | **1.70** | 1.2 to 1.7 | **no** |\n", "| 15a | more calls | - | (4.00) | - | - |\n", "| 22 | memory, KiB (≤ 128; 72) | - | 70.25 | 70.25 | yes |\n",
		"1. [c-devices, rxe](c-devices/)", "| 1 | RPC NULL (≤ 1.6; -) | 1.50 | 1.25 | 1.25 to 1.5 | yes |\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	for name, words := range map[string][]string{
		"machines.svg": {">a-fast<", ">b-slow<", ">15a<", ">floor<", ">goal<"}, "machines-devices.svg": {">c-devices, rxe<", ">c-devices, siw<"},
	} {
		plot := fileText(t, filepath.Join(dir, name))
		for _, w := range words {
			if !strings.Contains(plot, w) {
				t.Errorf("%s lacks %s", name, w)
			}
		}
	}

	// A run is compared with those recorded, but not with itself, nor with other devices.
	for out, want := range map[string][]string{
		t.TempDir():                  {"1. this run: ", "3. b-slow: ", "| 13 | NULL over echo (≤ 1.6; 1.25) | 1.20 | 1.20 | **1.70** | 1.2 to 1.7 | **no** |\n"},
		filepath.Join(dir, "b-slow"): {"2. a-fast: ", "| 13 | NULL over echo (≤ 1.6; 1.25) | 1.20 | 1.20 | 1.2 | yes |\n"},
	} {
		stdout.Reset()
		if got := run([]string{"-o", out, "-recorded", dir, filepath.Join(dir, "a-fast", "results.json")}, &stdout, &stderr); got != 0 {
			t.Fatalf("exit status %d: %s", got, &stderr)
		}
		page := fileText(t, filepath.Join(out, "README.md"))
		for _, w := range want {
			if !strings.Contains(page, w) {
				t.Errorf("the page lacks %q:\n%s", w, page)
			}
		}
		if strings.Contains(page, "c-devices") || strings.Contains(page, "15a") {
			t.Errorf("rows of others are on the page:\n%s", page)
		}
		if of := "machines recorded: "; !strings.Contains(stdout.String(), of+map[bool]string{true: "0 of 1", false: "1 of 1"}[len(want) == 3]) {
			t.Errorf("the summary is\n%s", &stdout)
		}
	}

	for what, dir := range map[string]string{"an empty folder": t.TempDir(), "no folder": filepath.Join(dir, "none")} {
		if got := run([]string{"-machines", dir}, &stdout, &stderr); got != 1 {
			t.Errorf("%s: exit status %d", what, got)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a-fast", "results.json"), []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := writeMachines(dir); err == nil {
		t.Error("results that cannot be read are on the page")
	}
}

// The page in the documentation is that of the results there.
func TestMachinesPage(t *testing.T) {
	const dir = "../../docs/reports/bench"
	all, err := machinesIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	if fileText(t, filepath.Join(dir, machinesPage)) != machines(all) {
		t.Errorf("%s/%s is out of date: make bench-machines writes it anew", dir, machinesPage)
	}
	for _, g := range all {
		plot := fileText(t, filepath.Join(dir, g.plot))
		for _, e := range g.list {
			if !strings.Contains(plot, ">"+e.name+"<") {
				t.Errorf("%s does not show %s: make bench-machines draws it anew", g.plot, e.name)
			}
		}
	}
}

func fileText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
