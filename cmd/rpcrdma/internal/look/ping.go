package look

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// NewPing returns the command ping.
func NewPing() *cobra.Command {
	var o connect.Options
	var prog, vers uint32
	var version connect.VersionValue
	var count int
	cmd := &cobra.Command{
		Use:        "ping HOST[:PORT]",
		SuggestFor: []string{"null", "rpcping", "test"},
		Short:      "Time NULL calls to a server",
		Long: `Make NULL calls one after the other on one connection, and print how long they took.

Every program answers procedure 0 without doing any work. The first call is a warm-up and is
not counted. The default port is 20049.`,
		Example: `  rpcrdma ping server
  rpcrdma ping --rpcbind server
  rpcrdma ping -c 10000 --prog 0x20524442 --vers 1 server:20049`,
		ValidArgsFunction: cli.Positions(connect.CompleteHost),
		Args:              cli.WantArgs("HOST[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := o.CheckAddr(cmd, args[0])
			if err != nil {
				return err
			}
			if count < 1 {
				return cli.Usage(cmd, fmt.Errorf("--count is %d, want 1 or more", count))
			}
			ctx, stop := cli.Interruptible(cmd.Context())
			defer stop()
			log := o.Logger(cmd.ErrOrStderr())
			c, addr, err := o.DialAddr(ctx, cmd.ErrOrStderr(), at, prog, vers, &transport.ClientConfig{Config: transport.Config{Version: version.Version}})
			if err != nil {
				return fmt.Errorf("ping: %w", explain.Error(err))
			}
			defer c.Close()
			connect.LogInfo(log, c.Info())

			times := make([]time.Duration, 0, min(count, 1<<20))
			for i := -1; i < count; i++ {
				start := time.Now()
				if err := o.Null(ctx, cmd.ErrOrStderr(), c, prog, vers); err != nil {
					return fmt.Errorf("ping %s: %w", addr, explain.Error(err))
				}
				if i >= 0 {
					times = append(times, time.Since(start))
				}
			}
			connect.LogStats(log, c.Stats())
			return printPing(cmd, o.JSON, addr, c.Info(), prog, vers, times)
		},
	}
	connect.AddOptions(cmd, &o, 10*time.Second, "give up after this time without a connection, or without an answer")
	connect.AddLookupOption(cmd, &o)
	connect.AddVersionOption(cmd, &version)
	flags := cmd.Flags()
	flags.Uint32Var(&prog, "prog", nfs.Program, "`NUMBER` of the program to call: 100003 is NFS")
	flags.Uint32Var(&vers, "vers", nfs.Version, "`VERSION` of the program")
	flags.IntVarP(&count, "count", "c", 100, "make `N` calls")
	return cmd
}

// printPing prints the result of ping. It sorts times.
func printPing(cmd *cobra.Command, asJSON bool, addr string, info rpc.ConnInfo, prog, vers uint32, times []time.Duration) error {
	slices.Sort(times)
	n := len(times)
	// The p99 is the shortest time that 99 % of the calls did not exceed.
	lowest, median, p99, highest := times[0], times[(n-1)/2], times[(n*99+99)/100-1], times[n-1]
	out := cmd.OutOrStdout()
	if asJSON {
		us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
		return cli.PrintJSON(out, struct {
			Address  string  `json:"address"`
			Provider string  `json:"provider"`
			Program  uint32  `json:"program"`
			Version  uint32  `json:"version"`
			RDMA     uint32  `json:"rdma_version"`
			Calls    int     `json:"calls"`
			Min      float64 `json:"min_us"`
			Median   float64 `json:"median_us"`
			P99      float64 `json:"p99_us"`
			Max      float64 `json:"max_us"`
		}{addr, info.Provider, prog, vers, info.Version, n, us(lowest), us(median), us(p99), us(highest)})
	}
	name, _ := dump.Names(prog, vers, 0)
	if name == "" {
		name = fmt.Sprintf("program %d", prog)
	}
	micro := func(d time.Duration) time.Duration { return d.Round(100 * time.Nanosecond) }
	calls := "calls"
	if n == 1 {
		calls = "call"
	}
	_, err := fmt.Fprintf(out, "%d NULL %s to %s version %d at %s over %s\nmin %v, median %v, p99 %v, max %v\n",
		n, calls, name, vers, addr, info.Provider, micro(lowest), micro(median), micro(p99), micro(highest))
	return err
}
