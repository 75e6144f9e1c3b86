package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// How a copy survives a restart of its server: the transport reconnects and resends calls without a reply, and package
// nfs writes data again that the server has lost before COMMIT. This file adds messages, a time limit, and the
// recognition of calls that the old server executed and the new one answers.

// RetryHelp explains --retry in the help of the commands that have it.
const RetryHelp = `With --retry, the copy survives a restart of the server if the server's file
handles do, as with 'rpcrdma serve --state'. The command also waits that long for a server
that is down at the beginning. A server that is connected but silent ends the copy after the
longer of --retry and --timeout.

`

// AddRetryOption adds the option for the time that a lost connection may take to come back.
func AddRetryOption(cmd *cobra.Command, o *Options) {
	cmd.Flags().Var(connect.NewLimit(&o.retry), "retry", "keep trying for this long to reach the server, then continue")
}

// Constants for connections with --retry.
const (
	retryPause     = time.Second      // longest pause between two attempts
	retryKeepAlive = 10 * time.Second // a server that disappears silently is noticed after two of them
	retryTick      = 100 * time.Millisecond
)

// retrying returns the configuration of a connection with --retry.
func retrying() *transport.ClientConfig {
	return &transport.ClientConfig{MaxPause: retryPause, KeepAlive: retryKeepAlive}
}

// first makes the first connection. --retry also waits for it, because the server may just be starting. Other errors do
// not go away with time.
func (o *Options) first(ctx context.Context, cmd *cobra.Command, r *Target, u *nfs.URL, dial connect.Dialer) error {
	end := time.Now().Add(o.retry)
	for told := false; ; {
		err := o.ConnectURL(ctx, cmd.ErrOrStderr(), u, dial)
		if err == nil && told {
			r.Notice(cmd.ErrOrStderr(), o.JSON, "connected")
		}
		if left := time.Until(end); err == nil || left <= 0 || ctx.Err() != nil || !mayCome(err) {
			return err
		}
		if !told {
			told = true
			r.Notice(cmd.ErrOrStderr(), o.JSON, fmt.Sprintf("%s: trying for %v to get a connection", explain.NoConnection(err), o.retry))
		}
		pause := time.NewTimer(min(retryPause, time.Until(end)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return err
		}
	}
}

// mayCome reports whether a connection that failed may succeed later.
func mayCome(err error) bool {
	if errors.As(err, new(*connect.StallError)) || errors.As(err, new(*transport.BusyError)) {
		return true
	}
	dial, ok := errors.AsType[*transport.DialError](err)
	if !ok || errors.As(err, new(*iwarp.StrangerError)) {
		return false
	}
	if _, ended := explain.Ended(dial.Err); ended || explain.NoAnswer(dial.Err) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	switch errno, _ := errors.AsType[syscall.Errno](dial.Err); errno {
	case syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN, syscall.ETIMEDOUT:
		return true
	}
	return false
}

// awayError is the error for a server that did not come back.
type awayError struct {
	limit  time.Duration
	reason error // from the last attempt
}

func (e *awayError) Error() string {
	return fmt.Sprintf("connection lost, and not made again for %v: %s", e.limit, explain.Text(e.reason))
}

// patience decides when a wait with --retry has taken too long.
type patience struct {
	retry time.Duration // limit without a connection
	limit time.Duration // limit without a message; 0: none

	down      bool
	since     time.Time // time of the last change, down or up
	heard     uint64
	heardAt   time.Time
	begun     bool
	lost      bool // the connection was lost since the last step
	recovered bool // it was reestablished since the last step
}

// verdict is a decision of a patience.
type verdict int

const (
	goOn verdict = iota
	away         // the connection is down
	silent
)

// settle is how long a new connection may always be silent.
const settle = 5 * time.Second

// step examines the counters of a connection on which pending calls have no reply.
func (p *patience) step(now time.Time, s rpc.Stats, pending int) verdict {
	down := s.OpenConns == 0
	p.lost, p.recovered = down && !p.down, p.down && !down
	if p.lost || p.recovered || !p.begun {
		p.since = now
	}
	p.down = down
	if n := connect.Heard(s); n != p.heard || pending == 0 || !p.begun {
		p.heard, p.heardAt = n, now
	}
	p.begun = true
	switch {
	case down && pending > 0 && now.Sub(p.since) >= p.retry:
		return away
	case !down && p.limit > 0 && now.Sub(p.heardAt) >= p.limit && now.Sub(p.since) >= settle:
		return silent
	}
	return goOn
}

// attend reports the state of the connection until ctx ends. It ends the work when the connection has been down, or
// silent, for too long.
func (r *Target) attend(ctx context.Context, cmd *cobra.Command, o *Options, cancel context.CancelCauseFunc) {
	p := patience{retry: o.retry, limit: o.Timeout}
	if p.limit > 0 {
		p.limit = max(p.limit, p.retry)
	}
	tick := time.NewTicker(min(retryTick, o.retry/8+time.Millisecond))
	defer tick.Stop()
	var spoke connect.Pace
	told := false
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			pending := r.Pending()
			v := p.step(now, r.Transport().Stats(), len(pending))
			switch {
			case p.lost && spoke.Allows():
				told = true
				r.Notice(cmd.ErrOrStderr(), o.JSON, fmt.Sprintf("connection lost, trying for %v to get it back", o.retry))
			case p.recovered && told:
				told = false
				r.Notice(cmd.ErrOrStderr(), o.JSON, "connected again")
			}
			switch v {
			case away:
				err := r.reach(ctx)
				if err == nil {
					continue // it has just come back
				}
				cancel(&awayError{o.retry, err})
				return
			case silent:
				e := o.Stalled(cmd.ErrOrStderr(), r.Known.waitsFor(pending), r.Transport())
				e.Limit = p.limit
				cancel(e)
				return
			}
		}
	}
}

// reach tries to connect once more, to find out why that fails.
func (r *Target) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, retryPause)
	defer cancel()
	c, err := r.Redial(ctx)
	if err == nil {
		c.Close()
	}
	return err
}

// ErrForgotten means that all handles have become stale at once.
var ErrForgotten = errors.New("the server was started again and has forgotten its handles ('rpcrdma serve --state' keeps them)")

// Forgotten returns ErrForgotten for a stale handle if the connection was reestablished and the handle of the export is
// stale too. Otherwise it returns err.
func (r *Target) Forgotten(ctx context.Context, err error) error {
	if !IsStatus(err, nfs.StatusStale) && !IsStatus(err, nfs.StatusBadHandle) || r.Transport().Stats().Conns < 2 {
		return err
	}
	m, mountErr := r.Mount(ctx, r.URL.Path) // from the cache
	if mountErr != nil {
		return err
	}
	if _, e := r.GetAttr(ctx, m.Root); IsStatus(e, nfs.StatusStale) || IsStatus(e, nfs.StatusBadHandle) {
		return ErrForgotten
	}
	return err
}

// noticeJSON is a message that is not an error, as --json prints it to standard error.
type noticeJSON struct {
	Notice string `json:"notice"`
}

// Notice prints a message that is not an error to standard error.
func (r *Target) Notice(stderr io.Writer, asJSON bool, text string) {
	if asJSON {
		_ = cli.NewJSON(stderr).Encode(noticeJSON{text})
		return
	}
	fmt.Fprintf(stderr, "rpcrdma: %s: %s\n", r.Name, text)
}

// Resent reports whether calls have been resent. A call that must not be executed twice may then be answered with the
// error of the second execution, if the server has forgotten the first.
func (r *Target) Resent() bool { return r.Transport().Stats().Resent > 0 }

// LookupAttr is LOOKUP that always returns attributes.
func (r *Target) LookupAttr(ctx context.Context, dir nfs.FileHandle, name string) (nfs.FileHandle, nfs.Attr, error) {
	fh, attr, err := r.Lookup(ctx, dir, name)
	if err == nil && !attr.Present {
		attr.Attr, err = r.GetAttr(ctx, fh)
	}
	return fh, attr.Attr, err
}

// SameFile reports whether two handles, one of which has the given attributes, refer to the same file. Such handles
// need not be equal. RFC 1813 section 2.5, nfs_fh3.
func (r *Target) SameFile(ctx context.Context, fh, other nfs.FileHandle, attr nfs.Attr) bool {
	if fh == other {
		return true
	}
	a, err := r.GetAttr(ctx, fh)
	return err == nil && a.FSID == attr.FSID && a.FileID == attr.FileID
}

// IsStatus reports whether a server has returned status s.
func IsStatus(err error, s nfs.Status) bool {
	status, ok := errors.AsType[*nfs.Error](err)
	return ok && status.Status == s
}

// IsMissing reports whether a server has returned that there is no such file.
func IsMissing(err error) bool { return IsStatus(err, nfs.StatusNoEnt) }
