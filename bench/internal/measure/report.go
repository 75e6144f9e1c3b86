package measure

import (
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Provenance is where numbers are from.
type Provenance struct {
	Date     time.Time
	Commit   string
	Machine  string // processor and how many
	Kernel   string
	Go       string // version, platform, GOMAXPROCS
	Modules  []string
	Load     [2]string // before and after
	Busy     bool      // too much load before
	Command  string
	Options  Options
	Duration time.Duration
}

// Begin takes down what is known before measuring. modules names those of others
// whose version matters.
func Begin(command string, o Options, modules ...string) *Provenance {
	p := &Provenance{
		Date:    time.Now().UTC(),
		Commit:  commit(),
		Machine: fmt.Sprintf("%s, %d CPUs", processor(), runtime.NumCPU()),
		Kernel:  runtime.GOOS + " " + fileText("/proc/sys/kernel/osrelease"),
		Go:      fmt.Sprintf("%s %s/%s, GOMAXPROCS %d", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0)),
		Command: command,
		Options: o,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if slices.Contains(modules, m.Path) {
				p.Modules = append(p.Modules, m.Path+" "+m.Version)
			}
		}
	}
	p.Load[0] = loadAverage()
	if load, err := strconv.ParseFloat(p.Load[0], 64); err == nil {
		p.Busy = load > 0.5*float64(runtime.NumCPU())
	}
	return p
}

// End takes down what is known afterwards.
func (p *Provenance) End() {
	p.Load[1] = loadAverage()
	p.Duration = time.Since(p.Date).Round(time.Second)
}

// Report writes everything as Markdown.
func Report(w io.Writer, p *Provenance, results []Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "- date: %s, %v long\n", p.Date.Format("2006-01-02 15:04 MST"), p.Duration)
	fmt.Fprintf(&b, "- commit: %s\n", p.Commit)
	fmt.Fprintf(&b, "- machine: %s; %s\n", p.Machine, p.Kernel)
	fmt.Fprintf(&b, "- Go: %s\n", p.Go)
	if len(p.Modules) > 0 {
		fmt.Fprintf(&b, "- modules: %s\n", strings.Join(p.Modules, ", "))
	}
	fmt.Fprintf(&b, "- load: %s before, %s after\n", p.Load[0], p.Load[1])
	fmt.Fprintf(&b, "- command: `%s`\n", p.Command)
	fmt.Fprintf(&b, "- method: medians of %d rounds of A B A, %v a run, client and server in one process, over loopback\n", p.Options.Rounds, p.Options.Run)
	if p.Busy {
		b.WriteString("\n**The machine was busy when this began: not to be quoted.**\n")
	}
	if p.Options.Rounds < 10 {
		b.WriteString("\n**Fewer than 10 rounds: not to be quoted.**\n")
	}

	b.WriteString("\n| | A over B | A | B | ratio | quartiles | A/A | CPU | floor | goal | |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | **%.2f** | %.2f to %.2f | %.2f | %s | %s | %s | %s |\n",
			r.ID, r.What, r.value(r.TimeA, r.A.Bytes), r.value(r.TimeB, r.Against.Bytes),
			r.Ratio, r.Low, r.High, r.Control, number(r.CPURatio), limit(r.Kind, r.Floor), limit(r.Kind, r.Goal), r.Verdict())
	}

	b.WriteString("\nA and B:\n\n")
	for _, r := range results {
		fmt.Fprintf(&b, "- %s: %s over %s", r.ID, r.A.Name, r.Against.Name)
		if len(r.B) > 1 {
			fmt.Fprintf(&b, ", the best of %d", len(r.B))
		}
		b.WriteByte('\n')
	}
	b.WriteString("\nA/A is the second run of A in a round over the first: a ratio whose control is more than 8 % from 1 is disturbed.\n" +
		"CPU is the processor time of both ends, A over B.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// value prints one side: time per call, or a rate.
func (r *Result) value(perCall time.Duration, bytes int) string {
	seconds := perCall.Seconds()
	switch {
	case r.Kind == Time:
		return perCall.Round(10 * time.Nanosecond).String()
	case bytes > 0:
		return fmt.Sprintf("%.2f GB/s", float64(bytes)/seconds/1e9)
	}
	return fmt.Sprintf("%.0f k/s", 1/seconds/1e3)
}

func number(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}

func limit(k Kind, v float64) string {
	switch {
	case v == 0:
		return "-"
	case k == Time:
		return fmt.Sprintf("≤ %.2f", v)
	}
	return fmt.Sprintf("≥ %.2f", v)
}

// commit asks git, because go run records nothing.
func commit() string {
	head, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	s := strings.TrimSpace(string(head))
	if changes, err := exec.Command("git", "status", "--porcelain").Output(); err == nil && len(changes) > 0 {
		s += ", with changes"
	}
	return s
}

func processor() string {
	for line := range strings.Lines(fileText("/proc/cpuinfo")) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// loadAverage is that of the last minute.
func loadAverage() string {
	load, _, _ := strings.Cut(fileText("/proc/loadavg"), " ")
	if load == "" {
		return "unknown"
	}
	return load
}

// fileText returns what a file has, or nothing.
func fileText(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
