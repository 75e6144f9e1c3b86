package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A remote is an object at a server, and the connection to it.
type remote struct {
	*nfs.Client
	url  *nfs.URL
	name string // of the work, for errors: the command and the URL as it was given
	log  *slog.Logger
	stop []func()

	again func(context.Context) (*nfs.Client, error) // makes another connection
}

// nfsOptions are the options of commands that speak NFS.
type nfsOptions struct {
	options
	mountPort int
}

// defaultTimeout is how long a server may be silent.
const defaultTimeout = 30 * time.Second

func addNFSOptions(cmd *cobra.Command, o *nfsOptions) {
	addOptions(cmd, &o.options, defaultTimeout, "give up when the server has not answered for so long")
	addLookupOption(cmd, &o.options)
	cmd.Flags().IntVar(&o.mountPort, "mount-port", 0,
		"the TCP `PORT` of MOUNT at a server that does not have it on the RDMA connection (default: ask its rpcbind)")
}

// dial connects to the server of a URL, and has rpcbind tell the port if it is to be
// asked. The context that it returns ends when the command is interrupted or the
// server falls silent. close must be called.
func (o *nfsOptions) dial(cmd *cobra.Command, u *nfs.URL, name string) (context.Context, *remote, error) {
	r := &remote{url: u, name: name, log: o.logger(cmd.ErrOrStderr())}
	ctx, stop := interruptible(cmd.Context())
	r.stop = append(r.stop, stop)

	silent := &silentError{o.timeout}
	dialCtx, cancel := context.WithTimeoutCause(ctx, o.timeout, silent)
	defer cancel()
	var p fabric.Provider
	var err error
	if o.rpcbind != "" {
		u.Port, err = o.lookupPort(dialCtx, u.Host, nfs.Program, nfs.Version)
	}
	if err == nil {
		p, err = o.newClient(dialCtx, cmd.ErrOrStderr(), u.Addr())
	}
	if err == nil {
		r.again = func(ctx context.Context) (*nfs.Client, error) {
			return nfs.Dial(ctx, p, u.Addr(), &nfs.Options{
				MountPort: o.mountPort,
				// That the connection is lost is for whoever waits to know.
				Transport: &transport.Config{NoReconnect: true},
			})
		}
		r.Client, err = r.again(dialCtx)
	}
	if err != nil {
		defer stop()
		hint := ""
		if dial, ok := errors.AsType[*transport.DialError](err); ok && context.Cause(dialCtx) == error(silent) {
			hint = otherProvider(dial)
		}
		err = r.failed(dialCtx, err)
		return nil, nil, fmt.Errorf("%w%s", err, hint)
	}
	logInfo(r.log, r.Transport().Info())

	ctx, cancelCause := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if watch(ctx, r.Client, o.timeout) {
			cancelCause(&silentError{o.timeout})
		}
	}()
	r.stop = append(r.stop, func() { cancelCause(nil); <-done })
	return ctx, r, nil
}

// A silentError says that a server does not answer.
type silentError struct{ d time.Duration }

func (e *silentError) Error() string { return fmt.Sprintf("no answer from the server for %v", e.d) }

// watch waits until calls are under way and no reply has come for d, and returns
// true; or until ctx ends.
func watch(ctx context.Context, c *nfs.Client, d time.Duration) (silent bool) {
	tick := time.NewTicker(max(d/8, time.Millisecond))
	defer tick.Stop()
	var seen uint64
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return false
		case now := <-tick.C:
			s := c.Transport().Stats()
			if s.Replies != seen || s.Calls <= s.Replies+s.Cancelled {
				seen, since = s.Replies, now
			} else if now.Sub(since) >= d {
				return true
			}
		}
	}
}

// failed is err with the URL in front, as the command's error. ctx is the one that
// the work was done with.
func (r *remote) failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
		err = cause
	}
	return fmt.Errorf("%s: %w", r.name, explained(err))
}

// close ends the connection: in order if all went well.
func (r *remote) close(ok bool) {
	if ok {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_ = r.Shutdown(ctx) // what there was to do has been done
		cancel()
	}
	r.Close()
	logStats(r.log, r.Transport().Stats())
	for i := len(r.stop) - 1; i >= 0; i-- {
		r.stop[i]()
	}
}
