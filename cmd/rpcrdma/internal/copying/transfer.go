// Package copying implements the commands that copy the contents of files from an NFS server and to one: cat, get, put
// and cp. Copies appear under their names once complete. With --resume an interrupted copy can continue.
package copying

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// transferOptions are the options of get, put and cp.
type transferOptions struct {
	remote.Options
	recursive bool
	resume    bool
	parallel  int
}

func addTransferOptions(cmd *cobra.Command, o *transferOptions) {
	remote.AddOptions(cmd, &o.Options)
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "r", false, "copy a directory and everything below it")
	remote.AddParallelOption(cmd, &o.parallel)
	connect.AddConnectionsOption(cmd, &o.Conns)
	cmd.Flags().BoolVar(&o.resume, "resume", false, "keep an interrupted copy, and continue it the next time")
	remote.AddRetryOption(cmd, &o.Options)
}

// newTransfer returns the transfer of a command. The target r is what get copies from, and what put and cp copy to.
func (o *transferOptions) newTransfer(cmd *cobra.Command, r *remote.Target) (*transfer, error) {
	t := &transfer{Target: r, parallel: o.parallel, json: o.JSON, stderr: cmd.ErrOrStderr(), start: time.Now(), meter: new(meter)}
	if !o.resume {
		return t, nil
	}
	var err error
	t.records, err = resumeDir()
	return t, err
}

// transfer is a get, put or cp in progress.
type transfer struct {
	*remote.Target
	parallel int
	json     bool
	stderr   io.Writer
	start    time.Time
	from     *remote.Target // source of cp
	records  string         // directory of the records of --resume; empty: disabled
	wantsDir bool           // the destination URL ends in a slash

	sameServer bool // for cp: both URLs have the same address

	meter  *meter
	dirs   int
	links  int
	opened []openedDir

	mu      sync.Mutex // guards the fields below
	skipped int
	had     int        // files that existed already, with --resume
	left    []leftover // files that a failed put could not remove
}

// has counts a file that existed already.
func (t *transfer) has() {
	t.mu.Lock()
	t.had++
	t.mu.Unlock()
}

// skip reports an object that cannot be copied.
func (t *transfer) skip(path string, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.skipped++
	cli.PrintSkipped(t.stderr, t.json, t.Name, path, why)
}

// ResultJSON is the result of get, put and cp as --json prints it.
type ResultJSON struct {
	URL         string    `json:"url"`             // for cp, the destination
	Local       string    `json:"local,omitempty"` // for get and put
	From        string    `json:"from,omitempty"`  // for cp, the source
	Files       int       `json:"files"`
	Unchanged   int       `json:"unchanged"` // files that were complete already, with --resume
	Directories int       `json:"directories"`
	Links       int       `json:"links"`
	Skipped     int       `json:"skipped"`
	Bytes       int64     `json:"bytes"`
	Seconds     float64   `json:"seconds"`
	Stats       rpc.Stats `json:"stats"`
}

// finish cleans up after a transfer that ended with err, and prints the result, in which Local or From is set.
func (t *transfer) finish(ctx context.Context, result ResultJSON, stdout io.Writer, err error) error {
	result.Seconds = time.Since(t.start).Seconds()
	result.Stats = t.Transport().Stats()
	err = t.Failed(ctx, err)
	t.clean()
	t.End(err == nil)
	if err != nil {
		return err
	}
	if t.json {
		result.URL, result.Bytes = t.URL.String(), t.meter.bytes
		result.Files, result.Unchanged, result.Directories, result.Links, result.Skipped = t.meter.files, t.had, t.dirs, t.links, t.skipped
		if err := cli.PrintJSON(stdout, result); err != nil {
			return err
		}
	}
	if t.skipped > 0 {
		return fmt.Errorf("%s: %s skipped, everything else is copied", t.Name, cli.Things(t.skipped))
	}
	return nil
}

// passable is remote.ConcernsOne for copies, which have additional errors.
func passable(ctx context.Context, err error) bool {
	if remote.ConcernsOne(ctx, err) {
		return true
	}
	if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return false
	}
	return errors.As(err, new(*changedError)) || errors.Is(err, errUnderWay) || errors.Is(err, errNotFile) ||
		errors.Is(err, errInTheWay) || errors.Is(err, errOtherInTheWay)
}

// pass handles the result of copying one item of a tree: it skips errors that concern only that item.
func (t *transfer) pass(ctx context.Context, rel string, err error) error {
	if err != nil {
		err = t.Forgotten(ctx, err)
		if t.from != nil {
			err = t.from.Forgotten(ctx, err)
		}
	}
	switch {
	case err == remote.ErrForgotten:
		return err
	case err == nil:
		return nil
	case passable(ctx, err):
		t.skip(rel, explain.Text(err))
		return nil
	}
	return explain.Item(rel, err)
}

// smallFile is the largest file that one READ or WRITE copies, in bytes.
const smallFile = 1 << 20

// maxLarge is how many large files are left until the end. Further ones are copied immediately.
const maxLarge = 1 << 14

// copier copies files with up to parallel calls in flight: small files in parallel as they are added, large ones at the
// end, one after the other with that many calls each.
type copier[F any] struct {
	parallel int
	work     func(ctx context.Context, f F, parallel int) error

	ctx     context.Context // ends with the first error
	cancel  context.CancelCauseFunc
	queue   chan F
	running sync.WaitGroup
	large   []F
}

// newCopier returns a copier that calls work for each file. wait must be called.
func newCopier[F any](ctx context.Context, parallel int, work func(ctx context.Context, f F, parallel int) error) *copier[F] {
	c := &copier[F]{parallel: parallel, work: work, queue: make(chan F)}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	for range parallel {
		c.running.Go(func() {
			for f := range c.queue {
				if err := work(c.ctx, f, 1); err != nil {
					c.cancel(err) // the first error wins
				}
			}
		})
	}
	return c
}

// add copies a file after waiting for a free worker. It returns the error that has ended the work.
func (c *copier[F]) add(f F, size int64) error {
	if size > smallFile {
		if len(c.large) < maxLarge {
			c.large = append(c.large, f)
			return nil
		}
		if err := c.work(c.ctx, f, c.parallel); err != nil {
			c.cancel(err)
		}
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		return nil
	}
	select {
	case c.queue <- f:
		return nil
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// wait copies the large files, unless the caller has failed with err. It returns the first error after all work has
// ended.
func (c *copier[F]) wait(err error) error {
	if err != nil {
		c.cancel(err)
	}
	defer c.cancel(nil)
	close(c.queue)
	c.running.Wait()
	for _, f := range c.large {
		if c.ctx.Err() != nil {
			break
		}
		if err := c.work(c.ctx, f, c.parallel); err != nil {
			c.cancel(err)
		}
	}
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return nil
}

// openedDir is a directory of a copy with more rights for its owner than the original has, until the directory is
// filled.
type openedDir struct {
	rel  string         // below the top, "." for the top
	fh   nfs.FileHandle // on a server
	more uint32         // additional permissions
}

// ownerRights are the permissions that the owner of a directory needs to fill it.
const ownerRights = 0o700

// errIsDir is the reason why a directory is not copied without -r.
var errIsDir = errors.New("is a directory (-r copies it)")

// direction says which arguments of a copying command are URLs.
type direction struct{ from, to bool }

// directions maps directions to commands. Immutable.
var directions = map[direction]string{{true, false}: "get", {false, true}: "put", {true, true}: "cp"}

// checkDirection rejects arguments that are for another command.
func checkDirection(cmd *cobra.Command, args []string) error {
	if len(args) < 2 {
		return nil
	}
	other, ok := directions[direction{connect.IsURL(args[0]), connect.IsURL(args[1])}]
	if !ok || other == cmd.Name() {
		return nil
	}
	return cli.Usage(cmd, fmt.Errorf("'rpcrdma %s %s %s' copies that", other, args[0], args[1]))
}
