// Package look implements the commands that inspect and measure servers, devices and captures: ping, probe, bench,
// stats, devices, decode and watch.
package look

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/rpc/status"
)

// NewStats returns the command stats.
func NewStats() *cobra.Command {
	var o statsOptions
	cmd := &cobra.Command{
		Use:        "stats [HOST[:PORT]]",
		SuggestFor: []string{"status", "statistics", "metrics", "top"},
		Short:      "Print statistics of a server, or of this machine's kernel",
		Long: `Print statistics. HOST:PORT is the --metrics-addr of an 'rpcrdma serve', by default with port
9649. Without it, the command prints statistics of this machine's kernel: its NFS server, its
NFS client with all mounts, and the ports of its RDMA devices.

With --interval the command continues, and prints the counts of each interval, per second.
Values that are not counters, such as the number of open connections, are from the end of the
interval. On a terminal each sample replaces the previous one. A server's sample also shows
the connections, with their negotiated values and credits in use, and the calls in flight
with their age; q or Ctrl-C ends the command, any other key redraws. --plain prints the
samples one below the other, which is the default if the output is not a terminal. A server
samples itself once a second, so its interval is one second or more; the kernel's may be
shorter.

Figures that are zero are left out unless -v is given. With --json there is one object, or
one for each interval: time, seconds (of the interval), and sections, each with a name,
figures by name, levels by name for values that are not counters, and operations: name,
calls, failed, sent and received (bytes), waited and took (seconds, for all calls together).

--root reads /proc and /sys below another directory. For attributes of files see 'rpcrdma
stat'.`,
		Example: `  rpcrdma stats 127.0.0.1:9649
  rpcrdma stats --interval 1s 127.0.0.1:9649
  rpcrdma stats --json --interval 10s --count 6`,
		ValidArgsFunction: cli.Positions(cli.Words("127.0.0.1:9649")),
		Args:              cli.WantArgs("[HOST[:PORT]]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.interval < 0 || o.count < 0 || o.count > 0 && o.interval == 0 {
				return cli.Usage(cmd, errors.New("--interval is a time above 0, and --count a number of intervals"))
			}
			if len(args) == 1 && o.interval > 0 && o.interval < serverLooks {
				return cli.Usage(cmd, fmt.Errorf("--interval %v is too short: a server looks at itself once in %v", o.interval, serverLooks))
			}
			var source func(context.Context) (*Sample, error)
			if len(args) == 1 {
				addr, err := cli.WithPort(args[0], cli.DefaultMetricsPort, false)
				if err != nil {
					return cli.Usage(cmd, err)
				}
				source = func(ctx context.Context) (*Sample, error) { return o.fetch(ctx, addr) }
			} else {
				source = func(context.Context) (*Sample, error) { return kernelSample(os.DirFS(o.root), time.Now()) }
			}
			ctx, stop := cli.Interruptible(cmd.Context())
			defer stop()
			show := func(s *Sample) error { return o.print(s, cmd.OutOrStdout()) }
			if o.interval > 0 && !o.json && !o.plain {
				live, quit := context.WithCancel(ctx)
				defer quit()
				if v := openView(cmd.InOrStdin(), cmd.OutOrStdout(), quit); v != nil {
					defer v.close()
					ctx, o.again = live, v.again
					show = func(s *Sample) error { return v.show(&o, s) }
				}
			}
			if err := o.run(ctx, source, show); err != nil {
				return fmt.Errorf("stats: %w", err)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	o.timeout = 10 * time.Second
	flags.Var(connect.NewLimit(&o.timeout), "timeout", "give up after this time without an answer; none is no limit")
	flags.DurationVar(&o.interval, "interval", 0, "continue, and print the counts of each `TIME`, such as 1s")
	flags.IntVar(&o.count, "count", 0, "with --interval, end after `N` intervals")
	flags.StringVar(&o.root, "root", "/", "read /proc and /sys below `DIR`")
	cli.CompleteFlag(cmd, "root", cli.Directories)
	flags.BoolVarP(&o.all, "verbose", "v", false, "also print figures that are zero")
	flags.BoolVar(&o.plain, "plain", false, "print samples one below the other even on a terminal")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

// serverLooks is how often a server updates its status. It does not answer much more often.
const serverLooks = time.Second

type statsOptions struct {
	timeout, interval time.Duration
	count             int
	root              string
	all, json, plain  bool
	again             <-chan struct{} // asks a view to show the sample again; nil without a view
}

// A Sample holds the counts up to a time, or of an interval.
type Sample struct {
	Time     time.Time  `json:"time"`
	Seconds  float64    `json:"seconds,omitempty"` // length of the interval; 0: since the counters were zero
	Sections []*section `json:"sections"`

	now, was *status.Snapshot // for a server, at the end and at the start of the interval
}

// section holds the counters of one thing.
type section struct {
	Name    string             `json:"name"`
	Figures map[string]float64 `json:"figures,omitempty"` // counters
	Levels  map[string]float64 `json:"levels,omitempty"`  // values that may also fall
	Ops     []operation        `json:"operations,omitempty"`
}

// operation holds the counters of a procedure. Not every source has all of them.
type operation struct {
	Name     string  `json:"name"`
	Calls    float64 `json:"calls"`
	Failed   float64 `json:"failed,omitempty"`
	Sent     float64 `json:"sent,omitempty"`     // bytes
	Received float64 `json:"received,omitempty"` // bytes
	Waited   float64 `json:"waited,omitempty"`   // seconds, for all calls
	Took     float64 `json:"took,omitempty"`     // seconds, for all calls
}

// run shows samples until there have been enough.
func (o *statsOptions) run(ctx context.Context, source func(context.Context) (*Sample, error), show func(*Sample) error) error {
	take := func() (*Sample, error) {
		ctx, cancel := connect.Within(ctx, o.timeout, func() error { return fmt.Errorf("no answer in %v", o.timeout) })
		defer cancel()
		s, err := source(ctx)
		if cause := context.Cause(ctx); err != nil && ctx.Err() != nil && !errors.Is(err, cause) {
			err = cause
		}
		return s, err
	}
	last, err := take()
	if err != nil {
		if o.again != nil && ctx.Err() != nil {
			return nil
		}
		return err
	}
	if o.interval <= 0 {
		return show(last)
	}
	shown := last
	if o.again != nil { // show what there is until there is an interval
		if err := show(shown); err != nil {
			return err
		}
	}
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	for n := 0; ; {
		select {
		case <-tick.C:
		case <-o.again:
			if err := show(shown); err != nil {
				return err
			}
			continue
		case <-ctx.Done():
			return nil // the regular end
		}
		now, err := take()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		// A server updates its status once a second.
		if now.Time.Equal(last.Time) {
			continue
		}
		if now.Time.Before(last.Time) { // the server's clock was set back
			last = now
			continue
		}
		shown = now.since(last)
		if err := show(shown); err != nil {
			return err
		}
		if n++; n == o.count {
			return nil
		}
		last = now
	}
}

// since returns what has been counted since another sample. A counter that has decreased has been reset.
func (s *Sample) since(before *Sample) *Sample {
	old := make(map[string]*section)
	for _, sec := range before.Sections {
		old[sec.Name] = sec
	}
	d := &Sample{Time: s.Time, Seconds: s.Time.Sub(before.Time).Seconds(), now: s.now, was: before.now}
	for _, sec := range s.Sections {
		was := old[sec.Name]
		if was == nil {
			was = &section{}
		}
		now := &section{Name: sec.Name, Levels: sec.Levels, Figures: make(map[string]float64)}
		for name, n := range sec.Figures {
			now.Figures[name] = grown(n, was.Figures[name])
		}
		ops := make(map[string]operation)
		for _, op := range was.Ops {
			ops[op.Name] = op
		}
		for _, op := range sec.Ops {
			o := ops[op.Name]
			if op.Calls < o.Calls {
				o = operation{}
			}
			op.Calls, op.Failed = grown(op.Calls, o.Calls), grown(op.Failed, o.Failed)
			op.Sent, op.Received = grown(op.Sent, o.Sent), grown(op.Received, o.Received)
			op.Waited, op.Took = grown(op.Waited, o.Waited), grown(op.Took, o.Took)
			now.Ops = append(now.Ops, op)
		}
		d.Sections = append(d.Sections, now)
	}
	return d
}

func grown(now, before float64) float64 {
	if now < before {
		return now
	}
	return now - before
}

func (o *statsOptions) print(s *Sample, w io.Writer) error {
	if o.json {
		if o.interval > 0 {
			return cli.NewJSON(w).Encode(s) // one line for each interval
		}
		return cli.PrintJSON(w, s)
	}
	out := bufio.NewWriter(w)
	if s.Seconds > 0 {
		fmt.Fprintf(out, "%s, %.3g s\n", s.Time.UTC().Format("15:04:05 MST"), s.Seconds)
	}
	said := false
	for _, sec := range s.Sections {
		said = sec.print(out, s.Seconds, o.all) || said
	}
	switch {
	case len(s.Sections) == 0:
		fmt.Fprintln(out, "no NFS server, no NFS client and no RDMA devices have counted anything here")
	case !said:
		fmt.Fprintln(out, "nothing was counted")
	}
	return out.Flush()
}

// print prints a section, as rates if seconds is not zero. It reports whether the section had contents.
func (sec *section) print(out io.Writer, seconds float64, all bool) bool {
	by, unit := 1.0, ""
	if seconds > 0 {
		by, unit = seconds, "/s"
	}
	var lines strings.Builder
	w := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
	for _, name := range slices.Sorted(maps.Keys(sec.Levels)) {
		if n := sec.Levels[name]; n != 0 || all {
			fmt.Fprintf(w, "  %s\t%s\n", explain.Printable(name), amount(n))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sec.Figures)) {
		if n := sec.Figures[name]; n != 0 || all {
			fmt.Fprintf(w, "  %s\t%s%s\n", explain.Printable(name), amount(n/by), unit)
		}
	}
	w.Flush()
	ops := slices.DeleteFunc(slices.Clone(sec.Ops), func(op operation) bool { return op.Calls == 0 && !all })
	if len(ops) > 0 {
		slices.SortStableFunc(ops, func(a, b operation) int {
			return cmp.Or(cmp.Compare(b.Took, a.Took), cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
		})
		columns := []column{
			{"calls" + unit, func(op *operation) (float64, string) { return 1, amount(op.Calls / by) }},
			{"failed" + unit, func(op *operation) (float64, string) { return op.Failed, amount(op.Failed / by) }},
			{"mean", func(op *operation) (float64, string) { return op.Took, mean(op.Took, op.Calls) }},
			{"waited", func(op *operation) (float64, string) { return op.Waited, mean(op.Waited, op.Calls) }},
			{"sent" + unit, func(op *operation) (float64, string) { return op.Sent, amount(op.Sent / by) }},
			{"received" + unit, func(op *operation) (float64, string) { return op.Received, amount(op.Received / by) }},
		}
		columns = slices.DeleteFunc(columns, func(c column) bool { // empty in all rows
			return !slices.ContainsFunc(ops, func(op operation) bool { n, _ := c.cell(&op); return n != 0 })
		})
		fmt.Fprint(w, "  operation")
		for _, c := range columns {
			fmt.Fprint(w, "\t", c.title)
		}
		for i := range ops {
			fmt.Fprint(w, "\n  ", explain.Printable(ops[i].Name))
			for _, c := range columns {
				_, text := c.cell(&ops[i])
				fmt.Fprint(w, "\t", text)
			}
		}
		fmt.Fprintln(w)
		w.Flush()
	}
	if lines.Len() == 0 {
		if !all {
			return false
		}
		fmt.Fprintln(&lines, "  nothing")
	}
	fmt.Fprintf(out, "%s\n%s", explain.Printable(sec.Name), lines.String())
	return true
}

// column of a table of operations has a number for each operation, and a format.
type column struct {
	title string
	cell  func(*operation) (float64, string)
}

// amount formats a number without an exponent.
func amount(n float64) string {
	if n == math.Trunc(n) {
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	return strconv.FormatFloat(n, 'f', 1, 64)
}

// mean formats the average time of a call.
func mean(seconds, calls float64) string {
	if calls == 0 || seconds == 0 {
		return "-"
	}
	return status.Seconds(seconds / calls * 1e9).String()
}

// ---- our own server

// maxStats limits a server's response, in bytes.
const maxStats = 16 << 20

// fetch asks a server for its status.
func (o *statsOptions) fetch(ctx context.Context, addr string) (*Sample, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/debug/rpcrdma?format=json", nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true} // no proxy
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", addr, context.Cause(ctx))
		}
		if !errors.As(err, new(*net.OpError)) {
			return nil, fmt.Errorf("%s does not speak HTTP: give the --metrics-addr of 'rpcrdma serve', not its --addr", addr)
		}
		return nil, fmt.Errorf("%s: %w", addr, explain.Error(err))
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return nil, fmt.Errorf("%s is asked too much at the moment (%.60s): try again later", addr, explain.Printable(res.Status))
	}
	if kind := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || kind != "application/json" {
		return nil, fmt.Errorf("%s is not the --metrics-addr of 'rpcrdma serve': it answers %.60s, %.40q", addr, explain.Printable(res.Status), kind)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxStats+1))
	if err == nil && len(body) > maxStats {
		err = errors.New("the answer is too long")
	}
	if err != nil {
		return nil, err
	}
	var s status.Snapshot
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, fmt.Errorf("the answer of %s is not that of 'rpcrdma serve': %w", addr, err)
	}
	return statusSample(addr, &s), nil
}

// statusSample converts a server's status to a sample.
func statusSample(addr string, s *status.Snapshot) *Sample {
	t := &s.Totals
	server := &section{
		Name: "server " + addr,
		Levels: map[string]float64{
			"connections open": float64(t.Open), "calls executing": float64(t.Executing), "calls waiting for a reply": float64(t.Calling),
			"memory exposed": float64(t.ExposedBytes), "memory held": float64(t.HeldBytes),
		},
		Figures: map[string]float64{
			"connections opened": float64(t.Opened), "connections rejected": float64(t.Rejected), "messages refused": float64(t.Refused),
			"calls failed": float64(t.FailedCalls), "waits for a credit": float64(t.CreditStalls), "waits for memory": float64(t.MemoryStalls),
			"memory registered": float64(t.RegisteredBytes),
		},
	}
	for reason, n := range t.EndedBy {
		server.Figures["connections ended, "+reason] = float64(n)
	}
	for i := range s.Procedures {
		p := &s.Procedures[i]
		name := p.Program
		if p.Program != names.Other {
			name = fmt.Sprintf("%s %d %s", p.Program, p.Vers, p.Procedure)
		}
		if !p.Executed {
			name += ", to clients"
		}
		server.Ops = append(server.Ops, operation{
			Name: name, Calls: float64(p.Calls), Failed: float64(p.Failed), Took: p.Total.Duration().Seconds(),
			Waited: p.Waited.Duration().Seconds() * float64(p.Calls),
		})
	}
	transport, adapter := &section{Name: "transport", Figures: make(map[string]float64)}, &section{Name: "adapter", Figures: make(map[string]float64)}
	for name, n := range t.Counters {
		transport.Figures[strings.ReplaceAll(name, "_", " ")] = float64(n)
	}
	for name, n := range t.Adapter {
		adapter.Figures[strings.ReplaceAll(name, "_", " ")] = float64(n)
	}
	return &Sample{Time: s.Time, Sections: []*section{server, transport, adapter}, now: s}
}
