// Package connect has the flags of all commands that use a connection, and makes connections as they say:
// with a provider, through rpcbind, within a time, recorded to a file.
package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A Dialer connects over p to addr, HOST:PORT.
type Dialer func(ctx context.Context, p fabric.Provider, addr string) error

// connect finds the server at addr, which is HOST with --rpcbind and otherwise HOST:PORT,
// and has dial connect to it with the provider of the options, all within the timeout. It
// returns the address with the port. prog and vers are what rpcbind is asked for.
func (o *Options) connect(ctx context.Context, stderr io.Writer, addr string, prog, vers uint32, dial Dialer) (string, error) {
	var at stage
	ctx, cancel := Within(ctx, o.Timeout, func() error { return o.Stalled(stderr, at.get(), nil) })
	defer cancel()
	if o.Rpcbind != "" {
		host := cli.BareHost(addr)
		at.set("asking the rpcbind at %s", o.rpcbindAt(host))
		port, err := o.lookupPort(ctx, host, prog, vers)
		if err != nil {
			return addr, withHint(ctx, err)
		}
		addr = net.JoinHostPort(host, strconv.Itoa(port))
	}
	at.set("connecting to %s", addr)
	p, err := o.newClient(ctx, stderr, addr)
	if err != nil {
		return addr, withHint(ctx, err)
	}
	at.set("connecting to %s over %s", addr, p.Name())
	if err := dial(ctx, p, addr); err != nil {
		return addr, withHint(ctx, err)
	}
	return addr, nil
}

// ConnectURL is connect to the NFS server of a URL. With --rpcbind, the URL has the port
// afterwards.
func (o *Options) ConnectURL(ctx context.Context, stderr io.Writer, u *nfs.URL, dial Dialer) error {
	if o.Rpcbind == "" {
		_, err := o.connect(ctx, stderr, u.Addr(), nfs.Program, nfs.Version, dial)
		return err
	}
	addr, err := o.connect(ctx, stderr, u.Host, nfs.Program, nfs.Version, dial)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		u.Port, err = strconv.Atoi(port)
	}
	return err
}

// DialAddr connects to an argument that CheckAddr has returned, for a command that reports
// a lost connection instead of making another one. It returns the address with the port.
func (o *Options) DialAddr(ctx context.Context, stderr io.Writer, addr string, prog, vers uint32, cfg *transport.ClientConfig) (c *transport.Client, at string, err error) {
	cfg.NoReconnect = true
	at, err = o.connect(ctx, stderr, addr, prog, vers, func(ctx context.Context, p fabric.Provider, addr string) (err error) {
		c, err = transport.Dial(ctx, p, addr, cfg)
		return err
	})
	return c, at, err
}

// DialGroup is DialAddr with up to so many connections.
func (o *Options) DialGroup(ctx context.Context, stderr io.Writer, addr string, prog, vers uint32, cfg *transport.ClientConfig, conns int) (c transport.Requester, at string, err error) {
	if conns == 1 {
		return o.DialAddr(ctx, stderr, addr, prog, vers, cfg)
	}
	cfg.NoReconnect = true
	at, err = o.connect(ctx, stderr, addr, prog, vers, func(ctx context.Context, p fabric.Provider, addr string) (err error) {
		c, err = transport.DialGroup(ctx, p, []string{addr}, &transport.GroupConfig{ClientConfig: *cfg, Connections: conns})
		return err
	})
	return c, at, err
}

// Null makes one NULL call within the timeout.
func (o *Options) Null(ctx context.Context, stderr io.Writer, c transport.Requester, prog, vers uint32) error {
	ctx, cancel := Within(ctx, o.Timeout, func() error {
		name, _ := dump.Names(prog, vers, 0)
		return o.Stalled(stderr, fmt.Sprintf("NULL of %s version %d", cmp.Or(name, fmt.Sprintf("program %d", prog)), vers), c)
	})
	defer cancel()
	err := c.Null(ctx, prog, vers)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	return err
}

// withHint returns the error of a connection that was not made. A timeout has the same hint
// about the other provider as other errors have.
func withHint(ctx context.Context, err error) error {
	stall, ok := context.Cause(ctx).(*StallError)
	if dial, isDial := errors.AsType[*transport.DialError](err); ok && isDial {
		stall.hint = explain.OtherProvider(&transport.DialError{Provider: dial.Provider, Addr: dial.Addr, Err: context.DeadlineExceeded})
	}
	if ok {
		return stall
	}
	if cause := context.Cause(ctx); cause == cli.ErrInterrupted {
		return cause
	}
	return err
}

// CheckAddr checks an argument HOST or HOST:PORT, and adds the default port. With
// --rpcbind it must be HOST, and stays so. Errors are usage errors.
func (o *Options) CheckAddr(cmd *cobra.Command, arg string) (addr string, err error) {
	if err := o.CheckRPCBind(cmd); err != nil {
		return "", err
	}
	if o.Rpcbind == "" {
		addr, err = cli.WithPort(arg, nfs.Port, false)
	} else if _, port, split := net.SplitHostPort(arg); split == nil {
		err = fmt.Errorf("--rpcbind finds the port: give HOST without :%s", port)
	} else if addr = arg; !cli.IsHost(arg) {
		err = fmt.Errorf("with --rpcbind want HOST, got %q", arg)
	}
	if err != nil {
		return "", cli.Usage(cmd, err)
	}
	return addr, nil
}
