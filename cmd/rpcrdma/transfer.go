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
	addParallelOption(cmd, &o.parallel)
}

func addParallelOption(cmd *cobra.Command, parallel *int) {
	cmd.Flags().IntVarP(parallel, "parallel", "P", 8, "keep up to `N` calls in flight")
}

// checkParallel refuses invalid values of --parallel.
func checkParallel(cmd *cobra.Command, parallel int) error {
	if parallel < 1 || parallel > transport.MaxCredits {
		return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("--parallel is %d, want 1 to %d", parallel, transport.MaxCredits)}
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
	left []leftover // that a failed put could not remove
}

// skip reports something that cannot be copied.
func (t *transfer) skip(path string, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.skipped++
	printSkipped(t.stderr, t.json, t.name, path, why)
}

// resultJSON is the result of get and put as --json prints it.
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

// finish cleans up after a transfer that ended with err, and prints the result.
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
		return fmt.Errorf("%s: %s skipped, everything else is copied", t.name, things(t.skipped))
	}
	return nil
}

// things returns "1 thing was" or "2 things were".
func things(n int) string {
	if n == 1 {
		return "1 thing was"
	}
	return fmt.Sprintf("%d things were", n)
}

// passable reports whether err concerns only one of the server's files, so that the others
// can be copied.
func passable(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return false
	}
	var (
		status  *nfs.Error
		name    *nfs.NameError
		changed *nfs.ChangedError
		reply   *nfs.BadReplyError
		rpc     *oncrpc.RPCError
		refused *transport.RDMAError
	)
	if errors.As(err, &status) {
		switch status.Status {
		case nfs.StatusROFS, nfs.StatusNoSpc, nfs.StatusDQuot:
			return false // the next file would get the same
		}
		return true
	}
	return errors.As(err, &changed) || errors.As(err, &name) || errors.As(err, &reply) || errors.As(err, &rpc) ||
		errors.As(err, &refused) || errors.Is(err, nfs.ErrDirectory) || errors.Is(err, io.ErrUnexpectedEOF)
}

// smallFile is the size up to which one READ or WRITE moves a file, in bytes.
const smallFile = 1 << 20

// A copier copies files with no more than parallel calls in flight: small files in
// parallel as they are added, large ones at the end, one after the other with that many
// calls each.
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

// add has a file copied, after waiting for a free worker. It returns the error that has
// ended the work.
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

// wait copies the large files, unless the caller has failed with err. It returns the first
// error when all work has ended.
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

// errIsDir is why a directory is not copied without -r.
var errIsDir = errors.New("is a directory (-r copies it)")

// partName returns a name for an incomplete file. A get or put that is killed leaves
// nothing incomplete under the name that was asked for.
func partName() string { return ".rpcrdma-" + strings.ToLower(rand.Text()[:12]) + ".part" }
