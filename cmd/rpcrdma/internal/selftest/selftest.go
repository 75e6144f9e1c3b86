package selftest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// session tests one device.
type session struct {
	open    opener
	addr    string // of the device
	adapter Adapter
	device  string // device name for verbs; "" for iwarp
	limits  fabrictest.Limits
	names   []string // names that the report must not contain
	groups  []string // groups of fabrictest; nil: all
}

// New returns the command selftest.
func New() *cobra.Command {
	var output string
	var load time.Duration
	var groups []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:        "selftest DEVICE [HOST:PORT]",
		SuggestFor: []string{"check", "verify", "conformance"},
		Short:      "Try out an RDMA adapter, and write a report",
		Long: `Test an RDMA adapter, and write a report to a file. The project has few adapters: please
attach the file to an issue at https://github.com/rpcrdma/rpcrdma/issues. The tables of
supported adapters are made from such files.

DEVICE is a name that 'rpcrdma devices' prints, or iwarp, which needs no adapter. Both ends
are in this process, so one adapter is enough. With HOST:PORT, calls also go to 'rpcrdma
serve' on another machine.

The test covers each rule that this project relies on, including attacks on memory; the verbs
that programs of package ibv use; calls, and calls under load for --time, after which no
resources may be left over. It takes about two minutes and moves some GiB.

The report is a JSON file without addresses, and without the names of the machine and of its
devices. The exit status is 0 if nothing failed.`,
		Example: `  rpcrdma selftest mlx5_0
  rpcrdma selftest --time 5s --output siw.json siw0
  rpcrdma selftest irdma0 server:20049`,
		Args: cobra.MatchAll(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: cli.Positions(func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			devices, _ := provider.Devices()
			return append(provider.Usable(devices), provider.IWARP), cobra.ShellCompDirectiveNoFileComp
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if load <= 0 {
				return cli.Usage(cmd, fmt.Errorf("--time is %v, want more than 0", load))
			}
			ctx, stop := cli.Interruptible(cmd.Context())
			defer stop()
			s, err := newSession(args[0])
			if err != nil {
				return err
			}
			s.groups = groups
			peer := ""
			if len(args) == 2 {
				peer = args[1]
				s.names = append(s.names, cli.BareHost(peer))
			}
			progress := io.Discard
			if f, ok := cmd.ErrOrStderr().(*os.File); ok && term.IsTerminal(int(f.Fd())) {
				progress = f
			}
			r, err := s.run(ctx, progress, peer, load)
			if err != nil {
				return err
			}
			return finish(cmd, r, output, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&output, "output", "o", "", "write the report to `FILE` (default: selftest-DRIVER-DATE.json)")
	cli.CompleteFile(cmd, "output")
	flags.DurationVar(&load, "time", time.Minute, "make calls under load for this `TIME`")
	flags.StringSliceVar(&groups, "rules", nil, "test only the rules of `GROUPS`, such as Memory,Window")
	flags.BoolVar(&asJSON, "json", false, "print the report as well, and nothing else")
	return cmd
}

// newSession opens a session for the device called name.
func newSession(name string) (*session, error) {
	host, _ := os.Hostname()
	s := &session{names: []string{host}}
	if name == provider.IWARP {
		s.addr, s.adapter = "127.0.0.1", Adapter{Driver: provider.IWARP, Transport: "iwarp"}
		s.limits = fabrictest.Limits{ClientFirst: true, LocalCompletion: true, CrossedInvalidation: true}
		s.open = func() (fabric.Provider, func() (int, int, int), error) {
			p := iwarp.New(iwarp.Config{})
			return p, func() (int, int, int) { l := p.OpenObjects(); return l.Conns, l.MRs, l.MWs }, nil
		}
		return s, nil
	}
	devices, err := provider.Devices()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(devices, func(d provider.Device) bool { return d.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no device %q: 'rpcrdma devices' lists them", name)
	}
	d := &devices[i]
	if d.Err != nil {
		return nil, fmt.Errorf("%s cannot be used: %w", name, d.Err)
	}
	s.device, s.addr = name, d.Addresses[0].Address
	s.adapter = Adapter{Driver: d.Driver, Transport: d.Transport, Firmware: d.Firmware, MTU: d.Ports[0].MTU, LinkLayer: d.Ports[0].LinkLayer, Limits: d.Capabilities}
	s.names = append(s.names, name)
	for _, a := range d.Addresses {
		s.names = append(s.names, a.NetworkDevice)
	}
	// Users of package fabric must tolerate these limits. None of them affects memory protection.
	s.limits = fabrictest.Limits{
		Shortage: fabrictest.ShortageWaits, PaddedPrivateData: true, LocalCompletion: true, CoarseStatus: true, CoarseEnd: true, LateReads: true,
	}
	if d.Transport == "iwarp" {
		s.limits.Shortage, s.limits.ClientFirst = fabrictest.ShortageEnds, true
	}
	s.open = func() (fabric.Provider, func() (int, int, int), error) {
		p, err := rdmacm.New(rdmacm.Config{})
		if err != nil {
			return nil, nil, err
		}
		return p, func() (int, int, int) { l := p.OpenObjects(); return l.Conns, l.MRs, l.MWs }, nil
	}
	return s, s.identify()
}

// run performs all checks in order.
func (s *session) run(ctx context.Context, progress io.Writer, peer string, load time.Duration) (*Report, error) {
	// The checks of fabrictest are written as tests, which read the flags of tests.
	testing.Init()
	if !flag.Parsed() {
		if err := flag.CommandLine.Parse(nil); err != nil {
			return nil, err
		}
	}
	r := &Report{Schema: Schema, Date: today(), Version: version(), Adapter: s.adapter, Peer: peer != "", System: System{
		Kernel: kernel(), Go: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(),
	}}
	var all []check
	var live func() (int, int, int)
	rules := fabrictest.Checks(fabrictest.Config{
		New: func(t testing.TB) fabric.Provider {
			p, l, err := s.open()
			if err != nil {
				t.Fatal(err)
			}
			live = l
			return p
		},
		Addr: net.JoinHostPort(s.addr, "0"), Timeout: time.Minute, Bulk: 4 << 20, Limits: s.limits, Groups: s.groups,
		Live: func() (int, int, int) { return live() },
	})
	for _, c := range rules {
		all = append(all, check{"rules/" + c.Name, func(t *trial) { c.Run(t) }})
	}
	all = append(all, s.verbsChecks()...)
	all = append(all, s.callChecks("calls/", "", load)...)
	if peer != "" {
		all = append(all, s.callChecks("calls to the peer/", peer, load)...)
	}
	for i, c := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		fmt.Fprintf(progress, "\r\x1b[K%d of %d: %s", i+1, len(all), c.name)
		res := try(ctx, c)
		r.Results = append(r.Results, res)
	}
	fmt.Fprint(progress, "\r\x1b[K")
	r.scrub(s.names)
	return r, nil
}

// errFailed is the error of a self-test in which a check failed.
var errFailed = errors.New("not all checks have passed")

// finish writes the report and prints a summary.
func finish(cmd *cobra.Command, r *Report, output string, asJSON bool) error {
	if output == "" {
		output = fmt.Sprintf("selftest-%s-%s.json", r.Adapter.Driver, r.Date)
	}
	b, err := r.encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(output, b, 0o644); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if asJSON {
		if err := cli.PrintJSON(out, r); err != nil {
			return err
		}
	} else {
		for _, res := range r.Results {
			if res.Outcome == Failed {
				fmt.Fprintf(out, "failed: %s: %s\n", res.Name, res.Why)
			}
			if strings.HasPrefix(res.Name, "calls") && res.Outcome == Passed {
				fmt.Fprintf(out, "%-36s %s\n", res.Name, figures(res.Figures))
			}
		}
		fmt.Fprintf(out, "%d passed, %d failed, %d skipped: %s\n", r.count(Passed), r.count(Failed), r.count(Skipped), output)
	}
	if n := r.count(Failed); n > 0 {
		return fmt.Errorf("%w: %d failed", errFailed, n)
	}
	return nil
}

// figures formats the figures of a check on one line.
func figures(m map[string]float64) string {
	var parts []string
	for _, name := range []string{"calls_per_s", "p50_us", "p99_us", "mib_per_s", "given_up"} {
		if v, ok := m[name]; ok {
			precision := 1
			if v >= 100 {
				precision = 0
			}
			parts = append(parts, fmt.Sprintf("%s %.*f", strings.ReplaceAll(name, "_per_s", "/s"), precision, v))
		}
	}
	return strings.Join(parts, "  ")
}

// kernel returns the kernel release.
func kernel() string {
	out, err := exec.Command("uname", "-sr").Output()
	if err != nil {
		return runtime.GOOS
	}
	return strings.TrimSpace(string(out))
}

// version returns the version of this program.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
