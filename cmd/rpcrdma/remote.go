package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A remote is a file or directory on a server, and the connection to it.
type remote struct {
	*nfs.Client
	url  *nfs.URL
	name string // for errors: the command, and the URL as it was given
	log  *slog.Logger
	stop []func()

	known *knownNames

	again func(context.Context) (*nfs.Client, error) // makes a new connection
}

// nfsOptions are the flags of commands that use NFS.
type nfsOptions struct {
	options
	mountPort int
	retry     time.Duration // 0: a lost connection ends the command
	conns     int           // at most; 0 is 1
}

// defaultTimeout is how long a server may be silent by default.
const defaultTimeout = time.Minute

func addNFSOptions(cmd *cobra.Command, o *nfsOptions) {
	addOptions(cmd, &o.options, defaultTimeout, "give up after this time without an answer from the server")
	addLookupOption(cmd, &o.options)
	cmd.Flags().Var(portValue{&o.mountPort}, "mount-port",
		"TCP `PORT` of MOUNT, for a server without MOUNT over RDMA (default: ask its rpcbind)")
}

// dial connects to the server of a URL. The context that it returns ends when the command
// is interrupted or the server falls silent. The caller must close the remote.
func (o *nfsOptions) dial(cmd *cobra.Command, u *nfs.URL, name string) (context.Context, *remote, error) {
	return o.dialWithin(cmd.Context(), cmd, u, name)
}

// dialWithin is dial for work that ends with a context.
func (o *nfsOptions) dialWithin(parent context.Context, cmd *cobra.Command, u *nfs.URL, name string) (context.Context, *remote, error) {
	r := &remote{url: u, name: name, log: o.logger(cmd.ErrOrStderr()), known: new(knownNames)}
	ctx, stop := interruptible(parent)
	r.stop = append(r.stop, stop)

	err := o.first(ctx, cmd, r, u, func(ctx context.Context, p fabric.Provider, addr string) (err error) {
		dial := func(ctx context.Context, cfg *transport.ClientConfig) (*nfs.Client, error) {
			return nfs.Dial(ctx, p, addr, &nfs.Options{MountPort: o.mountPort, Transport: cfg, Connections: o.conns})
		}
		r.again = func(ctx context.Context) (*nfs.Client, error) {
			// A lost connection is for the user to know of.
			return dial(ctx, &transport.ClientConfig{NoReconnect: true})
		}
		if o.retry > 0 {
			r.Client, err = dial(ctx, retrying())
		} else {
			r.Client, err = r.again(ctx)
		}
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
		if o.retry > 0 {
			r.attend(ctx, cmd, o, cancelCause)
			return
		}
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

// withHint returns the error of a connection that was not made. A timeout has the same hint
// about the other provider as other errors have.
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

// A hinter is an error after which there is something left to say, whatever has ended the work.
type hinter interface {
	error

	// Hint returns the end of a sentence.
	Hint() string
}

// failed returns err as the error of the command, or the cause of ctx if that has ended.
func (r *remote) failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if r.Client != nil {
		err = r.forgotten(ctx, err)
	}
	hint := ""
	if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
		if h, ok := errors.AsType[hinter](err); ok {
			hint = h.Hint()
		}
		err = cause
		if cause == errInterrupted {
			return fmt.Errorf("%s: %w%s", r.name, cause, hint)
		}
	}
	return fmt.Errorf("%s: %s%s%s", r.name, r.elsewhere(err), explain(err), hint+squashed(err))
}

// elsewhere names, as the beginning of a sentence, the file that a server's answer is about if that
// is not the URL's: a directory on the way to it, or what a symbolic link leads to. Of some files
// no more is known than the handle.
func (r *remote) elsewhere(err error) string {
	var status *nfs.Error
	if !errors.As(err, &status) || !path.IsAbs(status.Path) || status.Path == r.url.Path ||
		errors.As(err, new(*itemError)) || errors.As(err, new(*sourceError)) {
		return ""
	}
	return printable(status.Path) + ": "
}

// squashed is the end of a sentence for root, whom servers take for nobody by default.
func squashed(err error) string {
	if os.Geteuid() == 0 && (isStatus(err, nfs.StatusAcces) || isStatus(err, nfs.StatusPerm)) {
		return "; servers take root for nobody unless they are told not to (--squash none, no_root_squash)"
	}
	return ""
}

// close ends the connection, and waits for outstanding calls if ok.
func (r *remote) close(ok bool) {
	if ok {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_ = r.Shutdown(ctx) // the work is done
		cancel()
	}
	r.Close()
	logStats(r.log, r.Transport().Stats())
	for i := len(r.stop) - 1; i >= 0; i-- {
		r.stop[i]()
	}
}
