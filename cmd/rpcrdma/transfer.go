package main

import (
	"context"
	"crypto/rand"
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
	"github.com/rpcrdma/rpcrdma/transport"
)

// transferOptions are the options of get and put.
type transferOptions struct {
	nfsOptions
	recursive bool
	parallel  int
}

func addTransferOptions(cmd *cobra.Command, o *transferOptions) {
	addNFSOptions(cmd, &o.nfsOptions)
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "r", false, "copy a directory and everything below it")
	cmd.Flags().IntVarP(&o.parallel, "parallel", "P", 8, "keep up to `N` calls in flight")
}

// check refuses options that make no sense.
func (o *transferOptions) check(cmd *cobra.Command) error {
	if o.parallel < 1 || o.parallel > transport.MaxCredits {
		return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("--parallel is %d, want 1 to %d", o.parallel, transport.MaxCredits)}
	}
	return nil
}

// A transfer is a get or put under way.
type transfer struct {
	*remote
	parallel int
	json     bool
	stderr   io.Writer
	start    time.Time

	meter   *meter
	dirs    int
	links   int
	skipped int

	mu   sync.Mutex // skipped and left
	left []leftover // what a put could not remove after it failed
}

// skip tells about something that cannot be copied. The rest is.
func (t *transfer) skip(path string, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.skipped++
	printSkipped(t.stderr, t.json, t.name, path, why)
}

// resultJSON is what get and put print with --json.
type resultJSON struct {
	URL         string    `json:"url"`
	Local       string    `json:"local"`
	Files       int       `json:"files"`
	Directories int       `json:"directories"`
	Links       int       `json:"links"`
	Skipped     int       `json:"skipped"`
	Bytes       int64     `json:"bytes"`
	Seconds     float64   `json:"seconds"`
	Stats       statsJSON `json:"stats"`
}

// finish ends a transfer that ended with err, and tells how it went.
func (t *transfer) finish(ctx context.Context, local string, asJSON bool, stdout io.Writer, err error) error {
	seconds := time.Since(t.start).Seconds()
	stats := t.Transport().Stats()
	err = t.failed(ctx, err)
	t.clean()
	t.close(err == nil)
	if err != nil {
		return err
	}
	if asJSON {
		if err := printJSON(stdout, resultJSON{
			URL: t.url.String(), Local: local, Files: t.meter.files, Directories: t.dirs, Links: t.links,
			Skipped: t.skipped, Bytes: t.meter.bytes, Seconds: seconds, Stats: newStatsJSON(stats),
		}); err != nil {
			return err
		}
	}
	if t.skipped > 0 {
		return fmt.Errorf("%s: %s skipped, all else is copied", t.name, things(t.skipped))
	}
	return nil
}

// things is a number of things that something was done to.
func things(n int) string {
	if n == 1 {
		return "1 thing was"
	}
	return fmt.Sprintf("%d things were", n)
}

// passable tells whether err is what the server has said about one of its files alone,
// so that the others can be had all the same.
func passable(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return false
	}
	var (
		status  *nfs.Error
		name    *nfs.NameError
		reply   *nfs.ReplyError
		rpc     *oncrpc.RPCError
		refused *transport.RDMAError
	)
	return errors.As(err, &status) || errors.As(err, &name) || errors.As(err, &reply) || errors.As(err, &rpc) ||
		errors.As(err, &refused) || errors.Is(err, nfs.ErrDirectory) || errors.Is(err, io.ErrUnexpectedEOF)
}

// smallFile is the size up to which a file takes one call to move, in bytes.
const smallFile = 1 << 20

// A copier copies files so that no more than parallel calls are in flight: small files
// side by side as they are added, large ones at the end, one after the other, with that
// many calls each.
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
					c.cancel(err) // the first one stays
				}
			}
		})
	}
	return c
}

// add has a file copied, and waits until somebody is free to do so. It returns the error
// that has ended the work.
func (c *copier[F]) add(f F, size int64) error {
	if size > smallFile {
		c.large = append(c.large, f)
		return nil
	}
	select {
	case c.queue <- f:
		return nil
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// wait copies what has been left for the end, unless err, what the caller has failed
// with, is one. It returns the first error, after all work has ended.
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

// errIsDir is why a directory is not copied.
var errIsDir = errors.New("is a directory (-r copies it)")

// partName is a name for a file that is not whole yet. Neither a get nor a put that
// was killed leaves anything under the name that was asked for.
func partName() string { return ".rpcrdma-" + strings.ToLower(rand.Text()[:12]) + ".part" }
