package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rpcrdma/rpcrdma/transport"
)

// Limits of what bench asks for.
const (
	// maxBenchSize is the largest data of a call: with the call's header it makes the
	// longest message that serve takes.
	maxBenchSize = transport.DefaultMaxMessage - 4096
	// maxBenchDepth is how many credits a server grants.
	maxBenchDepth = transport.DefaultCredits
	// maxBenchSteps keeps a sweep from going on for days.
	maxBenchSteps = 1000
)

// benchOptions are the options of bench.
type benchOptions struct {
	options
	version   versionValue
	ops       []string
	sizes     []string
	depths    []string
	time      time.Duration
	calls     int64
	histogram bool
}

func newBench() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench HOST[:PORT]",
		Short: "Measure calls to a server: latency, rate, throughput",
		Long: `Measure calls to a server on one connection, and print how long they took, how many
there were in a second, and how much data they moved.

The server is 'rpcrdma serve', on this machine or another: it has a program for this,
0x20524442 version 1, that moves bytes and does nothing else with them.

  null   calls without data: the round trip that every call has in it
  echo   data there and back, inside the messages as far as it fits
  read   data from the server, which writes it into this end's memory (SOURCE)
  write  data to the server, which reads it from this end's memory (SINK)

Each op is measured with each size and each depth, the number of calls outstanding.
--size and --depth take lists, 64,4Ki,1Mi, and ranges that double, 4Ki..1Mi. Some calls
that do not count go before those of each step, and every answer is checked.

MiB/s counts the data of a call once, echo's too. The port is 20049 unless it is given.`,
		Example: `  rpcrdma bench server:20049
  rpcrdma bench --op read,write --size 4Ki..2Mi --depth 1,16 server:20049
  rpcrdma bench --op null --time 10s --histogram --json server:20049`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := o.checkAddr(cmd, args[0])
			if err != nil {
				return err
			}
			steps, err := o.steps()
			if err != nil {
				return &usageError{command: cmd.CommandPath(), err: err}
			}
			return o.bench(cmd, at, steps)
		},
	}
	addOptions(cmd, &o.options, 10*time.Second, "wait so long for the connection, and then for any answer")
	addLookupOption(cmd, &o.options)
	addVersionOption(cmd, &o.version)
	flags := cmd.Flags()
	flags.StringSliceVar(&o.ops, "op", []string{opNull, opEcho, opRead, opWrite}, "what to measure")
	flags.StringSliceVar(&o.sizes, "size", nil, "how many bytes a call moves (echo 64, read and write 64Ki,1Mi)")
	flags.StringSliceVar(&o.depths, "depth", []string{"1", "16"}, "how many calls are outstanding")
	flags.DurationVar(&o.time, "time", time.Second, "how long each step takes")
	flags.Int64Var(&o.calls, "calls", 0, "make `N` calls in each step instead")
	flags.BoolVar(&o.histogram, "histogram", false, "draw how the times are distributed")
	return cmd
}

// steps is what the options ask for, in the order of the options.
func (o *benchOptions) steps() ([]benchStep, error) {
	if o.time <= 0 {
		return nil, fmt.Errorf("--time is %v, want more than 0", o.time)
	}
	if o.calls < 0 {
		return nil, fmt.Errorf("--calls is %d, want 1 or more", o.calls)
	}
	depths, err := numbers("--depth", o.depths, 1, maxBenchDepth)
	if err != nil {
		return nil, err
	}
	var steps []benchStep
	for _, op := range o.ops {
		sizes := []int{0}
		switch op {
		case opNull:
		case opEcho, opRead, opWrite:
			list := o.sizes
			if len(list) == 0 {
				list = []string{"64Ki", "1Mi"}
				if op == opEcho {
					list = []string{"64"}
				}
			}
			if sizes, err = numbers("--size", list, 1, maxBenchSize); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("--op %q: want %s", op, strings.Join([]string{opNull, opEcho, opRead, opWrite}, ", "))
		}
		for _, size := range sizes {
			for _, depth := range depths {
				steps = append(steps, benchStep{op, size, depth})
			}
		}
	}
	switch {
	case len(steps) == 0:
		return nil, errors.New("--op names nothing to measure")
	case len(steps) > maxBenchSteps:
		return nil, fmt.Errorf("%d steps, want at most %d", len(steps), maxBenchSteps)
	}
	return steps, nil
}

// numbers reads a list of numbers and of ranges that double, such as 64 or 4Ki..1Mi.
func numbers(option string, list []string, least, most int) ([]int, error) {
	var all []int
	for _, s := range list {
		from, to, ok := strings.Cut(s, "..")
		if !ok {
			to = from
		}
		first, err := parseSize(from)
		last, err2 := parseSize(to)
		switch {
		case err != nil || err2 != nil:
			return nil, fmt.Errorf("%s %q: want numbers such as 64, 4Ki or 1Mi, or a range of them, 4Ki..1Mi", option, s)
		case first < least || last > most:
			return nil, fmt.Errorf("%s %q: want %s to %s", option, s, sizeText(least), sizeText(most))
		case first > last:
			return nil, fmt.Errorf("%s %q: the range ends before it begins", option, s)
		}
		for n := first; n < last; n *= 2 {
			all = append(all, n)
		}
		all = append(all, last)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s is empty", option)
	}
	return all, nil
}

// parseSize reads a number with Ki or Mi behind it, or nothing.
func parseSize(s string) (int, error) {
	shift := 0
	if rest, ok := strings.CutSuffix(s, "Ki"); ok {
		s, shift = rest, 10
	} else if rest, ok := strings.CutSuffix(s, "Mi"); ok {
		s, shift = rest, 20
	}
	n, err := strconv.ParseUint(s, 10, 31-shift)
	return int(n << shift), err
}

// sizeText is what parseSize reads.
func sizeText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dMi", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%dKi", n>>10)
	}
	return strconv.Itoa(n)
}

// bench connects and measures.
func (o *benchOptions) bench(cmd *cobra.Command, arg string, steps []benchStep) error {
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	log := o.logger(cmd.ErrOrStderr())
	depth := slices.MaxFunc(steps, func(a, b benchStep) int { return a.depth - b.depth }).depth
	c, addr, err := o.dialAddr(ctx, cmd.ErrOrStderr(), arg, benchProgram, benchVersion,
		&transport.Config{Version: o.version.Version, Credits: depth})
	if err != nil {
		return fmt.Errorf("bench: %w", explained(err))
	}
	defer c.Close()
	logInfo(log, c.Info())
	// That the server has the program at all is another matter than how fast it is.
	if err := o.null(ctx, cmd.ErrOrStderr(), c, benchProgram, benchVersion); err != nil {
		return fmt.Errorf("bench %s: %w", addr, explained(err))
	}

	started := time.Now()
	progress := newBenchProgress(cmd.ErrOrStderr(), len(steps))
	var results []*benchResult
	for i, s := range steps {
		progress.show(s.String(), i, 0)
		late := func() error { return o.stalled(cmd.ErrOrStderr(), "calls of "+s.String(), c) }
		r, err := runStep(ctx, c, s, stint{time: o.time, calls: o.calls, timeout: o.timeout, late: late},
			func(done float64) { progress.show(s.String(), i, done) })
		if err != nil {
			progress.close()
			return fmt.Errorf("bench %s: %v: %w", addr, s, explained(err))
		}
		results = append(results, r)
	}
	progress.close()
	logStats(log, c.Stats())
	report := benchReport{addr: addr, info: c.Info(), started: started, results: results}
	if o.json {
		return report.json(cmd.OutOrStdout())
	}
	return report.text(cmd.OutOrStdout(), o.histogram)
}

// A benchProgress shows how far it is, if somebody watches.
type benchProgress struct {
	bar *progressbar.ProgressBar // nil: nobody does
}

// benchTicks are what a step has in the bar.
const benchTicks = 100

func newBenchProgress(w io.Writer, steps int) *benchProgress {
	p := new(benchProgress)
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(steps*benchTicks,
			progressbar.OptionSetWriter(w),
			progressbar.OptionSetWidth(30),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionThrottle(50*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
	return p
}

// show is told that the part done of a step is over. It is not called by two goroutines
// at a time.
func (p *benchProgress) show(step string, number int, done float64) {
	if p.bar != nil {
		p.bar.Describe(step)
		_ = p.bar.Set(number*benchTicks + int(done*benchTicks)) // the terminal may go away
	}
}

func (p *benchProgress) close() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}

// A benchReport is what bench prints.
type benchReport struct {
	addr    string
	info    transport.ConnInfo
	started time.Time
	results []*benchResult
}

func (r *benchReport) text(out io.Writer, histograms bool) error {
	fmt.Fprintf(out, "RPCRDMA_BENCH at %s over %s, RPC-over-RDMA version %d, %d bytes inline\n\n",
		r.addr, r.info.Provider, r.info.Version, r.info.InlineSend)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "op\tsize\tdepth\tcalls/s\tMiB/s\tmin\tp50\tp90\tp99\tp99.9\tmax\t")
	for _, s := range r.results {
		size, rate := "-", "-"
		if s.op != opNull {
			size, rate = sizeText(s.size), fmt.Sprintf("%.1f", s.bytesPerSecond()/(1<<20))
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%.0f\t%s\t%v\t%v\t%v\t%v\t%v\t%v\t\n", s.op, size, s.depth, s.rate(), rate,
			short(s.min), short(s.quantile(0.5)), short(s.quantile(0.9)), short(s.quantile(0.99)), short(s.quantile(0.999)), short(s.max))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if histograms {
		for _, s := range r.results {
			if _, err := fmt.Fprintf(out, "\n%v: %d calls in %v\n", s.benchStep, s.n, s.took.Round(time.Millisecond)); err != nil {
				return err
			}
			s.print(out, 50)
		}
	}
	return nil
}

// short is a duration with no more digits than say something.
func short(d time.Duration) time.Duration {
	switch {
	case d >= 100*time.Millisecond:
		return d.Round(time.Millisecond)
	case d >= 100*time.Microsecond:
		return d.Round(time.Microsecond)
	}
	return d.Round(100 * time.Nanosecond)
}

// benchJSON is a benchReport as JSON.
type benchJSON struct {
	Address    string          `json:"address"`
	Provider   string          `json:"provider"`
	Program    uint32          `json:"program"`
	Version    uint32          `json:"version"`
	RDMA       uint32          `json:"rdma_version"`
	InlineSend int             `json:"inline_send"`
	InlineRecv int             `json:"inline_recv"`
	Windows    bool            `json:"memory_windows"`
	Started    time.Time       `json:"started"`
	Steps      []benchStepJSON `json:"steps"`
}

type benchStepJSON struct {
	Op             string  `json:"op"`
	Size           int     `json:"size"`
	Depth          int     `json:"depth"`
	Seconds        float64 `json:"seconds"`
	Calls          uint64  `json:"calls"`
	CallsPerSecond float64 `json:"calls_per_s"`
	BytesPerSecond float64 `json:"bytes_per_s"`
	Min            float64 `json:"min_us"`
	P50            float64 `json:"p50_us"`
	P90            float64 `json:"p90_us"`
	P99            float64 `json:"p99_us"`
	P999           float64 `json:"p99.9_us"`
	Max            float64 `json:"max_us"`
	Histogram      []bar   `json:"histogram"`
}

func (r *benchReport) json(out io.Writer) error {
	j := benchJSON{
		Address: r.addr, Provider: r.info.Provider, Program: benchProgram, Version: benchVersion,
		RDMA: r.info.Version, InlineSend: r.info.InlineSend, InlineRecv: r.info.InlineRecv,
		Windows: r.info.Capabilities.MemoryWindows, Started: r.started.UTC(),
	}
	for _, s := range r.results {
		j.Steps = append(j.Steps, benchStepJSON{
			Op: s.op, Size: s.size, Depth: s.depth, Seconds: s.took.Seconds(), Calls: s.n,
			CallsPerSecond: s.rate(), BytesPerSecond: s.bytesPerSecond(),
			Min: micros(s.min), P50: micros(s.quantile(0.5)), P90: micros(s.quantile(0.9)),
			P99: micros(s.quantile(0.99)), P999: micros(s.quantile(0.999)), Max: micros(s.max),
			Histogram: s.bars(),
		})
	}
	return printJSON(out, j)
}
