package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"strconv"
	"syscall"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/transport"
)

// options are the flags of every command that uses a connection.
type options struct {
	providerOptions
	timeout time.Duration // 0: no limit
	verbose bool

	debugStalls bool
	json        bool
	rpcbind     string // HOST:PORT; empty: leave it alone
}

// addOptions adds the flags. meaning is the usage of --timeout.
func addOptions(cmd *cobra.Command, o *options, timeout time.Duration, meaning string) {
	addProviderOptions(cmd, &o.providerOptions)
	flags := cmd.Flags()
	o.timeout = timeout
	flags.Var(newLimit(&o.timeout), "timeout", meaning+"; none is no limit")
	flags.BoolVar(&o.debugStalls, "debug-stalls", false, "after a timeout, print the stacks of all goroutines")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "log to standard error")
	flags.BoolVar(&o.json, "json", false, "print one JSON object")
}

// logger returns a logger to w, as -v asks for.
func (o *options) logger(w io.Writer) *slog.Logger {
	level := slog.LevelError
	if o.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// errInterrupted is why work ends after SIGINT or SIGTERM.
var errInterrupted = errors.New("interrupted")

// versionValue is a version of RPC-over-RDMA as a flag.
type versionValue struct{ transport.Version }

func (v *versionValue) Type() string { return "VERSION" }
func (v *versionValue) completions() []string {
	return []string{transport.VersionAuto.String(), transport.Version1.String(), transport.Version2.String()}
}

func (v *versionValue) Set(s string) error {
	for _, known := range []transport.Version{transport.VersionAuto, transport.Version1, transport.Version2} {
		if s == known.String() {
			v.Version = known
			return nil
		}
	}
	return errors.New("want auto, 1 or 2")
}

// addVersionOption adds the option that chooses the version of RPC-over-RDMA.
func addVersionOption(cmd *cobra.Command, v *versionValue) {
	cmd.Flags().Var(v, "version", "RPC-over-RDMA `VERSION`: 1, 2, or auto, which is 2 if the server has it")
}

// A countValue is a number of connections as a flag.
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

// A portValue is a port as a flag. Zero is none.
type portValue struct{ port *int }

func (v portValue) Type() string { return "PORT" }

func (v portValue) String() string {
	if v.port == nil || *v.port == 0 {
		return ""
	}
	return strconv.Itoa(*v.port)
}

func (v portValue) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return errors.New("want 1 to 65535")
	}
	*v.port = int(n)
	return nil
}

// addConnectionsOption adds the option for several connections to one server.
func addConnectionsOption(cmd *cobra.Command, conns *int) {
	*conns = 1
	cmd.Flags().Var(countValue{conns}, "connections", "add connections, up to `N` in all, while one has too much to do")
}

// interruptible returns a context that ends with errInterrupted at the first SIGINT or
// SIGTERM. The second one ends the process.
func interruptible(parent context.Context) (ctx context.Context, stop func()) {
	signals, stopSignals := signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(parent)
	detach := context.AfterFunc(signals, func() {
		stopSignals()
		cancel(errInterrupted)
	})
	return ctx, func() {
		detach()
		stopSignals()
		cancel(nil)
	}
}

// newJSON returns an encoder of which a terminal executes nothing. All JSON that is printed comes from
// one, or from plainJSON.
func newJSON(w io.Writer) *json.Encoder { return json.NewEncoder(jsonWriter{w}) }

// printJSON prints v, indented.
func printJSON(w io.Writer, v any) error {
	e := newJSON(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// plainOutput returns a writer of JSON of which a terminal executes nothing.
func plainOutput(w io.Writer) io.Writer { return jsonWriter{w} }

// A jsonWriter writes what plainJSON makes of JSON. Each Write gets whole characters.
type jsonWriter struct{ io.Writer }

func (w jsonWriter) Write(p []byte) (int, error) {
	if _, err := w.Writer.Write(plainJSON(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// plainJSON returns JSON with escapes for the characters that printable escapes, too: encoding/json
// leaves DEL, the controls of U+0080 to U+009F and those of bidirectional text in strings, and there is
// nothing else that has them.
func plainJSON(text []byte) []byte {
	plain := text[:0:0]
	done := 0
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r >= 0x7f && !strconv.IsPrint(r) {
			plain = append(plain, text[done:i]...)
			for _, u := range utf16.AppendRune(nil, r) {
				plain = fmt.Appendf(plain, `\u%04x`, u)
			}
			done = i + n
		}
		i += n
	}
	if done == 0 {
		return text
	}
	return append(plain, text[done:]...)
}

// logInfo logs what the ends of a connection agreed on.
func logInfo(log *slog.Logger, i transport.ConnInfo) {
	log.Debug("connected", "provider", i.Provider, "local", i.LocalAddr, "remote", i.RemoteAddr, "version", i.Version,
		"private_data", i.PrivateData, "inline_send", i.InlineSend, "inline_recv", i.InlineRecv,
		"remote_invalidation", i.RemoteInvalidation)
}

// logStats logs the counters of a connection that are not zero.
func logStats(log *slog.Logger, s transport.Stats) {
	var args []any
	for c, n := range s.Counters() {
		if n != 0 {
			args = append(args, c.Name, n)
		}
	}
	log.Debug("statistics", args...)
}
