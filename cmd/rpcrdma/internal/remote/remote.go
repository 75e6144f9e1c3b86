// Package remote is shared by commands that use the files of an NFS server: flags and URLs, a connection that can
// survive a restart of the server, and which errors concern only one file of several.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A Target is a file or directory on a server, and the connection to it.
type Target struct {
	*nfs.Client
	URL  *nfs.URL // of the file or directory
	Name string   // for errors: the command and the URL as given
	log  *slog.Logger
	stop []func()

	Known *knownNames // for timeout errors

	Redial func(context.Context) (*nfs.Client, error) // makes a new connection
}

// Options holds the flags of commands that use NFS.
type Options struct {
	connect.Options
	KerberosOptions
	mountPort int
	retry     time.Duration // 0: a lost connection ends the command
	Conns     int           // maximum; 0 means 1
}

// DefaultTimeout is how long a server may be silent by default.
const DefaultTimeout = time.Minute

// portValue is a flag value for a port, zero if not given.
type portValue struct{ port *int }

func (v portValue) Type() string { return "PORT" }

func (v portValue) String() string {
	if v.port == nil || *v.port == 0 {
		return ""
	}
	return strconv.Itoa(*v.port)
}

func (v portValue) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return errors.New("want 1 to 65535")
	}
	*v.port = int(n)
	return nil
}

// AddOptions adds the flags of commands that use NFS.
func AddOptions(cmd *cobra.Command, o *Options) {
	connect.AddOptions(cmd, &o.Options, DefaultTimeout, "give up after this time without an answer from the server")
	connect.AddLookupOption(cmd, &o.Options)
	cmd.Flags().Var(portValue{&o.mountPort}, "mount-port",
		"TCP `PORT` of MOUNT, for a server without MOUNT over RDMA (default: ask its rpcbind)")
	AddKerberosOptions(cmd, &o.KerberosOptions)
}

// Dial connects to the server of a URL. The returned context ends when the command is interrupted or the server stops
// answering. The caller must call End.
func (o *Options) Dial(cmd *cobra.Command, u *nfs.URL, name string) (context.Context, *Target, error) {
	return o.DialWithin(cmd.Context(), cmd, u, name)
}

// DialWithin is Dial for work that also ends with parent.
func (o *Options) DialWithin(parent context.Context, cmd *cobra.Command, u *nfs.URL, name string) (context.Context, *Target, error) {
	if err := o.CheckKerberos(cmd); err != nil {
		return nil, nil, err
	}
	r := &Target{URL: u, Name: name, log: o.Logger(cmd.ErrOrStderr()), Known: new(knownNames)}
	ctx, stop := cli.Interruptible(parent)
	r.stop = append(r.stop, stop)

	security, err := o.Security("nfs@" + u.Host)
	if err != nil {
		defer stop()
		return nil, nil, r.Failed(ctx, err)
	}
	err = o.first(ctx, cmd, r, u, func(ctx context.Context, p fabric.Provider, addr string, tls *transport.TLS) (err error) {
		dial := func(ctx context.Context, cfg *transport.ClientConfig) (*nfs.Client, error) {
			cfg.TLS = tls
			return nfs.Dial(ctx, p, addr, &nfs.Options{MountPort: o.mountPort, Security: security, Transport: cfg, Connections: o.Conns})
		}
		r.Redial = func(ctx context.Context) (*nfs.Client, error) {
			// The user should know about a lost connection.
			return dial(ctx, &transport.ClientConfig{NoReconnect: true})
		}
		if o.retry > 0 {
			r.Client, err = dial(ctx, retrying())
		} else {
			r.Client, err = r.Redial(ctx)
		}
		return err
	})
	if err != nil {
		defer stop()
		return nil, nil, r.Failed(ctx, err)
	}
	connect.LogInfo(r.log, r.Transport().Info())

	ctx, cancelCause := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if o.retry > 0 {
			r.attend(ctx, cmd, o, cancelCause)
			return
		}
		if o.Timeout == 0 {
			return
		}
		tick := time.NewTicker(max(o.Timeout/8, time.Millisecond))
		defer tick.Stop()
		if connect.AwaitSilence(ctx, tick.C, o.Timeout, r.Transport().Stats) {
			cancelCause(o.Stalled(cmd.ErrOrStderr(), r.Known.waitsFor(r.Pending()), r.Transport()))
		}
	}()
	r.stop = append(r.stop, func() { cancelCause(nil); <-done })
	return ctx, r, nil
}

// A Hinter is an error with an additional hint, whatever ended the work.
type Hinter interface {
	error

	// Hint returns the end of a sentence.
	Hint() string
}

// Failed returns err as the error of the command, or the cause of ctx if ctx has ended.
func (r *Target) Failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if r.Client != nil {
		err = r.Forgotten(ctx, err)
	}
	hint := ""
	if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
		if h, ok := errors.AsType[Hinter](err); ok {
			hint = h.Hint()
		}
		err = cause
		if cause == cli.ErrInterrupted {
			return fmt.Errorf("%s: %w%s", r.Name, cause, hint)
		}
	}
	return fmt.Errorf("%s: %s%s%s", r.Name, r.elsewhere(err), explain.Text(err), hint+squashed(err))
}

// elsewhere returns the beginning of a sentence that names the file of a server's error if it is not the URL's: a
// directory on the path, or the target of a symbolic link. For some files only the handle is known.
func (r *Target) elsewhere(err error) string {
	var status *nfs.Error
	if !errors.As(err, &status) || !path.IsAbs(status.Path) || status.Path == r.URL.Path ||
		errors.As(err, new(*explain.ItemError)) || errors.As(err, new(*SourceError)) {
		return ""
	}
	return explain.Printable(status.Path) + ": "
}

// squashed returns OfRoot for a permission error.
func squashed(err error) string {
	if IsStatus(err, nfs.StatusAcces) || IsStatus(err, nfs.StatusPerm) {
		return OfRoot()
	}
	return ""
}

// OfRoot returns the end of a sentence about missing rights of root, which servers map to the user nobody by default.
func OfRoot() string {
	if os.Geteuid() == 0 {
		return "; servers take root for nobody unless they are told not to (--squash none, no_root_squash)"
	}
	return ""
}

// End closes the connection. If ok is set, it waits for outstanding calls.
func (r *Target) End(ok bool) {
	if ok {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_ = r.Shutdown(ctx) // the work is done anyway
		cancel()
	}
	r.Close()
	connect.LogStats(r.log, r.Transport().Stats())
	for i := len(r.stop) - 1; i >= 0; i-- {
		r.stop[i]()
	}
}

// IsExport reports whether the URL is that of an export, which has no parent directory that could be modified.
func (r *Target) IsExport(ctx context.Context) bool {
	m, err := r.Mount(ctx, r.URL.Path)
	return err == nil && m.Rest == ""
}

// A SourceError is an error of the source server of a command with two servers.
type SourceError struct{ err error }

func (e *SourceError) Error() string { return "reading it: " + e.err.Error() }

func (e *SourceError) Unwrap() error { return e.err }

// Explain says that reading failed.
func (e *SourceError) Explain() string { return "reading it: " + explain.Text(e.err) }

// ReadError converts an error of reading to a *SourceError, except io.EOF.
func ReadError(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &SourceError{err}
}

// AddParallelOption adds the option for the number of calls in flight.
func AddParallelOption(cmd *cobra.Command, parallel *int) {
	cmd.Flags().IntVarP(parallel, "parallel", "P", 8, "keep up to `N` calls in flight")
}

// CheckParallel rejects invalid values of --parallel.
func CheckParallel(cmd *cobra.Command, parallel int) error {
	if parallel < 1 || parallel > transport.MaxCredits {
		return cli.Usage(cmd, fmt.Errorf("--parallel is %d, want 1 to %d", parallel, transport.MaxCredits))
	}
	return nil
}

// Below returns the part of path below dir. Both are clean and absolute.
func Below(path, dir string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
}

// InDir returns the path of an entry below the requested directory. Unlike path.Join, it keeps the name unchanged,
// whatever it contains.
func InDir(rel, name string) string {
	if rel == "" || rel == "." {
		return name
	}
	return rel + "/" + name
}

// ConcernsOne reports whether err concerns only one of several files, so that work can continue with the others.
func ConcernsOne(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return false
	}
	if status, ok := errors.AsType[*nfs.Error](err); ok {
		switch status.Status {
		case nfs.StatusROFS, nfs.StatusNoSpc, nfs.StatusDQuot:
			return false // the next one would fail in the same way
		}
		return true
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		switch errno {
		case syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM:
			return false
		}
	}
	var (
		name    *nfs.NameError
		changed *nfs.ChangedError
		reply   *nfs.BadReplyError
		denied  *oncrpc.RPCError
		refused *rpc.RDMAError
		path    *fs.PathError
		link    *os.LinkError
	)
	return errors.As(err, &name) || errors.As(err, &changed) || errors.As(err, &reply) ||
		errors.As(err, &denied) || errors.As(err, &refused) || errors.As(err, &path) || errors.As(err, &link) ||
		errors.Is(err, nfs.ErrDirectory) || errors.Is(err, io.ErrUnexpectedEOF)
}
