package main

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

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

func newWatch() *cobra.Command {
	var o options
	var flat bool
	var count int
	cmd := &cobra.Command{
		Use:   "watch URL",
		Short: "Print what changes in a directory of 'rpcrdma serve'",
		Long: `Print what changes in a directory of 'rpcrdma serve' and below it, as it happens,
whoever changes it. The server calls this command over the connection that the
command has made: nothing is asked for again and again.

URL is rdma://HOST[:PORT]/PATH or nfs://HOST[:PORT]/PATH, the port is 20049 unless it
says another. PATH must be a directory; no symbolic link is followed. Each event is a
line:

  created     a name is new, or has come from where nobody looks
  removed     a name is gone, or has gone to where nobody looks
  renamed     FROM -> TO, both below the directory
  modified    what is in a file
  attributes  mode, owner, times
  overflow    changes were missed here: look for yourself

Names are below the directory, those of directories end in a slash, and those with
unprintable characters stand in quotes. A change of what has been named already, and not
been sent yet, is not named again.

That it watches is said on standard error, and so are the loss of the connection and its
return, though not more than three times a minute when that goes on; it is made again by
itself, for as long as it takes. The server keeps what happens meanwhile for a minute. If
that was not enough, or the server is another one, an overflow is printed. At SIGINT or SIGTERM the command ends with status 0.`,
		Example: `  rpcrdma watch rdma://server/incoming
  rpcrdma watch --json rdma://server/ | jq -r 'select(.event == "created").path'
  rpcrdma watch --count 1 --no-recursive rdma://server/flags`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := o.parseWatchURL(cmd, args[0])
			if err != nil {
				return err
			}
			if count < 0 {
				return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("--count is %d, want 0 or more", count)}
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			w := &watcher{
				options: &o, url: u, name: "watch " + args[0], left: count, counts: count > 0, recursive: !flat,
				out: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), over: make(chan struct{}),
			}
			return w.run(ctx)
		},
	}
	addOptions(cmd, &o, defaultTimeout, "give up when the server has not answered for so long")
	addLookupOption(cmd, &o)
	flags := cmd.Flags()
	flags.Lookup("json").Usage = "print one JSON object for each event, on a line of its own"
	flags.BoolVar(&flat, "no-recursive", false, "leave out what is in the directories below")
	flags.IntVar(&count, "count", 0, "end after `N` events (default: at a signal)")
	return cmd
}

// parseWatchURL reads the URL argument.
func (o *options) parseWatchURL(cmd *cobra.Command, arg string) (*nfs.URL, error) {
	if rest, ok := strings.CutPrefix(arg, "rdma://"); ok {
		arg = "nfs://" + rest
	}
	u, err := o.parseURL(cmd, arg)
	if err != nil {
		return nil, &usageError{command: cmd.CommandPath(), err: errors.New(strings.ReplaceAll(err.Error(), "nfs://", "rdma://"))}
	}
	return u, nil
}

// A watcher is a watch command under way.
type watcher struct {
	*options
	url         *nfs.URL
	name        string // of the work, for messages
	recursive   bool
	counts      bool // left has a meaning
	out, stderr io.Writer
	client      *transport.Client

	mu     sync.Mutex // also while a subscription is made: events that come early wait
	id     notifyToken
	known  bool   // id is a subscription's
	number uint64 // of the latest NOTIFY
	down   bool   // the connection is lost
	told   bool   // and it has been said
	hushed int    // losses that have not been said
	missed bool   // an overflow has not been printed
	spoke  pace
	left   int // events that are to be printed
	ended  bool
	err    error         // why it has ended
	over   chan struct{} // closed when it has
	args   notifyArgs
	lines  bytes.Buffer
}

func (w *watcher) run(ctx context.Context) error {
	log := w.logger(w.stderr)
	// Calls of the server may be there before Dial has returned.
	w.mu.Lock()
	cfg := &transport.Config{
		Callbacks: []transport.Program{{
			Number: notifiedProgram, Low: notifiedVersion, High: notifiedVersion,
			Handler: transport.HandlerFunc(w.serve),
		}},
		OnReconnect: func(*transport.Client) { w.again(ctx) },
		KeepAlive:   cmp.Or(w.timeout, -1),
		Logger:      log,
	}
	cl, err := w.dial(ctx, cfg)
	if err == nil {
		w.client = cl
		logInfo(log, cl.Info())
		_, err = w.subscribe(ctx)
	}
	if err == nil {
		fmt.Fprintf(w.stderr, "rpcrdma: watching %s\n", strings.TrimPrefix(w.name, "watch "))
	}
	w.mu.Unlock()
	if cl != nil {
		defer func() {
			cl.Close()
			logStats(log, cl.Stats())
		}()
	}
	if err == nil {
		err = w.wait(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w", w.name, explained(err))
	}
	return nil
}

// dial makes the first connection.
func (w *watcher) dial(ctx context.Context, cfg *transport.Config) (*transport.Client, error) {
	var at stage
	ctx, cancel := within(ctx, w.timeout, func() error { return w.stalled(w.stderr, at.get(), nil) })
	defer cancel()
	if w.rpcbind != "" {
		at.set("asking the rpcbind at %s", w.rpcbindAt(w.url.Host))
		var err error
		if w.url.Port, err = w.lookupPort(ctx, w.url.Host, nfs.Program, nfs.Version); err != nil {
			return nil, withHint(ctx, err)
		}
	}
	at.set("connecting to %s", w.url.Addr())
	p, err := w.newClient(ctx, w.stderr, w.url.Addr())
	if err != nil {
		return nil, withHint(ctx, err)
	}
	at.set("connecting to %s over %s", w.url.Addr(), p.Name())
	c, err := transport.Dial(ctx, p, w.url.Addr(), cfg)
	if err != nil {
		return nil, withHint(ctx, err)
	}
	return c, nil
}

// wait returns when there is nothing more to print.
func (w *watcher) wait(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			// Somebody may have left it alone in the middle of a line.
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

// end is called when nothing more is to be printed.
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

// A pace is how often the same may be said: three times at once, then three times a minute.
type pace struct {
	since time.Time // when the first of those that count was said
}

const (
	paceBurst    = 3
	paceInterval = 20 * time.Second
)

// allows tells whether it may be said now, and counts that.
func (p *pace) allows() bool {
	now := time.Now()
	if oldest := now.Add(-paceBurst * paceInterval); p.since.Before(oldest) {
		p.since = oldest
	}
	next := p.since.Add(paceInterval)
	if next.After(now) {
		return false
	}
	p.since = next
	return true
}

// say tells what has become of the connection.
func (w *watcher) say(format string, args ...any) {
	fmt.Fprintf(w.stderr, "rpcrdma: %s: %s\n", w.name, fmt.Sprintf(format, args...))
}

// lost says that the connection is lost, once, unless that has been said too often.
// mu is held.
func (w *watcher) lost() {
	if w.down || w.ended {
		return
	}
	w.down, w.told = true, w.spoke.allows()
	if !w.told {
		w.hushed++
		return
	}
	w.say("connection lost, trying to get it back")
}

// back says that the connection, and the subscription with it, is there again, if it has said
// that they were lost. same tells that the server has kept what happened meanwhile. mu is held.
func (w *watcher) back(same bool) {
	w.down = false
	w.missed = w.missed || !same
	switch {
	case !w.told:
		return
	case w.missed:
		w.say("connected again, but the server has forgotten us: changes may have been missed")
		w.overflow()
	default:
		w.say("connected again, nothing is lost")
	}
	w.told = false
}

// overflow prints that changes have been missed. mu is held.
func (w *watcher) overflow() {
	w.missed = false
	w.print([]event{{kind: eventOverflow, isDir: true}})
}

// catchUp says, as soon as it may, what lost and back have not. mu is held.
func (w *watcher) catchUp() {
	if w.hushed == 0 || w.told || w.ended || !w.spoke.allows() {
		return
	}
	n := w.hushed
	w.hushed = 0
	switch {
	case w.down:
		w.told = true
		w.say("connection lost again and again, %d times more: trying to get it back", n)
	case w.missed:
		w.say("connected again, lost %d times more, and the server has forgotten us: changes may have been missed", n)
	default:
		w.say("connected again, lost %d times more, nothing is lost", n)
	}
	if w.missed {
		w.overflow()
	}
}

// again makes the subscription again on a new connection.
func (w *watcher) again(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client == nil || w.ended {
		return // the first connection was lost at once: run says so
	}
	w.lost()
	same, err := w.subscribe(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
		return // for the next connection to mend, or the end
	default:
		w.endLocked(err)
		return
	}
	w.back(same)
}

// subscribe makes the subscription, or has the server call us here from now on. It
// returns whether the subscription is the same as before. mu is held.
func (w *watcher) subscribe(ctx context.Context) (same bool, err error) {
	ctx, cancel := within(ctx, w.timeout, func() error { return w.stalled(w.stderr, "SUBSCRIBE to "+w.url.Path, w.client) })
	defer cancel()
	a := subscribeArgs{dir: strings.TrimPrefix(w.url.Path, "/"), recursive: w.recursive, again: w.known, old: w.id}
	call := transport.Call{
		Prog: notifyProgram, Vers: notifyVersion, Proc: notifySubscribe, Args: a.append(nil),
		NoResend: true, // on the next connection another call has to say so
	}
	if err := w.client.Call(ctx, &call); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return false, err
	}
	var r subscribeRes
	d := xdr.NewDecoder(call.Results)
	r.decode(&d)
	if err := d.End(); err != nil {
		return false, fmt.Errorf("the answer makes no sense: %w", err)
	}
	if r.status != notifyOK {
		return false, r.status
	}
	if !r.again {
		w.number = 0
	}
	w.id, w.known = r.id, true
	return r.again, nil
}

// unsubscribe spares the server what it would do for us for a while.
func (w *watcher) unsubscribe() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if w.client.Stats().OpenConns > 0 {
		_ = w.client.Call(ctx, &transport.Call{
			Prog: notifyProgram, Vers: notifyVersion, Proc: notifyUnsubscribe,
			Args: xdr.AppendFixedOpaque(nil, w.id[:]), NoResend: true,
		})
	}
}

// serve executes NOTIFY.
func (w *watcher) serve(_ context.Context, req *transport.Request, res *transport.Response) {
	if req.Proc != notifiedNotify {
		res.Fail(oncrpc.ProcUnavail)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	d := xdr.NewDecoder(req.Args)
	if w.args.decode(&d); d.End() != nil {
		res.Fail(oncrpc.GarbageArgs)
		return
	}
	if w.args.id != w.id || !w.known {
		res.Fail(oncrpc.SystemErr) // a subscription that we have no use for any more
		return
	}
	switch next := w.number + 1; {
	case w.args.number < next:
		return // it came before
	case w.args.number > next:
		w.print([]event{{kind: eventOverflow, isDir: true}})
	}
	w.number = w.args.number
	w.print(w.args.events)
}

// watchJSON is an event as it is printed with --json.
type watchJSON struct {
	Number    uint64 `json:"number"` // of the message that it came in; 0: of ourselves
	Event     string `json:"event"`
	Path      string `json:"path"`
	From      string `json:"from,omitempty"`
	Directory bool   `json:"directory"`
}

// print prints events, all at once. mu is held.
func (w *watcher) print(events []event) {
	w.lines.Reset()
	for i := range events {
		e := &events[i]
		if w.ended {
			break
		}
		if e.kind == eventEnded {
			w.endLocked(e.status)
			break
		}
		if w.json {
			line, err := json.Marshal(watchJSON{w.number, e.kind.String(), e.path, e.from, e.isDir})
			if err != nil {
				w.endLocked(err)
				break
			}
			w.lines.Write(append(line, '\n'))
		} else {
			fmt.Fprintf(&w.lines, "%-10s  %s\n", e.kind, e.text())
		}
		if w.left--; w.counts && w.left == 0 {
			w.endLocked(nil)
		}
	}
	if _, err := w.out.Write(w.lines.Bytes()); err != nil {
		w.endLocked(err)
	}
}

// text is what has happened to which names, for people.
func (e *event) text() string {
	name := func(path string) string {
		if path == "" {
			path = "."
		}
		if e.isDir {
			path += "/"
		}
		return printable(path)
	}
	switch e.kind {
	case eventRenamed:
		return name(e.from) + " -> " + name(e.path)
	case eventOverflow:
		return name(e.path) + " changes were missed here: look for yourself"
	}
	return name(e.path)
}
