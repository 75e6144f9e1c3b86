package look

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
	"github.com/rpcrdma/rpcrdma/transport"
)

// NewWatch returns the command watch.
func NewWatch() *cobra.Command {
	var o connect.Options
	var flat bool
	var count int
	cmd := &cobra.Command{
		Use:        "watch URL",
		SuggestFor: []string{"monitor", "inotify", "tail"},
		Short:      "Print changes in a directory of 'rpcrdma serve'",
		Long: `Print changes in and below a directory of 'rpcrdma serve' as they happen, whatever causes
them. The server sends them over the command's own connection, so nothing is polled.

URL is rdma://HOST[:PORT]/PATH or nfs://HOST[:PORT]/PATH; the default port is 20049. PATH
must be a directory, and symbolic links are not followed. Each event is a line:

  created     a new name, or one moved here from outside of the directory
  removed     a name that was removed, or moved out of the directory
  renamed     FROM -> TO, both below the directory
  modified    the contents of a file
  attributes  mode, owner, times
  overflow    changes were lost: rescan this directory

Names are relative to the directory. Names of directories end in a slash, and names with
unprintable characters are in quotes. Repeated changes may be printed once if they happen
before the first is sent.

A file that 'rpcrdma put' or a similar command copies there is reported as created when it is
complete. A server that runs as root reports only what the user of the command may list.

The command reports on standard error when the watch begins, and when the connection is lost
and comes back. It reconnects without limit, and then prints an overflow. SIGINT and SIGTERM
end the command with status 0.`,
		Example: `  rpcrdma watch rdma://server/incoming
  rpcrdma watch --json rdma://server/ | jq -r 'select(.event == "created").path'
  rpcrdma watch --count 1 --no-recursive rdma://server/flags`,
		ValidArgsFunction: cli.Positions(remote.CompleteURL),
		Args:              cli.WantArgs("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := o.ParseURL(cmd, args[0], "rdma", "nfs")
			if err != nil {
				return err
			}
			if count < 0 {
				return cli.Usage(cmd, fmt.Errorf("--count is %d, want 0 or more", count))
			}
			ctx, stop := cli.Interruptible(cmd.Context())
			defer stop()
			w := &watcher{
				Options: &o, url: u, name: "watch " + args[0], left: count, counts: count > 0,
				args: notify.WatchArgs{Dir: strings.TrimPrefix(u.Path, "/"), Recursive: !flat},
				out:  cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(),
			}
			return w.run(ctx)
		},
	}
	connect.AddOptions(cmd, &o, remote.DefaultTimeout, "give up after this time without an answer from the server")
	connect.AddLookupOption(cmd, &o)
	flags := cmd.Flags()
	flags.Lookup("json").Usage = "print each event as a JSON object on a line of its own"
	flags.BoolVar(&flat, "no-recursive", false, "ignore subdirectories")
	flags.IntVar(&count, "count", 0, "end after `N` events (default: run until a signal)")
	return cmd
}

// watcher is a running watch command.
type watcher struct {
	*connect.Options
	url         *nfs.URL
	name        string // the command with its URL, for messages
	args        notify.WatchArgs
	out, stderr io.Writer

	ready atomic.Bool // the watch has begun

	// Owned by the goroutine that prints events.
	counts bool // left limits the events
	left   int  // events still to be printed

	// Owned by the goroutine that waits for it.
	told  bool // the loss of the connection was reported
	spoke connect.Pace
}

func (w *watcher) run(ctx context.Context) error {
	log := w.Logger(w.stderr)
	cl, err := w.dial(ctx, &transport.ClientConfig{
		Config: transport.Config{Logger: log}, Streams: true, KeepAlive: cmp.Or(w.Timeout, -1),
	})
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return w.failed(err)
	}
	connect.LogInfo(log, cl.Info())
	defer func() {
		cl.Close()
		connect.LogStats(log, cl.Stats())
	}()
	over := make(chan error, 1)
	go func() { over <- w.watch(ctx, cl) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-over:
			if err == nil || ctx.Err() != nil {
				return nil
			}
			return w.failed(err)
		case <-ctx.Done():
			select {
			case <-over:
			case <-time.After(time.Second): // the reader of the output may have stopped in the middle of a line
			}
			return nil
		case <-tick.C:
			w.report(cl.Stats().OpenConns > 0)
		}
	}
}

func (w *watcher) failed(err error) error {
	return fmt.Errorf("%s: %w", w.name, explain.Error(refused(err)))
}

// refusedError is a status returned by the notification program.
type refusedError struct{ notify.Status }

func (e refusedError) Explain() string {
	text := explain.OneLine(e.Status)
	switch e.Status {
	case notify.StatusNoEnt:
		text += ", or its export is not for this host: see --allow of 'rpcrdma serve'"
	case notify.StatusAcces:
		text += remote.OfRoot()
	}
	return text
}

// refused returns a status of the notification program as a refusedError.
func refused(err error) error {
	if status, ok := errors.AsType[notify.Status](err); ok {
		return refusedError{status}
	}
	return err
}

// dial makes the first connection.
func (w *watcher) dial(ctx context.Context, cfg *transport.ClientConfig) (c *transport.Client, err error) {
	err = w.ConnectURL(ctx, w.stderr, w.url, func(ctx context.Context, p fabric.Provider, addr string, tls *transport.TLS) error {
		cfg.TLS = tls
		c, err = transport.Dial(ctx, p, addr, cfg)
		return err
	})
	return c, err
}

// watch prints events until there is nothing more to print.
func (w *watcher) watch(ctx context.Context, cl *transport.Client) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if w.Timeout > 0 {
		late := time.AfterFunc(w.Timeout, func() {
			if !w.ready.Load() {
				cancel(w.Stalled(w.stderr, "WATCH of "+w.url.Path, cl))
			}
		})
		defer late.Stop()
	}
	client := notify.NewNotifyV1Client(cl)
	client.Cred = oncrpc.ProcessAuthSys().Auth()
	again := false // the watch is about to start again on another connection
	for e, err := range client.Watch(ctx, &w.args) {
		gap, isGap := errors.AsType[*stream.GapError](err)
		switch {
		case isGap && gap.Cause != nil:
			again = true
			continue
		case isGap: // the server has dropped events
			e = overflow
		case err != nil:
			return cmp.Or(context.Cause(ctx), err)
		case e.Kind == notify.Watching && again:
			// From here on every change is reported, so a rescan that starts now misses nothing.
			again, e = false, overflow
		case e.Kind == notify.Watching:
			w.ready.Store(true)
			fmt.Fprintf(w.stderr, "rpcrdma: watching %s\n", strings.TrimPrefix(w.name, "watch "))
			continue
		case e.Kind == notify.Ended:
			return e.Status
		}
		if err := w.print(e); err != nil {
			return err
		}
		if w.left--; w.counts && w.left == 0 {
			return nil
		}
	}
	return errors.New("the server has ended the watch")
}

// overflow asks the reader of the output to rescan the directory. Immutable.
var overflow = notify.Event{Kind: notify.Overflow, IsDir: true}

// report prints, at a limited rate, that the connection was lost or that it is back.
func (w *watcher) report(up bool) {
	switch {
	case !w.ready.Load():
	case !up && !w.told && w.spoke.Allows():
		w.told = true
		w.say("connection lost, trying to get it back")
	case up && w.told:
		w.told = false
		w.say("connected again: changes may have been missed")
	}
}

// say prints a line about the connection.
func (w *watcher) say(text string) { fmt.Fprintf(w.stderr, "rpcrdma: %s: %s\n", w.name, text) }

// WatchJSON is an event for --json.
type WatchJSON struct {
	Event     string `json:"event"`
	Path      string `json:"path"`
	From      string `json:"from,omitempty"`
	Directory bool   `json:"directory"`
}

// print prints an event in a single write.
func (w *watcher) print(e notify.Event) error {
	line := fmt.Appendf(nil, "%-10s  %s\n", e.Kind, e.Text())
	if w.JSON {
		text, err := json.Marshal(WatchJSON{e.Kind.String(), e.Path, e.From, e.IsDir})
		if err != nil {
			return err
		}
		line = append(cli.PlainJSON(text), '\n')
	}
	_, err := w.out.Write(line)
	return err
}
