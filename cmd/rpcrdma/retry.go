package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/transport"
)

// How a copy outlives its server's restart: the transport makes the connection again and sends
// calls without a reply once more, and data that the server has lost before COMMIT is written
// again by package nfs. What remains is to say what happens, to give up in the end, and to see
// through calls that were executed by the server that is gone and are answered by the next one.

// retryHelp explains --retry in the help of the commands that have it.
const retryHelp = `With --retry, a server that is started again in the middle does not end the copy, if its
handles survive that: those of 'rpcrdma serve' do with --state. A server that is not there
at the beginning is waited for as long. One that is connected and silent ends the copy after
the longer of --retry and --timeout.

`

func addRetryOption(cmd *cobra.Command, o *nfsOptions) {
	cmd.Flags().Var(newLimit(&o.retry), "retry", "without a connection, try for this long to get one, and go on")
}

// Constants of connections with --retry.
const (
	retryPause     = time.Second      // the longest between two attempts
	retryKeepAlive = 10 * time.Second // a server that is gone without a word is noticed after two of them
	retryTick      = 100 * time.Millisecond
)

// retrying is the configuration of a connection with --retry.
func retrying() *transport.ClientConfig {
	return &transport.ClientConfig{MaxPause: retryPause, KeepAlive: retryKeepAlive}
}

// first makes the first connection, which --retry waits for, too: the server may be about to start
// as well as to start again. Nothing but time mends other errors.
func (o *nfsOptions) first(ctx context.Context, cmd *cobra.Command, r *remote, u *nfs.URL, dial dialer) error {
	end := time.Now().Add(o.retry)
	for told := false; ; {
		err := o.connectURL(ctx, cmd.ErrOrStderr(), u, dial)
		if err == nil && told {
			r.notice(cmd.ErrOrStderr(), o.json, "connected")
		}
		if left := time.Until(end); err == nil || left <= 0 || ctx.Err() != nil || !mayCome(err) {
			return err
		}
		if !told {
			told = true
			r.notice(cmd.ErrOrStderr(), o.json, fmt.Sprintf("%s: trying for %v to get a connection", explain(err), o.retry))
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

// mayCome reports whether a connection may be made later that could not be made now.
func mayCome(err error) bool {
	if errors.As(err, new(*stallError)) || errors.As(err, new(*transport.BusyError)) {
		return true
	}
	dial, ok := errors.AsType[*transport.DialError](err)
	if !ok || errors.As(err, new(*iwarp.StrangerError)) {
		return false
	}
	if _, ended := endText(dial.Err); ended || noAnswer(dial.Err) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	switch errno, _ := errors.AsType[syscall.Errno](dial.Err); errno {
	case syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN, syscall.ETIMEDOUT:
		return true
	}
	return false
}

// An awayError is a server that did not come back.
type awayError struct {
	limit  time.Duration
	reason error // of the latest attempt
}

func (e *awayError) Error() string {
	return fmt.Sprintf("connection lost, and not made again for %v: %s", e.limit, explain(e.reason))
}

// A patience decides when a wait with --retry has been long enough.
type patience struct {
	retry time.Duration // without a connection
	limit time.Duration // without a message, 0: any

	down      bool
	since     time.Time // down, or up
	heard     uint64
	heardAt   time.Time
	begun     bool
	lost      bool // the connection has been lost since the last step
	recovered bool // it has come back since the last step
}

// A verdict is what a patience decides.
type verdict int

const (
	goOn verdict = iota
	away         // there is no connection
	silent
)

// settle is how long a new connection may be silent in any case.
const settle = 5 * time.Second

// step looks at the counters of a connection on which pending calls have no reply.
func (p *patience) step(now time.Time, s transport.Stats, pending int) verdict {
	down := s.OpenConns == 0
	p.lost, p.recovered = down && !p.down, p.down && !down
	if p.lost || p.recovered || !p.begun {
		p.since = now
	}
	p.down = down
	if n := heard(s); n != p.heard || pending == 0 || !p.begun {
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

// attend says what becomes of the connection, until ctx ends, and ends the work when it has been
// lost, or silent, for too long.
func (r *remote) attend(ctx context.Context, cmd *cobra.Command, o *nfsOptions, cancel context.CancelCauseFunc) {
	p := patience{retry: o.retry, limit: o.timeout}
	if p.limit > 0 {
		p.limit = max(p.limit, p.retry)
	}
	tick := time.NewTicker(min(retryTick, o.retry/8+time.Millisecond))
	defer tick.Stop()
	var spoke pace
	told := false
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			pending := r.Pending()
			v := p.step(now, r.Transport().Stats(), len(pending))
			switch {
			case p.lost && spoke.allows():
				told = true
				r.notice(cmd.ErrOrStderr(), o.json, fmt.Sprintf("connection lost, trying for %v to get it back", o.retry))
			case p.recovered && told:
				told = false
				r.notice(cmd.ErrOrStderr(), o.json, "connected again")
			}
			switch v {
			case away:
				err := r.reach(ctx)
				if err == nil {
					continue // it has come back in this moment
				}
				cancel(&awayError{o.retry, err})
				return
			case silent:
				e := o.stalled(cmd.ErrOrStderr(), r.known.waitsFor(pending), r.Transport())
				e.limit = p.limit
				cancel(e)
				return
			}
		}
	}
}

// reach tries to connect once more, to know why that fails.
func (r *remote) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, retryPause)
	defer cancel()
	c, err := r.again(ctx)
	if err == nil {
		c.Close()
	}
	return err
}

// errForgotten means that all handles have become stale at once.
var errForgotten = errors.New("the server was started again and has forgotten its handles ('rpcrdma serve --state' keeps them)")

// forgotten returns errForgotten for an error about a stale handle if that of the export is stale,
// too, since the connection was made again.
func (r *remote) forgotten(ctx context.Context, err error) error {
	if !isStatus(err, nfs.StatusStale) && !isStatus(err, nfs.StatusBadHandle) || r.Transport().Stats().Conns < 2 {
		return err
	}
	m, mountErr := r.Mount(ctx, r.url.Path) // as it was at the beginning
	if mountErr != nil {
		return err
	}
	if _, e := r.GetAttr(ctx, m.Root); isStatus(e, nfs.StatusStale) || isStatus(e, nfs.StatusBadHandle) {
		return errForgotten
	}
	return err
}

// noticeJSON is something that is no error, as --json prints it to standard error.
type noticeJSON struct {
	Notice string `json:"notice"`
}

func (r *remote) notice(stderr io.Writer, asJSON bool, text string) {
	if asJSON {
		_ = newJSON(stderr).Encode(noticeJSON{text})
		return
	}
	fmt.Fprintf(stderr, "rpcrdma: %s: %s\n", r.name, text)
}

// resent reports whether calls have been sent again: one that must not be executed twice may
// then be answered with the error of the second time, if the server has forgotten the first.
func (r *remote) resent() bool { return r.Transport().Stats().Resent > 0 }

// createPart makes an empty file with a name of its own in a directory.
func (t *transfer) createPart(ctx context.Context, dir nfs.FileHandle, mode uint32) (string, nfs.FileHandle, error) {
	part := partName()
	fh, _, err := t.Create(ctx, &nfs.CreateArgs{
		Where: nfs.DirOpArgs{Dir: dir, Name: part},
		Mode:  nfs.Guarded,
		Attr:  nfs.SetAttr{SetMode: true, Mode: mode},
	})
	if isStatus(err, nfs.StatusExist) && t.resent() {
		// Nobody else knows the name.
		fh, err = t.ours(ctx, dir, part, nfs.TypeReg)
	}
	return part, fh, err
}

// symlinkPart makes a symbolic link with a name of its own in a directory.
func (t *transfer) symlinkPart(ctx context.Context, dir nfs.FileHandle, target string) (string, nfs.FileHandle, error) {
	part := partName()
	fh, _, err := t.Symlink(ctx, dir, part, target, new(nfs.SetAttr))
	if isStatus(err, nfs.StatusExist) && t.resent() {
		fh, err = t.ours(ctx, dir, part, nfs.TypeLnk)
	}
	return part, fh, err
}

// ours finds what a call has made whose reply was lost.
func (t *transfer) ours(ctx context.Context, dir nfs.FileHandle, name string, kind nfs.FileType) (nfs.FileHandle, error) {
	fh, attr, err := t.lookup(ctx, dir, name)
	if err == nil && attr.Type != kind {
		err = &nfs.Error{Op: "CREATE", Status: nfs.StatusExist}
	}
	return fh, err
}

// lookup is LOOKUP with attributes in any case.
func (r *remote) lookup(ctx context.Context, dir nfs.FileHandle, name string) (nfs.FileHandle, nfs.Attr, error) {
	fh, attr, err := r.Lookup(ctx, dir, name)
	if err == nil && !attr.Present {
		attr.Attr, err = r.GetAttr(ctx, fh)
	}
	return fh, attr.Attr, err
}

// renamePart gives what createPart or symlinkPart has made its name.
func (t *transfer) renamePart(ctx context.Context, dir, fh nfs.FileHandle, part, name string) error {
	err := t.Rename(ctx, dir, part, dir, name)
	if isMissing(err) && t.resent() {
		if there, attr, e := t.lookup(ctx, dir, name); e == nil && t.sameFile(ctx, fh, there, attr) {
			return nil // the first time it worked
		}
	}
	return err
}

// sameFile reports whether two handles, of which one has the given attributes, are of one file.
// They need not be equal then. RFC 1813 section 2.5, nfs_fh3.
func (r *remote) sameFile(ctx context.Context, fh, other nfs.FileHandle, attr nfs.Attr) bool {
	if fh == other {
		return true
	}
	a, err := r.GetAttr(ctx, fh)
	return err == nil && a.FSID == attr.FSID && a.FileID == attr.FileID
}

func isStatus(err error, s nfs.Status) bool {
	status, ok := errors.AsType[*nfs.Error](err)
	return ok && status.Status == s
}

func isMissing(err error) bool { return isStatus(err, nfs.StatusNoEnt) }
