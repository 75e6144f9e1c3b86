package look

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
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
		Long: `Print changes in a directory of 'rpcrdma serve' and below it as they happen, whoever makes
them. The server calls this command over the command's own connection, so nothing is polled.

URL is rdma://HOST[:PORT]/PATH or nfs://HOST[:PORT]/PATH; the default port is 20049. PATH
must be a directory, and symbolic links are not followed. Each event is a line:

  created     a new name, or one moved here from outside of the directory
  removed     a name that was removed, or moved out of the directory
  renamed     FROM -> TO, both below the directory
  modified    the contents of a file
  attributes  mode, owner, times
  overflow    changes were lost: rescan this directory

Names are relative to the directory. Those of directories end in a slash, and those with
unprintable characters are in quotes. Changes that follow each other before the first one
is sent may be printed once.

Standard error reports when the watch begins, and when the connection is lost and comes
back, at most three times a minute. The command reconnects without limit. The server keeps
events for a minute meanwhile; after that, or after a restart of the server, an overflow is
printed. SIGINT and SIGTERM end the command with status 0.`,
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
				out: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), over: make(chan struct{}),
			}
			w.sub = notify.NewClient(notify.ClientConfig{
				Dir: strings.TrimPrefix(u.Path, "/"), Recursive: !flat, Events: w.events, Subscribed: w.subscribed,
			})
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

// A watcher is a watch command under way.
type watcher struct {
	*connect.Options
	url         *nfs.URL
	name        string // of the command with its URL, for messages
	counts      bool   // left limits the events
	out, stderr io.Writer
	client      *transport.Client
	sub         *notify.Client

	// mu comes after the lock of sub: callbacks of sub lock it.
	mu     sync.Mutex
	ready  bool   // subscribed once
	number uint64 // of the latest NOTIFY
	down   bool   // the connection is lost
	told   bool   // and it has been said
	hushed int    // losses that have not been said
	missed bool   // an overflow has not been printed
	spoke  connect.Pace
	left   int // events that are to be printed
	ended  bool
	err    error         // why it has ended
	over   chan struct{} // closed when it has
	lines  bytes.Buffer
}

func (w *watcher) run(ctx context.Context) error {
	log := w.Logger(w.stderr)
	cl, err := w.dial(ctx, &transport.ClientConfig{
		Config:      transport.Config{Logger: log},
		Callbacks:   []rpc.Program{w.sub.Program()},
		OnReconnect: func(cl *transport.Client) { w.again(ctx, cl) },
		KeepAlive:   cmp.Or(w.Timeout, -1),
	})
	if err == nil {
		w.client = cl
		connect.LogInfo(log, cl.Info())
		defer func() {
			cl.Close()
			connect.LogStats(log, cl.Stats())
		}()
		err = w.subscribe(ctx, cl)
	}
	if err == nil {
		err = w.wait(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w", w.name, explain.Error(refused(err)))
	}
	return nil
}

// A refusedError is a status that the notification program has answered.
type refusedError struct{ notify.Status }

func (e refusedError) Explain() string {
	text := explain.OneLine(e.Status)
	if e.Status == notify.StatusNoEnt {
		text += ", or none that may be watched: 'rpcrdma serve' with --allow, or as root without --squash none, tells nothing"
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
	err = w.ConnectURL(ctx, w.stderr, w.url, func(ctx context.Context, p fabric.Provider, addr string) error {
		c, err = transport.Dial(ctx, p, addr, cfg)
		return err
	})
	return c, err
}

// wait returns when there is nothing more to print.
func (w *watcher) wait(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			// The reader of the output may have stopped in the middle of a line.
			ended := make(chan struct{})
			go func() {
				w.end(nil)
				close(ended)
			}()
			select {
			case <-ended:
			case <-time.After(time.Second):
				return nil
			}
		case <-w.over:
			w.unsubscribe()
			return w.err
		case <-w.client.Done():
			w.end(w.client.Err())
		case <-tick.C:
			if w.mu.TryLock() {
				if w.client.Stats().OpenConns == 0 {
					w.lost()
				}
				w.catchUp()
				w.mu.Unlock()
			}
		}
	}
}

// end ends the command, with err unless it is nil.
func (w *watcher) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(err)
}

func (w *watcher) endLocked(err error) {
	if !w.ended {
		w.ended, w.err = true, err
		close(w.over)
	}
}

// say prints a line about the connection.
func (w *watcher) say(format string, args ...any) {
	fmt.Fprintf(w.stderr, "rpcrdma: %s: %s\n", w.name, fmt.Sprintf(format, args...))
}

// lost says once that the connection is lost, unless that was said too often. mu is held.
func (w *watcher) lost() {
	if w.down || w.ended {
		return
	}
	w.down, w.told = true, w.spoke.Allows()
	if !w.told {
		w.hushed++
		return
	}
	w.say("connection lost, trying to get it back")
}

// back says that the connection and the subscription are back, if it was said before
// that they were lost. same says that the server has kept what happened meanwhile. mu is held.
func (w *watcher) back(same bool) {
	w.down = false
	w.missed = w.missed || !same
	switch {
	case !w.told:
		return
	case w.missed:
		w.say("connected again, but the server has dropped this subscription: changes may have been missed")
		w.overflow()
	default:
		w.say("connected again, nothing is lost")
	}
	w.told = false
}

// overflow prints that changes have been missed. mu is held.
func (w *watcher) overflow() {
	w.missed = false
	w.print([]notify.Event{{Kind: notify.Overflow, IsDir: true}})
}

// catchUp prints what lost and back have held back, as soon as the pace allows. mu is held.
func (w *watcher) catchUp() {
	if w.hushed == 0 || w.told || w.ended || !w.spoke.Allows() {
		return
	}
	n := w.hushed
	w.hushed = 0
	switch {
	case w.down:
		w.told = true
		w.say("connection lost again and again, %d times more: trying to get it back", n)
	case w.missed:
		w.say("connected again, lost %d times more, and the server has dropped this subscription: changes may have been missed", n)
	default:
		w.say("connected again, lost %d times more, nothing is lost", n)
	}
	if w.missed {
		w.overflow()
	}
}

// again resumes the subscription on a new connection.
func (w *watcher) again(ctx context.Context, cl *transport.Client) {
	w.mu.Lock()
	if w.ready { // otherwise run tells
		w.lost()
	}
	w.mu.Unlock()
	err := w.subscribe(ctx, cl)
	if err == nil || ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return // the next connection will mend it, or the command ends
	}
	w.end(err)
}

// subscribe makes or resumes the subscription, within the timeout.
func (w *watcher) subscribe(ctx context.Context, cl *transport.Client) error {
	ctx, cancel := connect.Within(ctx, w.Timeout, func() error { return w.Stalled(w.stderr, "SUBSCRIBE to "+w.url.Path, cl) })
	defer cancel()
	return w.sub.Subscribe(ctx, cl)
}

// subscribed reports a subscription, before its first event is printed.
func (w *watcher) subscribed(again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !again {
		w.number = 0
	}
	if w.ready {
		w.back(again)
		return
	}
	w.ready = true
	fmt.Fprintf(w.stderr, "rpcrdma: watching %s\n", strings.TrimPrefix(w.name, "watch "))
}

// unsubscribe spares the server the time for which it would wait for us.
func (w *watcher) unsubscribe() {
	if w.client.Stats().OpenConns == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.sub.Unsubscribe(ctx, w.client) // the server finds out by itself
}

// events prints what a NOTIFY has.
func (w *watcher) events(number uint64, events []notify.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.number = number
	w.print(events)
}

// WatchJSON is an event as --json prints it.
type WatchJSON struct {
	Number    uint64 `json:"number"` // of the NOTIFY; 0: not from the server
	Event     string `json:"event"`
	Path      string `json:"path"`
	From      string `json:"from,omitempty"`
	Directory bool   `json:"directory"`
}

// print prints events with a single write, and ends the command after the last one that
// is wanted. mu is held.
func (w *watcher) print(events []notify.Event) {
	w.lines.Reset()
	last, why := w.format(events)
	if _, err := w.out.Write(w.lines.Bytes()); err != nil {
		last, why = true, err
	}
	if last {
		w.endLocked(why)
	}
}

// format adds events to lines. It returns whether the last one is among them, and why
// none is left. mu is held.
func (w *watcher) format(events []notify.Event) (last bool, why error) {
	for _, e := range events {
		switch {
		case w.ended:
			return false, nil
		case e.Kind == notify.Ended:
			return true, e.Status
		case w.JSON:
			line, err := json.Marshal(WatchJSON{w.number, e.Kind.String(), e.Path, e.From, e.IsDir})
			if err != nil {
				return true, err
			}
			w.lines.Write(append(cli.PlainJSON(line), '\n'))
		default:
			fmt.Fprintf(&w.lines, "%-10s  %s\n", e.Kind, e.Text())
		}
		if w.left--; w.counts && w.left == 0 {
			return true, nil
		}
	}
	return false, nil
}
