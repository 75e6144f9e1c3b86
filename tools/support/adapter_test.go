package main

import (
	"encoding/json"
	"strings"
	"testing"
)

const goodAdapter = `{"schema":1,"date":"2026-11-27","version":"v0.1.0","adapter":{"driver":"mlx5_core","transport":"roce","vendor_id":713},
"system":{"kernel":"Linux 6.1.0","go":"go1.26 linux/amd64","cpus":2},"peer":false,"results":[
{"name":"rules/Setup/Addresses","outcome":"passed","seconds":1},{"name":"rules/Setup/Twice","outcome":"failed","why":"a | b ` + "\\u0060x\\u0060 \\u001b[2J" + `","seconds":1},
{"name":"calls/NULL","outcome":"passed","seconds":1,"figures":{"p50_us":12.5}}]}`

// TestAdapter: a report is a column; its texts cannot change the page.
func TestAdapter(t *testing.T) {
	r, err := parseAdapter([]byte(goodAdapter))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	writeAdapters(&b, []*adapterReport{r})
	for _, want := range []string{
		"|  | mlx5_core |\n", "| vendor, part | 0x2c9, 0x0 |", "| rules, Setup | **1 failed**, 1 passed |", "| NULL, median | 12.5 µs |",
		"- mlx5_core, rules/Setup/Twice: `a | b  x   [2J`\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page has no %q:\n%s", want, b.String())
		}
	}
}

// TestAdapterRefused: a file that is no report, or has more in it than a report, is refused.
func TestAdapterRefused(t *testing.T) {
	change := func(path string, v any) string {
		var m map[string]any
		if err := json.Unmarshal([]byte(goodAdapter), &m); err != nil {
			t.Fatal(err)
		}
		at, keys := m, strings.Split(path, ".")
		for _, k := range keys[:len(keys)-1] {
			at = at[k].(map[string]any)
		}
		at[keys[len(keys)-1]] = v
		b, _ := json.Marshal(m)
		return string(b)
	}
	for name, text := range map[string]string{
		"nothing": "", "no report": "[]", "two": goodAdapter + goodAdapter, "long": goodAdapter + strings.Repeat(" ", adapterMost),
		"schema": change("schema", 2), "unknown": change("adapter.host", "x"), "date": change("date", "today"),
		"driver": change("adapter.driver", "../../x"), "firmware": change("adapter.firmware", "<script>"), "kernel": change("system.kernel", "a\nb"),
		"outcome": change("results", []any{map[string]any{"name": "x", "outcome": "fine"}}), "none": change("results", []any{}),
		"name": change("results", []any{map[string]any{"name": "a|b", "outcome": "passed"}}),
	} {
		if _, err := parseAdapter([]byte(text)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
