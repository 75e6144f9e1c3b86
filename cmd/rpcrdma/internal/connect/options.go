package connect

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Options holds the flags of every command that uses a connection.
type Options struct {
	providerOptions
	Timeout time.Duration // 0: no limit
	Verbose bool          // log to standard error

	debugStalls bool
	JSON        bool   // print JSON
	Rpcbind     string // HOST:PORT; empty: not used
}

// AddOptions adds the flags of a client. meaning is the help text of --timeout.
func AddOptions(cmd *cobra.Command, o *Options, timeout time.Duration, meaning string) {
	AddServerOptions(cmd, o, timeout, meaning)
	cmd.Flags().StringVar(&o.shm, "shm", "",
		"connect over shared memory to the server of this machine with this `SOCKET`, whatever host the address names")
	cli.CompleteFile(cmd, "shm")
}

// AddServerOptions adds the flags of a server.
func AddServerOptions(cmd *cobra.Command, o *Options, timeout time.Duration, meaning string) {
	addProviderOptions(cmd, o)
	flags := cmd.Flags()
	o.Timeout = timeout
	flags.Var(NewLimit(&o.Timeout), "timeout", meaning+"; none is no limit")
	flags.BoolVar(&o.debugStalls, "debug-stalls", false, "after a timeout, print the stacks of all goroutines")
	flags.BoolVarP(&o.Verbose, "verbose", "v", false, "log to standard error")
	flags.BoolVar(&o.JSON, "json", false, "print one JSON object")
}

// Logger returns a logger to w, as -v asks for.
func (o *Options) Logger(w io.Writer) *slog.Logger {
	level := slog.LevelError
	if o.Verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// VersionValue is a flag value for a version of RPC-over-RDMA.
type VersionValue struct{ transport.Version }

func (v *VersionValue) Type() string { return "VERSION" }

// Completions returns the versions.
func (v *VersionValue) Completions() []string {
	return []string{transport.VersionAuto.String(), transport.Version1.String(), transport.Version2.String()}
}

func (v *VersionValue) Set(s string) error {
	for _, known := range []transport.Version{transport.VersionAuto, transport.Version1, transport.Version2} {
		if s == known.String() {
			v.Version = known
			return nil
		}
	}
	return errors.New("want auto, 1 or 2")
}

// AddVersionOption adds the option that chooses the version of RPC-over-RDMA.
func AddVersionOption(cmd *cobra.Command, v *VersionValue) {
	cmd.Flags().Var(v, "version", "RPC-over-RDMA `VERSION`: 1, 2, or auto, which is 2 if the server supports it")
}

// countValue is a flag value for a number of connections.
type countValue struct{ n *int }

func (v countValue) Type() string { return "N" }

func (v countValue) String() string {
	if v.n == nil {
		return ""
	}
	return strconv.Itoa(*v.n)
}

func (v countValue) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > transport.MaxConnections {
		return fmt.Errorf("want 1 to %d", transport.MaxConnections)
	}
	*v.n = n
	return nil
}

// AddConnectionsOption adds the option for several connections to one server.
func AddConnectionsOption(cmd *cobra.Command, conns *int) {
	*conns = 1
	cmd.Flags().Var(countValue{conns}, "connections", "add connections, up to `N` in all, while one is overloaded")
}

// LogInfo logs what the peers of a connection agreed on.
func LogInfo(log *slog.Logger, i rpc.ConnInfo) {
	log.Debug("connected", "provider", i.Provider, "local", i.LocalAddr, "remote", i.RemoteAddr, "version", i.Version,
		"private_data", i.PrivateData, "inline_send", i.InlineSend, "inline_recv", i.InlineRecv,
		"remote_invalidation", i.RemoteInvalidation)
}

// LogStats logs the non-zero counters of a connection.
func LogStats(log *slog.Logger, s rpc.Stats) {
	var args []any
	for c, n := range s.Counters() {
		if n != 0 {
			args = append(args, c.Name, n)
		}
	}
	log.Debug("statistics", args...)
}

// limitValue is a flag value for a time limit. Zero means no limit.
type limitValue struct{ d *time.Duration }

// NewLimit returns a flag value for a time limit.
func NewLimit(d *time.Duration) pflag.Value { return limitValue{d} }

func (v limitValue) Type() string { return "TIME" }

func (v limitValue) String() string {
	if v.d == nil || *v.d == 0 {
		return "none"
	}
	return v.d.String()
}

func (v limitValue) Completions() []string { return []string{"none", v.String()} }

func (v limitValue) Set(s string) error {
	if s == "none" {
		*v.d = 0
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return errors.New("want a time such as 90s or 2m, or none")
	}
	*v.d = d
	return nil
}
