package result

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Markdown returns the file as a page: provenance, ratios, values and sweeps.
func (f *File) Markdown() string {
	var b strings.Builder
	f.Provenance.markdown(&b)
	if len(f.Pairs) > 0 {
		b.WriteString("\n| | A over B | A | B | ratio | quartiles | A/A | CPU | floor | goal | |\n")
		b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
		for i := range f.Pairs {
			f.Pairs[i].row(&b)
		}
		b.WriteString("\nA and B:\n\n")
		for _, p := range f.Pairs {
			fmt.Fprintf(&b, "- %s: %s", p.ID, p.A)
			switch {
			case p.Of == SelfP99:
				b.WriteString(", p99 over p50")
			case p.Bs > 1:
				fmt.Fprintf(&b, " over %s, the best of %d", p.B, p.Bs)
			default:
				fmt.Fprintf(&b, " over %s", p.B)
			}
			if p.Of == P99 {
				b.WriteString(", p99 of each")
			}
			if p.Crowded {
				fmt.Fprintf(&b, "; others used %.2f processors meanwhile", float64(p.Others))
			}
			b.WriteString(repeated(p.Again))
			b.WriteByte('\n')
		}
		b.WriteString("\nA/A is the second run of A in a round over the first: a ratio with a control more than 8 % from 1 is disturbed, and\n" +
			"so is one while others used the processors. A disturbed row reaches no goal and breaks no floor. It is measured again, with\n" +
			"more rounds, while there is time.\n" +
			"CPU is the processor time of both ends, A over B.\n")
	}
	if len(f.Values) > 0 {
		b.WriteString("\n| | | value | spread | floor | goal | |\n|---|---|---|---|---|---|---|\n")
		for i := range f.Values {
			f.Values[i].row(&b)
		}
	}
	for i := range f.Sweeps {
		f.Sweeps[i].markdown(&b)
	}
	for i := range f.Distributions {
		f.Distributions[i].markdown(&b)
	}
	benchmarksMarkdown(&b, f.Benchmarks)
	if len(f.Failed) > 0 {
		b.WriteString("\nNot measured, because it failed:\n\n| | | why | what it printed |\n|---|---|---|---|\n")
		for _, r := range f.Failed {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.ID, r.What, r.Why, r.Output)
		}
	}
	return b.String()
}

// repeated says how often a row was measured again.
func repeated(times int) string {
	switch times {
	case 0:
		return ""
	case 1:
		return "; measured again"
	}
	return fmt.Sprintf("; measured again %d times", times)
}

// benchmarksMarkdown writes a table of all benchmarks and all their units.
func benchmarksMarkdown(b *strings.Builder, list []Benchmark) {
	if len(list) == 0 {
		return
	}
	var units []string
	for _, x := range list {
		for unit := range x.Metrics {
			if !slices.Contains(units, unit) {
				units = append(units, unit)
			}
		}
	}
	slices.Sort(units)
	b.WriteString("\n| | CPUs | runs |")
	for _, u := range units {
		fmt.Fprintf(b, " %s |", u)
	}
	b.WriteString("\n|---|---|---|" + strings.Repeat("---|", len(units)) + "\n")
	for _, x := range list {
		fmt.Fprintf(b, "| %s | %d | %d |", x.Name, x.Procs, x.Runs)
		for _, u := range units {
			text := "-"
			if v, ok := x.Metrics[u]; ok {
				text = fmt.Sprintf("%.4g", float64(v.Median))
				if x.Runs > 1 {
					text += fmt.Sprintf(" (%.4g to %.4g)", float64(v.Low), float64(v.High))
				}
			}
			fmt.Fprintf(b, " %s |", text)
		}
		b.WriteByte('\n')
	}
}

// Values of Pair.Of.
const (
	P99     = "p99"
	SelfP99 = "p99/p50"
)

func (p *Provenance) markdown(b *strings.Builder) {
	if p.Date.IsZero() { // the output of go test -bench has little provenance
		fmt.Fprintf(b, "- machine: %s\n- platform: %s\n- command: `%s`\n", p.Machine, p.Go, p.Command)
		return
	}
	fmt.Fprintf(b, "- date: %s, %v long\n", p.Date.Format("2006-01-02 15:04 MST"), p.Duration)
	fmt.Fprintf(b, "- commit: %s\n", p.Commit)
	fmt.Fprintf(b, "- machine: %s; %s\n", p.Machine, p.Kernel)
	if len(p.Devices) > 0 {
		fmt.Fprintf(b, "- RDMA devices: %s\n", strings.Join(p.Devices, ", "))
	}
	fmt.Fprintf(b, "- Go: %s\n", p.Go)
	if len(p.Modules) > 0 {
		fmt.Fprintf(b, "- modules: %s\n", strings.Join(p.Modules, ", "))
	}
	fmt.Fprintf(b, "- load: %s before, %s after; others used %s processors\n", p.Load[0], p.Load[1], number(p.Idle))
	fmt.Fprintf(b, "- command: `%s`\n", p.Command)
	if p.Rounds > 0 {
		fmt.Fprintf(b, "- method: medians of %d rounds of A B A, %v a run; client and server in one process unless a row says otherwise\n", p.Rounds, p.Run)
	}
	if p.Busy {
		b.WriteString("\n**The machine was busy with other things: everything but exact counts is disturbed.**\n")
	}
	if p.Rounds > 0 && p.Rounds < Enough {
		b.WriteString("\n**Fewer than 10 rounds: nothing here is to be quoted, and all timings count as disturbed.**\n")
	}
}

func (p *Pair) row(b *strings.Builder) {
	other := p.value(p.TimeB, p.BytesB)
	if p.Of == SelfP99 {
		other = "-"
	}
	fmt.Fprintf(b, "| %s | %s | %s | %s | **%s** | %.2f to %.2f | %.2f | %s | %s | %s | %s |\n",
		p.ID, p.What, p.value(p.TimeA, p.BytesA), other,
		number(p.Ratio), float64(p.Low), float64(p.High), float64(p.Control), number(p.CPURatio),
		limit(p.Kind, p.Floor), limit(p.Kind, p.Want), p.Verdict())
}

// value prints one side: time per call, or a rate.
func (p *Pair) value(perCall time.Duration, bytes int) string {
	seconds := perCall.Seconds()
	switch {
	case p.Kind == Time:
		return perCall.Round(10 * time.Nanosecond).String()
	case bytes > 0:
		return fmt.Sprintf("%.2f GB/s", float64(bytes)/seconds/1e9)
	}
	return fmt.Sprintf("%.1f k/s", 1/seconds/1e3)
}

func number(v Float) string {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(v))
}

func limit(k Kind, v Float) string {
	switch {
	case v == 0:
		return "-"
	case k == Time:
		return fmt.Sprintf("≤ %.2f", float64(v))
	}
	return fmt.Sprintf("≥ %.2f", float64(v))
}

func (v *Value) row(b *strings.Builder) {
	spread, floor, goal := "-", "-", "-"
	switch {
	case v.Exact:
		spread = "exact"
	case v.Low != 0 || v.High != 0:
		spread = fmt.Sprintf("%.2f to %.2f", float64(v.Low), float64(v.High))
	}
	if v.Judged {
		floor, goal = plain(v.Floor), plain(v.Want)
	}
	unit := v.Unit
	if unit != "" {
		unit = " " + unit
	}
	fmt.Fprintf(b, "| %s | %s | **%s**%s | %s | %s | %s | %s |\n", v.ID, v.What, plain(v.Value), unit, spread, floor, goal, v.Verdict())
}

// plain formats a number without trailing zeros.
func plain(v Float) string {
	s := number(v)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

func (s *Sweep) markdown(b *strings.Builder) {
	unit := map[string]string{"time": "µs", "calls": "k calls/s", "bytes": "GB/s"}[s.Show]
	scale := map[string]float64{"time": 1, "calls": 1e-3, "bytes": 1e-9}[s.Show]
	fmt.Fprintf(b, "\n%s, %s (A/A %.2f%s%s):\n\n| %s |", s.What, unit, float64(s.Control), marked(s.Disturbed()), repeated(s.Again), s.X)
	var series []string
	var xs []int
	at := make(map[string]string)
	for i := range s.Points {
		p := &s.Points[i]
		if !slices.Contains(series, p.Series) {
			series = append(series, p.Series)
		}
		if !slices.Contains(xs, p.X) {
			xs = append(xs, p.X)
		}
		at[fmt.Sprint(p.Series, p.X)] = fmt.Sprintf("%.3g", s.Value(p)*scale)
	}
	slices.Sort(xs)
	for _, name := range series {
		fmt.Fprintf(b, " %s |", name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(series)) + "\n")
	for _, x := range xs {
		fmt.Fprintf(b, "| %d |", x)
		for _, name := range series {
			v := at[fmt.Sprint(name, x)]
			if v == "" {
				v = "-"
			}
			fmt.Fprintf(b, " %s |", v)
		}
		b.WriteByte('\n')
	}
}

func marked(disturbed bool) string {
	if disturbed {
		return ", disturbed"
	}
	return ""
}

// percentiles are the columns of a distribution's table.
var percentiles = []float64{0.5, 0.9, 0.99, 0.999}

func (d *Distribution) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s, µs%s:\n\n| | calls |", d.What, marked(d.Busy || d.Crowded))
	for _, p := range percentiles {
		fmt.Fprintf(b, " p%g |", 100*p)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(percentiles)) + "\n")
	for _, line := range d.Series {
		fmt.Fprintf(b, "| %s | %d |", line.Name, line.Calls)
		for _, p := range percentiles {
			text := "-"
			for _, q := range line.Quantiles {
				if q.P >= p {
					text = fmt.Sprintf("%.1f", float64(q.Time)/1e3)
					break
				}
			}
			fmt.Fprintf(b, " %s |", text)
		}
		b.WriteByte('\n')
	}
}

// GoalsMarkdown returns a list of all goals, each with its results in the files, or the reason
// why there is no result.
func GoalsMarkdown(files []*File) string {
	var b strings.Builder
	b.WriteString("| | goal | floor | goal | measured |\n|---|---|---|---|---|\n")
	for _, g := range Goals {
		var told []string
		for _, f := range files {
			for i := range f.Pairs {
				if p := &f.Pairs[i]; p.Goal == g.Number {
					told = append(told, fmt.Sprintf("%s: **%s** (%.2f to %.2f)%s", p.ID, number(p.Ratio), float64(p.Low), float64(p.High), said(p.Verdict())))
				}
			}
			for i := range f.Values {
				if v := &f.Values[i]; v.Goal == g.Number {
					spread := ""
					if v.Exact {
						spread = " (exact)"
					} else if v.Low != 0 || v.High != 0 {
						spread = fmt.Sprintf(" (%.2f to %.2f)", float64(v.Low), float64(v.High))
					}
					told = append(told, fmt.Sprintf("%s: **%s**%s%s", v.ID, plain(v.Value), spread, said(v.Verdict())))
				}
			}
		}
		if len(told) == 0 {
			for _, f := range files {
				for _, m := range f.Missing {
					if text := "not measured: " + m.Why; m.Goal == g.Number && !slices.Contains(told, text) {
						told = append(told, text)
					}
				}
			}
		}
		if len(told) == 0 {
			told = append(told, "not measured: these results have nothing about it")
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s |\n", g.Number, g.What, g.Floor, g.Want, strings.Join(told, "<br>"))
	}
	return b.String()
}

func said(v Verdict) string {
	if v == None {
		return ""
	}
	return ", " + string(v)
}
