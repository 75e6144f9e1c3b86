package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

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
	stderr   io.Writer
	start    time.Time

	meter   *meter
	dirs    int
	links   int
	skipped int

	mu   sync.Mutex
	left []leftover // what a put could not remove after it failed
}

// skip tells about something that cannot be copied. The rest is.
func (t *transfer) skip(path string, why string) {
	t.skipped++
	fmt.Fprintf(t.stderr, "rpcrdma: %s: %s skipped: %s\n", t.name, printable(path), why)
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
		what := "things were"
		if t.skipped == 1 {
			what = "thing was"
		}
		return fmt.Errorf("%s: %d %s skipped, all else is copied", t.name, t.skipped, what)
	}
	return nil
}

// smallFile is the size up to which a file takes one call to move, in bytes.
const smallFile = 1 << 20

// copyAll calls work for every file, so that no more than t.parallel calls are in
// flight: for small files side by side, for large ones one after the other with
// that many calls each. It returns the first error, after all work has ended.
func copyAll[F any](ctx context.Context, t *transfer, files []F, size func(F) int64, work func(ctx context.Context, f F, parallel int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan F)
	var wg sync.WaitGroup
	for range t.parallel {
		wg.Go(func() {
			for f := range queue {
				if err := work(ctx, f, 1); err != nil {
					cancel(err) // the first one stays
				}
			}
		})
	}
	var large []F
feed:
	for _, f := range files {
		if size(f) > smallFile {
			large = append(large, f)
			continue
		}
		select {
		case queue <- f:
		case <-ctx.Done():
			break feed
		}
	}
	close(queue)
	wg.Wait()
	for _, f := range large {
		if ctx.Err() != nil {
			break
		}
		if err := work(ctx, f, t.parallel); err != nil {
			cancel(err)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// errIsDir is why a directory is not copied.
var errIsDir = errors.New("is a directory (-r copies it)")

// partName is a name for a file that is not whole yet. Neither a get nor a put that
// was killed leaves anything under the name that was asked for.
func partName() string { return ".rpcrdma-" + strings.ToLower(rand.Text()[:12]) + ".part" }
