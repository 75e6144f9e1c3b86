package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// parseBenchmarks reads the output of go test -bench: lines of configuration, "key: value", and of benchmarks,
// "BenchmarkX/key=value-N  runs  number unit ...". It ignores other lines. Lines of the same benchmark are combined, as
// by benchstat.
func parseBenchmarks(text string) (*result.File, error) {
	f := &result.File{Format: result.Format, Title: "Benchmarks"}
	labels := make(map[string]string)
	type key struct {
		name  string
		procs int
	}
	values := make(map[key]map[string][]float64)
	runs := make(map[key]int)
	var order []key
	for number, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if !strings.HasPrefix(fields[0], "Benchmark") {
			if k, v, ok := strings.Cut(line, ": "); ok && !strings.ContainsAny(k, " \t") {
				labels[k] = strings.TrimSpace(v)
			}
			continue
		}
		if len(fields) < 2 {
			continue // its result is on a later line
		}
		if _, err := strconv.ParseUint(fields[1], 10, 64); err != nil {
			continue // a log message
		}
		if len(fields)%2 != 0 {
			return nil, fmt.Errorf("line %d: a number without a unit", number+1)
		}
		k := key{strings.TrimPrefix(fields[0], "Benchmark"), 1}
		// Without -N it ran with GOMAXPROCS=1.
		if i := strings.LastIndexByte(k.name, '-'); i >= 0 {
			if n, err := strconv.Atoi(k.name[i+1:]); err == nil && n > 0 {
				k.name, k.procs = k.name[:i], n
			}
		}
		if values[k] == nil {
			values[k] = make(map[string][]float64)
			order = append(order, k)
		}
		runs[k]++
		for i := 2; i < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("line %d: %q is no number", number+1, fields[i])
			}
			values[k][fields[i+1]] = append(values[k][fields[i+1]], v)
		}
	}
	if len(order) == 0 {
		return nil, errors.New("neither results in JSON nor the output of go test -bench")
	}
	for _, k := range order {
		b := result.Benchmark{Name: k.name, Procs: k.procs, Runs: runs[k], Metrics: make(map[string]result.Spread), Keys: make(map[string]string)}
		for _, part := range strings.Split(k.name, "/")[1:] {
			if name, value, ok := strings.Cut(part, "="); ok {
				b.Keys[name] = value
			}
		}
		for unit, list := range values[k] {
			slices.Sort(list)
			b.Metrics[unit] = result.Spread{Median: at(list, 0.5), Low: at(list, 0.25), High: at(list, 0.75)}
		}
		f.Benchmarks = append(f.Benchmarks, b)
	}
	f.Provenance.Machine = labels["cpu"]
	f.Provenance.Go = strings.Trim(labels["goos"]+"/"+labels["goarch"], "/")
	f.Provenance.Command = "go test -bench"
	f.Provenance.Idle = result.Float(math.NaN())
	return f, nil
}

// at returns a quantile of a sorted list.
func at(sorted []float64, q float64) result.Float {
	pos := q * float64(len(sorted)-1)
	low := int(pos)
	if low+1 >= len(sorted) {
		return result.Float(sorted[low])
	}
	return result.Float(sorted[low] + (pos-float64(low))*(sorted[low+1]-sorted[low]))
}
