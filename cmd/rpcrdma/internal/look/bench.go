package look

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// maxBenchSteps prevents a sweep that takes days.
const maxBenchSteps = 1000

// benchOptions holds the flags of bench.
type benchOptions struct {
	connect.Options
	version   connect.VersionValue
	ops       []string
	sizes     []string
	depths    []string
	time      time.Duration
	calls     int64
	histogram bool
	plot      bool
	svg       string // FILE; empty: none
	conns     int
}

// NewBench returns the command bench.
func NewBench() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:        "bench HOST[:PORT]",
		SuggestFor: []string{"benchmark", "perf", "measure"},
		Short:      "Measure calls to a server: latency, rate, throughput",
		Long: `Measure calls to a server: latency, calls per second and throughput. The calls use one
connection. With --connections they use more when one connection has more bulk data, or more
calls, than it can handle at once.

The server is 'rpcrdma serve', on this machine or another. Its benchmark program, 0x20524442
version 1, moves bytes and does nothing else with them.

  null   calls without data: the round trip that is part of every call
  echo   data to the server and back, inline if it fits
  read   data from the server, which writes it into this end's memory (SOURCE)
  write  data to the server, which reads it from this end's memory (SINK)

Each op is measured with each size and each depth, the number of calls outstanding. --size
and --depth accept lists, such as 64,4Ki,1Mi, and doubling ranges, such as 4Ki..1Mi. Each
step begins with a few calls that are not counted. Every answer is checked.

--plot draws, below the table, throughput by size and calls per second by depth, if there
are several, and the distribution of the latencies of up to 6 steps. --svg writes the same
to a file for browsers.

MiB/s counts the data of a call once, even for echo. The default port is 20049.`,
		Example: `  rpcrdma bench server:20049
  rpcrdma bench --op read,write --size 4Ki..2Mi --depth 1,16 server:20049
  rpcrdma bench --op read --size 1Ki..1Mi --depth 1,16 --plot --svg read.svg server
  rpcrdma bench --op null --time 10s --histogram --json server:20049`,
		ValidArgsFunction: cli.Positions(connect.CompleteHost),
		Args:              cli.WantArgs("HOST[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := o.CheckAddr(cmd, args[0])
			if err != nil {
				return err
			}
			steps, err := o.steps()
			if err == nil && o.plot && o.JSON {
				err = errors.New("--plot is for people, and --json for programs: --svg FILE goes with it")
			}
			if err != nil {
				return cli.Usage(cmd, err)
			}
			return o.bench(cmd, at, steps)
		},
	}
	connect.AddOptions(cmd, &o.Options, 10*time.Second, "give up after this time without a connection, or without an answer")
	connect.AddLookupOption(cmd, &o.Options)
	connect.AddVersionOption(cmd, &o.version)
	flags := cmd.Flags()
	flags.StringSliceVar(&o.ops, "op", opNames(), "measure the `OPS` of this list")
	cli.CompleteFlag(cmd, "op", cli.CompleteList(opNames()))
	flags.StringSliceVar(&o.sizes, "size", nil, "`BYTES` of data in a call, a list (default: echo 64; read and write 64Ki,1Mi)")
	flags.StringSliceVar(&o.depths, "depth", []string{"1", "16"}, "keep `N` calls outstanding, a list")
	flags.DurationVar(&o.time, "time", time.Second, "measure each step for this `TIME`")
	flags.Int64Var(&o.calls, "calls", 0, "make `N` calls in each step, instead of --time")
	connect.AddConnectionsOption(cmd, &o.conns)
	flags.BoolVar(&o.histogram, "histogram", false, "draw a histogram of the latencies of each step")
	flags.BoolVar(&o.plot, "plot", false, "draw plots in text: throughput, rates and latencies")
	flags.StringVar(&o.svg, "svg", "", "write the plots to `FILE` as SVG")
	return cmd
}

// steps returns the steps that the options specify, in the order of the options.
func (o *benchOptions) steps() ([]loadgen.Step, error) {
	if o.time <= 0 {
		return nil, fmt.Errorf("--time is %v, want more than 0", o.time)
	}
	if o.calls < 0 {
		return nil, fmt.Errorf("--calls is %d, want 1 or more", o.calls)
	}
	depths, err := loadgen.ParseSizes(o.depths, 1, loadgen.MaxDepth)
	if err != nil {
		return nil, fmt.Errorf("--depth %w", err)
	}
	var steps []loadgen.Step
	for _, name := range o.ops {
		op := loadgen.Op(name)
		if !slices.Contains(loadgen.Ops(), op) {
			return nil, fmt.Errorf("--op %q: want %s", name, strings.Join(opNames(), ", "))
		}
		sizes, err := o.sizesOf(op)
		if err != nil {
			return nil, fmt.Errorf("--size %w", err)
		}
		for _, size := range sizes {
			for _, depth := range depths {
				steps = append(steps, loadgen.Step{Op: op, Size: size, Depth: depth})
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

// sizesOf returns the sizes at which to measure op.
func (o *benchOptions) sizesOf(op loadgen.Op) ([]int, error) {
	switch {
	case op == loadgen.Null:
		return []int{0}, nil
	case len(o.sizes) > 0:
		return loadgen.ParseSizes(o.sizes, 1, loadgen.MaxSize)
	case op == loadgen.Echo:
		return []int{64}, nil
	}
	return []int{64 << 10, 1 << 20}, nil
}

func opNames() (names []string) {
	for _, op := range loadgen.Ops() {
		names = append(names, string(op))
	}
	return names
}

// bench connects and measures.
func (o *benchOptions) bench(cmd *cobra.Command, arg string, steps []loadgen.Step) error {
	ctx, stop := cli.Interruptible(cmd.Context())
	defer stop()
	stderr := cmd.ErrOrStderr()
	log := o.Logger(stderr)
	svg, err := o.openSVG()
	if err != nil {
		return err
	}
	defer svg.Close()
	depth := slices.MaxFunc(steps, func(a, b loadgen.Step) int { return a.Depth - b.Depth }).Depth
	c, addr, err := o.DialGroup(ctx, stderr, arg, loadgen.ProgramNumber, loadgen.ProgramVersion,
		&transport.ClientConfig{Config: transport.Config{Version: o.version.Version, Credits: depth}}, o.conns)
	if err != nil {
		return fmt.Errorf("bench: %w", explain.Error(err))
	}
	defer c.Close()
	connect.LogInfo(log, c.Info())
	// Report a server without the program before measuring.
	if err := o.Null(ctx, stderr, c, loadgen.ProgramNumber, loadgen.ProgramVersion); err != nil {
		return fmt.Errorf("bench %s: %w", addr, explain.Error(err))
	}

	report := benchReport{addr: addr, info: c.Info(), started: time.Now()}
	progress := newBenchProgress(stderr, len(steps))
	for i, s := range steps {
		progress.show(s.String(), i, 0)
		r, err := loadgen.Run(ctx, c, s, loadgen.Config{
			Time: o.time, Calls: o.calls, Timeout: o.Timeout,
			Stalled:  func() error { return o.Stalled(stderr, "calls of "+s.String(), c) },
			Progress: func(done float64) { progress.show(s.String(), i, done) },
		})
		if err != nil {
			progress.close()
			return fmt.Errorf("bench %s: %v: %w", addr, s, explain.Error(err))
		}
		report.results = append(report.results, r)
	}
	progress.close()
	report.conns = c.Stats().OpenConns
	connect.LogStats(log, c.Stats())
	if o.JSON {
		err = report.json(cmd.OutOrStdout())
	} else {
		err = report.text(cmd.OutOrStdout(), o.histogram)
	}
	if err == nil {
		err = o.draw(&report, svg, cmd.OutOrStdout())
	}
	return err
}

// benchProgress shows a progress bar on a terminal.
type benchProgress struct {
	bar *progressbar.ProgressBar // nil: no terminal
}

// benchTicks is the resolution of a step in the bar.
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

// show moves the bar to the fraction done of a step. It must not be called concurrently.
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

// benchReport is the output of bench.
type benchReport struct {
	addr    string
	info    rpc.ConnInfo
	started time.Time
	conns   uint64 // set at the end
	results []*loadgen.Result
}

func (r *benchReport) text(out io.Writer, histograms bool) error {
	fmt.Fprintf(out, "RPCRDMA_BENCH at %s over %s, RPC-over-RDMA version %d, %d bytes inline",
		r.addr, r.info.Provider, r.info.Version, r.info.InlineSend)
	if r.conns > 1 {
		fmt.Fprintf(out, ", %d connections", r.conns)
	}
	fmt.Fprint(out, "\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "op\tsize\tdepth\tcalls/s\tMiB/s\tmin\tp50\tp90\tp99\tp99.9\tmax\t")
	for _, s := range r.results {
		size, rate := "-", "-"
		if s.Op != loadgen.Null {
			size, rate = loadgen.FormatSize(s.Size), fmt.Sprintf("%.1f", s.BytesPerSecond()/(1<<20))
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%.0f\t%s\t%v\t%v\t%v\t%v\t%v\t%v\t\n", s.Op, size, s.Depth, s.Rate(), rate,
			short(s.Min()), short(s.Quantile(0.5)), short(s.Quantile(0.9)), short(s.Quantile(0.99)), short(s.Quantile(0.999)), short(s.Max()))
	}
	if err := w.Flush(); err != nil || !histograms {
		return err
	}
	for _, s := range r.results {
		if _, err := fmt.Fprintf(out, "\n%v: %d calls in %v\n", s.Step, s.N(), s.Took.Round(time.Millisecond)); err != nil {
			return err
		}
		if err := s.Draw(out, 50); err != nil {
			return err
		}
	}
	return nil
}

// short rounds d to three or four significant digits.
func short(d time.Duration) time.Duration {
	switch {
	case d >= 100*time.Millisecond:
		return d.Round(time.Millisecond)
	case d >= 100*time.Microsecond:
		return d.Round(time.Microsecond)
	}
	return d.Round(100 * time.Nanosecond)
}

// BenchJSON is a benchReport for JSON.
type BenchJSON struct {
	Address    string          `json:"address"`
	Provider   string          `json:"provider"`
	Program    uint32          `json:"program"`
	Version    uint32          `json:"version"`
	RDMA       uint32          `json:"rdma_version"`
	InlineSend int             `json:"inline_send"`
	InlineRecv int             `json:"inline_recv"`
	Windows    bool            `json:"memory_windows"`
	Started    time.Time       `json:"started"`
	Conns      uint64          `json:"connections"`
	Steps      []benchStepJSON `json:"steps"`
}

type benchStepJSON struct {
	Op             loadgen.Op    `json:"op"`
	Size           int           `json:"size"`
	Depth          int           `json:"depth"`
	Seconds        float64       `json:"seconds"`
	Calls          uint64        `json:"calls"`
	CallsPerSecond float64       `json:"calls_per_s"`
	BytesPerSecond float64       `json:"bytes_per_s"`
	Min            float64       `json:"min_us"`
	P50            float64       `json:"p50_us"`
	P90            float64       `json:"p90_us"`
	P99            float64       `json:"p99_us"`
	P999           float64       `json:"p99.9_us"`
	Max            float64       `json:"max_us"`
	Histogram      []loadgen.Bar `json:"histogram"`
}

func (r *benchReport) json(out io.Writer) error {
	j := BenchJSON{
		Address: r.addr, Provider: r.info.Provider, Program: loadgen.ProgramNumber, Version: loadgen.ProgramVersion,
		RDMA: r.info.Version, InlineSend: r.info.InlineSend, InlineRecv: r.info.InlineRecv,
		Windows: r.info.Capabilities.MemoryWindows, Started: r.started.UTC(), Conns: r.conns,
	}
	for _, s := range r.results {
		j.Steps = append(j.Steps, benchStepJSON{
			Op: s.Op, Size: s.Size, Depth: s.Depth, Seconds: s.Took.Seconds(), Calls: s.N(),
			CallsPerSecond: s.Rate(), BytesPerSecond: s.BytesPerSecond(),
			Min: loadgen.Micros(s.Min()), P50: loadgen.Micros(s.Quantile(0.5)), P90: loadgen.Micros(s.Quantile(0.9)),
			P99: loadgen.Micros(s.Quantile(0.99)), P999: loadgen.Micros(s.Quantile(0.999)), Max: loadgen.Micros(s.Max()),
			Histogram: s.Bars(),
		})
	}
	return cli.PrintJSON(out, j)
}
