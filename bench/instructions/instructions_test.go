package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

const root = "../.."

// tolerance is by how much a count may differ from the recorded one.
const tolerance = 0.05

// A limit is a count of a row that is held, and by how much it may differ.
type limit struct {
	what      string
	got, want float64
	tolerance float64
}

// limits are the parts of a row that are checked. How the data of a bulk call comes in pieces is up
// to the kernel, and so is part of the adapter's work. The work of the simulated adapter is of no
// interest.
func limits(got, want *Row) []limit {
	list := []limit{{"instructions of transport and messages", got.own(), want.own(), tolerance}}
	if want.Adapter == simulated {
		return list
	}
	list = append(list, limit{"allocations", got.Allocs, want.Allocs, 0})
	if slices.ContainsFunc(kinds, func(k kind) bool { return k.bulk && k.name == want.Kind }) {
		return append(list, limit{"instructions of the adapter", got.Parts[partAdapter], want.Parts[partAdapter], 5 * tolerance})
	}
	return append(list,
		limit{"instructions", got.Instructions, want.Instructions, tolerance},
		limit{"instructions of the adapter", got.Parts[partAdapter], want.Parts[partAdapter], tolerance},
		limit{"system calls", got.crossings(), want.crossings(), tolerance},
	)
}

// slack may be added to any tolerance: rare events of the runtime, by the call.
const slack = 0.1

// off returns how a limit is missed, "" if it is kept.
func (l limit) off() string {
	high, low := l.want*(1+l.tolerance)+slack, l.want*(1-l.tolerance)-slack
	switch {
	case l.got > high:
		return fmt.Sprintf("%s: %s, recorded %s", l.what, grouped2(l.got), grouped2(l.want))
	case l.got < low:
		return fmt.Sprintf("%s: %s, recorded %s: make instructions records what is better now", l.what, grouped2(l.got), grouped2(l.want))
	}
	return ""
}

func grouped2(v float64) string {
	if v < 100 {
		return decimal(v)
	}
	return grouped(v)
}

// differences are the limits that rows miss, by row.
func differences(got, want *record) map[string]string {
	all := make(map[string]string)
	for i := range want.Rows {
		w := &want.Rows[i]
		name := w.Kind + " over " + w.Adapter
		g := got.row(w.Kind, w.Adapter)
		if g == nil {
			all[name] = "not counted"
			continue
		}
		var missed []string
		for _, l := range limits(g, w) {
			if s := l.off(); s != "" {
				missed = append(missed, s)
			}
		}
		if len(missed) > 0 {
			all[name] = strings.Join(missed, "; ")
		}
	}
	return all
}

func recorded(t *testing.T) *record {
	t.Helper()
	r, err := load(filepath.Join(root, recordFile))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// minor returns the Go release of a version: go1.26 of go1.26.8.
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// A call takes as many instructions, system calls and allocations as are recorded. On a machine
// with other work the runtime's watchdog adds some: a row that differs has two more chances.
func TestInstructions(t *testing.T) {
	ctx := t.Context()
	if err := able(ctx); errors.As(err, new(*missingError)) {
		rdmatest.Lacking(t, "instructions", err.Error())
	} else if err != nil {
		t.Fatal(err)
	}
	want := recorded(t)
	var missed map[string]string
	for range 3 {
		got, err := measured(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if minor(got.Go) != minor(want.Go) {
			t.Skipf("what is recorded is of %s, this is %s", want.Go, got.Go)
		}
		now := differences(got, want)
		if missed == nil {
			missed = now
		}
		for name := range missed {
			if now[name] == "" {
				delete(missed, name)
			}
		}
		if len(missed) == 0 {
			return
		}
	}
	for name, what := range missed {
		t.Errorf("%s: %s", name, what)
	}
}

// Whatever is worse or better than recorded is found: the record itself is neither.
func TestDifferences(t *testing.T) {
	want := recorded(t)
	if d := differences(want, want); len(d) != 0 {
		t.Fatalf("what is recorded differs from itself: %v", d)
	}
	const name = "NULL over iwarp"
	for _, tt := range []struct {
		what   string
		change func(*Row)
		found  bool
	}{
		{"4 % more instructions", func(r *Row) { r.Instructions *= 1.04 }, false},
		{"6 % more instructions", func(r *Row) { r.Instructions *= 1.06 }, true},
		{"6 % fewer instructions", func(r *Row) { r.Instructions *= 0.94 }, true},
		{"6 % more in the transport", func(r *Row) { r.Parts[partTransport] *= 1.06; r.Parts[partMessages] *= 1.06 }, true},
		{"6 % more in the adapter", func(r *Row) { r.Parts[partAdapter] *= 1.06 }, true},
		{"an allocation", func(r *Row) { r.Allocs++ }, true},
		{"a system call", func(r *Row) { r.Syscalls["writev"]++ }, true},
	} {
		got := recorded(t)
		tt.change(got.row("NULL", "iwarp"))
		if d := differences(got, want); (d[name] != "") != tt.found || len(d) > 1 {
			t.Errorf("%s: %v", tt.what, d)
		}
	}
	if d := differences(new(record), want); len(d) != len(want.Rows) {
		t.Errorf("%d of %d rows are not there", len(d), len(want.Rows))
	}
}

// The record has a row for each kind of call.
func TestRecorded(t *testing.T) {
	want := recorded(t)
	for _, p := range pairs() {
		if want.row(p.kind.name, p.adapter.name) == nil {
			t.Errorf("nothing is recorded of %s over %s", p.kind.name, p.adapter.name)
		}
	}
}

// A call is half of the difference between two runs.
func TestPerCall(t *testing.T) {
	const counts = `m 4
b 100 5
m 5
s 0 12
s 228 7
b 100 1000
b 200 90
m 6
b 100 3
m 7
s 0 22
s 228 9
b 100 1500
b 200 100
r 300 100
`
	name := func(pc uint64, repeats bool) string {
		return map[uint64]string{100: module + "transport.(*Client).Call", 200: "runtime.memmove", 300: module + "iwarp.(*ring[" + module + "x.y]).at"}[pc]
	}
	all, err := parse(strings.NewReader(counts), name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := all.perCall(1, 10)
	if err != nil {
		t.Fatal(err)
	}
	if r.Instructions != 61 || r.Parts[partTransport] != 50 || r.Parts[partCopying] != 1 || r.Parts[partAdapter] != 10 || r.own() != 50 {
		t.Errorf("%+v", r)
	}
	if r.syscalls() != "1 read" || r.Packages[module+"iwarp"] != 10 || len(r.Top) != 3 || r.Top[0].Instructions != 50 {
		t.Errorf("%+v", r)
	}
	if _, err := all.perCall(0, 10); err == nil {
		t.Error("a row without marks has been counted")
	}
	for _, bad := range []string{"b 1 2\n", "m\n", "m 1\nb 1\n", "m 1\nb x 2\n", "m 1\nx 1 2\n", "m 1\ns 1 2 3\n"} {
		if _, err := parse(strings.NewReader(bad), name); err == nil {
			t.Errorf("%q has been understood", bad)
		}
	}
}

// Without the emulator nothing is counted, and the error names what is missing.
func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var missing *missingError
	if _, err := measured(context.Background()); !errors.As(err, &missing) || !strings.Contains(missing.what, emulator) && !strings.Contains(missing.what, "linux/amd64") {
		t.Errorf("%v", err)
	}
}
