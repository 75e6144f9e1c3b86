package main

import (
	"fmt"
	"strings"
	"testing"
)

// runs are lines of so many runs, the last of which has no line for theirs if short is set.
func runs(n int, short bool) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "goos: linux\nBenchmarkDecode/message=read/codec=ours-2 \t 9 \t %d ns/op \t 5.0 MB/s \t %d cpu-ns/op \t 0 B/op \t 0 allocs/op\n", 1000-i, 10+i)
		if !short || i < n-1 {
			fmt.Fprintf(&b, "BenchmarkDecode/message=read/codec=their-own-2 \t 9 \t 7 ns/op \t %.1f cpu-ns/op \t 64 B/op \t 3 allocs/op\n", float64((10+i)*(i+1)))
		}
	}
	return b.String()
}

func TestTable(t *testing.T) {
	var b strings.Builder
	if err := table(&b, strings.NewReader(runs(13, false))); err != nil {
		t.Fatal(err)
	}
	const want = "| | ours | their-own |\n|---|---|---|\n| Decode read | 16 ns, 0 | 7.0 (4.0 to 10), 3 |\n"
	if b.String() != want {
		t.Errorf("table\n%swant\n%s", &b, want)
	}
	for name, in := range map[string]string{"nothing": "", "few runs": runs(9, false), "runs that were cut short": runs(13, true)} {
		if err := table(&b, strings.NewReader(in)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
