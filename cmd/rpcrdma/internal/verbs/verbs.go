package verbs

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
)

// New returns the command verbs.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "verbs",
		SuggestFor: []string{"perftest", "ib_send_lat", "ib_write_bw", "ibv_rc_pingpong", "pingpong"},
		Short:      "Measure RDMA operations between two machines, without RPC",
		Long: `Measure what RDMA devices do between two machines: latency and bandwidth of Sends, Writes,
Reads and atomic operations, over reliable and unreliable connections and datagrams. One
machine runs 'rpcrdma verbs serve', the other one of

  ping   checks every byte, and prints the time of each operation
  lat    one operation after the other: percentiles of the time
  bw     many at once: operations and MiB in a second

The two ends set up a test over TCP, port 18515. The time of a Send is that of a round trip;
the time of other operations ends when the device reports their completion. On unreliable
transports the command counts what was sent, not what arrived. iWARP devices support only
reliable connections, through the connection manager.`,
		Args: cli.WantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newServe(), newTest("ping"), newTest("lat"), newTest("bw"))
	return cmd
}

func addDevice(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "device", "", "use the RDMA device `NAME` (default: the one that the address leads to)")
	cli.CompleteFlag(cmd, "device", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		devices, _ := provider.Devices()
		return provider.Usable(devices), cobra.ShellCompDirectiveNoFileComp
	})
}

func newServe() *cobra.Command {
	var listen, device string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Be the other end of ping, lat and bw",
		Long: `Be the other end of ping, lat and bw: for up to 16 clients at once, until interrupted.
Clients can access only memory that is allocated for their test. There is no authentication:
run it only on a trusted network.`,
		Example: `  rpcrdma verbs serve
  rpcrdma verbs serve --addr 10.0.0.1:18515 --device mlx5_0`,
		Args: cli.WantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := cli.Interruptible(cmd.Context())
			defer stop()
			if device != "" {
				if _, err := find(device); err != nil {
					return err
				}
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "listening on %s\n", l.Addr())
			err = serve(ctx, l, device, func(format string, args ...any) {
				fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
			})
			l.Close()
			return err
		},
	}
	cmd.Flags().StringVar(&listen, "addr", net.JoinHostPort("", strconv.Itoa(DefaultPort)), "listen at this `HOST:PORT`")
	addDevice(cmd, &device)
	return cmd
}

// find checks that the device exists.
func find(name string) (*provider.Device, error) {
	devices, err := provider.Devices()
	if err != nil {
		return nil, explain.Error(err)
	}
	i := slices.IndexFunc(devices, func(d provider.Device) bool { return d.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no device %q: 'rpcrdma devices' lists them", name)
	}
	return &devices[i], devices[i].Err
}

// options holds the flags of a test.
type options struct {
	device    string
	devices   []provider.Device
	transport string
	op        string
	sizes     []string
	depth     int
	count     int
	time      time.Duration
	events    bool
	histogram bool
	json      bool
}

// newTest returns ping, lat or bw.
func newTest(mode string) *cobra.Command {
	var o options
	short := map[string]string{
		"ping": "Check every byte, and print the time of each operation",
		"lat":  "Measure one operation after the other",
		"bw":   "Measure many operations at once",
	}
	cmd := &cobra.Command{
		Use: mode + " HOST[:PORT]", Short: short[mode],
		Example: map[string]string{
			"ping": "  rpcrdma verbs ping server\n  rpcrdma verbs ping --op read --size 1Mi -c 3 server",
			"lat":  "  rpcrdma verbs lat server\n  rpcrdma verbs lat --op write --size 8..64Ki --histogram server\n  rpcrdma verbs lat --transport ud --events server",
			"bw":   "  rpcrdma verbs bw --op write server\n  rpcrdma verbs bw --op read --size 4Ki..1Mi --depth 64 --json server",
		}[mode],
		Args: cli.WantArgs("HOST[:PORT]"), ValidArgsFunction: cli.Positions(connect.CompleteHost),
		RunE: func(cmd *cobra.Command, args []string) error {
			addr, err := cli.WithPort(args[0], DefaultPort, false)
			if err != nil {
				return cli.Usage(cmd, err)
			}
			steps, err := o.steps(mode)
			if err != nil {
				return cli.Usage(cmd, err)
			}
			ctx, stop := cli.Interruptible(cmd.Context())
			defer stop()
			if err := o.run(ctx, cmd.OutOrStdout(), mode, addr, steps); err != nil {
				return fmt.Errorf("verbs %s %s: %w", mode, addr, explain.Error(err))
			}
			return nil
		},
	}
	flags := cmd.Flags()
	size := "64"
	if mode == "bw" {
		size = "64Ki"
	}
	addDevice(cmd, &o.device)
	flags.StringVar(&o.transport, "transport", "rc", "`KIND` of the connection: rc, uc, or ud for datagrams")
	cli.CompleteFlag(cmd, "transport", cli.Words(transports...))
	flags.StringVar(&o.op, "op", "send", "`OPERATION`: send, write, write-imm, read, fetch-add or cmp-swap")
	cli.CompleteFlag(cmd, "op", cli.Words(ops...))
	flags.StringSliceVar(&o.sizes, "size", []string{size}, "`BYTES` of a message, a list or a range that doubles (atomic operations: 8)")
	flags.BoolVar(&o.events, "events", false, "wait for events instead of polling, at both ends")
	flags.BoolVar(&o.json, "json", false, "print one JSON object")
	switch mode {
	case "ping":
		flags.IntVarP(&o.count, "count", "c", 5, "make `N` operations")
	case "bw":
		flags.IntVar(&o.depth, "depth", 128, "keep `N` operations in flight")
		flags.DurationVar(&o.time, "time", time.Second, "measure each size for this `TIME`")
	case "lat":
		flags.DurationVar(&o.time, "time", time.Second, "measure each size for this `TIME`")
		flags.BoolVar(&o.histogram, "histogram", false, "draw a histogram of the times of each size")
	}
	return cmd
}

// steps returns what the client requests from the server, one after the other.
func (o *options) steps(mode string) (steps []hello, err error) {
	if mode != "ping" && o.time <= 0 {
		return nil, fmt.Errorf("--time is %v, want more than 0", o.time)
	}
	if mode == "ping" && o.count < 1 {
		return nil, fmt.Errorf("--count is %d, want 1 or more", o.count)
	}
	sizes, err := loadgen.ParseSizes(o.sizes, 1, maxSize)
	if err != nil {
		return nil, fmt.Errorf("--size %w", err)
	}
	if atomic(o.op) {
		sizes = []int{8}
	}
	for _, size := range sizes {
		h := hello{
			Protocol: protocol, Transport: o.transport, Op: o.op, Size: size, Depth: max(o.depth, 1), Events: o.events,
			Echo: mode != "bw" && o.op == "send",
		}
		if mode == "bw" {
			h.Depth = o.depth
		}
		if err := h.check(); err != nil {
			return nil, err
		}
		steps = append(steps, h)
	}
	return steps, nil
}

// A Row is the measurement of one size. Its JSON is stable.
type Row struct {
	Transport string        `json:"transport"`
	Op        string        `json:"op"`
	Size      int           `json:"size"`
	Depth     int           `json:"depth"`
	Seconds   float64       `json:"seconds"`
	Count     uint64        `json:"operations"`
	PerSecond float64       `json:"operations_per_s"`
	Bytes     float64       `json:"bytes_per_s"`
	Min       float64       `json:"min_us,omitempty"`
	P50       float64       `json:"p50_us,omitempty"`
	P99       float64       `json:"p99_us,omitempty"`
	P999      float64       `json:"p99.9_us,omitempty"`
	Max       float64       `json:"max_us,omitempty"`
	Histogram []loadgen.Bar `json:"histogram,omitempty"`

	hist *loadgen.Histogram
}

// times sets the statistics of sequential operations.
func (r *Row) times(h *loadgen.Histogram, d time.Duration) {
	r.hist, r.Histogram, r.Count = h, h.Bars(), h.N()
	r.Min, r.Max = loadgen.Micros(h.Min()), loadgen.Micros(h.Max())
	r.P50, r.P99, r.P999 = loadgen.Micros(h.Quantile(0.5)), loadgen.Micros(h.Quantile(0.99)), loadgen.Micros(h.Quantile(0.999))
	r.over(d)
}

func (r *Row) over(d time.Duration) {
	r.Seconds, r.PerSecond = d.Seconds(), rate(r.Count, d)
	r.Bytes = r.PerSecond * float64(r.Size)
}

// A Report is the output with --json.
type Report struct {
	Address string `json:"address"`
	Mode    string `json:"mode"`
	Events  bool   `json:"events"`
	Rows    []Row  `json:"rows"`
}

// run performs the tests and prints the results.
func (o *options) run(ctx context.Context, out io.Writer, mode, addr string, steps []hello) error {
	var err error
	if o.devices, err = provider.Devices(); err != nil {
		return err
	}
	var rows []Row
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	heads := map[string]string{"lat": "op\tbytes\tcount\tmin µs\tp50\tp99\tp99.9\tmax\t\n", "bw": "op\tbytes\tdepth\tcount\top/s\tMiB/s\t\n"}
	if !o.json {
		fmt.Fprint(table, heads[mode])
	}
	for _, h := range steps {
		each := func(i int, d time.Duration) {
			if !o.json {
				fmt.Fprintf(out, "%s of %d bytes, %d: %v\n", h.Op, h.Size, i+1, d.Round(100*time.Nanosecond))
			}
		}
		r, err := o.step(ctx, mode, addr, h, each)
		if err != nil {
			return err
		}
		rows = append(rows, *r)
		switch {
		case o.json:
		case mode == "bw":
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%.0f\t%.1f\t\n", r.Op, r.Size, r.Depth, r.Count, r.PerSecond, r.Bytes/(1<<20))
		case mode == "lat":
			fmt.Fprintf(table, "%s\t%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", r.Op, r.Size, r.Count, r.Min, r.P50, r.P99, r.P999, r.Max)
		default:
			fmt.Fprintf(out, "%d operations, min %.1f µs, median %.1f, max %.1f\n", r.Count, r.Min, r.P50, r.Max)
		}
	}
	if o.json {
		return cli.PrintJSON(out, Report{addr, mode, o.events, rows})
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range rows {
		if o.histogram {
			fmt.Fprintf(out, "\n%s of %d bytes\n", rows[i].Op, rows[i].Size)
			if err := rows[i].hist.Draw(out, 80); err != nil {
				return err
			}
		}
	}
	return nil
}
