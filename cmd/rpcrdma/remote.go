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

	known names

	again func(context.Context) (*nfs.Client, error) // makes another connection
}

// nfsOptions are the options of commands that speak NFS.
type nfsOptions struct {
	options
	mountPort int
}

// defaultTimeout is how long a server may be silent.
const defaultTimeout = time.Minute

func addNFSOptions(cmd *cobra.Command, o *nfsOptions) {
	addOptions(cmd, &o.options, defaultTimeout, "give up when nothing has come from the server for so long, though it has been asked")
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

	err := o.connectURL(ctx, cmd.ErrOrStderr(), u, func(ctx context.Context, p fabric.Provider, addr string) (err error) {
		r.again = func(ctx context.Context) (*nfs.Client, error) {
			return nfs.Dial(ctx, p, addr, &nfs.Options{
				MountPort: o.mountPort,
				// A lost connection is for the user to know of.
				Transport: &transport.Config{NoReconnect: true},
			})
		}
		r.Client, err = r.again(ctx)
		return err
	})
	if err != nil {
		defer stop()
		return nil, nil, r.failed(ctx, err)
	}
	logInfo(r.log, r.Transport().Info())

	ctx, cancelCause := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if o.timeout == 0 {
			return
		}
		tick := time.NewTicker(max(o.timeout/8, time.Millisecond))
		defer tick.Stop()
		if watch(ctx, tick.C, o.timeout, r.Transport().Stats) {
			cancelCause(o.stalled(cmd.ErrOrStderr(), r.known.waitsFor(r.Pending()), r.Transport()))
		}
	}()
	r.stop = append(r.stop, func() { cancelCause(nil); <-done })
	return ctx, r, nil
}

// withHint is the error of a connection that was not made. When that took too long it says
// what else may be tried, as other errors do.
func withHint(ctx context.Context, err error) error {
	stall, ok := context.Cause(ctx).(*stallError)
	if dial, isDial := errors.AsType[*transport.DialError](err); ok && isDial {
		stall.hint = otherProvider(&transport.DialError{Provider: dial.Provider, Addr: dial.Addr, Err: context.DeadlineExceeded})
	}
	if ok {
		return stall
	}
	if cause := context.Cause(ctx); cause == errInterrupted {
		return cause
	}
	return err
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
